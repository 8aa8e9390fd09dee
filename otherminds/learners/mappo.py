"""MAPPO (Yu et al. 2022): PPO whose critic reads the observations of all seats of the learner; actors see only their own.

A seat's critic sees itself first and the others in turn order behind it, with zeros for those who are absent. Seats are an axis:
each has its own actor, critic and optimiser, unless they `share`. A policy taken out of its group plays on without a critic.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num, PRNGKeyArray

from otherminds import distributions
from otherminds.config import MAPPO, Sizes, require
from otherminds.games.base import Game
from otherminds.games.ego import all_to_ego
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
    norms,
    open_memory,
    pack_memory,
    ppo_terms,
    rescale,
    unit_length,
)
from otherminds.networks import Dense, Trunk, generator, stack
from otherminds.returns import lambda_returns
from otherminds.types import Action, Extras, Memory, Trajectory, View, where_game


class Networks(eqx.Module):
    """One seat's actor, and its critic in the critic's scale. A memory holds the actor's numbers, then the critic's."""

    actor_trunk: Trunk
    actor: Dense
    critic_trunk: Trunk
    critic: Dense

    @staticmethod
    def make(config: MAPPO, game: Game, group: int, key: PRNGKeyArray) -> "Networks":
        random = generator(key)
        rest = (config.activation, config.channels, config.core, config.core_size)
        actor_trunk = Trunk.make(random, game.observation_shape, config.hidden, *rest, looks_around(config, game))
        planes, *inner = game.observation_shape
        critic_trunk = Trunk.make(random, (group * planes, *inner), config.critic_hidden, *rest)
        outputs = distributions.for_actions(game.continuous).outputs(game.actions)
        actor = Dense.make(random, actor_trunk.features, outputs, 0.01)
        return Networks(actor_trunk, actor, critic_trunk, Dense.make(random, critic_trunk.features, 1, 1.0))

    @property
    def memory(self) -> int:
        return self.actor_trunk.memory + self.critic_trunk.memory

    def act(self, memory: Array, observation: Array, present: Array) -> tuple[Array, Array]:
        """(memory after it, raw outputs) of one moment; any leading axes."""
        own, critics = self._split(memory)
        own, features = self.actor_trunk.step(own, observation, present)
        return jnp.concatenate([own, critics], -1), self.actor(features)

    def judge(self, memory: Array, seen: Array, present: Array) -> tuple[Array, Array]:
        """(memory after it, value) of one moment; any leading axes."""
        own, critics = self._split(memory)
        critics, features = self.critic_trunk.step(critics, seen, present)
        return jnp.concatenate([own, critics], -1), self.critic(features)[..., 0]

    def through(self, memory: Array, observation: Array, seen: Array, fresh: Array, present: Array) -> tuple[Array, Array, Array]:
        """(memory after each step, raw outputs, values) of moments in a row, with time as the first axis."""
        own, critics = self._split(memory)
        own, features = self.actor_trunk.through(own, observation, fresh, present)
        critics, critic_features = self.critic_trunk.through(critics, seen, fresh, present)
        return jnp.concatenate([own, critics], -1), self.actor(features), self.critic(critic_features)[..., 0]

    def _split(self, memory: Array) -> tuple[Array, Array]:
        return memory[..., : self.actor_trunk.memory], memory[..., self.actor_trunk.memory :]


def together(observation: Num[Array, "..."], present: Bool[Array, "*games G"], game: Game) -> Float[Array, "..."]:
    """What each seat's critic sees: [*games, G, G * first, ...], the seat itself first, zeros for the absent."""
    first, *inner = game.observation_shape
    group = present.shape[-1]
    seen = where_game(present, game.scaled(observation), jnp.zeros(observation.shape))
    seen = all_to_ego(seen, tuple(range(group)), -len(inner) - 2)
    return seen.reshape(*present.shape, group * first, *inner)


class State(eqx.Module):
    """All that a MAPPO knows. Arrays have a leading axis of seats unless parameters are shared."""

    network: Networks
    optimiser: Any
    scale: Scale
    updates: Int[Array, ""]
    planned: Int[Array, ""]  # updates in the whole run, for schedules; an array, so that a longer run is the same program
    config: MAPPO = eqx.field(static=True)
    sizes: Sizes = eqx.field(static=True)
    game: Game = eqx.field(static=True)
    seats: tuple[int, ...] = eqx.field(static=True)


def init(config: MAPPO, sizes: Sizes, game: Game, seats: tuple[int, ...], key: PRNGKeyArray) -> State:
    group = len(seats)
    if config.share:
        network = Networks.make(config, game, group, key)
    else:
        network = stack([Networks.make(config, game, group, jax.random.fold_in(key, seat)) for seat in seats])
    start = adam(config.max_gradient).init
    optimiser = start(network) if config.share else jax.vmap(start)(network)
    scale = Scale.make(() if config.share else (len(seats),))
    return State(network, optimiser, scale, jnp.int32(0), jnp.int32(sizes.updates), config, sizes, game, seats)


def check(config: MAPPO, sizes: Sizes, game: Game) -> None:
    """Refuse settings that cannot work."""
    check_network(config, sizes, "mappo", game)
    check_shares("mappo", config, ("discount", "trace"))
    units = config.critic_hidden
    require(all(count > 0 for count in units), f"--mappo.critic-hidden is {units}, expected positive numbers: 128 128")


