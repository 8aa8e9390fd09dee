"""Speed, as ratios to named peers measured in the same run: machines differ and are noisy, ratios less so."""

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray
from rich.console import Console
from rich.table import Column, Table

from otherminds.config import Bench, require
from otherminds.games import GAMES, make
from otherminds.games.base import Game
from otherminds.games.jaxmarl_adapters import library, their_code
from otherminds.machine import machine, peak_memory_mb
from otherminds.progress import track
from otherminds.rollout import collect, start
from otherminds.types import Action, Extras, Memory, Policy, Seated, View

PEERS = ("coin_game", "overcooked")  # JaxMARL's, stepped and restarted by its own `step`
ROUNDS = 5
CHUNK = 16  # steps whose whole trajectory is made before it is summed


class AnyAction(Policy):
    """Actions drawn like those of the peers, legal or not; says nothing about them, so that only the game is measured."""

    actions: int = eqx.field(static=True)

    def initial_memory(self) -> Memory:
        return Memory(episode=None, lasting=None)

    def act(self, view: View, memory: Memory, key: PRNGKeyArray) -> tuple[Action, Memory, Extras]:
        shape = view.reward.shape
        action = jax.random.randint(key, shape, 0, self.actions)
        nothing = jnp.zeros((*shape, 0))
        return action, memory, Extras(nothing, nothing, jnp.zeros(shape), jnp.full(shape, -1, jnp.int32))


@dataclass
class Program:
    """A compiled loop of `steps` steps in `parallel` games, which can be run again and again."""

    name: str
    parallel: int
    seats: int
    steps: int
    compile_s: float
    memory_mb: float
    run: Callable[[], Any]
    seconds: list[float]

    @property
    def usual_s(self) -> float:
        """What a run lasts: the median, which a few noisy moments do not move."""
        return statistics.median(self.seconds)

    @property
    def game_steps_per_s(self) -> float:
        return self.parallel * self.steps / self.usual_s


def in_turns(programs: Iterable[Program], rounds: Iterable[Any]) -> None:
    """Time the programs one after the other, round after round, so that a noisy moment hits all alike."""
    programs = list(programs)
    for _ in rounds:
        for program in programs:
            begin = time.perf_counter()
            jax.block_until_ready(program.run())
            program.seconds.append(time.perf_counter() - begin)


def bench_games(options: Bench) -> dict[str, Any]:
    """Game steps a second with uniformly random actions, every field of every step summed into the result."""
    require(options.peer is None, "--peer is for `otherminds bench ppo`: the games have peers that come with JaxMARL")
    chosen = list({game: game for game in map(make, options.games or GAMES)}.values())  # ids of the same game count once
    for game in chosen:
        require(not game.on_host and not game.continuous, f"{game.id}: only compiled games with discrete actions are measured")
    rows: dict[str, list[dict[str, Any]]] = {"games": [], "peers": []}
    for parallel in track(options.parallel, "parallel games"):
        plain = [_our_program(game, parallel, final=False) for game in chosen]
        final = [_our_program(game, parallel, final=True) for game in chosen]
        peers = [_peer_program(name, parallel) for name in PEERS]
        in_turns([*plain, *final, *peers], range(ROUNDS))
        for program, with_final in zip(plain, final, strict=True):
            rows["games"].append(_row(program) | {"with_final_observations": round(with_final.game_steps_per_s)})
        rows["peers"].extend(_row(program) for program in peers)
    for row in rows["games"]:
        for peer in rows["peers"]:
            if peer["parallel"] == row["parallel"]:
                row[f"ratio_to_{peer['game']}"] = round(row["game_steps_per_s"] / peer["game_steps_per_s"], 3)
    return {**rows, "peak_memory_mb": round(peak_memory_mb()), "machine": machine()}


def _row(program: Program) -> dict[str, Any]:
    speed = program.game_steps_per_s
    return {
        "game": program.name,
        "parallel": program.parallel,
        "game_steps_per_s": round(speed),
        "seat_steps_per_s": round(speed * program.seats),
        "compile_s": round(program.compile_s, 2),
        "memory_mb": round(program.memory_mb, 1),
    }


