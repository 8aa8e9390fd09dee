"""The rules of the snowdrift game: against a second implementation written from the design alone, and by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from otherminds import BadInput, make
from otherminds.games.snowdrift import Snowdrift, SnowdriftState
from otherminds.rollout import collect, start
from otherminds.types import Seated

from players import Wild
from reference_games import ReferenceSnowdrift

EPISODES = 1700
VARIANTS = [
    "snowdrift-4x4",
    "snowdrift-6x6",
    "snowdrift-8x8",
    "snowdrift-4x4?players=2&drifts=1&horizon=8",
    "snowdrift-4x4?players=8&drifts=8&cost=9&reward=0.5",
    "snowdrift-4x4?height=1&width=11&horizon=50",
]


@pytest.mark.parametrize("game_id", VARIANTS)
def test_agrees_with_the_reference(game_id):
    game = make(game_id)
    policies = (Seated(Wild(game, ("never_clear", "random")), tuple(range(game.seats))),)
    play = jax.jit(lambda key: start(game, policies, EPISODES, key))(jax.random.key(7))
    _, rows = jax.jit(lambda play: collect(game, policies, play, game.horizon, states=True, final=True))(play)
    rows = jax.device_get(rows)
    lengths = [compare_episode(game, rows, lane) for lane in range(EPISODES)]
    assert lengths.count(game.horizon) >= 80


def compare_episode(game: Snowdrift, rows, lane: int) -> int:
    reference = ReferenceSnowdrift(
        height=game.height, width=game.width, players=game.players, drifts=game.drifts, reward=game.reward, cost=game.cost,
        horizon=game.horizon,
    )  # fmt: skip
    first = jax.tree.map(lambda leaf: leaf[0, lane], rows.state)
    worth = game.drifts * max(0.0, game.reward * game.players - game.cost)
    total = 0.0
    reference.start(*([divmod(int(cell), game.width) for cell in cells] for cells in (first.position, first.drift)))
    for t in range(game.horizon):
        assert np.array_equal(rows.legal[t, lane], reference.legal())
        assert np.array_equal(rows.observation[t, lane], reference.observe())
        outcome = reference.step(rows.action[t, lane])
        assert np.abs(rows.reward[t, lane] - outcome.reward).max() < 1e-4
        assert np.array_equal(rows.terminated[t, lane], outcome.terminated)
        assert np.array_equal(rows.goal_reached[t, lane], outcome.goal_reached)
        assert np.array_equal(rows.final_observation[t, lane], reference.observe())
        assert rows.present[t, lane].all()
        restarted = rows.first[t + 1, lane] if t + 1 < game.horizon else rows.last.first[lane]
        assert restarted == outcome.episode_over
        total += rows.reward[t, lane].sum()
        assert total <= worth + 1e-3
        if outcome.episode_over:
            return t + 1
    raise AssertionError("an episode went on beyond its horizon")


def test_the_cost_is_split_and_everyone_is_paid():
    # Two of three clear one drift: each pays 4/2 and all get 6: 6 - 2 = 4, 4, 6.
    game = Snowdrift(height=2, width=3, players=3, drifts=2)
    state = SnowdriftState(jnp.array([0, 0, 4]), jnp.array([0, 2]), jnp.int32(0), jnp.zeros(3, bool))
    after, outcome = game.step(state, jnp.array([5, 5, 4]), jax.random.key(0))
    np.testing.assert_allclose(outcome.reward, [4.0, 4.0, 6.0])
    np.testing.assert_array_equal(after.drift, [-1, 2])
    assert not outcome.terminated


@pytest.mark.parametrize(("options", "hint"), [("drifts=0", "drifts=1"), ("drifts=63", "do not fit"), ("horizon=0", "horizon=1")])
def test_impossible_boards_are_refused(options, hint):
    with pytest.raises(BadInput, match=hint):
        make(f"snowdrift-8x8?{options}")
