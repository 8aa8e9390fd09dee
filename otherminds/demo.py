"""The main job in small: agents that nobody told anything learn to hunt together, then meet strangers.

HOP+ learns in self-play what others are after, what they will do and what a step leads to. Frozen, it then meets partners it has
never seen. What it earns there stands beside what scripts earn in its place.
"""

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
from otherminds.adaptation import SETS, Meetings, adapt, play_meetings
from otherminds.config import Adapt, Demo, Train, require
from otherminds.diagnostics.meetings import episodes
from otherminds.evaluate import Estimate, episode_rewards, estimate
from otherminds.games import make
from otherminds.games.base import Game
from otherminds.partners import make_partner
from otherminds.progress import track
from otherminds.runs import folder_of, read_config
from otherminds.train import train

GAME = "stag_hunt-4x4-4h1s"
LEARNER = "hop_plus"
STRANGERS = ("3ns", "3nh", "3random")
SCRIPTS = {"nearest_stag": "3ns", "nearest_hare": "3nh", "random": "3random"}
"""Who could sit in the place of the learner, and the set of partners among which it would be one of four equals."""
SCRIPTED_STEPS = 600


def run_demo(options: Demo) -> None:
    require(options.episodes > 1, f"--episodes is {options.episodes}, expected at least 2")
    require(options.steps > 0, f"--steps is {options.steps}, expected at least 1: --steps 1000000")
    require(options.meetings > 0, f"--meetings is {options.meetings}, expected at least 1: --meetings 16")
    folder = folder_of(options.name)
    learned = folder / LEARNER
    if _of_a_demo(learned):
        shutil.rmtree(learned)
    require(not learned.exists(), f"{learned} exists and is not of a demo: give another --name")
    folder.mkdir(parents=True, exist_ok=True)
    game, begin = make(GAME), time.perf_counter()
    lines = [line for script in track(list(SCRIPTS), "what scripts earn") for line in _scripts(game, options, script)]
    say = Console(stderr=True, soft_wrap=True).print
    trained = train(_training(options), folder=learned, say=say)
    policies = seats.resolve(game, f"run:{learned}")
    own = asdict(estimate(episode_rewards(game, policies, options.episodes, jax.random.key(options.seed)).mean(1)))
    met = adapt(Adapt(str(learned), sets=STRANGERS, replicas=options.meetings, seed=options.seed))
    result = {
        "game": GAME,
        "learner": LEARNER,
        "steps": trained["steps"],
        "training_s": trained["seconds"],
        "self_play": own,
        "strangers": [{"set": one["set"], "reward": one["reward"], "foresight": one.get("foresight")} for one in met["sets"]],
        "scripts": lines,
        "seconds": round(time.perf_counter() - begin, 1),
    }
    episode = render.record(game, policies, [LEARNER] * game.seats, options.seed)
    render.save_gif(episode, folder / "replay.gif", cell=96)
    result["seconds"] = round(time.perf_counter() - begin, 1)
    (folder / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if options.json:
        print(json.dumps(result))
    else:
        _show(result, folder, learned)


def _training(options: Demo) -> Train:
    return Train(game=GAME, seats=LEARNER, steps=options.steps, seed=options.seed, tensorboard=False)


def _of_a_demo(folder: Path) -> bool:
    """Whether a run is what an earlier demo left, whatever its steps and seed: that may go, and nothing else."""
    if not (folder / "config.json").is_file():
        return False
    return replace(read_config(folder), steps=1, seed=0) == replace(_training(Demo()), steps=1, seed=0)


def _scripts(game: Game, options: Demo, script: str) -> list[dict[str, Any]]:
    """What a script earns in the place of the learner."""
    everyone = tuple(range(game.seats))
    meetings = Meetings.plan(game, STRANGERS, everyone, 4 * options.meetings)
    policy, key = make_partner(script, game, game.seats), jax.random.key(options.seed)
    seen = play_meetings(game, policy, everyone, meetings, SCRIPTED_STEPS, key, script)
    scores, _ = episodes(seen, SCRIPTED_STEPS)
    return [
        {"script": script, "set": name, "reward": asdict(estimate(scores[meetings.which == number]))}
        for number, name in enumerate(STRANGERS)
    ]


def _show(result: dict[str, Any], folder: Path, learned: Path) -> None:
    columns = ["partners", f"{result['learner']}", *SCRIPTS, "their actions foreseen"]
    table = Table(*columns, title=f"{result['game']}: what one player earns in an episode")
    mean = {(line["script"], line["set"]): line["reward"]["mean"] for line in result["scripts"]}
    rows = [("self-play", result["self_play"], None)]
    rows += [(one["set"], one["reward"], one["foresight"]) for one in result["strangers"]]
    for name, reward, foresight in rows:
        shown = [f"{mean[script, name if name in SETS else equals]:.2f}" for script, equals in SCRIPTS.items()]
        share = " of a possible ".join(f"{foresight[part]['mean']:.0%}" for part in ("top_1", "top_1_exact")) if foresight else ""
        table.add_row(name, str(Estimate(**reward)), *shown, share)
    console = Console()
    console.print(table)
    console.print(
        f"{result['steps']:,} steps of self-play in {result['training_s']:.0f} s; partners below the first line were never met "
        "before. The ceiling in self-play is 3.00: two on the stag, two on hares.\n"
        f"Run: {learned}   Replay: {folder / 'replay.gif'}   Figures: {folder / 'result.json'}   ({result['seconds']} s)",
        highlight=False,
        soft_wrap=True,
    )
