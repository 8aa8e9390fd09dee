"""The bridge to JaxMARL, both ways."""

import dataclasses
import importlib.util
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import otherminds.games
from otherminds import rollout
from otherminds.config import BadInput
from otherminds.games import make
from otherminds.games.jaxmarl import JaxmarlGame, jaxmarl_env
from otherminds.games.jaxmarl_adapters import GAMES, REFUSED, Adapter, library, their_code
from otherminds.types import Extras, Memory, Policy, Seated

GAMES_IN_PARALLEL, STEPS = 4, 1000


class Uniform(Policy):
    """Any legal action, all equally likely."""

    continuous: bool = eqx.field(static=True)

    def initial_memory(self):
        return Memory(None, None)

    def act(self, view, memory, key):
        logits = jnp.where(view.legal, 0.0, -jnp.inf)
        action = jax.random.uniform(key, logits.shape) if self.continuous else jax.random.categorical(key, logits)
        value = jnp.zeros(logits.shape[:-1])
        return action, memory, Extras(logits, logits, value, jnp.full(value.shape, -1, jnp.int32))


def play(game, steps=STEPS, **keep):
    """A trajectory of random play."""
    policies = (Seated(Uniform(game.continuous), tuple(range(game.seats))),)

    @jax.jit
    def run(key):
        bank = rollout.draw_bank(game, key, 64)
        return rollout.collect(game, policies, rollout.start(game, policies, GAMES_IN_PARALLEL, key, bank), steps, **keep)[1]

    return jax.device_get(run(jax.random.key(0)))


@pytest.fixture(scope="module")
def coin():
    return make("jaxmarl:coin_game")


@pytest.fixture(scope="module")
def battle():
    """SMAX with so little time that some battles are decided and some are not, and its random play."""
    game = make("jaxmarl:smax-3m?max_steps=20")
    return game, play(game, states=True)


def every(truncated, steps):
    """Whether all games were cut off every so many steps and at no other time."""
    return (truncated == (np.arange(1, len(truncated) + 1) % steps == 0)[:, None]).all()


def test_importing_says_nothing():
    """A library's chatter must not end up in what `--json` prints; nor may its warnings be errors for those who ask for that."""
    program = "from otherminds.games import make; make('jaxmarl:coin_game'); print('end', flush=True)"
    ran = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("end\n", "")


@pytest.mark.parametrize(
    ("game_id", "told"),
    [
        ("jaxmarl:coingame", "coin_game"),
        ("jaxmarl:SMAX", "jaxmarl:smax-3m"),
        ("jaxmarl:HeuristicEnemySMAX", "jaxmarl:smax-3m"),
        ("jaxmarl:LearnedPolicyEnemySMAX", "jaxmarl:smax-3m"),
        ("jaxmarl:smax", "jaxmarl:smax-3m"),
        ("jaxmarl:smax-3ms", "3m"),
        ("jaxmarl:ant_4x2", "action_type=continuous"),
        ("jaxmarl:JaxRobotarium_foraging", "jaxmarl:jaxnav"),
        ("jaxmarl:coin_game?horizn=3", "horizon"),
        ("jaxmarl:coin_game?horizon=0", "horizon=1"),
        ("jaxmarl:coin_game?num_inner_steps=3", "no option 'num_inner_steps'"),
        ("jaxmarl:storm_2p?num_agents=3", "no option 'num_agents'"),
        ("jaxmarl:MPE_simple_spread_v3?num_agent=3", "num_agents"),
        ("jaxmarl:MPE_simple_spread_v3?action_type=continous", "continuous"),
        ("jaxmarl:MPE_simple_crypto_v3?num_agents=4", "only supports 3 agents"),
        ("jaxmarl:MPE_simple_spread_v3?num_agents=many", "expected a whole number"),
        ("jaxmarl:MPE_simple_spread_v3?num_agents=0", "no seats"),
        ("jaxmarl:jaxnav?normalise_obs=False", "does not work with normalise_obs=False"),
        ("jaxmarl:overcooked?layout=cramped", "cramped_room"),
        ("jaxmarl:smax-3m?max_step=3", "max_steps"),
        ("jaxmarl:smax-3m?attack_mode=nearest", "closest"),
    ],
)
def test_refuses_in_one_line_and_says_what_to_type(game_id, told):
    with pytest.raises(BadInput) as refusal:
        make(game_id)
    assert told in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_knows_every_game_that_jaxmarl_has():
    unknown = [name for name in library().registered_envs if name not in {*GAMES, *REFUSED}]
    assert all(name.startswith("JaxRobotarium") for name in unknown)


