"""Repeated matrix games."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from otherminds import BadInput, make


@pytest.mark.parametrize(
    ("game_id", "rewards"),
    [  # for the joint actions CC, CD, DC, DD
        ("matrix-ipd", [(3, 3), (0, 5), (5, 0), (1, 1)]),
        ("matrix-stag_hunt", [(4, 4), (0, 3), (3, 0), (3, 3)]),
        ("matrix-chicken", [(3, 3), (1, 4), (4, 1), (0, 0)]),
        ("matrix-matching_pennies", [(1, -1), (-1, 1), (-1, 1), (1, -1)]),
    ],
)
def test_payoffs(game_id, rewards):
    game = make(game_id)
    state = game.reset(jax.random.key(0))
    for joint, expected in zip([(0, 0), (0, 1), (1, 0), (1, 1)], rewards, strict=True):
        _, outcome = game.step(state, jnp.array(joint), jax.random.key(0))
        np.testing.assert_array_equal(outcome.reward, expected)


def test_each_seat_sees_its_own_action_first():
    game = make("matrix-ipd")
    after, _ = game.step(game.reset(jax.random.key(0)), jnp.array([0, 1]), jax.random.key(0))
    np.testing.assert_allclose(game.observe(after), [[1, 0, 0, 1, 0.01], [0, 1, 1, 0, 0.01]], rtol=1e-6)


def test_what_was_mostly_played_is_the_goal_reached():
    game = make("matrix-ipd?horizon=3")
    state = game.reset(jax.random.key(0))
    for joint, goals in [((0, 1), (-1, -1)), ((1, 1), (-1, -1)), ((0, 0), (0, 1))]:
        after, outcome = game.step(state, jnp.array(joint), jax.random.key(0))
        np.testing.assert_array_equal(game.goal_reached(state, jnp.array(joint), after), goals)
        state = after
    assert outcome.terminated


def test_the_only_option_is_the_horizon():
    with pytest.raises(BadInput, match="no option 'payoffs'"):
        make("matrix-ipd?payoffs=chicken")
    with pytest.raises(BadInput, match="horizon=1"):
        make("matrix-ipd?horizon=0")
