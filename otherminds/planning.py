"""Search ahead: what each of our moves is worth, with partners who move as we expect them to. Only here and in its benchmark is
mctx imported.

A tree is our own: its branches are our moves, and what partners do at a step is drawn from what they are expected to do there.
mctx keeps one successor for each branch, so a lucky draw would be believed for ever, and a gamble on a partner's coin would look
like a sure thing wherever the one draw was kind. So the draws of a tree belong to its depth, not to its branches: all moves at a
depth meet the same luck, taken by inverting running sums. What one tree believes of luck is then the same for all it compares,
and the luck of several trees is spread evenly.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import mctx
from jaxtyping import Array, Bool, Float, Int, Num, PRNGKeyArray

from otherminds.config import BadInput, Search, require
from otherminds.distributions import NEVER, Categorical
from otherminds.foresight import partner_views
from otherminds.games.base import Game, is_board
from otherminds.world_model import binary


class Sight(eqx.Module):
    """What there is to see of n moments, in ego order."""

    own: Num[Array, "n ..."]  # what we see
    each: Num[Array, "n partners ..."]  # what each partner sees, as far as we can know
    legal: Bool[Array, "n actions"] | None  # ours; None where nobody knows
    present: Bool[Array, "n A"]


@runtime_checkable
class World(Protocol):
    """Where a search takes place: the rules of a game, or what was learned of them."""

    def open(self, observation: Num[Array, "n ..."], seat: Int[Array, " n"], present: Bool[Array, "n A"]) -> Any:
        """The moment that whoever sits in `seat` sees."""

    def look(self, moment: Any) -> Sight: ...

    def step(self, moment: Any, action: Int[Array, "n A"], keys: Array) -> tuple[Any, Float[Array, " n"], Float[Array, " n"]]:
        """(what follows, our reward, the chance that nothing of value follows for us) of a joint action in ego order."""


class Simulator(eqx.Module):
    """The rules of the game itself."""

    game: Game = eqx.field(static=True)

    def open(self, observation: Num[Array, "n ..."], seat: Int[Array, " n"], present: Bool[Array, "n A"]) -> Any:
        return jax.vmap(self.game.state_of)(observation, seat)

    def look(self, moment: Any) -> Sight:
        seen = jax.vmap(self.game.observe)(moment)
        legal, present = jax.vmap(self.game.legal)(moment), jax.vmap(self.game.present)(moment)
        return Sight(seen[:, 0], seen[:, 1:], legal[:, 0], present)

    def step(self, moment: Any, action: Int[Array, "n A"], keys: Array) -> tuple[Any, Float[Array, " n"], Float[Array, " n"]]:
        after, outcome = jax.vmap(self.game.step)(moment, action, keys)
        return after, outcome.reward[:, 0], (outcome.left[:, 0] | outcome.terminated) * 1.0


class Imagined(eqx.Module):
    """A moment in a learned model: what would be seen, and who is there."""

    observation: Num[Array, "n ..."]
    present: Bool[Array, "n A"]
    seat: Int[Array, " n"]


class Learned(eqx.Module):
    """A learned model of the game. What is foreseen is taken for what is: entries that are 0 or 1 are rounded.

    `predict(scaled observations, joint actions, seats)` is the model of whoever looks: with own parameters for each seat, rows
    must stand where those parameters are.
    """

    predict: Callable[..., Any]
    game: Game = eqx.field(static=True)

    def open(self, observation: Num[Array, "n ..."], seat: Int[Array, " n"], present: Bool[Array, "n A"]) -> Imagined:
        return Imagined(observation, present, seat)

    def look(self, moment: Imagined) -> Sight:
        return Sight(moment.observation, partner_views(self.game, moment.observation), None, moment.present)

    def step(
        self, moment: Imagined, action: Int[Array, "n A"], keys: Array
    ) -> tuple[Any, Float[Array, " n"], Float[Array, " n"]]:
        game = self.game
        seen = self.predict(game.scaled(moment.observation), action, moment.seat)
        drawn = seen.observation(game)
        exact = jnp.broadcast_to(binary(game), drawn.shape)
        raw = jnp.where(exact, jnp.round(drawn), drawn) / jnp.broadcast_to(game.observation_scale, drawn.shape)
        if jnp.issubdtype(game.observation_dtype, jnp.unsignedinteger):
            raw = jnp.clip(jnp.round(raw), 0, 255)
        after = raw.astype(moment.observation.dtype)
        present = moment.present
        if is_board(game):
            present = present & (after[:, : game.seats] > 0).any((-2, -1))
        return Imagined(after, present, moment.seat), seen.reward, jax.nn.sigmoid(seen.end)


class Root(eqx.Module):
    """Moments to search from: what is seen there and what our policy thinks of it."""

    observation: Num[Array, "n ..."]
    seat: Int[Array, " n"]
    present: Bool[Array, "n A"]
    legal: Bool[Array, "n actions"]
    logits: Float[Array, "n actions"]
    value: Float[Array, " n"]


class Found(eqx.Module):
    """What a search says of each root."""

    worth: Float[Array, "n actions"]  # Q, the mean over trees; of moves that no tree tried, what the root is worth
    visits: Float[Array, "n actions"]  # mean over trees
    value: Float[Array, " n"]  # of the root, after the search


class Node(eqx.Module):
    """What a tree keeps of a moment."""

    moment: Any
    depth: Int[Array, " n"]


Judge = Callable[[Num[Array, "n ..."]], tuple[Float[Array, "n actions"], Float[Array, " n"], Bool[Array, "n actions"]]]
"""Our policy: (logits, values, which moves it takes to be legal) of what we see."""
Foresee = Callable[[Num[Array, "n partners ..."]], Float[Array, "n partners actions"]]
"""What each partner is expected to do, as probabilities, given what it sees. Partners' goals are in it."""


