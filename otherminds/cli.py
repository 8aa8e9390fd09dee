"""The command line. Loads a command's modules only when it is run, so that `--help` is instant."""

import importlib
import json
import math
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console

from otherminds import config
from otherminds.config import Audit, BadInput, Bench, Demo, List, Watch

if TYPE_CHECKING:
    from otherminds.render import Episode

Command = Annotated[
    Annotated[Demo, tyro.conf.subcommand("demo")]
    | Annotated[List, tyro.conf.subcommand("list")]
    | Annotated[Watch, tyro.conf.subcommand("watch")]
    | Annotated[Audit, tyro.conf.subcommand("audit")]
    | Annotated[Bench, tyro.conf.subcommand("bench")],
    tyro.conf.ConsolidateSubcommandArgs,
    tyro.conf.FlagCreatePairsOff,
]


def main() -> None:
    """Entry point of `otherminds`."""
    command: Any = tyro.cli(Command, prog="otherminds", description=importlib.import_module("otherminds").__doc__)
    commands: dict[type, Callable[[Any], None]] = {Demo: demo, List: list_everything, Watch: watch, Audit: audit, Bench: bench}
    run = commands[type(command)]
    try:
        seed = getattr(command, "seed", 0)
        config.require(0 <= seed < 2**32, f"--seed is {seed}, expected a whole number from 0 to 4294967295")
        run(command)
    except BadInput as problem:
        _say(f"otherminds: {problem}")
        sys.exit(2)
    except BrokenPipeError:  # whoever read our output has seen enough
        os._exit(0)
    except OSError as problem:
        _say(f"otherminds: {problem.strerror or problem}: {problem.filename or 'while reading or writing a file'}")
        sys.exit(2)
    except KeyboardInterrupt:
        _say("otherminds: stopped")
        os._exit(130)  # compiled code may still run in other threads, and an orderly end beside it can crash


def _say(line: str) -> None:
    Console(stderr=True, soft_wrap=True).print(line, style="bold red", markup=False, highlight=False)
    sys.stderr.flush()


def _print_json(result: Any) -> None:
    print(json.dumps(_finite(result), allow_nan=False), flush=True)


def _finite(value: Any) -> Any:
    """The same with null for what is no finite number, which JSON cannot say."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def demo(options: Demo) -> None:
    from otherminds.demo import run_demo

    run_demo(options)


def list_everything(options: List) -> None:
    from otherminds.games import GAMES, make
    from otherminds.partners import PARTNERS

    games = [(name, make(name)) for name in GAMES]
    if options.json:
        rows = [dict(id=name, kind=game.kind, form=game.form, seats=game.seats, symmetric=game.symmetric) for name, game in games]
        _print_json({"games": rows, "partners": {family: sorted(names) for family, names in PARTNERS.items()}, "learners": []})
        return
    print("games")
    for name, game in games:
        summary = (sys.modules[type(game).__module__].__doc__ or "").split(". ")[0].split("\n")[0]
        print(f"  {name:<24} {game.kind:<12} {game.form:<11} {game.seats} seats  {summary}")
    print(f"  {'jaxmarl:NAME':<24} any game of JaxMARL: jaxmarl:coin_game, jaxmarl:smax-3m, jaxmarl:MPE_simple_tag_v3, ...")
    print(f"  {'pettingzoo:MODULE':<24} any parallel game of PettingZoo: pettingzoo:sisl.pursuit, ...")
    print("\npartners")
    for family, names in PARTNERS.items():
        for name, target in names.items():
            module, function = target.split(":")
            summary = getattr(importlib.import_module(module), function).__doc__ or ""
            print(f"  {name:<24} {family:<12} {summary}")
    print("\nlearners\n  none in this version")


def watch(options: Watch) -> None:
    from otherminds import render, seats
    from otherminds.games import make

    config.require(8 <= options.cell <= 512, f"--cell is {options.cell}, expected 8 to 512 pixels")
    config.require(0 < options.delay <= 60, f"--delay is {options.delay}, expected more than 0 and at most 60 seconds")
    if options.gif:
        fits = options.gif.suffix.lower() == ".gif" and not options.gif.is_dir()
        config.require(fits, f"--gif {options.gif}: expected the name of a file that ends in .gif")
    if options.png:
        config.require(
            not options.png.exists() or options.png.is_dir(), f"--png {options.png}: expected a folder, and it is a file"
        )
    game = make(options.game)
    policies = seats.resolve(game, options.seats)
    names = seats.split(options.seats)
    episode = render.record(game, policies, names * game.seats if len(names) == 1 else names, options.seed)
    if not options.quiet:
        _show(episode, options.delay)
    if options.png:
        render.save_pngs(episode, options.png, options.cell)
    if options.gif:
        render.save_gif(episode, options.gif, options.cell, round(1000 * options.delay))
    for path in filter(None, (options.png, options.gif)):
        Console(stderr=True).print(f"wrote {path}", highlight=False, soft_wrap=True)


def _show(episode: "Episode", delay: float) -> None:
    """Play the episode in place on a terminal; elsewhere print one frame after the other."""
    from rich.live import Live

    from otherminds.render import text

    console = Console()
    if not console.is_terminal:
        for frame, board in enumerate(episode.boards):
            console.print(text(board, episode, frame))
        return
    with Live(console=console, auto_refresh=False) as live:
        for frame, board in enumerate(episode.boards):
            live.update(text(board, episode, frame), refresh=True)
            time.sleep(delay)


def audit(options: Audit) -> None:
    from otherminds.audit import audit_game, describe, verdict
    from otherminds.games import make
    from otherminds.progress import track

    game = make(options.target)
    checks = []
    console = Console()
    for check in track(audit_game(game, options.seed), f"audit {options.target}"):
        checks.append(check)
        if not options.json:
            mark = {True: "[green]PASS[/]", False: "[bold red]FAIL[/]", None: "[dim]NONE[/]"}[check.passed]
            console.print(f"{mark} [bold]{check.name}[/]: {describe(check)}", highlight=False)
    result = verdict(checks)
    if options.json:
        _print_json(result)
    if not result["passed"]:
        sys.exit(1)


def bench(options: Bench) -> None:
    from otherminds.bench import bench_games, show_games

    for count in options.parallel:
        config.require(count > 0, f"--parallel is {count}, expected a positive number of games")
    result = bench_games(options)
    if options.json:
        _print_json(result)
    else:
        show_games(result, Console())
