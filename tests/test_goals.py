"""Codes of later steps: never of the step they are used on, nothing of the absent, and good for what they are meant for."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from otherminds import BadInput, goals, make
from otherminds.config import Goals as Config
from otherminds.config import PartnerNetwork

GAME = make("stag_hunt?height=3&width=3&players=2&hares=2")
ACTS = PartnerNetwork(channels=4, repeats=1, hidden=(8,), goal_input="film")
SMALL = Config(codes=4, size=4, steps=6, features=8, channels=4, repeats=1, acts=ACTS)
KINDS = [
    {"kind": kind, "encodes": encodes, "trained_by": trained_by}
    for kind in ("vq", "vae")
    for encodes in ("trajectory", "state", "state+time+reward")
    for trained_by in ("action", "reconstruction", "both")
]
KINDS.append({"kind": "manual", "encodes": "state", "trained_by": "action"})


def episodes(seed=0, count=5, steps=6):
    keys = jax.random.split(jax.random.key(seed), 5)
    view = jax.random.bernoulli(keys[0], 0.2, (count, steps, *GAME.observation_shape)).astype(jnp.uint8)
    place = jax.random.randint(keys[1], (count, steps), 0, 9)
    view = view.at[:, :, 0].set(jax.nn.one_hot(place, 9).reshape(count, steps, 3, 3).astype(jnp.uint8))
    length = jnp.arange(count) % steps + 1
    seen = jnp.arange(steps)[None] < length[:, None]
    action = jnp.where(seen, jax.random.randint(keys[2], (count, steps), 0, GAME.actions), -1)
    reward, value = (jnp.where(seen, jax.random.normal(key, (count, steps)), 0.0) for key in keys[3:])
    return goals.Sequences(view, action, reward, value, seen, jnp.arange(count) % 3 - 1)


def made(**options):
    return goals.Goals.make(dataclasses.replace(SMALL, **options), GAME, np.random.default_rng(0))


@pytest.mark.parametrize("options", KINDS)
def test_every_kind_of_goal_can_be_learned(options):
    model, rows = made(**options), episodes()
    (total, terms), gradient = eqx.filter_value_and_grad(
        lambda m: goals.losses(m, rows, jax.random.key(0), jnp.float32(0.7)), has_aux=True
    )(model)
    assert np.isfinite(total)
    assert all(np.isfinite(term) for term in terms.values())
    assert ("reconstruction" in terms) == (options["trained_by"] != "action")
    assert (model.later is None) == (options["encodes"] != "trajectory")
    for name in ("eye", "later", "to_code", "earlier", "to_belief", "acts"):
        leaves = jax.tree.leaves(getattr(gradient, name))
        assert any(np.abs(np.asarray(leaf)).max() > 0 for leaf in leaves) or not leaves, name


@pytest.mark.parametrize("encodes", ["trajectory", "state", "state+time+reward"])
@pytest.mark.parametrize("changed", ["seat", "ego"])
def test_goals_know_whom_they_are_about_where_views_do_not_show_it(encodes, changed):
    """Two partners seen by one player look the same there: they had one code, and one forecast, for two kinds of actions."""
    game = make("jaxmarl:MPE_simple_spread_v3")
    config = dataclasses.replace(SMALL, encodes=encodes, trained_by="both")
    model = goals.Goals.make(config, game, np.random.default_rng(0))
    view = jnp.repeat(jax.random.normal(jax.random.key(0), (1, 6, *game.observation_shape)), 2, 0)
    nothing, who = jnp.zeros((2, 6)), {"seat": jnp.array([2, 2]), "ego": jnp.array([0, 0])}
    who[changed] = jnp.array([who[changed][0], 1])
    rows = goals.Sequences(
        view, jnp.ones((2, 6), jnp.int32), nothing, nothing, jnp.ones((2, 6), bool), jnp.array([-1, -1]), **who
    )
    raw, any_later = model.hindsight(rows, model.look(rows))
    told = {
        "hindsight": raw[any_later].reshape(2, -1),
        "inference": model.inferred(rows, model.look(rows)).logits,
        "actions": model.each_code(rows),
    }
    for name, (one, other) in told.items():
        assert float(jnp.abs(one - other).max()) > 1e-6, name
    assert np.isfinite(goals.losses(model, rows, jax.random.key(0), jnp.float32(0.5))[0])
    unknown = eqx.tree_at(lambda r: getattr(r, changed), rows, None)
    with pytest.raises(AssertionError, match="whose eyes"):
        model.look(unknown)


def test_codes_told_to_every_cell_are_refused():
    with pytest.raises(BadInput, match="goal-input is concat"):
        made(acts=PartnerNetwork())


@pytest.mark.parametrize("encodes", ["trajectory", "state", "state+time+reward"])
def test_hindsight_reads_later_steps_alone(encodes):
    """A code that has seen the action it is scored on, or where it led, foresees it perfectly, and means nothing."""
    model, rows = made(encodes=encodes, horizon=2), episodes()

    def codes(rows):
        return np.asarray(model.hindsight(rows, model.look(rows))[0])

    other = episodes(seed=1)
    upto = jnp.arange(6)[None] <= 3
    changed = eqx.tree_at(
        lambda r: (r.view, r.action, r.reward),
        rows,
        (
            jnp.where(upto[..., None, None, None], other.view, rows.view),
            jnp.where(upto & rows.seen, jnp.maximum(other.action, 0), rows.action),
            jnp.where(upto & rows.seen, other.reward, rows.reward),
        ),
    )
    np.testing.assert_allclose(codes(rows)[:, 2:], codes(changed)[:, 2:], atol=1e-6)  # of step 2: steps 4 and 5
    assert np.abs(codes(rows)[4:, :2] - codes(changed)[4:, :2]).max() > 1e-4


def test_inference_reads_earlier_steps_alone():
    model, rows = made(), episodes()
    other = episodes(seed=1)

    def thought(rows):
        return np.asarray(model.inferred(rows, model.look(rows)).logits)

    late = jnp.arange(6)[None] >= 3
    changed = eqx.tree_at(
        lambda r: (r.view, r.action),
        rows,
        (
            jnp.where((jnp.arange(6) > 3)[None, :, None, None, None], other.view, rows.view),
            jnp.where(late & rows.seen, jnp.maximum(other.action, 0), rows.action),
        ),
    )
    np.testing.assert_allclose(thought(rows)[:, :4], thought(changed)[:, :4], atol=1e-6)
    assert np.abs(thought(rows)[4, 4] - thought(changed)[4, 4]).max() > 1e-6


@pytest.mark.parametrize("kind", ["vq", "vae"])
def test_steps_that_nobody_saw_teach_nothing(kind):
    model, rows = made(kind=kind), episodes()
    other = episodes(seed=1)
    spoiled = eqx.tree_at(
        lambda r: (r.view, r.action),
        rows,
        (
            jnp.where(rows.seen[..., None, None, None], rows.view, other.view),
            jnp.where(rows.seen, rows.action, jnp.maximum(other.action, 0)),
        ),
    )
    found = [
        eqx.filter_grad(lambda m, part=part: goals.losses(m, part, jax.random.key(0), jnp.float32(0.5))[0])(model)
        for part in (rows, spoiled)
    ]
    for left, right in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-5)


def test_which_later_state_is_meant_by_hand():
    seen = jnp.array([[True, True, True, True, False]])
    value = jnp.array([[0.0, 3.0, 1.0, 2.0, 9.0]])
    rows = goals.Sequences(
        jnp.zeros((1, 5, *GAME.observation_shape), jnp.uint8), jnp.zeros((1, 5), jnp.int32), value, value, seen, jnp.array([-1])
    )
    for choice, expected in (("optimistic", [3, 3]), ("conservative", [2, 3]), ("last", [3, 3])):
        target, any_later = goals.targets(rows, 3, choice)
        assert target[0, :2].tolist() == expected  # what is seen one step later tells what was done
        assert any_later[0].tolist() == [True, True, False, False, False]


def test_bayes_over_codes_by_hand():
    model, rows = made(), episodes()
    prior = jnp.array([0.4, 0.3, 0.2, 0.1])
    found = np.asarray(goals.by_bayes(goals.likelihood(model.each_code(rows), rows), rows.seen, prior))
    odds = np.exp(np.asarray(model.each_code(rows)))
    last = int(rows.seen[4].sum()) - 1
    belief = np.asarray(prior)
    for step in range(last):
        np.testing.assert_allclose(found[4, step], belief, rtol=1e-4)
        belief = belief * odds[4, step, :, int(rows.action[4, step])]
        belief = belief / belief.sum()


def test_goals_by_hand_are_those_of_the_labels():
    """Episodes without a label teach nothing of goals; of the others it is the likelihood of what was done given their label."""
    model, rows = made(kind="manual"), episodes()
    _, terms = goals.losses(model, rows, jax.random.key(0), jnp.float32(0.5))
    each = np.take_along_axis(np.asarray(model.each_code(rows)), np.maximum(np.asarray(rows.action), 0)[..., None, None], -1)[
        ..., 0
    ]
    seen, label = np.asarray(rows.seen), np.asarray(rows.label)
    steps = sum(seen[k].sum() for k in range(5) if label[k] >= 0)
    total = sum(np.log(2) - each[k, seen[k], label[k]].sum() for k in range(5) if label[k] >= 0)  # the prior is even
    np.testing.assert_allclose(terms["action"], total / steps, rtol=1e-4)
    _, any_later = model.hindsight(rows, model.look(rows))
    assert not np.asarray(any_later)[label < 0].any()
    gradient = eqx.filter_grad(lambda m: goals.losses(m, rows, jax.random.key(0), jnp.float32(0.5))[0])(model)
    assert not np.asarray(gradient.codebook).any()


def test_hindsight_by_bayes_reads_later_actions_alone():
    likely = jnp.array([[[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]]])
    found = np.asarray(goals.in_hindsight(likely, jnp.array([0.5, 0.5])))
    np.testing.assert_allclose(found[0, :, 0], [0.2, 0.2, 0.5], rtol=1e-5)
