"""The audit of a run: what its log and its newest checkpoint say about failures that no curve shows.

Each check rests on something the code under suspicion did not compute itself: the game's own states, returns added up by hand, a
second update from altered data, the run's settings, the first updates made anew.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from otherminds import checkpoint, distributions, runs
from otherminds.audit import Check
from otherminds.config import BadInput
from otherminds.diagnostics import falls
from otherminds.evidence import Evidence, without_states
from otherminds.games.ego import view
from otherminds.train import about, number
from otherminds.types import SEAT_FIELDS, Memory, Policy, TimeStep, Trajectory, View
from otherminds.updates import learn

RATIO_ERROR = 1e-3  # of the first ratios: what single precision may do
MOVE_ERROR = 1e-4  # of parameters after an update, as a share of how far it moved them
DATA_ERROR = 1e-4  # of what a game shows and pays, stepped again
RETURN_ERROR = 1e-3  # of what tells of returns, as a share of their size
SMALL_STEP = 1e-5  # a learning rate so small that only the direction of an update counts
MOVED = 1e-6  # the least change of log-probabilities that is more than rounding
MORE = 16  # updates at most that are made to see episodes end
AGAIN = 2  # updates that are made anew from the seed

PLAYED = (
    *("logged_reward", "present_steps", "absent_zero_gradient", "seat_permutation", "returns", "update_direction"),
    *("update_order", "evaluation_equals_training", "seed_behaviour"),
)
"""Checks that play the game again."""


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


def audit_run(run: Path, say: Callable[[str], None] = _to_stderr) -> Iterator[Check]:
    """All checks of a run, one after the other, so that a caller can show progress. `say` hears of damaged checkpoints."""
    evidence = Evidence.of(run, say)
    if not evidence.alive:
        yield _finite(evidence)
        for name in ("provenance", "first_ratio", "equal_configs", "no_collapse", *PLAYED, "parameter_coverage"):
            yield _none(name, "every seed was frozen")
        return
    provenance = _provenance(evidence)
    yield provenance
    yield _finite(evidence)
    yield _first_ratio(evidence, provenance)
    yield _equal_configs(evidence)
    yield _no_collapse(evidence)
    if evidence.setup.game.on_host:
        for name in PLAYED:
            yield _none(name, f"{evidence.setup.config.game} is stepped on the host and cannot be played again")
    else:
        yield _logged_reward(evidence)
        yield _present_steps(evidence)
        yield from _learner_checks(evidence)
        yield from _liveness(evidence)
        yield _update_order(evidence)
        yield _evaluation_equals_training(evidence)
        yield _seed_behaviour(evidence)
    yield _parameter_coverage(evidence)


def _none(name: str, reason: str) -> Check:
    return Check(name, None, {"reason": reason})


def _provenance(evidence: Evidence) -> Check:
    """Every update of a seat was made of that seat's own data: by the log, and by the game for what the next update is given."""
    if not evidence.somebody_learned:
        return _none("provenance", "nobody has learned yet")
    wrong = [row for row in evidence.learned_rows if row["metrics"].get("data_seat") != row["seat"]]
    found: dict[str, Any] = {"updates_of_seats": len(evidence.learned_rows), "from_another_seat": len(wrong)}
    if wrong:
        seen = sorted({(row["seat"], row["metrics"].get("data_seat")) for row in wrong}, key=str)
        found["which"] = [f"player_{seat + 1} learned from {_player(source)}" for seat, source in seen]
    strange: list[str] = []
    if evidence.active and not evidence.setup.game.on_host:
        strange = _not_its_own(evidence)
        found |= {"seat_steps_compared": int(evidence.watched.rows.reward.size), "not_its_own": strange}
    return Check("provenance", bool(evidence.learned_rows) and not wrong and not strange, found)


