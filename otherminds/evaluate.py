"""What policies earn: whole episodes, an equal number in every parallel game, none favoured for being short."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PRNGKeyArray
from scipy.special import stdtrit

from otherminds import lineup, runs
from otherminds.checkpoint import Checkpoint, config_of, find, phase_of, policy_of
from otherminds.config import BadInput, Evaluate, require
from otherminds.games import make
from otherminds.games.base import Game
from otherminds.learners import LEARNERS
from otherminds.progress import track
from otherminds.rollout import Play, close, collect, draw_bank, start
from otherminds.seats import lanes_needed, pinned, resolve
from otherminds.types import Policy, Seated

FEWEST_FOR_IQM = 5  # seeds: the bootstrap of fewer is too narrow


@dataclass(frozen=True)
class Estimate:
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def estimate(values: np.ndarray) -> Estimate:
    """Mean of independent values with Student's 95 % interval: seeds are few."""
    mean, count = float(values.mean()), len(values)
    half = float(stdtrit(count - 1, 0.975)) * float(values.std(ddof=1)) / count**0.5 if count > 1 else float("nan")
    return Estimate(mean, mean - half, mean + half)


def iqm(values: np.ndarray, draws: int = 2000) -> Estimate:
    """Mean of the middle half of the seeds, with a percentile bootstrap interval over seeds (Agarwal et al. 2021)."""
    random = np.random.default_rng(0)
    drawn = values[random.integers(len(values), size=(draws, len(values)))]
    low, high = np.percentile(_middle_mean(drawn), [2.5, 97.5])
    return Estimate(float(_middle_mean(values[None])[0]), float(low), float(high))


def _middle_mean(values: np.ndarray) -> np.ndarray:
    """Mean along the last axis without the lowest and the highest quarter, rounded down."""
    left_out = values.shape[-1] // 4
    return np.sort(values, -1)[..., left_out : values.shape[-1] - left_out].mean(-1)


@dataclass(frozen=True)
class Episodes:
    """What was earned, episode by episode."""

    reward: np.ndarray  # [episodes, A]
    length: np.ndarray  # [episodes]
    won: np.ndarray | None  # [episodes], in games that can be won


def episode_rewards(game: Game, policies: tuple[Seated, ...], episodes: int, key: PRNGKeyArray) -> np.ndarray:
    """The reward of each seat in `episodes` independent episodes: [episodes, A]."""
    return play_episodes(game, policies, episodes, key).reward


