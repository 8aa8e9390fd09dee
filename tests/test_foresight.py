"""What is thought of partners: beliefs that follow the rules of probability, and learn from what partners do."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from otherminds import foresight, make
from otherminds.foresight import Happened, Watched
from otherminds.learners.base import adam
from otherminds.networks import generator

from small_runs import SMALL_HOP

GAME = make("matrix-ipd?horizon=5")
EGO = jnp.int32(0)


def mind(preset="hop_plus_no_model", **options):
    config = dataclasses.replace(SMALL_HOP, preset=preset, **options)
    return foresight.make(config, GAME, generator(jax.random.key(0)))


def test_a_belief_is_multiplied_by_the_chance_of_what_was_done():
    """Two goals; cooperation has chance 0.8 for the first and 0.2 for the second. After one: 0.8 : 0.2, after two: 16 : 1."""
    one = mind("hop", switching=0.0)
    thoughts, lasting = jax.tree.map(lambda leaf: leaf[None], one.opened())
    odds = jnp.log(jnp.array([[0.8, 0.2], [0.2, 0.8], [0.5, 0.5]]))[None, None]
    thoughts = dataclasses.replace(thoughts, odds=odds, belief=jnp.array([[[0.5, 0.5, 0.0]]]))
    cooperated = Happened(jnp.array([[0, 0]]), jnp.full((1, 2), -1), jnp.array([False]))
    for right in ([0.8, 0.2, 0.0], [16 / 17, 1 / 17, 0.0]):
        thoughts, lasting = one.conclude(thoughts, lasting, cooperated)
        np.testing.assert_allclose(thoughts.belief[0, 0], right, atol=1e-4)
    gone = Happened(jnp.array([[0, -1]]), jnp.full((1, 2), -1), jnp.array([False]))
    after, _ = one.conclude(thoughts, lasting, gone)
    np.testing.assert_array_equal(after.belief, thoughts.belief)  # who left did not "stay"


def test_what_was_reached_is_the_prior_of_the_next_episode():
    """Counts start even, with one for each goal and for anything else: after one episode of the first goal (2, 1, 1) / 4."""
    one = mind("hop", counted=1.0)
    thoughts, lasting = jax.tree.map(lambda leaf: leaf[None], one.opened())
    over = Happened(jnp.array([[0, 0]]), jnp.array([[-1, 0]]), jnp.array([True]))
    _, lasting = one.conclude(thoughts, lasting, over)
    look = one.look(jnp.zeros((1, *GAME.observation_shape), GAME.observation_dtype), EGO)
    fresh = one.think(jax.tree.map(lambda leaf: leaf[None], one.opened()[0]), lasting, jnp.array([True]), look, EGO)
    np.testing.assert_allclose(fresh.belief[0, 0], [0.5, 0.25, 0.25], atol=1e-5)
    forgetful = mind("hop_plus_no_inter")
    thoughts, lasting = jax.tree.map(lambda leaf: leaf[None], forgetful.opened())
    _, after = forgetful.conclude(thoughts, lasting, over)
    np.testing.assert_array_equal(after, lasting)


def test_without_intra_nothing_is_inferred_within_an_episode():
    one = mind("hop_plus_no_intra")
    thoughts, lasting = jax.tree.map(lambda leaf: leaf[None], one.opened())
    thoughts = dataclasses.replace(thoughts, odds=jnp.log(jnp.array([[0.9, 0.1], [0.1, 0.9], [0.5, 0.5]]))[None, None])
    after, _ = one.conclude(thoughts, lasting, Happened(jnp.array([[0, 0]]), jnp.full((1, 2), -1), jnp.array([False])))
    np.testing.assert_array_equal(after.belief, thoughts.belief)


def two_kinds(key, games=64, steps=10):
    """Partners of two kinds, who always do one thing or always the other, in episodes of five steps."""
    kind = jax.random.bernoulli(key, 0.5, (2, games))
    action = jnp.stack([jnp.zeros((steps, games), jnp.int32), jnp.repeat(kind, 5, 0).astype(jnp.int32)], -1)
    first = jnp.broadcast_to((jnp.arange(steps) % 5 == 0)[:, None], (steps, games))
    return Watched(
        observation=jnp.zeros((steps, games, *GAME.observation_shape), GAME.observation_dtype),
        action=action,
        reward=jnp.zeros((steps, games, 2)),
        goal_reached=jnp.full((steps, games, 2), -1),
        first=first,
        worth=jnp.zeros((steps, games)),
        ego=EGO,
    )


@pytest.mark.parametrize(("preset", "best"), [("hop_plus_no_model", np.log(2) / 5), ("direct_om", np.log(2))])
def test_codes_find_kinds_of_partners_that_one_model_cannot_tell(preset, best):
    """If codes tell the kinds, an episode costs log 2 for its first step and nothing after it; without codes every step does."""
    one = mind(preset, switching=0.0)
    transform = adam(1.0)
    start = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (64, *leaf.shape)), one.opened())

    @jax.jit
    def step(carry, key):
        model, optimiser = carry
        gradient, terms = jax.grad(lambda m: m.losses(two_kinds(key), *start, key, jnp.float32(0)), has_aux=True)(model)
        moves, optimiser = transform.update(gradient, optimiser)
        return (jax.tree.map(lambda a, b: a - 0.02 * b, model, moves), optimiser), terms["action"]

    _, costs = jax.lax.scan(step, (one, transform.init(one)), jax.random.split(jax.random.key(1), 400))
    assert abs(float(costs[-20:].mean()) - best) < 0.05


def test_partners_in_different_places_are_told_apart():
    """Two partners who see the same and do different things: who learned in different seats plays differently."""
    game = make("stag_hunt?height=2&width=2&hares=0&players=3&horizon=5")
    one = foresight.make(dataclasses.replace(SMALL_HOP, preset="direct_om"), game, generator(jax.random.key(0)))
    seen = jax.vmap(game.reset)(jax.random.split(jax.random.key(0), 32))
    observation = jax.vmap(game.observe)(seen)[None, :, 0]
    rows = Watched(
        observation=observation.at[:, :, 1:3].set(observation[:, :, :1]),  # all on one cell
        action=jnp.broadcast_to(jnp.array([4, 0, 1]), (1, 32, 3)),
        reward=jnp.zeros((1, 32, 3)),
        goal_reached=jnp.full((1, 32, 3), -1),
        first=jnp.ones((1, 32), bool),
        worth=jnp.zeros((1, 32)),
        ego=EGO,
    )
    transform = adam(1.0)
    start = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (32, *leaf.shape)), one.opened())

    def step(carry, key):
        model, optimiser = carry
        gradient, terms = jax.grad(lambda m: m.losses(rows, *start, key, jnp.float32(0)), has_aux=True)(model)
        moves, optimiser = transform.update(gradient, optimiser)
        return (jax.tree.map(lambda a, b: a - 0.02 * b, model, moves), optimiser), terms["action"]

    keys = jax.random.split(jax.random.key(1), 100)
    (learned, _), costs = jax.jit(lambda one: jax.lax.scan(step, (one, transform.init(one)), keys))(one)
    assert float(costs[-1]) < 0.1
    expected = learned.look(rows.observation[0], EGO)
    chosen = learned.given(foresight.partner_views(game, rows.observation[0]), jnp.zeros((32, 2), jnp.int32), EGO)
    np.testing.assert_allclose(jnp.exp(expected[:, :, 0]), chosen, atol=1e-5)  # in the search as beside the board


def hidden(observation, where, value):
    """Observations with nonsense in some rows."""
    mask = where.reshape(*where.shape, *(1,) * (observation.ndim - where.ndim))
    return jnp.where(mask, value, observation).astype(observation.dtype)


def test_absent_partners_teach_nothing():
    """Whatever is written where a partner was absent changes no gradient. Taught as "stay", absence once ruined a model."""
    one = mind()
    rows = two_kinds(jax.random.key(0))
    start = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (64, *leaf.shape)), one.opened())
    gone = rows.first.at[:, 32:].set(True)[..., None] & jnp.array([False, True])[None, None]
    grads = []
    for seen in (0, 3):
        other = dataclasses.replace(
            rows,
            action=jnp.where(gone, -1, rows.action),
            observation=hidden(rows.observation, gone[..., 1], seen),
        )
        grads.append(jax.grad(lambda m, other=other: m.losses(other, *start, jax.random.key(0), jnp.float32(0))[0])(one))
    for a, b in zip(jax.tree.leaves(grads[0]), jax.tree.leaves(grads[1]), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_a_partner_that_left_changes_no_belief_in_numbers():
    """The network that infers them once read on from a board on which nobody stood any more."""
    one = mind("omg")
    thoughts, lasting = jax.tree.map(lambda leaf: leaf[None], one.opened())
    looks = [one.look(jnp.full((1, *GAME.observation_shape), k, GAME.observation_dtype), EGO) for k in (0, 1)]
    now = one.think(thoughts, lasting, jnp.array([True]), looks[0], EGO)
    beliefs = {}
    for name, action in (("there", 1), ("gone", -1)):
        happened = Happened(jnp.array([[0, action]]), jnp.full((1, 2), -1), jnp.array([False]))
        beliefs[name] = one.think(*one.conclude(now, lasting, happened), jnp.array([False]), looks[1], EGO)
    np.testing.assert_array_equal(beliefs["gone"].mean, now.mean)
    np.testing.assert_array_equal(beliefs["gone"].core, now.core)
    assert (beliefs["there"].mean != now.mean).any()
