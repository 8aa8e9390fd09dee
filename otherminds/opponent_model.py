"""What a partner will do: its distribution over actions, given what it sees, what it is after and, if we know, who it is.

Everything is in the frame of whoever is modelled: our observation is turned so that the partner comes first (`ego.seen_from`).
Where an observation does not say who is who, it stays as it is, and told beside it are the partner's seat and whose eyes it is
seen through.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from otherminds.config import OpponentModel as Config
from otherminds.config import PartnerNetwork
from otherminds.games.base import Game, is_board
from otherminds.games.ego import seat_numbers, tell_seats
from otherminds.losses import masked_mean
from otherminds.networks import Cells, Centred, Conditioned, Dense, Torso


class OpponentModel(eqx.Module):
    """Logits of a partner's next action. `told` is what is known beside its view: goal, identity, seats."""

    torso: Cells | Centred | Torso
    behind: Conditioned
    head: Dense
    on_board: bool = eqx.field(static=True)
    everywhere: bool = eqx.field(static=True)  # what is told is told to every cell

    @staticmethod
    def make(config: PartnerNetwork, game: Game, told: int, random: np.random.Generator) -> "OpponentModel":
        """`told` is how many numbers are told beside the view."""
        on_board, shape = is_board(game), game.observation_shape
        everywhere = on_board and config.torso == "cells" and config.goal_input == "concat"
        features = config.hidden[-1]
        if not on_board:
            torso: Cells | Centred | Torso = Torso.make(random, shape, config.hidden, "relu")
        elif config.torso == "centred":
            torso = Centred.make(random, shape, game.seats, config.hidden, config.others == "apart")
        else:
            torso = Cells.make(random, shape[0] + (told if everywhere else 0), config.channels, config.repeats)
            features = config.channels
        behind = Conditioned.make(random, features, told, config.hidden[-1], config.goal_input)
        return OpponentModel(torso, behind, Dense.make(random, config.hidden[-1], game.actions, 0.01), on_board, everywhere)

    def __call__(self, view: Float[Array, "n ..."], told: Float[Array, "n told"]) -> Float[Array, "n actions"]:
        """`view` is the partner's own, scaled (`Game.scaled`)."""
        return self.decide(self.look(view, told), told)

    def look(self, view: Float[Array, "n ..."], told: Float[Array, "n told"] | None = None) -> Float[Array, "n features"]:
        """Features of the view; where what is told comes in behind them alone, they hold whatever is told."""
        if not self.on_board:
            return self.torso(view)
        planes = jnp.moveaxis(view, -3, -1)
        if isinstance(self.torso, Centred):
            return self.torso(planes)
        own = planes[..., :1]
        if self.everywhere:
            assert told is not None
            spread = jnp.broadcast_to(told[..., None, None, :], (*planes.shape[:-1], told.shape[-1]))
            planes = jnp.concatenate([planes, spread], -1)
        return (self.torso(planes) * own).sum((-3, -2))  # the features of the cell the partner stands on

    def decide(self, features: Float[Array, "n features"], told: Float[Array, "n told"]) -> Float[Array, "n actions"]:
        return self.head(self.behind(features, told))

    def decide_each(self, features: Float[Array, "n features"], told: Float[Array, "k told"]) -> Float[Array, "n k actions"]:
        """The same for every one of several things told."""
        return self.head(self.behind.each(features, told))


def told_size(config: Config, game: Game, goals: int, identities: int) -> int:
    """How many numbers are told beside a view."""
    return (goals if config.goal else 0) + (identities if config.identity else 0) + 2 * seat_numbers(game)


def tell(
    config: Config,
    game: Game,
    seat: Int[Array, " n"],
    ego: Int[Array, " n"],
    goal: Float[Array, "n goals"],
    identity: Float[Array, "n identities"],
) -> Float[Array, "n told"]:
    """What is told beside a view of the partner in `seat`, seen through the eyes of `ego`.

    A goal or identity that is not known is all zeros.
    """
    parts = [goal] if config.goal else []
    parts += [identity] if config.identity else []
    parts += tell_seats(game, seat, ego)
    return jnp.concatenate(parts, -1) if parts else jnp.zeros((len(seat), 0))


def loss(
    logits: Float[Array, "*n actions"], action: Int[Array, "*n"], present: Bool[Array, "*n"]
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """Cross-entropy over steps at which the partner was there: one who left does not "stay"."""
    log = jax.nn.log_softmax(logits)
    chosen = jnp.take_along_axis(log, jnp.maximum(action, 0)[..., None], -1)[..., 0]
    cross_entropy = masked_mean(-chosen, present)
    hit = masked_mean((logits.argmax(-1) == action) * 1.0, present)
    return cross_entropy, {"cross_entropy": cross_entropy, "top_1": hit}
