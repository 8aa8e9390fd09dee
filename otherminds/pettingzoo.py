"""Our games given out: each as a PettingZoo ParallelEnv. (`games/pettingzoo.py` is the other direction.)"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium.spaces
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.utils import EzPickle
from pettingzoo import ParallelEnv

from otherminds.config import closest, parse_id, require
from otherminds.games import GAMES, make
from otherminds.games.base import Game
from otherminds.rollout import Seen

RENDER_MODES = ["rgb_array", "ansi"]


def parallel_env(game_id: str, render_mode: str | None = None) -> "ParallelGame":
    """The game with this id, options and all, as a PettingZoo environment: `parallel_env("snowdrift-4x4?horizon=50")`."""
    return ParallelGame(game_id, render_mode)


class ParallelGame(ParallelEnv[str, np.ndarray, Any], EzPickle):
    """A compiled game with agents `player_1` … `player_A`.

    Observations are scaled to be of order one; legal actions are in `infos[agent]["action_mask"]`, and what an illegal one does
    is the game's to say (on our boards it is a stay). A seat that leaves is terminated and no longer among the agents. Our
    horizons are true ends, so nothing of ours is ever truncated.
    """

    def __init__(self, game_id: str, render_mode: str | None = None) -> None:
        EzPickle.__init__(self, game_id, render_mode)
        self.game = compiled_game(game_id)
        self.metadata = {"name": game_id, "render_modes": RENDER_MODES, "is_parallelizable": True, "render_fps": 3}
        self.render_mode = checked_render_mode(render_mode)
        self.possible_agents = [f"player_{seat + 1}" for seat in range(self.game.seats)]
        self.agents: list[str] = []
        observed = observation_box(self.game)
        self._observation_spaces = {agent: _copied(observed) for agent in self.possible_agents}
        self._action_spaces: dict[str, gymnasium.spaces.Discrete] = {
            agent: gymnasium.spaces.Discrete(self.game.actions) for agent in self.possible_agents
        }
        everyone = (self.game.seats, *observed.shape)
        self.state_space = gymnasium.spaces.Box(observed.low.min(), observed.high.max(), everyone, np.float32)
        self._random: np.random.Generator | None = None
        self._state: Any = None
        self._key: Any = None
        self._observation = np.zeros(everyone, np.float32)

    def observation_space(self, agent: str) -> gymnasium.spaces.Box:
        return self._observation_spaces[agent]

    def action_space(self, agent: str) -> gymnasium.spaces.Discrete:
        return self._action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, dict[str, Any]]]:
        """Open an episode. A seed fixes this and all that follow; without one they go on from the last seed."""
        if seed is not None or self._random is None:
            self._random = np.random.default_rng(seed)
        draw = self._random.integers(2**32, dtype=np.uint32)
        self._state, self._key, packed = _programs(self.game).reset(draw)
        shown = unpack(self.game, packed)
        self._observation = shown.observation
        self.agents = [agent for seat, agent in enumerate(self.possible_agents) if not shown.terminated[seat]]
        return self._observations_and_infos(shown)

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[dict[str, np.ndarray], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        if not self.agents and not actions:  # PettingZoo's custom, on which SuperSuit's wrappers rely
            return {}, {}, {}, {}, {}
        require(bool(self.agents), f"{self.game.id}: the episode is over, or was never opened: call reset()")
        missing = [agent for agent in self.agents if agent not in actions]
        require(not missing, f"{self.game.id}: no action for {', '.join(missing)}")
        joint = np.array([as_action(self.game, actions.get(agent, 0)) for agent in self.possible_agents], np.int32)
        self._state, self._key, packed = _programs(self.game).step(self._state, joint, self._key)
        shown = unpack(self.game, packed)
        self._observation = shown.observation
        observations, infos = self._observations_and_infos(shown)
        acting = [(seat, agent) for seat, agent in enumerate(self.possible_agents) if agent in self.agents]
        rewards = {agent: float(shown.reward[seat]) for seat, agent in acting}
        terminations = {agent: bool(shown.terminated[seat]) for seat, agent in acting}
        truncations = {agent: bool(shown.truncated[seat]) for seat, agent in acting}
        self.agents = [agent for _, agent in acting if not (terminations[agent] or truncations[agent])]
        return observations, rewards, terminations, truncations, infos

    def state(self) -> np.ndarray:
        """What all seats observe, in order, those that have left included."""
        return self._observation.copy()

    def render(self) -> np.ndarray | str | None:
        return rendered(self.game, self._state, self.render_mode)

    def _observations_and_infos(self, shown: "Shown") -> tuple[dict[str, np.ndarray], dict[str, dict[str, Any]]]:
        acting = [(seat, agent) for seat, agent in enumerate(self.possible_agents) if agent in self.agents]
        observations = {agent: shown.observation[seat] for seat, agent in acting}
        return observations, {agent: {"action_mask": shown.legal[seat]} for seat, agent in acting}


class Shown(NamedTuple):
    """What all seats of one game get from one step, as numpy arrays."""

    observation: np.ndarray  # [A, …] float32, scaled
    legal: np.ndarray  # [A, actions] int8
    reward: np.ndarray  # [A]
    terminated: np.ndarray  # [A], absent seats included
    truncated: np.ndarray  # [A]
    present: np.ndarray  # [A]


def pack(game: Game, seen: Seen, reward: jax.Array, terminated: jax.Array, truncated: jax.Array) -> jax.Array:
    """What `Shown` holds as one array [A, numbers]: bringing seven arrays to the host takes longer than the step itself."""
    observation = jax.vmap(game.scaled)(seen.observation).reshape(game.seats, -1)
    rest = [reward, terminated, jnp.broadcast_to(truncated, reward.shape), seen.present]
    return jnp.concatenate([observation, seen.legal, jnp.stack(rest, -1)], -1, dtype=jnp.float32)


def unpack(game: Game, packed: jax.Array) -> Shown:
    """What `pack` made, of all seats or of some."""
    # A copy, because what jax gives cannot be written to, and some wrappers write.
    rows = np.array(packed)
    size = rows.shape[1] - game.actions - 4
    reward, terminated, truncated, present = rows[:, -4:].T
    return Shown(
        observation=rows[:, :size].reshape(len(rows), *game.observation_shape),
        legal=rows[:, size:-4].astype(np.int8),
        reward=reward,
        terminated=terminated > 0,
        truncated=truncated > 0,
        present=present > 0,
    )


def as_action(game: Game, action: Any) -> np.int32:
    """One action, as a whole number or an array that holds one; anything else is refused."""
    given = np.asarray(action)
    fits = given.size == 1 and np.issubdtype(given.dtype, np.integer) and 0 <= given.item() < game.actions
    require(fits, f"{game.id}: action {action!r}, expected a whole number from 0 to {game.actions - 1}")
    return np.int32(given.item())


def compiled_game(game_id: str) -> Game:
    """A game that can be given out: compiled, with discrete actions."""
    game = make(game_id)
    require(not game.on_host, f"{game_id} is a PettingZoo environment already")
    require(not game.continuous, f"{game_id} has continuous actions: only games with discrete ones are given out")
    return game


def observation_box(game: Game) -> gymnasium.spaces.Box:
    """The space of one seat's scaled observation. Games of our own lie between 0 and 1; of others nothing is known."""
    own = parse_id(game.id)[0] in GAMES
    low, high = (0.0, 1.0) if own else (-np.inf, np.inf)
    return gymnasium.spaces.Box(low, high, game.observation_shape, np.float32)


