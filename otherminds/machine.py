"""The computer that this process runs on."""

import os
import platform
import sys
from importlib.metadata import version
from typing import Any


def machine() -> dict[str, Any]:
    """What was measured on."""
    return {
        "system": platform.system(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "jax": version("jax"),
    }


def threads() -> int | None:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def peak_memory_mb() -> float:
    """The most memory this process has held."""
    if sys.platform == "win32":
        import psutil

        return psutil.Process().memory_info().peak_wset / 2**20
    import resource

    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes / (2**20 if sys.platform == "darwin" else 2**10)