def _not_its_own(evidence: Evidence) -> list[str]:
    """Columns of what learners are given that are not those of their seats, by the game's own word where it has one.

    Whether presence is what the game says, `present_steps` asks. What an absent seat saw and did means nothing.
    """
    rows, game = evidence.watched.rows, evidence.setup.game
    own = {name: np.asarray(getattr(rows, name)) for name in SEAT_FIELDS if getattr(rows, name) is not None}
    own |= _own_columns(evidence)
    present = np.asarray(jax.jit(jax.vmap(jax.vmap(game.present)))(rows.state))
    strange = []
    for k in evidence.active:
        handed = evidence.watched.handed[str(k)]
        for j, seat in enumerate(evidence.setup.groups[k].seats):
            for name, true in own.items():
                gap = _differ(np.asarray(getattr(handed, name))[:, :, j], true[:, :, seat], axes=2)
                counts = np.ones_like(gap) if name in ("reward", "terminated", "present") else present[:, :, seat]
                if count := int((gap & counts).sum()):
                    strange.append(f"{name} of player_{seat + 1} in {count} steps")
            for name in ("observation", "legal", "present"):
                given, true = (np.asarray(getattr(moment, name)) for moment in (handed.last, rows.last))
                if _differ(given[:, j], true[:, seat], axes=1).any():
                    strange.append(f"{name} of player_{seat + 1} after the last step")
    return strange


def _own_columns(evidence: Evidence) -> dict[str, np.ndarray]:
    """What the game itself says of each row, stepped again from its own states, [T, E, A]."""
    game, rows, play = evidence.setup.game, evidence.watched.rows, evidence.carry.play
    assert play is not None

    def again(state: Any, action: Any, key: Any) -> Any:
        after, outcome = game.step(state, action, key)
        return outcome, game.observe(state), game.legal(state), game.goal_reached(state, action, after)

    keys = _game_keys(play.key, rows, len(evidence.policies))
    outcome, observation, legal, goal = jax.device_get(jax.jit(jax.vmap(jax.vmap(again)))(rows.state, rows.action, keys))
    over, terminated = np.asarray(play.over), []
    for left, ended, truncated in zip(outcome.left, outcome.terminated, outcome.truncated, strict=True):
        terminated.append((left | ended[:, None]) & ~over)
        over = (over | terminated[-1]) & ~(ended | truncated)[:, None]
    return {
        "observation": observation,
        "legal": legal,
        "reward": outcome.reward,
        "goal_reached": goal,
        "terminated": np.stack(terminated),
    }


def _differ(left: np.ndarray, right: np.ndarray, axes: int) -> np.ndarray:
    """Where two arrays differ, by their first axes; the others are features."""
    near = np.isclose(left.astype(np.float64), right.astype(np.float64), atol=DATA_ERROR)
    return np.asarray(~near.all(tuple(range(axes, left.ndim))))


def _player(seat: float | None) -> str:
    return "nobody knows whom" if seat is None else f"player_{int(seat) + 1}"


def _finite(evidence: Evidence) -> Check:
    """No seed had to be frozen."""
    return Check(
        "finite", not evidence.facts["frozen"], {"seeds": evidence.setup.config.seeds, "frozen": evidence.facts["frozen"]}
    )


def _first_ratio(evidence: Evidence, provenance: Check) -> Check:
    """In the first minibatch the policy that learns is the one that played: all ratios are 1."""
    own = [row["metrics"] for row in evidence.learned_rows if row["metrics"].get("data_seat") == row["seat"]]
    errors = [metrics["first_ratio_error"] for metrics in own if "first_ratio_error" in metrics]
    if not errors:
        return _none("first_ratio", "no update was made of its own seat's data")
    left_out = provenance.passed is False
    note = {"left_out": "updates from another seat's data, whose ratios mean nothing"} if left_out else {}
    evidence_ = {"updates_of_seats": len(errors), "largest_error": max(errors), "allowed": RATIO_ERROR} | note
    return Check("first_ratio", len(errors) == len(own) and max(errors) <= RATIO_ERROR, evidence_)


