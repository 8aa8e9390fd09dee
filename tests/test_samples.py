"""What modules learn from is what was played: the right row, the right seat, the right order."""

import dataclasses
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from otherminds import dataset, samples
from otherminds.config import Collect, OpponentModel

GAME = "stag_hunt?height=3&width=3&players=2&hares=2"


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "hunt.npz"
    return dataset.gather(
        Collect(path, game=GAME, seats="nearest_stag+nearest_hare+random", episodes=300, parallel=36, meeting=2)
    )


def of_partners(data, count, **options):
    known = (data.rows.probabilities,) * 3
    return samples.partner_steps(data, count, np.random.default_rng(0), known, data.partners, **options)


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
    assert (np.asarray(steps.seat) == 1 - np.asarray(steps.ego)).all()


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


def test_goals_label_all_that_led_to_them(played):
    """The largest number was taken once: where several are reached, that is any of them."""
    rows = played.rows
    two = rows.goal_reached.copy()
    episode = played.table()[0]
    episode = episode[episode >= 0]
    two[episode] = -1
    two[episode[-1], 0], two[episode[0], 0] = 0, 1  # first goal 1, then goal 0
    changed = dataclasses.replace(played, rows=dataclasses.replace(rows, goal_reached=two))
    found = samples.reached_next(changed)[episode, 0]
    assert found.tolist() == [1] + [0] * (len(episode) - 1)
    reached = samples.reached_next(played)
    for episode in played.table()[:50]:
        at = episode[episode >= 0]
        for k in range(len(at)):
            later = [rows.goal_reached[at[k:], seat] for seat in range(2)]
            assert reached[at[k]].tolist() == [next((g for g in goals if g >= 0), -1) for goals in later]
    rewarded = of_partners(played, 10_000, labels="reached", trajectories="rewarded")
    assert (np.asarray(rewarded.goal) < 2).all()


def test_goals_that_nobody_knows_are_told_as_nothing(played):
    """They were told as "after nothing" once, which in learning by what was reached means: it will reach nothing."""
    config, unknown = OpponentModel(), np.full_like(played.rows.goal, -1)
    game, of_whom = played.game, np.array(played.partners)[played.rows.who]
    told = samples.told_goals(played, "true")
    assert (told[of_whom == "random"] == 2).all()  # a script that is after nothing says so
    assert (told[(of_whom == "nearest_stag") & played.rows.present] == 0).all()
    learned = dataclasses.replace(played, partners=("nearest_stag", "run:somebody", "random"))
    goal = np.where(of_whom == "nearest_hare", -1, played.rows.goal)
    mixed = dataclasses.replace(learned, rows=dataclasses.replace(played.rows, goal=goal))
    told = samples.told_goals(mixed, "true")
    assert (told[of_whom == "nearest_hare"] == -1).all()
    assert (told[of_whom == "random"] == 2).all()
    foreign = dataclasses.replace(
        played, rows=dataclasses.replace(played.rows, goal=unknown), source={"converted": "elsewhere.npz"}
    )
    assert samples.goals_are_known(mixed)
    assert not samples.goals_are_known(foreign)
    steps = of_partners(foreign, 200)
    assert not np.asarray(steps.told(config, game, 3)).any()
    reached = of_partners(foreign, 200, labels="reached")
    assert (np.asarray(reached.told(config, game, 3)).sum(1) == 1).all()
    nobody = dataclasses.replace(foreign, rows=dataclasses.replace(foreign.rows, goal_reached=unknown))
    assert not np.asarray(of_partners(nobody, 200, labels="reached").told(config, game, 3)).any()


def test_a_view_turned_to_a_partner_is_what_it_sees_itself(played):
    """Where everything is shown. Where it is not, a partner knows more than we can see of it."""
    for view in ("public", "theirs"):
        steps = of_partners(played, 200, views=view)
        seen = {tile.tobytes() for tile in played.rows.observation.reshape(-1, *played.game.observation_shape)}
        assert all(tile.tobytes() in seen for tile in np.asarray(steps.view))
    near = dataset.gather(
        Collect(
            Path("none.npz"), game="stag_hunt?height=5&width=5&players=2&hares=2&view=1", seats="random", episodes=20, parallel=4
        )
    )
    public, theirs = (np.asarray(of_partners(near, 400, views=view).view) for view in ("public", "theirs"))
    assert (public != theirs).any()


def test_windows_are_steps_in_a_row_of_one_episode(played):
    rows = played.rows
    found = samples.windows(played, 10**6, 4, np.random.default_rng(0))
    there = np.asarray(found.there)
    assert there[:, 0].all()
    assert not (there[:, 1:] & ~there[:, :-1]).any()  # who has left does not come back
    at = {}
    for row, seat in zip(*np.nonzero(rows.present), strict=True):
        at.setdefault(rows.observation[row, seat].tobytes(), []).append((row, seat))
    for k in range(0, len(there), 37):
        places = at[np.asarray(found.observation)[k].tobytes()]
        assert any(
            all(
                np.array_equal(np.asarray(found.following)[k, step], rows.next_observation[row + step, seat])
                and np.array_equal(np.asarray(found.action)[k, step], np.roll(rows.action[row + step], -seat))
                for step in range(int(there[k].sum()))
            )
            for row, seat in places
        )


