"""Watching: an episode in the terminal, as PNG frames, as a GIF. Draws `Board`s, so every game that gives one can be seen."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import jax
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from rich.text import Text

from otherminds.config import BadInput, require
from otherminds.games.base import Board, Game
from otherminds.rollout import collect, start
from otherminds.types import Seated, Trajectory

# Okabe and Ito's palette, which colour-blind people can tell apart, and a purple and a grey for seats 7 and 8.
SEAT_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7B4FA3", "#5F6B6D")
INK, PAPER, LINE, WALL = "#2b2f36", "#fbfaf6", "#d9d5ca", "#4a4f59"
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont
FINE = 3  # pictures are drawn this many times larger and shrunk, for smooth edges


@dataclass(frozen=True)
class Episode:
    """One episode brought to the host: a board before each step and one after the last, and what each step did."""

    game: Game
    names: tuple[str, ...]  # what sits in each seat
    boards: tuple[Board, ...]
    actions: np.ndarray  # [steps, A], -1 for absent seats
    rewards: np.ndarray  # [steps, A]

    def scores(self, frame: int) -> np.ndarray:
        """Reward of each seat up to a frame."""
        return self.rewards[:frame].sum(0)

    def deed(self, frame: int, seat: int) -> str:
        """The action by which a seat came to a frame."""
        action = self.actions[frame - 1, seat] if frame else -1
        return self.game.action_names[action] if action >= 0 else ""


def record(game: Game, policies: tuple[Seated, ...], names: Sequence[str], seed: int = 0) -> Episode:
    """Play one episode and keep its boards."""
    if game.on_host or type(game).board is Game.board:
        raise BadInput(f"{game.id} cannot be drawn: only games of our own have pictures")
    require(game.longest is not None, f"{game.id} has no longest episode, so it cannot be recorded")

    @jax.jit
    def play(key: jax.Array) -> Trajectory:
        opened = start(game, policies, 1, key)
        return collect(game, policies, opened, game.longest or 0, states=True)[1]

    rows = jax.device_get(play(jax.random.key(seed)))
    length = int(np.argmax(rows.terminated.any(-1)[:, 0] & _over(rows))) + 1
    states = [jax.tree.map(lambda leaf, t=t: leaf[t, 0], rows.state) for t in range(length)]
    states.append(jax.tree.map(lambda leaf: leaf[length - 1, 0], rows.after))
    return Episode(
        game=game,
        names=tuple(names),
        boards=tuple(game.board(state) for state in states),
        actions=rows.action[:length, 0],
        rewards=rows.reward[:length, 0],
    )


def _over(rows: Trajectory) -> np.ndarray:
    """Whether each row of the first game was the last of its episode: what comes next opens another."""
    return np.append(rows.first[1:, 0], rows.last.first[0])


def text(board: Board, episode: Episode | None = None, frame: int = 0) -> Text:
    """A board for the terminal, in colour; with an episode, beside it what each player did and has."""
    seats_at: dict[tuple[int, int], list[int]] = {}
    for seat, player in enumerate(board.players):
        if player is not None:
            seats_at.setdefault((player.row, player.column), []).append(seat)
    things = {(thing.row, thing.column): thing.name for thing in board.things}
    wide = max([4, *(len(name) + 1 for name in things.values() if name not in GLYPHS)])
    picture = Text()
    for row in range(board.height):
        for column in range(board.width):
            picture.append_text(_cell_text(things.get((row, column)), seats_at.get((row, column), []), wide))
        picture.append("\n")
    picture.append(board.caption + "\n", "dim")
    if episode is not None:
        for seat, player in enumerate(board.players):
            colour = f"bold {SEAT_COLOURS[seat]}"
            state = "" if player is not None else "  gone"
            picture.append(f"player_{seat + 1}", colour)
            picture.append(
                f" {episode.names[seat]:<24} {episode.scores(frame)[seat]:8.2f}  {episode.deed(frame, seat):<10}{state}\n"
            )
    return picture


GLYPHS = {"wall": ("##", "dim"), "stag": ("S", "bold #8B5A2B"), "hare": ("h", "#8a8f98"), "drift": ("*", "bold #7FB2D6")}


def _cell_text(name: str | None, seats: list[int], wide: int) -> Text:
    glyph, style = GLYPHS.get(name or "", (name or "", "bold")) if name else (" .", "dim")
    cell = Text()
    if not seats or name:
        cell.append(f" {glyph}" if len(glyph) == 1 else glyph, style)
    for seat in seats:
        cell.append(str(seat + 1), f"bold white on {SEAT_COLOURS[seat]}")
    cell.append(" " * max(0, wide + 2 - len(cell)))
    return cell


def picture(board: Board, episode: Episode | None = None, frame: int = 0, cell: int = 64) -> Image.Image:
    """A board as an image; with an episode, below it who sits where, what they did and what they have."""
    side = cell * FINE
    margin = side // 3
    widest = max(board.width * side, 5 * side if episode else 0)
    lines = len(board.players) if episode else 0
    line = round(side * 0.46)
    size = (widest + 2 * margin, board.height * side + 2 * margin + round(line * 1.1) + lines * line)
    image = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(image)
    left, top = (size[0] - board.width * side) // 2, margin
    for row in range(board.height):
        for column in range(board.width):
            x, y = left + column * side, top + row * side
            draw.rectangle((x, y, x + side, y + side), "#ffffff", LINE, FINE)
    for thing in board.things:
        _icon(thing.name)(draw, left + thing.column * side, top + thing.row * side, side)
    _draw_players(draw, board, left, top, side)
    text_top = top + board.height * side + margin // 3
    draw.text((margin, text_top), board.caption, "#6d7078", _font(round(side * 0.26)))
    for seat in range(lines):
        assert episode is not None
        _draw_line(
            draw, board, episode, frame, seat, margin, text_top + round(line * 1.05) + seat * line, size[0] - 2 * margin, side
        )
    return image.resize((size[0] // FINE, size[1] // FINE), Image.Resampling.LANCZOS)


def _draw_line(
    draw: ImageDraw.ImageDraw, board: Board, episode: Episode, frame: int, seat: int, x: int, y: int, width: int, side: int
) -> None:
    """One player's line below the board: colour, script, last action, score."""
    gone = board.players[seat] is None
    radius = round(side * 0.16)
    _token(draw, x + radius, y + radius, radius, seat, faded=gone)
    ink = "#a9abb0" if gone else INK
    font = _font(round(side * 0.25))
    deed = "gone" if gone and not episode.deed(frame, seat) else episode.deed(frame, seat)
    draw.text((x + 3 * radius, y + radius), _shorten(episode.names[seat], font, width * 0.45), ink, font, anchor="lm")
    draw.text((x + width * 0.56, y + radius), deed, ink, font, anchor="lm")
    draw.text((x + width, y + radius), f"{episode.scores(frame)[seat]:.2f}", ink, font, anchor="rm")


