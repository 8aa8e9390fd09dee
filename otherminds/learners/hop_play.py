"""HOP at play: the network of a seat, what it thinks of the others, who plays its seats while it learns, and its search."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num, PRNGKeyArray

from otherminds import planning
from otherminds.config import HOP, Sizes, require
from otherminds.distributions import Categorical
from otherminds.foresight import Foresight, Happened
from otherminds.games.base import Game
from otherminds.learners import ppo
from otherminds.learners.base import SeatPolicy, looks_around, open_memory, pack_memory
from otherminds.learners.hop_selves import EARLIER, OWN, as_modest, cast, played
from otherminds.networks import Conditioned, Dense, Trunk
from otherminds.types import Action, Extras, Memory, View
from otherminds.world_model import Prediction, WorldModel

SMALLEST_PART, LARGEST_PART = 16, 64  # of the games of a seat that are searched at once, at play


class Said(eqx.Module):
    """What a network says of moments."""

    raw: Float[Array, "*n actions"]  # logits, of illegal moves too
    value: Float[Array, "*n"]  # normalised
    stakes: Float[Array, "*n"]  # how much better or worse than expected it may turn out, in units of how far returns spread
    allowed: Float[Array, "*n actions"]  # logits of which moves are legal


class ActorCritic(eqx.Module):
    """One seat's network: what to do and what the moment is worth, given what is seen and what is told beside it."""

    trunk: Trunk
    reads: Conditioned
    actor: Dense
    critic: Dense
    stakes: Dense | None  # how much may depend on the move
    allowed: Dense | None  # which moves are legal, for planning where nobody says so

    @staticmethod
    def make(config: HOP, game: Game, told: int, random: np.random.Generator) -> "ActorCritic":
        shape, hidden = game.observation_shape, config.hidden
        rest = (config.activation, config.channels, config.core, config.core_size, looks_around(config, game))
        trunk = Trunk.make(random, shape, hidden, *rest)
        kind = "generated" if config.actor == "generated" else "concat"
        allowed = Dense.make(random, hidden[-1], game.actions, 0.01) if config.parts.model == "learned" else None
        return ActorCritic(
            trunk,
            Conditioned.make(random, trunk.features, told, hidden[-1], kind),
            Dense.make(random, hidden[-1], game.actions, 0.01),
            Dense.make(random, hidden[-1], 1, 1.0),
            None if config.stakes is None else Dense.make(random, hidden[-1], 1, 0.01),
            allowed,
        )

    @property
    def memory(self) -> int:
        return self.trunk.memory

    def step(self, memory: Array, observation: Array, told: Array, present: Array) -> tuple[Array, Said]:
        """(memory after it, what is said) of one moment; any leading axes."""
        memory, features = self.trunk.step(memory, observation, present)
        return memory, self._said(features, told)

    def through(self, memory: Array, observation: Array, told: Array, fresh: Array, present: Array) -> tuple[Array, Said]:
        """The same of moments in a row, with time as the first axis."""
        memory, features = self.trunk.through(memory, observation, fresh, present)
        return memory, self._said(features, told)

    def _said(self, features: Array, told: Array) -> Said:
        read = self.reads(features, told)
        raw, held = self.actor(read), jax.lax.stop_gradient(read)
        allowed = jnp.full(raw.shape, 1.0) if self.allowed is None else self.allowed(held)
        value = self.critic(read)[..., 0]
        stakes = jnp.ones_like(value) if self.stakes is None else jax.nn.softplus(self.stakes(held)[..., 0])
        return Said(raw, value, stakes, allowed)


def foresees(config: HOP) -> bool:
    """Whether partners are modelled at all."""
    return config.parts.goals != "none" or config.parts.model != "none"


class Moments(eqx.Module):
    """What plans start from, in C games for each seat: what is seen, thought, and made of it."""

    observation: Num[Array, "G C ..."]
    present: Bool[Array, "G C A"]
    legal: Bool[Array, "G C actions"]
    thoughts: Any
    held: Float[Array, "G C memory"]
    told: Float[Array, "G C told"]
    logits: Float[Array, "G C actions"]
    value: Float[Array, "G C"]
    stakes: Float[Array, "G C"]  # what differences between moves are measured by