@pytest.mark.parametrize(
    "name", [*GAMES, "smax-2s3z", "smax-corridor", "smax-3m?action_type=continuous", "jaxnav?evaporating=True"]
)
def test_a_step_keeps_shapes_and_types(name):
    """States are selected between and scanned over, so nothing may change; and what is announced is what comes."""
    game = make(f"jaxmarl:{name}")
    key = jax.random.key(0)
    before = jax.eval_shape(game.reset, key)
    action = jnp.zeros((game.seats, game.actions)) if game.continuous else jnp.zeros(game.seats, jnp.int32)
    after, outcome = jax.eval_shape(game.step, before, action, key)
    assert jax.tree.structure(before) == jax.tree.structure(after)
    assert [(x.shape, x.dtype, x.weak_type) for x in jax.tree.leaves(before)] == [
        (x.shape, x.dtype, x.weak_type) for x in jax.tree.leaves(after)
    ]
    assert before.observation.shape == (game.seats, *game.observation_shape)
    assert before.observation.dtype == game.observation_dtype
    assert jax.eval_shape(game.legal, before).shape == (game.seats, game.actions)
    assert jax.eval_shape(game.goal_reached, before, action, after).shape == (game.seats,)
    assert jax.eval_shape(game.scaled, before.observation).shape == before.observation.shape
    assert outcome.reward.dtype == jnp.float32
    assert len(set(game.action_names)) == game.actions
    assert hash(game) == hash(make(f"jaxmarl:{name}"))


def test_games_with_other_options_are_other_games():
    short = make("jaxmarl:coin_game?horizon=3&cnn=True")
    assert short == make("jaxmarl:coin_game?cnn=True&horizon=3")
    assert short != make("jaxmarl:coin_game")
    assert short.longest == 3
    assert short.observation_shape == (3, 3, 4)


def test_a_game_can_be_built_while_something_is_traced():
    """Its environment holds arrays and is kept for later, when what was traced is gone."""
    game = JaxmarlGame("MPE_simple_v3", (("max_steps", 7),))
    traced = jax.jit(game.reset)(jax.random.key(0))
    np.testing.assert_allclose(game.reset(jax.random.key(0)).observation, traced.observation)


def test_coin_game_is_jaxmarls_without_its_restarts(coin):
    """The same rewards and observations as CoinGame with no inner end in reach; then the end, at the horizon and only there."""
    with their_code():
        bare = library().CoinGame(num_inner_steps=10_000, num_outer_steps=1)
    keys = jax.random.split(jax.random.key(1), coin.longest)
    actions = jax.random.randint(jax.random.key(2), (coin.longest, 2), 0, 5)

    def both(states, given):
        key, action = given
        ours, outcome = coin.step(states[0], action, key)
        with their_code():
            seen, theirs, reward, _, _ = bare.step_env(key, states[1], {"0": action[0], "1": action[1]})
        same = (outcome.reward == jnp.stack([reward["0"], reward["1"]])).all()
        same &= (coin.observe(ours) == jnp.stack([seen["0"], seen["1"]])).all()
        return (ours, theirs), (same, outcome)

    start = coin.reset(keys[0])
    _, (same, outcome) = jax.jit(lambda: jax.lax.scan(both, (start, start.inner), (keys, actions)))()
    assert same.all()
    assert (outcome.reward != 0).any()
    assert np.flatnonzero(outcome.truncated).tolist() == [coin.longest - 1]
    assert not outcome.terminated.any()


def test_coin_game_runs_to_its_horizon(coin):
    rows = play(coin)
    assert every(rows.truncated, 100)
    assert not rows.terminated.any()
    assert rows.observation.dtype == np.int8


