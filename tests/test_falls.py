"""A reward that fell after its peak is told from noise, and the module that moved first is named."""

import dataclasses
import itertools
import json
import shutil

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from otherminds import checkpoint, diagnose, make, runs
from otherminds.config import Diagnose
from otherminds.diagnostics import checkpoints, falls, findings
from otherminds.diagnostics.falls import collapse
from otherminds.distributions import Categorical
from otherminds.learners import hop
from otherminds.learners.base import SIGNS, Sign
from otherminds.partners import make_partner
from otherminds.returns import lambda_returns
from otherminds.train import train
from otherminds.types import Seated

from small_runs import SMALL_HOP, small

pytestmark = pytest.mark.xdist_group("falls")  # one worker, so that the run they share is made once


def line(*ends):
    """Rewards that go from one number to the next in 100 updates each, with a little noise."""
    noise = np.random.default_rng(0).normal(0, 0.02, 100)
    return np.concatenate([np.linspace(begin, end, 100) + noise for begin, end in itertools.pairwise(ends)])


NOTHING = np.zeros(0)


@pytest.mark.parametrize(
    ("rewards", "earlier", "passed"),
    [
        (line(2.92, 2.88), line(1, 2.9), True),  # a late joiner at its ceiling
        (line(2.92, 1.5), line(1, 2.9), False),
        (line(1, 3), NOTHING, True),
        (line(1, 3, 2.8), NOTHING, True),  # a tenth of the gain is lost
        (line(1, 3, 2), NOTHING, False),
        (np.repeat([1.0, 3.0, 0.5], 20), NOTHING, False),
        (line(3, 1), NOTHING, None),  # rightly learned to defect: nothing was ever gained
        (np.linspace(3, 1, 40), NOTHING, None),
        (line(2, 2), NOTHING, None),
        (line(1, 3)[:19], NOTHING, None),
    ],
)
def test_collapse_is_a_loss_of_what_was_gained(rewards, earlier, passed):
    verdict, found = collapse(rewards, earlier)
    assert verdict is passed
    if passed is not None:
        assert (found["lost"] <= found["allowed"]) is passed
    else:
        assert found["reason"]


def test_noise_alone_is_no_collapse():
    for seed in range(200):
        noise = np.random.default_rng(seed).normal(0, 0.5, 200)
        assert collapse(np.linspace(1, 1.8, 200) + noise, NOTHING)[0] is not False


# --- who moved first ---

LEVELS = {
    "reward": 3.0,
    "entropy": 1.0,
    "kl": 0.01,
    "explained_variance": 0.8,
    "value_loss": 0.2,
    "foresight_cross_entropy": 1.1,
    "foresight_ceiling_cross_entropy": 1.0,
    "foresight_goal": 0.3,
    "foresight_inference": 0.2,
    "model_exact": 0.95,
    "model_reward_mse": 0.01,
    "search_loss": 0.1,
}
STEPS = 32  # game steps of an update


def logged(moves, updates=200, rises=80, seeds=(3, 4), seats=(0, 1)):
    """Rows of a run whose reward rises for a while; `moves` says from which update on a metric is another, by a factor."""
    random, rows = np.random.default_rng(0), []
    for update, seed, seat in itertools.product(range(1, updates + 1), seeds, seats):
        metrics = {name: level * random.normal(1, 0.01) for name, level in LEVELS.items()}
        metrics["reward"] = LEVELS["reward"] * min(update / rises, 1.0002 - 0.0002 * update / rises) + random.normal(0, 0.001)
        for name, (when, factor) in moves.items():
            metrics[name] *= factor if update >= when else 1.0
        rows.append({"update": update, "seed": seed, "seat": seat, "metrics": metrics | {"data_seat": seat}})
    return rows


def judged(rows, signs):
    """(what was found, findings) as `diagnose` has them."""
    held, figures = falls.of_rewards(rows, 0)
    drawn = falls.courses(rows, signs, figures, 0)
    found = {"reward": {"fell": held is False, "peak_step": 0} | figures, "moved": falls.table(drawn, STEPS)}
    return found, findings.of_fall(found)


WORSE = {"up": 3.0, "down": 0.5, "either": 0.5}


