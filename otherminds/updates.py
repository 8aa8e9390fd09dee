"""One update, compiled: a rollout and the learning from it, for all seeds. What `train` does over and over.

Learners are found in the seats; nothing here names one. Each seed is a pure function of the config and its number.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from otherminds import checkpoint, lineup, seats
from otherminds.config import Sizes, Train, require
from otherminds.games import make
from otherminds.games.base import Game
from otherminds.learners import LEARNERS
from otherminds.learners import find as find_learner
from otherminds.returns import episode_sums
from otherminds.rollout import Play, close, collect, refresh_bank, start
from otherminds.types import Memory, Seated, Trajectory, of_seats

if TYPE_CHECKING:
    from otherminds.learners.base import Learner

CALL = 16  # updates in one compiled call at most, and the rhythm of fresh starts and rotating pools
BANK, PLAY = 2, 3  # what keys derived from a seed are for; learners count on from there


class Carry(eqx.Module):
    """All that one seed needs to go on."""

    learners: tuple[Any, ...]
    play: Play | None  # None where games are stepped on the host
    earned: Float[Array, "E A"]  # in the episodes under way
    lasted: Float[Array, "E A"]  # steps of the episodes under way
    key: PRNGKeyArray
    alive: Bool[Array, ""]  # false once an update was not finite


@dataclass(frozen=True)
class Setup:
    """A run as it is written, understood and checked."""

    config: Train
    game: Game
    phases: tuple[lineup.Phase, ...]
    groups: tuple[lineup.Group, ...]

    @cached_property
    def learners(self) -> tuple["Learner", ...]:
        return tuple(find_learner(group.learner) for group in self.groups)

    @property
    def sizes(self) -> Sizes:
        return checkpoint.sizes_of(self.config)

    @property
    def seeds(self) -> range:
        return range(self.config.seed, self.config.seed + self.config.seeds)

    def active(self, phase: int) -> list[int]:
        """The learners that play in a phase."""
        return [k for k, group in enumerate(self.groups) if phase in group.phases]

    def learned(self, phase: int) -> list[int]:
        return [seat for k in self.active(phase) for seat in self.groups[k].seats]

    @cached_property
    def boundaries(self) -> list[int]:
        """The update before which each phase begins: a schedule's step, rounded up to whole updates."""
        return [-(-phase.start // self.config.steps_per_update) for phase in self.phases]

    @cached_property
    def wants_final(self) -> bool:
        """Whether somebody learns from what the last step of an episode led to."""
        asked = [
            wants(self.config.of(group.learner))
            for group, learner in zip(self.groups, self.learners, strict=True)
            if (wants := getattr(learner, "wants_final", None))
        ]
        return self.game.truncates or any(asked)

    def plain(self, phase: int) -> np.ndarray:
        """Games in which all learners play as themselves, [E]: those that rewards are logged of."""
        played = [self.as_itself(k).all(1) for k in self.active(phase)]
        return np.logical_and.reduce([np.ones(self.config.parallel, bool), *played])

    def as_itself(self, k: int) -> np.ndarray:
        """Which seats of which games are played by the k-th learner itself, not by another self of it, [E, G]."""
        group, say = self.groups[k], getattr(self.learners[k], "as_itself", None)
        games, seats = self.config.parallel, len(group.seats)
        return np.ones((games, seats), bool) if say is None else say(self.config.of(group.learner), games, seats)

    def sizes_of(self, group: lineup.Group) -> Sizes:
        """Of a learner: its schedules run over the updates it makes, not over the whole run."""
        ends = [*self.boundaries[1:], self.config.updates]
        return dataclasses.replace(self.sizes, updates=sum(ends[k] - self.boundaries[k] for k in group.phases))

    def phase_at(self, update: int) -> int:
        return max(k for k, begin in enumerate(self.boundaries) if begin <= update)


def prepare(config: Train) -> Setup:
    """Understand a config and refuse what cannot work, before anything is compiled."""
    for option in ("steps", "seeds", "parallel", "rollout", "epochs", "minibatches", "evaluate_episodes", "keep"):
        number, spelled = getattr(config, option), option.replace("_", "-")
        require(number >= 1, f"--{spelled} is {number}, expected at least 1: --{spelled} 1")
    require(config.evaluate_every >= 0, f"--evaluate-every is {config.evaluate_every}, expected 0 (never) or a number of steps")
    require(
        0 < config.checkpoint_every < math.inf,
        f"--checkpoint-every is {config.checkpoint_every}, expected a number of seconds: 30",
    )
    require(config.seed >= 0 and config.seed + config.seeds <= 2**32, f"--seed is {config.seed}, expected 0 to 4294967295")
    require(config.workers >= 0, f"--workers is {config.workers}, expected 0 (this process) or more")
    game = make(config.game)
    require(
        config.workers == 0 or game.on_host,
        f"--workers {config.workers}: {config.game} is compiled and has no worker processes: --workers 0",
    )
    phases = lineup.phases(lineup.spread(config.seats, game.seats, game.id))
    last = phases[-1].start
    require(last < config.steps, f"--seats changes at step {last}, and the run ends at --steps {config.steps}")
    require(config.updates < 2**31, f"--steps is {config.steps}, and counters end at {2**31 * config.steps_per_update:,}")
    groups = lineup.groups(phases, LEARNERS)
    setup = Setup(config, game, phases, groups)
    begins = [*setup.boundaries, config.updates]
    for phase, begin, end in zip(phases, begins, begins[1:], strict=False):
        require(
            begin < end,
            f"--seats: the stretch from step {phase.start} is shorter than an update of {config.steps_per_update} steps "
            "(--parallel times --rollout), so nobody would play it: change seats later",
        )
    for k in range(len(phases)):
        fixed = fixed_policies(setup, k)
        for seated in fixed:
            seated.policy.check(game, seated.seats)
        needed = seats.lanes_needed(fixed)
        require(
            config.parallel % needed == 0,
            f"--parallel {config.parallel} games cannot be shared equally by the pools: "
            f"--parallel {-(-config.parallel // needed) * needed}",
        )
    require(bool(groups), f"nobody learns in --seats {config.seats}: name a learner ({', '.join(LEARNERS)}) in at least one seat")
    for group, learner in zip(groups, setup.learners, strict=True):
        learner.check(config.of(group.learner), setup.sizes, game)
    return setup


def fixed_policies(setup: Setup, phase: int) -> tuple[Seated, ...]:
    """Scripts, pools and frozen policies of a phase."""
    return seats.resolve(setup.game, setup.phases[phase].entries, learned=setup.learned(phase))


def policies_at(setup: Setup, phase: int, learners: tuple[Any, ...], fixed: tuple[Seated, ...]) -> tuple[Seated, ...]:
    """Everybody who plays: first the learners, then the others."""
    own = tuple(Seated(setup.learners[k].policy(learners[k]), setup.groups[k].seats) for k in setup.active(phase))
    return own + fixed


Warm = Callable[[Train, int], Mapping[str, Any]]
"""Modules that were fitted alone, by name, for a seed to start from."""


def first_carry(setup: Setup, seed: int, fixed: tuple[Seated, ...], warm: Mapping[str, Any] | None = None) -> Carry:
    """A seed that has seen nothing; `warm` are modules that learners may start from. Weights are made on the host, outside of
    `jit`."""
    key = jax.random.key(seed)
    learners = []
    for k, (learner, group) in enumerate(zip(setup.learners, setup.groups, strict=True)):
        settings = setup.config.of(group.learner)
        taken: dict[str, Any] = {"warm": warm} if getattr(settings, "start", ()) else {}
        given = (settings, setup.sizes_of(group), setup.game, group.seats, jax.random.fold_in(key, PLAY + 1 + k))
        learners.append(learner.init(*given, **taken))
    play = None if setup.game.on_host else _open(setup, 0, tuple(learners), fixed, jax.random.fold_in(key, PLAY))
    nothing = jnp.zeros((setup.config.parallel, setup.game.seats))
    return Carry(tuple(learners), play, nothing, nothing, key, jnp.bool_(True))


@partial(jax.jit, static_argnums=(0, 1))
def _open(setup: Setup, phase: int, learners: tuple[Any, ...], fixed: tuple[Seated, ...], key: PRNGKeyArray) -> Play:
    return start(setup.game, policies_at(setup, phase, learners, fixed), setup.config.parallel, key)


@partial(jax.jit, static_argnums=(0, 1))
def reopen(setup: Setup, phase: int, carry: Carry, fixed: tuple[Seated, ...]) -> Carry:
    """New games for new partners, in all seeds; what was learned and the starts drawn ahead stay."""

    def one(carry: Carry) -> Carry:
        assert carry.play is not None
        key, play_key = jax.random.split(carry.key)
        policies = policies_at(setup, phase, carry.learners, fixed)
        play = start(setup.game, policies, setup.config.parallel, play_key, carry.play.bank)
        nothing = jnp.zeros_like(carry.earned)
        return Carry(carry.learners, play, nothing, nothing, key, carry.alive)

    return jax.vmap(one)(carry)


@partial(jax.jit, static_argnums=0)
def refresh(setup: Setup, carry: Carry, update: Int[Array, ""]) -> Carry:
    """Fresh starts for those dealt longest ago, in all seeds."""

    def one(carry: Carry) -> Carry:
        assert carry.play is not None
        assert carry.play.bank is not None
        key = jax.random.fold_in(jax.random.fold_in(carry.key, BANK), update)
        return eqx.tree_at(lambda c: c.play.bank, carry, refresh_bank(setup.game, carry.play.bank, key))

    return jax.vmap(one)(carry)


def one_update(setup: Setup, phase: int, fixed: tuple[Seated, ...], carry: Carry) -> tuple[Carry, dict[str, Any]]:
    """A rollout and the learning from it, for one seed. Not finite: as if it had not been, and the seed is no longer alive."""
    assert carry.play is not None
    policies = policies_at(setup, phase, carry.learners, fixed)
    memories = carry.play.memories
    play, rows = collect(setup.game, policies, carry.play, setup.config.rollout, final=setup.wants_final)
    after, metrics = learn(setup, phase, carry, rows, memories)
    after = eqx.tree_at(lambda c: c.play, after, play)
    return jax.tree.map(
        lambda new, old: jnp.where(after.alive, new, old), after, eqx.tree_at(lambda c: c.alive, carry, after.alive)
    ), metrics


def learn(
    setup: Setup,
    phase: int,
    carry: Carry,
    rows: Trajectory,
    memories: tuple[Memory, ...],
    order: tuple[int, ...] | None = None,
) -> tuple[Carry, dict[str, Any]]:
    """What the learners make of a rollout, in this `order` of them if one is given: it must not matter."""
    active = setup.active(phase)
    states, logged = list(carry.learners), {}
    for k in order or active:
        own = of_seats(rows, setup.groups[k].seats, memories[active.index(k)])
        states[k], logged[str(k)] = setup.learners[k].update(carry.learners[k], own, learner_key(carry, k))
    finite = jnp.bool_(True)
    for leaf in jax.tree.leaves((states, logged)):
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            finite &= jnp.isfinite(leaf).all()
    played, earned, lasted = rewards_of(setup.game, rows, carry, setup.plain(phase))
    alive = carry.alive & finite
    after = Carry(tuple(states), carry.play, earned, lasted, jax.random.fold_in(carry.key, 0), alive)
    return after, {"seats": played, "learners": logged, "alive": alive, "was_alive": carry.alive}


def learner_key(carry: Carry, k: int) -> PRNGKeyArray:
    """The randomness of one learner in this update: its own, whoever learned before it."""
    return jax.random.fold_in(carry.key, PLAY + 1 + k)


def rewards_of(game: Game, rows: Trajectory, carry: Carry, plain: np.ndarray) -> tuple[dict[str, Array], Array, Array]:
    """What each seat earned in the episodes of `plain` games that ended in these rows (not a number if none did), and what is
    still under way."""
    ended = jnp.concatenate([rows.first[1:], rows.last.first[None]])
    sums, earned = episode_sums(rows.reward, ended, carry.earned)
    lengths, lasted = episode_sums(jnp.ones_like(rows.reward), ended, carry.lasted)
    counts = ended & jnp.asarray(plain)[None]
    count = counts.sum()
    mean = lambda x: jnp.where(counts[..., None], x, 0.0).sum((0, 1)) / count  # noqa: E731
    played = {"reward": mean(sums), "length": mean(lengths), "episodes": jnp.broadcast_to(count * 1.0, (game.seats,))}
    if rows.won is not None:
        played["won"] = jnp.broadcast_to((rows.won & counts).sum() / count, (game.seats,))
    return played, earned, lasted


def many_updates(
    setup: Setup, phase: int, carry: Carry, fixed: tuple[Seated, ...], count: Int[Array, ""]
) -> tuple[Carry, dict[str, Any]]:
    """`count` updates of all seeds; metrics have room for CALL, [CALL, S, seats].

    On a CPU the seeds take turns: batched, their small matrices would be no faster, and the memory many times as much. So they do
    anywhere if a learner leaves out work by branching: batched, nothing would be left out.
    """
    update = partial(one_update, setup, phase, fixed)
    turns = jax.default_backend() == "cpu" or any(getattr(setup.learners[k], "BRANCHES", False) for k in setup.active(phase))
    over_seeds = partial(jax.lax.map, update) if turns else jax.vmap(update)
    room = jax.tree.map(
        lambda leaf: jnp.zeros((CALL, *leaf.shape), leaf.dtype), jax.eval_shape(lambda c: over_seeds(c)[1], carry)
    )

    def body(number: Array, state: tuple[Carry, Any]) -> tuple[Carry, Any]:
        carry, metrics = over_seeds(state[0])
        return carry, jax.tree.map(lambda all_, new: all_.at[number].set(new), state[1], metrics)

    return jax.lax.fori_loop(0, count, body, (carry, room))


def build(lowered: Any) -> Any:
    """Compile, on a CPU with products left to its older library: with own parameters for each seat an update is a fifth faster.

    The newer one does such batches of small products on one core. A release of JAX without this option compiles as it likes.
    """
    if jax.default_backend() != "cpu":
        return lowered.compile()
    try:
        return lowered.compile(compiler_options={"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_REDUCE"})
    except jax.errors.JaxRuntimeError as error:
        if "option" not in str(error):
            raise
        return lowered.compile()


class Compiled:
    """Plays and learns in one compiled program a phase."""

    def __init__(self, setup: Setup, warm: Warm | None = None):
        self.setup, self.compile_s, self.warm = setup, 0.0, warm
        self.programs: dict[int, Any] = {}
        self.fixed: dict[int, tuple[Seated, ...]] = {}

    def policies(self, phase: int, update: int) -> tuple[Seated, ...]:
        if phase not in self.fixed:
            self.fixed[phase] = fixed_policies(self.setup, phase)
        return seats.rotated(self.fixed[phase], update // CALL)

    def first(self, warm: bool = True) -> Carry:
        fixed, config = self.policies(0, 0), self.setup.config
        carries = [
            first_carry(self.setup, seed, fixed, self.warm(config, seed) if warm and self.warm else None)
            for seed in self.setup.seeds
        ]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *carries)

    def like(self, phase: int) -> Carry:
        """A carry of the shape it has in a phase."""
        carry = self.first(warm=False)
        return carry if phase == 0 else reopen(self.setup, phase, carry, self.policies(phase, 0))

    def before(self, carry: Carry, held: int, update: int) -> Carry:
        """What happens between calls, at fixed updates: new games for a new phase or for rotated pools, and fresh starts."""
        phase = self.setup.phase_at(update)
        fixed = self.policies(phase, update)
        rhythm = update > 0 and update % CALL == 0
        if phase != held or (rhythm and seats.lanes_needed(fixed) > 1):
            carry = reopen(self.setup, phase, carry, fixed)
        return refresh(self.setup, carry, jnp.int32(update)) if rhythm else carry

    def advance(self, carry: Carry, update: int, count: int) -> tuple[Carry, dict[str, Any]]:
        phase = self.setup.phase_at(update)
        fixed = self.policies(phase, update)
        if phase not in self.programs:
            begin = time.perf_counter()
            program = jax.jit(many_updates, static_argnums=(0, 1), donate_argnums=2)
            self.programs[phase] = build(program.lower(self.setup, phase, carry, fixed, jnp.int32(count)))
            self.compile_s += time.perf_counter() - begin
        return self.programs[phase](carry, fixed, jnp.int32(count))

    def close(self) -> None:
        pass


_learn = eqx.filter_jit(learn)


class OnHost(Compiled):
    """The same for games that are stepped in Python: they cannot be saved, so a resumed run opens new ones."""

    def __init__(self, setup: Setup, warm: Warm | None = None):
        super().__init__(setup, warm)
        self.plays: list[Play] = []

    def like(self, phase: int) -> Carry:
        return self.first(warm=False)

    def before(self, carry: Carry, held: int, update: int) -> Carry:
        phase = self.setup.phase_at(update)
        fixed = self.policies(phase, update)
        rotates = update > 0 and update % CALL == 0 and seats.lanes_needed(fixed) > 1
        if phase != held or rotates or not self.plays:
            self.close()
            config = self.setup.config
            for k in range(config.seeds):
                own = jax.tree.map(lambda leaf, k=k: leaf[k], carry)
                key = jax.random.fold_in(jax.random.fold_in(own.key, PLAY), update)
                policies = policies_at(self.setup, phase, own.learners, fixed)
                self.plays.append(start(self.setup.game, policies, config.parallel, key, workers=config.workers))
            nothing = jnp.zeros_like(carry.earned)
            carry = eqx.tree_at(lambda c: (c.earned, c.lasted), carry, (nothing, nothing))
        return carry

    def advance(self, carry: Carry, update: int, count: int) -> tuple[Carry, dict[str, Any]]:
        phase = self.setup.phase_at(update)
        fixed = self.policies(phase, update)
        rows = []
        for _ in range(count):
            together = [
                self._one(phase, fixed, jax.tree.map(lambda leaf, k=k: leaf[k], carry), k) for k in range(len(self.plays))
            ]
            carry, metrics = jax.tree.map(lambda *leaves: jnp.stack(leaves), *together)
            rows.append(metrics)
        return carry, jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)

    def _one(self, phase: int, fixed: tuple[Seated, ...], carry: Carry, k: int) -> tuple[Carry, dict[str, Any]]:
        setup, play = self.setup, self.plays[k]
        policies = policies_at(setup, phase, carry.learners, fixed)
        self.plays[k], rows = collect(setup.game, policies, play, setup.config.rollout, final=setup.wants_final)
        after, metrics = _learn(setup, phase, carry, rows, play.memories)
        return jax.tree.map(
            lambda new, old: jnp.where(after.alive, new, old), after, eqx.tree_at(lambda c: c.alive, carry, after.alive)
        ), metrics

    def close(self) -> None:
        for play in self.plays:
            close(play)
        self.plays = []