@pytest.mark.parametrize(
    ("red_coin", "blue_coin", "goal_reached"),
    [
        ((0, 1), (2, 2), [0, -1]),
        ((2, 2), (0, 1), [1, -1]),
        ((0, 1), (0, 1), [0, -1]),
        ((2, 1), (0, 0), [-1, 1]),
        ((2, 2), (0, 0), [-1, -1]),
    ],
)
def test_coin_game_goals(coin, red_coin, blue_coin, goal_reached):
    """Red goes right from (0, 0) to (0, 1), blue stays on (2, 1). A seat that gets both coins was after its own."""
    start = coin.reset(jax.random.key(0))
    cells = dict(red_pos=(0, 0), blue_pos=(2, 1), red_coin_pos=red_coin, blue_coin_pos=blue_coin)
    state = dataclasses.replace(start, inner=start.inner.replace(**{name: jnp.array(cell) for name, cell in cells.items()}))
    action = jnp.array([0, 4])
    after, _ = coin.step(state, action, jax.random.key(0))
    assert coin.goal_reached(state, action, after).tolist() == goal_reached


def test_tag_is_padded_and_cut_off():
    game = make("jaxmarl:MPE_simple_tag_v3")
    rows = play(game)
    assert rows.observation.shape[2:] == (4, 16)
    assert (rows.observation[..., 3, 14:] == 0).all()  # the prey sees 14 numbers
    assert (rows.observation[..., :3, 14:] != 0).any()
    assert every(rows.truncated, 26)  # JaxMARL's max_steps=25 are 26
    assert not rows.terminated.any()
    caught = (rows.goal_reached[..., :3] == 0).sum(-1)
    assert (rows.reward[..., :3] == 10 * caught[..., None]).all()
    assert caught.any()
    assert (rows.goal_reached[..., 3] == -1).all()


def test_tag_charges_each_prey_for_its_own_collisions():
    """JaxMARL charges all of them for the last one's."""
    game = make("jaxmarl:MPE_simple_tag_v3?num_good_agents=2")
    assert game.goals == ("agent_0", "agent_1")
    start = game.reset(jax.random.key(0))
    at = jnp.array([(0.0, 0.0), (0.02, 0.02), (0.5, 0.5), (0.01, 0.0), (-0.5, 0.5), (0.7, -0.7), (-0.7, -0.7)])
    state = dataclasses.replace(start, inner=start.inner.replace(p_pos=at))  # two hunters on the first prey, nobody moves yet
    action = jnp.zeros(5, jnp.int32)
    after, outcome = game.step(state, action, jax.random.key(0))
    assert outcome.reward.tolist() == [20, 20, 20, -20, 0]
    assert game.goal_reached(state, action, after).tolist() == [0, 0, -1, -1, -1]


def test_spread_is_cut_off():
    game = make("jaxmarl:MPE_simple_spread_v3")
    rows = play(game)
    assert every(rows.truncated, game.longest)
    assert not rows.terminated.any()


def test_others_stand_where_we_say():
    """Ascending: seat 1 of spread sees seat 0 before seat 2. The numbers 10 to 13 are where the two others are."""
    game = make("jaxmarl:MPE_simple_spread_v3")
    state = game.reset(jax.random.key(0))
    at = state.inner.p_pos
    assert game.others_order == "ascending"
    np.testing.assert_allclose(game.observe(state)[1, 10:14], jnp.concatenate([at[0] - at[1], at[2] - at[1]]), rtol=1e-6)


def test_padded_actions_are_illegal_and_do_nothing():
    """The speaker has 3 actions, the listener 5."""
    game = make("jaxmarl:MPE_simple_speaker_listener_v4")
    state = game.reset(jax.random.key(0))
    assert game.legal(state).tolist() == [[True] * 3 + [False] * 2, [True] * 5]
    step = jax.jit(lambda speaker: game.step(state, jnp.array([speaker, 2]), jax.random.key(0)))
    said_nothing_known, said_the_first = jax.device_get((step(4), step(0)))
    assert eqx.tree_equal(said_nothing_known, said_the_first)
    assert not eqx.tree_equal(said_nothing_known, jax.device_get(step(1)))


def test_continuous_actions():
    game = make("jaxmarl:MPE_simple_speaker_listener_v4?action_type=continuous")
    assert game.continuous
    rows = play(game, 30)
    assert rows.action.shape == (30, GAMES_IN_PARALLEL, 2, 5)
    assert rows.legal[0, 0].tolist() == [[True] * 3 + [False] * 2, [True] * 5]
    state = game.reset(jax.random.key(0))
    right = jnp.zeros((2, 5)).at[1, 2].set(7.0)  # beyond the box, so it counts as 1
    step = jax.jit(lambda action: game.step(state, action, jax.random.key(0))[0].inner.p_vel[1])
    assert step(right).tolist() == step(right / 7).tolist()
    assert step(right)[0] > 0


