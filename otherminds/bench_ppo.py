"""How fast PPO learns: its update beside the machine's peak, the way to a good reward, growth, and JaxMARL's own IPPO as a peer.

The peer's code is loaded from a clone that the user names; nothing of it lies here. Every figure is a median of rounds in turns.
"""

import contextlib
import importlib
import importlib.util
import math
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxprs_in_params
from jax.interpreters.partial_eval import dce_jaxpr
from rich.console import Console
from rich.table import Column, Table

from otherminds.bench import ROUNDS, Program, compiled, in_turns, size_mb
from otherminds.bench_runs import watched
from otherminds.config import PPO, BadInput, Bench, Train, require
from otherminds.games import make
from otherminds.games.jaxmarl_adapters import library, their_code
from otherminds.machine import machine, peak_memory_mb
from otherminds.progress import track
from otherminds.rollout import collect
from otherminds.train import SCORE_UPDATES
from otherminds.updates import CALL, Compiled, one_update, policies_at, prepare

REWARD = 2.85  # mean over seats on 4x4, of at most 3.00
PEAK_SIZE = 2048  # of the square matrices whose product shows the machine's peak
GROWTH_STEPS = 40_960  # game steps of a timed run there, as far as whole updates allow
PEER_SCRIPT = Path("baselines", "IPPO", "ippo_ff_mpe.py")
PEER_SETTINGS = Path("baselines", "IPPO", "config", "ippo_ff_mpe.yaml")
SPREAD = Train(
    game="jaxmarl:MPE_simple_spread_v3",
    parallel=16,
    rollout=128,
    epochs=4,
    minibatches=4,
    ppo=PPO(hidden=(64, 64), activation="tanh", separate_critic=True),
)
"""The sizes of JaxMARL's IPPO in this game."""


def bench_ppo(options: Bench) -> dict[str, Any]:
    require(
        not options.games and options.parallel == Bench.parallel,
        "--games and --parallel are for `otherminds bench games`: bench ppo has games and sizes of its own",
    )
    jax.config.update("jax_enable_compilation_cache", False)  # or times to compile would be times to find what was kept
    if options.peer:
        load_peer(options.peer)  # what is missing should be said now, not after minutes
    return {
        "update": measure_update(Train()),
        "time_to_reward": measure_time(REWARD, Train().steps),
        "growth": measure_growth(growing_sizes()),
        "simple_spread": measure_spread(options.peer, 3 * CALL),
        "machine": machine(),
    }


