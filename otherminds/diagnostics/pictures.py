"""Measures of modules as pictures. Loads matplotlib only when something is drawn."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

WIDE = 3.0  # between the largest and the smallest value of a curve on a log axis


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
    axis.margins(y=0.2)  # room for the legend
    axis.legend(fontsize=8, ncols=len(series))


def losses(rows: list[dict[str, Any]], path: Path) -> Path:
    """Every metric of a fit by epoch, training and held out, a line for each seed, on a log axis where it spans much."""
    rows = [row for row in rows if row.get("metrics") and "split" in row]
    kinds = sorted({(row["split"], name) for row in rows for name in row["metrics"] if name != "steps"})
    if not kinds:
        return path  # a fit whose rows are gone
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
        values = [row["metrics"][name] for row in rows if row["split"] == split and row["metrics"].get(name) is not None]
        if min(values) > 0 and max(values) > WIDE * min(values):
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


def depth(table: list[dict[str, Any]], path: Path) -> Path:
    """Errors of a world model that is fed with its own predictions, by how many steps ahead."""
    figure, axes = _figure(1, 2, 9, 3.4)
    steps = [row["steps"] for row in table]
    for axis, name, title in zip(axes[0], ("mse", "exact_board"), ("squared error", "boards foreseen exactly"), strict=True):
        for suffix, label in (("", "fed with boards of 0 and 1"), ("_continuous", "fed with what it said, as it is")):
            values = [row.get(name + suffix) for row in table]
            if None not in values:
                axis.plot(steps, values, marker=".", label=label)
        axis.set(xlabel="steps ahead", title=title)
        axis.grid(alpha=0.3)
    axes[0, 0].set_yscale("log")
    axes[0, 0].legend(fontsize=8)
    return _save(figure, path)


def belief(found: dict[str, Any], path: Path) -> Path:
    """Belief in the true goal over the steps of an episode, and the prior over the episodes of a meeting."""
    figure, axes = _figure(1, 2, 10, 3.4)
    for axis, name, label in zip(
        axes[0], ("by_step", "by_episode"), ("step of the episode", "episode of the meeting"), strict=True
    ):
        rows = found[name]
        for key, line in (("model", "by the model"), ("exact", "by exact Bayes")):
            values = [row[key] for row in rows]
            if rows and None not in values:
                axis.plot([row[name[3:]] for row in rows], values, marker=".", label=line)
        axis.set(xlabel=label, ylim=(0, 1.02))
        axis.grid(alpha=0.3)
    axes[0, 0].set_title("belief in the true goal", fontsize=10)
    axes[0, 1].set_title("belief in it when an episode opens", fontsize=10)
    axes[0, 0].legend(fontsize=8, loc="lower right")
    return _save(figure, path)


UNREADABLE = 0.01  # share of steps saved below which labels would stand on each other


def gate(rows: list[dict[str, Any]], path: Path) -> Path:
    """What inference at fewer steps saves and what it costs, a line for each kind of gate."""
    figure, axes = _figure(1, 2, 10, 3.4)
    for axis, name, title in zip(
        axes[0], ("cross_entropy", "belief"), ("cross-entropy of what partners do", "belief in the true goal"), strict=True
    ):
        for kind in dict.fromkeys(row["gate"] for row in rows):
            line = [(row["saved"], row[name], row["at"]) for row in rows if row["gate"] == kind and row[name] is not None]
            if line:
                axis.plot([x for x, _, _ in line], [y for _, y, _ in line], marker=".", label=kind)
                above = 3 if kind == "distance" else -8
                for x, y, at in line:
                    if x > UNREADABLE:
                        axis.annotate(f"{at:g}", (x, y), fontsize=6, xytext=(2, above), textcoords="offset points")
        axis.set(xlabel="share of steps without inference", title=title)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    return _save(figure, path)


def codes(
    view: np.ndarray,
    players: int,
    odds: np.ndarray,
    shares: Sequence[float],
    meant: Sequence[str],
    names: Sequence[str],
    path: Path,
) -> Path:
    """Each code as a board: what a partner with it would do where it stands in `view` [planes, H, W]. Arrows are odds."""
    arrows = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
    columns = min(4, len(odds))
    figure, axes = _figure(-(-len(odds) // columns), columns, 2.6 * columns, 2.9 * -(-len(odds) // columns))
    for axis in axes.flat[len(odds) :]:
        axis.remove()
    row, column = np.argwhere(view[0] > 0)[0]
    things = view[players:]
    for axis, chance, share, goal in zip(axes.flat, odds, shares, meant, strict=False):
        axis.imshow(np.zeros(view.shape[1:]), cmap="Greys", vmin=0, vmax=1)
        for plane, (colour, mark) in zip(things, (("black", "s"), ("tab:red", "D"), ("tab:green", "^")), strict=False):
            if 0 < (plane > 0).sum() < plane.size:
                y, x = np.nonzero(plane)
                axis.scatter(x, y, s=90, marker=mark, color=colour)
        axis.scatter([column], [row], s=140, color="tab:blue")
        for name, p in zip(names, chance, strict=True):
            if name in arrows and p > 0.03:
                dx, dy = arrows[name]
                axis.arrow(column, row, 0.8 * dx * p, 0.8 * dy * p, width=0.06, color="tab:blue", length_includes_head=True)
        rest = ", ".join(f"{name} {p:.2f}" for name, p in zip(names, chance, strict=True) if name not in arrows and p > 0.03)
        axis.set_title(f"{share:.0%} of steps: {goal}", fontsize=8)
        axis.set_xlabel(rest, fontsize=7)
        axis.set_xticks(np.arange(view.shape[2] + 1) - 0.5, [])
        axis.set_yticks(np.arange(view.shape[1] + 1) - 0.5, [])
        axis.grid(alpha=0.4)
    return _save(figure, path)


def by_seat(rows: list[dict[str, Any]], names: Sequence[str], path: Path) -> Path:
    """Metrics of a run over its updates, a line for each seat, mean over seeds; on log axes where all are positive."""
    seats = sorted({row["seat"] for row in rows})
    columns = min(3, len(names))
    figure, axes = _figure(-(-len(names) // columns), columns, 3.8 * columns, 2.6 * -(-len(names) // columns))
    for axis in axes.flat[len(names) :]:
        axis.remove()
    for axis, name in zip(axes.flat, names, strict=False):
        values: list[float] = []
        for seat in seats:
            points: dict[int, list[float]] = {}
            for row in rows:
                if row["seat"] == seat and row["metrics"].get(name) is not None:
                    points.setdefault(row["step"], []).append(row["metrics"][name])
            line = [float(np.mean(points[step])) for step in sorted(points)]
            values += line
            axis.plot(sorted(points), line, linewidth=0.8, label=f"player_{seat + 1}")
        if min(values) > 0 and max(values) > WIDE * min(values):
            axis.set_yscale("log")
        axis.set_title(name.replace("_", " "), fontsize=9)
        axis.tick_params(labelsize=7)
        axis.grid(alpha=0.3)
    axes[0, 0].legend(fontsize=7)
    figure.supxlabel("game steps", fontsize=9)
    return _save(figure, path)


def courses(drawn: Sequence[Any], steps_per_update: int, path: Path) -> Path:
    """Metrics of each module since shortly before the reward was at its best, their bands, and the moment each left its own;
    errors on log axes where they span much."""
    columns = min(3, len(drawn))
    lines = -(-len(drawn) // columns)
    figure, axes = _figure(lines, columns, 4.2 * columns, 2.7 * lines)
    for axis in axes.flat[len(drawn) :]:
        axis.remove()
    for axis, course in zip(axes.flat, drawn, strict=False):
        steps = course.updates * steps_per_update
        axis.fill_between(steps, course.low, course.high, color="tab:blue", alpha=0.15, linewidth=0, label="band")
        axis.plot(steps, course.values, linewidth=1)
        axis.axvline(course.peak * steps_per_update, color="black", linestyle=":", linewidth=1, label="reward at its best")
        if course.left is not None:
            axis.axvline(course.left * steps_per_update, color="tab:red", linewidth=1.5, label="left its band")
        if course.sign.worse == "up" and min(course.values) > 0 and max(course.values) > WIDE * min(course.values):
            axis.set_yscale("log")
            axis.set_ylim(min(course.values) / WIDE, max(course.values) * WIDE)  # a band may reach below 0
        sign = course.sign
        above = " over its ceiling" if sign.beside else ""
        title = sign.metric if sign.module == sign.metric else f"{sign.module}: {sign.metric}"
        axis.set_title(title.replace("_", " ") + above, fontsize=8)
        axis.tick_params(labelsize=7)
        axis.grid(alpha=0.3)
    for axis in axes.flat[: len(drawn)]:
        if axis.get_legend_handles_labels()[1]:
            axis.legend(fontsize=7)
            break
    figure.supxlabel("game steps", fontsize=9)
    return _save(figure, path)


def plane_names(players: int, things: Sequence[str]) -> list[str]:
    """What to write above the planes of a board."""
    return ["ego", *(f"other {k}" for k in range(1, players)), *things]
