"""What codes are worth: how much they tell of the true goal, and how much better actions are foreseen with them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from otherminds import beliefs, goals
from otherminds.config import BadInput
from otherminds.diagnostics.asking import predicted
from otherminds.diagnostics.beliefs import History
from otherminds.diagnostics.rounding import number

AT_ONCE = 128  # episodes that are looked at together
CODES = ("without", "hindsight", "shuffled", "inferred", "by_bayes", "shuffled_by_bayes", "told")
"""Kinds of codes, by what is known when they are used. `told` are goals by hand as they truly are: what is wrong there is wrong
with the opponent model, not with inference."""


def scores(
    model: goals.Goals, rows: goals.Sequences, goal: np.ndarray, episode: np.ndarray, exact: History | None
) -> dict[str, Any]:
    """All scores of a model on episodes [n, T] of partners whose true goals [n, T] are known (-1: none is).

    `episode` [n] tells which are of the same games. `exact` is what exact beliefs make of the same steps.
    """
    found = predicted(model, read, rows, at_once=AT_ONCE)
    code, any_later, belief = (np.asarray(found[name]) for name in ("code", "any_later", "belief"))
    random = np.random.default_rng(0)
    others = borrowed(code, any_later, random), borrowed(belief, np.asarray(rows.seen), random)
    asked = (rows, found["code"], found["any_later"], found["belief"], *(jnp.asarray(part) for part in (*others, goal)))
    said = {name: np.asarray(part, np.float64) for name, part in predicted(model, _foreseen, asked, at_once=AT_ONCE).items()}
    kept = {name: np.asarray(part) for name, part in found.items() if name != "code"} | {
        "code": np.asarray(found["number"]) if model.codebook is not None else code
    }
    by_hand = model.to_code is None
    return measure(said | kept, np.asarray(rows.action), np.asarray(rows.seen), goal, episode, exact, by_hand)


def borrowed(x: np.ndarray, there: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """At each step [n, T], what belongs to another episode that has anything there."""
    found = x.copy()
    for step in range(there.shape[1]):
        some = random.permutation(np.flatnonzero(there[:, step]))
        found[some, step] = x[np.roll(some, 1), step]
    return found


def read(model: goals.Goals, rows: goals.Sequences) -> dict[str, Array]:
    """The code of hindsight at every step, as it was read (`raw`) and as it is used.

    Where codes can be counted, also its number and the belief before the step.
    """
    raw, any_later = model.hindsight(rows, model.look(rows))
    code, drawn_from = model.settled(raw, None)
    found = {"raw": raw, "code": code, "any_later": any_later & rows.seen}
    if model.codebook is None:
        return found | {"belief": jnp.zeros((*rows.seen.shape, 0))}
    likely, prior = goals.likelihood(model.each_code(rows), rows), jax.nn.softmax(model.prior)
    hindsight = goals.in_hindsight(likely, prior).argmax(-1)
    numbers = {"number": drawn_from.logits.argmax(-1), "number_by_bayes": hindsight}
    return found | numbers | {"belief": goals.by_bayes(likely, rows.seen, prior)}


def _foreseen(model: goals.Goals, asked: tuple[goals.Sequences, Array, Array, Array, Array, Array, Array]) -> dict[str, Array]:
    """For every step, the actions foreseen with each kind of code, as logarithms of odds."""
    rows, code, any_later, belief, other_code, other_belief, goal = asked
    thought = model.inferred(rows, model.look(rows))
    found = {
        "without": model.log_odds(rows, jnp.zeros_like(code)),
        "hindsight": model.log_odds(rows, jnp.where(any_later[..., None], code, 0.0)),
        "shuffled": model.log_odds(rows, jnp.where(any_later[..., None], other_code, 0.0)),
    }
    if model.codebook is None:
        return found | {"inferred": model.log_odds(rows, thought.mean)}
    each = model.each_code(rows)
    mixed = {"inferred": jax.nn.softmax(thought.logits), "by_bayes": belief, "shuffled_by_bayes": other_belief}
    if model.to_code is None:
        mixed["told"] = jnp.where((goal >= 0)[..., None], jax.nn.one_hot(goal, each.shape[2]), belief)
    weights = {name: jnp.log(jnp.maximum(weight, 1e-9))[..., None] for name, weight in mixed.items()}
    return found | {name: jax.nn.logsumexp(each + weight, 2) for name, weight in weights.items()}


def measure(
    said: dict[str, np.ndarray],
    action: np.ndarray,
    seen: np.ndarray,
    goal: np.ndarray,
    episode: np.ndarray,
    exact: History | None,
    by_hand: bool = False,
) -> dict[str, Any]:
    """Scores of codes in episodes [n, T]. `said` has `code`, `any_later` and, by kind of code, what is foreseen [n, T, actions].

    Codes of hindsight are set beside true goals where there are later steps to read and a goal is known.
    """
    kinds = [name for name in CODES if name in said]
    chosen = np.maximum(action, 0)[..., None]
    if not (goal[seen] >= 0).all():
        kinds = [name for name in kinds if name != "told"]  # of some there is nothing to tell
    cross_entropy = {name: float(-np.take_along_axis(said[name], chosen, -1)[..., 0][seen].mean()) for name in kinds}
    known = seen & (goal >= 0) & said["any_later"].astype(bool)
    found: dict[str, Any] = {"steps": int(seen.sum()), "cross_entropy": cross_entropy}
    if known.any():
        games, goal_ = len(np.unique(episode[known.any(1)])), goal[known].astype(int)
        if "number_by_bayes" in said:
            by_bayes = said["number_by_bayes"].astype(int)
            found["hindsight"] = information(said["code"][known].astype(int), goal_, games)
            found["hindsight_by_bayes"] = information(by_bayes[known], goal_, games)
            found["codes_used"] = int((np.bincount(by_bayes[known]) > 0.01 * known.sum()).sum())
            counts = seen & (goal >= 0)
            right = belief_in_truth(said["belief"], goal, counts, episode, by_hand)
            found["belief_by_step"] = [_mean(right[:, t]) for t in range(goal.shape[1])]
        else:
            half = np.broadcast_to((episode % 2 == 0)[:, None], seen.shape)[known]
            if half.any() and not half.all():
                found["hindsight"] = probed(said["code"][known], goal_, half)
    if exact is not None:
        found["cross_entropy_exact"] = exact.cross_entropy
        found["usefulness"] = usefulness(cross_entropy, exact.cross_entropy)
        if known.any():
            found["hindsight_exact"] = information(exact.hindsight[known], goal[known].astype(int), games)
    return found


DISTANCES = (0, 1, 2, 3, 4, 6, 8, 100)
MOVEMENTS = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3)
REST = 2  # steps without inference after one that moved nothing


def gate_curve(model: goals.Goals, rows: goals.Sequences, goal: np.ndarray, episode: np.ndarray) -> list[dict[str, Any]]:
    """What inference at fewer steps saves and what it costs: only near a goal, or only while the belief moves."""
    said = predicted(model, _of_each, rows, at_once=AT_ONCE)
    each, likely, near = (np.asarray(said[name]) for name in ("each", "likely", "near"))
    seen, prior = np.asarray(rows.seen), jax.nn.softmax(model.prior)
    chosen = np.maximum(np.asarray(rows.action), 0)[..., None]
    known = seen & (goal >= 0)

    def row(gate: str, at: float, belief: np.ndarray, active: np.ndarray) -> dict[str, Any]:
        odds = np.take_along_axis((np.exp(each) * belief[..., None]).sum(2), chosen, -1)[..., 0]
        right = _mean(belief_in_truth(belief, goal, known, episode, model.to_code is None))
        missed = float(-np.log(np.maximum(odds, 1e-12))[seen].mean())
        return {"gate": gate, "at": at, "saved": 1 - float(active[seen].mean()), "cross_entropy": missed, "belief": right}

    table = []
    for distance in DISTANCES if near.any() else ():
        active = seen & np.asarray(beliefs.gate_by_distance(jnp.asarray(near), distance))
        table.append(
            row("distance", distance, np.asarray(goals.by_bayes(jnp.asarray(likely), jnp.asarray(active), prior)), active)
        )
    for least in MOVEMENTS:
        moving = while_moving(jnp.asarray(likely), rows.seen, prior, least)
        table.append(row("movement", least, *(np.asarray(part) for part in moving)))
    return table


def _of_each(model: goals.Goals, rows: goals.Sequences) -> dict[str, Array]:
    each = model.each_code(rows)
    try:
        near = model.game.steps_to_goal(rows.view)
    except BadInput:
        near = jnp.zeros(rows.seen.shape, jnp.int32)
    return {"each": each, "likely": goals.likelihood(each, rows), "near": near}


def while_moving(
    likely: Float[Array, "n T codes"], seen: Bool[Array, "n T"], prior: Float[Array, " codes"], least: float
) -> tuple[Float[Array, "n T codes"], Bool[Array, "n T"]]:
    """(belief before each step, where it was thought about): after a step that moved nothing, inference rests for a while."""

    def step(carry: tuple[Array, Array], row: tuple[Array, Array]) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        (belief, rest), (likely, seen) = carry, row
        active = seen & (rest == 0)
        after = beliefs.after_action(belief, likely, active)
        still = active & ~beliefs.gate_by_movement(belief, after, least)
        return (after, jnp.where(still, REST, jnp.maximum(rest - 1, 0))), (belief, active)

    start = (jnp.broadcast_to(prior, (len(seen), len(prior))), jnp.zeros(len(seen), jnp.int32))
    found = jax.lax.scan(step, start, (jnp.swapaxes(likely, 0, 1), jnp.swapaxes(seen, 0, 1)))[1]
    belief, active = (jnp.swapaxes(part, 0, 1) for part in found)
    return belief, active


def belief_in_truth(belief: np.ndarray, goal: np.ndarray, counts: np.ndarray, episode: np.ndarray, by_hand: bool) -> np.ndarray:
    """[n, T]: belief [n, T, codes] in the true goal, where it `counts`; elsewhere not a number.

    Codes by hand are goals. What learned ones mean is read off every other game and measured in the rest: where one is believed
    in at the end of an episode, how often each goal is the true one. An episode has one voice, or whoever stays longest would be
    heard most, and belief in those who stay would seem to grow.
    """
    codes, shown = belief.shape[-1], counts
    if by_hand:
        meant = np.eye(codes)
    else:
        table = np.full((codes, max(goal.max(), 0) + 1), 1e-3)
        teaches = np.flatnonzero(counts.any(1) & (episode % 2 == 0))
        last = counts.shape[1] - 1 - counts[teaches, ::-1].argmax(1)
        np.add.at(table.T, goal[teaches, last], belief[teaches, last])
        meant, shown = table / table.sum(1, keepdims=True), counts & (episode % 2 == 1)[:, None]
    right = np.take_along_axis(belief @ meant, np.maximum(goal, 0)[..., None].astype(int), -1)[..., 0]
    return np.where(shown, right, np.nan)


def _mean(x: np.ndarray) -> float | None:
    """Of the numbers among them."""
    return number(np.nanmean(x)) if np.isfinite(x).any() else None


def information(code: np.ndarray, goal: np.ndarray, games: int) -> dict[str, float]:
    """Mutual information of codes [N] and true goals [N], whole numbers from 0, in nats and as a share of the goals' entropy.

    Steps of one game are not independent, so what chance alone would show is taken off as for so many `games` (Miller 1955).
    """
    table = np.zeros((code.max() + 1, goal.max() + 1))
    np.add.at(table, (code, goal), 1)
    table = table[table.any(1)][:, table.any(0)]
    joint = table / table.sum()
    apart = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
    known = joint > 0
    shared = float((joint[known] * np.log(joint[known] / apart[known])).sum())
    shared = max(0.0, shared - (table.shape[0] - 1) * (table.shape[1] - 1) / (2 * games))
    shares = joint.sum(0)
    entropy = float(-(shares * np.log(shares)).sum())
    return {"nats": shared, "of_entropy": shared / entropy} if entropy > 0 else {"nats": 0.0}


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

    `cross_entropy` has `without` and the kinds of codes; `exact` has `without` and `episode` (`beliefs.History`). All are set
    against the same: what is foreseen without history, by the model or by exact beliefs, whichever does better. A model may read
    off the board more of who is who than the time tells; a poor one does worse than that, and its codes would seem to bring more.
    """
    least = min(cross_entropy["without"], exact["without"])
    best = least - exact["episode"]
    brings = {name: least - value for name, value in cross_entropy.items() if name != "without"}
    return {"exact": best, **brings, "of_exact": {name: value / best for name, value in brings.items()} if best > 0 else {}}
