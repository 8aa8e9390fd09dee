"""How fast the search is, and how right.

Simulations a second on the rules and in a learned model, beside mctx alone and the machine's peak, and how that grows with
simulations, goals drawn, seats and board; what is lost beside exhaustive search, where that can be had.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import mctx
from rich.console import Console
from rich.table import Table

from otherminds.bench import ROUNDS, Program, compiled, in_turns
from otherminds.bench_ppo import PEAK_SIZE, matrix_flops
from otherminds.config import HOP, Bench, Search, Sizes, Train, require
from otherminds.diagnostics import exact
from otherminds.games import make
from otherminds.learners import hop
from otherminds.learners.hop_play import HopPolicy, Moments
from otherminds.machine import machine, peak_memory_mb
from otherminds.progress import track

GAMES = 128
GROWING = ((4, 1), (16, 1), (64, 1), (256, 1))  # simulations and trees
TREES = (1, 4, 16, 64)
SMALL, LARGE = "stag_hunt-4x4-4h1s", "stag_hunt-8x8-4h1s"


@dataclasses.dataclass(frozen=True)
class Case:
    """A search that is measured."""

    preset: str
    game: str = SMALL
    simulations: int = 16
    samples: int = 1
    games: int = GAMES

    def settings(self) -> HOP:
        search = Search(play_simulations=self.simulations, play_samples=self.samples)
        return dataclasses.replace(Train().of(self.preset), search=search, hidden=(64, 64))

    def named(self) -> dict[str, Any]:
        world = "rules" if self.settings().parts.model == "simulator" else "learned"
        return {"world": world} | dataclasses.asdict(self)


CASES = (
    *(Case(preset) for preset in ("hop", "hop_plus")),
    *(Case(preset, simulations=count) for preset in ("hop", "hop_plus") for count in (4, 64)),
    *(Case(preset, samples=4) for preset in ("hop", "hop_plus")),
    *(Case(preset, games=32) for preset in ("hop", "hop_plus")),
    *(Case(preset, "stag_hunt?height=4&width=4&hares=4&players=2") for preset in ("hop", "hop_plus")),
    *(Case(preset, LARGE) for preset in ("hop", "hop_plus")),
)


def bench_planning(options: Bench) -> dict[str, Any]:
    require(
        not options.games and options.parallel == Bench.parallel and options.peer is None,
        "--games, --parallel and --peer are for other benches: bench planning has games and sizes of its own",
    )
    right = [row for case in track(exact.SURE, "beside exhaustive search") for row in exact.compared(case, list(GROWING))]
    lucky = [row for case in track(exact.LUCKY, "with dice") for row in exact.compared(case, [(256, trees) for trees in TREES])]
    coin = [{"trees": trees, "gambles": exact.gambles(trees)} for trees in TREES]
    rows = [measured(case) for case in track(CASES, "searches")]
    found = {"searches": rows, "exact": right + lucky, "coin": coin}
    return found | {"peak_memory_mb": round(peak_memory_mb()), "machine": machine()}


def measured(case: Case) -> dict[str, Any]:
    """One search of all seats in all games, in turns with trees of mctx that ask no network and with the machine's peak."""
    state, run = searcher(case)
    ours = compiled(case.preset, case.games, 1, 1, run, state)
    trees = case.games * make(case.game).seats * case.samples
    alone = compiled("mctx alone", case.games, 1, 1, bare(trees, case.simulations, make(case.game).actions), jax.random.key(0))
    square = jax.random.normal(jax.random.key(0), (PEAK_SIZE, PEAK_SIZE))
    peak = compiled("matrix product", 1, 1, 1, lambda matrix: matrix @ matrix, square)
    in_turns([ours, alone, peak], range(ROUNDS))
    flops = matrix_flops(run, state)
    count = trees * case.simulations
    rate: Callable[[Program], int] = lambda program: round(count / program.usual_s)  # noqa: E731
    possible = 2 * PEAK_SIZE**3 / peak.usual_s
    return case.named() | {
        "trees": trees,
        "simulations_per_s": rate(ours),
        "mctx_alone_per_s": rate(alone),
        "achieved_gflop_per_s": round(flops / ours.usual_s / 1e9, 2),
        "peak_gflop_per_s": round(possible / 1e9, 2),
        "compile_s": round(ours.compile_s, 2),
    }


