"""The contract of a game: pure functions of one game's state. Parallel games are `vmap`, restarts are `rollout`."""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num, PRNGKeyArray

from otherminds.config import BadInput, require
from otherminds.types import Action

Kind = Literal["mixed", "zero-sum", "cooperative"]
Form = Literal["matrix", "sequential"]
LARGEST_NUMBER = 1_000_000  # of rewards and the like: sums of them stay exact enough in single precision
LARGEST_BOARD = 32  # cells a side
OthersOrder = Literal["rotated", "ascending", "unknown"]


class State(eqx.Module):
    """The state of one game. `by_seat` names the fields whose first axis is the seat."""

    by_seat: ClassVar[tuple[str, ...]] = ()


class Outcome(eqx.Module):
    """What one step of one game brought."""

    reward: Float[Array, " A"]
    left: Bool[Array, " A"]  # nothing of value follows for this seat, though the game may go on
    terminated: Bool[Array, ""]  # the game is over, truly
    truncated: Bool[Array, ""]  # the game was cut off by a limit of time that the seats do not observe


@dataclass(frozen=True)
class Thing:
    """Something to draw on a board."""

    name: str
    row: int
    column: int


@dataclass(frozen=True)
class Board:
    """A picture of a state, free of any library: what stands where, and who is still there."""

    height: int
    width: int
    players: tuple[Thing | None, ...]  # None for a seat that left
    things: tuple[Thing, ...]
    caption: str


@dataclass(frozen=True)
class Game:
    """A game with a fixed number of seats. Its options are its fields; it holds no arrays, so it can be a static argument.

    All methods speak of one game: no leading axes.
    """

    id: str = dataclasses.field(default="", kw_only=True, compare=False, metadata={"option": False})

    on_host: ClassVar[bool] = False  # stepped by Python processes, not compiled

    @property
    def family(self) -> str:
        """Which scripted partners can play it."""
        raise NotImplementedError

    @property
    def continuous(self) -> bool:
        """True if an action is a number from 0 to 1 in each of several dimensions, which the game stretches to its own range."""
        return False

    @property
    def others_order(self) -> OthersOrder:
        """How the other seats stand in an observation."""
        return "rotated"

    @property
    def shown_of_each(self) -> int:
        """How many leading entries of an observation show each player, ego first: 1 for a plane each; 0 where that is unknown."""
        return 0

    @property
    def things(self) -> tuple[str, ...]:
        """On a board: what the planes behind those of the players show."""
        return ()

    @property
    def seats(self) -> int:
        raise NotImplementedError

    @property
    def action_names(self) -> tuple[str, ...]:
        """Names of the discrete actions, or of the dimensions of a continuous one."""
        raise NotImplementedError

    @property
    def actions(self) -> int:
        return len(self.action_names)

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Of one seat."""
        raise NotImplementedError

    @property
    def observation_dtype(self) -> Any:
        return jnp.float32

    @property
    def observation_scale(self) -> np.ndarray:
        """What to multiply an observation by so that its entries are of order one."""
        return np.ones((), np.float32)

    @property
    def kind(self) -> Kind:
        raise NotImplementedError

    @property
    def form(self) -> Form:
        return "sequential"

    @property
    def pays_everywhere(self) -> bool:
        """Of boards: whether what happens on one cell pays players on others, or ends the game for them."""
        return True

    @property
    def symmetric(self) -> bool:
        """True if permuting the seats of a state and the actions permutes what follows."""
        raise NotImplementedError

    @property
    def goals(self) -> tuple[str, ...]:
        """Names of what a seat can be after; empty where no goals are given by hand."""
        return ()

    @property
    def longest(self) -> int | None:
        """The largest number of steps in an episode, if there is one."""
        return None

    @property
    def truncates(self) -> bool:
        """True if an episode can be cut off by a limit of time that the seats do not observe."""
        return False

    @property
    def winnable(self) -> bool:
        """True if an episode can be won or lost by all seats together."""
        return False

    def won(self, state: Any) -> Bool[Array, ""]:
        """Whether an episode that ended in this state was won."""
        raise BadInput(f"{self.id or self.family} is neither won nor lost")

    @property
    def bank_size(self) -> int:
        """How many starts are drawn ahead."""
        return 8192

    def reset(self, key: PRNGKeyArray) -> Any:
        raise NotImplementedError

    def step(self, state: Any, action: Action, key: PRNGKeyArray) -> tuple[Any, Outcome]:
        """One step of all seats at once. Never restarts. An absent seat's action is ignored, whatever it is."""
        raise NotImplementedError

    def observe(self, state: Any) -> Num[Array, "A ..."]:
        raise NotImplementedError

    def legal(self, state: Any) -> Bool[Array, "A actions"]:
        """Which actions each seat may take; action 0 alone for an absent seat."""
        raise NotImplementedError

    def present(self, state: Any) -> Bool[Array, " A"]:
        raise NotImplementedError

    def goal_reached(self, state: Any, action: Action, after: Any) -> Int[Array, " A"]:
        """Which goal each seat reached by the step from `state` to `after`, -1 for none."""
        return jnp.full(self.seats, -1, jnp.int32)

    def state_of(self, observation: Num[Array, "..."], seat: int | Array) -> Any:
        """The state, in ego order, that the observation of `seat` determines. Refused where it does not.

        What only labels need (who has cleared a drift, say) is left empty.
        """
        raise BadInput(f"{self.id or self.family}: an observation does not determine the state, so there is no simulator search")

    def steps_to_goal(self, observation: Num[Array, "..."]) -> Int[Array, "..."]:
        """How many moves whoever sees this, [*n, features], is away from the nearest thing it can be after, [*n]."""
        raise BadInput(f"{self.id or self.family}: nobody can say how far a goal is")

    def scaled(self, observation: Num[Array, "..."]) -> Float[Array, "..."]:
        """Observations as the numbers a network should see."""
        return observation.astype(jnp.float32) * jnp.broadcast_to(self.observation_scale, observation.shape)

    def board(self, state: Any) -> Board:
        """A picture of a state that has been brought to the host."""
        raise BadInput(f"{self.id or self.family} cannot be drawn: only games of our own have pictures")


