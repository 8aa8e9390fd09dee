"""The command line, as a person types it."""

import json
import re
import signal
import subprocess
import sys
import time
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
        (["watch", "--delay", "inf"], "--delay is inf"),
        (["watch", "--seed", "99999999999999999999"], "--seed is 99999999999999999999"),
        (["watch", "--seed", "-1"], "--seed is -1"),
        (["watch", "--gif", "."], "ends in .gif"),
        (["watch", "--png", __file__], "it is a file"),
        (["demo", "--name", ".."], "--name is '..'"),
        (["demo", "--name", f"{__file__}/x"], "otherminds:"),
        (["bench", "games", "--games", "pettingzoo:parallel_games:Small"], "no PettingZoo game|only compiled games"),
        (["audit", "nothing"], "choose from"),
        (["bench", "games", "--parallel", "0"], "--parallel is 0"),
        (["watch", "--sets", "random"], "--seats"),
        (["bench", "trains"], "games"),
    ],
)
def test_bad_input_ends_with_a_hint(arguments, hint):
    result = otherminds(*arguments)
    assert result.returncode == 2
    assert re.search(re.escape(hint).replace(r"\|", "|"), result.stderr + result.stdout)
    assert "Traceback" not in result.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")
def test_ctrl_c_ends_at_once_and_says_so():
    """An orderly end beside compiled code that still ran in other threads crashed the interpreter."""
    process = subprocess.Popen(
        [sys.executable, "-m", "otherminds", "audit", "stag_hunt-4x4-4h1s"], stderr=subprocess.PIPE, text=True
    )
    time.sleep(6)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped" in errors
    assert "Traceback" not in errors


def test_a_reader_who_has_seen_enough_is_no_error():
    process = subprocess.Popen(
        [sys.executable, "-m", "otherminds", "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "games\n"
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    process.wait(60)


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
