"""Who a HOP meets while it learns: each test guards something that would go wrong without a word."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from otherminds.learners import hop
from otherminds.learners.hop_selves import EARLIER, KINDS, MODEST, OWN, cast
from otherminds.learners.hop_selves import played as places_of

from test_hop import SIZES, played, settings, update


def same(left, right):
    return all(bool((a == b).all()) for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True))


def test_every_seat_in_turn_meets_partners_of_one_kind():
    who = cast(128, 4, 0.5)
    assert (who[:64] == OWN).all()
    practice = who[64:]
    alone = practice[(practice == OWN).sum(1) == 1]
    of_one_kind = [row for row in alone if len(set(row[row != OWN])) == 1]
    assert len(of_one_kind) >= 48
    met = {(int(np.flatnonzero(row == OWN)[0]), int(row[row != OWN][0])) for row in of_one_kind}
    assert met >= {(seat, kind) for seat in range(4) for kind in set(KINDS)}


def test_what_other_selves_do_teaches_the_policy_nothing():
    state, rows, _ = played("no_goal")
    others = jnp.asarray(cast(SIZES.parallel, 3, state.config.practice) != OWN)[None, :, :]
    garbled = dataclasses.replace(
        rows, value=jnp.where(others, 99.0, rows.value), action=jnp.where(others, (rows.action + 1) % 7, rows.action)
    )
    after, another = (dataclasses.replace(update(state, data)[0], modest=None) for data in (rows, garbled))
    assert same(after, another)


def test_earlier_selves_are_kept_at_their_time():
    state, rows, _ = played("no_goal", sizes=dataclasses.replace(SIZES, updates=64))
    assert EARLIER[1] * 64 == 1
    first = update(state, rows)[0]
    kept = lambda state, k: jax.tree.map(lambda leaf: leaf[k], state.earlier)  # noqa: E731
    assert same(kept(first, 1), first.network)
    assert same(kept(first, 0), state.network)
    assert same(kept(first, 2), state.network)


def test_a_modest_self_learns_from_its_own_rows_and_finds_large_rewards_worth_nothing():
    state, rows, _ = played("no_goal", practice=1.0)
    modest = jnp.asarray(cast(SIZES.parallel, 3, 1.0) == MODEST)[None]
    paid = dataclasses.replace(rows, reward=jnp.where(rows.present, 5.0, 0.0).at[::2].set(1.0))
    learned = update(state, paid)[0].modest.network
    assert not same(learned, state.modest.network)
    larger = dataclasses.replace(paid, reward=jnp.where(paid.reward > 2.5, 4.9, paid.reward))
    elsewhere = dataclasses.replace(paid, value=jnp.where(modest, paid.value, 99.0))
    for other in (larger, elsewhere):
        assert same(update(state, other)[0].modest.network, learned)
    smaller = dataclasses.replace(paid, reward=jnp.where(modest & (paid.reward < 2.5), 0.2, paid.reward))
    assert not same(update(state, smaller)[0].modest.network, learned)


def test_small_rewards_count_for_nothing_at_first_and_fully_once_the_search_has_begun():
    """Of ten updates, five before the search: at the first 1 counts as 0, at the second as 0.2, from the sixth on as 1."""
    late = dataclasses.replace(settings("no_goal").search, begin=0.5)
    state, _, _ = played("no_goal", practice=0.0, search=late)
    reward = jnp.array([5.0, 1.0, -1.0, 0.0]).reshape(4, 1, 1) * jnp.ones((1, 1, 3))
    for updates, counts in ((0, 0.0), (1, 0.2), (5, 1.0), (9, 1.0)):
        at = dataclasses.replace(state, updates=jnp.int32(updates))
        found = hop.ambitiously(at, reward, jnp.full(3, 5.0))
        np.testing.assert_allclose(found[:, 0, 0], [5.0, counts, -1.0, 0.0], atol=1e-6)


def test_before_beliefs_and_search_begin_nobody_is_modest():
    late = dataclasses.replace(settings("no_goal").search, begin=0.5)
    state, rows, _ = played("no_goal", practice=1.0, search=late)
    after, metrics = update(state, rows)
    assert same(after.modest.network, state.modest.network)
    modest = np.asarray(rows.present) & (cast(SIZES.parallel, 3, 1.0) == MODEST)[None]
    own = np.asarray(rows.present) & (cast(SIZES.parallel, 3, 1.0) == OWN)[None]
    np.testing.assert_array_equal(metrics["present_steps"], (own | modest).sum((0, 1)))


@pytest.mark.parametrize(("game", "networks"), [("matrix-matching_pennies", 2), ("matrix-ipd", 1)])
def test_seats_that_differ_have_other_selves_of_their_own(game, networks):
    state, rows, _ = played("no_goal", game, practice=1.0)
    assert len(state.modest.updates) == networks
    after = update(state, rows)[0]
    for k in range(networks):
        before, now = (jax.tree.map(lambda leaf, k=k: leaf[k], one.modest.network) for one in (state, after))
        assert not same(before, now)
    places = places_of(state.config, SIZES, 2, networks == 1)
    for seat in range(networks):
        there = places[seat][(places[seat] >= 0).all(1)]
        assert len(there) > 0
        assert networks == 1 or set(there[:, 1]) == {seat}


@pytest.mark.parametrize("sizes", [dict(parallel=2, rollout=5, minibatches=2), dict(parallel=8, rollout=3, minibatches=4)])
def test_few_games_are_shared_by_minibatches(sizes):
    sizes = dataclasses.replace(SIZES, **sizes)
    state, rows, _ = played("no_goal", sizes=sizes, practice=0.5)
    after = update(state, rows)[0]
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(after.modest.network))
    assert hop.as_itself(state.config, sizes.parallel, 3).shape == (sizes.parallel, 3)