def test_a_box_that_is_not_0_to_1_is_stretched():
    """A robot's turn goes from -30 to 30 degrees; the middle is straight on."""
    game = make("jaxmarl:jaxnav?action_type=continuous")
    actions = game._their_actions(jnp.array([[1.0, 0.5], [0.0, 1.0]]), jnp.ones(2, bool))
    np.testing.assert_allclose(actions["agent_0"], [1, 0], atol=1e-6)
    np.testing.assert_allclose(actions["agent_1"], [0, np.pi / 6], atol=1e-6)


def test_fallen_units_are_absent_and_still_earn(battle):
    _, rows = battle
    assert (rows.present == rows.state.inner.state.unit_alive[..., :3]).all()
    absent = ~rows.present
    assert absent.any()
    assert (rows.reward == rows.reward[..., :1]).all()
    assert (rows.reward[absent] > 0).any()
    assert (rows.legal[absent] == (np.arange(8) == 0)).all()
    assert (rows.action[absent] == -1).all()


def test_a_battle_ends_once_for_all_seats(battle):
    """Terminated: a side has fallen. Truncated: neither has, and time is up. Never both, never for a fallen unit alone."""
    game, rows = battle
    alive = rows.after.inner.state.unit_alive
    decided = ~alive[..., :3].any(-1) | ~alive[..., 3:].any(-1)
    assert (rows.terminated == decided[..., None]).all()
    assert (rows.truncated == (rows.after.inner.state.step == game.longest) & ~decided).all()
    assert decided.any()
    assert rows.truncated.any()
    assert ((decided | rows.truncated)[:-1] == rows.first[1:]).all()


def test_a_fallen_unit_changes_nothing(battle):
    game, rows = battle
    time, lane, seat = np.argwhere(~rows.present & rows.present.any(-1, keepdims=True) & ~rows.first[..., None])[0]
    state = jax.tree.map(lambda leaf: jnp.asarray(leaf[time, lane]), rows.state)
    step = jax.jit(lambda action: game.step(state, action, jax.random.key(0)))
    stays = jnp.full(3, 4)
    first, *others = [jax.device_get(step(stays.at[seat].set(number))) for number in (0, 4, 7, -1)]
    assert all(eqx.tree_equal(first, other) for other in others)


def test_corridor_is_six_against_twentyfour():
    game = make("jaxmarl:smax-corridor")
    assert game.seats == 6
    assert game.actions == 5 + 24
    assert game.reset(jax.random.key(0)).inner.state.unit_types.tolist() == [3] * 6 + [4] * 24


def test_overcooked_is_cut_off():
    game = make("jaxmarl:overcooked?max_steps=100&layout=coord_ring")
    rows = play(game)
    assert rows.observation.dtype == np.uint8
    assert every(rows.truncated, 100)
    assert not rows.terminated.any()


def test_storm_is_flat_and_runs_to_its_horizon():
    game = make("jaxmarl:storm_2p")
    rows = play(game)
    assert every(rows.truncated, 152)
    with their_code():
        seen, _ = game.built.env.reset(jax.random.key(3))
    flat = [np.concatenate([np.ravel(own["inventory"]), np.ravel(own["observation"])]) for own in seen]
    assert (game.observe(game.reset(jax.random.key(3))) == np.stack(flat)).all()
    assert (rows.observation[..., :2] > 0).any()  # someone has picked up a coin


def test_storm_gives_each_seat_its_own_inventory():
    """JaxMARL's `storm` puts the seats last there and first in the rest."""
    game = make("jaxmarl:storm")
    seen = {"observations": jnp.zeros((2, 5, 5, 16)), "inventory": jnp.arange(10).reshape(5, 2)}
    assert [row.tolist()[-5:] for row in game.adapter.observations(game.built.env, seen)] == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]