def trainable(state: State) -> Networks:
    return state.network


def policy(state: State) -> "MAPPOPolicy":
    group = len(state.seats)
    return MAPPOPolicy(state.network, state.scale, state.config, state.game, group, trained_with=group)


class MAPPOPolicy(SeatPolicy):
    """The networks of G seats at play."""

    trained_with: int = eqx.field(static=True, default=0)  # how many seats the critic reads

    def act(self, view: View, memory: Memory, key: PRNGKeyArray) -> tuple[Action, Memory, Extras]:
        present, share = view.present[..., 0], self.config.share
        before, observation = open_memory(memory, self.config), self.game.scaled(view.observation)
        after, raw = for_seats(Networks.act, share, 1, 1, 1, out=1)(self.network, before, observation, present)
        value = jnp.zeros(present.shape)
        if self.group == self.trained_with:
            seen = together(view.observation, present, self.game)
            after, value = for_seats(Networks.judge, share, 1, 1, 1, out=1)(self.network, after, seen, present)
        action, played, logits = self.play(raw, view.legal, key, as_it_is)
        goal = jnp.full(present.shape, -1, jnp.int32)
        extras = Extras(logits=played, policy_logits=logits, value=self.scale.restore(value), goal=goal)
        return action, pack_memory(after, self.config), extras


def as_it_is(logits: Array, legal: Array) -> Array:
    """Actions are drawn from the policy itself."""
    return logits


def update(state: State, rows: Trajectory, key: PRNGKeyArray) -> tuple[State, Metrics]:
    config, sizes, game = state.config, state.sizes, state.game
    rate = between(config.learning_rate, config.learning_rate_final, state.updates, state.planned)
    entropy_weight = between(config.entropy, config.entropy_final, state.updates, state.planned)

    fresh = jnp.broadcast_to(forgotten(rows, config)[..., None], rows.present.shape)
    before, last_value, final_value = look_back(state, rows, fresh)
    targets = lambda_returns(
        *(rows.reward, rows.value, last_value, final_value),
        *(rows.present, rows.last.present, rows.terminated, rows.truncated),
        discount=config.discount,
        trace=config.trace,
    )
    network, scale = state.network, state.scale
    if config.normalise_value:
        scale = scale.take_in(targets.returns, rows.present)
        network = eqx.tree_at(lambda n: n.critic, network, rescale(network.critic, state.scale, scale))

    def loss(network: Networks, part: Batch) -> tuple[Float[Array, ""], dict[str, Float[Array, " G"]]]:
        """Summed over seats, of which each depends on its own parameters alone; the mean where they share."""
        raw, value = replay(network, part, config, game)
        terms = ppo_terms(raw, value, part, config, as_it_is)
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
    game, config, network = state.game, state.config, state.network
    memory, last_fresh = open_memory(rows.memory, config), forgotten(rows.last, config)

    def through(network: Networks, *arrays: Array) -> Array:
        return network.through(*arrays)[0]

    def value(network: Networks, *arrays: Array) -> Array:
        return network.judge(*arrays)[1]

    after = jnp.zeros((*rows.present.shape, 0))
    if config.core != "none":
        seen = together(rows.observation, rows.present, game)
        own = game.scaled(rows.observation)
        after = for_seats(through, config.share, 1, 2, 2, 2, 2, out=2)(network, memory, own, seen, fresh, rows.present)
    held = jnp.where(last_fresh[:, None, None], 0.0, after[-1])
    seen = together(rows.last.observation, rows.last.present, game)
    last_value = for_seats(value, config.share, 1, 1, 1, out=1)(network, held, seen, rows.last.present)
    final_value = None
    if rows.final_observation is not None:
        present = rows.present & ~rows.terminated  # whoever left in this very step is not shown
        seen = together(rows.final_observation, present, game)
        final_value = for_seats(value, config.share, 2, 2, 2, out=2)(network, after, seen, present)
        final_value = state.scale.restore(final_value)
    before = jnp.concatenate([memory[None], after[:-1]])
    return before, state.scale.restore(last_value), final_value


def replay(network: Networks, part: Batch, config: MAPPO, game: Game) -> tuple[Array, Float[Array, "G units L"]]:
    """(raw outputs, normalised values) of rows that were played, as the networks are now."""
    observation, present = (jnp.moveaxis(x, 0, 2) for x in (part.observation, part.present))
    seen = jnp.moveaxis(together(observation, present, game), 2, 0)

    def one(network: Networks, part: Batch, seen: Array) -> tuple[Array, Array]:
        if config.core == "none":
            nothing = jnp.zeros((*part.present.shape, 0))
            raw = network.act(nothing, game.scaled(part.observation), part.present)[1]
            return raw, network.judge(nothing, seen, part.present)[1]
        time = part.present.ndim - 1
        by_time = (jnp.moveaxis(x, time, 0) for x in (game.scaled(part.observation), seen, part.fresh, part.present))
        _, raw, value = network.through(part.memory, *by_time)
        return jnp.moveaxis(raw, 0, time), jnp.moveaxis(value, 0, time)

    return for_seats(one, config.share, 0, 0, out=0)(network, part, seen)
