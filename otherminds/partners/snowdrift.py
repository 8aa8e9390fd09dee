"""Scripted drivers in the snow."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from otherminds.games.base import Game
from otherminds.games.grid import planes
from otherminds.games.paths import FAR, steps_to
from otherminds.games.snowdrift import CLEAR, Snowdrift
from otherminds.partners.base import FromRule, Scripted, no_argument, uniform
from otherminds.partners.paths import toward
from otherminds.types import Memory, View


def never_clear(game: Snowdrift, group: int, argument: str = "") -> Scripted:
    """Anything but clearing: lets the others do it."""
    no_argument("never_clear", argument)
    return FromRule(game, group, rule=anything_but_clearing, aim=game.cells)


def anything_but_clearing(observation: Array, legal: Bool[Array, "*games actions"]) -> Float[Array, "*games actions"]:
    return uniform(legal.at[..., CLEAR].set(False))


class NearestDrift(Scripted):
    """Picks one of the nearest drifts, ties at random, and keeps to it until it is gone."""

    def initial_memory(self) -> Memory:
        return Memory(episode={"target": jnp.full(self.group, -1, jnp.int32)}, lasting=None)

    def prepare(self, view: View, memory: Memory, key: PRNGKeyArray) -> Memory:
        own, drift = _own(view), _drift(self.game, view)
        target = memory.episode["target"]
        kept = (planes(target, *drift.shape[-2:]) & drift).any((-2, -1))
        steps = steps_to(own, jnp.zeros_like(own))
        distance = jnp.where(drift, steps, FAR).reshape(*target.shape, -1)
        nearest = (distance == distance.min(-1, keepdims=True)) & (distance < FAR)
        drawn = jax.random.categorical(key, jnp.where(nearest, 0.0, -jnp.inf))
        drawn = jnp.where(nearest.any(-1), drawn, -1)
        return Memory({"target": jnp.where(kept, target, drawn)}, None)

    def goal(self, view: View, memory: Memory) -> Int[Array, "E G"]:
        return memory.episode["target"]

    def probabilities(self, view: View, memory: Memory) -> Float[Array, "E G actions"]:
        own = _own(view)
        target = planes(memory.episode["target"], *own.shape[-2:])
        return toward(target, jnp.zeros_like(own), own, view.legal, CLEAR)


def nearest_drift(game: Snowdrift, group: int, argument: str = "") -> Scripted:
    """Walks to the nearest drift and clears it."""
    no_argument("nearest_drift", argument)
    return NearestDrift(game, group)


def _own(view: View) -> Bool[Array, "E G H W"]:
    return view.observation[..., 0, :, :].astype(bool)


def _drift(game: Game, view: View) -> Bool[Array, "E G H W"]:
    return view.observation[..., game.seats, :, :].astype(bool)
