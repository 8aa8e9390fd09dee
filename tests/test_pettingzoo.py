"""PettingZoo both ways: its games played by our rollout, our games played by its tests and by SuperSuit."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pettingzoo
import pytest
from jaxtyping import Array, PRNGKeyArray

import otherminds
from otherminds import BadInput, rollout, seats
from otherminds.games import GAMES
from otherminds.games.base import Game
from otherminds.games.host import GameFailed
from otherminds.types import Action, Extras, Memory, Policy, Seated, Trajectory, View

PURSUIT = "pettingzoo:sisl.pursuit?max_cycles=120"
ZOMBIES = "pettingzoo:butterfly.knights_archers_zombies?max_cycles=300"
TWO_WORKERS = 2

# PettingZoo's own tests still open environments in the way that PettingZoo itself calls deprecated.
old_ways = pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")


class Fixed(Policy):
    """Plays the given actions [A] or [A, dims] in every game."""

    action: Array
    outputs: int = eqx.field(static=True)

    def initial_memory(self) -> Memory:
        return Memory(episode=None, lasting=None)

    def act(self, view: View, memory: Memory, key: PRNGKeyArray) -> tuple[Action, Memory, Extras]:
        games, group = view.reward.shape
        logits = jnp.zeros((games, group, self.outputs))
        action = jnp.broadcast_to(self.action, (games, *self.action.shape))
        return action, memory, Extras(logits, logits, jnp.zeros((games, group)), jnp.full((games, group), -1, jnp.int32))


def everyone(game: Game, policy: Policy) -> tuple[Seated, ...]:
    return (Seated(policy, tuple(range(game.seats))),)


def fixed(game: Game, action: list) -> tuple[Seated, ...]:
    return everyone(game, Fixed(jnp.array(action), game.actions))


def play(game: Game, policies: tuple[Seated, ...], games: int, steps: int, workers: int = 0, seed: int = 0) -> Trajectory:
    opened = rollout.start(game, policies, games, jax.random.key(seed), workers=workers)
    after, trajectory = rollout.collect(game, policies, opened, steps, final=True)
    rollout.close(after)
    return jax.device_get(trajectory)


def small(name: str) -> Game:
    return otherminds.make(f"pettingzoo:parallel_games:{name}")


def equal(one: Trajectory, other: Trajectory) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


# Games in


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("game_id", "original"),
    [(PURSUIT, "sisl/pursuit_v5"), (ZOMBIES, "butterfly/knights_archers_zombies_v11")],
)
def test_a_rollout_is_what_the_game_itself_does(game_id: str, original: str) -> None:
    """1,000 steps: the recorded actions, played directly, give the same rewards, presence and observations."""
    game = otherminds.make(game_id)
    policies = seats.resolve(game, "random")
    opened = rollout.start(game, policies, 2, jax.random.key(7))
    hosted = opened.state.games
    after, first_half = rollout.collect(game, policies, opened, 200, final=True)
    after, second_half = rollout.collect(game, policies, after, 300, final=True)
    rows = jax.tree.map(lambda *halves: np.concatenate(halves), first_half, second_half)
    assert rows.action.shape == (500, 2, game.seats)
    cycles = int(game_id.partition("max_cycles=")[2])
    env = pettingzoo.make("parallel", original, max_cycles=cycles)
    ends = []
    for number in range(2):
        episode = -1
        for t in range(500):
            if rows.first[t, number]:
                episode += 1
                observations, _ = env.reset(seed=hosted.seed(number, episode))
            here = np.array([agent in env.agents for agent in env.possible_agents])
            np.testing.assert_array_equal(rows.present[t, number], here)
            for seat, agent in enumerate(env.possible_agents):
                expected = observations[agent].astype(np.float32) if here[seat] else 0
                np.testing.assert_array_equal(
                    rows.observation[t, number, seat], np.broadcast_to(expected, game.observation_shape)
                )
                assert rows.legal[t, number, seat].sum() == (game.actions if here[seat] else 1)
            actions = {agent: int(rows.action[t, number, seat]) for seat, agent in enumerate(env.possible_agents) if here[seat]}
            np.testing.assert_array_equal(rows.action[t, number, ~here], -1)
            observations, rewards, terminations, truncations, _ = env.step(actions)
            for seat, agent in enumerate(env.possible_agents):
                assert rows.reward[t, number, seat] == np.float32(rewards.get(agent, 0))
                assert rows.terminated[t, number, seat] == terminations.get(agent, False)
                if agent in observations:
                    expected = observations[agent].astype(np.float32)
                    np.testing.assert_array_equal(rows.final_observation[t, number, seat], expected)
            cut_off = any(truncations[agent] and not terminations[agent] for agent in truncations)
            assert rows.truncated[t, number] == cut_off
            if not env.agents:
                ends.append("truncated" if cut_off else "terminated")
    assert len(ends) >= 4
    assert hosted.seed(0, 0) != hosted.seed(1, 0) != hosted.seed(0, 1)
    if game_id == ZOMBIES:
        assert not rows.present.all(), "players should have died"
    rollout.close(after)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("game_id", [PURSUIT, ZOMBIES])
def test_workers_change_nothing_but_the_time(game_id: str) -> None:
    game = otherminds.make(game_id)
    policies = seats.resolve(game, "random")
    here, there = (play(game, policies, 3, 130, workers=workers, seed=1) for workers in (0, TWO_WORKERS))
    assert equal(here, there)
    assert not equal(here, play(game, policies, 3, 130, seed=2))


def test_seats_leave_come_and_are_cut_off() -> None:
    """a is terminated after step 1, b truncated after step 2, c comes after step 1 and is terminated after step 4."""
    game = small("Leaving")
    rows = play(game, fixed(game, [0, 1, 2]), 1, 5)
    np.testing.assert_array_equal(rows.present[:, 0], [[1, 1, 0], [0, 1, 1], [0, 0, 1], [0, 0, 1], [1, 1, 0]])
    np.testing.assert_array_equal(rows.action[:, 0], [[0, 1, -1], [-1, 1, 2], [-1, -1, 2], [-1, -1, 2], [0, 1, -1]])
    np.testing.assert_array_equal(rows.reward[:, 0], [[0, 1, 0], [0, 1, 2], [0, 0, 2], [0, 0, 2], [0, 1, 0]])
    np.testing.assert_array_equal(rows.terminated[:, 0], [[1, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 1], [1, 0, 0]])
    # b was cut off and never terminated, so the episode as a whole was cut off.
    np.testing.assert_array_equal(rows.truncated[:, 0], [0, 0, 0, 1, 0])
    np.testing.assert_array_equal(rows.first[:, 0], [1, 0, 0, 0, 1])
    # An absent seat observes nothing and may only take action 0; what its last step led to is kept.
    np.testing.assert_array_equal(rows.observation[1, 0, 0], [0, 0])
    np.testing.assert_array_equal(rows.legal[1, 0, 0], [1, 0, 0])
    np.testing.assert_array_equal(rows.final_observation[:4, 0, :, 0], [[1, 1, 1], [0, 2, 2], [0, 0, 3], [0, 0, 4]])


@pytest.mark.parametrize(
    ("options", "truncated", "terminated"),
    [
        ("truncate_b=False", False, [1, 1, 1]),  # all were terminated: a true end
        ("truncate_b=False&truncate_last=True", True, [1, 1, 0]),  # c was cut off
        ("truncate_last=True", True, [1, 0, 0]),
    ],
)
def test_an_episode_is_truncated_if_any_seat_was_cut_off(options: str, truncated: bool, terminated: list[int]) -> None:
    game = otherminds.make(f"pettingzoo:parallel_games:Leaving?{options}")
    rows = play(game, fixed(game, [0, 0, 0]), 1, 4)
    assert rows.truncated[3, 0] == truncated
    np.testing.assert_array_equal(rows.terminated[:, 0].sum(0), terminated)


def test_meetings_and_episodes_are_counted_as_in_compiled_games() -> None:
    game = otherminds.make("pettingzoo:parallel_games:Small?length=2")
    policies = fixed(game, [0, 0, 0])
    opened = rollout.start(game, policies, 2, jax.random.key(0))
    _, rows = rollout.collect(game, policies, opened, 9, meeting_episodes=2)
    np.testing.assert_array_equal(rows.first, np.tile(np.array([[1, 0, 1, 0, 1, 0, 1, 0, 1]]).T, 2))
    np.testing.assert_array_equal(rows.meeting, np.tile(np.array([[1, 0, 0, 0, 1, 0, 0, 0, 1]]).T, 2))
    np.testing.assert_array_equal(rows.last.first, [False, False])
    # Every episode of every game has a seed of its own; the observation shows it.
    assert len(np.unique(rows.observation[:, :, 0, 1])) == 10


def test_policies_are_compiled_once() -> None:
    """However often a rollout goes on, and with new parameters too."""
    traces = []

    class Counting(Fixed):
        def act(self, view: View, memory: Memory, key: PRNGKeyArray) -> tuple[Action, Memory, Extras]:
            traces.append(view.reward.shape)
            return super().act(view, memory, key)

    game = small("Small")
    for action in (0, 1):
        policies = everyone(game, Counting(jnp.full(3, action), game.actions))
        after = rollout.start(game, policies, 2, jax.random.key(0))
        for _ in range(3):
            after, rows = rollout.collect(game, policies, after, 4)
        assert (rows.reward == action).all()
    assert traces == [(2, 3)]


def test_masks_and_unequal_spaces() -> None:
    game = small("Masked")
    assert (game.seats, game.observation_shape, game.actions) == (3, (4,), 5)
    rows = play(game, seats.resolve(game, "random"), 4, 50)
    # Seat k has 3 + k actions, of which the even ones are legal, and sees 2 + k numbers.
    np.testing.assert_array_equal(rows.legal[0, 0], [[1, 0, 1, 0, 0], [1, 0, 1, 0, 0], [1, 0, 1, 0, 1]])
    np.testing.assert_array_equal(rows.observation[0, 0], [[1, 1, 0, 0], [2, 2, 2, 0], [3, 3, 3, 3]])
    assert set(np.unique(rows.action[..., 2])) == {0, 2, 4}
    # The game counts its actions from 1.
    np.testing.assert_array_equal(rows.reward, rows.action + 1)
    np.testing.assert_allclose(game.scaled(jnp.asarray(rows.observation[0, 0, 2])), 0.3)


@pytest.mark.parametrize("infos_at_reset", [True, False])
def test_masks_in_infos_and_a_reset_without_infos(infos_at_reset: bool) -> None:
    game = otherminds.make(f"pettingzoo:parallel_games:MaskedInInfos?infos_at_reset={infos_at_reset}")
    rows = play(game, fixed(game, [1, 1, 1]), 1, 4)
    expected = np.tile([0, 1, 0], (4, 3, 1))
    expected[0] = [0, 1, 0] if infos_at_reset else [1, 1, 1]
    np.testing.assert_array_equal(rows.legal[:, 0], expected)


def test_pictures_stay_bytes_and_are_padded() -> None:
    game = small("Pictures")
    assert (game.observation_shape, game.observation_dtype) == ((4, 3, 4), np.uint8)
    rows = play(game, fixed(game, [0, 0, 0]), 1, 2)
    assert rows.observation.dtype == np.uint8
    np.testing.assert_array_equal(rows.observation[0, 0].any(-2).sum((-1, -2)), [4, 9, 16])
    np.testing.assert_allclose(game.scaled(jnp.asarray(rows.observation[0, 0, 2])), 1.0)


def test_who_has_left_stays_away_whatever_the_game_says() -> None:
    """a is terminated after step 2, yet still asked to act, and still earns: none of that may reach a learner."""
    game = small("Undead")
    rows = play(game, fixed(game, [2, 1, 1]), 1, 5)
    np.testing.assert_array_equal(rows.present[:, 0, 0], [1, 1, 0, 0, 0])
    np.testing.assert_array_equal(rows.terminated[:, 0, 0], [0, 1, 0, 0, 0])
    np.testing.assert_array_equal(rows.reward[:, 0, 0], [2, 2, 0, 0, 0])
    np.testing.assert_array_equal(rows.action[:, 0, 0], [2, 2, -1, -1, -1])
    np.testing.assert_array_equal(rows.terminated[:, 0, 1], [0, 0, 0, 0, 1])


def test_observations_of_different_ranks_are_laid_out_flat() -> None:
    game = small("Ranks")
    rows = play(game, fixed(game, [0, 0, 0]), 1, 1)
    expected = [[0, 1, 2, 3, 4, 5], [0, 0, 1, 0, 0, 0], [-4, -4, -4, -4, -4, 0]]
    np.testing.assert_array_equal(rows.observation[0, 0], expected)


def test_continuous_actions_are_bounded_and_padded() -> None:
    game = small("Walkers")
    assert game.continuous
    rows = play(game, fixed(game, [[9.0, 9, 9], [0.625, -9, 9], [0.2, 0.6, 0.8]]), 2, 3, workers=1)
    # Boxes reach from -1 to half the number of dimensions. Seat 0 has one, up to 0.5. Seat 1 earns (-1 + 0.625*2) - 1 = -0.75;
    # its third dimension is padding. Seat 2 earns -3 + (0.2 + 0.6 + 0.8)*2.5 = 1.
    np.testing.assert_allclose(rows.reward[0, 0], [0.5, -0.75, 1.0], atol=1e-6)
    np.testing.assert_array_equal(rows.legal[0, 0], [[1, 0, 0], [1, 1, 0], [1, 1, 1]])
    assert rows.action.shape == (3, 2, 3, 3)
    assert play(game, seats.resolve(game, "random"), 2, 3).reward.std() > 0


# With warnings as errors, Box2D crashes the interpreter when it is imported.
@pytest.mark.filterwarnings("ignore:builtin type Swig:DeprecationWarning", "ignore:builtin type swig:DeprecationWarning")
def test_a_real_continuous_game() -> None:
    game = otherminds.make("pettingzoo:sisl.multiwalker?n_walkers=2")
    rows = play(game, seats.resolve(game, "random"), 2, 20)
    assert rows.action.shape == (20, 2, 2, 4)
    assert np.isfinite(rows.reward).all()


def test_melting_pot_through_shimmy() -> None:
    """Shimmy's own wrapper; a dict of observations becomes one vector, without the view of the world."""
    game = otherminds.make("pettingzoo:parallel_games:melting_pot?steps=3")
    assert (game.seats, game.actions, game.observation_shape) == (2, 8, (1 + 8 * 8 * 3,))
    rows = play(game, fixed(game, [3, 5]), 2, 4, workers=1)
    np.testing.assert_array_equal(rows.reward[0, 0], [3, 5])
    np.testing.assert_array_equal(rows.truncated[:, 0], [0, 0, 1, 0])  # Shimmy's max_cycles is a limit of time
    scaled = game.scaled(jnp.asarray(rows.observation[0, 0, 1]))
    np.testing.assert_allclose(np.unique(scaled), [0.4, 1.0], atol=1e-6)  # 102 of 255, and ready to shoot


