"""HOP and HOP+ (Huang et al. 2024): infer what the others are after, foresee what they do, and plan with it.

One learner; its presets are names for which parts are switched on (`config.PRESETS`). Underneath is PPO, whose network also reads
what is believed of the partners. On top of that, a share of the moves is searched (`planning`): with goals drawn from the belief,
partners' moves drawn from the opponent model, in the game's own rules or a learned model of them. Searched moves teach the policy
by what the search found, all others by what they returned; the value learns from returns.

A seat that only ever meets its equals takes everybody for one of them. So in part of the games some seats are played by other
selves: as they were earlier in the run, or modest ones, to whom large rewards are worth nothing (`cast`).
"""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from otherminds import foresight
from otherminds.config import HOP, Sizes
from otherminds.distributions import Categorical
from otherminds.foresight import Foresight
from otherminds.games.base import Game
from otherminds.learners import ppo
from otherminds.learners.base import (
    SIGNS,
    Batch,
    Metrics,
    Scale,
    Sign,
    adam,
    between,
    common_metrics,
    cut,
    descend,
    norms,
    open_memory,
    rescale,
    unit_length,
)
from otherminds.learners.hop_check import check as check  # what `train` asks of a learner
from otherminds.learners.hop_check import imagined_length, imagined_units
from otherminds.learners.hop_learn import foresight_metrics, imagined, learn_of_partners, learn_of_world, think_again
from otherminds.learners.hop_play import ActorCritic, HopPolicy, Said, foresees, least_stakes, tell
from otherminds.learners.hop_selves import EARLIER, MODEST, OWN, begin_modest, cast, learn_modestly, played, practises
from otherminds.losses import clipped_policy, clipped_value, masked_mean, normalised
from otherminds.networks import generator, same_shape, stack
from otherminds.returns import Targets, episode_sums, lambda_returns, ranked
from otherminds.types import Memory, Trajectory, View
from otherminds.world_model import WorldModel

BRANCHES = True  # at most steps of a rollout nothing is searched


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
    modest: ppo.State | None  # other selves that learn beside it, [1 or G]
    largest: Float[Array, " G"]  # rewards of late
    earned: Float[Array, "G E"] | None  # in the episodes under way, where rewards are ranked
    updates: Int[Array, ""]
    planned: Int[Array, ""]  # updates in the whole run, for schedules; an array, so that a longer run is the same program
    config: HOP = eqx.field(static=True)
    sizes: Sizes = eqx.field(static=True)
    game: Game = eqx.field(static=True)
    seats: tuple[int, ...] = eqx.field(static=True)


def init(
    config: HOP,
    sizes: Sizes,
    game: Game,
    seats: tuple[int, ...],
    key: PRNGKeyArray,
    warm: Mapping[str, Any] | None = None,
) -> State:
    """`warm` are modules that were fitted alone, by name (`fit`): all seats start from them."""

    def made(seat: int) -> tuple[ActorCritic, Foresight, WorldModel | None]:
        random = generator(jax.random.fold_in(key, seat))
        mind = foresight.started(foresight.make(config, game, random), warm or {})
        network = ActorCritic.make(config, game, mind.told_size, random)
        model = WorldModel.make(config.world_model, game, random) if config.parts.model == "learned" else None
        if model is not None and warm and "world_model" in warm:
            model = same_shape(model, warm["world_model"], "world_model")
        return network, mind, model

    network, mind, model = made(0) if config.share else stack([made(seat) for seat in seats])
    start = adam(config.max_gradient).init
    start = start if config.share else jax.vmap(start)
    earlier = modest = None
    if practises(config, len(seats)):
        modest = begin_modest(config, sizes, game, len(seats), jax.random.fold_in(key, game.seats))
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
        modest=modest,
        largest=jnp.zeros(len(seats)),
        earned=None if config.ranked_reward is None else jnp.zeros((len(seats), sizes.parallel)),
        updates=jnp.int32(0),
        planned=jnp.int32(sizes.updates),
        config=config,
        sizes=sizes,
        game=game,
        seats=seats,
    )


