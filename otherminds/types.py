"""Every pytree that crosses a border, with the shape of each field. Imports no other module of ours.

Axes come in this order and by these letters: `S` seeds, `T` time, `E` parallel games, `G` seats served by one policy,
`A` all seats of a game, then features. `*games` stands for whatever leading axes are there: none, `E`, or `T E`.
"""

import dataclasses
from typing import Any, TypeVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num, PRNGKeyArray, PyTree

Tree = TypeVar("Tree")

Action = Int[Array, "*games seats"] | Float[Array, "*games seats dims"]
"""Discrete actions are indices, one a seat; continuous ones have one more axis."""

JointAction = Int[Array, "*games G A"] | Float[Array, "*games G A dims"]


class TimeStep(eqx.Module):
    """One moment of a game. The first half says how we got here, the second what is the case now.

    Where `first` is true, the first half speaks of the episode that has just ended.
    """

    action: Action  # as chosen, legal or not; -1 (continuous: 0) for a seat that was absent when it would have acted
    reward: Float[Array, "*games A"]
    goal_reached: Int[Array, "*games A"]  # index into game.goals, -1 for none
    terminated: Bool[Array, "*games A"]  # true once: nothing of value follows for this seat
    truncated: Bool[Array, "*games"]  # cut off by a limit of time that the seats do not observe

    observation: Num[Array, "..."]  # [*games, A, features]
    legal: Bool[Array, "*games A actions"]
    present: Bool[Array, "*games A"]
    first: Bool[Array, "*games"]  # opens an episode
    meeting: Bool[Array, "*games"]  # opens a series of episodes with new partners


class View(eqx.Module):
    """What a policy of G seats sees of a TimeStep: each seat's own half, and what is public in that seat's ego order."""

    observation: Num[Array, "..."]  # [*games, G, features]
    legal: Bool[Array, "*games G actions"]
    reward: Float[Array, "*games G"]
    terminated: Bool[Array, "*games G"]
    action: JointAction  # ego order: entry 0 is the seat itself
    goal_reached: Int[Array, "*games G A"]  # ego order
    present: Bool[Array, "*games G A"]  # ego order
    seat: Int[Array, " G"]
    truncated: Bool[Array, "*games"]
    first: Bool[Array, "*games"]
    meeting: Bool[Array, "*games"]


class Memory(eqx.Module):
    """All that a policy remembers of one game: what is forgotten when an episode opens, and when a meeting opens."""

    episode: PyTree[Array]
    lasting: PyTree[Array]


class Extras(eqx.Module):
    """What a policy says about its action, in one schema for all policies."""

    logits: Float[Array, "*games G outputs"]  # of the distribution the action was drawn from
    policy_logits: Float[Array, "*games G outputs"]  # of the policy itself, before search or noise
    value: Float[Array, "*games G"]
    goal: Int[Array, "*games G"]  # the goal this seat itself is after, -1 for unknown


class Policy(eqx.Module):
    """What sits in G >= 1 seats. The same `step` serves training, evaluation, partners and the browser.

    `step` first lets the memory take in what happened (`conclude`), then forgets what is over, then acts; so no policy
    can forget to forget, and a lasting memory still sees the last step of an episode.
    """

    def initial_memory(self) -> Memory:
        """The empty memory of one game."""
        raise NotImplementedError

    def conclude(self, view: View, memory: Memory) -> Memory:
        """Take in the step that led here. On `first` it was the last of the old episode, and `memory` is still that episode's."""
        return memory

    def act(self, view: View, memory: Memory, key: PRNGKeyArray) -> tuple[Action, Memory, Extras]:
        """Choose an action for each seat in each of E games."""
        raise NotImplementedError

    def greedy(self) -> "Policy":
        """The same policy, always playing what it finds best; a script is what it is."""
        return self

    def without_noise(self) -> "Policy":
        """The policy itself, without what is mixed into it while it learns."""
        return self

    def check(self, game: Any, seats: tuple[int, ...]) -> None:
        """Refuse, with BadInput, to sit in these seats of this game. Whatever can be known to be wrong is said before play."""

    @final
    def step(self, view: View, memory: Memory, key: PRNGKeyArray) -> tuple[Action, Memory, Extras]:
        memory = self.conclude(view, memory)
        empty = self.initial_memory()
        memory = Memory(
            episode=where_game(view.first, empty.episode, memory.episode),
            lasting=where_game(view.meeting, empty.lasting, memory.lasting),
        )
        return self.act(view, memory, key)


