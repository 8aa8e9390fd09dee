"""Torsos, cores and heads."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from otherminds.networks import Convolution, Core, Dense, Torso, generator, orthogonal, product, stack, unroll


@pytest.fixture
def random():
    return generator(jax.random.key(0))


@pytest.mark.parametrize("shape", [(8, 3), (3, 8), (5, 5)])
def test_orthogonal(random, shape):
    matrix = orthogonal(random, *shape, gain=2.0)
    small = matrix.T @ matrix if shape[0] >= shape[1] else matrix @ matrix.T
    np.testing.assert_allclose(small, 4 * np.eye(min(shape)), atol=1e-5)


def test_the_same_key_gives_the_same_weights():
    one, two, other = (Dense.make(generator(jax.random.key(seed)), 4, 4).weight for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, two)
    assert (one != other).any()


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4), (4, 1)])
def test_the_derivative_of_a_product_is_what_it_would_be_by_itself(shape):
    keys = jax.random.split(jax.random.key(0), 3)
    x, weight, change = (
        jax.random.normal(key, size) for key, size in zip(keys, ((7, shape[0]), shape, (7, shape[1])), strict=True)
    )

    def derivatives(function):
        return jax.grad(lambda x, weight: (function(x, weight) * change).sum(), (0, 1))(x, weight)

    for own, expected in zip(derivatives(product), derivatives(jnp.matmul), strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-5)


@pytest.mark.parametrize("board", [(6, 7), (4, 5)])
def test_small_and_large_boards_are_convolved_alike(random, board):
    layer = Convolution.make(random, 3, 5)
    x = jax.random.normal(jax.random.key(1), (2, *board, 3))
    kernel = layer.weight.reshape(3, 3, 3, 5)
    expected = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    np.testing.assert_allclose(layer(x), expected, atol=1e-4)


@pytest.mark.parametrize(("shape", "channels"), [((7,), ()), ((5, 4, 4), ()), ((5, 4, 4), (8, 8))])
def test_torsos_take_any_leading_axes(random, shape, channels):
    torso = Torso.make(random, shape, (16, 12), "tanh", channels)
    x = jax.random.normal(jax.random.key(0), (3, 2, *shape))
    assert torso(x).shape == (3, 2, 12)
    np.testing.assert_allclose(torso(x)[1, 1], torso(x[1, 1]), atol=1e-5)


def test_a_centred_torso_takes_any_leading_axes(random):
    torso = Torso.make(random, (5, 4, 3), (16, 12), "tanh", centred=True)
    x = jax.random.bernoulli(jax.random.key(0), 0.3, (3, 2, 5, 4, 3)) * 1.0
    assert torso(x).shape == (3, 2, 12)
    np.testing.assert_allclose(torso(x)[1, 1], torso(x[1, 1]), atol=1e-5)


def test_a_centred_torso_sees_the_same_wherever_it_stands(random):
    """What lies to the left lies to the left: only where the board ends does it matter where one stands."""
    torso = Torso.make(random, (3, 9, 9), (8,), "tanh", centred=True)
    board = np.zeros((3, 9, 9), np.float32)
    board[0, 4, 4] = board[1, 3, 5] = board[2, 5, 3] = 1
    moved = np.roll(board, (1, -1), (1, 2))
    places, whole = np.split(np.asarray(torso.layers[0].weight), [17 * 17 * 3])
    blind = places.reshape(17, 17, 3, 8) * np.array([1, 1, 0])[:, None]  # to where the board ends
    weight = jnp.asarray(np.concatenate([blind.reshape(-1, 8), whole]), jnp.float32)
    torso = eqx.tree_at(lambda t: t.layers[0].weight, torso, weight)
    np.testing.assert_allclose(torso(jnp.asarray(board)), torso(jnp.asarray(moved)), atol=1e-6)
    turned = np.stack([board[0], board[2], board[1]])
    assert float(jnp.abs(torso(jnp.asarray(board)) - torso(jnp.asarray(turned))).max()) > 1e-3
    nobody = board * np.array([0, 1, 1], np.float32)[:, None, None]
    np.testing.assert_array_equal(torso(jnp.asarray(nobody)), torso(jnp.zeros((3, 9, 9))))


def test_only_arrays_are_leaves(random):
    """An activation kept as a leaf would be checkpointed, averaged, and broken."""
    modules = (Torso.make(random, (4,), (8,), "relu"), Core.make(random, "gru", 8, 8))
    assert all(eqx.is_array(leaf) for leaf in jax.tree.leaves(modules))


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_core_forgets_where_it_starts_afresh_and_sleeps_where_absent(random, kind):
    core = Core.make(random, kind, 3, 4)
    x = jax.random.normal(jax.random.key(0), (5, 2, 3))
    fresh = jnp.zeros((5, 2), bool).at[3, 0].set(True)
    present = jnp.ones((5, 2), bool).at[1, 1].set(False)
    start = jnp.ones((2, core.memory))
    after, said = unroll(core, start, x, fresh, present)
    assert after.shape == (5, 2, core.memory)
    np.testing.assert_array_equal(after[1, 1], after[0, 1])
    assert (after[1, 0] != after[0, 0]).any()
    nothing = jnp.zeros((2, core.memory))
    alone = unroll(core, nothing, x[3:], jnp.zeros((2, 2), bool), jnp.ones((2, 2), bool))[1]
    np.testing.assert_allclose(said[3:, 0], alone[:, 0], atol=1e-6)
    assert np.abs(said[3:, 1] - alone[:, 1]).max() > 1e-3


def test_stacked_modules_are_the_modules(random):
    layers = [Dense.make(random, 3, 2) for _ in range(4)]
    x = jax.random.normal(jax.random.key(0), (5, 4, 3))
    together = jax.vmap(lambda layer, x: layer(x), (0, 1), 1)(stack(layers), x)
    for seat, layer in enumerate(layers):
        np.testing.assert_allclose(together[:, seat], layer(x[:, seat]), atol=1e-6)
