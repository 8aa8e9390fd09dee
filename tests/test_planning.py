"""The search finds what exhaustive search finds, on games small enough for that; luck is not taken for skill."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from otherminds import make
from otherminds.config import Search
from otherminds.partners.stag_hunt import nearest_stag
from otherminds.planning import Root, Sight, Simulator, decided, drawn_luck, gathered, search, simulates

PLAIN = Search(prior=0.0, sharpness=20.0)


class Coin(eqx.Module):
    """One step: action 0 pays 0.3, action 1 pays 1 or -1 by the partner's coin; then it is over."""

    def open(self, observation, seat, present):
        return observation

    def look(self, moment):
        each = jnp.zeros((len(moment), 1, 1))
        return Sight(moment, each, None, jnp.ones((len(moment), 2), bool))

    def step(self, moment, action, keys):
        gamble = jnp.where(action[:, 1] == 0, 1.0, -1.0)
        return moment, jnp.where(action[:, 0] == 0, 0.3, gamble), jnp.ones(len(moment))


def fair(each):
    return jnp.full((len(each), 1, 2), 0.5)


def knows_nothing(actions):
    def judge(seen):
        count = len(seen)
        return jnp.zeros((count, actions)), jnp.zeros(count), jnp.ones((count, actions), bool)

    return judge


def coin_roots(count):
    yes = jnp.ones((count, 2), bool)
    return Root(jnp.zeros((count, 1)), jnp.zeros(count, jnp.int32), yes, yes, jnp.zeros((count, 2)), jnp.zeros(count))


def coin_search(foresee, count, settings, **options):
    return jax.jit(lambda: search(Coin(), knows_nothing(2), foresee, coin_roots(count), jax.random.key(0), settings, **options))()


@pytest.mark.parametrize("kind", ["gumbel", "puct"])
def test_a_gamble_on_a_coin_loses_to_a_sure_thing(kind):
    """mctx keeps one successor for each branch: a lucky draw was once believed for ever, and ±1 beat 0.3 in 92 % of cases."""
    settings = dataclasses.replace(PLAIN, kind=kind)
    for samples, worst in ((2, 0.02), (16, 0.0)):
        found = coin_search(fair, 200, settings, simulations=16, samples=samples, discount=1.0)
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

GAME = make("stag_hunt?height=3&width=3&hares=1&players=2&horizon=6")
STAG = nearest_stag(GAME, 1)
ACTIONS = GAME.actions


def late_starts(count, steps_left, seed=0):
    """States of the game with so many steps left."""
    states = jax.vmap(GAME.reset)(jax.random.split(jax.random.key(seed), count))
    return eqx.tree_at(lambda s: s.time, states, jnp.full(count, GAME.horizon - steps_left, states.time.dtype))


def hunter(each):
    """The script's own probabilities, of what partners see."""
    states = jax.vmap(lambda seen: GAME.state_of(seen, 0))(each.reshape(-1, *each.shape[2:]))
    legal = jax.vmap(GAME.legal)(states)[:, 0]
    return STAG.rule(each.reshape(-1, *each.shape[2:]), legal).reshape(*each.shape[:2], -1)


def first_choice(each):
    """The same without dice: its likeliest move, the first of equals."""
    return jax.nn.one_hot(hunter(each).argmax(-1), ACTIONS)


