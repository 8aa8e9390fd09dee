"""What a step leads to, in the ego frame: P(next observation, reward, end | observation, joint action).

On a board every action is taken where the player stands, so the joint action enters as planes: who does what on which cell.
Where an observation does not say who is who, it enters by seat, and whose eyes are used is told beside it.
Entries of an observation that are 0 or 1 are predicted as probabilities, all others by how much they change.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, Num

from otherminds.config import WorldModel as Config
from otherminds.config import require
from otherminds.games.base import Game, is_board
from otherminds.games.ego import from_ego, seat_numbers, tell_seats, to_ego
from otherminds.losses import masked_mean
from otherminds.networks import Cells, Conditioned, Convolution, Dense, Torso

SURE = 4.0  # logits with which a board is expected to stay as it is, before anything is learned


class Prediction(eqx.Module):
    """What is expected of a step."""

    logits: Float[Array, "n ..."]  # of entries that are 0 or 1; of others, their next value, scaled
    reward: Float[Array, " n"]
    end: Float[Array, " n"]  # logit of: nothing of value follows for the ego
    hidden: Float[Array, "n ..."]  # the state behind it

    def observation(self, game: Game) -> Float[Array, "n ..."]:
        """Expected values of the next observation, scaled: probabilities where entries are 0 or 1. Never rounded."""
        return jnp.where(_like(binary(game), self.logits), jax.nn.sigmoid(self.logits), self.logits)

    def exact(self, game: Game, truth: Num[Array, "n ..."]) -> Bool[Array, "..."]:
        """Whether the next observation is foreseen in every entry, up to rounding: one for each of the leading axes."""
        right = jnp.abs(self.observation(game) - game.scaled(truth)) < 0.5
        return right.all(tuple(range(self.reward.ndim, right.ndim)))


def binary(game: Game) -> Bool[Array, "..."]:
    """Which entries of an observation are 0 or 1: counts that need no scale."""
    counts = jnp.issubdtype(game.observation_dtype, jnp.unsignedinteger)
    return jnp.broadcast_to(jnp.asarray(counts & (game.observation_scale == 1)), game.observation_shape)


def _like(x: Array, y: Array) -> Array:
    """`x` with as many leading axes as `y` has more."""
    return x.reshape((1,) * (y.ndim - x.ndim) + x.shape)


class WorldModel(eqx.Module):
    """Encoder, one step of the dynamics, decoder and the two heads.

    On a board every player is drawn by the same network, which sees the board as that player does: its own plane, the ego's, and
    the sum of all. So what is learned of one player holds for each, and the ego's own copy draws the planes that show no player.
    """

    encoder: Cells | Torso
    act: Conditioned
    spread: Convolution | Dense
    decoder: Dense
    told: Conditioned
    settle: Dense  # what comes of it: a hunt takes the right action, the prey and enough hunters
    heads: Dense  # reward, end and, on a board, whether the player leaves it
    everywhere: Dense | None  # on a board, what each cell adds to reward and end, where that may be of other cells than one's own
    game: Game = eqx.field(static=True)
    on_board: bool = eqx.field(static=True)
    latent: bool = eqx.field(static=True)  # several steps ahead it goes on from its hidden state, not from what it would see

    @staticmethod
    def make(config: Config, game: Game, random: np.random.Generator) -> "WorldModel":
        for name in ("consistency", "contrastive"):
            require(
                config.kind == "latent" or getattr(config, name) == 0,
                f"--world_model.{name} is of hidden states: --world_model.kind latent",
            )
        require(not game.continuous, f"{game.id} has continuous actions: the world model takes discrete ones")
        given, planes = len(config.plane_weights), game.observation_shape[0]
        require(given in (0, planes), f"--world_model.plane-weights has {given} numbers, and {game.id} shows {planes} planes")
        joint = game.seats * game.actions + seat_numbers(game)
        on_board = is_board(game)
        if on_board:
            size, things = config.channels, game.observation_shape[0] - game.seats
            encoder: Cells | Torso = Cells.make(random, 3 + things, size, config.repeats)
            spread: Convolution | Dense = Convolution.make(random, size, size)
            seen, outputs = 3 * game.actions, 2 + things  # the player, whether it is gone, and what shows no player
        else:
            size, outputs = config.hidden[-1], int(np.prod(game.observation_shape))
            encoder, spread = Torso.make(random, game.observation_shape, config.hidden, "relu"), Dense.make(random, size, size)
            seen = joint
        return WorldModel(
            encoder=encoder,
            act=Conditioned.make(random, size, seen, size, config.action_input),
            spread=spread,
            decoder=Dense.make(random, size, outputs, 0.1),
            told=Conditioned.make(random, size, joint + (game.actions if on_board else 0), size, "concat"),
            settle=Dense.make(random, size, size),
            heads=Dense.make(random, size, 3 if on_board else 2, 0.1),
            everywhere=Dense.make(random, size, 2, 0.1) if on_board and game.pays_everywhere else None,
            game=game,
            on_board=on_board,
            latent=config.kind == "latent",
        )

    def encode(self, observation: Float[Array, "n ..."]) -> Float[Array, "n ..."]:
        """The state behind an observation (scaled); on a board, features of each cell for each player."""
        if not self.on_board:
            return self.encoder(observation)
        planes = jnp.moveaxis(observation, -3, -1)
        players, things = planes[..., : self.game.seats], planes[..., self.game.seats :]
        of_each = self._of_each(players[..., None])  # [n, A, H, W, 3]
        beside = jnp.broadcast_to(_per(things), (*of_each.shape[:-1], things.shape[-1]))
        return self.encoder(jnp.concatenate([of_each, beside], -1))

    def _of_each(self, x: Float[Array, "n H W A k"]) -> Float[Array, "n A H W 3*k"]:
        """What stands beside each other for a player: its own, the ego's, and the sum of all."""
        own = jnp.moveaxis(x, -2, -4)
        ego, everyone = (jnp.broadcast_to(_per(part), own.shape) for part in (x[..., 0, :], x.sum(-2)))
        return jnp.concatenate([own, ego, everyone], -1)

    def joint(self, action: Int[Array, "n A"], ego: Int[Array, " n"] | None) -> Float[Array, "n joint"]:
        """Who does what, where there is no board: in ego order, as the players stand in an observation that says who is who;
        where it does not, by seat, and whose eyes are used."""
        told = tell_seats(self.game, ego)
        if told and ego is not None:
            action = jax.vmap(from_ego)(action, ego)
        played = jax.nn.one_hot(action, self.game.actions)  # nothing for a player that is gone
        return jnp.concatenate([played.reshape(len(played), -1), *told], -1)

    def step(
        self,
        hidden: Float[Array, "n ..."],
        observation: Float[Array, "n ..."],
        action: Int[Array, "n A"],
        ego: Int[Array, " n"] | None = None,
    ) -> tuple[Float[Array, "n ..."], Float[Array, " n"], Float[Array, " n"], Float[Array, "n A"]]:
        """(state behind what follows, reward, logit of the end, logits of who leaves the board).

        The observation says where on the board each player acts; one network reads for each what happens on its own cell.
        """
        if not self.on_board:
            joint = self.joint(action, ego)
            acted = self.act(hidden, joint)
            reward, end = self._settled(acted, joint)
            return jax.nn.relu(self.spread(acted)), reward, end, jnp.zeros(action.shape)
        told = jax.nn.one_hot(action, self.game.actions)  # nothing for a player that is gone
        players = jnp.moveaxis(observation[..., : self.game.seats, :, :], -3, -1)  # [n, H, W, A]
        placed = players[..., None] * told[..., None, None, :, :]
        acted = self.act(hidden, self._of_each(placed))
        here = jnp.einsum("nkhwc,nhwk->nkc", acted, players)
        beside = jnp.einsum("nhwja,nhwk->nkja", placed, players)  # who does what on the cell of each
        beside = jnp.stack([to_ego(beside[:, k], k, -2) for k in range(self.game.seats)], 1)
        joint = jnp.concatenate([beside.reshape(*here.shape[:-1], -1), beside.sum(-2)], -1)
        reward, end, leaves = self._settled(here, joint)
        reward, end = reward[:, 0], end[:, 0]
        if self.everywhere is not None:
            elsewhere = self.everywhere(acted[:, 0]).sum((-3, -2))
            reward, end = reward + elsewhere[..., 0], end + elsewhere[..., 1]
        return jax.nn.relu(self.spread(acted)), reward, end, leaves

    def _settled(self, features: Float[Array, "*n size"], joint: Float[Array, "*n joint"]) -> Float[Array, "heads *n"]:
        return jnp.moveaxis(self.heads(jax.nn.relu(self.settle(self.told(features, joint)))), -1, 0)

    def decode(
        self, hidden: Float[Array, "n ..."], before: Float[Array, "n ..."], leaves: Float[Array, "n A"]
    ) -> Float[Array, "n ..."]:
        """Logits (or values) of the observation that a state shows; what is seen now is expected to stay."""
        drawn, players = self.decoder(hidden), self.game.seats
        stays = jnp.where(_like(binary(self.game), before), SURE * (2 * before - 1), before)
        if not self.on_board:
            return stays + drawn.reshape(before.shape)
        was = before[..., :players, :, :]
        gone = leaves + (drawn[..., 1] * was).sum((-2, -1)) + SURE * (1 - jnp.clip(was.sum((-2, -1)), 0, 1))
        standing = _one_place(stays[..., :players, :, :] + drawn[..., 0], gone)
        things = stays[..., players:, :, :] + jnp.moveaxis(drawn[..., 0, :, :, 2:], -1, -3)
        return jnp.concatenate([standing, things], -3)

    def __call__(
        self,
        observation: Float[Array, "n ..."],
        action: Int[Array, "n A"],
        hidden: Float[Array, "n ..."] | None = None,
        ego: Int[Array, " n"] | None = None,
    ) -> Prediction:
        """`hidden` is the state behind the observation, if it is known from the step before; `ego` as in `Step`."""
        behind = self.encode(observation) if hidden is None else hidden
        hidden, reward, end, leaves = self.step(behind, observation, action, ego)
        return Prediction(self.decode(hidden, observation, leaves), reward, end, hidden)


