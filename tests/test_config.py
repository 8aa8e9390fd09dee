"""How ids and options are read."""

import subprocess
import sys

import pytest

from otherminds.config import BadInput, as_type, closest, parse_id


def test_ids_and_options():
    assert parse_id("a-b") == ("a-b", {})
    name, options = parse_id("a?n=3&x=0.5&flag=False&list=1,2&text=abc&none=None")
    assert name == "a"
    assert options == {"n": 3, "x": 0.5, "flag": False, "list": (1, 2), "text": "abc", "none": None}


@pytest.mark.parametrize("text", ["a?b", "a?=3", "a?b=", "a?b=1&b=2"])
def test_broken_options_are_refused(text):
    with pytest.raises(BadInput):
        parse_id(text)


@pytest.mark.parametrize(
    ("value", "wanted"), [(True, int), (1.5, int), ("x", float), (1, bool), ((1, "x"), tuple[float, ...]), (None, int)]
)
def test_types_that_do_not_fit_are_refused(value, wanted):
    with pytest.raises(BadInput):
        as_type(value, wanted, "game", "option")


def test_whole_numbers_serve_as_numbers():
    assert isinstance(as_type(3, float, "game", "option"), float)
    assert as_type((1, 2.5), tuple[float, ...] | None, "game", "option") == (1.0, 2.5)
    assert as_type(None, int | None, "game", "option") is None


def test_nearest_choice():
    assert closest("hors", ["horse", "cow"]) == "did you mean horse?"
    assert closest("q", ["horse", "cow"]) == "choose from cow, horse"


def test_the_command_line_loads_nothing_heavy():
    """`otherminds --help` must answer at once."""
    code = "import sys, otherminds.cli; sys.exit(sorted({'jax', 'numpy', 'PIL', 'jaxmarl'} & set(sys.modules)) or 0)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
