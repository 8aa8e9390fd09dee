"""The bridge to JaxMARL, both ways: `make` brings in its games as ours, `jaxmarl_env` offers ours as its environments.

Unequal observations and actions are padded and masked here and nowhere else. What differs from game to game stands in
`jaxmarl_adapters`. JaxMARL is imported only when a game is made.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Num, PRNGKeyArray

from otherminds.config import BadInput, require
from otherminds.games.base import Game, Kind, OthersOrder, Outcome, State, only_action_zero
from otherminds.games.jaxmarl_adapters import Adapter, find, library, their_code
from otherminds.types import Action


class JaxmarlState(State):
    """JaxMARL's state, and what its `reset` and `step_env` said along with it, so that observing costs nothing."""

    inner: Any
    observation: Num[Array, "A ..."]
    present: Bool[Array, " A"]


@dataclass(frozen=True)
class Built:
    """A JaxMARL environment and the measures of its seats."""

    env: Any
    agents: tuple[Any, ...]
    actions: tuple[int, ...]  # how many actions, or dimensions of one, each seat has
    boxes: tuple[tuple[np.ndarray, np.ndarray], ...]  # lowest and highest of each dimension, a seat; empty if discrete
    shape: tuple[int, ...]  # of an observation that holds the largest of any seat
    dtype: Any
    state: Any  # JaxMARL's state as reset gives it, as shapes


@dataclass(frozen=True)
class JaxmarlGame(Game):
    """A game of JaxMARL's. A continuous action is a number from 0 to 1 in each dimension, stretched to the game's own box."""

    name: str
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def adapter(self) -> Adapter:
        return find(self.name)

    @cached_property
    def built(self) -> Built:
        return _build(self.name, self.options, repr(self.options))

    @property
    def family(self) -> str:
        return "jaxmarl:" + self.name.partition("-")[0]

    @property
    def continuous(self) -> bool:
        return bool(self.built.boxes)

    @property
    def others_order(self) -> OthersOrder:
        return self.adapter.order(self.built.env)

    @property
    def seats(self) -> int:
        return len(self.built.agents)

    @property
    def action_names(self) -> tuple[str, ...]:
        count, names = max(self.built.actions), self.adapter.names(self.built.env)
        return names if len(names) == count else tuple(f"action_{k}" for k in range(count))

    @property
    def observation_shape(self) -> tuple[int, ...]:
        return self.built.shape

    @property
    def observation_dtype(self) -> Any:
        return self.built.dtype

    @property
    def observation_scale(self) -> np.ndarray:
        return self.adapter.scale(self.built.env, self.built.shape)

    @property
    def kind(self) -> Kind:
        return "cooperative" if dict(self.options).get("shared_rewards") else self.adapter.kind

    @property
    def symmetric(self) -> bool:
        return self.adapter.symmetric(self.built.env)

    @property
    def goals(self) -> tuple[str, ...]:
        return self.adapter.goals(self.built.env)

    @property
    def longest(self) -> int | None:
        return self.adapter.longest(self.built.env)

    @property
    def truncates(self) -> bool:
        return True

    @property
    def winnable(self) -> bool:
        return self.adapter.winnable

    def won(self, state: JaxmarlState) -> Bool[Array, ""]:
        return self.adapter.won(self.built.env, state.inner)

    @property
    def bank_size(self) -> int:
        return 1024

    def reset(self, key: PRNGKeyArray) -> JaxmarlState:
        with their_code():
            given, inner = self.built.env.reset(key)
            return JaxmarlState(inner=self._steady(inner), observation=self._stacked(given), present=jnp.ones(self.seats, bool))

    def step(self, state: JaxmarlState, action: Action, key: PRNGKeyArray) -> tuple[JaxmarlState, Outcome]:
        env, adapter = self.built.env, self.adapter
        with their_code():
            actions = self._their_actions(action, state.present)
            given, inner, rewards, finished, _ = env.step_env(key, state.inner, adapter.pack(env, actions))
            reward = jnp.stack([jnp.asarray(r, jnp.float32) for r in adapter.rewards(env, rewards, inner)])
            ended = adapter.ended(env, finished, inner)
            truly = adapter.truly(env, state.inner, actions, inner)
            present = adapter.present(env, inner)
        if present is None:
            # At the end JaxMARL reports every agent as finished, also where only the time ran out.
            present = ~jnp.stack([jnp.asarray(finished.get(agent, False)) for agent in self.built.agents]) | ended
        present &= state.present
        left = state.present & ~present
        if adapter.earns_with_team(env):
            left = jnp.zeros_like(left)
        else:
            reward = jnp.where(state.present, reward, 0.0)
        after = JaxmarlState(inner=self._steady(inner), observation=self._stacked(given), present=present)
        return after, Outcome(reward=reward, left=left, terminated=ended & truly, truncated=ended & ~truly)

    def observe(self, state: JaxmarlState) -> Num[Array, "A ..."]:
        return state.observation

    def legal(self, state: JaxmarlState) -> Bool[Array, "A actions"]:
        legal = jnp.arange(self.actions)[None] < jnp.array(self.built.actions)[:, None]
        with their_code():
            given = None if self.continuous else self.adapter.legal(self.built.env, state.inner)
        if given is not None:
            legal &= jnp.stack([_padded(mask.astype(bool), (self.actions,)) for mask in given])
        return only_action_zero(legal, state.present)

    def present(self, state: JaxmarlState) -> Bool[Array, " A"]:
        return state.present

    def goal_reached(self, state: JaxmarlState, action: Action, after: JaxmarlState) -> Int[Array, " A"]:
        with their_code():
            return self.adapter.goal_reached(self.built.env, state.inner, after.inner)

    def _their_actions(self, action: Action, present: Bool[Array, " A"]) -> dict[Any, Array]:
        """Each agent's action in JaxMARL's terms; absent seats, and numbers that are no action of the seat, do nothing."""
        built = self.built
        if self.continuous:
            share = jnp.clip(jnp.where(present[:, None], action, 0.0), 0.0, 1.0)
            boxes = zip(built.agents, built.boxes, share, strict=True)
            return {agent: jnp.asarray(low + (high - low) * own[: low.size]) for agent, (low, high), own in boxes}
        is_one = present & (action >= 0) & (action < jnp.array(built.actions))
        chosen = jnp.where(is_one, action, self.adapter.idle(built.env)).astype(jnp.int32)
        return {agent: chosen[k] for k, agent in enumerate(built.agents)}

    def _stacked(self, given: Any) -> Num[Array, "A ..."]:
        """What the seats observe, padded with zeros to one shape."""
        seen = self.adapter.observations(self.built.env, given)
        return jnp.stack([_padded(x, self.built.shape).astype(self.built.dtype) for x in seen])

    def _steady(self, inner: Any) -> Any:
        """The types that reset gives: a state is carried through scans, where nothing may change its type."""
        return jax.tree.map(lambda leaf, like: jnp.asarray(leaf, like.dtype), inner, self.built.state)


