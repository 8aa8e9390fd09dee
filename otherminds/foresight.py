"""What is thought of partners while playing: what each may be after, how likely that is, and what it will do.

This is where goals, the opponent model and beliefs meet. A partner is after one of a few codes (`Coded`): the goals that a game
names and one for whatever they do not cover, codes that are learned, or a single one where nothing is inferred; beliefs about
them follow from Bayes' rule. Or it is after something that numbers say (`Numbered`), which a recurrent network infers.

Everything here is of one seat and its P partners; several seats are an axis under `vmap`. What is thought lives in the policy's
memory. It is never stored with what was played: learning thinks it again, by the same functions.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num, PRNGKeyArray

from otherminds import beliefs, goals
from otherminds.beliefs import Counts, Normal
from otherminds.config import HOP, require
from otherminds.games.base import Game
from otherminds.games.ego import seat_numbers, seen_from, tell_seats
from otherminds.goals import SPREAD, Goals, Sequences
from otherminds.networks import remember, same_shape
from otherminds.opponent_model import OpponentModel

PLACES_APART = 0.3  # how much codes differ from place to place before anything is learned


class Happened(eqx.Module):
    """What all can see of a step, in ego order of the seat that thinks. Rows are whatever leading axes there are."""

    action: Int[Array, "*n A"]  # -1 for who was absent
    goal_reached: Int[Array, "*n A"]
    first: Bool[Array, "*n"]  # the step was the last of an episode


class Watched(eqx.Module):
    """T steps of n games as one seat saw them: what it learns of its partners from."""

    observation: Num[Array, "T n ..."]
    action: Int[Array, "T n A"]  # ego order, -1 for who was absent
    reward: Float[Array, "T n A"]
    goal_reached: Int[Array, "T n A"]
    first: Bool[Array, "T n"]
    worth: Float[Array, "T n"]  # what the seat itself earned from here on
    ego: Int[Array, ""]  # its own number
    opening: Float[Array, "T n P codes"] | None = None  # what was believed at each step, where goals are codes
    rewarded_only: bool = eqx.field(static=True, default=False)

    @property
    def seen(self) -> Bool[Array, "T n P"]:
        """Where a partner acted, and we were there; if only that is to teach, where it led to a reward."""
        there = (self.action[..., 1:] >= 0) & (self.action[..., :1] >= 0)
        if self.rewarded_only:
            there &= hindsight(jnp.where(self.reward[..., 1:] > 0, 0, -1), self.first) >= 0
        return there


class CodeThoughts(eqx.Module):
    """What is thought in this episode, where goals are codes."""

    belief: Float[Array, "*n P codes"]
    odds: Float[Array, "*n P codes actions"]  # logarithms of what each would do now, for each code
    reached: Int[Array, "*n P"]  # the goal each has reached in this episode, -1 for none
    watched: Bool[Array, "*n P"]  # whether it was seen to act in this episode


class Coded(eqx.Module):
    """Partners that are after one of a few codes.

    What a code says is a matter of the place that the partner has, in ego order: players who learned in different seats go about
    the same thing in different ways.
    """

    acts: OpponentModel
    codebook: Float[Array, "P codes size"]
    prior: Float[Array, " codes"]  # logits of how often each code is meant
    game: Game = eqx.field(static=True)
    config: HOP = eqx.field(static=True)

    @staticmethod
    def make(config: HOP, game: Game, random: np.random.Generator) -> "Coded":
        given = config.goals
        count = {"manual": len(game.goals) + 1, "learned": given.codes, "none": 1}[config.parts.goals]
        places = game.seats - 1
        book = random.standard_normal((count, given.size)) + PLACES_APART * random.standard_normal((places, count, given.size))
        if config.parts.goals == "manual":
            book = np.concatenate([np.broadcast_to(np.eye(count), (places, count, count)), book], -1)
        acts = _told_apart(OpponentModel.make(given.acts, game, book.shape[-1] + 2 * seat_numbers(game), random))
        return Coded(acts, jnp.asarray(book, jnp.float32), jnp.zeros(count), game, config)

    @property
    def count(self) -> int:
        return self.prior.shape[-1]

    @property
    def told_size(self) -> int:
        return (self.game.seats - 1) * self.count if self.count > 1 else 0

    def opened(self) -> tuple[CodeThoughts, Float[Array, "P codes"]]:
        """(thoughts, lasting memory) of somebody who has seen nothing."""
        lead = (self.game.seats - 1,)
        odds = jnp.zeros((*lead, self.count, self.game.actions))
        nothing = jnp.full(lead, -1, jnp.int32)
        return CodeThoughts(beliefs.even(lead, self.count), odds, nothing, nothing >= 0), jnp.zeros((*lead, self.count))

    def look(self, observation: Num[Array, "n ..."], ego: Int[Array, ""]) -> Float[Array, "n P codes actions"]:
        """What partners would do for each code, as logarithms, in n moments that `ego` sees."""
        looked = self.acts.look(_views(self.game, observation))
        seats = _seats(self.game, 1, ego)  # of each partner
        told = jnp.concatenate([self.codebook, *(jnp.repeat(x[:, None], self.count, 1) for x in seats)], -1)
        by_place = looked.reshape(len(observation), len(told), -1)
        said = jax.vmap(self.acts.decide_each, (1, 0), 1)(by_place, told)
        return jax.nn.log_softmax(said)

    def conclude(self, thoughts: CodeThoughts, lasting: Array, happened: Happened) -> tuple[CodeThoughts, Array]:
        """Take in what partners did; where an episode ended, count what they were after."""
        config, theirs = self.config, happened.action[..., 1:]
        seen = (theirs >= 0) & (happened.action[..., :1] >= 0)
        belief = thoughts.belief
        if config.parts.intra:
            likely = jnp.exp(jnp.take_along_axis(thoughts.odds, jnp.maximum(theirs, 0)[..., None, None], -1)[..., 0])
            belief = beliefs.after_action(belief, likely, seen, config.switching)
        now = happened.goal_reached[..., 1:]
        reached, watched = jnp.where(now >= 0, now, thoughts.reached), thoughts.watched | seen
        if config.parts.inter:
            shown = belief
            if config.parts.goals == "manual":
                shown = jnp.where((reached >= 0)[..., None], jax.nn.one_hot(reached, self.count), belief)
            ends = (happened.first[..., None] & watched)[..., None]  # an episode that shows nothing changes nothing
            lasting = jnp.where(ends, config.counted * lasting + shown, lasting)
        return CodeThoughts(belief, thoughts.odds, reached, watched), lasting

    def think(
        self, thoughts: CodeThoughts, lasting: Array, first: Bool[Array, "*n"], look: Array, ego: Int[Array, ""]
    ) -> CodeThoughts:
        """At a new moment: what is believed when an episode opens, and what is expected of partners now."""
        start = self.count * jax.nn.softmax(self.prior)
        counts = Counts(lasting + jnp.broadcast_to(start, lasting.shape))
        belief = jnp.where(first[..., None, None], counts.prior(), thoughts.belief)
        return CodeThoughts(belief, look, thoughts.reached, thoughts.watched)

    def told(self, thoughts: CodeThoughts) -> Float[Array, "*n told"]:
        """What the policy reads."""
        belief = thoughts.belief
        flat = belief.reshape(*belief.shape[:-2], belief.shape[-2] * belief.shape[-1])
        return flat if self.count > 1 else flat[..., :0]

    def foreseen(self, thoughts: CodeThoughts) -> Float[Array, "*n P actions"]:
        """What is expected of each partner, whatever it is after."""
        return (thoughts.belief[..., None] * jnp.exp(thoughts.odds)).sum(-2)

    def drawn(self, thoughts: CodeThoughts, tilt: Array | None, key: PRNGKeyArray) -> Int[Array, "*n P"]:
        """A goal for each partner, by the belief; `tilt` makes some more likely."""
        logits = jnp.log(jnp.maximum(thoughts.belief, 1e-9))
        return jax.random.categorical(key, logits if tilt is None else logits + tilt)

    def given(self, views: Num[Array, "n P ..."], chosen: Int[Array, "n P"], ego: Int[Array, ""]) -> Float[Array, "n P actions"]:
        """What partners who are after these goals will do, as probabilities."""
        codes = self.codebook[jnp.arange(chosen.shape[1])[None], chosen]
        return _given(self.acts, self.game, views, codes.reshape(-1, codes.shape[-1]), ego)

    def losses(
        self, rows: Watched, start: CodeThoughts, lasting: Array, key: PRNGKeyArray, progress: Array
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """Minus the log-likelihood of what partners did, summed over what they may have been after.

        One code stands for an episode: log Σ_g p(g) Π_t π(a_t | g) is the sum of how well each step was foreseen by the belief
        before it. Where a goal given by hand is reached, the steps that led there are that goal's alone. An episode begins with
        what was believed when it opened, so that a code that fits a partner once is tried first the next time, and comes to stand
        for a kind of partner. Begun with what holds for everybody, codes never told those apart who leave after three steps.
        """
        steps, games = rows.first.shape
        look = self.look(rows.observation.reshape(steps * games, *rows.observation.shape[2:]), rows.ego)
        odds = look.reshape(steps, games, *look.shape[1:])
        theirs = jnp.maximum(rows.action[..., 1:], 0)[..., None, None]
        likely = jnp.take_along_axis(odds, theirs, -1)[..., 0] * rows.seen[..., None]  # [T, n, P, codes]
        allowed = self._allowed(rows)
        prior = jax.nn.log_softmax(self.prior)
        opening = jnp.broadcast_to(prior, likely.shape)
        if rows.opening is not None:  # of what it is made of, only the prior learns
            opening = jnp.log(jnp.maximum(rows.opening, 1e-9)) + (prior - jax.lax.stop_gradient(prior))[None, None, None]

        def step(log: Array, row: tuple[Array, ...]) -> tuple[Array, tuple[Array, Array]]:
            likely, seen, first, opens, allowed, opening = row
            log = jnp.where(first[:, None, None], opening, log)
            held = jnp.where(allowed, log, -30.0)
            before = jnp.where(opens[:, None, None], held, log)
            cost = jax.nn.logsumexp(jax.nn.log_softmax(before) + likely, -1)
            named = jnp.where(opens[:, None], jax.nn.logsumexp(before, -1), 0.0)
            after = jax.nn.log_softmax(before + likely)
            return jnp.where(seen[..., None], after, before), (cost * seen, named * seen)

        opens = rows.first.at[0].set(True)
        begin = jnp.log(jnp.maximum(start.belief, 1e-9))
        _, (cost, named) = jax.lax.scan(step, begin, (likely, rows.seen, rows.first, opens, allowed, opening))
        weight = rows.seen / jnp.maximum(rows.seen.sum(0, keepdims=True), 1)  # each partner of each game counts as much
        total = jnp.maximum(weight.sum(), 1)
        terms = {"action": -(weight * cost).sum() / total, "goal": -(weight * named).sum() / total}
        return terms["action"] + terms["goal"], terms

    def _allowed(self, rows: Watched) -> Bool[Array, "T n P codes"]:
        """What a partner may have been after, in hindsight: a goal that it reaches later in the same episode, or anything."""
        shape = (*rows.seen.shape, self.count)
        if self.config.parts.goals != "manual":
            return jnp.ones(shape, bool)

        label = hindsight(rows.goal_reached[..., 1:], rows.first)
        return (label < 0)[..., None] | jax.nn.one_hot(label, self.count, dtype=bool)


def hindsight(found: Int[Array, "T n P"], first: Bool[Array, "T n"]) -> Int[Array, "T n P"]:
    """What will be found next in the same episode, now or later, as far as these rows show it; -1 for nothing."""

    def step(later: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        now, ends = row
        known = jnp.where(now >= 0, now, jnp.where(ends[:, None], -1, later))
        return known, known

    ends = jnp.concatenate([first[1:], jnp.zeros_like(first[:1])])
    return jax.lax.scan(step, jnp.full(found.shape[1:], -1, found.dtype), (found, ends), reverse=True)[1]


class NumberThoughts(eqx.Module):
    """What is thought in this episode, where goals are numbers."""

    core: Float[Array, "*n P core"]
    before: Int[Array, "*n P"]  # what each did last, -1 for nothing that was seen
    mean: Float[Array, "*n P size"]
    precision: Float[Array, "*n P size"]
    odds: Float[Array, "*n P actions"]
    watched: Bool[Array, "*n P"]


class Numbered(eqx.Module):
    """Partners that are after something that numbers say."""

    goals: Goals
    game: Game = eqx.field(static=True)
    config: HOP = eqx.field(static=True)

    @staticmethod
    def make(config: HOP, game: Game, random: np.random.Generator) -> "Numbered":
        encodes: Any = "state" if config.parts.numbers else config.goals.encodes
        return Numbered(Goals.make(dataclasses.replace(config.goals, kind="vae", encodes=encodes), game, random), game, config)

    @property
    def told_size(self) -> int:
        return (self.game.seats - 1) * self.goals.size

    def opened(self) -> tuple[NumberThoughts, Normal]:
        lead, size = (self.game.seats - 1,), self.goals.size
        normal, nothing = Normal.standard(lead, size), jnp.full(lead, -1, jnp.int32)
        core, odds = jnp.zeros((*lead, self.goals.earlier.memory)), jnp.zeros((*lead, self.game.actions))
        return NumberThoughts(core, nothing, normal.mean, normal.precision, odds, nothing >= 0), normal

    def look(self, observation: Num[Array, "n ..."], ego: Int[Array, ""]) -> tuple[Array, Array]:
        """(what inference reads, what foreseeing reads) of each partner in n moments."""
        views, seats = _views(self.game, observation), _seats(self.game, len(observation), ego)
        lead = (len(observation), self.game.seats - 1)
        features, looked = self.goals.eye(views, seats), self.goals.acts.look(views)
        return features.reshape(*lead, -1), looked.reshape(*lead, -1)

    def conclude(self, thoughts: NumberThoughts, lasting: Normal, happened: Happened) -> tuple[NumberThoughts, Normal]:
        theirs = happened.action[..., 1:]
        seen = (theirs >= 0) & (happened.action[..., :1] >= 0)
        watched = thoughts.watched | seen
        if self.config.parts.inter:
            ends = happened.first[..., None] & watched
            joined = lasting.faded(self.config.counted).after_evidence(thoughts.mean, thoughts.precision, ends)
            lasting = jax.tree.map(lambda new, old: jnp.where(ends[..., None], new, old), joined, lasting)
        before = jnp.where(seen, theirs, -1)
        return NumberThoughts(thoughts.core, before, thoughts.mean, thoughts.precision, thoughts.odds, watched), lasting

    def think(
        self, thoughts: NumberThoughts, lasting: Normal, first: Bool[Array, "*n"], look: tuple[Array, Array], ego: Int[Array, ""]
    ) -> NumberThoughts:
        features, looked = look
        if not self.config.parts.intra:
            thoughts = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, features.shape[:-2] + leaf.shape), self.opened()[0])
        x = jnp.concatenate([features, jax.nn.one_hot(thoughts.before, self.game.actions)], -1)
        there = first[..., None] | (thoughts.before >= 0)  # of who left nothing more is read
        core, said = remember(self.goals.earlier, thoughts.core, x, there)
        mean, log_variance = jnp.split(self.goals.to_belief(said), 2, -1)
        now = Normal(mean, jnp.exp(-jnp.clip(log_variance, -SPREAD, SPREAD)))
        now = now.after_evidence(lasting.mean, lasting.precision - 1, there)  # the standard normal is in what is inferred
        held = Normal(thoughts.mean, thoughts.precision)
        now = jax.tree.map(lambda new, old: jnp.where(there[..., None], new, old), now, held)
        flat = looked.reshape(-1, looked.shape[-1])
        told = jnp.concatenate([now.mean.reshape(len(flat), -1), *_seats(self.game, len(flat) // (self.game.seats - 1), ego)], -1)
        odds = jax.nn.log_softmax(self.goals.acts.decide(flat, told)).reshape(*x.shape[:-1], -1)
        return NumberThoughts(core, thoughts.before, now.mean, now.precision, odds, thoughts.watched)

    def told(self, thoughts: NumberThoughts) -> Float[Array, "*n told"]:
        mean = thoughts.mean
        return mean.reshape(*mean.shape[:-2], mean.shape[-2] * mean.shape[-1])

    def foreseen(self, thoughts: NumberThoughts) -> Float[Array, "*n P actions"]:
        return jnp.exp(thoughts.odds)

    def drawn(self, thoughts: NumberThoughts, tilt: Array | None, key: PRNGKeyArray) -> Float[Array, "*n P size"]:
        return thoughts.mean + jax.random.normal(key, thoughts.mean.shape) / jnp.sqrt(thoughts.precision)

    def given(self, views: Num[Array, "n P ..."], chosen: Array, ego: Int[Array, ""]) -> Float[Array, "n P actions"]:
        return _given(self.goals.acts, self.game, views, chosen.reshape(-1, chosen.shape[-1]), ego)

    def losses(
        self, rows: Watched, start: NumberThoughts, lasting: Normal, key: PRNGKeyArray, progress: Array
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """Those of `goals.losses`, on the first episode that begins in these rows, if any does, as far as they show it."""
        sequences = episodes_of(self.game, rows, min(self.config.goals.steps, len(rows.first)))
        return goals.losses(self.goals, sequences, key, progress)


def _told_apart(acts: OpponentModel) -> OpponentModel:
    """The same with codes that make a difference from the start. As long as all codes mean the same, none learns to mean
    anything: with small first weights two kinds of partners were never told apart."""
    acts = eqx.tree_at(lambda a: a.head.weight, acts, 10 * acts.head.weight)
    if acts.behind.tell is None:
        return acts
    return eqx.tree_at(lambda a: a.behind.tell.weight, acts, 10 * acts.behind.tell.weight)


Foresight = Coded | Numbered


def make(config: HOP, game: Game, random: np.random.Generator) -> Foresight:
    """As the preset and the settings say."""
    numbers = config.parts.goals == "learned" and (config.parts.numbers or config.goals.kind == "vae")
    return Numbered.make(config, game, random) if numbers else Coded.make(config, game, random)


def started(mind: Foresight, fitted: Mapping[str, Any]) -> Foresight:
    """The mind with what was learned alone, by name of the module (`fit`), where it has such a part."""
    fits, of = fitted.get("goals"), mind.config.parts.goals
    if isinstance(mind, Numbered):
        return mind if fits is None else Numbered(same_shape(mind.goals, fits, "goals"), mind.game, mind.config)
    if of == "none":
        acts = fitted.get("opponent_model")
        return mind if acts is None else eqx.tree_at(lambda m: m.acts, mind, same_shape(mind.acts, acts, "opponent_model"))
    if fits is None:
        return mind
    if of == "learned":
        parts = lambda m: (m.acts, m.codebook, m.prior)  # noqa: E731
        everywhere = jnp.broadcast_to(fits.codebook, (len(mind.codebook), *fits.codebook.shape))
        return eqx.tree_at(parts, mind, same_shape(parts(mind), (fits.acts, everywhere, fits.prior), "goals"))
    known = len(fits.prior)  # the goals of the game; what they do not cover is not in the fit
    require(
        fits.to_code is None and known == len(mind.game.goals),
        f"{mind.config.preset} has the goals of the game, and the fit has codes: fit with --goals.kind manual",
    )
    prior = mind.prior.at[:known].set(fits.prior)
    wider = jax.tree.map(lambda new, old: new.at[tuple(slice(n) for n in old.shape)].set(old), mind.acts, fits.acts)
    return Coded(wider, mind.codebook.at[..., mind.count :].set(0.0), prior, mind.game, mind.config)  # all places alike


def through(
    mind: Foresight,
    thoughts: Any,
    lasting: Any,
    observation: Num[Array, "T n ..."],
    happened: Happened,
    meeting: Bool[Array, "T n"],
    ego: Int[Array, ""],
) -> tuple[Any, Any, Any]:
    """(thoughts at each of T moments, lasting memory before and after) from what was thought before the first.

    `happened[t]` is what led to moment t. As `Policy.step` does it: take in, forget what is over, think on.
    """
    steps, games = happened.first.shape
    look = mind.look(observation.reshape(steps * games, *observation.shape[2:]), ego)
    look = jax.tree.map(lambda leaf: leaf.reshape(steps, games, *leaf.shape[1:]), look)
    empty, unknown = mind.opened()

    def forget(where: Array, fresh: Any, held: Any) -> Any:
        return jax.tree.map(
            lambda new, old: jnp.where(where.reshape(-1, *(1,) * new.ndim), jnp.broadcast_to(new, old.shape), old), fresh, held
        )

    def step(carry: tuple[Any, Any], row: tuple[Any, ...]) -> tuple[tuple[Any, Any], Any]:
        happened, meeting, look = row
        thoughts, lasting = mind.conclude(*carry, happened)
        thoughts, lasting = forget(happened.first, empty, thoughts), forget(meeting, unknown, lasting)
        thoughts = mind.think(thoughts, lasting, happened.first, look, ego)
        return (thoughts, lasting), thoughts

    (_, after), at_each = jax.lax.scan(step, (thoughts, lasting), (happened, meeting, look))
    return at_each, lasting, after


def episodes_of(game: Game, rows: Watched, length: int) -> Sequences:
    """The first episode of each game that begins in these rows, of each partner, as far as they show `length` steps of it."""
    steps, games = rows.first.shape
    begin = jnp.argmax(rows.first, 0)
    place = begin[None] + jnp.arange(length)[:, None]  # [length, n]
    inside = (place < steps) & rows.first.any(0)[None]
    place = jnp.minimum(place, steps - 1)
    column = jnp.broadcast_to(jnp.arange(games)[None], place.shape)
    opened = jnp.cumsum(rows.first, 0)[place, column]
    inside &= opened == opened[:1]
    partners = game.seats - 1

    def of_partners(x: Array) -> Array:
        """[length, n, P, ...] as [n P, length, ...]."""
        return jnp.moveaxis(x, 0, 2).reshape(games * partners, length, *x.shape[3:])

    views = _views(game, rows.observation[place, column].reshape(length * games, *rows.observation.shape[2:]), scaled=False)
    seat = jnp.tile((rows.ego + 1 + jnp.arange(partners)) % game.seats, games)
    return Sequences(
        view=of_partners(views.reshape(length, games, partners, *views.shape[1:])),
        action=of_partners(rows.action[place, column][..., 1:]),
        reward=of_partners(rows.reward[place, column][..., 1:]),
        value=of_partners(jnp.broadcast_to(rows.worth[place, column][..., None], (length, games, partners))),
        seen=of_partners(rows.seen[place, column] & inside[..., None]),
        label=jnp.full(games * partners, -1, jnp.int32),
        seat=seat,
        ego=jnp.broadcast_to(rows.ego, seat.shape),
    )


def partner_views(game: Game, observation: Num[Array, "n ..."]) -> Num[Array, "n P ..."]:
    """What each partner sees, as far as our observation shows it."""
    inner = len(game.observation_shape)
    views = [seen_from(observation, place, game.seats, game.shown_of_each, inner) for place in range(1, game.seats)]
    return jnp.stack(views, 1)


def _views(game: Game, observation: Num[Array, "n ..."], scaled: bool = True) -> Num[Array, "m ..."]:
    """The same as rows of moments and partners."""
    views = partner_views(game, observation)
    flat = views.reshape(views.shape[0] * views.shape[1], *views.shape[2:])
    return game.scaled(flat) if scaled else flat


def _seats(game: Game, moments: int, ego: Int[Array, ""]) -> list[Float[Array, "m A"]]:
    """Who is meant and through whose eyes, where a view does not say so; rows are moments and partners."""
    partner = jnp.tile((ego + 1 + jnp.arange(game.seats - 1)) % game.seats, moments)
    return tell_seats(game, partner, jnp.broadcast_to(ego, partner.shape))


def _given(
    acts: OpponentModel, game: Game, views: Num[Array, "n P ..."], goal: Float[Array, "m size"], ego: Int[Array, ""]
) -> Float[Array, "n P actions"]:
    flat = game.scaled(views).reshape(-1, *game.observation_shape)
    told = jnp.concatenate([goal, *_seats(game, len(views), ego)], -1)
    return jax.nn.softmax(acts.decide(acts.look(flat), told)).reshape(*views.shape[:2], -1)
