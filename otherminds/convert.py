"""Datasets out of what another library left as arrays: what is missing is worked out where it can be, and marked where it cannot.

Where an observation determines the state, every row is held against the rules of the game first.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from otherminds import foreign
from otherminds.config import BadInput, Convert, require
from otherminds.dataset import Dataset, Rows
from otherminds.foreign import Source
from otherminds.games.base import Game
from otherminds.games.ego import from_ego, to_ego
from otherminds.rules import AGREES, TRIED, Held, agreement, by_the_rules, cause, there
from otherminds.samples import shows_all


@dataclasses.dataclass(frozen=True)
class Places:
    """Where in the arrays of the source the rows of a dataset are: whole episodes, one after the other."""

    lane: np.ndarray
    step: np.ndarray
    end: np.ndarray
    truncated: np.ndarray
    left: np.ndarray  # [n, A]: for which seats it is over, by the source's word
    final: np.ndarray  # [n, A, ...]: what a row led to, if it is an episode's last
    known: np.ndarray  # whether the source says what a row led to
    dropped: int  # steps that are not among them

    def part(self, chosen: np.ndarray, dropped: int) -> "Places":
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return Places(**{name: x[chosen] for name, x in fields.items() if name != "dropped"}, dropped=self.dropped + dropped)


def convert(options: Convert) -> tuple[Dataset, dict[str, Any]]:
    """The dataset, and what there is to say of it: agreement with the rules, what was dropped or mended, what is unknown."""
    source, action = foreign.open_source(options)
    game, ruled = source.game, shows_all(source.game)
    seen = foreign.observations(source, "observation")
    places = _places(source, seen, action, ruled)
    if not ruled:
        places = _without_lost_ends(places)
    require(len(places.end) > 0, f"{options.source} holds no whole episode: check --axes {options.axes}, or give --end NAME")
    lane, step, end, truncated, over = places.lane, places.step, places.end, places.truncated, places.left
    action, observation = action[lane, step], seen[lane, step]
    following = np.where(_wide(end, observation), places.final, seen[lane, np.minimum(step + 1, seen.shape[1] - 1)])
    reward = source.column("reward", (), (("seat",),))[lane, step].astype(np.float32)
    require(bool(np.isfinite(reward).all()), f"'{options.reward}' holds numbers that are not finite")
    shown = there(game, observation)
    present = source.column("present")[lane, step] > 0 if source.has("present") else shown
    agrees = None
    if ruled:
        held = Held(observation, shown & present, action, reward, following, places.known, end)
        rules = by_the_rules(game, held)
        agrees = _checked(options, game, held, rules)
        gone = float((rules["present"] & ~present).sum() / max(1, rules["present"].sum()))
        require(
            gone <= 1 - AGREES, f"'{options.present}' is 0 for {gone:.1%} of the players on the board: is it shifted by a step?"
        )
        observation = np.where(_wide(held.looks, observation), observation, rules["observation"])
        seen_after = rules["next_present"] & places.known[:, None]
        following = np.where(_wide(seen_after, observation), following, rules["next_observation"])
        present, legal, over, truncated = rules["present"], rules["legal"], rules["left"], end & ~rules["terminated"]
    else:
        legal = foreign.legal(source, lane, step, present, action)
    _require_actions(options, game, action[present])
    first = np.concatenate([[True], end[:-1]])
    partners, who = foreign.who(source, lane, step)
    rows = Rows(
        observation=observation,
        next_observation=following,
        legal=legal,
        present=present,
        next_present=np.concatenate([present[1:], present[-1:]]) & ~end[:, None],
        action=np.where(present, action, -1).astype(np.int8),
        reward=reward,
        terminated=_once(over | (end & ~truncated)[:, None], first),
        truncated=truncated,
        first=first,
        meeting=_meetings(first, lane * ("episode" not in options.axes), options.meeting),
        end=end,
        goal_reached=np.full(action.shape, -1, np.int16),
        goal=foreign.goals(source, lane, step, present),
        probabilities=foreign.probabilities(source, lane, step, present),
        who=who,
    )
    told = {name: str(getattr(options, name)) for name in Convert.__dataclass_fields__ if name not in ("source", "out", "json")}
    data = Dataset(rows, game, partners, {"converted": options.source.name} | told)
    if ruled:
        data = dataclasses.replace(data, rows=dataclasses.replace(rows, goal_reached=_goal_reached(data)))
    said = {
        "agreement": agrees,
        "dropped_steps": places.dropped,
        "absent_actions": int((~present & (action >= 0)).sum()),
        "unknown": _unknown(source, ruled),
    }
    return data, said


def _places(source: Source, seen: np.ndarray, action: np.ndarray, ruled: bool) -> Places:
    """Where whole episodes are. Ends that nobody noted are those of the rules, if these can be asked."""
    noted, (lanes, steps, seats) = foreign.ends(source), action.shape
    if noted is None and ruled:
        flat, none = seen[:, :steps].reshape(lanes * steps, *seen.shape[2:]), np.zeros(lanes * steps, bool)
        held = Held(flat, there(source.game, flat), action.reshape(-1, seats), none, flat, none, none)
        over = by_the_rules(source.game, held)["terminated"].reshape(lanes, steps, 1)
        noted = np.broadcast_to(over, action.shape), np.zeros(action.shape, bool)
    if noted is None:
        options = source.options
        require("episode" in options.axes, f"{options.source} says nowhere where an episode ends: --end NAME")
        noted = np.zeros(action.shape, bool), np.zeros(action.shape, bool)
    marks, cut = noted
    over = foreign.ended(marks)
    lane, step, end, dropped = foreign.whole_episodes(source, over)
    final, known = foreign.final(source, seen, lane, step)
    truncated = end & (cut.any(-1) | ~over)[lane, step]
    return Places(lane, step, end, truncated, (marks & ~cut)[lane, step], final, known | ~end, dropped)


def _without_lost_ends(places: Places) -> Places:
    """Where it is lost what the last step led to, an episode is cut off one step earlier."""
    lost = np.flatnonzero(~places.known)
    before = lost[lost > 0] - 1
    before = before[~places.end[before]]
    end, truncated = places.end.copy(), places.truncated.copy()
    end[before], truncated[before] = True, True
    return dataclasses.replace(places, end=end, truncated=truncated).part(places.known, len(lost))


def _checked(options: Convert, game: Game, held: Held, rules: dict[str, np.ndarray]) -> dict[str, float]:
    """The shares of rows that follow the rules; refused if they are too few, with the cause as far as it can be told."""
    found = agreement(held, rules)
    bad = next((what for what, share in found.items() if share < AGREES), None)
    if bad is None:
        return found
    sign, other = (1, "absolute") if options.frame == "ego" else (-1, "ego")
    few = held.part(slice(0, TRIED))
    views = [foreign.turned(game, view, sign) for view in (few.observation, few.next_observation)]
    turned = dataclasses.replace(few, observation=views[0], next_observation=views[1], looks=there(game, views[0]))
    names = {"action": options.action, "reward": options.reward, "end": options.end, "other_frame": other}
    why = cause(game, held, rules, bad, turned, names)
    raise BadInput(
        f"{options.source}: the {bad} of {found[bad]:.1%} of the rows are by the rules of {game.id}, expected 99 %: {why}"
    )


def _require_actions(options: Convert, game: Game, acted: np.ndarray) -> None:
    fits = len(acted) and acted.min() >= 0 and acted.max() < game.actions
    low, high = (acted.min(), acted.max()) if len(acted) else (None, None)
    require(bool(fits), f"'{options.action}' holds {low} to {high} for players who are there, expected 0 to {game.actions - 1}")


def _unknown(source: Source, ruled: bool) -> list[str]:
    fields = ("goal", "probabilities", "who") if ruled else ("goal", "probabilities", "who", "present", "legal")
    return [name for name in fields if not source.has(name)] + ([] if ruled else ["goal_reached"])


def _wide(chosen: np.ndarray, like: np.ndarray) -> np.ndarray:
    return chosen.reshape(*chosen.shape, *(1,) * (like.ndim - chosen.ndim))


def _once(flags: np.ndarray, first: np.ndarray) -> np.ndarray:
    """The first of the flags [n, A] of each seat in each episode."""
    count = np.cumsum(flags, 0)
    opening = np.maximum.accumulate(np.where(first, np.arange(len(first)), 0))
    return flags & (count - (count - flags)[opening] == 1)


def _meetings(first: np.ndarray, lane: np.ndarray, episodes: int) -> np.ndarray:
    """Where a series of episodes with the same partners begins; every lane begins one."""
    episode = np.cumsum(first) - 1
    opens = np.concatenate([[True], lane[1:] != lane[:-1]])
    return first & ((episode - np.maximum.accumulate(np.where(opens, episode, 0))) % episodes == 0)


def _goal_reached(data: Dataset) -> np.ndarray:
    """[n, A]: by the game's own word, from each episode played again: some labels need all that came before."""
    rows, table = data.rows, data.table()
    opening = table[:, 0]
    seat = there(data.game, rows.observation[opening]).argmax(1)
    played = (jnp.asarray(x) for x in (rows.observation[opening, seat], seat, rows.action[table]))
    labels = np.asarray(_played_again(data.game, *played))
    found = np.full(rows.action.shape, -1, np.int16)
    found[table[table >= 0]] = labels[table >= 0]
    return np.where(rows.present, found, -1).astype(np.int16)


@eqx.filter_jit
def _played_again(game: Game, observation: Array, seat: Array, action: Array) -> Array:
    def episode(observation: Array, seat: Array, action: Array) -> Array:
        def one(state: Any, action: Array) -> tuple[Any, Array]:
            joint = to_ego(action.astype(jnp.int32), seat)
            after, _ = game.step(state, joint, jax.random.key(0))
            return after, from_ego(game.goal_reached(state, joint, after), seat)

        return jax.lax.scan(one, game.state_of(observation, seat), action)[1]

    return jax.vmap(episode)(observation, seat, action)
