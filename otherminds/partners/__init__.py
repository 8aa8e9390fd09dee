"""The register of scripted partners. Adding one costs one function and one line here."""

import importlib
from typing import TYPE_CHECKING

from otherminds.config import BadInput, closest

if TYPE_CHECKING:
    from otherminds.games.base import Game
    from otherminds.partners.base import Scripted

PARTNERS: dict[str, dict[str, str]] = {
    "any": {"random": "otherminds.partners.base:random"},
    "stag_hunt": {
        "nearest_stag": "otherminds.partners.stag_hunt:nearest_stag",
        "nearest_hare": "otherminds.partners.stag_hunt:nearest_hare",
        "patient": "otherminds.partners.stag_hunt:patient",
        "switcher": "otherminds.partners.stag_hunt:switcher",
        "stubborn": "otherminds.partners.stag_hunt:stubborn",
    },
    "snowdrift": {
        "never_clear": "otherminds.partners.snowdrift:never_clear",
        "nearest_drift": "otherminds.partners.snowdrift:nearest_drift",
    },
    "matrix": {
        "always_c": "otherminds.partners.matrix:always_c",
        "always_d": "otherminds.partners.matrix:always_d",
        "tit_for_tat": "otherminds.partners.matrix:tit_for_tat",
        "grim": "otherminds.partners.matrix:grim",
        "win_stay_lose_shift": "otherminds.partners.matrix:win_stay_lose_shift",
    },
}
"""Family of games -> name -> the function `(game, group, argument) -> Scripted` that makes it."""


def names_for(family: str) -> list[str]:
    """The partners that can play games of this family."""
    return sorted({**PARTNERS["any"], **PARTNERS.get(family, {})})


def make_partner(entry: str, game: "Game", group: int = 1) -> "Scripted":
    """The scripted partner written as `name` or `name=argument`, playing `group` seats, each on its own."""
    name, _, argument = entry.partition("=")
    known = {**PARTNERS["any"], **PARTNERS.get(game.family, {})}
    if name not in known:
        raise BadInput(f"no partner '{name}' for {game.id or game.family}: {closest(name, known)}")
    module, function = known[name].split(":")
    return getattr(importlib.import_module(module), function)(game, group, argument)
