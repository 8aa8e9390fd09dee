"""Policies that only tests need, and playing with few compilations."""

from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp

from otherminds import make, seats
from otherminds.games.base import Game
from otherminds.partners import make_partner
from otherminds.rollout import collect, draw_bank, start
from otherminds.types import Extras, Memory, Policy


@lru_cache
def program(game_id, lineup, steps, games, **options):
    """`key -> (play, rows)` of fresh games, compiled once however many tests ask for it."""
    game = make(game_id)
    policies = seats.resolve(game, lineup)

    @jax.jit
    def run(key):
        bank = draw_bank(game, key, max(games, 256))
        return collect(game, policies, start(game, policies, games, key, bank), steps, **options)

    return game, run


def played(game_id, lineup, steps, games=8, seed=0, **options):
    """(game, play, rows): rows on the host."""
    game, run = program(game_id, lineup, steps, games, **options)
    play, rows = run(jax.random.key(seed))
    return game, play, jax.device_get(rows)


class Wild(Policy):
    """Anything at all: scripts, random actions and numbers that are no action. Every fourth game is nothing but the latter."""

    game: Game = eqx.field(static=True)
    scripts: tuple[str, ...] = eqx.field(static=True)

    def initial_memory(self):
        return Memory(episode=None, lasting=None)

    def act(self, view, memory, key):
        choose, number, *keys = jax.random.split(key, 2 + len(self.scripts))
        shape = view.legal.shape[:-1]
        wild = jax.random.randint(number, shape, -1, self.game.actions + 2)
        options = [wild]
        for script, script_key in zip(self.scripts, keys, strict=True):
            policy = make_partner(script, self.game, shape[1])
            assert jax.tree.leaves(policy.initial_memory()) == []
            options.append(policy.act(view, Memory(None, None), script_key)[0])
        pick = jax.random.randint(choose, shape, 0, len(options))
        only_wild = (jnp.arange(shape[0]) % 4 == 0)[:, None]
        action = jnp.select([only_wild | (pick == 0)] + [pick == k for k in range(1, len(options))], [wild, *options[1:]])
        zeros = jnp.zeros(view.legal.shape)
        return action, memory, Extras(zeros, zeros, zeros[..., 0], jnp.full(shape, -1, jnp.int32))
