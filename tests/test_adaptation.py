"""Meetings with strangers: who sits where, what is counted, and that memory lasts."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from otherminds import make
from otherminds.adaptation import SETS, Meetings, adapt, play_meetings
from otherminds.config import Adapt, BadInput, Evaluate, Train
from otherminds.diagnostics.meetings import counted, episodes, steps_until_sure
from otherminds.evaluate import evaluate
from otherminds.partners import make_partner
from otherminds.train import train

from small_runs import SMALL_HOP

GAME = make("stag_hunt-4x4-4h1s")


def test_every_seat_meets_every_set_equally_often_and_partners_sit_behind_it():
    meetings = Meetings.plan(GAME, ("3ns", "nh_ns_random"), (0, 1, 2, 3), 8)
    assert len(meetings.which) == 16
    for number in (0, 1):
        assert np.bincount(meetings.focal[meetings.which == number]).tolist() == [2, 2, 2, 2]
    mixed = np.flatnonzero((meetings.which == 1) & (meetings.focal == 2))[0]
    names = [None if k < 0 else meetings.scripts[k] for k in meetings.script[mixed]]
    assert names == ["nearest_stag", "random", None, "nearest_hare"]
    with pytest.raises(BadInput, match="no set of partners '3nz': did you mean"):
        Meetings.plan(GAME, ("3nz",), (0,), 1)
    with pytest.raises(BadInput, match="stag hunts with four players"):
        Meetings.plan(make("matrix-ipd"), ("3ns",), (0,), 1)


def test_a_script_among_its_equals_earns_what_it_should():
    """Four nearest_hare: everyone gets a hare, or half of one, in every episode; nothing is foreseen by a script."""
    meetings = Meetings.plan(GAME, ("3nh",), (0, 1, 2, 3), 8)
    focal = make_partner("nearest_hare", GAME, 4)
    seen = play_meetings(GAME, focal, (0, 1, 2, 3), meetings, 120, jax.random.key(0), "test")
    scores, curve = episodes(seen, 60)
    assert scores.shape == (8,)
    assert (scores > 0.5).all()
    assert (scores <= 1).all()
    assert len(curve) > 5
    assert not seen.searched.any()
    assert (seen.goal[seen.there] == GAME.goals.index("hare")).all()


def test_rewards_are_of_the_episodes_that_end_in_the_last_steps():
    """Two meetings of six steps with episodes of two: rewards 1, 2, 3 and 0, 0, 9; of the last three steps one episode ends."""

    @dataclasses.dataclass
    class Seen:
        reward: np.ndarray
        first: np.ndarray

    reward = np.array([[1, 0], [0, 0], [2, 0], [0, 0], [3, 4], [0, 5]], float)
    first = np.array([[False] * 2, [True] * 2] * 3)
    scores, curve = episodes(Seen(reward, first), 2)
    np.testing.assert_array_equal(scores, [3, 9])
    np.testing.assert_array_equal(curve, [0.5, 1, 6])
    step, episode = counted(first)
    np.testing.assert_array_equal(step[:, 0], [0, 1, 0, 1, 0, 1])
    np.testing.assert_array_equal(episode[:, 0], [0, 0, 1, 1, 2, 2])
    believed = np.array([0.5, 0.95, 0.2, 0.3, 0.99, 0.99])[:, None, None] * np.ones((1, 2, 1))
    assert steps_until_sure(believed, np.ones((6, 2, 1), bool), step) == 0.5  # after one step, never, at once


@pytest.fixture(scope="module")
def hop_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hop") / "run"
    config = Train(
        seats="hop", steps=320, parallel=16, rollout=5, epochs=1, minibatches=1, seeds=1, tensorboard=False, hop=SMALL_HOP
    )
    train(config, folder=folder, say=lambda line: None)
    return folder


@pytest.mark.xdist_group("hop_run")
def test_a_frozen_hop_meets_strangers_with_search_and_without(hop_run):
    result = adapt(Adapt(str(hop_run), sets=("3nh", "switchers"), replicas=4, steps=120, last=60))
    assert [one["set"] for one in result["sets"]] == ["3nh", "switchers"]
    hares = result["sets"][0]
    assert hares["partners"] == list(SETS["3nh"])
    assert hares["searched"]["mean"] > 0.9
    foresight = {name: part["mean"] for name, part in hares["foresight"].items()}
    assert 0 <= foresight["top_1"] <= foresight["top_1_exact"] + 0.1
    assert foresight["majority"] < foresight["top_1_exact"]
    assert hares["misled_cross_entropy"]["mean"] != foresight["cross_entropy"]
    assert 0 < hares["belief"]["mean"] <= 1
    by_action = hares["by_partner"]["nearest_hare"]["by_action"]
    assert 0 < by_action["hunt_hare"]["expected_recall"]["mean"] <= 1
    assert "hunt_stag" not in by_action  # they never do
    assert set(result["sets"][1]["by_partner"]) == set(SETS["switchers"])
    assert len(hares["belief_by_step"]) > 3
    assert (hop_run / "adaptation.json").exists()
    plain = adapt(Adapt(str(hop_run), sets=("3nh",), replicas=4, steps=120, last=60, search=False))
    assert plain["sets"][0]["searched"]["mean"] == 0
    assert (hop_run / "adaptation_without_search.json").exists()


@pytest.mark.xdist_group("hop_run")
def test_memory_of_partners_lasts_for_the_whole_meeting(hop_run):
    """More than sixteen episodes, after which training would bring new partners."""
    from otherminds import checkpoint

    found = checkpoint.find(hop_run, "final")
    policy = checkpoint.group_policy(found, 0, 0).without_search()
    meetings = Meetings.plan(GAME, ("3nh",), (0,), 2)
    seen = play_meetings(GAME, policy, (0, 1, 2, 3), meetings, 960, jax.random.key(0), "test")
    _, episode = counted(np.asarray(seen.first))
    assert episode.max() > 17
    opening = [
        float(seen.belief[:, :, 0][(episode == k) & (counted(np.asarray(seen.first))[0] == 0)][..., 1].mean()) for k in (0, 17)
    ]
    assert abs(opening[0] - opening[1]) > 0.01  # what was seen in earlier episodes is still known
    assert jnp.isfinite(jnp.asarray(opening)).all()


@pytest.mark.xdist_group("hop_run")
def test_a_run_is_evaluated_with_search_and_without(hop_run, copied):
    found = [evaluate(Evaluate(str(hop_run), episodes=8, search=search)) for search in (True, False)]
    assert [one["search"] for one in found] == [True, False]
    assert found[0]["per_seed"] != found[1]["per_seed"]
    assert len(list((hop_run / "evaluation").glob("*.jsonl"))) == 2  # neither overwrote the other
    with pytest.raises(BadInput, match="does not search"):
        evaluate(Evaluate(str(copied), episodes=8, search=False))
