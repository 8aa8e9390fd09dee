"""What another library left as NumPy arrays, read by name and axis. Nothing is ever unpickled; what does not fit is refused."""

import dataclasses
import zipfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from otherminds.config import BadInput, Convert, closest, require
from otherminds.games import make
from otherminds.games.base import Game
from otherminds.games.ego import seen_from
from otherminds.lineup import UNKNOWN

ORDERS = ({"episode", "time", "seat"}, {"game", "time", "seat"}, {"row", "seat"})  # what --axes may name, in any order
AXES = ("lane", "time", "seat")  # ours; a lane is an episode, or a game with many
ALLOWED = 0.99  # share of the actions taken that must be among the legal ones


@dataclasses.dataclass(frozen=True)
class Source:
    """The arrays of a source, and how their axes are to be read."""

    options: Convert
    game: Game
    names: tuple[str, ...]
    axes: tuple[str, ...]  # as the arrays have them, by our names
    sizes: dict[str, int]  # of the array of actions

    def has(self, field: str) -> bool:
        """Whether there is an array for a field. One that is asked for by another name than the usual one must be there."""
        name, usual = getattr(self.options, field), Convert.__dataclass_fields__[field].default
        if name not in self.names and (name != usual or field in ("observation", "action", "reward")):
            option = "--" + field.replace("_", "-")
            raise BadInput(f"{self.options.source} has no array '{name}': {option} NAME, {closest(name, self.names, 8)}")
        return name in self.names

    def column(self, field: str, inner: tuple[int, ...] = (), lacks: tuple[tuple[str, ...], ...] = ()) -> np.ndarray:
        """The array of a field, [lanes, T or T + 1, A, *inner]. `lacks`: axes it may do without, being the same along them."""
        self.has(field)
        name = getattr(self.options, field)
        array = _load(self.options.source, name)
        require(array.dtype.kind in "biuf" or field == "who", f"'{name}' holds {array.dtype.name}, expected numbers")
        for missing in ((), *lacks):
            axes = [axis for axis in self.axes if axis not in missing]
            lead, rest = array.shape[: len(axes)], array.shape[len(axes) :]
            more = [size - self.sizes[axis] for axis, size in zip(axes, lead, strict=False)]
            if rest in (inner, (int(np.prod(inner)),)) and more in ([0] * len(axes), [int(axis == "time") for axis in axes]):
                array = array.reshape(*lead, *inner)
                array = array.transpose(*(axes.index(axis) for axis in AXES if axis in axes), *range(len(axes), array.ndim))
                array = np.expand_dims(array, [k for k, axis in enumerate(AXES) if axis not in axes])
                sizes = [max(self.sizes.get(axis, 1), array.shape[k]) for k, axis in enumerate(AXES)]
                return np.broadcast_to(array, (*sizes, *inner))
        expected = ", ".join([*(f"{self.sizes[axis]} of {axis}" for axis in self.axes), *map(str, inner)])
        said = f"--axes {self.options.axes} and {self.game.id}"
        raise BadInput(f"'{name}' has the shape {array.shape}, expected ({expected}) by {said}")


