"""A module alone: it learns what is there to learn, is measured on what it has not seen, and nothing odd passes in silence."""

import dataclasses
import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from otherminds import dataset, diagnose, fit, make, runs, world_model
from otherminds.config import BadInput, Collect, Diagnose, Fit, Goals, OpponentModel, PartnerNetwork, WorldModel

GAME = "stag_hunt?height=3&width=3&players=2&hares=2"
POOL = "nearest_stag+nearest_hare"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "hunt.npz"
    dataset.save(dataset.gather(Collect(path, game=GAME, seats=POOL, episodes=600, parallel=40, meeting=2)), path)
    return path


def options(data, module, folder, **more):
    small = {
        "name": str(folder / "fit"),
        "epochs": 3,
        "opponent_model": OpponentModel(channels=8, repeats=2, hidden=(16,), batch=32),
        "world_model": WorldModel(channels=8, batch=32),
    }
    return Fit(module, data, **(small | more))


def test_an_opponent_model_is_fitted_and_leaves_all_its_figures(data, tmp_path):
    result = fit.fit(options(data, "opponent_model", tmp_path, epochs=6, seeds=2))
    scores = result["scores"]
    assert scores["top_1"]["mean"] > scores["majority"]["mean"] + 0.1
    assert scores["cross_entropy"]["mean"] > scores["cross_entropy_exact"]["mean"]
    assert scores["top_1"]["low"] <= scores["top_1"]["mean"] <= scores["top_1"]["high"]
    assert set(scores["by_partner"]) == {"nearest_stag", "nearest_hare"}
    folder = tmp_path / "fit"
    rows = list(runs.rows(folder / "metrics.jsonl"))
    assert [(row["seed"], row["epoch"], row["split"]) for row in rows[:3]] == [
        (0, 1, "train"),
        (0, 1, "held_out"),
        (0, 2, "train"),
    ]
    assert len(rows) == 2 * 6 * 2
    assert json.loads((folder / "result.json").read_text()) == result
    assert (folder / "tables" / "actions-1-6.csv").read_text().startswith("action,count,share")


def test_with_a_learning_rate_of_0_nothing_is_learned(data, tmp_path):
    """The test above can fail."""
    still = OpponentModel(channels=8, repeats=2, hidden=(16,), batch=32, learning_rate=0.0)
    scores = fit.fit(options(data, "opponent_model", tmp_path, opponent_model=still))["scores"]
    assert scores["top_1"]["mean"] < scores["majority"]["mean"] + 0.1


def test_a_world_model_is_fitted(data, tmp_path):
    result = fit.fit(options(data, "world_model", tmp_path, epochs=10))
    assert result["scores"]["exact_board"]["mean"] > 0.8
    laws = {name: law["mean"] for name, law in result["scores"]["broken_laws"].items()}
    assert laws["vanished"] + laws["moved_too_far"] < 40  # of 600
    rows = [row for row in runs.rows(tmp_path / "fit" / "metrics.jsonl") if row["split"] == "train"]
    assert set(rows[0]["metrics"]) == {"observation", "reward", "end"}
    assert rows[-1]["metrics"]["observation"] < rows[0]["metrics"]["observation"] / 2


@pytest.mark.parametrize(
    "more", [{"kind": "vae"}, {"encodes": "state"}, {"kind": "vae", "encodes": "state+time+reward", "trained_by": "both"}]
)
def test_goals_of_every_kind_are_fitted_and_diagnosed(data, tmp_path, more):
    """Goals that are numbers once made the measures stop: they have no book of codes, and nothing is said of its entries."""
    small = Goals(
        features=8,
        hidden=(16,),
        channels=4,
        size=3,
        codes=3,
        batch=16,
        acts=PartnerNetwork(torso="centred", hidden=(16,), goal_input="film"),
    )
    result = fit.fit(options(data, "goals", tmp_path, epochs=1, samples=400, goals=dataclasses.replace(small, **more)))
    assert result["scores"]["cross_entropy"]["inferred"]["mean"] > 0
    assert 400 <= result["samples"] < 400 + 35  # steps, as they are asked for, up to the end of the last episode
    assert 2 <= result["episodes"] < result["samples"]
    found = diagnose.diagnose(Diagnose((str(tmp_path / "fit"),), samples=400, pictures=False))
    assert found["goals"]["cross_entropy"]["hindsight"]["mean"] > 0


@pytest.fixture(scope="module")
def posed(tmp_path_factory):
    """Three players, each of whom does what its own position says; the others see that, each in another place."""
    path = tmp_path_factory.mktemp("data") / "spread.npz"
    found = dataset.gather(
        Collect(path, game="jaxmarl:MPE_simple_spread_v3", seats="random", episodes=200, parallel=50, meeting=2)
    )
    seen = found.rows.observation
    action = (1 + 2 * (seen[..., 2] > 0) + (seen[..., 3] > 0)).astype(found.rows.action.dtype)
    dataset.save(dataclasses.replace(found, rows=dataclasses.replace(found.rows, action=action)), path)
    return path


def test_one_network_tells_partners_apart_where_observations_do_not(posed, tmp_path):
    """Told the place of a partner in ego order, and not whose that is, it was right in two of three."""
    small = OpponentModel(hidden=(32,), batch=64, goal=False, learning_rate=0.01)
    result = fit.fit(options(posed, "opponent_model", tmp_path, epochs=6, opponent_model=small))
    assert result["scores"]["top_1"]["mean"] > 0.85


