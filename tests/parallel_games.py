"""Small PettingZoo games, each with one thing that a bridge can get wrong. Worker processes import this, so it imports no jax."""

import sys
import types
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv


class Small(ParallelEnv):
    """Agents a, b, c for `length` steps. Whoever acts earns the action it took; the observation is the time and the seed."""

    metadata = {"name": "small"}  # noqa: RUF012
    names: tuple[str, ...] = ("a", "b", "c")

    def __init__(self, length: int = 5, render_mode: str | None = None) -> None:
        self.length = length
        self.possible_agents = list(self.names)
        self.time = 0
        self.seed = 0

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(3)

    def observe(self, agent: str) -> Any:
        return np.array([self.time, self.seed % 1000], np.float64)

    def info(self, agent: str) -> dict[str, Any]:
        return {}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.time, self.seed = 0, seed or 0
        self.agents = list(self.possible_agents)
        return {agent: self.observe(agent) for agent in self.agents}, {agent: self.info(agent) for agent in self.agents}

    def reward(self, agent: str, action: Any) -> float:
        return float(np.sum(action))

    def ends(self) -> tuple[set[str], set[str]]:
        """Who is terminated and who is truncated now."""
        return (set(self.agents), set()) if self.time >= self.length else (set(), set())

    def step(self, actions: dict[str, Any]) -> Any:
        assert set(actions) == set(self.agents)
        assert all(self.action_space(agent).contains(action) for agent, action in actions.items()), actions
        self.time += 1
        acting = self.agents
        terminated, truncated = self.ends()
        result = (
            {agent: self.observe(agent) for agent in acting},
            {agent: self.reward(agent, actions[agent]) for agent in acting},
            {agent: agent in terminated for agent in acting},
            {agent: agent in truncated for agent in acting},
            {agent: self.info(agent) for agent in acting},
        )
        self.agents = [agent for agent in acting if agent not in terminated | truncated]
        return result


class Leaving(Small):
    """a is terminated after step 1, b truncated after step 2, c comes after step 1 and stays to the end, of either kind."""

    def __init__(self, truncate_last: bool = False, truncate_b: bool = True) -> None:
        super().__init__(4)
        self.truncate_last, self.truncate_b = truncate_last, truncate_b

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed)
        self.agents = ["a", "b"]
        return {agent: self.observe(agent) for agent in self.agents}, {}

    def ends(self) -> tuple[set[str], set[str]]:
        last = {"c"} if self.time == 4 else set()
        b = {"b"} if self.time == 2 else set()
        terminated = ({"a"} if self.time == 1 else set()) | (set() if self.truncate_last else last)
        return terminated | (set() if self.truncate_b else b), (last if self.truncate_last else set()) | (
            b if self.truncate_b else set()
        )

    def step(self, actions: dict[str, Any]) -> Any:
        result = super().step(actions)
        if self.time == 1:
            self.agents.append("c")
            result[0]["c"] = self.observe("c")
        return result


class Masked(Small):
    """Agents with different spaces, and masks inside the observations: only even actions are legal, or those below the time."""

    def observation_space(self, agent: str) -> spaces.Space:
        seen = spaces.Box(0, 10, (2 + self.names.index(agent),), np.float32)
        mask = spaces.Box(0, 1, (self.action_space(agent).n,), np.int8)
        return spaces.Dict({"observation": seen, "action_mask": mask})

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(3 + self.names.index(agent), start=1)

    def observe(self, agent: str) -> Any:
        number = self.names.index(agent)
        mask = np.arange(3 + number) % 2 == 0
        return {"observation": np.full(2 + number, 1 + number, np.float32), "action_mask": mask.astype(np.int8)}

    def reward(self, agent: str, action: Any) -> float:
        assert (action - 1) % 2 == 0
        return float(action)


class MaskedInInfos(Small):
    """Masks in the infos, as our own way out gives them, and observations alone from `reset`, as StarCraft's wrapper does."""

    def __init__(self, infos_at_reset: bool = True) -> None:
        super().__init__()
        self.infos_at_reset = infos_at_reset

    def info(self, agent: str) -> dict[str, Any]:
        return {"action_mask": np.array([0, 1, 0], np.int8)}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observations, infos = super().reset(seed)
        return (observations, infos) if self.infos_at_reset else observations


class Pictures(Small):
    """Each agent sees a picture of another size."""

    def observation_space(self, agent: str) -> spaces.Space:
        size = 2 + self.names.index(agent)
        return spaces.Box(0, 255, (size, 3, size), np.uint8)

    def observe(self, agent: str) -> Any:
        return np.full(self.observation_space(agent).shape, 255, np.uint8)


class Ranks(Small):
    """One agent sees a picture, one a number out of four, one a vector."""

    def observation_space(self, agent: str) -> spaces.Space:
        return {"a": spaces.Box(0, 8, (2, 3)), "b": spaces.Discrete(4), "c": spaces.Box(-4, 4, (5,))}[agent]

    def observe(self, agent: str) -> Any:
        return {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.int64(2), "c": np.full(5, -4, np.float32)}[agent]


