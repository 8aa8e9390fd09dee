"""The figures on single modules in these pages, made anew: `python docs/modules.py NAME ...`, or `--list`, or `--group goals`.

Each experiment fits a module on a dataset (collected if it is not there), diagnoses it, and leaves a small file in docs/results.
Finished parts are kept, so a run that was stopped is gone on with.
"""

import argparse
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PICTURES, DATA, RUNS = ROOT / "docs" / "results", ROOT / "docs" / "pictures", ROOT / "runs" / "data", ROOT / "runs"
MIX = "nearest_stag+nearest_hare+random+stubborn=0.7+switcher=stag-hare@5"
NEW = "stubborn=0.4+stubborn=0.9+switcher=hare-stag@3"
WALLS = "--game stag_hunt-8x8-4h1s-5b"
SMALL = "stag_hunt?height=4&width=4&hares=4"  # the rules of stag_hunt-4x4-4h1s, for other numbers of players

DATASETS = {
    "mix4": f"--seats {MIX} --episodes 25000",
    "mix4_test": f"--seats {MIX} --episodes 2600 --seed 1",
    "new4": f"--seats {NEW} --episodes 1500 --seed 2",
    "pairs4": "--seats nearest_stag+nearest_hare --episodes 12800 --meeting 25",
    "random4": "--seats random --episodes 500 --seed 3",
    "switch4": "--seats switcher=stag-hare@5+switcher=hare-stag@5 --episodes 1500 --seed 4",
    "turn4": "--seats switcher=stag-hare@e10+switcher=hare-stag@e10 --episodes 3200 --meeting 25 --seed 5",
    "learned4": "--seats run:ppo_selfplay --episodes 1500 --seed 6",
    "view4": f"--game stag_hunt-4x4-4h1s?view=2 --seats {MIX} --episodes 8000",
    "two": f"--game {SMALL}&players=2 --seats {MIX} --episodes 6000",
    "six": f"--game {SMALL}&players=6 --seats {MIX} --episodes 3000",
    "eight": f"--game {SMALL}&players=8 --seats nearest_stag+nearest_hare+random --episodes 2500",
    "snow4": "--game snowdrift-4x4 --seats nearest_drift+random+never_clear --episodes 6000",
    "plain4": "--seats nearest_stag+nearest_hare+random --episodes 25000",
    "mix8": f"{WALLS} --seats {MIX} --episodes 4000",
    "new8": f"{WALLS} --seats {NEW} --episodes 700 --seed 2",
    "pairs8": f"{WALLS} --seats nearest_stag+nearest_hare --episodes 6400 --meeting 25",
}


@dataclass(frozen=True)
class Experiment:
    """A fit and how it is diagnosed."""

    group: str
    module: str
    data: str
    options: str
    seeds: int = 5
    beside: tuple[str, ...] = ()
    """Other datasets to diagnose it on; `NAME:OPTIONS` adds options."""
    drawn: bool = False
    """Keep its pictures."""


def _world(options: str = "", data: str = "mix4", epochs: int = 40, **more: Any) -> Experiment:
    return Experiment("world_model", "world_model", data, f"--samples 50000 --epochs {epochs} {options}".strip(), **more)


def _partners(options: str = "", data: str = "mix4", epochs: int = 10, **more: Any) -> Experiment:
    return Experiment("opponent_model", "opponent_model", data, f"--samples 100000 --epochs {epochs} {options}".strip(), **more)


def _goals(options: str = "", data: str = "mix4", samples: int = 150_000, epochs: int = 6, **more: Any) -> Experiment:
    text = f"--samples {samples} --epochs {epochs} {options}".strip()
    return Experiment("goals", "goals", data, text, **({"seeds": 3} | more))


TOLD = "--labels true --opponent_model.identity True"
FAR = "--opponent_model.repeats 12"
CELLS = "--goals.acts.torso cells --goals.acts.repeats 12"  # sees around corners, at ten times the cost
BRIEF: dict[str, Any] = {"epochs": 10, "seeds": 3}  # of comparisons

