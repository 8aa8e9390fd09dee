"""What a run costs besides learning: how soon it starts, how much memory it takes, and whether it survives being killed.

Everything is measured as a user meets it: `otherminds` typed in a process of its own, watched through the files it writes.
"""

import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from otherminds import checkpoint
from otherminds.config import Bench, Train, require
from otherminds.machine import machine
from otherminds.progress import track

GAMES = ("stag_hunt-4x4-4h1s", "stag_hunt-8x8-4h1s-5b", "snowdrift-4x4", "matrix-ipd")
LEARNERS = ("ppo", "mappo")
SEEDS = (1, 8)
UPDATES = 2  # of a training whose memory is measured: it is held from the first on
KILLS = 20
COMPARED = ("parameters", "metrics", "state")
KILLED = (  # with everything that is hard to go on with: a late learner, a pool of partners, evaluations, seeds
    "--game stag_hunt-4x4-4h1s --seats ppo,nearest_stag~50000~mappo,nearest_hare+nearest_stag,ppo --seeds 2 --parallel 32 "
    "--rollout 10 --steps 150000 --evaluate-every 10000 --checkpoint-every 0.2"
)
STARTING_S = 9.0  # how long to wait at most before a kill while a process starts
HANGS_S = 300.0


def bench_runs(options: Bench) -> dict[str, Any]:
    require(
        not options.games and options.parallel == Bench.parallel,
        "--games and --parallel are for `otherminds bench games`: bench runs has games and sizes of its own",
    )
    require(options.peer is None, "--peer is for `otherminds bench ppo`: bench runs has no peer")
    with tempfile.TemporaryDirectory() as place:
        result: dict[str, Any] = {
            "help_s": measure_help(),
            "start": [measure_start(game, Path(place)) for game in track(GAMES, "starting, twice in each game")],
            "memory": measure_memory(Path(place)),
            "side_by_side": measure_side_by_side(Path(place)),
            "kills": measure_kills(Path(place), KILLED.split(), KILLS, random.Random(options.seed)),
            "machine": machine(),
        }
    kills = result["kills"]
    same = [result["side_by_side"]["same_parameters"], *(kills[f"same_{name}"] for name in COMPARED)]
    return result | {"passed": all(same) and kills["kills"] == KILLS}


