"""Playing: the only loop that restarts games by itself. It knows nothing of learning.

Compiled games are played inside the caller's `jit`; games stepped on the host (PettingZoo) outside of it, by the same functions.
"""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Num, PRNGKeyArray

from otherminds.config import BadInput, require
from otherminds.games.base import Game, Outcome
from otherminds.games.ego import view
from otherminds.games.host import HostGames
from otherminds.games.pettingzoo import PettingZooGame
from otherminds.types import Action, Extras, Memory, Seated, TimeStep, Trajectory, where_game

MEETING_EPISODES = 16  # how many episodes the same partners stay together


class Bank(eqx.Module):
    """Starts drawn ahead, dealt one after the other like cards. Drawing one anew at each reset would cost most of the time."""

    starts: Any  # states with a leading axis of game.bank_size
    next: Int[Array, ""]


class Hosted(eqx.Module):
    """The state of games on the host: the games themselves, and the moment at which this play holds them."""

    games: HostGames = eqx.field(static=True)
    moment: int = eqx.field(static=True)


class Seen(eqx.Module):
    """What there is to see of games: the second half of a TimeStep, without what only the loop knows."""

    observation: Num[Array, "..."]  # [*games, A, features]
    legal: Bool[Array, "*games A actions"]
    present: Bool[Array, "*games A"]


class Play(eqx.Module):
    """E games in the middle of being played: all that is needed to go on."""

    state: Any  # [E], or Hosted
    now: TimeStep  # [E]
    memories: tuple[Memory, ...]  # one for each policy, [E]
    over: Bool[Array, "E A"]  # seats for which nothing of value follows in this episode
    episode: Int[Array, " E"]  # episodes since the meeting opened
    bank: Bank | None  # None where starts are not drawn ahead
    key: PRNGKeyArray


def draw_bank(game: Game, key: PRNGKeyArray, size: int | None = None) -> Bank:
    """Starts of a game; as many as the game finds worth drawing ahead, unless a `size` is asked for."""
    if game.on_host:
        raise BadInput(f"{game.id} is stepped on the host: its starts cannot be drawn ahead")
    return Bank(starts=_starts(game, jax.random.split(key, size or game.bank_size)), next=jnp.int32(0))


@eqx.filter_jit
def _starts(game: Game, keys: Array) -> Any:
    return jax.vmap(game.reset)(keys)


def refresh_bank(game: Game, bank: Bank, key: PRNGKeyArray, share: float = 1 / 16) -> Bank:
    """Replace the starts to be dealt next, those dealt longest ago: so a long run is not tied to the boards it began with."""
    size = _size(bank)
    count = max(1, int(size * share))
    fresh = _starts(game, jax.random.split(key, count))
    rows = (bank.next + jnp.arange(count)) % size
    return Bank(starts=jax.tree.map(lambda old, new: old.at[rows].set(new), bank.starts, fresh), next=bank.next)


def _size(bank: Bank) -> int:
    return jax.tree.leaves(bank.starts)[0].shape[0]


def start(
    game: Game, policies: tuple[Seated, ...], games: int, key: PRNGKeyArray, bank: Bank | None = None, *, workers: int = 0
) -> Play:
    """Open `games` parallel games with new partners in them.

    `workers` spreads games on the host over that many processes; 0 keeps them in this one. Compiled games have none.
    """
    start_key, key = jax.random.split(key)
    if isinstance(game, PettingZooGame):
        require(bank is None, f"{game.id} is stepped on the host: its starts cannot be drawn ahead")
        _require_outside_jit(game, key)
        hosted = game.open(games, workers, np.asarray(jax.random.key_data(start_key)).tolist())
        seen = _seen_on_host(_fields(hosted.reset(np.ones(games, bool))))
        state = Hosted(hosted, hosted.moment)
    else:
        require(workers == 0, f"{game.id} is compiled and has no worker processes: workers=0")
        bank = draw_bank(game, start_key) if bank is None else bank
        state, bank = _deal(bank, jnp.ones(games, bool))
        seen = look(game, state)
    return open_play(game, policies, state, seen, bank, key)


def close(play: Play) -> None:
    """End the processes of games on the host. Happens by itself when the last Play of them is forgotten."""
    if isinstance(play.state, Hosted):
        play.state.games.close()


