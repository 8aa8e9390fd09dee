"""What games on a grid share: cells numbered row by row, moves, planes. -1 is the cell of what is not on the board."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, UInt8

UP, DOWN, LEFT, RIGHT, STAY = range(5)


def free_moves(position: Int[Array, " A"], wall: Bool[Array, " cells"] | None, height: int, width: int) -> Bool[Array, "A 4"]:
    """Which of up, down, left, right stay on the board and off the walls."""
    row, column = position // width, position % width
    inside = jnp.stack([row > 0, row < height - 1, column > 0, column < width - 1], -1)
    if wall is None:
        return inside
    target = position[:, None] + jnp.array([[-width, width, -1, 1]])
    return inside & ~wall[jnp.clip(target, 0, height * width - 1)]


def at(position: Int[Array, " A"], cell: Int[Array, " n"]) -> Bool[Array, "A n"]:
    """Which player stands on which of the cells; nobody stands on -1, be it a player or a thing that is gone."""
    return (position[:, None] == cell[None]) & (cell >= 0)[None]


def move(position: Int[Array, " A"], action: Int[Array, " A"], width: int) -> Int[Array, " A"]:
    """Where each player stands after its (legal) action; only the four moves change anything."""
    step = (action == DOWN) * width - (action == UP) * width + (action == RIGHT) * 1 - (action == LEFT) * 1
    return position + step


def planes(cell: Int[Array, "*n"], height: int, width: int) -> Bool[Array, "*n H W"]:
    """One plane for each cell, true there; empty for -1. By comparison: a scatter is many times slower."""
    numbers = jnp.arange(height * width).reshape((1,) * cell.ndim + (-1,))
    marked = cell[..., None] == numbers
    return marked.reshape(*cell.shape, height, width)


def cells_of(plane: UInt8[Array, " cells"], count: int) -> Int[Array, " count"]:
    """The cells marked in a plane, row by row, then -1 for those that are gone."""
    order = jnp.argsort(plane == 0, stable=True)[:count]
    return jnp.where(plane[order] > 0, order, -1)
