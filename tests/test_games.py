"""The register of games."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from otherminds import BadInput, make
from otherminds.games import GAMES


@pytest.mark.parametrize("game_id", GAMES)
def test_what_a_game_says_of_itself(game_id):
    game = make(game_id)
    state = game.reset(jax.random.key(0))
    assert game.observe(state).shape == (game.seats, *game.observation_shape)
    assert game.legal(state).shape == (game.seats, game.actions)
    assert game.scaled(game.observe(state)).dtype == jnp.float32
    late = dataclasses.replace(state, time=jnp.int32(game.longest))
    assert float(game.scaled(game.observe(late)).max()) == 1.0
    assert hash(game) == hash(make(game_id))
    assert game == make(game_id)
    assert game.kind in ("mixed", "zero-sum", "cooperative")


@pytest.mark.parametrize("game_id", [*GAMES, "stag_hunt-4x4-4h1s?strengths=1,2,3,4"])
def test_an_observation_determines_the_state(game_id):
    """For every seat, also with absent players and prey that is gone: this is what a search in the simulator starts from."""
    game = make(game_id)
    state = game.reset(jax.random.key(1))
    if hasattr(state, "stag"):
        state = dataclasses.replace(
            state, position=state.position.at[1].set(-1), hare=state.hare.at[0].set(-1), time=jnp.int32(3)
        )
    for seat in range(game.seats):
        found = game.state_of(game.observe(state)[seat], seat)
        np.testing.assert_array_equal(game.observe(found)[0], game.observe(state)[seat])
        assert jax.tree.structure(found) == jax.tree.structure(state)


def test_unknown_games_name_the_closest():
    with pytest.raises(BadInput, match="did you mean stag_hunt-8x8-4h1s"):
        make("stag_hunt-8x8-4h1")
    with pytest.raises(BadInput, match="choose from"):
        make("zzz")


def test_options_stand_behind_the_id():
    game = make("snowdrift-4x4?horizon=50&cost=3")
    assert (game.horizon, game.cost, game.height) == (50, 3.0, 4)
    assert game.id == "snowdrift-4x4?horizon=50&cost=3"
