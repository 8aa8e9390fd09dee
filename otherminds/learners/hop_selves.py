"""Who plays the seats of a HOP while it learns: itself, itself as it was, or a modest self.

A seat that only ever meets its equals takes everybody for one of them. So in part of the games some seats are played by other
selves: as they were earlier in the run, the first of whom walks at random; or modest ones, to whom large rewards are worth
nothing and who are in a hurry. A modest self is a PPO that plays and learns beside its HOP; one serves all seats that are alike.
Modest selves come in when the search begins: until then their seats are its own.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from otherminds.config import HOP, PPO, PolicyGradient, Sizes
from otherminds.distributions import Categorical
from otherminds.games.base import Game
from otherminds.learners import ppo
from otherminds.networks import stack
from otherminds.types import SEAT_FIELDS, Memory, Trajectory

EARLIER = (0.0, 1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4)
"""When other selves were taken, as shares of the run; the first has learned nothing."""
OWN, MODEST = -1, len(EARLIER)
KINDS = (MODEST, 0, MODEST, 0, MODEST, 4, 0, 5)
"""Who plays beside oneself, game after game."""
DRAWN = 4  # in one of so many games of practice everybody is drawn; in the others one seat meets partners of one kind


def practises(config: HOP, group: int) -> bool:
    """Whether some seats are played by other selves at times."""
    return config.practice > 0 and group > 1


def cast(games: int, group: int, practice: float) -> np.ndarray:
    """Who plays each seat of each game, [games, group]: OWN, MODEST, or one of the EARLIER selves."""
    who = np.full((games, group), OWN)
    random = np.random.default_rng(0)
    alone = 0
    for number, game in enumerate(range(games - int(games * practice), games)):
        if number % DRAWN == DRAWN - 1:
            others = random.choice(KINDS, group)
            who[game] = np.where(random.random(group) < 0.5, OWN, others)
        else:
            turn, seat = divmod(alone, group)
            who[game] = KINDS[turn % len(KINDS)]
            who[game, seat] = OWN
            alone += 1
    return who


def begin_modest(config: HOP, sizes: Sizes, game: Game, group: int, key: PRNGKeyArray) -> ppo.State:
    """Modest selves that have learned nothing: one for all seats that are alike, or one for each, [1 or G]."""
    taken = {field.name: getattr(config, field.name) for field in dataclasses.fields(PolicyGradient)}
    taken |= {"core": "none", "memory": "episode", "share": True, "discount": config.modest_discount}
    places = played(config, sizes, group, game.symmetric)
    fits = dataclasses.replace(sizes, parallel=places.shape[1])
    return stack([ppo.init(PPO(**taken), fits, game, (0,), one) for one in jax.random.split(key, len(places))])


def played(config: HOP, sizes: Sizes, group: int, alike: bool) -> np.ndarray:
    """Games and seats that modest selves play, [1 or G, n, 2]; filled up with -1 to what minibatches can share."""
    modest = np.argwhere(cast(sizes.parallel, group, config.practice) == MODEST)
    of_each = [modest] if alike else [modest[modest[:, 1] == seat] for seat in range(group)]
    step = math.lcm(sizes.rollout, sizes.minibatches) // sizes.rollout
    room = max(1, -(-max(map(len, of_each)) // step)) * step
    return np.stack([np.concatenate([rows, np.full((room - len(rows), 2), -1)]) for rows in of_each])


def as_modest(
    modest: ppo.State, places: np.ndarray, seen: Array, legal: Bool[Array, "E G actions"], logits: Array, value: Array
) -> tuple[Float[Array, "E G actions"], Float[Array, "E G"]]:
    """(logits, values) with those of modest selves in the `places` that they play."""
    for k, of_one in enumerate(places):
        game, seat = of_one[(of_one >= 0).all(1)].T
        if not len(game):
            continue
        own = jax.tree.map(lambda leaf, k=k: leaf[k], modest)
        rows = seen[game, seat]
        _, raw, worth = own.network.step(jnp.zeros((len(rows), 0)), rows, jnp.ones(len(rows), bool))
        logits = logits.at[game, seat].set(Categorical.masked(raw, legal[game, seat]))
        value = value.at[game, seat].set(own.scale.restore(worth[:, None])[:, 0])
    return logits, value


def learn_modestly(
    modest: ppo.State,
    places: np.ndarray,
    rows: Trajectory,
    largest: Float[Array, " G"],
    begun: Bool[Array, ""],
    key: PRNGKeyArray,
) -> ppo.State:
    """What modest selves make of the games that they played; nothing before they have begun to."""
    worth = jnp.where(rows.reward > largest[None, None] / 2, 0.0, rows.reward)
    rows = dataclasses.replace(rows, reward=worth, present=rows.present & begun)
    learned = []
    for k, of_one in enumerate(places):
        own = jax.tree.map(lambda leaf, k=k: leaf[k], modest)
        learned.append(ppo.update(own, column(rows, of_one), jax.random.fold_in(key, k))[0])
    return stack(learned)


def column(rows: Trajectory, places: np.ndarray) -> Trajectory:
    """The rows of these games and seats as those of one seat in many games, [T, n, 1]; none of a place that is -1."""
    game, seat = np.maximum(places, 0).T
    there = jnp.asarray((places >= 0).all(1))[:, None]
    fields: dict[str, Any] = {
        name: getattr(rows, name)[:, game, seat][:, :, None] for name in SEAT_FIELDS if getattr(rows, name) is not None
    }
    last = {
        name: getattr(rows.last, name)[game, seat][:, None]
        for name in ("action", "reward", "goal_reached", "terminated", "observation", "legal", "present")
    }
    by_game = {name: getattr(rows, name)[:, game] for name in ("first", "meeting", "truncated")}
    of_last = {name: getattr(rows.last, name)[game] for name in ("first", "meeting", "truncated")}
    fields["present"] = fields["present"] & there[None]
    return dataclasses.replace(
        rows,
        **fields,
        **by_game,
        seat=jnp.zeros(1, jnp.int32),
        last=dataclasses.replace(rows.last, **last, **of_last),
        memory=Memory(jnp.zeros((len(game), 1, 0)), None),
        won=None,
        start=None,
        everyone=None,
    )
