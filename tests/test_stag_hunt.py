"""The rules of the stag hunt: against a second implementation written from the design alone, and by hand."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from otherminds import BadInput, make
from otherminds.games.stag_hunt import StagHunt
from otherminds.rollout import collect, start
from otherminds.types import Seated

from players import Wild
from reference_games import ReferenceStagHunt

EPISODES = 700
AT_HORIZON = 40
VARIANTS = [
    "stag_hunt-4x4-4h1s",
    "stag_hunt-6x6-4h1s",
    "stag_hunt-8x8-4h1s",
    "stag_hunt-8x8-4h1s-5b",
    "stag_hunt-8x8-4h2s",
    "stag_hunt-4x4-4h1s?view=1",
    "stag_hunt-8x8-4h1s-5b?view=2",
    "stag_hunt-4x4-4h1s?view=0&players=3",
    "stag_hunt-4x4-4h1s?strengths=1,2,0.5,4&hunters_needed=3",
    "stag_hunt-4x4-4h1s?end_after_first_hunt=5",
    "stag_hunt-4x4-4h1s?end_after_first_hunt=1&stags=3",
    "stag_hunt?height=3&width=5&players=2&hares=0&step_reward=-0.1",
    "stag_hunt?height=5&width=3&players=8&stags=0&hares=3&horizon=9",
    "stag_hunt?height=4&width=7&players=6&stags=2&hares=2&hunters_needed=1&blocks=2",
    "stag_hunt?height=1&width=12&players=2&stag_reward=7&hare_reward=3&horizon=20",
    "stag_hunt-4x4-4h1s?players=8&hares=7&horizon=60",
]


@pytest.mark.parametrize("game_id", VARIANTS)
def test_agrees_with_the_reference(game_id):
    game = make(game_id)
    policies = (Seated(Wild(game, ("nearest_stag", "nearest_hare", "random")), tuple(range(game.seats))),)
    play = jax.jit(lambda key: start(game, policies, EPISODES, key))(jax.random.key(len(game_id)))
    _, rows = jax.jit(lambda play: collect(game, policies, play, game.horizon, states=True, final=True))(play)
    rows = jax.device_get(rows)
    lengths = [compare_episode(game, rows, lane) for lane in range(EPISODES)]
    assert lengths.count(game.horizon) >= (0 if game.end_after_first_hunt else AT_HORIZON)


def compare_episode(game: StagHunt, rows, lane: int) -> int:
    """Play the recorded actions in the reference; the length of the episode."""
    reference = ReferenceStagHunt(
        height=game.height, width=game.width, players=game.players, stags=game.stags, hares=game.hares,
        stag_reward=game.stag_reward, hare_reward=game.hare_reward, hunters_needed=game.hunters_needed, horizon=game.horizon,
        step_reward=game.step_reward, strengths=game.strengths, end_after_first_hunt=game.end_after_first_hunt, view=game.view,
    )  # fmt: skip

    def cells(numbers):
        return [divmod(int(cell), game.width) for cell in numbers]

    first = jax.tree.map(lambda leaf: leaf[0, lane], rows.state)
    reference.start(cells(first.position), cells(first.stag), cells(first.hare), first.wall.reshape(game.height, game.width))
    for t in range(game.horizon):
        assert np.array_equal(rows.legal[t, lane], reference.legal())
        assert np.array_equal(rows.present[t, lane], reference.present())
        assert np.array_equal(rows.observation[t, lane], reference.observe())
        outcome = reference.step(rows.action[t, lane])
        assert np.abs(rows.reward[t, lane] - outcome.reward).max() < 1e-5
        assert np.array_equal(rows.terminated[t, lane], outcome.terminated)
        assert np.array_equal(rows.goal_reached[t, lane], outcome.goal_reached)
        assert np.array_equal(rows.final_observation[t, lane], reference.observe())
        restarted = rows.first[t + 1, lane] if t + 1 < game.horizon else rows.last.first[lane]
        assert restarted == outcome.episode_over
        assert not rows.truncated[t, lane]
        if outcome.episode_over:
            return t + 1
    raise AssertionError("an episode went on beyond its horizon")


def test_enough_is_compared():
    """Guards the comparison itself: each variant checks that all its episodes ended, and how many at the horizon."""
    assert len(VARIANTS) * EPISODES >= 10_000
    assert sum("end_after_first_hunt" not in variant for variant in VARIANTS) * AT_HORIZON >= 500


def small_game(**options) -> StagHunt:
    return StagHunt(height=3, width=3, players=3, stags=1, hares=1, **options)


def placed(game: StagHunt, position, stag, hare):
    state = game.reset(jax.random.key(0))
    return type(state)(
        position=jnp.array(position), strength=state.strength, stag=jnp.array(stag), hare=jnp.array(hare),
        wall=state.wall, time=state.time, ends_at=state.ends_at,
    )  # fmt: skip


def test_a_stag_is_split_by_strength():
    # Strengths 1 and 3 share 10 as 10*1/4 = 2.5 and 10*3/4 = 7.5; the third player is elsewhere.
    game = small_game(strengths=(1.0, 3.0, 1.0))
    after, outcome = game.step(placed(game, [4, 4, 0], [4], [8]), jnp.array([5, 5, 4]), jax.random.key(0))
    np.testing.assert_allclose(outcome.reward, [2.5, 7.5, 0.0])
    np.testing.assert_array_equal(outcome.left, [True, True, False])
    np.testing.assert_array_equal(after.position, [-1, -1, 0])
    np.testing.assert_array_equal(after.stag, [-1])


def test_a_lone_stag_hunter_gets_nothing_and_stays():
    game = small_game()
    after, outcome = game.step(placed(game, [4, 3, 0], [4], [8]), jnp.array([5, 5, 4]), jax.random.key(0))
    np.testing.assert_allclose(outcome.reward, 0.0)
    np.testing.assert_array_equal(after.position, [4, 3, 0])


@given(
    players=some.integers(2, 8), stags=some.integers(0, 3), hares=some.integers(1, 4), size=some.integers(4, 6),
    needed=some.integers(1, 4), blocks=some.integers(0, 2), view=some.none() | some.integers(0, 3), early=some.integers(0, 3),
    seed=some.integers(0, 2**31 - 1),
)  # fmt: skip
@settings(max_examples=8, deadline=None, derandomize=True)
def test_properties(players, stags, hares, size, needed, blocks, view, early, seed):
    """Somebody can always act; nobody earns more than the board is worth; the absent change nothing; same key, same episode."""
    game = StagHunt(
        height=size, width=size + 1, players=players, stags=stags, hares=hares, hunters_needed=min(needed, players),
        blocks=blocks, view=view, end_after_first_hunt=early,
    )  # fmt: skip

    @jax.jit
    def episode(key):
        start_key, *keys = jax.random.split(key, 1 + game.horizon)

        def step(carry, key):
            state, running = carry
            action_key, junk_key = jax.random.split(key)
            legal, present = game.legal(state), game.present(state)
            action = jax.random.categorical(action_key, jnp.where(legal, 0.0, -jnp.inf))
            junk = jnp.where(present, action, jax.random.randint(junk_key, action.shape, -3, 10))
            (after, outcome), (after_junk, outcome_junk) = game.step(state, action, key), game.step(state, junk, key)
            same = jax.tree.map(lambda a, b: (a == b).all(), (after, outcome), (after_junk, outcome_junk))
            facts = dict(
                reward=outcome.reward * running,
                stuck=(present & ~legal.any(-1)).any(),
                odd_absent=(~present & (legal != (jnp.arange(7) == 0)[None]).any(-1)).any(),
                same=jnp.array(jax.tree.leaves(same)).all(),
            )
            return (after, running & ~outcome.terminated), facts

        return jax.lax.scan(step, (game.reset(start_key), jnp.bool_(True)), jnp.stack(keys))[1]

    facts = episode(jax.random.key(seed))
    assert not facts["stuck"].any()
    assert not facts["odd_absent"].any()
    assert facts["same"].all()
    assert float(facts["reward"].sum()) <= stags * game.stag_reward + hares * game.hare_reward + 1e-4
    again = episode(jax.random.key(seed))
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), facts, again))


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ("height=0", "height=1"),
        ("height=1000000000", "height=32"),
        ("height=" + "-" * 20000 + "1", "expected a whole number"),
        ("hunters_needed=5", "4 players never reach"),
        ("stag_reward=1e39", "expected a number up to"),
        ("stag_reward=1" + "0" * 400, "expected a number"),
        ("strengths=1e-12,1,1,1", "from 0.001 to 1000"),
        ("height=-3", "height=1"),
        ("height=2.5", "height is 2.5, expected a whole number"),
        ("width=2&height=2", "do not fit on 2x2"),
        ("horizon=0", "horizon=1"),
        ("horizon=256", "horizon=255"),
        ("players=1", "players=2"),
        ("players=9", "players=8"),
        ("stags=0&hares=0", "stags=1"),
        ("height=4&width=4&blocks=5", "blocks=2"),
        ("height=2&width=2&players=2&stags=1&hares=0&blocks=1", "fit"),
        ("blocks=-1", "blocks=0"),
        ("view=-1", "view=0"),
        ("strengths=1,2", "4 numbers from 0.001"),
        ("strengths=1,2,0,1", "4 numbers from 0.001"),
        ("strengths=2", "strengths=1,2"),
        ("stag_reward=many", "stag_reward is 'many'"),
        ("hights=3", "did you mean height"),
        ("payoffs=3", "no option 'payoffs'"),
        ("height", "not of the form option=value"),
        ("height=4&height=5", "twice"),
    ],
)
def test_impossible_boards_are_refused_in_one_line(options, hint):
    with pytest.raises(BadInput) as problem:
        make(f"stag_hunt?{options}")
    assert hint in str(problem.value)
    assert "\n" not in str(problem.value)


def test_agrees_with_the_reference_when_compiled_for_speed():
    """The tests compile fast rather than well; users do not."""
    chosen = f"{__file__}::test_agrees_with_the_reference[stag_hunt-4x4-4h1s]"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", chosen]
    environment = {**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert "1 passed" in result.stdout, result.stdout


def test_search_is_refused_where_the_observation_hides_something():
    for options in ("view=2", "end_after_first_hunt=5"):
        game = make(f"stag_hunt?{options}")
        with pytest.raises(BadInput, match="does not determine the state"):
            game.state_of(jnp.zeros(game.observation_shape, jnp.uint8), 0)
