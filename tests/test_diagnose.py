"""Parts that were broken on purpose, as they once were by accident: the diagnosis names the right module."""

import dataclasses
import json
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from otherminds import checkpoint, dataset, fit, samples
from otherminds.config import BadInput, Collect, Diagnose, Fit, Goals, OpponentModel, PartnerNetwork, WorldModel
from otherminds.diagnose import diagnose
from otherminds.diagnostics import findings

pytestmark = pytest.mark.xdist_group("diagnose")  # one worker, so that what they share is fitted once

GAME = "stag_hunt?height=3&width=3&players=3&hares=2"
STAY = 4
ACTS = PartnerNetwork(torso="centred", goal_input="film", hidden=(32,))
SMALL = {
    "opponent_model": OpponentModel(torso="centred", goal_input="film", hidden=(32,), batch=64),
    "world_model": WorldModel(channels=12, batch=32),
    "goals": Goals(kind="manual", features=8, hidden=(16,), acts=ACTS, batch=32),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("diagnosed")


@pytest.fixture(scope="module")
def data(place):
    path = place / "hunt.npz"
    seats = "nearest_stag+nearest_hare"
    dataset.save(dataset.gather(Collect(path, game=GAME, seats=seats, episodes=1000, parallel=40, meeting=4)), path)
    return path


def fitted(data, module, place, name, epochs=6, **more):
    fit.fit(Fit(module, data, name=str(place / name), epochs=epochs, labels="true", **(SMALL | more)))
    return str(place / name)


def spoiled(data, place, name, **rows):
    """The same games with other rows, told as of another seed: they are diagnosed on what they were made of."""
    played = dataset.load(data)
    path, source = place / f"{name}.npz", played.source | {"seed": 99}
    dataset.save(dataclasses.replace(played, rows=dataclasses.replace(played.rows, **rows), source=source), path)
    return path


def blamed(result):
    return {finding["module"] for finding in result["findings"]}


def what(result):
    return " ".join(finding["what"] for finding in result["findings"])


@pytest.fixture(scope="module")
def healthy(data, place):
    modules = ("opponent_model", "goals", "world_model")
    return [fitted(data, module, place, module, epochs=15) for module in modules]


def test_what_is_whole_is_not_blamed(healthy, place):
    """And all that was measured is there: numbers, tables, pictures."""
    result = diagnose(Diagnose(tuple(healthy)))
    assert result["findings"] == [], result["findings"]
    assert {"opponent_model", "goals", "world_model", "findings"} == set(result)
    assert result["world_model"]["open_loop"]["10"]["windows"]["mean"] > 0
    assert 0 < result["goals"]["beliefs"]["largest_difference"]["mean"] < 0.3
    assert (place / "opponent_model" / "diagnostics" / "actions.csv").read_text().startswith("action,")
    expected = {
        "opponent_model": ["actions", "losses"],
        "world_model": ["depth", "losses", "planes_rewarded", "planes_worst"],
        "goals": ["belief", "codes", "gate", "losses", "map"],
    }
    for module, names in expected.items():
        folder = place / module / "diagnostics"
        assert sorted(path.stem for path in folder.glob("*.png")) == names
        for name in names:
            assert len(np.unique(np.asarray(Image.open(folder / f"{name}.png").convert("L")))) > 5
        assert json.loads((folder / "diagnosis.json").read_text())["findings"] == []


def test_actions_that_were_not_turned_are_found_in_the_world_model(data, place, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(samples, "joint_actions", lambda data, row, seat: jnp.asarray(data.rows.action[row], jnp.int32))
        name = fitted(data, "world_model", place, "unturned", player=2)
    result = diagnose(Diagnose((name,), pictures=False))
    assert blamed(result) == {"world_model"}
    assert "were these turned" in what(result)  # by what it was taught
    assert "not turned" in what(result)  # seen from one seat, the model itself tells


def test_players_who_left_taught_as_staying_are_found_in_the_opponent_model(data, place):
    rows = dataset.load(data).rows
    stays = np.where(rows.present, rows.action, STAY).astype(rows.action.dtype)
    path = spoiled(data, place, "stays", present=np.ones_like(rows.present), action=stays)
    name = fitted(path, "opponent_model", place, "taught_to_stay")
    result = diagnose(Diagnose((name,), data=data, pictures=False))
    assert blamed(result) == {"opponent_model"}
    assert "players who have left" in what(result)


@pytest.mark.parametrize("module", ["opponent_model", "goals"])
def test_goals_of_others_are_found_in_the_goals(data, place, module):
    rows = dataset.load(data).rows
    by_episode = np.cumsum(rows.first) - 1
    drawn = np.random.default_rng(0).integers(0, 2, (by_episode[-1] + 1, rows.goal.shape[1])).astype(rows.goal.dtype)
    path = spoiled(data, place, f"shuffled_{module}", goal=drawn[by_episode])
    name = fitted(path, module, place, f"shuffled_{module}")
    result = diagnose(Diagnose((name,), data=data, pictures=False))
    assert blamed(result) == {"goals"}


def test_a_run_is_diagnosed_by_seat(copied):
    result = diagnose(Diagnose((str(copied),), samples=600))
    seats = result["policy"]["by_seat"]
    assert list(seats) == sorted(seats)
    assert all(np.isfinite(part["value_loss"]) for part in seats.values())
    assert (copied / "diagnostics" / "policy.png").is_file()
    found = result["policy"]["checkpoints"]["compared"]["final"]  # of a learner that foresees nobody and does not search
    assert list(found["own_games"]) == ["policy"]
    assert "search" not in found
    assert found["games"] == 30  # ten of each seed
    assert found["reward"]["low"] < found["reward"]["mean"] < found["reward"]["high"]
    assert result["findings"] == []


def test_a_seat_that_learns_from_another_is_noticed():
    """Its value loss was in the hundreds, and nobody had put the seats side by side."""
    found = {"by_seat": {"player_1": {"value_loss": 0.2}, "player_2": {"value_loss": 140.0}}}
    assert [finding.module for finding in findings.of_policy(found)] == ["policy"]
    assert findings.of_policy({"by_seat": {"player_1": {"value_loss": 0.2}, "player_2": {"value_loss": 0.3}}}) == []


def test_what_cannot_be_diagnosed_is_refused(healthy, data, place):
    with pytest.raises(BadInput, match="diagnose what"):
        diagnose(Diagnose(()))
    with pytest.raises(BadInput, match="one at a time"):
        diagnose(Diagnose((healthy[0], healthy[0]), pictures=False, samples=100))
    with pytest.raises(BadInput, match="no run"):
        diagnose(Diagnose((str(place / "nobody"),)))
    with pytest.raises(BadInput, match="samples is 0"):
        diagnose(Diagnose((healthy[0],), samples=0))
    with pytest.raises(BadInput, match="switching is 1"):
        diagnose(Diagnose((healthy[0],), switching=1.0))
    other = place / "matrix.npz"
    dataset.save(dataset.gather(Collect(other, game="matrix-ipd", seats="random", episodes=8, parallel=4)), other)
    with pytest.raises(BadInput, match="holds games of matrix-ipd"):
        diagnose(Diagnose((healthy[0],), data=other))


def test_other_games_than_it_learned_from_are_not_taken_for_those(healthy, data, monkeypatch):
    with pytest.raises(BadInput, match=r"is what .* learned from"):
        diagnose(Diagnose((healthy[0],), data=data))
    again = dataclasses.replace(dataset.load(data), digest="of other games under the same name")
    monkeypatch.setattr(dataset, "load", lambda path, game=None: again)
    with pytest.raises(BadInput, match="collected anew"):
        diagnose(Diagnose((healthy[0],)))


def test_games_of_the_seed_it_learned_from_are_no_other_games(healthy, place, tmp_path):
    """More episodes of the same seed begin with those it learned from, and were taken for new ones."""
    path, seats = place / "more.npz", "nearest_stag+nearest_hare"
    for seed, parallel in ((0, 40), (0, 24), (1, 40)):
        played = dataset.gather(Collect(path, GAME, seats, episodes=1200, parallel=parallel, meeting=4, seed=seed))
        dataset.save(played, path)
        asked = Diagnose((healthy[0],), data=path, pictures=False, samples=300)
        if seed == 0:
            with pytest.raises(BadInput, match="opens on the same boards: give another --seed to collect"):
                diagnose(asked)
    assert diagnose(asked)["opponent_model"]["held_out"] is False
    older = shutil.copytree(healthy[0], tmp_path / "older")  # whose checkpoint says nothing of where its data came from
    (step,) = checkpoint.steps(older)
    facts = checkpoint.facts_of(older, step)
    assert facts.pop("source")["seed"] == 0
    place = older / "checkpoints" / str(step)
    facts["sha256"] = checkpoint._checksum(place / checkpoint.STATE, facts)
    (place / checkpoint.FACTS).write_text(json.dumps(facts))
    assert diagnose(dataclasses.replace(asked, targets=(str(older),)))["opponent_model"]["seeds"] == 1


def test_pictures_of_what_nobody_knows_are_left_out_without_a_warning(data, place):
    """Where nobody's goal is known there is no belief in it to draw: matplotlib complained of empty legends."""
    whole = dataset.load(data)
    rows = dataclasses.replace(whole.rows, goal=np.full_like(whole.rows.goal, -1), who=np.zeros_like(whole.rows.who))
    path = place / "foreign.npz"
    dataset.save(dataclasses.replace(whole, rows=rows, partners=("unknown",), source={"converted": "elsewhere.npz"}), path)
    fit.fit(Fit("goals", path, name=str(place / "foreign"), epochs=1, samples=2000, goals=SMALL["goals"]))
    diagnose(Diagnose((str(place / "foreign"),), samples=300))  # a warning would be an error here
    assert sorted(path.stem for path in (place / "foreign" / "diagnostics").glob("*.png")) == ["gate", "losses"]


def test_an_edited_fit_is_refused_and_lost_rows_are_done_without(healthy, tmp_path):
    folder = shutil.copytree(healthy[0], tmp_path / "edited")
    (folder / "metrics.jsonl").unlink()
    diagnose(Diagnose((str(folder),), samples=300))
    config = json.loads((folder / "config.json").read_text())
    config["fit"]["held_out"] = 0.5
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadInput, match="not what the fit was made with"):
        diagnose(Diagnose((str(folder),)))
    (folder / "config.json").write_text("5")
    with pytest.raises(BadInput, match="expected settings in braces"):
        diagnose(Diagnose((str(folder),)))


def test_what_is_found_in_some_seeds_is_said_to_be():
    one = findings.Finding("goals", "is lost", {"x": 1})
    assert findings.of_all_seeds([[one], [], [one]]) == [dataclasses.replace(one, seeds="2 of 3")]


def test_partners_out_of_sight_are_scored_apart(place):
    """Nobody can foresee whom one cannot see: no ceiling, and no blame."""
    path = place / "near.npz"
    near = "stag_hunt?height=4&width=4&players=2&hares=2&view=1"
    dataset.save(dataset.gather(Collect(path, game=near, seats="nearest_stag+nearest_hare", episodes=200, parallel=20)), path)
    names = [fitted(path, module, place, f"near_{module}", epochs=1) for module in ("opponent_model", "goals")]
    result = diagnose(Diagnose(tuple(names), samples=500))
    found = result["opponent_model"]["first"]
    assert found["by_sight"]["out_of_sight"]["steps"] > 0
    assert found["cross_entropy_exact"] is None
    assert "far from" not in what(result)