def training(config: Train, updates: int) -> Program:
    """A training under way, which each run takes `updates` further: a part of what one call can do, or whole calls."""
    setup = prepare(config)
    engine = Compiled(setup)
    carry, made = engine.first(), 0

    def run() -> Any:
        nonlocal carry, made
        for _ in range(-(-updates // CALL)):
            carry = engine.before(carry, 0, made)
            carry, metrics = engine.advance(carry, made, min(CALL, updates))
            made += min(CALL, updates)
        return carry, metrics

    jax.block_until_ready(run())
    engine.before(carry, 0, CALL)  # compiles what happens between calls
    size = size_mb(engine.programs[0])
    return Program(config.game, config.parallel, setup.game.seats, updates * config.rollout, engine.compile_s, size, run, [])


def playing(config: Train, rollouts: int) -> Program:
    """The rollouts of such a training without the learning."""
    setup = prepare(config)
    engine = Compiled(setup)
    carry = jax.tree.map(lambda leaf: leaf[0], engine.first())
    policies = policies_at(setup, 0, carry.learners, engine.policies(0, 0))

    def loop(given: Any) -> Any:
        policies, play = given

        def one(play: Any) -> Any:
            return collect(setup.game, policies, play, config.rollout, final=setup.game.truncates)

        # Rows are carried along, so that the compiler can leave none of them out.
        rows = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(one, play)[1])
        return jax.lax.fori_loop(0, rollouts, lambda _, held: one(held[0]), (play, rows))

    steps = rollouts * config.rollout
    return compiled(config.game, config.parallel, setup.game.seats, steps, loop, (policies, carry.play))


def measure_update(config: Train) -> dict[str, Any]:
    """What an update costs, what of it is play, and how near its matrix products come to the machine's peak."""
    whole = training(config, CALL)
    memory = peak_memory_mb()
    play = playing(config, CALL)
    square = jax.random.normal(jax.random.key(0), (PEAK_SIZE, PEAK_SIZE))
    peak = compiled("matrix product", 1, 1, 1, lambda matrix: matrix @ matrix, square)
    in_turns([whole, play, peak], track(range(ROUNDS), "an update, in turns with its rollout"))
    setup = prepare(config)
    engine = Compiled(setup)
    carry = jax.tree.map(lambda leaf: leaf[0], engine.first())
    flops = matrix_flops(partial(one_update, setup, 0, engine.policies(0, 0)), carry)
    achieved, possible = flops * CALL / whole.usual_s, 2 * PEAK_SIZE**3 / peak.usual_s
    return row_of(whole) | {
        "peak_memory_mb": round(memory),
        "rollout_share": round(play.usual_s / whole.usual_s, 3),
        "learning_share": round(1 - play.usual_s / whole.usual_s, 3),
        "matrix_flop_per_update": flops,
        "achieved_gflop_per_s": round(achieved / 1e9, 2),
        "peak_gflop_per_s": round(possible / 1e9, 2),
        "share_of_peak": round(achieved / possible, 3),
    }


def matrix_flops(function: Callable[..., Any], *arguments: Any) -> int:
    """Floating-point operations of all matrix products whose results are used.

    Counted in the program as JAX traces it, a loop as often as it runs: the compiler's own `cost_analysis` counts a loop's body
    once, whatever its length.
    """
    traced = jax.make_jaxpr(function)(*arguments).jaxpr
    return _count(dce_jaxpr(traced, [True] * len(traced.outvars))[0])


def _count(traced: Any) -> int:
    total = 0
    for equation in traced.eqns:
        if equation.primitive.name == "dot_general":
            (summed, _), _ = equation.params["dimension_numbers"]
            left, out = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
            total += 2 * math.prod(out) * math.prod(left[axis] for axis in summed)
        inner = sum(_count(part) for part in jaxprs_in_params(equation.params))
        total += inner * equation.params.get("length", 1)
    return total


def measure_time(reward: float, steps: int) -> dict[str, Any]:
    """How long `otherminds train` takes from being typed, with nothing compiled before, to a mean reward while training.

    The mean is over all seats and the last SCORE_UPDATES updates. Null if it is not reached.
    """
    reached: dict[str, Any] = {"seconds": None, "steps": None}
    recent: deque[float] = deque(maxlen=SCORE_UPDATES)
    rewards: list[float] = []
    config = Train(steps=steps)
    last_seat = make(config.game).seats - 1
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as nothing_kept, watched(["--steps", str(steps)], Path(nothing_kept)) as rows:
        for row in track(rows, f"training until a reward of {reward}", total=config.updates * (last_seat + 1)):
            rewards += [row["metrics"]["reward"]] if "reward" in row["metrics"] else []
            if row["seat"] == last_seat and rewards:
                recent.append(statistics.mean(rewards))
                rewards.clear()
                if len(recent) == SCORE_UPDATES and statistics.mean(recent) >= reward:
                    reached = {"seconds": round(time.perf_counter() - begin, 1), "steps": row["step"]}
                    break
    return {"game": config.game, "reward": reward, **reached, "most_steps": steps}


def growing_sizes() -> list[Train]:
    """More games, more seats, larger boards: one at a time."""
    sizes = [(games, 4, 4) for games in (16, 128, 1024)]  # (parallel games, width of the board, players)
    sizes += [(128, 8, players) for players in (2, 4, 8)]
    sizes += [(128, 16, 4)]
    return [
        Train(game=f"stag_hunt?height={width}&width={width}&players={players}", parallel=games) for games, width, players in sizes
    ]


def measure_growth(configs: list[Train]) -> list[dict[str, Any]]:
    programs = [
        training(config, max(1, min(CALL, GROWTH_STEPS // config.steps_per_update))) for config in track(configs, "compiling")
    ]
    in_turns(programs, track(range(ROUNDS), "games, seats and boards, in turns"))
    return [row_of(program) for program in programs]


def measure_spread(peer: Path | None, updates: int) -> dict[str, Any]:
    """Our PPO, with parameters shared by all seats and with own ones, and beside it JaxMARL's IPPO, which shares them."""
    programs = {
        "shared": training(_spread(share=True), updates),
        "own": training(_spread(share=False), updates),
    }
    if peer:
        programs["peer"] = peer_training(peer, updates)
    in_turns(programs.values(), track(range(ROUNDS), "simple spread, in turns"))
    result: dict[str, Any] = {name: row_of(program) for name, program in programs.items()}
    if peer:
        for name in ("shared", "own"):
            result[f"ratio_{name}"] = round(programs[name].game_steps_per_s / programs["peer"].game_steps_per_s, 3)
    return result


def _spread(share: bool) -> Train:
    return replace(SPREAD, ppo=replace(SPREAD.ppo, share=share))


def peer_training(folder: Path, updates: int) -> Program:
    """JaxMARL's own IPPO, from its first update on, with its own settings for this game."""
    script, settings = load_peer(folder)
    settings |= {
        "ENV_NAME": SPREAD.game.partition(":")[2],
        "NUM_ENVS": SPREAD.parallel,
        "NUM_STEPS": SPREAD.rollout,
        "UPDATE_EPOCHS": SPREAD.epochs,
        "NUM_MINIBATCHES": SPREAD.minibatches,
        "TOTAL_TIMESTEPS": updates * SPREAD.steps_per_update,  # game steps, as ours are
    }
    with their_code():
        train = script.make_train(settings)
        require(settings["NUM_UPDATES"] == updates, f"{folder}: its IPPO no longer counts TOTAL_TIMESTEPS in game steps")
        steps, seats = updates * SPREAD.rollout, settings["NUM_ACTORS"] // SPREAD.parallel
        return compiled("JaxMARL IPPO", SPREAD.parallel, seats, steps, train, jax.random.PRNGKey(0))


def load_peer(folder: Path) -> tuple[Any, dict[str, Any]]:
    """The script of JaxMARL's IPPO as a module, and its settings."""
    source, settings = folder / PEER_SCRIPT, folder / PEER_SETTINGS
    for file in (source, settings):
        require(file.is_file(), f"--peer {folder}: expected a clone of the JaxMARL repository, and there is no {file}")
    library()
    specification = importlib.util.spec_from_file_location("jaxmarl_ippo", source)
    assert specification is not None
    assert specification.loader is not None
    script = importlib.util.module_from_spec(specification)
    try:
        with their_code(), _nothing_logged():
            specification.loader.exec_module(script)
    except ModuleNotFoundError as missing:
        raise BadInput(f"--peer {folder}: JaxMARL's IPPO needs {missing.name}: pip install distrax omegaconf") from missing
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise BadInput(f"--peer {folder}: {source} cannot be loaded here: {type(error).__name__}: {reason}") from error
    return script, importlib.import_module("yaml").safe_load(settings.read_text(encoding="utf-8"))


@contextlib.contextmanager
def _nothing_logged() -> Iterator[None]:
    """Stand-ins for wandb and hydra while the peer is loaded: it keeps them, logs into nothing, and needs neither installed."""
    wandb, hydra = ModuleType("wandb"), ModuleType("hydra")
    vars(wandb)["log"] = lambda row: None
    vars(hydra)["main"] = lambda **settings: lambda function: function
    before = {name: sys.modules.get(name) for name in ("wandb", "hydra")}
    sys.modules.update(wandb=wandb, hydra=hydra)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def row_of(program: Program) -> dict[str, Any]:
    return {
        "game": program.name,
        "parallel": program.parallel,
        "seats": program.seats,
        "game_steps_per_s": round(program.game_steps_per_s),
        "compile_s": round(program.compile_s, 2),
        "memory_mb": round(program.memory_mb, 1),
    }


def show_ppo(result: dict[str, Any], console: Console) -> None:
    update, reached, spread = result["update"], result["time_to_reward"], result["simple_spread"]
    table = Table(Column("game", no_wrap=True), "parallel", "seats", "game steps/s", "compile s", "MB", "x JaxMARL", box=None)
    named = [
        (f"simple spread, {name}", spread[name], spread.get(f"ratio_{name}"))
        for name in ("shared", "own", "peer")
        if name in spread
    ]
    for name, row, ratio in [(row["game"], row, None) for row in (update, *result["growth"])] + named:
        table.add_row(
            name,
            f"{row['parallel']:,}",
            str(row["seats"]),
            f"{row['game_steps_per_s']:,}",
            f"{row['compile_s']:.1f}",
            f"{row['memory_mb']:.0f}",
            f"{ratio:.2f}" if ratio else "",
        )
    console.print(table)
    found = "not reached" if reached["seconds"] is None else f"{reached['seconds']:.0f} s, {reached['steps']:,} game steps"
    for line in (
        f"{update['game']}: {update['rollout_share']:.0%} of an update is play, {update['learning_share']:.0%} learning; "
        f"peak memory of the process {update['peak_memory_mb']:,} MB",
        f"matrix products: {update['achieved_gflop_per_s']:.1f} of {update['peak_gflop_per_s']:.1f} GFLOP/s, "
        f"{update['share_of_peak']:.0%} of what a large product reaches",
        f"from typing `otherminds train` to a mean reward of {reached['reward']} on {reached['game']}: {found}",
    ):
        console.print(line, highlight=False, soft_wrap=True)