EXPERIMENTS = {
    # the main figures first
    "world_4x4": _world(beside=("mix4_test:--samples 100000",), drawn=True),
    "partners_4x4_named": _partners(TOLD, beside=("new4",), drawn=True),
    "partners_4x4": _partners("--labels true", beside=("new4",)),
    "goals_4x4": _goals(samples=600_000, epochs=10, seeds=5, drawn=True),
    "by_hand_4x4": _goals(
        "--goals.kind manual --labels true",
        "pairs4",
        250_000,
        8,
        seeds=5,
        beside=("switch4:--switching 0.05", "switch4", "turn4:--switching 0.05"),
        drawn=True,
    ),
    "by_hand_4x4_reached": _goals("--goals.kind manual --labels reached", "pairs4", 250_000, 8, seeds=5),
    "partners_8x8_named": _partners(f"{TOLD} {FAR}", "mix8", 6, beside=("new8",)),
    "world_8x8": _world(data="mix8", epochs=10, seeds=3),
    # comparisons of world models
    "world_brief": _world(**BRIEF),
    "world_latent": _world("--world_model.kind latent", **BRIEF),
    "world_latent_consistent": _world("--world_model.kind latent --world_model.consistency 1.0", **BRIEF),
    "world_latent_contrastive": _world("--world_model.kind latent --world_model.contrastive 0.1", **BRIEF),
    "world_q": _world("--world_model.reward-target q", **BRIEF),
    "world_r_v": _world("--world_model.reward-target r+v", **BRIEF),
    "world_no_reward": _world("--world_model.reward-target none", **BRIEF),
    "world_weighted": _world("--world_model.plane-weights 1 4 4 4 1 4 4 0", **BRIEF),
    "world_weighted_time": _world("--world_model.plane-weights 1 4 4 4 1 4 4 1", **BRIEF),
    # what partners can be modelled from
    "partners_4x4_reached": _partners("--labels reached", seeds=5),
    "partners_4x4_rewarded": _partners("--labels reached --trajectories rewarded", seeds=5),
    "partners_4x4_player_1": _partners(f"{TOLD} --player 1", seeds=3),
    "partners_4x4_no_goal": _partners("--opponent_model.goal False", seeds=3),
    # comparisons of goals
    "goals_brief": _goals(),
    "goals_plain": _goals(data="plain4", samples=600_000, epochs=10, seeds=5),
    "goals_16_codes": _goals("--goals.codes 16"),
    "goals_32_codes": _goals("--goals.codes 32"),
    "goals_size_4": _goals("--goals.size 4"),
    "goals_size_16": _goals("--goals.size 16"),
    "goals_vae_4": _goals("--goals.kind vae --goals.size 4"),
    "goals_vae_8": _goals("--goals.kind vae"),
    "goals_vae_16": _goals("--goals.kind vae --goals.size 16"),
    "goals_vae_cheap": _goals("--goals.kind vae --goals.information 0.1"),
    "goals_state": _goals("--goals.encodes state"),
    "goals_state_conservative": _goals("--goals.encodes state --goals.choice conservative"),
    "goals_state_last": _goals("--goals.encodes state --goals.choice last"),
    "goals_state_time_reward": _goals("--goals.encodes state+time+reward"),
    "goals_drawn": _goals("--goals.trained-by reconstruction"),
    "goals_both": _goals("--goals.trained-by both"),
    "goals_vae_state": _goals("--goals.kind vae --goals.encodes state"),
    "goals_vae_state_conservative": _goals("--goals.kind vae --goals.encodes state --goals.choice conservative"),
    "goals_vae_drawn": _goals("--goals.kind vae --goals.encodes state --goals.trained-by reconstruction"),
    # elsewhere
    "world_snowdrift": _world(data="snow4"),
    "world_pairs": _world(data="pairs4", **BRIEF, beside=("random4", "switch4", "learned4")),
    "world_view": _world("--player 1", "view4", **BRIEF),
    "world_view_theirs": _world("", "view4", **BRIEF),
    "partners_view": _partners("--labels true --player 1", "view4", 10, seeds=3),
    "partners_view_theirs": _partners("--labels true --player 1 --partner-data theirs", "view4", 10, seeds=3),
    "world_2_players": _world(data="two", **BRIEF),
    "world_6_players": _world(data="six", **BRIEF),
    "world_8_players": _world(data="eight", **BRIEF),
    "goals_8x8": _goals(data="mix8", samples=100_000, epochs=10),
    "by_hand_8x8": _goals("--goals.kind manual --labels true", "pairs8", 150_000, 8),
    "by_hand_8x8_cells": _goals(f"--goals.kind manual --labels true {CELLS}", "pairs8", 150_000, 3, seeds=1),
    "goals_8x8_cells": _goals(CELLS, "mix8", 100_000, 10),
    "partners_8x8": _partners(f"--labels true {FAR}", "mix8", 6, seeds=3, beside=("new8",)),
}


