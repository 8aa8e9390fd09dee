"""Watching: what is drawn is what is the case."""

import numpy as np
import pytest
from PIL import Image

from otherminds import BadInput, make, render, seats
from otherminds.games import GAMES
from otherminds.games.base import Board, Thing


def episode(game_id, lineup="random", seed=0):
    game = make(game_id)
    names = seats.split(lineup)
    return render.record(game, seats.resolve(game, lineup), names * game.seats if len(names) == 1 else names, seed)


@pytest.mark.parametrize("game_id", [game_id for game_id in GAMES if game_id != "stag_hunt"])
def test_every_game_of_ours_can_be_watched(game_id):
    shown = episode(game_id)
    assert len(shown.boards) == len(shown.actions) + 1 >= 2
    for board in (shown.boards[0], shown.boards[-1]):
        assert board.caption in render.text(board, shown, 0).plain
        assert render.picture(board, cell=16).width >= 16 * board.width


def test_the_last_frame_is_the_end_and_not_the_next_start():
    shown = episode("stag_hunt-4x4-4h1s", "nearest_stag,nearest_stag,nearest_hare,nearest_hare")
    assert shown.boards[-1].players == (None,) * 4
    assert not any(thing.name == "stag" for thing in shown.boards[-1].things)
    assert shown.scores(len(shown.actions)).sum() == pytest.approx(12, abs=0.6)
    assert "step 0 " in shown.boards[0].caption


def test_absent_players_are_not_on_the_board():
    board = Board(2, 2, (Thing("player", 0, 0), None), (Thing("stag", 1, 1),), "step 1")
    text = render.text(board).plain
    assert "1" in text.split("\n")[0]
    assert "2" not in text.split("step")[0]
    blue = np.array([0x00, 0x72, 0xB2])
    pixels = np.asarray(render.picture(board, cell=32), int)
    orange = np.array([0xD5, 0x5E, 0x00])
    assert (np.abs(pixels - blue).sum(-1) < 30).any()
    assert not (np.abs(pixels - orange).sum(-1) < 30).any()


def test_gif_and_frames_are_written(tmp_path):
    shown = episode("stag_hunt-4x4-4h1s", "nearest_hare")
    render.save_gif(shown, tmp_path / "deep" / "out.gif", cell=24)
    with Image.open(tmp_path / "deep" / "out.gif") as image:
        assert image.n_frames == len(shown.boards)
    assert len(render.save_pngs(shown, tmp_path / "frames", cell=24)) == len(shown.boards)


def test_other_libraries_games_are_refused():
    with pytest.raises(BadInput, match="cannot be drawn"):
        episode("jaxmarl:coin_game")
