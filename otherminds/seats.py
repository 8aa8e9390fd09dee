"""What `--seats` means: which policy sits where. Learners' own seats are filled by `train`; here are all the others."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from otherminds import lineup, runs
from otherminds.checkpoint import load_policy, pick, seal_of
from otherminds.config import BadInput, closest, require
from otherminds.games.base import Game
from otherminds.learners import LEARNERS
from otherminds.lineup import split
from otherminds.partners import make_partner, names_for
from otherminds.types import Action, Extras, Memory, Policy, Seated, View

__all__ = ["Pool", "lanes_needed", "pinned", "resolve", "rotated", "seat_policy", "split"]


def resolve(game: Game, entries: str | Sequence[str], *, learned: Sequence[int] = ()) -> tuple[Seated, ...]:
    """Policies for the seats of a game that are not `learned`: one entry fills all seats, or there is one for each seat.

    Seats with the same script share one policy object, which plays them independently: one compiled program instead of several.
    """
    entries = lineup.spread(entries, game.seats, game.id or game.family)
    alone: list[Seated] = []
    together: dict[str, list[int]] = {}
    inner = 1
    for seat, entry in enumerate(entries):
        if seat in learned:
            continue
        members = lineup.pool(entry)
        if len(members) > 1:
            policies = tuple(seat_policy(game, member, seat) for member in members)
            alone.append(Seated(Pool(policies, jnp.int32(0), inner), (seat,)))
            inner *= len(members)
        elif entry.startswith("run:"):
            alone.append(Seated(seat_policy(game, entry, seat), (seat,)))
        else:
            together.setdefault(entry, []).append(seat)
    scripts = [Seated(seat_policy(game, entry, seats[0], len(seats)), tuple(seats)) for entry, seats in together.items()]
    return (*scripts, *alone)


def seat_policy(game: Game, entry: str, seat: int = 0, group: int = 1) -> Policy:
    """The policy that one entry names, for `group` seats of which `seat` is the first."""
    if entry.startswith("run:"):
        wanted = lineup.frozen(entry)
        player = seat if wanted.player is None else wanted.player - 1
        return load_policy(runs.find(wanted.run), player, wanted.step, wanted.seed)
    name = entry.partition("=")[0]
    known = names_for(game.family)
    require(name not in LEARNERS, f"{name} is a learner, and nothing learns here: train it, then write run:NAME")
    if name not in known:
        raise BadInput(f"nothing named '{name}' can sit in {game.id or game.family}: {closest(name, [*known, *LEARNERS])}")
    return make_partner(entry, game, group)


def pinned(text: str) -> str:
    """`--seats` with the checkpoint of each frozen policy written out: `final` and `best` may be others when a run goes on."""

    def pin(name: str) -> str:
        if not name.startswith("run:"):
            return name
        wanted = lineup.frozen(name)
        return str(dataclasses.replace(wanted, step=str(pick(runs.find(wanted.run), wanted.step))))

    return ",".join("~".join("+".join(map(pin, lineup.pool(part))) for part in entry.split("~")) for entry in lineup.split(text))


def seals(text: str) -> dict[str, str]:
    """Entry -> checksum of the checkpoint, for each frozen policy in a pinned `--seats`."""
    entries = [name for entry in lineup.split(text) for part in entry.split("~") for name in lineup.pool(part)]
    frozen = {name: lineup.frozen(name) for name in entries if name.startswith("run:")}
    return {name: seal_of(runs.find(wanted.run), int(wanted.step)) for name, wanted in frozen.items()}


class Pool(Policy):
    """Several policies for one seat: each plays an equal part of the parallel games, its lanes.

    Computing all members everywhere and choosing would cost as many times as much as there are members. Pools in several seats
    cross: with `inner` the product of the sizes of the pools before it, members take turns every `inner` lanes.
    `rotation` moves all members on by so many lanes, so that every game meets everybody.
    """

    members: tuple[Policy, ...]
    rotation: Int[Array, ""]
    inner: int = eqx.field(static=True)

    def check(self, game: Game, seats: tuple[int, ...]) -> None:
        for member in self.members:
            member.check(game, seats)

    def greedy(self) -> "Pool":
        return Pool(tuple(member.greedy() for member in self.members), self.rotation, self.inner)

    def without_noise(self) -> "Pool":
        return Pool(tuple(member.without_noise() for member in self.members), self.rotation, self.inner)

    def initial_memory(self) -> Memory:
        """Of one game, with room for whoever plays it."""
        memories = [member.initial_memory() for member in self.members]
        return Memory(tuple(m.episode for m in memories), tuple(m.lasting for m in memories))

    def act(self, view: View, memory: Memory, key: PRNGKeyArray) -> tuple[Action, Memory, Extras]:
        seat, own = view.seat, eqx.tree_at(lambda v: v.seat, view, None)
        turned, held = jax.tree.map(lambda leaf: jnp.roll(leaf, self.rotation, 0), (own, memory))
        parts: list[Any] = []
        for k, member in enumerate(self.members):
            seen, remembered = jax.tree.map(lambda leaf, k=k: self._part(leaf, k), (turned, held))
            seen = eqx.tree_at(lambda v: v.seat, seen, seat, is_leaf=lambda leaf: leaf is None)
            mine = Memory(remembered.episode[k], remembered.lasting[k])
            action, mine, extras = member.act(seen, mine, jax.random.fold_in(key, k))
            episode = tuple(mine.episode if j == k else other for j, other in enumerate(remembered.episode))
            lasting = tuple(mine.lasting if j == k else other for j, other in enumerate(remembered.lasting))
            parts.append((action, Memory(episode, lasting), extras))
        joined = jax.tree.map(lambda *leaves: self._join(leaves), *parts)
        action, after, extras = jax.tree.map(lambda leaf: jnp.roll(leaf, -self.rotation, 0), joined)
        return action, after, extras

    def conclude(self, view: View, memory: Memory) -> Memory:
        """Each member takes in what happened; those who do not play a lane have no say in it."""
        concluded = [
            member.conclude(view, Memory(episode, lasting))
            for member, episode, lasting in zip(self.members, memory.episode, memory.lasting, strict=True)
        ]
        return Memory(tuple(m.episode for m in concluded), tuple(m.lasting for m in concluded))

    def _part(self, leaf: Array, member: int) -> Array:
        """The lanes of one member: [E, ...] -> [E / members, ...]."""
        turns = leaf.shape[0] // (len(self.members) * self.inner)
        lanes = leaf.reshape(turns, len(self.members), self.inner, *leaf.shape[1:])
        return lanes[:, member].reshape(turns * self.inner, *leaf.shape[1:])  # no -1: a memory may have no numbers at all

    def _join(self, leaves: Sequence[Array]) -> Array:
        count, *rest = leaves[0].shape
        lanes = [leaf.reshape(count // self.inner, 1, self.inner, *rest) for leaf in leaves]
        return jnp.concatenate(lanes, 1).reshape(count * len(leaves), *rest)


def rotated(policies: tuple[Seated, ...], rotation: int | Array) -> tuple[Seated, ...]:
    """The same policies with the members of all pools moved on."""
    return tuple(
        eqx.tree_at(lambda s: s.policy.rotation, seated, jnp.asarray(rotation, jnp.int32))
        if isinstance(seated.policy, Pool)
        else seated
        for seated in policies
    )


def lanes_needed(policies: tuple[Seated, ...]) -> int:
    """By what the number of parallel games must be divisible, so that every member of every pool gets an equal part."""
    needed = 1
    for seated in policies:
        if isinstance(seated.policy, Pool):
            needed *= len(seated.policy.members)
    return needed
