"""Boards with walls: pieces of three or four cells, straight or bent, that never cut the free cells apart."""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PRNGKeyArray

from otherminds.config import BadInput, require

SHAPES = {
    "straight of 3": ((0, 0), (0, 1), (0, 2)),
    "bent of 3": ((0, 0), (0, 1), (1, 1)),
    "straight of 4": ((0, 0), (0, 1), (0, 2), (0, 3)),
    "bent of 4": ((0, 0), (0, 1), (0, 2), (1, 2)),
}


@lru_cache
def placements(height: int, width: int) -> tuple[np.ndarray, ...]:
    """For each shape that fits, every way to lay it on the board: bool [ways, cells]."""
    found = []
    for shape in SHAPES.values():
        ways = set()
        for turned in _orientations(shape):
            for row in range(height):
                for column in range(width):
                    cells = [(row + r, column + c) for r, c in turned]
                    if all(0 <= r < height and 0 <= c < width for r, c in cells):
                        ways.add(frozenset(r * width + c for r, c in cells))
        if ways:
            masks = np.zeros((len(ways), height * width), bool)
            for mask, way in zip(masks, sorted(sorted(way) for way in ways), strict=True):
                mask[way] = True
            found.append(masks)
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
    if not _some_board(height, width, blocks, things):
        raise BadInput(f"{owner}: no connected board with walls found on {height}x{width}: fewer blocks, or a larger board")


@lru_cache
def _some_board(height: int, width: int, blocks: int, things: int, tries: int = 300) -> bool:
    """Whether at least one of a hundred drawn boards is connected, so that drawing again and again will end soon."""
    random, ways = np.random.default_rng(0), placements(height, width)
    good = 0
    for _ in range(tries):
        wall = np.zeros(height * width, bool)
        for _ in range(blocks):
            shape = ways[random.integers(len(ways))]
            piece = shape[random.integers(len(shape))]
            if not (wall & piece).any() and (~(wall | piece)).sum() >= things:
                wall |= piece
        good += _connected_on_host(~wall.reshape(height, width))
    return good >= tries // 100


def _connected_on_host(free: np.ndarray) -> bool:
    reached = [tuple(np.argwhere(free)[0])]
    seen = set(reached)
    while reached:
        row, column = reached.pop()
        for cell in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
            inside = 0 <= cell[0] < free.shape[0] and 0 <= cell[1] < free.shape[1]
            if inside and free[cell] and cell not in seen:
                seen.add(cell)
                reached.append(cell)
    return len(seen) == int(free.sum())


def draw(key: PRNGKeyArray, height: int, width: int, blocks: int, things: int) -> Bool[Array, " cells"]:
    """Up to `blocks` pieces (one that would overlap is left out), drawn again until the free cells are connected."""
    ways = placements(height, width)
    table = jnp.concatenate([jnp.array(masks) for masks in ways])
    counts = np.array([len(masks) for masks in ways])
    starts = jnp.array(np.cumsum(counts) - counts)

    def board(key: PRNGKeyArray) -> Bool[Array, " cells"]:
        shape_key, way_key = jax.random.split(key)
        shape = jax.random.randint(shape_key, (blocks,), 0, len(ways))
        way = jax.random.randint(way_key, (blocks,), 0, jnp.array(counts)[shape])
        wall = jnp.zeros(height * width, bool)
        for piece in table[starts[shape] + way]:
            fits = ~(wall & piece).any() & ((~(wall | piece)).sum() >= things)
            wall = jnp.where(fits, wall | piece, wall)
        return wall

    def again(carry: tuple[PRNGKeyArray, Array]) -> tuple[PRNGKeyArray, Array]:
        key, use = jax.random.split(carry[0])
        return key, board(use)

    def cut_apart(carry: tuple[PRNGKeyArray, Array]) -> Array:
        return ~connected(~carry[1].reshape(height, width))

    _, wall = jax.lax.while_loop(cut_apart, again, again((key, jnp.zeros(height * width, bool))))
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