def make(name: str, options: dict[str, Any]) -> JaxmarlGame:
    """The JaxMARL game `name`, or `smax-<map>`, with options of its constructor (coin_game and storm: `horizon`)."""
    game = JaxmarlGame(name, tuple(sorted((key, _frozen(value)) for key, value in options.items())))
    if options:
        _try_out(game)
    else:
        game.built  # noqa: B018 (so that a name we do not know is refused here, not in the middle of a run)
    return game


def _try_out(game: JaxmarlGame) -> None:
    """Refuse options that JaxMARL takes and then trips over, now rather than in the middle of a run."""
    try:
        state = jax.eval_shape(game.reset, jax.random.key(0))
        action = jnp.zeros((game.seats, game.actions)) if game.continuous else jnp.zeros(game.seats, jnp.int32)
        jax.eval_shape(game.step, state, action, jax.random.key(0))
    except BadInput:
        raise
    except Exception as error:
        words = "&".join(f"{key}={value}" for key, value in game.options)
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadInput(f"jaxmarl:{game.name} does not work with {words}: {reason}") from error


@lru_cache(maxsize=64)
def _build(name: str, options: tuple[tuple[str, Any], ...], written: str) -> Built:
    """`written` is the options in writing: 1, 1.0 and True are the same key to a cache, and not the same to us."""
    adapter = find(name)
    # The environment holds arrays and may be asked for while something is traced; they must be real ones.
    with jax.ensure_compile_time_eval():
        library()
        with their_code():
            env = adapter.build(f"jaxmarl:{name}", dict(options))
            agents = tuple(adapter.agents(env))
            spaces = [env.action_space(agent) for agent in agents]
    with their_code():
        given, state = jax.eval_shape(env.reset, jax.random.key(0))
        seen = jax.eval_shape(lambda x: adapter.observations(env, x), given)
    require(bool(agents), f"jaxmarl:{name} has no seats with these options")
    ranks = {len(x.shape) for x in seen}
    require(len(ranks) == 1, f"jaxmarl:{name}: seats observe arrays of unlike rank, which cannot be padded to one shape")
    continuous = not hasattr(spaces[0], "n")
    return Built(
        env=env,
        agents=agents,
        actions=tuple(int(space.shape[0]) if continuous else int(space.n) for space in spaces),
        boxes=tuple(_box(space) for space in spaces) if continuous else (),
        shape=tuple(max(sizes) for sizes in zip(*(x.shape for x in seen), strict=True)),
        dtype=_small(jnp.result_type(*(x.dtype for x in seen))),
        state=state,
    )


