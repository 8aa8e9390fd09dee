"""What could be believed at best: Bayes' rule with the partners' true probabilities, over all that they may have in mind.

A partner is one of the scripts that play in the games; a script may be minded in several ways. The belief at a step rests on the
actions before it.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from otherminds import beliefs
from otherminds.config import BadInput, require
from otherminds.dataset import Dataset
from otherminds.diagnostics.asking import predicted
from otherminds.diagnostics.rounding import number
from otherminds.goals import Goals, Sequences, likelihood
from otherminds.lineup import UNKNOWN
from otherminds.partners import make_partner
from otherminds.partners.base import Mind
from otherminds.samples import seen_by, shows_all

AT_ONCE = 20_000  # rows whose probabilities are computed together


@dataclass(frozen=True)
class Minds:
    """Everything a seat's partner may have in mind, for every row of a dataset."""

    share: np.ndarray  # [minds]: how likely before anything is seen
    who: np.ndarray  # [minds]: whose mind it is, an index into `Dataset.partners`
    odds: np.ndarray  # [N, minds, actions]: what would be played
    goal: np.ndarray  # [N, minds]: what would be aimed at; -1 for nothing


def minds_of(data: Dataset, seat: int, odds_too: bool = True) -> Minds:
    """All that whoever sits in a seat may have in mind. Who looks does not know the seat: it may be any partner of the games, as
    likely as it is met in them. Without odds it is a matter of moments."""
    rows, game = data.rows, data.game
    met = np.bincount(rows.who[rows.first].ravel(), minlength=len(data.partners))
    known = np.flatnonzero(met).tolist()
    scripts = [data.partners[k] for k in known]
    strange = [name for name in scripts if name.startswith("run:") or name == UNKNOWN]
    require(not strange, f"exact beliefs need scripts, and the dataset has {', '.join(strange)}")
    minds: list[tuple[float, int, Mind]] = [
        (mind.share * float(met[k] / met.sum()), k, mind)
        for k, name in zip(known, scripts, strict=True)
        for mind in make_partner(name, game).minds()
    ]
    step, episode = clocks(data)
    odds = np.empty((len(data), len(minds), game.actions if odds_too else 0), np.float32)
    goal = np.empty((len(data), len(minds)), np.int32)
    for begin in range(0, len(data), AT_ONCE):
        part = slice(begin, begin + AT_ONCE)
        seen = [jnp.asarray(x[part]) for x in (rows.observation[:, seat], rows.legal[:, seat], step, episode)]
        for k, (_, _, mind) in enumerate(minds):
            if odds_too:
                odds[part, k] = _probabilities(mind.probabilities, *seen)
            goal[part, k] = mind.goal(*seen[2:])
    return Minds(np.array([share for share, _, _ in minds]), np.array([who for _, who, _ in minds]), odds, goal)


@partial(jax.jit, static_argnums=0)
def _probabilities(of: Callable[..., Array], *seen: Array) -> Array:
    return of(*seen)


