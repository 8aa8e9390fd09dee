"""What the audit of a run looks at: its log, its newest checkpoint, and one more rollout with all that can be seen of it."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from otherminds import checkpoint, runs, warm
from otherminds.config import BadInput, require
from otherminds.rollout import collect
from otherminds.types import Policy, Seated, Trajectory
from otherminds.updates import Carry, Compiled, OnHost, Setup, first_carry, learn, policies_at, prepare


class Watched(eqx.Module):
    """A rollout and the learning from it, with all that can be seen of them."""

    rows: Trajectory  # of all seats, with the states of the game
    handed: dict[str, Trajectory]  # what each learner was really given to learn from
    after: Carry
    metrics: dict[str, Any]


@dataclass(frozen=True)
class Overheard:
    """A learner whose update also says what rows it was given."""

    learner: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.learner, name)

    def update(self, state: Any, rows: Trajectory, key: Any) -> tuple[Any, dict[str, Any]]:
        after, metrics = self.learner.update(state, rows, key)
        return after, {"metrics": metrics, "rows": rows}


class Overhearing(Setup):
    """The same run with its learners overheard."""

    @cached_property
    def learners(self) -> tuple[Any, ...]:
        return tuple(Overheard(learner) for learner in Setup(self.config, self.game, self.phases, self.groups).learners)


@dataclass(frozen=True)
class Evidence:
    """A run and what can be made of its newest checkpoint. One seed stands for all where something is played again."""

    run: Path
    setup: Setup
    engine: Compiled
    rows: list[dict[str, Any]]  # of training, up to the checkpoint, without seeds that were frozen
    facts: dict[str, Any]
    whole: Carry  # all seeds
    on_disk: dict[int, Policy]  # seat -> its policy as evaluation reads it

    @staticmethod
    def of(run: Path, say: Callable[[str], None]) -> "Evidence":
        found = checkpoint.newest(run, say)
        if found is None:
            raise BadInput(f"{run} has no checkpoint yet: there is nothing to audit")
        setup = prepare(checkpoint.config_of(found))
        engine = (OnHost if setup.game.on_host else Compiled)(setup, warm.modules)
        facts = found.facts
        whole: Carry = checkpoint.filled(engine.like(facts["phase"]), found.arrays)
        frozen = {entry["seed"] for entry in facts["frozen"]}
        rows = [
            row
            for row in _logged(run / "metrics.jsonl", setup)
            if row["update"] <= facts["update"] and row["seed"] not in frozen and not _is_evaluation(row)
        ]
        return Evidence(run, setup, engine, rows, facts, whole, _policies_on_disk(found, setup, whole))

    @property
    def phase(self) -> int:
        return self.facts["phase"]

    @property
    def active(self) -> list[int]:
        return self.setup.active(self.phase)

    @property
    def alive(self) -> list[int]:
        """Places of the seeds that were not frozen."""
        return [int(place) for place in np.flatnonzero(np.asarray(self.whole.alive))]

    @property
    def seed(self) -> int:
        return self.setup.seeds[self.alive[0]]

    @cached_property
    def carry(self) -> Carry:
        return jax.tree.map(lambda leaf: leaf[self.alive[0]], self.whole)

    @cached_property
    def learned_rows(self) -> list[dict[str, Any]]:
        """Rows of seats that were learning at the time."""
        setup = self.setup
        return [row for row in self.rows if row["seat"] in setup.learned(setup.phase_at(row["update"] - 1))]

    @property
    def somebody_learned(self) -> bool:
        begun = [phase for phase, begin in enumerate(self.setup.boundaries) if begin < self.facts["update"]]
        return any(self.setup.active(phase) for phase in begun)

    @cached_property
    def fixed(self) -> tuple[Seated, ...]:
        return self.engine.policies(self.phase, self.facts["update"])

    @cached_property
    def policies(self) -> tuple[Seated, ...]:
        return policies_at(self.setup, self.phase, self.carry.learners, self.fixed)

    def watch(self, carry: Carry) -> Watched:
        return _watch(self.setup, self.phase, carry, self.fixed)

    @cached_property
    def watched(self) -> Watched:
        """The next update."""
        return self.watch(self.carry)

    @cached_property
    def fresh(self) -> tuple[Any, ...]:
        """Learners that have learned nothing yet."""
        start = warm.modules(self.setup.config, self.seed)
        return first_carry(self.setup, self.seed, self.engine.policies(0, 0), start).learners

    @cached_property
    def beginning(self) -> "Evidence":
        """The same with learners that have learned nothing yet."""
        place = self.alive[0]
        learners = jax.tree.map(lambda all_, new: all_.at[place].set(new), self.whole.learners, self.fresh)
        return dataclasses.replace(self, whole=eqx.tree_at(lambda c: c.learners, self.whole, learners))

    @cached_property
    def updaters(self) -> dict[int, Any]:
        return {k: jax.jit(self.setup.learners[k].update) for k in self.active}


@partial(jax.jit, static_argnums=(0, 1))
def _watch(setup: Setup, phase: int, carry: Carry, fixed: tuple[Seated, ...]) -> Watched:
    """An update as training would make it, in one program with what is watched: two might draw different actions."""
    assert carry.play is not None
    policies = policies_at(setup, phase, carry.learners, fixed)
    play, rows = collect(setup.game, policies, carry.play, setup.config.rollout, final=setup.wants_final, states=True)
    overhearing = Overhearing(setup.config, setup.game, setup.phases, setup.groups)
    after, found = learn(overhearing, phase, carry, without_states(rows), carry.play.memories)
    logged = {k: each["metrics"] for k, each in found["learners"].items()}
    handed = {k: each["rows"] for k, each in found["learners"].items()}
    return Watched(rows, handed, eqx.tree_at(lambda c: c.play, after, play), found | {"learners": logged})


def _policies_on_disk(found: checkpoint.Checkpoint, setup: Setup, whole: Carry) -> dict[int, Policy]:
    """Of those who learn now, one by one."""
    alive = np.asarray(whole.alive)
    if setup.game.on_host or not alive.any():
        return {}
    own = [seat for k in setup.active(found.facts["phase"]) for seat in setup.groups[k].seats]
    return {seat: checkpoint.policy_of(found, seat, setup.seeds[int(alive.argmax())]) for seat in own}


def _logged(path: Path, setup: Setup) -> Iterator[dict[str, Any]]:
    """The rows of a log."""
    for count, row in enumerate(runs.rows(path), 1):
        try:
            fits = row["seed"] in setup.seeds and row["seat"] in range(setup.game.seats)
            fits &= isinstance(row["update"], int) and row["update"] >= 1
            fits &= all(isinstance(value, int | float) for value in row["metrics"].values())
        except (TypeError, KeyError, AttributeError):
            fits = False
        require(fits, f"{path}, line {count}: expected update, seed, seat and metrics of this run, got {str(row)[:60]}")
        yield row


def _is_evaluation(row: dict[str, Any]) -> bool:
    return any(name.startswith("evaluation_") for name in row["metrics"])


def without_states(rows: Trajectory) -> Trajectory:
    """What learners may see."""
    return dataclasses.replace(rows, state=None, after=None)
