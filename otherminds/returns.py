"""What rewards add up to: λ-returns and advantages on [T, E, A]. Pure functions; imports nothing of ours but types."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


class Targets(eqx.Module):
    """What each row of a trajectory should have been worth, and how much better that is than expected."""

    returns: Float[Array, "T E A"]
    advantages: Float[Array, "T E A"]


def lambda_returns(
    reward: Float[Array, "T E A"],
    value: Float[Array, "T E A"],
    last_value: Float[Array, "E A"],
    final_value: Float[Array, "T E A"] | None,
    present: Bool[Array, "T E A"],
    last_present: Bool[Array, "E A"],
    terminated: Bool[Array, "T E A"],
    truncated: Bool[Array, "T E"],
    *,
    discount: float,
    trace: float,
) -> Targets:
    """The λ-return G_t = r_t + γ (1 − terminated_t) · [(1 − λ) V_{t+1} + λ G_{t+1}], whose excess over V_t is GAE's advantage.

    Three things bend it:
    - a row that was cut off continues with the value of what it led to (`final_value`), not of the next episode's start;
    - a seat that is absent at t+1 but not terminated has no value there, because nobody trains one: the rewards its team still
      earns are taken as they come, G_{t+1} alone (a fallen unit of SMAX);
    - where such a seat's rewards are cut off too, by the end of the rollout or by a limit of time, the mean value of the seats
      still present stands in.
    """
    last = value_of_absent(last_value, last_present)
    next_value = jnp.concatenate([value[1:], last[None]])
    next_present = jnp.concatenate([present[1:], last_present[None]])
    if final_value is None:
        cut_value = jnp.zeros_like(value)
    else:
        cut_value = value_of_absent(final_value, present & ~terminated)

    def backward(later: Float[Array, "E A"], row: tuple[Array, ...]) -> tuple[Array, Array]:
        reward, next_value, next_present, cut_value, terminated, truncated = row
        mixed = jnp.where(next_present, (1 - trace) * next_value + trace * later, later)
        follows = jnp.where(truncated[:, None], cut_value, mixed)
        found = reward + discount * jnp.where(terminated, 0.0, follows)
        return found, found

    rows = (reward, next_value, next_present, cut_value, terminated, truncated)
    _, returns = jax.lax.scan(backward, last, rows, reverse=True)
    return Targets(returns=returns, advantages=returns - value)


def value_of_absent(value: Float[Array, "*games A"], present: Bool[Array, "*games A"]) -> Float[Array, "*games A"]:
    """Values as they are for present seats; for absent ones the mean over those present, 0 if nobody is."""
    count = jnp.maximum(present.sum(-1, keepdims=True), 1)
    mean = jnp.where(present, value, 0.0).sum(-1, keepdims=True) / count
    return jnp.where(present, value, mean)


def episode_sums(
    reward: Float[Array, "T E A"], ended: Bool[Array, "T E"], carried: Float[Array, "E A"]
) -> tuple[Float[Array, "T E A"], Float[Array, "E A"]]:
    """At each row, the reward of the episode so far; and what is carried into the next rollout."""

    def forward(so_far: Float[Array, "E A"], row: tuple[Array, Array]) -> tuple[Array, Array]:
        reward, ended = row
        total = so_far + reward
        return jnp.where(ended[:, None], 0.0, total), total

    carried, sums = jax.lax.scan(forward, carried, (reward, ended))
    return sums, carried


def ranked(
    total: Float[Array, "T E A"], over: Bool[Array, "T E A"], counts: Bool[Array, "T E A"], share: float
) -> Float[Array, "T E A"]:
    """Rewards by rank (Laterre et al. 2018). Where it is over for a seat: 1 if what it earned in its episode (`total`) is no less
    than the last of a `share` of the best of those that count, else -1. Nothing before."""
    known = over & counts
    count = known.sum((0, 1))
    rising = jnp.sort(jnp.where(known, total, jnp.inf).reshape(-1, total.shape[-1]), 0)
    place = jnp.clip(((1 - share) * count).astype(jnp.int32), 0, jnp.maximum(count - 1, 0))
    bound = jnp.take_along_axis(rising, place[None], 0)
    return jnp.where(over, jnp.where(total >= bound[None], 1.0, -1.0), 0.0)
