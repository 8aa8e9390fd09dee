"""Progress on work that takes more than a moment. On standard error, so that `--json` output stays clean."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Item = TypeVar("Item")


def bar() -> Progress:
    """A progress bar with the time spent and the time left; it vanishes when the work is over."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True)


def track(items: Iterable[Item], description: str, total: int | None = None) -> Iterator[Item]:
    """Go through `items` with a progress bar."""
    known = len(items) if isinstance(items, Sequence) else total
    with bar() as progress:
        task = progress.add_task(description, total=known)
        for item in items:
            yield item
            progress.advance(task)
