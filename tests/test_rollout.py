"""The loop that restarts games: what a timestep says, how starts are dealt, what policies remember."""

import itertools
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from otherminds import BadInput, make, seats
from otherminds.games import GAMES
from otherminds.partners import make_partner
from otherminds.rollout import MEETING_EPISODES, Bank, collect, draw_bank, refresh_bank, start
from otherminds.types import Extras, Memory, Policy, Seated

from players import played


def episodes(rows, lane):
    """(first row, row behind the last) of the whole episodes of one lane."""
    opens = [t for t in range(rows.first.shape[0]) if rows.first[t, lane]]
    return list(itertools.pairwise(opens))


@pytest.mark.parametrize("game_id", GAMES)
def test_every_game_keeps_the_contract(game_id):
    """Each seat ends once an episode; the absent do nothing, earn nothing, and may only take action 0; episodes end in time."""
    game, _, rows = played(game_id, "random", 2 * make(game_id).longest + 3)
    assert rows.first[0].all()
    assert rows.meeting[0].all()
    assert rows.observation.shape[2:] == (game.seats, *game.observation_shape)
    assert rows.observation.dtype == game.observation_dtype
    absent = ~rows.present
    assert (rows.action[absent] == -1).all()
    assert (rows.action[rows.present] >= 0).all()
    assert (rows.reward[absent] == 0).all()
    assert (rows.goal_reached[absent] == -1).all()
    assert (rows.legal[absent] == (np.arange(game.actions) == 0)).all()
    assert rows.legal[rows.present].any(-1).all()
    assert not rows.truncated.any()
    chosen = np.take_along_axis(rows.legal, np.maximum(rows.action, 0)[..., None], -1)[..., 0]
    assert chosen.all()
    for lane in range(rows.first.shape[1]):
        whole = episodes(rows, lane)
        assert whole
        for begin, end in whole:
            assert end - begin <= game.longest
            assert (rows.terminated[begin:end, lane].sum(0) == 1).all()
            assert rows.present[begin, lane].all()
            last_seen = rows.present[begin:end, lane].sum(0) - 1
            assert (np.argmax(rows.terminated[begin:end, lane], 0) == last_seen).all()


def test_compiles_once():
    """What comes out of `collect` must fit into it again without another compilation."""
    for game_id in ("stag_hunt-4x4-4h1s", "snowdrift-4x4", "matrix-ipd"):
        game = make(game_id)
        policies = seats.resolve(game, "random")
        play = jax.jit(partial(start, game, policies, 4))(jax.random.key(0))
        run = jax.jit(lambda play, game=game, policies=policies: collect(game, policies, play, 3)[0])
        run(run(play))
        assert run._cache_size() == 1


def test_two_calls_are_one_long_call():
    game = make("stag_hunt-4x4-4h1s")
    policies = seats.resolve(game, "nearest_stag,random,switcher,stubborn")
    play = jax.jit(partial(start, game, policies, 4))(jax.random.key(5))
    run = jax.jit(lambda play, steps: collect(game, policies, play, steps), static_argnums=1)
    _, long = run(play, 40)
    middle, first = run(play, 15)
    _, second = run(middle, 25)
    for name in ("observation", "action", "reward", "first", "meeting", "terminated", "goal"):
        joined = np.concatenate([getattr(first, name), getattr(second, name)])
        np.testing.assert_array_equal(joined, getattr(long, name))


def test_same_key_same_games_other_key_other_games():
    one, two, other = (played("stag_hunt-4x4-4h1s", "random", 30, seed=seed)[2] for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.observation, two.observation)
    assert (one.observation != other.observation).any()


def test_final_observation_is_what_the_step_led_to():
    """In the middle of an episode it is the next observation; at an end it is the board before the restart."""
    game, _, rows = played("stag_hunt-4x4-4h1s", "nearest_hare", 60, final=True, states=True)
    inside = ~rows.first[1:]
    np.testing.assert_array_equal(rows.final_observation[:-1][inside], rows.observation[1:][inside])
    ends = rows.first[1:]
    assert ends.any()
    before_restart = jax.vmap(game.observe)(jax.tree.map(lambda leaf: leaf[:-1][ends], rows.after))
    np.testing.assert_array_equal(rows.final_observation[:-1][ends], before_restart)
    assert (rows.final_observation[:-1][ends] != rows.observation[1:][ends]).any()


def test_a_meeting_lasts_sixteen_episodes():
    _, _, rows = played("matrix-ipd?horizon=2", "random", 2 * MEETING_EPISODES * 2 + 2, games=2)
    opens = np.flatnonzero(rows.first[:, 0])
    meets = np.flatnonzero(rows.meeting[:, 0])
    np.testing.assert_array_equal(meets, opens[::MEETING_EPISODES])


def test_starts_are_dealt_like_cards():
    """Every start of the bank is used once before one comes again."""
    game = make("stag_hunt-4x4-4h1s?horizon=1")
    policies = seats.resolve(game, "random")
    bank = jax.jit(lambda key: draw_bank(game, key, size=32))(jax.random.key(0))
    _, rows = jax.jit(lambda key: collect(game, policies, start(game, policies, 4, key, bank), 8, states=True))(jax.random.key(1))
    dealt = rows.state.position.reshape(32, -1)
    np.testing.assert_array_equal(dealt, bank.starts.position)


