"""Measures of modules as pictures. Loads matplotlib only when something is drawn."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def _figure(rows: int, columns: int, width: float, height: float) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(rows, columns, figsize=(width, height), squeeze=False, layout="constrained")


def _save(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


def actions(found: dict[str, Any], path: Path) -> Path:
    """Of an opponent model: the confusion matrix, true beside predicted shares, recall of each action beside its ceiling."""
    names = [row["action"] for row in found["by_action"]]
    counts = np.array(found["confusion"], float)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    figure, axes = _figure(1, 3, 13, 4.2)
    matrix, beside, recall = axes[0]
    matrix.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for k, row in enumerate(shares):
        for j, share in enumerate(row):
            matrix.text(j, k, f"{share:.2f}", ha="center", va="center", fontsize=7, color="white" if share > 0.5 else "black")
    matrix.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=7)
    matrix.set_yticks(range(len(names)), names, fontsize=7)
    matrix.set(xlabel="guessed", ylabel="played", title="what was guessed where it was played")
    _bars(beside, names, {"played": [row["share"] for row in found["by_action"]], "predicted": _column(found, "predicted_share")})
    beside.set_title("share of each action")
    _bars(recall, names, {"model": _column(found, "expected_recall"), "exact": _column(found, "expected_recall_exact")})
    recall.set_title("probability given where it was played")
    return _save(figure, path)


def _column(found: dict[str, Any], name: str) -> list[float]:
    return [row[name] or 0.0 for row in found["by_action"]]


def _bars(axis: Any, names: Sequence[str], series: dict[str, Sequence[float]]) -> None:
    width = 0.8 / len(series)
    for k, (label, values) in enumerate(series.items()):
        axis.bar(np.arange(len(names)) + (k - (len(series) - 1) / 2) * width, values, width, label=label)
    axis.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=7)
    axis.grid(axis="y", alpha=0.3)
    axis.legend(fontsize=8)


def losses(rows: list[dict[str, Any]], path: Path) -> Path:
    """Every metric of a fit by epoch, training and held out, a line for each seed, on a log axis where it is positive."""
    kinds = sorted({(row["split"], name) for row in rows for name in row["metrics"] if name != "steps"})
    columns = min(4, len(kinds))
    figure, axes = _figure(-(-len(kinds) // columns), columns, 3.2 * columns, 2.4 * -(-len(kinds) // columns))
    for axis in axes.flat[len(kinds) :]:
        axis.remove()
    for axis, (split, name) in zip(axes.flat, kinds, strict=False):
        for seed in sorted({row["seed"] for row in rows}):
            points = [
                (row["epoch"], row["metrics"][name])
                for row in rows
                if row["seed"] == seed and row["split"] == split and row["metrics"].get(name) is not None
            ]
            axis.plot(*zip(*points, strict=True), marker=".", linewidth=1)
        if all(row["metrics"].get(name, 1) > 0 for row in rows if row["split"] == split):
            axis.set_yscale("log")
        axis.set_title(f"{name.replace('_', ' ')} ({split.replace('_', ' ')})", fontsize=9)
        axis.tick_params(labelsize=7)
        axis.grid(alpha=0.3)
    figure.supxlabel("epoch", fontsize=9)
    return _save(figure, path)


def boards(before: np.ndarray, true: np.ndarray, said: np.ndarray, labels: Sequence[str], path: Path) -> Path:
    """A step as planes [planes, H, W]: what was seen, what followed, what was foreseen, and the difference, never rounded."""
    rows = {"before": before, "true": true, "foreseen": said, "difference": said - true}
    figure, axes = _figure(len(rows), len(labels), 1.3 * len(labels) + 0.6, 1.45 * len(rows))
    for line, (name, planes) in zip(axes, rows.items(), strict=True):
        for axis, plane, label in zip(line, planes, labels, strict=True):
            colours = {"cmap": "RdBu", "vmin": -1, "vmax": 1} if name == "difference" else {"cmap": "Greys", "vmin": 0, "vmax": 1}
            axis.imshow(plane, **colours)
            axis.set_xticks([])
            axis.set_yticks([])
            if name == "before":
                axis.set_title(label, fontsize=8)
        line[0].set_ylabel(name, fontsize=8)
    return _save(figure, path)


def curve(x: Sequence[float], lines: dict[str, Sequence[float]], labels: tuple[str, str], path: Path) -> Path:
    """Named lines over one axis."""
    figure, axes = _figure(1, 1, 5, 3.4)
    axis = axes[0, 0]
    for name, values in lines.items():
        axis.plot(x, values, marker=".", label=name)
    axis.set(xlabel=labels[0], ylabel=labels[1])
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    return _save(figure, path)


def goal_map(code: np.ndarray, goal: np.ndarray, names: Sequence[str], path: Path) -> Path:
    """Codes [N, size] in the two directions in which they differ most, coloured by the true goal."""
    centred = code - code.mean(0)
    _, strength, directions = np.linalg.svd(centred, full_matrices=False)
    flat = centred @ directions[:2].T
    figure, axes = _figure(1, 1, 5, 4.4)
    axis = axes[0, 0]
    for k, name in enumerate(names):
        axis.scatter(*flat[goal == k].T, s=4, alpha=0.4, label=name)
    share = strength[:2] ** 2 / max(float((strength**2).sum()), 1e-12)
    axis.set(xlabel=f"first direction ({share[0]:.0%})", ylabel=f"second direction ({share[1]:.0%})")
    axis.legend(fontsize=8, markerscale=3)
    return _save(figure, path)