def open_source(options: Convert) -> tuple[Source, np.ndarray]:
    """The source, and its actions [lanes, T, A], which say how long everything is; -1 where a one-hot action has no 1."""
    path, axes = options.source, tuple(options.axes.split(","))
    require(
        len(axes) == len(set(axes)) and set(axes) in ORDERS,
        f"--axes is {options.axes}, expected episode,time,seat or game,time,seat or row,seat, in the order that the arrays have",
    )
    game = make(options.game)
    require(not game.continuous, f"{game.id} has continuous actions: a dataset holds discrete ones")
    require(0 < options.meeting < 10**9, f"--meeting is {options.meeting}, expected at least 1 episode, and not all there are")
    if path.is_dir():
        names = tuple(sorted(file.stem for file in path.glob("*.npy")))
        require(bool(names), f"{path} has no .npy files: expected a folder of them, or one .npz")
    else:
        try:
            with zipfile.ZipFile(path) as file:
                names = tuple(name.removesuffix(".npy") for name in file.namelist() if name.endswith(".npy"))
        except (zipfile.BadZipFile, OSError) as problem:
            raise BadInput(f"{path} is no archive of arrays: expected an .npz, or a folder of .npy files") from problem
    ours = tuple({"episode": "lane", "game": "lane", "row": "time"}.get(axis, axis) for axis in axes)
    source = Source(options, game, names, ours, {})
    source.has("action")
    array = _load(path, options.action)
    source.sizes.update(zip(ours, array.shape, strict=False))
    require(
        array.ndim >= len(ours) and array.size > 0 and source.sizes["seat"] == game.seats,
        f"'{options.action}' has the shape {array.shape}, expected {options.axes} with {game.seats} seats of {game.id}: --axes",
    )
    whole = array.shape[len(ours) :] != (game.actions,)
    action = source.column("action", () if whole else (game.actions,))
    if not whole:
        one_hot = np.isin(action, (0, 1)).all() and (action.sum(-1) <= 1).all()
        require(bool(one_hot), f"'{options.action}' is neither whole numbers nor one-hot: logits are no actions")
        return source, np.where(action.any(-1), action.argmax(-1), -1)
    require(
        bool((action == np.round(action)).all()), f"'{options.action}' holds fractions, expected the numbers of discrete actions"
    )
    return source, action.astype(np.int64)


def _load(path: Path, name: str) -> np.ndarray:
    try:
        if path.is_dir():
            return np.load(path / f"{name}.npy", allow_pickle=False)
        with np.load(path, allow_pickle=False) as file:
            return file[name]
    except (zipfile.BadZipFile, ValueError, EOFError, OSError) as problem:
        reason = (
            "it holds Python objects, which can run code: save numbers"
            if "pickle" in str(problem)
            else f"it is damaged: {problem}"
        )
        raise BadInput(f"cannot read '{name}' of {path}: {reason}") from problem


def observations(source: Source, field: str, lacks: tuple[tuple[str, ...], ...] = ()) -> np.ndarray:
    """[lanes, T or T + 1, A, ...]: ego-first, as the game gives them."""
    game, absolute = source.game, source.options.frame == "absolute"
    found = source.column(field, game.observation_shape, (*lacks, ("seat",)) if absolute else lacks)
    with np.errstate(invalid="ignore"):
        exact = found.astype(game.observation_dtype)
    strange = exact != found if exact.dtype.kind in "biu" else ~np.isfinite(exact)
    require(
        not strange.any(),
        f"'{getattr(source.options, field)}' holds {found[strange][:1]}, which {game.id} never shows: expected it unscaled",
    )
    require(not absolute or bool(game.shown_of_each), f"{game.id} does not say which entries show whom: --frame ego")
    return turned(game, exact, 1) if absolute else exact


def turned(game: Game, observation: np.ndarray, sign: int) -> np.ndarray:
    """Players in the order of seats put ego-first in the view of each seat [..., A, ...], or with sign -1 back."""
    inner = len(game.observation_shape)
    axis = observation.ndim - inner - 1
    views = [(seat, jnp.asarray(observation.take(seat, axis))) for seat in range(game.seats)]
    turned = [seen_from(view, sign * seat, game.seats, game.shown_of_each, inner) for seat, view in views]
    return np.stack([np.asarray(view) for view in turned], axis)


def ends(source: Source) -> tuple[np.ndarray, np.ndarray] | None:
    """[lanes, T, A]: where it ends for each seat, and where by being cut off; None if nobody noted any end."""
    options, steps = source.options, source.sizes["time"]
    cut = np.zeros((source.sizes.get("lane", 1), steps, source.game.seats), bool)
    marks = cut
    if source.has("truncated"):
        cut = source.column("truncated", (), (("seat",),))[:, :steps] > 0
    if source.has("end"):
        marks = source.column("end", (), (("seat",),))[:, :steps] > 0
    elif source.has("masks"):
        masks = source.column("masks", (), (("seat",),)) == 0
        require(
            masks.shape[1] == steps + 1, f"'{options.masks}' has {steps} steps, expected one more than there are actions: --end"
        )
        marks = masks[:, 1:]
    elif not source.has("truncated") and not source.has("filled"):
        return None
    return marks | cut, cut


