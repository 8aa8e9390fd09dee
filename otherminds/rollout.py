"""Playing: the only loop that restarts games by itself. It knows nothing of learning."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from otherminds.games.base import Game
from otherminds.games.ego import view
from otherminds.types import Extras, Memory, Seated, TimeStep, Trajectory, where_game

MEETING_EPISODES = 16  # how many episodes the same partners stay together


class Bank(eqx.Module):
    """Starts drawn ahead, dealt one after the other like cards. Drawing a start anew at each reset would cost most of the time."""

    starts: Any  # states with a leading axis of game.bank_size
    next: Int[Array, ""]


class Play(eqx.Module):
    """E games in the middle of being played: all that is needed to go on."""

    state: Any  # [E]
    now: TimeStep  # [E]
    memories: tuple[Memory, ...]  # one for each policy, [E]
    over: Bool[Array, "E A"]  # seats for which nothing of value follows in this episode
    episode: Int[Array, " E"]  # episodes since the meeting opened
    bank: Bank
    key: PRNGKeyArray


def draw_bank(game: Game, key: PRNGKeyArray, size: int | None = None) -> Bank:
    keys = jax.random.split(key, size or game.bank_size)
    return Bank(starts=jax.vmap(game.reset)(keys), next=jnp.int32(0))


def refresh_bank(game: Game, bank: Bank, key: PRNGKeyArray, share: float = 1 / 16) -> Bank:
    """Replace the starts dealt longest ago, so that a long run is not tied to the boards it began with."""
    size = bank.starts.time.shape[0] if hasattr(bank.starts, "time") else jax.tree.leaves(bank.starts)[0].shape[0]
    count = max(1, int(size * share))
    fresh = jax.vmap(game.reset)(jax.random.split(key, count))
    rows = (bank.next - 1 - jnp.arange(count)) % size
    return Bank(starts=jax.tree.map(lambda old, new: old.at[rows].set(new), bank.starts, fresh), next=bank.next)


def start(game: Game, policies: tuple[Seated, ...], games: int, key: PRNGKeyArray, bank: Bank | None = None) -> Play:
    """Open `games` parallel games with new partners in them."""
    bank_key, key = jax.random.split(key)
    bank = draw_bank(game, bank_key) if bank is None else bank
    state, bank = _deal(bank, jnp.ones(games, bool))
    yes, no = jnp.ones(games, bool), jnp.zeros(games, bool)
    per_seat = (games, game.seats)
    action = jnp.zeros((*per_seat, game.actions)) if game.continuous else jnp.full(per_seat, -1)
    now = TimeStep(
        action=action,
        reward=jnp.zeros(per_seat),
        goal_reached=jnp.full(per_seat, -1),
        terminated=jnp.zeros(per_seat, bool),
        truncated=no,
        observation=jax.vmap(game.observe)(state),
        legal=jax.vmap(game.legal)(state),
        present=jax.vmap(game.present)(state),
        first=yes,
        meeting=yes,
    )
    memories = tuple(
        jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (games, *leaf.shape)), seated.policy.initial_memory())
        for seated in policies
    )
    return Play(state, now, memories, jnp.zeros(per_seat, bool), jnp.zeros(games, jnp.int32), bank, key)


def collect(
    game: Game,
    policies: tuple[Seated, ...],
    play: Play,
    steps: int,
    *,
    final: bool = False,
    states: bool = False,
    meeting_episodes: int = MEETING_EPISODES,
) -> tuple[Play, Trajectory]:
    """Play `steps` steps in every game, restarting those that end.

    `final` keeps what each step led to before any restart, `states` the states of the game; both cost time.
    """

    def one_step(play: Play, _: None) -> tuple[Play, dict[str, Any]]:
        key, game_key, *policy_keys = jax.random.split(play.key, 2 + len(policies))
        chosen = [
            seated.policy.step(view(play.now, seated.seats), memory, policy_key)
            for seated, memory, policy_key in zip(policies, play.memories, policy_keys, strict=True)
        ]
        action = _to_seats(policies, [action for action, _, _ in chosen])
        extras = jax.tree.map(lambda *parts: _to_seats(policies, parts), *[extras for _, _, extras in chosen])
        memories = tuple(memory for _, memory, _ in chosen)
        after, ending = _advance(game, play, action, game_key, meeting_episodes)
        row = _row(play.now, after.now, extras)
        if final:
            row["final_observation"] = jax.vmap(game.observe)(ending)
        if states:
            row["state"] = play.state
        return eqx.tree_at(lambda p: (p.memories, p.key), after, (memories, key)), row

    play, rows = jax.lax.scan(one_step, play, length=steps)
    return play, Trajectory(**rows, last=play.now)


def _advance(game: Game, play: Play, action: Array, key: PRNGKeyArray, meeting_episodes: int) -> tuple[Play, Any]:
    """Step every game and restart those that ended. Also returns the states before the restart."""
    keys = jax.random.split(key, play.over.shape[0])
    ending, outcome = jax.vmap(game.step)(play.state, action, keys)
    goal_reached = jax.vmap(game.goal_reached)(play.state, action, ending)
    ended = outcome.terminated | outcome.truncated
    terminated = (outcome.left | outcome.terminated[:, None]) & ~play.over

    fresh, bank = _deal(play.bank, ended)
    state = where_game(ended, fresh, ending)
    episode = jnp.where(ended, (play.episode + 1) % meeting_episodes, play.episode)
    acted = play.now.present.reshape(play.now.present.shape + (1,) * (action.ndim - 2))
    now = TimeStep(
        action=jnp.where(acted, action, 0 if game.continuous else -1),
        reward=outcome.reward,
        goal_reached=jnp.where(play.now.present, goal_reached, -1),
        terminated=terminated,
        truncated=outcome.truncated,
        observation=jax.vmap(game.observe)(state),
        legal=jax.vmap(game.legal)(state),
        present=jax.vmap(game.present)(state),
        first=ended,
        meeting=ended & (episode == 0),
    )
    over = (play.over | terminated) & ~ended[:, None]
    return Play(state, now, play.memories, over, episode, bank, key), ending


def _deal(bank: Bank, wanted: Bool[Array, " E"]) -> tuple[Any, Bank]:
    """The next starts of the bank for the games that want one; the others get one too, which nobody looks at."""
    size = jax.tree.leaves(bank.starts)[0].shape[0]
    rank = jnp.cumsum(wanted)
    rows = (bank.next + rank - 1) % size
    dealt = jax.tree.map(lambda leaf: leaf[rows], bank.starts)
    return dealt, Bank(starts=bank.starts, next=(bank.next + rank[-1]) % size)


def _to_seats(policies: tuple[Seated, ...], parts: Any) -> Array:
    """Join what the policies give for their seats into one array with the seats in order."""
    order = [seat for seated in policies for seat in seated.seats]
    joined = parts[0] if len(parts) == 1 else jnp.concatenate(parts, 1)
    return joined if order == sorted(order) else joined[:, jnp.argsort(jnp.array(order))]


def _row(now: TimeStep, after: TimeStep, extras: Extras) -> dict[str, Any]:
    """One row of a trajectory: what was seen, what was done, what it brought."""
    return dict(
        observation=now.observation,
        legal=now.legal,
        present=now.present,
        first=now.first,
        meeting=now.meeting,
        action=after.action,
        reward=after.reward,
        goal_reached=after.goal_reached,
        terminated=after.terminated,
        truncated=after.truncated,
        behaviour_logits=extras.logits,
        policy_logits=extras.policy_logits,
        value=extras.value,
        goal=extras.goal,
    )
