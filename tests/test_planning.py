"""The search finds what exhaustive search finds, on games small enough for that; luck is not taken for skill."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from otherminds import make
from otherminds.diagnostics import exact
from otherminds.diagnostics.exact import Case, coin_roots, coin_search, foresight, knows_nothing, lost, searched, starts
from otherminds.planning import Root, Simulator, decided, drawn_luck, dream, gathered, simulates

PLAIN = dataclasses.replace(exact.PLAIN, gumbel_scale=1.0)
FAIR = (0.5, 0.5)


@pytest.mark.parametrize("kind", ["gumbel", "puct"])
def test_a_gamble_on_a_coin_loses_to_a_sure_thing(kind):
    """mctx keeps one successor for each branch: a lucky draw was once believed for ever, and ±1 beat 0.3 in 92 % of cases."""
    settings = dataclasses.replace(PLAIN, kind=kind)
    for samples, worst in ((2, 0.02), (16, 0.0)):
        found = coin_search(FAIR, 200, settings, simulations=16, samples=samples, discount=1.0)
        gambles = float((found.worth[:, 1] > found.worth[:, 0]).mean())
        assert gambles <= worst, samples
        np.testing.assert_allclose(found.worth[:, 0], 0.3, atol=1e-5)
    assert float(jnp.exp(decided(found, coin_roots(200), settings))[:, 0].min()) > 0.9


def test_luck_is_uniform_and_spread_over_trees():
    luck = drawn_luck(jax.random.key(0), 4, (5000, 2))
    assert luck.shape == (4, 5000, 2)
    np.testing.assert_array_equal(np.sort(np.floor(np.asarray(luck) * 4), 0)[:, 0, 0], [0, 1, 2, 3])
    assert abs(float(luck[0].mean()) - 0.5) < 0.02
    assert abs(float(np.corrcoef(luck[0, :, 0], luck[0, :, 1])[0, 1])) < 0.05


# --- against exhaustive search ---

CASE = Case(exact.HUNT, "nearest_stag", 2)
GAME = make(CASE.game)
ACTIONS = GAME.actions
HUNTER, FIRST_CHOICE = foresight(dataclasses.replace(CASE, dice=True)), foresight(CASE)


def gaps(case, amounts, kind="gumbel"):
    """What is lost with so many (simulations, trees)."""
    game, states, foresee = make(case.game), starts(case, 24), foresight(case)
    truth = exact.exact(game, states, foresee, case.steps)
    return truth, [lost(game, states, foresee, truth, *amount, kind) for amount in amounts]


@pytest.mark.parametrize("kind", ["gumbel", "puct"])
def test_it_finds_the_best_answer_to_partners_without_dice(kind):
    """A 3x3 stag hunt, two steps before its end: the more simulations, the less is lost, down to nothing."""
    truth, (few, many) = gaps(CASE, [(4, 1), (120, 1)], kind)
    assert truth.max() >= 5  # some can still reach the stag together
    assert many <= 0.01
    assert few > many


def test_it_finds_the_best_answer_to_tit_for_tat():
    """Four steps before the end: cooperate until the last one, and only then defect."""
    case = exact.SURE[0]
    assert (case.game.partition("?")[0], case.partner) == ("matrix-ipd", "tit_for_tat")
    truth, (found,) = gaps(case, [(64, 1)])
    assert truth.max() == 3 + 3 + 3 + 5
    assert found == 0


def test_with_partners_that_throw_dice_more_trees_lose_less():
    _, found = gaps(dataclasses.replace(CASE, dice=True), [(240, trees) for trees in (1, 4, 16)])
    assert found[-1] <= 0.02
    assert found[0] >= found[-1]


def test_each_root_is_searched_by_itself():
    """What is searched beside a root changes nothing in what is found there."""
    states = starts(CASE, 8)
    other = jax.tree.map(lambda leaf: leaf.at[4:].set(jnp.roll(leaf, 1, 0)[4:]), states)
    left, right = (searched(GAME, one, HUNTER, 32, 2).worth for one in (states, other))
    np.testing.assert_allclose(left[:4], right[:4], atol=1e-6)


def test_a_tree_is_what_it_was():
    """Values of a tree that was looked at by hand; what was not tried is worth what the root is."""
    heads = (1.0, 0.0)
    found = coin_search(heads, 1, PLAIN, simulations=8, samples=1, discount=0.5)
    np.testing.assert_allclose(found.worth[0], [0.3, 1.0], atol=1e-6)
    assert int(found.visits.sum()) == 8
    one = coin_search(heads, 1, dataclasses.replace(PLAIN, gumbel_scale=0.0), simulations=1, samples=1, discount=0.5)
    tried = int(one.visits[0].argmax())
    paid = (0.3, 1.0)[tried]
    np.testing.assert_allclose(one.worth[0, tried], paid, atol=1e-6)
    np.testing.assert_allclose(one.worth[0, 1 - tried], (0 + 1 * paid) / 2, atol=1e-6)  # the mixed value of the root


def test_a_dream_goes_by_the_rules_and_ends_where_they_say():
    """Our moves drawn by an even policy, the partner's by its script: every step is one that the game would have made."""
    states, world = starts(dataclasses.replace(CASE, steps=4), 24), Simulator(GAME)
    sight, even = world.look(states), jnp.zeros((24, ACTIONS))
    root = Root(sight.own, jnp.zeros(24, jnp.int32), sight.present, sight.legal, even, jnp.zeros(24))
    found = jax.jit(lambda root: dream(world, knows_nothing(ACTIONS), FIRST_CHOICE, root, jax.random.key(1), steps=6))(root)
    assert found.reward.shape == (6, 24)
    for t in range(5):
        np.testing.assert_array_equal(found.observation[t], world.look(states).own)
        partner = FIRST_CHOICE(world.look(states).each)[:, 0].argmax(-1)
        there = world.look(states).present[:, 1]
        joint = jnp.stack([found.action[t], jnp.where(there, partner, -1)], 1).astype(jnp.int32)
        states, reward, over = world.step(states, joint, jax.random.split(jax.random.key(0), 24))
        on = np.asarray(found.present[t])
        np.testing.assert_allclose(found.reward[t][on], reward[on])
        np.testing.assert_array_equal(np.asarray(found.terminated[t])[on], np.asarray(over)[on] > 0)
    assert not found.present[4:].any()  # four steps were left
    assert not found.reward[4:].any()
    assert not found.last_present.any()


def test_what_is_not_wanted_is_not_in_the_batch():
    places = gathered(jnp.array([False, True, True, False, True]), 2)
    np.testing.assert_array_equal(places, [1, 2])
    np.testing.assert_array_equal(gathered(jnp.array([False, True, False]), 2), [1, 3])


def test_which_games_can_be_searched_in_by_their_rules():
    assert simulates(make("stag_hunt-4x4-4h1s"))
    assert simulates(make("matrix-ipd"))
    assert not simulates(make("stag_hunt-4x4-4h1s?view=2"))
    assert not simulates(make("pettingzoo:butterfly.knights_archers_zombies"))