def only_action_zero(legal: Bool[Array, "A actions"], present: Bool[Array, " A"]) -> Bool[Array, "A actions"]:
    """`legal` for the seats that are present, action 0 alone for those that left."""
    return jnp.where(present[:, None], legal, (jnp.arange(legal.shape[1]) == 0)[None])


def legal_or(fallback: int, action: Int[Array, " A"], legal: Bool[Array, "A actions"]) -> Int[Array, " A"]:
    """The actions where they are legal, else `fallback`; numbers that are no action at all count as illegal."""
    chosen = jnp.arange(legal.shape[1])[None] == action[:, None]
    return jnp.where((chosen & legal).any(-1), action, fallback)


def require_integer(owner: str, least: int, most: int, **values: Any) -> None:
    """Refuse options that are no whole number, too small or too large, by name."""
    for name, value in values.items():
        whole = isinstance(value, int) and not isinstance(value, bool)
        nearest = most if whole and value > most else least
        require(
            whole and least <= value <= most,
            f"{owner}: {name} is {value!r}, expected a whole number from {least} to {most}: {name}={nearest}",
        )


def require_number(owner: str, **values: Any) -> None:
    """Refuse options that are no finite number, by name."""
    for name, value in values.items():
        number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST_NUMBER
        require(bool(number), f"{owner}: {name} is {value!r}, expected a number up to {LARGEST_NUMBER:,}: {name}=1.0")


def is_board(game: Game) -> bool:
    """Whether observations are planes of which the first show the players."""
    return len(game.observation_shape) == 3 and game.shown_of_each == 1