def test_a_bank_is_refreshed_in_part():
    game = make("stag_hunt-4x4-4h1s")
    bank = jax.jit(lambda key: draw_bank(game, key, size=64))(jax.random.key(0))
    bank = Bank(bank.starts, jnp.int32(10))
    fresh = jax.jit(lambda key: refresh_bank(game, bank, key, share=1 / 8))(jax.random.key(1))
    changed = np.asarray((fresh.starts.position != bank.starts.position).any(-1))
    assert set(np.flatnonzero(changed)) <= set(range(10, 18))
    assert changed.sum() >= 6


class Counter(Policy):
    """Remembers steps since the episode and since the meeting opened, and how many episodes it saw conclude."""

    actions: int = eqx.field(static=True)

    def initial_memory(self):
        return Memory(episode=jnp.int32(0), lasting={"steps": jnp.int32(0), "concluded": jnp.int32(0)})

    def conclude(self, view, memory):
        lasting = {**memory.lasting, "concluded": memory.lasting["concluded"] + view.first}
        return Memory(memory.episode, lasting)

    def act(self, view, memory, key):
        shape = view.reward.shape
        said = jnp.stack([memory.episode, memory.lasting["steps"]], -1)[:, None] * jnp.ones((*shape, 1))
        told = memory.lasting["concluded"][:, None] * jnp.ones(shape)
        extras = Extras(said, said, told, jnp.full(shape, -1, jnp.int32))
        lasting = {**memory.lasting, "steps": memory.lasting["steps"] + 1}
        return jnp.zeros(shape, jnp.int32), Memory(memory.episode + 1, lasting), extras


def test_what_a_policy_remembers_and_forgets():
    game = make("matrix-ipd?horizon=3")
    policies = (Seated(Counter(2), (0, 1)),)
    _, rows = jax.jit(lambda key: collect(game, policies, start(game, policies, 2, key), 14, meeting_episodes=2))(
        jax.random.key(0)
    )
    np.testing.assert_array_equal(rows.behaviour_logits[:, 0, 0, 0], [0, 1, 2] * 4 + [0, 1])
    np.testing.assert_array_equal(rows.behaviour_logits[:, 0, 0, 1], [0, 1, 2, 3, 4, 5] * 2 + [0, 1])
    np.testing.assert_array_equal(rows.value[:, 0, 0], [0, 0, 0, 1, 1, 1] * 2 + [0, 0])


@pytest.mark.parametrize(
    ("groups", "hint"),
    [
        ([("nearest_stag", (0, 1)), ("nearest_hare", (0, 2))], "sit in seats .0, 0, 1, 2., expected each of"),
        ([("nearest_stag", (0, 1, 2, 7))], "expected each of"),
        ([("nearest_stag", (0, 1))], "expected each of"),
    ],
)
def test_every_seat_is_taken_once(groups, hint):
    """A policy that quietly played another's seat once took months to find."""
    game = make("stag_hunt-4x4-4h1s")
    policies = tuple(Seated(make_partner(name, game, len(where)), where) for name, where in groups)
    with pytest.raises(BadInput, match=hint):
        start(game, policies, 2, jax.random.key(0))


def test_a_policy_for_another_game_or_size_is_refused():
    game = make("stag_hunt-4x4-4h1s")
    other = make_partner("nearest_stag", make("stag_hunt-4x4-4h1s?players=2"), 4)
    for policy, hint in [(other, "was made for"), (make_partner("nearest_stag", game, 3), "made for 3 seats, and sits in 4")]:
        with pytest.raises(BadInput, match=hint):
            start(game, (Seated(policy, (0, 1, 2, 3)),), 2, jax.random.key(0))


def test_seeds_are_an_axis():
    """Many seeds at once give what each gives alone."""
    game = make("stag_hunt-4x4-4h1s")
    policies = seats.resolve(game, "nearest_stag,random,random,stubborn")

    def run(key):
        bank = draw_bank(game, key, 64)
        return collect(game, policies, start(game, policies, 4, key, bank), 20)[1]

    keys = jax.random.split(jax.random.key(3), 3)
    together = jax.jit(jax.vmap(run))(keys)
    alone = jax.jit(run)(keys[1])
    np.testing.assert_array_equal(together.action[1], alone.action)
    np.testing.assert_array_equal(together.observation[1], alone.observation)


def test_policies_sit_where_they_are_told():
    """Seats in any order and grouping: seat k must get the action of the policy that sits there."""
    _, _, rows = played("stag_hunt-4x4-4h1s", "nearest_hare,nearest_stag,nearest_hare,random", 20)
    assert (rows.goal == np.array([1, 0, 1, -1])).all()
    took_hare = (rows.action == 6).any((0, 1))
    took_stag = (rows.action == 5).any((0, 1))
    assert took_hare[0]
    assert took_hare[2]
    assert not took_hare[1]
    assert took_stag[1]
    assert not took_stag[0]
