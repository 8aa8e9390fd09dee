from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from otherminds import dataset, make
from otherminds import opponent_model as om
from otherminds.config import Collect
from otherminds.config import OpponentModel as Config
from otherminds.games.ego import seen_from


def view_of(game, observation, place):
    """What the partner at `place` sees of our observation."""
    return game.scaled(seen_from(observation, place, game.seats, game.shown_of_each, len(game.observation_shape)))


SMALL = Config(channels=8, repeats=3, hidden=(16,))


def model(game, config=SMALL, goals=2, identities=0):
    told = om.told_size(config, game, goals, identities)
    return om.OpponentModel.make(config, game, told, np.random.default_rng(0)), told


@pytest.mark.parametrize("kind", ["concat", "film", "generated"])
@pytest.mark.parametrize("name", ["stag_hunt-4x4-4h1s", "snowdrift-6x6", "matrix-ipd", "jaxmarl:coin_game"])
def test_every_game_with_discrete_actions_can_be_modelled(name, kind):
    game = make(name)
    config = Config(channels=8, repeats=1, hidden=(16,), goal_input=kind, identity=True)
    net, told = model(game, config, goals=3, identities=2)
    observation = jnp.zeros((5, *game.observation_shape), game.observation_dtype)
    for place in range(1, game.seats):
        known = om.tell(config, game, jnp.full(5, place), jnp.zeros(5, int), jnp.ones((5, 3)), jnp.ones((5, 2)))
        assert known.shape == (5, told)
        assert net(view_of(game, observation, place), known).shape == (5, game.actions)


def test_what_is_told_changes_what_is_expected():
    """A goal that reaches nothing once looked like a goal that does not help."""
    game = make("stag_hunt-4x4-4h1s")
    view = jax.random.bernoulli(jax.random.key(0), 0.3, (6, *game.observation_shape)).astype(jnp.float32).at[:, 0, 1, 1].set(1.0)
    for kind in ("concat", "film", "generated"):
        net, _ = model(game, Config(channels=8, repeats=2, hidden=(16,), goal_input=kind))
        stag, hare = (net(view, jnp.broadcast_to(jnp.array(goal), (6, 2))) for goal in ([1.0, 0.0], [0.0, 1.0]))
        assert float(jnp.abs(stag - hare).max()) > 1e-4


@pytest.mark.parametrize("others", ["together", "apart"])
def test_players_can_be_told_apart(others):
    """A learner goes by who of the others stands where; with all of them one, that could not be foreseen."""
    game = make("stag_hunt-4x4-4h1s")
    net, told = model(game, Config(torso="centred", others=others, hidden=(16,)))
    view = jnp.zeros((1, *game.observation_shape)).at[0, 0, 1, 1].set(1.0).at[0, 1, 0, 3].set(1.0).at[0, 2, 3, 2].set(1.0)
    swapped = view[:, jnp.array([0, 2, 1, *range(3, game.observation_shape[0])])]
    difference = float(jnp.abs(net(view, jnp.ones((1, told))) - net(swapped, jnp.ones((1, told)))).max())
    assert (difference > 1e-5) == (others == "apart")


def test_who_is_meant_and_through_whose_eyes_changes_what_is_expected():
    """Where observations do not show it: one view, and the partner after me is another for each who looks."""
    game = make("jaxmarl:MPE_simple_spread_v3")
    config = Config(hidden=(16,), goal=False)
    net, told = model(game, config)
    assert told == 6
    view = jax.random.normal(jax.random.key(0), (1, *game.observation_shape))
    pairs = [(seat, ego) for seat in range(3) for ego in range(3) if seat != ego]
    nothing = jnp.zeros((1, 0))
    said = [net(view, om.tell(config, game, jnp.array([seat]), jnp.array([ego]), nothing, nothing)) for seat, ego in pairs]
    for k, one in enumerate(said):
        assert all(float(jnp.abs(one - other).max()) > 1e-6 for other in said[:k])


def test_absent_partners_teach_nothing():
    """Their "stay" was taught once, and every other action was forgotten."""
    logits = jax.random.normal(jax.random.key(0), (4, 7))
    present = jnp.array([True, True, False, False])
    some, _ = om.loss(logits, jnp.array([1, 2, -1, -1]), present)
    other, terms = om.loss(logits.at[2:].set(99.0), jnp.array([1, 2, 4, 0]), present)
    np.testing.assert_array_equal(some, other)
    assert terms.keys() == {"cross_entropy", "top_1"}
    gradient = jax.grad(lambda x: om.loss(x, jnp.array([1, 2, 4, 0]), present)[0])(logits)
    assert not np.asarray(gradient[2:]).any()


def test_cross_entropy_by_hand():
    found, terms = om.loss(jnp.log(jnp.array([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]])), jnp.array([0, 2]), jnp.ones(2, bool))
    np.testing.assert_allclose(found, -(np.log(0.5) + np.log(0.1)) / 2, rtol=1e-5)
    np.testing.assert_allclose(terms["top_1"], 0.5)


def learned(rate):
    """Cross-entropy in held-out episodes of hunters of stags and of hares, given which, after a few steps of learning; beside it
    that of the true distribution."""
    game = make("stag_hunt?height=3&width=3&players=2&hares=2")
    data = dataset.gather(Collect(Path("x.npz"), game=game.id, seats="nearest_stag+nearest_hare", episodes=4000, meeting=1))
    net, _ = model(game)
    parts, static = eqx.partition(net, eqx.is_array)
    optimiser = optax.adam(rate)

    def batch(part):
        rows = part.rows
        row, seat = np.nonzero(rows.present)
        view = view_of(game, jnp.asarray(rows.observation[row, 1 - seat]), 1)  # as the other one sees it
        there = jnp.asarray(rows.present[row, 1 - seat])
        return view, jax.nn.one_hot(rows.goal[row, seat], 2), jnp.asarray(rows.action[row, seat], jnp.int32), there, row, seat

    def loss(parts, view, goal, action, there):
        return om.loss(eqx.combine(parts, static)(view, goal), action, there)[0]

    training, held_out = data.split(0.25, 0)
    *known, _, _ = batch(training)

    @jax.jit
    def step(carry, chosen):
        parts, state = carry
        moves, state = optimiser.update(jax.grad(loss)(parts, *(x[chosen] for x in known)), state)
        return (optax.apply_updates(parts, moves), state), None

    order = jax.random.randint(jax.random.key(0), (1600, 64), 0, len(known[2]))
    (parts, _), _ = jax.lax.scan(step, (parts, optimiser.init(parts)), order)
    *unknown, row, seat = batch(held_out)
    there = np.asarray(unknown[3])
    chance = np.take_along_axis(held_out.rows.probabilities[row, seat], np.asarray(unknown[2])[:, None], 1)[:, 0]
    return float(loss(parts, *unknown)), float(-np.log(chance[there]).mean())


def test_it_learns_what_partners_do_given_their_goals():
    found, ceiling = learned(1e-2)
    assert found < ceiling + 0.1
    nothing, _ = learned(0.0)
    assert nothing > ceiling + 0.5
