"""Scripts that walk to something."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from otherminds.games.grid import STAY
from otherminds.games.paths import FAR, steps_to, value_at
from otherminds.partners.base import uniform


def toward(
    target: Bool[Array, "*games H W"],
    wall: Bool[Array, "*games H W"],
    own: Bool[Array, "*games H W"],
    legal: Bool[Array, "*games actions"],
    take: int,
) -> Float[Array, "*games actions"]:
    """Walk a shortest path to the nearest target, ties at random, and `take` it there. With no target in reach, wander."""
    steps = steps_to(target, wall)
    here = value_at(own, steps)
    ahead = jnp.stack([value_at(own, _shifted(steps, *shift)) for shift in ((1, 0), (-1, 0), (0, 1), (0, -1))], -1)
    nearer = legal[..., :4] & (ahead == here[..., None] - 1)
    walking = jnp.concatenate([uniform(nearer), jnp.zeros_like(legal[..., 4:], float)], -1)
    taking = jnp.zeros(legal.shape).at[..., take].set(1.0)
    in_reach = ((here < FAR) & own.any((-2, -1)))[..., None]
    arrived = in_reach & (here == 0)[..., None]
    return jnp.where(arrived, taking, jnp.where(in_reach, walking, wander(legal)))


def wander(legal: Bool[Array, "*games actions"]) -> Float[Array, "*games actions"]:
    """Uniform over the legal ones of the four moves; stay where walled in."""
    moves = legal.at[..., 4:].set(False)
    stay = jnp.zeros_like(legal).at[..., STAY].set(True)
    return uniform(jnp.where(moves.any(-1, keepdims=True), moves, stay))


def _shifted(steps: Int[Array, "*games H W"], down: int, right: int) -> Int[Array, "*games H W"]:
    """On each cell, the value of its neighbour above (down=1), below (-1), to the left (right=1) or right (-1)."""
    height, width = steps.shape[-2:]
    around = [(0, 0)] * (steps.ndim - 2) + [(1, 1), (1, 1)]
    padded = jnp.pad(steps, around, constant_values=FAR)
    return padded[..., 1 - down : 1 - down + height, 1 - right : 1 - right + width]
