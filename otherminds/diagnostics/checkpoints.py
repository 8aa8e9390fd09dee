"""Checkpoints of one run side by side: each plays fresh games, and each is asked about its own and about the others'.

Who is asked about games follows them as if it played: `Policy.step`, moment by moment, with a memory of its own. So what is
measured of a module is what it would have said there, whoever acted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from otherminds.diagnostics.rounding import number
from otherminds.distributions import for_actions
from otherminds.evaluate import estimate
from otherminds.games.base import Game
from otherminds.games.ego import all_to_ego, view
from otherminds.learners.base import mixed_rewards
from otherminds.losses import explained_variance, masked_mean
from otherminds.progress import track
from otherminds.returns import lambda_returns
from otherminds.rollout import close, collect, start
from otherminds.seats import lanes_needed
from otherminds.types import Memory, Policy, Seated, TimeStep, Trajectory, of_seats

EPISODES = 4  # of each game at least, so that what is remembered of earlier ones counts too
UNLIMITED = 256  # steps of a game whose episodes may last for ever
SEEDS = 3  # that make an interval; of fewer, games do
MODULES = ("policy", "opponent_model", "world_model")
KEPT = "Nobody learns from games that are more than one update old: the other's games stand for older ones."


@dataclass(frozen=True)
class Learned:
    """A learner's policy at a checkpoint, where it sits, and what its values are of."""

    policy: Policy
    seats: tuple[int, ...]
    discount: float | None  # None: its values are of something else than what is earned
    prosocial: float = 0.0

    @property
    def without_search(self) -> "Learned":
        """The same without looking ahead, if it does."""
        return replace(self, policy=getattr(self.policy, "without_search", lambda: self.policy)())


Team = tuple[Learned, ...]


@dataclass(frozen=True)
class Played:
    """Games that a team has played."""

    rows: Trajectory
    searched: float  # share of its moves
    reward: np.ndarray | None  # of each game, mean over its seats; None if no episode ended
    reward_without_search: np.ndarray | None  # from the same starts; None if nothing was searched


