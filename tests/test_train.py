"""Runs that survive anything: whatever interrupts one, what comes of it in the end is what would have come of it anyway."""

import dataclasses
import json
import os
import resource
import shutil
import signal
import sys
import threading
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from otherminds import checkpoint, curves, runs, updates
from otherminds import train as training
from otherminds.config import BadInput, Evaluate, Train
from otherminds.evaluate import evaluate
from otherminds.games import make
from otherminds.games.matrix import Matrix
from otherminds.learners.base import Learner
from otherminds.train import Session, Stopped, resume, train

from small_runs import SMALL, child, content, event_points, killed_at, last_state, outcome, small, wait_for

posix = pytest.mark.skipif(sys.platform == "win32", reason="signals and limits are POSIX's")


@pytest.fixture
def notes():
    return []


@pytest.fixture
def one_by_one(monkeypatch):
    """One update a call, and so a checkpoint after every update."""
    monkeypatch.setattr(training, "CALL_SECONDS", 0)


def silent(line):
    pass


def rows_of(folder):
    return list(runs.rows(folder / "metrics.jsonl"))


def files_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- killed ---


@pytest.mark.parametrize(
    ("owner", "function", "call"),
    [
        (Session, "_begin", 1),
        (Session, "_write", 1),
        (Session, "_write", 21),
        (checkpoint, "save", 1),
        (checkpoint, "save", 17),
        (checkpoint, "_checksum", 30),
        (checkpoint, "_flush_folder", 12),
        (checkpoint, "prune", 40),
        (Session, "_finish", 1),
    ],
)
def test_killed_anywhere_a_run_ends_as_if_nothing_had_been(trained, tmp_path, monkeypatch, one_by_one, owner, function, call):
    """Before anything, before the first checkpoint, with rows but no checkpoint, in the middle of one, after the last one."""
    with killed_at(monkeypatch, owner, function, call):
        train(SMALL, folder=tmp_path / "run", say=silent)
    result = resume(str(tmp_path / "run"), say=silent)
    assert content(tmp_path / "run") == content(trained)
    assert result["parameters_sha256"] == json.loads((trained / "result.json").read_text())["parameters_sha256"]
    assert not list((tmp_path / "run" / "checkpoints").glob(".*"))


@posix
def test_a_run_killed_and_stopped_again_and_again(trained, programs, tmp_path):
    """Real processes, real signals. Other libraries restore the parameters and forget optimiser, games and random state."""
    folder = tmp_path / "run"
    folder.mkdir()
    runs.write_config(folder, SMALL)
    reached = 0

    def newest():
        return (checkpoint.steps(folder) or [0])[-1]

    def go_on(until, kind):
        process = child("resume", folder, "--json", programs=programs, pause=0.1)
        wait_for(until, process)
        if kind == signal.SIGTERM:
            with pytest.raises(BadInput, match="is being trained by another process"):
                resume(str(folder))
        process.send_signal(kind)
        return outcome(process)

    assert go_on((folder / "run.json").exists, signal.SIGKILL)[0] == -signal.SIGKILL
    assert newest() == 0
    for kind, code in ((signal.SIGTERM, 143), (signal.SIGKILL, -9), (signal.SIGINT, 130)):
        reached = newest()
        found, output, errors = go_on(lambda reached=reached: newest() > reached, kind)
        assert (found, output) == (code, "")
        assert "Traceback" not in errors
        if code > 0:
            assert f"{folder}: stopped and saved at step {newest():,}; otherminds resume {folder}" in errors
    assert reached < newest() < SMALL.steps
    resume(str(folder), say=silent)
    assert content(folder) == content(trained)


@posix
@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_asks_once_and_is_obeyed_at_once_the_second_time(kind):
    """A terminal that was closed took half a minute of training with it."""
    before = signal.getsignal(kind)
    if before == signal.SIG_IGN:
        pytest.skip("these tests were started in a way that ignores this signal, and so must a run")
    with training._signals() as asked:
        signal.raise_signal(kind)
        assert asked == [128 + kind]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(kind) == before


