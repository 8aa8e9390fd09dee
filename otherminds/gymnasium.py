"""One seat of a game as a Gymnasium environment, so that learners of other libraries can sit in it. The others are policies."""

import functools
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray

from otherminds import seats
from otherminds.config import require
from otherminds.games.base import Game
from otherminds.pettingzoo import (
    RENDER_MODES,
    Shown,
    as_action,
    checked_render_mode,
    compiled_game,
    observation_box,
    pack,
    rendered,
    unpack,
)
from otherminds.rollout import MEETING_EPISODES, Play, Seen, advance, choose, look, open_play
from otherminds.types import Action, Extras, Memory, Policy, Seated, View


def gymnasium_env(
    game_id: str, seat: int = 0, partners: str | Policy | Sequence[str | Policy] = "random", render_mode: str | None = None
) -> "OneSeat":
    """One seat of a game alone: `gymnasium_env("stag_hunt-4x4-4h1s", 0, "nearest_stag")`.

    `partners` are written as in `--seats`, one for all other seats or one for each of them in order; or they are policies, each
    for a single seat.
    """
    return OneSeat(game_id, seat, partners, render_mode)


class OneSeat(gymnasium.Env[np.ndarray, Any]):
    """An episode ends when the seat leaves or the game ends. If it left, the others play theirs to the end before the next opens.

    They are partners for a meeting: what they remember lasts 16 episodes, as in training. `reset(seed=…)` opens a new meeting.
    """

    metadata = {"render_modes": RENDER_MODES, "render_fps": 3}  # noqa: RUF012, Gymnasium's way

    def __init__(
        self, game_id: str, seat: int, partners: str | Policy | Sequence[str | Policy], render_mode: str | None = None
    ) -> None:
        self.game = compiled_game(game_id)
        whole = isinstance(seat, int) and not isinstance(seat, bool)
        require(whole and 0 <= seat < self.game.seats, f"{game_id} has seats 0 to {self.game.seats - 1}, got seat {seat!r}")
        self.seat = seat
        self.partners = seat_partners(self.game, seat, partners)
        self.render_mode = checked_render_mode(render_mode)
        self.observation_space = observation_box(self.game)
        self.action_space = gymnasium.spaces.Discrete(self.game.actions)
        self._play: Play | None = None
        self._shown: Shown | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None or self._play is None:
            draw = self.np_random.integers(2**32, dtype=np.uint32)
            self._play, packed = _open(self.game, self.seat, self.partners, draw)
        else:
            self._play, packed = _reopen(self.game, self.seat, self.partners, self._play)
        self._shown = unpack(self.game, packed)
        return self._shown.observation[0], self._info()

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        ended = self._shown is None or self._shown.terminated[0] or self._shown.truncated[0]
        require(not ended, f"{self.game.id}: the episode is over, or was never opened: call reset()")
        assert self._play is not None
        self._play, packed = _step(self.game, self.seat, self.partners, self._play, as_action(self.game, action))
        self._shown = shown = unpack(self.game, packed)
        return shown.observation[0], float(shown.reward[0]), bool(shown.terminated[0]), bool(shown.truncated[0]), self._info()

    def action_masks(self) -> np.ndarray:
        """Which actions are legal now, under the name that sb3-contrib looks for."""
        assert self._shown is not None
        return self._shown.legal[0].astype(bool)

    def render(self) -> Any:
        state = None if self._play is None else jax.tree.map(lambda leaf: leaf[0], self._play.state)
        return rendered(self.game, state, self.render_mode)

    def _info(self) -> dict[str, Any]:
        assert self._shown is not None
        # A seat may be absent while its episode goes on: a fallen unit of SMAX. What it does then means nothing.
        return {"action_mask": self._shown.legal[0], "present": bool(self._shown.present[0])}


def seat_partners(game: Game, seat: int, partners: str | Policy | Sequence[str | Policy]) -> tuple[Seated, ...]:
    """The policies of all seats but one. Seats with the same entry share one policy, which plays each of them on its own."""
    others = [other for other in range(game.seats) if other != seat]
    entries = seats.split(partners) if isinstance(partners, str) else partners
    entries = [entries] if isinstance(entries, Policy) else list(entries)
    require(
        len(entries) in (1, len(others)),
        f"{game.id}: {len(others)} seats beside seat {seat}, got {len(entries)} partners: give one for all, or {len(others)}",
    )
    named: dict[str, list[int]] = {}
    given = []
    for other, entry in zip(others, entries * len(others) if len(entries) == 1 else entries, strict=True):
        if isinstance(entry, Policy):
            given.append(Seated(entry, (other,)))
        else:
            named.setdefault(entry, []).append(other)
    return (*(Seated(_named_policy(game, entry, len(where)), tuple(where)) for entry, where in named.items()), *given)


