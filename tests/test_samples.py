"""What modules learn from is what was played: the right row, the right seat, the right order."""

import numpy as np
import pytest

from otherminds import dataset, samples
from otherminds.config import Collect

GAME = "stag_hunt?height=3&width=3&players=2&hares=2"


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "hunt.npz"
    return dataset.gather(
        Collect(path, game=GAME, seats="nearest_stag+nearest_hare+random", episodes=300, parallel=36, meeting=2)
    )


def of_partners(data, count, **options):
    known = data.rows.probabilities
    return samples.partner_steps(data, count, np.random.default_rng(0), known, known, data.partners, **options)


def test_steps_of_partners_are_theirs(played):
    """Row and seat once came from two different shuffles: every view belonged to somebody else."""
    steps = of_partners(played, 300)
    whole = {
        (tile.tobytes(), int(action), int(goal), int(who))
        for tile, action, goal, who in zip(
            played.rows.observation.reshape(-1, *played.game.observation_shape),
            played.rows.action.reshape(-1),
            np.where(played.rows.goal < 0, 2, played.rows.goal).reshape(-1),
            played.rows.who.reshape(-1),
            strict=True,
        )
    }
    for tile, action, goal, who in zip(
        np.asarray(steps.view), np.asarray(steps.action), np.asarray(steps.goal), np.asarray(steps.who), strict=True
    ):
        assert (tile.tobytes(), int(action), int(goal), int(who)) in whole
    assert (np.asarray(steps.action) >= 0).all()
    assert (np.asarray(steps.ceiling)[np.arange(300), np.asarray(steps.action)] > 0).all()
    assert (np.asarray(steps.place) == 1).all()


def test_only_what_a_player_sees(played):
    steps = of_partners(played, 300, player=2)
    assert (np.asarray(steps.ego) == 1).all()
    own, _, _ = samples.own_steps(played, 10_000, np.random.default_rng(0), played.rows.reward, 1)
    assert len(own.end) == played.rows.present[:, 0].sum()


def test_actions_stand_in_the_order_of_the_one_who_acts(played):
    """Own action first: where it was not, a world model learned players that jump."""
    row, seat = np.nonzero(played.rows.present)
    own, _, _ = samples.own_steps(played, 10**6, np.random.default_rng(0), played.rows.reward)
    found = sorted(map(tuple, np.asarray(own.action).tolist()))
    assert found == sorted(
        (int(played.rows.action[r, s]), int(played.rows.action[r, 1 - s])) for r, s in zip(row, seat, strict=True)
    )
    turned = np.asarray(own.observation)[np.asarray(own.action)[:, 0] == 5]  # who hunts a stag stands on it, on the first plane
    assert ((turned[:, 0] > 0) & (turned[:, 3] > 0)).any((1, 2)).all()


def test_goals_that_were_reached_label_the_whole_episode(played):
    reached = samples.reached_in_episode(played)
    table = played.table()
    for episode in table[:50]:
        rows = episode[episode >= 0]
        assert (reached[rows] == played.rows.goal_reached[rows].max(0)).all()
    rewarded = of_partners(played, 10_000, labels="reached", trajectories="rewarded")
    assert (np.asarray(rewarded.goal) < 2).all()
