"""What a user can set and how we refuse what cannot be. Imports nothing heavy: the command line reads this file first."""

import ast
import difflib
from collections.abc import Iterable, Mapping
from typing import Any


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
    except (ValueError, SyntaxError):
        return value


def check_options(options: Mapping[str, Any], allowed: Iterable[str], owner: str) -> None:
    """Refuse options that `owner` does not have, naming the nearest one it has."""
    allowed = list(allowed)
    for key in options:
        if key not in allowed:
            hint = closest(key, allowed) if allowed else "it takes no options"
            raise BadInput(f"{owner} has no option '{key}': {hint}")
