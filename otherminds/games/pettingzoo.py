"""Games of PettingZoo, and of all that speaks its interface, brought in: `pettingzoo:MODULE` or `pettingzoo:MODULE:ATTRIBUTE`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

import numpy as np

from otherminds.config import BadInput
from otherminds.games.base import Game, Kind, OthersOrder
from otherminds.games.host import HostGames
from otherminds.games.table import Layout, Table


def make(name: str, options: Mapping[str, Any]) -> "PettingZooGame":
    """The game that `name` stands for; `options` go to its constructor.

    `sisl.pursuit` is the newest `pettingzoo.sisl.pursuit_v*`; `my_package.my_module` is any module with a `parallel_env`;
    `MODULE:ATTRIBUTE` names another function or class that gives a ParallelEnv. It is opened once, to look at its spaces.
    """
    written = repr(sorted(options.items()))
    if (name, written) not in _LAYOUTS:
        table = Table(name, options)
        table.close()
        _LAYOUTS[name, written] = table.layout
    return PettingZooGame(name, written, dict(options), _LAYOUTS[name, written])


_LAYOUTS: dict[tuple[str, str], Layout] = {}
"""Of the games made so far: opening one can take long, as StarCraft does."""


@dataclass(frozen=True)
class PettingZooGame(Game):
    """A game whose steps are Python, so it has no state that could be compiled: `open` it, or let `rollout` do so."""

    name: str
    written: str  # the options in writing, since a game that is a static argument must be hashable and they need not be
    options: dict[str, Any] = field(compare=False, repr=False)
    layout: Layout = field(compare=False, repr=False)

    family: ClassVar[str] = "pettingzoo"
    on_host: ClassVar[bool] = True
    others_order: ClassVar[OthersOrder] = "unknown"
    truncates: ClassVar[bool] = True

    @property
    def kind(self) -> Kind:
        return "mixed"  # PettingZoo does not say: the kind that promises nothing

    @property
    def symmetric(self) -> bool:
        return False

    @property
    def seats(self) -> int:
        return len(self.layout.agents)

    @property
    def seat_names(self) -> tuple[str, ...]:
        """What the game itself calls its agents."""
        return tuple(str(agent) for agent in self.layout.agents)

    @property
    def continuous(self) -> bool:
        return self.layout.continuous

    @property
    def action_names(self) -> tuple[str, ...]:
        return tuple(f"{'dimension' if self.continuous else 'action'}_{number}" for number in range(self.layout.actions))

    @property
    def observation_shape(self) -> tuple[int, ...]:
        return self.layout.observation_shape

    @property
    def observation_dtype(self) -> np.dtype:
        return self.layout.observation_dtype

    @property
    def observation_scale(self) -> np.ndarray:
        return self.layout.observation_scale

    def open(self, games: int, workers: int, entropy: Sequence[int]) -> HostGames:
        """Parallel games of this kind, in this process or in worker processes."""
        return HostGames(self.name, self.options, self.layout, games, workers, entropy)

    def reset(self, key: Any) -> NoReturn:
        raise BadInput(f"{self.id or self.name} is stepped on the host and has no compiled state: play it with rollout")