@posix
def test_started_with_nohup_a_run_goes_on():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with training._signals() as asked:
            signal.raise_signal(signal.SIGHUP)
        assert asked == []
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_run_in_a_thread_leaves_signals_alone(trained, tmp_path):
    thread = threading.Thread(target=train, args=(SMALL,), kwargs={"folder": tmp_path / "run", "say": silent})
    thread.start()
    thread.join(120)
    assert content(tmp_path / "run") == content(trained)


def test_schedules_pools_and_frozen_partners_survive_it_too(copied, tmp_path, monkeypatch, one_by_one):
    """Killed before the change of seats, at it, after it, and where the pool rotates. Nobody learns in the first stretch.

    `run:NAME` is the final policy of that run. If it goes on in the meantime, ours must not go on beside somebody else.
    """
    config = small(seats=f"always_c~288~ppo,run:{copied}#1:4+always_d", seeds=2)
    train(config, folder=tmp_path / "whole", say=silent)
    reached = 0
    for update in (8, 9, 10, 16, 33):  # the last checkpoint before each kill
        with killed_at(monkeypatch, Session, "_write", update - reached + 1):
            if reached:
                resume(str(tmp_path / "cut"), say=silent)
            else:
                train(config, folder=tmp_path / "cut", say=silent)
        assert checkpoint.steps(tmp_path / "cut")[-1] == update * config.steps_per_update
        reached = update
    other = jax.tree.map(jnp.zeros_like, updates.Compiled(updates.prepare(SMALL)).first())
    checkpoint.save(copied, 2000, other, checkpoint.facts_of(copied, 1280) | {"step": 2000})
    resume(str(tmp_path / "cut"), say=silent)
    assert content(tmp_path / "cut") == content(tmp_path / "whole")
    learned = {(row["update"] > 9, row["seat"], "entropy" in row["metrics"]) for row in rows_of(tmp_path / "cut")}
    assert learned == {(False, 0, False), (False, 1, False), (True, 0, True), (True, 1, False)}
    assert runs.read_config(tmp_path / "cut").seats == f"always_c~288~ppo,run:{copied}#1@1280:4+always_d"


def test_how_many_updates_a_call_has_changes_nothing(trained, tmp_path, monkeypatch):
    """And however many: one program, compiled once."""
    compiled = []
    plain = jax.stages.Lowered.compile
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda self, **options: compiled.append(None) or plain(self, **options))
    for seconds in (0, 1e-3, 1e9):
        monkeypatch.setattr(training, "CALL_SECONDS", seconds)
        train(SMALL, folder=tmp_path / str(seconds), say=silent)
        assert content(tmp_path / str(seconds)) == content(trained)
    counts = [len(list(runs.rows(tmp_path / str(seconds) / "timing.jsonl"))) for seconds in (0, 1e9)]
    assert counts == [40, 4]  # 1, then up to the 16th, then 16, then the rest
    assert len(compiled) == 3


def test_a_finished_run_says_so_and_is_left_alone(copied, notes):
    before = files_of(copied)
    result = resume(str(copied), say=notes.append)
    assert notes == [f"{copied} is finished: 1,280 steps"]
    assert result == json.loads((copied / "result.json").read_text()) | {"run": str(copied)}
    assert files_of(copied) == before
    (copied / "result.json").write_text("")
    again = resume(str(copied), say=notes.append)
    assert again == json.loads((copied / "result.json").read_text())
    assert again | {"peak_memory_mb": 0} == result | {"peak_memory_mb": 0}


def test_a_finished_run_without_checkpoints_is_not_begun_anew(copied):
    """Its metrics were wiped without a word."""
    shutil.rmtree(copied / "checkpoints")
    before = files_of(copied)
    with pytest.raises(BadInput, match="came to its end, and its checkpoints are gone"):
        resume(str(copied), say=silent)
    assert files_of(copied) == before


