"""The full state of a run on disk: whole or not at all, checked when read, no code in it.

A checkpoint is a folder `checkpoints/<step>/` with `state.safetensors`, every array by its path in the pytree, and `facts.json`,
which holds a checksum of both. It is written beside its place, flushed to disk, and then renamed.
"""

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file
from safetensors.numpy import save as to_bytes

from otherminds import lineup, runs
from otherminds.config import BadInput, Sizes, Train, require
from otherminds.games import make
from otherminds.games.base import Game
from otherminds.learners import LEARNERS
from otherminds.learners import find as find_learner
from otherminds.types import Policy

FORMAT = 1
STATE, FACTS = "state.safetensors", "facts.json"
FREE = ("name", "keep", "checkpoint_every", "evaluate_every", "evaluate_episodes", "workers", "tensorboard", "wandb")
"""Settings that change nothing in what is learned, so that a run may go on with others."""
GONE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
"""A file that is not there is damage; a disk that does not answer is not, and must not make us begin again."""


class Damaged(BadInput):
    """A checkpoint that is not what was written."""


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def named(tree: Any) -> dict[str, np.ndarray]:
    """Every array of a pytree by its path, on the host."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {
        jax.tree_util.keystr(path): np.asarray(jax.device_get(jax.random.key_data(leaf) if _is_key(leaf) else leaf), order="C")
        for path, leaf in leaves
    }


def filled(like: Any, arrays: dict[str, np.ndarray], prefix: str = "") -> Any:
    """A pytree shaped as `like` with the arrays of these names; refuses what does not fit."""

    def fill(path: Any, leaf: Any) -> Any:
        name = prefix + jax.tree_util.keystr(path)
        wanted = jax.random.key_data(leaf) if _is_key(leaf) else leaf
        if name not in arrays:
            raise BadInput(f"the checkpoint has no {name}: it was written with other settings or another version")
        array = arrays[name]
        same = array.shape == wanted.shape and array.dtype == wanted.dtype
        require(
            same, f"{name} in the checkpoint is {array.dtype}{list(array.shape)}, expected {wanted.dtype}{list(wanted.shape)}"
        )
        return jax.random.wrap_key_data(jnp.asarray(array)) if _is_key(leaf) else jnp.asarray(array)

    return jax.tree_util.tree_map_with_path(fill, like)


def digest(arrays: dict[str, np.ndarray]) -> str:
    """A checksum of arrays and their names."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        total.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        total.update(arrays[name].tobytes())
    return total.hexdigest()


def save(run: Path, step: int, tree: Any, facts: dict[str, Any]) -> Path:
    """Write a checkpoint; it is there as a whole, or not at all."""
    folder = run / "checkpoints"
    place, part = folder / str(step), folder / f".{step}.part"
    shutil.rmtree(part, ignore_errors=True)
    folder.mkdir(exist_ok=True)
    part.mkdir()
    try:
        _write(part / STATE, to_bytes(named(tree)))
        facts = {"format": FORMAT, "step": step} | facts
        sealed = facts | {"sha256": _checksum(part / STATE, facts)}
        _write(part / FACTS, (json.dumps(sealed, indent=1, allow_nan=False) + "\n").encode())
        shutil.rmtree(place, ignore_errors=True)
        os.replace(part, place)
        _flush_folder(folder)
    except OSError:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return place


