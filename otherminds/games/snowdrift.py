"""Snowdrift: clearing a drift pays everyone and costs only those who do it."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PRNGKeyArray, UInt8

from otherminds.config import require
from otherminds.games.base import (
    LARGEST_BOARD,
    Board,
    Game,
    Kind,
    Outcome,
    State,
    Thing,
    legal_or,
    require_integer,
    require_number,
)
from otherminds.games.ego import all_to_ego
from otherminds.games.grid import STAY, at, cells_of, free_moves, move, planes
from otherminds.games.paths import steps_to, value_at

CLEAR = 5


class SnowdriftState(State):
    """Cells are numbered row by row; -1 stands for a drift that is gone."""

    by_seat: ClassVar[tuple[str, ...]] = ("position", "has_cleared")

    position: Int[Array, " A"]
    drift: Int[Array, " drifts"]
    time: Int[Array, ""]
    has_cleared: Bool[Array, " A"]  # for `goal_reached` alone: neither rules nor observations read it


@dataclass(frozen=True)
class Snowdrift(Game):
    """Nobody leaves; it is over when no drift is left or at the horizon. Options as fields."""

    height: int = 8
    width: int = 8
    players: int = 4
    drifts: int = 6
    reward: float = 6.0
    cost: float = 4.0
    horizon: int = 50

    family: ClassVar[str] = "snowdrift"
    kind: ClassVar[Kind] = "mixed"
    symmetric: ClassVar[bool] = True
    action_names: ClassVar[tuple[str, ...]] = ("up", "down", "left", "right", "stay", "clear")

    def __post_init__(self) -> None:
        require_integer("snowdrift", 1, LARGEST_BOARD, height=self.height, width=self.width)
        require_integer("snowdrift", 1, LARGEST_BOARD**2, drifts=self.drifts)
        require_integer("snowdrift", 2, 8, players=self.players)
        require_integer("snowdrift", 1, 255, horizon=self.horizon)  # observed as a byte
        require_number("snowdrift", reward=self.reward, cost=self.cost)
        things = self.players + self.drifts
        require(
            things <= self.cells,
            f"snowdrift: {things} players and drifts do not fit on {self.height}x{self.width} = {self.cells} cells: "
            "ask for fewer, or a larger height or width",
        )

    @property
    def cells(self) -> int:
        return self.height * self.width

    @property
    def seats(self) -> int:
        return self.players

    @property
    def goals(self) -> tuple[str, ...]:
        """The cell of the drift a player is after, or none: to let the others do it.

        Cells rather than a drift's number in the list, because an observation shows where a drift is and nothing else of it.
        """
        return (*(f"drift_at_{row}_{column}" for row in range(self.height) for column in range(self.width)), "none")

    @property
    def observation_shape(self) -> tuple[int, ...]:
        return (self.players + 2, self.height, self.width)

    @property
    def shown_of_each(self) -> int:
        return 1

    @property
    def things(self) -> tuple[str, ...]:
        return ("drift", "time")

    @property
    def observation_dtype(self) -> type:
        return jnp.uint8

    @property
    def observation_scale(self) -> np.ndarray:
        scale = np.ones((self.players + 2, 1, 1), np.float32)
        scale[-1] = 1 / self.horizon
        return scale

    @property
    def longest(self) -> int:
        return self.horizon

    def reset(self, key: PRNGKeyArray) -> SnowdriftState:
        order = jax.random.permutation(key, self.cells)
        position, drift = order[: self.players], order[self.players : self.players + self.drifts]
        return SnowdriftState(position, drift, jnp.int32(0), jnp.zeros(self.players, bool))

    def present(self, state: SnowdriftState) -> Bool[Array, " A"]:
        return jnp.ones(self.players, bool)

    def legal(self, state: SnowdriftState) -> Bool[Array, "A actions"]:
        moves = free_moves(state.position, None, self.height, self.width)
        on_drift = at(state.position, state.drift).any(-1, keepdims=True)
        return jnp.concatenate([moves, jnp.ones_like(on_drift), on_drift], -1)

    def step(self, state: SnowdriftState, action: Int[Array, " A"], key: PRNGKeyArray) -> tuple[SnowdriftState, Outcome]:
        action = legal_or(STAY, action, self.legal(state))
        clearing = (action == CLEAR)[:, None] & at(state.position, state.drift)  # [A, drifts]
        cleared = clearing.any(0)
        cost = (clearing / jnp.maximum(clearing.sum(0, keepdims=True), 1)).sum(-1) * self.cost
        after = SnowdriftState(
            position=move(state.position, action, self.width),
            drift=jnp.where(cleared, -1, state.drift),
            time=state.time + 1,
            has_cleared=state.has_cleared | clearing.any(-1),
        )
        outcome = Outcome(
            reward=cleared.sum() * jnp.float32(self.reward) - cost,
            left=jnp.zeros(self.players, bool),
            terminated=self._over(after),
            truncated=jnp.bool_(False),
        )
        return after, outcome

    def _over(self, state: SnowdriftState) -> Bool[Array, ""]:
        return (state.time >= self.horizon) | (state.drift < 0).all()

    def observe(self, state: SnowdriftState) -> UInt8[Array, "A planes H W"]:
        board = (self.height, self.width)
        players = planes(all_to_ego(state.position, tuple(range(self.players))), *board)  # [A, A, H, W]
        drift = jnp.broadcast_to(planes(state.drift, *board).any(0), (self.players, 1, *board))
        time = jnp.full((self.players, 1, *board), state.time.astype(jnp.uint8))
        return jnp.concatenate([players.astype(jnp.uint8), drift.astype(jnp.uint8), time], 1)

    def goal_reached(self, state: SnowdriftState, action: Int[Array, " A"], after: SnowdriftState) -> Int[Array, " A"]:
        gone = (state.drift >= 0) & (after.drift < 0)
        cleared = (action == CLEAR) & (at(state.position, state.drift) & gone[None]).any(-1)
        none = jnp.where(self._over(after) & ~after.has_cleared, self.cells, -1)
        return jnp.where(cleared, state.position, none)

    def state_of(self, observation: UInt8[Array, "planes H W"], seat: int | Array) -> SnowdriftState:
        flat = observation.reshape(observation.shape[0], self.cells)
        return SnowdriftState(
            position=jnp.argmax(flat[: self.players], -1),
            drift=cells_of(flat[self.players], self.drifts),
            time=flat[-1, 0].astype(jnp.int32),
            has_cleared=jnp.zeros(self.players, bool),
        )

    def steps_to_goal(self, observation: UInt8[Array, "*n planes H W"]) -> Int[Array, "*n"]:
        own, drift = observation[..., 0, :, :] > 0, observation[..., self.players, :, :] > 0
        return value_at(own, steps_to(drift, jnp.zeros_like(drift)))

    def board(self, state: SnowdriftState) -> Board:
        def thing(name: str, cell: int) -> Thing:
            return Thing(name, cell // self.width, cell % self.width)

        players = tuple(thing("player", cell) for cell in np.asarray(state.position).tolist())
        drifts = tuple(thing("drift", cell) for cell in np.asarray(state.drift).tolist() if cell >= 0)
        return Board(self.height, self.width, players, drifts, f"step {int(state.time)} of {self.horizon}")
