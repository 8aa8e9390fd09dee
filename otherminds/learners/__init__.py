"""The register of learners. Adding one costs one file, one line here and the fields of its config.

A learner is a module with `State`, `init`, `policy`, `update` and `trainable`; `learners.base.Learner` says what each is.
"""

import importlib
from typing import TYPE_CHECKING

from otherminds.config import PRESETS, BadInput, closest

if TYPE_CHECKING:
    from otherminds.learners.base import Learner

LEARNERS = {
    "ppo": "otherminds.learners.ppo",
    "mappo": "otherminds.learners.mappo",
    **dict.fromkeys(PRESETS, "otherminds.learners.hop"),
}
"""Name -> module. `config.Train.of` gives the settings of each."""


def find(name: str) -> "Learner":
    """The learner of this name."""
    if name not in LEARNERS:
        raise BadInput(f"no learner '{name}': {closest(name, LEARNERS)}")
    return importlib.import_module(LEARNERS[name])
