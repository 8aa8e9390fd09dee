"""Where the time of an update of HOP goes: play, search, what is learned of partners and of the world, and the policy.

An update is one compiled program, and a clock inside it would cost more than it tells. So its parts are compiled alone, on the
same games, and timed in turns with the whole.
"""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

from otherminds.bench import ROUNDS, Program, compiled, in_turns
from otherminds.config import Bench, Train, require
from otherminds.learners import hop
from otherminds.learners.hop_learn import learn_of_partners, learn_of_world, think_again
from otherminds.learners.hop_play import foresees
from otherminds.machine import machine, peak_memory_mb
from otherminds.progress import track
from otherminds.rollout import Play, collect
from otherminds.types import Seated, Trajectory, of_seats
from otherminds.updates import Compiled, one_update, policies_at, prepare

PRESETS = ("no_goal", "omg", "hop", "hop_plus", "hop_plus_no_search")
WARM_UP = 40  # steps after which games are no longer all at their first moment
PHASES = ("play", "search", "partners", "world_model", "policy")


def bench_hop(options: Bench) -> dict[str, Any]:
    require(
        not options.games and options.parallel == Bench.parallel and options.peer is None,
        "--games, --parallel and --peer are for other benches: bench hop has games and sizes of its own",
    )
    rows = [measured(Train(seats=preset)) for preset in track(PRESETS, "updates of HOP")]
    return {"updates": rows, "peak_memory_mb": round(peak_memory_mb()), "machine": machine()}


def measured(config: Train) -> dict[str, Any]:
    """Seconds of one update of one seed, by part, with search from the start."""
    config = replace(config, hop=replace(config.hop, search=replace(config.hop.search, begin=0.0)))
    setup = prepare(config)
    engine = Compiled(setup)
    carry = jax.tree.map(lambda leaf: leaf[0], engine.first())
    fixed, state, seats, key = engine.policies(0, 0), carry.learners[0], setup.groups[0].seats, jax.random.key(0)

    def played(given: Any, search: bool = True, steps: int = config.rollout) -> tuple[Play, Trajectory]:
        own, *others = policies_at(setup, 0, (given[0],), fixed)
        policy: Any = own.policy
        policy = policy if search else policy.without_search()
        return collect(setup.game, (Seated(policy, own.seats), *others), given[1], steps, final=setup.wants_final)

    play = jax.jit(lambda given: played(given, steps=WARM_UP)[0])((state, carry.play))
    rows = of_seats(jax.jit(played)((state, play))[1], seats, play.memories[0])
    returns = jnp.zeros(rows.reward.shape)
    parts: dict[str, Any] = {
        "update": lambda given: one_update(setup, 0, fixed, given[3]),
        "play": lambda given: played(given, search=False),
        "learning": lambda given: hop.update(given[0], given[2], key),
    }
    if state.config.parts.search:
        parts["searched"] = played
    if foresees(state.config):
        parts["partners"] = lambda given: learn_of_partners(given[0], given[2], think_again(given[0], given[2]), returns, key)
    if state.model is not None:
        parts["world_model"] = lambda given: learn_of_world(given[0], given[2], key)
    given, sizes = (state, play, rows, eqx.tree_at(lambda c: c.play, carry, play)), (config.parallel, len(seats), config.rollout)
    programs = {name: compiled(name, *sizes, part, given) for name, part in parts.items()}
    in_turns(programs.values(), range(ROUNDS))
    return row_of(config, programs)


def row_of(config: Train, programs: dict[str, Program]) -> dict[str, Any]:
    """Each phase by itself, from programs that hold one or several of them."""
    took = {name: program.usual_s for name, program in programs.items()}
    phases = {
        "play": took["play"],
        "search": took.get("searched", took["play"]) - took["play"],
        "partners": took.get("partners", 0.0),
        "world_model": took.get("world_model", 0.0),
    }
    phases["policy"] = took["learning"] - phases["partners"] - phases["world_model"]
    whole = programs["update"]
    return {
        "preset": config.seats,
        "game": config.game,
        "update_s": round(took["update"], 4),
        "phases_s": {name: round(phases[name], 4) for name in PHASES},
        "game_steps_per_s": round(whole.game_steps_per_s),
        "memory_mb": round(whole.memory_mb, 1),
        "compile_s": round(whole.compile_s, 2),
    }


def show_hop(result: dict[str, Any], console: Console) -> None:
    table = Table("preset", "ms an update", *PHASES, "game steps/s", "MB", "compile s", title="updates of HOP, by phase")
    for row in result["updates"]:
        phases = [f"{1000 * row['phases_s'][name]:.0f}" for name in PHASES]
        numbers = (f"{row['game_steps_per_s']:,}", f"{row['memory_mb']:.0f}", f"{row['compile_s']:.0f}")
        table.add_row(row["preset"], f"{1000 * row['update_s']:.0f}", *phases, *numbers)
    console.print(table)