@pytest.mark.parametrize("sign", hop.signs(), ids=lambda sign: f"{sign.module}-{sign.metric}")
def test_the_module_that_moves_first_is_named(sign):
    """Everything moves in the end; whoever did so first is to be looked at."""
    late = {other.metric: (150, WORSE[other.worse]) for other in hop.signs()}
    rows = logged({"reward": (140, 0.4)} | late | {sign.metric: (110, WORSE[sign.worse])})
    found, (finding,) = judged(rows, hop.signs())
    assert finding.module == sign.module
    assert f"`{sign.metric}`" in finding.what
    assert "elsewhere" not in finding.what
    assert finding.evidence["left_its_band_at_step"] == 110 * STEPS
    assert finding.evidence["left_its_band_at_step"] < finding.evidence["reward_left_its_band_at_step"]
    assert found["moved"][0]["module"] == sign.module
    assert {row["metric"] for row in found["moved"]} == {"reward", *(sign.metric for sign in hop.signs())}
    assert all(row["left_at_step"] for row in found["moved"])


def test_what_got_better_has_not_moved():
    better = {sign.metric: (110, {"up": 0.9, "down": 1.1, "either": 1.0}[sign.worse]) for sign in hop.signs()}
    (finding,) = judged(logged({"reward": (140, 0.4)} | better), hop.signs())[1]
    assert (finding.module, finding.judged) == ("reward", True)
    assert "no metric of any module left its band" in finding.what


def test_what_moves_after_the_reward_is_said_to():
    (finding,) = judged(logged({"reward": (120, 0.4), "model_exact": (160, 0.5)}), hop.signs())[1]
    assert finding.module == "world_model"
    assert "look elsewhere too" in finding.what


def test_modules_that_move_together_are_named_together():
    """A policy that plays otherwise makes everybody else look bad at once; else who is farthest from where it was comes first."""
    fallen = {"reward": (140, 0.4), "foresight_cross_entropy": (120, 2.0), "model_exact": (120, 0.8)}
    (finding,) = judged(logged(fallen | {"kl": (120, 1.5)}), hop.signs())[1]
    assert finding.module == "policy"
    assert "at the same update opponent_model and world_model did" in finding.what
    (finding,) = judged(logged(fallen), hop.signs())[1]
    assert finding.module == "opponent_model"
    assert "at the same update world_model did" in finding.what


def test_what_is_back_before_the_fall_has_done_no_harm_and_what_is_back_after_it_may_have():
    """A critic gets used to the worst of policies within a few updates."""
    rows = logged({"reward": (140, 0.4)})
    for row in rows:
        row["metrics"]["model_exact"] *= 0.5 if 105 <= row["update"] < 120 else 1
        row["metrics"]["explained_variance"] *= 0.5 if 139 <= row["update"] < 150 else 1
    (finding,) = judged(rows, hop.signs())[1]
    assert finding.module == "policy"
    assert finding.evidence["left_its_band_at_step"] == 139 * STEPS


def test_what_goes_on_as_it_went_or_is_odd_once_has_not_moved():
    """Policies grow surer all their life, and there are odd updates: neither brings a reward down."""
    rows = logged({"reward": (140, 0.4)})
    for row in rows:
        row["metrics"]["entropy"] *= 1 - 0.003 * row["update"]
        row["metrics"]["value_loss"] *= 50 if row["update"] == 120 else 1
    (finding,) = judged(rows, SIGNS)[1]
    assert finding.module == "reward"


def test_a_run_that_holds_its_reward_has_no_finding():
    found, none = judged(logged({"model_exact": (150, 0.5)}), hop.signs())
    assert not found["reward"]["fell"]
    assert none == []


def test_what_moves_while_the_best_lasts_is_found_though_the_reward_still_crept_up():
    """A world model broke and the best reward came after it: held against what it was like then, it had always been broken."""
    rows = logged({"reward": (160, 0.4), "model_exact": (130, 0.8), "kl": (158, 3.0)}, rises=60)
    for row in rows:
        row["metrics"]["reward"] *= 1 + 0.0001 * row["update"]
    found, (finding,) = judged(rows, hop.signs())
    assert found["reward"]["peak_update"] > 145
    assert (finding.module, finding.evidence["left_its_band_at_step"]) == ("world_model", 130 * STEPS)


def test_a_peak_at_the_very_beginning_is_compared_with_nothing():
    """Who joins those that can play already may have its best behind it at once."""
    rows = logged({"reward": (103, 0.4)}, rises=80)
    held, figures = falls.of_rewards(rows, 99)
    assert held is False
    drawn = falls.courses(rows, hop.signs(), figures, 99)
    (finding,) = findings.of_fall({"reward": {"fell": True, "peak_step": 0} | figures, "moved": falls.table(drawn, STEPS)})
    assert drawn == []
    assert "too early to say" in finding.what


