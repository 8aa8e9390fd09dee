"""HOP and HOP+ (Huang et al. 2024): infer what the others are after, foresee what they do, and plan with it.

One learner; its presets are names for which parts are switched on (`config.PRESETS`). Underneath is PPO, whose network also reads
what is believed of the partners. On top of that, a share of the moves is searched (`planning`): with goals drawn from the belief,
partners' moves drawn from the opponent model, in the game's own rules or a learned model of them. Searched moves teach the policy
by what the search found, all others by what they returned; the value learns from returns.

A seat that only ever meets its equals takes everybody for one of them. So in part of the games some seats are played by other
selves: as they were earlier in the run, or modest ones, to whom large rewards are worth nothing (`cast`).
"""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from otherminds import foresight, planning
from otherminds.config import HOP, Sizes, require
from otherminds.distributions import Categorical
from otherminds.foresight import Foresight
from otherminds.games.base import Game
from otherminds.learners.base import (
    Batch,
    Metrics,
    Scale,
    adam,
    between,
    check_network,
    check_shares,
    common_metrics,
    cut,
    descend,
    norms,
    open_memory,
    rescale,
    unit_length,
)
from otherminds.learners.hop_learn import foresight_metrics, learn_of_partners, learn_of_world, think_again
from otherminds.learners.hop_play import EARLIER, MODEST, OWN, ActorCritic, HopPolicy, cast, foresees, practises, tell
from otherminds.losses import clipped_policy, clipped_value, masked_mean, normalised
from otherminds.networks import generator, stack
from otherminds.returns import lambda_returns
from otherminds.types import Memory, Trajectory, View
from otherminds.world_model import WorldModel


class State(eqx.Module):
    """All that a HOP knows. Arrays have a leading axis of seats unless parameters are shared."""

    network: ActorCritic
    optimiser: Any
    scale: Scale
    mind: Foresight
    mind_optimiser: Any
    model: WorldModel | None
    model_optimiser: Any
    earlier: ActorCritic | None  # networks as they were, [len(EARLIER), ...]
    largest: Float[Array, " G"]  # rewards of late
    updates: Int[Array, ""]
    planned: Int[Array, ""]  # updates in the whole run, for schedules; an array, so that a longer run is the same program
    config: HOP = eqx.field(static=True)
    sizes: Sizes = eqx.field(static=True)
    game: Game = eqx.field(static=True)
    seats: tuple[int, ...] = eqx.field(static=True)


def init(config: HOP, sizes: Sizes, game: Game, seats: tuple[int, ...], key: PRNGKeyArray) -> State:
    def made(seat: int) -> tuple[ActorCritic, Foresight, WorldModel | None]:
        random = generator(jax.random.fold_in(key, seat))
        mind = foresight.make(config, game, random)
        network = ActorCritic.make(config, game, mind.told_size, random)
        model = WorldModel.make(config.world_model, game, random) if config.parts.model == "learned" else None
        return network, mind, model

    network, mind, model = made(0) if config.share else stack([made(seat) for seat in seats])
    start = adam(config.max_gradient).init
    start = start if config.share else jax.vmap(start)
    earlier = None
    if practises(config, len(seats)):
        earlier = jax.tree.map(lambda leaf: jnp.stack([leaf] * len(EARLIER)), network)
    return State(
        network=network,
        optimiser=start(network),
        scale=Scale.make(() if config.share else (len(seats),)),
        mind=mind,
        mind_optimiser=start(mind) if foresees(config) else None,
        model=model,
        model_optimiser=None if model is None else start(model),
        earlier=earlier,
        largest=jnp.zeros(len(seats)),
        updates=jnp.int32(0),
        planned=jnp.int32(sizes.updates),
        config=config,
        sizes=sizes,
        game=game,
        seats=seats,
    )


def check(config: HOP, sizes: Sizes, game: Game) -> None:
    """Refuse settings that cannot work, before anything is compiled, with what would."""
    name, parts = config.preset, config.parts
    check_network(config, sizes, "hop", game)
    check_shares("hop", config, ("discount", "trace", "practice", "counted", "switching"))
    check_search(config)
    require(
        not game.continuous,
        f"{name} plans with discrete actions, and {game.id} has continuous ones: --seats ppo",
    )
    require(game.seats > 1, f"{name} models partners, and {game.id} has one seat: --seats ppo")
    require(
        parts.goals != "manual" or bool(game.goals),
        f"{name} needs goals given by hand, and {game.id} names none: --seats hop_plus",
    )
    if parts.model == "simulator":
        instead = {"hop": "hop_plus", "direct_om": "hop_plus_no_goal", "hop_plus_no_model": "hop_plus"}[name]
        require(not game.on_host, f"{name} searches in the rules, and {game.id} is stepped on the host: --seats {instead}")
        require(
            planning.simulates(game),
            f"{name} searches in the rules, and an observation of {game.id} does not tell the state: --seats {instead}",
        )
    require(config.hidden != (), "--hop.hidden is empty, expected at least one layer: --hop.hidden 64 64")
    require(config.search_weight >= 0, f"--hop.search-weight is {config.search_weight}, expected 0 or a positive number: 0.5")
    for option in ("foresight_games", "model_rows"):
        number, spelled = getattr(config, option), option.replace("_", "-")
        require(number >= 1, f"--hop.{spelled} is {number}, expected a positive number")