def trainable(state: State) -> Any:
    """All that gradients may move. Without goals and search nobody asks what partners will do, and nothing learns it."""
    mind: Any = state.mind if foresees(state.config) else None
    if state.config.parts.goals == "none" and mind is not None:
        mind = mind.acts, mind.codebook  # how often a single code is meant says nothing
    return state.network, mind, state.model


def as_itself(config: HOP, games: int, group: int) -> np.ndarray:
    """Which seats of which games are played by who learns there, with its own wants, [games, group]."""
    return cast(games, group, config.practice if practises(config, group) else 0.0) == OWN


def taught(state: State) -> np.ndarray:
    """Of which seats of which games the rows teach the policy at this time, [games, group]: before modest selves come in, their
    seats are its own."""
    group = len(state.seats)
    who = cast(state.sizes.parallel, group, state.config.practice if practises(state.config, group) else 0.0)
    begun = bool(state.updates >= state.config.search.begin * state.planned)
    return (who == OWN) | ((who == MODEST) & (not begun))


def among_equals(state: State) -> State:
    """The same learner without other selves in its games."""
    return dataclasses.replace(state, earlier=None, modest=None)


def wants_final(config: HOP) -> bool:
    """Whether learning needs what the last step of an episode led to."""
    return config.parts.model == "learned"


def signs() -> tuple[Sign, ...]:
    """By which metrics its parts are judged when the reward has fallen."""
    return (
        *SIGNS,
        Sign("opponent_model", "foresight_cross_entropy", "up", beside="foresight_ceiling_cross_entropy"),
        Sign("goals", "foresight_goal", "up"),
        Sign("goals", "foresight_inference", "up"),
        Sign("world_model", "model_exact", "down"),
        Sign("world_model", "model_reward_mse", "up"),
        Sign("search", "search_loss", "up"),
    )


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
        modest=state.modest,
        sizes=state.sizes,
        begun=begun,
        training=True,
    )


class HopBatch(Batch):
    """Rows with what HOP learns from beside PPO."""

    told: Float[Array, "G units L told"]
    searched: Bool[Array, "G units L"]
    target: Float[Array, "G units L"]
    played: Float[Array, "G units L actions"]  # logits that actions were drawn from: after a search, what it found
    imagined: Bool[Array, "G units L"]
    gain: Float[Array, "G units L"]  # how much more than expected came of it
    weight: Float[Array, "G units L"]  # of a row for the value; 1 on average


