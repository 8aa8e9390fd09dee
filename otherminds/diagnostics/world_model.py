"""How well the next observation, the reward and the end are foreseen, one step and several steps ahead."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from otherminds.diagnostics.asking import predicted
from otherminds.diagnostics.rounding import number
from otherminds.games.base import Game, is_board
from otherminds.samples import Windows, shows_all
from otherminds.world_model import Step, WorldModel
from otherminds.world_model import binary as binary_entries

LEAVING = {"hunt_stag", "hunt_hare"}  # by nothing else, anybody leaves a board
DEPTHS = (1, 3, 5, 10)
ASKED_AGAIN = 5000  # steps that a model is asked about a second time, with actions that were not turned


def scores(
    model: WorldModel, game: Game, steps: Step, seat: np.ndarray, unturned: np.ndarray, target: np.ndarray | None
) -> dict[str, Any]:
    """All scores of a model on steps of their own players.

    `steps.target` is the reward, `target` [N] what the head was to say, if known. `unturned` [N, A] are the joint actions by
    seat: a model that does better with those has learned from them.
    """
    said, binary = foreseen(model, game, steps), np.asarray(binary_entries(game))
    true = {
        "observation": np.asarray(game.scaled(steps.next_observation)),
        "reward": np.asarray(steps.target),
        "end": np.asarray(steps.end),
    }
    before, laws = np.asarray(steps.observation), is_board(game) and shows_all(game)
    wall = game.seats + game.things.index("wall") if "wall" in game.things else None
    found = measure(before, np.asarray(steps.action), said, true, binary, game.seats, game.action_names, laws, wall)
    if target is not None:
        found["target_mse"] = number(((said["reward"] - target) ** 2).mean())
    found["by_player"] = {
        f"player_{k + 1}": {
            "steps": int((seat == k).sum()),
            "mse": number(((said["observation"] - true["observation"])[seat == k] ** 2).mean()),
            "exact_board": number(exact(said["observation"], true["observation"], binary)[seat == k].mean()),
            "reward_mse": number(((said["reward"] - true["reward"])[seat == k] ** 2).mean()),
        }
        for k in range(game.seats)
        if (seat == k).any()
    }
    moved = np.flatnonzero(np.any(unturned != np.asarray(steps.action), 1))[:ASKED_AGAIN]
    if len(moved):
        few = eqx.tree_at(lambda s: s.action, steps, jnp.asarray(unturned, jnp.int32))
        other = foreseen(model, game, jax.tree.map(lambda leaf: leaf[moved], few))["observation"]
        found["turned"] = {
            name: number(((x - true["observation"][moved]) ** 2).mean())
            for name, x in (("mse", said["observation"][moved]), ("mse_unturned", other))
        }
    return found


def foreseen(model: WorldModel, game: Game, steps: Step) -> dict[str, np.ndarray]:
    """What a model says of steps, never rounded."""
    return {name: np.asarray(part) for name, part in predicted(model, _foreseen, steps, game).items()}


def _foreseen(model: WorldModel, steps: Step, game: Game) -> dict[str, Array]:
    said = model(game.scaled(steps.observation), steps.action, ego=steps.ego)
    return {"observation": said.observation(game), "reward": said.reward, "end": said.end > 0}


def open_loop(model: Any, game: Game, windows: Windows) -> list[dict[str, Any]]:
    """Errors after 1, 3, 5 and 10 steps of a model fed with its own predictions: as they are, and made boards of 0 and 1.

    A `latent` model goes on from its hidden state. A model is whatever makes of observations, joint actions and the seats
    of those who look something that has an `observation(game)`.
    """
    binary = np.asarray(binary_entries(game))
    said = {
        name: np.asarray(predicted(model, _imagined, windows, game, rounded))
        for name, rounded in (("", True), ("_continuous", False))
    }
    true, there = np.asarray(game.scaled(windows.following)), np.asarray(windows.there)
    table = []
    for depth in DEPTHS:
        k, kept = depth - 1, there[:, depth - 1]
        if kept.any():
            row: dict[str, Any] = {"steps": depth, "windows": int(kept.sum())}
            for name, x in said.items():
                row[f"mse{name}"] = number(((x[kept, k] - true[kept, k]) ** 2).mean())
                if binary.any():
                    row[f"exact_board{name}"] = number(exact(x[kept, k], true[kept, k], binary).mean())
            table.append(row)
    return table


def _imagined(model: Any, windows: Windows, game: Game, rounded: bool) -> Float[Array, "n T ..."]:
    binary, actions = binary_entries(game), jnp.swapaxes(windows.action, 0, 1)

    def step(carry: tuple[Array, Any], action: Array) -> tuple[tuple[Array, Any], Array]:
        seen, hidden = carry
        said = model(seen, action, hidden, ego=windows.ego) if model.latent else model(seen, action, ego=windows.ego)
        expected = said.observation(game)
        sure = jnp.where(binary.reshape(1, *binary.shape), jnp.round(expected), expected)
        return (sure if rounded else expected, said.hidden if model.latent else None), expected

    begin = game.scaled(windows.observation)
    start = (begin, model.encode(begin) if model.latent else None)
    return jnp.swapaxes(jax.lax.scan(step, start, actions)[1], 0, 1)


def measure(
    before: np.ndarray,
    action: np.ndarray,
    said: dict[str, np.ndarray],
    true: dict[str, np.ndarray],
    binary: np.ndarray,
    seats: int,
    names: tuple[str, ...],
    on_board: bool,
    wall: int | None = None,
) -> dict[str, Any]:
    """Scores of predictions of N steps. `said` and `true` hold `observation` (scaled), `reward` and `end` (true or not).

    `binary` tells which entries of an observation are 0 or 1: a board counts as foreseen exactly if all of them are.
    """
    error = (said["observation"] - true["observation"]) ** 2
    board = error[:, binary]
    planes = error.reshape(*error.shape[:2], -1).mean((0, 2))
    rewarded, over = true["reward"] != 0, true["end"]
    off = np.abs(said["reward"] - true["reward"])
    found: dict[str, Any] = {
        "steps": len(error),
        "exact_board": number(exact(said["observation"], true["observation"], binary).mean()) if binary.any() else None,
        "mse": number(error.mean()),
        "mse_by_plane": [number(plane) for plane in planes],
        "psnr": psnr(board) if binary.any() else None,
        "reward_mse": number((off**2).mean()),
        "reward_recall": number((off < np.abs(true["reward"]) / 2)[rewarded].mean()) if rewarded.any() else None,
        "end_accuracy": number((said["end"] == over).mean()),
        "end_recall": number(said["end"][over].mean()) if over.any() else None,
    }
    if on_board:
        found["broken_laws"] = broken_laws(before, action, said["observation"] > 0.5, binary, seats, names, wall)
    return found


def psnr(squared_error: np.ndarray) -> float:
    """Peak signal to noise, in decibels, of entries between 0 and 1."""
    return number(10 * np.log10(1 / max(float(squared_error.mean()), 1e-12)))


def exact(said: np.ndarray, true: np.ndarray, binary: np.ndarray) -> np.ndarray:
    """[N]: whether every entry that is 0 or 1 is foreseen."""
    return ((said > 0.5) == (true > 0.5))[:, binary].all(-1)


def broken_laws(
    before: np.ndarray,
    action: np.ndarray,
    after: np.ndarray,
    binary: np.ndarray,
    seats: int,
    names: tuple[str, ...],
    wall: int | None = None,
) -> dict[str, int]:
    """In how many of N foreseen boards each law is broken. `before` [N, planes, H, W] was seen, `after` is foreseen.

    `wall` is the plane of walls.
    """
    was, now = before[:, :seats] > 0.5, after[:, :seats]
    there, left = np.any(was, (2, 3)), ~np.any(now, (2, 3))
    may_leave = np.isin(action, [k for k, name in enumerate(names) if name in LEAVING])
    reach = was.copy()  # the cells that one step leads to
    reach[:, :, 1:] |= was[:, :, :-1]
    reach[:, :, :-1] |= was[:, :, 1:]
    reach[:, :, :, 1:] |= was[:, :, :, :-1]
    reach[:, :, :, :-1] |= was[:, :, :, 1:]
    things = binary[seats:].all((1, 2))
    grown = after[:, seats:][:, things] & ~(before[:, seats:][:, things] > 0.5)
    broken = {
        "in_two_places": now.sum((2, 3)) > 1,
        "moved_too_far": now & ~reach & there[:, :, None, None],
        "appeared": ~there & ~left,
        "vanished": there & left & ~may_leave,
        "out_of_nothing": grown,
    }
    if wall is not None:
        broken["into_a_wall"] = now & (before[:, None, wall] > 0.5)
    return {name: int(cells.reshape(len(before), -1).any(1).sum()) for name, cells in broken.items()}
