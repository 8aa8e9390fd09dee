"""otherminds: agents that model the other players of a game, infer what they are after, and plan accordingly."""

import importlib
from typing import Any

__version__ = "0.1.0"

_EXPORTS = {
    "make": "otherminds.games",
    "parallel_env": "otherminds.pettingzoo",
    "jaxmarl_env": "otherminds.games.jaxmarl",
    "gymnasium_env": "otherminds.gymnasium",
    "load": "otherminds.checkpoint",
    "BadInput": "otherminds.config",
}


def __getattr__(name: str) -> Any:
    """Load what is asked for, and nothing else: `import otherminds` alone is instant."""
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'otherminds' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*globals(), *_EXPORTS]
