"""Distributions of actions from a network's outputs, one interface for discrete and continuous actions.

All functions take whatever leading axes there are. `legal` masks actions, or the padding among a continuous action's dimensions.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

NEVER = -1e9  # the logit of an action that cannot be taken; finite, so that no gradient meets an infinity
LOG_TWO_PI = 1.8378770664093453


def draw(probabilities: Float[Array, "*n actions"], key: PRNGKeyArray) -> Int[Array, "*n"]:
    """One action from each distribution, by inverting its running sum: one random number instead of one for each choice."""
    reached = jnp.cumsum(probabilities, -1)
    ticket = jax.random.uniform(key, reached.shape[:-1])[..., None] * reached[..., -1:]
    return jnp.argmax(ticket < reached, -1)


class Categorical:
    """One of several actions. Outputs are logits."""

    @staticmethod
    def outputs(actions: int) -> int:
        return actions

    @staticmethod
    def masked(raw: Float[Array, "*n actions"], legal: Bool[Array, "*n actions"]) -> Float[Array, "*n actions"]:
        """Normalised logits in which what is not legal has probability 0."""
        return jnp.where(legal, jax.nn.log_softmax(jnp.where(legal, raw, NEVER)), NEVER)

    @staticmethod
    def sample(logits: Float[Array, "*n actions"], key: PRNGKeyArray) -> Int[Array, "*n"]:
        return draw(jnp.exp(logits), key)

    @staticmethod
    def mode(logits: Float[Array, "*n actions"]) -> Int[Array, "*n"]:
        return jnp.argmax(logits, -1)

    @staticmethod
    def log_probability(logits: Float[Array, "*n actions"], action: Int[Array, "*n"]) -> Float[Array, "*n"]:
        """Of actions taken; 0 for an absent seat's -1, which is for the caller to leave out."""
        chosen = jax.nn.one_hot(action, logits.shape[-1], dtype=bool)
        return jnp.where(chosen, logits, 0.0).sum(-1)

    @staticmethod
    def entropy(logits: Float[Array, "*n actions"]) -> Float[Array, "*n"]:
        return -(jnp.exp(logits) * logits).sum(-1)

    @staticmethod
    def divergence(old: Float[Array, "*n actions"], new: Float[Array, "*n actions"]) -> Float[Array, "*n"]:
        """KL(old‖new)."""
        return (jnp.exp(old) * (old - new)).sum(-1)


class SquashedNormal:
    """Numbers between 0 and 1: a normal variable in each dimension, squashed by the logistic function.

    Outputs are means and log standard deviations of the variable before it is squashed. The squashing's own factor in the density
    is left out of `log_probability`: it depends on the action alone, so it cancels in every ratio and divergence.
    """

    LEAST, MOST = -4.0, 1.0  # of the log standard deviation
    FARTHEST = 8.0  # of the mean: beyond, the squashed number no longer tells what was drawn, and ratios explode

    @classmethod
    def outputs(cls, actions: int) -> int:
        return 2 * actions

    @classmethod
    def masked(cls, raw: Float[Array, "*n outputs"], legal: Bool[Array, "*n actions"]) -> Float[Array, "*n outputs"]:
        """Dimensions that are padding become standard normal, the same in every policy."""
        mean, log_std = jnp.split(raw, 2, -1)
        mean = cls.FARTHEST * jnp.tanh(mean / cls.FARTHEST)
        log_std = jnp.clip(log_std, cls.LEAST, cls.MOST)
        return jnp.concatenate([jnp.where(legal, mean, 0.0), jnp.where(legal, log_std, 0.0)], -1)

    @classmethod
    def sample(cls, logits: Float[Array, "*n outputs"], key: PRNGKeyArray) -> Float[Array, "*n actions"]:
        mean, log_std = jnp.split(logits, 2, -1)
        return jax.nn.sigmoid(mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape))

    @classmethod
    def mode(cls, logits: Float[Array, "*n outputs"]) -> Float[Array, "*n actions"]:
        return jax.nn.sigmoid(jnp.split(logits, 2, -1)[0])

    @classmethod
    def log_probability(cls, logits: Float[Array, "*n outputs"], action: Float[Array, "*n actions"]) -> Float[Array, "*n"]:
        mean, log_std = jnp.split(logits, 2, -1)
        inside = jnp.clip(action, 1e-6, 1 - 1e-6)
        before = jnp.log(inside) - jnp.log1p(-inside)
        return (-0.5 * ((before - mean) / jnp.exp(log_std)) ** 2 - log_std - 0.5 * LOG_TWO_PI).sum(-1)

    @classmethod
    def entropy(cls, logits: Float[Array, "*n outputs"]) -> Float[Array, "*n"]:
        """Of the variable before it is squashed."""
        log_std = jnp.split(logits, 2, -1)[1]
        return (log_std + 0.5 * (1 + LOG_TWO_PI)).sum(-1)

    @classmethod
    def divergence(cls, old: Float[Array, "*n outputs"], new: Float[Array, "*n outputs"]) -> Float[Array, "*n"]:
        """KL(old‖new)."""
        (mean, log_std), (new_mean, new_log_std) = jnp.split(old, 2, -1), jnp.split(new, 2, -1)
        ratio = jnp.exp(2 * (log_std - new_log_std)) + ((mean - new_mean) / jnp.exp(new_log_std)) ** 2
        return (new_log_std - log_std + 0.5 * (ratio - 1)).sum(-1)


Distribution = type[Categorical] | type[SquashedNormal]


def for_actions(continuous: bool) -> Distribution:
    """The distribution that fits a game's actions."""
    return SquashedNormal if continuous else Categorical
