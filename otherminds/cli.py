"""The command line. Loads a command's modules only when it is run, so that `--help` is instant."""

import contextlib
import importlib
import json
import math
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Union

import tyro
from rich.console import Console

from otherminds import config
from otherminds.config import (
    Ablate,
    Adapt,
    Audit,
    BadInput,
    Bench,
    Collect,
    Convert,
    Demo,
    Diagnose,
    Evaluate,
    Fit,
    List,
    Resume,
    Train,
    Watch,
    closest,
)

if TYPE_CHECKING:
    from otherminds.render import Episode

SWALLOWED_S = 5.0  # after which an interrupt that has come to nothing ends the process


def main() -> None:
    """Entry point of `otherminds`."""
    commands: dict[type, Callable[[Any], None]] = {
        Demo: demo,
        List: list_everything,
        Watch: watch,
        Collect: collect,
        Convert: convert,
        Fit: fit,
        Train: train,
        Resume: resume,
        Evaluate: evaluate,
        Adapt: adapt,
        Ablate: ablate,
        Diagnose: diagnose,
        Audit: audit,
        Bench: bench,
    }
    heard = signal.getsignal(signal.SIGINT)
    if heard is signal.default_int_handler and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _interrupted)
    warnings.formatwarning = lambda message, *_, **__: f"otherminds: {message}\n"  # for people, not for programmers
    try:
        command: Any = tyro.cli(
            _choice(list(commands)), prog="otherminds", description=importlib.import_module("otherminds").__doc__
        )
        run = commands[type(command)]
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
        _leave()
    finally:
        if signal.getsignal(signal.SIGINT) is _interrupted:
            signal.signal(signal.SIGINT, heard)


def _interrupted(number: int, frame: Any) -> None:
    """Ctrl-C. Libraries that call us back swallow exceptions now and then, this one too: if nothing comes of it, leave anyway."""
    later = threading.Timer(SWALLOWED_S, _leave)
    later.daemon = True
    later.start()
    raise KeyboardInterrupt


def _leave() -> None:
    _say("otherminds: stopped")
    os._exit(130)  # compiled code may still run in other threads, and an orderly end beside it can crash


def _choice(commands: list[type]) -> Any:
    """The commands as tyro wants them. `train --config FILE` takes its defaults from that file, so it is looked for first."""
    default = _saved_config(sys.argv[1:])
    kinds = [
        Annotated[
            kind,
            tyro.conf.subcommand(kind.__name__.lower(), default=default)
            if kind is Train and default
            else tyro.conf.subcommand(kind.__name__.lower()),
        ]
        for kind in commands
    ]
    return Annotated[Union[tuple(kinds)], tyro.conf.ConsolidateSubcommandArgs, tyro.conf.FlagCreatePairsOff]  # noqa: UP007


def _saved_config(arguments: list[str]) -> Train | None:
    if not arguments or arguments[0] != "train":
        return None
    from otherminds.runs import read_config

    for k, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == "--config" and (equals or k + 1 < len(arguments)):
            return read_config(Path(value if equals else arguments[k + 1]))
    return None


def _say(line: str) -> None:
    with contextlib.suppress(OSError):  # a terminal that is gone: the exit code still says it
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
    keep_programs()
    from otherminds.demo import run_demo

    run_demo(options)


def list_everything(options: List) -> None:
    from otherminds.games import GAMES, make
    from otherminds.learners import LEARNERS
    from otherminds.partners import PARTNERS

    games = [(name, make(name)) for name in GAMES]
    if options.json:
        rows = [dict(id=name, kind=game.kind, form=game.form, seats=game.seats, symmetric=game.symmetric) for name, game in games]
        _print_json(
            {
                "games": rows,
                "partners": {family: sorted(names) for family, names in PARTNERS.items()},
                "learners": sorted(LEARNERS),
            }
        )
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
    print("\nlearners")
    for name in LEARNERS:
        summary = (getattr(Train(), name).__doc__ or "").split("\n")[0]
        print(f"  {name:<24} {summary}")


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


