"""Each check of a run fails on the failure it is there for, and no other check does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FAULTS = {
    "nothing": None,
    "two_learners": None,
    "rise": None,
    "wrong_data": "provenance",
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
}


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
    wanted = set(FAULTS.values()) - {None, "update_order", "no_collapse", "absent_zero_gradient"}
    assert wanted - {"seat_permutation"} <= made
