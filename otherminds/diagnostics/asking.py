"""How modules are asked what they think of many samples."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

AT_ONCE = 1000  # samples that are predicted together


@eqx.filter_jit
def predicted(model: Any, function: Callable[..., Any], samples: Any, *about: Any, at_once: int = AT_ONCE) -> Any:
    """`function(module, samples, *about)`, so many samples at a time.

    It is compiled once for each function: give it one that stands in a module, and the rest, which holds no arrays, as `about`.
    """
    count = len(jax.tree.leaves(samples)[0])
    blocks = -(-count // at_once)

    def blocked(leaf: Array) -> Array:
        padded = jnp.concatenate([leaf, jnp.repeat(leaf[-1:], blocks * at_once - count, 0)])
        return padded.reshape(blocks, at_once, *leaf.shape[1:])

    said = jax.lax.map(lambda part: function(model, part, *about), jax.tree.map(blocked, samples))
    return jax.tree.map(lambda leaf: leaf.reshape(blocks * at_once, *leaf.shape[2:])[:count], said)  # some have no entries
