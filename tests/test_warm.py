"""A run starts from what fits have learned, and from nothing that does not fit."""

import dataclasses

import jax
import numpy as np
import pytest

from otherminds import dataset, fit, warm
from otherminds.checkpoint import find, group_policy
from otherminds.config import BadInput, Collect, Fit, OpponentModel, Train, WorldModel
from otherminds.train import train

from small_runs import SMALL_GOALS, SMALL_HOP

GAME = "stag_hunt?height=3&width=3&players=2&hares=2"


@pytest.fixture(scope="module")
def fits(tmp_path_factory):
    """Folders of small fits, by name."""
    place = tmp_path_factory.mktemp("fits")
    data = place / "hunt.npz"
    dataset.save(dataset.gather(Collect(data, game=GAME, seats="nearest_stag+nearest_hare", episodes=80, parallel=40)), data)
    few = {"epochs": 1, "samples": 400, "test_samples": 200}
    modules = {
        "codes": Fit("goals", data, goals=SMALL_GOALS, seeds=2, **few),
        "by_hand": Fit("goals", data, goals=dataclasses.replace(SMALL_GOALS, kind="manual"), **few),
        "numbers": Fit(
            "goals", data, goals=dataclasses.replace(SMALL_GOALS, kind="vae", encodes="state", learning_rate=9e-3), **few
        ),
        "world": Fit("world_model", data, world_model=WorldModel(channels=6), **few),
        "values": Fit("world_model", data, world_model=WorldModel(channels=6, reward_target="q"), **few),
        "partners": Fit("opponent_model", data, opponent_model=OpponentModel(channels=4, repeats=1, goal=False), **few),
        "told": Fit("opponent_model", data, opponent_model=OpponentModel(channels=4, repeats=1), **few),
    }
    for name, options in modules.items():
        fit.fit(dataclasses.replace(options, name=str(place / name)))
    return {name: str(place / name) for name in modules}


def config(seats, *start, **options):
    small = {"game": GAME, "steps": 32, "parallel": 8, "rollout": 4, "epochs": 1, "minibatches": 1, "tensorboard": False}
    return Train(seats=seats, hop=dataclasses.replace(SMALL_HOP, start=start), **(small | options))


def started(config, seed):
    """The learner as `train` makes it."""
    from otherminds.updates import Compiled, prepare

    engine = Compiled(prepare(warm.taken_over(config)), warm.modules)
    return jax.tree.map(lambda leaf: leaf[seed], engine.first().learners[0])


def same(left, right):
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_array_equal(a, b)


def test_every_seat_starts_from_the_fits_and_seeds_take_turns(fits):
    own = config("hop_plus", fits["codes"], fits["world"], seeds=3)
    codes, world = fit.load(fits["codes"]).modules, fit.load(fits["world"]).modules
    for seed in range(3):
        state = started(own, seed)
        for seat in range(2):
            part = lambda tree, seat=seat: jax.tree.map(lambda leaf: leaf[seat], tree)  # noqa: E731
            fitted = codes[seed % 2]
            same(part((state.mind.acts, state.mind.prior)), (fitted.acts, fitted.prior))
            for place in part(state.mind.codebook):
                same(place, fitted.codebook)
            same(part(state.model), world[0])


def test_goals_by_hand_leave_what_they_do_not_cover_as_it_is(fits):
    state, fitted = started(config("hop", fits["by_hand"]), 0), fit.load(fits["by_hand"]).modules[0]
    np.testing.assert_array_equal(state.mind.prior[0], [*np.asarray(fitted.prior), 0.0])
    same(jax.tree.map(lambda leaf: leaf[0], state.mind.acts.head), fitted.acts.head)
    told = state.mind.acts.behind.tell.weight[0]
    np.testing.assert_array_equal(told[:2], fitted.acts.behind.tell.weight)
    assert np.abs(told[2]).sum() > 0
    assert np.abs(state.mind.codebook[0, :, :, 3:]).sum() == 0  # partners in all places are taken to be alike


def test_an_opponent_model_without_goals_serves_where_there_are_none(fits):
    state, fitted = started(config("direct_om", fits["partners"]), 0), fit.load(fits["partners"]).modules[0]
    same(jax.tree.map(lambda leaf: leaf[1], state.mind.acts), fitted)


def test_goals_in_numbers_start_from_their_own_kind_however_fast_they_learn(fits):
    """How fast a fit learned is no part of its layers."""
    state, fitted = started(config("omg", fits["numbers"]), 0), fit.load(fits["numbers"]).modules[0]
    assert fitted.config.learning_rate != state.config.goals.learning_rate
    same(jax.tree.map(lambda leaf: leaf[0], state.mind.goals.acts), fitted.acts)


def test_a_second_fit_of_a_module_is_refused(fits):
    with pytest.raises(BadInput, match="second fit"):
        warm.taken_over(config("hop_plus", fits["world"], fits["values"]))


def test_a_run_that_starts_warm_is_trained_and_plays(fits, tmp_path):
    folder = tmp_path / "run"
    train(config("hop_plus", fits["codes"], fits["world"]), folder=folder, say=lambda line: None)
    policy = group_policy(find(folder, "final"), 0, 0)
    assert policy.config.world_model.channels == 6  # the fit's, kept in the run's own settings
    assert policy.config.goals.learning_rate == SMALL_HOP.goals.learning_rate


@pytest.mark.parametrize(
    ("seats", "fitted", "words"),
    [
        ("hop_plus", "partners", "nobody in --seats hop_plus has such a part"),
        ("hop", "codes", "--goals.kind manual"),
        ("ppo", "codes", "nobody in --seats ppo"),
        ("hop_plus", "values", "plans add rewards up"),
        ("direct_om", "told", "--opponent_model.goal False"),
        ("hop_plus", "by_hand", "other layers"),
        ("hop_plus", "nowhere", "nowhere"),
    ],
)
def test_what_does_not_fit_is_refused(fits, seats, fitted, words):
    with pytest.raises(BadInput, match=words):
        started(config(seats, fits.get(fitted, fitted)), 0)


def test_fits_of_another_game_are_refused(fits):
    with pytest.raises(BadInput, match="was fitted on"):
        warm.taken_over(config("hop_plus", fits["world"], game="stag_hunt-4x4-4h1s"))
