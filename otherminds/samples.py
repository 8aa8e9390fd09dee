"""What modules learn from and are measured on: steps and episodes out of a dataset, in the frame of whoever looks."""

from collections.abc import Sequence
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num

from otherminds import goals, opponent_model, world_model
from otherminds.config import BadInput, OpponentModel, require
from otherminds.dataset import Dataset
from otherminds.games.base import Game, is_board
from otherminds.games.ego import seen_from, to_ego
from otherminds.partners import names_for

Labels = Literal["true", "reached"]


class PartnerSteps(eqx.Module):
    """Steps of partners, seen by somebody else."""

    view: Num[Array, "n ..."]  # the partner's own, as far as the one who looks can see it
    seat: Int[Array, " n"]  # of the partner
    action: Int[Array, " n"]
    goal: Int[Array, " n"]  # that is told; the number of goals stands for none, -1 for one that is not known
    who: Int[Array, " n"]  # -1 for somebody unknown
    ceiling: Float[Array, "n actions"]  # what could be known at best by what is told; zeros where nobody can say
    mixture: Float[Array, "n actions"]  # what is known by what is told and the time alone
    without: Float[Array, "n actions"]  # what could be known at best, had the goal not been told
    ego: Int[Array, " n"]  # who looks, by seat

    def told(
        self, config: OpponentModel, game: Game, partners: int, keep_goal: Array | bool = True, keep_who: Array | bool = True
    ) -> Float[Array, "n told"]:
        """What is told beside the view; of goals and partners, where they are kept from the model, nothing."""
        goal, who = jax.nn.one_hot(self.goal, len(game.goals) + 1), jax.nn.one_hot(self.who, partners)
        kept = (jnp.broadcast_to(jnp.asarray(keep), self.who.shape)[:, None] for keep in (keep_goal, keep_who))
        known = (x * k for x, k in zip((goal, who), kept, strict=True))
        return opponent_model.tell(config, game, self.seat, self.ego, *known)


def partner_steps(
    data: Dataset,
    count: int,
    random: np.random.Generator,
    best: tuple[np.ndarray, np.ndarray, np.ndarray],
    partners: Sequence[str],
    player: int | None = None,
    labels: Labels = "true",
    trajectories: Literal["all", "rewarded"] = "all",
    views: Literal["public", "theirs"] = "public",
) -> PartnerSteps:
    """Up to `count` different steps of partners, each seen by one other who is there, drawn at random (or `player`, from 1).

    `best` are `ceiling`, `mixture` and `without` [N, A, actions]; `partners` are the names that `who` counts through.
    """
    rows, game = data.rows, data.game
    reached = reached_next(data)
    looks = of_player(data, player)
    seen = rows.present & ((looks.sum(1, keepdims=True) - looks) > 0)
    if trajectories == "rewarded":
        seen &= reached >= 0
    row, seat = some(seen, count, random)
    require(len(row) > 0, "the dataset has no step of a partner that somebody else sees: collect more episodes, or other seats")
    chance = np.where(looks[row] & (np.arange(game.seats) != seat[:, None]), random.random((len(row), game.seats)), -1.0)
    ego = chance.argmax(1) if views == "public" else seat
    view = seen_by(data, row, ego, (seat - ego) % game.seats)
    goal = told_goals(data, labels)[row, seat]
    known = np.array([list(partners).index(name) if name in partners else -1 for name in data.partners])
    numbers = (seat, rows.action[row, seat], goal, known[rows.who[row, seat]], ego)
    seat_, action, goal_, who, ego_ = (jnp.asarray(column, jnp.int32) for column in numbers)
    ceiling, mixture, without = (jnp.asarray(part[row, seat]) for part in best)
    return PartnerSteps(jnp.asarray(view), seat_, action, goal_, who, ceiling, mixture, without, ego_)


def seen_by(data: Dataset, row: np.ndarray, ego: np.ndarray, place: np.ndarray) -> np.ndarray:
    """[n, ...]: what the partner at `place` sees in each row, as far as `ego` can see it; not scaled."""
    game, inner = data.game, len(data.game.observation_shape)
    view = data.rows.observation[row, ego]
    for one in np.unique(place):
        there = place == one
        view[there] = seen_from(jnp.asarray(view[there]), int(one), game.seats, game.shown_of_each, inner)
    return view


