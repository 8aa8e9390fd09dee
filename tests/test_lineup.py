"""How `--seats` is read: one wrong letter must not put somebody else into a seat."""

import pytest

from otherminds import lineup
from otherminds.config import BadInput
from otherminds.lineup import Frozen, Group, Phase

LEARNERS = ("ppo", "mappo")


def groups(text, seats=4):
    return lineup.groups(lineup.phases(lineup.spread(text, seats, "game")), LEARNERS)


def test_one_entry_fills_all_seats_and_spaces_do_not_count():
    assert lineup.spread("ppo", 3, "game") == ("ppo", "ppo", "ppo")
    assert lineup.spread(" a , b,c ", 3, "game") == ("a", "b", "c")
    assert lineup.spread(["a"], 2, "game") == ("a", "a")


@pytest.mark.parametrize(("text", "count"), [("a,b", 2), ("a,b,c,d,e", 5)])
def test_another_number_of_entries_is_refused(text, count):
    with pytest.raises(BadInput, match=f"game has 4 seats, got {count} entries: give one for all, or 4 with commas between"):
        lineup.spread(text, 4, "game")


@pytest.mark.parametrize("text", ["", " , ", "a,,b,c,d", "a,b,c,d,"])
def test_empty_entries_are_refused(text):
    """They were skipped, and everybody behind them sat one seat too far to the front."""
    with pytest.raises(BadInput, match="nothing between two commas"):
        lineup.spread(text, 4, "game")


def test_pools():
    assert lineup.pool("a") == ("a",)
    assert lineup.pool("a + b+run:x#2") == ("a", "b", "run:x#2")
    for entry in ("a+", "+a", "a++b"):
        with pytest.raises(BadInput, match="is not a pool: write nearest_stag"):
            lineup.pool(entry)


def test_a_schedule_of_one_seat_is_a_stretch_for_all():
    assert lineup.phases(["a", "b"]) == (Phase(0, ("a", "b")),)
    assert lineup.phases(["a~20~b", "c~10~d~20~e"]) == (Phase(0, ("a", "c")), Phase(10, ("a", "d")), Phase(20, ("b", "e")))
    assert lineup.phases(["a ~ 20 ~ b"]) == (Phase(0, ("a",)), Phase(20, ("b",)))


@pytest.mark.parametrize("entry", ["a~b", "a~10", "~10~a", "a~10~", "a~1e5~b", "a~-1~b", "a~~b", "a~10~b~20", "run:~/x"])
def test_a_broken_schedule_is_refused(entry):
    with pytest.raises(BadInput, match="is not a schedule: write nearest_stag~200000~ppo, with the game step of each change"):
        lineup.phases([entry])


@pytest.mark.parametrize("entry", ["a~0~b", "a~20~b~10~c", "a~20~b~20~c"])
def test_the_steps_of_a_schedule_grow(entry):
    with pytest.raises(BadInput, match="the steps of a schedule must grow, from more than 0"):
        lineup.phases([entry])


def test_seats_of_one_learner_are_one_group():
    assert groups("ppo") == (Group("ppo", (0, 1, 2, 3), (0,)),)
    assert groups("a,ppo,b,ppo") == (Group("ppo", (1, 3), (0,)),)
    assert groups("mappo,ppo,mappo,a") == (Group("mappo", (0, 2), (0,)), Group("ppo", (1,), (0,)))
    assert groups("a") == ()


def test_a_seat_that_joins_later_is_a_group_of_its_own():
    """Sharing the optimiser of seats that have been learning, it would start with their momentum and their schedule."""
    assert groups("ppo,ppo,a~10~ppo,b") == (Group("ppo", (0, 1), (0, 1)), Group("ppo", (2,), (1,)))
    assert groups("a~10~ppo") == (Group("ppo", (0, 1, 2, 3), (1,)),)
    assert groups("ppo~10~mappo", 1) == (Group("mappo", (0,), (1,)), Group("ppo", (0,), (0,)))
    assert groups("ppo~10~a~20~ppo", 1) == (Group("ppo", (0,), (0, 2)),)


@pytest.mark.parametrize("entry", ["ppo+a", "a+ppo", "ppo+mappo", "a~10~b+mappo", "ppo+ppo"])
def test_a_learner_in_a_pool_is_refused(entry):
    with pytest.raises(BadInput, match=r"a pool holds scripts and frozen policies, and m?a?ppo learns"):
        groups(entry)


def test_a_value_behind_a_learner_is_refused():
    """`ppo=0.5` was taken for a script that nobody knows, and the answer was that nothing learns here."""
    with pytest.raises(BadInput, match=r"'ppo=0.5': options of a learner stand apart: --ppo.entropy 0.01"):
        groups("ppo=0.5")


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        ("run:x", Frozen("x", None, "final", None)),
        ("run:x#2", Frozen("x", 2, "final", None)),
        ("run:x@500", Frozen("x", None, "500", None)),
        ("run:x@best", Frozen("x", None, "best", None)),
        ("run:x:7", Frozen("x", None, "final", 7)),
        ("run:some/where/x.1#3@final:12", Frozen("some/where/x.1", 3, "final", 12)),
        ("run:C:\\x\\y#1", Frozen("C:\\x\\y", 1, "final", None)),
        ("run:a@b#c", Frozen("a@b#c", None, "final", None)),
    ],
)
def test_frozen_policies(entry, found):
    assert lineup.frozen(entry) == found
    assert lineup.frozen(str(found)) == found


def test_broken_frozen_policies_are_refused():
    with pytest.raises(BadInput, match=r"'run:' is not a frozen policy: write run:NAME, run:NAME#2 \(player_2\)"):
        lineup.frozen("run:")
    with pytest.raises(BadInput, match="players are counted from 1: run:x#1"):
        lineup.frozen("run:x#0")
