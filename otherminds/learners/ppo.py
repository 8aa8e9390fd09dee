"""Independent PPO (Schulman et al. 2017): each seat has its own network and optimiser and learns from its own rewards.

Seats are an axis: parameters and optimiser states are stacked and the whole update is mapped over them. With `share`, there is no
such axis and one network learns from the rows of all its seats.
"""

import dataclasses
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from otherminds import distributions
from otherminds.config import PPO, Sizes, require
from otherminds.games.base import Game
from otherminds.learners.base import (
    Batch,
    Metrics,
    Scale,
    SeatPolicy,
    adam,
    between,
    check_network,
    check_shares,
    common_metrics,
    descend,
    for_seats,
    forgotten,
    looks_around,
    mixed_rewards,
    norms,
    open_memory,
    pack_memory,
    ppo_terms,
    rescale,
    unit_length,
)
from otherminds.networks import Dense, Trunk, generator, stack
from otherminds.returns import lambda_returns
from otherminds.types import Action, Extras, Memory, Trajectory, View


class ActorCritic(eqx.Module):
    """One seat's network: what to do, and what the moment is worth in the critic's scale."""

    trunk: Trunk
    critic_trunk: Trunk | None
    actor: Dense
    critic: Dense

    @staticmethod
    def make(config: PPO, game: Game, key: PRNGKeyArray) -> "ActorCritic":
        random = generator(key)
        sizes = (game.observation_shape, config.hidden, config.activation, config.channels, config.core, config.core_size)
        trunk = Trunk.make(random, *sizes, looks_around(config, game))
        critic_trunk = Trunk.make(random, *sizes, looks_around(config, game)) if config.separate_critic else None
        outputs = distributions.for_actions(game.continuous).outputs(game.actions)
        return ActorCritic(
            trunk, critic_trunk, Dense.make(random, trunk.features, outputs, 0.01), Dense.make(random, trunk.features, 1, 1.0)
        )

    @property
    def memory(self) -> int:
        return self.trunk.memory * (2 if self.critic_trunk else 1)

    def step(self, memory: Array, observation: Array, present: Array) -> tuple[Array, Array, Array]:
        """(memory after it, raw outputs, value) of one moment; any leading axes."""
        own, others = self._split(memory)
        own, features = self.trunk.step(own, observation, present)
        seen = features
        if self.critic_trunk:
            others, seen = self.critic_trunk.step(others, observation, present)
        return jnp.concatenate([own, others], -1), self.actor(features), self.critic(seen)[..., 0]

    def through(self, memory: Array, observation: Array, fresh: Array, present: Array) -> tuple[Array, Array, Array]:
        """(memory after each step, raw outputs, values) of moments in a row, with time as the first axis."""
        own, others = self._split(memory)
        own, features = self.trunk.through(own, observation, fresh, present)
        others, seen = jnp.zeros((*fresh.shape, 0)), features
        if self.critic_trunk:
            others, seen = self.critic_trunk.through(self._split(memory)[1], observation, fresh, present)
        return jnp.concatenate([own, others], -1), self.actor(features), self.critic(seen)[..., 0]

    def _split(self, memory: Array) -> tuple[Array, Array]:
        return memory[..., : self.trunk.memory], memory[..., self.trunk.memory :]


class State(eqx.Module):
    """All that a PPO knows. Arrays have a leading axis of seats unless parameters are shared."""

    network: ActorCritic
    optimiser: Any
    scale: Scale
    updates: Int[Array, ""]
    planned: Int[Array, ""]  # updates in the whole run, for schedules; an array, so that a longer run is the same program
    config: PPO = eqx.field(static=True)
    sizes: Sizes = eqx.field(static=True)
    game: Game = eqx.field(static=True)
    seats: tuple[int, ...] = eqx.field(static=True)


def init(config: PPO, sizes: Sizes, game: Game, seats: tuple[int, ...], key: PRNGKeyArray) -> State:
    if config.share:
        network = ActorCritic.make(config, game, key)
    else:
        network = stack([ActorCritic.make(config, game, jax.random.fold_in(key, seat)) for seat in seats])
    start = adam(config.max_gradient).init
    optimiser = start(network) if config.share else jax.vmap(start)(network)
    scale = Scale.make(() if config.share else (len(seats),))
    return State(network, optimiser, scale, jnp.int32(0), jnp.int32(sizes.updates), config, sizes, game, seats)


def check(config: PPO, sizes: Sizes, game: Game) -> None:
    """Refuse settings that cannot work."""
    check_network(config, sizes, "ppo", game)
    check_shares("ppo", config, ("discount", "trace", "prosocial", "action_noise"))
    require(
        not (game.continuous and config.action_noise),
        f"--ppo.action-noise is for discrete actions, and {game.id} has continuous ones: --ppo.action-noise 0",
    )


def trainable(state: State) -> ActorCritic:
    return state.network


def policy(state: State) -> "PPOPolicy":
    return PPOPolicy(state.network, state.scale, state.config, state.game, len(state.seats), noise=state.config.action_noise)


