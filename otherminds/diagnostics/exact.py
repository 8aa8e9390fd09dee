"""Whether the search is right: on games of two players small enough to try everything, what is lost by playing what it finds.

Partners are scripts whose probabilities are told to the search, so nothing is learned here: what is lost is lost by the search.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from otherminds.config import Search, require
from otherminds.games import make
from otherminds.games.base import Game
from otherminds.partners import make_partner
from otherminds.planning import Foresee, Found, Judge, Root, Sight, Simulator, search

PLAIN = Search(prior=0.0, sharpness=20.0, gumbel_scale=0.0)
"""By what is found alone."""


@dataclass(frozen=True)
class Case:
    """A game, so many steps before its end, beside a script."""

    game: str
    partner: str
    steps: int
    dice: bool = False
    """Whether the partner draws among moves that are as good, as scripts do, or always takes the first."""


HUNT = "stag_hunt?height=3&width=3&hares=1&players=2&horizon=6"
SURE = (
    Case("matrix-ipd?horizon=6", "tit_for_tat", 4),
    Case("matrix-stag_hunt?horizon=6", "tit_for_tat", 4),
    Case("matrix-chicken?horizon=6", "tit_for_tat", 4),
    Case(HUNT, "nearest_stag", 2),
    Case(HUNT, "nearest_hare", 2),
)
LUCKY = (Case(HUNT, "nearest_stag", 2, dice=True), Case(HUNT, "random", 2, dice=True))


def starts(case: Case, count: int, seed: int = 0) -> Any:
    """States of the game so many steps before its end, reached by legal moves drawn at random, with both players still there."""
    game: Any = make(case.game)
    require(game.seats == 2, f"{game.id} has {game.seats} players: everything is tried with two")

    @jax.jit
    def reached(key: Array) -> tuple[Any, Array]:
        state = game.reset(key)
        for step in range(game.horizon - case.steps):
            moves, luck = jax.random.split(jax.random.fold_in(key, step))
            action = jax.random.categorical(moves, jnp.where(game.legal(state), 0.0, -jnp.inf))
            state = game.step(state, action, luck)[0]
        return state, game.present(state).all()

    keys = jax.random.split(jax.random.key(seed), 8 * count)
    states, whole = jax.vmap(reached)(keys)
    chosen = jnp.nonzero(whole)[0][:count]
    require(len(chosen) == count, f"{game.id}: in {case.steps} steps before the end there is nobody left to search for")
    return jax.tree.map(lambda leaf: leaf[chosen], states)


def foresight(case: Case) -> Foresee:
    """What the partner does, told to the search: the script's own probabilities of what it sees."""
    game = make(case.game)
    script: Any = make_partner(case.partner, game, 1)

    def foresee(each: Num[Array, "n partners ..."]) -> Float[Array, "n partners actions"]:
        flat = each.reshape(each.shape[0] * each.shape[1], *each.shape[2:])
        states = jax.vmap(lambda seen: game.state_of(seen, 1))(flat)
        odds = script.rule(flat, jax.vmap(game.legal)(states)[:, 0])
        odds = odds if case.dice else jax.nn.one_hot(odds.argmax(-1), game.actions)
        return odds.reshape(*each.shape[:2], -1)

    return foresee


def knows_nothing(actions: int) -> Judge:
    """A policy to which all moves are equal and all moments worth nothing."""

    def judge(seen: Num[Array, "n ..."]) -> tuple[Array, Array, Array]:
        count = len(seen)
        return jnp.zeros((count, actions)), jnp.zeros(count), jnp.ones((count, actions), bool)

    return judge