@pytest.mark.parametrize("module", ["goals", "world_model"])
def test_games_whose_observations_do_not_say_who_is_who_are_fitted_and_diagnosed(posed, tmp_path, module):
    small = {"goals": Goals(features=8, hidden=(16,), size=3, codes=3), "world_model": WorldModel(kind="latent", hidden=(16,))}
    fit.fit(options(posed, module, tmp_path, epochs=1, samples=400, **{module: small[module]}))
    found = diagnose.diagnose(Diagnose((str(tmp_path / "fit"),), samples=400, pictures=False))
    assert found[module]["steps"]["mean"] > 0


def test_a_fit_is_read_again_as_it_was(data, tmp_path):
    fit.fit(options(data, "opponent_model", tmp_path, epochs=1, seeds=2))
    again = fit.load(str(tmp_path / "fit"))
    assert again.options.module == "opponent_model"
    assert again.game == make(GAME)
    first, second = again.modules
    assert not np.array_equal(np.asarray(first.head.weight), np.asarray(second.head.weight))


def without_goals(data, folder):
    """The same games as another library would leave them."""
    whole = dataset.load(data)
    rows = dataclasses.replace(whole.rows, goal=np.full_like(whole.rows.goal, -1), who=np.zeros_like(whole.rows.who))
    path = folder / "foreign.npz"
    dataset.save(dataclasses.replace(whole, rows=rows, partners=("unknown",), source={"converted": "elsewhere.npz"}), path)
    return path


def test_where_no_true_goals_are_known_those_that_are_reached_are_told(data, tmp_path):
    """All were told as "after nothing" in the test and as what they reached in learning: 1.58 nats where 0.33 was learned."""
    foreign = without_goals(data, tmp_path)
    result = fit.fit(options(foreign, "opponent_model", tmp_path, epochs=6))
    *_, last = (row["metrics"] for row in runs.rows(tmp_path / "fit" / "metrics.jsonl") if row["split"] == "train")
    scores = result["scores"]
    assert scores["cross_entropy"]["mean"] < last["cross_entropy"] + 0.1
    assert scores["goal"]["usefulness"]["mean"] > 0.05
    with pytest.raises(BadInput, match="knows of nobody what it is after: --labels reached"):
        fit.fit(options(foreign, "opponent_model", tmp_path, labels="true", name=str(tmp_path / "true")))
    assert not (tmp_path / "true").exists()


# --- what is refused ---


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": 0}, "--samples is 0"),
        ({"held_out": 1.0}, "--held-out is 1.0"),
        ({"epochs": 0}, "--epochs is 0"),
        ({"player": 3}, "--player is 3"),
        ({"opponent_model": OpponentModel(batch=0)}, "batch is 0"),
        ({"opponent_model": OpponentModel(learning_rate=-1.0)}, "learning-rate is -1"),
        ({"opponent_model": OpponentModel(learning_rate=float("nan"))}, "learning-rate is nan"),
        ({"opponent_model": OpponentModel(hidden=())}, "hidden is "),
        ({"opponent_model": OpponentModel(channels=-1)}, "channels is -1"),
        ({"opponent_model": OpponentModel(repeats=-1)}, "repeats is -1"),
        ({"module": "goals", "goals": Goals(steps=-3)}, "steps is -3"),
        ({"module": "goals", "goals": Goals(codes=0)}, "codes is 0"),
        ({"module": "goals", "goals": Goals(discount=5.0)}, "discount is 5"),
        ({"module": "goals", "goals": Goals(acts=PartnerNetwork(torso="centred", hidden=(0,)))}, "acts.hidden is"),
        ({"module": "world_model", "world_model": WorldModel(plane_weights=(float("nan"),))}, "plane-weights is"),
        (
            {"module": "world_model", "world_model": WorldModel(plane_weights=(1.0, 2.0))},
            "plane-weights has 2 numbers, .* 6 planes",
        ),
        ({"module": "world_model", "world_model": WorldModel(consistency=-1.0)}, "consistency is -1"),
        ({"module": "world_model", "world_model": WorldModel(consistency=1.0)}, "is of hidden states"),
        ({"name": "a,b"}, "is no name for a run"),
        ({"data": Path("nowhere.npz")}, "no dataset nowhere.npz"),
    ],
)
def test_bad_options_are_refused_before_anything_is_written(data, tmp_path, change, message):
    with pytest.raises(BadInput, match=message):
        fit.fit(dataclasses.replace(options(data, "opponent_model", tmp_path), **change))
    assert not (tmp_path / "fit").exists()


def test_a_folder_that_exists_is_left_alone(data, tmp_path):
    (tmp_path / "fit").mkdir()
    with pytest.raises(BadInput, match="exists already"):
        fit.fit(options(data, "opponent_model", tmp_path))


def test_a_loss_that_is_no_longer_finite_is_named(data, tmp_path, monkeypatch):
    plain = world_model.losses

    def broken(model, config, steps):
        total, terms = plain(model, config, steps)
        return total, terms | {"reward": terms["reward"] * jnp.nan}

    monkeypatch.setattr(world_model, "losses", broken)
    with pytest.raises(BadInput, match=r"epoch 1 of seed 0: reward is no longer finite"):
        fit.fit(options(data, "world_model", tmp_path))


def test_a_run_that_is_no_fit_is_refused(trained):
    with pytest.raises(BadInput, match="is no fit"):
        fit.load(str(trained))