def compared(
    game: Game, teams: Mapping[str, Sequence[Team]], fixed: tuple[Seated, ...], samples: int, key: PRNGKeyArray
) -> dict[str, Any]:
    """Figures of each checkpoint by its name. `teams` holds a team for each seed; all play from the same starts, `samples` game
    steps for each checkpoint.

    Figures are means over seeds and over the seats that have them. Intervals are over seeds if there are enough, else over games.
    """
    seeds = len(next(iter(teams.values())))
    steps = EPISODES * game.longest if game.longest else UNLIMITED
    lanes = lanes_needed(fixed)
    games = -(-max(1, samples // (steps * seeds)) // lanes) * lanes
    played: dict[str, list[Played]] = {name: [] for name in teams}
    said: dict[str, list[dict[str, Any]]] = {name: [] for name in teams}
    for place in track(range(seeds), "games of each checkpoint"):
        starts = jax.random.fold_in(key, place)
        for name, team in teams.items():
            played[name].append(_played(game, team[place], fixed, games, steps, starts))
        for name, team in teams.items():
            shown = {"own_games" if other == name else "other_games": played[other][place].rows for other in teams}
            said[name].append({whose: _asked(game, team[place], rows) for whose, rows in shown.items()})
    searches = any(one.searched > 0 for each in played.values() for one in each)
    size = {"games": games * seeds, "steps": steps * games * seeds, "interval_over": "seeds" if seeds >= SEEDS else "games"}
    return {name: size | _earned(played[name], searches) | _over_seeds(said[name]) for name in teams}


def _over_seeds(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means of all figures, wherever they stand."""
    parts = {name: [one[name] for one in found] for name in found[0]}
    return {name: _over_seeds(x) if isinstance(x[0], dict) else number(np.mean(x)) for name, x in parts.items()}


def _earned(played: Sequence[Played], searches: bool) -> dict[str, Any]:
    """What was earned, and how much of it the search brought."""
    found: dict[str, Any] = {}
    rewards = [one.reward for one in played if one.reward is not None]
    if rewards:
        found["reward"] = _interval(rewards)
    if searches:
        found["search"] = {"searched": number(np.mean([one.searched for one in played]))}
        both = [(one.reward, one.reward_without_search) for one in played]
        gains = [reward - without for reward, without in both if reward is not None and without is not None]
        if gains:
            found["search"]["gain"] = _interval(gains)
    return found


def _interval(by_seed: Sequence[np.ndarray]) -> dict[str, float]:
    values = np.array([values.mean() for values in by_seed]) if len(by_seed) >= SEEDS else np.concatenate(by_seed)
    known = asdict(estimate(values))
    return {name: number(value) for name, value in known.items() if np.isfinite(value)}  # a single game has no interval


def _played(game: Game, team: Team, fixed: tuple[Seated, ...], games: int, steps: int, key: PRNGKeyArray) -> Played:
    seats = tuple(seat for learned in team for seat in learned.seats)

    def rows_of(team: Team) -> Trajectory:
        policies = (*(Seated(learned.policy, learned.seats) for learned in team), *fixed)
        return _on_host(game, policies, games, steps, key) if game.on_host else _compiled(game, policies, games, steps, key)

    rows = rows_of(team)
    present = np.asarray(rows.present)[..., seats]
    other = (np.asarray(rows.behaviour_logits) != np.asarray(rows.policy_logits)).any(-1)[..., seats]
    searched = float((other & present).sum() / max(present.sum(), 1))
    alone = None
    if searched > 0:
        alone = episode_rewards(game, rows_of(tuple(learned.without_search for learned in team)), seats)
    return Played(rows, searched, episode_rewards(game, rows, seats), alone)


@eqx.filter_jit
def _compiled(game: Game, policies: tuple[Seated, ...], games: int, steps: int, key: PRNGKeyArray) -> Trajectory:
    return collect(game, policies, start(game, policies, games, key), steps, final=True)[1]


def _on_host(game: Game, policies: tuple[Seated, ...], games: int, steps: int, key: PRNGKeyArray) -> Trajectory:
    play, rows = collect(game, policies, start(game, policies, games, key), steps, final=True)
    close(play)
    return rows


def episode_rewards(game: Game, rows: Trajectory, seats: tuple[int, ...]) -> np.ndarray | None:
    """Mean reward of whole episodes, by game: of equally many in each, none favoured for being short. None if none ended."""
    ended = np.concatenate([np.asarray(rows.first)[1:], np.asarray(rows.last.first)[None]])
    count = len(ended) // game.longest if game.longest else int(ended.sum(0).min())
    if count == 0:
        return None
    number_of = np.cumsum(ended, 0) - ended
    mean = np.asarray(rows.reward)[..., seats].mean(-1)
    return np.asarray((mean * (number_of < count)).sum(0) / count)


def _asked(game: Game, team: Team, rows: Trajectory) -> dict[str, dict[str, float]]:
    """By module: means over the seats that have the measure."""
    by_module: dict[str, dict[str, list[np.ndarray]]] = {}
    for learned in team:
        plain = learned.without_search
        seated = Seated(plain.policy, plain.seats)
        for module, found in asked(game, seated, rows, learned.discount, learned.prosocial).items():
            for name, values in found.items():
                by_module.setdefault(module, {}).setdefault(name, []).append(np.asarray(values))
    return {
        module: {name: float(np.concatenate(values).mean()) for name, values in by_module[module].items()}
        for module in MODULES
        if module in by_module
    }


@eqx.filter_jit
def asked(
    game: Game, seated: Seated, rows: Trajectory, discount: float | None, prosocial: float
) -> dict[str, dict[str, Float[Array, " G"]]]:
    """Measures by module of what a policy says of games, one number a seat, over the steps at which the seat was there."""
    own = of_seats(rows, seated.seats, None)
    said, last_value = followed(game, seated, rows)

    def mean(x: Float[Array, "T E G"]) -> Float[Array, " G"]:
        return masked_mean(x, own.present, (0, 1))

    found = {"policy": {"entropy": mean(said["entropy"])}}
    if discount is not None:
        reward, terminated = mixed_rewards(own, prosocial)
        returns = lambda_returns(
            *(reward, said["value"], last_value, said.get("final_value")),
            *(own.present, own.last.present, terminated, own.truncated),
            discount=discount,
            trace=1.0,  # what was really earned, as far as the games were played
        ).returns
        found["policy"]["explained_variance"] = jax.vmap(explained_variance, 2)(said["value"], returns, own.present)
        found["policy"]["value_mse"] = mean((said["value"] - returns) ** 2)
    if "foreseen" in said:
        total = {name: sums.sum((0, 1)) for name, sums in said["foreseen"].items()}
        count = jnp.maximum(total.pop("count"), 1)
        found["opponent_model"] = {name: sums / count for name, sums in total.items()}
    if "exact" in said:
        found["world_model"] = {"exact": mean(said["exact"]), "reward_mse": mean(said["reward_error"])}
    return found


def followed(game: Game, seated: Seated, rows: Trajectory) -> tuple[dict[str, Any], Float[Array, "E G"]]:
    """(what a policy says at each row, [T, E, G]; its values after the last) of games that are shown from their start."""
    policy: Any = seated.policy
    seats, distribution = seated.seats, for_actions(game.continuous)
    key = jax.random.key(0)  # nothing that is measured here is drawn
    at_each = _moments(rows)
    before = jax.tree.map(lambda leaf: leaf[:-1], at_each)
    outcome = _outcomes(rows, jax.tree.map(lambda leaf: leaf[1:], at_each))

    def follow(memory: Memory, row: tuple[TimeStep, TimeStep, Array]) -> tuple[Memory, dict[str, Any]]:
        now, after, logits = row
        seen, truth = view(now, seats), view(after, seats)
        _, memory, extras = policy.step(seen, memory, key)
        said = {"value": extras.value, "entropy": distribution.entropy(extras.policy_logits)}
        if game.truncates:
            said["final_value"] = policy.step(truth, memory, key)[2].value
        expected = getattr(policy, "foreseen", lambda memory: None)(memory)
        if expected is not None:
            odds = jnp.exp(all_to_ego(logits, seats, -2)[..., 1:, :])
            said["foreseen"] = _foreseen(expected, truth.action[..., 1:], odds, seen.present[..., 0])
        imagined = getattr(policy, "imagined", lambda *step: None)(seen.observation, truth.action, seen.seat)
        if imagined is not None:
            said["exact"] = imagined.exact(game, truth.observation) * 1.0
            said["reward_error"] = (imagined.reward - truth.reward) ** 2
        return memory, said

    opened = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (rows.first.shape[1], *leaf.shape)), policy.initial_memory())
    memory, said = jax.lax.scan(follow, opened, (before, outcome, rows.behaviour_logits))
    return said, policy.step(view(rows.last, seats), memory, key)[2].value


def _moments(rows: Trajectory) -> TimeStep:
    """All moments of games that were played, [T + 1, E]: how each was reached, and what was the case there."""
    assert rows.start is not None
    reached = ("action", "reward", "goal_reached", "terminated", "truncated")
    now = ("observation", "legal", "present", "first", "meeting")
    return TimeStep(
        **{name: jnp.concatenate([getattr(rows.start, name)[None], getattr(rows, name)]) for name in reached},
        **{name: jnp.concatenate([getattr(rows, name), getattr(rows.last, name)[None]]) for name in now},
    )


def _outcomes(rows: Trajectory, after: TimeStep) -> TimeStep:
    """What each row led to before any game was opened anew, [T, E]."""
    assert rows.final_observation is not None
    never = jnp.zeros_like(rows.first)
    here = {"legal": rows.legal, "present": rows.present & ~rows.terminated, "first": never, "meeting": never}
    return replace(after, observation=rows.final_observation, **here)


def _foreseen(
    expected: Float[Array, "E G P actions"],
    theirs: Int[Array, "E G P"],
    odds: Float[Array, "E G P actions"],
    present: Bool[Array, "E G"],
) -> dict[str, Float[Array, "E G"]]:
    """Sums over the partners who acted while we were there, and how many they were. `odds` are those they acted by."""
    seen = present[..., None] & (theirs >= 0)
    chosen = jnp.take_along_axis(expected, jnp.maximum(theirs, 0)[..., None], -1)[..., 0]
    scores = {
        "cross_entropy": -jnp.log(jnp.maximum(chosen, 1e-9)),
        "cross_entropy_ceiling": -(odds * jnp.log(jnp.maximum(odds, 1e-9))).sum(-1),
        "top_1": (expected.argmax(-1) == theirs) * 1.0,
        "top_1_ceiling": odds.max(-1),
        "count": jnp.ones(seen.shape),
    }
    return {name: jnp.where(seen, score, 0.0).sum(-1) for name, score in scores.items()}


def tables(found: Mapping[str, Any]) -> list[Any]:
    """What was found, for people: checkpoints side by side, and when each metric left its band."""
    from rich.table import Table

    names = [name for name in ("best", "final") if name in found["compared"]]
    shown = []
    if names:
        sides = {f"{name} (step {found['compared'][name]['step']:,})": found["compared"][name] for name in names}
        table = Table("module", "measure", *sides, title="each in its own games (in the other's)", caption=KEPT)
        for (module, measure), cells in _cells(list(sides.values())).items():
            table.add_row(module.replace("_", " "), measure.replace("_", " "), *cells)
        shown.append(table)
    if found["moved"]:
        table = Table("module", "metric", "band at the peak", "at the end", "left it at step", title="after the peak")
        for row in found["moved"]:
            metric = row["metric"] + (f" above {row['beside']}" if row["beside"] else "")
            step = "" if row["left_at_step"] is None else f"{row['left_at_step']:,}"
            table.add_row(row["module"], metric, f"{row['low']:.4g} to {row['high']:.4g}", f"{row['final']:.4g}", step)
        shown.append(table)
    return shown


def _cells(sides: list[dict[str, Any]]) -> dict[tuple[str, str], list[str]]:
    """What to write of each measure, a cell for each checkpoint."""
    kinds = [("reward", "reward"), ("search", "gain"), ("search", "searched")]
    kinds += [(module, name) for module, part in sides[0]["own_games"].items() for name in part]
    rows = {}
    for module, name in kinds:
        cells = []
        for side in sides:
            part = side["own_games"].get(module, side.get(module, {}))
            value = part if module == "reward" else part.get(name)
            other = side.get("other_games", {}).get(module, {}).get(name)
            cells.append(_written(value) + ("" if other is None else f" ({other:.4g})"))
        if any(cells):
            rows[module, name] = cells
    return rows


def _written(value: Any) -> str:
    if not isinstance(value, dict):
        return "" if value is None else f"{value:.4g}"
    if "mean" not in value:
        return ""
    return f"{value['mean']:.4g}" + (f" [{value['low']:.4g}, {value['high']:.4g}]" if "low" in value else "")
