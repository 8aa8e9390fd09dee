"""Measures by hand: each of these numbers was worked out on paper."""

import csv
import dataclasses
import io
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from otherminds import samples
from otherminds.config import Collect
from otherminds.dataset import gather
from otherminds.diagnostics import beliefs as of_beliefs
from otherminds.diagnostics import findings
from otherminds.diagnostics import goals as of_goals
from otherminds.diagnostics import opponent_model as partners
from otherminds.diagnostics import world_model as worlds
from otherminds.games.stag_hunt import StagHunt

NAMES = ("up", "down", "left", "right", "stay", "hunt_stag")


# --- opponent model ---


def of(odds, action, exact=None, names=("a", "b", "stay"), groups=None):
    odds = np.array(odds, float)
    return partners.measure(
        np.log(odds), np.array(action), np.array(odds if exact is None else exact, float), names, groups or {}
    )


def test_scores_by_hand():
    odds = [[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.6, 0.3, 0.1], [0.25, 0.5, 0.25]]
    found = of(odds, [0, 2, 1, 0], exact=[[1, 0, 0], [0, 0, 1], [0.5, 0.5, 0], [0.5, 0.5, 0]])
    assert found["steps"] == 4
    assert found["cross_entropy"] == pytest.approx(-np.log(0.5 * 0.7 * 0.3 * 0.25) / 4, abs=1e-5)
    assert found["cross_entropy_exact"] == pytest.approx(2 * np.log(2) / 4, abs=1e-5)
    assert (found["top_1"], found["top_1_exact"]) == (0.5, 0.75)
    assert (found["top_3"], found["top_3_exact"]) == (1.0, 1.0)
    assert found["majority"] == 0.5
    assert found["confusion"] == [[1, 1, 0], [1, 0, 0], [0, 0, 1]]
    first, _, stay = found["by_action"]
    assert (first["count"], first["share"], first["precision"], first["recall"], first["f1"]) == (2, 0.5, 0.5, 0.5, 0.5)
    assert first["expected_recall"] == pytest.approx((0.5 + 0.25) / 2)
    assert first["expected_recall_exact"] == pytest.approx((1 + 0.5) / 2)
    assert first["predicted_share"] == pytest.approx((0.5 + 0.1 + 0.6 + 0.25) / 4)
    assert stay["recall"] == 1.0
    assert found["without_stay"]["steps"] == 3
    assert found["without_stay"]["top_1"] == pytest.approx(1 / 3, abs=1e-5)


def test_parts_have_scores_of_their_own():
    """A partner that is not understood at all once hid behind the mean of the others."""
    odds = [[0.9, 0.05, 0.05]] * 4
    found = of(odds, [0, 0, 1, 1], groups={"by_partner": (np.array([0, 0, 1, 1]), ("easy", "hard", "absent"))})
    assert found["top_1"] == 0.5
    assert found["by_partner"]["easy"]["top_1"] == 1.0
    assert found["by_partner"]["hard"]["top_1"] == 0.0
    assert found["by_partner"]["absent"] == {"steps": 0}


def test_an_action_nobody_played_or_guessed_has_no_recall():
    rows = of([[0.9, 0.1, 0.0001]], [0])["by_action"]
    assert (rows[1]["recall"], rows[1]["precision"], rows[1]["f1"], rows[1]["expected_recall"]) == (None, None, None, None)
    table = list(csv.DictReader(io.StringIO(partners.as_csv(rows))))
    assert [line["action"] for line in table] == ["a", "b", "stay"]
    assert table[1]["recall"] == ""


# --- world model ---


def board(*players, stags=()):
    """Two players and a plane of stags on 3x3, with a plane of time behind."""
    planes = np.zeros((4, 3, 3), np.float32)
    for k, cells in enumerate([*players, stags]):
        for cell in cells:
            planes[k][cell] = 1
    planes[3] = 0.5
    return planes


BINARY = np.broadcast_to(np.array([True, True, True, False])[:, None, None], (4, 3, 3))


def laws(before, action, after):
    return worlds.broken_laws(before[None], np.array([action]), after[None] > 0.5, BINARY, 2, NAMES)


def test_a_lawful_step_breaks_nothing():
    before, after = board([(0, 0)], [(2, 2)], stags=[(1, 1)]), board([(1, 0)], [(2, 2)], stags=[(1, 1)])
    assert not any(laws(before, (1, 4), after).values())
    gone = board([], [(2, 2)])
    assert not any(laws(board([(1, 1)], [(2, 2)], stags=[(1, 1)]), (5, 4), gone).values())


