"""What `--seats` means."""

from functools import lru_cache

import jax
import numpy as np
import pytest

from otherminds import BadInput, checkpoint, make, seats
from otherminds.rollout import collect, draw_bank, start


def test_one_entry_fills_all_seats():
    (seated,) = seats.resolve(make("stag_hunt-4x4-4h1s"), "nearest_stag")
    assert seated.seats == (0, 1, 2, 3)


def test_equal_entries_share_one_policy():
    """Four seats in four programs would compile and run four times as long."""
    hunters, hare, other = seats.resolve(make("stag_hunt-4x4-4h1s"), "nearest_stag, nearest_hare,nearest_stag,stubborn=0.5")
    assert (hunters.seats, hare.seats, other.seats) == ((0, 2), (1,), (3,))


@pytest.mark.parametrize("entry", ["random", "nearest_stag", "stubborn=0.5", "switcher"])
def test_equal_seats_are_equal_objects(entry):
    """Otherwise each time somebody names them, everything is compiled again."""
    game = make("stag_hunt-4x4-4h1s")
    one, two = seats.resolve(game, entry), seats.resolve(make("stag_hunt-4x4-4h1s"), entry)
    assert jax.tree.structure(one) == jax.tree.structure(two)


@pytest.mark.parametrize(
    ("entries", "hint"),
    [
        ("random,random", "has 4 seats, got 2 entries"),
        ("", "nothing between two commas"),
        ("nearest_drift", "did you mean"),
        ("ppp", "choose from|did you mean"),
    ],
)
def test_wrong_seats_are_refused(entries, hint):
    with pytest.raises(BadInput, match=hint):
        seats.resolve(make("stag_hunt-4x4-4h1s"), entries)


def test_seats_of_learners_are_left_to_them():
    (seated,) = seats.resolve(make("matrix-ipd"), "ppo,always_c", learned=[0])
    assert seated.seats == (1,)
    with pytest.raises(BadInput, match="ppo is a learner, and nothing learns here: train it, then write run:NAME"):
        seats.resolve(make("matrix-ipd"), "ppo,always_c")
    with pytest.raises(BadInput, match="ppo is a learner, and nothing learns here"):
        seats.resolve(make("matrix-ipd"), "always_d+ppo,always_c")


@lru_cache
def program(entries, games):
    """(key, rotation) -> actions [T, E, A] of the iterated prisoner's dilemma."""
    game = make("matrix-ipd?horizon=50")
    policies = seats.resolve(game, entries)

    @jax.jit
    def play(key, rotation):
        turned = seats.rotated(policies, rotation)
        return collect(game, turned, start(game, turned, games, key, draw_bank(game, key)), 6)[1].action

    return play


def actions(entries, games, rotation=0):
    return np.asarray(program(entries, games)(jax.random.key(0), rotation))


def test_every_member_of_a_pool_meets_every_member_of_another():
    """Members in step with each other would always have met the same ones: half of the pairs, or fewer, were ever played."""
    played = actions("always_c+always_d,always_c+always_d", 8)
    np.testing.assert_array_equal(played, np.broadcast_to(played[:1], played.shape))
    assert played[0].tolist() == [[0, 0], [1, 0], [0, 1], [1, 1]] * 2


def test_a_pool_rotates_so_that_every_game_meets_everybody():
    met = [actions("always_c+always_d,always_c+always_d", 8, rotation)[0].tolist() for rotation in range(5)]
    assert met[0] == met[4]
    for lane in range(8):
        assert {tuple(pairs[lane]) for pairs in met[:4]} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    for pairs in met:
        assert sorted(pairs) == sorted(met[0])


@pytest.mark.parametrize("rotation", [0, 1])
def test_members_of_a_pool_play_as_they_would_alone(rotation):
    """With a memory of their own: a member's memory once went to the lane beside it."""
    pooled = actions("grim+always_d,win_stay_lose_shift", 4, rotation)
    alone = {member: actions(f"{member},win_stay_lose_shift", 2)[:, 0] for member in ("grim", "always_d")}
    assert (alone["grim"] != alone["always_d"]).any()
    for lane in range(4):
        np.testing.assert_array_equal(pooled[:, lane], alone[("grim", "always_d")[(lane + rotation) % 2]])


def test_lanes_that_pools_need():
    game = make("stag_hunt-4x4-4h1s")
    policies = seats.resolve(game, "random,nearest_stag+nearest_hare,random+nearest_stag+nearest_hare,random")
    assert seats.lanes_needed(policies) == 6
    assert seats.lanes_needed(seats.resolve(game, "random")) == 1


def same(one, two):
    return checkpoint.digest(checkpoint.named(one)) == checkpoint.digest(checkpoint.named(two))


def test_frozen_policies_sit_where_they_are_put(trained):
    """Without a number, a seat gets the policy of that seat; with one, that player's; seeds are the run's own."""
    game = make("matrix-ipd?horizon=5")
    one, two = seats.resolve(game, f"run:{trained}")
    assert (one.seats, two.seats) == ((0,), (1,))
    assert same(one.policy, checkpoint.load_policy(trained, 0, seed=3))
    assert same(two.policy, checkpoint.load_policy(trained, 1, seed=3))
    assert not same(one.policy, two.policy)
    one, two = seats.resolve(game, f"run:{trained}#2@{checkpoint.steps(trained)[0]}:5,run:{trained}#2@final:5")
    assert same(two.policy, checkpoint.load_policy(trained, 1, seed=5))
    assert same(one.policy, checkpoint.load_policy(trained, 1, str(checkpoint.steps(trained)[0]), 5))
    assert not same(one.policy, two.policy)
    (pool,) = seats.resolve(game, f"run:{trained}#1+always_d,always_c", learned=[1])
    assert same(pool.policy.members[0], checkpoint.load_policy(trained, 0))


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("run:{}#3", "player_3 of .* learned nothing; those who did: 1, 2"),
        ("run:{}@7", "has no checkpoint at step 7: choose from"),
        ("run:{}:9", "has seeds 3 to 5, not 9"),
        ("run:{}x", "no run '.*x' .*did you mean run"),
        ("run:{}#0", "players are counted from 1"),
    ],
)
def test_frozen_policies_that_are_not_there_are_refused(trained, entry, words):
    with pytest.raises(BadInput, match=words):
        seats.resolve(make("matrix-ipd?horizon=5"), entry.format(trained))


def test_frozen_policies_are_pinned_to_the_checkpoint_they_mean(trained):
    run, best = f"run:{trained}", checkpoint.pick(trained, "best")
    assert seats.pinned("ppo, stubborn=0.7+random") == "ppo,stubborn=0.7+random"
    assert seats.pinned(f"a~10~{run}#2+b:c,{run}@final:4") == f"a~10~{run}#2@1280+b:c,{run}@1280:4"
    assert seats.pinned(f"{run}@best") == f"{run}@{best}"
    assert seats.pinned(seats.pinned(run)) == seats.pinned(run)


def test_a_pool_is_greedy_where_its_members_are(trained):
    """Asked for greedy play, a frozen policy in a pool went on drawing its actions."""
    (pool,) = seats.resolve(make("matrix-ipd?horizon=5"), f"run:{trained}+always_c,ppo", learned=[1])
    member = pool.policy.greedy().members[0]
    assert member == checkpoint.load_policy(trained, 0).greedy()
    assert jax.tree.structure(pool.policy.greedy()) != jax.tree.structure(pool.policy)
