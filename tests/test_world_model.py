from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from otherminds import BadInput, dataset, make
from otherminds import world_model as wm
from otherminds.config import Collect
from otherminds.config import WorldModel as Config
from otherminds.games.ego import to_ego

BOARD = "stag_hunt-4x4-4h1s"
SMALL = Config(channels=16, hidden=(32,))


def steps_of(data, count=None):
    """Every step of every present seat, in that seat's own frame."""
    rows, seats = data.rows, data.game.seats
    row, seat = (x[:count] for x in np.nonzero(data.rows.present))
    order = (seat[:, None] + np.arange(seats)) % seats
    return wm.Step(
        jnp.asarray(rows.observation[row, seat]),
        jnp.asarray(rows.action[row[:, None], order], jnp.int32),
        jnp.asarray(rows.next_observation[row, seat]),
        jnp.asarray(rows.reward[row, seat]),
        jnp.asarray(rows.terminated[row, seat]),
        jnp.ones(len(row), bool),
    )


def gathered(game, seats, episodes):
    return dataset.gather(Collect(Path("x.npz"), game=game, seats=seats, episodes=episodes, meeting=1))


@pytest.fixture(scope="module")
def hunt():
    return gathered("stag_hunt?height=3&width=3&players=2&hares=2", "random", 64)


@pytest.mark.parametrize("kind", ["direct", "latent"])
@pytest.mark.parametrize(
    "name", ["stag_hunt-4x4-4h1s", "stag_hunt-4x4-4h1s?view=2", "snowdrift-4x4", "matrix-ipd", "jaxmarl:coin_game"]
)
def test_every_game_with_discrete_actions_can_be_modelled(name, kind):
    game = make(name)
    config = Config(kind=kind, channels=8, hidden=(16,))
    model = wm.WorldModel.make(config, game, np.random.default_rng(0))
    observation = jnp.zeros((3, *game.observation_shape), game.observation_dtype)
    action = jnp.zeros((3, game.seats), jnp.int32).at[:, -1].set(-1)
    ego = None if game.shown_of_each else jnp.arange(3) % game.seats
    said = model(game.scaled(observation), action, ego=ego)
    assert said.observation(game).shape == observation.shape
    assert said.reward.shape == said.end.shape == (3,)
    batch = wm.Step(observation, action, observation, jnp.zeros(3), jnp.zeros(3, bool), jnp.ones(3, bool), ego)
    total, terms = wm.losses(model, config, batch)
    assert np.isfinite(total)
    more = {"reconstruction", "consistency", "contrastive"} if kind == "latent" else set()
    assert terms.keys() == {"observation", "reward", "end"} | more


def test_what_is_played_is_the_same_whoever_looks_where_observations_stand_by_seat():
    """In ego order, the action behind mine was that of the one I see first from one seat, and second from another."""
    game = make("jaxmarl:MPE_simple_spread_v3")
    model = wm.WorldModel.make(SMALL, game, np.random.default_rng(0))
    action, ego = jnp.array([3, -1, 1]), jnp.arange(3)
    turned = jax.vmap(lambda seat: to_ego(action, seat))(ego)
    joint = np.asarray(model.joint(turned, ego))
    played, eyes = joint[:, : 3 * game.actions], joint[:, 3 * game.actions :]
    expected = np.zeros((3, game.actions))
    expected[[0, 2], [3, 1]] = 1
    np.testing.assert_array_equal(played, np.tile(expected.ravel(), (3, 1)))
    np.testing.assert_array_equal(eyes, np.eye(3))
    with pytest.raises(AssertionError, match="whose eyes"):
        model.joint(turned, None)
    board = wm.WorldModel.make(SMALL, make("matrix-ipd"), np.random.default_rng(0))
    np.testing.assert_array_equal(board.joint(jnp.array([[1, 0]]), jnp.array([1])), [[0, 1, 1, 0]])  # in ego order, as it is seen


def test_continuous_actions_are_refused():
    with pytest.raises(BadInput, match="continuous"):
        wm.WorldModel.make(SMALL, make("jaxmarl:MPE_simple_spread_v3?action_type=continuous"), np.random.default_rng(0))


def test_before_anything_is_learned_a_board_is_expected_to_stay(hunt):
    model = wm.WorldModel.make(SMALL, hunt.game, np.random.default_rng(0))
    steps = steps_of(hunt, 50)
    expected = model(hunt.game.scaled(steps.observation), steps.action).observation(hunt.game)
    zero_or_one = np.asarray(wm.binary(hunt.game))
    shown = np.asarray(hunt.game.scaled(steps.observation))
    np.testing.assert_array_equal((np.asarray(expected) > 0.5)[:, zero_or_one], (shown > 0.5)[:, zero_or_one])


