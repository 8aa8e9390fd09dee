"""The ego frame: every seat sees itself as seat 0 and the others in turn order behind it.

`to_ego` is the only code that reorders seats, for planes, joint actions, rewards and presence alike: when one of them was
rotated and another was not, a world model once learned players that jump two cells.

Observations of other libraries are not in this order (`Game.shown_of_each` is 0). One network then serves all seats only if it is
told whose eyes it looks through: `tell_seats`.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from otherminds.games.base import Game
from otherminds.types import TimeStep, View


def to_ego(x: Shaped[Array, "..."], seat: int | Array, axis: int = -1) -> Shaped[Array, "..."]:
    """Rotate the seat axis so that `seat` comes first: entry k is seat (seat + k) mod A."""
    return jnp.roll(x, -seat, axis)


def from_ego(x: Shaped[Array, "..."], seat: int | Array, axis: int = -1) -> Shaped[Array, "..."]:
    """Undo `to_ego`."""
    return jnp.roll(x, seat, axis)


def all_to_ego(x: Shaped[Array, "..."], seats: tuple[int, ...], axis: int = -1) -> Shaped[Array, "..."]:
    """`to_ego` for each of several seats, stacked on a new axis just before the seat axis."""
    return jnp.stack([to_ego(x, seat, axis) for seat in seats], axis=axis - 1 if axis < 0 else axis)


def to_egos(x: Shaped[Array, "..."], seats: Int[Array, " G"], axis: int = -1) -> Shaped[Array, "..."]:
    """The same for seats that are known only when the program runs."""
    return jax.vmap(lambda seat: to_ego(x, seat, axis), out_axes=x.ndim + axis)(seats)


def seen_from(
    observation: Shaped[Array, "..."], place: int, seats: int, shown_of_each: int, inner_axes: int
) -> Shaped[Array, "..."]:
    """What the player at `place` in ego order sees, as far as our observation shows it: the entries of the players, rotated.

    `inner_axes` is the number of axes of one observation; any leading ones stay. Where an observation does not say which entries
    show whom, it stays as it is.
    """
    if not shown_of_each:
        return observation
    axis = observation.ndim - inner_axes
    count = seats * shown_of_each
    players, rest = jnp.split(observation, [count], axis)
    lead, inner = players.shape[:axis], players.shape[axis + 1 :]
    turned = to_ego(players.reshape(*lead, seats, shown_of_each, *inner), place, axis)
    return jnp.concatenate([turned.reshape(players.shape), rest], axis)


def tell_seats(game: Game, *seats: Int[Array, "*n"] | None) -> list[Float[Array, "*n A"]]:
    """Seats as numbers to be told beside an observation that does not say who is who; nothing where it does.

    Where they are told, whoever makes the samples must know them. In play, with a network for each seat, the ego's is
    `jnp.full(n, ego)`, and that of the partner at `place` in ego order `(ego + place) % game.seats`.
    """
    if game.shown_of_each:
        return []
    known = [seat for seat in seats if seat is not None]
    assert len(known) == len(seats), f"{game.id} does not show who is who: samples must say whose eyes they are seen through"
    return [jax.nn.one_hot(seat, game.seats) for seat in known]


def seat_numbers(game: Game) -> int:
    """How many numbers `tell_seats` makes of one seat."""
    return 0 if game.shown_of_each else game.seats


def permute_state(state: Any, order: Array) -> Any:
    """The same state with seat k played by whoever sat in seat order[k]; for the audit of symmetry."""
    moved = {name: jax.tree.map(lambda leaf: leaf[order], getattr(state, name)) for name in state.by_seat}
    return dataclasses.replace(state, **moved)


def view(timestep: TimeStep, seats: tuple[int, ...]) -> View:
    """What the policy in `seats` sees of a timestep of E games."""
    chosen = jnp.array(seats)
    action_axis = timestep.present.ndim - 1
    return View(
        observation=_own(timestep.observation, seats, action_axis),
        legal=_own(timestep.legal, seats, action_axis),
        reward=_own(timestep.reward, seats, action_axis),
        terminated=_own(timestep.terminated, seats, action_axis),
        action=all_to_ego(timestep.action, seats, action_axis - timestep.action.ndim),
        goal_reached=all_to_ego(timestep.goal_reached, seats),
        present=all_to_ego(timestep.present, seats),
        seat=chosen,
        truncated=timestep.truncated,
        first=timestep.first,
        meeting=timestep.meeting,
    )


def _own(x: Array, seats: tuple[int, ...], axis: int) -> Array:
    """The rows of the given seats; all seats in order need no copy."""
    return x if seats == tuple(range(x.shape[axis])) else jnp.take(x, jnp.array(seats), axis=axis)