def _one_place(cells: Float[Array, "n A H W"], gone: Float[Array, "n A"]) -> Float[Array, "n A H W"]:
    """Logits of where a player stands, such that it stands on one cell or on none."""
    flat = jnp.concatenate([cells.reshape(*gone.shape, -1), gone[..., None]], -1)
    log = jnp.minimum(jax.nn.log_softmax(flat)[..., :-1], -1e-6)
    return (log - jnp.log(-jnp.expm1(log))).reshape(cells.shape)


def _per(x: Float[Array, "n H W k"]) -> Float[Array, "n 1 H W k"]:
    """With an axis for players."""
    return x[..., None, :, :, :]


class Step(eqx.Module):
    """Steps to learn from, of the ego."""

    observation: Num[Array, "n ..."]
    action: Int[Array, "n A"]  # ego order, -1 for a player that was absent
    next_observation: Num[Array, "n ..."]
    target: Float[Array, " n"]  # of the reward head
    end: Bool[Array, " n"]
    present: Bool[Array, " n"]  # steps at which the ego was absent teach nothing
    ego: Int[Array, " n"] | None = None  # its seat; needed where an observation does not say who is who (`ego.tell_seats`)


def losses(model: WorldModel, config: Config, steps: Step) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """The sum that is minimised, and each of its terms by name."""
    game = model.game
    before, after = game.scaled(steps.observation), game.scaled(steps.next_observation)
    hidden = model.encode(before)
    later, reward, end, leaves = model.step(hidden, before, steps.action, steps.ego)
    weights = _plane_weights(config, game)

    def drawn(logits: Float[Array, "n ..."], truth: Float[Array, "n ..."]) -> Float[Array, ""]:
        apart = jnp.where(
            _like(binary(game), truth), optax.sigmoid_binary_cross_entropy(logits, truth), 0.5 * (logits - truth) ** 2
        )
        return masked_mean((apart * _like(weights, apart)).mean(tuple(range(1, apart.ndim))), steps.present)

    terms = {
        "observation": drawn(model.decode(later, before, leaves), after),
        "reward": masked_mean(0.5 * (reward - steps.target) ** 2, steps.present),
        "end": masked_mean(optax.sigmoid_binary_cross_entropy(end, steps.end * 1.0), steps.present),
    }
    factors = {"observation": 1.0, "reward": 0.0 if config.reward_target == "none" else config.reward_weight}
    factors["end"] = config.end_weight
    if config.kind == "latent":
        follows = jax.lax.stop_gradient(model.encode(after))
        terms["reconstruction"] = drawn(model.decode(hidden, jnp.full_like(before, 0.5), jnp.zeros_like(leaves)), before)
        terms["consistency"] = masked_mean(((later - follows) ** 2).mean(tuple(range(1, later.ndim))), steps.present)
        terms["contrastive"] = _contrast(later, follows, steps.present)
        factors |= {name: getattr(config, name) for name in ("reconstruction", "consistency", "contrastive")}
    return sum((factors[name] * terms[name] for name in terms), jnp.float32(0.0)), terms


