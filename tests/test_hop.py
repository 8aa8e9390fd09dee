"""Every preset plays and learns with all of its parts; each test guards something that broke silently in an earlier system."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from otherminds import audit_run, make
from otherminds.config import PRESETS, BadInput, Sizes, Train
from otherminds.games.ego import view
from otherminds.learners import hop
from otherminds.learners.base import Scale
from otherminds.learners.hop_play import SMALLEST_PART
from otherminds.rollout import collect, draw_bank, start
from otherminds.types import Seated, of_seats

from small_runs import SMALL_HOP

SIZES = Sizes(parallel=16, rollout=6, epochs=1, minibatches=2, updates=10)
BOARD = "stag_hunt?height=3&width=3&hares=2&players=3&horizon=9"
SPREAD = "jaxmarl:MPE_simple_spread_v3"


def settings(preset, **options):
    return dataclasses.replace(SMALL_HOP, preset=preset, **options)


def played(preset, game_id=BOARD, sizes=SIZES, warm_up=7, seats=None, **options):
    """(state, rows of its seats, play after them)."""
    game = make(game_id)
    seats = tuple(range(game.seats)) if seats is None else seats
    state = hop.init(settings(preset, **options), sizes, game, seats, jax.random.key(0))

    @jax.jit
    def roll(state, key):
        policies = (Seated(hop.policy(state), seats),)
        play = start(game, policies, sizes.parallel, key, draw_bank(game, key, 64))
        play = collect(game, policies, play, warm_up)[0]
        memory = play.memories[0]
        play, rows = collect(game, policies, play, sizes.rollout, final=hop.wants_final(state.config) or game.truncates)
        return of_seats(rows, seats, memory), play

    rows, play = roll(state, jax.random.key(1))
    return state, rows, play


def update(state, rows, seed=2):
    return jax.jit(hop.update)(state, rows, jax.random.key(seed))


@pytest.mark.parametrize(
    ("preset", "game"),
    [*((preset, BOARD) for preset in PRESETS if preset != "hop_plus_no_inter"), ("hop_plus_no_goal", SPREAD), ("omg", SPREAD)],
)
def test_every_preset_moves_every_parameter_of_every_seat(preset, game):
    """A part that is switched on once got no gradient, in one seat of four or in all."""
    state, rows, _ = played(preset, game, warm_up=24 if game == SPREAD else 7)  # so that an episode begins in the rows
    after, metrics = update(state, rows)
    assert all(np.isfinite(value).all() for value in metrics.values())
    assert metrics["first_ratio_error"].max() < 1e-4
    assert jax.tree.structure(after) == jax.tree.structure(state)
    still = []
    for (path, old), new in zip(
        jax.tree_util.tree_leaves_with_path(hop.trainable(state)), jax.tree.leaves(hop.trainable(after)), strict=True
    ):
        moved = np.asarray(old != new).reshape(len(state.seats), -1).any(-1)
        still += [jax.tree_util.keystr(path)] if old.size and not moved.all() else []
    assert still == []


def test_thinking_again_is_what_was_thought():
    """Learning must see the beliefs that were played by: they are not stored but thought again, across episodes and meetings."""
    state, rows, _ = played("hop_plus_no_model", practice=0.0)
    again = hop.think_again(state, rows)
    game, policy = state.game, hop.policy(state)
    policies = (Seated(policy, state.seats),)
    play = start(game, policies, SIZES.parallel, jax.random.key(1), draw_bank(game, jax.random.key(1), 64))
    play = jax.jit(lambda play: collect(game, policies, play, 7)[0])(play)
    step = jax.jit(lambda play: collect(game, policies, play, 1)[0])
    for row in range(SIZES.rollout):
        play = step(play)
        then, now = play.memories[0].episode[1], jax.tree.map(lambda leaf, row=row: leaf[row], again)
        np.testing.assert_allclose(then.belief, now.belief, atol=1e-5)
        np.testing.assert_array_equal(then.reached, now.reached)


def test_searched_moves_teach_by_what_was_found_and_others_by_what_they_returned():
    state, rows, _ = played("hop", practice=0.0)
    searched = np.asarray((rows.behaviour_logits != rows.policy_logits).any(-1))
    present = np.asarray(rows.present)
    assert not searched[~present].any()
    choices = present & (np.asarray(rows.legal).sum(-1) > 1)
    by_step = [searched[row][choices[row]] for row in range(SIZES.rollout)]
    assert {bool(step.any()) for step in by_step} == {True, False}  # share 0.5
    assert max(step.mean() for step in by_step) > 0.5  # all games at once, as far as there is room
    metrics = update(state, rows)[1]
    assert (metrics["search_loss"] > 0).all()
    none = dataclasses.replace(rows, behaviour_logits=rows.policy_logits)
    assert float(jnp.abs(update(state, none)[1]["search_loss"]).max()) == 0


def test_nothing_is_searched_before_its_time():
    late = dataclasses.replace(SMALL_HOP.search, begin=0.5)
    _, rows, _ = played("hop", practice=0.0, search=late)
    np.testing.assert_array_equal(rows.behaviour_logits, rows.policy_logits)


@pytest.mark.parametrize("preset", ["hop", "hop_plus"])
def test_one_seat_of_a_policy_plays_as_it_did_in_its_group(preset):
    state, _, play = played(preset, practice=0.0)
    whole = hop.policy(state).without_noise().without_search().greedy()
    seats = state.seats
    action, _, extras = whole.step(view(play.now, seats), play.memories[0], jax.random.key(0))
    for seat in seats:
        memory = jax.tree.map(lambda leaf, seat=seat: leaf[:, seat : seat + 1], play.memories[0])
        alone = whole.of(seat).step(view(play.now, (seat,)), memory, jax.random.key(0))
        np.testing.assert_array_equal(alone[0][:, 0], action[:, seat])
        np.testing.assert_allclose(alone[2].policy_logits[:, 0], extras.policy_logits[:, seat], atol=1e-5)


def test_at_play_every_move_is_searched_and_without_search_none():
    """In more games than are searched at once; and none where an episode is over that somebody counts."""
    state, _, play = played("hop", sizes=dataclasses.replace(SIZES, parallel=40), practice=0.0)
    policy = hop.policy(state).without_noise()
    assert 2 * SMALLEST_PART < 40
    over = jnp.ones((40, len(state.seats)), bool)
    for one, share in ((policy, 1.0), (policy.without_search(), 0.0), (policy.sparing(over, 1.0), 0.0)):
        extras = one.step(view(play.now, state.seats), play.memories[0], jax.random.key(0))[2]
        searched = np.asarray((extras.logits != extras.policy_logits).any(-1))[np.asarray(play.now.present)]
        choices = np.asarray(play.now.legal.sum(-1))[np.asarray(play.now.present)] > 1
        assert searched[choices].mean() == share


@pytest.mark.parametrize(
    ("preset", "game", "words"),
    [
        ("hop", "jaxmarl:MPE_simple_spread_v3", "names none: --seats hop_plus"),
        ("direct_om", "stag_hunt-4x4-4h1s?view=2", "--seats hop_plus_no_goal"),
        ("hop_plus_no_model", "pettingzoo:butterfly.knights_archers_zombies", "stepped on the host: --seats hop_plus"),
        ("hop_plus", "jaxmarl:MPE_simple_spread_v3?action_type=continuous", "discrete actions"),
    ],
)
def test_presets_that_a_game_cannot_serve_are_refused_with_one_that_works(preset, game, words):
    with pytest.raises(BadInput, match=words):
        hop.check(Train().of(preset), SIZES, make(game))


@pytest.mark.parametrize(
    ("option", "value"), [("simulations", 0), ("share", 1.5), ("capacity", 0.0), ("sharpness", -1.0), ("optimism", float("inf"))]
)
def test_searches_that_cannot_work_are_refused(option, value):
    config = settings("hop", search=dataclasses.replace(SMALL_HOP.search, **{option: value}))
    with pytest.raises(BadInput, match=option):
        hop.check(config, SIZES, make("stag_hunt-4x4-4h1s"))


def test_optimism_tilts_the_goals_that_are_drawn():
    eager = dataclasses.replace(SMALL_HOP.search, optimism=5.0)
    _, rows, _ = played("hop", practice=0.0, search=eager)
    assert (np.asarray(rows.behaviour_logits) != np.asarray(rows.policy_logits)).any()


@pytest.mark.parametrize("preset", ["hop_plus_no_search", "hop"])
def test_the_policy_learns_from_what_is_imagined_too(preset):
    """In a learned model and in the rules. Absent seats imagine nothing, and nobody does before its time."""
    late = dataclasses.replace(SMALL_HOP.search, begin=0.5)
    waiting, rows, _ = played(preset, practice=0.0, imagined_fraction=0.5, imagined_steps=4, search=late)
    assert not update(waiting, rows)[1]["imagined"].any()
    state = dataclasses.replace(waiting, updates=waiting.planned // 2)
    metrics = update(state, rows)[1]
    assert (metrics["imagined"] > 0.2).all()
    assert (metrics["imagined"] < 0.8).all()
    nobody = dataclasses.replace(rows, present=rows.present & False)
    assert not update(state, nobody)[1]["imagined"].any()


def test_what_is_imagined_knows_no_special_seat():
    """Two seats that change places, with all they know and saw, imagine what the other would have."""
    state, rows, _ = played("hop_plus_no_search", practice=0.0, imagined_fraction=0.5, imagined_steps=3)
    order = np.array([1, 0, 2])
    turned = jax.tree.map(lambda leaf: leaf[order] if leaf.ndim and len(leaf) == 3 else leaf, state)
    swapped = audit_run._reordered_rows(rows, order)
    left, right = update(state, rows)[0].network, update(turned, swapped)[0].network
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(a[order], b, atol=1e-5)


def test_values_can_learn_from_whole_returns_and_from_what_searches_find():
    plain, rows, _ = played("hop", practice=0.0)
    _, by_search, _ = played("hop", practice=0.0, value_target="search")
    searched = np.asarray((rows.behaviour_logits != rows.policy_logits).any(-1))
    differs = np.asarray(rows.value != by_search.value)
    first = searched[0] & np.asarray(rows.present)[0]
    assert differs[0][first].mean() > 0.9
    assert not differs[0][~first].any()
    whole = dataclasses.replace(plain, config=dataclasses.replace(plain.config, value_target="return"))
    left, right = update(plain, rows)[0], update(whole, rows)[0]
    assert bool((left.network.critic.weight != right.network.critic.weight).any())


def test_what_little_can_be_won_teaches_as_much_as_what_much_can():
    """A seat left alone with a hare never learned to go straight there: detours cost nothing beside what stags bring.

    Gains of ±0.1 where 0.1 is at stake and of ±5 where 5 is are all ±1 in units of what is at stake. Who is absent has a gain of
    100 that moves nothing: neither the mean, 0, nor the spread, 1.
    """
    state, rows, _ = played("no_goal", practice=0.0)
    gain = jnp.array([[[0.1, -0.1, 100.0], [5.0, -5.0, 100.0]]])
    stakes = jnp.array([[[0.1, 0.1, 0.001], [5.0, 5.0, 5.0]]])
    present = jnp.array([[[True, True, False], [True, True, False]]])
    unused = {name: jnp.zeros((1, 2, 3, 0)) for name in ("logits", "told", "played")}
    unused |= {name: jnp.zeros((1, 2, 3, 0), bool) for name in ("legal", "observation")} | {"memory": jnp.zeros((1, 2, 0))}
    unused |= dict.fromkeys(("fresh", "searched", "imagined"), present)
    unused |= dict.fromkeys(("action", "log_probability", "advantage", "value", "target", "weight"), gain)
    found = hop.by_stakes(hop.HopBatch(**unused, gain=gain, present=present), stakes, Scale.make((1,)))
    np.testing.assert_allclose(found.advantage[present], [1, -1, 1, -1], rtol=1e-5)
    np.testing.assert_allclose(found.weight[present], 2 * np.array([100, 100, 0.04, 0.04]) / 100.04, rtol=1e-5)
    off = dataclasses.replace(state, config=dataclasses.replace(state.config, stakes=None))
    left, right = (jax.tree.leaves(update(one, rows)[0].network.actor) for one in (state, off))
    assert any(bool((a != b).any()) for a, b in zip(left, right, strict=True))


def test_ranked_rewards_pay_the_best_and_are_of_episodes_that_go_on_across_updates():
    state, rows, _ = played("no_goal", practice=0.0, ranked_reward=0.5)
    after, metrics = update(state, rows)
    assert all(np.isfinite(value).all() for value in metrics.values())
    ended = np.concatenate([rows.first[1:], rows.last.first[None]])
    going_on = ~ended.any(0)
    np.testing.assert_allclose(after.earned.T[going_on], np.asarray(rows.reward)[:, going_on].sum(0), atol=1e-6)
    twice = dataclasses.replace(rows, reward=2 * rows.reward)  # the same ranks
    for left, right in zip(jax.tree.leaves(after.network), jax.tree.leaves(update(state, twice)[0].network), strict=True):
        np.testing.assert_array_equal(left, right)


def test_what_led_to_no_reward_can_be_left_out_of_what_is_learned_of_partners():
    state, rows, _ = played("direct_om", practice=0.0)
    few = dataclasses.replace(state, config=dataclasses.replace(state.config, trajectories="rewarded"))
    unpaid = dataclasses.replace(rows, everyone=dataclasses.replace(rows.everyone, reward=0 * rows.everyone.reward))
    assert float(update(few, unpaid)[1]["foresight_action"].max()) == 0
    assert float(update(state, unpaid)[1]["foresight_action"].min()) > 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"imagined_fraction": 1.0}, "below 1"),
        ({"imagined_fraction": 0.9}, "goes on from"),
        ({"imagined_fraction": 0.05}, "cannot be shared"),
        ({"imagined_fraction": 0.2, "core": "gru"}, "no memory"),
        ({"imagined_fraction": 0.2, "preset": "omg"}, "no world"),
        ({"ranked_reward": 0.25}, "--seats omg"),
        ({"ranked_reward": 2.0, "preset": "no_goal"}, "a share"),
        ({"value_target": "search", "preset": "no_goal"}, "does not search"),
        ({"stakes": 0.0}, "stakes is 0.0"),
    ],
)
def test_what_cannot_be_learned_from_is_refused(options, words):
    with pytest.raises(BadInput, match=words):
        hop.check(settings(**({"preset": "hop_plus"} | options)), Sizes(16, 6, 1, 2, 10), make("stag_hunt-4x4-4h1s"))


@pytest.mark.parametrize("preset", ["hop", "hop_plus"])
def test_every_part_that_is_switched_on_changes_what_is_played(preset):
    """A generator was once built, and the plain actor was still called: curves identical, point by point."""
    state, rows, play = played(preset, practice=0.0)
    learned, step = state, jax.jit(hop.update)
    for seed in range(10):  # dice fall alike for those who expect nearly the same
        learned = step(learned, rows, jax.random.key(seed))[0]
    parts = jax.jit(hop.live_parts)
    found = parts(learned, state, view(play.now, state.seats), play.memories[0], jax.random.key(0))
    assert set(found) == {"goals", "search", "opponent_model"} | ({"world_model"} if preset == "hop_plus" else set())
    counts = found.keys() if preset == "hop" else ("goals", "search")  # in a model that knows nothing yet nobody moves
    assert all(float(found[name]) > 1e-6 for name in counts), found
    deaf = dataclasses.replace(learned, network=_deaf(learned.network))
    assert float(parts(deaf, state, view(play.now, state.seats), play.memories[0], jax.random.key(0))["goals"]) == 0


def _deaf(network):
    """The same without ears for what is believed."""
    import equinox as eqx

    heard = network.reads.base.weight.at[:, network.trunk.features :].set(0.0)
    return eqx.tree_at(lambda n: n.reads.base.weight, network, heard)