def _equal_configs(evidence: Evidence) -> Check:
    """Equal learners learn with equal settings: those of the config, the same in every seat at every update."""
    setup = evidence.setup
    other = [
        f"{group.learner} in seats {[seat + 1 for seat in group.seats]}"
        for group, state in zip(setup.groups, evidence.fresh, strict=True)
        if state.config != setup.config.of(group.learner)
    ]
    group_of = {(seat, phase): k for k, group in enumerate(setup.groups) for seat in group.seats for phase in group.phases}
    settings: dict[tuple[int, int, int], set[tuple[Any, ...]]] = {}
    for row in evidence.learned_rows:
        where = (group_of[row["seat"], setup.phase_at(row["update"] - 1)], row["update"], row["seed"])
        now = tuple(row["metrics"].get(name) for name in ("learning_rate", "entropy_weight"))
        settings.setdefault(where, set()).add(now)
    unequal = sum(len(kinds) > 1 for kinds in settings.values())
    found = {
        "learners": len(setup.groups),
        "not_as_configured": other,
        "updates": len(settings),
        "unequal_between_seats": unequal,
    }
    return Check("equal_configs", not other and not unequal, found)


def _no_collapse(evidence: Evidence) -> Check:
    """The reward at the end is not far below the best it was since seats last changed."""
    setup = evidence.setup
    passed, found = falls.of_rewards(evidence.learned_rows, setup.boundaries[evidence.phase])
    if "peak_update" in found:
        found["peak_step"] = found.pop("peak_update") * setup.config.steps_per_update
    return Check("no_collapse", passed, found)