def otherminds(*arguments: str) -> str:
    command = [sys.executable, "-m", "otherminds", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def dataset(name: str) -> Path:
    """Its file, collected if it is not there; how it was is kept beside it."""
    path, recipe = DATA / f"{name}.npz", DATASETS[name]
    made_by = path.with_suffix(".txt")
    if not path.exists():
        otherminds("collect", "--out", str(path), *recipe.split(), "--json")
        made_by.write_text(recipe, encoding="utf-8")
    elif made_by.exists() and made_by.read_text(encoding="utf-8") != recipe:
        sys.exit(f"{path} was collected by other options than {name} has now: remove it and {made_by.name} to collect it anew")
    return path


def run(name: str) -> None:
    experiment, folder, kept = EXPERIMENTS[name], RUNS / name, RESULTS / f"{name}.json"
    options = f"{experiment.options} --seeds {experiment.seeds}"
    made_by, command = folder / "made_by.txt", f"{experiment.data}: {DATASETS[experiment.data]}; {options}"
    finished = (folder / "result.json").exists()
    if finished and not (made_by.exists() and made_by.read_text(encoding="utf-8") == command):
        sys.exit(f"{folder} was made by other options than {name} has now, or nobody knows by which: remove it to make it anew")
    if not finished:
        shutil.rmtree(folder, ignore_errors=True)
        otherminds("fit", experiment.module, str(dataset(experiment.data)), "--name", name, *options.split(), "--json")
        made_by.write_text(command, encoding="utf-8")
    fitted = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    found = {"": diagnosed(name)}
    if "target_mse" in fitted["scores"]:  # what values a head was to say is known only where it was fitted
        found[""]["target_mse"] = fitted["scores"]["target_mse"]
    if experiment.drawn:
        for picture in (folder / "diagnostics").glob("*.png"):
            shutil.copy(picture, PICTURES / f"{name}_{picture.name}")
    for beside in experiment.beside:
        data, _, more = beside.partition(":")
        found[beside] = diagnosed(name, "--data", str(dataset(data)), "--pictures", "False", *more.split())
    result = {
        "data": f"otherminds collect --out {experiment.data}.npz {DATASETS[experiment.data]}",
        "command": f"otherminds fit {experiment.module} {experiment.data}.npz {options}",
        **{
            key: fitted[key]
            for key in ("samples", "episodes", "epochs", "seeds", "seconds", "peak_memory_mb")
            if key in fitted  # episodes are counted where whole ones are learned from
        },
        "diagnosed": found,
    }
    kept.write_text(json.dumps(rounded(result)) + "\n", encoding="utf-8")
    print(name, f"{fitted['seconds']:.0f} s", flush=True)


def diagnosed(name: str, *options: str) -> dict[str, Any]:
    """What `diagnose` says of the module, without the tables of single seeds."""
    said = json.loads(otherminds("diagnose", name, *options, "--json"))
    module = next(key for key in said if key != "findings")
    found = said[module]
    first = found.pop("first")
    extra = {key: first[key] for key in ("by_action", "gate") if key in first}
    found.pop("data")
    return found | {"first": extra, "findings": said["findings"]}


def rounded(value: Any) -> Any:
    """Numbers with as many digits as are worth keeping."""
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="experiments to run; all that have no result yet if none is named")
    parser.add_argument("--group", help="only those of one module")
    parser.add_argument("--list", action="store_true", help="only show them")
    options = parser.parse_args()
    unknown = set(options.names) - set(EXPERIMENTS)
    if unknown:
        parser.error(f"no experiment {', '.join(sorted(unknown))}: choose from {', '.join(EXPERIMENTS)}")
    chosen = [name for name, one in EXPERIMENTS.items() if options.group in (None, one.group)]
    for name in options.names or chosen:
        if options.list:
            one = EXPERIMENTS[name]
            print(f"{name:<28} otherminds fit {one.module} {one.data}.npz {one.options} --seeds {one.seeds}")
        elif options.names or not (RESULTS / f"{name}.json").exists():
            run(name)


if __name__ == "__main__":
    main()