def searcher(case: Case) -> tuple[tuple[HopPolicy, Moments], Callable[[Any], Any]]:
    """(a policy that has learned nothing and the first moments of its games, the search from all of them)."""
    game = make(case.game)
    seats = tuple(range(game.seats))
    sizes = Sizes(case.games, 20, 1, 1, 1)
    learner = hop.init(case.settings(), sizes, game, seats, jax.random.key(0))
    policy = hop.policy(learner).without_noise()
    states = jax.vmap(game.reset)(jax.random.split(jax.random.key(1), case.games))
    by_seat = lambda x: jnp.moveaxis(x, 1, 0)  # noqa: E731
    thoughts = jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf[:, None], (game.seats, case.games, *leaf.shape[1:])),
        policy.initial_memory().episode[1],
    )
    shape = (game.seats, case.games)
    now = Moments(
        observation=by_seat(jax.vmap(game.observe)(states)),
        present=jnp.ones((*shape, game.seats), bool),
        legal=by_seat(jax.vmap(game.legal)(states)),
        thoughts=thoughts,
        held=jnp.zeros((*shape, 0)),
        told=jnp.zeros((*shape, policy.mind.told_size)),
        logits=jnp.zeros((*shape, game.actions)),
        value=jnp.zeros(shape),
        stakes=jnp.ones(shape),
    )

    def run(state: tuple[HopPolicy, Moments]) -> Any:
        return state[0].planned(state[1], jnp.arange(game.seats), jax.random.key(2))

    return (policy, now), run


def bare(trees: int, simulations: int, actions: int) -> Callable[[Any], Any]:
    """The same trees with nothing behind their branches: what mctx itself takes."""

    def follow(_: None, __: Any, action: Any, node: Any) -> tuple[Any, Any]:
        zeros = jnp.zeros(trees)
        logits = jnp.zeros((trees, actions))
        return mctx.RecurrentFnOutput(reward=zeros, discount=zeros + 1, prior_logits=logits, value=zeros), node

    def run(key: Any) -> Any:
        root = mctx.RootFnOutput(prior_logits=jnp.zeros((trees, actions)), value=jnp.zeros(trees), embedding=jnp.zeros(trees))
        return mctx.gumbel_muzero_policy(None, key, root, follow, simulations).action_weights

    return run


def show_planning(result: dict[str, Any], console: Console) -> None:
    columns = ("world", "game", "games", "simulations", "samples", "simulations/s", "mctx alone", "GFLOP/s", "peak")
    table = Table(*columns, title="search, all seats together")
    for row in result["searches"]:
        numbers = (row["simulations_per_s"], row["mctx_alone_per_s"])
        table.add_row(
            *(row["world"], row["game"], *(str(row[name]) for name in ("games", "simulations", "samples"))),
            *(f"{number:,}" for number in numbers),
            *(str(row[name]) for name in ("achieved_gflop_per_s", "peak_gflop_per_s")),
        )
    console.print(table)
    table = Table("game", "partner", "dice", "to be had", "simulations", "trees", "lost", title="beside exhaustive search")
    for row in result["exact"]:
        named = (row["game"], row["partner"], "yes" if row["dice"] else "no", f"{row['best']:.3f}")
        table.add_row(*named, str(row["simulations"]), str(row["trees"]), f"{row['lost']:.4f}")
    console.print(table)
    shares = ", ".join(f"{row['gambles']:.1%} with {row['trees']}" for row in result["coin"])
    console.print(f"would rather gamble on a coin, ±1, than take 0.3, by number of trees: {shares}")
