"""What a learner is, and what learners share: how data are cut and gone through, schedules, the scale of values, metrics."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from otherminds import config, distributions
from otherminds.config import Sizes, require
from otherminds.distributions import Distribution
from otherminds.games.base import Game, is_board
from otherminds.losses import clipped_policy, clipped_value, explained_variance, masked_mean, normalised
from otherminds.networks import Dense
from otherminds.returns import Targets
from otherminds.types import Action, Memory, Policy, Trajectory

Metrics = dict[str, Float[Array, " G"]]


class Learner(Protocol):
    """What `train` needs of a learner's module. States are pytrees of arrays; what is not an array is a static field."""

    def check(self, config: Any, sizes: Sizes, game: Game) -> None:
        """Refuse settings that cannot work, before anything is compiled."""

    def init(self, config: Any, sizes: Sizes, game: Game, seats: tuple[int, ...], key: PRNGKeyArray) -> Any:
        """The state of a learner that has seen nothing. Made outside of `jit`."""

    def policy(self, state: Any) -> Policy:
        """What sits in the learner's seats now."""

    def update(self, state: Any, rows: Trajectory, key: PRNGKeyArray) -> tuple[Any, Metrics]:
        """Learn from the rows of its own seats (`types.of_seats`)."""

    def trainable(self, state: Any) -> Any:
        """All that gradients may move: parameters, with a leading axis of seats unless they are shared."""

    # A learner may also have `wants_final(config)`, whether it learns from what the last step of an episode led to;
    # `taught(state)`, of which seats of which games the rows teach it at this time, if not of those it plays as itself;
    # `as_itself(config, games, group)`, which seats of which games it does not leave to other selves of it while it learns; and
    # `among_equals(state)`, itself without those; and `live_parts(state, fresh, view, memory, key)`, how much what is played
    # changes without each part that is switched on; and `signs()`, by which of its metrics its parts are judged (else: SIGNS).
    # `BRANCHES` says whether an update leaves out work by branching. If its settings have `start`, `init` takes `warm`: modules
    # fitted alone.
    # Its policy may have `foreseen(memory)`, what partners will do; `imagined(observation, action, seat)`, what steps lead to;
    # and `without_search()`, itself without looking ahead.


@dataclasses.dataclass(frozen=True)
class Sign:
    """A metric by which a part of a learner is judged when the reward of a run has fallen."""

    module: str
    metric: str
    worse: Literal["up", "down", "either"]
    beside: str = ""  # the metric it is compared with: what anybody could do


SIGNS = (
    Sign("policy", "entropy", "either"),
    Sign("policy", "kl", "up"),
    Sign("policy", "explained_variance", "down"),
    Sign("policy", "value_loss", "up"),
)


def check_network(network: config.Network, sizes: Sizes, owner: str, game: Game) -> None:
    """Refuse what cannot work, before anything is compiled."""
    for option, numbers in (("hidden", network.hidden), ("channels", network.channels)):
        require(
            all(n > 0 for n in numbers), f"--{owner}.{option} is {numbers}, expected positive numbers: --{owner}.{option} 64 64"
        )
    require(network.core_size > 0, f"--{owner}.core-size is {network.core_size}, expected a positive number: 64")
    planes = len(game.observation_shape) == 3
    require(
        planes or not network.channels,
        f"--{owner}.channels: {game.id} shows {game.observation_shape}, and convolutions need planes [planes, height, width]",
    )
    require(network.segment > 0, f"--{owner}.segment is {network.segment}, expected a positive number: --{owner}.segment 20")
    length = min(network.segment, sizes.rollout)
    if network.core != "none":
        require(
            sizes.rollout % length == 0,
            f"--{owner}.segment {network.segment} does not divide --rollout {sizes.rollout}: "
            f"--{owner}.segment {_divisor_near(sizes.rollout, length)}",
        )
    units = sizes.parallel * sizes.rollout // unit_length(network, sizes)
    require(
        units % sizes.minibatches == 0,
        f"{units} pieces of data (--parallel {sizes.parallel} games of --rollout {sizes.rollout} steps) cannot be cut into "
        f"--minibatches {sizes.minibatches}: --minibatches {_divisor_near(units, sizes.minibatches)}",
    )


def looks_around(network: config.Network, game: Game) -> bool:
    """Whether a network looks at the board as it lies around its player."""
    return network.torso == "centred" and is_board(game) and not network.channels


