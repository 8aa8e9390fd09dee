"""Scripted hunters."""

import re
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from otherminds.config import BadInput, closest, require
from otherminds.games.base import Game
from otherminds.games.stag_hunt import HUNT_HARE, HUNT_STAG, StagHunt
from otherminds.partners.base import FromRule, Mind, Scripted, no_argument, uniform
from otherminds.partners.paths import toward
from otherminds.types import Memory, View

STAG, HARE = 0, 1  # indices into StagHunt.goals


@dataclass(frozen=True)
class Hunt:
    """The rule to walk to the nearest prey of a kind and hunt it; and to wander when there is none (in sight)."""

    players: int
    goal: int

    def __call__(self, observation: Array, legal: Bool[Array, "*games actions"]) -> Float[Array, "*games actions"]:
        seen = observation.astype(bool)
        own, wall, target = (seen[..., plane, :, :] for plane in (0, self.players, self.players + 1 + self.goal))
        return toward(target, wall, own, legal, HUNT_STAG if self.goal == STAG else HUNT_HARE)


@dataclass(frozen=True)
class Wait:
    """The rule to wait at the stag for anybody who is still about, until some step, and then to take a hare."""

    players: int
    until: int

    def __call__(self, observation: Array, legal: Bool[Array, "*games actions"]) -> Float[Array, "*games actions"]:
        stag, hare = (Hunt(self.players, prey)(observation, legal) for prey in (STAG, HARE))
        somebody = observation[..., 1 : self.players, :, :].any((-3, -2, -1))
        target = observation[..., self.players + 1, :, :].any((-2, -1))
        early = observation[..., self.players + 3, 0, 0] < self.until
        return jnp.where((somebody & target & early)[..., None], stag, hare)


def nearest_stag(game: StagHunt, group: int, argument: str = "") -> Scripted:
    """Walks to the nearest stag and hunts it; wanders when there is none."""
    no_argument("nearest_stag", argument)
    return FromRule(game, group, rule=Hunt(game.players, STAG), aim=STAG)


def nearest_hare(game: StagHunt, group: int, argument: str = "") -> Scripted:
    """Walks to the nearest hare and hunts it; wanders when there is none."""
    no_argument("nearest_hare", argument)
    return FromRule(game, group, rule=Hunt(game.players, HARE), aim=HARE)


def patient(game: StagHunt, group: int, argument: str = "") -> Scripted:
    """Waits at the stag for anybody who is still about; from some step on (`patient=30`), or left alone, takes a hare."""
    until = argument or str(max(game.horizon - 5, 1))
    require(until.isdecimal(), f"partner 'patient={argument}': expected a step, as in patient=30")
    return FromRule(game, group, rule=Wait(game.players, int(until)))


class Switcher(Scripted):
    """After one prey, then, from some step of every episode or from some episode of the meeting on, after the other."""

    before: int = eqx.field(static=True)
    after: int = eqx.field(static=True)
    at: int = eqx.field(static=True)
    counts_episodes: bool = eqx.field(static=True)

    def initial_memory(self) -> Memory:
        return Memory(episode={"steps": jnp.int32(-1)}, lasting={"episodes": jnp.int32(0)})

    def conclude(self, view: View, memory: Memory) -> Memory:
        return Memory(memory.episode, {"episodes": memory.lasting["episodes"] + view.first})

    def prepare(self, view: View, memory: Memory, key: PRNGKeyArray) -> Memory:
        return Memory({"steps": memory.episode["steps"] + 1}, memory.lasting)

    def after_what(self, step: Array, episode: Array) -> Array:
        return jnp.where((episode if self.counts_episodes else step) < self.at, self.before, self.after)

    def goal(self, view: View, memory: Memory) -> Int[Array, "E G"]:
        goal = self.after_what(memory.episode["steps"], memory.lasting["episodes"])
        return jnp.broadcast_to(goal[:, None], view.reward.shape)

    def probabilities(self, view: View, memory: Memory) -> Float[Array, "E G actions"]:
        return _by_goal(self.game, self.goal(view, memory), view.observation, view.legal)

    def minds(self) -> tuple[Mind, ...]:
        def probabilities(observation: Array, legal: Array, step: Array, episode: Array) -> Array:
            return _by_goal(self.game, self.after_what(step, episode), observation, legal)

        return (Mind(1.0, probabilities, self.after_what),)


