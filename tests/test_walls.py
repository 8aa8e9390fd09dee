"""Boards with walls."""

import jax
import numpy as np
import pytest

from otherminds import make
from otherminds.games.walls import SHAPES, connected, placements
from otherminds.rollout import draw_bank


def reachable(free: np.ndarray) -> int:
    edge = [tuple(np.argwhere(free)[0])]
    seen = set(edge)
    while edge:
        row, column = edge.pop()
        for cell in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
            if min(cell) >= 0 and cell[0] < free.shape[0] and cell[1] < free.shape[1] and free[cell] and cell not in seen:
                seen.add(cell)
                edge.append(cell)
    return len(seen)


@pytest.mark.parametrize(
    "game_id",
    [
        "stag_hunt-8x8-4h1s-5b",
        "stag_hunt?height=5&width=6&blocks=3",
        "stag_hunt?height=3&width=9&blocks=2",
        "stag_hunt?height=12&width=12&blocks=30",
    ],
)
def test_boards_are_connected_and_things_stand_apart_on_free_cells(game_id):
    game = make(game_id)
    bank = jax.device_get(jax.jit(lambda key: draw_bank(game, key, 500))(jax.random.key(0))).starts
    walls = bank.wall.reshape(-1, game.height, game.width)
    for wall, *things in zip(walls, bank.position, bank.stag, bank.hare, strict=True):
        cells = np.concatenate(things)
        assert len(set(cells.tolist())) == len(cells)
        assert not wall.reshape(-1)[cells].any()
        assert reachable(~wall) == (~wall).sum()
    sizes = walls.sum((1, 2))
    assert sizes.min() >= 0 if game.height == 1 else sizes.min() >= 3
    assert sizes.max() <= 4 * game.blocks
    assert len(set(sizes.tolist())) > 2


def test_connected_notices_a_wall_across_the_board():
    free = np.ones((4, 5), bool)
    free[:, 2] = False
    assert not connected(jax.numpy.array(free))
    free[3, 2] = True
    assert connected(jax.numpy.array(free))


def test_pieces_are_the_ones_promised():
    """3x3 has 6 straight and 16 bent pieces of 3, no straight and 16 bent ones of 4."""
    assert [len(ways) for ways in placements(3, 3)] == [6, 16, 16]
    assert len(placements(8, 8)) == len(SHAPES)
    assert {len(set(way)) for ways in placements(8, 8) for way in ways.tolist()} == {3, 4}