@partial(jax.jit, static_argnums=0)
def _everything(game: Game, states: Any) -> Any:
    """(what follows, our reward, whether it is over) of every joint action; rows of states, our moves and the partner's."""
    actions = game.actions
    ours, theirs = (x.reshape(-1) for x in jnp.meshgrid(jnp.arange(actions), jnp.arange(actions), indexing="ij"))
    many = jax.tree.map(lambda leaf: jnp.repeat(leaf, actions**2, 0), states)
    count = len(jax.tree.leaves(many)[0])
    action = jnp.tile(jnp.stack([ours, theirs], 1), (count // actions**2, 1))
    return Simulator(game).step(many, action, jax.random.split(jax.random.key(0), count))


def exact(game: Game, states: Any, foresee: Foresee, steps: int) -> Float[np.ndarray, "n actions"]:
    """Q of each of our moves by trying everything: all our moves times all of the partner's."""
    sight, chances = jax.jit(lambda states: (s := Simulator(game).look(states), foresee(s.each)[:, 0]))(states)
    chances = jnp.where(sight.present[:, 1:], chances, jax.nn.one_hot(0, game.actions)[None])  # nobody plays anything
    after, reward, over = _everything(game, states)
    worth = np.asarray(reward, np.float64)
    if steps > 1:
        present = np.asarray(jax.jit(jax.vmap(game.present))(after))[:, 0]
        goes_on = (np.asarray(over) == 0) & present
        worth = worth + np.where(goes_on, exact(game, after, foresee, steps - 1).max(1), 0.0)
    worth = (worth.reshape(-1, game.actions, game.actions) * np.asarray(chances)[:, None]).sum(-1)
    return np.where(np.asarray(sight.legal), worth, -np.inf)


def searched(game: Game, states: Any, foresee: Foresee, simulations: int, samples: int, settings: Search = PLAIN) -> Found:
    """What the search finds from these states; moves that are not legal are worth minus infinity."""
    world = Simulator(game)

    @jax.jit
    def run(states: Any) -> Found:
        sight = world.look(states)
        assert sight.legal is not None
        count = len(sight.legal)
        seats, even = jnp.zeros(count, jnp.int32), jnp.zeros((count, game.actions))
        root = Root(sight.own, seats, sight.present, sight.legal, even, jnp.zeros(count))
        given = (world, knows_nothing(game.actions), foresee, root, jax.random.key(1), settings)
        found = search(*given, simulations=simulations, samples=samples, discount=1.0)
        return eqx.tree_at(lambda f: f.worth, found, jnp.where(sight.legal, found.worth, -jnp.inf))

    return run(states)


def lost(
    game: Game, states: Any, foresee: Foresee, truth: np.ndarray, simulations: int, samples: int, kind: Any = "gumbel"
) -> float:
    """How much is lost, on average, by playing what the search finds best."""
    found = searched(game, states, foresee, simulations, samples, replace(PLAIN, kind=kind))
    chosen = np.asarray(found.worth).argmax(1)
    return float((truth.max(1) - truth[np.arange(len(truth)), chosen]).mean())


def compared(case: Case, amounts: list[tuple[int, int]], count: int = 64) -> list[dict[str, Any]]:
    """What is lost with so many (simulations, trees) each, beside what is to be had."""
    game, states, foresee = make(case.game), starts(case, count), foresight(case)
    truth = exact(game, states, foresee, case.steps)
    best = float(truth.max(1).mean())
    named = {"game": case.game, "partner": case.partner, "dice": case.dice, "steps": case.steps, "best": best}
    return [
        named | {"simulations": simulations, "trees": trees, "lost": lost(game, states, foresee, truth, simulations, trees)}
        for simulations, trees in amounts
    ]


class Coin(eqx.Module):
    """One step: action 0 pays 0.3, action 1 pays 1 or -1 by the partner's coin; then it is over."""

    def open(self, observation: Any, seat: Any, present: Any) -> Any:
        return observation

    def look(self, moment: Any) -> Sight:
        return Sight(moment, jnp.zeros((len(moment), 1, 1)), None, jnp.ones((len(moment), 2), bool))

    def step(self, moment: Any, action: Any, keys: Any) -> tuple[Any, Array, Array]:
        gamble = jnp.where(action[:, 1] == 0, 1.0, -1.0)
        return moment, jnp.where(action[:, 0] == 0, 0.3, gamble), jnp.ones(len(moment))


def coin_roots(count: int) -> Root:
    yes = jnp.ones((count, 2), bool)
    return Root(jnp.zeros((count, 1)), jnp.zeros(count, jnp.int32), yes, yes, jnp.zeros((count, 2)), jnp.zeros(count))


def coin_search(chances: tuple[float, float], count: int, settings: Search, **amount: Any) -> Found:
    """A search before the coin, which falls with these chances."""

    def foresee(each: Array) -> Array:
        return jnp.broadcast_to(jnp.array(chances), (len(each), 1, 2))

    run = partial(search, Coin(), knows_nothing(2), foresee, coin_roots(count), jax.random.key(0), settings, **amount)
    return jax.jit(run)()


def gambles(trees: int, count: int = 1000) -> float:
    """Share of searches that would rather gamble on a fair coin, ±1, than take a sure 0.3."""
    found = coin_search((0.5, 0.5), count, Search(prior=0.0), simulations=16, samples=trees, discount=1.0)
    return float((found.worth[:, 1] > found.worth[:, 0]).mean())
