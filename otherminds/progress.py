"""Progress on work that takes more than a moment. On standard error, so that `--json` output stays clean."""

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from rich.console import Console
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

Item = TypeVar("Item")


class Onlooker(Console):
    """A console on which work does not depend: when its reader leaves (`2>&1 | head`), a run of hours goes on in silence."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


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


class TrainingView:
    """A run as it goes: how far, how fast, what each seat earns and how it learns. Without a terminal: a line now and then."""

    SHOWN = ("reward", "evaluation_reward", "won", "value_loss", "policy_loss", "entropy", "kl", "explained_variance")
    EVERY = 10.0  # seconds between lines

    def __init__(self, name: str, entries: Sequence[str], steps: int, seeds: int):
        self.name, self.entries, self.steps, self.seeds = name, tuple(entries), steps, seeds
        self.console = Onlooker(stderr=True)
        self.live = Live(console=self.console, auto_refresh=False, transient=True) if self.console.is_terminal else None
        self.shown = 0.0
        self.latest: dict[int, dict[str, float]] = {}

    def __enter__(self) -> "TrainingView":
        if self.live:
            self.live.start()
            self.live.update(Text(f"{self.name}: compiling ..."), refresh=True)
        return self

    def __exit__(self, *error: object) -> None:
        if self.live:
            with contextlib.suppress(OSError):  # a terminal that is gone
                self.live.stop()

    def update(self, step: int, speed: float, rows: Sequence[Mapping[str, Any]], entries: Sequence[str]) -> None:
        """Take in the rows of a call; numbers are means over seeds and over its updates."""
        self.entries = tuple(entries)
        for seat in {row["seat"] for row in rows}:
            own = [row["metrics"] for row in rows if row["seat"] == seat]
            for name in self.SHOWN:
                values = [metrics[name] for metrics in own if name in metrics]
                if values:
                    self.latest.setdefault(seat, {})[name] = sum(values) / len(values)
        with contextlib.suppress(OSError):  # a terminal that is gone must not keep a run from being saved
            self._show(step, speed)

    def _show(self, step: int, speed: float) -> None:
        now = time.monotonic()
        if self.live:
            self.live.update(self._table(step, speed), refresh=True)
        elif now - self.shown >= self.EVERY:
            self.shown = now
            known = [f"{metrics['reward']:.2f}" for _, metrics in sorted(self.latest.items()) if "reward" in metrics]
            rewards = "reward " + "  ".join(known) if known else "no episode over yet"
            self.console.print(f"{self._head(step, speed)}  {rewards}", highlight=False, soft_wrap=True)

    def _head(self, step: int, speed: float) -> str:
        left = (self.steps - step) * self.seeds / speed if speed else 0.0
        minutes, seconds = divmod(max(round(left), 0), 60)
        return f"{self.name}  {step:,} of {self.steps:,} steps  {speed:,.0f} game steps/s  {minutes}:{seconds:02} left"

    def _table(self, step: int, speed: float) -> Table:
        names = [name for name in self.SHOWN if any(name in metrics for metrics in self.latest.values())]
        title = self._head(step, speed) + (f"  mean of {self.seeds} seeds" if self.seeds > 1 else "")
        table = Table("seat", "who", *(name.replace("_", " ") for name in names), title=title, title_justify="left")
        for seat, metrics in sorted(self.latest.items()):
            numbers = [f"{metrics[name]:.3f}" if name in metrics else "" for name in names]
            table.add_row(f"player_{seat + 1}", self.entries[seat], *numbers)
        return table
