"""The command line, as a person types it."""

import dataclasses
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tyro

from otherminds import cli, demo, runs
from otherminds.config import MAPPO, PPO, Evaluate, Resume, Train

from small_runs import SMALL, child, command_line, content, outcome


def otherminds(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "otherminds", *arguments], capture_output=True, text=True, cwd=cwd, timeout=240, check=False
    )


def test_help_names_every_command():
    text = otherminds("--help").stdout
    assert all(command in text for command in ("demo", "list", "watch", "train", "resume", "evaluate", "audit", "bench"))


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
        (["demo", "--name", ".."], "'..' is no name of a run"),
        (["demo", "--name", f"{__file__}/x"], "otherminds:"),
        (["bench", "games", "--games", "pettingzoo:parallel_games:Small"], "no PettingZoo game|only compiled games"),
        (["audit", "nothing"], "neither a game nor a run: choose from"),
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
@pytest.mark.skipif(signal.getsignal(signal.SIGINT) == signal.SIG_IGN, reason="started in a way that ignores Ctrl-C")
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


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")
@pytest.mark.skipif(signal.getsignal(signal.SIGINT) == signal.SIG_IGN, reason="started in a way that ignores Ctrl-C")
def test_an_interrupt_that_is_swallowed_ends_it_all_the_same():
    """Whoever calls us back from compiled code may ignore it, and a command went on for more than a minute."""
    code = """
import contextlib, time
from otherminds import cli
cli.SWALLOWED_S = 0.5
def deaf(options):
    print("here", flush=True)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(1)
cli.list_everything = deaf
cli.main()
"""
    process = subprocess.Popen([sys.executable, "-c", code, "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert errors == "otherminds: stopped\n"


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
    result = otherminds("demo", "--episodes", "16", "--steps", "2560", "--meetings", "4", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert [one["set"] for one in found["strangers"]] == ["3ns", "3nh", "3random"]
    assert len(found["scripts"]) == 9
    assert 0 < found["strangers"][0]["foresight"]["top_1"]["mean"] < 1
    assert (tmp_path / "runs" / "demo" / "replay.gif").exists()
    assert json.loads((tmp_path / "runs" / "demo" / "result.json").read_text()) == found


def test_a_demo_removes_nothing_but_an_earlier_demo(tmp_path, monkeypatch, capsys):
    """It removed whatever lay in the folder of the learner in the place it was given."""
    thesis = tmp_path / "hop_plus" / "thesis.txt"
    thesis.parent.mkdir()
    thesis.write_text("all of it")
    for _ in range(2):
        with pytest.raises(SystemExit):
            called(monkeypatch, "demo", "--name", tmp_path)
        assert "exists and is not of a demo: give another --name" in capsys.readouterr().err
        assert thesis.exists()
        runs.write_config(thesis.parent, Train())  # a run, and still not a demo's
    runs.write_config(thesis.parent, dataclasses.replace(Train(), seats="hop_plus", tensorboard=False, steps=7, seed=7))
    assert demo._of_a_demo(thesis.parent)


def parsed(monkeypatch, *arguments):
    """What the command line makes of words."""
    monkeypatch.setattr(sys, "argv", ["otherminds", *map(str, arguments)])
    return tyro.cli(cli._choice([Train, Resume, Evaluate]), prog="otherminds")


def called(monkeypatch, *arguments):
    """Run a command in this process."""
    monkeypatch.setattr(sys, "argv", ["otherminds", *map(str, arguments)])
    cli.main()


def another(value):
    """A value that is not the one an option has without being given, of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, tuple):
        return (3, 5)
    if isinstance(value, str):
        return {"tanh": "relu", "none": "gru", "episode": "lasting", "flat": "centred"}[value]
    return {int: 7, float: 0.625}[type(value)]


@pytest.mark.parametrize("name", ["ppo", "mappo"])
def test_every_option_of_a_learner_can_be_set(monkeypatch, name):
    """Options were declared that nobody could set, and set that nobody read."""
    usual = {"ppo": PPO(), "mappo": MAPPO()}[name]
    wanted = {field.name: another(getattr(usual, field.name)) for field in dataclasses.fields(usual)}
    words = []
    for option, value in wanted.items():
        words += [f"--{name}.{option.replace('_', '-')}", *map(str, value if isinstance(value, tuple) else [value])]
    found = getattr(parsed(monkeypatch, "train", *words), name)
    assert dataclasses.asdict(found) == wanted
    for option, value in dataclasses.asdict(usual).items():
        assert wanted[option] != value


def test_false_is_false(monkeypatch):
    """`--flag False` was true, and ablations were none."""
    assert parsed(monkeypatch, "train", "--ppo.share", "False").ppo.share is False
    assert parsed(monkeypatch, "train", "--ppo.share", "True").ppo.share is True
    assert parsed(monkeypatch, "train", "--tensorboard", "False").tensorboard is False
    assert parsed(monkeypatch, "train").ppo.normalise_value is True
    assert parsed(monkeypatch, "train", "--ppo.normalise-value", "False").ppo.normalise_value is False
    assert parsed(monkeypatch, "train", "--ppo.value-clip", "None").ppo.value_clip is None


def test_a_command_line_says_what_a_config_says(monkeypatch):
    assert parsed(monkeypatch, "train", *command_line(SMALL)) == SMALL


def test_settings_of_a_file_are_changed_by_options_beside_it(trained, monkeypatch):
    file = trained / "config.json"
    assert parsed(monkeypatch, "train", "--config", file) == dataclasses.replace(SMALL, config=file)
    changed = parsed(monkeypatch, "train", "--steps", "5", f"--config={file}", "--ppo.entropy", "0.5", "--ppo.share", "True")
    learner = dataclasses.replace(SMALL.ppo, entropy=0.5, share=True)
    assert changed == dataclasses.replace(SMALL, config=file, steps=5, ppo=learner)
    assert parsed(monkeypatch, "resume", "--json", "train").json


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--stepz", "5"], "--steps"),
        (["--ppo.entropi", "0.1"], "--ppo.entropy"),
        (["--ppo.entropy", "much"], "--ppo.entropy"),
        (["--ppo.share"], "--ppo.share"),
        (["--ppo.share", "maybe"], "'True', *'False'"),
        (["--ppo.core", "grue"], "'none', *'gru', *'lstm'"),
        (["--steps", "1.5"], "--steps"),
        (["--config"], "--config"),
    ],
)
def test_options_that_are_not_there_are_refused_naming_the_nearest(words, hint, monkeypatch, capsys):
    with pytest.raises(SystemExit) as end:
        parsed(monkeypatch, "train", *words)
    assert end.value.code == 2
    said = capsys.readouterr()
    assert re.search(hint, re.sub(r"[│\s]+", " ", said.err + said.out))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "--config", "nothing.json"], "no file nothing.json: expected the config.json of a run"),
        (["train", "--config", "wrong.json"], "wrong.json: ppo has no option 'entropi': did you mean entropy"),
        (["train", "--config", "later.json"], "later.json is of format 7, and this version of otherminds reads 1"),
        (["train", "--seats", "random"], "nobody learns in --seats random"),
        (["train", "--game", "matrix-ipd", "--parallel", "1", "--rollout", "3"], "--minibatches 3"),
        (["resume", "nothing"], "no run 'nothing'"),
        (["evaluate", "nothing"], "no run 'nothing'"),
        (["train", "--seed", "-1"], "--seed is -1"),
    ],
)
def test_bad_runs_end_with_one_line(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.json").write_text('{"format": 1, "ppo": {"entropi": 1}}')
    (tmp_path / "later.json").write_text('{"format": 7}')
    with pytest.raises(SystemExit) as end:
        called(monkeypatch, *arguments)
    said = capsys.readouterr()
    assert (end.value.code, said.out) == (2, "")
    assert said.err.startswith("otherminds: ")
    assert words in said.err
    assert said.err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="a place where even root cannot write")
@pytest.mark.parametrize("place", ["/proc/nowhere/run", "/sys/run", __file__ + "/run"])
def test_a_place_that_cannot_be_written_ends_with_one_line(place, monkeypatch, capsys):
    with pytest.raises(SystemExit) as end:
        called(monkeypatch, "train", *command_line(SMALL), "--name", place)
    said = capsys.readouterr()
    assert (end.value.code, said.out) == (2, "")
    assert re.fullmatch(r"otherminds: [\w ]+: \S+\n", said.err)


def test_train_prints_one_object_and_makes_the_run_that_python_makes(trained, programs, tmp_path):
    """Warnings and progress on standard output broke whoever read the object."""
    process = child("train", *command_line(SMALL), "--name", tmp_path / "run", "--json", programs=programs)
    code, output, errors = outcome(process)
    assert code == 0, errors
    found = json.loads(output)
    assert output.count("\n") == 1
    expected = json.loads((trained / "result.json").read_text())
    assert set(found) == set(expected)
    assert found["parameters_sha256"] == expected["parameters_sha256"]
    assert (found["run"], found["steps"], found["frozen"]) == (str(tmp_path / "run"), 1280, [])
    assert content(tmp_path / "run") == content(trained)
    assert runs.read_config(tmp_path / "run") == dataclasses.replace(SMALL, name=str(tmp_path / "run"))
    assert json.loads((tmp_path / "run" / "run.json").read_text())["command"].startswith("__main__.py train --game matrix-ipd")


def test_resume_and_evaluate_print_one_object(copied, monkeypatch, capsys):
    monkeypatch.setattr(cli, "keep_programs", lambda: None)  # of this process, and not of the tests that follow
    called(monkeypatch, "resume", copied, "--json")
    said = capsys.readouterr()
    assert json.loads(said.out) == json.loads((copied / "result.json").read_text()) | {"run": str(copied)}
    assert "is finished: 1,280 steps" in said.err
    called(monkeypatch, "evaluate", copied, "--episodes", "4", "--json")
    found = json.loads(capsys.readouterr().out)
    assert {"run", "episodes", "reward", "per_seed"} <= set(found)
    assert set(found["reward"]["per_seat"][0]) == {"mean", "low", "high"}
    called(monkeypatch, "evaluate", copied, "--episodes", "4")
    shown = capsys.readouterr().out
    assert "player_2" in shown
    assert "3 seeds x 4 episodes, 95 % intervals over seeds" in shown