@contextlib.contextmanager
def typed(*words: str, compiled: Path, said: Path) -> Iterator[subprocess.Popen]:
    """`otherminds` with these words, in a process of its own, which ends with this context at the latest.

    What it compiles is kept in `compiled`, what it says in `said`.
    """
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(compiled)}
    with open(said, "wb") as file:
        process = subprocess.Popen([sys.executable, "-m", "otherminds", *words], stdout=file, stderr=file, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def finish(process: subprocess.Popen, said: Path) -> None:
    """Wait for it; if it failed, so do we, with its last words."""
    try:
        code = process.wait(HANGS_S)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{process.args!r} has not ended after {HANGS_S:.0f} s: {_last_words(said)}") from error
    if code:
        raise RuntimeError(f"{process.args!r} ended with {code}: {_last_words(said)}")


def _last_words(said: Path) -> str:
    return said.read_text(encoding="utf-8", errors="replace").strip()[-500:]


def run(*words: str, compiled: Path, said: Path) -> None:
    """The same, to its end."""
    with typed(*words, compiled=compiled, said=said) as process:
        finish(process, said)


@contextlib.contextmanager
def watched(words: list[str], compiled: Path) -> Iterator[Iterator[dict[str, Any]]]:
    """The rows of metrics that `otherminds train` writes with these options, as they come; it ends with this context."""
    with tempfile.TemporaryDirectory() as place:
        folder, said = Path(place, "run"), Path(place, "said.txt")
        with typed("train", "--name", str(folder), *words, "--json", compiled=compiled, said=said) as process:
            yield _rows_of(folder / "metrics.jsonl", process)
            if process.poll():
                finish(process, said)


def _rows_of(file: Path, process: subprocess.Popen) -> Iterator[dict[str, Any]]:
    position, over = 0, False
    while not over:
        over = process.poll() is not None  # asked before the last look at the file, so that no row is missed
        if file.exists():
            with open(file, "rb") as lines:
                lines.seek(position)
                whole = lines.read().rpartition(b"\n")
            position += len(whole[0]) + len(whole[1])
            yield from map(json.loads, whole[0].splitlines())
        time.sleep(0.05)


def measure_help(times: int = 5) -> float:
    """From typing `otherminds --help` to its end; the median."""
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-m", "otherminds", "--help"], check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - begin)
    return round(statistics.median(seconds), 2)


def measure_start(game: str, place: Path) -> dict[str, Any]:
    """From typing `otherminds train` to the metrics of the first update: with nothing compiled, and with what that left."""
    compiled, seconds = place / f"compiled-{game}", []
    for _ in range(2):
        begin = time.perf_counter()
        with watched(["--game", game], compiled) as rows:
            if next(rows, None) is not None:  # else it has failed, and leaving says how
                seconds.append(round(time.perf_counter() - begin, 1))
    return {"game": game, "first_s": seconds[0], "second_s": seconds[1]}


def measure_memory(place: Path) -> list[dict[str, Any]]:
    """The most that a whole training process holds, compilation included, for our games and learners as they come."""
    found = []
    sizes = [(game, learner, seeds) for game in GAMES for learner in LEARNERS for seeds in SEEDS]
    for k, (game, learner, seeds) in enumerate(track(sizes, "training for the memory it takes")):
        steps = UPDATES * Train(game=game).steps_per_update
        folder, said = place / f"memory-{k}", place / "said.txt"
        words = f"--game {game} --seats {learner} --seeds {seeds} --steps {steps} --json".split()
        run("train", "--name", str(folder), *words, compiled=place / "memory", said=said)
        memory = json.loads((folder / "result.json").read_text(encoding="utf-8"))["peak_memory_mb"]
        found.append({"game": game, "learner": learner, "seeds": seeds, "peak_memory_mb": memory})
    return found


def measure_side_by_side(place: Path) -> dict[str, Any]:
    """Two trainings at the same time, beside the same training alone: what they learn must not depend on it."""
    seconds, digests = [], []
    for names in track([("alone",), ("left", "right")], "one training, then two side by side"):
        begin = time.perf_counter()
        with contextlib.ExitStack() as started:
            processes = [started.enter_context(_default_training(place / name, place / "memory")) for name in names]
            for process, name in zip(processes, names, strict=True):
                finish(process, place / f"{name}.txt")
        seconds.append(round(time.perf_counter() - begin, 1))
        digests += [_digest(place / name) for name in names]
    return {"alone_s": seconds[0], "two_s": seconds[1], "same_parameters": len(set(digests)) == 1}


def _default_training(folder: Path, compiled: Path) -> Any:
    return typed("train", "--name", str(folder), "--json", compiled=compiled, said=folder.with_suffix(".txt"))


def _digest(run: Path) -> str:
    digest: str = json.loads((run / "result.json").read_text(encoding="utf-8"))["parameters_sha256"]
    return digest


def measure_kills(place: Path, words: list[str], kills: int, chance: random.Random) -> dict[str, Any]:
    """Kill a run at random moments, go on each time, and compare it with one that was left alone, byte for byte.

    One kill in four falls while the process starts, one while a checkpoint is being written, two anywhere.
    """
    whole, cut, compiled, said = place / "whole", place / "cut", place / "killed", place / "said.txt"
    run("train", "--name", str(whole), *words, "--json", compiled=compiled, said=said)
    steps = _newest(whole)
    at: list[int] = []
    writing = 0
    for kill in track(range(kills), "killing a run and going on"):
        kind, parts = ("starting", "writing", "playing", "playing")[kill % 4], _parts(cut)
        goal = max(_newest(cut), steps * (kill + chance.random()) / (kills + 1))  # spread over the whole run
        with typed(*_again(cut, words), compiled=compiled, said=said) as process:
            limit = time.monotonic() + HANGS_S
            if kind == "starting":
                time.sleep(chance.uniform(0, STARTING_S))
            while kind != "starting" and process.poll() is None and time.monotonic() < limit:
                if _parts(cut) - parts if kind == "writing" else _newest(cut) > goal:
                    break
                time.sleep(0 if kind == "writing" else 0.01)
            if process.poll() is not None:
                finish(process, said)  # it came to its end before it could be killed
                break
        at.append(_newest(cut))
        writing += bool(_parts(cut) - parts)
    run(*_again(cut, words), compiled=compiled, said=said)
    return {"kills": len(at), "while_writing": writing, "at_checkpoint": at, "steps": steps, **compared(cut, whole)}


def compared(cut: Path, whole: Path) -> dict[str, bool]:
    """Whether two runs ended in the same way."""
    last = _newest(whole)
    return {
        "same_parameters": _digest(cut) == _digest(whole),
        "same_metrics": _same(cut, whole, "metrics.jsonl"),
        "same_state": _newest(cut) == last and _same(cut, whole, f"checkpoints/{last}/state.safetensors"),
    }


def _parts(folder: Path) -> set[str]:
    """Checkpoints that are being written, or were when somebody died."""
    return {path.name for path in (folder / "checkpoints").glob(".*.part")}


def _again(folder: Path, words: list[str]) -> list[str]:
    begun = (folder / "config.json").exists()
    return ["resume", str(folder), "--json"] if begun else ["train", "--name", str(folder), *words, "--json"]


def _newest(folder: Path) -> int:
    return max(checkpoint.steps(folder), default=0)


def _same(one: Path, other: Path, name: str) -> bool:
    return (one / name).read_bytes() == (other / name).read_bytes()


def show_runs(result: dict[str, Any], console: Console) -> None:
    """In sentences: there is nothing to compare line by line."""
    start, memory, beside, kills = (result[name] for name in ("start", "memory", "side_by_side", "kills"))
    console.print(f"`otherminds --help`: {result['help_s']:.2f} s")
    for row in start:
        console.print(
            f"first update of {row['game']}: {row['first_s']:.1f} s after typing, {row['second_s']:.1f} s the second time"
        )
    for seeds in sorted({row["seeds"] for row in memory}):
        most = max((row for row in memory if row["seeds"] == seeds), key=lambda row: row["peak_memory_mb"])
        console.print(
            f"memory of a training with {seeds} seed{'s' * (seeds > 1)}: at most {most['peak_memory_mb']:,} MB "
            f"({most['learner']} in {most['game']})"
        )
    console.print(
        f"two trainings side by side: {beside['two_s']:.1f} s, one alone {beside['alone_s']:.1f} s; "
        f"{'the same' if beside['same_parameters'] else 'NOT the same'} parameters"
    )
    same = [name for name in COMPARED if kills[f"same_{name}"]]
    other = [name for name in COMPARED if not kills[f"same_{name}"]]
    console.print(
        f"killed {kills['kills']} times, {kills['while_writing']} of them while writing, and gone on with: "
        f"the same {', '.join(same) or 'nothing'}" + (f"; NOT the same {', '.join(other)}" if other else "")
    )