@functools.lru_cache
def _named_policy(game: Game, entry: str, group: int) -> Policy:
    """Environments with the same partners hold the same policy, and so share compiled programs."""
    return seats.seat_policy(game, entry, group=group)


class _Given(Policy):
    """Plays the action it is given: whoever trains outside of our code sits in this seat."""

    action: Int[Array, "1 1"]
    actions: int = eqx.field(static=True)

    def initial_memory(self) -> Memory:
        return Memory(episode=None, lasting=None)

    def act(self, view: View, memory: Memory, key: PRNGKeyArray) -> tuple[Action, Memory, Extras]:
        logits = jnp.zeros((1, 1, self.actions))
        return self.action, memory, Extras(logits, logits, jnp.zeros((1, 1)), jnp.full((1, 1), -1, jnp.int32))


def _policies(game: Game, seat: int, partners: tuple[Seated, ...], action: Array) -> tuple[Seated, ...]:
    return (Seated(_Given(action.reshape(1, 1), game.actions), (seat,)), *partners)


@eqx.filter_jit
def _open(game: Game, seat: int, partners: tuple[Seated, ...], seed: Any) -> tuple[Play, Array]:
    start_key, key = jax.random.split(jax.random.key(seed))
    state = jax.vmap(game.reset)(start_key[None])
    play = open_play(game, _policies(game, seat, partners, jnp.int32(0)), state, look(game, state), None, key)
    return play, _shown(game, seat, play, opening=True)


@eqx.filter_jit
def _step(game: Game, seat: int, partners: tuple[Seated, ...], play: Play, action: Any) -> tuple[Play, Array]:
    play = _play_on(game, seat, partners, play, action)
    return play, _shown(game, seat, play, opening=False)


@eqx.filter_jit
def _reopen(game: Game, seat: int, partners: tuple[Seated, ...], play: Play) -> tuple[Play, Array]:
    """Let the others end their episode, and deal a new board. An episode that the seat breaks off counts as truncated."""

    def left_early(play: Play) -> Array:
        return play.over[0, seat] & ~play.now.first[0]

    play = jax.lax.while_loop(left_early, lambda play: _play_on(game, seat, partners, play, jnp.int32(0)), play)
    broken_off = ~play.now.first
    episode = jnp.where(broken_off, (play.episode + 1) % MEETING_EPISODES, play.episode)

    start_key, key = jax.random.split(play.key)
    state = jax.vmap(game.reset)(start_key[None])
    seen = look(game, state)
    now = eqx.tree_at(
        lambda now: (now.truncated, now.first, now.meeting, now.observation, now.legal, now.present),
        play.now,
        (
            play.now.truncated | broken_off,
            jnp.ones(1, bool),
            play.now.meeting | (broken_off & (episode == 0)),
            seen.observation,
            seen.legal,
            seen.present,
        ),
    )
    play = Play(state, now, play.memories, jnp.zeros_like(play.over), episode, None, key)
    return play, _shown(game, seat, play, opening=True)


def _play_on(game: Game, seat: int, partners: tuple[Seated, ...], play: Play, action: Array) -> Play:
    """One step of the game, without a restart; the partners act as they do in a rollout."""
    policies = _policies(game, seat, partners, action)
    key, game_key, joint, memories, _ = choose(policies, play.now, play.memories, play.key)
    after, _ = advance(game, play, joint, game_key, MEETING_EPISODES, restart=False)
    return eqx.tree_at(lambda play: (play.memories, play.key), after, (memories, key))


def _shown(game: Game, seat: int, play: Play, opening: bool) -> Array:
    """What the seat gets, packed [1, numbers]. When an episode opens, what led there was the old one's and is not shown."""
    now = jax.tree.map(lambda leaf: leaf[0], play.now)
    seen = Seen(now.observation, now.legal, now.present)
    nothing = jnp.zeros(game.seats)
    brought = (nothing, nothing, nothing) if opening else (now.reward, now.terminated, now.truncated & ~now.terminated)
    return pack(game, seen, *brought)[seat][None]
