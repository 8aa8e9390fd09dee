"""Every learner in the register keeps the contract; each test guards something that once broke silently."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from otherminds import make
from otherminds.config import HOP, BadInput, Sizes, Train
from otherminds.learners import LEARNERS as REGISTER
from otherminds.learners import find
from otherminds.learners.base import Scale, between, cut, rescale, unit_length
from otherminds.networks import Dense, generator
from otherminds.rollout import collect, draw_bank, start
from otherminds.types import Seated, of_seats

from small_runs import SMALL_GOALS

SIZES = Sizes(parallel=8, rollout=20, epochs=2, minibatches=2, updates=10)
KINDS = {
    "plain": {},
    "shared": {"share": True},
    "gru": {"core": "gru", "core_size": 8, "segment": 5},
    "lasting": {"core": "lstm", "core_size": 8, "segment": 20, "memory": "lasting", "share": True},
    "planes": {"channels": (4,)},
}


LEARNERS = ("ppo", "mappo", "no_goal")
"""One of each kind: the presets of HOP are one program, of which tests/test_hop.py tries every part."""


def test_every_learner_is_of_a_kind_that_is_tested():
    assert {REGISTER[name] for name in LEARNERS} == set(REGISTER.values())


def settings(name, **options):
    own = Train().of(name)
    small = {"practice": 0.0, "goals": SMALL_GOALS} if isinstance(own, HOP) else {}
    return dataclasses.replace(own, hidden=(16,), **small | options)


def played(name, game_id="stag_hunt-4x4-4h1s", sizes=SIZES, warm_up=0, sharper=1.0, **options):
    """(learner, state, rows of its seats) after a rollout; with `warm_up`, the same policy played before it."""
    learner, game = find(name), make(game_id)
    seats = tuple(range(game.seats))
    state = learner.init(settings(name, **options), sizes, game, seats, jax.random.key(0))
    state = eqx.tree_at(lambda s: s.network.actor.weight, state, state.network.actor.weight * sharper)

    @jax.jit
    def roll(state, key):
        policies = (Seated(learner.policy(state), seats),)
        play = start(game, policies, sizes.parallel, key, draw_bank(game, key, 64))
        if warm_up:
            play = collect(game, policies, play, warm_up)[0]
        memory = play.memories[0]
        rows = collect(game, policies, play, sizes.rollout, final=game.truncates)[1]
        return of_seats(rows, seats, memory)

    return learner, state, roll(state, jax.random.key(1))


def update(learner, state, rows, seed=2):
    return jax.jit(learner.update)(state, rows, jax.random.key(seed))


def arrays(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def assert_close(left, right, atol=1e-5):
    for a, b in zip(arrays(left), arrays(right), strict=True):
        np.testing.assert_allclose(a, b, atol=atol)


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_update_sees_the_policy_that_played_and_moves_every_parameter(name, kind):
    """Rollout and update once called two different functions, and ratios did not start at 1; parameters were in no optimiser."""
    learner, state, rows = played(name, warm_up=7, **KINDS[kind])
    after, metrics = update(learner, state, rows)
    assert metrics["first_ratio_error"].shape == (4,)
    assert metrics["first_ratio_error"].max() < 1e-4
    assert all(np.isfinite(value).all() for value in metrics.values())
    np.testing.assert_array_equal(metrics["data_seat"], [0, 1, 2, 3])
    np.testing.assert_array_equal(metrics["present_steps"], rows.present.sum((0, 1)))
    assert int(after.updates) == 1
    assert jax.tree.structure(after) == jax.tree.structure(state)
    for (path, old), new in zip(
        jax.tree_util.tree_leaves_with_path(learner.trainable(state)), jax.tree.leaves(learner.trainable(after)), strict=True
    ):
        moved = np.asarray(old != new).reshape(1 if state.config.share else 4, -1)
        assert moved.any(-1).all(), jax.tree_util.keystr(path)


@pytest.mark.parametrize("name", LEARNERS)
def test_another_policy_than_the_one_that_played_is_noticed(name):
    learner, state, rows = played(name)
    other = learner.init(state.config, SIZES, state.game, state.seats, jax.random.key(9))
    assert update(learner, other, rows)[1]["first_ratio_error"].min() > 1e-4


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize("kind", ["plain", "lasting"])
def test_absent_rows_teach_nothing(name, kind):
    """Whatever an absent seat observed, did or was thought worth changes no parameter, to the last bit."""
    learner, state, rows = played(name, "stag_hunt?height=3&width=3&hares=3&horizon=35", warm_up=15, **KINDS[kind])
    absent = ~rows.present
    assert 0 < int(absent.sum()) < absent.size
    other = dataclasses.replace(
        rows,
        observation=jnp.where(absent[..., None, None, None], 7, rows.observation).astype(rows.observation.dtype),
        action=jnp.where(absent, 3, rows.action),
        value=jnp.where(absent, 99.0, rows.value),
        behaviour_logits=jnp.where(absent[..., None], -3.0, rows.behaviour_logits),
        policy_logits=jnp.where(absent[..., None], -3.0, rows.policy_logits),
    )
    for left, right in zip(arrays(update(learner, state, rows)), arrays(update(learner, state, other)), strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("name", LEARNERS)
def test_no_seat_is_special(name):
    """Seats permuted in, seats permuted out. Once only the first seat was trained."""
    learner, state, rows = played(name)
    if name == "mappo":
        order = np.array([1, 2, 3, 0])  # a central critic sees the others in turn order, so rotations are what it is equal under
    else:
        order = np.array([2, 0, 3, 1])
    moved_state = jax.tree.map(lambda leaf: leaf[order] if leaf.ndim else leaf, state)
    moved_rows = of_seats(rows, tuple(int(seat) for seat in order), jax.tree.map(lambda leaf: leaf[:, order], rows.memory))
    after, metrics = update(learner, state, rows)
    moved, moved_metrics = update(learner, moved_state, moved_rows)
    assert_close(jax.tree.map(lambda leaf: leaf[order], after.network), moved.network, atol=2e-4)
    np.testing.assert_allclose(metrics["value_loss"][order], moved_metrics["value_loss"], rtol=1e-3)


@pytest.mark.parametrize("name", LEARNERS)
def test_nothing_moves_without_a_learning_rate(name):
    learner, state, rows = played(name, learning_rate=0.0, learning_rate_final=0.0, normalise_value=False)
    after, metrics = update(learner, state, rows)
    assert_close(after.network, state.network, atol=0)
    np.testing.assert_array_equal(metrics["update_size"], 0)


@pytest.mark.parametrize("name", ["ppo", "mappo"])
def test_continuous_actions(name):
    sizes = dataclasses.replace(SIZES, parallel=4)
    learner, state, rows = played(name, "jaxmarl:MPE_simple_spread_v3?action_type=continuous", sizes)
    assert rows.action.ndim == 4
    assert rows.final_observation is not None
    _, metrics = update(learner, state, rows)
    assert metrics["first_ratio_error"].max() < 1e-3
    assert all(np.isfinite(value).all() for value in metrics.values())


@pytest.mark.parametrize("name", LEARNERS)
def test_one_seat_of_a_policy_plays_as_it_did_in_its_group(name):
    learner, state, rows = played(name, **KINDS["gru"])
    game, policy = state.game, learner.policy(state)
    from otherminds.games.ego import view

    now = jax.tree.map(lambda leaf: leaf, rows.last)
    memory = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (SIZES.parallel, *leaf.shape)), policy.initial_memory())
    whole = policy.greedy().act(view(now, (0, 1, 2, 3)), memory, jax.random.key(0))
    for seat in range(game.seats):
        alone = policy.greedy().of(seat)
        own = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (SIZES.parallel, *leaf.shape)), alone.initial_memory())
        action, _, extras = alone.act(view(now, (seat,)), own, jax.random.key(0))
        np.testing.assert_array_equal(action[:, 0], whole[0][:, seat])
        np.testing.assert_allclose(extras.policy_logits[:, 0], whole[2].policy_logits[:, seat], atol=1e-5)


def test_action_noise_is_in_the_probability_of_what_was_played():
    learner, state, rows = played("ppo", sharper=100.0, action_noise=0.5)
    assert float(jnp.abs(rows.behaviour_logits - rows.policy_logits).max()) > 0.01
    np.testing.assert_allclose(np.exp(rows.behaviour_logits).sum(-1), 1, atol=1e-5)
    legal_share = 0.5 / rows.legal.sum(-1)
    chosen = np.take_along_axis(np.exp(rows.behaviour_logits), np.maximum(np.asarray(rows.action), 0)[..., None], -1)[..., 0]
    assert (chosen >= legal_share - 1e-6)[np.asarray(rows.present)].all()
    assert update(learner, state, rows)[1]["first_ratio_error"].max() < 1e-4


def test_a_prosocial_seat_counts_what_the_others_earn_after_it_left():
    """One game, two seats. Seat 0 earns 1 and leaves at the first step; seat 1 earns 5 at the second, which ends the episode.

    Prosocial 1, discount 1, trace 1: seat 0's return at its only step is mean(1, 0) + mean(0, 5) = 0.5 + 2.5 = 3.
    """
    from otherminds.learners.base import mixed_rewards
    from otherminds.returns import lambda_returns

    _, _, rows = played("ppo", "matrix-ipd", dataclasses.replace(SIZES, parallel=2, rollout=2))
    reward = jnp.zeros((2, 2, 2)).at[0, :, 0].set(1.0).at[1, :, 1].set(5.0)
    first = jnp.array([[True, True], [False, False]])
    rows = dataclasses.replace(
        rows,
        reward=reward,
        everyone=dataclasses.replace(rows.everyone, reward=reward),
        present=jnp.ones((2, 2, 2), bool).at[1, :, 0].set(False),
        terminated=jnp.zeros((2, 2, 2), bool).at[0, :, 0].set(True).at[1, :, 1].set(True),
        truncated=jnp.zeros((2, 2), bool),
        first=first,
        last=dataclasses.replace(rows.last, first=jnp.ones(2, bool)),
    )
    mixed, over = mixed_rewards(rows, 1.0)
    nothing = jnp.zeros((2, 2, 2))
    targets = lambda_returns(
        *(mixed, nothing, nothing[0], None, rows.present, jnp.ones((2, 2), bool), over, rows.truncated), discount=1.0, trace=1.0
    )
    np.testing.assert_allclose(targets.returns[0, :, 0], 3.0)
    own, gone = mixed_rewards(rows, 0.0)
    np.testing.assert_array_equal(own, reward)
    np.testing.assert_array_equal(gone, rows.terminated)


def test_a_unit_that_falls_early_is_credited_with_what_its_team_earns_later():
    """smax-3m, undiscounted: at a fallen unit's last step the return is all that its team earns until the episode ends."""
    from otherminds.returns import lambda_returns

    sizes = dataclasses.replace(SIZES, rollout=60)
    _, _, rows = played("ppo", "jaxmarl:smax-3m", sizes)
    last_value = jnp.full(rows.last.present.shape, 1000.0)  # must not enter: the episodes looked at have ended
    targets = lambda_returns(
        *(rows.reward, rows.value, last_value, rows.value, rows.present, rows.last.present, rows.terminated, rows.truncated),
        discount=1.0,
        trace=1.0,
    )
    reward, present, first = (np.asarray(x) for x in (rows.reward, rows.present, rows.first))
    ended = np.concatenate([first[1:], np.asarray(rows.last.first)[None]])
    fell, earned_later = 0, 0
    for game in range(sizes.parallel):
        start = 0
        for end in np.flatnonzero(ended[:, game] & ~np.asarray(rows.truncated)[:, game]):
            for unit in range(3):
                here = np.flatnonzero(present[start : end + 1, game, unit]) + start
                if here[-1] < end:
                    fell += 1
                    later = reward[here[-1] + 1 : end + 1, game, unit].sum()
                    earned_later += later > 0
                    np.testing.assert_allclose(
                        targets.returns[here[-1], game, unit], reward[here[-1] : end + 1, game, unit].sum(), atol=1e-4
                    )
            start = end + 1
    assert fell >= 5
    assert earned_later >= 3


