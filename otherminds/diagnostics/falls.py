"""Whether the reward of a run fell after its peak, and which module moved first: by what the run logged and nothing else."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from otherminds.diagnostics.rounding import number
from otherminds.learners.base import Sign

COLLAPSE = 0.25  # share of what was gained that may be lost again
NOISE = 6  # standard errors by which two means of rewards may differ by chance, the best of many being one of them

EQUAL = 2  # standard errors within which a mean of rewards is as good as the best
NEAR = 0.01  # and the share of what was gained within which it is
SMOOTH = 5  # updates over which a metric is averaged before it is compared with its band
FEWEST = 8  # updates that a band can be made of
BAND = 3.0  # standard deviations to each side
NARROWEST = 0.02  # of a band, to each side: a share of the metric's own size. Some metrics hardly vary at all
NOTHING = 1e-6  # a metric that is never more than this is of a part that is switched off
STAYS = 0.9  # share of the updates that are left in which a metric is outside, if it stays there
REWARD = Sign("reward", "reward", "down")


def of_rewards(rows: Iterable[dict[str, Any]], begin: int) -> tuple[bool | None, dict[str, Any]]:
    """(whether there was no fall, figures) of the reward since update `begin`, when seats last changed. None: nobody can say."""
    updates, means = averaged(rows, REWARD)
    since = int(np.searchsorted(updates, begin, "right"))
    held, found = collapse(means[since:], means[:since])
    if "peak_at" in found:
        found["peak_update"] = int(updates[since + found.pop("peak_at")])
    return held, found


def collapse(rewards: np.ndarray, earlier: np.ndarray) -> tuple[bool | None, dict[str, Any]]:
    """(whether it is none, figures) of the mean rewards of updates since seats last changed, and of those before.

    What is lost is measured against what the whole run gained, because a learner that joins those who can play already may gain
    next to nothing. Noise is what neighbours differ by, without the trend they share and the largest twentieth, which may be the
    collapse itself.
    """
    if len(rewards) < 20:
        return None, {"reason": f"only {len(rewards)} updates in which episodes ended"}
    width = max(5, len(rewards) // 10)
    means = np.convolve(rewards, np.ones(width) / width, "valid")
    apart = np.diff(rewards) - np.median(np.diff(rewards))
    usual = np.sort(np.abs(apart))[: -max(1, len(apart) // 20)]
    noise = NOISE * float(np.sqrt((usual**2).mean() / 2 / width))
    best = int(means.argmax())
    start = min(float(means[0]), float(np.mean(np.concatenate([earlier, rewards])[:width])))
    peak, final = float(means[best]), float(means[-1])
    gained, lost = peak - start, peak - final
    allowed = max(COLLAPSE * gained, noise)
    found = {"start": start, "peak": peak, "final": final, "gained": gained, "lost": lost, "allowed": allowed, "noise": noise}
    if gained <= max(noise, 1e-6 * abs(peak)):
        return None, {"reason": "nothing was gained, so there is nothing to lose"} | found
    return lost <= allowed, found | {"peak_at": best + width - 1, "updates_averaged": width}


def averaged(rows: Iterable[dict[str, Any]], sign: Sign) -> tuple[np.ndarray, np.ndarray]:
    """(updates, mean over seeds and seats) of a metric, where it was logged."""
    by_update: dict[int, list[float]] = {}
    for row in rows:
        value, possible = row["metrics"].get(sign.metric), row["metrics"].get(sign.beside, 0.0)
        if value is not None:
            by_update.setdefault(row["update"], []).append(value - possible)
    updates = sorted(by_update)
    return np.array(updates, int), np.array([np.mean(by_update[update]) for update in updates])


@dataclass(frozen=True)
class Course:
    """A metric from shortly before the reward was at its best to the end, and the band in which it would be as it was."""

    sign: Sign
    updates: np.ndarray
    values: np.ndarray  # means over SMOOTH updates
    low: np.ndarray
    high: np.ndarray
    peak: int  # the update up to which the band is made
    left: int | None  # the first update outside, on the bad side
    beyond: float  # how far outside it is then, in widths of the band


def courses(rows: Sequence[dict[str, Any]], signs: Iterable[Sign], found: dict[str, Any], begin: int) -> list[Course]:
    """The reward and all else that was logged since update `begin`: who left the band first comes first, who never did last.

    Of several at once the policy comes first: one that plays otherwise shows all others games that they do not know, at the very
    same update. Else it is the one that is farthest outside.

    `found` is of `of_rewards`. What a metric was like is taken from the updates in which the reward was at its best, for as long
    as two stretches of those that rewards are averaged over. Where there are too few of them, nothing can be said.
    """
    width = found["updates_averaged"]
    peak = _at_its_best(*averaged((row for row in rows if row["update"] > begin), REWARD), width, found["gained"])
    drawn: list[Course] = []
    fall = None
    for sign in dict.fromkeys([REWARD, *signs]):
        updates, values = averaged((row for row in rows if row["update"] > begin), sign)
        near = updates > peak - 2 * width
        if (updates[near] <= peak).sum() >= FEWEST and np.abs(values).max() > NOTHING:
            drawn.append(_course(sign, updates[near], values[near], peak, 2 * width, fall))
            fall = drawn[-1].left if sign == REWARD else fall
    return sorted(drawn, key=lambda c: (c.left is None, c.left or 0, c.sign.module != "policy", -c.beyond))


def _at_its_best(updates: np.ndarray, rewards: np.ndarray, width: int, gained: float) -> int:
    """The update up to which metrics are what they were like when the reward was at its best.

    Where the best lasted, that is two stretches after it began (the reward was as good as in the best stretch, but for what the
    noise of that one can do, or next to nothing of what was gained): later, something may have moved already and the reward not
    yet. At the latest it is the middle of the best stretch.
    """
    means = np.convolve(rewards, np.ones(width) / width, "valid")
    best = int(means.argmax())
    error = float(np.sqrt((np.diff(rewards[best : best + width]) ** 2).mean() / 2 / width))
    first = int(np.argmax(means >= means[best] - max(EQUAL * error, NEAR * gained)))
    return int(updates[min(first + 2 * width, best) + width // 2])


def _course(sign: Sign, updates: np.ndarray, values: np.ndarray, peak: int, length: int, fall: int | None) -> Course:
    """The band is around where the metric was at the peak and where it was heading: one that goes on as it went has not moved.
    To go on getting worse is forgiven for as long again as was looked at. `fall` is when the reward left its own band."""
    time = updates - peak
    before = time <= 0
    slope, level = np.polyfit(time[before], values[before], 1)
    spread = float(np.std(values[before] - level - slope * time[before], ddof=2))
    half = max(BAND * spread, NARROWEST * abs(level), NOTHING)
    heading = level + slope * (time if sign.worse == "either" else np.minimum(time, length))
    low = np.where(before, heading, np.minimum(level, heading)) - half
    high = np.where(before, heading, np.maximum(level, heading)) + half
    smooth = np.convolve(values, np.ones(SMOOTH) / SMOOTH, "valid")
    late = slice(SMOOTH - 1, None)
    single = np.where(before, 0.0, _outside(sign, values, low, high))
    left = _departure(updates, single, _outside(sign, smooth, low[late], high[late]) > 0, fall)
    moment, beyond = (None, 0.0) if left is None else (int(updates[left]), float(single[left]) / half)
    return Course(sign, updates[late], smooth, low[late], high[late], peak, moment, beyond)


def _outside(sign: Sign, values: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """How far each value is outside the band on the bad side; 0 where it is not."""
    below, above = np.maximum(low - values, 0.0), np.maximum(values - high, 0.0)
    return {"up": above, "down": below, "either": above + below}[sign.worse]


def _departure(updates: np.ndarray, single: np.ndarray, outside: np.ndarray, fall: int | None) -> int | None:
    """The place of the first value with which a metric leaves its band to stay outside, or to be there while the reward falls.

    Critics get used to anything, so a metric may be back soon after the fall; what was back before it did no harm. `outside`
    is of means, and a single odd value is in SMOOTH of them; which value brought the first one outside, `single` says.
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], outside, [False]]).astype(int)))
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        culprits = np.flatnonzero(single[start : start + SMOOTH])
        lasts, rest = end - start >= 2 * SMOOTH, outside[start:]
        if not len(culprits) or not (lasts or end == len(outside)):
            continue
        first = int(start + culprits[0])
        for_good = len(rest) > SMOOTH and rest.mean() >= STAYS
        while_falling = fall is not None and lasts and updates[first] <= fall <= updates[end + SMOOTH - 2]
        if for_good or while_falling:
            return first
    return None


def table(drawn: Iterable[Course], steps_per_update: int) -> list[dict[str, Any]]:
    """Courses as rows: the band at the peak, where the metric is in the end, and when it left."""
    rows = []
    for course in drawn:
        at_peak = int(np.searchsorted(course.updates, course.peak, "right")) - 1
        rows.append(
            {
                "module": course.sign.module,
                "metric": course.sign.metric,
                "beside": course.sign.beside or None,
                "worse": course.sign.worse,
                "low": number(course.low[at_peak]),
                "high": number(course.high[at_peak]),
                "final": number(course.values[-1]),
                "left_at_step": None if course.left is None else course.left * steps_per_update,
            }
        )
    return rows
