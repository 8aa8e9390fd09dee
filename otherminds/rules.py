"""Rows of a game held against its own rules, where an observation determines the state: how many follow, and if not, why not."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from otherminds.games.base import Game, is_board
from otherminds.games.ego import from_ego, to_ego

AGREES = 0.99  # share of rows that must follow the rules
AT_ONCE = 2048  # rows that are stepped together
TRIED = 512  # rows on which a suspicion is tried


@dataclasses.dataclass(frozen=True)
class Held:
    """Rows to be held against the rules, [n, A, ...] and [n]."""

    observation: np.ndarray
    looks: np.ndarray  # [n, A]: whose observation shows the board
    action: np.ndarray
    reward: np.ndarray
    next_observation: np.ndarray
    known: np.ndarray  # [n]: whether the source says what a step led to
    end: np.ndarray

    def part(self, chosen: Any) -> "Held":
        return Held(**{field.name: getattr(self, field.name)[chosen] for field in dataclasses.fields(self)})


def there(game: Game, observation: np.ndarray) -> np.ndarray:
    """[n, A]: whose own plane is not empty; everybody where there are no planes."""
    return np.any(observation[:, :, 0], (-1, -2)) if is_board(game) else np.ones(observation.shape[:2], bool)


def by_the_rules(game: Game, held: Held) -> dict[str, np.ndarray]:
    """What the game says of each row, by what the first seat that looks sees: all seats in order, [n, A, ...] and [n]."""
    count, seat = len(held.end), held.looks.argmax(1)
    view, action = held.observation[np.arange(count), seat], held.action.astype(np.int32)
    parts = []
    for begin in range(0, count, AT_ONCE):
        rows = np.minimum(np.arange(begin, begin + AT_ONCE), count - 1)  # the last one again and again, so that one program does
        parts.append(jax.tree.map(np.asarray, _stepped(game, *(jnp.asarray(x[rows]) for x in (view, seat, action)))))
    return {name: np.concatenate([part[name] for part in parts])[:count] for name in parts[0]}


@eqx.filter_jit
def _stepped(game: Game, view: Array, seat: Array, action: Array) -> dict[str, Array]:
    def one(view: Array, seat: Array, action: Array) -> dict[str, Array]:
        state = game.state_of(view, seat)
        after, outcome = game.step(state, to_ego(action, seat), jax.random.key(0))
        ours = {
            "observation": game.observe(state),
            "next_observation": game.observe(after),
            "legal": game.legal(state),
            "present": game.present(state),
            "next_present": game.present(after),
            "reward": outcome.reward,
            "left": outcome.left,
        }
        return {name: from_ego(part, seat, 0) for name, part in ours.items()} | {"terminated": outcome.terminated}

    return jax.vmap(one)(view, seat, action)


def agreement(held: Held, rules: dict[str, np.ndarray]) -> dict[str, float]:
    """Shares of rows: all views show one board, it becomes what the rules make of it, rewards and ends are theirs."""
    board = _same(held.next_observation, rules["next_observation"]) | ~rules["next_present"]
    either = held.end | rules["terminated"]
    followed = held.known & (held.end | ~rules["terminated"])  # behind an end that was not noted is another episode
    rows = {
        "views": (_same(held.observation, rules["observation"]) | ~held.looks).all(-1),
        "boards": board.all(-1)[followed],
        "rewards": np.isclose(held.reward, rules["reward"], atol=1e-4).all(-1),
        "ends": (held.end == rules["terminated"])[either],
    }
    return {name: float(fine.mean()) if len(fine) else 1.0 for name, fine in rows.items()}


def _same(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """[n, A]: whose observations are equal."""
    equal = one == other if one.dtype == np.uint8 else np.isclose(one, other, atol=1e-4)
    return equal.reshape(*equal.shape[:2], -1).all(-1)


def cause(game: Game, held: Held, rules: dict[str, np.ndarray], what: str, turned: Held, names: dict[str, str]) -> str:
    """Why the share of `what` is too small, as far as it can be told. `turned`: some rows, if the other --frame were right."""
    if what == "ends":
        return _other_ends(held.end, rules["terminated"], names["end"])
    if what == "rewards" and (held.reward == held.reward[:, :1]).all():
        return f"'{names['reward']}' is the same for all seats, and here each is paid its own: save rewards by seat"
    sample = held.part(slice(0, TRIED))
    for target, words, variant in _suspects(game, sample, turned, names):
        if target == what and agreement(variant, by_the_rules(game, variant))[what] >= AGREES:
            return words
    leaves = rules["left"] & held.known[:, None]
    if what in ("views", "boards") and is_board(game) and (leaves & there(game, held.next_observation)).sum() > leaves.sum() / 2:
        return (
            "players who have left are still on the board, recorded as if they stayed: --present NAME, or take them off the board"
        )
    renumbered = _renumbered(game, sample) if what == "boards" and is_board(game) else ""
    return (
        renumbered
        or {
            "views": "not every seat sees itself first and the others in turn order behind it: --frame, --axes",
            "boards": "steps do not lead to the boards that follow them: --axes, --action, or other rules than these",
            "rewards": f"'{names['reward']}' pays otherwise: give the options of the game, or save rewards unscaled",
        }[what]
    )


def _other_ends(end: np.ndarray, true: np.ndarray, name: str) -> str:
    for words, noted, real in (("late", end[1:], true[:-1]), ("early", end[:-1], true[1:])):
        if (noted & real).sum() >= AGREES * max(1, (noted | real).sum()):
            return f"'{name}' is shifted by one step, each a step too {words}"
    longest = int(np.diff(np.flatnonzero(np.concatenate([[True], end]))).max(initial=1))
    return f"episodes end elsewhere, the longest after {longest} steps: give the options of the game, such as horizon={longest}"


def _suspects(game: Game, held: Held, turned: Held, names: dict[str, str]) -> Iterator[tuple[str, str, Held]]:
    """What may be wrong: with what, in words, and the rows as they would be without it. Nothing of this goes into a dataset."""
    yield "views", f"the views are in the other frame: --frame {names['other_frame']}", turned
    inside, later = np.flatnonzero(~held.end[:-1]), np.flatnonzero(~held.end[:-1]) + 1
    seats = range(game.seats)
    orders = itertools.permutations(seats) if game.seats <= 5 else ([*seats[k:], *seats[:k]] for k in seats)
    for order in itertools.islice(orders, 1, None):  # the first is the one they have
        for what, field in (("boards", "action"), ("rewards", "reward")):
            words = f"'{names[field]}' has the seats in another order than the boards: take {names[field]}[..., {list(order)}]"
            yield what, words, dataclasses.replace(held, **{field: getattr(held, field)[:, list(order)]})
    for what, field in (("boards", "action"), ("rewards", "reward")):
        column = getattr(held, field)
        words = f"'{names[field]}' is shifted by one step, each a step too "
        yield what, words + "late", dataclasses.replace(held.part(inside), **{field: column[later]})
        yield what, words + "early", dataclasses.replace(held.part(later), **{field: column[inside]})


def _renumbered(game: Game, held: Held) -> str:
    """Which of their actions are others of ours, by where the players who took them stand afterwards; empty if none are."""
    stands = held.next_observation[:, :, 0]
    shares = np.zeros((game.actions, game.actions))
    for ours in range(game.actions):
        rules = by_the_rules(game, dataclasses.replace(held, action=np.full_like(held.action, ours)))
        fits = (rules["next_observation"][:, :, 0] == stands).all((-1, -2))
        for theirs in range(game.actions):
            took = (held.action == theirs) & held.looks & held.known[:, None]
            shares[theirs, ours] = fits[took].mean() if took.any() else 0.0
    found = [
        f"{theirs} is our {share.argmax()} ({game.action_names[share.argmax()]})"
        for theirs, share in enumerate(shares)
        if share.max() >= AGREES > share[theirs]
    ]
    return f"actions are numbered otherwise: their {', '.join(found)}" if found else ""
