"""Shapes are checked while the tests run, and shapes that fit only by accident are errors."""

from jaxtyping import install_import_hook

hook = install_import_hook("otherminds", "beartype.beartype")

import jax  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