def clocks(data: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """(step within the episode, episode within the meeting) of every row, from 0."""
    rows, numbers = data.rows, np.arange(len(data))
    step = numbers - np.maximum.accumulate(np.where(rows.first, numbers, 0))
    episode = np.cumsum(rows.first) - 1
    opening = np.maximum.accumulate(np.where(rows.meeting, episode, 0))
    return step.astype(np.int32), (episode - opening).astype(np.int32)


def posterior(data: Dataset, seat: int, minds: Minds, lasting: bool, seen: np.ndarray | None = None) -> np.ndarray:
    """[N, minds]: the belief before each row's action, from earlier actions of the episode (`lasting`: of the meeting).

    `seen` [N] are the rows in which somebody watches; without it, all in which the partner is there.
    """
    rows = data.rows
    there = rows.present[:, seat] if seen is None else seen & rows.present[:, seat]
    acted = np.take_along_axis(minds.odds, np.maximum(rows.action[:, seat], 0).astype(int)[:, None, None], -1)[..., 0]
    evidence = np.where(there[:, None], np.log(np.maximum(acted, 1e-30)), 0.0)
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


def counted(data: Dataset, minds: Minds, by_goal: bool) -> np.ndarray:
    """[longest, goals + 1, minds]: how often each mind is met at each step, where the true goal (last: none) is told or is not.

    What a partner is after, and how long it has been at it, says something of who it is.
    """
    rows, step = data.rows, clocks(data)[0]
    found = np.zeros((step.max() + 1, len(data.game.goals) + 1, len(minds.share)))
    for seat in range(data.game.seats):
        goal, who = rows.goal[:, seat].astype(int), rows.who[:, seat].astype(int)
        is_it = (minds.who[None] == who[:, None]) & (minds.goal == goal[:, None]) & rows.present[:, seat, None]
        np.add.at(found, (step, goal), is_it)
    return found if by_goal else np.broadcast_to(found.sum(1, keepdims=True), found.shape)


def mixture(data: Dataset, seat: int, minds: Minds, counts: np.ndarray, may_be: np.ndarray) -> np.ndarray:
    """[N, actions]: the best guess of whoever knows the true goal and the time, or the time alone, as the counts are, and that it
    `may_be` only some of the minds."""
    step = np.minimum(clocks(data)[0], len(counts) - 1)
    met = counts[step, data.rows.goal[:, seat].astype(int)] + 1e-9 * minds.share
    return expected(minds, _shares(met * may_be))


@dataclass(frozen=True)
class Ceiling:
    """What could be known of each action [N, A, actions]; zeros where nobody can say."""

    bound: np.ndarray
    """By exact Bayes from what is told and all that the partner did before in the episode. No look at the board can beat that."""
    mixture: np.ndarray
    """From what is told and the time alone. A look at the board, which tells something of who is who, can beat that."""


def ceilings(data: Dataset, counted_on: Dataset, partners: Sequence[str], *told: tuple[bool, bool]) -> list[Ceiling]:
    """For whoever is `told` (the goal, who it is, if it is one of these `partners`: of others it cannot be said who they are).

    Known of scripts that show all they act on; told both, of everybody who left its probabilities behind. `counted_on` are the
    games that tell how often each partner is met.
    """
    truth = data.rows.probabilities
    named = np.array([name in partners for name in data.partners])[data.rows.who]  # [N, A]
    found = []
    for both in told:
        known = np.where((named & all(both))[..., None], truth, 0.0)
        found.append(Ceiling(known, known.copy()))
    if not shows_all(data.game) or (all(map(all, told)) and named.all()):
        return found
    for seat in range(data.game.seats):
        try:
            here, there = minds_of(data, seat), minds_of(counted_on, seat, odds_too=False)
        except BadInput:
            continue
        same = here.who.tolist() == there.who.tolist()  # else how often each is met is known of these games alone
        before = posterior(data, seat, here, False)
        for (goal, identity), best in zip(told, found, strict=True):
            told_who = identity & named[:, seat, None]
            is_it = (here.who[None] == data.rows.who[:, seat, None]) | ~told_who
            fits = is_it & ((here.goal == data.rows.goal[:, seat, None]) | (not goal))
            counts = counted(counted_on, there, goal) if same else counted(data, here, goal)
            guesses = (expected(here, _shares(before * fits)), mixture(data, seat, here, counts, is_it))
            for place, guess in zip((best.bound, best.mixture), guesses, strict=True):
                place[:, seat] = np.where(told_who & goal, place[:, seat], guess)
    return found


def _shares(weight: np.ndarray) -> np.ndarray:
    return weight / np.maximum(weight.sum(-1, keepdims=True), 1e-300)


@dataclass(frozen=True)
class History:
    """What exact beliefs make of the steps [n, T] of partners."""

    cross_entropy: dict[str, float]
    """Of their actions: `without` knows the time alone, `episode` the actions before it in the episode, `meeting` all that was
    done since the partners met, watched or not, and `exact` everything."""
    hindsight: np.ndarray  # [n, T]: the goal that is likeliest by later actions alone; the number of goals stands for none


def history(data: Dataset, counted_on: Dataset, row: np.ndarray, seat: np.ndarray, seen: np.ndarray) -> History | None:
    """Exact beliefs at `row`, `seat` (both [n, T]) of partners who are watched where `seen`.

    None: they are no scripts, or act on what whoever looks cannot see.
    """
    if not shows_all(data.game):
        return None
    total = dict.fromkeys(("without", "episode", "meeting", "exact"), 0.0)
    hindsight = np.zeros(row.shape, int)
    try:
        found = {k: (minds_of(data, k), minds_of(counted_on, k, odds_too=False)) for k in range(data.game.seats)}
    except BadInput:
        return None
    for k, (minds, there) in found.items():
        at = row[seen & (seat == k)]
        action = data.rows.action[at, k].astype(int)
        same = minds.who.tolist() == there.who.tolist()
        counts = counted(counted_on, there, False) if same else counted(data, minds, False)
        odds = {
            "without": mixture(data, k, minds, counts, np.ones((1, 1), bool)),
            "episode": expected(minds, posterior(data, k, minds, False)),
            "meeting": expected(minds, posterior(data, k, minds, True)),
            "exact": data.rows.probabilities[:, k],
        }
        if not data.rows.probabilities[at, k].any(-1).all():
            return None  # scripts by name, who did not leave behind what they drew from
        for name, said in odds.items():
            total[name] -= float(np.log(np.maximum(said[at, action], 1e-12)).sum())
        own = seat[:, 0] == k
        hindsight[own] = _by_later_actions(data, k, minds, row[own], seen[own])
    goals = len(data.game.goals)
    return History({name: value / seen.sum() for name, value in total.items()}, np.where(hindsight < 0, goals, hindsight))


def _by_later_actions(data: Dataset, seat: int, minds: Minds, row: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """[n, T]: the goal of the mind that is likeliest by the actions after each step; -1 for none."""
    action = np.maximum(data.rows.action[row, seat], 0).astype(int)
    acted = np.take_along_axis(minds.odds[row], action[..., None, None], -1)[..., 0]
    evidence = np.where(seen[..., None], np.log(np.maximum(acted, 1e-30)), 0.0)
    after = np.flip(np.cumsum(np.flip(evidence, 1), 1), 1) - evidence
    likeliest = (np.log(minds.share) + after).argmax(-1)
    return np.take_along_axis(minds.goal[row], likeliest[..., None], -1)[..., 0]


# --- what is believed by whoever has a model ---


def believed(
    data: Dataset, likelihood: np.ndarray, reached: np.ndarray | None, seen: np.ndarray, lasting: bool, switching: float = 0.0
) -> np.ndarray:
    """[N, goals]: the belief before each row's action by Bayes' rule, as a player carries it through a dataset.

    `likelihood` [N, goals] is that of what was done, `reached` [N] the goal that a row's step reached, `seen` [N] where somebody
    watched. A new episode opens with even odds or, if `lasting`, with what earlier ones of the meeting taught. Without `reached`,
    what an episode taught is what was thought likeliest at its end; one in which nothing was seen teaches nothing.
    """
    shown = np.full(len(data), -1) if reached is None else np.where(seen, reached, -1)
    columns = (likelihood.astype(np.float32), shown.astype(np.int32), seen, data.rows.first, data.rows.meeting)
    return np.asarray(_believed(tuple(jnp.asarray(x) for x in columns), switching, lasting, reached is None))


@partial(jax.jit, static_argnums=(1, 2, 3))
def _believed(rows: tuple[Array, ...], switching: float, lasting: bool, likeliest: bool) -> Array:
    goals = rows[0].shape[-1]
    nobody = jnp.int32(-1)

    def step(carry: tuple[Array, beliefs.Counts, Array], row: tuple[Array, ...]) -> tuple[Any, Array]:
        belief, counts, taught = carry
        likely, reached, seen, first, meeting = row
        learned = counts.after_episode(taught)
        counts = jax.tree.map(lambda new, old: jnp.where(first, new, old), learned, counts)
        counts = jax.tree.map(lambda new, old: jnp.where(meeting, new, old), beliefs.Counts.empty((), goals), counts)
        belief = jnp.where(first, counts.prior() if lasting else beliefs.even((), goals), belief)
        after = beliefs.after_action(belief, likely, seen, switching)
        shows = jnp.where(seen, after.argmax().astype(jnp.int32), nobody) if likeliest else reached
        taught = jnp.where(shows >= 0, shows, jnp.where(first, nobody, taught))
        return (after, counts, taught), belief

    return jax.lax.scan(step, (beliefs.even((), goals), beliefs.Counts.empty((), goals), nobody), rows)[1]


def carried(model: Goals, data: Dataset, counted_on: Dataset, switching: float = 0.0) -> dict[str, Any]:
    """How a model's beliefs fare beside exact ones, when each partner is watched by the player before it, through a dataset.
    How likely each partner is before anything is seen is known from other games, `counted_on`.

    `by_step`: belief in the true goal before each step of an episode that opens with even odds, and its mean distance to the
    exact belief. `by_episode`: the belief when an episode opens, from those before it in the meeting.
    """
    game, rows, goals = data.game, data.rows, len(data.game.goals)
    (step, episode), by_hand = clocks(data), model.to_code is None
    likely = [_likelihood(model, data, seat, (seat - 1) % game.seats) for seat in range(game.seats)]
    scored = np.ones(len(data), bool) if by_hand else np.cumsum(rows.meeting) % 2 == 0
    meant = np.eye(goals) if by_hand else meaning(data, likely, ~scored)
    parts: dict[str, list[np.ndarray]] = {
        name: [] for name in ("step", "episode", "model", "exact", "apart", "prior", "prior_exact")
    }
    exact_known = shows_all(game)  # else they act on what whoever looks cannot see
    for seat in range(game.seats):
        ego = (seat - 1) % game.seats
        seen = rows.present[:, seat] & rows.present[:, ego]
        reached = rows.goal_reached[:, seat] if by_hand else None
        inside, across = (believed(data, likely[seat], reached, seen, lasting, switching) for lasting in (False, True))
        counts = seen & scored & (rows.goal[:, seat] >= 0)
        at, goal = np.flatnonzero(counts), rows.goal[counts, seat].astype(int)
        here, opening = ((x @ meant)[at] for x in (inside, across))
        parts["step"].append(step[at])
        parts["episode"].append(np.where(rows.first[at], episode[at], -1))
        parts["model"].append(here[np.arange(len(at)), goal])
        parts["prior"].append(opening[np.arange(len(at)), goal])
        if not exact_known:
            continue
        try:
            minds, there = minds_of(data, seat), minds_of(counted_on, seat, odds_too=False)
        except BadInput:
            exact_known = False
            continue
        if minds.who.tolist() == there.who.tolist():
            minds = dataclasses.replace(minds, share=there.share)
        for name, lasting in (("exact", False), ("prior_exact", True)):
            best = over_goals(minds, posterior(data, seat, minds, lasting, seen), goals)[at, :-1]
            best = best / np.maximum(best.sum(-1, keepdims=True), 1e-12)  # of those who are after something
            parts[name].append(best[np.arange(len(at)), goal])
            if not lasting:
                parts["apart"].append(np.abs(here - best).mean(-1))
    whole = {name: np.concatenate(part) for name, part in parts.items() if part}
    if not len(whole["step"]):
        return {"by_step": [], "by_episode": []}  # nobody is known to be after anything
    exact_known = exact_known and "exact" in whole
    table = [_mean_row(whole, "step", "model", "exact", k, exact_known) for k in range(int(whole["step"].max()) + 1)]
    opens = [_mean_row(whole, "episode", "prior", "prior_exact", k, exact_known) for k in range(int(whole["episode"].max()) + 1)]
    found: dict[str, Any] = {"by_step": [row for row in table if row], "by_episode": [row for row in opens if row]}
    if exact_known and found["by_step"]:
        found["largest_difference"] = max(row["difference"] for row in found["by_step"])
    return found


LEAST_ROWS = 50  # below which a mean is not given


def _mean_row(whole: dict[str, np.ndarray], clock: str, model: str, exact: str, k: int, exact_known: bool) -> dict[str, Any]:
    chosen = whole[clock] == k
    if chosen.sum() < LEAST_ROWS:
        return {}
    row = {clock: k + 1, "rows": int(chosen.sum()), "model": number(whole[model][chosen].mean()), "exact": None}
    if exact_known:
        row["exact"] = number(whole[exact][chosen].mean())
        if clock == "step":
            row["difference"] = number(whole["apart"][chosen].mean())
    return row


def _likelihood(model: Goals, data: Dataset, seat: int, ego: int) -> np.ndarray:
    """[N, codes]: of what the partner did in each row, for each code, as `ego` sees it."""
    rows, count = data.rows, len(data)
    place = np.full(count, (seat - ego) % data.game.seats)
    view = seen_by(data, np.arange(count), np.full(count, ego), place)
    action, nothing = jnp.asarray(rows.action[:, seat], jnp.int32)[:, None], jnp.zeros((count, 1))
    seen = jnp.asarray(rows.present[:, seat])[:, None]
    whose = (jnp.full(count, seat), jnp.full(count, ego))
    moments = Sequences(jnp.asarray(view)[:, None], action, nothing, nothing, seen, jnp.full(count, -1), *whose)
    return np.asarray(predicted(model, _likely, moments))[:, 0]


def _likely(model: Goals, rows: Sequences) -> Array:
    return likelihood(model.each_code(rows), rows)


def meaning(data: Dataset, likely: list[np.ndarray], where: np.ndarray) -> np.ndarray:
    """[codes, goals]: how often each goal is the true one where a code is believed in, after whole episodes, at rows `where`.

    `likely` [N, codes] of each seat. An episode has one voice: if each step had one, whoever stays longest would be heard most.
    """
    rows, goals = data.rows, len(data.game.goals)
    episode = np.cumsum(rows.first) - 1
    table = np.full((likely[0].shape[-1], goals), 1e-3)
    for seat, odds in enumerate(likely):
        evidence = np.zeros((episode[-1] + 1, odds.shape[-1]))
        log = np.where(rows.present[:, seat, None], np.log(np.maximum(odds, 1e-6)), 0.0)
        np.add.at(evidence, episode, log)
        belief = _shares(np.exp(evidence - evidence.max(-1, keepdims=True)))
        goal, counts = rows.goal[rows.first, seat].astype(int), where[rows.first] & (rows.goal[rows.first, seat] >= 0)
        table += belief[counts].T @ np.eye(goals)[goal[counts]]
    return _shares(table)
