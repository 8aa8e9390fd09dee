"""Scripted partners: policies whose exact action probabilities and true goals are known.

They are the yardstick of opponent models and beliefs: no model can predict better than the probabilities stated here.
"""

from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num, PRNGKeyArray

from otherminds.config import BadInput, require
from otherminds.distributions import NEVER, draw
from otherminds.games.base import Game
from otherminds.types import Action, Extras, Memory, Policy, View

Rule = Callable[[Num[Array, "..."], Bool[Array, "*games actions"]], Float[Array, "*games actions"]]
"""From observations [*games, features] and legal actions [*games, actions] to action probabilities.

A rule is a function of a module or a frozen dataclass: equal scripts must be equal objects, or each would be compiled anew.
"""


@dataclass(frozen=True)
class Mind:
    """One way in which a script may be minded: what it would do and what it would be after, at any step of any episode.

    `probabilities(observation, legal, step, episode)` and `goal(step, episode)` take n moments at once; steps are counted within
    the episode and episodes within the meeting, both from 0.
    """

    share: float  # of meetings in which it is so minded
    probabilities: Callable[[Array, Array, Array, Array], Float[Array, "n actions"]]
    goal: Callable[[Array, Array], Int[Array, " n"]]


class Scripted(Policy):
    """The same script in each of `group` seats, played independently."""

    game: Game = eqx.field(static=True)
    group: int = eqx.field(static=True)

    def initial_memory(self) -> Memory:
        return Memory(episode=None, lasting=None)

    def check(self, game: Game, seats: tuple[int, ...]) -> None:
        require(
            self.game == game, f"{type(self).__name__} was made for {self.game.id or self.game}, and sits in {game.id or game}"
        )
        require(self.group == len(seats), f"{type(self).__name__} was made for {self.group} seats, and sits in {len(seats)}")

    def prepare(self, view: View, memory: Memory, key: PRNGKeyArray) -> Memory:
        """Make up one's mind before acting: draw what has to be drawn when an episode or a meeting opens."""
        return memory

    def probabilities(self, view: View, memory: Memory) -> Float[Array, "E G actions"]:
        """The exact distribution of the next action, for a prepared memory."""
        raise NotImplementedError

    def goal(self, view: View, memory: Memory) -> Int[Array, "E G"]:
        """The true goal, for a prepared memory; -1 where the script has none."""
        return jnp.full(view.reward.shape, -1, jnp.int32)

    def minds(self) -> tuple[Mind, ...]:
        """All that it may have in mind when a meeting opens: what exact beliefs are made of."""
        raise BadInput(f"what {type(self).__name__} does depends on more than board, step and episode: exact beliefs need that")

    def act(self, view: View, memory: Memory, key: PRNGKeyArray) -> tuple[Action, Memory, Extras]:
        prepare_key, action_key = jax.random.split(key)
        memory = self.prepare(view, memory, prepare_key)
        probabilities = self.probabilities(view, memory)
        logits = jnp.where(probabilities > 0, jnp.log(jnp.maximum(probabilities, 1e-30)), NEVER)
        action = draw(probabilities, action_key)
        goal = self.goal(view, memory)
        return action, memory, Extras(logits=logits, policy_logits=logits, value=jnp.zeros(action.shape), goal=goal)


class FromRule(Scripted):
    """A script that remembers nothing and is after one thing."""

    rule: Rule = eqx.field(static=True)
    aim: int = eqx.field(static=True, default=-1)

    def probabilities(self, view: View, memory: Memory) -> Float[Array, "E G actions"]:
        return self.rule(view.observation, view.legal)

    def goal(self, view: View, memory: Memory) -> Int[Array, "E G"]:
        return jnp.full(view.reward.shape, self.aim, jnp.int32)

    def minds(self) -> tuple[Mind, ...]:
        def probabilities(observation: Array, legal: Array, step: Array, episode: Array) -> Array:
            return self.rule(observation, legal)

        return (Mind(1.0, probabilities, lambda step, episode: jnp.full_like(step, self.aim)),)


class RandomBox(Scripted):
    """Uniform over continuous actions."""

    def act(self, view: View, memory: Memory, key: PRNGKeyArray) -> tuple[Action, Memory, Extras]:
        zeros = jnp.zeros(view.legal.shape)
        extras = Extras(logits=zeros, policy_logits=zeros, value=zeros[..., 0], goal=self.goal(view, memory))
        return jax.random.uniform(key, view.legal.shape), memory, extras


def uniform(allowed: Bool[Array, "*games actions"]) -> Float[Array, "*games actions"]:
    """Equal probability for each allowed action."""
    return allowed / jnp.maximum(allowed.sum(-1, keepdims=True), 1)


def any_legal(observation: Num[Array, "..."], legal: Bool[Array, "*games actions"]) -> Float[Array, "*games actions"]:
    return uniform(legal)


def random(game: Game, group: int, argument: str = "") -> Scripted:
    """Uniform over legal actions."""
    no_argument("random", argument)
    if game.continuous:
        return RandomBox(game, group)
    return FromRule(game, group, rule=any_legal)


def no_argument(name: str, argument: str) -> None:
    require(not argument, f"partner '{name}' takes no argument, got '{argument}': type {name}")