def ended(marks: np.ndarray) -> np.ndarray:
    """[lanes, T]: where it is over for the last seat of an episode. Some libraries mark a seat's end once, others on."""
    found, over = np.zeros(marks.shape[:2], bool), np.zeros_like(marks[:, 0])
    for k in range(marks.shape[1]):
        over = over | marks[:, k]
        found[:, k] = over.all(-1)
        over = over & ~found[:, k, None]
    return found


def whole_episodes(source: Source, over: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """(lane, step, whether it is the last) of each row of whole episodes, and how many other steps there are."""
    time = np.arange(over.shape[1])[None]
    if "episode" not in source.options.axes:
        whole = np.cumsum(over[:, ::-1], 1)[:, ::-1] > 0
        lane, step = np.nonzero(whole)
        return lane, step, over[lane, step], int((~whole).sum())
    length = np.full(len(over), over.shape[1])
    if source.has("filled"):
        length = (source.column("filled", (), (("seat",),))[..., 0] > 0).sum(1) - 1
    length = np.where(over.any(1), over.argmax(1) + 1, length)[:, None]
    lane, step = np.nonzero(time < length)
    return lane, step, (time == length - 1)[lane, step], 0


def final(source: Source, seen: np.ndarray, lane: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(what each row led to, if it is an episode's last, whether the source says so)."""
    by_episode = "episode" in source.options.axes
    if source.has("final_observation"):
        found = observations(source, "final_observation", (("time",),) if by_episode else ())
        return found[lane, step], np.ones(len(lane), bool)
    after = np.minimum(step + 1, seen.shape[1] - 1)
    known = np.full(len(lane), by_episode and seen.shape[1] > source.sizes["time"])
    if by_episode and source.has("filled"):
        known = (source.column("filled", (), (("seat",),))[lane, after, 0] > 0) & (after > step)
    return seen[lane, after], known


def legal(source: Source, lane: np.ndarray, step: np.ndarray, present: np.ndarray, action: np.ndarray) -> np.ndarray:
    """Which actions may be taken, all if nobody said; action 0 alone for an absent seat, as games have it."""
    actions = source.game.actions
    found = np.ones((*present.shape, actions), bool)
    if source.has("legal"):
        found = source.column("legal", (actions,))[lane, step] > 0
        fits = float(np.take_along_axis(found, np.clip(action, 0, actions - 1)[..., None], -1)[..., 0][present].mean())
        require(
            fits >= ALLOWED,
            f"'{source.options.legal}' forbids {1 - fits:.1%} of the actions taken: is it shifted by a step, or of other seats?",
        )
    return np.where(present[..., None], found, np.arange(actions) == 0)


def goals(source: Source, lane: np.ndarray, step: np.ndarray, present: np.ndarray) -> np.ndarray:
    if not source.has("goal"):
        return np.full(present.shape, -1, np.int16)
    found, goals = source.column("goal", (), (("time",),))[lane, step], source.game.goals
    fits = (found >= -1) & (found < len(goals)) & (found == np.round(found))
    require(
        bool(fits.all()), f"'{source.options.goal}' holds other numbers than -1 and those of the goals {', '.join(goals[:9])}"
    )
    return np.where(present, found, -1).astype(np.int16)


def probabilities(source: Source, lane: np.ndarray, step: np.ndarray, present: np.ndarray) -> np.ndarray:
    if not source.has("probabilities"):
        return np.zeros((*present.shape, source.game.actions), np.float32)
    found = source.column("probabilities", (source.game.actions,))[lane, step]
    fits = (found >= 0).all() and np.isclose(found[present].sum(-1), 1, atol=1e-3).all()
    require(bool(fits), f"'{source.options.probabilities}' does not hold probabilities that sum to 1: logits are none")
    return np.where(present[..., None], found, 0).astype(np.float32)


def who(source: Source, lane: np.ndarray, step: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    """(names, [n, A] indices into them)."""
    if not source.has("who"):
        return (UNKNOWN,), np.zeros((len(lane), source.game.seats), np.int16)
    found = source.column("who", (), (("time",), ("lane", "time")))[lane, step]
    require(found.dtype.kind != "f" or bool(np.isfinite(found).all()), f"'{source.options.who}' names nobody in some places")
    names, index = np.unique(found, return_inverse=True)
    return tuple(map(str, names)), index.reshape(found.shape).astype(np.int16)