def keep_programs() -> None:
    """Keep compiled programs on disk, so that the second run of a kind starts at once. JAX's own variable names another place."""
    import jax

    # Where there is no room for a program, or only half of one, it is compiled as if nothing had been kept.
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache")
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    home = os.environ.get("LOCALAPPDATA") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    jax.config.update("jax_compilation_cache_dir", str(Path(home) / "otherminds" / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def train(options: Train) -> None:
    keep_programs()
    from otherminds.train import train as run

    _run(lambda: run(options, say=_note), options.json)


def resume(options: Resume) -> None:
    keep_programs()
    from otherminds.train import resume as run

    _run(lambda: run(options.run, say=_note), options.json)


def _run(work: Callable[[], dict[str, Any]], as_json: bool) -> None:
    from otherminds.train import Stopped

    try:
        result = work()
    except Stopped as reason:
        _say(f"otherminds: {reason}")
        sys.stdout.flush()
        os._exit(reason.code)
    if as_json:
        _print_json(result)
        return
    reward = "" if result["reward"] is None else f", mean reward while training {result['reward']:.3f}"
    print(
        f"{result['run']}: {result['steps']:,} steps in {result['seconds']:.0f} s, "
        f"{result['game_steps_per_s']:,} game steps/s{reward}\n"
        f"next: otherminds evaluate {quote(result['run'])}"
    )


def _note(line: str) -> None:
    from otherminds.progress import Onlooker

    Onlooker(stderr=True, soft_wrap=True).print(line, style="yellow", markup=False, highlight=False)


def collect(options: Collect) -> None:
    keep_programs()
    from otherminds.dataset import gather, save

    _require_new(options.out)
    data = gather(options)
    save(data, options.out)
    result = {"data": str(options.out), "game": data.game.id, "rows": len(data), "episodes": int(data.rows.first.sum())}
    if options.json:
        _print_json(result)
    else:
        print(f"{result['rows']:,} steps of {result['episodes']:,} episodes of {data.game.id}: {options.out}")


def _require_new(out: Path) -> None:
    config.require(out.suffix == ".npz", f"--out is {out}, expected a name that ends in .npz: --out {out}.npz")
    config.require(not out.exists(), f"{out} exists already: give another --out, or remove it first")


def convert(options: Convert) -> None:
    keep_programs()
    from otherminds.convert import convert as run
    from otherminds.dataset import save

    _require_new(options.out)
    data, found = run(options)
    save(data, options.out)
    result = {"data": str(options.out), "game": data.game.id, "rows": len(data), "episodes": int(data.rows.first.sum()), **found}
    if options.json:
        _print_json(result)
        return
    print(f"{result['rows']:,} steps of {result['episodes']:,} episodes of {data.game.id}: {options.out}")
    if found["agreement"] is None:
        print("  not held against the rules: an observation of this game does not determine its state")
    else:
        shares = ", ".join(f"{what} {share:.2%}" for what, share in found["agreement"].items())
        print(f"  as the rules have it: {shares}")
    if found["dropped_steps"]:
        print(f"  {found['dropped_steps']:,} steps dropped: of episodes without an end, or last steps without what they led to")
    if found["absent_actions"]:
        print(f"  {found['absent_actions']:,} actions recorded of players who had left: now none")
    if found["unknown"]:
        print(f"  unknown: {', '.join(found['unknown'])}")


def fit(options: Fit) -> None:
    keep_programs()
    from otherminds.fit import fit as run

    result = run(options)
    if options.json:
        _print_json(result)
        return
    print(f"{result['module']} of {result['game']}, {result['samples']:,} samples, {result['seconds']:.0f} s: {result['fit']}")
    _print_scores(result["scores"])


def _print_scores(scores: dict[str, Any]) -> None:
    """Means and intervals, also those in groups; what is split by partner or player is in files."""
    groups = {name: part for name, part in scores.items() if isinstance(part, dict) and not name.startswith("by_")}
    inner = {f"{name}.{key}": value for name, part in groups.items() for key, value in part.items() if isinstance(value, dict)}
    for name, score in (groups | inner).items():
        if "mean" in score:
            width = f"  [{score['low']:.4g}, {score['high']:.4g}]" if "low" in score else ""
            print(f"  {name:<32} {score['mean']:.4g}{width}")


def diagnose(options: Diagnose) -> None:
    keep_programs()
    from otherminds.diagnose import diagnose as run
    from otherminds.diagnostics.checkpoints import tables
    from otherminds.runs import folder_of

    result = run(options)
    if options.json:
        _print_json(result)
        return
    console = Console()
    for module, found in result.items():
        if module == "findings":
            continue
        console.print(f"[bold]{module}[/]", highlight=False)
        _print_scores({name: part for name, part in found.items() if name not in ("first", "taught", "checkpoints")})
        for table in tables(found["checkpoints"]) if "checkpoints" in found else ():
            console.print(table)
    for finding in result["findings"]:
        figures = ", ".join(f"{name} {value}" for name, value in finding["evidence"].items())
        figures += f", in {finding['seeds']} seeds" if finding["seeds"] != "1 of 1" else ""
        mark, style = ("BROKEN?", "bold red") if finding["judged"] else ("UNKNOWN", "yellow")
        console.print(f"{mark} {finding['module']}: {finding['what']} ({figures})", style=style, markup=False, highlight=False)
    if not result["findings"]:
        console.print("nothing seems to be broken", style="green")
    print("tables and pictures: " + ", ".join(f"{folder_of(target) / 'diagnostics'}" for target in options.targets))


def evaluate(options: Evaluate) -> None:
    keep_programs()
    from rich.table import Table

    from otherminds.evaluate import Estimate
    from otherminds.evaluate import evaluate as run

    result = run(options)
    if options.json:
        _print_json(result)
        return
    seeds = len(result["per_seed"])
    title = f"{result['run']} at step {result['step']:,}, {result['play']}: {result['game']}"
    table = Table("seat", "who", "reward", title=title)

    def shown(part: dict[str, Any]) -> str:
        return str(Estimate(part["mean"], part["low"], part["high"]))

    for seat, (who, reward) in enumerate(zip(result["seats"], result["reward"]["per_seat"], strict=True)):
        table.add_row(f"player_{seat + 1}", who, shown(reward))
    table.add_section()
    table.add_row("all", "", shown(result["reward"]))
    if "iqm" in result:
        table.add_row("IQM of seeds", "", shown(result["iqm"]))
    if "win_rate" in result:
        table.add_row("win rate", "", f"{result['win_rate']:.3f}")
    console = Console()
    console.print(table)
    if "frozen_seeds" in result:
        console.print(f"not finite while training, and counted as before that: seeds {result['frozen_seeds']}", style="yellow")
    console.print(
        f"{seeds} seeds x {result['episodes']:,} episodes, 95 % intervals over {result['interval_over']}", highlight=False
    )


def adapt(options: Adapt) -> None:
    keep_programs()
    from otherminds.adaptation import adapt as run

    result = run(options)
    if options.json:
        _print_json(result)
        return
    Console().print(adaptation_table(result))
    print(
        f"{len(result['seeds'])} seeds x {result['meetings']} meetings of {result['steps']:,} steps with each set, "
        f"{'with' if result['search'] else 'without'} search, rewards of the last {result['last']} steps, "
        f"95 % intervals over {result['interval_over']}"
    )


def adaptation_table(result: dict[str, Any]) -> Any:
    """What `adapt` found, for people."""
    from rich.table import Table

    from otherminds.evaluate import Estimate

    columns = ("partners", "reward", "commonest action", "foreseen", "possible", "belief in true goals")
    table = Table(*columns, title=f"{result['run']}: adaptation")
    share = lambda part, name: f"{part[name]['mean']:.2f}" if part.get(name) else ""  # noqa: E731
    for part in result["sets"]:
        reward = Estimate(part["reward"]["mean"], part["reward"]["low"], part["reward"]["high"])
        foreseen = [share(part.get("foresight", {}), name) for name in ("majority", "top_1", "top_1_exact")]
        table.add_row(part["set"], str(reward), *foreseen, share(part, "belief"))
    return table


def ablate(options: Ablate) -> None:
    keep_programs()
    from otherminds.ablate import ablate as run
    from otherminds.ablate import tables
    from otherminds.runs import folder_of
    from otherminds.train import Stopped

    try:
        result = run(options, say=_note)
    except Stopped as reason:
        _say(f"otherminds: {reason}; run the same command again to go on")
        sys.stdout.flush()
        os._exit(reason.code)
    if options.json:
        _print_json(result)
        return
    for table in tables(result):
        Console().print(table)
    folder = folder_of(options.name)
    print(f"{folder / 'ablation.md'}, {folder / 'ablation.json'}")


def audit(options: Audit) -> None:
    keep_programs()
    from otherminds.audit import audit_game, describe, verdict
    from otherminds.audit_run import audit_run
    from otherminds.games import BRIDGES, GAMES, make
    from otherminds.progress import track
    from otherminds.runs import beside, folder_of, write_json

    name = options.target.partition("?")[0]
    folder = None if name in GAMES or name.partition(":")[0] in BRIDGES else folder_of(options.target)
    if folder and not (folder / "config.json").is_file():
        raise BadInput(f"'{options.target}' is neither a game nor a run: {closest(options.target, [*GAMES, *beside(folder)])}")
    found = audit_run(folder) if folder else audit_game(make(options.target), options.seed)
    checks = []
    console = Console()
    for check in track(found, f"audit {options.target}"):
        checks.append(check)
        if not options.json:
            mark = {True: "[green]PASS[/]", False: "[bold red]FAIL[/]", None: "[dim]NONE[/]"}[check.passed]
            console.print(f"{mark} [bold]{check.name}[/]: {describe(check)}", highlight=False)
    result = verdict(checks)
    if folder:
        write_json(folder / "audit.json", _finite(result))
    if options.json:
        _print_json(result)
    if not result["passed"]:
        sys.exit(1)


def bench(options: Bench) -> None:
    from otherminds import bench as of_games
    from otherminds import bench_hop as of_hop
    from otherminds import bench_planning as of_planning
    from otherminds import bench_ppo as of_ppo
    from otherminds import bench_runs as of_runs

    for count in options.parallel:
        config.require(count > 0, f"--parallel is {count}, expected a positive number of games")
    config.require(
        options.seed == 0 or options.what == "runs", "--seed is for `otherminds bench runs`: nothing else here is drawn"
    )
    measure, show = {
        "games": (of_games.bench_games, of_games.show_games),
        "ppo": (of_ppo.bench_ppo, of_ppo.show_ppo),
        "runs": (of_runs.bench_runs, of_runs.show_runs),
        "planning": (of_planning.bench_planning, of_planning.show_planning),
        "hop": (of_hop.bench_hop, of_hop.show_hop),
    }[options.what]
    result = measure(options)
    if options.json:
        _print_json(result)
    else:
        show(result, Console())
    if not result.get("passed", True):
        sys.exit(1)
