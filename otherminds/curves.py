"""Curves to look at while a run goes on: TensorBoard, one curve per seed and seat, and Weights & Biases if asked for."""

import importlib
from pathlib import Path
from typing import Any

from otherminds import runs
from otherminds.config import BadInput, Train


class Curves:
    """Where rows of metrics are drawn. Points of one call are averaged: nobody looks at a thousand a second."""

    def __init__(self, folder: Path, config: Train, resumed_at: int | None):
        self.folder, self.config, self.resumed_at = folder / "tensorboard", config, resumed_at
        self.writers: dict[tuple[int, int], Any] = {}
        self.board = self._open_board(folder) if config.wandb else None

    def _open_board(self, folder: Path) -> Any:
        try:
            wandb = importlib.import_module("wandb")
        except ImportError as error:
            raise BadInput("--wandb needs the package wandb: pip install wandb, or leave --wandb out") from error
        name = folder.name
        return wandb.init(project=self.config.wandb, name=name, id=name, resume="allow", config=runs.as_dict(self.config))

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
        for (seed, seat), averages in means.items():
            for name, mean in averages.items():
                if self.config.tensorboard:
                    self._writer(seed, seat).add_scalar(name, mean, step)
        if self.board:
            points = {
                f"{name}/seed_{s}/player_{a + 1}": mean for (s, a), curves in means.items() for name, mean in curves.items()
            }
            self.board.log(points | {"step": step})

    def _writer(self, seed: int, seat: int) -> Any:
        if (seed, seat) not in self.writers:
            from tensorboardX import SummaryWriter  # takes a second to import

            place = self.folder / f"seed_{seed}" / f"player_{seat + 1}"
            purge = None if self.resumed_at is None else self.resumed_at + 1
            self.writers[seed, seat] = SummaryWriter(str(place), purge_step=purge)
        return self.writers[seed, seat]

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()
        if self.board:
            self.board.finish()
