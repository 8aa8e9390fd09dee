"""The benchmark of HOP's updates tells its phases apart."""

import dataclasses

import pytest

from otherminds import bench_hop
from otherminds.bench import Program
from otherminds.bench_hop import PHASES, measured, row_of
from otherminds.config import BadInput, Bench, Train

from small_runs import SMALL_HOP


def test_one_small_measurement(monkeypatch):
    monkeypatch.setattr(bench_hop, "ROUNDS", 1)
    monkeypatch.setattr(bench_hop, "WARM_UP", 2)
    game = "stag_hunt?height=3&width=3&players=2&hares=2"
    sizes = {"parallel": 8, "rollout": 4, "epochs": 1, "minibatches": 1}
    row = measured(Train(game=game, seats="hop_plus_no_search", hop=SMALL_HOP, **sizes))
    assert set(row["phases_s"]) == set(PHASES)
    assert row["phases_s"]["search"] == 0  # there is none
    assert min(row["phases_s"][name] for name in ("play", "partners", "world_model")) > 0
    assert row["game_steps_per_s"] == pytest.approx(8 * 4 / row["update_s"], rel=0.1)


def test_phases_are_what_programs_do_not_share():
    # Play takes 1 s, with search 3; learning takes 5, of which 2 for partners and 1 for the world: 2 are left for the policy.
    took = {"update": 8.0, "play": 1.0, "searched": 3.0, "learning": 5.0, "partners": 2.0, "world_model": 1.0}
    programs = {name: Program(name, 8, 2, 4, 0.0, 0.0, lambda: None, [seconds]) for name, seconds in took.items()}
    row = row_of(Train(seats="hop_plus"), programs)
    assert row["phases_s"] == {"play": 1.0, "search": 2.0, "partners": 2.0, "world_model": 1.0, "policy": 2.0}
    assert row["game_steps_per_s"] == 4


def test_options_of_other_benches_are_refused():
    with pytest.raises(BadInput, match="bench hop has games and sizes of its own"):
        bench_hop.bench_hop(dataclasses.replace(Bench("hop"), games=("matrix-ipd",)))
