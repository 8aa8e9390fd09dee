import jax
import pytest

from otherminds.updates import build


class Lowered:
    """Stands for a program of a JAX that knows no options, or that cannot compile it at all."""

    def __init__(self, problem):
        self.problem = problem

    def compile(self, compiler_options=None):
        if compiler_options or "memory" in self.problem:
            raise jax.errors.JaxRuntimeError(self.problem)
        return "compiled"


def test_a_release_without_our_compiler_option_compiles_without_it():
    assert build(Lowered("INVALID_ARGUMENT: No such compile option: 'xla_cpu'")) == "compiled"


def test_other_failures_of_the_compiler_are_not_hidden():
    with pytest.raises(jax.errors.JaxRuntimeError, match="memory"):
        build(Lowered("RESOURCE_EXHAUSTED: out of memory"))