def test_workers_import_no_jax() -> None:
    game = small("Knowing")
    assert play(game, fixed(game, [0, 0, 0]), 2, 3).reward.all(), "this process has imported jax"
    assert not play(game, fixed(game, [0, 0, 0]), 2, 3, workers=TWO_WORKERS).reward.any()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("workers", [0, TWO_WORKERS])
def test_a_game_that_raises_is_named_with_its_traceback(workers: int) -> None:
    game = small("Raising")
    policies = fixed(game, [0, 0, 0])
    opened = rollout.start(game, policies, 3, jax.random.key(0), workers=workers)
    with pytest.raises(GameFailed, match=r"game 0 failed in its step\n(.|\n)*ZeroDivisionError: the dice fell off the table"):
        rollout.collect(game, policies, opened, 5)
    with pytest.raises(BadInput, match="or one failed; start them anew"):
        rollout.collect(game, policies, opened, 5)


@pytest.mark.timeout(60)
def test_a_killed_worker_is_noticed() -> None:
    game = small("Small")
    policies = fixed(game, [0, 0, 0])
    opened = rollout.start(game, policies, 4, jax.random.key(0), workers=TWO_WORKERS)
    after, _ = rollout.collect(game, policies, opened, 2)
    worker = opened.state.games._blocks[1].process
    worker.kill()
    with pytest.raises(GameFailed, match=rf"process {worker.pid} of game 2, 3 died, exit code -?\d"):
        rollout.collect(game, policies, after, 2)
    with pytest.raises(BadInput, match="closed"):
        opened.state.games.step(np.zeros((4, 3)))


