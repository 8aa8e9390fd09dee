"""Scripted players of repeated two-by-two games. An observation holds the last joint action, own first."""

from dataclasses import dataclass
from typing import cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from otherminds.games.matrix import Matrix
from otherminds.partners.base import FromRule, Scripted, no_argument
from otherminds.types import Memory, View

COOPERATE, DEFECT = 0, 1
OTHER_DEFECTED = 3  # entry of the observation


@dataclass(frozen=True)
class Always:
    """The rule to play one action."""

    action: int

    def __call__(self, observation: Array, legal: Bool[Array, "*games 2"]) -> Float[Array, "*games 2"]:
        return _play(jnp.full(legal.shape[:-1], self.action == DEFECT))


def copy(observation: Array, legal: Bool[Array, "*games 2"]) -> Float[Array, "*games 2"]:
    """The rule to do what the other did; cooperate first."""
    return _play(observation[..., OTHER_DEFECTED] > 0)


def _play(defects: Bool[Array, "*games"]) -> Float[Array, "*games 2"]:
    return jax.nn.one_hot(defects.astype(int), 2)


def always_c(game: Matrix, group: int, argument: str = "") -> Scripted:
    """Cooperates."""
    no_argument("always_c", argument)
    return FromRule(game, group, rule=Always(COOPERATE), aim=COOPERATE)


def always_d(game: Matrix, group: int, argument: str = "") -> Scripted:
    """Defects."""
    no_argument("always_d", argument)
    return FromRule(game, group, rule=Always(DEFECT), aim=DEFECT)


def tit_for_tat(game: Matrix, group: int, argument: str = "") -> Scripted:
    """Cooperates first, then does what the other did."""
    no_argument("tit_for_tat", argument)
    return FromRule(game, group, rule=copy)


class Grim(Scripted):
    """Cooperates until the other has defected once in this episode."""

    def initial_memory(self) -> Memory:
        return Memory(episode={"betrayed": jnp.zeros(self.group, bool)}, lasting=None)

    def prepare(self, view: View, memory: Memory, key: Array) -> Memory:
        return Memory({"betrayed": memory.episode["betrayed"] | (view.observation[..., OTHER_DEFECTED] > 0)}, None)

    def probabilities(self, view: View, memory: Memory) -> Float[Array, "E G actions"]:
        return _play(memory.episode["betrayed"])


def grim(game: Matrix, group: int, argument: str = "") -> Scripted:
    """Cooperates until the other has defected once in this episode."""
    no_argument("grim", argument)
    return Grim(game, group)


class WinStayLoseShift(Scripted):
    """Cooperates first; repeats an action that paid at least the mean of its seat's payoffs, else changes it."""

    def probabilities(self, view: View, memory: Memory) -> Float[Array, "E G actions"]:
        own, other = view.observation[..., 0:2], view.observation[..., 2:4]
        table = jnp.array(cast(Matrix, self.game).table)[view.seat]  # [G, own, other]
        paid = jnp.einsum("ega,gab,egb->eg", own, table, other)
        won = paid >= table.mean((1, 2))[None]
        played = own.any(-1)
        defected = own[..., DEFECT] > 0
        return _play(played & (defected == won))


def win_stay_lose_shift(game: Matrix, group: int, argument: str = "") -> Scripted:
    """Repeats what paid at least the mean of its payoffs, else changes."""
    no_argument("win_stay_lose_shift", argument)
    return WinStayLoseShift(game, group)
