"""Games that were played, on disk: what was seen, played and earned, row by row, and the truth behind it.

A dataset is one compressed file of plain arrays with a schema. Nothing in it can run code, and whatever does not fit is refused.
"""

import dataclasses
import hashlib
import json
import math
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from otherminds import lineup
from otherminds.config import BadInput, Collect, require
from otherminds.games import make
from otherminds.games.base import Game
from otherminds.lineup import spread
from otherminds.progress import bar
from otherminds.rollout import close, collect, draw_bank, start
from otherminds.seats import lanes_needed, resolve

FORMAT = 1
CHUNK = 16  # steps of every game between two looks at how many episodes have ended
BANK = 2  # what a key derived from the seed is for; `start` splits off 0 and 1
MOST_LANES = 50_000  # games at once that pools may need
SCHEMA = "schema"  # the name of the entry that describes the others


@dataclass(frozen=True)
class Rows:
    """N rows: the games one after the other, in each the episodes in order. Row n is one step of all A seats."""

    observation: np.ndarray  # [N, A, ...]
    next_observation: np.ndarray  # [N, A, ...]: what the step led to, before any restart
    legal: np.ndarray  # [N, A, actions]
    present: np.ndarray  # [N, A]
    next_present: np.ndarray  # [N, A]
    action: np.ndarray  # [N, A]; -1 for a seat that was absent
    reward: np.ndarray  # [N, A]
    terminated: np.ndarray  # [N, A]
    truncated: np.ndarray  # [N]
    first: np.ndarray  # [N]: opens an episode
    meeting: np.ndarray  # [N]: opens a series of episodes with new partners
    end: np.ndarray  # [N]: the last row of an episode
    goal_reached: np.ndarray  # [N, A]; -1 for none
    goal: np.ndarray  # [N, A]: what the seat is truly after; -1 for unknown
    probabilities: np.ndarray  # [N, A, actions]: what the action was drawn from
    who: np.ndarray  # [N, A]: who sits there, an index into `Dataset.partners`


FIELDS = tuple(field.name for field in dataclasses.fields(Rows))
OF_ROWS = ("truncated", "first", "meeting", "end")  # what all seats of a row share
KINDS = (
    ("b", "truth values", ("legal", "present", "next_present", "terminated", *OF_ROWS)),
    ("iu", "whole numbers", ("action", "goal", "goal_reached", "who")),
    ("f", "real numbers", ("reward", "probabilities")),
    ("buif", "numbers", ("observation", "next_observation")),
)
"""Kinds of numbers as NumPy names them, the same in words, and the fields that hold them."""


@dataclass(frozen=True)
class Dataset:
    """Rows, and where they come from."""

    rows: Rows
    game: Game
    partners: tuple[str, ...]
    source: dict[str, Any]  # the options it was collected with
    digest: str = ""  # of all arrays, if it was read from a file

    def __len__(self) -> int:
        return len(self.rows.first)

    def table(self) -> np.ndarray:
        """[episodes, longest]: the rows of each episode, -1 behind its end."""
        starts = np.flatnonzero(self.rows.first)
        lengths = np.diff([*starts, len(self)])
        steps = np.arange(lengths.max())
        return np.where(steps[None] < lengths[:, None], starts[:, None] + steps[None], -1)

    def part(self, chosen: np.ndarray) -> "Dataset":
        """Some of the rows: whole episodes, or what follows from one row to the next is lost."""
        return dataclasses.replace(self, rows=Rows(**{name: getattr(self.rows, name)[chosen] for name in FIELDS}))

    def split(self, held_out: float, seed: int) -> tuple["Dataset", "Dataset"]:
        """(for training, held out): whole meetings, so that nothing of a held-out episode has been seen.

        The starts of all episodes are drawn independently: the same opening board on both sides is chance, and rare where a game
        has many.
        """
        meeting = np.cumsum(self.rows.meeting) - 1
        count = int(meeting[-1]) + 1
        out = max(1, round(held_out * count))
        require(out < count, f"a dataset of {count} meetings cannot be split: collect more episodes")
        chosen = np.isin(meeting, np.random.default_rng(seed).permutation(count)[:out])
        return self.part(~chosen), self.part(chosen)


_collect = eqx.filter_jit(collect)


