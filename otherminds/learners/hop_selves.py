"""Who plays the seats of a HOP while it learns: itself, itself as it was, or somebody with other wants.

A seat that only ever meets its equals takes everybody for one of them. So in part of the games some seats are played by other
selves: as they were earlier in the run, the first of whom walks at random; modest ones, to whom large rewards are worth nothing
and who are in a hurry; and bold ones, to whom small rewards are worth nothing. Those are PPOs that play and learn beside their
HOP; one serves all seats that are alike. The bold are there from the start, the modest come later: until then their seats are
its own. (Diverse wants as a way to other equilibria: Tang et al. 2021, "Discovering diverse multi-agent strategic behavior via
reward randomization".)
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
OWN, MODEST, BOLD = -1, len(EARLIER), len(EARLIER) + 1
BESIDE = (MODEST, BOLD)  # those who learn
KINDS = (MODEST, 0, BOLD, MODEST, 0, BOLD, MODEST, 5)
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


def begin_beside(config: HOP, sizes: Sizes, game: Game, group: int, key: PRNGKeyArray) -> tuple[ppo.State, ...]:
    """Other selves that have learned nothing, by kind: one for all seats that are alike, or one for each, [1 or G]."""
    taken = {field.name: getattr(config, field.name) for field in dataclasses.fields(PolicyGradient)}
    taken |= {"core": "none", "memory": "episode", "share": True}
    made = []
    for number, kind in enumerate(BESIDE):
        own = PPO(**taken | ({"discount": config.modest_discount} if kind == MODEST else {}))
        places = played(kind, config, sizes, group, game.symmetric)
        keys = jax.random.split(jax.random.fold_in(key, number), len(places))
        fits = dataclasses.replace(sizes, parallel=places.shape[1])
        made.append(stack([ppo.init(own, fits, game, (0,), one) for one in keys]))
    return tuple(made)


def played(kind: int, config: HOP, sizes: Sizes, group: int, alike: bool) -> np.ndarray:
    """Games and seats that selves of a kind play, [1 or G, n, 2]; filled up with -1 to what minibatches can share."""
    theirs = np.argwhere(cast(sizes.parallel, group, config.practice) == kind)
    of_each = [theirs] if alike else [theirs[theirs[:, 1] == seat] for seat in range(group)]
    step = math.lcm(sizes.rollout, sizes.minibatches) // sizes.rollout
    room = max(1, -(-max(map(len, of_each)) // step)) * step
    return np.stack([np.concatenate([rows, np.full((room - len(rows), 2), -1)]) for rows in of_each])


def as_beside(
    beside: tuple[ppo.State, ...],
    config: HOP,
    sizes: Sizes,
    begun: Bool[Array, ""],
    seen: Float[Array, "E G ..."],
    legal: Bool[Array, "E G actions"],
    logits: Float[Array, "E G actions"],
    value: Float[Array, "E G"],
) -> tuple[Float[Array, "E G actions"], Float[Array, "E G"]]:
    """(logits, values) with those of selves who learn beside us in the seats that they play."""
    for kind, state in zip(BESIDE, beside, strict=True):
        for k, places in enumerate(played(kind, config, sizes, value.shape[1], len(state.updates) == 1)):
            game, seat = places[(places >= 0).all(1)].T
            if not len(game):
                continue
            network, scale = jax.tree.map(lambda leaf, k=k: leaf[k], (state.network, state.scale))
            rows, active = seen[game, seat], begun if kind == MODEST else True
            _, raw, worth = network.step(jnp.zeros((len(rows), 0)), rows, jnp.ones(len(rows), bool))
            theirs = Categorical.masked(raw, legal[game, seat])
            logits = logits.at[game, seat].set(jnp.where(active, theirs, logits[game, seat]))
            restored = scale.restore(worth[:, None])[:, 0]
            value = value.at[game, seat].set(jnp.where(active, restored, value[game, seat]))
    return logits, value


def learn_beside(
    beside: tuple[ppo.State, ...],
    config: HOP,
    sizes: Sizes,
    rows: Trajectory,
    largest: Float[Array, " G"],
    begun: Bool[Array, ""],
    key: PRNGKeyArray,
) -> tuple[ppo.State, ...]:
    """What other selves make of the games that they played."""
    learned = []
    for number, (kind, state) in enumerate(zip(BESIDE, beside, strict=False)):  # nobody, without practice
        worth, there = worth_to(kind, rows.reward, largest), rows.present & (begun if kind == MODEST else True)
        theirs = dataclasses.replace(rows, reward=worth, present=there)
        after = []
        for k, places in enumerate(played(kind, config, sizes, rows.present.shape[2], len(state.updates) == 1)):
            own = jax.tree.map(lambda leaf, k=k: leaf[k], state)
            one = jax.random.fold_in(jax.random.fold_in(key, number), k)
            after.append(ppo.update(own, column(theirs, places), one)[0])
        learned.append(stack(after))
    return tuple(learned)


def worth_to(kind: int, reward: Float[Array, "T E G"], largest: Float[Array, " G"]) -> Float[Array, "T E G"]:
    """To the modest, more than half of the largest reward is worth nothing; to the bold, whatever is less than that."""
    large = reward > largest[None, None] / 2
    return jnp.where(large if kind == MODEST else (reward > 0) & ~large, 0.0, reward)


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
