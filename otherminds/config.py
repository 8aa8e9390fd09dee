"""What a user can set and how we refuse what cannot be. Imports nothing heavy: the command line reads this file first."""

import ast
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import tyro


class BadInput(ValueError):
    """Input we refuse. The message is one line: what was wrong, what was expected, what to type instead."""


def require(condition: bool, message: str) -> None:
    """Refuse the input with `message` unless `condition` holds."""
    if not condition:
        raise BadInput(message)


def closest(name: str, choices: Iterable[str], most: int = 3) -> str:
    """The end of an error message: the choices nearest to `name`, or all of them where none is near."""
    choices = sorted(choices)
    near = difflib.get_close_matches(name, choices, n=most, cutoff=0.4)
    return "did you mean " + " or ".join(near) + "?" if near else "choose from " + ", ".join(choices)


def parse_id(text: str) -> tuple[str, dict[str, Any]]:
    """Split `name?option=value&option=value`; values are read as Python literals, else kept as text.

    A value may be a list without brackets: `strengths=1,1,2,1`.
    """
    name, _, query = text.partition("?")
    options: dict[str, Any] = {}
    for part in filter(None, query.split("&")):
        key, equals, value = part.partition("=")
        require(bool(equals and key and value), f"option '{part}' in '{text}' is not of the form option=value")
        require(key not in options, f"option '{key}' is given twice in '{text}'")
        options[key] = _literal(value)
    return name, options


def _literal(value: str) -> Any:
    if value.lower() in ("true", "false", "none"):
        return {"true": True, "false": False, "none": None}[value.lower()]
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return value


def as_type(value: Any, wanted: Any, owner: str, option: str) -> Any:
    """An option's value as the type its field states: whole numbers serve as numbers, anything else must fit."""
    if isinstance(wanted, UnionType) or get_origin(wanted) is Union:
        kinds = get_args(wanted)
        if value is None and type(None) in kinds:
            return None
        wanted = next(kind for kind in kinds if kind is not type(None))
    if get_origin(wanted) is tuple:
        require(
            isinstance(value, tuple | list), f"{owner}: {option} is {value!r}, expected numbers with commas between: {option}=1,2"
        )
        return tuple(as_type(item, get_args(wanted)[0], owner, option) for item in value)
    if wanted is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53:
        return float(value)
    fits = isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool))
    name = {int: "a whole number", float: "a number", bool: "True or False", str: "a text"}[wanted]
    require(fits, f"{owner}: {option} is {value!r}, expected {name}")
    return value


def check_options(options: Mapping[str, Any], allowed: Iterable[str], owner: str) -> None:
    """Refuse options that `owner` does not have, naming the nearest one it has."""
    allowed = list(allowed)
    for key in options:
        if key not in allowed:
            hint = closest(key, allowed) if allowed else "it takes no options"
            raise BadInput(f"{owner} has no option '{key}': {hint}")


@dataclass(frozen=True)
class Demo:
    """Show what is here in a minute: scripted partners play each other, and a replay is left behind."""

    name: str = "demo"
    """A name under runs/, or a path: the folder for the results."""
    episodes: int = 2000
    """Episodes for each line of the table."""
    seed: int = 0
    json: bool = False
    """Print one JSON object and nothing else."""


@dataclass(frozen=True)
class List:
    """Show the games, the partners and the learners, one line each."""

    json: bool = False
    """Print one JSON object and nothing else."""


@dataclass(frozen=True)
class Watch:
    """Watch one episode: in the terminal, as PNG frames, as a GIF."""

    game: str = "stag_hunt-4x4-4h1s"
    """Id of the game, with options behind it: snowdrift-4x4?horizon=50."""
    seats: str = "random"
    """Who plays: one name for all seats, or one for each with commas between."""
    seed: int = 0
    gif: Path | None = None
    """Write the episode as a GIF here."""
    png: Path | None = None
    """Write the frames as PNG files into this folder."""
    cell: int = 64
    """Width of a cell in pixels."""
    delay: float = 0.4
    """Seconds a frame."""
    quiet: bool = False
    """Do not show the episode in the terminal."""


@dataclass(frozen=True)
class Audit:
    """Check a game for silent failures: PASS or FAIL, with the figures."""

    target: Annotated[str, tyro.conf.Positional]
    """Id of a game."""
    seed: int = 0
    json: bool = False
    """Print one JSON object and nothing else."""


@dataclass(frozen=True)
class Bench:
    """Measure speed, beside named peers in the same run."""

    what: Annotated[Literal["games"], tyro.conf.Positional]
    """What to measure."""
    games: tuple[str, ...] = ()
    """Ids of games; all of ours if none is named."""
    parallel: tuple[int, ...] = (1, 64, 1024, 4096)
    """Numbers of parallel games."""
    json: bool = False
    """Print one JSON object and nothing else."""