@jax.jit
def _everything(states):
    """(what follows, our reward, whether it is over) of every joint action; rows of states, our moves and the partner's."""
    ours, theirs = (x.reshape(-1) for x in jnp.meshgrid(jnp.arange(ACTIONS), jnp.arange(ACTIONS), indexing="ij"))
    many = jax.tree.map(lambda leaf: jnp.repeat(leaf, ACTIONS**2, 0), states)
    count = len(many.time)
    action = jnp.tile(jnp.stack([ours, theirs], 1), (count // ACTIONS**2, 1))
    return Simulator(GAME).step(many, action, jax.random.split(jax.random.key(0), count))


def exact(states, foresee, steps):
    """Q of each of our moves, [n, actions], by trying everything: all our moves times all of the partner's."""
    sight, chances = jax.jit(lambda states: (s := Simulator(GAME).look(states), foresee(s.each)[:, 0]))(states)
    after, reward, over = _everything(states)
    worth = np.asarray(reward, np.float64)
    if steps > 1:
        present = np.asarray(jax.jit(jax.vmap(GAME.present))(after))[:, 0]
        goes_on = (np.asarray(over) == 0) & present
        worth = worth + np.where(goes_on, exact(after, foresee, steps - 1).max(1), 0.0)
    worth = (worth.reshape(-1, ACTIONS, ACTIONS) * np.asarray(chances)[:, None]).sum(-1)
    return np.where(np.asarray(sight.legal), worth, -np.inf)


def searched(states, foresee, simulations, samples, kind="gumbel"):
    world = Simulator(GAME)
    sight, count = world.look(states), len(states.time)
    root = Root(sight.own, jnp.zeros(count, jnp.int32), sight.present, sight.legal, jnp.zeros((count, ACTIONS)), jnp.zeros(count))
    settings = dataclasses.replace(PLAIN, kind=kind, gumbel_scale=0.0)
    run = jax.jit(
        lambda root: search(
            *(world, knows_nothing(ACTIONS), foresee, root, jax.random.key(1), settings),
            simulations=simulations,
            samples=samples,
            discount=1.0,
        )
    )
    found = run(root)
    return np.asarray(jnp.where(root.legal, found.worth, -jnp.inf)), found


def lost(states, foresee, truth, simulations, samples, kind="gumbel"):
    """How much is lost, on average, by playing what the search finds best."""
    worth, _ = searched(states, foresee, simulations, samples, kind)
    return float((truth.max(1) - truth[np.arange(len(truth)), worth.argmax(1)]).mean())


@pytest.mark.parametrize("kind", ["gumbel", "puct"])
def test_it_finds_the_best_answer_to_partners_without_dice(kind):
    """A 3x3 stag hunt, two steps before its end: the more simulations, the less is lost, down to nothing."""
    states = late_starts(24, 2)
    truth = exact(states, first_choice, 2)
    assert truth.max() >= 5  # some can still reach the stag together
    few, many = (lost(states, first_choice, truth, count, 1, kind) for count in (4, 120))
    assert many <= 0.01
    assert few > many


def test_with_partners_that_throw_dice_more_trees_lose_less():
    states = late_starts(24, 2, seed=1)
    truth = exact(states, hunter, 2)
    gaps = [lost(states, hunter, truth, 60, trees) for trees in (1, 4, 16)]
    assert gaps[-1] <= 0.02
    assert gaps[0] >= gaps[-1]


def test_each_root_is_searched_by_itself():
    """What is searched beside a root changes nothing in what is found there."""
    states = late_starts(8, 3)
    other = jax.tree.map(lambda leaf: leaf.at[4:].set(jnp.roll(leaf, 1, 0)[4:]), states)
    left, right = searched(states, hunter, 32, 2)[0], searched(other, hunter, 32, 2)[0]
    np.testing.assert_allclose(left[:4], right[:4], atol=1e-6)


def test_a_tree_is_what_it_was():
    """Values of a tree that was looked at by hand; what was not tried is worth what the root is."""
    heads = lambda each: jnp.broadcast_to(jnp.array([1.0, 0.0]), (len(each), 1, 2))  # noqa: E731
    found = coin_search(heads, 1, PLAIN, simulations=8, samples=1, discount=0.5)
    np.testing.assert_allclose(found.worth[0], [0.3, 1.0], atol=1e-6)
    assert int(found.visits.sum()) == 8
    one = coin_search(heads, 1, dataclasses.replace(PLAIN, gumbel_scale=0.0), simulations=1, samples=1, discount=0.5)
    tried = int(one.visits[0].argmax())
    paid = (0.3, 1.0)[tried]
    np.testing.assert_allclose(one.worth[0, tried], paid, atol=1e-6)
    np.testing.assert_allclose(one.worth[0, 1 - tried], (0 + 1 * paid) / 2, atol=1e-6)  # the mixed value of the root


def test_what_is_not_wanted_is_not_in_the_batch():
    places = gathered(jnp.array([False, True, True, False, True]), 2)
    np.testing.assert_array_equal(places, [1, 2])
    np.testing.assert_array_equal(gathered(jnp.array([False, True, False]), 2), [1, 3])


def test_which_games_can_be_searched_in_by_their_rules():
    assert simulates(make("stag_hunt-4x4-4h1s"))
    assert simulates(make("matrix-ipd"))
    assert not simulates(make("stag_hunt-4x4-4h1s?view=2"))
    assert not simulates(make("pettingzoo:butterfly.knights_archers_zombies"))