class Stubborn(Scripted):
    """Keeps one goal for a whole meeting and follows it with probability `resolve`; else acts at random."""

    resolve: float = eqx.field(static=True)
    fixed: int | None = eqx.field(static=True)

    def initial_memory(self) -> Memory:
        return Memory(episode=None, lasting={"goal": jnp.full(self.group, self.fixed or 0, jnp.int32)})

    def prepare(self, view: View, memory: Memory, key: PRNGKeyArray) -> Memory:
        if self.fixed is not None:
            return memory
        drawn = jax.random.randint(key, view.reward.shape, 0, len(self.game.goals))
        return Memory(None, {"goal": jnp.where(view.meeting[:, None], drawn, memory.lasting["goal"])})

    def goal(self, view: View, memory: Memory) -> Int[Array, "E G"]:
        return memory.lasting["goal"]

    def probabilities(self, view: View, memory: Memory) -> Float[Array, "E G actions"]:
        return self.wavering(self.goal(view, memory), view.observation, view.legal)

    def wavering(
        self, goal: Int[Array, "*n"], observation: Array, legal: Bool[Array, "*n actions"]
    ) -> Float[Array, "*n actions"]:
        return self.resolve * _by_goal(self.game, goal, observation, legal) + (1 - self.resolve) * uniform(legal)

    def minds(self) -> tuple[Mind, ...]:
        def minded(goal: int, share: float) -> Mind:
            def probabilities(observation: Array, legal: Array, step: Array, episode: Array) -> Array:
                return self.wavering(jnp.full_like(step, goal), observation, legal)

            return Mind(share, probabilities, lambda step, episode: jnp.full_like(step, goal))

        goals = range(len(self.game.goals)) if self.fixed is None else [self.fixed]
        return tuple(minded(goal, 1 / len(goals)) for goal in goals)


def _by_goal(
    game: Game, goal: Int[Array, "*n"], observation: Array, legal: Bool[Array, "*n actions"]
) -> Float[Array, "*n actions"]:
    stag, hare = (Hunt(game.seats, prey)(observation, legal) for prey in (STAG, HARE))
    return jnp.where((goal == STAG)[..., None], stag, hare)


def switcher(game: StagHunt, group: int, argument: str = "") -> Scripted:
    """Changes its goal at a step (`switcher=stag-hare@5`) or after some episodes of a meeting (`switcher=hare-stag@e4`)."""
    form = re.fullmatch(r"(\w+)-(\w+)@(e?)(\d+)", argument or "stag-hare@5")
    if form is None:
        raise BadInput(f"partner 'switcher={argument}': expected FROM-TO@STEP or FROM-TO@eEPISODE, as in switcher=stag-hare@5")
    before, after, episodes, at = form.groups()
    return Switcher(
        game, group, before=_prey("switcher", before), after=_prey("switcher", after), at=int(at), counts_episodes=bool(episodes)
    )


def stubborn(game: StagHunt, group: int, argument: str = "") -> Scripted:
    """Follows one goal with a probability, else acts at random (`stubborn=0.7`; `stubborn=0.7:stag` fixes the goal)."""
    number, _, goal = (argument or "0.7").partition(":")
    try:
        resolve = float(number)
    except ValueError:
        resolve = -1.0
    require(0 <= resolve <= 1, f"partner 'stubborn={argument}': expected a probability, as in stubborn=0.7 or stubborn=0.7:stag")
    return Stubborn(game, group, resolve=resolve, fixed=_prey("stubborn", goal) if goal else None)


def _prey(partner: str, name: str) -> int:
    require(name in StagHunt.goals, f"partner '{partner}': no goal '{name}': {closest(name, StagHunt.goals)}")
    return StagHunt.goals.index(name)
