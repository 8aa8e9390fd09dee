"""Terms of losses, on numbers worked by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from otherminds.losses import clipped_policy, clipped_value, explained_variance, masked_mean, masked_variance, normalised


def test_absent_seats_count_for_nothing_and_get_no_gradient():
    """Players who had left were once taught as 'stay'."""
    x, here = jnp.array([1.0, 3.0, 1e9]), jnp.array([True, True, False])
    assert masked_mean(x, here) == 2.0
    assert masked_variance(x, here) == 1.0
    np.testing.assert_array_equal(jax.grad(lambda x: masked_mean(x**2, here))(x), [1.0, 3.0, 0.0])
    assert masked_mean(x, jnp.zeros(3, bool)) == 0.0


def test_each_seat_is_normalised_over_its_own_presence():
    x = jnp.array([[[1.0, 10.0]], [[3.0, 30.0]], [[500.0, 20.0]]])
    here = jnp.array([[[True, True]], [[True, True]], [[False, True]]])
    found = normalised(x, here)
    np.testing.assert_allclose(found[:2, 0, 0], [-1.0, 1.0], atol=1e-4)
    np.testing.assert_allclose(found[:, 0, 1], [-1.224745, 1.224745, 0.0], atol=1e-4)


def test_the_pessimistic_surrogate():
    # Ratio 1.5, advantage 1, clip 0.2: min(1.5, 1.2) -> -1.2. Advantage -1: min(-1.5, -1.2) -> 1.5. Ratio 0.5, advantage -1: 0.8.
    found = clipped_policy(jnp.array([1.5, 1.5, 0.5]), jnp.array([1.0, -1.0, -1.0]), 0.2)
    np.testing.assert_allclose(found, [-1.2, 1.5, 0.8])


def test_the_clipped_value():
    # Value 2, old 1, target 3, clip 0.2: held at 1.2, error 1.8^2 = 3.24 beats 1; half is 1.62. Without a clip: 0.5.
    args = jnp.array([2.0]), jnp.array([1.0]), jnp.array([3.0])
    np.testing.assert_allclose(clipped_value(*args, 0.2), [1.62])
    np.testing.assert_allclose(clipped_value(*args, None), [0.5])


def test_explained_variance():
    target, here = jnp.array([1.0, 2.0, 3.0, 77.0]), jnp.array([True, True, True, False])
    np.testing.assert_allclose(explained_variance(target, target, here), 1.0)
    np.testing.assert_allclose(explained_variance(jnp.full(4, 9.0), target, here), 0.0, atol=1e-6)
    assert explained_variance(jnp.zeros(4), jnp.ones(4), here) == 0.0