def open_play(game: Game, policies: tuple[Seated, ...], state: Any, seen: Seen, bank: Bank | None, key: PRNGKeyArray) -> Play:
    """The first moment of games that have just opened, with nothing remembered."""
    taken = sorted(seat for seated in policies for seat in seated.seats)
    everyone = list(range(game.seats))
    require(taken == everyone, f"{game.id or game.family}: policies sit in seats {taken}, expected each of {everyone} once")
    for seated in policies:
        seated.policy.check(game, seated.seats)
    per_seat = seen.present.shape
    games = per_seat[0]
    yes, no = jnp.ones(games, bool), jnp.zeros(games, bool)
    action = jnp.zeros((*per_seat, game.actions)) if game.continuous else jnp.full(per_seat, -1, jnp.int32)
    now = TimeStep(
        action=action,
        reward=jnp.zeros(per_seat),
        goal_reached=jnp.full(per_seat, -1, jnp.int32),
        terminated=jnp.zeros(per_seat, bool),
        truncated=no,
        observation=seen.observation,
        legal=seen.legal,
        present=seen.present,
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
    """Play `steps` steps in every game, restarting those that end. Partners stay together for `meeting_episodes`.

    `final` keeps what each step led to before any restart, `states` the states of the game; both cost time.
    Games on the host are moved on for good: an earlier Play of them cannot be played again.
    """
    require(meeting_episodes >= 1, f"meeting_episodes is {meeting_episodes}, expected at least 1")
    if isinstance(game, PettingZooGame):
        require(not states, f"{game.id} is stepped on the host: it has no states to keep")
        return _collect_on_host(game, policies, play, steps, final, meeting_episodes)

    def one_step(play: Play, _: None) -> tuple[Play, dict[str, Any]]:
        key, game_key, action, memories, extras = choose(policies, play.now, play.memories, play.key)
        after, ending = advance(game, play, action, game_key, meeting_episodes)
        row = _row(play.now, after.now, extras)
        if final:
            row["final_observation"] = jax.vmap(game.observe)(ending)
        if states:
            row |= {"state": play.state, "after": ending}
        if game.winnable:
            row["won"] = jax.vmap(game.won)(ending) & after.now.first
        return eqx.tree_at(lambda p: (p.memories, p.key), after, (memories, key)), row

    now = play.now
    play, rows = jax.lax.scan(one_step, play, length=steps)
    return play, Trajectory(**rows, seat=jnp.arange(game.seats), last=play.now, start=now)


def choose(
    policies: tuple[Seated, ...], now: TimeStep, memories: tuple[Memory, ...], key: PRNGKeyArray
) -> tuple[PRNGKeyArray, PRNGKeyArray, Action, tuple[Memory, ...], Extras]:
    """What the policies do now, all seats in order. Also gives the keys for what comes later and for the game's own step."""
    key, game_key, *policy_keys = jax.random.split(key, 2 + len(policies))
    chosen = [
        seated.policy.step(view(now, seated.seats), memory, policy_key)
        for seated, memory, policy_key in zip(policies, memories, policy_keys, strict=True)
    ]
    action = _to_seats(policies, [action for action, _, _ in chosen])
    extras = jax.tree.map(lambda *parts: _to_seats(policies, parts), *[extras for _, _, extras in chosen])
    return key, game_key, action, tuple(memory for _, memory, _ in chosen), extras


def advance(
    game: Game, play: Play, action: Action, key: PRNGKeyArray, meeting_episodes: int, *, restart: bool = True
) -> tuple[Play, Any]:
    """Step every compiled game and restart those that ended. Also returns the states before the restart.

    Without `restart`, a game that ended stays at its end, though its TimeStep says `first`.
    """
    keys = jax.random.split(key, play.over.shape[0])
    ending, outcome = jax.vmap(game.step)(play.state, action, keys)
    goal_reached = jax.vmap(game.goal_reached)(play.state, action, ending)
    state, bank = ending, play.bank
    if restart:
        assert bank is not None
        ended = outcome.terminated | outcome.truncated
        fresh, bank = _deal(bank, ended)
        state = where_game(ended, fresh, ending)
    now, over, episode = _arrive(
        game, play.now, play.over, play.episode, action, outcome, goal_reached, look(game, state), meeting_episodes
    )
    return Play(state, now, play.memories, over, episode, bank, key), ending


def look(game: Game, state: Any) -> Seen:
    """What there is to see of compiled games."""
    return Seen(jax.vmap(game.observe)(state), jax.vmap(game.legal)(state), jax.vmap(game.present)(state))


def _arrive(
    game: Game,
    now: TimeStep,
    over: Bool[Array, "E A"],
    episode: Int[Array, " E"],
    action: Action,
    outcome: Outcome,
    goal_reached: Int[Array, "E A"],
    seen: Seen,
    meeting_episodes: int,
) -> tuple[TimeStep, Bool[Array, "E A"], Int[Array, " E"]]:
    """The next moment, for which seats it is over, and the episode in its meeting. `seen` is what there is after any restart."""
    ended = outcome.terminated | outcome.truncated
    terminated = (outcome.left | outcome.terminated[:, None]) & ~over
    episode = jnp.where(ended, (episode + 1) % meeting_episodes, episode)
    acted = now.present.reshape(now.present.shape + (1,) * (action.ndim - 2))
    after = TimeStep(
        action=jnp.where(acted, action, 0 if game.continuous else -1).astype(now.action.dtype),
        reward=outcome.reward,
        goal_reached=jnp.where(now.present, goal_reached, -1).astype(jnp.int32),
        terminated=terminated,
        truncated=outcome.truncated,
        observation=seen.observation,
        legal=seen.legal,
        present=seen.present,
        first=ended,
        meeting=ended & (episode == 0),
    )
    return after, (over | terminated) & ~ended[:, None], episode


def _collect_on_host(
    game: PettingZooGame, policies: tuple[Seated, ...], play: Play, steps: int, final: bool, meeting_episodes: int
) -> tuple[Play, Trajectory]:
    """`collect` with the games in Python and everything else compiled: two short programs a step."""
    _require_outside_jit(game, play.key)
    require(steps > 0, f"{game.id}: {steps} steps, expected at least 1")
    games, moment = play.state.games, play.state.moment
    games.require_open()
    require(moment == games.moment, f"{game.id}: this Play has been played on already, and games on the host cannot go back")
    rows, opened = [], play.now
    for _ in range(steps):
        key, _, action, memories, extras = _choose(policies, play.now, play.memories, play.key)
        brought = games.step(np.asarray(action))
        ended = brought["terminated"] | brought["truncated"]
        shown = brought
        if ended.any():
            shown = brought.copy()
            shown[ended] = games.reset(ended)
        now, over, episode = _arrive_on_host(
            game, play.now, play.over, play.episode, action, _fields(brought), _fields(shown), meeting_episodes
        )
        row = _row(play.now, now, extras)
        if final:
            row["final_observation"] = brought["observation"]
        rows.append(row)
        play = Play(Hosted(games, games.moment), now, memories, over, episode, None, key)
    stacked: dict[str, Any] = {name: jnp.asarray(np.stack([row[name] for row in rows])) for name in rows[0]}
    return play, Trajectory(**stacked, seat=jnp.arange(game.seats), last=play.now, start=opened)


_choose = eqx.filter_jit(choose)


@eqx.filter_jit
def _arrive_on_host(
    game: Game,
    now: TimeStep,
    over: Bool[Array, "E A"],
    episode: Int[Array, " E"],
    action: Action,
    brought: Mapping[str, Any],
    shown: Mapping[str, Any],
    meeting_episodes: int,
) -> tuple[TimeStep, Bool[Array, "E A"], Int[Array, " E"]]:
    outcome = jax.vmap(Outcome)(brought["reward"], brought["left"], brought["terminated"], brought["truncated"])
    goal_reached = jnp.full(over.shape, -1, jnp.int32)
    return _arrive(game, now, over, episode, action, outcome, goal_reached, _seen_on_host(shown), meeting_episodes)


def _seen_on_host(shown: Mapping[str, Any]) -> Seen:
    """Rows of games on the host as they are seen: an absent seat observes nothing."""
    present = jnp.asarray(shown["present"])
    observation = jnp.asarray(shown["observation"])
    return Seen(where_game(present, observation, jnp.zeros_like(observation)), jnp.asarray(shown["legal"]), present)


def _fields(rows: np.ndarray) -> dict[str, np.ndarray]:
    return {name: rows[name] for name in rows.dtype.names or ()}


def _require_outside_jit(game: Game, key: PRNGKeyArray) -> None:
    if isinstance(key, jax.core.Tracer):
        raise BadInput(f"{game.id} is stepped on the host: call rollout outside of jit, vmap and scan")


def _deal(bank: Bank, wanted: Bool[Array, " E"]) -> tuple[Any, Bank]:
    """The next starts of the bank for the games that want one; the others get one too, which nobody looks at."""
    size = _size(bank)
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
