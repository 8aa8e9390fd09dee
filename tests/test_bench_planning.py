"""The benchmark of the search counts what it does."""

import dataclasses

import pytest

from otherminds import bench_planning
from otherminds.bench_planning import Case, measured
from otherminds.config import BadInput, Bench


@pytest.mark.parametrize("preset", ["hop", "hop_plus"])
def test_one_small_measurement(preset, monkeypatch):
    monkeypatch.setattr(bench_planning, "ROUNDS", 1)
    monkeypatch.setattr(bench_planning, "PEAK_SIZE", 64)
    row = measured(Case(preset, simulations=2, samples=2, games=2))
    assert row["trees"] == 2 * 4 * 2
    assert row["world"] == {"hop": "rules", "hop_plus": "learned"}[preset]
    assert 0 < row["simulations_per_s"] < row["mctx_alone_per_s"] * 5
    assert row["achieved_gflop_per_s"] >= 0


def test_options_of_other_benches_are_refused():
    with pytest.raises(BadInput, match="bench planning has games and sizes of its own"):
        bench_planning.bench_planning(dataclasses.replace(Bench("planning"), games=("matrix-ipd",)))