class Seated(eqx.Module):
    """A policy and the seats it sits in."""

    policy: Policy
    seats: tuple[int, ...] = eqx.field(static=True)


class Everyone(eqx.Module):
    """What all players of a game can see of all seats, beside a learner's own columns of a trajectory."""

    action: Int[Array, "T E A"] | Float[Array, "T E A dims"]
    reward: Float[Array, "T E A"]
    goal_reached: Int[Array, "T E A"]
    present: Bool[Array, "T E A"]
    logits: Float[Array, "T E A outputs"]  # what actions were drawn from: to measure models against, never to learn from


class Trajectory(eqx.Module):
    """T steps of E games. Row t holds what was seen at t, what was done there, and what it brought.

    Weight row t of a seat by `present`: an absent seat's row means nothing.
    """

    observation: Num[Array, "T E A ..."]
    legal: Bool[Array, "T E A actions"]
    present: Bool[Array, "T E A"]
    first: Bool[Array, "T E"]
    meeting: Bool[Array, "T E"]

    action: Int[Array, "T E A"] | Float[Array, "T E A dims"]
    reward: Float[Array, "T E A"]
    goal_reached: Int[Array, "T E A"]
    terminated: Bool[Array, "T E A"]
    truncated: Bool[Array, "T E"]

    behaviour_logits: Float[Array, "T E A outputs"]
    policy_logits: Float[Array, "T E A outputs"]
    value: Float[Array, "T E A"]
    goal: Int[Array, "T E A"]

    seat: Int[Array, " A"]  # whose columns these are: learners log it, so that data of another seat is noticed
    last: TimeStep  # [E], the moment after row T - 1
    won: Bool[Array, "T E"] | None = None  # whether row t ended an episode with a win; only in games that can be won
    start: TimeStep | None = None  # [E], the moment of row 0, which says how we got there
    memory: Any = None  # [E], what the policy of these seats remembered before row 0; only in `of_seats`
    final_observation: Num[Array, "T E A ..."] | None = None  # what row t led to, before any reset; only if asked for
    everyone: Everyone | None = None  # only in `of_seats`
    state: Any = None  # [T, E] states of the game at row t; only if asked for
    after: Any = None  # [T, E] states that row t led to, before any reset; only if asked for


SEAT_FIELDS = (
    *("observation", "legal", "present", "action", "reward", "goal_reached", "terminated"),
    *("behaviour_logits", "policy_logits", "value", "goal", "final_observation"),
)
"""Fields of a Trajectory with a column for each seat."""


def of_seats(trajectory: Trajectory, seats: tuple[int, ...], memory: Any) -> Trajectory:
    """What a learner of these seats trains on: their own columns, all cut by one function, so that they fit together."""
    columns = np.array(seats)
    per_step = [field for field in SEAT_FIELDS if field != "final_observation" or trajectory.final_observation is not None]
    own: dict[str, Any] = {field: jnp.take(getattr(trajectory, field), columns, axis=2) for field in per_step}
    now = {
        field: jnp.take(getattr(trajectory.last, field), columns, axis=1)
        for field in ("action", "reward", "goal_reached", "terminated", "observation", "legal", "present")
    }
    return dataclasses.replace(
        trajectory,
        **own,
        seat=jnp.take(trajectory.seat, columns),
        last=dataclasses.replace(trajectory.last, **now),
        memory=memory,
        everyone=Everyone(
            *(trajectory.action, trajectory.reward, trajectory.goal_reached, trajectory.present, trajectory.behaviour_logits)
        ),
    )


def where_game(condition: Bool[Array, "*games"], yes: Tree, no: Tree) -> Tree:
    """Choose leaf by leaf between two pytrees; leaves of `yes` may lack the leading game axes of `no`."""

    def choose(a: Array, b: Array) -> Array:
        mask = condition.reshape(condition.shape + (1,) * (b.ndim - condition.ndim))
        return jnp.where(mask, a, b)

    return jax.tree.map(choose, yes, no)
