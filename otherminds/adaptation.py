"""Few-shot adaptation: a frozen policy meets partners it was not trained with, and keeps what it remembers of them.

One meeting lasts 2,400 steps; the score is the mean reward of the episodes that end in the last 600. Every seat of the run is
focal in as many meetings. All meetings are one compiled program: seats that are not focal are played by scripts, game by game.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from otherminds import checkpoint, runs
from otherminds.config import Adapt, BadInput, closest, require
from otherminds.evaluate import Estimate, estimate
from otherminds.games import make
from otherminds.games.base import Game
from otherminds.partners import make_partner
from otherminds.progress import track
from otherminds.rollout import Play, advance, choose, draw_bank, start
from otherminds.types import Action, Extras, Memory, Policy, Seated, View

SETS = {
    "3ns": ("nearest_stag",) * 3,
    "3nh": ("nearest_hare",) * 3,
    "3random": ("random",) * 3,
    "nh_ns_random": ("nearest_hare", "nearest_stag", "random"),
    "2ns_random": ("nearest_stag", "nearest_stag", "random"),
    "switchers": ("switcher=stag-hare@4", "switcher=hare-stag@4", "switcher=stag-hare@4"),
}
"""Partners in the order in which they sit behind the focal seat."""
CALL = 120  # steps in one compiled call
FOREVER = 2**30  # episodes of a meeting that does not end
SURE = 0.9  # of a belief in the true goal
LONGEST = 35  # steps and episodes by which curves are kept


class Guests(Policy):
    """Some seats: in each game one of them may be the focal policy's, all others are played by scripts."""

    focal: Policy
    scripts: tuple[Policy, ...]
    is_focal: Bool[Array, "E G"]
    script: Int[Array, "E G"]  # which script plays elsewhere

    def initial_memory(self) -> Memory:
        each = [policy.initial_memory() for policy in (self.focal, *self.scripts)]
        return Memory(tuple(m.episode for m in each), tuple(m.lasting for m in each))

    def conclude(self, view: View, memory: Memory) -> Memory:
        each = [
            policy.conclude(view, Memory(episode, lasting))
            for policy, episode, lasting in zip((self.focal, *self.scripts), memory.episode, memory.lasting, strict=True)
        ]
        return Memory(tuple(m.episode for m in each), tuple(m.lasting for m in each))

    def act(self, view: View, memory: Memory, key: PRNGKeyArray) -> tuple[Action, Memory, Extras]:
        policies = (self.focal, *self.scripts)
        keys = jax.random.split(key, len(policies))
        acted = [
            policy.act(view, Memory(episode, lasting), one)
            for policy, episode, lasting, one in zip(policies, memory.episode, memory.lasting, keys, strict=True)
        ]
        who = jnp.where(self.is_focal, 0, 1 + self.script)

        def chosen(*parts: Array) -> Array:
            found = parts[0]
            for number, part in enumerate(parts[1:], 1):
                where = (who == number).reshape(who.shape + (1,) * (part.ndim - who.ndim))
                found = jnp.where(where, part, found)
            return found

        action = chosen(*(one[0] for one in acted))
        extras = jax.tree.map(chosen, *(one[2] for one in acted))
        memories = [one[1] for one in acted]
        return action, Memory(tuple(m.episode for m in memories), tuple(m.lasting for m in memories)), extras