def _shorten(name: str, font: Font, width: float) -> str:
    while font.getlength(name) > width and len(name) > 4:
        name = name[:-2] + "…"
    return name


def _draw_players(draw: ImageDraw.ImageDraw, board: Board, left: int, top: int, side: int) -> None:
    """Players that share a cell stand around its middle, so that each can be seen, and the prey between them too."""
    cells: dict[tuple[int, int], list[int]] = {}
    for seat, player in enumerate(board.players):
        if player is not None:
            cells.setdefault((player.row, player.column), []).append(seat)
    occupied = {(thing.row, thing.column) for thing in board.things}
    for (row, column), seats in cells.items():
        x, y = left + column * side + side / 2, top + row * side + side / 2
        alone = len(seats) == 1 and (row, column) not in occupied
        radius = side * (0.34 if alone else 0.2 if len(seats) <= 4 else 0.15)
        ring = 0 if alone else side * 0.27
        for k, seat in enumerate(seats):
            angle = math.pi * (0.75 + 2 * k / max(len(seats), 1)) if len(seats) > 1 else math.pi * 0.75
            _token(draw, x + ring * math.cos(angle), y + ring * math.sin(angle), radius, seat)


def _token(draw: ImageDraw.ImageDraw, x: float, y: float, radius: float, seat: int, faded: bool = False) -> None:
    colour = "#d4d3cf" if faded else SEAT_COLOURS[seat]
    draw.ellipse((x - radius, y - radius, x + radius, y + radius), colour, PAPER, max(2, round(radius * 0.1)))
    draw.text((x, y), str(seat + 1), "white", _font(round(radius * 1.15)), anchor="mm")


def _icon(name: str) -> Callable[[ImageDraw.ImageDraw, int, int, int], None]:
    known = {"wall": _wall, "stag": _stag, "hare": _hare, "drift": _drift}
    return known.get(name, lambda draw, x, y, side: _card(draw, x, y, side, name))