@pytest.mark.parametrize(
    ("law", "after", "action"),
    [
        ("in_two_places", board([(0, 0), (0, 1)], [(2, 2)]), (3, 4)),
        ("moved_too_far", board([(1, 1)], [(2, 2)]), (3, 4)),
        ("vanished", board([], [(2, 2)]), (3, 4)),
        ("out_of_nothing", board([(0, 0)], [(2, 2)], stags=[(0, 2)]), (4, 4)),
    ],
)
def test_each_law_can_be_broken(law, after, action):
    found = laws(board([(0, 0)], [(2, 2)]), action, after)
    assert {name for name, count in found.items() if count} == {law}


def test_who_left_does_not_come_back():
    found = laws(board([], [(2, 2)]), (-1, 4), board([(0, 0)], [(2, 2)]))
    assert {name for name, count in found.items() if count} == {"appeared"}


def test_steps_by_hand():
    true = np.stack([board([(0, 0)], [(2, 2)]), board([(0, 1)], [(2, 2)])])
    said = true.copy()
    said[0, 0, 0, 0] = 0.6  # still on the right side
    said[1, 0, 0, 1] = 0.4  # no longer
    found = worlds.measure(
        before=true,
        action=np.array([[4, 4], [4, 4]]),
        said={"observation": said, "reward": np.array([0.1, 2.6]), "end": np.array([False, True])},
        true={"observation": true, "reward": np.array([0.0, 5.0]), "end": np.array([False, True])},
        binary=BINARY,
        seats=2,
        names=NAMES,
        on_board=True,
    )
    squared = 0.4**2 + 0.6**2
    assert found["exact_board"] == 0.5
    assert found["mse_by_plane"] == pytest.approx([squared / 18, 0, 0, 0], abs=1e-6)
    assert found["psnr"] == pytest.approx(10 * np.log10(54 / squared), abs=1e-3)  # the plane of time does not count
    assert found["reward_mse"] == pytest.approx((0.1**2 + 2.4**2) / 2, abs=1e-5)
    assert found["reward_recall"] == 1.0
    assert (found["end_accuracy"], found["end_recall"]) == (1.0, 1.0)
    assert found["broken_laws"]["vanished"] == 1


# --- goals and beliefs ---


def test_information_by_hand():
    found = of_goals.information(np.array([0, 0, 1, 1]), np.array([0, 0, 1, 1]), 10**9)
    assert found["nats"] == pytest.approx(np.log(2))
    assert found["of_entropy"] == pytest.approx(1)
    assert of_goals.information(np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1]), 4)["nats"] == pytest.approx(0)
    assert of_goals.information(np.array([0, 1]), np.array([0, 0]), 2) == {"nats": 0.0}  # nothing to tell


def test_chance_tells_nothing():
    """60 games of 8 steps showed 0.4 nats between codes and goals that have nothing to do with each other."""
    random = np.random.default_rng(0)
    code, goal = (np.repeat(random.integers(0, most, 60), 8) for most in (8, 10))
    assert of_goals.information(code, goal, 60)["nats"] < 0.15
    assert of_goals.information(code, goal, 10**9)["nats"] > 0.3


def test_codes_are_borrowed_from_those_who_have_one():
    there = np.array([[True, True], [True, False], [True, True]])
    code = np.arange(6).reshape(3, 2)
    found = of_goals.borrowed(code, there, np.random.default_rng(0))
    assert sorted(found[:, 0]) == [0, 2, 4]
    assert (found[:, 0] != code[:, 0]).all()
    assert found[:, 1].tolist() == [5, 3, 1]


def test_no_look_at_the_board_beats_all_that_was_done_before(hunts):
    """The mixture by time is no bound: boards tell who is who. What was done before is."""
    seen, action = hunts.rows.present, np.maximum(hunts.rows.action, 0).astype(int)

    def missed(odds):
        return -np.log(np.maximum(np.take_along_axis(odds, action[..., None], -1)[..., 0], 1e-9))[seen].mean()

    for told in ((True, False), (False, True), (False, False)):
        (best,) = of_beliefs.ceilings(hunts, hunts, hunts.partners, told)
        assert missed(hunts.rows.probabilities) <= missed(best.bound) < missed(best.mixture)


def test_what_nobody_knows_has_no_ceiling(hunts):
    unknown = dataclasses.replace(hunts, partners=tuple("unknown" for _ in hunts.partners))
    bound = of_beliefs.ceilings(unknown, unknown, unknown.partners, (True, False))[0].bound
    assert not bound.any()
    steps = np.arange(len(hunts))[:, None]
    assert of_beliefs.history(unknown, unknown, steps, np.zeros_like(steps), hunts.rows.present[:, :1]) is None


