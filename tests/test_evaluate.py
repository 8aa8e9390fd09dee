"""Mean rewards: whole episodes, no favour for short ones."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from otherminds import BadInput, checkpoint, make, runs, seats
from otherminds import train as training
from otherminds.config import PPO, Evaluate
from otherminds.evaluate import Episodes, _keep, episode_rewards, estimate, evaluate, iqm, play_episodes
from otherminds.games.ego import view
from otherminds.games.matrix import Matrix
from otherminds.games.stag_hunt import StagHunt
from otherminds.rollout import start
from otherminds.train import train
from otherminds.types import Seated

from small_runs import SMALL, small


def test_each_game_counts_exactly_one_whole_episode():
    """Cooperators earn 3 a step: 3 x 7 in an episode of 7, whatever comes after."""
    game = make("matrix-ipd?horizon=7")
    rewards = episode_rewards(game, seats.resolve(game, "always_c"), 5, jax.random.key(0))
    np.testing.assert_allclose(rewards, 21.0)


def test_short_episodes_are_not_counted_twice():
    """Two stags' worth of hunters on a 4x4 board cannot earn more than the board is worth in one episode."""
    game = make("stag_hunt-4x4-4h1s")
    rewards = episode_rewards(
        game, seats.resolve(game, "nearest_stag,nearest_stag,nearest_hare,nearest_hare"), 512, jax.random.key(0)
    )
    assert rewards.shape == (512, 4)
    assert rewards.sum(1).max() <= 14
    assert 2.8 < rewards.mean() <= 3.0


def test_every_episode_has_a_start_of_its_own(monkeypatch):
    """Episodes beyond the bank repeated its starts, and intervals were four times too narrow."""
    monkeypatch.setattr(StagHunt, "bank_size", 1)
    game = make("stag_hunt-4x4-4h1s?horizon=2")
    rewards = episode_rewards(game, seats.resolve(game, "nearest_hare"), 256, jax.random.key(0))
    assert len(np.unique(rewards, axis=0)) > 4


def test_interval():
    # Values 1..4: mean 2.5, standard deviation 1.29099, half width 3.18245 * 1.29099 / 2 = 2.05426 (Student, 3 degrees).
    found = estimate(np.array([1.0, 2.0, 3.0, 4.0]))
    np.testing.assert_allclose([found.mean, found.low, found.high], [2.5, 2.5 - 2.05426, 2.5 + 2.05426], atol=1e-4)


def test_episodes_that_can_last_for_ever_are_not_chosen_by_how_short_they_are(monkeypatch):
    """Episodes came in the order of their ends; whoever took the first few of them took the short ones.

    15 episodes of 16 are those of the first 15 games, however long. Members of a pool keep their games: hunters of hares earn,
    and 15 become 16, so that each member plays equally many.
    """
    game = make("stag_hunt?height=3&width=3&players=2&hares=2")
    policies = seats.resolve(game, "random+nearest_hare,random")
    key = jax.random.key(0)
    monkeypatch.setattr(StagHunt, "longest", None)
    many, few = play_episodes(game, policies, 16, key), play_episodes(game, policies, 15, key)
    assert many.reward.shape == few.reward.shape == (16, 2)
    np.testing.assert_array_equal(few.length, many.length)
    alone = seats.resolve(game, "random")
    all_of_them, most = play_episodes(game, alone, 16, key), play_episodes(game, alone, 15, key)
    np.testing.assert_array_equal(most.reward, all_of_them.reward[:15])
    assert many.length.tolist() != sorted(many.length.tolist())
    assert (many.reward[1::2, 0] > 0).all()
    assert not (many.reward[0::2, 0] > 0).all()


def test_intervals_of_the_middle_half():
    # 8 seeds: without the lowest two and the highest two, the mean of 3, 4, 5, 6 is 4.5. Four seeds: without one at each end.
    assert iqm(np.arange(1.0, 9.0)).mean == 4.5
    assert iqm(np.array([0.0, 1.0, 2.0, 100.0])).mean == 1.5
    found = iqm(np.full(5, 2.0))
    assert (found.mean, found.low, found.high) == (2.0, 2.0, 2.0)
    found = iqm(np.arange(10.0))
    assert 1 < found.low < found.mean < found.high < 8


@pytest.fixture(scope="module")
def looked_at(trained, tmp_path_factory):
    """A copy of a run with three seeds, to evaluate."""
    return shutil.copytree(trained, tmp_path_factory.mktemp("evaluate") / "run")


def looked(run, **options):
    return evaluate(Evaluate(str(run), **({"episodes": 16} | options)))


def written(run, name):
    return [json.loads(line) for line in (run / "evaluation" / f"{name}.jsonl").read_text().splitlines()]