def _box(space: Any) -> tuple[np.ndarray, np.ndarray]:
    low, high = (np.broadcast_to(np.asarray(bound, np.float32), space.shape) for bound in (space.low, space.high))
    return low, high


def _small(dtype: Any) -> Any:
    """Whole numbers in these games are flags, counts and timers far below 128, and a trajectory holds many of them."""
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.float32
    return jnp.uint8 if dtype in (jnp.uint8, jnp.bool_) else jnp.int8


def _padded(x: Array, shape: Sequence[int]) -> Array:
    return jnp.pad(x, [(0, size - own) for size, own in zip(shape, x.shape, strict=True)])


def _frozen(value: Any) -> Any:
    """Lists as tuples, so that a game can be hashed."""
    return tuple(_frozen(item) for item in value) if isinstance(value, list | tuple) else value


def jaxmarl_env(game_id: str) -> Any:
    """A game of ours as a JaxMARL `MultiAgentEnv`, with agents `player_1`... Observations are scaled float32.

    As JaxMARL has it, `step_env` never restarts and `step` does; a player's entry in `dones` is true from the step it left.
    """
    from otherminds.games import make as make_game  # the register imports this module

    game = make_game(game_id)
    require(
        not game.on_host, f"{game_id} is stepped on the host and cannot be compiled into JaxMARL: use otherminds.parallel_env"
    )
    return _offering()(game)


@lru_cache
def _offering() -> type:
    """The class of environments that offer our games; made late, for its bases are JaxMARL's."""
    library()
    from flax import struct
    from jaxmarl.environments import multi_agent_env, spaces

    @struct.dataclass
    class OfferedState(multi_agent_env.State):
        done: Any  # the same two fields, said again without shapes: pytrees are also made of whole batches
        step: Any
        game: Any
        over: Any  # seats that have left

    class Offered(multi_agent_env.MultiAgentEnv):
        def __init__(self, game: Game):
            super().__init__(num_agents=game.seats)
            self.game = game
            self.agents = [f"player_{seat + 1}" for seat in range(game.seats)]
            box = spaces.Box(0.0, 1.0, (game.actions,)) if game.continuous else spaces.Discrete(game.actions)
            self.action_spaces = dict.fromkeys(self.agents, box)
            view = spaces.Box(-jnp.inf, jnp.inf, game.observation_shape)
            self.observation_spaces = dict.fromkeys(self.agents, view)

        def reset(self, key: Any) -> tuple[dict[str, Array], Any]:
            inner = self.game.reset(key)
            state = OfferedState(done=jnp.bool_(False), step=jnp.int32(0), game=inner, over=jnp.zeros(self.game.seats, bool))
            return self.get_obs(state), state

        def step_env(self, key: Any, state: Any, actions: dict[str, Array]) -> tuple[dict, Any, dict, dict, dict]:
            joint = jnp.stack([actions[agent] for agent in self.agents])
            joint = joint.astype(jnp.float32 if self.game.continuous else jnp.int32)
            inner, outcome = self.game.step(state.game, joint, key)
            ended = outcome.terminated | outcome.truncated
            over = state.over | outcome.left | ended
            state = OfferedState(done=ended, step=state.step + 1, game=inner, over=over)
            dones = self._each(over) | {"__all__": ended}
            return self.get_obs(state), state, self._each(outcome.reward), dones, {}

        def get_obs(self, state: Any) -> dict[str, Array]:
            return self._each(self.game.scaled(self.game.observe(state.game)))

        def get_avail_actions(self, state: Any) -> dict[str, Array]:
            return self._each(self.game.legal(state.game))

        @property
        def name(self) -> str:
            return self.game.id

        @property
        def agent_classes(self) -> dict[str, list[str]]:
            return {"players": self.agents}

        def _each(self, by_seat: Array) -> dict[str, Array]:
            return {agent: by_seat[seat] for seat, agent in enumerate(self.agents)}

    return Offered