def check_search(config: HOP) -> None:
    search = config.search
    for option in ("simulations", "samples", "play_simulations", "play_samples", "considered"):
        number, spelled = getattr(search, option), option.replace("_", "-")
        require(number >= 1, f"--hop.search.{spelled} is {number}, expected at least 1: --hop.search.{spelled} 1")
    for option in ("share", "capacity", "play_share", "begin"):
        number, spelled = getattr(search, option), option.replace("_", "-")
        require(0 <= number <= 1, f"--hop.search.{spelled} is {number}, expected a number from 0 to 1")
    require(search.capacity > 0, "--hop.search.capacity is 0, expected a share of the games: --hop.search.capacity 0.6")
    for option in ("sharpness", "prior", "gumbel_scale", "exploration"):
        number, spelled = getattr(search, option), option.replace("_", "-")
        require(0 <= number < math.inf, f"--hop.search.{spelled} is {number}, expected 0 or a positive number")
    require(math.isfinite(search.optimism), f"--hop.search.optimism is {search.optimism}, expected a number: 0")
    numbers = config.parts.goals == "learned" and config.goals.kind == "vae"
    require(
        not search.optimism or (config.parts.goals != "none" and not numbers),
        "--hop.search.optimism is about goals that are codes: --hop.search.optimism 0",
    )


def trainable(state: State) -> Any:
    """All that gradients may move. Without goals and search nobody asks what partners will do, and nothing learns it."""
    mind: Any = state.mind if foresees(state.config) else None
    if state.config.parts.goals == "none" and mind is not None:
        mind = mind.acts  # a single code says nothing, and how often it is meant neither
    return state.network, mind, state.model


def as_itself(config: HOP, games: int, group: int) -> np.ndarray:
    """Which seats of which games are played by who learns there, with its own wants, [games, group]."""
    return cast(games, group, config.practice if practises(config, group) else 0.0) == OWN


def among_equals(state: State) -> State:
    """The same learner without other selves in its games."""
    return dataclasses.replace(state, earlier=None)


def wants_final(config: HOP) -> bool:
    """Whether learning needs what the last step of an episode led to."""
    return config.parts.model == "learned"


def live_parts(state: State, fresh: State, view: View, memory: Memory, key: PRNGKeyArray) -> dict[str, Array]:
    """How much of what is played changes, as the mean difference of probabilities, if a part that is switched on is put out of
    action: beliefs turned to other goals, a model as it was before it learned, no search."""
    whole, parts, thoughts = policy(state).without_noise(), state.config.parts, memory.episode[1]

    def apart(left: Array, right: Array) -> Array:
        difference = jnp.abs(jnp.where(view.legal, jnp.exp(left) - jnp.exp(right), 0.0)).sum(-1)
        return masked_mean(difference, view.present[..., 0])

    def without(other: HopPolicy) -> Array:
        return apart(*(one.step(view, memory, key)[2].logits for one in (other, whole)))

    found = {}
    if hasattr(thoughts, "belief") and parts.goals != "none":
        turned = eqx.tree_at(lambda t: t.belief, thoughts, jnp.roll(thoughts.belief, 1, -1))
        later = dataclasses.replace(view, first=jnp.zeros_like(view.first))  # an episode that opens has beliefs of its own
        both = (memory, Memory((memory.episode[0], turned), memory.lasting))
        found["goals"] = apart(*(whole.without_search().step(later, one, key)[2].policy_logits for one in both))
    if parts.search:
        found["search"] = without(whole.without_search())
        found["opponent_model"] = without(dataclasses.replace(whole, mind=fresh.mind))
    if parts.search and parts.model == "learned":
        found["world_model"] = without(dataclasses.replace(whole, model=fresh.model))
    return found


def policy(state: State) -> HopPolicy:
    begun = state.updates >= state.config.search.begin * state.planned
    return HopPolicy(
        network=state.network,
        scale=state.scale,
        config=state.config,
        game=state.game,
        group=len(state.seats),
        mind=state.mind,
        model=state.model,
        earlier=state.earlier,
        begun=begun,
        training=True,
    )


