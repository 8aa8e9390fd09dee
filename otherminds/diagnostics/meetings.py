"""What a frozen policy earned among strangers, how well it foresaw them, and what it believed of them.

Everything is of one seed, on arrays [steps, meetings, partners] (`adaptation.Seen`).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from otherminds.diagnostics.opponent_model import LEAST, by_action, headline
from otherminds.evaluate import estimate
from otherminds.games.base import Game

SURE = 0.9  # of a belief in the true goal
STEPS, EPISODES = 12, 20  # by which beliefs are kept


def episodes(seen: Any, last: int) -> tuple[np.ndarray, np.ndarray]:
    """(mean reward of the episodes that end in the `last` steps, by meeting; mean by the number of the episode)."""
    steps, games = seen.reward.shape
    total, episode = np.zeros(games), np.zeros(games, int)
    late, count = np.zeros(games), np.zeros(games)
    by_episode = np.full((games, steps), np.nan)
    for t in range(steps):
        total += seen.reward[t]
        ended = np.flatnonzero(seen.first[t])
        by_episode[ended, episode[ended]] = total[ended]
        if t >= steps - last:
            late[ended] += total[ended]
            count[ended] += 1
        episode[ended] += 1
        total[ended] = 0.0
    everybody = int(episode.min())
    return late / np.maximum(count, 1), by_episode[:, : max(everybody, 1)].mean(0)


def read_codes(seen: Any, goals: int, named: bool) -> np.ndarray | None:
    """P(true goal | place and code), [halves, P, codes, goals + 1], read off every other meeting for those between; the last goal
    is none. What a code says is a matter of the partner's place.

    Codes that are `named` are the goals themselves. None where nothing is believed, or where all partners are after the same: any
    code would then stand for it.
    """
    belief = seen.belief
    if not belief.shape[-1] or len(np.unique(seen.goal[seen.there])) < 2:
        return None
    if named:
        return np.broadcast_to(np.eye(goals + 1), (2, belief.shape[-2], goals + 1, goals + 1))
    truth = np.eye(goals + 1)[np.where(seen.goal >= 0, seen.goal, goals)]
    weight = seen.there[..., None]
    halves = []
    for half in (1, 0):
        at = np.arange(belief.shape[1]) % 2 == half
        together = np.einsum("tnpc,tnpg->pcg", (belief * weight)[:, at], truth[:, at]) + 1e-3
        halves.append(together / together.sum(-1, keepdims=True))
    return np.stack(halves)


def figures(seen: Any, reads: np.ndarray | None, game: Game, partners: Sequence[str], last: int) -> dict[str, Any]:
    """How well partners were foreseen, beside the laziest guess and the best anybody could do, and what was believed of them.

    Tables by action are of the `last` steps, when everybody knows everybody.
    """
    found: dict[str, Any] = {"searched": float((seen.searched & seen.acted).sum() / max(seen.acted.sum(), 1))}
    if not seen.foreseen.shape[-1] or not seen.there.any():
        return found
    found["foresight"] = _headline(seen.foreseen, seen, seen.there)
    late = np.arange(len(seen.there)) >= len(seen.there) - last
    settled = seen.there & late[:, None, None]
    names = list(dict.fromkeys(partners))
    who = np.broadcast_to(np.array([names.index(name) for name in partners]), settled.shape)
    found["by_partner"] = {}
    for number, name in enumerate(names):
        rows = settled & (who == number)
        if rows.any():
            table = by_action(_log(seen.foreseen[rows]), seen.action[rows], seen.truth[rows], game.action_names)
            played = [row for row in table if row["count"]]
            found["by_partner"][name] = _headline(seen.foreseen, seen, rows) | {"by_action": played}
    if seen.misled.shape[-1]:
        found["misled_cross_entropy"] = _headline(seen.misled, seen, seen.there)["cross_entropy"]
    if reads is not None:
        found |= beliefs(seen, reads, len(game.goals))
    return found


def _headline(foreseen: np.ndarray, seen: Any, rows: np.ndarray) -> dict[str, Any]:
    return headline(_log(foreseen[rows]), seen.action[rows], seen.truth[rows])


def _log(odds: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(odds.astype(np.float64), LEAST))


def beliefs(seen: Any, reads: np.ndarray, goals: int) -> dict[str, Any]:
    """The belief in what partners were really after: in all, by step, by episode, and how soon it is sure."""
    truth = np.where(seen.goal >= 0, seen.goal, goals)
    in_goals = np.einsum("tnpc,npcg->tnpg", seen.belief, reads)
    believed = np.take_along_axis(in_goals, truth[..., None], -1)[..., 0]
    step, episode = counted(seen.first)
    return {
        "belief": float(believed[seen.there].mean()),
        "belief_by_step": _by(believed, seen.there, step, STEPS),
        "belief_by_episode": _by(believed, seen.there, episode, EPISODES),
        "steps_until_sure": steps_until_sure(believed, seen.there, step),
    }


def counted(first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(step within its episode, number of the episode) of each row."""
    step, episode = np.zeros(first.shape, int), np.zeros(first.shape, int)
    for t in range(1, len(first)):
        step[t] = np.where(first[t - 1], 0, step[t - 1] + 1)
        episode[t] = episode[t - 1] + first[t - 1]
    return step, episode


def _by(values: np.ndarray, there: np.ndarray, number: np.ndarray, most: int) -> list[float]:
    """Means of what has each number, up to the last one that anything has."""
    found = []
    for k in range(most):
        where = there & (number == k)[..., None]
        if not where.any():
            break
        found.append(float(values[where].mean()))
    return found


def steps_until_sure(believed: np.ndarray, there: np.ndarray, step: np.ndarray) -> float | None:
    """Steps of an episode until the belief in a partner's true goal passes SURE, mean over episodes in which it ever does."""
    found, waiting = [], np.zeros(believed.shape[1:], bool)
    for t in range(len(believed)):
        waiting |= (step[t] == 0)[:, None]
        sure = waiting & there[t] & (believed[t] > SURE)
        found += list(np.broadcast_to(step[t][:, None], sure.shape)[sure])
        waiting &= ~sure
    return float(np.mean(found)) if found else None


def over_seeds(scores: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds of every number, wherever it stands; with an interval where there are seeds enough for one. Of curves, as
    far as all seeds have them; of tables, by action."""
    found: dict[str, Any] = {}
    for name in scores[0]:
        values = [score[name] for score in scores if score.get(name) is not None]
        if not values:
            found[name] = None
        elif isinstance(values[0], dict):
            found[name] = over_seeds(values)
        elif name == "by_action":
            rows = [{row["action"]: row for row in table} for table in values]
            known = [action for action in rows[0] if all(action in table for table in rows)]
            found[name] = {action: over_seeds([table[action] for table in rows]) for action in known}
        elif isinstance(values[0], list):
            found[name] = [float(np.mean(column)) for column in zip(*values, strict=False)]
        elif isinstance(values[0], int | float):
            found[name] = _mean(values)
    return found


def _mean(values: Sequence[float]) -> dict[str, float]:
    whole = estimate(np.array(values, float))
    return {"mean": whole.mean, "low": whole.low, "high": whole.high} if len(values) >= 3 else {"mean": whole.mean}