class Walkers(Small):
    """Continuous actions of different dimensions; whoever acts earns the sum of what arrives."""

    def action_space(self, agent: str) -> spaces.Space:
        dims = 1 + self.names.index(agent)
        return spaces.Box(-1.0, 0.5 * dims, (dims, 1), np.float32)


class Knowing(Small):
    """Earns 1 a step where jax has been imported."""

    def reward(self, agent: str, action: Any) -> float:
        return float("jax" in sys.modules)


class Raising(Small):
    """Prints in its first step and raises in its second."""

    def step(self, actions: dict[str, Any]) -> Any:
        print("a game may print")
        if self.time == 1:
            raise ZeroDivisionError("the dice fell off the table")
        return super().step(actions)


class Strange(Small):
    """Spaces that cannot come in."""

    def __init__(self, actions: str = "discrete", observations: str = "box") -> None:
        super().__init__()
        self.actions, self.observations = actions, observations

    def action_space(self, agent: str) -> spaces.Space:
        if self.actions == "mixed":
            return spaces.Discrete(2) if agent == "a" else spaces.Box(0, 1, (2,))
        return {"discrete": spaces.Discrete(2), "multi": spaces.MultiDiscrete([2, 2]), "integers": spaces.Box(0, 9, (1,), int)}[
            self.actions
        ]

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(0, 1, (2,)) if self.observations == "box" else spaces.Sequence(spaces.Box(0, 1, (2,)))


class Nobody(Small):
    names = ()


class Turns(AECEnv):
    """Played in turns, and only in turns."""

    metadata = {"name": "turns", "is_parallelizable": False}  # noqa: RUF012


def empty(**options: Any) -> object:
    """Opens something that is no game."""
    return object()


def melting_pot(steps: int = 7) -> ParallelEnv:
    """Shimmy's own wrapper around a substrate with Melting Pot's specs and time steps; Melting Pot itself need not be there."""
    if "dm_env" not in sys.modules:
        _stand_in_for_dm_env()
    from shimmy.meltingpot_compatibility import MeltingPotCompatibilityV0

    return MeltingPotCompatibilityV0(env=Substrate(), max_cycles=steps)


class Spec(NamedTuple):
    shape: tuple[int, ...] = ()
    dtype: Any = np.float64


class BoundedSpec(NamedTuple):
    shape: tuple[int, ...]
    dtype: Any
    minimum: int
    maximum: int


class DiscreteSpec(NamedTuple):
    num_values: int


class Moment(NamedTuple):
    step_type: int
    reward: list[float] | None
    discount: float
    observation: list[dict[str, np.ndarray]]

    def last(self) -> bool:
        return False


class Substrate:
    """Two players of a Melting Pot substrate: a picture, whether one can shoot, and a view of the world, not meant for them."""

    def observation_spec(self) -> list[dict[str, Any]]:
        picture = BoundedSpec((8, 8, 3), np.uint8, 0, 255)
        return [{"RGB": picture, "READY_TO_SHOOT": Spec(), "WORLD.RGB": BoundedSpec((9, 9, 3), np.uint8, 0, 255)}] * 2

    def action_spec(self) -> list[Any]:
        return [DiscreteSpec(8)] * 2

    def _moment(self, reward: list[float] | None) -> Moment:
        seen = [
            {
                "RGB": np.full((8, 8, 3), 51 * (1 + player), np.uint8),
                "READY_TO_SHOOT": np.array(1.0),
                "WORLD.RGB": np.zeros((9, 9, 3)),
            }
            for player in range(2)
        ]
        return Moment(1, reward, 1.0, seen)

    def reset(self) -> Moment:
        return self._moment(None)

    def step(self, actions: list[int]) -> Moment:
        return self._moment([float(action) for action in actions])

    def close(self) -> None:
        pass


def _stand_in_for_dm_env() -> None:
    """Enough of dm_env for Shimmy to be imported: the classes of specs that it tells apart."""
    specs = types.ModuleType("dm_env.specs")
    specs.Array, specs.BoundedArray, specs.DiscreteArray = Spec, BoundedSpec, DiscreteSpec
    dm_env = types.ModuleType("dm_env")
    dm_env.specs, dm_env.TimeStep = specs, Moment
    sys.modules["dm_env"], sys.modules["dm_env.specs"] = dm_env, specs


class Undead(Small):
    """a is terminated after step 2 and stays among the agents, and goes on earning."""

    def step(self, actions: dict[str, Any]) -> Any:
        observations, rewards, terminations, truncations, infos = super().step(actions)
        terminations["a"] = terminations.get("a", False) or self.time == 2
        return observations, rewards, terminations, truncations, infos
