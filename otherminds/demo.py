"""The main job in small: play, measure, leave something to look at."""

import json
import shutil
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from otherminds import render, seats
from otherminds.config import Demo, Train, require
from otherminds.evaluate import episode_rewards, estimate
from otherminds.games import make
from otherminds.games.base import Game
from otherminds.progress import track
from otherminds.runs import folder_of, read_config
from otherminds.train import train
from otherminds.types import Seated

GAME = "stag_hunt-4x4-4h1s"
LINEUPS = (
    "random",
    "nearest_hare",
    "nearest_stag",
    "nearest_stag,nearest_stag,nearest_hare,nearest_hare",
    "nearest_stag,nearest_stag,nearest_hare,random",
    "stubborn=0.7",
)


def run_demo(options: Demo) -> None:
    require(options.episodes > 1, f"--episodes is {options.episodes}, expected at least 2")
    require(options.steps > 0, f"--steps is {options.steps}, expected at least 1: --steps 200000")
    folder = folder_of(options.name)
    learned = folder / "ppo"
    if _of_a_demo(learned):
        shutil.rmtree(learned)
    require(not learned.exists(), f"{learned} exists and is not of a demo: give another --name")
    folder.mkdir(parents=True, exist_ok=True)
    game, begin = make(GAME), time.perf_counter()
    lines: list[dict[str, Any]] = []
    for lineup in track(LINEUPS, f"{GAME}, {options.episodes:,} episodes each"):
        lines.append(_line(lineup, game, seats.resolve(game, lineup), options))
    say = Console(stderr=True, soft_wrap=True).print
    trained = train(Train(game=GAME, steps=options.steps, seed=options.seed, tensorboard=False), folder=learned, say=say)
    policies = seats.resolve(game, f"run:{learned}")
    who = f"ppo, {trained['steps']:,} steps in {trained['seconds']:.0f} s"
    lines.append(_line(who, game, policies, options))
    episode = render.record(game, policies, ["ppo"] * game.seats, options.seed)
    render.save_gif(episode, folder / "replay.gif", cell=96)
    result = {"game": GAME, "episodes": options.episodes, "lineups": lines, "seconds": round(time.perf_counter() - begin, 1)}
    (folder / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if options.json:
        print(json.dumps(result))
    else:
        _show(result, folder)


def _of_a_demo(folder: Path) -> bool:
    """Whether a run is what an earlier demo left, whatever its steps and seed: that may go, and nothing else."""
    if not (folder / "config.json").is_file():
        return False
    return replace(read_config(folder), steps=1, seed=0) == replace(Train(), game=GAME, steps=1, tensorboard=False)


def _line(name: str, game: Game, policies: tuple[Seated, ...], options: Demo) -> dict[str, Any]:
    """What these policies earn."""
    rewards = episode_rewards(game, policies, options.episodes, jax.random.key(options.seed))
    per_seat = [asdict(estimate(rewards[:, seat])) for seat in range(game.seats)]
    return {"seats": name, "reward": {**asdict(estimate(rewards.mean(1))), "per_seat": per_seat}}


def _show(result: dict[str, Any], folder: Path) -> None:
    table = Table(
        "seats", "mean reward", "player_1", "player_2", "player_3", "player_4", title=f"{result['game']}: who earns what"
    )
    for line in result["lineups"]:
        mean = line["reward"]
        seats_shown = [f"{seat['mean']:.2f}" for seat in mean["per_seat"]]
        table.add_row(
            line["seats"].replace(",n", ", n").replace(",r", ", r"),
            f"{mean['mean']:.2f} [{mean['low']:.2f}, {mean['high']:.2f}]",
            *seats_shown,
        )
    console = Console()
    console.print(table)
    console.print(
        f"Mean over {result['episodes']:,} episodes with 95 % intervals; two on the stag and two on hares would be 3.00.\n"
        f"Replay: {folder / 'replay.gif'}   Figures: {folder / 'result.json'}   ({result['seconds']} s)",
        highlight=False,
        soft_wrap=True,
    )
