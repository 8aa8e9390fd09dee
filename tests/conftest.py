"""Shapes are checked while the tests run, and shapes that fit only by accident are errors."""

import os

from jaxtyping import install_import_hook

# Tests compile hundreds of small programs and run each for a moment: compile fast rather than well.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

hook = install_import_hook("otherminds", "checker.checked")

import jax  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