def test_who_is_finished_before_the_others_has_left(monkeypatch):
    """Three agents; agent k is finished after step k + 1, and JaxMARL goes on paying everyone."""

    class Leaving(library().MultiAgentEnv):
        def __init__(self):
            super().__init__(num_agents=3)
            self.max_steps = 3

        def action_space(self, agent):
            return sys.modules["jaxmarl.environments.spaces"].Discrete(2)

        def reset(self, key):
            return dict.fromkeys(self.agents, jnp.zeros(1)), sys.modules["jaxmarl.environments"].State(
                jnp.bool_(False), jnp.int32(0)
            )

        def step_env(self, key, state, actions):
            seen, state = self.reset(key)[0], state.replace(step=state.step + 1)
            dones = {agent: state.step > number for number, agent in enumerate(self.agents)} | {"__all__": state.step >= 3}
            return seen, state, dict.fromkeys(self.agents, jnp.float32(1)), dones, {}

    class TrueEnd(Adapter):
        def truly(self, env, before, actions, after):
            return jnp.bool_(True)

    monkeypatch.setattr(library(), "Leaving", Leaving, raising=False)
    monkeypatch.setitem(GAMES, "leaving", TrueEnd("Leaving", "mixed"))
    rows = play(make("jaxmarl:leaving"), 3)
    assert rows.present[:, 0].tolist() == [[True, True, True], [False, True, True], [False, False, True]]
    assert rows.terminated[:, 0].tolist() == [[True, False, False], [False, True, False], [False, False, True]]
    assert rows.reward[:, 0].tolist() == [[1, 1, 1], [0, 1, 1], [0, 0, 1]]
    assert rows.first[:, 0].tolist() == [True, False, False]


@pytest.fixture
def log_wrapper():
    """JaxMARL's LogWrapper. It needs `six` (our test extra has it), which gymnax imports and does not ask for."""
    with their_code():
        return importlib.import_module("jaxmarl.wrappers.baselines").LogWrapper


def test_our_games_serve_a_loop_written_for_jaxmarl(log_wrapper):
    """Nothing of ours is used below the first line."""
    env = jaxmarl_env("stag_hunt-4x4-4h1s")
    assert isinstance(env, library().MultiAgentEnv)
    assert env.agents == ["player_1", "player_2", "player_3", "player_4"]
    assert env.name == "stag_hunt-4x4-4h1s"
    assert env.agent_classes == {"players": env.agents}
    logged = log_wrapper(env)

    def one_step(carry, key):
        seen, state = carry
        choose, move = jax.random.split(key)
        masks = jax.vmap(env.get_avail_actions)(state.env_state)
        actions = {
            agent: jax.random.categorical(jax.random.fold_in(choose, number), jnp.where(masks[agent], 0.0, -jnp.inf))
            for number, agent in enumerate(env.agents)
        }
        seen, state, reward, dones, info = jax.vmap(logged.step)(jax.random.split(move, 16), state, actions)
        return (seen, state), (seen, reward, dones, info, state.env_state.step)

    @jax.jit
    def run(key):
        start = jax.vmap(logged.reset)(jax.random.split(key, 16))
        return jax.lax.scan(one_step, start, jax.random.split(key, 200))[1]

    seen, reward, dones, info, clock = jax.device_get(run(jax.random.key(0)))
    space = env.observation_space("player_1")
    assert seen["player_1"].shape == (200, 16, *space.shape)
    assert seen["player_1"].dtype == space.dtype
    assert seen["player_1"].max() == 1
    assert env.action_space("player_1").n == 7
    ended = dones["__all__"]
    assert ended.any()
    assert (clock[ended] == 0).all()  # `step` restarts
    for agent in env.agents:
        left = dones[agent]
        assert left[ended].all()
        assert (left & ~ended).any()
        assert (left[1:] >= (left & ~ended)[:-1]).all()  # true from the step the seat left, until the end
        paid_after = reward[agent][1:][(left & ~ended)[:-1]]
        assert (paid_after == 0).all()
    assert info["returned_episode_lengths"].max() <= 35
    assert info["returned_episode_returns"].max() > 0


def test_games_on_the_host_are_not_offered(monkeypatch):
    class Hosted(otherminds.games.base.Game):
        on_host = True

    monkeypatch.setattr(otherminds.games, "make", lambda _: Hosted())
    with pytest.raises(BadInput, match="parallel_env"):
        jaxmarl_env("pettingzoo:something")