def _total(tree: Any) -> Array:
    """Every number of a pytree added up, so that a compiler can leave none of them out."""
    numbers = [leaf for leaf in jax.tree.leaves(tree) if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)]
    return sum((leaf.astype(jnp.float32).sum() for leaf in numbers), jnp.float32(0))


def _steps_for(parallel: int) -> int:
    """About as many game steps in all whatever the number of games, so that each run lasts a moment."""
    return max(4, min(256, 262_144 // (parallel * CHUNK))) * CHUNK


def compiled(name: str, parallel: int, seats: int, steps: int, loop: Callable[[Any], Any], state: Any) -> Program:
    """`loop(state)`, which plays `steps` steps, compiled and run once."""
    begin = time.perf_counter()
    program = jax.jit(loop).lower(state).compile()
    seconds = time.perf_counter() - begin
    jax.block_until_ready(program(state))
    return Program(name, parallel, seats, steps, seconds, size_mb(program), lambda: program(state), [])


def size_mb(program: Any) -> float:
    """The memory a compiled program needs, with what it is given and gives back."""
    memory = program.memory_analysis()
    return (memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes) / 2**20


def _our_program(game: Game, parallel: int, final: bool) -> Program:
    policies = (Seated(AnyAction(game.actions), tuple(range(game.seats))),)
    play = jax.jit(lambda key: start(game, policies, parallel, key))(jax.random.key(0))

    def loop(play: Any) -> Any:
        def chunk(play: Any, _: None) -> tuple[Any, Array]:
            play, rows = collect(game, policies, play, CHUNK, final=final)
            return play, _total(rows)

        return jax.lax.scan(chunk, play, length=_steps_for(parallel) // CHUNK)[1].sum()

    return compiled(game.id, parallel, game.seats, _steps_for(parallel), loop, play)


def _peer_program(name: str, parallel: int) -> Program:
    with their_code():
        environment = library().make(name)
        _, state = jax.jit(jax.vmap(environment.reset))(jax.random.split(jax.random.key(0), parallel))
        counts = {agent: environment.action_space(agent).n for agent in environment.agents}

        def loop(state: Any) -> Any:
            def one_step(carry: Any, _: None) -> tuple[Any, Array]:
                state, key = carry
                key, step_key, *action_keys = jax.random.split(key, 2 + len(counts))
                actions = {
                    agent: jax.random.randint(action_key, (parallel,), 0, count)
                    for action_key, (agent, count) in zip(action_keys, counts.items(), strict=True)
                }
                stepped = jax.vmap(environment.step)(jax.random.split(step_key, parallel), state, actions)
                observation, state, rewards, ends, _ = stepped
                return (state, key), _total((observation, rewards, ends))

            return jax.lax.scan(one_step, (state, jax.random.key(1)), length=_steps_for(parallel))[1].sum()

        return compiled(f"jaxmarl:{name}", parallel, len(counts), _steps_for(parallel), loop, state)


def show_games(result: dict[str, Any], console: Console) -> None:
    table = Table(
        Column("game", no_wrap=True),
        "parallel",
        "game steps/s",
        "with final",
        "compile s",
        "MB",
        *(f"x {peer}" for peer in PEERS),
        box=None,
    )
    for row in [*result["games"], *result["peers"]]:
        ratios = [row.get(f"ratio_to_jaxmarl:{peer}") for peer in PEERS]
        final = row.get("with_final_observations")
        table.add_row(
            row["game"],
            f"{row['parallel']:,}",
            f"{row['game_steps_per_s']:,}",
            f"{final:,}" if final else "",
            f"{row['compile_s']:.1f}",
            f"{row['memory_mb']:.0f}",
            *(f"{ratio:.2f}" if ratio else "" for ratio in ratios),
        )
    console.print(table)
    console.print(f"peak memory of this process: {result['peak_memory_mb']:,} MB")