def _plane_weights(config: Config, game: Game) -> Float[Array, "..."]:
    """The weight of each entry of an observation."""
    planes = game.observation_shape[0]
    given = config.plane_weights or (1.0,) * planes
    inner = (1,) * (len(game.observation_shape) - 1)
    return jnp.broadcast_to(jnp.array(given).reshape(planes, *inner), game.observation_shape)


def _contrast(later: Float[Array, "n ..."], follows: Float[Array, "n ..."], present: Bool[Array, " n"]) -> Float[Array, ""]:
    """How well what really followed is told from what followed elsewhere in the batch (van den Oord et al. 2018)."""
    left, right = (x.reshape(len(x), -1) for x in (later, follows))
    left, right = (x / (jnp.linalg.norm(x, axis=-1, keepdims=True) + 1e-6) for x in (left, right))
    likeness = jnp.where(present[None], left @ right.T / 0.1, -1e9)
    return masked_mean(-jnp.diagonal(jax.nn.log_softmax(likeness)), present)


def reward_target(
    kind: str,
    reward: Float[Array, " n"],
    value_after: Float[Array, " n"],
    returns: Float[Array, " n"],
    end: Bool[Array, " n"],
    discount: float,
) -> Float[Array, " n"]:
    """What the reward head learns."""
    if kind == "q":
        return returns
    if kind == "r+v":
        return reward + discount * jnp.where(end, 0.0, value_after)
    return reward