def test_metrics_above_their_ceiling_are_compared_by_what_is_above():
    """A partner that is harder to foresee makes no opponent model worse."""
    both = dict.fromkeys(("foresight_cross_entropy", "foresight_ceiling_cross_entropy"), (120, 2.0))
    rows = logged({"reward": (140, 0.4)} | both)
    sign = Sign("opponent_model", "foresight_cross_entropy", "up", beside="foresight_ceiling_cross_entropy")
    updates, values = falls.averaged(rows, sign)
    assert len(updates) == 200
    assert abs(values[150:].mean() - 0.2) < 0.01  # 2.2 above 2.0
    (finding,) = judged(rows, [dataclasses.replace(sign, beside="")])[1]
    assert finding.module == "opponent_model"  # as it would look by itself


# --- checkpoints side by side ---

HUNT = "stag_hunt?height=3&width=3&hares=2&players=2&horizon=6"
SETTINGS = small(game=HUNT, seats="hop_plus", seeds=1, steps=1920, epochs=1, minibatches=1, tensorboard=False)
SETTINGS = dataclasses.replace(SETTINGS, hop=dataclasses.replace(SMALL_HOP, practice=0.0))


@pytest.fixture(scope="module")
def hop_run(tmp_path_factory):
    """A run of HOP with all of its parts. Not to be written to."""
    folder = tmp_path_factory.mktemp("hop") / "run"
    train(SETTINGS, folder=folder)
    return folder


@pytest.fixture
def a_copy(hop_run, tmp_path):
    return shutil.copytree(hop_run, tmp_path / "run")


def diagnosed(folder, **options):
    return diagnose.diagnose(Diagnose((str(folder),), samples=96, **options))


def write(folder, rows):
    lines = [row | {"step": row["update"] * SETTINGS.steps_per_update} for row in rows]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))


def best_of(folder):
    return checkpoint.find(folder, "final").facts["best"][1]


def test_the_best_and_the_final_checkpoint_are_compared_module_by_module(a_copy):
    if best_of(a_copy) == checkpoint.steps(a_copy)[-1]:
        pytest.fail("the best checkpoint of this run is its last one: nothing would be compared")
    found = diagnosed(a_copy, pictures=False)["policy"]["checkpoints"]["compared"]
    assert list(found) == ["best", "final"]
    assert found["best"]["step"] == best_of(a_copy) < found["final"]["step"]
    for side in found.values():
        assert side["games"] == 4
        assert 0 < side["search"]["searched"] <= 1
        assert side["search"]["gain"]["low"] <= side["search"]["gain"]["mean"] <= side["search"]["gain"]["high"]
        assert list(side["own_games"]) == list(side["other_games"]) == ["policy", "opponent_model", "world_model"]
        for games in (side["own_games"], side["other_games"]):
            assert games["opponent_model"]["cross_entropy_ceiling"] > 0
            assert games["opponent_model"]["top_1_ceiling"] <= 1
            assert 0 <= games["world_model"]["exact"] <= 1
    theirs = found["final"]["own_games"]["opponent_model"]  # what can be known of games is the same, whoever looks
    assert found["best"]["other_games"]["opponent_model"]["cross_entropy_ceiling"] == theirs["cross_entropy_ceiling"]
    written = json.loads((a_copy / "diagnostics" / "diagnosis.json").read_text())
    assert written["checkpoints"]["compared"] == found
    again, others = (diagnosed(a_copy, pictures=False, seed=seed)["policy"]["checkpoints"]["compared"] for seed in (0, 1))
    assert again == found != others


def test_a_fall_is_blamed_drawn_and_shown(a_copy, capsys):
    """In the log of a real run somebody else wrote of a fall."""
    from otherminds import cli

    moves = {"reward": (46, 0.3), "foresight_cross_entropy": (40, 4.0), "explained_variance": (48, 0.1)}
    write(a_copy, logged(moves, updates=60, rises=30, seeds=[3]))
    cli.diagnose(Diagnose((str(a_copy),), samples=96))
    said = capsys.readouterr().out
    assert "BROKEN? opponent_model: moved first" in said
    assert "foresight_cross_entropy" in said
    assert "stand for older ones" in said
    picture = np.asarray(Image.open(a_copy / "diagnostics" / "checkpoints.png").convert("RGB")).astype(int)
    assert ((picture[..., 0] > 200) & (picture[..., 1:] < 120).all(-1)).sum() > 100  # red lines


