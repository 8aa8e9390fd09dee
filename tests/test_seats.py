"""What `--seats` means."""

import jax
import pytest

from otherminds import BadInput, make, seats


def test_one_entry_fills_all_seats():
    (seated,) = seats.resolve(make("stag_hunt-4x4-4h1s"), "nearest_stag")
    assert seated.seats == (0, 1, 2, 3)


def test_equal_entries_share_one_policy():
    """Four seats in four programs would compile and run four times as long."""
    hunters, hare, other = seats.resolve(make("stag_hunt-4x4-4h1s"), "nearest_stag, nearest_hare,nearest_stag,stubborn=0.5")
    assert (hunters.seats, hare.seats, other.seats) == ((0, 2), (1,), (3,))


@pytest.mark.parametrize("entry", ["random", "nearest_stag", "stubborn=0.5", "switcher"])
def test_equal_seats_are_equal_objects(entry):
    """Otherwise each time somebody names them, everything is compiled again."""
    game = make("stag_hunt-4x4-4h1s")
    one, two = seats.resolve(game, entry), seats.resolve(make("stag_hunt-4x4-4h1s"), entry)
    assert jax.tree.structure(one) == jax.tree.structure(two)


@pytest.mark.parametrize(
    ("entries", "hint"),
    [
        ("random,random", "has 4 seats, got 2 entries"),
        ("", "got 0 entries"),
        ("nearest_drift", "did you mean"),
        ("ppp", "choose from|did you mean"),
    ],
)
def test_wrong_seats_are_refused(entries, hint):
    with pytest.raises(BadInput, match=hint):
        seats.resolve(make("stag_hunt-4x4-4h1s"), entries)
