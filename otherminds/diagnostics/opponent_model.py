"""How well the actions of partners are predicted, beside what could be known at best and by the laziest guess."""

import csv
import io
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from otherminds.config import OpponentModel as Config
from otherminds.diagnostics.asking import predicted
from otherminds.diagnostics.rounding import number_or_none
from otherminds.games.base import Game, is_board
from otherminds.opponent_model import OpponentModel
from otherminds.samples import PartnerSteps, shows_all

LEAST = 1e-12  # of a probability, before its logarithm is taken


def scores(model: OpponentModel, config: Config, game: Game, partners: Sequence[str], steps: PartnerSteps) -> dict[str, Any]:
    """All scores of a model on steps of partners."""

    def log_odds(steps: PartnerSteps, keep_goal: bool = True) -> np.ndarray:
        return np.asarray(predicted(model, _foreseen, steps, config, game, len(partners), keep_goal), np.float64)

    action, best = np.asarray(steps.action), np.asarray(steps.ceiling, np.float64)
    players = [f"player_{seat + 1}" for seat in range(game.seats)]
    groups = {"by_partner": (np.asarray(steps.who), partners), "by_player": (np.asarray(steps.ego), players)}
    if is_board(game) and not shows_all(game):
        unseen = np.asarray(steps.view[:, 0]).reshape(len(action), -1).sum(1) == 0
        groups["by_sight"] = (unseen.astype(int), ("in_sight", "out_of_sight"))
    said, mixture = log_odds(steps), np.asarray(steps.mixture, np.float64)
    found = measure(said, action, best, game.action_names, groups)
    if mixture.any(-1).all():
        found["cross_entropy_mixture"] = number_or_none(
            -np.log(np.maximum(mixture, LEAST))[np.arange(len(action)), action].mean()
        )
        found["top_1_mixture"] = number_or_none(mixture.max(-1).mean())
    if config.goal:
        found["goal"] = worth_of_goal(
            {
                "told": said,
                "untold": log_odds(steps, keep_goal=False),
                "shuffled": log_odds(eqx.tree_at(lambda s: s.goal, steps, jnp.roll(steps.goal, 1))),
            },
            action,
            best,
            np.asarray(steps.without, np.float64),
        )
    return found


def _foreseen(
    model: OpponentModel, steps: PartnerSteps, config: Config, game: Game, partners: int, keep_goal: bool
) -> Float[Array, "n actions"]:
    return jax.nn.log_softmax(model(game.scaled(steps.view), steps.told(config, game, partners, keep_goal)))


def worth_of_goal(
    said: dict[str, np.ndarray], action: np.ndarray, exact: np.ndarray, exact_without: np.ndarray
) -> dict[str, float | None]:
    """Cross-entropy with the goal told, not told, and that of another step told; and what telling it could bring at best."""
    steps = np.arange(len(action))
    missed = {name: -odds[steps, action].mean() for name, odds in said.items()}
    if (exact.sum(-1) > 0).all() and (exact_without.sum(-1) > 0).all():
        for name, odds in (("told_exact", exact), ("untold_exact", exact_without)):
            missed[name] = -np.log(np.maximum(odds, LEAST))[steps, action].mean()
    found = {name: number_or_none(value) for name, value in missed.items()}
    brings = missed["untold_exact"] - missed["told_exact"] if "told_exact" in missed else None
    return found | {
        "usefulness": number_or_none(missed["untold"] - missed["told"]),
        "usefulness_exact": number_or_none(brings),
    }


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
    """The scores that say most, each beside its ceiling: what the true probabilities themselves would score."""
    count = len(action)
    if not count:
        return {"steps": 0}
    steps, ceiling = np.arange(count), np.log(np.maximum(exact, LEAST))
    known = bool((exact.sum(-1) > 0).all())
    return {
        "steps": count,
        "cross_entropy": number_or_none(-log_odds[steps, action].mean()),
        "cross_entropy_exact": number_or_none(-ceiling[steps, action].mean()) if known else None,
        "top_1": number_or_none(_hits(log_odds, action, 1)),
        "top_1_exact": number_or_none(exact.max(-1).mean()) if known else None,
        "top_3": number_or_none(_hits(log_odds, action, 3)),
        "top_3_exact": number_or_none(np.sort(exact, -1)[:, -3:].sum(-1).mean()) if known else None,
        "majority": number_or_none(np.bincount(action).max() / count),
    }


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
                "share": number_or_none(where.mean()),
                "predicted_share": number_or_none(odds[:, k].mean()),
                "precision": number_or_none(precision),
                "recall": number_or_none(recall),
                "f1": number_or_none(2 * right / (guessed + played)) if guessed + played else None,
                "expected_recall": number_or_none(odds[where, k].mean()) if played else None,
                "expected_recall_exact": number_or_none(exact[where, k].mean()) if played and exact[where].any() else None,
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