def test_a_folder_that_was_removed_is_not_written_to_again(tmp_path, monkeypatch):
    """A run trained on into the folder of another that had taken its name."""
    write, calls = Session._write, []

    def removing(self, *arguments):
        write(self, *arguments)
        calls.append(None)
        if len(calls) == 2:
            shutil.rmtree(self.folder)
            if replaced:
                self.folder.mkdir()
                (self.folder / ".lock").touch()

    monkeypatch.setattr(Session, "_write", removing)
    for replaced in (False, True):
        calls.clear()
        with pytest.raises(Stopped, match="was removed or replaced"):
            train(SMALL, folder=tmp_path / "run", say=silent)
        assert (tmp_path / "run").exists() == replaced
        assert not (tmp_path / "run" / "checkpoints").exists()
        shutil.rmtree(tmp_path / "run", ignore_errors=True)


def test_a_frozen_partner_that_was_trained_anew_is_not_the_same(copied, tmp_path, monkeypatch):
    """Half a run beside each of two partners is neither."""
    config = small(seats=f"ppo,run:{copied}#1", seeds=1)
    with killed_at(monkeypatch, Session, "_write", 3):
        train(config, folder=tmp_path / "cut", say=silent)
    other = jax.tree.map(jnp.zeros_like, updates.Compiled(updates.prepare(SMALL)).first())
    checkpoint.save(copied, 1280, other, checkpoint.facts_of(copied, 1280))
    with pytest.raises(BadInput, match="is not what it was when"):
        resume(str(tmp_path / "cut"), say=silent)


def test_a_stray_file_among_checkpoints_is_none(tmp_path):
    """It counted as the newest, and with --keep 1 the last real one was removed."""
    config = small(keep=1, seeds=1)
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "99999999").touch()
    with pytest.raises(BadInput, match="exists and is no run"):
        train(config, folder=tmp_path / "run", say=silent)
    assert checkpoint.steps(tmp_path / "run") == []
    (tmp_path / "run" / "checkpoints" / "99999999").unlink()
    for step in (10, 20, 30):
        checkpoint.save(tmp_path / "run", step, {"x": jnp.zeros(2)}, {})
    (tmp_path / "run" / "checkpoints" / "40").mkdir()
    checkpoint.prune(tmp_path / "run", 1, [30])
    assert checkpoint.steps(tmp_path / "run") == [30, 40]


def test_going_on_elsewhere_is_said(copied, notes):
    facts = json.loads((copied / "run.json").read_text())
    runs.write_json(copied / "run.json", facts | {"jax": "0.1", "threads": 999})
    resume(str(copied), say=notes.append)
    assert any("jax was 0.1 and is" in note and "results may differ in the last bits" in note for note in notes)
    assert any("threads was 999 and is" in note for note in notes)


@pytest.mark.parametrize("content_", ["[]", "nonsense", "{}"])
def test_what_is_only_for_information_keeps_nobody_from_going_on(copied, notes, content_):
    (copied / "run.json").write_text(content_)
    resume(str(copied), say=notes.append)
    assert any("run.json cannot be read" in note for note in notes)


def test_going_on_with_other_settings_is_refused(copied):
    """Half a run with each is neither; the schedules of the first half went on unnoticed."""
    config = runs.read_config(copied)
    runs.write_config(copied, dataclasses.replace(config, ppo=dataclasses.replace(config.ppo, entropy=0.5)))
    with pytest.raises(BadInput, match=r"config.json was changed: ppo.entropy was 0.01 and is 0.5"):
        resume(str(copied), say=silent)
    runs.write_config(copied, dataclasses.replace(config, keep=7))
    resume(str(copied), say=silent)


def test_lost_rows_are_said_and_the_rest_stays_whole(copied, notes):
    """New rows were glued to half a line, and the file could never be read again."""
    shutil.rmtree(copied / "checkpoints" / str(SMALL.steps))
    path = copied / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:1000])
    resume(str(copied), say=notes.append)
    assert any("metrics.jsonl is shorter than it was" in note for note in notes)
    assert max(row["update"] for row in runs.rows(path)) == 40


def test_schedules_run_over_the_updates_a_learner_makes(tmp_path):
    """Who joined late ended far from the last learning rate of its schedule."""
    train(small(seats="always_d~640~ppo,ppo", seeds=1), folder=tmp_path / "run", say=silent)
    rates = {}
    for row in runs.rows(tmp_path / "run" / "metrics.jsonl"):
        rates.setdefault(row["seat"], []).append(row["metrics"].get("learning_rate"))
    for seat in (0, 1):
        own = [rate for rate in rates[seat] if rate is not None]
        np.testing.assert_allclose([own[0], own[-1]], [1e-3, 1e-4], rtol=1e-5)


