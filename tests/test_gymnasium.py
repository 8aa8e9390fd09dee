"""One seat alone: Gymnasium's own checks, partners that remember, and a learner of another library that learns in it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from jaxtyping import PRNGKeyArray

import otherminds
from otherminds import BadInput, rollout, seats
from otherminds.gymnasium import OneSeat
from otherminds.types import Action, Extras, Memory, Policy, View

STAY, HUNT_STAG, HUNT_HARE = 4, 5, 6


class Remembering(Policy):
    """Plays action 0 in the first episode of a meeting and 1 later; also counts the steps of the meeting."""

    def initial_memory(self) -> Memory:
        return Memory(episode=None, lasting={"episodes": jnp.int32(0), "steps": jnp.int32(0)})

    def conclude(self, view: View, memory: Memory) -> Memory:
        lasting = memory.lasting
        return Memory(None, {"episodes": lasting["episodes"] + view.first, "steps": lasting["steps"]})

    def act(self, view: View, memory: Memory, key: PRNGKeyArray) -> tuple[Action, Memory, Extras]:
        lasting = memory.lasting
        action = (lasting["episodes"] > 0).astype(jnp.int32)[:, None]
        logits = jnp.zeros((*action.shape, view.legal.shape[-1]))
        memory = Memory(None, {"episodes": lasting["episodes"], "steps": lasting["steps"] + 1})
        return action, memory, Extras(logits, logits, jnp.zeros(action.shape), jnp.full(action.shape, -1, jnp.int32))


def returns(env: OneSeat, choose: Any, episodes: int, seed: int) -> np.ndarray:
    """The returns of whole episodes."""
    totals = np.zeros(episodes)
    for episode in range(episodes):
        observation, _ = env.reset(seed=seed if episode == 0 else None)
        over = False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(choose(observation))
            totals[episode] += reward
            over = terminated or truncated
    return totals


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("game_id", "seat", "partners"),
    [("stag_hunt-4x4-4h1s", 2, "nearest_stag"), ("snowdrift-4x4", 0, "random"), ("matrix-chicken", 1, "tit_for_tat")],
)
def test_gymnasium_accepts_a_seat(game_id: str, seat: int, partners: str) -> None:
    check_env(otherminds.gymnasium_env(game_id, seat, partners), skip_render_check=True)


def test_what_a_seat_is_told() -> None:
    env = otherminds.gymnasium_env("stag_hunt-4x4-4h1s", 1, "nearest_stag,nearest_hare,random")
    assert [seated.seats for seated in env.partners] == [(0,), (2,), (3,)]
    random = np.random.default_rng(0)
    lengths = []
    for episode in range(20):
        observation, info = env.reset(seed=0 if episode == 0 else None)
        over, length = False, 0
        while not over:
            assert env.observation_space.contains(observation)
            assert info["action_mask"].dtype == np.int8
            np.testing.assert_array_equal(env.action_masks(), info["action_mask"] == 1)
            own = np.argwhere(observation[0])  # plane 0 is the seat itself
            assert len(own) == 1
            assert env.action_masks()[0] == (own[0, 0] > 0)  # up, unless on the top row
            observation, reward, terminated, truncated, info = env.step(random.choice(np.flatnonzero(env.action_masks())))
            assert not truncated
            assert terminated or reward == 0
            over, length = terminated, length + 1
        lengths.append(length)
        with pytest.raises(BadInput, match=r"call reset\(\)"):
            env.step(STAY)
    assert max(lengths) == 35
    assert min(lengths) < 35


def test_a_seed_fixes_all_that_follows() -> None:
    env = otherminds.gymnasium_env("stag_hunt-4x4-4h1s", 0, "nearest_stag")
    played = [returns(env, lambda observation: STAY + 1 - int(observation[5].any()), 6, seed=seed) for seed in (3, 3, 4)]
    np.testing.assert_array_equal(played[0], played[1])

    def openings(seed: int) -> bytes:
        return b"".join(env.reset(seed=seed if k == 0 else None)[0].tobytes() for k in range(5))

    assert openings(3) == openings(3) != openings(4)


def test_partners_remember_for_a_meeting_of_16_episodes() -> None:
    """The partner cooperates in the first episode of a meeting only. Who cooperates earns 3 from it then, and 0 later."""
    env = otherminds.gymnasium_env("matrix-ipd?horizon=2", 0, Remembering())
    earned = returns(env, lambda _: 0, 33, seed=0)
    np.testing.assert_array_equal(np.flatnonzero(earned), [0, 16, 32])
    np.testing.assert_array_equal(earned[[0, 16, 32]], 6)
    # A seed opens a new meeting.
    np.testing.assert_array_equal(returns(env, lambda _: 0, 2, seed=1), [6, 0])


def test_partners_play_their_episode_to_its_end() -> None:
    """Whoever leaves early must not rob the partners of what they would have seen in a rollout."""
    env = otherminds.gymnasium_env("stag_hunt?height=1&width=4&players=2&stags=0&hares=2&horizon=9", 0, Remembering())
    early = 0
    for episode in range(1, 16):
        observation, _ = env.reset(seed=0 if episode == 1 else None)
        assert not env._play.memories[1].lasting["steps"] % 9
        for _ in range(3):  # walk right, and take a hare if there is one
            on_hare = (observation[0] * observation[5]).any()
            observation, _, terminated, _, _ = env.step(HUNT_HARE if on_hare else 3)
            if terminated:
                early += 1
                break
        while not terminated:
            observation, _, terminated, _, _ = env.step(STAY)
    assert 0 < early < 15


def test_an_episode_broken_off_is_truncated_for_the_partners() -> None:
    env = otherminds.gymnasium_env("matrix-ipd", 0, Remembering())
    env.reset(seed=0)
    env.reset()  # nothing was played, so nothing has ended
    assert env._play.episode[0] == 0
    assert not env._play.now.truncated[0]
    env.step(0)
    env.reset()
    assert env._play.episode[0] == 1
    assert env._play.now.truncated[0]
    assert env._play.now.first[0]
    assert env.step(0)[1] == 0, "the partner knows that this is another episode"


def test_partners_act_as_in_a_rollout() -> None:
    env = otherminds.gymnasium_env("matrix-ipd?horizon=6", 1, "tit_for_tat")
    env.reset(seed=0)
    mine = [1, 0, 0, 1, 1, 0]
    theirs = [0, *mine[:-1]]
    payoffs = {(0, 0): 3, (0, 1): 0, (1, 0): 5, (1, 1): 1}
    for own, other in zip(mine, theirs, strict=True):
        assert env.step(own)[1] == payoffs[own, other]


def test_bad_seats_and_partners_are_refused() -> None:
    with pytest.raises(BadInput, match="has seats 0 to 3, got seat 4"):
        otherminds.gymnasium_env("stag_hunt-4x4-4h1s", 4)
    with pytest.raises(BadInput, match="3 seats beside seat 0, got 2 partners"):
        otherminds.gymnasium_env("stag_hunt-4x4-4h1s", 0, ["random", "nearest_stag"])
    with pytest.raises(BadInput, match="nearest_stag"):
        otherminds.gymnasium_env("stag_hunt-4x4-4h1s", 0, "nearest_stags")
    game = otherminds.make("matrix-ipd")
    mixed = otherminds.gymnasium_env("matrix-ipd", 0, [seats.seat_policy(game, "always_d")])
    mixed.reset(seed=0)
    assert mixed.step(1)[1] == 1


def test_a_picture_of_the_game() -> None:
    env = otherminds.gymnasium_env("matrix-ipd", 0, "random", render_mode="rgb_array")
    env.reset(seed=0)
    assert env.render().ndim == 3


def to_the_stag(observation: np.ndarray) -> int:
    """The shortest way to the stag on an open board, rows first; hunt when there, stay when it is gone."""
    own, stag = np.argwhere(observation[0]), np.argwhere(observation[5])
    if len(stag) == 0:
        return STAY
    rows, columns = stag[0] - own[0]
    if rows:
        return 1 if rows > 0 else 0
    if columns:
        return 3 if columns > 0 else 2
    return HUNT_STAG


@pytest.mark.timeout(120)
def test_a_player_earns_in_a_seat_what_it_earns_in_a_rollout() -> None:
    """Four who go straight for the stag, one of them outside: the shares depend on who arrives when, not on the way there."""
    game = otherminds.make("stag_hunt-4x4-4h1s")
    policies = seats.resolve(game, "nearest_stag")
    rows = rollout.collect(game, policies, rollout.start(game, policies, 256, jax.random.key(0)), 200)[1]
    inside = np.asarray(rows.reward[..., 2][rows.terminated[..., 2]])
    outside = returns(otherminds.gymnasium_env("stag_hunt-4x4-4h1s", 2, "nearest_stag"), to_the_stag, 400, seed=0)
    assert inside.mean() > 2
    assert abs(outside.mean() - inside.mean()) < 4 * outside.std() / np.sqrt(400)


@pytest.mark.timeout(240)
def test_stable_baselines_learns_in_a_seat() -> None:
    """PPO of another library, as it is, soon earns clearly more beside three stag hunters than a random player does."""
    import stable_baselines3
    import torch
    from stable_baselines3.common.vec_env import DummyVecEnv

    def make() -> OneSeat:
        return otherminds.gymnasium_env("stag_hunt-4x4-4h1s", 0, "nearest_stag")

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        settings = dict(n_steps=128, batch_size=256, n_epochs=4, learning_rate=1e-3, gamma=0.95, ent_coef=0.01)
        learner = stable_baselines3.PPO("MlpPolicy", DummyVecEnv([make] * 8), seed=0, device="cpu", **settings)
        learner.learn(30_000)
        env, random = make(), np.random.default_rng(0)
        by_chance = returns(env, lambda _: random.integers(7), 300, seed=100)
        learned = returns(env, lambda observation: int(learner.predict(observation)[0]), 300, seed=200)
    finally:
        torch.set_num_threads(threads)
    # Hares, worth 1, are what there is to find in so short a time: no longer run that we tried (60,000 steps) found the stag.
    standard_error = np.hypot(by_chance.std(), learned.std()) / np.sqrt(300)
    assert learned.mean() - by_chance.mean() > max(0.2, 5 * standard_error), (by_chance.mean(), learned.mean())
