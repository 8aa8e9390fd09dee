"""A run's folder: settings that come back as they were, rows that can be cut, one process at a time."""

import dataclasses
import json
import os
from pathlib import Path

import pytest

from otherminds import runs
from otherminds.config import MAPPO, PPO, BadInput, Train

from small_runs import small

UNUSUAL = Train(
    game="snowdrift-4x4?horizon=9",
    seats="ppo,mappo,random,never_clear",
    name="x",
    steps=5,
    wandb="project",
    tensorboard=False,
    checkpoint_every=2.0,
    ppo=PPO(hidden=(3, 5), channels=(2,), share=True, learning_rate_final=None, value_clip=None, core="gru"),
    mappo=MAPPO(critic_hidden=(7,), entropy_final=None),
)


@pytest.mark.parametrize("config", [Train(), UNUSUAL, small()])
def test_settings_come_back_as_they_were(config, tmp_path):
    runs.write_config(tmp_path, config)
    assert runs.read_config(tmp_path) == config
    assert runs.read_config(tmp_path / "config.json") == config
    assert hash(runs.read_config(tmp_path)) == hash(config)


def test_how_a_command_is_run_is_no_setting(tmp_path):
    runs.write_config(tmp_path, dataclasses.replace(Train(), json=True, config=tmp_path))
    assert "json" not in json.loads((tmp_path / "config.json").read_text())
    assert runs.read_config(tmp_path) == Train()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"format": 1, "stepz": 5}, "has no option 'stepz': did you mean steps"),
        ({"format": 1, "json": True}, "has no option 'json'"),
        ({"format": 1, "ppo": {"entropi": 5}}, "ppo has no option 'entropi': did you mean entropy"),
        ({"format": 1, "ppo": {"share": "False"}}, "ppo: share is 'False', expected True or False"),
        ({"format": 1, "ppo": {"share": 0}}, "ppo: share is 0, expected True or False"),
        ({"format": 1, "ppo": {"hidden": 64}}, "ppo: hidden is 64, expected numbers"),
        ({"format": 1, "ppo": {"hidden": [64, "x"]}}, "hidden is 'x', expected a whole number"),
        ({"format": 1, "ppo": {"core": "grue"}}, "core is 'grue': did you mean gru"),
        ({"format": 1, "ppo": [1]}, "ppo: expected settings in braces"),
        ({"format": 1, "steps": 1.5}, "steps is 1.5, expected a whole number"),
        ({"format": 1, "steps": True}, "steps is True, expected a whole number"),
        ({"format": 1, "steps": None}, "steps is None, expected a whole number"),
        ({"format": 1, "game": 3}, "game is 3, expected a text"),
        ({"format": 2}, "is of format 2, and this version of otherminds reads 1"),
        ({}, "is of format None"),
        ([1], "expected settings in braces"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(content, words, tmp_path):
    """A misspelled option in a file was once passed over, and the run was another than was written."""
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(BadInput, match=words):
        runs.read_config(tmp_path)


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b""])
def test_a_file_that_is_not_json_is_refused(content, tmp_path):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(BadInput, match="cannot be read as JSON"):
        runs.read_config(tmp_path)
    with pytest.raises(BadInput, match="no file"):
        runs.read_config(tmp_path / "other.json")


def test_names_and_paths():
    """`--name ./x` went to runs/x: pathlib forgets the dot."""
    assert runs.folder_of("x").parts == ("runs", "x")
    assert os.fspath(runs.folder_of("./x")) == "x"
    assert runs.folder_of("a/x").parts == ("a", "x")
    assert runs.folder_of("/a/x").is_absolute()
    for name in ("", ".", ".."):
        with pytest.raises(BadInput, match=f"'{name}' is no name of a run"):
            runs.folder_of(name)


def test_a_run_that_is_not_there_is_named_with_its_neighbours(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=r"no run 'x' .* holds no runs"):
        runs.find("x")
    (tmp_path / "runs" / "hunters").mkdir(parents=True)
    runs.write_config(tmp_path / "runs" / "hunters", Train())
    with pytest.raises(BadInput, match=r"no run 'hunter' .* did you mean hunters"):
        runs.find("hunter")
    assert runs.find("hunters") == runs.find("runs/hunters")


def test_rows_are_cut_back_and_go_on(tmp_path):
    rows = runs.Rows(tmp_path / "x.jsonl")
    rows.write([{"a": 1}, {"a": 2}])
    size = rows.size()
    rows.write([{"a": 3}])
    rows.close()
    again = runs.Rows(tmp_path / "x.jsonl")
    again.cut(size)
    again.write([{"a": 4}])
    again.close()
    assert [row["a"] for row in runs.rows(tmp_path / "x.jsonl")] == [1, 2, 4]


def test_a_file_that_was_lost_has_no_holes(tmp_path):
    """Cut "back" to a size it did not have, it was filled up with zeros, and nothing could read it any more."""
    rows = runs.Rows(tmp_path / "x.jsonl")
    rows.cut(1000)
    rows.write([{"a": 1}])
    rows.close()
    assert (tmp_path / "x.jsonl").read_bytes() == b'{"a": 1}\n'


def test_a_line_cut_off_in_writing_ends_the_rows(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n{"a": ')
    assert list(runs.rows(tmp_path / "x.jsonl")) == [{"a": 1}]
    (tmp_path / "x.jsonl").write_text('{"a": \n{"a": 1}\n')
    with pytest.raises(BadInput, match="line 1: not JSON"):
        list(runs.rows(tmp_path / "x.jsonl"))
    assert list(runs.rows(tmp_path / "nothing.jsonl")) == []


def test_a_write_that_fails_leaves_the_old_file_and_names_it(tmp_path, monkeypatch):
    runs.write_json(tmp_path / "x.json", {"a": 1})

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: .*x.json"):
        runs.write_json(tmp_path / "x.json", {"a": 2})
    assert runs.read_json(tmp_path / "x.json") == {"a": 1}


def test_a_folder_is_trained_by_one_process_at_a_time(tmp_path):
    with runs.locked(tmp_path), pytest.raises(BadInput, match="is being trained by another process"), runs.locked(tmp_path):
        pass
    with runs.locked(tmp_path):
        pass


@pytest.mark.parametrize("name", ["a+b", "a,b", "a~b", "x#1", "x@3", "x:y"])
def test_names_that_seats_could_not_say_are_refused(name):
    """`run:a+b` meant two policies."""
    with pytest.raises(BadInput, match="would mean something else"):
        runs.require_name(Path("runs") / name)
    runs.require_name(Path("a+b") / "plain-name_1.0 鹿")


def test_different_words_make_different_files():
    """`#1` and `:1` both became `_1`, and one evaluation replaced the other."""
    assert runs.file_name("1280-sample") == "1280-sample"
    assert runs.file_name("self_run_m#1") != runs.file_name("self_run_m:1")
    assert runs.file_name("鹿" * 100) != runs.file_name("鹿" * 101)
    assert len(runs.file_name("鹿" * 101).encode()) < 200
