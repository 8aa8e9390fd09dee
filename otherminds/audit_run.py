"""The audit of a run: what its log and its newest checkpoint say about failures that no curve shows.

Each check rests on something the code under suspicion did not compute itself: the game's own states, a second update from altered
data, the run's settings, the first updates made anew.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from otherminds import checkpoint, runs
from otherminds.audit import Check
from otherminds.config import require
from otherminds.games.ego import view
from otherminds.rollout import collect
from otherminds.train import about, number
from otherminds.types import Memory, Seated, Trajectory, of_seats
from otherminds.updates import Carry, Compiled, Setup, first_carry, learn, one_update, policies_at, prepare

RATIO_ERROR = 1e-3  # of the first ratios: what single precision may do
MOVE_ERROR = 1e-4  # of parameters after an update, as a share of how far it moved them
MORE = 16  # updates at most that are made to see episodes end
AGAIN = 2  # updates that are made anew from the seed
COLLAPSE = 0.25  # share of what was gained that may be lost again


@dataclass(frozen=True)
class Evidence:
    """A run and what can be made of its newest checkpoint. One seed stands for all where something is played again."""

    run: Path
    setup: Setup
    rows: list[dict[str, Any]]
    facts: dict[str, Any]
    carry: Carry
    phase: int
    seed: int

    @staticmethod
    def of(run: Path) -> "Evidence":
        setup = prepare(runs.read_config(run))
        found = checkpoint.newest(run, print)
        require(found is not None, f"{run} has no checkpoint yet: there is nothing to audit")
        assert found is not None
        facts = found.facts
        engine = Compiled(setup)
        whole = checkpoint.filled(engine.like(facts["phase"]), found.arrays)
        place = int(np.argmax(np.asarray(whole.alive)))  # the first seed that is alive, or the first
        carry = jax.tree.map(lambda leaf: leaf[place], whole)
        rows = [row for row in runs.rows(run / "metrics.jsonl") if "reward" in row["metrics"] or "data_seat" in row["metrics"]]
        return Evidence(run, setup, rows, facts, carry, facts["phase"], setup.config.seed + place)

    @cached_property
    def learned_rows(self) -> list[dict[str, Any]]:
        """Rows of seats that were learning at the time."""
        setup = self.setup
        return [row for row in self.rows if row["seat"] in setup.learned(setup.phase_at(row["update"] - 1))]

    @cached_property
    def fixed(self) -> tuple[Seated, ...]:
        return Compiled(self.setup).policies(self.phase, self.facts["update"])

    @cached_property
    def policies(self) -> tuple[Seated, ...]:
        return policies_at(self.setup, self.phase, self.carry.learners, self.fixed)

    @cached_property
    def play(self) -> Any:
        """The rollout that an update of a carry would learn from, with the states of the game."""
        setup, phase = self.setup, self.phase

        @jax.jit
        def play(carry: Carry, fixed: tuple[Seated, ...]) -> Trajectory:
            assert carry.play is not None
            policies = policies_at(setup, phase, carry.learners, fixed)
            return collect(setup.game, policies, carry.play, setup.config.rollout, final=setup.game.truncates, states=True)[1]

        return lambda carry: play(carry, self.fixed)

    @cached_property
    def update(self) -> Any:
        """(carry, metrics) of an update as training would make it."""
        update = jax.jit(lambda carry, fixed: one_update(self.setup, self.phase, fixed, carry))
        return lambda carry: update(carry, self.fixed)

    @cached_property
    def played(self) -> Trajectory:
        return self.play(self.carry)

    @cached_property
    def next_metrics(self) -> dict[str, Any]:
        """What the next update would log."""
        return jax.device_get(self.update(self.carry)[1])

    def own_rows(self, k: int) -> Trajectory:
        """The rows that learner k would learn from, without the states of the game, which are not its to see."""
        assert self.carry.play is not None
        memory = self.carry.play.memories[self.setup.active(self.phase).index(k)]
        plain = dataclasses.replace(self.played, state=None, after=None)
        return of_seats(plain, self.setup.groups[k].seats, memory)

    @cached_property
    def updaters(self) -> dict[int, Any]:
        return {k: jax.jit(self.setup.learners[k].update) for k in self.setup.active(self.phase)}


def audit_run(run: Path) -> Iterator[Check]:
    """All checks of a run, one after the other, so that a caller can show progress."""
    evidence = Evidence.of(run)
    provenance = _provenance(evidence)
    yield provenance
    yield _finite(evidence)
    yield _first_ratio(evidence, provenance)
    yield _equal_configs(evidence)
    yield _no_collapse(evidence)
    if evidence.setup.game.on_host:
        reason = f"{evidence.setup.config.game} is stepped on the host and cannot be played again"
        for name in ("logged_reward", "present_steps", "absent_zero_gradient", "seat_permutation", "update_order"):
            yield Check(name, None, {"reason": reason})
    else:
        yield _logged_reward(evidence)
        yield _present_steps(evidence)
        yield from _learner_checks(evidence)
        yield _update_order(evidence)
        yield _evaluation_equals_training(evidence)
        yield _seed_behaviour(evidence)
    yield _parameter_coverage(evidence)


def _provenance(evidence: Evidence) -> Check:
    """Every update of a seat was made of that seat's own data."""
    wrong = [row for row in evidence.learned_rows if row["metrics"].get("data_seat") != row["seat"]]
    found: dict[str, Any] = {"updates_of_seats": len(evidence.learned_rows), "from_another_seat": len(wrong)}
    if wrong:
        seen = sorted({(row["seat"], row["metrics"].get("data_seat")) for row in wrong}, key=str)
        found["which"] = [f"player_{seat + 1} learned from {_player(source)}" for seat, source in seen]
    return Check("provenance", bool(evidence.learned_rows) and not wrong, found)


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
        return Check("first_ratio", None, {"reason": "no update was made of its own seat's data"})
    note = {} if provenance.passed else {"left_out": "updates from another seat's data, whose ratios mean nothing"}
    evidence_ = {"updates_of_seats": len(errors), "largest_error": max(errors), "allowed": RATIO_ERROR} | note
    return Check("first_ratio", len(errors) == len(own) and max(errors) <= RATIO_ERROR, evidence_)


