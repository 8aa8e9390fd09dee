"""Stag hunt and snowdrift once more, in plain NumPy, written from the rules alone.

The compiled games are compared with these step by step, so this file shares no code with them and prefers
plain loops over speed. A cell is (row, column); randomness never enters, because every start is given.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

Cell = tuple[int, int]

ROW_COLUMN_CHANGES: tuple[Cell, ...] = ((-1, 0), (1, 0), (0, -1), (0, 1))
STAY = 4
HUNT_STAG = 5
HUNT_HARE = 6
CLEAR = 5

STAG_GOAL = 0
HARE_GOAL = 1
NO_GOAL = -1

LARGEST_TIME = np.iinfo(np.uint8).max


@dataclass
class Outcome:
    """What one step brought to each of the A seats."""

    reward: np.ndarray
    """float64 [A]"""
    terminated: np.ndarray
    """bool [A], true exactly once per episode and seat"""
    goal_reached: np.ndarray
    """int [A], -1 where no goal was reached in this step"""
    episode_over: bool


class ReferenceStagHunt:
    """Players hunt hares alone or stags together, and leave the board with what they caught."""

    def __init__(
        self,
        *,
        height: int,
        width: int,
        players: int = 4,
        stags: int = 1,
        hares: int = 4,
        stag_reward: float = 10.0,
        hare_reward: float = 1.0,
        hunters_needed: int = 2,
        horizon: int = 35,
        step_reward: float = 0.0,
        strengths: tuple[float, ...] | None = None,
        end_after_first_hunt: int = 0,
        view: int | None = None,
    ) -> None:
        _require_observable_horizon(horizon)
        self.height = height
        self.width = width
        self.players = players
        self.stags = stags
        self.hares = hares
        self.stag_reward = stag_reward
        self.hare_reward = hare_reward
        self.hunters_needed = hunters_needed
        self.horizon = horizon
        self.step_reward = step_reward
        self.strengths = (1.0,) * players if strengths is None else strengths
        self.end_after_first_hunt = end_after_first_hunt
        self.view = view
        if len(self.strengths) != players or min(self.strengths) <= 0:
            raise ValueError(f"expected {players} positive strengths, got {self.strengths}")

    def start(
        self,
        player_cells: Sequence[Sequence[int]],
        stag_cells: Sequence[Sequence[int]],
        hare_cells: Sequence[Sequence[int]],
        walls: np.ndarray,
    ) -> None:
        """Opens an episode on the given board."""
        self.walls = np.array(walls, dtype=bool)
        if self.walls.shape != (self.height, self.width):
            raise ValueError(f"expected walls of shape {(self.height, self.width)}, got {self.walls.shape}")
        self.player_cells = _cells(player_cells, self.players, self.height, self.width)
        stags = _cells(stag_cells, self.stags, self.height, self.width)
        hares = _cells(hare_cells, self.hares, self.height, self.width)
        _require_distinct(stags + hares)
        if any(self.walls[cell] for cell in self.player_cells + stags + hares):
            raise ValueError("a player or a prey stands on a wall")
        self.stags_left = set(stags)
        self.hares_left = set(hares)
        self.is_present = [True] * self.players
        self.time = 0
        self.first_success_time: int | None = None
        self.episode_over = False

    def legal(self) -> np.ndarray:
        """bool [A, 7]: what each seat may do now; an absent seat has action 0 alone."""
        table = np.zeros((self.players, 7), dtype=bool)
        for player in range(self.players):
            if not self.is_present[player]:
                table[player, 0] = True
                continue
            for action in range(7):
                table[player, action] = self._is_legal(self.player_cells[player], action)
        return table

    def present(self) -> np.ndarray:
        """bool [A]: who has not left with a prey yet."""
        return np.array(self.is_present, dtype=bool)

    def observe(self) -> np.ndarray:
        """uint8 [A, planes, H, W]: players ego-first, wall, stag, hare, time, and visibility with a view."""
        players = self.players
        board = np.zeros((players + 3, self.height, self.width), dtype=np.uint8)
        for player in range(players):
            if self.is_present[player]:
                board[(player, *self.player_cells[player])] = 1
        board[players] = self.walls
        for cell in self.stags_left:
            board[(players + 1, *cell)] = 1
        for cell in self.hares_left:
            board[(players + 2, *cell)] = 1

        planes = players + 4 if self.view is None else players + 5
        observation = np.zeros((players, planes, self.height, self.width), dtype=np.uint8)
        for observer in range(players):
            for offset in range(players):
                observation[observer, offset] = board[(observer + offset) % players]
            observation[observer, players : players + 3] = board[players:]
            observation[observer, players + 3] = self.time
            if self.view is not None:
                visible = self._visible_cells(observer)
                observation[observer, : players + 3] *= visible
                observation[observer, players + 4] = visible
        return observation

    def step(self, actions: Sequence[int]) -> Outcome:
        """Moves everyone at once, settles the hunts, and says what it brought."""
        _require_running(self.episode_over)
        effective: list[int | None] = []
        for player in range(self.players):
            if not self.is_present[player]:
                effective.append(None)
            elif self._is_legal(self.player_cells[player], int(actions[player])):
                effective.append(int(actions[player]))
            else:
                effective.append(STAY)

        was_present = list(self.is_present)
        reward = np.where(was_present, float(self.step_reward), 0.0)
        goal_reached = np.full(self.players, NO_GOAL, dtype=np.int64)
        self.time += 1

        for stag in sorted(self.stags_left):
            hunters = self._hunters(stag, HUNT_STAG, effective)
            if not hunters or len(hunters) < self.hunters_needed:
                continue
            total_strength = sum(self.strengths[hunter] for hunter in hunters)
            for hunter in hunters:
                reward[hunter] += self.stag_reward * self.strengths[hunter] / total_strength
                goal_reached[hunter] = STAG_GOAL
            self.stags_left.remove(stag)

        for hare in sorted(self.hares_left):
            hunters = self._hunters(hare, HUNT_HARE, effective)
            if not hunters:
                continue
            for hunter in hunters:
                reward[hunter] += self.hare_reward / len(hunters)
                goal_reached[hunter] = HARE_GOAL
            self.hares_left.remove(hare)

        for player, action in enumerate(effective):
            if action is not None and action < STAY:
                self.player_cells[player] = _neighbour(self.player_cells[player], action)
            if goal_reached[player] != NO_GOAL:
                self.is_present[player] = False

        if self.first_success_time is None and self.is_present != was_present:
            self.first_success_time = self.time
        self.episode_over = not any(self.is_present) or self.time == self.horizon or self._hunt_time_is_up()

        terminated = np.zeros(self.players, dtype=bool)
        for player in range(self.players):
            has_left = goal_reached[player] != NO_GOAL
            terminated[player] = was_present[player] and (has_left or self.episode_over)
        return Outcome(reward, terminated, goal_reached, self.episode_over)

    def _is_legal(self, cell: Cell, action: int) -> bool:
        if 0 <= action < STAY:
            target = _neighbour(cell, action)
            return _is_inside(target, self.height, self.width) and not self.walls[target]
        if action == HUNT_STAG:
            return cell in self.stags_left
        if action == HUNT_HARE:
            return cell in self.hares_left
        return action == STAY

    def _hunters(self, prey: Cell, hunt: int, effective: Sequence[int | None]) -> list[int]:
        return [player for player in range(self.players) if effective[player] == hunt and self.player_cells[player] == prey]

    def _hunt_time_is_up(self) -> bool:
        if self.end_after_first_hunt == 0 or self.first_success_time is None:
            return False
        return self.time == self.first_success_time + self.end_after_first_hunt

    def _visible_cells(self, observer: int) -> np.ndarray:
        visible = np.zeros((self.height, self.width), dtype=np.uint8)
        if self.view is not None and self.is_present[observer]:
            row, column = self.player_cells[observer]
            top, left = max(row - self.view, 0), max(column - self.view, 0)
            visible[top : row + self.view + 1, left : column + self.view + 1] = 1
        return visible


class ReferenceSnowdrift:
    """Clearing a drift pays every player and costs those who cleared it; nobody leaves."""

    def __init__(
        self,
        *,
        height: int,
        width: int,
        players: int = 4,
        drifts: int = 6,
        reward: float = 6.0,
        cost: float = 4.0,
        horizon: int = 50,
    ) -> None:
        _require_observable_horizon(horizon)
        self.height = height
        self.width = width
        self.players = players
        self.drifts = drifts
        self.reward = reward
        self.cost = cost
        self.horizon = horizon

    def start(self, player_cells: Sequence[Sequence[int]], drift_cells: Sequence[Sequence[int]]) -> None:
        """Opens an episode on the given board."""
        self.player_cells = _cells(player_cells, self.players, self.height, self.width)
        drifts = _cells(drift_cells, self.drifts, self.height, self.width)
        _require_distinct(drifts)
        self.drifts_left = set(drifts)
        self.has_cleared = [False] * self.players
        self.time = 0
        self.episode_over = False

    def legal(self) -> np.ndarray:
        """bool [A, 6]: what each seat may do now."""
        return np.array([[self._is_legal(cell, action) for action in range(6)] for cell in self.player_cells], dtype=bool)

    def present(self) -> np.ndarray:
        """bool [A]: everyone, always."""
        return np.ones(self.players, dtype=bool)

    def observe(self) -> np.ndarray:
        """uint8 [A, A+2, H, W]: players ego-first, drift, time."""
        players = self.players
        observation = np.zeros((players, players + 2, self.height, self.width), dtype=np.uint8)
        for observer in range(players):
            for offset in range(players):
                seen_cell = self.player_cells[(observer + offset) % players]
                observation[(observer, offset, *seen_cell)] = 1
            for drift in self.drifts_left:
                observation[(observer, players, *drift)] = 1
            observation[observer, players + 1] = self.time
        return observation

    def step(self, actions: Sequence[int]) -> Outcome:
        """Moves everyone at once, clears drifts, and says what it brought."""
        _require_running(self.episode_over)
        effective = [
            int(action) if self._is_legal(cell, int(action)) else STAY
            for cell, action in zip(self.player_cells, actions, strict=True)
        ]
        reward = np.zeros(self.players, dtype=np.float64)
        goal_reached = np.full(self.players, NO_GOAL, dtype=np.int64)
        self.time += 1

        for drift in sorted(self.drifts_left):
            clearers = [
                player for player in range(self.players) if effective[player] == CLEAR and self.player_cells[player] == drift
            ]
            if not clearers:
                continue
            reward += self.reward
            for clearer in clearers:
                reward[clearer] -= self.cost / len(clearers)
                goal_reached[clearer] = drift[0] * self.width + drift[1]
                self.has_cleared[clearer] = True
            self.drifts_left.remove(drift)

        for player, action in enumerate(effective):
            if action < STAY:
                self.player_cells[player] = _neighbour(self.player_cells[player], action)

        self.episode_over = not self.drifts_left or self.time == self.horizon
        if self.episode_over:
            for player in range(self.players):
                if not self.has_cleared[player]:
                    goal_reached[player] = self.height * self.width
        terminated = np.full(self.players, self.episode_over, dtype=bool)
        return Outcome(reward, terminated, goal_reached, self.episode_over)

    def _is_legal(self, cell: Cell, action: int) -> bool:
        if 0 <= action < STAY:
            return _is_inside(_neighbour(cell, action), self.height, self.width)
        if action == CLEAR:
            return cell in self.drifts_left
        return action == STAY


def _neighbour(cell: Cell, move: int) -> Cell:
    row_change, column_change = ROW_COLUMN_CHANGES[move]
    return cell[0] + row_change, cell[1] + column_change


def _is_inside(cell: Cell, height: int, width: int) -> bool:
    return 0 <= cell[0] < height and 0 <= cell[1] < width


def _cells(pairs: Iterable[Sequence[int]], count: int, height: int, width: int) -> list[Cell]:
    cells = [(int(row), int(column)) for row, column in pairs]
    if len(cells) != count or not all(_is_inside(cell, height, width) for cell in cells):
        raise ValueError(f"expected {count} cells inside a {height}x{width} board, got {cells}")
    return cells


def _require_distinct(cells: Sequence[Cell]) -> None:
    if len(set(cells)) != len(cells):
        raise ValueError(f"expected distinct cells, got {cells}")


def _require_observable_horizon(horizon: int) -> None:
    if not 1 <= horizon <= LARGEST_TIME:
        raise ValueError(f"expected a horizon of 1 to {LARGEST_TIME} (time is a uint8 plane), got {horizon}")


def _require_running(episode_over: bool) -> None:
    if episode_over:
        raise RuntimeError("the episode is over; call start() first")