def told_goals(data: Dataset, labels: Labels) -> np.ndarray:
    """[N, A]: the goal that is told of each seat; the number of goals stands for none, -1 for one that is not known.

    A script that played here and names no goal has none. Whoever else names none, a learner or a player of another library, may
    be after anything. Where goals are told as they were reached, none is one of them, if anybody noted any.
    """
    none = len(data.game.goals)
    if labels == "reached":
        reached = reached_next(data)
        return np.where(reached >= 0, reached, none if (reached >= 0).any() else -1)
    scripts = names_for(data.game.family) if "converted" not in data.source else []
    tells = np.array([name.partition("=")[0] in scripts for name in data.partners])
    return np.where(data.rows.goal >= 0, data.rows.goal, np.where(tells[data.rows.who], none, -1))


def goals_are_known(data: Dataset) -> bool:
    """Whether anybody is known to be after something, or after nothing."""
    return bool((told_goals(data, "true") >= 0)[data.rows.present].any())


def reached_next(data: Dataset) -> np.ndarray:
    """[N, A]: the goal that each seat reaches next, in the step of a row or later in its episode; -1 for none."""
    table, found = data.table(), np.full_like(data.rows.goal_reached, -1)
    following = np.full((len(table), found.shape[1]), -1, found.dtype)
    for step in range(table.shape[1] - 1, -1, -1):
        there = table[:, step] >= 0
        now = data.rows.goal_reached[table[there, step]]
        following[there] = np.where(now >= 0, now, following[there])
        found[table[there, step]] = following[there]
    return found


def of_player(data: Dataset, player: int | None) -> np.ndarray:
    """[N, A]: where a player, counted from 1, is there; without one, where anybody is."""
    there = data.rows.present
    return there if player is None else there & (np.arange(data.game.seats) == player - 1)