@pytest.mark.timeout(60)
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="asks a POSIX system whether a process lives")
def test_workers_end_with_their_parent() -> None:
    """Also if it is killed and can tell them nothing."""
    script = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
import otherminds
games = otherminds.make("pettingzoo:parallel_games:Small").open(2, 2, [0])
print(*[block.process.pid for block in games._blocks], flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(workers) == TWO_WORKERS
        parent.kill()
    for _ in range(100):
        alive = [pid for pid in workers if _alive(pid)]
        if not alive:
            return
        time.sleep(0.1)
    pytest.fail(f"workers {alive} outlived their parent")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not (state.exists() and ") Z " in state.read_text())  # a zombie is dead, only not yet counted


def test_workers_end_when_the_games_are_forgotten() -> None:
    game = small("Small")
    opened = rollout.start(game, fixed(game, [0, 0, 0]), 2, jax.random.key(0), workers=1)
    worker = opened.state.games._blocks[0].process
    del opened
    assert worker.returncode == 0


def test_what_a_host_game_cannot_do_is_refused() -> None:
    game = small("Small")
    policies = fixed(game, [0, 0, 0])
    opened = rollout.start(game, policies, 2, jax.random.key(0))
    with pytest.raises(BadInput, match="no states"):
        rollout.collect(game, policies, opened, 2, states=True)
    with pytest.raises(BadInput, match="outside of jit"):
        jax.jit(lambda key: rollout.start(game, policies, 2, key))(jax.random.key(0))
    with pytest.raises(BadInput, match="on the host"):
        rollout.draw_bank(game, jax.random.key(0), 4)
    own = otherminds.make("matrix-ipd")
    with pytest.raises(BadInput, match="workers=0"):
        rollout.start(own, seats.resolve(own, "random"), 2, jax.random.key(0), workers=1)
    with pytest.raises(GameFailed, match="a has 3 actions, and was to take number 3"):
        rollout.collect(game, fixed(game, [3, 0, 0]), opened, 1)


def test_equal_ids_are_equal_games() -> None:
    one, two = (otherminds.make("pettingzoo:parallel_games:Small?length=3") for _ in range(2))
    assert one == two
    assert hash(one) == hash(two)
    assert one != otherminds.make("pettingzoo:parallel_games:Small?length=4")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sisl.persuit", r"no PettingZoo game 'sisl.persuit', .*did you mean sisl.pursuit_v5"),
        ("sisl.pursuit_v4", r"did you mean sisl.pursuit_v5"),
        ("nowhere.nothing", "no PettingZoo game 'nowhere.nothing', nor a module of that name"),
        ("mpe.simple_spread", "cannot be imported: ImportError: MPE has been moved into its own package"),
        ("sisl.pursuit?walls=3", "does not open with walls=3: TypeError: .*unexpected keyword argument 'walls'"),
        ("classic.tictactoe", r"played in turns \(AEC only\)"),
        ("parallel_games:Turns", r"played in turns \(AEC\) and does not say that it can be parallel"),
        ("parallel_games:Smal", "has no 'Smal' that opens a game: did you mean Small"),
        ("parallel_games", "parallel_games has no 'parallel_env' that opens a game"),
        ("parallel_games:empty", "gives a object: expected a ParallelEnv"),
        ("parallel_games:Nobody", "has no possible_agents"),
        ("parallel_games:Strange?actions=multi", r"a acts in MultiDiscrete\(\[2 2\]\): expected Discrete"),
        ("parallel_games:Strange?actions=integers", r"a acts in Box\(.*int64\): expected Discrete, or a bounded Box"),
        ("parallel_games:Strange?actions=mixed", "some agents have discrete actions and others continuous ones"),
        ("parallel_games:Strange?observations=sequence", r"a observes Sequence\(.*: expected spaces of a fixed size"),
    ],
)
def test_bad_names_are_refused_in_one_line(name: str, message: str) -> None:
    with pytest.raises(BadInput, match=message) as refused:
        otherminds.make(f"pettingzoo:{name}")
    assert "\n" not in str(refused.value)