def gather(options: Collect) -> Dataset:
    """Play the episodes that are asked for: equally many in every parallel game, whole ones, each from a start of its own."""
    game = make(options.game)
    require(not game.continuous, f"{game.id} has continuous actions: a dataset holds discrete ones")
    require(options.episodes > 0, f"--episodes is {options.episodes}, expected at least 1")
    require(options.parallel > 0, f"--parallel is {options.parallel}, expected at least 1")
    require(options.meeting > 0, f"--meeting is {options.meeting}, expected at least 1 episode")
    entries = spread(options.seats, game.seats, game.id)
    policies = resolve(game, entries)
    needed = lanes_needed(policies)
    require(
        needed <= MOST_LANES,
        f"--seats {options.seats}: for all their members to meet, these pools need {needed:,} games at once: "
        "name fewer members, or fix some seats",
    )
    lanes = needed * math.ceil(min(options.parallel, options.episodes) / needed)
    wanted = math.ceil(options.episodes / lanes)
    key, size = jax.random.key(options.seed), max(game.bank_size, 2 * CHUNK * lanes)
    play = start(game, policies, lanes, key, None if game.on_host else draw_bank(game, jax.random.split(key)[0], size))
    left = size - lanes  # starts that nobody has played yet
    advance = collect if game.on_host else _collect
    chunks: list[dict[str, np.ndarray]] = []
    ended = np.zeros(lanes, int)
    with bar() as progress:
        task = progress.add_task(f"collect {game.id}", total=wanted * lanes)
        while (ended < wanted).any():
            if not game.on_host and left < CHUNK * lanes:  # fewer than could be needed before the next look
                fresh = draw_bank(game, jax.random.fold_in(jax.random.fold_in(key, BANK), len(chunks)), size)
                play, left = eqx.tree_at(lambda p: p.bank, play, fresh), size
            play, rows = advance(game, policies, play, CHUNK, final=True, meeting_episodes=options.meeting)
            chunks.append(_columns(rows))
            ended = ended + chunks[-1]["end"].sum(0)
            left -= int(chunks[-1]["end"].sum())
            progress.update(task, completed=int(np.minimum(ended, wanted).sum()))
    close(play)
    columns = {name: np.concatenate([chunk[name] for chunk in chunks]).swapaxes(0, 1) for name in chunks[0]}  # [lanes, T, ...]
    within = (np.cumsum(columns["end"], 1) - columns["end"]) < wanted
    partners, who = _who(entries, lanes)
    columns["who"] = np.broadcast_to(who[:, None], (*within.shape, game.seats))
    kept = Rows(**{name: np.ascontiguousarray(column[within]) for name, column in columns.items()})
    source = {name: getattr(options, name) for name in ("game", "seats", "episodes", "parallel", "meeting", "seed")}
    return Dataset(kept, game, partners, source)


def _columns(rows: Any) -> dict[str, np.ndarray]:
    """What a dataset keeps of a trajectory, [T, E, ...]."""
    kept = {name: getattr(rows, name) for name in FIELDS if hasattr(rows, name)}
    end = np.concatenate([rows.first[1:], rows.last.first[None]])
    present = np.concatenate([rows.present[1:], rows.last.present[None]])
    logits = np.asarray(rows.behaviour_logits, np.float64)
    odds = np.exp(logits - logits.max(-1, keepdims=True))
    kept |= {
        "next_observation": rows.final_observation,
        "next_present": present & ~end[..., None],
        "end": end,
        "probabilities": (odds / odds.sum(-1, keepdims=True)).astype(np.float32),
    }
    kept["goal"] = np.where(rows.present, rows.goal, -1)  # who left is after nothing and draws nothing
    kept["probabilities"] = np.where(np.asarray(rows.present)[..., None], kept["probabilities"], 0.0).astype(np.float32)
    small = {"action": np.int8, "goal_reached": np.int16, "goal": np.int16}
    return {name: np.asarray(column).astype(small.get(name, np.asarray(column).dtype)) for name, column in kept.items()}


def _who(entries: tuple[str, ...], lanes: int) -> tuple[tuple[str, ...], np.ndarray]:
    """(names, [lanes, A] indices into them): the members of pools take turns, as `seats.Pool` deals them."""
    names = tuple(dict.fromkeys(member for entry in entries for member in lineup.pool(entry)))
    who = np.zeros((lanes, len(entries)), np.int16)
    inner = 1
    for seat, entry in enumerate(entries):
        members = lineup.pool(entry)
        turn = np.arange(lanes) // inner % len(members)
        who[:, seat] = np.array([names.index(member) for member in members])[turn]
        inner *= len(members)
    return names, who


def save(dataset: Dataset, path: Path) -> None:
    """Write a dataset so that it is never seen half written."""
    require(path.suffix == ".npz", f"{path}: expected a name that ends in .npz")
    arrays = {name: getattr(dataset.rows, name) for name in FIELDS}
    schema = {
        "format": FORMAT,
        "game": dataset.game.id,
        "partners": list(dataset.partners),
        "source": dataset.source,
        "arrays": {name: _facts(array) for name, array in arrays.items()},
    }
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "wb") as file:
            np.savez_compressed(file, **({SCHEMA: np.array(json.dumps(schema))} | arrays))
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as problem:
        raise BadInput(f"cannot write {path}: {problem.strerror or problem}") from problem
    finally:
        part.unlink(missing_ok=True)


