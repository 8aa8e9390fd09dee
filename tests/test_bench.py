"""The benchmark measures what it says."""

from otherminds.bench import bench_games
from otherminds.config import Bench


def test_one_small_measurement():
    result = bench_games(Bench(what="games", games=("stag_hunt-4x4-4h1s",), parallel=(8,)))
    (row,) = result["games"]
    assert row["game"] == "stag_hunt-4x4-4h1s"
    assert abs(row["seat_steps_per_s"] - 4 * row["game_steps_per_s"]) <= 4
    assert {peer["game"] for peer in result["peers"]} == {"jaxmarl:coin_game", "jaxmarl:overcooked"}
    assert row["ratio_to_jaxmarl:coin_game"] > 0
    assert row["with_final_observations"] > 0