def update(state: State, rows: Trajectory, key: PRNGKeyArray) -> tuple[State, Metrics]:
    config, sizes, game = state.config, state.sizes, state.game
    rate = between(config.learning_rate, config.learning_rate_final, state.updates, state.planned)
    entropy_weight = between(config.entropy, config.entropy_final, state.updates, state.planned)
    policy_key, mind_key, model_key, dream_key, modest_key = jax.random.split(key, 5)

    games, group = rows.present.shape[1:]
    who = cast(games, group, config.practice if state.earlier is not None else 0.0)
    begun = state.updates >= config.search.begin * state.planned
    own = rows.present & (jnp.asarray(who == OWN) | (jnp.asarray(who == MODEST) & ~begun))[None]

    thoughts = think_again(state, rows)  # at each row and after the last
    told = tell(state.mind, thoughts, begun)
    forgotten = rows.first if config.memory == "episode" else rows.meeting
    fresh = jnp.broadcast_to(forgotten[..., None], rows.present.shape)
    before, last_value, final_value = look_back(state, rows, fresh, told)
    reward, largest, earned = worth_to_itself(state, rows, own)
    returned = partial(
        lambda_returns,
        *(reward, rows.value, last_value, final_value),
        *(rows.present, rows.last.present, rows.terminated, rows.truncated),
        discount=config.discount,
    )
    targets = returned(trace=config.trace)
    if config.value_target == "return":
        targets = Targets(returned(trace=1.0).returns, targets.advantages)
    network, scale = state.network, state.scale
    if config.normalise_value:
        scale = scale.take_in(targets.returns, own)
        network = eqx.tree_at(lambda n: n.critic, network, rescale(network.critic, state.scale, scale))

    searched = own & (rows.behaviour_logits != rows.policy_logits).any(-1)
    learned = dataclasses.replace(rows, present=own)
    length = unit_length(config, sizes)
    base = Batch.make(learned, targets, scale, fresh, before, length, Categorical)
    extra = {"told": told[:-1], "searched": searched, "played": rows.behaviour_logits, "gain": targets.advantages}
    extra |= {"imagined": jnp.zeros_like(searched), "weight": jnp.ones_like(targets.advantages)}
    fields = {field.name: getattr(base, field.name) for field in dataclasses.fields(Batch)}
    batch = HopBatch(**fields, **{name: cut(x, length) for name, x in extra.items()})
    if config.value_target == "search":  # what was stored is what searches found; the clip is about what the critic said
        batch = dataclasses.replace(batch, value=replay(network, batch, config, game).value)
    units = imagined_units(config, sizes)
    if units:
        wanted = own & begun
        shape = (units, length, imagined_length(config, sizes))
        dreams = imagined(policy(state), rows, thoughts, told, wanted, scale, *shape, dream_key)
        batch = jax.tree.map(lambda real, dreamt: jnp.concatenate([real, dreamt], 1), batch, HopBatch(**dreams))
    if config.stakes is not None:
        stakes = least_stakes(config, replay(network, batch, config, game).stakes)
        batch = by_stakes(batch, stakes, scale)

    def loss(network: ActorCritic, part: Any) -> tuple[Float[Array, ""], dict[str, Float[Array, " G"]]]:
        """Summed over seats, of which each depends on its own parameters alone; the mean where they share."""
        terms = losses(config, replay(network, part, config, game), part)
        total = terms["policy_loss"] + config.value_weight * terms["value_loss"] - entropy_weight * terms["entropy"]
        total += config.search_weight * terms["search_loss"] + terms.get("allowed_loss", 0.0) + terms.get("stakes_loss", 0.0)
        return total.mean() if config.share else total.sum(), terms

    network, optimiser, terms = descend(
        loss, network, state.optimiser, batch, policy_key, sizes, rate, config.max_gradient, config.share
    )
    move = norms(jax.tree.map(jnp.subtract, network, state.network), config.share, group)
    metrics = common_metrics(terms, learned, targets, scale, move, rate, entropy_weight)
    metrics["imagined"] = masked_mean(batch.imagined * 1.0, batch.present, (1, 2))
    metrics["searched"] = searched.sum((0, 1)) / jnp.maximum(own.sum((0, 1)), 1)
    mind, mind_optimiser, model, model_optimiser = state.mind, state.mind_optimiser, state.model, state.model_optimiser
    if foresees(config):
        metrics |= foresight_metrics(state, rows, thoughts, own, who)
        mind, mind_optimiser, found = learn_of_partners(state, rows, thoughts, targets.returns, mind_key)
        metrics |= {f"foresight_{name}": value for name, value in found.items()}
    if model is not None:
        model, model_optimiser, found = learn_of_world(state, rows, model_key)
        metrics |= {f"model_{name}": value for name, value in found.items()}
    modest = state.modest
    if modest is not None:
        places = played(config, sizes, group, game.symmetric)
        modest = learn_modestly(modest, places, rows, largest, begun, modest_key)
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
        modest=modest,
        largest=largest,
        earned=earned,
        updates=state.updates + 1,
    )
    return after, metrics


def worth_to_itself(
    state: State, rows: Trajectory, own: Bool[Array, "T E G"]
) -> tuple[Float[Array, "T E G"], Float[Array, " G"], Float[Array, "G E"] | None]:
    """(what rewards are worth to whoever earns them, the largest of late, what the episodes under way have earned so far)."""
    largest, earned, share = jnp.maximum(0.999 * state.largest, rows.reward.max((0, 1))), state.earned, state.config.ranked_reward
    if share is None or earned is None:
        return ambitiously(state, rows.reward, largest), largest, None
    ended = jnp.concatenate([rows.first[1:], rows.last.first[None]])
    carried = jnp.where(rows.first[0][:, None], 0.0, earned.T)  # games that were opened anew have earned nothing yet
    total, carried = episode_sums(rows.reward, ended, carried)
    return ranked(total, rows.terminated, own, share), largest, carried.T