def play_episodes(game: Game, policies: tuple[Seated, ...], episodes: int, key: PRNGKeyArray) -> Episodes:
    """Play `episodes` whole episodes, or a few more, so that each member of a pool plays equally many.

    One episode in each parallel game: counting all that end within some number of steps would favour the short ones. Where an
    episode can last for ever, or games are stepped on the host, a few games play an equal number of episodes each.
    """
    lanes = lanes_needed(policies)
    count = -(-episodes // lanes) * lanes  # equally many for each member of a pool
    if game.longest is not None and not game.on_host:
        reward, length, won = jax.device_get(_first_episodes(game, policies, count, key))
    else:
        reward, length, won = _one_after_the_other(game, policies, count, key)
    return Episodes(reward, length, won)


@eqx.filter_jit
def _first_episodes(game: Game, policies: tuple[Seated, ...], episodes: int, key: PRNGKeyArray) -> tuple[Array, Array, Any]:
    start_key, key = jax.random.split(key)
    bank = draw_bank(game, start_key, episodes)  # a start of its own for each episode, or they would not be independent
    play = start(game, policies, episodes, key, bank)

    def stretch(carry: tuple[Play, Array], _: None) -> tuple[tuple[Play, Array], tuple[Array, Array, Any]]:
        play, over = carry
        play, rows = collect(game, _sparing(policies, over), play, STRETCH)
        ended = jnp.concatenate([rows.first[1:], rows.last.first[None]])
        earlier = jnp.cumsum(ended, axis=0) - ended
        still_first = ~over[None] & (earlier == 0)
        won = None if rows.won is None else (rows.won & still_first).any(0)
        found = (rows.reward * still_first[..., None]).sum(0), still_first.sum(0), won
        return (play, over | ended.any(0)), found

    begin = (play, jnp.zeros(episodes, bool))
    reward, length, won = jax.lax.scan(stretch, begin, length=-(-(game.longest or 0) // STRETCH))[1]
    return reward.sum(0), length.sum(0), None if won is None else won.any(0)


def _sparing(policies: tuple[Seated, ...], over: Bool[Array, " E"]) -> tuple[Seated, ...]:
    """The same policies, of whom those who can save themselves thought where an episode is over do."""

    def spared(seated: Seated) -> Seated:
        if not hasattr(seated.policy, "sparing"):
            return seated
        return Seated(seated.policy.sparing(jnp.broadcast_to(over[:, None], (len(over), len(seated.seats))), 1.0), seated.seats)

    return tuple(map(spared, policies))


STRETCH = 5  # steps after which it is seen which episodes are over
CHUNK, LANES, LONGEST = 64, 16, 100_000
_collect = eqx.filter_jit(collect)  # once: made anew each time, it would compile each time


def _one_after_the_other(
    game: Game, policies: tuple[Seated, ...], episodes: int, key: PRNGKeyArray
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The first episodes of each of a few games, as many in each."""
    lanes = min(LANES * lanes_needed(policies), episodes)
    wanted = -(-episodes // lanes)
    play = start(game, policies, lanes, key)
    advance = collect if game.on_host else _collect
    rewards = np.zeros((wanted, lanes, game.seats))
    lengths, wins = np.zeros((wanted, lanes), int), np.zeros((wanted, lanes), bool)
    finished = np.zeros(lanes, int)
    so_far, steps = np.zeros((lanes, game.seats)), np.zeros(lanes, int)
    for _ in range(LONGEST // CHUNK):
        play, rows = advance(game, policies, play, CHUNK)
        reward, last = np.asarray(rows.reward), np.asarray(rows.last.first)
        ended = np.concatenate([np.asarray(rows.first)[1:], last[None]])
        won = np.zeros(ended.shape, bool) if rows.won is None else np.asarray(rows.won)
        for t in range(CHUNK):
            so_far, steps = so_far + reward[t], steps + 1
            for lane in np.flatnonzero(ended[t] & (finished < wanted)):
                place = finished[lane], lane  # not in order of their ends: whoever takes the first few would take the short ones
                rewards[place], lengths[place], wins[place] = so_far[lane], steps[lane], won[t, lane]
            finished += ended[t]
            so_far[ended[t]], steps[ended[t]] = 0, 0
        if (finished >= wanted).all():
            break
    close(play)
    require(
        bool((finished >= wanted).all()),
        f"{game.id}: after {LONGEST:,} steps only {int(np.minimum(finished, wanted).sum())} of {episodes} episodes had ended",
    )
    kept = wanted * lanes if lanes_needed(policies) > 1 else episodes
    cut = [x.reshape(wanted * lanes, *x.shape[2:])[:kept] for x in (rewards, lengths, wins)]
    return cut[0], cut[1], cut[2] if game.winnable else None


def policies_of(
    found: Checkpoint, game: Game, entries: Sequence[str], seed: int, greedy: bool, search: bool = True
) -> tuple[Seated, ...]:
    """Who plays when a run is evaluated: `self` is what it learned for that seat."""
    own = [seat for seat, entry in enumerate(entries) if entry == "self"]
    others = resolve(game, entries, learned=own)

    def learned(seat: int) -> Policy:
        policy: Any = policy_of(found, seat, seed)
        if search:
            return policy
        require(
            hasattr(policy, "without_search"), "--search False: what this run learned does not search; leave --search as it is"
        )
        return policy.without_search()

    mine = tuple(Seated(learned(seat), (seat,)) for seat in own)
    return tuple(Seated(s.policy.greedy() if greedy else s.policy, s.seats) for s in (*mine, *others))


def evaluate(options: Evaluate, report: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """What the policies of a run earn, by seed and seat. Rows go to `evaluation/` in the run's folder, one an episode and seat.

    Intervals are over seeds where there are three or more, else over episodes; `interval_over` says which.
    """
    require(options.episodes > 1, f"--episodes is {options.episodes}, expected at least 2")
    if options.seats:
        options = replace(options, seats=pinned(options.seats))  # what is written down says which checkpoint it was
    run = runs.find(options.run)
    found = find(run, options.step)
    config = config_of(found)
    game = make(options.game or config.game)
    folder = _folder(run)
    phase = phase_of(found, config, make(config.game))
    learned = tuple("self" if entry in LEARNERS else entry for entry in phase.entries)
    entries = learned if options.seats is None else lineup.spread(options.seats, game.seats, game.id)
    seeds = range(config.seed, config.seed + config.seeds)
    played = []
    for seed in track(seeds, f"evaluate {options.run}"):
        policies = policies_of(found, game, entries, seed, options.play == "greedy", options.search)
        key = jax.random.fold_in(jax.random.key(options.seed), seed)
        played.append(play_episodes(game, policies, options.episodes, key))
        report(f"seed {seed}: {played[-1].reward.mean():.3f}")
    rewards = np.stack([episodes.reward for episodes in played])  # [S, episodes, A]
    per_seed = rewards.mean((1, 2))
    over = "seeds" if len(seeds) >= 3 else "episodes"

    def across(x: np.ndarray) -> dict[str, float]:
        return asdict(estimate(x.mean(1) if over == "seeds" else x.reshape(-1)))

    result: dict[str, Any] = {
        "run": str(run),
        "game": game.id,
        "seats": list(entries),
        "step": found.step,
        "play": options.play,
        "search": options.search,
        "episodes": rewards.shape[1],
        "reward": across(rewards.mean(2)) | {"per_seat": [across(rewards[:, :, seat]) for seat in range(game.seats)]},
        "interval_over": over,
        "per_seed": [float(mean) for mean in per_seed],
    }
    frozen = sorted({death["seed"] for death in found.facts["frozen"]})
    if frozen:
        result["frozen_seeds"] = frozen  # counted as they were when an update was not finite
    if len(seeds) >= FEWEST_FOR_IQM:
        result["iqm"] = asdict(iqm(per_seed))
    if game.winnable:
        wins = np.stack([episodes.won for episodes in played if episodes.won is not None]).astype(float)
        result["win_rate"] = float(wins.mean())
        result["win_rate_per_seed"] = [float(rate) for rate in wins.mean(1)]
    _keep(folder, options, found.step, played, seeds)
    return result


def _folder(run: Path) -> Path:
    """Where episodes are written; what is in its way should be said before anything is played."""
    folder = run / "evaluation"
    try:
        folder.mkdir(exist_ok=True)
    except OSError as problem:
        raise BadInput(f"{folder} cannot be made, and episodes are written there: {problem.strerror}") from problem
    return folder


def _keep(folder: Path, options: Evaluate, step: int, played: list[Episodes], seeds: range) -> None:
    who = [str(step), options.play, *filter(None, ("" if options.search else "without_search", options.game, options.seats))]
    name = runs.file_name("-".join([*who, f"{options.episodes}episodes", f"seed{options.seed}"]))
    rows = [
        {"seed": seed, "episode": k, "seat": seat, "reward": float(reward), "length": int(episodes.length[k])}
        | ({} if episodes.won is None else {"won": bool(episodes.won[k])})
        for seed, episodes in zip(seeds, played, strict=True)
        for k in range(len(episodes.reward))
        for seat, reward in enumerate(episodes.reward[k])
    ]
    part = folder / f".{name}.part"
    part.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    part.replace(folder / f"{name}.jsonl")