def search(
    world: World,
    judge: Judge,
    foresee: Foresee,
    root: Root,
    key: PRNGKeyArray,
    settings: Search,
    *,
    simulations: int,
    samples: int,
    discount: float,
) -> Found:
    """Search from each root in `samples` trees of `simulations`.

    The rows of `judge` and `foresee` are all trees, the first sample of all roots first: goals may differ between samples.
    """
    require(simulations >= 1 and samples >= 1, f"{samples} trees of {simulations} simulations: expected at least one of one")
    count = len(root.seat)
    many = jax.tree.map(lambda leaf: jnp.concatenate([leaf] * samples), root)
    luck_key, step_key, tree_key = jax.random.split(key, 3)
    trees = count * samples
    partners = root.present.shape[1] - 1
    luck = drawn_luck(luck_key, samples, (count, simulations + 1, partners)).reshape(trees, simulations + 1, partners)
    keys = jax.random.split(step_key, (trees, simulations + 1))
    rows = jnp.arange(trees)

    def follow(_: None, __: Array, action: Int[Array, " n"], node: Node) -> tuple[mctx.RecurrentFnOutput, Node]:
        joint = _joint(world.look(node.moment), foresee, action, luck[rows, node.depth])
        moment, reward, over = world.step(node.moment, joint, keys[rows, node.depth])
        after = world.look(moment)
        logits, value, allowed = judge(after.own)
        legal = allowed if after.legal is None else after.legal
        said = mctx.RecurrentFnOutput(
            reward=reward,
            discount=discount * (1 - over),
            prior_logits=jnp.where(legal, logits, NEVER),
            value=value,
        )
        return said, Node(moment, node.depth + 1)

    opened = Node(world.open(many.observation, many.seat, many.present), jnp.zeros(trees, jnp.int32))
    start = mctx.RootFnOutput(prior_logits=jnp.where(many.legal, many.logits, NEVER), value=many.value, embedding=opened)
    grow: Callable[..., Any] = partial(mctx.muzero_policy, dirichlet_fraction=0.0, pb_c_init=settings.exploration)
    if settings.kind == "gumbel":
        considered, scale = settings.considered, settings.gumbel_scale
        grow = partial(mctx.gumbel_muzero_policy, max_num_considered_actions=considered, gumbel_scale=scale)
    grown = grow(None, tree_key, start, follow, simulations, invalid_actions=~many.legal)
    summary = grown.search_tree.summary()
    worth = _completed(summary.qvalues, summary.visit_counts, many.logits, many.legal, many.value)
    mean = lambda x: x.reshape(samples, count, *x.shape[1:]).mean(0)  # noqa: E731
    return Found(mean(worth), mean(summary.visit_counts * 1.0), mean(summary.value))


def drawn_luck(key: PRNGKeyArray, samples: int, shape: tuple[int, ...]) -> Float[Array, "samples ..."]:
    """Numbers from 0 to 1, uniform each, and spread evenly over the samples of each entry: with two trees, one meets the lower
    half of a partner's moves and one the upper."""
    within_key, order_key = jax.random.split(key)
    order = jnp.argsort(jax.random.uniform(order_key, (samples, *shape)), 0)
    return (order + jax.random.uniform(within_key, (samples, *shape))) / samples


def _joint(sight: Sight, foresee: Foresee, action: Int[Array, " n"], luck: Float[Array, "n partners"]) -> Int[Array, "n A"]:
    """Our move and those of partners, as these dice fall; -1 for who is absent."""
    reached = jnp.cumsum(foresee(sight.each), -1)
    ticket = luck[..., None] * reached[..., -1:]
    theirs = jnp.where(sight.present[:, 1:], jnp.argmax(ticket < reached, -1), -1)
    return jnp.concatenate([action[:, None], theirs], 1).astype(jnp.int32)