def test_what_was_played_follows_the_rules(played, monkeypatch):
    """Actions that are not turned do not, and players off the board do not act."""
    steps, _, _ = samples.own_steps(played, 2000, np.random.default_rng(0), played.rows.reward)
    assert samples.by_the_rules(played.game, steps) == {"by_the_rules": 1.0}
    views = of_partners(played, 500).view
    assert samples.off_the_board(played.game, views) == {"off_the_board": 0.0}
    assert samples.off_the_board(played.game, views.at[:100, 0].set(0)) == {"off_the_board": pytest.approx(0.2)}
    monkeypatch.setattr(samples, "joint_actions", lambda data, row, seat: jnp.asarray(data.rows.action[row], jnp.int32))
    wrong, _, _ = samples.own_steps(played, 2000, np.random.default_rng(0), played.rows.reward)
    assert samples.by_the_rules(played.game, wrong)["by_the_rules"] < 0.9


def test_returns_by_hand(played):
    short = played.part(np.arange(len(played)) < int(np.flatnonzero(played.rows.end)[0]) + 1)
    later = 0.0
    for row in range(len(short) - 1, -1, -1):
        later = short.rows.reward[row] + 0.5 * later
        np.testing.assert_allclose(samples.returns_to_go(short, 0.5)[row], later, rtol=1e-5)


def test_episodes_carry_the_label_of_the_whole(played):
    rows, where = samples.sequences(played, 10**6, 12, np.random.default_rng(0), 0.95)
    reached = samples.reached_next(played)
    np.testing.assert_array_equal(np.asarray(rows.label), reached[where["row"][:, 0], where["seat"][:, 0]])
    true, where = samples.sequences(played, 10**6, 12, np.random.default_rng(0), 0.95, labels="true")
    np.testing.assert_array_equal(np.asarray(true.label), played.rows.goal[where["row"][:, 0], where["seat"][:, 0]])
    assert (np.asarray(rows.action)[where["seen"]] >= 0).all()
    assert (np.asarray(rows.action)[~where["seen"]] == -1).all()


# --- where observations do not say who is who ---


@pytest.fixture(scope="module")
def spread():
    return dataset.gather(Collect(Path("none.npz"), game="jaxmarl:MPE_simple_spread_v3", seats="random", episodes=8, parallel=4))


def test_steps_know_whose_they_are(spread):
    """The others stand in order of seats: without the seat of whoever looks, nobody can tell who plays what."""
    steps, row, seat = samples.own_steps(spread, 300, np.random.default_rng(0), spread.rows.reward)
    np.testing.assert_array_equal(steps.ego, seat)
    own = np.asarray(steps.action)[:, 0]
    np.testing.assert_array_equal(own, spread.rows.action[row, np.asarray(steps.ego)])
    ahead = samples.windows(spread, 300, 4, np.random.default_rng(0))
    found = {(x.tobytes(), k) for k in range(3) for x in spread.rows.observation[:, k]}
    assert all((x.tobytes(), k) in found for x, k in zip(np.asarray(ahead.observation), ahead.ego.tolist(), strict=True))


@pytest.mark.parametrize("views", ["public", "theirs"])
def test_of_a_partner_it_is_told_who_it_is_and_through_whose_eyes(spread, views):
    """Its place in ego order was told once, and not whose that is."""
    steps = of_partners(spread, 300, views=views)
    told = np.asarray(steps.told(OpponentModel(goal=False), spread.game, 1))
    assert told.shape == (300, 6)
    who, eyes = told[:, :3].argmax(1), told[:, 3:].argmax(1)
    assert ((who != eyes) == (views == "public")).all()
    played = {
        (seen[ego].tobytes(), ego, partner, int(action[partner]))
        for seen, action in zip(spread.rows.observation, spread.rows.action, strict=True)
        for ego in range(3)
        for partner in range(3)
    }
    for view, ego, partner, action in zip(np.asarray(steps.view), eyes, who, np.asarray(steps.action), strict=True):
        assert (view.tobytes(), int(ego), int(partner), int(action)) in played


def test_episodes_of_two_partners_that_look_alike_are_told_apart(spread):
    """Seen by one player, they show the same: only who is meant tells which actions belong to which."""
    rows, where = samples.sequences(spread, 10**6, 12, np.random.default_rng(0), 0.95, player=1)
    np.testing.assert_array_equal(rows.seat, where["seat"][:, 0])
    assert (np.asarray(rows.ego) == 0).all()
    first = where["row"][:, 0]
    one, two = np.flatnonzero(first == first[0])
    np.testing.assert_array_equal(rows.view[one], rows.view[two])
    assert (np.asarray(rows.action)[one] != np.asarray(rows.action)[two]).any()
    who, eyes = (np.asarray(part) for part in rows.seats(spread.game))
    assert (who[one] != who[two]).any(-1).all()
    np.testing.assert_array_equal(eyes[one], eyes[two])
