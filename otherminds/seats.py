"""What `--seats` means: which policy sits where."""

from collections.abc import Sequence

from otherminds.config import BadInput, closest, require
from otherminds.games.base import Game
from otherminds.partners import make_partner, names_for
from otherminds.types import Policy, Seated


def split(text: str) -> list[str]:
    """The entries of `--seats`, separated by commas."""
    return [entry.strip() for entry in text.split(",") if entry.strip()]


def resolve(game: Game, entries: str | Sequence[str]) -> tuple[Seated, ...]:
    """Policies for all seats of a game: one entry fills all seats, or there is one for each seat.

    Seats with the same entry share one policy object, which plays them independently: one compiled program instead of several.
    """
    entries = split(entries) if isinstance(entries, str) else list(entries)
    require(
        len(entries) in (1, game.seats),
        f"{game.id or game.family} has {game.seats} seats, got {len(entries)} entries: "
        f"give one for all, or {game.seats} with commas between",
    )
    if len(entries) == 1:
        entries = entries * game.seats
    groups: dict[str, list[int]] = {}
    for seat, entry in enumerate(entries):
        groups.setdefault(entry, []).append(seat)
    return tuple(Seated(seat_policy(game, entry, len(seats)), tuple(seats)) for entry, seats in groups.items())


def seat_policy(game: Game, entry: str, group: int = 1) -> Policy:
    """The policy that one entry names, for `group` seats."""
    name = entry.partition("=")[0]
    known = names_for(game.family)
    if name not in known:
        raise BadInput(f"nothing named '{name}' can sit in {game.id or game.family}: {closest(name, known)}")
    return make_partner(entry, game, group)