def test_an_episode_that_shows_nothing_teaches_nothing(hunts):
    found = of_beliefs.believed(told(hunts), np.full((8, 2), 0.5), None, np.zeros(8, bool), lasting=True)
    np.testing.assert_allclose(found, 0.5)


def test_a_probe_finds_what_a_code_tells_and_nothing_else():
    random = np.random.default_rng(0)
    goal = random.integers(2, size=2000)
    train = np.arange(2000) % 2 == 0
    telling = np.stack([goal * 4.0 + random.standard_normal(2000), random.standard_normal(2000)], 1)
    assert of_goals.probed(telling, goal, train)["of_entropy"] > 0.8
    assert abs(of_goals.probed(telling[:, 1:], goal, train)["of_entropy"]) < 0.05


def test_usefulness_is_set_beside_what_exact_beliefs_bring():
    """Both from where whoever does better without history stands: a model that is poor without codes is not flattered."""
    for model, exact in ((1.2, 1.5), (1.5, 1.2)):
        found = of_goals.usefulness({"without": model, "inferred": 1.1, "shuffled": 1.3}, {"without": exact, "episode": 1.0})
        assert found["inferred"] == pytest.approx(0.1)
        assert found["of_exact"] == {"inferred": pytest.approx(0.5), "shuffled": pytest.approx(-0.5)}


def test_belief_in_the_true_goal_is_no_more_than_chance_where_nothing_is_known():
    """Those who are after 0 stay for ten steps, the others for two: a voice for every step would make late beliefs seem right."""
    random = np.random.default_rng(0)
    goal = np.repeat(random.integers(2, size=(400, 1)), 10, 1)
    counts = (goal == 0) | (np.arange(10) < 2)
    episode, nothing = np.arange(400), np.full((400, 10, 3), 1 / 3)
    right = of_goals.belief_in_truth(nothing, goal, counts, episode, False)
    assert np.nanmean(right[:, 9]) == pytest.approx(0.5, abs=0.06)
    assert np.isnan(right[::2]).all()  # what codes mean was read off these
    telling = np.eye(3)[np.where(goal == 0, 2, 1)]
    assert np.nanmean(of_goals.belief_in_truth(telling, goal, counts, episode, False)) > 0.98
    by_hand = of_goals.belief_in_truth(np.eye(2)[1 - goal], goal, counts, episode, True)
    assert np.nanmean(by_hand) == 0  # by hand, codes mean what they say


def test_of_strangers_it_cannot_be_told_who_they_are(hunts):
    """Exact guesses about a partner whom a model has no name for may not rest on its name."""
    known = tuple(name for name in hunts.partners if name != "stubborn=0.7")
    (best,), (told,) = (of_beliefs.ceilings(hunts, hunts, names, (True, True)) for names in (known, hunts.partners))
    stranger = np.array([name not in known for name in hunts.partners])[hunts.rows.who]
    np.testing.assert_array_equal(best.bound[~stranger], told.bound[~stranger])
    there = stranger & hunts.rows.present
    assert (np.abs(best.bound - hunts.rows.probabilities).max(-1)[there] > 0.1).mean() > 0.1
    np.testing.assert_allclose(best.bound[there].sum(-1), 1, rtol=1e-4)


@pytest.fixture(scope="module")
def hunts():
    pool = "nearest_stag+nearest_hare+stubborn=0.7"
    return gather(
        Collect(
            Path("x.npz"), game="stag_hunt-4x4-4h1s", seats=f"{pool},random,random,random", episodes=240, parallel=30, meeting=4
        )
    )


def test_exact_beliefs_by_hand(hunts):
    """One episode, step by step."""
    minds = of_beliefs.minds_of(hunts, 0)
    np.testing.assert_allclose(minds.share, [1 / 12, 1 / 12, 1 / 24, 1 / 24, 3 / 4])  # in any seat: who looks does not know which
    found = of_beliefs.posterior(hunts, 0, minds, lasting=False)
    rows = hunts.table()[7]
    belief = minds.share
    for row in rows[rows >= 0]:
        np.testing.assert_allclose(found[row], belief, atol=1e-6)
        if hunts.rows.present[row, 0]:
            belief = belief * minds.odds[row, :, hunts.rows.action[row, 0]]
            belief = belief / belief.sum()


def test_history_is_worth_more_the_longer_it_is(hunts):
    rows = np.arange(len(hunts))[:, None]
    worth = of_beliefs.history(hunts, hunts, rows, np.zeros_like(rows), hunts.rows.present[:, :1]).cross_entropy
    assert worth["without"] > worth["episode"] > worth["meeting"] > worth["exact"]


