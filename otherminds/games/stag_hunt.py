"""Markov stag hunt: hunters on a grid. A stag is worth much and needs company; a hare is worth little and can be had alone."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt8

from otherminds.config import require
from otherminds.games import walls
from otherminds.games.base import (
    LARGEST_BOARD,
    Board,
    Game,
    Kind,
    Outcome,
    State,
    Thing,
    legal_or,
    only_action_zero,
    require_integer,
    require_number,
)
from otherminds.games.ego import all_to_ego, to_ego
from otherminds.games.grid import STAY, at, cells_of, free_moves, move, planes
from otherminds.games.paths import steps_to, value_at

HUNT_STAG, HUNT_HARE = 5, 6


class StagHuntState(State):
    """Cells are numbered row by row; -1 stands for what is no longer on the board."""

    by_seat: ClassVar[tuple[str, ...]] = ("position", "strength")

    position: Int[Array, " A"]
    strength: Float[Array, " A"]
    stag: Int[Array, " stags"]
    hare: Int[Array, " hares"]
    wall: Bool[Array, " cells"]
    time: Int[Array, ""]
    ends_at: Int[Array, ""]  # the time at which the episode ends at the latest


@dataclass(frozen=True)
class StagHunt(Game):
    """2 to 8 hunters. Options as fields."""

    height: int = 8
    width: int = 8
    players: int = 4
    stags: int = 1
    hares: int = 4
    stag_reward: float = 10.0
    hare_reward: float = 1.0
    hunters_needed: int = 2
    horizon: int = 35
    blocks: int = 0
    step_reward: float = 0.0
    strengths: tuple[float, ...] | None = None
    end_after_first_hunt: int = 0
    view: int | None = None

    family: ClassVar[str] = "stag_hunt"
    kind: ClassVar[Kind] = "mixed"
    goals: ClassVar[tuple[str, ...]] = ("stag", "hare")
    action_names: ClassVar[tuple[str, ...]] = ("up", "down", "left", "right", "stay", "hunt_stag", "hunt_hare")

    def __post_init__(self) -> None:
        require_integer("stag_hunt", 1, LARGEST_BOARD, height=self.height, width=self.width)
        require_integer("stag_hunt", 2, 8, players=self.players)
        require_integer("stag_hunt", 1, 8, hunters_needed=self.hunters_needed)
        require_integer("stag_hunt", 1, 255, horizon=self.horizon)  # observed as a byte
        require_integer("stag_hunt", 0, LARGEST_BOARD**2, stags=self.stags, hares=self.hares, blocks=self.blocks)
        require_integer("stag_hunt", 0, 255, end_after_first_hunt=self.end_after_first_hunt)
        require_number("stag_hunt", stag_reward=self.stag_reward, hare_reward=self.hare_reward, step_reward=self.step_reward)
        require(
            self.stags == 0 or self.hunters_needed <= self.players,
            f"stag_hunt: hunters_needed is {self.hunters_needed}, which {self.players} players never reach: hunters_needed=2",
        )
        require(self.stags + self.hares > 0, "stag_hunt: no prey on the board: stags=1 or hares=1")
        if self.view is not None:
            require_integer("stag_hunt", 0, LARGEST_BOARD, view=self.view)
        if self.strengths is not None:
            require(
                len(self.strengths) == self.players and all(1e-3 <= strength <= 1e3 for strength in self.strengths),
                f"stag_hunt: strengths is {self.strengths}, expected {self.players} numbers from 0.001 to 1000, one a player",
            )
        things = self.players + self.stags + self.hares
        require(
            things <= self.cells,
            f"stag_hunt: {things} players and prey do not fit on {self.height}x{self.width} = {self.cells} cells: "
            "ask for fewer, or a larger height or width",
        )
        if self.blocks:
            walls.require_room("stag_hunt", self.height, self.width, self.blocks, things)

    @property
    def cells(self) -> int:
        return self.height * self.width

    @property
    def seats(self) -> int:
        return self.players

    @property
    def observation_shape(self) -> tuple[int, ...]:
        return (self.players + (4 if self.view is None else 5), self.height, self.width)

    @property
    def shown_of_each(self) -> int:
        return 1

    @property
    def things(self) -> tuple[str, ...]:
        return ("wall", "stag", "hare", "time") + (("in sight",) if self.view is not None else ())

    @property
    def observation_dtype(self) -> type:
        return jnp.uint8

    @property
    def observation_scale(self) -> np.ndarray:
        scale = np.ones((self.observation_shape[0], 1, 1), np.float32)
        scale[self.players + 3] = 1 / self.horizon
        return scale

    @property
    def pays_everywhere(self) -> bool:
        return self.end_after_first_hunt > 0  # else a hunt pays those who stand where the prey is, and only they leave

    @property
    def symmetric(self) -> bool:
        return self.strengths is None or len(set(self.strengths)) == 1

    @property
    def _strength(self) -> Float[Array, " A"]:
        return jnp.array(self.strengths or (1.0,) * self.players, jnp.float32)

    @property
    def longest(self) -> int:
        return self.horizon

    def reset(self, key: PRNGKeyArray) -> StagHuntState:
        wall_key, cell_key = jax.random.split(key)
        wall = jnp.zeros(self.cells, bool)
        things = self.players + self.stags + self.hares
        if self.blocks:
            wall = walls.draw(wall_key, self.height, self.width, self.blocks, things)
        order = jnp.argsort(jnp.where(wall, jnp.inf, jax.random.uniform(cell_key, (self.cells,))))
        position, stag, hare = jnp.split(order[:things], [self.players, self.players + self.stags])
        time, ends_at = jnp.int32(0), jnp.int32(self.horizon)
        return StagHuntState(position, self._strength, stag, hare, wall, time, ends_at)

    def present(self, state: StagHuntState) -> Bool[Array, " A"]:
        return state.position >= 0

    def legal(self, state: StagHuntState) -> Bool[Array, "A actions"]:
        moves = free_moves(state.position, state.wall if self.blocks else None, self.height, self.width)
        stay = jnp.ones_like(moves[:, :1])
        on_stag = at(state.position, state.stag).any(-1, keepdims=True)
        on_hare = at(state.position, state.hare).any(-1, keepdims=True)
        return only_action_zero(jnp.concatenate([moves, stay, on_stag, on_hare], -1), self.present(state))

    def step(self, state: StagHuntState, action: Int[Array, " A"], key: PRNGKeyArray) -> tuple[StagHuntState, Outcome]:
        present = self.present(state)
        action = legal_or(STAY, action, self.legal(state) & present[:, None])

        at_stag = (action == HUNT_STAG)[:, None] & at(state.position, state.stag)  # [A, stags]
        stag_falls = at_stag.sum(0) >= self.hunters_needed
        at_stag &= stag_falls[None]
        stag_share = _shares(at_stag, state.strength) * self.stag_reward

        at_hare = (action == HUNT_HARE)[:, None] & at(state.position, state.hare)  # [A, hares]
        hare_falls = at_hare.any(0)
        hare_share = _shares(at_hare, jnp.ones(self.players)) * self.hare_reward

        left = at_stag.any(-1) | at_hare.any(-1)
        time = state.time + 1
        ends_at = state.ends_at
        if self.end_after_first_hunt:
            ends_at = jnp.where(left.any(), jnp.minimum(ends_at, time + self.end_after_first_hunt), ends_at)
        after = StagHuntState(
            position=jnp.where(left, -1, move(state.position, action, self.width)),
            strength=state.strength,
            stag=jnp.where(stag_falls, -1, state.stag),
            hare=jnp.where(hare_falls, -1, state.hare),
            wall=state.wall,
            time=time,
            ends_at=ends_at,
        )
        outcome = Outcome(
            reward=stag_share + hare_share + present * jnp.float32(self.step_reward),
            left=left,
            terminated=(time >= ends_at) | ~self.present(after).any(),
            truncated=jnp.bool_(False),
        )
        return after, outcome

    def observe(self, state: StagHuntState) -> UInt8[Array, "A planes H W"]:
        seats, board = range(self.players), (self.height, self.width)
        players = planes(all_to_ego(state.position, tuple(seats)), *board)  # [A, A, H, W]
        stag = planes(state.stag, *board).any(0)
        hare = planes(state.hare, *board).any(0)
        scenery = jnp.stack([state.wall.reshape(board), stag, hare])
        scenery = jnp.broadcast_to(scenery, (self.players, 3, *board))
        time = jnp.full((self.players, 1, *board), state.time.astype(jnp.uint8))
        shown = [players, scenery]
        if self.view is None:
            return jnp.concatenate([*(x.astype(jnp.uint8) for x in shown), time], 1)
        visible = self._visible(state, self.view)[:, None]
        shown = [(x & visible).astype(jnp.uint8) for x in shown]
        return jnp.concatenate([*shown, time, visible.astype(jnp.uint8)], 1)

    def _visible(self, state: StagHuntState, view: int) -> Bool[Array, "A H W"]:
        """Cells within `view` rows and columns of each seat; none for a seat that left."""
        row, column = jnp.divmod(state.position, self.width)
        near_row = jnp.abs(jnp.arange(self.height)[None] - row[:, None]) <= view
        near_column = jnp.abs(jnp.arange(self.width)[None] - column[:, None]) <= view
        return near_row[:, :, None] & near_column[:, None, :] & self.present(state)[:, None, None]

    def goal_reached(self, state: StagHuntState, action: Int[Array, " A"], after: StagHuntState) -> Int[Array, " A"]:
        left = self.present(state) & ~self.present(after)
        return jnp.where(left, jnp.where(action == HUNT_STAG, 0, 1), -1)

    def state_of(self, observation: UInt8[Array, "planes H W"], seat: int | Array) -> StagHuntState:
        if self.view is not None or self.end_after_first_hunt:
            return super().state_of(observation, seat)
        flat = observation.reshape(observation.shape[0], self.cells)
        players, (wall, stag, hare, time) = flat[: self.players], flat[self.players :]
        return StagHuntState(
            position=jnp.where(players.any(-1), jnp.argmax(players, -1), -1),
            strength=to_ego(self._strength, seat),
            stag=cells_of(stag, self.stags),
            hare=cells_of(hare, self.hares),
            wall=wall.astype(bool),
            time=time[0].astype(jnp.int32),
            ends_at=jnp.int32(self.horizon),
        )

    def steps_to_goal(self, observation: UInt8[Array, "*n planes H W"]) -> Int[Array, "*n"]:
        own, wall, stag, hare = (observation[..., k, :, :] > 0 for k in (0, *range(self.players, self.players + 3)))
        return value_at(own, steps_to(stag | hare, wall))

    def board(self, state: StagHuntState) -> Board:
        def things(name: str, cells: Iterable[int]) -> list[Thing]:
            return [Thing(name, cell // self.width, cell % self.width) for cell in cells if cell >= 0]

        prey = things("stag", np.asarray(state.stag).tolist()) + things("hare", np.asarray(state.hare).tolist())
        scenery = things("wall", np.flatnonzero(state.wall).tolist()) + prey
        players = tuple(next(iter(things("player", [cell])), None) for cell in np.asarray(state.position).tolist())
        return Board(self.height, self.width, players, tuple(scenery), f"step {int(state.time)} of {self.horizon}")


def _shares(taking: Bool[Array, "A prey"], strength: Float[Array, " A"]) -> Float[Array, " A"]:
    """Each player's share of the prey it takes part in taking, in proportion to strength."""
    weight = taking * strength[:, None]
    total = weight.sum(0, keepdims=True)
    return jnp.where(total > 0, weight / jnp.where(total > 0, total, 1.0), 0.0).sum(-1)
