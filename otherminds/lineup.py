"""What is written in `--seats`: entries, schedules, pools, frozen policies. Text only: who that is, `seats` knows."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from otherminds.config import BadInput, require

UNKNOWN = "unknown"  # whoever played games that came without names
FROZEN = re.compile(r"run:(?P<run>.+?)(#(?P<player>\d+))?(@(?P<step>\d+|final|best))?(:(?P<seed>\d+))?")


@dataclass(frozen=True)
class Phase:
    """A stretch of a run in which nobody changes seats."""

    start: int  # in game steps
    entries: tuple[str, ...]  # one a seat


@dataclass(frozen=True)
class Group:
    """Seats that one learner serves together: those with its name that are its own in the same phases."""

    learner: str
    seats: tuple[int, ...]
    phases: tuple[int, ...]


@dataclass(frozen=True)
class Frozen:
    """A policy of another run: `run:NAME#PLAYER@STEP:SEED`, of which only the name is needed."""

    run: str
    player: int | None  # counted from 1; none: the seat it sits in
    step: str
    seed: int | None  # none: the run's first

    def __str__(self) -> str:
        player = "" if self.player is None else f"#{self.player}"
        seed = "" if self.seed is None else f":{self.seed}"
        return f"run:{self.run}{player}@{self.step}{seed}"


def split(text: str) -> list[str]:
    """The entries of `--seats`, separated by commas."""
    entries = [entry.strip() for entry in text.split(",")]
    require(all(entries), f"--seats '{text}': there is nothing between two commas, or before or behind one")
    return entries


def spread(text: str | Sequence[str], seats: int, owner: str) -> tuple[str, ...]:
    """One entry for each seat: a single one fills all."""
    entries = split(text) if isinstance(text, str) else list(text)
    require(
        len(entries) in (1, seats),
        f"{owner} has {seats} seats, got {len(entries)} entries: give one for all, or {seats} with commas between",
    )
    return tuple(entries * seats if len(entries) == 1 else entries)


def pool(entry: str) -> tuple[str, ...]:
    """The members of `a+b`; an entry that is no pool is its only member."""
    members = tuple(member.strip() for member in entry.split("+"))
    require(all(members), f"'{entry}' is not a pool: write nearest_stag+nearest_hare")
    return members


def phases(entries: Sequence[str]) -> tuple[Phase, ...]:
    """The schedules of all seats, `a~200000~b`, as stretches of one run."""
    schedules = [_schedule(entry) for entry in entries]
    starts = sorted({start for schedule in schedules for start, _ in schedule})
    now = [
        max((part for part in schedule if part[0] <= start), key=lambda part: part[0])
        for start in starts
        for schedule in schedules
    ]
    count = len(schedules)
    return tuple(Phase(start, tuple(entry for _, entry in now[k * count : (k + 1) * count])) for k, start in enumerate(starts))


def _schedule(entry: str) -> list[tuple[int, str]]:
    """[(first step, who)] of `a~200000~b~300000~c`."""
    parts = [part.strip() for part in entry.split("~")]
    names, steps = parts[0::2], parts[1::2]
    numbers = all(step.isdecimal() for step in steps)
    fits = numbers and len(names) == len(steps) + 1 and all(names)
    require(fits, f"'{entry}' is not a schedule: write nearest_stag~200000~ppo, with the game step of each change")
    starts = [0, *map(int, steps)]
    require(starts == sorted(set(starts)), f"'{entry}': the steps of a schedule must grow, from more than 0")
    return list(zip(starts, names, strict=True))


def groups(stretches: Sequence[Phase], learners: Collection[str]) -> tuple[Group, ...]:
    """Which learners there are and the seats each serves, in order of their first seat.

    A seat that joins later learns in a group of its own: its parameters are not those of seats that have been learning.
    """
    found: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for seat in range(len(stretches[0].entries)):
        entries = [phase.entries[seat] for phase in stretches]
        for entry in entries:
            name, equals, _ = entry.partition("=")
            require(not (equals and name in learners), f"'{entry}': options of a learner stand apart: --{name}.entropy 0.01")
            named = sorted(set(pool(entry)) & set(learners))
            require(
                not named or entry == named[0],
                f"'{entry}': a pool holds scripts and frozen policies, and {named[0] if named else ''} learns",
            )
        for name in sorted(set(entries) & set(learners)):
            active = tuple(k for k, entry in enumerate(entries) if entry == name)
            found.setdefault((name, active), []).append(seat)
    ordered = sorted(found.items(), key=lambda item: item[1])
    return tuple(Group(name, tuple(seats), active) for (name, active), seats in ordered)


def frozen(entry: str) -> Frozen:
    """Read `run:NAME#PLAYER@STEP:SEED`."""
    match = FROZEN.fullmatch(entry)
    if match is None:
        raise BadInput(
            f"'{entry}' is not a frozen policy: write run:NAME, run:NAME#2 (player_2), run:NAME#2@STEP or run:NAME:SEED"
        )
    player = int(match["player"]) if match["player"] else None
    require(player != 0, f"'{entry}': players are counted from 1: run:{match['run']}#1")
    return Frozen(match["run"], player, match["step"] or "final", int(match["seed"]) if match["seed"] else None)
