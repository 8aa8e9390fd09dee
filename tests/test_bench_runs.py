"""The benchmark of runs measures what it says, and says so when something differs."""

import io
import json
import random

import pytest
from rich.console import Console

from otherminds import bench_runs
from otherminds.config import BadInput, Bench, Train

SMALL = "--game matrix-ipd --parallel 4 --rollout 4 --ppo.hidden 8 --epochs 1 --minibatches 1 --checkpoint-every 0.01"


def test_a_typed_command_is_watched_to_its_end(tmp_path):
    steps = Train().steps_per_update
    with bench_runs.watched(["--steps", str(steps)], tmp_path) as rows:
        assert [(row["step"], row["seat"]) for row in rows] == [(steps, seat) for seat in range(4)]
    with pytest.raises(RuntimeError, match="--steps"), bench_runs.watched(["--steps", "-1"], tmp_path) as rows:
        assert not list(rows)


@pytest.mark.timeout(240)
def test_a_killed_run_is_gone_on_with_and_compared(tmp_path, monkeypatch):
    monkeypatch.setattr(bench_runs, "STARTING_S", 2.0)
    found = bench_runs.measure_kills(tmp_path, [*SMALL.split(), "--steps", "32000"], 3, random.Random(0))
    assert found["steps"] == 32000
    assert (found["same_parameters"], found["same_metrics"], found["same_state"]) == (True, True, True)
    assert found["at_checkpoint"] == sorted(found["at_checkpoint"])
    assert found["kills"] == len(found["at_checkpoint"]) == 3
    assert found["while_writing"] >= 1
    for name, changed in (
        ("metrics.jsonl", "same_metrics"),
        ("checkpoints/32000/state.safetensors", "same_state"),
    ):
        file = tmp_path / "cut" / name
        file.write_bytes(file.read_bytes()[:-1])
        assert not bench_runs.compared(tmp_path / "cut", tmp_path / "whole")[changed]
    result = json.loads((tmp_path / "cut" / "result.json").read_text())
    (tmp_path / "cut" / "result.json").write_text(json.dumps(result | {"parameters_sha256": "other"}))
    assert not any(bench_runs.compared(tmp_path / "cut", tmp_path / "whole").values())


def test_nobody_is_left_behind(tmp_path):
    """Stopped by Ctrl-C, it left a training behind that nobody watched."""
    with pytest.raises(KeyboardInterrupt), bench_runs.typed("--help", compiled=tmp_path, said=tmp_path / "said") as process:
        raise KeyboardInterrupt
    assert process.returncode is not None


def test_a_start_that_fails_says_why(tmp_path):
    with pytest.raises(RuntimeError, match="no game 'chess'"):
        bench_runs.measure_start("chess", tmp_path)


def test_a_command_that_fails_is_named_with_its_last_words(tmp_path):
    said = tmp_path / "said.txt"
    with pytest.raises(RuntimeError, match="no game 'chess'"):
        bench_runs.run("train", "--game", "chess", compiled=tmp_path, said=said)


def test_options_of_the_other_benchmarks_are_refused(tmp_path):
    with pytest.raises(BadInput, match="for `otherminds bench games`"):
        bench_runs.bench_runs(Bench(what="runs", games=("snowdrift-4x4",)))
    with pytest.raises(BadInput, match="for `otherminds bench ppo`"):
        bench_runs.bench_runs(Bench(what="runs", peer=tmp_path))


def test_what_differs_is_said_loudly():
    same = {"same_parameters": True, "same_metrics": True, "same_state": True}
    result = {
        "help_s": 0.2,
        "start": [{"game": "g", "first_s": 8.0, "second_s": 4.0}],
        "memory": [
            {"game": "g", "learner": "ppo", "seeds": 1, "peak_memory_mb": 900},
            {"game": "h", "learner": "ppo", "seeds": 1, "peak_memory_mb": 1100},
        ],
        "side_by_side": {"alone_s": 9.0, "two_s": 15.0, "same_parameters": True},
        "kills": {"kills": 20, "while_writing": 5, **same},
    }
    shown = io.StringIO()
    bench_runs.show_runs(json.loads(json.dumps(result)), Console(file=shown, width=130))
    assert "NOT" not in shown.getvalue()
    assert "1,100 MB (ppo in h)" in shown.getvalue()
    result["kills"] |= {"same_state": False}
    result["side_by_side"] |= {"same_parameters": False}
    bench_runs.show_runs(result, Console(file=shown, width=130))
    assert "NOT the same state" in shown.getvalue()
    assert "NOT the same parameters" in shown.getvalue()