def _logged_reward(evidence: Evidence) -> Check:
    """What the next updates would log as reward is what the game pays, stepped again from its own states."""
    game, carry, steps = evidence.setup.game, evidence.carry, evidence.setup.config.rollout
    step_again = jax.jit(jax.vmap(jax.vmap(game.step)))
    so_far = np.asarray(carry.earned, np.float64)
    gap, episodes, worst = 0.0, 0, 0.0
    plain = evidence.setup.plain(evidence.phase)
    for _ in range(min(-(-(game.longest or steps) // steps) + 1, MORE)):
        assert carry.play is not None
        watched = evidence.watched if carry is evidence.carry else evidence.watch(carry)
        rows = watched.rows
        again = step_again(rows.state, rows.action, _game_keys(carry.play.key, rows, len(evidence.policies)))[1]
        reward, ended = np.asarray(again.reward, np.float64), np.asarray(again.terminated | again.truncated)
        sums = []
        for t in range(steps):
            so_far = so_far + reward[t]
            sums += list(so_far[ended[t] & plain])
            so_far = np.where(ended[t][:, None], 0.0, so_far)
        carry = watched.after
        gap = max(gap, float((np.abs(reward - np.asarray(rows.reward)) / (1 + np.abs(reward))).max()))
        if sums:
            episodes += len(sums)
            difference = np.abs(np.mean(sums, 0) - np.asarray(watched.metrics["seats"]["reward"], np.float64))
            worst = max(worst, float((difference / (1 + np.abs(np.mean(sums, 0)))).max()))
    found = {"largest_difference_of_a_step": gap, "episodes": episodes, "largest_difference_of_what_is_logged": worst}
    if gap <= DATA_ERROR and not episodes:
        return Check("logged_reward", None, {"reason": f"no episode ended in {MORE} updates"} | found)
    return Check("logged_reward", gap <= DATA_ERROR and worst <= 1e-3, found)


def _game_keys(key: Any, rows: Trajectory, policies: int) -> Any:
    """The keys that `rollout.choose` hands to the game, [T, E]."""
    keys = []
    for _ in range(rows.reward.shape[0]):
        key, game_key, *_ = jax.random.split(key, 2 + policies)
        keys.append(jax.random.split(game_key, rows.reward.shape[1]))
    return jnp.stack(keys)


def _present_steps(evidence: Evidence) -> Check:
    """The losses of each seat used the steps in which it was present in the game, by the game's own word."""
    if not evidence.active:
        return _none("present_steps", "nobody learns now")
    watched = evidence.watched
    present = np.asarray(jax.jit(jax.vmap(jax.vmap(evidence.setup.game.present)))(watched.rows.state))
    used, true, wrong = [], [], 0
    for k in evidence.active:
        metrics, given = watched.metrics["learners"][str(k)], np.asarray(watched.handed[str(k)].present)
        itself = evidence.setup.as_itself(k)
        for j, seat in enumerate(np.asarray(metrics["data_seat"], int)):
            used.append(int(metrics["present_steps"][j]))
            true.append(int((present[:, :, seat] & itself[None, :, j]).sum()))
            wrong += int((given[:, :, j] != present[:, :, seat]).sum())
    found = {"used": used, "present": true, "of": int(present[:, :, 0].size), "taken_for_the_other": wrong}
    return Check("present_steps", used == true and not wrong, found)


def _learner_checks(evidence: Evidence) -> Iterator[Check]:
    """Checks of what each learner that plays makes of its rows."""
    names = ("absent_zero_gradient", "seat_permutation", "returns", "update_direction")
    if not evidence.active:
        yield from (_none(name, "nobody learns now") for name in names)
    for k in evidence.active:
        suffix = f":{k + 1}" if len(evidence.active) > 1 else ""
        absent, permutation, returns, direction = (name + suffix for name in names)
        yield from _altered_data(evidence, k, absent, permutation)
        sums = _returns(evidence, k, returns)
        yield sums
        if sums.passed is False:
            yield _none(direction, "returns are not what they should be, and so neither are advantages")
        else:
            yield _update_direction(evidence.beginning, k, direction)


def _altered_data(evidence: Evidence, k: int, absent_name: str, permutation_name: str) -> Iterator[Check]:
    """Checks that make a second update from altered data."""
    learner, state, rows = evidence.setup.learners[k], evidence.carry.learners[k], evidence.watched.handed[str(k)]
    state = getattr(learner, "among_equals", lambda state: state)(state)  # other selves sit in certain seats of certain games
    key = jax.random.key(0)
    after, _ = evidence.updaters[k](state, rows, key)
    move = _distance(learner.trainable(state), learner.trainable(after))

    absent = np.asarray(~rows.present)
    if not absent.any():
        yield _none(absent_name, "nobody was absent")
    else:
        other, _ = evidence.updaters[k](state, _garbled(rows), key)
        gap = _distance(learner.trainable(after), learner.trainable(other))
        found = {"absent_seat_steps": int(absent.sum()), "moved_by_them": gap, "moved_in_all": move}
        yield Check(absent_name, gap <= MOVE_ERROR * move, found)

    count = len(state.seats)
    if count == 1:
        yield _none(permutation_name, "the learner has one seat")
    else:
        order = np.roll(np.arange(count), -1)
        moved, _ = evidence.updaters[k](_reordered(state, order), _reordered_rows(rows, order), key)
        gap = _distance(learner.trainable(_reordered(after, order)), learner.trainable(moved))
        found = {"seats": count, "largest_difference": gap, "moved_in_all": move}
        yield Check(permutation_name, gap <= MOVE_ERROR * move, found)


def _distance(left: Any, right: Any) -> float:
    """Norm of the difference of two pytrees of parameters."""
    squares = jax.tree.map(lambda a, b: float(((np.asarray(a, np.float64) - np.asarray(b, np.float64)) ** 2).sum()), left, right)
    return float(np.sqrt(sum(jax.tree.leaves(squares))))


def _garbled(rows: Trajectory) -> Trajectory:
    """The same rows with nonsense wherever a seat was absent; what its team earned meanwhile stays."""
    absent = ~rows.present

    def nonsense(x: Any, value: Any) -> Any:
        return jnp.where(absent.reshape(absent.shape + (1,) * (x.ndim - 3)), jnp.asarray(value, x.dtype), x)

    return dataclasses.replace(
        rows,
        observation=nonsense(rows.observation, 1),
        action=nonsense(rows.action, 0),
        value=nonsense(rows.value, 50.0),
        behaviour_logits=nonsense(rows.behaviour_logits, -1.0),
        policy_logits=nonsense(rows.policy_logits, -1.0),
    )


def _reordered(state: Any, order: np.ndarray) -> Any:
    """A learner's state with its seats in another order; what is shared has no order."""
    if state.config.share:
        return state
    return jax.tree.map(lambda leaf: leaf[order] if leaf.ndim and leaf.shape[0] == len(order) else leaf, state)


def _reordered_rows(rows: Trajectory, order: np.ndarray) -> Trajectory:
    """Rows of a learner with its seats in another order."""
    moved = {name: getattr(rows, name)[:, :, order] for name in SEAT_FIELDS if getattr(rows, name) is not None}
    fields = ("action", "reward", "goal_reached", "terminated", "observation", "legal", "present")
    last = dataclasses.replace(rows.last, **{name: getattr(rows.last, name)[:, order] for name in fields})
    memory = jax.tree.map(lambda leaf: leaf[:, order], rows.memory)
    return dataclasses.replace(rows, **moved, last=last, memory=memory, seat=rows.seat[order])


def returns_by_hand(
    reward: np.ndarray,
    value: np.ndarray,
    last_value: np.ndarray,
    final_value: np.ndarray | None,
    present: np.ndarray,
    last_present: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    *,
    discount: float,
    trace: float,
) -> np.ndarray:
    """λ-returns [T, E, G], added up row by row from the end: the rules of `returns.lambda_returns`, written a second time."""
    later = _stand_in(last_value, last_present)
    next_value, next_present = later, last_present
    found = np.zeros(reward.shape)
    for t in reversed(range(len(reward))):
        follows = np.where(next_present, (1 - trace) * next_value + trace * later, later)
        cut_off = 0.0 if final_value is None else _stand_in(final_value[t], present[t] & ~terminated[t])
        follows = np.where(truncated[t][:, None], cut_off, follows)
        later = found[t] = reward[t] + discount * np.where(terminated[t], 0.0, follows)
        next_value, next_present = value[t], present[t]
    return found


def _stand_in(value: np.ndarray, present: np.ndarray) -> np.ndarray:
    """For absent seats the mean of those present."""
    count = np.maximum(present.sum(-1, keepdims=True), 1)
    return np.where(present, value, np.where(present, value, 0.0).sum(-1, keepdims=True) / count)


def _returns_by_hand(evidence: Evidence, k: int, trace: float | None = None) -> np.ndarray | str:
    """What learner k should take for the returns of its rows, by its own λ unless one is given; or why nobody can say."""
    rows, after, config = evidence.watched.handed[str(k)], evidence.watched.after.play, evidence.carry.learners[k].config
    if getattr(config, "ranked_reward", None) is not None:
        return "rewards are ranked among episodes that began before"
    if getattr(config, "value_target", "") == "search":
        return "values go on from what searches found"
    place, seats = evidence.active.index(k), evidence.setup.groups[k].seats
    assert after is not None
    policy = evidence.policies[place].policy
    seen = _seen(rows.last.observation, rows.last.legal, rows.last.present, after.now, seats)
    last_value = policy.step(seen, after.memories[place], jax.random.key(0))[2].value
    final_value = None
    if rows.final_observation is not None and np.asarray(rows.truncated).any():
        if config.core != "none":
            return "the learner has a memory, and episodes were cut off"
        final_value = np.asarray(_replayed(evidence, k, policy, rows.final_observation).value, np.float64)
    reward, terminated = np.asarray(rows.reward, np.float64), np.asarray(rows.terminated)
    if prosocial := getattr(config, "prosocial", 0.0):
        assert rows.everyone is not None
        reward = (1 - prosocial) * reward + prosocial * np.asarray(rows.everyone.reward, np.float64).mean(-1, keepdims=True)
        opened = np.concatenate([np.asarray(rows.first)[1:], np.asarray(rows.last.first)[None]])
        terminated = np.broadcast_to((opened & ~np.asarray(rows.truncated))[..., None], reward.shape)
    return returns_by_hand(
        *(reward, np.asarray(rows.value, np.float64), np.asarray(last_value, np.float64), final_value),
        *(np.asarray(rows.present), np.asarray(rows.last.present), terminated, np.asarray(rows.truncated)),
        discount=config.discount,
        trace=config.trace if trace is None else trace,
    )


def _seen(observation: Any, legal: Any, present: Any, now: TimeStep, seats: tuple[int, ...]) -> View:
    """What the policy in `seats` sees of a moment, with what its learner was given in place of its own columns."""
    seen = view(now, seats)
    return dataclasses.replace(seen, observation=observation, legal=legal, present=seen.present.at[..., 0].set(present))


def _replayed(evidence: Evidence, k: int, policy: Policy, observation: Any) -> Any:
    """What a policy without memory says of all rows of learner k, [T, E, G], if it observes this."""
    rows, everyone, seats = evidence.watched.handed[str(k)], evidence.watched.rows, evidence.setup.groups[k].seats
    steps, games = rows.first.shape
    flat = lambda x: x.reshape(steps * games, *x.shape[2:])  # noqa: E731
    moments = TimeStep(**{field.name: flat(getattr(everyone, field.name)) for field in dataclasses.fields(TimeStep)})
    seen = _seen(flat(observation), flat(rows.legal), flat(rows.present), moments, seats)
    memory = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (steps * games, *leaf.shape)), policy.initial_memory())
    extras = policy.step(seen, memory, jax.random.key(0))[2]
    return jax.tree.map(lambda leaf: leaf.reshape(steps, games, *leaf.shape[1:]), extras)


def _returns(evidence: Evidence, k: int, name: str) -> Check:
    """The returns a learner computed are those added up by hand, as far as its metrics and its scale of values tell."""
    whole = getattr(evidence.carry.learners[k].config, "value_target", "") == "return"
    by_hand = _returns_by_hand(evidence, k, 1.0 if whole else None)
    if isinstance(by_hand, str):
        return _none(name, by_hand)
    rows, metrics = evidence.watched.handed[str(k)], evidence.watched.metrics["learners"][str(k)]
    present, value = np.asarray(rows.present) & evidence.setup.as_itself(k)[None], np.asarray(rows.value, np.float64)
    errors = []
    for j, logged in enumerate(np.asarray(metrics["explained_variance"], np.float64)):
        here = present[:, :, j]
        target, guess = by_hand[:, :, j][here], value[:, :, j][here]
        if here.any() and target.std() > RETURN_ERROR * (1 + np.abs(target).max()):
            unexplained = (target - guess).var() / target.var()
            errors.append(float(abs(1 - logged - unexplained) / (1 + unexplained)))
    old, new = evidence.carry.learners[k], evidence.watched.after.learners[k]
    if old.config.normalise_value and present.any():
        sums = jnp.asarray(by_hand, jnp.float32)
        expected = old.scale.take_in(sums, jnp.asarray(present))
        for power, parts in enumerate(zip(*((s.first, s.second) for s in (old.scale, expected, new.scale)), strict=True), 1):
            before, right, found = (np.asarray(part, np.float64) for part in parts)
            size = np.abs(right - before) + 0.1 * np.abs(by_hand[present]).mean() ** power
            errors.append(float((np.abs(found - right) / np.maximum(size, 1e-8)).max()))
    if not errors:
        return _none(name, "all returns are alike")
    cut_off = int(np.asarray(rows.truncated).sum())
    figures = {"seat_steps": int(present.sum()), "cut_off": cut_off, "largest_error": max(errors), "allowed": RETURN_ERROR}
    return Check(name, max(errors) <= RETURN_ERROR, figures)


def _update_direction(evidence: Evidence, k: int, name: str) -> Check:
    """A small step of the policy loss alone makes actions likelier that were better than expected.

    To first order that holds of any policy gradient on the rows it was made of. Momentum, entropy, the critic's loss and larger
    steps may bend it, and are left out. A policy that is certain of what to do hardly moves: give evidence of the beginning.
    """
    learner, state, rows = evidence.setup.learners[k], evidence.carry.learners[k], evidence.watched.handed[str(k)]
    if state.config.core != "none":
        return _none(name, "the learner has a memory, through which earlier rows change later ones")
    by_hand = _returns_by_hand(evidence, k)
    if isinstance(by_hand, str):
        return _none(name, by_hand)
    weights = {
        "learning_rate": SMALL_STEP,
        "learning_rate_final": None,
        "entropy": 0.0,
        "entropy_final": None,
        "value_weight": 0.0,
        **({"imagined_fraction": 0.0} if hasattr(state.config, "imagined_fraction") else {}),  # of rows that were played
        **({"stakes": None} if hasattr(state.config, "stakes") else {}),  # what counts more in one moment may cost in another
        **({"ambition": 0.0} if hasattr(state.config, "ambition") else {}),  # returns by hand are of rewards as they are
    }
    careful = dataclasses.replace(
        state,
        config=dataclasses.replace(state.config, **weights),
        sizes=dataclasses.replace(state.sizes, epochs=1, minibatches=1),
        optimiser=jax.tree.map(jnp.zeros_like, state.optimiser),
    )
    after, metrics = jax.jit(learner.update)(careful, rows, jax.random.key(0))
    if float(np.max(metrics["first_ratio_error"])) > RATIO_ERROR:
        return _none(name, "the policy that learns is not the one that played")
    distribution = distributions.for_actions(evidence.setup.game.continuous)
    before, later = (
        distribution.log_probability(_replayed(evidence, k, learner.policy(s), rows.observation).logits, rows.action)
        for s in (state, after)
    )
    taught = learner.taught(state) if hasattr(learner, "taught") else evidence.setup.as_itself(k)
    change, present = np.asarray(later - before, np.float64), np.asarray(rows.present) & taught[None]
    better = by_hand - np.asarray(rows.value, np.float64)
    gains, sizes = [], []
    for j in range(present.shape[2]):
        here = present[:, :, j]
        advantage, moved = better[:, :, j][here], change[:, :, j][here]
        if here.any() and advantage.std() > RETURN_ERROR * (1 + np.abs(by_hand[:, :, j][here]).max()):
            gains.append(float(((advantage - advantage.mean()) / advantage.std() * moved).mean()))
            sizes.append(float(np.sqrt((moved**2).mean())))
    if not sizes or max(sizes) < MOVED:
        return _none(name, "the policy hardly moves, or nothing was better than anything else")
    together = [sum(gains)] if state.config.share else [gain for gain, size in zip(gains, sizes, strict=True) if size >= MOVED]
    return Check(name, min(together) > 0, {"advantage_times_change_of_log_probability": together, "largest_change": max(sizes)})


def _liveness(evidence: Evidence) -> Iterator[Check]:
    """Every part that a learner has switched on changes what is played."""
    play = evidence.carry.play
    assert play is not None
    for place, k in enumerate(evidence.active):
        parts = getattr(evidence.setup.learners[k], "live_parts", None)
        state = evidence.carry.learners[k]
        if parts is None:
            continue
        suffix = f":{k + 1}" if len(evidence.active) > 1 else ""
        seen = view(play.now, evidence.setup.groups[k].seats)
        found = jax.jit(parts)(state, evidence.fresh[k], seen, play.memories[place], jax.random.key(0))
        for name, change in found.items():
            yield Check(f"liveness:{name}{suffix}", float(change) > MOVED, {"mean_change_of_probabilities": float(change)})


def _update_order(evidence: Evidence) -> Check:
    """It does not matter which learner is updated first."""
    active = evidence.active
    if len(active) < 2:
        return _none("update_order", "there is one learner" if active else "nobody learns now")
    plain = without_states(evidence.watched.rows)
    results = [
        jax.jit(
            lambda carry, rows, order=order: learn(evidence.setup, evidence.phase, carry, rows, carry.play.memories, order)[0]
        )(evidence.carry, plain).learners
        for order in (tuple(active), tuple(reversed(active)))
    ]
    gap, move = _distance(*results), _distance(results[0], evidence.carry.learners)
    return Check("update_order", gap <= MOVE_ERROR * move, {"learners": len(active), "difference": gap, "moved_in_all": move})


def _evaluation_equals_training(evidence: Evidence) -> Check:
    """A policy read from disk, seat by seat, plays like the one in training at the same moment, without its noise."""
    setup, carry = evidence.setup, evidence.carry
    assert carry.play is not None
    gaps = {}
    for place, k in enumerate(evidence.active):
        group = setup.groups[k]
        whole = evidence.policies[place].policy.step(
            view(carry.play.now, group.seats), carry.play.memories[place], jax.random.key(0)
        )
        for j, seat in enumerate(group.seats):
            if seat not in evidence.on_disk:
                continue
            memory: Memory = jax.tree.map(lambda leaf, j=j: leaf[:, j : j + 1], carry.play.memories[place])
            policy: Any = evidence.on_disk[seat]
            policy = policy.without_search() if hasattr(policy, "without_search") else policy
            alone = policy.step(view(carry.play.now, (seat,)), memory, jax.random.key(0))
            there = np.asarray(carry.play.now.present[:, seat]) & setup.as_itself(k)[:, j]
            difference = np.abs(np.asarray(whole[2].policy_logits[:, j]) - np.asarray(alone[2].logits[:, 0]))[there]
            gaps[f"player_{seat + 1}"] = float(difference.max(initial=0.0))
    if not gaps:
        return _none("evaluation_equals_training", "nobody who sits there now has learned yet")
    worst = max(gaps.values())
    return Check(
        "evaluation_equals_training", worst <= 1e-4, {"games": setup.config.parallel, "largest_difference_of_logits": gaps}
    )


def _seed_behaviour(evidence: Evidence) -> Check:
    """The same seed gives the same curve, another seed another one and other parameters."""
    setup, engine = evidence.setup, evidence.engine
    count = min([AGAIN, setup.config.updates, *filter(None, setup.boundaries)])
    _, metrics = engine.advance(engine.before(engine.first(), 0, 0), 0, count)
    metrics = jax.device_get(metrics)
    logged = {(row["update"], row["seed"], row["seat"]): row["metrics"] for row in evidence.rows if row["update"] <= count}
    compared, different, curves, parameters = 0, 0, [], []
    for s in evidence.alive:
        curve: list[float] = []
        for i in range(count):
            values = {seat: {name: x[i, s, seat] for name, x in metrics["seats"].items()} for seat in range(setup.game.seats)}
            for k, learned in metrics["learners"].items():
                for j, seat in enumerate(setup.groups[int(k)].seats):
                    values[seat] |= {name: x[i, s, j] for name, x in learned.items()}
                    curve.append(float(learned["policy_loss"][i, s, j]))
            for seat, own in values.items():
                anew = {name: number(value) for name, value in own.items() if np.isfinite(value)}
                known = logged.get((i + 1, setup.seeds[s], seat), {})
                compared += len(anew)
                different += sum(known.get(name) != value for name, value in anew.items())
        curves.append(tuple(curve))
        states = jax.tree.map(lambda leaf, s=s: leaf[s], evidence.whole.learners)
        own_parameters = [learner.trainable(state) for learner, state in zip(setup.learners, states, strict=True)]
        parameters.append(checkpoint.digest(checkpoint.named(own_parameters)))
    twins = max(len(each) - len(set(each)) for each in ([c for c in curves if c], parameters))
    found: dict[str, Any] = {"updates_made_anew": count, "numbers": compared, "different": different, "seeds_alike": twins}
    if not _made_here(evidence.run):
        found["reason"] = "the run was made with other code or on another machine, or nobody knows: figures only"
        return Check("seed_behaviour", None if not twins else False, found)
    return Check("seed_behaviour", compared > 0 and not different and not twins, found)


def _made_here(run: Path) -> bool:
    """Whether a run was made on this machine by this code."""
    try:
        then = runs.read_json(run / "run.json")
    except BadInput:
        return False
    now, facts = about(), ("machine", "threads", "jax", "jaxlib", "otherminds", "commit")
    return isinstance(then, dict) and all(then.get(fact) == now[fact] for fact in facts)


def _parameter_coverage(evidence: Evidence) -> Check:
    """Every array of parameters of every seat has moved since the start."""
    if not evidence.somebody_learned:
        return _none("parameter_coverage", "nobody has learned yet")
    setup = evidence.setup
    still, total = [], 0
    for k, group in enumerate(setup.groups):
        if not int(evidence.carry.learners[k].updates):
            continue
        old, new = (setup.learners[k].trainable(states[k]) for states in (evidence.fresh, evidence.carry.learners))
        share = evidence.carry.learners[k].config.share
        for (path, before), after in zip(jax.tree_util.tree_leaves_with_path(old), jax.tree.leaves(new), strict=True):
            if not before.size:
                continue
            moved = np.atleast_1d(np.asarray(before != after).reshape(1 if share else len(group.seats), -1).any(-1))
            total += len(moved)
            names = ["shared"] if share else [f"player_{seat + 1}" for seat in group.seats]
            still += [
                f"{group.learner} {who}{jax.tree_util.keystr(path)}" for who, went in zip(names, moved, strict=True) if not went
            ]
    return Check("parameter_coverage", total > 0 and not still, {"arrays": total, "never_moved": still})
