"""Mean rewards: whole episodes, no favour for short ones."""

import jax
import numpy as np

from otherminds import make, seats
from otherminds.evaluate import episode_rewards, estimate
from otherminds.games.stag_hunt import StagHunt


def test_each_game_counts_exactly_one_whole_episode():
    """Cooperators earn 3 a step: 3 x 7 in an episode of 7, whatever comes after."""
    game = make("matrix-ipd?horizon=7")
    rewards = episode_rewards(game, seats.resolve(game, "always_c"), 5, jax.random.key(0))
    np.testing.assert_allclose(rewards, 21.0)


def test_short_episodes_are_not_counted_twice():
    """Two stags' worth of hunters on a 4x4 board cannot earn more than the board is worth in one episode."""
    game = make("stag_hunt-4x4-4h1s")
    rewards = episode_rewards(
        game, seats.resolve(game, "nearest_stag,nearest_stag,nearest_hare,nearest_hare"), 512, jax.random.key(0)
    )
    assert rewards.shape == (512, 4)
    assert rewards.sum(1).max() <= 14
    assert 2.8 < rewards.mean() <= 3.0


def test_every_episode_has_a_start_of_its_own(monkeypatch):
    """Episodes beyond the bank repeated its starts, and intervals were four times too narrow."""
    monkeypatch.setattr(StagHunt, "bank_size", 1)
    game = make("stag_hunt-4x4-4h1s?horizon=2")
    rewards = episode_rewards(game, seats.resolve(game, "nearest_hare"), 256, jax.random.key(0))
    assert len(np.unique(rewards, axis=0)) > 4


def test_interval():
    # Values 1..4: mean 2.5, standard deviation 1.29099, half width 1.96 * 1.29099 / 2 = 1.26515.
    found = estimate(np.array([1.0, 2.0, 3.0, 4.0]))
    np.testing.assert_allclose([found.mean, found.low, found.high], [2.5, 2.5 - 1.26515, 2.5 + 1.26515], atol=1e-4)
