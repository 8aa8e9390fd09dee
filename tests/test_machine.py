"""What is said of the computer."""

from otherminds.machine import machine, peak_memory_mb, threads


def test_memory_is_in_megabytes():
    """The three systems count in three units."""
    assert 50 < peak_memory_mb() < 24_000


def test_no_more_threads_than_cores():
    assert 1 <= threads() <= machine()["cores"]
