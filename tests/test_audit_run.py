"""Each check of a run fails on the failure it is there for, and no other check does."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from otherminds import audit_run, checkpoint
from otherminds.audit_run import Evidence, returns_by_hand
from otherminds.config import BadInput
from otherminds.returns import lambda_returns

FAULTS = {
    "nothing": None,
    "two_learners": None,
    "rise": None,
    "late_learner": None,
    "leaving_learner": None,
    "recurrent": None,
    "cut_off": None,
    "on_host": None,
    "wrong_data": "provenance",
    "rewards_of_the_next": "provenance",
    "no_bootstrap": "returns",
    "against_the_gradient": "update_direction",
    "rewards_of_neighbours": "logged_reward",
    "stay_for_the_absent": "present_steps",
    "no_mask": "absent_zero_gradient",
    "another_path": "first_ratio",
    "frozen_layer": "parameter_coverage",
    "other_settings": "equal_configs",
    "special_seat": "seat_permutation",
    "order_matters": "update_order",
    "one_seed_for_all": "seed_behaviour",
    "never_the_same": "seed_behaviour",
    "seat_lost_on_the_way": "evaluation_equals_training",
    "collapse": "no_collapse",
    "not_finite": "finite",
    "dead": "finite",
}

LEARNERS_OWN = {"present_steps", "absent_zero_gradient", "seat_permutation", "returns", "update_direction"}
NOT_MADE = {
    "two_learners": set(),
    "order_matters": set(),
    "rise": {"update_order", "absent_zero_gradient", "seat_permutation"},
    "collapse": {"update_order", "absent_zero_gradient", "seat_permutation"},
    "late_learner": {"update_order", "seat_permutation"},
    "leaving_learner": {"update_order", "evaluation_equals_training", *LEARNERS_OWN},
    "recurrent": {"update_order", "update_direction"},
    "cut_off": {"update_order", "absent_zero_gradient"},
    "on_host": {*audit_run.PLAYED},
    "wrong_data": {"update_order", "update_direction"},
    "no_bootstrap": {"update_order", "update_direction"},
    "another_path": {"update_order", "update_direction"},
    "stay_for_the_absent": {"update_order", "absent_zero_gradient"},
    "dead": {*FAULTS.values()} - {None, "finite", "no_collapse"},
}
"""Checks that cannot be made of a run, where it is not update_order alone; most runs are too short for no_collapse anyway."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_fails_its_check_and_no_other(fault, tmp_path, tmp_path_factory):
    script = Path(__file__).with_name("broken_runs.py")
    environment = os.environ | {
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.getbasetemp().parent / "compiled"),  # what no fault touches, once
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    command = [sys.executable, str(script), fault, str(tmp_path / "run")]
    child = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False)
    assert child.returncode == 0, child.stderr[-2000:]
    checks = json.loads(child.stdout.splitlines()[-1])
    failed = [name for name, passed in checks if passed is False]
    assert failed == ([] if FAULTS[fault] is None else [FAULTS[fault]])
    made = {name.partition(":")[0] for name, passed in checks if passed is not None}
    named = {name.partition(":")[0] for name, _ in checks}
    assert named == set(FAULTS.values()) - {None}
    assert named - made - {"no_collapse"} == NOT_MADE.get(fault, {"update_order"})
    assert "no_collapse" in made or fault not in ("rise", "collapse")


def test_returns_by_hand_are_those_of_learners():
    random = np.random.default_rng(0)
    shape = (12, 6, 3)
    reward, value, final_value = (random.normal(size=shape).astype(np.float32) for _ in range(3))
    present, terminated, truncated = random.random(shape) < 0.7, random.random(shape) < 0.1, random.random(shape[:2]) < 0.1
    last_value, last_present = random.normal(size=shape[1:]).astype(np.float32), random.random(shape[1:]) < 0.5
    for final in (final_value, None):
        rows = (reward, value, last_value, final, present, last_present, terminated, truncated)
        arrays = [None if array is None else jnp.asarray(array) for array in rows]
        known = lambda_returns(*arrays, discount=0.9, trace=0.8).returns
        np.testing.assert_allclose(returns_by_hand(*rows, discount=0.9, trace=0.8), known, atol=1e-5)


@pytest.mark.parametrize(
    "line", [b'{"a": 1}', b"5", b"\xff\xfe\x00", b"[]", b'{"update": 1, "seed": 3, "seat": 0, "metrics": {"a": "b"}}']
)
def test_a_log_that_is_none_is_refused_by_line(line, copied):
    log = copied / "metrics.jsonl"
    rows = log.read_bytes().splitlines()
    log.write_bytes(b"\n".join([*rows[:6], line, *rows[6:]]) + b"\n")
    with pytest.raises(BadInput, match=r"metrics\.jsonl, line 7: (expected|not JSON)") as refused:
        Evidence.of(copied, print)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", ["[]", "{}", "not JSON", None])
def test_a_run_that_does_not_say_what_made_it(content, copied):
    path = copied / "run.json"
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    check = audit_run._seed_behaviour(Evidence.of(copied, print))
    assert check.passed is None
    assert check.evidence["different"] == 0


def test_damage_is_told_on_standard_error(copied, capsys):
    (copied / "checkpoints" / str(checkpoint.steps(copied)[-1]) / checkpoint.STATE).write_bytes(b"")
    assert next(audit_run.audit_run(copied)).passed
    told = capsys.readouterr()
    assert not told.out
    assert "damaged" in told.err


def test_a_checkpoint_that_is_pruned_while_it_is_read(copied, monkeypatch):
    old, new = checkpoint.steps(copied)[-2:]
    plain = checkpoint.arrays_of

    def pruned(run, step):
        if step == new:
            shutil.rmtree(run / "checkpoints" / str(step))
        return plain(run, step)

    monkeypatch.setattr(checkpoint, "arrays_of", pruned)
    evidence = Evidence.of(copied, print)
    assert evidence.facts["step"] == old
    assert evidence.on_disk.keys() == {0, 1}
    assert max(row["update"] for row in evidence.rows) == evidence.facts["update"]
