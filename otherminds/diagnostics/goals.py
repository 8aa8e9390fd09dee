"""What codes are worth: how much they tell of the true goal, and how much better actions are foreseen with them."""

from typing import Any

import numpy as np


def measure(
    said: dict[str, np.ndarray], action: np.ndarray, seen: np.ndarray, goal: np.ndarray, exact: dict[str, float] | None
) -> dict[str, Any]:
    """Scores of codes in episodes [n, T]. `said` has `code`, `any_later` and, by kind of code, what is foreseen [n, T, actions].

    Codes of hindsight are set beside true goals where there are later steps to read and a goal is known.
    """
    kinds: list[str] = [name for name in ("without", "hindsight", "shuffled", "inferred", "by_bayes") if name in said]
    chosen = np.maximum(action, 0)[..., None]
    cross_entropy = {name: float(-np.take_along_axis(said[name], chosen, -1)[..., 0][seen].mean()) for name in kinds}
    known = seen & (goal >= 0) & said["any_later"].astype(bool)
    found: dict[str, Any] = {"steps": int(seen.sum()), "cross_entropy": cross_entropy}
    if known.any():
        discrete = said["code"].ndim == 2
        if discrete:
            found["hindsight"] = information(said["code"][known].astype(int), goal[known].astype(int))
            found["codes_used"] = int((np.bincount(said["code"][known].astype(int)) > 0.01 * known.sum()).sum())
        else:
            half = np.broadcast_to((np.arange(len(seen)) % 2 == 0)[:, None], seen.shape)[known]
            found["hindsight"] = probed(said["code"][known], goal[known].astype(int), half)
    if exact is not None:
        found["cross_entropy_exact"] = exact
        found["usefulness"] = usefulness(cross_entropy, exact)
    return found


def information(code: np.ndarray, goal: np.ndarray) -> dict[str, float]:
    """Mutual information of codes [N] and true goals [N], whole numbers from 0, in nats and as a share of the goals' entropy."""
    table = np.zeros((code.max() + 1, goal.max() + 1))
    np.add.at(table, (code, goal), 1)
    joint = table / table.sum()
    apart = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
    known = joint > 0
    shared = float((joint[known] * np.log(joint[known] / apart[known])).sum())
    shares = joint.sum(0)[joint.sum(0) > 0]
    entropy = float(-(shares * np.log(shares)).sum())
    return {"nats": shared, "of_entropy": shared / entropy if entropy > 0 else 0.0}


def probed(code: np.ndarray, goal: np.ndarray, train: np.ndarray, rounds: int = 300) -> dict[str, float]:
    """The same for codes of real numbers [N, size]: what a linear probe, fitted on rows marked `train`, tells of the others."""
    goals = goal.max() + 1
    x = np.concatenate([(code - code[train].mean(0)) / (code[train].std(0) + 1e-6), np.ones((len(code), 1))], 1)
    weight, truth = np.zeros((x.shape[1], goals)), np.eye(goals)[goal]
    for _ in range(rounds):
        odds = _softmax(x[train] @ weight)
        weight -= 1.0 * (x[train].T @ (odds - truth[train]) / train.sum() + 1e-3 * weight)
    odds, kept = _softmax(x[~train] @ weight), goal[~train]
    shares = np.bincount(kept, minlength=goals) / len(kept)
    entropy = float(-(shares[shares > 0] * np.log(shares[shares > 0])).sum())
    left = float(-np.log(np.maximum(odds[np.arange(len(kept)), kept], 1e-12)).mean())
    return {
        "nats": entropy - left,
        "of_entropy": (entropy - left) / entropy if entropy > 0 else 0.0,
        "accuracy": float((odds.argmax(1) == kept).mean()),
    }


def _softmax(x: np.ndarray) -> np.ndarray:
    odds = np.exp(x - x.max(1, keepdims=True))
    return odds / odds.sum(1, keepdims=True)


def usefulness(cross_entropy: dict[str, float], exact: dict[str, float]) -> dict[str, Any]:
    """How many nats each kind of code brings, beside what exact beliefs over the true goals bring from the same history.

    `cross_entropy` has `without` and the kinds of codes; `exact` has `without` and `episode` (`beliefs.value_of_history`).
    """
    best = exact["without"] - exact["episode"]
    brings = {name: cross_entropy["without"] - value for name, value in cross_entropy.items() if name != "without"}
    return {"exact": best, **brings, "of_exact": {name: value / best for name, value in brings.items()} if best > 0 else {}}
