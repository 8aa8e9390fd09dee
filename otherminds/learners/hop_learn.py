"""What HOP learns beside its policy: what partners do and are after, and what a step leads to. And how well it foresaw them."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from otherminds import foresight, world_model
from otherminds.distributions import Categorical
from otherminds.foresight import Foresight, Happened, Watched
from otherminds.games.ego import to_egos
from otherminds.learners.base import Scale, adam, between, cut, moves_of
from otherminds.learners.hop_play import HopPolicy, Moments, foresees
from otherminds.learners.hop_selves import OWN
from otherminds.losses import masked_mean, normalised
from otherminds.returns import lambda_returns
from otherminds.types import Trajectory
from otherminds.world_model import Step, WorldModel

DREAMED = ("observation", "legal", "present", "action", "logits", "value", "reward", "terminated")
"""What a dream has of every step."""


def think_again(state: Any, rows: Trajectory) -> Any:
    """What was thought at each row and after the last, [T + 1, E, G], by the minds as they were."""
    assert rows.start is not None
    assert rows.everyone is not None
    thoughts, lasting = rows.memory.episode[1], rows.memory.lasting[1]
    steps, _, group = rows.present.shape
    if not foresees(state.config):
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (steps + 1, *leaf.shape)), thoughts)

    def timeline(start: Array, each: Array) -> Array:
        """What led to each moment, [T + 1, E, G, A]."""
        return to_egos(jnp.concatenate([start[None], each]), rows.seat)

    first, meeting = (
        jnp.concatenate([a, b[None]]) for a, b in ((rows.first, rows.last.first), (rows.meeting, rows.last.meeting))
    )
    happened = Happened(
        action=timeline(rows.start.action, rows.everyone.action),
        goal_reached=timeline(rows.start.goal_reached, rows.everyone.goal_reached),
        first=jnp.broadcast_to(first[..., None], (*first.shape, group)),
    )
    seen = jnp.concatenate([rows.observation, rows.last.observation[None]])

    def one(mind: Foresight, *parts: Any) -> Any:
        return foresight.through(mind, *parts)[0]

    again = jax.vmap(one, (None if state.config.share else 0, 1, 1, 2, 2, None, 0), 2)
    return again(state.mind, thoughts, lasting, seen, happened, meeting, rows.seat)


def learn_of_partners(
    state: Any, rows: Trajectory, thoughts: Any, returns: Float[Array, "T E G"], key: PRNGKeyArray
) -> tuple[Foresight, Any, dict[str, Float[Array, " G"]]]:
    """Opponent model and goals, from what partners did in some of the games; `thoughts` are what was thought of them there."""
    assert rows.everyone is not None
    config, seats = state.config, rows.seat
    steps, games, group = rows.present.shape
    order_key, loss_key = jax.random.split(key)
    wanted = min(config.foresight_games, games)
    parts = next(n for n in range(max(1, wanted // config.foresight_batch), 0, -1) if wanted % n == 0)
    chosen = jax.random.permutation(order_key, games)[:wanted].reshape(parts, -1)
    rate = between(config.goals.learning_rate, 0.1 * config.goals.learning_rate, state.updates, state.planned)
    progress = jnp.clip(state.updates / jnp.maximum(state.planned, 1), 0.0, 1.0)
    everyone, own = rows.everyone, None if config.share else 0
    transform = adam(config.max_gradient)

    def watched(at: Int[Array, " n"]) -> dict[str, Array]:
        """The fields of `Watched` for every seat, [T, n, G, ...]."""
        return dict(
            observation=rows.observation[:, at],
            action=to_egos(everyone.action[:, at], seats),
            reward=to_egos(everyone.reward[:, at], seats),
            goal_reached=to_egos(everyone.goal_reached[:, at], seats),
            first=jnp.broadcast_to(rows.first[:, at, None], (steps, len(at), group)),
            worth=returns[:, at],
            ego=rows.seat,
            **({"opening": thoughts.belief[:-1][:, at]} if hasattr(thoughts, "belief") else {}),
        )

    axes = {name: 0 if name == "ego" else 2 for name in watched(chosen[0])}

    def step(carry: tuple[Any, Any], part: tuple[Array, Array]) -> tuple[tuple[Any, Any], dict[str, Array]]:
        (mind, optimiser), (at, key) = carry, part
        start, lasting = jax.tree.map(lambda leaf: leaf[at], (rows.memory.episode[1], rows.memory.lasting[1]))

        def loss(mind: Foresight) -> tuple[Array, dict[str, Array]]:
            def one(mind: Foresight, rows: dict[str, Array], start: Any, lasting: Any) -> Any:
                seen = Watched(**rows, rewarded_only=config.trajectories == "rewarded")
                return mind.losses(seen, start, lasting, key, progress)

            total, terms = jax.vmap(one, (own, axes, 1, 1))(mind, watched(at), start, lasting)
            return total.mean() if config.share else total.sum(), terms

        gradient, terms = jax.grad(loss, has_aux=True)(mind)
        moves, optimiser = moves_of(transform, gradient, optimiser, config.share)
        mind = jax.tree.map(lambda old, move: old - rate * move, mind, moves)
        return (mind, optimiser), terms

    keys = jax.random.split(loss_key, parts)
    (mind, optimiser), terms = jax.lax.scan(step, (state.mind, state.mind_optimiser), (chosen, keys))
    return mind, optimiser, {name: term.mean(0) for name, term in terms.items()}


def learn_of_world(state: Any, rows: Trajectory, key: PRNGKeyArray) -> tuple[WorldModel, Any, dict[str, Float[Array, " G"]]]:
    """The world model, from some of the steps at which each seat was there."""
    assert rows.everyone is not None
    assert rows.final_observation is not None
    config, settings, game = state.config, state.config.world_model, state.game
    steps, games, group = rows.present.shape
    batch = min(settings.batch, steps * games)
    count = max(1, min(config.model_rows, steps * games) // batch)
    order = some_rows(rows.present, count * batch, key)
    joint = to_egos(rows.everyone.action, rows.seat)
    rate = between(settings.learning_rate, 0.1 * settings.learning_rate, state.updates, state.planned)
    own, transform = None if config.share else 0, adam(config.max_gradient)

    final = rows.final_observation

    def taken(at: Int[Array, "G n"]) -> dict[str, Array]:
        """The fields of `Step` for every seat, [G, n, ...]."""
        return dict(
            observation=picked(rows.observation, at),
            action=picked(joint, at),
            next_observation=picked(final, at),
            target=picked(rows.reward, at),
            end=picked(rows.terminated, at),
            present=picked(rows.present, at),
            ego=jnp.broadcast_to(rows.seat[:, None], at.shape),
        )

    def step(carry: tuple[Any, Any], at: Int[Array, "G n"]) -> tuple[tuple[Any, Any], dict[str, Array]]:
        model, optimiser = carry

        def loss(model: WorldModel) -> tuple[Array, dict[str, Array]]:
            total, terms = jax.vmap(lambda model, steps: world_model.losses(model, settings, Step(**steps)), (own, 0))(
                model, taken(at)
            )
            return total.mean() if config.share else total.sum(), terms

        gradient, terms = jax.grad(loss, has_aux=True)(model)
        moves, optimiser = moves_of(transform, gradient, optimiser, config.share)
        return (jax.tree.map(lambda old, move: old - rate * move, model, moves), optimiser), terms

    parts = order.reshape(group, count, batch).swapaxes(0, 1)
    first = taken(parts[0])
    seen = jax.vmap(lambda model, s: model(game.scaled(s["observation"]), s["action"], ego=s["ego"]), (own, 0))(
        state.model, first
    )
    found = {"exact": masked_mean(seen.exact(game, first["next_observation"]) * 1.0, first["present"], 1)}
    found["reward_mse"] = masked_mean((seen.reward - first["target"]) ** 2, first["present"], 1)
    (model, optimiser), terms = jax.lax.scan(step, (state.model, state.model_optimiser), parts)
    return model, optimiser, found | {name: term.mean(0) for name, term in terms.items()}


def some_rows(wanted: Bool[Array, "T E G"], count: int, key: PRNGKeyArray) -> Int[Array, "G count"]:
    """Places of rows for each seat, drawn, those wanted first; the same luck for all seats, as none is special."""
    flat = wanted.reshape(-1, wanted.shape[-1])
    return jnp.argsort(jax.random.uniform(key, flat.shape[:1])[:, None] + ~flat, 0)[:count].T


def picked(x: Array, at: Int[Array, "G n"]) -> Array:
    """[T, E, G, ...] as [G, n, ...]."""
    return jax.vmap(lambda own, at: own[at], (1, 0))(x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]), at)


def imagined(
    policy: HopPolicy,
    rows: Trajectory,
    thoughts: Any,
    told: Float[Array, "T1 E G told"],
    wanted: Bool[Array, "T E G"],
    scale: Scale,
    units: int,
    length: int,
    steps: int,
    key: PRNGKeyArray,
) -> dict[str, Array]:
    """Units of `length` that were not played: stretches of so many `steps` that go on from moments that were, [G, units, length].

    What is believed there stays what it was. A stretch that is not over when it ends goes on with the value of where it ends.
    """
    assert rows.everyone is not None
    config, group = policy.config, policy.group
    room = units * length // steps
    place_key, dream_key = jax.random.split(key)
    at = some_rows(wanted, room, place_key)
    present = to_egos(rows.everyone.action, rows.seat) >= 0
    thoughts, told = jax.tree.map(lambda leaf: leaf[:-1], (thoughts, told))
    held = jnp.zeros((*wanted.shape, 0))
    unused = jnp.ones_like(rows.value)  # nothing is searched there
    seen = (rows.observation, present, rows.legal, thoughts, held, told, rows.policy_logits, rows.value, unused)
    now = Moments(*jax.tree.map(lambda x: picked(x, at), seen))
    dream = policy.dreamed(now, rows.seat, steps, dream_key)

    def by_game(x: Array, lead: int = 1) -> Array:
        """[steps, G room, ...] as [steps, room, G, ...]."""
        return jnp.moveaxis(x.reshape(*x.shape[:lead], group, room, *x.shape[lead + 1 :]), lead, lead + 1)

    after = by_game(dream.last_value, 0), by_game(dream.last_present, 0)
    rowed = {name: by_game(getattr(dream, name)) for name in DREAMED}
    kept = picked(wanted, at).T  # [room, G]
    there = rowed["present"] & kept[None]
    returned = partial(
        lambda_returns,
        *(rowed["reward"], rowed["value"], after[0], None),
        *(there, after[1] & kept, rowed["terminated"], jnp.zeros((steps, room), bool)),
        discount=config.discount,
    )
    targets = returned(trace=config.trace)
    worth = returned(trace=1.0).returns if config.value_target == "return" else targets.returns
    fields = dict(
        observation=rowed["observation"],
        legal=rowed["legal"],
        present=there,
        fresh=jnp.zeros_like(there),
        action=rowed["action"],
        log_probability=Categorical.log_probability(rowed["logits"], rowed["action"]),
        logits=rowed["logits"],
        advantage=normalised(targets.advantages, there),
        value=scale.normalise(rowed["value"]),
        target=scale.normalise(worth),
        told=jnp.broadcast_to(jnp.swapaxes(now.told, 0, 1)[None], (steps, room, group, now.told.shape[-1])),
        searched=jnp.zeros_like(there),
        played=rowed["logits"],
        imagined=jnp.ones_like(there),
        gain=targets.advantages,
        weight=jnp.ones_like(targets.advantages),
    )
    apart = {name: cut(x, steps) for name, x in fields.items()}  # [G, room, steps, ...]
    whole = {name: x.reshape(group, units, length, *x.shape[3:]) for name, x in apart.items()}
    return whole | {"memory": jnp.zeros((group, units, 0))}


def foresight_metrics(
    state: Any, rows: Trajectory, thoughts: Any, own: Bool[Array, "T E G"], who: np.ndarray
) -> dict[str, Float[Array, " G"]]:
    """How well partners were foreseen as they were played, beside what anybody could do: in games of selves alone, and apart in
    games of practice."""
    assert rows.everyone is not None
    expected = state.mind.foreseen(jax.tree.map(lambda leaf: leaf[:-1], thoughts))  # [T, E, G, P, actions]
    action = to_egos(rows.everyone.action, rows.seat)
    theirs = action[..., 1:]
    truth = jnp.exp(to_egos(rows.everyone.logits, rows.seat, -2))[..., 1:, :]
    seen = own[..., None] & (theirs >= 0)
    log = jnp.log(jnp.maximum(expected, 1e-9))
    chosen = jnp.take_along_axis(log, jnp.maximum(theirs, 0)[..., None], -1)[..., 0]
    kinds = jax.nn.one_hot(jnp.where(seen, theirs, -1), expected.shape[-1])
    plain = (who == OWN).all(1)
    found = {}
    for name, games in (("", plain), ("_practice", ~plain)):
        if not games.any():
            continue
        at = np.flatnonzero(games)
        where = seen[:, at]

        def mean(x: Array, at: np.ndarray = at, where: Array = where) -> Float[Array, " G"]:
            return jnp.where(where, x[:, at], 0.0).sum((0, 1, 3)) / jnp.maximum(where.sum((0, 1, 3)), 1)

        found[f"foresight_cross_entropy{name}"] = mean(-chosen)
        found[f"foresight_top_1{name}"] = mean((expected.argmax(-1) == theirs) * 1.0)
        found[f"foresight_ceiling_cross_entropy{name}"] = mean(-(truth * jnp.log(jnp.maximum(truth, 1e-9))).sum(-1))
        found[f"foresight_ceiling_top_1{name}"] = mean(truth.max(-1))
        counts = kinds[:, at].sum((0, 1, 3))
        found[f"foresight_floor_top_1{name}"] = counts.max(-1) / jnp.maximum(counts.sum(-1), 1)
    return found
