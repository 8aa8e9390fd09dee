"""Boards with walls: pieces of three or four cells, straight or bent, that never cut the free cells apart."""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PRNGKeyArray

from otherminds.config import require

TRIES = 3
SHAPES = {
    "straight of 3": ((0, 0), (0, 1), (0, 2)),
    "bent of 3": ((0, 0), (0, 1), (1, 1)),
    "straight of 4": ((0, 0), (0, 1), (0, 2), (0, 3)),
    "bent of 4": ((0, 0), (0, 1), (0, 2), (1, 2)),
}


@lru_cache
def placements(height: int, width: int) -> tuple[np.ndarray, ...]:
    """For each shape that fits, every way to lay it on the board: cells [ways, 4], the last one twice in pieces of three."""
    found = []
    for shape in SHAPES.values():
        ways = set()
        for turned in _orientations(shape):
            for row in range(height):
                for column in range(width):
                    cells = [(row + r, column + c) for r, c in turned]
                    if all(0 <= r < height and 0 <= c < width for r, c in cells):
                        ways.add(tuple(sorted(r * width + c for r, c in cells)))
        if ways:
            found.append(np.array([(*way, way[-1])[:4] for way in sorted(ways)]))
    return tuple(found)


def _orientations(shape: tuple[tuple[int, int], ...]) -> list[list[tuple[int, int]]]:
    turned = [list(shape)]
    for _ in range(3):
        turned.append([(c, -r) for r, c in turned[-1]])
    return turned + [[(r, -c) for r, c in cells] for cells in turned]


def require_room(owner: str, height: int, width: int, blocks: int, things: int) -> None:
    """Refuse walls that cannot fit beside `things` players and prey, before anything compiles."""
    cells = height * width
    require(bool(placements(height, width)), f"{owner}: no wall piece fits on {height}x{width}: blocks=0, or a larger board")
    require(
        3 * blocks + things <= cells,
        f"{owner}: {blocks} wall pieces of 3 or 4 cells and {things} players and prey do not fit on "
        f"{height}x{width} = {cells} cells: blocks={max(0, (cells - things) // 3)} or a larger board",
    )


def draw(key: PRNGKeyArray, height: int, width: int, blocks: int, things: int) -> Bool[Array, " cells"]:
    """Up to `blocks` pieces, laid one after the other.

    A piece that would overlap another, cut the free cells apart, or leave no room is drawn again; after TRIES times as many
    draws as pieces are wanted, those that are laid are enough.
    """
    ways = placements(height, width)
    table, counts = jnp.concatenate([jnp.array(cells) for cells in ways]), np.array([len(cells) for cells in ways])
    shape_key, way_key = jax.random.split(key)
    shape = jax.random.randint(shape_key, (TRIES * blocks,), 0, len(ways))
    way = jax.random.randint(way_key, (TRIES * blocks,), 0, jnp.array(counts)[shape])
    pieces = table[jnp.array(np.cumsum(counts) - counts)[shape] + way]

    def lay(carry: tuple[Array, Array], cells: Array) -> tuple[tuple[Array, Array], None]:
        wall, laid = carry
        piece = (jnp.arange(height * width)[None] == cells[:, None]).any(0)
        both = wall | piece
        free = ~both.reshape(height, width)
        fits = (laid < blocks) & ~(wall & piece).any() & (free.sum() >= things) & connected(free)
        return (jnp.where(fits, both, wall), laid + fits), None

    (wall, _), _ = jax.lax.scan(lay, (jnp.zeros(height * width, bool), jnp.int32(0)), pieces)
    return wall


def connected(free: Bool[Array, "H W"]) -> Bool[Array, ""]:
    """Whether one can walk from any free cell to any other."""
    seed = jnp.zeros(free.size, bool).at[jnp.argmax(free)].set(True).reshape(free.shape)

    def spread(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        reached, _ = carry
        return (reached | neighbours(reached)) & free, reached

    reached, _ = jax.lax.while_loop(lambda c: (c[0] != c[1]).any(), spread, (seed, jnp.zeros_like(seed)))
    return (reached == free).all()


def neighbours(marked: Bool[Array, "*games H W"]) -> Bool[Array, "*games H W"]:
    """Cells next to a marked one."""
    padded = jnp.pad(marked, [(0, 0)] * (marked.ndim - 2) + [(1, 1), (1, 1)])
    return padded[..., :-2, 1:-1] | padded[..., 2:, 1:-1] | padded[..., 1:-1, :-2] | padded[..., 1:-1, 2:]
