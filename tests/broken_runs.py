"""A run made and audited with one production function broken, in a process of its own: `python broken_runs.py FAULT FOLDER`."""

import contextlib
import dataclasses
import json
import os
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp

from otherminds import audit_run, networks, rollout, updates
from otherminds.audit import describe
from otherminds.config import Train
from otherminds.learners import base, ppo
from otherminds.train import Stopped, train

SMALL = Train(
    game="stag_hunt?height=3&width=3&hares=3",
    seats="ppo",
    parallel=16,
    rollout=8,
    steps=16 * 8 * 24,
    seeds=2,
    epochs=1,
    minibatches=2,
    tensorboard=False,
    ppo=dataclasses.replace(Train().ppo, hidden=(16,)),
    mappo=dataclasses.replace(Train().mappo, hidden=(16,), critic_hidden=(16,)),
)


def nothing():
    """The control: all is well."""
    return SMALL


def wrong_data():
    """The last seat is trained on the first seat's data."""
    plain = updates.of_seats
    updates.of_seats = lambda rows, seats, memory: plain(rows, tuple(seat % 3 for seat in seats), memory)
    return SMALL


def rewards_of_the_next():
    """Each seat is trained on its own data but for the reward, which is the next seat's."""
    plain = updates.of_seats

    def mixed(rows, seats, memory):
        return dataclasses.replace(plain(rows, seats, memory), reward=jnp.roll(rows.reward, -1, 2)[:, :, jnp.array(seats)])

    updates.of_seats = mixed
    return SMALL


def no_bootstrap():
    """What follows the last row of a rollout is taken to be worth nothing."""
    plain = ppo.look_back

    def look_back(*arguments):
        before, last_value, final_value = plain(*arguments)
        return before, last_value * 0, final_value

    ppo.look_back = look_back
    return SMALL


def against_the_gradient():
    """The policy loss has the wrong sign."""
    plain = base.clipped_policy
    base.clipped_policy = lambda *arguments: -plain(*arguments)
    return SMALL


def rewards_of_neighbours():
    """The log shows each seat the reward of the next."""
    plain = updates.rewards_of

    def rolled(*arguments):
        played, earned, lasted = plain(*arguments)
        return played | {"reward": jnp.roll(played["reward"], 1)}, earned, lasted

    updates.rewards_of = rolled
    return SMALL


def stay_for_the_absent():
    """Players who have left are recorded as present."""
    plain = rollout._arrive

    def arrive(*arguments):
        now, over, episode = plain(*arguments)
        return dataclasses.replace(now, present=jnp.ones_like(now.present)), over, episode

    rollout._arrive = arrive
    return SMALL


def no_mask():
    """Losses average over all rows, present or not."""
    base.masked_mean = lambda x, weight, axis=None: x.mean(axis)
    return SMALL


def another_path():
    """The update computes the policy in another way than the rollout."""
    plain = ppo.replay

    def replay(*arguments):
        raw, value = plain(*arguments)
        return 1.5 * raw + jnp.arange(raw.shape[-1]).reshape((1,) * (raw.ndim - 1) + (-1,)) / 10, value

    ppo.replay = replay
    return SMALL


def frozen_layer():
    """No gradient reaches the first layer."""
    plain = networks.Torso.__call__

    def call(self, observation):
        return plain(eqx.tree_at(lambda t: t.layers[0], self, jax.lax.stop_gradient(self.layers[0])), observation)

    networks.Torso.__call__ = call
    return SMALL


def other_settings():
    """A learner that does not learn with the settings of the run."""
    plain = ppo.init
    ppo.init = lambda config, *rest: plain(dataclasses.replace(config, entropy=0.5), *rest)
    return SMALL


def special_seat():
    """The first seat's loss counts double."""
    plain = ppo.ppo_terms

    def terms(*arguments):
        found = plain(*arguments)
        double = jnp.ones_like(found["value_loss"]).at[0].set(2.0)
        return found | {"value_loss": found["value_loss"] * double}

    ppo.ppo_terms = terms
    return SMALL


def order_matters():
    """Whoever is updated first gets the better of the random numbers."""
    calls = []

    def key(carry, k):
        calls.append(k)
        return jax.random.fold_in(carry.key, 100 + len(calls) % 2)

    updates.learner_key = key
    return dataclasses.replace(SMALL, seats="ppo,ppo,mappo,mappo")