def test_who_follows_games_says_what_it_said_when_it_played_them(hop_run):
    """Values and odds are those of play, absent seats count for nothing, whatever stands in their rows."""
    final = checkpoint.find(hop_run, "final")
    policy, game = checkpoint.group_policy(final, 0, 3).without_search(), make(HUNT)
    seated, discount = Seated(policy, (0, 1)), SETTINGS.hop.discount
    rows = checkpoints._compiled(game, (seated,), 4, 24, jax.random.key(5))
    assert not rows.present.all()
    said, last_value = jax.jit(checkpoints.followed, static_argnums=0)(game, seated, rows)
    there = np.asarray(rows.present)
    np.testing.assert_allclose(np.asarray(said["value"])[there], np.asarray(rows.value)[there], rtol=1e-4, atol=1e-5)
    entropy = np.asarray(Categorical.entropy(rows.policy_logits))
    np.testing.assert_allclose(np.asarray(said["entropy"])[there], entropy[there], rtol=1e-4)
    found = checkpoints.asked(game, seated, rows, discount, 0.0)
    returns = lambda_returns(
        *(rows.reward, rows.value, last_value, None, rows.present, rows.last.present, rows.terminated, rows.truncated),
        discount=discount,
        trace=1.0,
    ).returns
    wrong = np.asarray((rows.value - returns) ** 2 * rows.present).sum((0, 1)) / there.sum((0, 1))
    np.testing.assert_allclose(found["policy"]["value_mse"], wrong, rtol=1e-3)
    unknown = eqx.filter_eval_shape(checkpoints.asked, game, seated, rows, None, 0.0)  # what its values are of
    assert list(unknown["policy"]) == ["entropy"]
    absent = ~rows.present
    nonsense = {
        "observation": jnp.where(absent[..., None, None, None], 1, rows.observation).astype(rows.observation.dtype),
        "behaviour_logits": jnp.where(absent[..., None], -1.0, rows.behaviour_logits),
        "final_observation": jnp.where(absent[..., None, None, None], 1, rows.final_observation).astype(rows.observation.dtype),
    }
    again = checkpoints.asked(game, seated, dataclasses.replace(rows, **nonsense), discount, 0.0)
    for left, right in zip(jax.tree.leaves(found), jax.tree.leaves(again), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5)


def test_rewards_are_of_whole_episodes_equally_many_in_each_game():
    game = make("matrix-ipd?horizon=5")
    policies = tuple(Seated(make_partner(name, game, 1), (seat,)) for seat, name in enumerate(("always_c", "always_d")))
    rows = checkpoints._compiled(game, policies, 3, 13, jax.random.key(0))
    assert checkpoints.episode_rewards(game, rows, (1,)).tolist() == [25.0] * 3  # five a step, two episodes of five steps
    assert checkpoints.episode_rewards(game, rows, (0, 1)).tolist() == [12.5] * 3


def damaged(folder, step):
    state = folder / "checkpoints" / str(step) / checkpoint.STATE
    state.write_bytes(state.read_bytes()[:-1] + b"!")


def removed(folder, step):
    shutil.rmtree(folder / "checkpoints" / str(step))


@pytest.mark.parametrize(
    ("harm", "said"), [(damaged, "is damaged: its checksum does not fit"), (removed, "has lost its best checkpoint, of step")]
)
def test_a_best_checkpoint_that_cannot_be_read_is_named(a_copy, harm, said):
    harm(a_copy, best_of(a_copy))
    result = diagnosed(a_copy, pictures=False)
    (finding,) = result["findings"]
    assert (finding["module"], finding["judged"]) == ("checkpoints", False)
    assert said in finding["what"]
    assert str(best_of(a_copy)) in finding["what"]
    assert said in result["policy"]["checkpoints"]["compared"]["reason"]
    assert result["policy"]["by_seat"]  # all else is as it was


def test_a_run_without_checkpoints_is_measured_by_its_log_alone(a_copy):
    shutil.rmtree(a_copy / "checkpoints")
    result = diagnosed(a_copy, pictures=False)
    assert "has no checkpoint yet" in result["findings"][0]["what"]
    assert list(result["policy"]["by_seat"]) == ["player_1", "player_2"]
    assert list(runs.rows(a_copy / "metrics.jsonl"))