# --- where a run may be ---


def test_nothing_is_ever_overwritten(copied, tmp_path):
    before = files_of(copied)
    with pytest.raises(BadInput, match=r"holds a run already: otherminds resume .*, or give another --name"):
        train(SMALL, folder=copied)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("all of it")
    for place in (tmp_path / "other", tmp_path / "other" / "thesis.txt"):
        with pytest.raises(BadInput, match="exists and is no run: give another --name"):
            train(SMALL, folder=place)
    assert files_of(copied) == before
    assert files_of(tmp_path / "other") == {(tmp_path / "other" / "thesis.txt").relative_to(tmp_path / "other"): b"all of it"}


def test_of_two_who_begin_at_once_one_is_refused(tmp_path):
    """The second overwrote the settings of the first before it was turned away."""
    with runs.locked(tmp_path), pytest.raises(BadInput, match="is being trained by another process"):
        train(SMALL, folder=tmp_path)
    assert os.listdir(tmp_path) == [".lock"]


def test_what_died_before_it_had_settings_is_no_run(trained, tmp_path, monkeypatch):
    with killed_at(monkeypatch, os, "replace", 1):
        train(SMALL, folder=tmp_path / "run", say=silent)
    assert sorted(os.listdir(tmp_path / "run")) == [".config.json.part", ".lock"]
    with pytest.raises(BadInput, match="no run"):
        resume(str(tmp_path / "run"))
    train(SMALL, folder=tmp_path / "run", say=silent)
    assert content(tmp_path / "run") == content(trained)


@posix
@pytest.mark.parametrize("limit", [12_000, 40_000, 100_000])
def test_a_full_disk_ends_with_one_line_and_what_was_saved_is_whole(trained, tmp_path, one_by_one, limit):
    """A limit on the size of files stands for it. Closing a file that could not be written hid the message."""
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, usual[1]))
    try:
        with pytest.raises(Stopped) as stopped:
            train(SMALL, folder=tmp_path / "run", say=silent)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    known = checkpoint.steps(tmp_path / "run")
    saved = f"the checkpoint at step {known[-1]:,} is safe" if known else "there was no checkpoint yet"
    assert stopped.value.code == 1
    assert str(stopped.value) == (
        f"{tmp_path / 'run'}: File too large; {saved}; when that is mended: otherminds resume {tmp_path / 'run'}"
    )
    assert bool(known) == (limit > 12_000)
    for step in known:
        checkpoint.facts_of(tmp_path / "run", step)
    resume(str(tmp_path / "run"), say=silent)
    assert content(tmp_path / "run") == content(trained)