class PPOPolicy(SeatPolicy):
    """The networks of G seats at play."""

    noise: float = eqx.field(static=True, default=0.0)  # chance of a random legal action

    def without_noise(self) -> "PPOPolicy":
        return dataclasses.replace(self, noise=0.0)

    def act(self, view: View, memory: Memory, key: PRNGKeyArray) -> tuple[Action, Memory, Extras]:
        step = for_seats(ActorCritic.step, self.config.share, 1, 1, 1, out=1)
        before, observation = open_memory(memory, self.config), self.game.scaled(view.observation)
        after, raw, value = step(self.network, before, observation, view.present[..., 0])
        action, played, logits = self.play(raw, view.legal, key, partial(behaviour, self.noise))
        goal = jnp.full(value.shape, -1, jnp.int32)
        extras = Extras(logits=played, policy_logits=logits, value=self.scale.restore(value), goal=goal)
        return action, pack_memory(after, self.config), extras


def behaviour(noise: float, logits: Array, legal: Bool[Array, "*n actions"]) -> Array:
    """The distribution actions are really drawn from: the policy, with a random legal action now and then."""
    if not noise:
        return logits
    share = noise / jnp.maximum(legal.sum(-1, keepdims=True), 1)
    mixed = jnp.log((1 - noise) * jnp.exp(logits) + jnp.where(legal, share, 1e-30))
    return jnp.where(legal, mixed, distributions.NEVER)


def update(state: State, rows: Trajectory, key: PRNGKeyArray) -> tuple[State, Metrics]:
    config, sizes, game = state.config, state.sizes, state.game
    rate = between(config.learning_rate, config.learning_rate_final, state.updates, state.planned)
    entropy_weight = between(config.entropy, config.entropy_final, state.updates, state.planned)

    fresh = jnp.broadcast_to(forgotten(rows, config)[..., None], rows.present.shape)
    before, last_value, final_value = look_back(state, rows, fresh)
    reward, terminated = mixed_rewards(rows, config.prosocial)
    targets = lambda_returns(
        *(reward, rows.value, last_value, final_value),
        *(rows.present, rows.last.present, terminated, rows.truncated),
        discount=config.discount,
        trace=config.trace,
    )
    network, scale = state.network, state.scale
    if config.normalise_value:
        scale = scale.take_in(targets.returns, rows.present)
        network = eqx.tree_at(lambda n: n.critic, network, rescale(network.critic, state.scale, scale))

    def loss(network: ActorCritic, part: Batch) -> tuple[Float[Array, ""], dict[str, Float[Array, " G"]]]:
        """Summed over seats, of which each depends on its own parameters alone; the mean where they share."""
        raw, value = replay(network, part, config, game)
        terms = ppo_terms(raw, value, part, config, partial(behaviour, config.action_noise))
        total = terms["policy_loss"] + config.value_weight * terms["value_loss"] - entropy_weight * terms["entropy"]
        return total.mean() if config.share else total.sum(), terms

    distribution = distributions.for_actions(game.continuous)
    batch = Batch.make(rows, targets, scale, fresh, before, unit_length(config, sizes), distribution)
    network, optimiser, terms = descend(
        loss, network, state.optimiser, batch, key, sizes, rate, config.max_gradient, config.share
    )
    move = norms(jax.tree.map(jnp.subtract, network, state.network), config.share, len(state.seats))
    metrics = common_metrics(terms, rows, targets, scale, move, rate, entropy_weight)
    return State(network, optimiser, scale, state.updates + 1, state.planned, config, sizes, game, state.seats), metrics


def look_back(state: State, rows: Trajectory, fresh: Bool[Array, "T E G"]) -> tuple[Array, Array, Array | None]:
    """What the policy that played remembered before each row; its values after the last row, and of what each row led to."""
    game, config = state.game, state.config
    memory, last_fresh = open_memory(rows.memory, config), forgotten(rows.last, config)

    def through(network: ActorCritic, memory: Array, observation: Array, fresh: Array, present: Array) -> Array:
        return network.through(memory, observation, fresh, present)[0]

    def value(network: ActorCritic, memory: Array, observation: Array, present: Array) -> Array:
        return network.step(memory, observation, present)[2]

    after = jnp.zeros((*rows.present.shape, 0))
    if config.core != "none":
        seen = game.scaled(rows.observation)
        after = for_seats(through, config.share, 1, 2, 2, 2, out=2)(state.network, memory, seen, fresh, rows.present)
    held = jnp.where(last_fresh[:, None, None], 0.0, after[-1])
    seen = game.scaled(rows.last.observation)
    last_value = for_seats(value, config.share, 1, 1, 1, out=1)(state.network, held, seen, rows.last.present)
    final_value = None
    if rows.final_observation is not None:
        seen = game.scaled(rows.final_observation)
        final_value = for_seats(value, config.share, 2, 2, 2, out=2)(state.network, after, seen, rows.present)
        final_value = state.scale.restore(final_value)
    before = jnp.concatenate([memory[None], after[:-1]])
    return before, state.scale.restore(last_value), final_value


def replay(network: ActorCritic, part: Batch, config: PPO, game: Game) -> tuple[Array, Float[Array, "G units L"]]:
    """(raw outputs, normalised values) of rows that were played, as the network is now."""

    def one(network: ActorCritic, part: Batch) -> tuple[Array, Array]:
        if config.core == "none":
            return network.step(jnp.zeros((*part.present.shape, 0)), game.scaled(part.observation), part.present)[1:]
        time = part.present.ndim - 1
        observation, fresh, present = (jnp.moveaxis(x, time, 0) for x in (part.observation, part.fresh, part.present))
        _, raw, value = network.through(part.memory, game.scaled(observation), fresh, present)
        return jnp.moveaxis(raw, 0, time), jnp.moveaxis(value, 0, time)

    return for_seats(one, config.share, 0, out=0)(network, part)