def check_shares(owner: str, settings: Any, options: tuple[str, ...]) -> None:
    """Refuse numbers that are no share from 0 to 1, and limits that are not positive."""
    for option in options:
        number = getattr(settings, option)
        require(0 <= number <= 1, f"--{owner}.{option} is {number}, expected a number from 0 to 1")
    for option in ("clip", "value_clip", "max_gradient"):
        number = getattr(settings, option)
        fits = number is None or 0 < number < math.inf
        require(fits, f"--{owner}.{option} is {number}, expected a positive number: 0.5")
    for option in ("learning_rate", "learning_rate_final", "entropy", "entropy_final", "value_weight"):
        number = getattr(settings, option)
        fits = number is None or 0 <= number < math.inf
        require(fits, f"--{owner}.{option} is {number}, expected 0 or a positive number: 0.001")


def _divisor_near(number: int, wanted: int) -> int:
    return min((d for d in range(1, number + 1) if number % d == 0), key=lambda d: abs(d - wanted))


def unit_length(network: config.Network, sizes: Sizes) -> int:
    """Steps of one game that stay together when data are shuffled: a segment, or as many as the minibatches allow.

    Shuffling whole stretches instead of rows is a third of the time of a small PPO update.
    """
    if network.core != "none":
        return min(network.segment, sizes.rollout)
    lengths = [d for d in range(sizes.rollout, 0, -1) if sizes.rollout % d == 0]
    return next((d for d in lengths if sizes.rollout // d * sizes.parallel % sizes.minibatches == 0), 1)


def cut(x: Array, length: int) -> Array:
    """[T, E, G, ...] as [G, units, length, ...]: seats first, then stretches of one game."""
    steps, games, *rest = x.shape
    pieces = x.reshape(steps // length, length, games, *rest)
    return jnp.moveaxis(pieces, 3, 0).swapaxes(2, 3).reshape(rest[0], steps // length * games, length, *rest[1:])


def orders(key: PRNGKeyArray, units: int, sizes: Sizes) -> Int[Array, "steps units_each"]:
    """Which units make up each minibatch, epoch after epoch; the same for all seats."""
    shuffled = jax.vmap(lambda key: jax.random.permutation(key, units))(jax.random.split(key, sizes.epochs))
    return shuffled.reshape(sizes.epochs * sizes.minibatches, -1)


def between(start: float, end: float | None, updates: Int[Array, ""], planned: Int[Array, ""]) -> Float[Array, ""]:
    """A straight line from `start` at the first update to `end` at the last; constant without an `end`."""
    share = jnp.clip(updates / jnp.maximum(planned - 1, 1), 0.0, 1.0)
    return jnp.float32(start) + share * ((start if end is None else end) - start)


def adam(max_gradient: float) -> optax.GradientTransformation:
    """Steps of size one in the direction of the gradient, cut to a norm; the learning rate comes from the schedule."""
    return optax.chain(optax.clip_by_global_norm(max_gradient), optax.scale_by_adam(eps=1e-5))


class Batch(eqx.Module):
    """Rows of all seats, cut into units of L steps of one game."""

    observation: Array  # [G, units, L, ...]
    legal: Bool[Array, "G units L actions"]
    present: Bool[Array, "G units L"]
    fresh: Bool[Array, "G units L"]  # where a memory starts empty
    action: Array  # [G, units, L] or [G, units, L, dims]
    log_probability: Float[Array, "G units L"]  # of the action, when it was played
    logits: Float[Array, "G units L outputs"]  # the policy's own, when the rows were played
    advantage: Float[Array, "G units L"]  # normalised
    value: Float[Array, "G units L"]  # normalised, when the rows were played
    target: Float[Array, "G units L"]  # normalised
    memory: Float[Array, "G units memory"]  # before the first step of the unit

    @staticmethod
    def make(
        rows: Trajectory, targets: Targets, scale: "Scale", fresh: Array, before: Array, length: int, distribution: Distribution
    ) -> "Batch":
        """`before` is what was remembered before each row, [T, E, G, memory]."""
        parts = dict(
            observation=rows.observation,
            legal=rows.legal,
            present=rows.present,
            fresh=fresh,
            action=rows.action,
            log_probability=distribution.log_probability(rows.behaviour_logits, rows.action),
            logits=rows.policy_logits,
            advantage=normalised(targets.advantages, rows.present),
            value=scale.normalise(rows.value),
            target=scale.normalise(targets.returns),
        )
        return Batch(**{name: cut(x, length) for name, x in parts.items()}, memory=cut(before[::length], 1)[:, :, 0])


Loss = Callable[[Any, Batch], tuple[Float[Array, ""], dict[str, Float[Array, " G"]]]]


def descend(
    loss: Loss,
    network: Any,
    optimiser: Any,
    batch: Batch,
    key: PRNGKeyArray,
    sizes: Sizes,
    rate: Array,
    limit: float,
    share: bool,
) -> tuple[Any, Any, dict[str, Float[Array, "steps G"]]]:
    """Go through the data, epoch after epoch, minibatch after minibatch: (network, optimiser's state, terms of the loss)."""
    group, units = batch.present.shape[:2]
    transform = adam(limit)

    def step(carry: tuple[Any, Any], chosen: Array) -> tuple[tuple[Any, Any], dict[str, Array]]:
        network, optimiser = carry
        part = jax.tree.map(lambda leaf: leaf[:, chosen], batch)
        gradient, terms = jax.grad(loss, has_aux=True)(network, part)
        moves, optimiser = moves_of(transform, gradient, optimiser, share)
        network = jax.tree.map(lambda old, move: old - rate * move, network, moves)
        return (network, optimiser), terms | {"gradient_norm": norms(gradient, share, group)}

    (network, optimiser), terms = jax.lax.scan(step, (network, optimiser), orders(key, units, sizes))
    return network, optimiser, terms


def moves_of(transform: optax.GradientTransformation, gradient: Any, optimiser: Any, share: bool) -> tuple[Any, Any]:
    """Steps of an optimiser, of each seat by itself."""
    if share:
        return transform.update(gradient, optimiser)
    return jax.vmap(lambda gradient, optimiser: transform.update(gradient, optimiser))(gradient, optimiser)


def norms(tree: Any, share: bool, group: int) -> Float[Array, " G"]:
    """The norm of each seat's part of a pytree; the same for all seats that share it."""
    return jnp.broadcast_to(optax.tree.norm(tree), (group,)) if share else jax.vmap(optax.tree.norm)(tree)


def common_metrics(
    terms: dict[str, Float[Array, "steps G"]],
    rows: Trajectory,
    targets: Targets,
    scale: "Scale",
    move: Float[Array, " G"],
    rate: Float[Array, ""],
    entropy_weight: Float[Array, ""],
) -> Metrics:
    """What every learner of this kind logs, one number a seat; docs/ppo.md explains each."""
    each = jnp.ones(move.shape)
    metrics = {name: term.mean(0) for name, term in terms.items() if name != "ratio_error"}
    metrics["value_loss"] *= scale.spread**2 * each
    return metrics | dict(
        first_ratio_error=terms["ratio_error"][0],
        explained_variance=jax.vmap(explained_variance, 2)(rows.value, targets.returns, rows.present),
        update_size=move,
        learning_rate=rate * each,
        entropy_weight=entropy_weight * each,
        present_steps=rows.present.sum((0, 1)) * each,
        data_seat=rows.seat * each,
    )


def ppo_terms(
    raw: Array,
    value: Float[Array, "G units L"],
    part: Batch,
    settings: config.PolicyGradient,
    behaviour: Callable[..., Array],
) -> dict[str, Float[Array, " G"]]:
    """The terms of PPO's loss (Schulman et al. 2017, equation 9) and what tells whether they are sound, by seat."""
    distribution = distributions.for_actions(jnp.issubdtype(part.action.dtype, jnp.floating))
    logits = distribution.masked(raw, part.legal)
    log_probability = distribution.log_probability(behaviour(logits, part.legal), part.action)
    ratio = jnp.exp(jnp.where(part.present, log_probability - part.log_probability, 0.0))

    def mean(x: Float[Array, "G units L"]) -> Float[Array, " G"]:
        return masked_mean(x, part.present, (1, 2))

    return dict(
        policy_loss=mean(clipped_policy(ratio, part.advantage, settings.clip)),
        value_loss=mean(clipped_value(value, part.value, part.target, settings.value_clip)),
        entropy=mean(distribution.entropy(logits)),
        kl=mean(distribution.divergence(part.logits, logits)),
        clipped=mean((jnp.abs(ratio - 1) > settings.clip) * 1.0),
        ratio_error=jnp.abs(ratio - 1).max((1, 2)),
    )


class SeatPolicy(Policy):
    """Networks of G seats at play, with one set of parameters for all or one for each."""

    network: Any
    scale: "Scale"
    config: Any = eqx.field(static=True)
    game: Game = eqx.field(static=True)
    group: int = eqx.field(static=True)
    best_only: bool = eqx.field(static=True, default=False)

    def greedy(self) -> "SeatPolicy":
        return dataclasses.replace(self, best_only=True)

    def of(self, place: int) -> "SeatPolicy":
        """The policy of one of its seats alone: the `place`-th of the group."""
        if self.config.share:
            return dataclasses.replace(self, group=1)
        network, scale = jax.tree.map(lambda leaf: leaf[place : place + 1], (self.network, self.scale))
        return dataclasses.replace(self, network=network, scale=scale, group=1)

    def check(self, game: Game, seats: tuple[int, ...]) -> None:
        require(self.group == len(seats), f"a policy of {self.group} seats cannot sit in {len(seats)}")
        fits, own = ((g.observation_shape, g.actions, g.continuous) for g in (game, self.game))
        require(fits == own, f"a policy trained in {self.game.id} cannot play {game.id}: it observes or acts in other shapes")

    def initial_memory(self) -> Memory:
        return pack_memory(jnp.zeros((self.group, self.network.memory)), self.config)

    def play(self, raw: Array, legal: Array, key: PRNGKeyArray, behaviour: Callable[..., Array]) -> tuple[Action, Array, Array]:
        """(action, logits it was drawn from, logits of the policy itself)."""
        distribution = distributions.for_actions(self.game.continuous)
        logits = distribution.masked(raw, legal)
        if self.best_only:
            return distribution.mode(logits), logits, logits
        played = behaviour(logits, legal)
        return distribution.sample(played, key), played, logits


def pack_memory(memory: Array, network: config.Network) -> Memory:
    """What cores remember, as the half of a Memory that is forgotten when it should be."""
    return Memory(memory, None) if network.memory == "episode" else Memory(None, memory)


def open_memory(memory: Memory, network: config.Network) -> Array:
    return memory.episode if network.memory == "episode" else memory.lasting


def forgotten(rows: Any, network: config.Network) -> Bool[Array, "*games"]:
    """Where the memory starts empty, in a Trajectory or a TimeStep."""
    return rows.first if network.memory == "episode" else rows.meeting


def mixed_rewards(rows: Trajectory, prosocial: float) -> tuple[Float[Array, "T E G"], Bool[Array, "T E G"]]:
    """(reward, terminated) for seats that care for all: their own reward mixed with the mean over seats.

    What the others earn after a seat has left still counts for it, so for a prosocial seat nothing is over before the episode is.
    """
    if prosocial == 0:
        return rows.reward, rows.terminated
    assert rows.everyone is not None
    mean = rows.everyone.reward.mean(-1, keepdims=True)
    opened = jnp.concatenate([rows.first[1:], rows.last.first[None]])
    over = (opened & ~rows.truncated)[..., None]
    return (1 - prosocial) * rows.reward + prosocial * mean, jnp.broadcast_to(over, rows.reward.shape)


class Scale(eqx.Module):
    """Where the returns lie and how far they spread, as moving means: one number a seat, or one for all that share."""

    first: Float[Array, "..."]
    second: Float[Array, "..."]
    weight: Float[Array, "..."]

    @staticmethod
    def make(shape: tuple[int, ...]) -> "Scale":
        return Scale(jnp.zeros(shape), jnp.zeros(shape), jnp.zeros(shape))

    @property
    def mean(self) -> Float[Array, "..."]:
        return self.first / jnp.maximum(self.weight, 1e-8)

    @property
    def spread(self) -> Float[Array, "..."]:
        variance = self.second / jnp.maximum(self.weight, 1e-8) - self.mean**2
        return jnp.where(self.weight > 0, jnp.sqrt(jnp.maximum(variance, 1e-4)), 1.0)

    def take_in(self, returns: Float[Array, "T E G"], present: Bool[Array, "T E G"], rate: float = 0.1) -> "Scale":
        """Move towards the returns of the rows in which the seats were present; seats that never were stay where they are."""
        axes = (0, 1, 2) if self.first.ndim == 0 else (0, 1)
        some = present.any(axes)
        step = jnp.where(some, rate, 0.0)
        first, second = masked_mean(returns, present, axes), masked_mean(returns**2, present, axes)
        moved = [old + step * (new - old) for old, new in ((self.first, first), (self.second, second), (self.weight, some * 1.0))]
        return Scale(*moved)

    def normalise(self, value: Float[Array, "*n G"]) -> Float[Array, "*n G"]:
        return (value - self._fit(self.mean, value)) / self._fit(self.spread, value)

    def restore(self, value: Float[Array, "*n G"]) -> Float[Array, "*n G"]:
        return value * self._fit(self.spread, value) + self._fit(self.mean, value)

    @staticmethod
    def _fit(number: Array, value: Array) -> Array:
        return jnp.broadcast_to(number, value.shape[-1:]).reshape((1,) * (value.ndim - 1) + (-1,))


def rescale(head: Dense, old: Scale, new: Scale) -> Dense:
    """The head of a critic that says the same values in a new scale (PopArt, van Hasselt et al. 2016)."""
    ratio = old.spread / new.spread
    return Dense(
        weight=head.weight * ratio[..., None, None],
        bias=head.bias * ratio[..., None] + ((old.mean - new.mean) / new.spread)[..., None],
    )


def for_seats(function: Callable[..., Any], share: bool, *axes: int, out: int) -> Callable[..., Any]:
    """`function(module, *arrays)` for all seats, with one module for all or one for each; `axes` say where seats stand.

    A module takes any leading axes, so one for all needs no mapping: a single large product is faster than one for each seat.
    """
    return function if share else jax.vmap(function, (0, *axes), out)
