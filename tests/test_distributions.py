"""Distributions of actions: masks, densities, divergences."""

import jax
import jax.numpy as jnp
import numpy as np

from otherminds.distributions import Categorical, SquashedNormal, for_actions


def test_what_is_not_legal_is_never_drawn():
    legal = jnp.array([[True, False, True], [False, True, False]])
    logits = Categorical.masked(jnp.array([[0.0, 50.0, 0.0], [9.0, 0.0, 9.0]]), legal)
    np.testing.assert_allclose(jnp.exp(logits), [[0.5, 0.0, 0.5], [0.0, 1.0, 0.0]], atol=1e-7)
    drawn = jax.vmap(lambda key: Categorical.sample(logits, key))(jax.random.split(jax.random.key(0), 20_000))
    assert set(np.unique(drawn[:, 0])) == {0, 2}
    assert set(np.unique(drawn[:, 1])) == {1}
    assert abs(float((drawn[:, 0] == 0).mean()) - 0.5) < 0.02
    np.testing.assert_allclose(Categorical.entropy(logits), [np.log(2), 0.0], atol=1e-6)
    assert np.isfinite(jax.grad(lambda raw: Categorical.entropy(Categorical.masked(raw, legal)).sum())(jnp.zeros((2, 3)))).all()


def test_log_probability_picks_the_action_taken():
    logits = Categorical.masked(jnp.log(jnp.array([[0.2, 0.3, 0.5]])), jnp.ones((1, 3), bool))
    np.testing.assert_allclose(Categorical.log_probability(logits, jnp.array([2])), [np.log(0.5)], rtol=1e-6)
    assert np.isfinite(Categorical.log_probability(logits, jnp.array([-1]))).all()
    # KL((.2,.3,.5) || (1/3,1/3,1/3)) = log 3 - H = 1.098612 - 1.029653.
    even = Categorical.masked(jnp.zeros((1, 3)), jnp.ones((1, 3), bool))
    np.testing.assert_allclose(Categorical.divergence(logits, even), [0.068959], atol=1e-5)


def test_squashed_normals_lie_between_0_and_1():
    raw = jnp.array([0.5, -1.0, -0.5, 9.0])
    logits = SquashedNormal.masked(raw, jnp.array([True, True]))
    assert float(logits[3]) == SquashedNormal.MOST
    drawn = jax.vmap(lambda key: SquashedNormal.sample(logits, key))(jax.random.split(jax.random.key(0), 5000))
    assert (drawn > 0).all()
    assert (drawn < 1).all()
    np.testing.assert_allclose(SquashedNormal.mode(logits), jax.nn.sigmoid(8 * jnp.tanh(raw[:2] / 8)), rtol=1e-6)


def test_ratios_stay_finite_where_actions_are_squashed_flat():
    """A mean of 20 draws numbers that squashed are 1: what was drawn is lost, and the ratio to a mean of 19 was infinite."""
    legal = jnp.array([True])
    old, new = (SquashedNormal.masked(jnp.array([mean, -2.0]), legal) for mean in (20.0, 19.8))
    drawn = jax.vmap(lambda key: SquashedNormal.sample(old, key))(jax.random.split(jax.random.key(1), 1000))
    log_ratio = jax.vmap(lambda a: SquashedNormal.log_probability(new, a) - SquashedNormal.log_probability(old, a))(drawn)
    assert float(jnp.abs(log_ratio).max()) < 0.2


def test_squashed_normals_have_the_right_ratios_and_divergence():
    """The expected log ratio is the divergence: with the density wrong in any way, they would differ."""
    old, new = jnp.array([0.2, -0.4, -0.3, 0.1]), jnp.array([-0.1, 0.3, 0.2, -0.2])
    drawn = jax.vmap(lambda key: SquashedNormal.sample(old, key))(jax.random.split(jax.random.key(1), 40_000))
    ratio = jax.vmap(lambda a: SquashedNormal.log_probability(old, a) - SquashedNormal.log_probability(new, a))(drawn)
    np.testing.assert_allclose(ratio.mean(), SquashedNormal.divergence(old, new), rtol=0.05)
    np.testing.assert_allclose(SquashedNormal.divergence(old, old), 0.0, atol=1e-6)


def test_padding_is_the_same_in_every_policy():
    legal = jnp.array([True, False])
    one, two = (SquashedNormal.masked(jnp.array(raw), legal) for raw in ([1.0, 5.0, 0.0, 0.5], [1.0, -5.0, 0.0, -0.5]))
    np.testing.assert_array_equal(one, two)
    assert for_actions(True) is SquashedNormal
    assert for_actions(False) is Categorical
    assert (SquashedNormal.outputs(3), Categorical.outputs(3)) == (6, 3)
