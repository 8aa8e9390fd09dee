"""Terms of losses, one number a row and seat, and the means that leave absent seats out. Pure functions."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def masked_mean(
    x: Float[Array, "*n"], weight: Bool[Array, "*n"], axis: int | tuple[int, ...] | None = None
) -> Float[Array, "..."]:
    """Mean over the rows that count; 0 if none does."""
    return jnp.where(weight, x, 0.0).sum(axis) / jnp.maximum(weight.sum(axis), 1)


def masked_variance(
    x: Float[Array, "*n"], weight: Bool[Array, "*n"], axis: int | tuple[int, ...] | None = None
) -> Float[Array, "..."]:
    """Variance over the rows that count."""
    mean = masked_mean(x, weight, axis)
    centred = x - (mean if axis is None else jnp.expand_dims(mean, axis))
    return masked_mean(centred**2, weight, axis)


def normalised(x: Float[Array, "T E G"], weight: Bool[Array, "T E G"]) -> Float[Array, "T E G"]:
    """Each seat's values shifted and scaled to mean 0 and variance 1 over the rows in which it was present."""
    mean = masked_mean(x, weight, (0, 1))
    variance = masked_variance(x, weight, (0, 1))
    return (x - mean[None, None]) / jnp.sqrt(variance + 1e-8)[None, None]


def clipped_policy(ratio: Float[Array, "*n"], advantage: Float[Array, "*n"], clip: float) -> Float[Array, "*n"]:
    """PPO's pessimistic surrogate, as a loss (Schulman et al. 2017, equation 7)."""
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage)


def clipped_value(
    value: Float[Array, "*n"], old_value: Float[Array, "*n"], target: Float[Array, "*n"], clip: float | None
) -> Float[Array, "*n"]:
    """Half the squared error; with `clip`, of whichever is worse: the new value, or the new value held near the old one."""
    error = (value - target) ** 2
    if clip is not None:
        held = old_value + jnp.clip(value - old_value, -clip, clip)
        error = jnp.maximum(error, (held - target) ** 2)
    return 0.5 * error


def explained_variance(value: Float[Array, "*n"], target: Float[Array, "*n"], weight: Bool[Array, "*n"]) -> Float[Array, ""]:
    """The share of the targets' variance that the values account for: 1 is perfect, 0 no better than a constant."""
    spread = masked_variance(target, weight)
    return jnp.where(spread > 1e-8, 1 - masked_variance(target - value, weight) / jnp.maximum(spread, 1e-8), 0.0)
