"""What we must know of each JaxMARL game and its code does not say: who wants what, what its end means, how its arrays lie.

One adapter a family, one line a game. Loads JaxMARL only when a game is built: the import takes seconds and prints.
"""

import contextlib
import importlib
import inspect
import io
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from otherminds.config import BadInput, as_type, check_options, closest, require
from otherminds.games.base import Kind, OthersOrder, require_integer

SIMPLE = (bool, int, float, str)
MOVES = ("stay", "left", "right", "down", "up")
# What a constructor takes and no id can say, or what the bridge itself decides.
NOT_TYPABLE = {
    *("self", "kwargs", "env_kwargs", "agents", "landmarks", "action_spaces", "observation_spaces", "colour", "color_map"),
    *("dim_c", "dim_p", "num_moves", "num_inner_steps", "num_outer_steps", "act_type", "map_params", "lambda_range"),
    "initial_state_buffer",
}


@contextlib.contextmanager
def their_code() -> Iterator[None]:
    """Run JaxMARL's code as its authors do: whatever strictness the user has asked of JAX, without warnings, without prints."""
    with (
        jax.numpy_rank_promotion("allow"),
        jax.numpy_dtype_promotion("standard"),
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield


@lru_cache
def library() -> Any:
    """JaxMARL's register, with our scenario in it."""
    # A first import may happen while something is traced; JaxMARL's modules make arrays, which must be real ones.
    with their_code(), jax.ensure_compile_time_eval():
        # While it is imported, one of its modules sets sys.stdout to sys.__stdout__, which would undo our silence.
        streams = sys.__stdout__, sys.__stderr__
        sys.__stdout__ = sys.__stderr__ = io.StringIO()  # type: ignore[misc, assignment]
        try:
            register = importlib.import_module("jaxmarl.registration")
        finally:
            sys.__stdout__, sys.__stderr__ = streams  # type: ignore[misc]
        smax = importlib.import_module("jaxmarl.environments.smax.smax_env")
        zealot, zergling = 3, 4
        corridor = jnp.array([zealot] * 6 + [zergling] * 24, jnp.uint8)
        smax.register_scenario("corridor", smax.Scenario(corridor, 6, 24, False, False))
    return register


@dataclass(frozen=True)
class Adapter:
    """A JaxMARL game that gives and takes one array an agent in dicts. `env` is the JaxMARL environment, states are its own."""

    constructor: str  # its name in JaxMARL's register
    kind: Kind
    others_order: OthersOrder = "unknown"  # with more than two seats; two can only stand in one way
    action_names: tuple[str, ...] = ()
    noop: int = 0  # what an absent seat plays
    action_types: tuple[str, ...] = ()  # how the constructor spells discrete and continuous, where there is a choice
    action_option: str = "action_type"  # what it calls that choice
    horizon: int | None = None  # for games that restart inside their own step: we end them after so many steps, before they do

    winnable: ClassVar[bool] = False
    more_options: ClassVar[dict[str, type]] = {}  # that a constructor takes without naming them

    def build(self, owner: str, options: Mapping[str, Any]) -> Any:
        """The environment with these options; refuses what it does not have."""
        constructor = getattr(library(), self.constructor)
        types = self.option_types(inspect.signature(constructor).parameters)
        check_options(options, types, owner)
        given = {name: _as_default(value, types[name], owner, name) for name, value in options.items()}
        return constructor(**self.arguments(owner, given))

    def option_types(self, parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
        """Every option and its type; where no single type is asked for, its default value."""
        types = {name: type(p.default) if type(p.default) in SIMPLE else p.default for name, p in parameters.items()}
        if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            types |= self.more_options
        types = {name: wanted for name, wanted in types.items() if name not in NOT_TYPABLE and name != "action_type"}
        return types | ({"action_type": str} if self.action_types else {}) | ({"horizon": int} if self.horizon else {})

    def arguments(self, owner: str, options: dict[str, Any]) -> dict[str, Any]:
        """Our options in the constructor's words."""
        if self.action_types:
            wanted = options.pop("action_type", "discrete").lower()
            spelling = {name.lower(): name for name in self.action_types}
            require(wanted in spelling, f"{owner}: action_type is '{wanted}': {closest(wanted, spelling)}")
            options[self.action_option] = spelling[wanted]
        if self.horizon:
            horizon = options.pop("horizon", self.horizon)
            require_integer(owner, 1, 100_000, horizon=horizon)
            options |= {"num_inner_steps": horizon + 1, "num_outer_steps": 1}
        return options

    def agents(self, env: Any) -> list[Any]:
        """JaxMARL's names of the seats, in its own order."""
        return list(env.agents)

    def order(self, env: Any) -> OthersOrder:
        return "rotated" if len(self.agents(env)) <= 2 else self.others_order

    def symmetric(self, env: Any) -> bool:
        return False

    def names(self, env: Any) -> tuple[str, ...]:
        """Names of the actions, or of the dimensions of a continuous one."""
        return self.action_names

    def idle(self, env: Any) -> int:
        return self.noop

    def longest(self, env: Any) -> int | None:
        return env.num_inner_steps - 1 if self.horizon else env.max_steps

    def scale(self, env: Any, shape: tuple[int, ...]) -> np.ndarray:
        """What to multiply an observation by."""
        return np.ones((), np.float32)

    def pack(self, env: Any, actions: dict[Any, Array]) -> Any:
        """Actions of the seats as `step_env` wants them."""
        return actions

    def observations(self, env: Any, given: Any) -> list[Array]:
        """One array a seat, out of what `reset` and `step_env` give."""
        return [given[agent] for agent in self.agents(env)]

    def rewards(self, env: Any, given: Any, after: Any) -> list[Array]:
        return [given[agent] for agent in self.agents(env)]

    def ended(self, env: Any, finished: Any, after: Any) -> Bool[Array, ""]:
        return jnp.asarray(after.step >= env.num_inner_steps - 1 if self.horizon else finished["__all__"])

    def truly(self, env: Any, before: Any, actions: dict[Any, Array], after: Any) -> Bool[Array, ""]:
        """Whether an episode that ended here is over by the rules, not by a limit of time that no seat observes."""
        return jnp.bool_(False)

    def present(self, env: Any, after: Any) -> Bool[Array, " A"] | None:
        """Who of those that were there still is, where the state tells; None: whoever JaxMARL does not report as finished."""
        return None

    def earns_with_team(self, env: Any) -> bool:
        """Whether a seat that is out of the game still gets what the others earn: then it is absent, but has not left."""
        return False

    def won(self, env: Any, state: Any) -> Bool[Array, ""]:
        """Whether an episode that ended in this state was won, in games that are."""
        raise NotImplementedError

    def legal(self, env: Any, state: Any) -> list[Array] | None:
        """Which of its own actions each seat may take; None for all."""
        return None

    def goals(self, env: Any) -> tuple[str, ...]:
        return ()

    def goal_reached(self, env: Any, before: Any, after: Any) -> Int[Array, " A"]:
        return jnp.full(len(self.agents(env)), -1, jnp.int32)


@dataclass(frozen=True)
class Particles(Adapter):
    """The particle games. Their `get_obs` drops the seat itself and keeps the others in ascending order."""

    others_order: OthersOrder = "ascending"
    action_names: tuple[str, ...] = MOVES
    action_types: tuple[str, ...] = ("Discrete", "Continuous")
    alike: bool = False  # all seats have the same part

    more_options: ClassVar[dict[str, type]] = {
        "max_steps": int,
        **dict.fromkeys(("dt", "damping", "contact_force", "contact_margin"), float),
    }

    def symmetric(self, env: Any) -> bool:
        return self.alike

    def longest(self, env: Any) -> int:
        return env.max_steps + 1  # JaxMARL looks at the clock before it moves on


@dataclass(frozen=True)
class Tag(Particles):
    """Particle games of hunters and prey. A hunter's goal is the prey it touches."""

    scripted_prey: bool = False  # the prey's actions are ignored, so prey are part of the game and no seats

    def agents(self, env: Any) -> list[str]:
        return env.agents[: env.num_adversaries] if self.scripted_prey else list(env.agents)

    def pack(self, env: Any, actions: dict[str, Array]) -> dict[str, Array]:
        return {agent: actions.get(agent, jnp.zeros(env.action_space(agent).shape)) for agent in env.agents}

    def touching(self, env: Any, state: Any) -> Bool[Array, "hunters prey"]:
        hunters, prey = jnp.arange(env.num_adversaries), jnp.arange(env.num_adversaries, env.num_agents)
        return jax.vmap(lambda a: jax.vmap(lambda b: env.is_collision(a, b, state))(prey))(hunters)

    def goals(self, env: Any) -> tuple[str, ...]:
        return tuple(env.good_agents)

    def goal_reached(self, env: Any, before: Any, after: Any) -> Int[Array, " A"]:
        touching = self.touching(env, after)
        reached = jnp.where(touching.any(1), touching.argmax(1).astype(jnp.int32), -1)
        return jnp.pad(reached, (0, len(self.agents(env)) - env.num_adversaries), constant_values=-1)


@dataclass(frozen=True)
class SimpleTag(Tag):
    def rewards(self, env: Any, given: Any, after: Any) -> list[Array]:
        """JaxMARL charges every prey for the last prey's collisions (an index past the end); each pays for its own here."""
        rewards = super().rewards(env, given, after)
        collisions = self.touching(env, after).sum(0)
        for prey in range(env.num_good_agents - 1):
            rewards[env.num_adversaries + prey] += 10.0 * (collisions[-1] - collisions[prey])
        return rewards


@dataclass(frozen=True)
class Kitchen(Adapter):
    """Overcooked, both versions. The clock shows in the first only when 40 steps are left, so its end is a cut."""

    noop: int = 4
    layouts: str = ""  # where JaxMARL keeps them
    timer_layer: int = -1  # the layer that counts up to 20

    def arguments(self, owner: str, options: dict[str, Any]) -> dict[str, Any]:
        if "layout" in options:
            layouts = getattr(importlib.import_module("jaxmarl.environments"), self.layouts)
            name = str(options["layout"])
            require(name in layouts, f"{owner} has no layout '{name}': {closest(name, layouts)}")
            options["layout"] = layouts[name]
        return super().arguments(owner, options)

    def scale(self, env: Any, shape: tuple[int, ...]) -> np.ndarray:
        scale = np.ones(shape[-1], np.float32)
        if len(shape) == 3:
            scale[self.timer_layer - getattr(env, "indicate_successful_delivery", 0)] = 1 / 20
        return scale


@dataclass(frozen=True)
class Riddle(Adapter):
    def truly(self, env: Any, before: Any, actions: dict[Any, Array], after: Any) -> Bool[Array, ""]:
        """Someone spoke: the seat in the room."""
        return jnp.stack(list(actions.values()))[before.agent_in_room] == env.game_actions["TELL"]


@dataclass(frozen=True)
class Hanabi(Adapter):
    """Seats take turns; who waits may only pass, which is the last action."""

    def names(self, env: Any) -> tuple[str, ...]:
        return tuple(env.action_encoding.values())

    def idle(self, env: Any) -> int:
        return int(env.num_moves) - 1

    def longest(self, env: Any) -> None:
        return None

    def truly(self, env: Any, before: Any, actions: dict[Any, Array], after: Any) -> Bool[Array, ""]:
        return jnp.bool_(True)

    def legal(self, env: Any, state: Any) -> list[Array]:
        moves = env.get_legal_moves(state)
        return [moves[agent] for agent in env.agents]


@dataclass(frozen=True)
class Robots(Adapter):
    """JaxNav. Others show only in the lidar. A robot that crashed, or evaporated, no longer acts."""

    action_types: tuple[str, ...] = ("Discrete", "Continuous")
    action_option: str = "act_type"
    noop: int = 2

    def names(self, env: Any) -> tuple[str, ...]:
        speeds, turns = ("stand", "slow", "fast"), ("hard_left", "left", "straight", "right", "hard_right")
        discrete = tuple(f"{speed}_{turn}" for speed in speeds for turn in turns)
        return discrete if hasattr(env.action_space(env.agents[0]), "n") else ("speed", "turn")

    def present(self, env: Any, after: Any) -> Bool[Array, " A"]:
        return ~(after.move_term | (after.done & ~after.ep_done))  # at the end all of them are reported as done

    def earns_with_team(self, env: Any) -> bool:
        return env.rew_lambda < 1

    def truly(self, env: Any, before: Any, actions: dict[Any, Array], after: Any) -> Bool[Array, ""]:
        return (before.done | after.goal_reached | after.move_term).all()


@dataclass(frozen=True)
class Coin(Adapter):
    """Two seats; each sees itself first. A goal is the colour of the coin that was picked up."""

    def symmetric(self, env: Any) -> bool:
        (red_red, red_blue, red_loss), (blue_red, blue_blue, blue_loss) = env.payoff_matrix
        return (red_red, red_blue, red_loss) == (blue_blue, blue_red, blue_loss)

    def goals(self, env: Any) -> tuple[str, ...]:
        return ("own", "other")

    def goal_reached(self, env: Any, before: Any, after: Any) -> Int[Array, " A"]:
        at = jnp.stack([after.red_pos, after.blue_pos])
        own = (at == jnp.stack([before.red_coin_pos, before.blue_coin_pos])).all(1)
        other = (at == jnp.stack([before.blue_coin_pos, before.red_coin_pos])).all(1)
        return jnp.where(own, 0, jnp.where(other, 1, -1)).astype(jnp.int32)


@dataclass(frozen=True)
class Storm(Adapter):
    """Matrix games played on a grid. Three environments that each lay out their arrays in another way."""

    horizon: int | None = 152
    two_seats: bool = False  # its constructor takes num_agents, but the game is for two

    def option_types(self, parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
        types = super().option_types(parameters)
        return {name: wanted for name, wanted in types.items() if not (self.two_seats and name == "num_agents")}

    def pack(self, env: Any, actions: dict[int, Array]) -> Any:
        return tuple(actions.values()) if self.two_seats else actions

    def observations(self, env: Any, given: Any) -> list[Array]:
        if isinstance(given, dict):  # storm: every agent in each array, and the inventories lie with features first
            given = [
                {"observation": view, "inventory": inventory}
                for view, inventory in zip(given["observations"], given["inventory"].T, strict=True)
            ]
        if isinstance(given, Array):  # storm_np: no inventories
            given = [{"observation": view} for view in given]
        return [jnp.concatenate([part.ravel().astype(jnp.float32) for part in seen.values()]) for seen in given]


@dataclass(frozen=True)
class Battle(Adapter):
    """SMAX against its scripted enemy, on a named map. Only allies are seats; a fallen unit still earns with its team."""

    noop: int = 4
    action_types: tuple[str, ...] = ("discrete", "continuous")
    battle_map: str = ""

    winnable: ClassVar[bool] = True
    more_options: ClassVar[dict[str, type]] = {
        **dict.fromkeys(("map_width", "map_height", "world_steps_per_env_step", "max_steps"), int),
        **dict.fromkeys(("time_per_step", "won_battle_bonus"), float),
        **dict.fromkeys(("use_self_play_reward", "see_enemy_actions", "walls_cause_death"), bool),
        "observation_type": str,
    }

    def arguments(self, owner: str, options: dict[str, Any]) -> dict[str, Any]:
        maps = importlib.import_module("jaxmarl.environments.smax.smax_env").MAP_NAME_TO_SCENARIO
        nearest = closest(self.battle_map, maps)
        require(self.battle_map in maps, f"SMAX has no map '{self.battle_map}': {nearest} (jaxmarl:smax-MAP)")
        mode, modes = options.get("attack_mode", "closest"), ("closest", "random")
        require(mode in modes, f"{owner}: attack_mode is '{mode}': {closest(mode, modes)}")
        return super().arguments(owner, options) | {"scenario": maps[self.battle_map]}

    def order(self, env: Any) -> OthersOrder:
        """Other allies ascending, then the enemies, the unit itself last; cones around the unit tell nobody's number."""
        return "ascending" if env.observation_type == "unit_list" else "unknown"

    def names(self, env: Any) -> tuple[str, ...]:
        if env.action_type == "continuous":
            return tuple(env.continuous_action_dims)
        return ("up", "right", "down", "left", "stop", *(f"attack_{enemy + 1}" for enemy in range(env.num_enemies)))

    def longest(self, env: Any) -> int:
        return env.max_steps + 1  # here too the clock is looked at before it moves on

    def present(self, env: Any, after: Any) -> Bool[Array, " A"]:
        return after.state.unit_alive[: env.num_allies]

    def earns_with_team(self, env: Any) -> bool:
        return True

    def truly(self, env: Any, before: Any, actions: dict[Any, Array], after: Any) -> Bool[Array, ""]:
        alive = after.state.unit_alive
        return ~alive[: env.num_allies].any() | ~alive[env.num_allies :].any()

    def won(self, env: Any, state: Any) -> Bool[Array, ""]:
        """All enemies have fallen and an ally stands; to fall together is no win."""
        alive = state.state.unit_alive
        return alive[: env.num_allies].any() & ~alive[env.num_allies :].any()

    def legal(self, env: Any, state: Any) -> list[Array]:
        mask = env.get_avail_actions(state)
        return [mask[agent] for agent in env.agents]


GAMES: dict[str, Adapter] = {
    "MPE_simple_v3": Particles("SimpleMPE", "cooperative"),
    "MPE_simple_tag_v3": SimpleTag("SimpleTagMPE", "mixed"),
    "MPE_simple_world_comm_v3": Tag("SimpleWorldCommMPE", "mixed", action_names=()),
    "MPE_simple_spread_v3": Particles("SimpleSpreadMPE", "cooperative", alike=True),
    "MPE_simple_crypto_v3": Particles("SimpleCryptoMPE", "mixed", "unknown", action_names=("say_1", "say_2", "say_3", "say_4")),
    "MPE_simple_speaker_listener_v4": Particles("SimpleSpeakerListenerMPE", "cooperative", action_names=()),
    "MPE_simple_push_v3": Particles("SimplePushMPE", "mixed"),
    "MPE_simple_adversary_v3": Particles("SimpleAdversaryMPE", "mixed"),
    "MPE_simple_reference_v3": Particles("SimpleReferenceMPE", "cooperative", action_names=()),
    "MPE_simple_facmac_v1": Tag("SimpleFacmacMPE", "cooperative", action_types=(), scripted_prey=True),
    **{
        f"MPE_simple_facmac_{hunters}a_v1": Tag(f"SimpleFacmacMPE{hunters}a", "cooperative", action_types=(), scripted_prey=True)
        for hunters in (3, 6, 9)
    },
    "switch_riddle": Riddle("SwitchRiddle", "cooperative", action_names=("nothing", "switch_light", "tell")),
    "hanabi": Hanabi("Hanabi", "cooperative", "rotated"),
    "overcooked": Kitchen(
        "Overcooked",
        "cooperative",
        action_names=("up", "down", "right", "left", "stay", "interact"),
        layouts="overcooked_layouts",
        timer_layer=20,
    ),
    "overcooked_v2": Kitchen(
        "OvercookedV2",
        "cooperative",
        action_names=("right", "down", "left", "up", "stay", "interact"),
        layouts="overcooked_v2_layouts",
    ),
    "coin_game": Coin("CoinGame", "mixed", action_names=("right", "left", "up", "down", "stay"), noop=4, horizon=100),
    "storm": Storm("InTheGrid", "mixed", action_names=("left", "right", "forward", "interact", "stay"), noop=4),
    "storm_2p": Storm(
        "InTheGrid_2p", "mixed", action_names=("left", "right", "forward", "interact", "stay"), noop=4, two_seats=True
    ),
    "storm_np": Storm(
        "InTheMatrix",
        "mixed",
        action_names=("left", "right", "forward", "stay", "zap_forward", "zap_ahead", "zap_right", "zap_left"),
        noop=3,
    ),
    "jaxnav": Robots("JaxNav", "mixed"),
}
"""Every JaxMARL game we bring in, except `smax-<map>`."""

_CONTINUOUS = "for continuous actions type jaxmarl:MPE_simple_spread_v3?action_type=continuous"
REFUSED: dict[str, str] = {
    "smax": "needs a map: type jaxmarl:smax-3m",
    "SMAX": "has both armies as seats and no map: type jaxmarl:smax-3m",
    "HeuristicEnemySMAX": "has no map: type jaxmarl:smax-3m",
    "LearnedPolicyEnemySMAX": "needs a network for the enemy, which an id cannot name: type jaxmarl:smax-3m",
    **dict.fromkeys(
        ("ant_4x2", "halfcheetah_6x1", "hopper_3x1", "humanoid_9|8", "walker2d_2x3"),
        f"needs brax, which JaxMARL does not install: {_CONTINUOUS}",
    ),
}


def _as_default(value: Any, wanted: Any, owner: str, option: str) -> Any:
    """An option's value as its constructor wants it: of a simple type, or an array where the default is one."""
    if isinstance(wanted, type):
        return as_type(value, wanted, owner, option)
    if isinstance(wanted, Array):
        return jnp.asarray(value)
    return np.asarray(value) if isinstance(wanted, np.ndarray) else value


def find(name: str) -> Adapter:
    """The adapter of the game with this name (without `jaxmarl:`)."""
    if name in GAMES:
        return GAMES[name]
    if name.startswith("smax-"):
        return Battle("HeuristicEnemySMAX", "cooperative", battle_map=name.removeprefix("smax-"))
    if name in REFUSED:
        raise BadInput(f"jaxmarl:{name} {REFUSED[name]}")
    if name.startswith("JaxRobotarium"):
        raise BadInput(f"jaxmarl:{name} needs jaxrobotarium, which JaxMARL does not install: for robots type jaxmarl:jaxnav")
    raise BadInput(f"no JaxMARL game '{name}': {closest(name, [*GAMES, 'smax-3m', 'smax-2s3z', 'smax-corridor'])}")
