"""The register of games. Adding a game costs one file and one line here. Loads a game's module only when it is asked for."""

import importlib
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, get_type_hints

from otherminds.config import BadInput, as_type, check_options, closest, parse_id

if TYPE_CHECKING:
    from otherminds.games.base import Game


@dataclass(frozen=True)
class Entry:
    """Where a game's class is and the options that make this id of it."""

    target: str
    options: dict[str, Any] = field(default_factory=dict)


def _stag_hunt(**options: Any) -> Entry:
    return Entry("otherminds.games.stag_hunt:StagHunt", options)


def _snowdrift(**options: Any) -> Entry:
    return Entry("otherminds.games.snowdrift:Snowdrift", options)


def _matrix(**options: Any) -> Entry:
    return Entry("otherminds.games.matrix:Matrix", options)


GAMES: dict[str, Entry] = {
    "stag_hunt": _stag_hunt(),
    "stag_hunt-4x4-4h1s": _stag_hunt(height=4, width=4),
    "stag_hunt-6x6-4h1s": _stag_hunt(height=6, width=6),
    "stag_hunt-8x8-4h1s": _stag_hunt(height=8, width=8),
    "stag_hunt-8x8-4h1s-5b": _stag_hunt(height=8, width=8, blocks=5),
    "stag_hunt-8x8-4h2s": _stag_hunt(height=8, width=8, stags=2),
    "snowdrift-4x4": _snowdrift(height=4, width=4, horizon=15),
    "snowdrift-6x6": _snowdrift(height=6, width=6, horizon=25),
    "snowdrift-8x8": _snowdrift(height=8, width=8, horizon=50),
    "matrix-ipd": _matrix(payoffs="ipd"),
    "matrix-stag_hunt": _matrix(payoffs="stag_hunt"),
    "matrix-chicken": _matrix(payoffs="chicken"),
    "matrix-matching_pennies": _matrix(payoffs="matching_pennies"),
}

BRIDGES = {"jaxmarl": "otherminds.games.jaxmarl", "pettingzoo": "otherminds.games.pettingzoo"}
"""Prefix of an id -> the module whose `make(name, options)` brings in a game of another library."""


def make(game_id: str) -> "Game":
    """The game with this id. Options stand behind it: `snowdrift-4x4?horizon=50`, `stag_hunt?height=5&width=7`."""
    name, options = parse_id(game_id)
    prefix, colon, rest = name.partition(":")
    if colon and prefix in BRIDGES:
        game: Game = importlib.import_module(BRIDGES[prefix]).make(rest, options)
    elif name in GAMES:
        game = _make_own(name, options)
    else:
        raise BadInput(f"no game '{name}': {closest(name, [*GAMES, *(f'{prefix}:NAME' for prefix in BRIDGES)])}")
    object.__setattr__(game, "id", game_id)
    return game


def _make_own(name: str, options: dict[str, Any]) -> "Game":
    entry = GAMES[name]
    module, class_name = entry.target.split(":")
    game_class = getattr(importlib.import_module(module), class_name)
    allowed = [f.name for f in fields(game_class) if f.metadata.get("option", True)]
    check_options(options, allowed, name)
    types = get_type_hints(game_class)
    given = {option: as_type(value, types[option], name, option) for option, value in options.items()}
    return game_class(**{**entry.options, **given})