def _completed(
    worth: Float[Array, "n actions"],
    visits: Num[Array, "n actions"],
    logits: Float[Array, "n actions"],
    legal: Bool[Array, "n actions"],
    value: Float[Array, " n"],
) -> Float[Array, "n actions"]:
    """Q of all moves: one that was never tried is worth what the root is, by its own value and by what was tried there
    (Danihelka et al. 2022, equation 33)."""
    tried = (visits > 0) & legal
    odds = jnp.where(tried, jax.nn.softmax(jnp.where(legal, logits, NEVER)), 0.0)
    total = visits.sum(-1)
    found = (odds * jnp.where(tried, worth, 0.0)).sum(-1) / jnp.maximum(odds.sum(-1), 1e-9)
    mixed = jnp.where(tried.any(-1), (value + total * found) / (1 + total), value)
    return jnp.where(tried, worth, mixed[:, None])


def decided(found: Found, root: Root, settings: Search, stakes: Float[Array, " n"] | float = 1.0) -> Float[Array, "n actions"]:
    """Logits of what is played after a search: β Q in units of `stakes`, beside the policy's own, over legal moves."""
    unit = jnp.broadcast_to(jnp.asarray(stakes), found.value.shape)[:, None]
    better = settings.sharpness * (found.worth - found.worth.max(-1, keepdims=True)) / unit
    prior = settings.prior * jax.nn.log_softmax(jnp.where(root.legal, root.logits, NEVER))
    return jnp.where(root.legal, jax.nn.log_softmax(jnp.where(root.legal, better + prior, NEVER)), NEVER)


class Dream(eqx.Module):
    """Steps that were not played but imagined, from n roots."""

    observation: Num[Array, "steps n ..."]
    legal: Bool[Array, "steps n actions"]
    present: Bool[Array, "steps n"]  # false once it was over
    action: Int[Array, "steps n"]
    logits: Float[Array, "steps n actions"]
    value: Float[Array, "steps n"]
    reward: Float[Array, "steps n"]
    terminated: Bool[Array, "steps n"]
    last_present: Bool[Array, " n"]  # after the last step
    last_value: Float[Array, " n"]


def dream(world: World, judge: Judge, foresee: Foresee, root: Root, key: PRNGKeyArray, *, steps: int, alike: int = 1) -> Dream:
    """Play on from each root inside `world`, by our own policy and with partners as they are expected to be.

    Roots stand in `alike` parts, one after the other, whose dice fall alike: of seats none is special.
    """
    count, partners = len(root.seat), root.present.shape[1] - 1

    def dice(key: PRNGKeyArray, *shape: int) -> Float[Array, "n *shape"]:
        return jnp.concatenate([jax.random.uniform(key, (count // alike, *shape))] * alike)

    def one(carry: tuple[Any, ...], key: PRNGKeyArray) -> tuple[tuple[Any, ...], dict[str, Array]]:
        moment, logits, value, legal, there = carry
        action_key, luck_key, step_key, end_key = jax.random.split(key, 4)
        logits = Categorical.masked(logits, legal)
        reached, sight = jnp.cumsum(jnp.exp(logits), -1), world.look(moment)
        action = jnp.argmax(dice(action_key)[:, None] * reached[:, -1:] < reached, -1)
        joint = _joint(sight, foresee, action, dice(luck_key, partners))
        after, reward, over = world.step(moment, joint, jax.random.split(step_key, count))
        seen = world.look(after)
        ends = there & ((dice(end_key) < over) | ~seen.present[:, 0])  # whoever is no longer on the board imagines no more
        raw, next_value, allowed = judge(seen.own)
        row = dict(
            observation=sight.own,
            legal=legal,
            present=there,
            action=action,
            logits=logits,
            value=value,
            reward=jnp.where(there, reward, 0.0),
            terminated=ends,
        )
        return (after, raw, next_value, allowed if seen.legal is None else seen.legal, there & ~ends), row

    opened = world.open(root.observation, root.seat, root.present)
    start = (opened, root.logits, root.value, root.legal, root.present[:, 0])
    last, rows = jax.lax.scan(one, start, jax.random.split(key, steps))
    return Dream(**rows, last_present=last[4], last_value=last[2])


def gathered(wanted: Bool[Array, " n"], capacity: int) -> Int[Array, " capacity"]:
    """Places of the first `capacity` of those wanted; behind them, places past the end. Under static shapes, masks save no time:
    what is to cost nothing must not be in the batch."""
    return jnp.nonzero(wanted, size=capacity, fill_value=len(wanted))[0]


def simulates(game: Game) -> bool:
    """Whether a game can be searched in by its own rules: what is seen tells the state."""
    if game.on_host:
        return False
    try:
        seen = jax.eval_shape(lambda key: game.observe(game.reset(key))[0], jax.random.key(0))
        jax.eval_shape(lambda seen: game.state_of(seen, 0), seen)
    except BadInput:
        return False
    return True
