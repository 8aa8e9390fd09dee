"""Two players, two actions, one table of payoffs, played again and again."""

from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from otherminds.config import closest, require
from otherminds.games.base import Board, Form, Game, Kind, Outcome, State, Thing, require_integer
from otherminds.games.ego import all_to_ego, to_ego

ROW_PAYOFFS = {  # to the row player for (CC, CD, DC, DD)
    "ipd": (3.0, 0.0, 5.0, 1.0),
    "stag_hunt": (4.0, 0.0, 3.0, 3.0),
    "chicken": (3.0, 1.0, 4.0, 0.0),
    "matching_pennies": (1.0, -1.0, -1.0, 1.0),
}
ACTION_NAMES = {
    "ipd": ("cooperate", "defect"),
    "stag_hunt": ("stag", "hare"),
    "chicken": ("swerve", "straight"),
    "matching_pennies": ("heads", "tails"),
}


class MatrixState(State):
    """What was played last, how often each seat has played action 0, and the time."""

    by_seat: ClassVar[tuple[str, ...]] = ("role", "last", "cooperations")

    role: Int[Array, "2"]  # whose payoffs a seat has: 0 the row player's, 1 the column player's
    last: Int[Array, "2"]  # -1 before the first step
    time: Int[Array, ""]
    cooperations: Int[Array, "2"]  # for `goal_reached` alone: neither rules nor observations read it


@dataclass(frozen=True)
class Matrix(Game):
    """Options: horizon. Action 0 is cooperate, stag, swerve or heads."""

    payoffs: str = field(default="ipd", metadata={"option": False})  # by id
    horizon: int = 100

    family: ClassVar[str] = "matrix"
    form: ClassVar[Form] = "matrix"
    seats: ClassVar[int] = 2
    goals: ClassVar[tuple[str, ...]] = ("cooperate", "defect")
    observation_shape: ClassVar[tuple[int, ...]] = (5,)

    def __post_init__(self) -> None:
        require(self.payoffs in ROW_PAYOFFS, f"matrix: no payoffs '{self.payoffs}': {closest(str(self.payoffs), ROW_PAYOFFS)}")
        require_integer(f"matrix-{self.payoffs}", 1, 10_000, horizon=self.horizon)

    @property
    def action_names(self) -> tuple[str, ...]:
        return ACTION_NAMES[self.payoffs]

    @property
    def kind(self) -> Kind:
        return "zero-sum" if self.payoffs == "matching_pennies" else "mixed"

    @property
    def symmetric(self) -> bool:
        return self.payoffs != "matching_pennies"

    @property
    def shown_of_each(self) -> int:
        return 2

    @property
    def longest(self) -> int:
        return self.horizon

    @property
    def bank_size(self) -> int:
        return 1  # every game starts alike

    @property
    def table(self) -> np.ndarray:
        """Payoffs [seat, own action, other's action]."""
        row = np.array(ROW_PAYOFFS[self.payoffs], np.float32).reshape(2, 2)
        return np.stack([row, row if self.symmetric else -row.T])

    def reset(self, key: PRNGKeyArray) -> MatrixState:
        return MatrixState(jnp.arange(2), jnp.full(2, -1, jnp.int32), jnp.int32(0), jnp.zeros(2, jnp.int32))

    def present(self, state: MatrixState) -> Bool[Array, "2"]:
        return jnp.ones(2, bool)

    def legal(self, state: MatrixState) -> Bool[Array, "2 2"]:
        return jnp.ones((2, 2), bool)

    def step(self, state: MatrixState, action: Int[Array, "2"], key: PRNGKeyArray) -> tuple[MatrixState, Outcome]:
        action = jnp.clip(action, 0, 1)
        after = MatrixState(state.role, action, state.time + 1, state.cooperations + (action == 0))
        reward = jnp.array(self.table)[state.role, action, to_ego(action, 1)]
        outcome = Outcome(reward, jnp.zeros(2, bool), after.time >= self.horizon, jnp.bool_(False))
        return after, outcome

    def observe(self, state: MatrixState) -> Float[Array, "2 5"]:
        """One-hot own last action, one-hot other's last action, share of the time elapsed."""
        actions = jax.nn.one_hot(all_to_ego(state.last, (0, 1)), 2).reshape(2, 4)
        time = jnp.full((2, 1), state.time / self.horizon)
        return jnp.concatenate([actions, time], -1)

    def goal_reached(self, state: MatrixState, action: Int[Array, "2"], after: MatrixState) -> Int[Array, "2"]:
        """At the end of an episode, what a seat has mostly played."""
        mostly = jnp.where(2 * after.cooperations >= self.horizon, 0, 1)
        return jnp.where(after.time >= self.horizon, mostly, -1)

    def state_of(self, observation: Float[Array, "5"], seat: int | Array) -> MatrixState:
        played = observation[:4].reshape(2, 2)
        last = jnp.where(played.any(-1), jnp.argmax(played, -1), -1)
        time = jnp.round(observation[4] * self.horizon).astype(jnp.int32)
        return MatrixState(to_ego(jnp.arange(2), seat), last, time, jnp.zeros(2, jnp.int32))

    def board(self, state: MatrixState) -> Board:
        last = np.asarray(state.last)
        cards = tuple(Thing(self.action_names[action], 1, seat) for seat, action in enumerate(last) if action >= 0)
        players = (Thing("player", 0, 0), Thing("player", 0, 1))
        return Board(2, 2, players, cards, f"step {int(state.time)} of {self.horizon}")
