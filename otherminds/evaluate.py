"""What policies earn: whole episodes, an equal number in every parallel game, none favoured for being short."""

from dataclasses import dataclass
from statistics import NormalDist

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from otherminds.config import require
from otherminds.games.base import Game
from otherminds.rollout import collect, draw_bank, start
from otherminds.types import Seated

NORMAL_95 = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class Estimate:
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def estimate(values: np.ndarray) -> Estimate:
    """Mean of independent values with the normal 95 % interval."""
    mean = float(values.mean())
    half = NORMAL_95 * float(values.std(ddof=1)) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return Estimate(mean, mean - half, mean + half)


def episode_rewards(game: Game, policies: tuple[Seated, ...], episodes: int, key: PRNGKeyArray) -> np.ndarray:
    """The reward of each seat in `episodes` independent episodes: [episodes, A].

    One episode in each parallel game: counting all that end within some number of steps would favour the short ones.
    """
    require(game.longest is not None, f"{game.id} has no longest episode: its evaluation needs a number of steps")
    return np.asarray(_first_episodes(game, policies, episodes, key))


@eqx.filter_jit
def _first_episodes(game: Game, policies: tuple[Seated, ...], episodes: int, key: PRNGKeyArray) -> Float[Array, "episodes A"]:
    start_key, key = jax.random.split(key)
    bank = draw_bank(game, start_key, episodes)  # a start of its own for each episode, or they would not be independent
    play = start(game, policies, episodes, key, bank)
    _, rows = collect(game, policies, play, game.longest or 0)
    restarts = jnp.cumsum(rows.first[1:], axis=0)
    still_first = jnp.concatenate([jnp.ones((1, episodes), bool), restarts == 0])
    return (rows.reward * still_first[..., None]).sum(0)
