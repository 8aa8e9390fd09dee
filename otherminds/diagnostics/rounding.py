"""Numbers with as many digits as are worth keeping."""

from typing import Any


def number(value: Any) -> float:
    return float(f"{float(value):.6g}")


def number_or_none(value: Any) -> float | None:
    return None if value is None else number(value)