# --- what cannot work is said before anything begins ---


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps": 0}, "--steps is 0, expected at least 1"),
        ({"seeds": 0}, "--seeds is 0"),
        ({"parallel": -1}, "--parallel is -1"),
        ({"rollout": 0}, "--rollout is 0"),
        ({"epochs": 0}, "--epochs is 0"),
        ({"keep": 0}, "--keep is 0"),
        ({"evaluate_episodes": 0}, "--evaluate-episodes is 0"),
        ({"evaluate_every": -1}, "--evaluate-every is -1"),
        ({"checkpoint_every": 0.0}, "--checkpoint-every is 0.0"),
        ({"checkpoint_every": float("nan")}, "--checkpoint-every is nan"),
        ({"seed": -1}, "--seed is -1"),
        ({"seed": 2**32 - 1}, "--seed is 4294967295"),
        ({"workers": -1}, "--workers is -1, expected 0"),
        ({"workers": 2}, "--workers 2: matrix-ipd.* is compiled and has no worker processes"),
        ({"game": "matrix-ip"}, "did you mean matrix-ipd"),
        ({"seats": "always_c"}, r"nobody learns in --seats always_c: name a learner \(ppo, mappo, hop"),
        ({"seats": "ppo,pppo"}, "nothing named 'pppo' can sit in matrix-ipd.*did you mean ppo"),
        ({"seats": "ppo,ppo,ppo"}, "has 2 seats, got 3 entries"),
        ({"seats": "ppo,always_c~2000~ppo"}, "--seats changes at step 2000, and the run ends at --steps 1280"),
        ({"seats": "ppo,always_c~1270~ppo"}, "the stretch from step 1270 is shorter than an update of 32 steps"),
        ({"seats": "ppo,always_c~33~ppo~40~always_d"}, "the stretch from step 33 is shorter than an update"),
        ({"seats": "ppo,always_c~1~ppo"}, None),
        ({"seats": "ppo,always_c+always_d+grim"}, "--parallel 8 games cannot be shared equally by the pools: --parallel 9"),
        ({"seats": "ppo,run:nothing"}, "no run 'nothing'"),
        ({"minibatches": 7}, "--minibatches 8"),
    ],
)
def test_settings_that_cannot_work_are_refused(options, words, tmp_path):
    """A change of seats within the last update never came, and evaluation then played somebody who had learned nothing."""
    if words is None:
        assert updates.prepare(small(**options)).boundaries == [0, 1]
        return
    with pytest.raises(BadInput, match=words):
        train(small(**options), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_partner_from_another_game_is_refused_before_anything_begins(trained, tmp_path):
    """It was noticed when the games were opened, with the folder of the run already made."""
    config = small(game="stag_hunt-4x4-4h1s", seats=f"ppo,ppo,ppo,nearest_stag+run:{trained}#1")
    with pytest.raises(BadInput, match=r"a policy trained in matrix-ipd\?horizon=5 cannot play stag_hunt-4x4-4h1s"):
        train(config, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_names_that_are_made_up():
    assert training.default_name(Train()) == "ppo-stag_hunt-4x4-4h1s"
    assert training.default_name(small(seats="ppo,run:a/b#1")) == "ppo_run_a_b_1-matrix-ipd_horizon_5"
    for letter in "x鹿":  # disks count bytes
        assert 40 < len(training.default_name(small(seats=f"ppo,run:{letter * 300}")).encode()) <= 150


# --- seeds that are not finite ---


@pytest.fixture
def poison(monkeypatch, one_by_one):
    """Let the 6th update of some seeds overflow in the second seat: a critic that is finite, and so large that its square is not.

    Before the 11th it is small again: a seed that is frozen must not thaw. Gives what the learners are then. The program stays
    the same.
    """

    def spoil(places):
        plain, held = updates.Compiled.before, {}

        def before(self, carry, phase, update):
            carry = plain(self, carry, phase, update)
            if update in (5, 10):
                bias = carry.learners[0].network.critic.bias
                changed = bias.at[jnp.array(places), 1].set(3e38 if update == 5 else 0.0)
                carry = eqx.tree_at(lambda c: c.learners[0].network.critic.bias, carry, changed)
                held.update(checkpoint.named(carry.learners))
            return carry

        monkeypatch.setattr(updates.Compiled, "before", before)
        return held

    return spoil


def test_a_seed_that_is_not_finite_is_named_and_frozen_and_the_others_go_on(trained, tmp_path, poison, notes, monkeypatch):
    """One seed of eight took the others with it, or its NaN spread through eight hours of curves."""
    held = poison([1])
    with killed_at(monkeypatch, Session, "_write", 20):  # and it stays frozen when the run goes on
        train(SMALL, folder=tmp_path / "run", say=notes.append)
    result = resume(str(tmp_path / "run"), say=silent)
    (frozen,) = result["frozen"]
    metric = frozen.pop("metric")
    assert frozen == {"update": 6, "seed": 4, "seat": 1}
    assert notes == [
        f"update 6: {metric} of player_2, seed 4, is not finite; the update is discarded and the seed stays as it was before"
    ]
    mine, theirs = (checkpoint.arrays_of(folder, SMALL.steps) for folder in (tmp_path / "run", trained))
    assert mine.keys() == theirs.keys()
    for name, array in mine.items():
        np.testing.assert_array_equal(array[[0, 2]], theirs[name][[0, 2]], err_msg=name)
        if name.startswith(".learners"):
            np.testing.assert_array_equal(array[1], held[name.removeprefix(".learners")][1], err_msg=name)
    np.testing.assert_array_equal(mine[".alive"], [True, False, True])
    survivors = [row for row in rows_of(trained) if row["seed"] != 4 or row["update"] < 6]
    assert rows_of(tmp_path / "run") == survivors
    found = evaluate(Evaluate(str(tmp_path / "run"), episodes=4))
    assert found["frozen_seeds"] == [4]


def test_when_no_seed_is_left_the_run_ends_and_says_why(tmp_path, poison):
    """Asked to go on, it went on: one update of nothing after the other."""
    poison([0, 1, 2])
    with pytest.raises(Stopped, match=r"no seed is left that is finite: seed 3 at update 6 \(\w+\); seed 4 at .*; seed 5") as end:
        train(SMALL, folder=tmp_path / "run", say=silent)
    assert end.value.code == 1
    before = files_of(tmp_path / "run")
    with pytest.raises(Stopped, match=r"no seed is left that is finite: seed 3 at update 6"):
        resume(str(tmp_path / "run"), say=silent)
    assert files_of(tmp_path / "run") == before


# --- who plays ---


def test_evaluation_on_the_way_changes_nothing_nor_do_other_seeds(trained, tmp_path):
    """Evaluation drew from the stream of random numbers that training drew from, and a curve depended on who looked at it."""
    config = small(evaluate_every=320, evaluate_episodes=4, seed=4, seeds=1)
    train(config, folder=tmp_path / "run", say=silent)
    mine, theirs = (checkpoint.arrays_of(folder, SMALL.steps) for folder in (tmp_path / "run", trained))
    for name, array in mine.items():
        np.testing.assert_array_equal(array[0], theirs[name][1], err_msg=name)
    rows = rows_of(tmp_path / "run")
    evaluated = [row for row in rows if "evaluation_reward" in row["metrics"]]
    assert [row["step"] for row in evaluated] == [320, 320, 640, 640, 960, 960, 1280, 1280]
    assert [row for row in rows if row not in evaluated] == [row for row in rows_of(trained) if row["seed"] == 4]
    assert all(0 <= row["metrics"]["evaluation_reward"] <= 25 for row in evaluated)


@pytest.mark.timeout(240)
def test_eight_seeds_of_four_seats_with_two_learners_and_a_script(tmp_path, monkeypatch):
    """Initial weights made inside of a program once waited for each other for ever. Killed where fresh starts are drawn."""
    config = small(game="stag_hunt-4x4-4h1s", seats="mappo,ppo,nearest_stag,mappo", seeds=8, steps=32 * 18, checkpoint_every=0.5)
    result = train(config, folder=tmp_path / "whole", say=silent)
    assert result["seconds"] < 200
    rows = rows_of(tmp_path / "whole")
    assert {(row["seed"], row["seat"]) for row in rows} == {(seed, seat) for seed in range(3, 11) for seat in range(4)}
    assert len(rows) == 18 * 8 * 4
    for row in rows:
        assert set(row) == {"update", "step", "seed", "seat", "metrics"}
        assert row["step"] == row["update"] * 32
        assert row["metrics"].get("data_seat", 2) == row["seat"]
    assert {row["metrics"].get("entropy") for row in rows if row["seat"] == 2} == {None}
    first = [row["metrics"]["entropy"] for row in rows if row["update"] == 18 and row["seat"] == 0]
    assert len(set(first)) == 8
    monkeypatch.setattr(training, "CALL_SECONDS", 1e9)
    with killed_at(monkeypatch, Session, "_write", 3):
        train(dataclasses.replace(config), folder=tmp_path / "cut", say=silent)
    resume(str(tmp_path / "cut"), say=silent)
    assert content(tmp_path / "cut") == content(tmp_path / "whole")


def test_the_learner_of_the_last_stretch_is_the_one_that_is_loaded(tmp_path):
    """Where one learner followed another, the one first in the alphabet was taken for the last."""
    config = small(seats="ppo~320~mappo,always_c", seeds=1, steps=640)
    setup = updates.prepare(config)
    carry = updates.Compiled(setup).first()
    runs.write_config(tmp_path, config)
    checkpoint.save(tmp_path, 640, carry, {"update": 20, "phase": 1})
    assert type(checkpoint.load_policy(tmp_path, 0)).__name__ == "MAPPOPolicy"


def test_games_on_the_host_train_save_go_on_and_are_evaluated(tmp_path, monkeypatch, one_by_one, notes):
    """Not stopped, such a run is a function of its settings; going on, it says that it is not."""
    config = small(game="pettingzoo:parallel_games:Small?length=3", seats="ppo,random,ppo", seeds=2, parallel=4, steps=16 * 6)
    train(config, folder=tmp_path / "whole", say=silent)
    with killed_at(monkeypatch, checkpoint, "save", 3):
        train(config, folder=tmp_path / "cut", say=silent)
    rows = rows_of(tmp_path / "cut")
    assert rows == rows_of(tmp_path / "whole")[: len(rows)]
    reached = checkpoint.steps(tmp_path / "cut")[-1]
    result = resume(str(tmp_path / "cut"), say=notes.append)
    assert notes[0].endswith(f"going on at step {reached:,} of 96")
    assert "is stepped on the host and cannot be saved: its episodes begin anew" in notes[1]
    assert (result["steps"], result["frozen"]) == (96, [])
    rows = rows_of(tmp_path / "cut")
    assert len(rows) == 6 * 2 * 3
    assert all(0 <= row["metrics"]["reward"] <= 6 for row in rows if "reward" in row["metrics"])
    found = evaluate(Evaluate(str(tmp_path / "cut"), episodes=8))
    assert len(found["per_seed"]) == 2
    assert 0 < found["reward"]["mean"] < 6


# --- learning ---


def earned(tmp_path, learner, rate, game="matrix-stag_hunt?horizon=10", other="always_c", updates=40, **options):
    """What a learner earns beside somebody. A step is worth 4 for a stag hunted together, 0 for one alone, 3 for a hare."""
    settings = dataclasses.replace(getattr(SMALL, learner), learning_rate=rate, learning_rate_final=rate, **options)
    config = small(
        game=game,
        seats=f"{other},{learner}",
        seeds=3,
        parallel=32,
        rollout=10,
        steps=320 * updates,
        checkpoint_every=100.0,
        tensorboard=False,
        **{learner: settings},
    )
    train(config, folder=tmp_path / "run", say=silent)
    return evaluate(Evaluate(str(tmp_path / "run"), episodes=64))["reward"]["per_seat"][1]


@pytest.mark.parametrize("learner", ["ppo", "mappo"])
def test_it_learns_to_hunt_the_stag_with_one_who_always_does(tmp_path, learner):
    assert earned(tmp_path, learner, 0.01)["low"] > 39


@pytest.mark.parametrize("learner", ["ppo", "mappo"])
def test_without_a_learning_rate_it_does_not(tmp_path, learner):
    """The same test can fail: half stags and half hares are 35."""
    found = earned(tmp_path, learner, 0.0)
    assert 33 < found["mean"] < 37


@pytest.mark.parametrize(("core", "low", "high"), [("gru", 10.5, 11.5), ("none", -1.0, 2.5)])
def test_with_memory_it_learns_whom_it_met(tmp_path, monkeypatch, core, low, high):
    """The other shows heads or tails, twelve steps long, and its first coin alone is seen, once, in the second step.

    Whoever remembers it wins all other steps, 11 points; whoever does not wins that one.
    """
    plain = Matrix.observe

    def observe(self, state):
        return plain(self, state).at[:, :4].multiply(jnp.float32(state.time == 1))

    monkeypatch.setattr(Matrix, "observe", observe)
    game = "matrix-matching_pennies?horizon=12"  # of no other test, whose compiled programs would show all
    found = earned(tmp_path, "ppo", 0.01, game, "always_c+always_d", 60, core=core, core_size=8, segment=5)
    assert low < found["mean"] < high


def test_every_learner_keeps_its_contract():
    """`train` names no learner: whatever is registered must have all that it calls."""
    for name in updates.LEARNERS:
        for needed in ("check", "init", "policy", "update", "trainable"):
            assert callable(getattr(updates.find_learner(name), needed)), (name, needed)
            assert hasattr(Learner, needed)
        assert Train().of(name) is not None
    assert make(SMALL.game).seats == 2


# --- curves ---


def test_tensorboard_has_one_curve_per_seed_and_seat(trained):
    places = sorted(str(path.relative_to(trained / "tensorboard")) for path in (trained / "tensorboard").glob("*/*"))
    assert places == [f"seed_{seed}/player_{player}" for seed in (3, 4, 5) for player in (1, 2)]
    points = event_points(trained / "tensorboard" / "seed_3" / "player_1", "entropy")
    assert all(len(values) == 1 for values in points.values())
    assert max(points) == SMALL.steps
    other = event_points(trained / "tensorboard" / "seed_4" / "player_1", "entropy")
    assert points.keys() == other.keys()
    assert points != other


@pytest.mark.parametrize("call", [1, 8])
def test_curves_are_cut_back_when_a_run_goes_on(tmp_path, monkeypatch, one_by_one, call):
    """Points of a process that died lay beside those of the next one, in a zigzag; also where it had saved nothing yet."""
    with killed_at(monkeypatch, checkpoint, "save", call):
        train(SMALL, folder=tmp_path / "run", say=silent)
    resume(str(tmp_path / "run"), say=silent)
    place = tmp_path / "run" / "tensorboard" / "seed_3" / "player_1"
    points = event_points(place, "entropy")
    drawn = {
        row["step"]: [pytest.approx(row["metrics"]["entropy"], rel=1e-6)]
        for row in rows_of(tmp_path / "run")
        if (row["seed"], row["seat"]) == (3, 0)
    }
    assert points == drawn
    assert len(points) == 40


def rows(step, **metrics):
    return [{"update": 1, "step": step, "seed": 3, "seat": seat, "metrics": metrics} for seat in (0, 1)]


def test_wandb_gets_every_curve_under_one_name(tmp_path, monkeypatch):
    calls = []
    board = types.SimpleNamespace(log=calls.append, finish=lambda: calls.append("finish"))
    module = types.ModuleType("wandb")
    module.init = lambda **options: calls.append(options) or board
    monkeypatch.setitem(sys.modules, "wandb", module)
    config = small(wandb="project", tensorboard=False)
    drawn = curves.Curves(tmp_path / "run", config, after=0)
    drawn.add(rows(32, reward=1.0) + rows(64, reward=2.0, entropy=0.5))
    drawn.flush()
    drawn.close()
    opened, points, last = calls
    assert (opened["project"], opened["name"], opened["id"], opened["resume"]) == ("project", "run", opened["id"], "allow")
    assert opened["id"].startswith("run-")  # another run of that name elsewhere is another curve
    assert opened["config"] == runs.as_dict(config)
    reward, entropy = ({f"{name}/seed_3/player_{player}": value for player in (1, 2)} for name, value in POINTS)
    assert points == reward | entropy | {"step": 64}
    assert last == "finish"
    assert not (tmp_path / "run").exists()


POINTS = (("reward", 1.5), ("entropy", 0.5))


def test_without_wandb_a_run_does_not_begin(tmp_path, monkeypatch):
    """It left a folder behind, and the second try was refused because of it."""
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(BadInput, match="--wandb needs the package wandb: pip install wandb, or leave --wandb out"):
        train(small(wandb="project"), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_last_state_is_the_state_that_is_scored(trained):
    """The network before an update was scored, and the one after it saved under that score."""
    facts = checkpoint.facts_of(trained, SMALL.steps)
    means = {}
    for row in rows_of(trained):
        if "reward" in row["metrics"]:
            means.setdefault(row["update"], []).append(row["metrics"]["reward"])
    recent = [np.mean(means[update]) for update in sorted(means)][-training.SCORE_UPDATES :]
    np.testing.assert_allclose(facts["score"], np.mean(recent), rtol=1e-5)
    assert len(last_state(trained)) > 1000