def test_a_run_is_evaluated_by_seed_and_seat(looked_at):
    found = looked(looked_at)
    assert (found["seats"], found["step"], found["play"], found["game"]) == (["self"] * 2, 1280, "sample", "matrix-ipd?horizon=5")
    assert (found["episodes"], len(found["per_seed"]), found["interval_over"]) == (16, 3, "seeds")
    assert "win_rate" not in found
    assert "frozen_seeds" not in found
    rows = [
        json.loads(line) for line in (looked_at / "evaluation" / "1280-sample-16episodes-seed0.jsonl").read_text().splitlines()
    ]
    assert len(rows) == 3 * 16 * 2
    assert set(rows[0]) == {"seed", "episode", "seat", "reward", "length"}
    assert {row["length"] for row in rows} == {5}
    seeds = [np.mean([row["reward"] for row in rows if row["seed"] == seed]) for seed in (3, 4, 5)]
    np.testing.assert_allclose(found["per_seed"], seeds)
    np.testing.assert_allclose(found["reward"]["mean"], np.mean(seeds))
    # Over seeds: 4.3027 (Student, 2 degrees) times the standard deviation of three means, divided by the root of three.
    np.testing.assert_allclose(found["reward"]["high"] - np.mean(seeds), 4.3027 * np.std(seeds, ddof=1) / 3**0.5, rtol=1e-3)
    for seat in (0, 1):
        mean = np.mean([row["reward"] for row in rows if row["seat"] == seat])
        np.testing.assert_allclose(found["reward"]["per_seat"][seat]["mean"], mean)
    assert looked(looked_at)["per_seed"] == found["per_seed"]
    assert looked(looked_at, seed=1)["per_seed"] != found["per_seed"]


def test_with_less_than_three_seeds_intervals_are_over_episodes(tmp_path):
    run = tmp_path / "run"
    train(small(seeds=1, steps=64), folder=run, say=lambda line: None)
    found = looked(run)
    assert (found["interval_over"], len(found["per_seed"])) == ("episodes", 1)
    assert "iqm" not in found
    assert found["reward"]["low"] < found["reward"]["mean"] < found["reward"]["high"]


def test_greedy_play_is_always_the_same_and_sampled_play_is_not(looked_at):
    greedy, sampled = looked(looked_at, play="greedy"), looked(looked_at)
    assert greedy["reward"] == looked(looked_at, play="greedy", seed=7)["reward"]
    rows = [
        json.loads(line) for line in (looked_at / "evaluation" / "1280-greedy-16episodes-seed0.jsonl").read_text().splitlines()
    ]
    for seed in (3, 4, 5):
        assert len({row["reward"] for row in rows if (row["seed"], row["seat"]) == (seed, 0)}) == 1
    assert sampled["reward"] != greedy["reward"]


def test_others_may_sit_beside_the_runs_own(looked_at):
    """Beside one who always defects a seat earns at most 1 a step, 5 in all; the other one then earns at least as much."""
    found = looked(looked_at, seats="self,always_d")
    assert found["seats"] == ["self", "always_d"]
    mine, theirs = (seat["mean"] for seat in found["reward"]["per_seat"])
    assert mine <= 5 <= theirs
    both = looked(looked_at, seats=f"self,run:{looked_at}#1:4+always_c")
    assert both["seats"][1].endswith("#1@1280:4+always_c")
    assert len(list((looked_at / "evaluation").glob("*self_always_d*"))) == 1


def test_long_line_ups_fit_into_the_name_of_a_file(tmp_path):
    """Frozen policies in all seats, with their paths, were more than a file system takes."""
    played = Episodes(np.ones((2, 2)), np.ones(2), None)
    for last in ("self", "always_c"):
        options = Evaluate("x", seats=f"{'run:' + 'x' * 200 + '#1,' * 3},{last}")
        _keep(tmp_path, options, 1280, [played], range(1))
    assert len(list(tmp_path.glob("1280-sample-run_*.jsonl"))) == 2


