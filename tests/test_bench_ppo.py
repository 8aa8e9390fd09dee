"""The benchmark of PPO measures what it says; the peer here is a small stand-in with the same face."""

import contextlib
import dataclasses
import io
import sys

import jax
import jax.numpy as jnp
import pytest
from rich.console import Console

from otherminds import bench_ppo
from otherminds.bench import bench_games
from otherminds.config import PPO, BadInput, Bench, Train
from otherminds.updates import CALL

SMALL = Train(parallel=4, rollout=4, epochs=1, minibatches=2, ppo=PPO(hidden=(8,)))
ROW = {"game", "parallel", "seats", "game_steps_per_s", "compile_s", "memory_mb"}

PEER = """
import hydra
import jax
import wandb
from jax.experimental import io_callback

def make_train(config):
    config["NUM_UPDATES"] = config["TOTAL_TIMESTEPS"] // config["NUM_STEPS"] // config["NUM_ENVS"]
    config["NUM_ACTORS"] = 3 * config["NUM_ENVS"]

    def train(key):
        def update(key, _):
            io_callback(lambda row: wandb.log(row), None, {"rate": config["LR"]})
            return jax.random.split(key)[0], None

        return jax.lax.scan(update, key, None, config["NUM_UPDATES"])[0]

    return train

@hydra.main(version_base=None, config_path="config", config_name="ippo_ff_mpe")
def main(config):
    pass
"""


@pytest.fixture(autouse=True)
def _a_single_round(monkeypatch):
    monkeypatch.setattr(bench_ppo, "ROUNDS", 1)
    monkeypatch.setattr(bench_ppo, "PEAK_SIZE", 64)


@pytest.fixture
def clone(tmp_path):
    script, settings = tmp_path / bench_ppo.PEER_SCRIPT, tmp_path / bench_ppo.PEER_SETTINGS
    settings.parent.mkdir(parents=True)
    script.write_text(PEER)
    settings.write_text('"LR": 2.5e-4\n"TOTAL_TIMESTEPS": 1e7\n')
    return tmp_path


def test_operations_are_counted_as_often_as_a_loop_runs_and_only_where_used():
    def function(x, weight):
        unused = x @ x.T
        total = jax.lax.scan(lambda sum_, _: (sum_ + x @ weight, None), jnp.zeros((4, 6)), length=3)[0]
        return total + 0 * unused.shape[0]

    # 3 times a product of 4x5 and 5x6: 3 * 2*4*5*6 = 720
    assert bench_ppo.matrix_flops(function, jnp.ones((4, 5)), jnp.ones((5, 6))) == 720


def test_an_update_beside_its_rollout():
    result = bench_ppo.measure_update(SMALL)
    assert set(result) > ROW
    assert result["seats"] == 4
    assert result["rollout_share"] + result["learning_share"] == pytest.approx(1, abs=0.002)
    assert result["share_of_peak"] == pytest.approx(result["achieved_gflop_per_s"] / result["peak_gflop_per_s"], abs=0.1)
    # A network 128 -> 8 -> 7 and 1, for 16 rows of 4 seats. Playing, forward: 8*(128+7+1) = 1088 products a row. Looking back,
    # the value after the last rows of 4 games: 8*(128+1) = 1032. Learning, once: forward and weights 2*1088, and back into
    # the 8 features 8*(7+1) = 64.
    assert result["matrix_flop_per_update"] == 2 * (64 * 1088 + 16 * 1032 + 64 * (2 * 1088 + 64))


def test_growth_is_measured_one_size_at_a_time():
    (row,) = bench_ppo.measure_growth([SMALL])
    assert set(row) == ROW
    assert row["game_steps_per_s"] > 0
    sizes = [(config.parallel, config.game) for config in bench_ppo.growing_sizes()]
    assert len(set(sizes)) == 7