def test_data_are_cut_into_stretches_of_one_game():
    """[T=4, E=2, G=3] in stretches of 2: the first unit of seat 1 is game 0 at times 0 and 1."""
    t, e, g = jnp.meshgrid(jnp.arange(4), jnp.arange(2), jnp.arange(3), indexing="ij")
    units = cut(100 * t + 10 * e + g, 2)
    assert units.shape == (3, 4, 2)
    np.testing.assert_array_equal(units[1, 0], [1, 101])
    np.testing.assert_array_equal(units[1, 1], [11, 111])
    np.testing.assert_array_equal(units[2, 2], [202, 302])


@pytest.mark.parametrize(
    ("parallel", "rollout", "minibatches", "length"),
    [(8, 20, 4, 20), (1, 20, 4, 5), (3, 20, 4, 5), (1, 7, 7, 1), (16, 128, 4, 128)],
)
def test_stretches_are_as_long_as_the_minibatches_allow(parallel, rollout, minibatches, length):
    assert unit_length(Train().ppo, Sizes(parallel, rollout, 1, minibatches, 1)) == length


def test_schedules_are_straight_lines():
    assert float(between(1.0, 0.0, jnp.int32(0), jnp.int32(11))) == 1
    assert float(between(1.0, 0.0, jnp.int32(5), jnp.int32(11))) == 0.5
    assert float(between(1.0, 0.0, jnp.int32(10), jnp.int32(11))) == 0
    assert float(between(1.0, None, jnp.int32(10), jnp.int32(11))) == 1


