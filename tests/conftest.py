"""Shapes are checked while the tests run, and shapes that fit only by accident are errors."""

import gc
import os
import shutil

import pytest
from jaxtyping import install_import_hook

# Tests compile hundreds of small programs and run each for a moment: compile fast rather than well.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

hook = install_import_hook("otherminds", "checker.checked")

import jax  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(scope="module", autouse=True)
def _compiled_programs_are_let_go():
    """Each holds pieces of memory, of which Linux gives a process 65,530: a suite that kept them all crashed near its end."""
    yield
    jax.clear_caches()
    gc.collect()


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    """Where compiled programs are kept, so that processes started by tests need not compile them again."""
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="session")
def trained(tmp_path_factory, programs):
    """The folder of a run with the settings `small_runs.SMALL` that nothing ever happened to. Not to be written to."""
    from jax.experimental.compilation_cache import compilation_cache

    from otherminds.train import train

    from small_runs import SMALL

    folder = tmp_path_factory.mktemp("trained") / "run"
    compilation_cache.reset_cache()
    jax.config.update("jax_compilation_cache_dir", str(programs))
    try:
        train(SMALL, folder=folder)
    finally:
        jax.config.update("jax_compilation_cache_dir", None)
        compilation_cache.reset_cache()
    return folder


@pytest.fixture
def copied(trained, tmp_path):
    """A copy of it, to do anything with."""
    return shutil.copytree(trained, tmp_path / "run")
