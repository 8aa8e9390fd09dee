"""What partners are after: goals given by hand, or codes that are learned, good for foreseeing what partners do.

By hand, an episode is labelled with the goal that was reached in it. A learned code is read in hindsight from what is seen two
steps later and on: where a partner stands after one step is what it did in it. While a game goes on nobody knows them: the code
is then inferred from earlier steps, by a recurrent network, or by Bayes' rule over the codes (`beliefs.after_action`).
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, Num, PRNGKeyArray

from otherminds import beliefs
from otherminds.config import Goals as Config
from otherminds.config import require
from otherminds.games.base import Game, is_board
from otherminds.games.ego import seat_numbers, tell_seats
from otherminds.networks import Cells, Centred, Core, Dense, Torso, unroll
from otherminds.opponent_model import OpponentModel

SPREAD = 3.0  # bounds of a code's log-variance
LATER = 2  # steps between one that a code is used on and the first that it is read from


class Sequences(eqx.Module):
    """Episodes of partners, from their beginning, as somebody else saw them."""

    view: Num[Array, "n T ..."]  # the partner's own, as far as the one who looks can see it
    action: Int[Array, "n T"]
    reward: Float[Array, "n T"]  # the partner's
    value: Float[Array, "n T"]  # what the one who looks earns from here on
    seen: Bool[Array, "n T"]  # steps at which both are there
    label: Int[Array, " n"]  # the goal by hand; -1 for none that is known
    seat: Int[Array, " n"] | None = None  # the partner's; like `ego`, needed where a view does not say who is who
    ego: Int[Array, " n"] | None = None  # whose eyes it is seen through, by seat

    def seats(self, game: Game) -> list[Float[Array, "n T A"]]:
        """Who is meant and through whose eyes, at every step, where that must be told beside the view (`ego.tell_seats`)."""
        everywhere = (None if x is None else jnp.broadcast_to(x[:, None], self.seen.shape) for x in (self.seat, self.ego))
        return tell_seats(game, *everywhere)


class Eye(eqx.Module):
    """From the view of a partner to features: of its own cell and of the board as a whole."""

    torso: Cells | Centred | Torso
    out: Dense
    on_board: bool = eqx.field(static=True)

    @staticmethod
    def make(config: Config, game: Game, random: np.random.Generator) -> "Eye":
        on_board, shape, inputs = is_board(game), game.observation_shape, config.hidden[-1]
        if not on_board:
            told = 2 * seat_numbers(game)
            flat = (int(np.prod(shape)) + told,) if told else shape
            torso: Cells | Centred | Torso = Torso.make(random, flat, config.hidden, "relu")
        elif config.acts.torso == "centred":
            torso = Centred.make(random, shape, game.seats, config.hidden)
        else:
            torso, inputs = Cells.make(random, shape[0], config.channels, config.repeats), 2 * config.channels
        return Eye(torso, Dense.make(random, inputs, config.features), on_board)

    def __call__(self, view: Float[Array, "*n"], seats: Sequence[Float[Array, "*m A"]] = ()) -> Float[Array, "*m features"]:
        """`seats` are what must be told beside the view (`Sequences.seats`)."""
        if not self.on_board:
            flat = jnp.concatenate([view.reshape(*seats[0].shape[:-1], -1), *seats], -1) if seats else view
            return jax.nn.relu(self.out(self.torso(flat)))
        planes = jnp.moveaxis(view, -3, -1)
        if isinstance(self.torso, Centred):
            flat = planes.reshape(-1, *planes.shape[-3:])
            return jax.nn.relu(self.out(self.torso(flat))).reshape(*planes.shape[:-3], -1)
        cells = self.torso(planes)
        here = (cells * planes[..., :1]).sum((-3, -2))
        return jax.nn.relu(self.out(jnp.concatenate([here, cells.mean((-3, -2))], -1)))


class Painter(eqx.Module):
    """Draws the state that a code, and what is told beside it, stand for, given where things stand now."""

    torso: Cells | Torso
    out: Dense
    on_board: bool = eqx.field(static=True)

    @staticmethod
    def make(config: Config, game: Game, told: int, random: np.random.Generator) -> "Painter":
        shape = game.observation_shape
        if is_board(game):
            torso: Cells | Torso = Cells.make(random, shape[0] + told, config.channels, config.repeats)
            return Painter(torso, Dense.make(random, config.channels, shape[0], 0.1), True)
        size = int(np.prod(shape))
        torso = Torso.make(random, (size + told,), config.hidden, "relu")
        return Painter(torso, Dense.make(random, config.hidden[-1], size, 0.1), False)

    def __call__(self, view: Float[Array, "n ..."], told: Float[Array, "n told"]) -> Float[Array, "n ..."]:
        """Logits of entries between 0 and 1."""
        if not self.on_board:
            flat = jnp.concatenate([view.reshape(len(view), -1), told], -1)
            return self.out(self.torso(flat)).reshape(view.shape)
        planes = jnp.moveaxis(view, -3, -1)
        everywhere = jnp.broadcast_to(told[:, None, None], (*planes.shape[:-1], told.shape[-1]))
        return jnp.moveaxis(self.out(self.torso(jnp.concatenate([planes, everywhere], -1))), -1, -3)


class Belief(eqx.Module):
    """What is thought of a code: the odds of each, or a normal distribution. The other part is empty."""

    logits: Float[Array, "*n codes"]
    mean: Float[Array, "*n size"]
    log_variance: Float[Array, "*n size"]


class Goals(eqx.Module):
    """Hindsight, inference, and what both are for: the actions of a partner given a code."""

    eye: Eye
    later: Core | None  # reads a trajectory backwards; one later state needs none
    to_code: Dense | None  # none where goals are given by hand
    codebook: Float[Array, "codes size"] | None  # a row for each code; goals by hand are the rows of a unit matrix
    prior: Float[Array, " codes"]  # logits of how often each code is meant; none without a book
    earlier: Core
    to_belief: Dense
    acts: OpponentModel
    paints: Painter | None
    game: Game = eqx.field(static=True)
    config: Config = eqx.field(static=True)

    @staticmethod
    def make(config: Config, game: Game, random: np.random.Generator) -> "Goals":
        require(
            config.acts.goal_input != "concat" or config.acts.torso == "centred" or not is_board(game),
            "--goals.acts.goal-input is concat, and every code is tried on one look at the cells: film, or generated",
        )
        manual = config.kind == "manual"
        require(not manual or bool(game.goals), f"{game.id} names no goals: --goals.kind vq, or vae")
        require(
            not manual or config.trained_by == "action",
            f"goals by hand are read, not drawn: --goals.trained-by action, not {config.trained_by}",
        )
        extra = {"trajectory": game.actions + 1, "state": 0, "state+time+reward": 2}[config.encodes]
        remembers = config.encodes == "trajectory" and not manual
        of_later = config.features + extra
        discrete = config.kind != "vae"
        codes, size = (len(game.goals),) * 2 if manual else (config.codes, config.size)
        drawn = np.eye(codes) if manual else random.standard_normal((codes, size))
        told = size + 2 * seat_numbers(game)
        raw = config.features if remembers else of_later
        return Goals(
            eye=Eye.make(config, game, random),
            later=Core.make(random, "gru", of_later, config.features) if remembers else None,
            to_code=None if manual else Dense.make(random, raw, size * (1 if discrete else 2), 1.0),
            codebook=jnp.asarray(drawn, jnp.float32) if discrete else None,
            prior=jnp.zeros(codes if discrete else 0),
            earlier=Core.make(random, "gru", config.features + game.actions, config.features),
            to_belief=Dense.make(random, config.features, codes if discrete else 2 * size, 0.1),
            acts=OpponentModel.make(config.acts, game, told, random),
            paints=Painter.make(config, game, told, random) if config.trained_by != "action" else None,
            game=game,
            config=config,
        )

    @property
    def size(self) -> int:
        """How many numbers a code has."""
        return self.config.size if self.codebook is None else self.codebook.shape[-1]

    def look(self, rows: Sequences) -> Float[Array, "n T features"]:
        """Features of every view, which hindsight and inference read."""
        return self.eye(self.game.scaled(rows.view), rows.seats(self.game))

    # --- hindsight ---

    def hindsight(self, rows: Sequences, seen: Float[Array, "n T features"]) -> tuple[Float[Array, "n T size"], Array]:
        """(raw code of each step, from those `LATER` and on; whether there are any)."""
        config = self.config
        steps = rows.seen.shape[1]
        target, any_later = targets(rows, config.horizon, config.choice)
        if self.to_code is None:
            code = jax.nn.one_hot(rows.label, self.size)[:, None]
            return jnp.broadcast_to(code, (*rows.seen.shape, self.size)), any_later & (rows.label >= 0)[:, None]
        if self.later is None:
            chosen = jnp.take_along_axis(seen, target[..., None], 1)
            if config.encodes == "state+time+reward":
                ahead = (target - jnp.arange(steps)[None]) / config.horizon
                chosen = jnp.concatenate([chosen, ahead[..., None], jnp.take_along_axis(rows.reward, target, 1)[..., None]], -1)
            return self.to_code(jnp.where(any_later[..., None], chosen, 0.0)), any_later
        played = jax.nn.one_hot(rows.action, self.game.actions)
        x = jnp.concatenate([seen, played, rows.reward[..., None]], -1)
        backwards = [jnp.flip(jnp.swapaxes(part, 0, 1), 0) for part in (x, rows.seen)]
        start = jnp.zeros((len(rows.seen), self.later.memory))
        memory, _ = unroll(self.later, start, backwards[0], jnp.zeros_like(backwards[1]), backwards[1])
        read = jnp.swapaxes(jnp.flip(memory, 0), 0, 1)  # after reading this step and all later ones
        after = jnp.concatenate([read[:, LATER:], jnp.zeros_like(read[:, :LATER])], 1)[:, : read.shape[1]]
        seen_later = jnp.concatenate([rows.seen[:, LATER:], jnp.zeros_like(rows.seen[:, :LATER])], 1)[:, : read.shape[1]]
        return self.to_code(after), seen_later

    def settled(self, raw: Float[Array, "*n raw"], key: PRNGKeyArray | None) -> tuple[Float[Array, "*n size"], Belief]:
        """(the code that is used, what it was drawn from). Without a key, nothing is drawn."""
        nothing = jnp.zeros((*raw.shape[:-1], 0))
        if self.codebook is None:
            mean, log_variance = jnp.split(raw, 2, -1)
            log_variance = jnp.clip(log_variance, -SPREAD, SPREAD)
            noise = jnp.zeros_like(mean) if key is None else jax.random.normal(key, mean.shape)
            return mean + jnp.exp(0.5 * log_variance) * noise, Belief(nothing, mean, log_variance)
        apart = ((raw[..., None, :] - self.codebook.reshape((1,) * (raw.ndim - 1) + self.codebook.shape)) ** 2).sum(-1)
        odds = jax.nn.softmax(-apart)
        hard = jax.nn.one_hot(odds.argmax(-1), odds.shape[-1])
        chosen = hard + odds - jax.lax.stop_gradient(odds)  # exact forwards, soft backwards
        return chosen @ self.codebook, Belief(-apart, nothing, nothing)

    # --- inference ---

    def inferred(self, rows: Sequences, seen: Float[Array, "n T features"]) -> Belief:
        """What is thought of the code at each step, from earlier ones: views up to now, actions before."""
        played = jax.nn.one_hot(rows.action, self.game.actions) * rows.seen[..., None]
        before = jnp.concatenate([jnp.zeros_like(played[:, :1]), played[:, :-1]], 1)
        x = jnp.swapaxes(jnp.concatenate([seen, before], -1), 0, 1)
        there = jnp.swapaxes(rows.seen, 0, 1)
        start = jnp.zeros((len(rows.seen), self.earlier.memory))
        _, said = unroll(self.earlier, start, x, jnp.zeros_like(there), there)
        raw = jnp.swapaxes(self.to_belief(said), 0, 1)
        nothing = jnp.zeros((*raw.shape[:-1], 0))
        if self.codebook is not None:
            return Belief(raw, nothing, nothing)
        mean, log_variance = jnp.split(raw, 2, -1)
        return Belief(nothing, mean, jnp.clip(log_variance, -SPREAD, SPREAD))

    def log_odds(self, rows: Sequences, code: Float[Array, "n T size"]) -> Float[Array, "n T actions"]:
        """Logarithms of the probabilities of each action, for whoever is after the goal of that code."""
        return self._decided(self._looked(rows), code, rows)

    def each_code(self, rows: Sequences) -> Float[Array, "n T codes actions"]:
        """The same for every code of the book."""
        assert self.codebook is not None
        looked, shape = self._looked(rows), (*rows.seen.shape, self.size)
        book = jax.lax.stop_gradient(self.codebook) if self.to_code is None else self.codebook
        return jnp.stack([self._decided(looked, jnp.broadcast_to(code, shape), rows) for code in book], 2)

    def _looked(self, rows: Sequences) -> Float[Array, "n T features"]:
        view = self.game.scaled(rows.view)
        return self.acts.look(view.reshape(-1, *view.shape[2:])).reshape(*rows.seen.shape, -1)

    def _decided(
        self, looked: Float[Array, "n T features"], code: Float[Array, "n T size"], rows: Sequences
    ) -> Float[Array, "n T actions"]:
        told = jnp.concatenate([code, *rows.seats(self.game)], -1)
        flat = self.acts.decide(looked.reshape(-1, looked.shape[-1]), told.reshape(-1, told.shape[-1]))
        return jax.nn.log_softmax(flat).reshape(*code.shape[:2], -1)


def targets(rows: Sequences, horizon: int, choice: str) -> tuple[Int[Array, "n T"], Bool[Array, "n T"]]:
    """(the later step that a goal is read from, whether there is any): of the next `horizon` steps the one that is worth most or
    least to the one who looks, or the last."""
    steps = jnp.arange(rows.seen.shape[1])
    ahead = steps[None, :] - steps[:, None]
    allowed = ((ahead >= LATER) & (ahead <= horizon))[None] & rows.seen[:, None, :]
    worth = {"optimistic": rows.value, "conservative": -rows.value, "last": jnp.zeros_like(rows.value)}[choice]
    score = jnp.where(allowed, worth[:, None, :] + 1e-4 * steps[None, None, :], -jnp.inf)  # of equals, the later
    return score.argmax(-1), allowed.any(-1)


def losses(
    model: Goals, rows: Sequences, key: PRNGKeyArray, progress: Float[Array, ""]
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """What is minimised, and each of its terms. `progress` goes from 0 to 1 in the course of learning.

    One code stands for a whole episode. With a book of codes the likelihood of what a partner did is summed over all of them, so
    nothing is drawn; what that makes of an episode is what hindsight and inference, which read less, learn to tell. With numbers
    for codes, hindsight proposes them, and what it says beyond its prior is paid for, once an episode.
    """
    config, game = model.config, model.game
    now_key, code_key = jax.random.split(key)
    seen = model.look(rows)
    raw, any_later = model.hindsight(rows, seen)
    usable = rows.seen & any_later
    counts = usable.any(1)
    now = jax.random.categorical(now_key, jnp.where(usable, 0.0, -1e9))  # a step of each episode that others follow

    def at_now(x: Array) -> Array:
        return jnp.take_along_axis(x, now.reshape(-1, 1, *(1,) * (x.ndim - 2)), 1)[:, 0]

    by_hand = model.to_code is None
    thought = model.inferred(rows, seen if by_hand else jax.lax.stop_gradient(seen))  # else hindsight teaches the eye to see
    played = jnp.maximum(rows.action, 0)[..., None]
    steps, used = jnp.maximum(rows.seen.sum(), 1), jnp.maximum(usable.sum(), 1)

    def log_likelihood(code: Float[Array, "n T size"]) -> Float[Array, "n T"]:
        return jnp.take_along_axis(model.log_odds(rows, code), played, -1)[..., 0] * rows.seen

    def drawn(code: Float[Array, "n size"]) -> Float[Array, " n"]:
        """Log-likelihood of the later state of that step."""
        assert model.paints is not None
        target, _ = targets(rows, config.horizon, config.choice)
        view = game.scaled(rows.view)
        later = at_now(jnp.take_along_axis(view, target.reshape(*target.shape, *(1,) * (view.ndim - 2)), 1))
        told = jnp.concatenate([code, *(at_now(seat) for seat in rows.seats(game))], -1)
        off = optax.sigmoid_binary_cross_entropy(model.paints(at_now(view), told), jnp.clip(later, 0, 1))
        return -off.reshape(len(off), -1).sum(-1) * counts

    terms = {"untold": -log_likelihood(jnp.zeros((*rows.seen.shape, model.size))).sum() / steps}
    if model.codebook is None:
        code, of_code = model.settled(at_now(raw), code_key)
        upto = rows.seen & (jnp.arange(rows.seen.shape[1])[None] <= now[:, None]) & counts[:, None]
        total = jnp.maximum(upto.sum(), 1)
        read = code if config.trained_by != "reconstruction" else jax.lax.stop_gradient(code)
        terms["action"] = -(log_likelihood(jnp.broadcast_to(read[:, None], (*rows.seen.shape, model.size))) * upto).sum() / total
        zero = jnp.zeros_like(of_code.mean)
        terms["information"] = (_divergence(of_code.mean, of_code.log_variance, zero, zero) * counts).sum() / total
        truth = jax.lax.stop_gradient((of_code.mean[:, None], of_code.log_variance[:, None]))
        terms["inference"] = (_divergence(*truth, thought.mean, thought.log_variance) * upto).sum() / total
        if config.trained_by != "action":
            terms["reconstruction"] = -drawn(code).sum() / total
        warm = jnp.clip(2 * progress, 0, 1) * config.information
        return sum((terms[name] * (warm if name == "information" else 1.0) for name in terms), jnp.float32(0.0)), terms
    each = jnp.take_along_axis(model.each_code(rows), played[..., None], -1)[..., 0] * rows.seen[..., None]  # [n, T, codes]
    prior, acted = jax.nn.log_softmax(model.prior)[None], each.sum(1)
    if by_hand:  # nothing is summed over, and episodes without a label teach nothing of goals
        whole, labelled = jax.nn.one_hot(rows.label, model.size), rows.seen & (rows.label >= 0)[:, None]
        count = jnp.maximum(labelled.sum(), 1)
        terms["action"] = -(whole * (prior + acted)).sum() / count
        terms["inference"] = _miss(whole, thought.logits, labelled) / count
        return sum(terms.values(), jnp.float32(0.0)), terms
    painted = jnp.zeros((len(now), len(model.codebook)))
    if model.paints is not None:
        painted = jnp.stack([drawn(jnp.broadcast_to(code, (len(now), model.size))) for code in model.codebook], 1)
    evidence = prior + painted + (0.0 if config.trained_by == "reconstruction" else acted)
    whole = jax.lax.stop_gradient(jax.nn.softmax(evidence))
    terms["action"] = -jax.nn.logsumexp(prior + acted, -1).sum() / steps
    terms["hindsight"] = _miss(whole, model.settled(raw, None)[1].logits, usable) / used
    terms["inference"] = _miss(whole, thought.logits, rows.seen) / steps
    if config.trained_by == "action":
        return sum(terms.values(), jnp.float32(0.0)), terms
    terms["reconstruction"] = -jax.nn.logsumexp(prior + painted, -1).sum() / steps
    joint = -jax.nn.logsumexp(evidence, -1).sum() / steps
    reads = -(whole * acted).sum() / steps if config.trained_by == "reconstruction" else 0.0  # read, but not shaped by it
    return joint + reads + terms["untold"] + terms["hindsight"] + terms["inference"], terms


def _miss(whole: Float[Array, "n codes"], logits: Float[Array, "n T codes"], where: Bool[Array, "n T"]) -> Float[Array, ""]:
    """Cross-entropy of the codes of episodes, summed over the steps from which they are told."""
    return -((whole[:, None] * jax.nn.log_softmax(logits)).sum(-1) * where).sum()


def _divergence(mean: Array, log_variance: Array, other: Array, other_log_variance: Array) -> Float[Array, "*n"]:
    """Kullback-Leibler, from the first normal distribution to the other."""
    wide = jnp.exp(log_variance - other_log_variance) + (mean - other) ** 2 / jnp.exp(other_log_variance)
    return 0.5 * (wide - 1 + other_log_variance - log_variance).sum(-1)


def likelihood(each: Float[Array, "n T codes actions"], rows: Sequences) -> Float[Array, "n T codes"]:
    """Of what was done, for each code; 1 at steps that were not seen."""
    chosen = jnp.take_along_axis(each, jnp.maximum(rows.action, 0)[..., None, None], -1)[..., 0]
    return jnp.exp(jnp.where(rows.seen[..., None], chosen, 0.0))


def by_bayes(
    likely: Float[Array, "n T codes"], seen: Bool[Array, "n T"], prior: Float[Array, " codes"], switching: float = 0.0
) -> Float[Array, "n T codes"]:
    """The belief over codes before each step, from the actions before it."""

    def step(belief: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        return beliefs.after_action(belief, row[0], row[1], switching), belief

    start = jnp.broadcast_to(prior, (len(seen), len(prior)))
    return jnp.swapaxes(jax.lax.scan(step, start, (jnp.swapaxes(likely, 0, 1), jnp.swapaxes(seen, 0, 1)))[1], 0, 1)


def in_hindsight(likely: Float[Array, "n T codes"], prior: Float[Array, " codes"]) -> Float[Array, "n T codes"]:
    """The belief over codes at each step, from the actions after it alone."""
    log = jnp.log(jnp.maximum(likely, beliefs.LEAST))
    after = jnp.flip(jnp.cumsum(jnp.flip(log, 1), 1), 1) - log
    return jax.nn.softmax(jnp.log(prior).reshape(1, 1, -1) + after)