class HopPolicy(SeatPolicy):
    """The networks of G seats at play, with what they think of the others in their memory."""

    mind: Foresight = eqx.field(kw_only=True)
    model: WorldModel | None = eqx.field(kw_only=True)
    earlier: ActorCritic | None = eqx.field(kw_only=True)
    modest: ppo.State | None = eqx.field(kw_only=True)
    sizes: Sizes = eqx.field(static=True, kw_only=True)
    begun: Bool[Array, ""] = eqx.field(kw_only=True)  # whether beliefs and search count yet
    training: bool = eqx.field(static=True, kw_only=True)
    searching: bool = eqx.field(static=True, default=True)
    elsewhere: Bool[Array, "E G"] | None = None  # seats of games that somebody else plays: nothing is searched there
    room: float = eqx.field(static=True, default=1.0)  # at play, in which share of its games a seat searches at most

    def without_noise(self) -> "HopPolicy":
        """As itself in every game, searching as at play."""
        return dataclasses.replace(self, earlier=None, modest=None, training=False)

    def without_search(self) -> "HopPolicy":
        return dataclasses.replace(self, searching=False)

    def sparing(self, elsewhere: Bool[Array, "E G"], room: float) -> "HopPolicy":
        """The same, which leaves these seats of its games to others."""
        return dataclasses.replace(self, elsewhere=elsewhere, room=room)

    @property
    def codes_are_goals(self) -> bool:
        """Whether what is believed is about the goals that the game names, and one for whatever they do not cover."""
        return self.config.parts.goals == "manual"

    def foreseen(self, memory: Memory) -> Float[Array, "E G P actions"] | None:
        """What each partner is expected to do now; None if nobody models them."""
        return self.mind.foreseen(memory.episode[1]) if foresees(self.config) else None

    def imagined(
        self, observation: Num[Array, "E G ..."], action: Int[Array, "E G A"], seat: Int[Array, " G"]
    ) -> Prediction | None:
        """What a step is expected to lead to, [E, G]; None if nobody has learned that. Actions are in ego order."""
        if self.model is None:
            return None

        def one(model: WorldModel, seen: Array, action: Array, ego: Array) -> Prediction:
            return model(self.game.scaled(seen), action, ego=jnp.broadcast_to(ego, action.shape[:1]))

        return self._each(one, 1, 1, 0)(self.model, observation, action, seat)

    def belief(self, memory: Memory) -> Float[Array, "E G P codes"] | None:
        """What each partner is believed to be after; None where goals are no codes."""
        belief = getattr(memory.episode[1], "belief", None)
        return belief if self.config.parts.goals != "none" else None

    def misled(self, memory: Memory) -> Float[Array, "E G P actions"] | None:
        """As `foreseen`, with every belief about another goal than it is about; None where goals are no codes."""
        if self.belief(memory) is None:
            return None
        thoughts = memory.episode[1]
        return self.mind.foreseen(eqx.tree_at(lambda t: t.belief, thoughts, jnp.roll(thoughts.belief, 1, -1)))

    def of(self, place: int) -> "HopPolicy":
        if self.config.share:
            return dataclasses.replace(self, earlier=None, modest=None, group=1)
        parts = (self.network, self.scale, self.mind, self.model)
        network, scale, mind, model = jax.tree.map(lambda leaf: leaf[place : place + 1], parts)
        return dataclasses.replace(self, network=network, scale=scale, mind=mind, model=model, earlier=None, modest=None, group=1)

    def check(self, game: Game, seats: tuple[int, ...]) -> None:
        super().check(game, seats)
        require(game.seats == self.game.seats, f"a policy that models {self.game.seats} players cannot play with {game.seats}")

    def initial_memory(self) -> Memory:
        thoughts, lasting = _of_one(self.mind, self.config.share).opened()
        many = lambda leaf: jnp.broadcast_to(leaf, (self.group, *leaf.shape))  # noqa: E731
        own = pack_memory(jnp.zeros((self.group, self.network.memory)), self.config)
        return Memory((own.episode, jax.tree.map(many, thoughts)), (own.lasting, jax.tree.map(many, lasting)))

    def conclude(self, view: View, memory: Memory) -> Memory:
        happened = Happened(view.action, view.goal_reached, jnp.broadcast_to(view.first[:, None], view.reward.shape))
        (own, thoughts), (lasting_own, lasting) = memory.episode, memory.lasting
        conclude = self._each(lambda mind, *rows: mind.conclude(*rows), 1, 1, 1)
        thoughts, lasting = conclude(self.mind, thoughts, lasting, happened)
        return Memory((own, thoughts), (lasting_own, lasting))

    def act(self, view: View, memory: Memory, key: PRNGKeyArray) -> tuple[Action, Memory, Extras]:
        (own, thoughts), (lasting_own, lasting) = memory.episode, memory.lasting
        games = len(view.first)
        search_key, action_key = jax.random.split(key)
        if foresees(self.config):
            thoughts = self._each(_think, 1, 1, None, 1, 0)(self.mind, thoughts, lasting, view.first, view.observation, view.seat)
        who = self._cast(games)
        told = tell(self.mind, thoughts, self.begun)
        held = open_memory(Memory(own, lasting_own), self.config)
        seen = self.game.scaled(view.observation)
        step = self._each(ActorCritic.step, 1, 1, 1, 1)
        after, said = step(self.network, held, seen, told, view.present[..., 0])
        logits, value = Categorical.masked(said.raw, view.legal), self.scale.restore(said.value)
        if self.modest is not None:
            sizes = dataclasses.replace(self.sizes, parallel=games)
            places = played(self.config, sizes, self.group, self.game.symmetric)
            theirs = as_modest(self.modest, places, seen, view.legal, logits, value)
            logits, value = (jnp.where(self.begun, new, old) for new, old in zip(theirs, (logits, value), strict=True))
        packed = pack_memory(after, self.config)
        memory = Memory((packed.episode, thoughts), (packed.lasting, lasting))
        chosen = self._as_others(who, logits, held, seen, told, view)
        if self.config.parts.search and self.searching:
            stakes = jnp.broadcast_to(self.scale.spread, value.shape) * least_stakes(self.config, said.stakes)
            moments = Moments(view.observation, view.present, view.legal, thoughts, held, told, logits, value, stakes)
            chosen, found = self._after_search(chosen, moments, view.seat, who, search_key)
            value = found if self.config.value_target == "search" else value
        action = Categorical.mode(chosen) if self.best_only else Categorical.sample(chosen, action_key)
        goal = jnp.full(value.shape, -1, jnp.int32)
        return action, memory, Extras(logits=chosen, policy_logits=logits, value=value, goal=goal)

    def _each(self, function: Any, *axes: int | None) -> Any:
        """`function(module, *arrays)` for every seat; `axes` say where seats stand, results have them on axis 1."""
        return jax.vmap(function, (None if self.config.share else 0, *axes), 1)

    def _cast(self, games: int) -> np.ndarray:
        practice = self.config.practice if self.training and self.earlier is not None else 0.0
        return cast(games, self.group, practice)

    def _as_others(
        self, who: np.ndarray, logits: Array, held: Array, seen: Array, told: Array, view: View
    ) -> Float[Array, "E G actions"]:
        """What is played where seats are played by earlier selves: their policies, in the games they are in."""
        if self.earlier is None or not self.training:
            return logits
        for k in range(len(EARLIER)):
            games = np.flatnonzero((who == k).any(1))
            if not len(games):
                continue
            network = jax.tree.map(lambda leaf, k=k: leaf[k], self.earlier)
            rows = [x[games] for x in (held, seen, told, view.present[..., 0])]
            _, said = self._each(ActorCritic.step, 1, 1, 1, 1)(network, *rows)
            theirs = Categorical.masked(said.raw, view.legal[games])
            logits = logits.at[games].set(jnp.where(jnp.asarray(who[games] == k)[..., None], theirs, logits[games]))
        return logits

    # --- search ---

    def _after_search(
        self, played: Float[Array, "E G actions"], now: Moments, seat: Int[Array, " G"], who: np.ndarray, key: PRNGKeyArray
    ) -> tuple[Float[Array, "E G actions"], Float[Array, "E G"]]:
        """(what is played after a search, what the moment is worth by it), in the games and seats that are searched; elsewhere as
        it was. Here moments are [E, G].

        While training, all games are searched at some steps and none at others: many trees at once are several times as fast as
        few at every step. At play they are searched part by part, as many parts as there are seats left to search for.
        """
        search, games = self.config.search, len(played)
        share = 1.0 if self.training else search.play_share
        chosen = np.arange(0, games, max(1, round(1 / share))) if share > 0 else np.arange(0)
        if not len(chosen) or (self.training and search.share == 0):
            return played, now.value
        step_key, key = jax.random.split(key)
        due = self.begun
        if self.training and search.share < 1:
            due &= jax.random.uniform(step_key) < search.share
        room = max(1, int(np.ceil(len(chosen) * (search.capacity if self.training else self.room))))
        part = room if self.training else min(room, LARGEST_PART, max(SMALLEST_PART, -(-room // 8)))
        wanted = now.present[chosen, :, 0] & jnp.asarray(who[chosen] == OWN)
        if self.elsewhere is not None:
            wanted &= ~self.elsewhere[chosen]
        rows = jax.vmap(lambda one: planning.gathered(one, -(-room // part) * part), 1)(wanted)  # [G, parts together]
        place = jnp.concatenate([jnp.asarray(chosen), jnp.array([games])])[jnp.minimum(rows, len(chosen))]
        put = jax.vmap(lambda old, new, at: old.at[at].set(new, mode="drop"), (1, 0, 0), 1)

        def search_part(number: Int[Array, ""], held: tuple[Array, Array]) -> tuple[Array, Array]:
            at = jax.lax.dynamic_slice_in_dim(place, number * part, part, 1)

            def pick(x: Array) -> Array:
                """[E, G, ...] as [G, part, ...]; rows past the end repeat the last game and are thrown away."""
                return jax.vmap(lambda own, at: own[jnp.minimum(at, games - 1)], (1, 0))(x, at)

            found = self.planned(jax.tree.map(pick, now), seat, jax.random.fold_in(key, number))
            return put(held[0], found[0], at), put(held[1], found[1], at)

        needed = jnp.where(due, -(-jnp.minimum(wanted.sum(0), room).max() // part), 0)
        return jax.lax.fori_loop(0, needed, search_part, (played, now.value))

    def planned(
        self, now: Moments, seat: Int[Array, " G"], key: PRNGKeyArray
    ) -> tuple[Float[Array, "G C actions"], Float[Array, "G C"]]:
        """(logits of what is played, what the moment is worth) after a search from each of these moments."""
        search = self.config.search
        samples = search.samples if self.training else search.play_samples
        simulations = search.simulations if self.training else search.play_simulations
        goal_key, tree_key = jax.random.split(key)
        parts = self._imagining(now, seat, samples, goal_key)
        amount = {"simulations": simulations, "samples": samples, "discount": self.config.discount}
        found = planning.search(*parts, tree_key, search, **amount)
        logits = planning.decided(found, parts[-1], search, now.stakes.reshape(-1))
        return logits.reshape(now.legal.shape), found.value.reshape(now.value.shape)

    def dreamed(self, now: Moments, seat: Int[Array, " G"], steps: int, key: PRNGKeyArray) -> planning.Dream:
        """What might come after each of these moments, as rows of seats and games: our policy in the world it plans in."""
        goal_key, dream_key = jax.random.split(key)
        return planning.dream(*self._imagining(now, seat, 1, goal_key), dream_key, steps=steps, alike=len(now.value))

    def _imagining(
        self, now: Moments, seat: Int[Array, " G"], samples: int, key: PRNGKeyArray
    ) -> tuple[planning.World, planning.Judge, planning.Foresee, planning.Root]:
        """(the world to plan in, our policy, our partners with goals drawn from what is believed, the moments as rows of seats
        and games). Where there are several samples, rows of the first come first."""
        config, game = self.config, self.game
        group, room = now.value.shape
        own = 0 if not config.share else None

        def rows(x: Array) -> Array:
            return x.reshape(group * room, *x.shape[2:])

        def by_seat(function: Any, modules: Any, *arrays: Array, ego: bool = False) -> Any:
            """`function(module, *arrays)` of trees [samples seats games], for every seat by its own module."""

            def split(x: Array) -> Array:
                return jnp.moveaxis(x.reshape(samples, group, room, *x.shape[1:]), 1, 0).reshape(
                    group, samples * room, *x.shape[1:]
                )

            def join(x: Array) -> Array:
                apart = jnp.moveaxis(x.reshape(group, samples, room, *x.shape[2:]), 0, 1)
                return apart.reshape(samples * group * room, *x.shape[2:])

            extra, extra_axes = ((seat,), (0,)) if ego else ((), ())
            mapped = jax.vmap(function, (own, *(0 for _ in arrays), *extra_axes))
            return jax.tree.map(join, mapped(modules, *map(split, arrays), *extra))

        many = lambda x: jnp.concatenate([rows(x)] * samples)  # noqa: E731
        of_seats = lambda x: many(jnp.broadcast_to(jnp.broadcast_to(x, (group,))[:, None], (group, room)))  # noqa: E731
        mean, spread = of_seats(self.scale.mean), of_seats(self.scale.spread)
        told_many, held_many = many(now.told), many(now.held)
        there = jnp.ones(len(told_many), bool)

        def judge(seen: Array) -> tuple[Array, Array, Array]:
            _, said = by_seat(ActorCritic.step, self.network, held_many, game.scaled(seen), told_many, there)
            return said.raw, said.value * spread + mean, said.allowed > 0

        tilt = self._tilt(now) if config.search.optimism else None
        luck = jax.random.split(key, samples)  # the same for all seats, as none is special
        drawn = [jax.vmap(self._drawn, (0, None if tilt is None else 0, None))(now.thoughts, tilt, one) for one in luck]
        goals = jnp.concatenate([rows(each) for each in drawn])

        def foresee(each: Array) -> Array:
            return by_seat(lambda mind, views, goal, ego: mind.given(views, goal, ego), self.mind, each, goals, ego=True)

        world: Any = planning.Simulator(game)
        if config.parts.model == "learned":
            world = planning.Learned(
                lambda seen, action, ego: by_seat(
                    lambda model, *parts: model(parts[0], parts[1], ego=parts[2]), self.model, seen, action, ego
                ),
                game,
            )
        seats = jnp.broadcast_to(seat[:, None], (group, room))
        fields = (now.observation, seats, now.present, now.legal, now.logits, now.value)
        return world, judge, foresee, planning.Root(*(rows(x) for x in fields))

    def _drawn(self, thoughts: Any, tilt: Array | None, key: PRNGKeyArray) -> Array:
        return _of_one(self.mind, self.config.share).drawn(thoughts, tilt, key)

    def _tilt(self, now: Moments) -> Float[Array, "G C P codes"]:
        """κ times what it would be worth to us if a partner were after each code, in units of how far values spread."""
        partners, codes = now.thoughts.belief.shape[-2:]
        there, seen = jnp.ones(now.value.shape, bool), self.game.scaled(now.observation)
        step = jax.vmap(ActorCritic.step, (None if self.config.share else 0, 0, 0, 0, 0))
        worth = []
        for place in range(partners * codes):
            partner, code = divmod(place, codes)
            sure = jnp.broadcast_to(jax.nn.one_hot(code, codes), (*there.shape, codes))
            other = now.told.at[..., partner * codes : (partner + 1) * codes].set(sure)
            worth.append(step(self.network, now.held, seen, other, there)[1].value)
        found = jnp.stack(worth, -1).reshape(*there.shape, partners, codes)
        return self.config.search.optimism * found


def least_stakes(config: HOP, stakes: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """What is taken to be at stake: what differs by less is noise."""
    return stakes if config.stakes is None else jnp.maximum(stakes, config.stakes)


def _of_one(mind: Foresight, share: bool) -> Foresight:
    """A mind without its axis of seats, for what does not depend on its parameters."""
    return mind if share else jax.tree.map(lambda leaf: leaf[0], mind)


def _think(mind: Foresight, thoughts: Any, lasting: Any, first: Array, observation: Array, ego: Array) -> Any:
    look: Any = mind.look(observation, ego)
    return mind.think(thoughts, lasting, first, look, ego)


def tell(mind: Foresight, thoughts: Any, begun: Array) -> Float[Array, "*n told"]:
    """What the policy is told beside what it sees: what is believed of the others, once beliefs are worth anything."""
    return mind.told(thoughts) * begun