def test_a_scale_ignores_the_absent_and_a_rescaled_head_says_the_same():
    """Seat 0 was present for returns 2 and 4: mean 3, variance 1. Seat 1 never: it keeps mean 0 and spread 1."""
    returns = jnp.array([[[2.0, 50.0]], [[4.0, 60.0]], [[99.0, 70.0]]])
    present = jnp.array([[[True, False]], [[True, False]], [[False, False]]])
    old = Scale.make((2,))
    new = old.take_in(returns, present)
    np.testing.assert_allclose(new.mean, [3, 0], atol=1e-5)
    np.testing.assert_allclose(new.spread, [1, 1], atol=1e-5)
    np.testing.assert_allclose(new.restore(new.normalise(returns)), returns, atol=1e-4)
    random = generator(jax.random.key(0))
    heads = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[Dense.make(random, 3, 1) for _ in range(2)])
    x = jnp.ones((2, 3))
    further = new.take_in(returns * 5, present)
    said = [scale.restore(jax.vmap(Dense.__call__)(rescale(heads, new, scale), x)[:, 0]) for scale in (new, further)]
    np.testing.assert_allclose(said[0], said[1], atol=1e-4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"segment": 7, "core": "gru"}, "segment 7 does not divide"),
        ({"hidden": (0,)}, "hidden"),
        ({"discount": 1.5}, "discount is 1.5"),
        ({"clip": 0.0}, "clip is 0.0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"entropy_final": -0.1}, "entropy_final is -0.1"),
    ],
)
@pytest.mark.parametrize("name", LEARNERS)
def test_settings_that_cannot_work_are_refused(name, options, words):
    with pytest.raises(BadInput, match=words):
        find(name).check(dataclasses.replace(Train().of(name), **options), SIZES, make("stag_hunt-4x4-4h1s"))


def test_minibatches_that_do_not_fit_are_refused_with_one_that_does():
    with pytest.raises(BadInput, match="--minibatches 2"):
        find("ppo").check(Train().ppo, dataclasses.replace(SIZES, parallel=2, rollout=2, minibatches=3), make("matrix-ipd"))
    with pytest.raises(BadInput, match="convolutions need planes"):
        find("ppo").check(dataclasses.replace(Train().ppo, channels=(4,)), SIZES, make("jaxmarl:MPE_simple_spread_v3"))
    with pytest.raises(BadInput, match="no learner 'pro': did you mean"):
        find("pro")
