import jax.numpy as jnp
import numpy as np
import pytest

from otherminds import beliefs
from otherminds.beliefs import Counts, Normal


def test_bayes_by_hand():
    """Even odds, an action four times as likely for stag: 0.8 and 0.2. Once more: 16 to 1."""
    belief = beliefs.even((), 2)
    likelihood = jnp.array([0.8, 0.2])
    once = beliefs.after_action(belief, likelihood, jnp.bool_(True))
    twice = beliefs.after_action(once, likelihood, jnp.bool_(True))
    np.testing.assert_allclose(once, [0.8, 0.2], rtol=1e-6)
    np.testing.assert_allclose(twice, [16 / 17, 1 / 17], rtol=1e-6)


def test_who_is_not_there_shows_nothing():
    """Players who had left were once taken for players who stay, and beliefs ran away."""
    belief = jnp.array([[0.7, 0.3], [0.7, 0.3]])
    after = beliefs.after_action(belief, jnp.array([[1.0, 0.1], [1.0, 0.1]]), jnp.array([True, False]))
    assert float(after[0, 0]) > 0.9
    np.testing.assert_array_equal(after[1], belief[1])


def test_an_impossible_action_does_not_end_in_nothing():
    after = beliefs.after_action(jnp.array([1.0, 0.0]), jnp.array([0.0, 0.0]), jnp.bool_(True))
    np.testing.assert_allclose(after.sum(), 1.0)
    assert np.isfinite(after).all()


@pytest.mark.parametrize(("switching", "steps"), [(0.0, 21), (0.05, 4)])
def test_a_partner_that_switches_is_noticed(switching, steps):
    """Twenty steps of one goal, then the other: without `switching`, it takes as many steps to believe it."""
    belief = beliefs.even((), 2)
    for _ in range(20):
        belief = beliefs.after_action(belief, jnp.array([0.6, 0.3]), jnp.bool_(True), switching)
    count = 0
    while float(belief[1]) < 0.5:
        belief = beliefs.after_action(belief, jnp.array([0.3, 0.6]), jnp.bool_(True), switching)
        count += 1
    assert abs(count - steps) <= 1


def test_counts_give_the_next_prior():
    counts = Counts.empty((2,), 2)
    np.testing.assert_array_equal(counts.prior(), [[0.5, 0.5], [0.5, 0.5]])
    for _ in range(3):
        counts = counts.after_episode(jnp.array([0, -1]), discount=0.5)
    # 1 -> 1.5 -> 1.75 -> 1.875 for the goal reached, 1 -> 0.5 -> 0.25 -> 0.125 for the other; nothing seen: as before.
    np.testing.assert_allclose(counts.reached, [[1.875, 0.125], [1.0, 1.0]])
    np.testing.assert_allclose(counts.prior()[0], [0.9375, 0.0625])


def test_normal_beliefs_weigh_by_precision():
    belief = Normal.standard((1,), 1).after_evidence(jnp.array([[3.0]]), jnp.array([[2.0]]), jnp.array([True]))
    np.testing.assert_allclose(belief.mean, [[2.0]])  # (1 * 0 + 2 * 3) / 3
    np.testing.assert_allclose(belief.precision, [[3.0]])
    same = belief.after_evidence(jnp.array([[9.0]]), jnp.array([[9.0]]), jnp.array([False]))
    np.testing.assert_array_equal(same.mean, belief.mean)
    faded = belief.faded(0.5)
    np.testing.assert_allclose(faded.precision, [[2.0]])
    np.testing.assert_allclose(faded.mean, [[1.5]])  # (0.5 * 3 * 2 + 0.5 * 0) / 2


def test_gates():
    np.testing.assert_array_equal(beliefs.gate_by_distance(jnp.array([1, 5]), 3), [True, False])
    still, moved = jnp.array([0.5, 0.5]), jnp.array([0.9, 0.1])
    assert not bool(beliefs.gate_by_movement(still, still, 0.01))
    assert bool(beliefs.gate_by_movement(still, moved, 0.01))
    np.testing.assert_allclose(beliefs.entropy(still), np.log(2), rtol=1e-6)
