"""What could be believed at best: Bayes' rule with the partners' true probabilities, over all that they may have in mind.

A partner is one of the scripts that were in the pool of its seat; a script may be minded in several ways. The belief at a step
rests on the actions before it.
"""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from otherminds.config import require
from otherminds.dataset import Dataset
from otherminds.partners import make_partner
from otherminds.partners.base import Mind

AT_ONCE = 20_000  # rows whose probabilities are computed together


@dataclass(frozen=True)
class Minds:
    """Everything a seat's partner may have in mind, for every row of a dataset."""

    share: np.ndarray  # [minds]: how likely before anything is seen
    odds: np.ndarray  # [N, minds, actions]: what would be played
    goal: np.ndarray  # [N, minds]: what would be aimed at; -1 for nothing


def minds_of(data: Dataset, seat: int) -> Minds:
    """The minds of the partner in a seat; those in the pool are equally likely."""
    rows, game = data.rows, data.game
    known = sorted(set(rows.who[:, seat].tolist()))
    scripts = [data.partners[k] for k in known]
    require(not any(name.startswith("run:") for name in scripts), "exact beliefs need scripts: the dataset has frozen policies")
    minds: list[tuple[float, Mind]] = [
        (mind.share / len(scripts), mind) for name in scripts for mind in make_partner(name, game).minds()
    ]
    step, episode = clocks(data)
    odds = np.empty((len(data), len(minds), game.actions), np.float32)
    goal = np.empty((len(data), len(minds)), np.int32)
    for begin in range(0, len(data), AT_ONCE):
        part = slice(begin, begin + AT_ONCE)
        seen = [jnp.asarray(x[part]) for x in (rows.observation[:, seat], rows.legal[:, seat], step, episode)]
        for k, (_, mind) in enumerate(minds):
            odds[part, k] = mind.probabilities(*seen)
            goal[part, k] = mind.goal(*seen[2:])
    return Minds(np.array([share for share, _ in minds]), odds, goal)


def clocks(data: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """(step within the episode, episode within the meeting) of every row, from 0."""
    rows, numbers = data.rows, np.arange(len(data))
    step = numbers - np.maximum.accumulate(np.where(rows.first, numbers, 0))
    episode = np.cumsum(rows.first) - 1
    opening = np.maximum.accumulate(np.where(rows.meeting, episode, 0))
    return step.astype(np.int32), (episode - opening).astype(np.int32)


def posterior(data: Dataset, seat: int, minds: Minds, lasting: bool) -> np.ndarray:
    """[N, minds]: the belief before each row's action, from earlier actions of the episode (`lasting`: of the meeting)."""
    rows = data.rows
    acted = np.take_along_axis(minds.odds, np.maximum(rows.action[:, seat], 0).astype(int)[:, None, None], -1)[..., 0]
    evidence = np.where(rows.present[:, seat, None], np.log(np.maximum(acted, 1e-30)), 0.0)
    fresh = rows.meeting if lasting else rows.first
    total = np.cumsum(evidence, 0, dtype=np.float64)
    before = np.vstack([np.zeros((1, total.shape[1])), total[:-1]])
    opening = np.maximum.accumulate(np.where(fresh, np.arange(len(data)), 0))
    log = np.log(minds.share) + before - before[opening]
    odds = np.exp(log - log.max(-1, keepdims=True))
    return odds / odds.sum(-1, keepdims=True)


def over_goals(minds: Minds, belief: np.ndarray, goals: int) -> np.ndarray:
    """[N, goals + 1]: the belief in each goal, and last, in none."""
    found = np.zeros((len(belief), goals + 1))
    for k in range(belief.shape[1]):
        np.add.at(found, (np.arange(len(belief)), minds.goal[:, k]), belief[:, k])  # -1 is the last
    return found


def expected(minds: Minds, belief: np.ndarray) -> np.ndarray:
    """[N, actions]: what is expected of the partner, given the belief."""
    return np.einsum("nm,nma->na", belief, minds.odds)


def value_of_history(data: Dataset, seat: int, minds: Minds) -> dict[str, Any]:
    """Cross-entropy of the partner's actions without history, with that of the episode, of the meeting, and knowing all."""
    there, action = data.rows.present[:, seat], data.rows.action[:, seat].astype(int)
    prior = np.broadcast_to(minds.share, (len(data), len(minds.share)))
    beliefs = {"without": prior, "episode": posterior(data, seat, minds, False), "meeting": posterior(data, seat, minds, True)}
    odds = {name: expected(minds, belief) for name, belief in beliefs.items()} | {"exact": data.rows.probabilities[:, seat]}
    steps = np.flatnonzero(there)
    return {name: float(-np.log(np.maximum(found[steps, action[steps]], 1e-12)).mean()) for name, found in odds.items()}