def _wall(draw: ImageDraw.ImageDraw, x: int, y: int, side: int) -> None:
    draw.rectangle((x, y, x + side, y + side), WALL)


def _stag(draw: ImageDraw.ImageDraw, x: int, y: int, side: int) -> None:
    def at(*points: tuple[float, float]) -> list[tuple[float, float]]:
        return [(x + px * side, y + py * side) for px, py in points]

    thick = max(2, round(side * 0.045))
    for mirror in (1, -1):
        bone = [(0.06, 0.42), (0.16, 0.28), (0.18, 0.1)], [(0.15, 0.3), (0.3, 0.24), (0.34, 0.12)], [(0.1, 0.37), (0.02, 0.22)]
        for points in bone:
            draw.line(at(*((0.5 + mirror * px, py) for px, py in points)), "#B08A52", thick, joint="curve")
        draw.polygon(at((0.5 + mirror * 0.1, 0.44), (0.5 + mirror * 0.32, 0.4), (0.5 + mirror * 0.15, 0.54)), "#8B5A2B")
    draw.polygon(at((0.36, 0.42), (0.64, 0.42), (0.6, 0.7), (0.55, 0.86), (0.45, 0.86), (0.4, 0.7)), "#8B5A2B")
    draw.ellipse((*at((0.44, 0.76))[0], *at((0.56, 0.88))[0]), "#3b2a1a")
    for eye in (0.43, 0.57):
        draw.ellipse((*at((eye - 0.025, 0.52))[0], *at((eye + 0.025, 0.57))[0]), "#20160d")


def _hare(draw: ImageDraw.ImageDraw, x: int, y: int, side: int) -> None:
    def oval(left: float, top: float, right: float, bottom: float, colour: str) -> None:
        draw.ellipse((x + left * side, y + top * side, x + right * side, y + bottom * side), colour)

    for ear in (0.34, 0.52):
        oval(ear, 0.14, ear + 0.14, 0.58, "#9aa0a8")
        oval(ear + 0.04, 0.2, ear + 0.1, 0.52, "#e7c4c4")
    oval(0.28, 0.46, 0.72, 0.84, "#9aa0a8")
    for eye in (0.38, 0.56):
        oval(eye, 0.58, eye + 0.06, 0.65, "#2b2f36")
    oval(0.46, 0.68, 0.54, 0.74, "#c98b8b")


def _drift(draw: ImageDraw.ImageDraw, x: int, y: int, side: int) -> None:
    base = y + 0.8 * side
    for left, right, height, colour in (
        (0.08, 0.56, 0.28, "#b9d6ea"),
        (0.46, 0.94, 0.32, "#cbe1f0"),
        (0.22, 0.78, 0.5, "#e6f2f9"),
    ):
        box = (x + left * side, base - height * side, x + right * side, base + height * side)
        draw.pieslice(box, 180, 360, colour, "#8fb6d2", FINE)
    draw.line((x + 0.05 * side, base, x + 0.95 * side, base), "#8fb6d2", FINE)


def _card(draw: ImageDraw.ImageDraw, x: int, y: int, side: int, name: str) -> None:
    """What has no icon is a card with its name."""
    colour = ("#2f7d4f", "#b5473c", "#35618e", "#7a5a9a")[sum(map(ord, name)) % 4]
    draw.rounded_rectangle((x + side * 0.08, y + side * 0.2, x + side * 0.92, y + side * 0.8), side * 0.1, colour)
    draw.text((x + side / 2, y + side / 2), name, "white", _font(round(min(side * 0.3, 1.35 * side / len(name)))), anchor="mm")


@lru_cache
def _font(size: int) -> Font:
    return ImageFont.load_default(size)


def save_gif(episode: Episode, path: Path, cell: int = 64, milliseconds: int = 450) -> None:
    """All frames of an episode in one GIF that repeats, resting on the last frame."""
    frames = [picture(board, episode, k, cell).quantize(128, dither=Image.Dither.NONE) for k, board in enumerate(episode.boards)]
    durations = [milliseconds] * (len(frames) - 1) + [4 * milliseconds]
    path.parent.mkdir(parents=True, exist_ok=True)
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=durations, loop=0, disposal=1)


def save_pngs(episode: Episode, folder: Path, cell: int = 64) -> list[Path]:
    """One PNG a frame, numbered."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{k:03d}.png" for k in range(len(episode.boards))]
    for k, path in enumerate(paths):
        picture(episode.boards[k], episode, k, cell).save(path)
    return paths
