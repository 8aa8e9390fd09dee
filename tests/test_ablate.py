"""Learners side by side: what is compared is what was asked for, nothing is made twice, and no figure stands in another's row."""

import dataclasses
import json

import pytest

from otherminds import ablate as module
from otherminds import runs
from otherminds.ablate import ablate, as_text, planned
from otherminds.config import Ablate, BadInput

SMALL = (
    "--parallel 8 --rollout 4 --epochs 1 --minibatches 2 --ppo.hidden 8 --mappo.hidden 8 --mappo.critic-hidden 8 --hop.hidden 8"
)
TINY = Ablate(("ppo", "mappo"), "matrix-ipd?horizon=5", steps=160, seeds=2, options=SMALL, episodes=4)


def test_every_value_is_a_row_and_the_one_it_has_anyway_is_none():
    rows = planned(dataclasses.replace(TINY, vary=("ppo.entropy=0.01,0.1", "ppo.hidden=(8,8),(4,)", "ppo.core=none,gru")))
    names = [row.name for row in rows]
    assert names == ["ppo", "ppo ppo.entropy=0.1", "ppo ppo.hidden=(8, 8)", "ppo ppo.hidden=(4,)", "ppo ppo.core=gru", "mappo"]
    by_name = {row.name: row.config for row in rows}
    assert by_name["ppo ppo.hidden=(8, 8)"].ppo.hidden == (8, 8)
    assert by_name["ppo ppo.core=gru"].ppo.core == "gru"
    assert {row.config.parallel for row in rows} == {8}
    assert by_name["mappo"].seats == "mappo"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"learners": ("hop_pluss",)}, "did you mean hop_plus"),
        ({"vary": ("ppo.entropi=1",)}, "did you mean entropy"),
        ({"vary": ("ppo.entropy=much",)}, "expected a number"),
        ({"vary": ("ppo=3",)}, "no option"),
        ({"vary": ("hop.practice=0",)}, "nobody in --learners reads --hop"),
        ({"vary": ("ppo.entropy",)}, "expected option=value"),
        ({"options": "--seats ppo"}, "an option of its own"),
        ({"options": "--nonsense 3"}, "expected options of train"),
        ({"sets": ("3ns",)}, "do not play"),
        ({"seeds": 0}, "at least 1"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_begins(options, words, tmp_path):
    with pytest.raises(BadInput, match=words):
        ablate(dataclasses.replace(TINY, name=str(tmp_path / "out"), **options))
    assert not (tmp_path / "out").exists()


def test_what_is_finished_is_kept_and_what_was_interrupted_is_gone_on_with(tmp_path, monkeypatch):
    options = dataclasses.replace(TINY, name=str(tmp_path / "out"))
    real, made = module.train, []

    def stopped(config, **rest):
        if made:
            raise KeyboardInterrupt
        made.append(config.seats)
        return real(config, **rest)

    monkeypatch.setattr(module, "train", stopped)
    with pytest.raises(KeyboardInterrupt):
        ablate(options)
    half = json.loads((tmp_path / "out" / "ablation.json").read_text())
    assert [row["name"] for row in half["rows"]] == ["ppo"]
    assert "1 rows still missing" in (tmp_path / "out" / "ablation.md").read_text()
    monkeypatch.setattr(module, "train", lambda config, **rest: made.append(config.seats) or real(config, **rest))
    whole = ablate(options)
    assert made == ["ppo", "mappo"]
    assert whole["rows"][0] == half["rows"][0]
    assert [one["row"] for one in whole["differences"]] == ["mappo"]
    assert set(whole["rows"][1]["curves"]) == {"0", "1"}
    assert "| mappo |" in as_text(whole)
    monkeypatch.setattr(module, "train", None)
    monkeypatch.setattr(module, "evaluate", None)
    assert ablate(options)["rows"] == whole["rows"]
    with pytest.raises(BadInput, match="was made with another --ppo"):
        ablate(dataclasses.replace(options, options=SMALL + " --ppo.entropy 0.2"))


def test_differences_are_paired_by_seed(tmp_path):
    """(3, 5) less (1, 2): 2 and 3, on average 2.5; unpaired the interval would be wider."""
    row = {"name": "b", "learner": "b", "reward": {"per_seed": [3.0, 5.0]}, "strangers": {}}
    base = {"name": "a", "learner": "a", "reward": {"per_seed": [1.0, 2.0]}, "strangers": {}}
    found = module._difference(row, base)
    assert (found["row"], found["less"], found["reward"]["mean"]) == ("b", "a", 2.5)
    assert runs.folder_of(str(tmp_path)) == tmp_path
