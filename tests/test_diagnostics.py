"""Measures by hand: each of these numbers was worked out on paper."""

import csv
import io

import numpy as np
import pytest

from otherminds.diagnostics import opponent_model as partners
from otherminds.diagnostics import world_model as worlds

NAMES = ("up", "down", "left", "right", "stay", "hunt")


# --- opponent model ---


def of(odds, action, exact=None, names=("a", "b", "stay"), groups=None):
    odds = np.array(odds, float)
    return partners.measure(
        np.log(odds), np.array(action), np.array(odds if exact is None else exact, float), names, groups or {}
    )


def test_scores_by_hand():
    odds = [[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.6, 0.3, 0.1], [0.25, 0.5, 0.25]]
    found = of(odds, [0, 2, 1, 0], exact=[[1, 0, 0], [0, 0, 1], [0.5, 0.5, 0], [0.5, 0.5, 0]])
    assert found["steps"] == 4
    assert found["cross_entropy"] == pytest.approx(-np.log(0.5 * 0.7 * 0.3 * 0.25) / 4, abs=1e-5)
    assert found["cross_entropy_exact"] == pytest.approx(2 * np.log(2) / 4, abs=1e-5)
    assert (found["top_1"], found["top_1_exact"]) == (0.5, 0.75)
    assert (found["top_3"], found["top_3_exact"]) == (1.0, 1.0)
    assert found["majority"] == 0.5
    assert found["confusion"] == [[1, 1, 0], [1, 0, 0], [0, 0, 1]]
    first, _, stay = found["by_action"]
    assert (first["count"], first["share"], first["precision"], first["recall"], first["f1"]) == (2, 0.5, 0.5, 0.5, 0.5)
    assert first["expected_recall"] == pytest.approx((0.5 + 0.25) / 2)
    assert first["expected_recall_exact"] == pytest.approx((1 + 0.5) / 2)
    assert first["predicted_share"] == pytest.approx((0.5 + 0.1 + 0.6 + 0.25) / 4)
    assert stay["recall"] == 1.0
    assert found["without_stay"]["steps"] == 3
    assert found["without_stay"]["top_1"] == pytest.approx(1 / 3, abs=1e-5)


def test_parts_have_scores_of_their_own():
    """A partner that is not understood at all once hid behind the mean of the others."""
    odds = [[0.9, 0.05, 0.05]] * 4
    found = of(odds, [0, 0, 1, 1], groups={"by_partner": (np.array([0, 0, 1, 1]), ("easy", "hard", "absent"))})
    assert found["top_1"] == 0.5
    assert found["by_partner"]["easy"]["top_1"] == 1.0
    assert found["by_partner"]["hard"]["top_1"] == 0.0
    assert found["by_partner"]["absent"] == {"steps": 0}


def test_an_action_nobody_played_or_guessed_has_no_recall():
    rows = of([[0.9, 0.1, 0.0001]], [0])["by_action"]
    assert (rows[1]["recall"], rows[1]["precision"], rows[1]["f1"], rows[1]["expected_recall"]) == (None, None, None, None)
    table = list(csv.DictReader(io.StringIO(partners.as_csv(rows))))
    assert [line["action"] for line in table] == ["a", "b", "stay"]
    assert table[1]["recall"] == ""


# --- world model ---


def board(*players, stags=()):
    """Two players and a plane of stags on 3x3, with a plane of time behind."""
    planes = np.zeros((4, 3, 3), np.float32)
    for k, cells in enumerate([*players, stags]):
        for cell in cells:
            planes[k][cell] = 1
    planes[3] = 0.5
    return planes


BINARY = np.broadcast_to(np.array([True, True, True, False])[:, None, None], (4, 3, 3))


def laws(before, action, after):
    return worlds.broken_laws(before[None], np.array([action]), after[None] > 0.5, BINARY, 2, NAMES)


def test_a_lawful_step_breaks_nothing():
    before, after = board([(0, 0)], [(2, 2)], stags=[(1, 1)]), board([(1, 0)], [(2, 2)], stags=[(1, 1)])
    assert not any(laws(before, (1, 4), after).values())
    gone = board([], [(2, 2)])
    assert not any(laws(board([(1, 1)], [(2, 2)], stags=[(1, 1)]), (5, 4), gone).values())


@pytest.mark.parametrize(
    ("law", "after", "action"),
    [
        ("in_two_places", board([(0, 0), (0, 1)], [(2, 2)]), (3, 4)),
        ("moved_too_far", board([(1, 1)], [(2, 2)]), (3, 4)),
        ("vanished", board([], [(2, 2)]), (3, 4)),
        ("out_of_nothing", board([(0, 0)], [(2, 2)], stags=[(0, 2)]), (4, 4)),
    ],
)
def test_each_law_can_be_broken(law, after, action):
    found = laws(board([(0, 0)], [(2, 2)]), action, after)
    assert {name for name, count in found.items() if count} == {law}


def test_who_left_does_not_come_back():
    found = laws(board([], [(2, 2)]), (-1, 4), board([(0, 0)], [(2, 2)]))
    assert {name for name, count in found.items() if count} == {"appeared"}


def test_steps_by_hand():
    true = np.stack([board([(0, 0)], [(2, 2)]), board([(0, 1)], [(2, 2)])])
    said = true.copy()
    said[0, 0, 0, 0] = 0.6  # still on the right side
    said[1, 0, 0, 1] = 0.4  # no longer
    found = worlds.measure(
        before=true,
        action=np.array([[4, 4], [4, 4]]),
        said={"observation": said, "reward": np.array([0.1, 2.6]), "end": np.array([False, True])},
        true={"observation": true, "reward": np.array([0.0, 5.0]), "end": np.array([False, True])},
        binary=BINARY,
        seats=2,
        names=NAMES,
        on_board=True,
    )
    squared = 0.4**2 + 0.6**2
    assert found["exact_board"] == 0.5
    assert found["mse_by_plane"] == pytest.approx([squared / 18, 0, 0, 0], abs=1e-6)
    assert found["psnr"] == pytest.approx(10 * np.log10(54 / squared), abs=1e-3)  # the plane of time does not count
    assert found["reward_mse"] == pytest.approx((0.1**2 + 2.4**2) / 2, abs=1e-5)
    assert found["reward_recall"] == 1.0
    assert (found["end_accuracy"], found["end_recall"]) == (1.0, 1.0)
    assert found["broken_laws"]["vanished"] == 1
