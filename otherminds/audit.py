"""Silent failures made loud: checks that say PASS or FAIL, with the figures they rest on."""

import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from otherminds import seats
from otherminds.config import BadInput, require
from otherminds.evaluate import episode_rewards, estimate
from otherminds.games.base import Game
from otherminds.games.ego import all_to_ego, permute_state, to_ego
from otherminds.partners import names_for
from otherminds.rollout import collect, start

LANES, PERMUTATIONS, EPISODES = 32, 24, 8192
TOLERANCE = 1e-5  # sums of rewards in another order may differ by rounding
FALSE_ALARM = 1e-4  # chance that a fair game fails a check of equal rewards


@dataclass(frozen=True)
class Check:
    """One verdict and what it rests on."""

    name: str
    passed: bool | None  # None: it could not be made here, or gives figures only; the evidence says why
    evidence: dict[str, Any]


def _skip(name: str, reason: str) -> Check:
    return Check(name, None, {"reason": reason})


def audit_game(game: Game, seed: int = 0) -> Iterator[Check]:
    """All checks of a game, one after the other, so that a caller can show progress."""
    require(not game.on_host, f"{game.id} is stepped on the host: the audit checks compiled games, ours and JaxMARL's")
    moments = _moments(game, jax.random.key(seed))
    yield _legal_somewhere(game, moments)
    yield _absent_changes_nothing(game, moments)
    yield _seat_symmetry(game, moments)
    yield _ego_alignment(game, moments)
    for partner in names_for(game.family):
        yield _equal_rewards(game, partner, seed)


def verdict(checks: list[Check]) -> dict[str, Any]:
    """Passed if every check that could be made passed, and there was one."""
    made = [check.passed for check in checks if check.passed is not None]
    return {"passed": bool(made) and all(made), "checks": [asdict(check) for check in checks]}


@dataclass(frozen=True)
class Moments:
    """States met in random play and the actions taken there, one row each."""

    state: Any
    action: Array
    key: Array


def _moments(game: Game, key: Array) -> Moments:
    """Random legal play, so that games in every phase, and absent seats, are among the states."""
    policies = seats.resolve(game, "random")
    steps = min(game.longest or 64, 64)

    @jax.jit
    def play(key: Array) -> Any:
        return collect(game, policies, start(game, policies, LANES, key), steps, states=True)[1]

    rows = play(key)
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (rows.state, rows.action))
    count = flat[1].shape[0]
    return Moments(flat[0], flat[1], jax.random.split(key, count))


def _largest_difference(left: Any, right: Any) -> float:
    """The largest difference between two pytrees of numbers or truths."""

    def gap(a: Array, b: Array) -> float:
        return float(np.max(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)), initial=0.0))

    return _largest(jax.tree.leaves(jax.tree.map(gap, left, right)))


def _largest(gaps: list[float]) -> float:
    """The largest, and not a number if any is not one: Python's own `max` would pass over it."""
    return float(np.max(np.array(gaps), initial=0.0))


def _after(game: Game, state: Any, action: Array, key: Array) -> dict[str, Any]:
    """Everything one step says about seats."""
    after, outcome = game.step(state, action, key)
    return {
        "by_seat": {
            "reward": outcome.reward,
            "left": outcome.left,
            "present": game.present(after),
            "legal": game.legal(after),
            "goal_reached": game.goal_reached(state, action, after),
        },
        "shared": {"terminated": outcome.terminated, "truncated": outcome.truncated},
        "state": after,
    }


def _seat_symmetry(game: Game, moments: Moments) -> Check:
    """Permuting the seats of a state and the actions permutes the result; rotating them leaves every observation as it was."""
    if not moments.state.by_seat:
        return _skip("seat_symmetry", "the states of this game cannot be permuted: it is another library's")
    orders = list(itertools.permutations(range(game.seats)))
    if len(orders) > PERMUTATIONS:
        chosen = np.random.default_rng(0).choice(len(orders), PERMUTATIONS, replace=False)
        orders = [orders[k] for k in sorted(chosen)]

    @jax.jit
    def both(order: Array) -> tuple[Any, Any]:
        def one(state: Any, action: Array, key: Array) -> tuple[Any, Any]:
            plain = _after(game, state, action, key)
            plain["by_seat"] = jax.tree.map(lambda leaf: leaf[order], plain["by_seat"])
            plain["state"] = permute_state(plain["state"], order)
            moved = _after(game, permute_state(state, order), action[order], key)
            return plain, moved

        return jax.vmap(one)(moments.state, moments.action, moments.key)

    gap = _largest([_largest_difference(*both(jnp.array(order))) for order in orders])

    @jax.jit
    def seen(shift: Array) -> tuple[Array, Array]:
        order = to_ego(jnp.arange(game.seats), shift)
        plain = jax.vmap(lambda state: game.observe(state)[order])(moments.state)
        return plain, jax.vmap(lambda state: game.observe(permute_state(state, order)))(moments.state)

    seen_gap = _largest([_largest_difference(*seen(jnp.int32(shift))) for shift in range(game.seats)])
    evidence = {
        "states": int(moments.action.shape[0]),
        "permutations": len(orders),
        "largest_difference": gap,
        "largest_difference_in_observations": seen_gap,
    }
    return Check("seat_symmetry", gap <= TOLERANCE and seen_gap <= TOLERANCE, evidence)


