"""Shapes are checked while the tests run, and shapes that fit only by accident are errors."""

import atexit
import gc
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from jaxtyping import install_import_hook

# Tests compile hundreds of small programs and run each for a moment: compile fast rather than well.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

# And once: the first process makes a place for programs, which its workers and their children inherit.
if "OTHERMINDS_TEST_PROGRAMS" not in os.environ:
    os.environ["OTHERMINDS_TEST_PROGRAMS"] = tempfile.mkdtemp(prefix="otherminds-programs-")
    atexit.register(shutil.rmtree, os.environ["OTHERMINDS_TEST_PROGRAMS"], ignore_errors=True)
PROGRAMS = Path(os.environ["OTHERMINDS_TEST_PROGRAMS"])

hook = install_import_hook("otherminds", "checker.checked")

import jax  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_compilation_cache_dir", str(PROGRAMS))


@pytest.fixture(scope="module", autouse=True)
def _compiled_programs_are_let_go():
    """Each holds pieces of memory, of which Linux gives a process 65,530: a suite that kept them all crashed near its end."""
    yield
    jax.clear_caches()
    gc.collect()


@pytest.fixture(scope="session")
def programs():
    """Where compiled programs are kept, so that processes started by tests need not compile them again."""
    return PROGRAMS


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The folder of a run with the settings `small_runs.SMALL` that nothing ever happened to. Not to be written to."""
    from otherminds.train import train

    from small_runs import SMALL

    folder = tmp_path_factory.mktemp("trained") / "run"
    train(SMALL, folder=folder)
    return folder


@pytest.fixture
def copied(trained, tmp_path):
    """A copy of it, to do anything with."""
    return shutil.copytree(trained, tmp_path / "run")