def load(path: Path, game: str | None = None) -> Dataset:
    """Read a dataset; damaged, foreign and mismatched ones are refused with the reason. `game` is the one it should be of."""
    require(path.is_file(), f"no dataset {path}: otherminds collect --game ... --seats ... --out {path}")
    try:
        require(zipfile.is_zipfile(path), f"{path} is damaged or no dataset: it is no archive of arrays")
        with np.load(path, allow_pickle=False) as file:
            require(SCHEMA in file.files, f"{path} is no dataset of ours: it has no schema")
            schema = json.loads(str(file[SCHEMA]))
            _check_schema(schema, path)
            arrays = {name: _read(file, name, schema["arrays"][name], path) for name in FIELDS}
    except (zipfile.BadZipFile, ValueError, EOFError, OSError, KeyError) as problem:
        raise BadInput(f"{path} is damaged or no dataset: {problem}") from problem
    require(game is None or schema["game"] == game, f"{path} holds games of {schema['game']}, expected {game}")
    digest = hashlib.sha256(json.dumps(schema["arrays"], sort_keys=True).encode()).hexdigest()
    dataset = Dataset(Rows(**arrays), make(schema["game"]), tuple(schema["partners"]), schema["source"], digest)
    _check_rows(dataset, path)
    return dataset


def _check_schema(schema: Any, path: Path) -> None:
    require(isinstance(schema, dict) and "format" in schema, f"{path} is no dataset of ours: its schema names no format")
    require(schema["format"] == FORMAT, f"{path} has format {schema['format']}, and this version reads {FORMAT}: collect it anew")
    for name in ("game", "partners", "source", "arrays"):
        require(name in schema, f"{path} is damaged: its schema has no '{name}'")
    missing = [name for name in FIELDS if name not in schema["arrays"]]
    require(not missing, f"{path} is damaged: it has no {', '.join(missing)}")


def _read(file: Any, name: str, expected: dict[str, Any], path: Path) -> np.ndarray:
    array = file[name]
    found = _facts(array)
    for what, value in expected.items():
        require(found.get(what) == value, f"{path} is damaged: the {what} of '{name}' is not what it was when it was written")
    return array


def _check_rows(dataset: Dataset, path: Path) -> None:
    """Refuse rows that do not fit the game they are said to be of, or one another."""
    game, rows = dataset.game, dataset.rows
    require(rows.present.ndim == 2, f"{path}: 'present' has {rows.present.ndim} axes, expected rows and seats")
    count, seats = rows.present.shape
    require(count > 0, f"{path} holds no rows")
    require(seats == game.seats, f"{path} has {seats} seats, and {game.id} has {game.seats}")
    of_each = {
        "observation": game.observation_shape,
        "next_observation": game.observation_shape,
        "legal": (game.actions,),
        "probabilities": (game.actions,),
    }
    for name in FIELDS:
        array = getattr(rows, name)
        shape = (count,) if name in OF_ROWS else (count, seats, *of_each.get(name, ()))
        require(array.shape == shape, f"{path}: '{name}' has the shape {array.shape}, and {game.id} needs {shape}")
        kinds, words, _ = next(kind for kind in KINDS if name in kind[2])
        require(array.dtype.kind in kinds, f"{path}: '{name}' holds {array.dtype}, expected {words}")
        require(array.dtype.kind != "f" or bool(np.isfinite(array).all()), f"{path}: '{name}' holds numbers that are not finite")
    acted = np.where(rows.present, rows.action, 0)
    _within(acted, 0, game.actions - 1, f"{path}: a present seat has an action outside of 0 to {game.actions - 1}")
    require(bool((rows.action[~rows.present] == -1).all()), f"{path}: an absent seat has an action, expected -1")
    for name in ("goal", "goal_reached"):
        last = len(game.goals) - 1
        _within(getattr(rows, name), -1, last, f"{path}: '{name}' is outside of -1 to {last}, the goals of {game.id}")
    _within(rows.who, 0, len(dataset.partners) - 1, f"{path}: 'who' names partners that are not listed")
    require(bool((rows.probabilities >= 0).all()), f"{path}: 'probabilities' holds numbers below 0")
    require(bool(rows.end[-1]), f"{path}: its last episode has no end")
    opens = np.concatenate([[True], rows.end[:-1]])
    require(
        bool((rows.first == opens).all()), f"{path}: 'first' is not where an episode opens: in the first row and behind each end"
    )
    met = bool(rows.meeting[0]) and not (rows.meeting & ~rows.first).any()
    require(met, f"{path}: 'meeting' is not where an episode opens, or is not in the first row")


def _within(numbers: np.ndarray, least: int, most: int, reason: str) -> None:
    require(bool(((numbers >= least) & (numbers <= most)).all()), reason)


def _facts(array: np.ndarray) -> dict[str, Any]:
    digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    return {"shape": list(array.shape), "dtype": str(array.dtype), "sha256": digest}