def checked_render_mode(render_mode: str | None) -> str | None:
    known = render_mode is None or render_mode in RENDER_MODES
    require(known, f"no render_mode '{render_mode}': {closest(str(render_mode), RENDER_MODES)}")
    return render_mode


def rendered(game: Game, state: Any, render_mode: str | None) -> np.ndarray | str | None:
    """A picture of a state as `render_mode` asks for it."""
    from otherminds import render

    if render_mode is None or state is None:
        return None
    board = game.board(jax.device_get(state))
    return np.asarray(render.picture(board)) if render_mode == "rgb_array" else str(render.text(board))


def _copied(box: gymnasium.spaces.Box) -> gymnasium.spaces.Box:
    """Each agent has a space of its own, since spaces are seeded."""
    return gymnasium.spaces.Box(box.low, box.high, dtype=np.float32)


class _Programs(NamedTuple):
    reset: Callable[..., tuple[Any, Any, jax.Array]]
    step: Callable[..., tuple[Any, Any, jax.Array]]


@functools.lru_cache
def _programs(game: Game) -> _Programs:
    """The compiled functions of a game, shared by all its environments."""

    def look(state: Any) -> Seen:
        return Seen(game.observe(state), game.legal(state), game.present(state))

    @jax.jit
    def reset(seed: jax.Array) -> tuple[Any, Any, jax.Array]:
        start_key, key = jax.random.split(jax.random.key(seed))
        state = game.reset(start_key)
        seen = look(state)
        return state, key, pack(game, seen, jnp.zeros(game.seats), ~seen.present, jnp.bool_(False))

    @jax.jit
    def step(state: Any, action: jax.Array, key: Any) -> tuple[Any, Any, jax.Array]:
        key, step_key = jax.random.split(key)
        after, outcome = game.step(state, action, step_key)
        seen = look(after)
        # To PettingZoo, who is no longer among the agents must have met an end; ours may be absent without one.
        terminated = outcome.left | outcome.terminated | (~seen.present & ~outcome.truncated)
        return after, key, pack(game, seen, outcome.reward, terminated, outcome.truncated & ~terminated)

    return _Programs(reset, step)
