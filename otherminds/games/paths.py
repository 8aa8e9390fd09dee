"""Shortest paths on boards."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from otherminds.games.walls import neighbours

FAR = 10_000  # the distance of what cannot be reached


def steps_to(target: Bool[Array, "*games H W"], wall: Bool[Array, "*games H W"]) -> Int[Array, "*games H W"]:
    """From every cell, the number of moves around the walls to the nearest target."""

    def spread(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        steps, edge, distance = carry
        edge = neighbours(edge) & ~wall & (steps == FAR)
        return jnp.where(edge, distance, steps), edge, distance + 1

    start = (jnp.where(target, 0, FAR), target, jnp.int32(1))
    steps, _, _ = jax.lax.while_loop(lambda carry: carry[1].any(), spread, start)
    return steps


def value_at(own: Bool[Array, "*games H W"], values: Int[Array, "*games H W"]) -> Int[Array, "*games"]:
    """The value on the one cell marked in `own`."""
    return (own * values).sum((-2, -1))