def test_versions_and_missing_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "zoo_of_mine"
    package.mkdir()
    (package / "__init__.py").touch()
    for version in (2, 10):
        (package / f"cage_v{version}.py").write_text("from parallel_games import Leaving, Small\n")
    (package / "cage_v10.py").write_text("from parallel_games import Masked as parallel_env\n")
    (package / "locked.py").write_text("import package_that_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert otherminds.make("pettingzoo:zoo_of_mine.cage").actions == 5
    with pytest.raises(BadInput, match="needs the package 'package_that_nobody_has', which is not installed"):
        otherminds.make("pettingzoo:zoo_of_mine.locked")


def test_a_game_of_turns_that_says_it_is_parallel_comes_in() -> None:
    game = otherminds.make("pettingzoo:pettingzoo.sisl.pursuit.pursuit:env?max_cycles=5")
    assert game.seats == 8
    assert play(game, seats.resolve(game, "random"), 1, 6).truncated[:, 0].tolist() == [False] * 4 + [True, False]


# Games out


@old_ways
@pytest.mark.timeout(120)
@pytest.mark.parametrize("game_id", GAMES)
def test_pettingzoo_accepts_every_game_of_ours(game_id: str) -> None:
    from pettingzoo.test import parallel_api_test, parallel_seed_test

    parallel_api_test(otherminds.parallel_env(game_id), num_cycles=500)
    parallel_seed_test(lambda: otherminds.parallel_env(game_id), num_cycles=500)


def test_agents_leave_and_are_terminated_never_truncated() -> None:
    env = otherminds.parallel_env("stag_hunt-4x4-4h1s")
    assert env.possible_agents == ["player_1", "player_2", "player_3", "player_4"]
    random = np.random.default_rng(0)
    lengths, numbers_left = [], set()
    for episode in range(30):
        _, infos = env.reset(seed=episode)
        length = 0
        while env.agents:
            before = list(env.agents)
            actions = {agent: random.choice(np.flatnonzero(infos[agent]["action_mask"])) for agent in before}
            observations, rewards, terminations, truncations, infos = env.step(actions)
            assert set(observations) == set(rewards) == set(terminations) == set(infos) == set(before)
            assert not any(truncations.values())
            assert env.agents == [agent for agent in before if not terminations[agent]]
            assert all(terminations[agent] for agent in before if rewards[agent] > 0), "who earns has hunted, and leaves"
            assert all(env.observation_space(agent).contains(observations[agent]) for agent in before)
            assert env.state_space.contains(env.state())
            numbers_left.add(len(env.agents))
            length += 1
        lengths.append(length)
        with pytest.raises(BadInput, match=r"call reset\(\)"):
            env.step(actions)
        assert env.step({}) == ({}, {}, {}, {}, {})
    assert max(lengths) == 35
    assert numbers_left == {0, 1, 2, 3, 4}


def test_a_step_is_the_game_s_own_step() -> None:
    """The environment's rewards and observations are those of the compiled game, seat by seat."""
    env = otherminds.parallel_env("snowdrift-4x4?horizon=6")
    game = env.game
    observations, _ = env.reset(seed=3)
    state, key = env._state, env._key
    for t in range(6):
        joint = jnp.array([5, 0, 1, 5])
        observed = np.asarray(jax.vmap(game.scaled)(game.observe(state)))
        np.testing.assert_array_equal(np.stack([observations[agent] for agent in env.possible_agents]), observed)
        key, step_key = jax.random.split(key)
        state, outcome = game.step(state, joint, step_key)
        observations, rewards, terminations, _, infos = env.step(dict(zip(env.possible_agents, joint.tolist(), strict=True)))
        np.testing.assert_array_equal(list(rewards.values()), outcome.reward)
        np.testing.assert_array_equal([info["action_mask"] for info in infos.values()], game.legal(state))
        assert list(terminations.values()) == [t == 5] * 4


def test_seeds_fix_all_that_follows() -> None:
    env = otherminds.parallel_env("stag_hunt-6x6-4h1s")

    def openings(seed: int) -> list[bytes]:
        return [env.reset(seed=seed)[0]["player_1"].tobytes(), *(env.reset()[0]["player_1"].tobytes() for _ in range(3))]

    assert openings(5) == openings(5)
    assert len({*openings(5), *openings(6)}) == 8


def test_pictures_of_our_games() -> None:
    env = otherminds.parallel_env("stag_hunt-4x4-4h1s", render_mode="rgb_array")
    env.reset(seed=0)
    picture = env.render()
    assert isinstance(picture, np.ndarray)
    assert picture.ndim == 3
    text = otherminds.parallel_env("matrix-ipd", render_mode="ansi")
    text.reset(seed=0)
    assert "step 0 of 100" in str(text.render())
    with pytest.raises(BadInput, match="no render_mode 'human'"):
        otherminds.parallel_env("matrix-ipd", render_mode="human")
    with pytest.raises(BadInput, match="is a PettingZoo environment already"):
        otherminds.parallel_env("pettingzoo:parallel_games:Small")
    env.reset()
    with pytest.raises(BadInput, match="no action for player_3"):
        env.step({"player_1": 0, "player_2": 0, "player_4": 0})


@pytest.mark.timeout(120)
@pytest.mark.filterwarnings("ignore::DeprecationWarning:supersuit")
@pytest.mark.parametrize("processes", [0, 1])
def test_supersuit_vectorises(processes: int) -> None:
    import supersuit

    env = supersuit.black_death_v3(otherminds.parallel_env("stag_hunt-4x4-4h1s"))
    env = supersuit.pettingzoo_env_to_vec_env_v1(env)
    env = supersuit.concat_vec_envs_v1(env, 2, num_cpus=processes, base_class="gymnasium")
    observations, _ = env.reset(seed=0)
    assert observations.shape == (8, 8, 4, 4)
    total, ended = 0.0, 0
    random = np.random.default_rng(0)
    for _ in range(100):
        observations, rewards, terminations, truncations, _ = env.step(random.integers(7, size=8))
        total += rewards.sum()
        ended += terminations.sum() + truncations.sum()
    env.close()
    assert total > 0
    assert ended > 0
