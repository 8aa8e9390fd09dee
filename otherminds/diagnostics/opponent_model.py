"""How well the actions of partners are predicted, beside what could be known at best and by the laziest guess."""

import csv
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

LEAST = 1e-12  # of a probability, before its logarithm is taken


def measure(
    log_odds: np.ndarray,
    action: np.ndarray,
    exact: np.ndarray,
    names: Sequence[str],
    groups: dict[str, tuple[np.ndarray, Sequence[str]]],
) -> dict[str, Any]:
    """Scores of predictions [N, actions] (logarithms of probabilities) of the actions [N] that were then played.

    `exact` [N, actions] are the probabilities they were drawn from. `groups`: name -> (each step's index into, names), for the
    same scores of parts of the steps.
    """
    parts = {
        name: {label: headline(log_odds[which == k], action[which == k], exact[which == k]) for k, label in enumerate(labels)}
        for name, (which, labels) in groups.items()
    }
    found = headline(log_odds, action, exact) | {"by_action": by_action(log_odds, action, exact, names)}
    if "stay" in names:
        moved = action != list(names).index("stay")
        found["without_stay"] = headline(log_odds[moved], action[moved], exact[moved])
    return found | {"confusion": confusion(log_odds, action).tolist(), **parts}


def headline(log_odds: np.ndarray, action: np.ndarray, exact: np.ndarray) -> dict[str, Any]:
    """The scores that say most, each beside its ceiling: what the true probabilities themselves score, where known."""
    count = len(action)
    if not count:
        return {"steps": 0}
    steps, ceiling = np.arange(count), np.log(np.maximum(exact, LEAST))
    found = {
        "steps": count,
        "cross_entropy": _number(-log_odds[steps, action].mean()),
        "cross_entropy_exact": _number(-ceiling[steps, action].mean()),
        "top_1": _number(_hits(log_odds, action, 1)),
        "top_1_exact": _number(exact.max(-1).mean()),
        "top_3": _number(_hits(log_odds, action, 3)),
        "top_3_exact": _number(np.sort(exact, -1)[:, -3:].sum(-1).mean()),
        "majority": _number(np.bincount(action).max() / count),
    }
    return found if exact.any() else {name: score for name, score in found.items() if not name.endswith("_exact")}


def _hits(log_odds: np.ndarray, action: np.ndarray, among: int) -> float:
    best = np.argsort(-log_odds, -1, kind="stable")[:, :among]
    return float((best == action[:, None]).any(-1).mean())


def confusion(log_odds: np.ndarray, action: np.ndarray) -> np.ndarray:
    """[played, guessed]: how often."""
    actions = log_odds.shape[-1]
    return np.bincount(action * actions + log_odds.argmax(-1), minlength=actions**2).reshape(actions, actions)


def by_action(log_odds: np.ndarray, action: np.ndarray, exact: np.ndarray, names: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each action. `expected_recall` is the mean probability it was given where it was played."""
    counts, odds = confusion(log_odds, action), np.exp(log_odds)
    rows = []
    for k, name in enumerate(names):
        played, guessed, right = int(counts[k].sum()), int(counts[:, k].sum()), int(counts[k, k])
        precision, recall = right / guessed if guessed else None, right / played if played else None
        where = action == k
        rows.append(
            {
                "action": name,
                "count": played,
                "share": _number(where.mean()),
                "predicted_share": _number(odds[:, k].mean()),
                "precision": _number(precision),
                "recall": _number(recall),
                "f1": _number(2 * right / (guessed + played)) if guessed + played else None,
                "expected_recall": _number(odds[where, k].mean()) if played else None,
                "expected_recall_exact": _number(exact[where, k].mean()) if played and exact.any() else None,
            }
        )
    return rows


def as_csv(rows: list[dict[str, Any]]) -> str:
    """Rows as a table that any other program reads."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _number(value: Any) -> float | None:
    return None if value is None else float(f"{float(value):.6g}")