def some(which: np.ndarray, count: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(rows, seats) of up to `count` of those that are marked [N, A], in any order."""
    row, seat = np.nonzero(which)
    chosen = random.permutation(len(row))[:count]
    return row[chosen], seat[chosen]


# --- of whoever looks ---


def own_steps(
    data: Dataset, count: int, random: np.random.Generator, target: np.ndarray, player: int | None = None
) -> tuple[world_model.Step, np.ndarray, np.ndarray]:
    """Up to `count` different steps of seats that are there, each in its own frame; and of each its row and its seat.

    `target` [N, A] is what the reward head should say of each.
    """
    rows = data.rows
    row, seat = some(of_player(data, player), count, random)
    require(len(row) > 0, "the dataset has no step of a player that is there: collect more episodes, or another --player")
    found = world_model.Step(
        jnp.asarray(rows.observation[row, seat]),
        joint_actions(data, row, seat),
        jnp.asarray(rows.next_observation[row, seat]),
        jnp.asarray(target[row, seat], jnp.float32),
        jnp.asarray(rows.terminated[row, seat]),
        jnp.ones(len(row), bool),
        jnp.asarray(seat, jnp.int32),
    )
    return found, row, seat


def joint_actions(data: Dataset, row: np.ndarray, seat: np.ndarray) -> Int[Array, "n A"]:
    """What everybody did, in the order of the one who looks; -1 for whoever was absent."""
    return jax.vmap(to_ego)(jnp.asarray(data.rows.action[row], jnp.int32), jnp.asarray(seat))


class Windows(eqx.Module):
    """Steps in a row of one episode, seen by the same player."""

    observation: Num[Array, "n ..."]  # before the first of them
    action: Int[Array, "n T A"]  # ego order
    following: Num[Array, "n T ..."]  # what each led to
    there: Bool[Array, "n T"]  # whether the player acted in it
    ego: Int[Array, " n"]  # the player, by seat


def windows(data: Dataset, count: int, steps: int, random: np.random.Generator, player: int | None = None) -> Windows:
    """Up to `count` windows; a player who leaves in one is there up to its last step."""
    rows = data.rows
    row, seat = some(of_player(data, player), count, random)
    last = np.flatnonzero(rows.end)
    until = last[np.searchsorted(last, row)]
    index = np.minimum(row[:, None] + np.arange(steps), until[:, None])
    there = (row[:, None] + np.arange(steps) <= until[:, None]) & rows.present[index, seat[:, None]]
    action = joint_actions(data, index.ravel(), np.repeat(seat, steps)).reshape(*index.shape, -1)
    following = rows.next_observation[index, seat[:, None]]
    begin, ego = jnp.asarray(rows.observation[row, seat]), jnp.asarray(seat, jnp.int32)
    return Windows(begin, action, jnp.asarray(following), jnp.asarray(there), ego)


def returns_to_go(data: Dataset, discount: float) -> np.ndarray:
    """[N, A]: what each seat earns from each row to the end of its episode, later rewards discounted."""
    table, found = data.table(), np.zeros_like(data.rows.reward)
    later = np.zeros((len(table), found.shape[1]), found.dtype)
    for step in range(table.shape[1] - 1, -1, -1):
        there = table[:, step] >= 0
        later[there] = data.rows.reward[table[there, step]] + discount * later[there]
        found[table[there, step]] = later[there]
    return found


CHECKED = 2000  # samples that are held against the rules


def by_the_rules(game: Game, steps: world_model.Step) -> dict[str, float]:
    """The share of steps whose next observation is what the game itself makes of observation and joint action, if it can tell."""
    if not shows_all(game):
        return {}

    def follows(observation: Array, action: Array, after: Array) -> Array:
        state, _ = game.step(game.state_of(observation, 0), action, jax.random.key(0))
        return (game.observe(state)[0] == after).all()

    few = (x[:CHECKED] for x in (steps.observation, steps.action, steps.next_observation))
    return {"by_the_rules": float(jax.jit(jax.vmap(follows))(*few).mean())}


def off_the_board(game: Game, view: Num[Array, "n ..."]) -> dict[str, float]:
    """The share of views in which the player who acts is nowhere to be seen, though everything is."""
    if not (is_board(game) and shows_all(game)):
        return {}
    return {"off_the_board": float((view[:, 0].reshape(len(view), -1).sum(1) == 0).mean())}


def shows_all(game: Game) -> bool:
    """Whether an observation determines the state."""
    try:
        jax.eval_shape(lambda: game.state_of(jnp.zeros(game.observation_shape, game.observation_dtype), 0))
    except BadInput:
        return False
    return True


# --- whole episodes of partners ---


def sequences(
    data: Dataset,
    count: int,
    steps: int,
    random: np.random.Generator,
    discount: float,
    player: int | None = None,
    labels: Labels = "reached",
) -> tuple[goals.Sequences, dict[str, np.ndarray]]:
    """Episodes of partners with about `count` steps in all, each seen by one other, and of each step its row and seat."""
    rows, game = data.rows, data.game
    table = data.table()[:, :steps]
    filled = table >= 0
    episode, seat = (index.ravel() for index in np.indices((len(table), game.seats)))
    others = [k for k in range(game.seats) if player is None or k == player - 1]
    ego = random.choice(others, len(seat))
    ego = np.where(ego == seat, (ego + 1 + random.integers(max(game.seats - 1, 1), size=len(seat))) % game.seats, ego)
    apart = (ego != seat) & (np.isin(ego, others))
    index, there = table[episode], filled[episode]
    seen = there & rows.present[index, seat[:, None]] & rows.present[index, ego[:, None]] & apart[:, None]
    order = random.permutation(np.flatnonzero(seen.any(1)))
    require(
        len(order) > 1, "the dataset has no episode of a partner that somebody else sees: collect more episodes, or other seats"
    )
    enough = int(np.searchsorted(np.cumsum(seen[order].sum(1)), count)) + 1
    chosen = order[: max(enough, 2)]
    index, seen, seat, ego = index[chosen], seen[chosen], seat[chosen], ego[chosen]
    everywhere = [np.broadcast_to(x[:, None], index.shape) for x in (ego, (seat - ego) % game.seats)]
    view = seen_by(data, index.ravel(), *(x.ravel() for x in everywhere)).reshape(*index.shape, *game.observation_shape)
    columns = (rows.action, rows.reward, returns_to_go(data, discount))
    action, reward, value = (column[index, by[:, None]] for column, by in zip(columns, (seat, seat, ego), strict=True))
    reward, value = (jnp.asarray(np.where(seen, part, 0.0)) for part in (reward, value))
    played = jnp.asarray(np.where(seen, action, -1), jnp.int32)
    label = (rows.goal if labels == "true" else reached_next(data))[index[:, 0], seat].astype(np.int32)
    whose = (jnp.asarray(x, jnp.int32) for x in (seat, ego))
    found = goals.Sequences(jnp.asarray(view), played, reward, value, jnp.asarray(seen), jnp.asarray(label), *whose)
    return found, {"row": index, "seat": np.broadcast_to(seat[:, None], index.shape), "seen": seen}
