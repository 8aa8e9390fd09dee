"""The ego frame: one rotation for everything."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from otherminds import make, seats
from otherminds.games.ego import all_to_ego, from_ego, seat_numbers, seen_from, tell_seats, to_ego, view
from otherminds.rollout import collect, start

from players import played


@given(players=some.integers(1, 8), seat=some.integers(0, 7), rows=some.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_there_and_back(players, seat, rows):
    seat %= players
    x = jnp.arange(rows * players).reshape(rows, players)
    there = to_ego(x, seat)
    np.testing.assert_array_equal(there[:, 0], x[:, seat])
    np.testing.assert_array_equal(from_ego(there, seat), x)
    np.testing.assert_array_equal(from_ego(to_ego(x.T, seat, 0), seat, 0), x.T)


def test_each_seat_finds_itself_first():
    np.testing.assert_array_equal(all_to_ego(jnp.array([10, 20, 30]), (0, 2)), [[10, 20, 30], [30, 10, 20]])
    batched = jnp.arange(6).reshape(2, 3)
    np.testing.assert_array_equal(all_to_ego(batched, (1,)), [[[1, 2, 0]], [[4, 5, 3]]])
    features = jnp.arange(12).reshape(2, 3, 2)
    np.testing.assert_array_equal(all_to_ego(features, (1,), -2)[:, 0, 0], features[:, 1])


def test_a_view_rotates_planes_actions_and_presence_alike():
    """Planes that were rotated beside actions that were not once taught a world model that players jump two cells."""
    game, _, rows = played("stag_hunt-4x4-4h1s", "nearest_hare", 6, games=16)
    now = jax.tree.map(jnp.asarray, rows.last)
    for seat in range(game.seats):
        seen = view(now, (seat,))
        np.testing.assert_array_equal(seen.observation[:, 0], now.observation[:, seat])
        for k in range(game.seats):
            other = (seat + k) % game.seats
            np.testing.assert_array_equal(seen.action[:, 0, k], now.action[:, other])
            np.testing.assert_array_equal(seen.goal_reached[:, 0, k], now.goal_reached[:, other])
            np.testing.assert_array_equal(seen.present[:, 0, k], now.present[:, other])
            on_board = seen.observation[:, 0, k].any((-2, -1))
            np.testing.assert_array_equal(on_board, now.present[:, other])


def test_a_policy_sees_only_its_own_seats():
    _, _, rows = played("stag_hunt-4x4-4h1s", "nearest_hare", 6, games=16)
    now = jax.tree.map(jnp.asarray, rows.last)
    seen = view(now, (2, 0))
    np.testing.assert_array_equal(seen.seat, [2, 0])
    np.testing.assert_array_equal(seen.legal, now.legal[:, [2, 0]])
    assert seen.reward.shape == (16, 2)


@pytest.mark.parametrize("name", ["stag_hunt-4x4-4h1s", "snowdrift-4x4", "matrix-ipd", "stag_hunt?players=2&height=3&width=3"])
def test_what_a_partner_sees_is_read_off_our_own_observation(name):
    """As long as everybody is there: what I turn to my partner's frame is what my partner sees."""
    game = make(name)
    policies = seats.resolve(game, "random")
    play = start(game, policies, 4, jax.random.key(0))
    _, rows = collect(game, policies, play, 12)
    everybody = np.asarray(rows.present.all(-1))
    assert everybody.any()
    for seat in range(game.seats):
        for place in range(game.seats):
            mine = rows.observation[:, :, seat]
            turned = seen_from(mine, place, game.seats, game.shown_of_each, len(game.observation_shape))
            theirs = rows.observation[:, :, (seat + place) % game.seats]
            np.testing.assert_array_equal(np.asarray(turned)[everybody], np.asarray(theirs)[everybody])
    np.testing.assert_array_equal(seen_from(mine, 1, game.seats, 0, len(game.observation_shape)), mine)


@pytest.mark.parametrize("name", ["stag_hunt-4x4-4h1s", "matrix-ipd", "jaxmarl:MPE_simple_spread_v3", "jaxmarl:coin_game"])
def test_seats_are_told_where_observations_do_not_show_them(name):
    """And samples that do not know them are refused: taken for seat 0, they would teach one seat the places of another."""
    game = make(name)
    told = tell_seats(game, jnp.array([1, 0]), jnp.array([0, 1]))
    assert sum(part.shape[-1] for part in told) == 2 * seat_numbers(game)
    if not name.startswith("jaxmarl"):
        assert told == tell_seats(game, None) == []
        return
    np.testing.assert_array_equal([np.argmax(part, -1) for part in told], [[1, 0], [0, 1]])
    with pytest.raises(AssertionError, match="whose eyes"):
        tell_seats(game, jnp.array([1, 0]), None)