def test_steps_of_the_absent_teach_nothing(hunt):
    config = Config(kind="latent", channels=8, contrastive=1.0, consistency=1.0)
    model = wm.WorldModel.make(config, hunt.game, np.random.default_rng(0))
    steps = eqx.tree_at(lambda s: s.present, steps_of(hunt, 8), jnp.arange(8) < 5)
    spoiled = eqx.tree_at(
        lambda s: (s.target, s.end, s.next_observation),
        steps,
        (steps.target.at[5:].set(99.0), ~steps.end, steps.next_observation.at[5:].set(1)),
    )
    spoiled = eqx.tree_at(lambda s: s.end, spoiled, jnp.where(steps.present, steps.end, ~steps.end))
    gradients = [eqx.filter_grad(lambda m, s: wm.losses(m, config, s)[0])(model, part) for part in (steps, spoiled)]
    for left, right in zip(*map(jax.tree.leaves, gradients), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-6)


def test_what_the_reward_head_learns_by_hand():
    reward, value, returns = jnp.array([1.0, 2.0]), jnp.array([10.0, 10.0]), jnp.array([7.0, 8.0])
    end = jnp.array([False, True])
    found = {kind: wm.reward_target(kind, reward, value, returns, end, 0.9) for kind in ("r", "q", "r+v")}
    np.testing.assert_allclose(found["r"], [1, 2])
    np.testing.assert_allclose(found["q"], [7, 8])
    np.testing.assert_allclose(found["r+v"], [10, 2])


def test_weights_of_planes_must_fit(hunt):
    config = Config(channels=8, plane_weights=(1.0, 2.0))
    with pytest.raises(BadInput, match=r"plane-weights has 2 numbers, and .* shows 6 planes"):
        wm.WorldModel.make(config, hunt.game, np.random.default_rng(0))


def test_it_learns_the_rules_from_one_seat_and_knows_them_in_the_other():
    """Where actions were not rotated with the players, a model learned players that jump, and only from one seat."""
    data = gathered("stag_hunt?height=3&width=3&players=2&hares=2", "random", 1500)
    game = data.game
    training, held_out = data.split(0.2, 0)
    steps = steps_of(training)
    first = eqx.tree_at(lambda s: s.present, steps, jnp.asarray(np.nonzero(training.rows.present)[1] == 0))
    model = wm.WorldModel.make(SMALL, game, np.random.default_rng(0))
    parts, static = eqx.partition(model, eqx.is_array)
    optimiser = optax.adam(5e-3)

    @jax.jit
    def step(carry, chosen):
        parts, state = carry
        batch = jax.tree.map(lambda leaf: leaf[chosen], first)
        moves, state = optimiser.update(jax.grad(lambda p: wm.losses(eqx.combine(p, static), SMALL, batch)[0])(parts), state)
        return (optax.apply_updates(parts, moves), state), None

    order = jax.random.randint(jax.random.key(0), (600, 128), 0, len(steps.end))
    (parts, _), _ = jax.lax.scan(step, (parts, optimiser.init(parts)), order)
    unseen, seat = steps_of(held_out), np.nonzero(held_out.rows.present)[1]
    zero_or_one = np.asarray(wm.binary(game))

    def exact(parts):
        drawn = eqx.combine(parts, static)(game.scaled(unseen.observation), unseen.action).observation(game)
        truth = np.asarray(game.scaled(unseen.next_observation))
        return ((np.asarray(drawn) > 0.5) == (truth > 0.5))[:, zero_or_one].all(-1)

    right = exact(parts)
    assert right.mean() > 0.9
    assert abs(right[seat == 0].mean() - right[seat == 1].mean()) < 0.05
    assert exact(eqx.filter(model, eqx.is_array)).mean() < 0.5


@pytest.mark.parametrize(("name", "told"), [("snowdrift-4x4", True), (BOARD, False), (f"{BOARD}?end_after_first_hunt=5", True)])
def test_what_happens_elsewhere_pays_where_the_game_says_so(name, told):
    """A drift that somebody clears on the other side of the board pays everyone; once, the reward was read off one's own cell."""
    game = make(name)
    model = wm.WorldModel.make(SMALL, game, np.random.default_rng(0))
    state = game.reset(jax.random.key(0))
    seen = game.scaled(game.observe(state)[:1])
    stay, other = jnp.full((1, game.seats), 4), jnp.full((1, game.seats), 4).at[0, 1].set(5)
    one, two = (model(seen, action) for action in (stay, other))
    assert bool(one.reward[0] != two.reward[0]) == told
    assert bool(one.end[0] != two.end[0]) == told
    assert game.pays_everywhere == told
