"""Who a HOP meets while it learns: each test guards something that would go wrong without a word."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from otherminds.learners import hop
from otherminds.learners.hop_selves import BESIDE, BOLD, EARLIER, KINDS, MODEST, OWN, cast
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
    others = jnp.asarray(cast(SIZES.parallel, 3, 0.5) != OWN)[None, :, :]
    garbled = dataclasses.replace(
        rows, value=jnp.where(others, 99.0, rows.value), action=jnp.where(others, (rows.action + 1) % 7, rows.action)
    )
    after, another = (dataclasses.replace(update(state, data)[0], beside=()) for data in (rows, garbled))
    assert same(after, another)


def test_earlier_selves_are_kept_at_their_time():
    state, rows, _ = played("no_goal", sizes=dataclasses.replace(SIZES, updates=64))
    assert EARLIER[1] * 64 == 1
    first = update(state, rows)[0]
    kept = lambda state, k: jax.tree.map(lambda leaf: leaf[k], state.earlier)  # noqa: E731
    assert same(kept(first, 1), first.network)
    assert same(kept(first, 0), state.network)
    assert same(kept(first, 2), state.network)


def network_of(state, kind):
    return state.beside[BESIDE.index(kind)].network


@pytest.mark.parametrize("kind", BESIDE)
def test_other_wants_are_learned_from_own_rows_and_rewards_that_count(kind):
    """To the modest 5 is as good as 4.9, both being nothing; to the bold so are 1 and 0.2."""
    state, rows, _ = played("no_goal", practice=1.0, sizes=dataclasses.replace(SIZES, parallel=32))
    theirs = jnp.asarray(cast(32, 3, 1.0) == kind)[None]
    paid = dataclasses.replace(rows, reward=jnp.where(rows.present, 5.0, 0.0).at[::2].set(1.0))
    learned = network_of(update(state, paid)[0], kind)
    assert not same(learned, network_of(state, kind))
    larger = dataclasses.replace(paid, reward=jnp.where(paid.reward > 2.5, 4.9, paid.reward))
    smaller = dataclasses.replace(paid, reward=jnp.where(paid.reward < 2.5, 0.2, paid.reward))
    elsewhere = dataclasses.replace(paid, value=jnp.where(theirs, paid.value, 99.0))
    nothing, something = (larger, smaller) if kind == MODEST else (smaller, larger)
    assert same(network_of(update(state, nothing)[0], kind), learned)
    assert same(network_of(update(state, elsewhere)[0], kind), learned)
    assert not same(network_of(update(state, something)[0], kind), learned)


def test_before_beliefs_and_search_begin_nobody_is_modest():
    late = dataclasses.replace(settings("no_goal").search, begin=0.5)
    state, rows, _ = played("no_goal", practice=1.0, search=late)
    after, metrics = update(state, rows)
    assert same(network_of(after, MODEST), network_of(state, MODEST))
    assert not same(network_of(after, BOLD), network_of(state, BOLD))
    modest = np.asarray(rows.present) & (cast(SIZES.parallel, 3, 1.0) == MODEST)[None]
    own = np.asarray(rows.present) & (cast(SIZES.parallel, 3, 1.0) == OWN)[None]
    np.testing.assert_array_equal(metrics["present_steps"], (own | modest).sum((0, 1)))


@pytest.mark.parametrize(("game", "networks"), [("matrix-matching_pennies", 2), ("matrix-ipd", 1)])
def test_seats_that_differ_have_other_selves_of_their_own(game, networks):
    state, rows, _ = played("no_goal", game, practice=1.0)
    assert [len(one.updates) for one in state.beside] == [networks] * len(BESIDE)
    after = update(state, rows)[0]
    for k in range(networks):
        before, now = (jax.tree.map(lambda leaf, k=k: leaf[k], network_of(one, MODEST)) for one in (state, after))
        assert not same(before, now)
    places = places_of(MODEST, state.config, SIZES, 2, networks == 1)
    for seat in range(networks):
        there = places[seat][(places[seat] >= 0).all(1)]
        assert len(there) > 0
        assert networks == 1 or set(there[:, 1]) == {seat}


@pytest.mark.parametrize("sizes", [dict(parallel=2, rollout=5, minibatches=2), dict(parallel=8, rollout=3, minibatches=4)])
def test_few_games_are_shared_by_minibatches(sizes):
    sizes = dataclasses.replace(SIZES, **sizes)
    state, rows, _ = played("no_goal", sizes=sizes, practice=0.5)
    after = update(state, rows)[0]
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(after.beside))
    assert hop.as_itself(state.config, sizes.parallel, 3).shape == (sizes.parallel, 3)