def test_a_run_plays_another_game_if_it_fits(looked_at):
    assert looked(looked_at, game="matrix-ipd?horizon=2")["reward"]["mean"] <= 10
    with pytest.raises(BadInput, match="has 4 seats, got 2 entries"):
        looked(looked_at, game="stag_hunt-4x4-4h1s")
    with pytest.raises(BadInput, match="cannot play"):
        looked(looked_at, game="stag_hunt?height=4&width=4&players=2")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"step": "12"}, "has no checkpoint at step 12: choose from"),
        ({"step": "first"}, "'first' is no checkpoint: expected a number of steps, final or best"),
        ({"episodes": 1}, "--episodes is 1, expected at least 2"),
        ({"seats": "self,self,self"}, "has 2 seats, got 3 entries"),
        ({"seats": "self,selv"}, "nothing named 'selv' can sit in"),
        ({"seats": "self,ppo"}, "ppo is a learner, and nothing learns here"),
        ({"game": "matrix-ip"}, "did you mean matrix-ipd"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(looked_at, options, words):
    with pytest.raises(BadInput, match=words):
        looked(looked_at, **options)


def test_checkpoints_by_name_and_by_number(looked_at):
    best, first = checkpoint.pick(looked_at, "best"), checkpoint.steps(looked_at)[0]
    assert looked(looked_at, step="best")["step"] == best
    assert looked(looked_at, step=str(first))["step"] == first


def test_a_damaged_checkpoint_is_refused_or_the_one_before_is_taken(copied):
    """Asking for the best one, read from the newest, ended in a traceback."""
    (copied / "checkpoints" / "1280" / checkpoint.FACTS).write_text("{}")
    with pytest.raises(BadInput, match="checkpoint 1280 cannot be read"):
        looked(copied, step="1280")
    with pytest.warns(UserWarning, match=r"checkpoint 1280 cannot be read.*using the one before"):
        assert looked(copied, step="final")["step"] < 1280
    with pytest.warns(UserWarning, match="checkpoint 1280 cannot be read"):
        assert looked(copied, step="best")["step"] < 1280


@pytest.mark.parametrize(
    "change", [{"game": "matrix-chicken?horizon=5"}, {"seed": 7}, {"seeds": 9}, {"seats": "always_d~100~ppo"}]
)
def test_settings_that_were_changed_later_are_refused(copied, change):
    """Rewards of another game, or of players who never sat there, looked like results."""
    runs.write_config(copied, dataclasses.replace(runs.read_config(copied), **change))
    with pytest.raises(BadInput, match=f"was changed: {next(iter(change))} was"):
        looked(copied)


def test_a_win_rate_only_where_there_are_wins(looked_at, monkeypatch):
    """Let the prisoners win when both have played alike at the end."""
    monkeypatch.setattr(Matrix, "winnable", True)
    monkeypatch.setattr(Matrix, "won", lambda self, state: state.last[0] == state.last[1])
    found = looked(looked_at, seats="always_c", game="matrix-ipd?horizon=3")
    assert (found["win_rate"], found["win_rate_per_seed"]) == (1.0, [1.0] * 3)
    found = looked(looked_at, seats="always_c,always_c+always_d", game="matrix-ipd?horizon=3")
    assert found["win_rate"] == 0.5


def test_noise_is_only_for_training(tmp_path):
    """Whoever trained with random actions mixed in was also judged, and met as a partner, with them."""
    run = tmp_path / "noisy"
    train(small(ppo=PPO(action_noise=1.0, learning_rate=0.0)), folder=run, say=lambda line: None)
    game, policy = make(SMALL.game), checkpoint.load_policy(run, 0, seed=3)
    play = start(game, (Seated(policy, (0,)), *seats.resolve(game, "self,always_c", learned=[0])), 8, jax.random.key(0))
    extras = policy.step(view(play.now, (0,)), play.memories[0], jax.random.key(0))[2]
    np.testing.assert_array_equal(extras.logits, extras.policy_logits)
    assert float(jnp.abs(extras.logits - extras.logits.mean(-1, keepdims=True)).max()) > 1e-4


def test_a_checkpoint_before_a_switch_is_judged_as_it_was(tmp_path):
    """It was evaluated with the seats of the last phase, in which whoever had not begun to learn played untrained."""
    run = tmp_path / "late"
    seats_ = "always_d~640~ppo,ppo"
    train(small(seats=seats_, keep=9, checkpoint_every=1e-9), folder=run, say=lambda line: None)
    early, late = checkpoint.steps(run)[0], checkpoint.steps(run)[-1]
    assert early <= 640 < late
    assert looked(run, step=str(early))["seats"] == ["always_d", "self"]
    assert looked(run, step=str(late))["seats"] == ["self", "self"]
    with pytest.raises(BadInput, match=f"player_1 of .* had not begun to learn at step {early:,}"):
        checkpoint.load_policy(run, 0, str(early))


def test_a_switch_within_an_update_comes_after_it(tmp_path):
    """At step 100 of updates of 32 steps a learner joins at step 128: the checkpoint there is still without it."""
    run = tmp_path / "within"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "CALL_SECONDS", 0)
        train(small(seats="always_d~100~ppo,ppo", steps=192, keep=9), folder=run, say=lambda line: None)
    assert looked(run, step="128")["seats"] == ["always_d", "self"]
    assert looked(run, step="160")["seats"] == ["self", "self"]
    with pytest.raises(BadInput, match=r"player_1 of .* had not begun to learn at step 128"):
        checkpoint.load_policy(run, 0, "128")


def test_what_is_in_the_way_is_said_before_anything_is_played(copied):
    (copied / "evaluation").write_text("a file")
    with pytest.raises(BadInput, match="evaluation cannot be made"):
        looked(copied)
