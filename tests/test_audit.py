"""The audit of a game. Each check is seen to fail when its fault is put in."""

import dataclasses
from dataclasses import dataclass

import jax.numpy as jnp
import pytest

from otherminds import BadInput, audit, make
from otherminds.games.ego import to_ego
from otherminds.games.stag_hunt import StagHunt


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(audit, "EPISODES", 2048)
    monkeypatch.setattr(audit, "LANES", 8)
    monkeypatch.setattr(audit, "names_for", lambda family: ["random"])


def failed(game) -> list[str]:
    return [check.name for check in audit.audit_game(game) if check.passed is False]


@pytest.mark.parametrize(
    "game_id", ["stag_hunt-4x4-4h1s", "snowdrift-4x4", "matrix-ipd", "matrix-matching_pennies", "stag_hunt?strengths=1,2,3,4"]
)
def test_our_games_pass(game_id):
    assert failed(make(game_id)) == []


@dataclass(frozen=True)
class FavouredSeat(StagHunt):
    """Seat 2 alone finds ten times as much in a hare."""

    def step(self, state, action, key):
        after, outcome = super().step(state, action, key)
        return after, dataclasses.replace(outcome, reward=outcome.reward.at[2].mul(10.0))


@dataclass(frozen=True)
class UnrotatedActions(StagHunt):
    """Reads the state off an observation, but one seat further round than it is."""

    def state_of(self, observation, seat):
        state = super().state_of(observation, seat)
        return dataclasses.replace(state, position=to_ego(state.position, 1))


@dataclass(frozen=True)
class GhostsAct(StagHunt):
    """The action of somebody who left still moves time."""

    def step(self, state, action, key):
        after, outcome = super().step(state, action, key)
        ghost = (~self.present(state) & (action == 3)).any()
        return dataclasses.replace(after, time=after.time + ghost), outcome


@dataclass(frozen=True)
class NoWayOut(StagHunt):
    """A player in the corner has no legal action."""

    def legal(self, state):
        return super().legal(state) & (state.position != 0)[:, None]


@pytest.mark.parametrize(
    ("game_class", "names"),
    [
        (FavouredSeat, {"seat_symmetry", "ego_alignment", "equal_rewards:random"}),
        (UnrotatedActions, {"ego_alignment"}),
        (GhostsAct, {"absent_changes_nothing"}),
        (NoWayOut, {"legal_actions"}),
    ],
)
def test_each_fault_is_found_and_no_other(game_class, names):
    assert set(failed(game_class(height=4, width=4))) == names


@dataclass(frozen=True)
class NotANumber(StagHunt):
    """A reward that is no number, which Python's `max` passes over."""

    def step(self, state, action, key):
        after, outcome = super().step(state, action, key)
        return after, dataclasses.replace(outcome, reward=outcome.reward.at[2].set(jnp.nan))


@dataclass(frozen=True)
class BrokenSimulator(StagHunt):
    """Reading the state off an observation raises: not the same as saying that it cannot be done."""

    def state_of(self, observation, seat):
        raise ValueError("too many values to unpack")


def test_what_is_not_a_number_fails_every_check_it_touches():
    assert {"seat_symmetry", "ego_alignment", "equal_rewards:random"} <= set(failed(NotANumber(height=4, width=4)))


def test_a_broken_simulator_is_not_a_missing_one():
    with pytest.raises(ValueError, match="too many values"):
        failed(BrokenSimulator(height=4, width=4))


def test_nothing_checked_is_not_a_pass():
    """A check that could not be made says so, and a game of which nothing can be checked is refused."""
    checks = {check.name: check for check in audit.audit_game(make("stag_hunt-4x4-4h1s?view=1"))}
    assert checks["ego_alignment"].passed is None
    assert checks["seat_symmetry"].passed is True
    assert not audit.verdict([checks["ego_alignment"]])["passed"]
    with pytest.raises(BadInput, match="on the host"):
        failed(make("pettingzoo:parallel_games:Small"))


def test_seats_that_differ_by_design_get_figures_and_no_verdict():
    (check,) = [check for check in audit.audit_game(make("matrix-matching_pennies")) if check.name == "equal_rewards:random"]
    assert check.passed is None
    assert len(check.evidence["per_seat"]) == 2


def test_the_verdict_is_one_object():
    checks = [audit.Check("a", True, {"x": 1}), audit.Check("b", False, {"per_seat": []})]
    result = audit.verdict(checks)
    assert result == {
        "passed": False,
        "checks": [
            {"name": "a", "passed": True, "evidence": {"x": 1}},
            {"name": "b", "passed": False, "evidence": {"per_seat": []}},
        ],
    }
    assert audit.describe(checks[0]) == "x 1"