def test_who_knows_more_knows_better(hunts):
    """Ceilings: of whoever knows all, the goal, who it is, or the time alone."""
    seen, action = hunts.rows.present, np.maximum(hunts.rows.action, 0).astype(int)
    missed = {}
    told = ((True, True), (True, False), (False, True), (False, False))
    for known, best in zip(told, of_beliefs.ceilings(hunts, hunts, hunts.partners, *told), strict=True):
        odds = best.mixture
        np.testing.assert_allclose(odds[seen].sum(-1), 1, rtol=1e-4)
        missed[known] = -np.log(np.maximum(np.take_along_axis(odds, action[..., None], -1)[..., 0], 1e-9))[seen].mean()
    assert missed[True, True] < missed[True, False] < missed[False, False]
    assert missed[True, True] < missed[False, True] < missed[False, False]


def test_beliefs_over_goals_add_up(hunts):
    minds = of_beliefs.minds_of(hunts, 0)
    found = of_beliefs.over_goals(minds, of_beliefs.posterior(hunts, 0, minds, True), 2)
    np.testing.assert_allclose(found.sum(1), 1)
    there = hunts.rows.present[:, 0] & (hunts.rows.goal[:, 0] >= 0)
    step, episode = of_beliefs.clocks(hunts)
    right = found[np.arange(len(hunts)), hunts.rows.goal[:, 0]]
    assert right[there & (episode == 0) & (step == 0)].mean() == pytest.approx(1 / 8)  # the other three are after nothing
    assert right[there & (episode == 3) & (step > 0)].mean() > 0.9


# --- beliefs that a model carries ---


def told(hunts, **columns):
    """A tiny dataset: two meetings of two episodes of two steps, with other columns."""
    eight = hunts.part(np.arange(8))
    first = np.array([True, False] * 4)
    rows = dataclasses.replace(eight.rows, first=first, meeting=np.array([True, *[False] * 3] * 2), **columns)
    return dataclasses.replace(eight, rows=rows)


def test_beliefs_are_carried_as_a_player_carries_them(hunts):
    """Episode 1: even, then 0.8 : 0.2 = 0.8. Its end taught goal 0: (0.995 + 1) / (0.995 * 2 + 1) when the next one opens."""
    likely = np.array([[0.8, 0.2], [0.5, 0.5]] * 4)
    reached = np.array([-1, 0, -1, -1, -1, 1, -1, -1])
    seen = np.ones(8, bool)
    small = told(hunts)
    inside = of_beliefs.believed(small, likely, reached, seen, lasting=False)
    np.testing.assert_allclose(inside[:, 0], [0.5, 0.8] * 4, rtol=1e-5)
    across = of_beliefs.believed(small, likely, reached, seen, lasting=True)
    prior = 1.995 / 2.99
    np.testing.assert_allclose(across[:3, 0], [0.5, 0.8, prior], rtol=1e-5)
    np.testing.assert_allclose(across[4:7, 0], [0.5, 0.8, 1 - prior], rtol=1e-5)  # a new meeting knows nothing of the old one
    unseen = of_beliefs.believed(small, likely, reached, ~seen, lasting=False)
    np.testing.assert_allclose(unseen, 0.5)


def test_without_goals_that_are_reached_the_likeliest_is_what_an_episode_taught(hunts):
    found = of_beliefs.believed(told(hunts), np.array([[0.1, 0.9]] * 8), None, np.ones(8, bool), lasting=True)
    np.testing.assert_allclose(found[2, 1], 1.995 / 2.99, rtol=1e-5)


def test_inference_rests_where_nothing_moves():
    likely, seen = jnp.array([[[0.9, 0.1]] * 6]), jnp.ones((1, 6), bool)
    prior = jnp.array([0.5, 0.5])
    belief, active = of_goals.while_moving(likely, seen, prior, 0.0)
    assert active.all()
    np.testing.assert_allclose(belief[0, 2, 0], 0.81 / 0.82, rtol=1e-5)
    belief, active = of_goals.while_moving(likely, seen, prior, 10.0)
    assert active[0].tolist() == [True, False, False, True, False, False]
    np.testing.assert_allclose(belief[0, 3, 0], 0.9, rtol=1e-5)


# --- a world model that is the game itself ---


