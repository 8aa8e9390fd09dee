"""One PettingZoo game as rows of arrays: finding it, opening it, and turning its dicts of agents into an axis of seats.

Worker processes import this, so it may not import jax, and loads PettingZoo and Gymnasium only when a game is opened.
"""

import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from otherminds.config import BadInput, closest, require

if TYPE_CHECKING:
    from gymnasium import Space
    from gymnasium.spaces import Box
    from pettingzoo import ParallelEnv

MASK = "action_mask"  # where PettingZoo keeps legal actions: in a dict of observations, or in the infos


def open_game(name: str, options: Mapping[str, Any]) -> "ParallelEnv":
    """Open the game that `MODULE` or `MODULE:ATTRIBUTE` names. A game of turns must say that it can be played in parallel."""
    from pettingzoo import AECEnv
    from pettingzoo.utils.conversions import aec_to_parallel

    constructor, defaults = _find(name)
    given = ", ".join(f"{key}={value!r}" for key, value in options.items()) or "no options"
    try:
        env = constructor(**{**defaults, **options})
    except ImportError as error:
        raise BadInput(_cannot_import(name, error)) from error
    except Exception as error:  # whatever a stranger's constructor raises, the user asked for something it will not open
        raise BadInput(f"pettingzoo:{name} does not open with {given}: {_one_line(error)}") from error
    if isinstance(env, AECEnv):
        require(
            bool(env.metadata.get("is_parallelizable")),
            f"pettingzoo:{name} is played in turns (AEC) and does not say that it can be parallel: name a parallel_env",
        )
        env = aec_to_parallel(env)
    require(hasattr(env, "step"), f"pettingzoo:{name} gives a {type(env).__name__}: expected a ParallelEnv")
    require(
        bool(getattr(env, "possible_agents", None)),
        f"pettingzoo:{name} has no possible_agents: the seats of a game must be known before its first step",
    )
    return env