class HopBatch(Batch):
    """Rows with what HOP learns from beside PPO."""

    told: Float[Array, "G units L told"]
    searched: Bool[Array, "G units L"]
    target: Float[Array, "G units L"]
    played: Float[Array, "G units L actions"]  # logits that actions were drawn from: after a search, what it found


def update(state: State, rows: Trajectory, key: PRNGKeyArray) -> tuple[State, Metrics]:
    config, sizes, game = state.config, state.sizes, state.game
    rate = between(config.learning_rate, config.learning_rate_final, state.updates, state.planned)
    entropy_weight = between(config.entropy, config.entropy_final, state.updates, state.planned)
    policy_key, mind_key, model_key = jax.random.split(key, 3)

    games, group = rows.present.shape[1:]
    who = cast(games, group, config.practice if state.earlier is not None else 0.0)
    modest = jnp.asarray(who == MODEST)
    own = rows.present & jnp.asarray((who == OWN) | (who == MODEST))[None]

    thoughts = think_again(state, rows)  # at each row and after the last
    begun = state.updates >= config.search.begin * state.planned
    told = tell(state.mind, thoughts, begun, jnp.broadcast_to(modest[None], (sizes.rollout + 1, games, group)))
    forgotten = rows.first if config.memory == "episode" else rows.meeting
    fresh = jnp.broadcast_to(forgotten[..., None], rows.present.shape)
    before, last_value, final_value = look_back(state, rows, fresh, told)
    largest = jnp.maximum(0.999 * state.largest, rows.reward.max((0, 1)))
    reward = jnp.where(modest[None] & (rows.reward > largest[None, None] / 2), 0.0, rows.reward)
    targets = lambda_returns(
        *(reward, rows.value, last_value, final_value),
        *(rows.present, rows.last.present, rows.terminated, rows.truncated),
        discount=config.discount,
        trace=config.trace,
    )
    network, scale = state.network, state.scale
    if config.normalise_value:
        scale = scale.take_in(targets.returns, own & ~modest[None])
        network = eqx.tree_at(lambda n: n.critic, network, rescale(network.critic, state.scale, scale))

    searched = own & (rows.behaviour_logits != rows.policy_logits).any(-1)
    learned = dataclasses.replace(rows, present=own)
    length = unit_length(config, sizes)
    base = Batch.make(learned, targets, scale, fresh, before, length, Categorical)
    apart = [normalised(targets.advantages, own & who) for who in (~modest[None], modest[None])]  # wants have scales of their own
    base = dataclasses.replace(base, advantage=cut(jnp.where(modest[None], apart[1], apart[0]), length))
    extra = {"told": told[:-1], "searched": searched, "played": rows.behaviour_logits}
    fields = {field.name: getattr(base, field.name) for field in dataclasses.fields(Batch)}
    batch = HopBatch(**fields, **{name: cut(x, length) for name, x in extra.items()})

    def loss(network: ActorCritic, part: Any) -> tuple[Float[Array, ""], dict[str, Float[Array, " G"]]]:
        """Summed over seats, of which each depends on its own parameters alone; the mean where they share."""
        terms = losses(config, *replay(network, part, config, game), part)
        total = terms["policy_loss"] + config.value_weight * terms["value_loss"] - entropy_weight * terms["entropy"]
        total += config.search_weight * terms["search_loss"] + terms.get("allowed_loss", 0.0)
        return total.mean() if config.share else total.sum(), terms

    network, optimiser, terms = descend(
        loss, network, state.optimiser, batch, policy_key, sizes, rate, config.max_gradient, config.share
    )
    move = norms(jax.tree.map(jnp.subtract, network, state.network), config.share, group)
    itself = dataclasses.replace(rows, present=own & ~modest[None])
    metrics = common_metrics(terms, itself, targets, scale, move, rate, entropy_weight)
    metrics["searched"] = searched.sum((0, 1)) / jnp.maximum(own.sum((0, 1)), 1)
    mind, mind_optimiser, model, model_optimiser = state.mind, state.mind_optimiser, state.model, state.model_optimiser
    if foresees(config):
        metrics |= foresight_metrics(state, rows, thoughts, own, who)
        mind, mind_optimiser, found = learn_of_partners(state, rows, targets.returns, mind_key)
        metrics |= {f"foresight_{name}": value for name, value in found.items()}
    if model is not None:
        model, model_optimiser, found = learn_of_world(state, rows, model_key)
        metrics |= {f"model_{name}": value for name, value in found.items()}
    after = dataclasses.replace(
        state,
        network=network,
        optimiser=optimiser,
        scale=scale,
        mind=mind,
        mind_optimiser=mind_optimiser,
        model=model,
        model_optimiser=model_optimiser,
        earlier=remembered(state, network),
        largest=largest,
        updates=state.updates + 1,
    )
    return after, metrics