def _write(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(path: Path) -> None:
    if os.name == "nt":
        return  # Windows cannot flush a folder
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _checksum(file: Path, facts: dict[str, Any]) -> str:
    with open(file, "rb") as content:
        total = hashlib.file_digest(content, "sha256")
    total.update(json.dumps(facts, sort_keys=True).encode())
    return total.hexdigest()


def steps(run: Path) -> list[int]:
    """Steps of all checkpoints, damaged or not, in order."""
    folder = run / "checkpoints"
    names = [path.name for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    return sorted(int(name) for name in names if name.isdecimal())


def facts_of(run: Path, step: int) -> dict[str, Any]:
    """What a checkpoint says of itself; raises Damaged if it is not what was written."""
    place = run / "checkpoints" / str(step)
    try:
        facts = json.loads((place / FACTS).read_text(encoding="utf-8"))
        seal = facts.pop("sha256")
        whole = seal == _checksum(place / STATE, facts)
    except (*GONE, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{run}: checkpoint {step} cannot be read: {error}") from error
    if not whole:
        raise Damaged(f"{run}: checkpoint {step} is damaged: its checksum does not fit")
    version = facts.get("format")
    require(version == FORMAT, f"{place} is of format {version}, and this version of otherminds reads {FORMAT}")
    return facts


def seal_of(run: Path, step: int) -> str:
    """The checksum of a whole checkpoint."""
    facts_of(run, step)
    seal: str = json.loads((run / "checkpoints" / str(step) / FACTS).read_text(encoding="utf-8"))["sha256"]
    return seal


def arrays_of(run: Path, step: int) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint. Whatever else lies there, a pickle say, is refused and never run."""
    try:
        return load_file(run / "checkpoints" / str(step) / STATE)
    except (SafetensorError, *GONE) as error:
        raise Damaged(f"{run}: checkpoint {step} cannot be read: {error}") from error


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in memory: a run that goes on may remove it from disk at any moment."""

    run: Path
    step: int
    facts: dict[str, Any]
    arrays: dict[str, np.ndarray]


def read(run: Path, step: int) -> Checkpoint:
    """All of one checkpoint; raises Damaged if it is not what was written."""
    return Checkpoint(run, step, facts_of(run, step), arrays_of(run, step))


def newest(run: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint that is whole; says which ones are not. None if there never was one.

    If there are some and none is whole, that is an error: beginning again would remove what may still be saved.
    """
    known = steps(run)
    for step in reversed(known):
        try:
            return read(run, step)
        except Damaged as damage:
            if (run / "checkpoints" / str(step)).exists():  # else it was removed by the process that trains
                warn(f"{damage}" if step == known[0] else f"{damage}; using the one before")
    if known and steps(run) == known:
        raise Damaged(f"{run}: none of its {len(known)} checkpoints can be read; to begin again, remove {run / 'checkpoints'}")
    return newest(run, warn) if known else None


def find(run: Path, which: str) -> Checkpoint:
    """The checkpoint that is meant by a number of steps, `final` (the newest that is whole; warns of others) or `best`."""
    if which == "final":
        found = newest(run, _warn)
        if found is None:
            raise BadInput(f"{run} has no checkpoint yet")
        return found
    return read(run, pick(run, which))


def _warn(damage: str) -> None:
    warnings.warn(damage, stacklevel=3)


def prune(run: Path, keep: int, always: Iterable[int]) -> None:
    """Remove all but the newest `keep` checkpoints and those that are `always` kept."""
    for step in set(steps(run)[:-keep]) - set(always):
        _remove(run / "checkpoints" / str(step))


def cut(run: Path, step: int) -> None:
    """Remove what a process that died left behind: checkpoints later than `step`, and half-written ones."""
    for later in steps(run):
        if later > step:
            _remove(run / "checkpoints" / str(later))
    for part in (run / "checkpoints").glob(".*.part"):
        _remove(part)


def _remove(place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)


def pick(run: Path, which: str) -> int:
    """The step of the checkpoint that is meant by a number, `final` or `best`."""
    known = steps(run)
    require(bool(known), f"{run} has no checkpoint yet")
    if which == "final":
        return known[-1]
    if which == "best":
        last = newest(run, _warn)
        best = last.facts["best"] if last else None
        return best[1] if best and best[1] in known else known[-1]
    require(which.isdecimal(), f"'{which}' is no checkpoint: expected a number of steps, final or best")
    require(int(which) in known, f"{run} has no checkpoint at step {which}: choose from {', '.join(map(str, known))}")
    return int(which)


def config_of(found: Checkpoint) -> Train:
    """The settings of a run. Refused if its config.json is no longer what the checkpoint was made with."""
    config = runs.read_config(found.run)
    before, now = (_flat(json.loads(json.dumps(settings))) for settings in (found.facts.get("config", {}), runs.as_dict(config)))
    for name, value in before.items():
        require(
            name in FREE or now.get(name) == value,
            f"{found.run / 'config.json'} was changed: {name} was {value!r} and is {now.get(name)!r}; "
            "change it back, or train a new run with --config",
        )
    return config


def _flat(settings: dict[str, Any], owner: str = "") -> dict[str, Any]:
    """Settings within settings by their full names: ppo.entropy."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= _flat(value, f"{owner}{name}.") if isinstance(value, dict) else {f"{owner}{name}": value}
    return flat


def sizes_of(config: Train) -> Sizes:
    return Sizes(config.parallel, config.rollout, config.epochs, config.minibatches, config.updates)


def groups_of(config: Train, game: Game) -> tuple[lineup.Group, ...]:
    """The learners of a run."""
    return lineup.groups(lineup.phases(lineup.spread(config.seats, game.seats, game.id)), LEARNERS)


def phase_of(found: Checkpoint, config: Train, game: Game) -> lineup.Phase:
    """Who sat where when a checkpoint was written."""
    return lineup.phases(lineup.spread(config.seats, game.seats, game.id))[found.facts["phase"]]


def load_policy(run: Path, seat: int, step: str = "final", seed: int | None = None) -> Policy:
    """The policy that a run learned for a seat, ready to sit anywhere it fits. `seed` is one of the run's; none: its first."""
    return policy_of(find(run, step), seat, seed)


def policy_of(found: Checkpoint, seat: int, seed: int | None = None) -> Policy:
    """The same of a checkpoint that has been read. Where a schedule changed the learner: whoever learned last until then."""
    run, config = found.run, config_of(found)
    game = make(config.game)
    groups = groups_of(config, game)
    owners = [(k, group) for k, group in enumerate(groups) if seat in group.seats]
    learned = sorted(seat + 1 for group in groups for seat in group.seats)
    require(
        bool(owners), f"player_{seat + 1} of {run} learned nothing; those who did: {', '.join(map(str, learned)) or 'nobody'}"
    )
    now = found.facts["phase"]
    begun = [(k, group) for k, group in owners if group.phases[0] <= now]
    require(bool(begun), f"player_{seat + 1} of {run} had not begun to learn at step {found.step:,}: choose a later one")
    place, group = max(begun, key=lambda owner: max(phase for phase in owner[1].phases if phase <= now))
    seed = config.seed if seed is None else seed
    require(
        config.seed <= seed < config.seed + config.seeds,
        f"{run} has seeds {config.seed} to {config.seed + config.seeds - 1}, not {seed}",
    )
    policy: Any = _policy(found, config, place, seed)
    one: Policy = policy.of(group.seats.index(seat)).without_noise()
    return one


def group_policy(found: Checkpoint, place: int, seed: int) -> Policy:
    """The policy of all seats of the `place`-th learner of a run together."""
    return _policy(found, config_of(found), place, seed).without_noise()


def _policy(found: Checkpoint, config: Train, place: int, seed: int) -> Policy:
    game = make(config.game)
    group = groups_of(config, game)[place]
    learner = find_learner(group.learner)
    like = learner.init(config.of(group.learner), sizes_of(config), game, group.seats, jax.random.key(seed))
    prefix = f".learners[{place}]"
    own = {name: array[seed - config.seed] for name, array in found.arrays.items() if name.startswith(prefix)}
    return learner.policy(filled(like, own, prefix))


@dataclass(frozen=True)
class Run:
    """A run to take policies from: `otherminds.load("ppo-selfplay").policy(seat=0)`."""

    folder: Path
    config: Train

    @property
    def steps(self) -> list[int]:
        """Of its checkpoints."""
        return steps(self.folder)

    def policy(self, seat: int, step: int | str = "final", seed: int | None = None) -> Policy:
        """What the run learned for a seat, counted from 0. `step` is a number, `final` or `best`."""
        return load_policy(self.folder, seat, str(step), seed)


def load(run: str) -> Run:
    """A run by its name under runs/, or by its path."""
    folder = runs.find(run)
    return Run(folder, runs.read_config(folder))