def ambitiously(state: State, reward: Float[Array, "T E G"], largest: Float[Array, " G"]) -> Float[Array, "T E G"]:
    """Rewards of which small ones count for less until the search begins, as `ambition` says.

    Where what is large takes two, whoever learns to take what is small first has nobody left to find that out with.
    """
    config = state.config
    left = jnp.maximum(1 - state.updates / jnp.maximum(config.search.begin * state.planned, 1), 0.0)
    small = (reward > 0) & (reward <= largest[None, None] / 2)
    return jnp.where(small, (1 - config.ambition * left) * reward, reward)


def by_stakes(batch: HopBatch, stakes: Float[Array, "G units L"], scale: Scale) -> HopBatch:
    """The same rows, weighed by what is at stake in them, so that moments in which little can be won are learned from as much as
    those in which much can.

    Advantages are in units of the stakes. The best policy is the same: in each moment all moves are weighed alike. Values are
    fitted by weighted least squares, which trusts a return by how far returns are off there. In units that are the same
    everywhere, a seat that was left alone with a hare took it to be worth as much as a stag, and never learned to go straight
    there: what the detour cost was nothing beside what stags bring elsewhere.
    """
    gain = batch.gain / jnp.broadcast_to(scale.spread, batch.gain.shape[:1])[:, None, None]
    last, back = partial(jnp.moveaxis, source=0, destination=-1), partial(jnp.moveaxis, source=-1, destination=0)
    weight = stakes**-2
    weight /= jnp.maximum(masked_mean(weight, batch.present, (1, 2)), 1e-8)[:, None, None]
    advantage = back(normalised(last(gain / stakes), last(batch.present)))
    return dataclasses.replace(batch, gain=gain, advantage=advantage, weight=weight)


def losses(config: HOP, said: Said, part: HopBatch) -> dict[str, Float[Array, " G"]]:
    """Terms by seat. A move that was searched teaches by what the search found, any other by what it returned."""
    logits = Categorical.masked(said.raw, part.legal)
    by_return = part.present & ~part.searched
    log_probability = Categorical.log_probability(logits, part.action)
    ratio = jnp.exp(jnp.where(by_return, log_probability - part.log_probability, 0.0))
    rows = jnp.maximum(part.present.sum((1, 2)), 1)

    def mean(x: Float[Array, "G units L"], where: Bool[Array, "G units L"]) -> Float[Array, " G"]:
        """Over all rows of the seat, so that terms weigh as much as they have rows."""
        return jnp.where(where, x, 0.0).sum((1, 2)) / rows

    terms = dict(
        policy_loss=mean(clipped_policy(ratio, part.advantage, config.clip), by_return),
        value_loss=mean(part.weight * clipped_value(said.value, part.value, part.target, config.value_clip), part.present),
        search_loss=mean(Categorical.divergence(part.played, logits), part.searched),
        entropy=mean(Categorical.entropy(logits), part.present),
        kl=mean(Categorical.divergence(part.logits, logits), part.present),
        clipped=mean((jnp.abs(ratio - 1) > config.clip) * 1.0, by_return),
        ratio_error=jnp.abs(ratio - 1).max((1, 2)),
    )
    if config.stakes is not None:
        terms["stakes_loss"] = mean((said.stakes - jnp.abs(part.gain)) ** 2, part.present)
    if config.parts.model == "learned":
        wrong = optax.sigmoid_binary_cross_entropy(said.allowed, part.legal * 1.0).mean(-1)
        terms["allowed_loss"] = mean(wrong, part.present & ~part.imagined)  # what is legal there is this head's own guess
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
    value = lambda network, *parts: network.step(*parts)[1].value  # noqa: E731
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


def replay(network: ActorCritic, part: HopBatch, config: HOP, game: Game) -> Said:
    """What the network, as it is now, says of rows that were played, [G, units, L]."""

    def one(network: ActorCritic, part: HopBatch) -> Said:
        seen = game.scaled(part.observation)
        if config.core == "none":
            return network.step(jnp.zeros((*part.present.shape, 0)), seen, part.told, part.present)[1]
        time = part.present.ndim - 1
        turned = (jnp.moveaxis(x, time, 0) for x in (seen, part.told, part.fresh, part.present))
        said = network.through(part.memory, *turned)[1]
        return jax.tree.map(lambda x: jnp.moveaxis(x, 0, time), said)

    return jax.vmap(one, (None if config.share else 0, 0))(network, part)