class Simulator(eqx.Module):
    """Says what the rules say."""

    game: StagHunt = eqx.field(static=True)
    latent: bool = eqx.field(static=True, default=False)

    def __call__(self, observation, action, ego):
        bytes_ = jnp.round(observation / self.game.observation_scale[None]).astype(jnp.uint8)

        def one(observation, action):
            state, _ = self.game.step(self.game.state_of(observation, 0), action, jax.random.key(0))
            return self.game.observe(state)[0]

        return Said(self.game.scaled(jax.vmap(one)(bytes_, action)))


class Said(eqx.Module):
    expected: jnp.ndarray

    def observation(self, game):
        return self.expected


def test_the_game_itself_foresees_ten_steps_exactly(hunts):
    """So windows, actions, ego frame and scale fit together, and the error floor is 0."""
    windows = samples.windows(hunts, 400, 10, np.random.default_rng(0))
    table = worlds.open_loop(Simulator(hunts.game), hunts.game, windows)
    assert [row["steps"] for row in table] == [1, 3, 5, 10]
    for row in table:
        assert row["exact_board"] == row["exact_board_continuous"] == 1.0
        assert row["mse"] < 1e-10


def test_what_a_goal_is_worth_by_hand():
    said = {"told": np.log([[0.8, 0.2]]), "untold": np.log([[0.5, 0.5]]), "shuffled": np.log([[0.25, 0.75]])}
    found = partners.worth_of_goal(said, np.array([0]), np.array([[1.0, 0.0]]), np.array([[0.5, 0.5]]))
    assert found["usefulness"] == pytest.approx(np.log(1.6), rel=1e-4)
    assert found["usefulness_exact"] == pytest.approx(np.log(2), rel=1e-4)
    assert found["shuffled"] == pytest.approx(np.log(4), rel=1e-4)
    unknown = partners.worth_of_goal(said, np.array([0]), np.zeros((1, 2)), np.zeros((1, 2)))
    assert unknown["usefulness_exact"] is None


# --- what is blamed ---

WORLD = {
    "steps": 1000,
    "psnr": 50.0,
    "exact_board": 1.0,
    "reward_recall": 1.0,
    "reward_mse": 0.0,
    "end_recall": 1.0,
    "end_accuracy": 1.0,
}
CODES = {
    "steps": 1000,
    "codes_used": 4,
    "cross_entropy": {"without": 1.1, "hindsight": 0.9, "shuffled": 1.4, "inferred": 0.95, "by_bayes": 0.95},
    "hindsight": {"nats": 0.5, "of_entropy": 0.7},
    "usefulness": {"exact": 0.2},
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, None),
        ({"turned": {"mse": 0.1, "mse_unturned": 0.01}}, "not turned"),
        ({"turned": {"mse": 0.1, "mse_unturned": 0.099}}, None),  # of a model that knows nothing yet
        ({"broken_laws": {"vanished": 5}}, "rules forbid"),
        ({"psnr": 20.0}, "blurred"),
        ({"reward_recall": 0.5}, "misses rewards"),
        ({"end_recall": 0.5}, "misses ends"),
    ],
)
def test_what_a_world_model_is_blamed_for(change, words):
    found = findings.of_world_model(WORLD | change)
    assert [finding.module for finding in found] == (["world_model"] if words else [])
    assert not words or words in found[0].what


@pytest.mark.parametrize(
    ("change", "module", "words"),
    [
        ({}, None, ""),
        ({"codes_used": 1}, "goals", "one code"),
        ({"codes_used": 1, "usefulness": {"exact": -0.001}}, None, ""),  # random players are after nothing
        ({"hindsight": {"nats": 0.01, "of_entropy": 0.01}}, "goals", "true goals"),
        ({"cross_entropy": CODES["cross_entropy"] | {"shuffled": 0.9}}, "goals", "serve as well"),
        ({"cross_entropy": CODES["cross_entropy"] | {"by_bayes": 1.1}}, "beliefs", "by Bayes' rule"),
        ({"cross_entropy": CODES["cross_entropy"] | {"inferred": 1.1}}, "beliefs", "by the network"),  # Bayes hides nothing
        (  # a poor opponent model is not blamed on the inference that rests on it
            {
                "cross_entropy": CODES["cross_entropy"] | {"by_bayes": 1.1, "told": 0.9},
                "cross_entropy_exact": {"without": 1.2, "exact": 0.3},
            },
            "opponent_model",
            "beliefs rest on it",
        ),
        ({"steps": 10}, "goals", "too few"),
    ],
)
def test_what_goals_are_blamed_for(change, module, words):
    found = findings.of_goals(CODES | change)
    assert [finding.module for finding in found] == ([module] if module else [])
    assert not module or words in found[0].what