def test_training_goes_on_over_whole_calls():
    program = bench_ppo.training(SMALL, 2 * CALL)
    assert program.steps == 2 * CALL * SMALL.rollout
    carry, _ = program.run()
    assert carry.learners[0].updates.item() == 4 * CALL  # the first run compiled


def test_the_reward_counts_when_its_mean_over_updates_is_there(monkeypatch):
    @contextlib.contextmanager
    def watched(words, compiled):
        rewards = [0.0] * 16 + [4.0] * 16  # the mean of the last 16 reaches 3 with the 12th of the latter
        yield (
            {
                "step": 10 * (k + 1),
                "seat": seat,
                "metrics": {"reward": reward + seat - 1.5} if seat < 3 else {"reward": reward + 1.5},
            }
            for k, reward in enumerate(rewards)
            for seat in range(4)
        )

    monkeypatch.setattr(bench_ppo, "watched", watched)
    assert bench_ppo.measure_time(3.0, 1000)["steps"] == 280
    assert bench_ppo.measure_time(4.1, 1000)["steps"] is None


def test_ours_beside_the_peer(clone, monkeypatch):
    small = dataclasses.replace(SMALL, game=bench_ppo.SPREAD.game, ppo=PPO(hidden=(4,), separate_critic=True))
    monkeypatch.setattr(bench_ppo, "SPREAD", small)
    result = bench_ppo.measure_spread(clone, CALL)
    assert set(result) == {"shared", "own", "peer", "ratio_shared", "ratio_own"}
    assert result["peer"]["seats"] == result["own"]["seats"] == 3
    ratio = result["own"]["game_steps_per_s"] / result["peer"]["game_steps_per_s"]
    assert result["ratio_own"] == pytest.approx(ratio, abs=0.01)
    assert "wandb" not in sys.modules
    assert "hydra" not in sys.modules


def test_a_peer_that_is_not_there_or_lacks_a_package_is_refused_in_one_line(tmp_path, clone):
    with pytest.raises(BadInput, match="expected a clone of the JaxMARL repository"):
        bench_ppo.load_peer(tmp_path / "nowhere")
    (clone / bench_ppo.PEER_SCRIPT).write_text("import no_such_package")
    with pytest.raises(BadInput, match="needs no_such_package: pip install"):
        bench_ppo.load_peer(clone)
    (clone / bench_ppo.PEER_SCRIPT).write_text("raise AttributeError('too\\nold')")
    with pytest.raises(BadInput, match=r"cannot be loaded here: AttributeError: too$"):
        bench_ppo.load_peer(clone)


def test_options_of_the_other_benchmark_are_refused(tmp_path):
    with pytest.raises(BadInput, match="--peer is for"):
        bench_games(Bench(what="games", peer=tmp_path))
    for other in ({"games": ("snowdrift-4x4",)}, {"parallel": (2,)}):
        with pytest.raises(BadInput, match="for `otherminds bench games`"):
            bench_ppo.bench_ppo(Bench(what="ppo", **other))


def test_a_table_for_people():
    row = {"game": "g", "parallel": 4, "seats": 2, "game_steps_per_s": 1234, "compile_s": 1.0, "memory_mb": 3.0}
    update = row | {"peak_memory_mb": 900, "rollout_share": 0.25, "learning_share": 0.75}
    update |= {"achieved_gflop_per_s": 10.0, "peak_gflop_per_s": 40.0, "share_of_peak": 0.25}
    reached = {"game": "g", "reward": 2.85, "seconds": None, "steps": None}
    spread = {"shared": row, "own": row, "peer": row, "ratio_shared": 1.75, "ratio_own": 1.25}
    shown = io.StringIO()
    result = {"update": update, "time_to_reward": reached, "growth": [row], "simple_spread": spread}
    bench_ppo.show_ppo(result, Console(file=shown, width=130))
    for words in ("1.75", "1.25", "25% of an update is play", "10.0 of 40.0 GFLOP/s", "not reached"):
        assert words in shown.getvalue()
