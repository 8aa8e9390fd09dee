"""Curves to look at while a run goes on: TensorBoard, one curve per seed and seat, and Weights & Biases if asked for."""

import contextlib
import hashlib
import importlib
import os
import time
from pathlib import Path
from typing import Any

from otherminds import runs
from otherminds.config import BadInput, Train


def check_wandb(config: Train) -> None:
    """Refuse to begin what would fail at its first curve."""
    if config.wandb:
        _wandb()


def _wandb() -> Any:
    try:
        return importlib.import_module("wandb")
    except ImportError as error:
        raise BadInput("--wandb needs the package wandb: pip install wandb, or leave --wandb out") from error


class Curves:
    """Where rows of metrics are drawn. Points of one call are averaged: nobody looks at a thousand a second.

    Whatever was drawn later than the step `after`, by a process that died, is declared void.
    """

    def __init__(self, folder: Path, config: Train, after: int):
        self.folder, self.config, self.after = folder / "tensorboard", config, after
        self.files: dict[tuple[int, int], EventFile] = {}
        self.board = self._open_board(folder) if config.wandb else None

    def _open_board(self, folder: Path) -> Any:
        place = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:8]  # runs of one name in two places are two
        settings = runs.as_dict(self.config)
        return _wandb().init(
            project=self.config.wandb, name=folder.name, id=f"{folder.name}-{place}", resume="allow", config=settings
        )

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Draw rows of one call."""
        if not rows or not (self.config.tensorboard or self.board):
            return
        step = rows[-1]["step"]
        values: dict[tuple[int, int], dict[str, list[float]]] = {}
        for row in rows:
            curves = values.setdefault((row["seed"], row["seat"]), {})
            for name, value in row["metrics"].items():
                curves.setdefault(name, []).append(value)
        means = {who: {name: sum(x) / len(x) for name, x in curves.items()} for who, curves in values.items()}
        if self.config.tensorboard:
            for (seed, seat), averages in means.items():
                self._file(seed, seat).add(averages, step)
        if self.board:
            points = {
                f"{name}/seed_{s}/player_{a + 1}": mean for (s, a), curves in means.items() for name, mean in curves.items()
            }
            self.board.log(points | {"step": step})

    def _file(self, seed: int, seat: int) -> "EventFile":
        if (seed, seat) not in self.files:
            self.files[seed, seat] = EventFile(self.folder / f"seed_{seed}" / f"player_{seat + 1}", self.after)
        return self.files[seed, seat]

    def flush(self) -> None:
        """See to it that everything drawn so far is on disk."""
        for file in self.files.values():
            file.writer.flush()

    def close(self) -> None:
        for file in self.files.values():
            with contextlib.suppress(OSError):  # a full disk has been reported by the write that failed first
                file.writer.close()
        if self.board:
            self.board.finish()


class EventFile:
    """A file of TensorBoard's.

    Written at once: tensorboardX's SummaryWriter leaves that to a thread, and when its disk is full it waits for that for ever.
    """

    def __init__(self, folder: Path, after: int):
        from tensorboardX.event_file_writer import EventsWriter  # takes a second to import
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        folder.mkdir(parents=True, exist_ok=True)
        self.writer = EventsWriter(str(folder / "events"), f".{os.getpid()}.{after}")
        self.writer.write_event(Event(wall_time=time.time(), step=after + 1, session_log=SessionLog(status=SessionLog.START)))

    def add(self, values: dict[str, float], step: int) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        points = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self.writer.write_event(Event(wall_time=time.time(), step=step, summary=Summary(value=points)))