def _find(name: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The constructor that `name` stands for, and the options it is registered with."""
    from pettingzoo import aec_registry, parallel_registry

    module_name, colon, attribute = name.partition(":")
    if not colon:
        spec = _newest_registered(module_name, parallel_registry)
        if spec is not None:
            entry = spec.entry_point
            defaults = dict(spec.kwargs) | ({} if spec.max_cycles is None else {"max_cycles": spec.max_cycles})
            return (entry if callable(entry) else _attribute(name, *entry.split(":"))), defaults
        require(
            _newest_registered(module_name, aec_registry) is None,
            f"pettingzoo:{name} is played in turns (AEC only): only games in which all move at once can come in",
        )
    found = _module(module_name)
    if not colon:
        module = _import(name, found)
        attribute = "env" if hasattr(module, "env") and not hasattr(module, "parallel_env") else "parallel_env"
    return _attribute(name, found, attribute), {}


def _dotted(spec: Any) -> str:
    return f"{spec.namespace}.{spec.name}" if spec.namespace else spec.name


def _newest_registered(module_name: str, registry: Mapping[str, Any]) -> Any:
    """PettingZoo's own entry for `sisl.pursuit` or `sisl.pursuit_v5`, of the newest version if none is named."""
    asked = module_name.removeprefix("pettingzoo.")
    entries = [spec for spec in registry.values() if asked in (_dotted(spec), f"{_dotted(spec)}_v{spec.version}")]
    return max(entries, key=lambda spec: spec.version or 0, default=None)


def _module(name: str) -> str:
    """The full name of the module meant by `name`: itself, inside PettingZoo, or its newest `_v*`."""
    for candidate in (name, f"pettingzoo.{name}"):
        exact = candidate if _exists(name, candidate) else None
        if exact and any(hasattr(_import(name, exact), entry) for entry in ("parallel_env", "env")):
            return exact
        found = _newest_beside(name, candidate) or exact
        if found:
            return found
    from pettingzoo import parallel_registry

    choices = [f"{_dotted(spec)}_v{spec.version}" for spec in parallel_registry.values()]
    raise BadInput(f"no PettingZoo game '{name}', nor a module of that name: {closest(name, choices)}")


def _exists(owner: str, module_name: str) -> bool:
    try:
        return importlib.util.find_spec(module_name) is not None
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            return False
        raise BadInput(_cannot_import(owner, error)) from error
    except ImportError as error:
        raise BadInput(_cannot_import(owner, error)) from error
    except ValueError:  # not a name that any module could have
        return False


def _newest_beside(owner: str, module_name: str) -> str | None:
    """The module `<module_name>_v<number>` with the largest number, if there is one."""
    parent, _, bare = module_name.rpartition(".")
    if not parent or not _exists(owner, parent):
        return None
    beside = [module.name for module in pkgutil.iter_modules(getattr(_import(owner, parent), "__path__", []))]
    versions = [int(found[1]) for found in (re.fullmatch(rf"{re.escape(bare)}_v(\d+)", name) for name in beside) if found]
    return f"{parent}.{bare}_v{max(versions)}" if versions else None


def _import(owner: str, module_name: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ImportError as error:
        raise BadInput(_cannot_import(owner, error)) from error


def _attribute(owner: str, module_name: str, attribute: str) -> Callable[..., Any]:
    module = _import(owner, module_name)
    if not callable(getattr(module, attribute, None)):
        choices = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        hint = closest(attribute, choices) if choices else "name one that has a parallel_env"
        raise BadInput(f"pettingzoo:{owner}: {module_name} has no '{attribute}' that opens a game: {hint}")
    return getattr(module, attribute)


def _cannot_import(owner: str, error: ImportError) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        group = owner.removeprefix("pettingzoo.").partition(".")[0]
        own = group in ("atari", "butterfly", "classic", "sisl")
        remedy = f'pip install "pettingzoo[{group}]"' if own else f"install '{error.name.partition('.')[0]}'"
        return f"pettingzoo:{owner} needs the package '{error.name}', which is not installed: {remedy}"
    return f"pettingzoo:{owner} cannot be imported: {_one_line(error)}"


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


@dataclass(frozen=True)
class Layout:
    """The shapes of a game's arrays, the same for all its seats. What a seat lacks of them is padding."""

    agents: tuple[Any, ...]
    observation_shape: tuple[int, ...]
    observation_dtype: np.dtype
    observation_scale: np.ndarray  # of the observation's shape, or a single number
    continuous: bool
    actions: int  # how many there are, or the dimensions of a continuous one

    @property
    def row(self) -> np.dtype:
        """What one game shows and brings at one step."""
        seats = len(self.agents)
        return np.dtype(
            [
                ("observation", self.observation_dtype, (seats, *self.observation_shape)),  # also of seats that have just gone
                ("legal", bool, (seats, self.actions)),
                ("present", bool, (seats,)),
                ("reward", np.float32, (seats,)),
                ("left", bool, (seats,)),
                ("terminated", bool),
                ("truncated", bool),
            ],
            align=True,
        )

    @property
    def action(self) -> np.dtype:
        """What all seats of one game do at one step."""
        seats = len(self.agents)
        return np.dtype((np.float32, (seats, self.actions))) if self.continuous else np.dtype((np.int32, (seats,)))


class Seat:
    """How one agent's observations and actions are written as numbers."""

    def __init__(self, name: str, agent: Any, observation: "Space", action: "Space") -> None:
        from gymnasium import spaces

        self.agent = agent
        self.key: str | None = None  # what to pick from a dict of observations that also holds a mask
        self.masked = False
        if isinstance(observation, spaces.Dict) and MASK in observation.spaces:
            self.masked = True
            rest = {key: space for key, space in observation.spaces.items() if key != MASK}
            self.key = next(iter(rest)) if len(rest) == 1 else None
            observation = rest[self.key] if self.key is not None else spaces.Dict(rest)
        self.flat_of = None if isinstance(observation, spaces.Box) else observation
        box = observation if isinstance(observation, spaces.Box) else _flattened(name, agent, observation)
        self.shape: tuple[int, ...] = box.shape
        self.dtype = np.dtype(np.uint8 if box.dtype in (np.uint8, np.bool_) else np.float32)
        self.bound = np.maximum(np.abs(box.low.astype(np.float32)), np.abs(box.high.astype(np.float32)))

        self.space: Any = action
        if isinstance(action, spaces.Discrete):
            self.actions = int(action.n)
        elif isinstance(action, spaces.Box) and np.issubdtype(action.dtype, np.floating) and action.is_bounded():
            self.actions = int(np.prod(action.shape))
        else:
            raise BadInput(
                f"pettingzoo:{name}: {agent} acts in {action}: expected Discrete, or a bounded Box of floating-point numbers"
            )
        self.continuous = isinstance(action, spaces.Box)

    def read(self, observation: Any) -> tuple[np.ndarray, Any]:
        """The numbers in an observation, and the mask of legal actions if it holds one."""
        mask = observation[MASK] if self.masked else None
        if self.masked:
            rest = {key: value for key, value in observation.items() if key != MASK}
            observation = rest if self.key is None else rest[self.key]
        if self.flat_of is not None:
            from gymnasium.spaces.utils import flatten

            observation = flatten(self.flat_of, observation)
        return np.asarray(observation).reshape(self.shape), mask

    def act(self, action: Any) -> Any:
        """What the game takes for the number, or the numbers from 0 to 1, that a policy gives."""
        if self.continuous:
            share = np.clip(np.asarray(action[: self.actions], self.space.dtype), 0, 1).reshape(self.space.shape)
            return self.space.low + share * (self.space.high - self.space.low)
        if not 0 <= action < self.actions:
            raise ValueError(f"{self.agent} has {self.actions} actions, and was to take number {action}")
        return int(action) + int(self.space.start)


def _flattened(name: str, agent: Any, space: "Space") -> "Box":
    from gymnasium import spaces
    from gymnasium.spaces.utils import flatten_space

    try:
        flat = flatten_space(space)
    except NotImplementedError:
        flat = None
    if not isinstance(flat, spaces.Box):
        raise BadInput(f"pettingzoo:{name}: {agent} observes {space}: expected spaces of a fixed size")
    return flat


def seats_of(name: str, env: "ParallelEnv") -> tuple[Seat, ...]:
    """One seat for each possible agent, in order."""
    seats = tuple(Seat(name, agent, env.observation_space(agent), env.action_space(agent)) for agent in env.possible_agents)
    require(
        len({seat.continuous for seat in seats}) == 1,
        f"pettingzoo:{name}: some agents have discrete actions and others continuous ones, expected one kind for all",
    )
    return seats


def lay_out(seats: Sequence[Seat]) -> Layout:
    """Arrays large enough for every seat. Where observations have different ranks, all are laid out flat."""
    if len({len(seat.shape) for seat in seats}) > 1:
        for seat in seats:
            seat.shape = (int(np.prod(seat.shape)),)
            seat.bound = seat.bound.reshape(seat.shape)
    shape = tuple(int(size) for size in np.max([seat.shape for seat in seats], axis=0))
    bound = np.ones(shape, np.float32)
    for seat in seats:
        corner = _corner(seat.shape)
        bound[corner] = np.maximum(bound[corner], seat.bound)
    # Infinity and the largest integers say that there is no bound; such an entry is left as it is.
    scale = np.where(bound < 2**31 - 1, 1 / bound, 1).astype(np.float32)
    continuous, actions = seats[0].continuous, max(seat.actions for seat in seats)
    return Layout(
        agents=tuple(seat.agent for seat in seats),
        observation_shape=shape,
        observation_dtype=np.result_type(*(seat.dtype for seat in seats)),
        observation_scale=scale if np.ptp(scale) else scale.reshape(-1)[:1].reshape(()),
        continuous=continuous,
        actions=actions,
    )


def _corner(shape: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(size) for size in shape)


class Table:
    """One game being played. It never starts anew by itself, and writes what there is to see into a row (`Layout.row`).

    Who is there, and how things end:
    - a seat is present while its agent is in `env.agents` and has been given no end;
    - a seat whose agent is terminated has left until the next episode, whatever the game still says of it: nothing of value
      follows for it, and should the game ask for its action, action 0 is given;
    - a seat whose agent is truncated, or merely vanishes, while others play on is absent and has not left;
    - the game is over when nobody is present. It was cut off (`truncated`) if any seat was truncated in this episode and never
      terminated, else it truly ended (`terminated`). An agent that gets both flags at once counts as terminated.
    """

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self.env = open_game(name, options)
        self.seats = seats_of(name, self.env)
        self.layout = lay_out(self.seats)
        self.number = {seat.agent: number for number, seat in enumerate(self.seats)}
        self.left: set[Any] = set()  # agents terminated in this episode
        self.cut_off: set[Any] = set()  # agents truncated in this episode and never terminated

    def reset(self, seed: int, row: Any) -> None:
        opened = self.env.reset(seed=seed)
        # StarCraft's wrapper gives observations alone, without infos.
        observations, infos = opened if isinstance(opened, tuple) else (opened, {})
        self.left, self.cut_off = set(), set()
        self._look(list(self.env.agents), observations, infos, row)

    def step(self, action: np.ndarray, row: Any) -> None:
        # The list is copied because some games change it in place while they step.
        acting = list(self.env.agents)
        chosen = {agent: self._action(agent, action) for agent in acting}
        observations, rewards, terminations, truncations, infos = self.env.step(chosen)
        left = {agent for agent, flag in terminations.items() if flag and agent in self.number} - self.left
        self.cut_off |= {agent for agent, flag in truncations.items() if flag and agent in self.number}
        gone_before = set(self.left)
        self.left |= left
        self.cut_off -= self.left
        present = [agent for agent in self.env.agents if agent not in self.left and agent not in self.cut_off]
        self._look(present, observations, infos, row)
        for agent, reward in rewards.items():
            if agent in self.number and agent not in gone_before:
                row["reward"][self.number[agent]] = reward
        for agent in left:
            row["left"][self.number[agent]] = True
        row["terminated"] = not present and not self.cut_off
        row["truncated"] = not present and bool(self.cut_off)

    def _action(self, agent: Any, action: np.ndarray) -> Any:
        chosen = action[self.number[agent]]
        return self.seats[self.number[agent]].act(np.zeros_like(chosen) if agent in self.left else chosen)

    def _look(self, present: list[Any], observations: Mapping[Any, Any], infos: Mapping[Any, Any], row: Any) -> None:
        masks = {agent: info[MASK] for agent, info in infos.items() if isinstance(info, Mapping) and MASK in info}
        for agent, observation in observations.items():
            if agent in self.number:
                seat = self.seats[self.number[agent]]
                numbers, mask = seat.read(observation)
                row["observation"][self.number[agent]][_corner(seat.shape)] = numbers
                if mask is not None:
                    masks[agent] = mask
        row["legal"][:, 0] = True
        for agent in present:
            row["present"][self.number[agent]] = True
            row["legal"][self.number[agent]] = self._legal(self.seats[self.number[agent]], masks.get(agent))

    def _legal(self, seat: Seat, mask: Any) -> np.ndarray:
        """The mask padded to all actions. Where nothing at all is legal, action 0 is, as for a seat that is absent."""
        legal = np.zeros(self.layout.actions, bool)
        legal[: seat.actions] = True if mask is None or seat.continuous else np.asarray(mask, bool)
        legal[0] |= not legal.any()
        return legal

    def close(self) -> None:
        self.env.close()
