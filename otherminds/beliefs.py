"""What we believe a partner is after: inside an episode from what it does, across episodes from what it reached before.

Goals are either a few that can be counted, and then beliefs are exact, or a code of real numbers, and then they are normal.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

LEAST = 1e-6  # of a likelihood: a model that calls an action impossible may be wrong


def even(shape: tuple[int, ...], goals: int) -> Float[Array, "*n goals"]:
    """The belief of whoever knows nothing."""
    return jnp.full((*shape, goals), 1 / goals)


def after_action(
    belief: Float[Array, "*n goals"],
    likelihood: Float[Array, "*n goals"],
    seen: Bool[Array, "*n"],
    switching: float = 0.0,
) -> Float[Array, "*n goals"]:
    """Bayes' rule for one action: b(g) is multiplied by the chance of that action for whoever is after g.

    Where the partner was not `seen` to act, nothing is learned. `switching` is the chance that a partner changes its goal between
    two steps; without it, a belief that has become certain takes as long to turn as it took to grow.
    """
    grown = belief * jnp.maximum(likelihood, LEAST)
    posterior = grown / grown.sum(-1, keepdims=True)
    goals = belief.shape[-1]
    if switching and goals > 1:
        posterior = (1 - switching) * posterior + switching * (1 - posterior) / (goals - 1)
    return jnp.where(seen[..., None], posterior, belief)


class Counts(eqx.Module):
    """How often each goal was reached in earlier episodes, the older the less."""

    reached: Float[Array, "*n goals"]

    @staticmethod
    def empty(shape: tuple[int, ...], goals: int) -> "Counts":
        return Counts(jnp.ones((*shape, goals)))

    def after_episode(self, goal: Int[Array, "*n"], discount: float = 0.995) -> "Counts":
        """Count the goal that was reached; an episode that shows nothing (-1) changes nothing."""
        goals = self.reached.shape[-1]
        counted = discount * self.reached + jax.nn.one_hot(goal, goals)
        return Counts(jnp.where((goal >= 0)[..., None], counted, self.reached))

    def prior(self) -> Float[Array, "*n goals"]:
        """What is believed when an episode opens."""
        return self.reached / self.reached.sum(-1, keepdims=True)


class Normal(eqx.Module):
    """A belief about a goal that is a code: independent normal numbers, by mean and precision."""

    mean: Float[Array, "*n code"]
    precision: Float[Array, "*n code"]

    @staticmethod
    def standard(shape: tuple[int, ...], code: int) -> "Normal":
        return Normal(jnp.zeros((*shape, code)), jnp.ones((*shape, code)))

    def after_evidence(
        self, mean: Float[Array, "*n code"], precision: Float[Array, "*n code"], seen: Bool[Array, "*n"]
    ) -> "Normal":
        """Join it with what one look suggests, each weighted by how precise it is."""
        weight = jnp.where(seen[..., None], precision, 0.0)
        total = self.precision + weight
        return Normal((self.precision * self.mean + weight * mean) / total, total)

    def faded(self, discount: float) -> "Normal":
        """The same mean, less sure: between two episodes the standard normal comes back in."""
        precision = discount * self.precision + (1 - discount)
        return Normal(discount * self.precision * self.mean / precision, precision)


def entropy(belief: Float[Array, "*n goals"]) -> Float[Array, "*n"]:
    """In nats."""
    return -(belief * jnp.log(jnp.maximum(belief, 1e-30))).sum(-1)


def gate_by_distance(steps_to_goal: Int[Array, "*n"], within: int) -> Bool[Array, "*n"]:
    """Whether inference is worth its time: only while some goal is `within` so many steps."""
    return steps_to_goal <= within


def gate_by_movement(before: Float[Array, "*n goals"], after: Float[Array, "*n goals"], least: float) -> Bool[Array, "*n"]:
    """The same for learned goals: only while the entropy of the belief still moves."""
    return jnp.abs(entropy(after) - entropy(before)) >= least