def two_learners():
    """The control of two learners in one game."""
    return dataclasses.replace(SMALL, seats="ppo,ppo,mappo,mappo")


def one_seed_for_all():
    """All seeds are the same seed."""
    plain = updates.first_carry
    updates.first_carry = lambda setup, seed, fixed, *warm: plain(setup, 0, fixed, *warm)
    return SMALL


def never_the_same():
    """Something that is not the seed gets into the start."""
    plain = updates.first_carry
    updates.first_carry = lambda setup, seed, fixed, *warm: dataclasses.replace(
        plain(setup, seed, fixed), key=jax.random.key(int.from_bytes(os.urandom(3), "big"))
    )
    return SMALL


def seat_lost_on_the_way():
    """Whatever seat is asked for, the first one's policy is read from disk."""
    plain = base.SeatPolicy.of
    base.SeatPolicy.of = lambda self, place: plain(self, 0)
    return SMALL


def collapse():
    """From some update on the policy is turned against itself."""
    plain = ppo.update

    def update(state, rows, key):
        after, metrics = plain(state, rows, key)
        actor, turned = after.network.actor, state.updates >= 40
        bias = jnp.where(turned, jnp.array([[5.0, -5.0]]), actor.bias)
        weight = jnp.where(turned, actor.weight * 0.01, actor.weight)
        return eqx.tree_at(lambda s: (s.network.actor.bias, s.network.actor.weight), after, (bias, weight)), metrics

    ppo.update = update
    small = dataclasses.replace(SMALL, game="matrix-ipd?horizon=8", seats="ppo,always_c", steps=16 * 8 * 64, epochs=4)
    return dataclasses.replace(small, ppo=dataclasses.replace(small.ppo, learning_rate=0.01))


def rise():
    """The control of a collapse: the same run, learning to the end."""
    small = dataclasses.replace(SMALL, game="matrix-ipd?horizon=8", seats="ppo,always_c", steps=16 * 8 * 64, epochs=4)
    return dataclasses.replace(small, ppo=dataclasses.replace(small.ppo, learning_rate=0.01))


def late_learner():
    """A control: nobody learns at first."""
    return dataclasses.replace(SMALL, seats="nearest_stag~700~ppo,nearest_stag,nearest_stag,nearest_stag")


def leaving_learner():
    """A control: nobody learns in the end."""
    return dataclasses.replace(SMALL, game="matrix-ipd?horizon=8", seats="ppo~640~always_c,always_d")


def recurrent():
    """A control: learners with memories that share parameters, among those who look on."""
    settings = dataclasses.replace(SMALL.ppo, core="gru", core_size=8, segment=4, share=True)
    return dataclasses.replace(SMALL, seats="ppo,ppo,ppo,nearest_hare", ppo=settings)


def cut_off():
    """A control: a game with a limit of time that nobody observes, and a prosocial learner with noise."""
    small = dataclasses.replace(SMALL, game="jaxmarl:MPE_simple_spread_v3", steps=16 * 8 * 6)
    return dataclasses.replace(small, ppo=dataclasses.replace(small.ppo, prosocial=0.5, action_noise=0.1))


def dead():
    """No seed survives its first update."""
    return dataclasses.replace(SMALL, ppo=dataclasses.replace(SMALL.ppo, learning_rate=1e38))


def on_host():
    """A control: a game stepped in Python, with a change of seats."""
    game = "pettingzoo:parallel_games:Small?length=3"
    return dataclasses.replace(SMALL, game=game, seats="ppo,random~64~ppo,random", parallel=4, steps=4 * 8 * 4)


def not_finite():
    """The second seed starts with weights beyond all bounds."""
    plain = updates.first_carry

    def first(setup, seed, fixed, *warm):
        carry = plain(setup, seed, fixed)
        factor = 1e30 if seed == 1 else 1.0
        return eqx.tree_at(lambda c: c.learners[0].network.critic.weight, carry, carry.learners[0].network.critic.weight * factor)

    updates.first_carry = first
    return SMALL


if __name__ == "__main__":
    config = globals()[sys.argv[1]]()
    folder = Path(sys.argv[2])
    with contextlib.suppress(Stopped):
        train(config, folder=folder, say=lambda line: None)
    checks = list(audit_run.audit_run(folder))
    for check in checks:
        print(check.name, check.passed, describe(check), file=sys.stderr)
    print(json.dumps([[check.name, check.passed] for check in checks]))