def _has_simulator(game: Game, moments: Moments) -> bool:
    try:
        jax.eval_shape(lambda state: game.state_of(game.observe(state)[0], 0), jax.tree.map(lambda leaf: leaf[0], moments.state))
    except BadInput:
        return False
    return True


def _ego_alignment(game: Game, moments: Moments) -> Check:
    """The state read off a seat's own observation, stepped with the rotated joint action, gives the rotated result."""
    if not _has_simulator(game, moments):
        return _skip("ego_alignment", "an observation of this game does not determine its state")

    @jax.jit
    def both() -> tuple[Any, Any]:
        def one(state: Any, action: Array, key: Array) -> tuple[Any, Any]:
            everyone = tuple(range(game.seats))
            true, outcome = game.step(state, action, key)
            rewards = all_to_ego(outcome.reward, everyone)
            present = all_to_ego(game.present(true), everyone)
            actions = all_to_ego(action, everyone)

            def imagined(observation: Array, joint: Array, seat: Array) -> tuple[Array, Array, Array]:
                own, own_outcome = game.step(game.state_of(observation, seat), joint, key)
                return own_outcome.reward, game.present(own), game.observe(own)[0]

            return (rewards, present, game.observe(true)), jax.vmap(imagined)(
                game.observe(state), actions, jnp.arange(game.seats)
            )

        return jax.vmap(one)(moments.state, moments.action, moments.key)

    gap = _largest_difference(*both())
    evidence = {"states": int(moments.action.shape[0]), "seats": game.seats, "largest_difference": gap}
    return Check("ego_alignment", gap <= TOLERANCE, evidence)


def _absent_changes_nothing(game: Game, moments: Moments) -> Check:
    """Whatever an absent seat 'does' changes nothing for anyone, to the last bit."""

    @jax.jit
    def after(other: Array) -> tuple[Any, Array]:
        def one(state: Any, action: Array, key: Array) -> tuple[Any, Array]:
            present = game.present(state)
            acts = present.reshape(present.shape + (1,) * (action.ndim - 1))
            return _after(game, state, jnp.where(acts, action, other), key), (~present).sum()

        return jax.vmap(one)(moments.state, moments.action, moments.key)

    plain, absent = after(jnp.asarray(0, moments.action.dtype))
    if not absent.sum():
        return _skip("absent_changes_nothing", "nobody was absent")
    others = [after(jnp.asarray(number, moments.action.dtype))[0] for number in range(-1, game.actions + 1)]
    gap = _largest([_largest_difference(plain, other) for other in others])
    return Check("absent_changes_nothing", gap == 0, {"absent_seat_steps": int(absent.sum()), "largest_difference": gap})


def _legal_somewhere(game: Game, moments: Moments) -> Check:
    """A present seat always has a legal action, an absent one action 0 alone."""
    legal = np.asarray(jax.jit(jax.vmap(game.legal))(moments.state))
    present = np.asarray(jax.jit(jax.vmap(game.present))(moments.state))
    stuck = int((present & ~legal.any(-1)).sum())
    loose = int((~present & (legal.sum(-1) != 1)).sum()) + int((~present & ~legal[..., 0]).sum())
    evidence = {"present_seat_steps": int(present.sum()), "without_legal_action": stuck, "absent_with_other_actions": loose}
    return Check("legal_actions", stuck == 0 and (loose == 0 or game.continuous), evidence)


def _equal_rewards(game: Game, partner: str, seed: int) -> Check:
    """Equal policies earn equally in every seat of a symmetric game.

    Each seat's reward is compared with the mean over seats of the same episode; the bound keeps the chance that a fair game
    fails, over all its seats, at FALSE_ALARM.
    """
    if game.longest is None:
        return _skip(f"equal_rewards:{partner}", "episodes of this game have no longest length")
    rewards = episode_rewards(game, seats.resolve(game, partner), EPISODES, jax.random.key(seed + 1)).astype(np.float64)
    apart = rewards - rewards.mean(1, keepdims=True)
    spread = np.maximum(apart.std(0, ddof=1), 1e-12)
    scores = np.abs(apart.mean(0)) / spread * len(rewards) ** 0.5
    bound = _normal_bound(FALSE_ALARM / game.seats)
    evidence: dict[str, Any] = {
        "episodes": len(rewards),
        "per_seat": [asdict(estimate(rewards[:, seat])) for seat in range(game.seats)],
        "largest_deviation_in_standard_errors": float(scores.max()),
        "bound": bound,
    }
    if not game.symmetric:
        return Check(f"equal_rewards:{partner}", None, evidence | {"reason": "the game says that its seats differ: figures only"})
    return Check(f"equal_rewards:{partner}", bool(scores.max() <= bound), evidence)


def _normal_bound(two_sided: float) -> float:
    return NormalDist().inv_cdf(1 - two_sided / 2)


def describe(check: Check) -> str:
    """The evidence of a check in one line."""
    parts = []
    for name, value in check.evidence.items():
        if name == "per_seat":
            value = "  ".join(f"{seat['mean']:.3f} [{seat['low']:.3f}, {seat['high']:.3f}]" for seat in value)
        elif isinstance(value, float):
            value = f"{value:.3g}"
        parts.append(f"{name.replace('_', ' ')} {value}")
    return "; ".join(parts)
