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
from otherminds.diagnostics import meetings as of_meetings
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


def serves(game: Game, name: str) -> bool:
    """Whether the partners of a set play this game."""
    return game.family == "stag_hunt" and game.seats == len(SETS[name]) + 1


CALL = 120  # steps in one compiled call
FOREVER = 2**30  # episodes of a meeting that does not end
LONGEST = 35  # episodes by which curves are kept


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
            require(serves(game, name), f"the partners of {name} are of stag hunts with four players, not of {game.id}")
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
    action: Int[Array, "E P"]  # what the partner did
    foreseen: Float[Array, "E P known"]  # what it was expected to do, as probabilities; no actions where nothing is foreseen
    misled: Float[Array, "E P known_too"]  # the same by beliefs about other goals
    truth: Float[Array, "E P actions"]  # its own probabilities
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

        nothing = jnp.zeros((*there.shape, 0))

        def asked(name: str) -> Array:
            """What the focal policy thinks of its partners, if it does."""
            said = getattr(own.focal, name, lambda memory: None)(mine)
            return nothing if said is None else said[games, column]

        seen = Seen(
            reward=after.now.reward[games, focal],
            first=after.now.first,
            there=there,
            action=theirs,
            foreseen=asked("foreseen"),
            misled=asked("misled"),
            truth=jnp.exp(extras.logits[games[:, None], places]),
            goal=extras.goal[games[:, None], places],
            belief=asked("belief"),
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
    longest = getattr(game, "horizon", 1)
    require(options.last >= longest, f"--last is {options.last}, and an episode may last {longest}: --last {longest}")
    groups = checkpoint.groups_of(config, game)
    require(len(groups) == 1, f"{run} has {len(groups)} learners, and one is tested at a time")
    seats = groups[0].seats
    replicas = 16 if options.quick else options.replicas
    meetings = Meetings.plan(game, options.sets, seats, replicas)
    seeds = range(config.seed, config.seed + config.seeds)
    by_seed = []
    for seed in seeds:
        policy: Any = checkpoint.group_policy(found, 0, seed)
        if not options.search:
            require(hasattr(policy, "without_search"), f"{groups[0].learner} does not search: leave --search as it is")
            policy = policy.without_search()
        key = jax.random.fold_in(jax.random.key(options.seed), seed)
        seen = play_meetings(game, policy, seats, meetings, options.steps, key, f"adapt {options.run}, seed {seed}")
        named = getattr(policy, "codes_are_goals", False)
        by_seed.append(_measured(game, meetings, seen, options.last, named))
    over = "seeds" if len(seeds) >= 3 else "meetings"
    sets = [_of_set(meetings, number, [one[number] for one in by_seed], over) for number in range(len(options.sets))]
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


def _measured(game: Game, meetings: Meetings, seen: Seen, last: int, named: bool) -> list[dict[str, Any]]:
    """What one seed earned, foresaw and believed, for each set."""
    reads = of_meetings.read_codes(seen, len(game.goals), named)
    found = []
    for number, name in enumerate(meetings.sets):
        at = np.flatnonzero(meetings.which == number)
        mine = jax.tree.map(lambda leaf, at=at: leaf[:, at], seen)
        score, curve = of_meetings.episodes(mine, last)
        half = None if reads is None else reads[at % 2]
        found.append({"score": score, "curve": curve} | of_meetings.figures(mine, half, game, SETS[name], last))
    return found


def _of_set(meetings: Meetings, number: int, by_seed: list[dict[str, Any]], over: str) -> dict[str, Any]:
    name, focal = meetings.sets[number], meetings.focal[meetings.which == number]
    scores = np.stack([one.pop("score") for one in by_seed])  # [S, meetings]
    curves = [one.pop("curve") for one in by_seed]
    values = scores.mean(1) if over == "seeds" else scores.reshape(-1)
    longest = min(LONGEST, *map(len, curves))
    return {
        "set": name,
        "partners": list(SETS[name]),
        "reward": asdict(estimate(values)),
        "per_seed": [float(x) for x in scores.mean(1)],
        "per_seat": [float(scores[:, focal == seat].mean()) for seat in sorted(set(focal.tolist()))],
        "curve": [float(np.mean([curve[k] for curve in curves])) for k in range(longest)],
        **of_meetings.over_seeds(by_seed),
    }