def _equal_configs(evidence: Evidence) -> Check:
    """Equal learners learn with equal settings: those of the config, the same in every seat at every update."""
    setup = evidence.setup
    fresh = first_carry(setup, setup.config.seed, Compiled(setup).policies(0, 0)).learners
    other = [
        f"{group.learner} in seats {[seat + 1 for seat in group.seats]}"
        for group, state in zip(setup.groups, fresh, strict=True)
        if state.config != getattr(setup.config, group.learner)
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
    """The reward at the end is not far below the best it was since seats last changed, as a share of what the whole run gained.

    Of the whole run, because a learner that joins those who can play already may gain next to nothing.
    """
    setup = evidence.setup
    by_update: dict[int, list[float]] = {}
    for row in evidence.learned_rows:
        if "reward" in row["metrics"]:
            by_update.setdefault(row["update"], []).append(row["metrics"]["reward"])
    updates = [update for update in sorted(by_update) if update > setup.boundaries[evidence.phase]]
    rewards = np.array([np.mean(by_update[update]) for update in updates])
    if len(rewards) < 20:
        return Check("no_collapse", None, {"reason": f"only {len(rewards)} updates in which episodes ended"})
    width = max(5, len(rewards) // 10)
    means = np.convolve(rewards, np.ones(width) / width, "valid")
    best = int(means.argmax())
    noise = max(np.std(rewards[-width:]), np.std(rewards[best : best + width])) / width**0.5
    peak, last = float(means.max()), float(means[-1])
    start = min(means[0], np.mean([np.mean(by_update[update]) for update in sorted(by_update)[:width]]))
    lost, gained = peak - last, peak - float(start)
    found = {
        "peak": peak,
        "peak_step": int(updates[best + width - 1] * setup.config.steps_per_update),
        "final": last,
        "lost_share_of_gain": lost / gained if gained > 0 else 0.0,
        "allowed": COLLAPSE,
    }
    return Check("no_collapse", bool(lost <= max(COLLAPSE * gained, 6 * noise)), found)


def _logged_reward(evidence: Evidence) -> Check:
    """What the next updates would log as reward is what the game pays, stepped again from its own states."""
    game, carry, steps = evidence.setup.game, evidence.carry, evidence.setup.config.rollout
    step_again = jax.jit(jax.vmap(jax.vmap(game.step)))
    so_far = np.asarray(carry.earned, np.float64)
    gap, episodes, worst = 0.0, 0, 0.0
    for _ in range(min(-(-(game.longest or steps) // steps) + 1, MORE)):
        assert carry.play is not None
        rows = evidence.play(carry)
        again = step_again(rows.state, rows.action, _game_keys(carry.play.key, rows, len(evidence.policies)))[1]
        reward, ended = np.asarray(again.reward, np.float64), np.asarray(again.terminated | again.truncated)
        sums = []
        for t in range(steps):
            so_far = so_far + reward[t]
            sums += list(so_far[ended[t]])
            so_far = np.where(ended[t][:, None], 0.0, so_far)
        carry, metrics = evidence.update(carry)
        gap = max(gap, float(np.abs(reward - np.asarray(rows.reward)).max()))
        if sums:
            episodes += len(sums)
            difference = np.abs(np.mean(sums, 0) - np.asarray(metrics["seats"]["reward"], np.float64))
            worst = max(worst, float((difference / (1 + np.abs(np.mean(sums, 0)))).max()))
    found = {"largest_difference_of_a_step": gap, "episodes": episodes, "largest_difference_of_what_is_logged": worst}
    return Check("logged_reward", gap <= 1e-4 and worst <= 1e-3 and episodes > 0, found)


def _game_keys(key: Any, rows: Trajectory, policies: int) -> Any:
    """The keys that `rollout.choose` hands to the game, [T, E]."""
    keys = []
    for _ in range(rows.reward.shape[0]):
        key, game_key, *_ = jax.random.split(key, 2 + policies)
        keys.append(jax.random.split(game_key, rows.reward.shape[1]))
    return jnp.stack(keys)


def _present_steps(evidence: Evidence) -> Check:
    """The losses of each seat used as many steps as it was present in the game, by the game's own word."""
    setup, rows = evidence.setup, evidence.played
    present = np.asarray(jax.jit(jax.vmap(jax.vmap(setup.game.present)))(rows.state))
    used, true = [], []
    for k in setup.active(evidence.phase):
        metrics = evidence.next_metrics["learners"][str(k)]
        used += [int(count) for count in metrics["present_steps"]]
        true += [int(present[:, :, int(seat)].sum()) for seat in metrics["data_seat"]]
    return Check("present_steps", used == true, {"used": used, "present": true, "of": int(present[:, :, 0].size)})


def _learner_checks(evidence: Evidence) -> Iterator[Check]:
    """Checks that make a second update from altered data, for each learner that plays."""
    for k in evidence.setup.active(evidence.phase):
        name = f":{k + 1}" if len(evidence.setup.active(evidence.phase)) > 1 else ""
        learner, state, rows = evidence.setup.learners[k], evidence.carry.learners[k], evidence.own_rows(k)
        key = jax.random.key(0)
        after, _ = evidence.updaters[k](state, rows, key)
        move = _distance(learner.trainable(state), learner.trainable(after))

        absent = np.asarray(~rows.present)
        if not absent.any():
            yield Check(f"absent_zero_gradient{name}", None, {"reason": "nobody was absent"})
        else:
            other, _ = evidence.updaters[k](state, _garbled(rows), key)
            gap = _distance(learner.trainable(after), learner.trainable(other))
            found = {"absent_seat_steps": int(absent.sum()), "moved_by_them": gap, "moved_in_all": move}
            yield Check(f"absent_zero_gradient{name}", gap <= MOVE_ERROR * move, found)

        count = len(state.seats)
        if count == 1:
            yield Check(f"seat_permutation{name}", None, {"reason": "the learner has one seat"})
        else:
            order = np.roll(np.arange(count), -1)
            moved, _ = evidence.updaters[k](_reordered(state, order), _reordered_rows(rows, order), key)
            gap = _distance(learner.trainable(_reordered(after, order)), learner.trainable(moved))
            found = {"seats": count, "largest_difference": gap, "moved_in_all": move}
            yield Check(f"seat_permutation{name}", gap <= MOVE_ERROR * move, found)


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
    memory = jax.tree.map(lambda leaf: leaf[:, order], rows.memory)
    return dataclasses.replace(of_seats(rows, tuple(int(place) for place in order), memory), everyone=rows.everyone)


def _update_order(evidence: Evidence) -> Check:
    """It does not matter which learner is updated first."""
    active = evidence.setup.active(evidence.phase)
    if len(active) < 2:
        return Check("update_order", None, {"reason": "there is one learner"})
    assert evidence.carry.play is not None
    plain = dataclasses.replace(evidence.played, state=None, after=None)
    results = [
        jax.jit(
            lambda carry, rows, order=order: learn(evidence.setup, evidence.phase, carry, rows, carry.play.memories, order)[0]
        )(evidence.carry, plain).learners
        for order in (tuple(active), tuple(reversed(active)))
    ]
    gap, move = _distance(*results), _distance(results[0], evidence.carry.learners)
    return Check("update_order", gap <= MOVE_ERROR * move, {"learners": len(active), "difference": gap, "moved_in_all": move})


def _evaluation_equals_training(evidence: Evidence) -> Check:
    """A policy read from disk, seat by seat, as evaluation does, plays like the one in training at the same moment."""
    setup, carry = evidence.setup, evidence.carry
    assert carry.play is not None
    gaps = {}
    for place, k in enumerate(setup.active(evidence.phase)):
        group = setup.groups[k]
        whole = evidence.policies[place].policy.step(
            view(carry.play.now, group.seats), carry.play.memories[place], jax.random.key(0)
        )
        for j, seat in enumerate(group.seats):
            policy = checkpoint.load_policy(evidence.run, seat, str(evidence.facts["step"]), evidence.seed)
            memory: Memory = jax.tree.map(lambda leaf, j=j: leaf[:, j : j + 1], carry.play.memories[place])
            alone = policy.step(view(carry.play.now, (seat,)), memory, jax.random.key(0))
            there = np.asarray(carry.play.now.present[:, seat])
            difference = np.abs(np.asarray(whole[2].logits[:, j]) - np.asarray(alone[2].logits[:, 0]))[there]
            gaps[f"player_{seat + 1}"] = float(difference.max(initial=0.0))
    worst = max(gaps.values())
    return Check(
        "evaluation_equals_training", worst <= 1e-4, {"games": setup.config.parallel, "largest_difference_of_logits": gaps}
    )


def _seed_behaviour(evidence: Evidence) -> Check:
    """The same seed gives the same curve, another seed another one."""
    setup = evidence.setup
    engine = Compiled(setup)
    count = min([AGAIN, setup.config.updates, *filter(None, setup.boundaries)])
    _, metrics = engine.advance(engine.before(engine.first(), 0, 0), 0, count)
    metrics = jax.device_get(metrics)
    logged = {(row["update"], row["seed"], row["seat"]): row["metrics"] for row in evidence.rows if row["update"] <= count}
    frozen = {entry["seed"] for entry in evidence.facts["frozen"]}
    compared, different, curves = 0, 0, {}
    for s, seed in enumerate(setup.seeds):
        if seed in frozen:
            continue
        curve = []
        for i in range(count):
            for k, values in metrics["learners"].items():
                for j, seat in enumerate(setup.groups[int(k)].seats):
                    known = logged.get((i + 1, seed, seat), {})
                    for name, value in values.items():
                        compared += 1
                        different += known.get(name) != number(value[i, s, j])
                    curve.append(float(values["policy_loss"][i, s, j]))
        curves[seed] = tuple(curve)
    twins = len(curves) - len(set(curves.values()))
    found: dict[str, Any] = {"updates_made_anew": count, "numbers": compared, "different": different, "seeds_alike": twins}
    then = runs.read_json(evidence.run / "run.json")
    if any(then.get(fact) != about()[fact] for fact in ("machine", "threads", "jax", "jaxlib", "otherminds", "commit")):
        found["reason"] = "the run was made with other code or on another machine: figures only"
        return Check("seed_behaviour", None if not twins else False, found)
    return Check("seed_behaviour", compared > 0 and not different and not twins, found)


def _parameter_coverage(evidence: Evidence) -> Check:
    """Every array of parameters of every seat has moved since the start."""
    setup = evidence.setup
    fresh = first_carry(setup, evidence.seed, Compiled(setup).policies(0, 0)).learners
    still, total = [], 0
    for k, group in enumerate(setup.groups):
        if not int(evidence.carry.learners[k].updates):
            continue
        old, new = (setup.learners[k].trainable(states[k]) for states in (fresh, evidence.carry.learners))
        share = evidence.carry.learners[k].config.share
        for (path, before), after in zip(jax.tree_util.tree_leaves_with_path(old), jax.tree.leaves(new), strict=True):
            moved = np.atleast_1d(np.asarray(before != after).reshape(1 if share else len(group.seats), -1).any(-1))
            total += len(moved)
            names = ["shared"] if share else [f"player_{seat + 1}" for seat in group.seats]
            still += [
                f"{group.learner} {who}{jax.tree_util.keystr(path)}" for who, went in zip(names, moved, strict=True) if not went
            ]
    return Check("parameter_coverage", total > 0 and not still, {"arrays": total, "never_moved": still})