def losses(
    config: HOP, raw: Array, value: Float[Array, "G units L"], allowed: Array, part: HopBatch
) -> dict[str, Float[Array, " G"]]:
    """Terms by seat. A move that was searched teaches by what the search found, any other by what it returned."""
    logits = Categorical.masked(raw, part.legal)
    by_return = part.present & ~part.searched
    log_probability = Categorical.log_probability(logits, part.action)
    ratio = jnp.exp(jnp.where(by_return, log_probability - part.log_probability, 0.0))
    rows = jnp.maximum(part.present.sum((1, 2)), 1)

    def mean(x: Float[Array, "G units L"], where: Bool[Array, "G units L"]) -> Float[Array, " G"]:
        """Over all rows of the seat, so that terms weigh as much as they have rows."""
        return jnp.where(where, x, 0.0).sum((1, 2)) / rows

    terms = dict(
        policy_loss=mean(clipped_policy(ratio, part.advantage, config.clip), by_return),
        value_loss=mean(clipped_value(value, part.value, part.target, config.value_clip), part.present),
        search_loss=mean(Categorical.divergence(part.played, logits), part.searched),
        entropy=mean(Categorical.entropy(logits), part.present),
        kl=mean(Categorical.divergence(part.logits, logits), part.present),
        clipped=mean((jnp.abs(ratio - 1) > config.clip) * 1.0, by_return),
        ratio_error=jnp.abs(ratio - 1).max((1, 2)),
    )
    if config.parts.model == "learned":
        wrong = optax.sigmoid_binary_cross_entropy(allowed, part.legal * 1.0).mean(-1)
        terms["allowed_loss"] = mean(wrong, part.present)
    return terms


def remembered(state: State, network: ActorCritic) -> ActorCritic | None:
    """The other selves, with the present one among them if it is time."""
    if state.earlier is None:
        return None
    now = state.updates + 1
    times = jnp.array([-1 if share == 0 else 0 for share in EARLIER])
    due = (now == jnp.maximum(jnp.array(EARLIER) * state.planned, 1).astype(jnp.int32)) & (times == 0)
    return jax.tree.map(lambda held, new: jnp.where(due.reshape(-1, *(1,) * new.ndim), new[None], held), state.earlier, network)


def look_back(
    state: State, rows: Trajectory, fresh: Bool[Array, "T E G"], told: Float[Array, "T1 E G told"]
) -> tuple[Array, Array, Array | None]:
    """What the core of the policy that played remembered before each row; its values after the last row, and of what each row
    led to where games are cut off."""
    game, config = state.game, state.config
    memory = open_memory(Memory(rows.memory.episode[0], rows.memory.lasting[0]), config)
    last_fresh = rows.last.first if config.memory == "episode" else rows.last.meeting
    own = None if config.share else 0
    after = jnp.zeros((*rows.present.shape, 0))
    if config.core != "none":
        through = jax.vmap(lambda network, *parts: network.through(*parts)[0], (own, 1, 2, 2, 2, 2), 2)
        after = through(state.network, memory, game.scaled(rows.observation), told[:-1], fresh, rows.present)
    held = jnp.where(last_fresh[:, None, None], 0.0, after[-1])
    value = lambda network, *parts: network.step(*parts)[2]  # noqa: E731
    last = jax.vmap(value, (own, 1, 1, 1, 1), 1)(
        state.network, held, game.scaled(rows.last.observation), told[-1], rows.last.present
    )
    final_value = None
    if game.truncates and rows.final_observation is not None:
        final = jax.vmap(value, (own, 2, 2, 2, 2), 2)
        seen = game.scaled(rows.final_observation)
        final_value = state.scale.restore(final(state.network, after, seen, told[:-1], rows.present))
    before = jnp.concatenate([memory[None], after[:-1]])
    return before, state.scale.restore(last), final_value


def replay(network: ActorCritic, part: HopBatch, config: HOP, game: Game) -> tuple[Array, Array, Array]:
    """(raw logits, normalised values, logits of what is legal) of rows that were played, as the network is now."""

    def one(network: ActorCritic, part: HopBatch) -> tuple[Array, ...]:
        seen = game.scaled(part.observation)
        if config.core == "none":
            return network.step(jnp.zeros((*part.present.shape, 0)), seen, part.told, part.present)[1:]
        time = part.present.ndim - 1
        turned = (jnp.moveaxis(x, time, 0) for x in (seen, part.told, part.fresh, part.present))
        return tuple(jnp.moveaxis(x, 0, time) for x in network.through(part.memory, *turned)[1:])

    raw, value, allowed = jax.vmap(one, (None if config.share else 0, 0))(network, part)
    return raw, value, allowed
