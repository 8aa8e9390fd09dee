"""The command line, as a person types it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


def otherminds(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "otherminds", *arguments], capture_output=True, text=True, cwd=cwd, timeout=240, check=False
    )


def test_help_names_every_command():
    text = otherminds("--help").stdout
    assert all(command in text for command in ("demo", "list", "watch", "audit", "bench"))


def test_list_is_one_line_each():
    lines = otherminds("list").stdout.splitlines()
    assert sum(line.strip().startswith("stag_hunt-8x8-4h1s-5b ") for line in lines) == 1
    assert any("matrix-matching_pennies" in line and "zero-sum" in line and "matrix" in line for line in lines)
    assert any("tit_for_tat" in line for line in lines)
    listed = json.loads(otherminds("list", "--json").stdout)
    assert {"id": "snowdrift-4x4", "kind": "mixed", "form": "sequential", "seats": 4, "symmetric": True} in listed["games"]


def test_watch_writes_what_it_was_asked_for(tmp_path):
    lineup = "nearest_stag,nearest_stag,nearest_hare,random"
    result = otherminds(
        "watch", "--game", "stag_hunt-8x8-4h1s-5b", "--seats", lineup, "--gif", "out.gif", "--png", "frames", cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    assert "player_4 random" in result.stdout
    assert (tmp_path / "out.gif").stat().st_size > 1000
    assert (tmp_path / "frames" / "000.png").exists()


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["watch", "--game", "stag_hunt-4x4-4h1"], "did you mean stag_hunt-4x4-4h1s"),
        (["watch", "--game", "stag_hunt?height=-1"], "height=1"),
        (["watch", "--seats", "random,random"], "has 4 seats, got 2"),
        (["watch", "--cell", "0"], "--cell is 0"),
        (["audit", "nothing"], "choose from"),
        (["bench", "games", "--parallel", "0"], "--parallel is 0"),
        (["watch", "--sets", "random"], "--seats"),
        (["bench", "trains"], "games"),
    ],
)
def test_bad_input_ends_with_a_hint(arguments, hint):
    result = otherminds(*arguments)
    assert result.returncode == 2
    assert hint in result.stderr + result.stdout
    assert "Traceback" not in result.stderr


def test_audit_prints_one_object():
    result = otherminds("audit", "matrix-ipd", "--json")
    assert result.returncode == 0
    found = json.loads(result.stdout)
    assert found["passed"] is True
    assert {"seat_symmetry", "ego_alignment", "equal_rewards:random"} <= {check["name"] for check in found["checks"]}


def test_demo_leaves_a_replay(tmp_path):
    result = otherminds("demo", "--episodes", "64", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert len(found["lineups"]) == 6
    assert (tmp_path / "runs" / "demo" / "replay.gif").exists()
    assert json.loads((tmp_path / "runs" / "demo" / "result.json").read_text()) == found