@dataclass(frozen=True)
class Meetings:
    """Who meets whom, [games]; partners by script, [games, A], -1 for the focal seat itself."""

    sets: tuple[str, ...]
    scripts: tuple[str, ...]
    which: np.ndarray  # the set of each game
    focal: np.ndarray  # its focal seat
    script: np.ndarray

    @staticmethod
    def plan(game: Game, sets: Sequence[str], seats: Sequence[int], replicas: int) -> "Meetings":
        """Equally many of each set and focal seat."""
        for name in sets:
            if name not in SETS:
                raise BadInput(f"no set of partners '{name}': {closest(name, SETS)}")
        require(
            game.seats == 4 and game.family == "stag_hunt",
            f"the sets of partners are of stag hunts with four players, not of {game.id}",
        )
        scripts = tuple(dict.fromkeys(name for one in sets for name in SETS[one]))
        each = -(-replicas // len(seats))
        which, focal, script = [], [], []
        for number, name in enumerate(sets):
            for seat in seats:
                for _ in range(each):
                    row = np.full(game.seats, -1)
                    for place, partner in enumerate(SETS[name], 1):
                        row[(seat + place) % game.seats] = scripts.index(partner)
                    which.append(number)
                    focal.append(seat)
                    script.append(row)
        return Meetings(tuple(sets), scripts, np.array(which), np.array(focal), np.array(script))


class Seen(eqx.Module):
    """What there was to see of each game at a step."""

    reward: Float[Array, " E"]  # of the focal seat, for the step
    first: Bool[Array, " E"]  # the step was the last of its episode
    there: Bool[Array, "E P"]  # focal seat and partner were both there
    cross_entropy: Float[Array, "E P"]
    hit: Float[Array, "E P"]
    misled: Float[Array, "E P"]  # cross-entropy by beliefs about other goals
    best_cross_entropy: Float[Array, "E P"]  # by the truth
    best_hit: Float[Array, "E P"]
    goal: Int[Array, "E P"]  # the true one, -1 for none
    belief: Float[Array, "E P codes"]
    searched: Bool[Array, " E"]
    acted: Bool[Array, " E"]  # the focal seat was there


@eqx.filter_jit
def _play(game: Game, policies: tuple[Seated, ...], play: Play, focal: Array, steps: int) -> tuple[Play, Seen]:
    """Steps of all meetings, and what there was to see from the focal seats."""
    games = jnp.arange(len(focal))
    own: Any = policies[0].policy
    column = _columns(policies[0].seats, focal)
    places = (focal[:, None] + 1 + jnp.arange(game.seats - 1)[None]) % game.seats

    def one(play: Play, _: None) -> tuple[Play, Seen]:
        key, game_key, action, memories, extras = choose(policies, play.now, play.memories, play.key)
        mine = Memory(memories[0].episode[0], memories[0].lasting[0])
        after, _ = advance(game, play, action, game_key, FOREVER)
        after = eqx.tree_at(lambda p: (p.memories, p.key), after, (memories, key))
        theirs, there = action[games[:, None], places], play.now.present[games[:, None], places]
        there &= play.now.present[games, focal][:, None]
        truth = jnp.exp(extras.logits[games[:, None], places])

        def scored(expected: Array | None) -> tuple[Array, Array]:
            if expected is None:
                return jnp.zeros(there.shape), jnp.zeros(there.shape)
            seen = expected[games, column]
            log = jnp.log(jnp.maximum(jnp.take_along_axis(seen, theirs[..., None], -1)[..., 0], 1e-9))
            return -log, (seen.argmax(-1) == theirs) * 1.0

        asked = {name: getattr(own.focal, name, lambda memory: None)(mine) for name in ("foreseen", "misled", "belief")}
        cross_entropy, hit = scored(asked["foreseen"])
        belief = asked["belief"]
        seen = Seen(
            reward=after.now.reward[games, focal],
            first=after.now.first,
            there=there,
            cross_entropy=cross_entropy,
            hit=hit,
            misled=scored(asked["misled"])[0],
            best_cross_entropy=-(truth * jnp.log(jnp.maximum(truth, 1e-9))).sum(-1),
            best_hit=truth.max(-1),
            goal=extras.goal[games[:, None], places],
            belief=jnp.zeros((*there.shape, 0)) if belief is None else belief[games, column],
            searched=(extras.logits != extras.policy_logits).any(-1)[games, focal],
            acted=play.now.present[games, focal],
        )
        return after, seen

    return jax.lax.scan(one, play, length=steps)


def _columns(seats: tuple[int, ...], focal: Array) -> Array:
    """Where each focal seat stands among those of its policy."""
    return jnp.argmax(jnp.asarray(seats)[None] == focal[:, None], 1)


def play_meetings(
    game: Game, policy: Policy, seats: tuple[int, ...], meetings: Meetings, steps: int, key: PRNGKeyArray, title: str
) -> Seen:
    """All meetings, [steps, games]."""
    is_focal = np.arange(game.seats)[None] == meetings.focal[:, None]
    script = np.maximum(meetings.script, 0)
    columns, rest = list(seats), tuple(seat for seat in range(game.seats) if seat not in seats)
    if hasattr(policy, "sparing"):
        policy = policy.sparing(jnp.asarray(~is_focal[:, columns]), 1 / len(seats))

    def scripts(group: int) -> tuple[Policy, ...]:
        return tuple(make_partner(name, game, group) for name in meetings.scripts)

    guests = Guests(policy, scripts(len(seats)), jnp.asarray(is_focal[:, columns]), jnp.asarray(script[:, columns]))
    policies = [Seated(guests, seats)]
    if rest:
        others = scripts(len(rest))
        nobody = jnp.zeros((len(script), len(rest)), bool)
        policies.append(Seated(Guests(others[0], others, nobody, jnp.asarray(script[:, list(rest)])), rest))
    start_key, key = jax.random.split(key)
    play = start(game, tuple(policies), len(script), key, draw_bank(game, start_key))
    parts = []
    for _ in track(range(-(-steps // CALL)), title):
        play, seen = _play(game, tuple(policies), play, jnp.asarray(meetings.focal), CALL)
        parts.append(jax.device_get(seen))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[:steps], *parts)


def adapt(options: Adapt, report: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """What the policies of a run earn beside partners of each set, what they foresee of them and believe."""
    require(options.replicas >= 1, f"--replicas is {options.replicas}, expected at least 1")
    require(0 < options.last <= options.steps, f"--last is {options.last}, expected 1 to --steps {options.steps}")
    run = runs.find(options.run)
    found = checkpoint.find(run, options.step)
    config = checkpoint.config_of(found)
    game = make(options.game or config.game)
    groups = checkpoint.groups_of(config, game)
    require(len(groups) == 1, f"{run} has {len(groups)} learners, and one is tested at a time")
    seats = groups[0].seats
    replicas = 16 if options.quick else options.replicas
    meetings = Meetings.plan(game, options.sets, seats, replicas)
    seeds = range(config.seed, config.seed + config.seeds)
    played = []
    for seed in seeds:
        policy: Any = checkpoint.group_policy(found, 0, seed)
        if not options.search:
            require(hasattr(policy, "without_search"), f"{groups[0].learner} does not search: leave --search as it is")
            policy = policy.without_search()
        key = jax.random.fold_in(jax.random.key(options.seed), seed)
        played.append(play_meetings(game, policy, seats, meetings, options.steps, key, f"adapt {options.run}, seed {seed}"))
    codes = [_read_codes(meetings, seen, len(game.goals)) for seen in played]
    over = "seeds" if len(seeds) >= 3 else "meetings"
    sets = [_of_set(meetings, number, played, codes, options.last, over, len(game.goals)) for number in range(len(options.sets))]
    result = {
        "run": str(run),
        "game": game.id,
        "step": found.step,
        "steps": options.steps,
        "last": options.last,
        "meetings": len(meetings.which) // len(options.sets),
        "search": bool(options.search),
        "seeds": list(seeds),
        "interval_over": over,
        "sets": sets,
    }
    name = "adaptation.json" if options.search else "adaptation_without_search.json"
    runs.write_json(run / name, result)
    for one in sets:
        report(f"{one['set']:<14} {Estimate(**one['reward'])}")
    return result


def _read_codes(meetings: Meetings, seen: Any, goals: int) -> np.ndarray | None:
    """P(true goal | code), [halves, codes, goals + 1], read off every other meeting for those between; the last is no goal."""
    belief = seen.belief
    if not belief.shape[-1]:
        return None
    truth = np.eye(goals + 1)[np.where(seen.goal >= 0, seen.goal, goals)]
    weight = seen.there[..., None]
    halves = []
    for half in (1, 0):
        at = np.arange(len(meetings.which)) % 2 == half
        together = np.einsum("tnpc,tnpg->cg", (belief * weight)[:, at], truth[:, at]) + 1e-3
        halves.append(together / together.sum(1, keepdims=True))
    return np.stack(halves)


def _of_set(
    meetings: Meetings, number: int, played: list[Seen], codes: list[np.ndarray | None], last: int, over: str, goals: int
) -> dict[str, Any]:
    at = np.flatnonzero(meetings.which == number)
    name = meetings.sets[number]
    scores, curves, figures = [], [], []
    for seen, reads in zip(played, codes, strict=True):
        mine = jax.tree.map(lambda leaf: leaf[:, at], seen)
        score, curve = _episodes(mine, last)
        scores.append(score)
        curves.append(curve)
        figures.append(_foreseen(mine, None if reads is None else reads[at % 2], goals))
    scores_all = np.stack(scores)  # [S, meetings]
    values = scores_all.mean(1) if over == "seeds" else scores_all.reshape(-1)
    longest = min(len(curve) for curve in curves)
    result: dict[str, Any] = {
        "set": name,
        "partners": list(SETS[name]),
        "reward": asdict(estimate(values)),
        "per_seed": [float(x) for x in scores_all.mean(1)],
        "per_seat": [float(scores_all[:, meetings.focal[at] == seat].mean()) for seat in sorted(set(meetings.focal.tolist()))],
        "curve": [float(np.mean([curve[k] for curve in curves])) for k in range(min(longest, LONGEST))],
    }
    for key in figures[0]:
        every = [figure[key] for figure in figures]
        if isinstance(every[0], list):
            shortest = min(map(len, every))
            result[key] = [float(np.mean(column)) for column in zip(*(one[:shortest] for one in every), strict=True)]
        else:
            known = [one for one in every if one is not None]
            result[key] = float(np.mean(known)) if known else None
    return result


def _episodes(seen: Any, last: int) -> tuple[np.ndarray, np.ndarray]:
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


def _foreseen(seen: Any, reads: np.ndarray | None, goals: int) -> dict[str, Any]:
    """How well partners were foreseen, beside the best anybody could do, and what was believed of them."""
    there = seen.there
    mean = lambda x: float(np.where(there, x, 0.0).sum() / max(there.sum(), 1))  # noqa: E731
    figures: dict[str, Any] = {"searched": float((seen.searched & seen.acted).sum() / max(seen.acted.sum(), 1))}
    if not seen.cross_entropy.any():
        return figures
    figures |= {
        "cross_entropy": mean(seen.cross_entropy),
        "best_cross_entropy": mean(seen.best_cross_entropy),
        "top_1": mean(seen.hit),
        "best_top_1": mean(seen.best_hit),
    }
    if reads is None:
        return figures
    figures["misled_cross_entropy"] = mean(seen.misled)
    truth = np.where(seen.goal >= 0, seen.goal, goals)
    in_goals = np.einsum("tnpc,ncg->tnpg", seen.belief, reads)
    believed = np.take_along_axis(in_goals, truth[..., None], -1)[..., 0]
    step, episode = _counted(seen.first)
    figures["belief"] = mean(believed)
    figures["belief_by_step"] = _by(believed, there, step, 12)
    figures["belief_by_episode"] = _by(believed, there, episode, 20)
    figures["steps_until_sure"] = _steps_until_sure(believed, there, step)
    return figures


def _counted(first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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


def _steps_until_sure(believed: np.ndarray, there: np.ndarray, step: np.ndarray) -> float | None:
    """Steps of an episode until the belief in a partner's true goal passes SURE, mean over episodes in which it ever does."""
    found, waiting = [], np.zeros(believed.shape[1:], bool)
    for t in range(len(believed)):
        waiting |= (step[t] == 0)[:, None]
        sure = waiting & there[t] & (believed[t] > SURE)
        found += list(np.broadcast_to(step[t][:, None], sure.shape)[sure])
        waiting &= ~sure
    return float(np.mean(found)) if found else None
