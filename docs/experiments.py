"""The learning results in these pages, made anew: `python docs/experiments.py NAME ...`, or `--list`, or `--draw`.

Each experiment trains a run, evaluates it, audits it, and leaves a small file in docs/results: figures and a curve for each seed.
A run that was stopped is gone on with; one that is finished is only evaluated. `--draw` draws the curves into docs/pictures.
"""

import argparse
import dataclasses
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from modules import rounded

from otherminds.adaptation import SETS
from otherminds.config import PRESETS, Train
from otherminds.runs import read_config

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PICTURES = ROOT / "docs" / "results", ROOT / "docs" / "pictures"
POINTS = 50  # of a curve
FORESEEN = ("top_1", "floor_top_1", "ceiling_top_1", "cross_entropy", "ceiling_cross_entropy")


@dataclass(frozen=True)
class Experiment:
    """A run and how it is looked at."""

    train: str
    evaluate: str = ""
    drawn: int | None = None
    """The player whose reward is drawn, where the mean of all who learn says nothing."""
    adapt: str | None = None
    """With which options it meets strangers, with search and without if it searches; none: it meets nobody."""
    preset: str = ""
    """Of HOP, which one."""
    before: tuple[str, ...] = ()
    """Commands that make what it starts from: `collect`, `fit`. One whose --out or --name is there has been run."""


def _three_stag_hunters(player: int) -> Experiment:
    seats = ",".join("ppo" if seat == player else "nearest_stag" for seat in range(1, 5))
    return Experiment(f"--seats {seats} --steps 1000000 --seeds 8", "--episodes 8000")


def _segments(length: int) -> Experiment:
    return Experiment(f"--ppo.core gru --rollout 40 --ppo.segment {length} --steps 1000000 --seeds 3")


def _hop(preset: str, options: str = "", before: tuple[str, ...] = (), adapt: str | None = None) -> Experiment:
    train = f"--seats {preset} --steps 800000 --seeds 5 {options}".strip()
    return Experiment(train, "--episodes 1000", None, adapt, preset, before)


def _hop_beside(partners: str, player: int) -> Experiment:
    """One seat learns beside scripts; how well it foresees them is measured among the same."""
    names = ["hop_plus"] * 4
    for place, partner in enumerate(SETS[partners], player):  # behind the learner, as where it is measured
        names[place % 4] = partner
    options = f"--seats {','.join(names)} --steps 500000 --seeds 5"
    return Experiment(options, "--episodes 1000", player, f"--sets {partners} --quick", "hop_plus")


EXPERIMENTS = {
    **{preset: _hop(preset, adapt="--quick") for preset in PRESETS},
    "hop_plus_rewarded": _hop("hop_plus", "--hop.trajectories rewarded"),
    "hop_plus_warm": _hop(
        "hop_plus",
        "--hop.start warm_codes warm_world",
        (
            "collect --out runs/warm.npz --seats nearest_stag+nearest_hare+random --episodes 4000",
            "fit goals runs/warm.npz --name warm_codes --epochs 10",
            "fit world_model runs/warm.npz --name warm_world --samples 50000 --epochs 10 --world_model.channels 16",
        ),
    ),
    **{
        f"beside_{partners}_{player}": _hop_beside(partners, player)
        for partners in ("3ns", "3nh", "nh_ns_random")
        for player in range(1, 5)
    },
    "ppo_selfplay": Experiment("--steps 2000000 --seeds 8"),
    **{f"ppo_beside_3ns_{player}": _three_stag_hunters(player) for player in range(1, 5)},
    "ppo_joins_late": Experiment("--seats nearest_stag~200000~ppo,ppo,ppo,ppo --steps 1000000 --seeds 4"),
    **{f"ppo_segment_{length}": _segments(length) for length in (1, 5, 20, 40)},
    "ppo_8x8": Experiment("--game stag_hunt-8x8-4h1s --steps 4000000 --seeds 8"),
    "ppo_8x8_walls": Experiment("--game stag_hunt-8x8-4h1s-5b --steps 4000000 --seeds 8"),
    "ppo_snowdrift": Experiment("--game snowdrift-4x4?horizon=50 --steps 2000000 --seeds 8"),
    "ppo_pennies": Experiment("--game matrix-matching_pennies --steps 1000000 --seeds 4", drawn=1),
    "ppo_exploits_pennies_1": Experiment("--game matrix-matching_pennies --seats run:ppo_pennies,ppo --steps 1000000 --seeds 4"),
    "ppo_exploits_pennies_2": Experiment("--game matrix-matching_pennies --seats ppo,run:ppo_pennies --steps 1000000 --seeds 4"),
    "mappo_spread": Experiment("--game jaxmarl:MPE_simple_spread_v3 --seats mappo --steps 3000000 --seeds 8"),
    "mappo_3m": Experiment(
        "--game jaxmarl:smax-3m --seats mappo --steps 3000000 --seeds 8 --rollout 64 --epochs 10 --minibatches 2 "
        "--mappo.share True --mappo.hidden 128 128"
    ),
}


def otherminds(*arguments: str) -> str:
    command = [sys.executable, "-m", "otherminds", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def run(name: str) -> None:
    experiment, folder = EXPERIMENTS[name], ROOT / "runs" / name
    for command in experiment.before:
        words = command.split()
        made = words[words.index("--out") + 1] if "--out" in words else f"runs/{words[words.index('--name') + 1]}"
        if not (ROOT / made).exists():
            otherminds(*words)
    began = (folder / "config.json").exists()
    if began:
        require_made_by(folder, name, experiment.train)
    if not (folder / "result.json").exists():
        otherminds(*(["resume", name] if began else ["train", "--name", name, *experiment.train.split()]), "--json")
    trained = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    evaluated = json.loads(otherminds("evaluate", name, *experiment.evaluate.split(), "--json"))
    if "win_rate" in evaluated:  # as others judge it, by the likeliest actions; beside it, as everything else here, by drawn ones
        greedy = json.loads(otherminds("evaluate", name, *experiment.evaluate.split(), "--play", "greedy", "--json"))
        evaluated["greedy"] = {key: greedy[key] for key in ("reward", "win_rate", "win_rate_per_seed")}
    adapted, searches = [], bool(experiment.preset and PRESETS[experiment.preset].search)
    if searches:
        plain = json.loads(otherminds("evaluate", name, *experiment.evaluate.split(), "--search", "False", "--json"))
        evaluated["without_search"] = {key: plain[key] for key in ("reward", "per_seed")}
    if experiment.adapt is not None:
        for search in ("True", "False") if searches else ("True",):
            adapted.append(json.loads(otherminds("adapt", name, *experiment.adapt.split(), "--search", search, "--json")))
    audit = subprocess.run(
        [sys.executable, "-m", "otherminds", "audit", name, "--json"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    checks = json.loads(audit.stdout)["checks"]
    result = {
        "command": f"otherminds train --name {name} {experiment.train}",
        **({"before": list(experiment.before)} if experiment.before else {}),
        "evaluation": f"otherminds evaluate {name} {experiment.evaluate}".strip(),
        "train": trained,
        "evaluate": evaluated,
        **({"adapt": adapted} if adapted else {}),
        "audit": {"failed": [check["name"] for check in checks if check["passed"] is False], "checks": len(checks)},
        **curves(folder, experiment.drawn),
        **({"foresight": foresight(folder)} if experiment.preset else {}),
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(rounded(result)) + "\n", encoding="utf-8")
    print(name, evaluated["reward"]["mean"], evaluated.get("iqm"), evaluated.get("win_rate"), flush=True)


def require_made_by(folder: Path, name: str, options: str) -> None:
    """Refuse a run that other options made: its figures would be published under this command."""
    wanted, found = tyro.cli(Train, args=["--name", name, *options.split()]), read_config(folder)
    for field in dataclasses.fields(Train):
        before, now = (re.sub(r"@\d+", "", str(getattr(config, field.name))) for config in (found, wanted))  # frozen partners
        if before != now and field.name not in ("name", "config"):
            sys.exit(f"{folder} was made with --{field.name} {before}, and {name} says {now}: remove it to make it anew")


def curves(folder: Path, player: int | None) -> dict[str, Any]:
    """Mean reward of a player, or of all who learn, by seed in POINTS stretches of the run, and the losses by seat at its end."""
    with open(folder / "metrics.jsonl", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    learned = [row for row in rows if "data_seat" in row["metrics"]]
    last = max(row["update"] for row in learned)
    points: dict[int, dict[int, list[float]]] = {}
    won: dict[int, dict[int, list[float]]] = {}
    for row in learned:
        stretch = (row["update"] - 1) * POINTS // last
        for metric, found in (("reward", points), ("won", won)):
            if metric in row["metrics"] and player in (None, row["seat"] + 1):
                found.setdefault(row["seed"], {}).setdefault(stretch, []).append(row["metrics"][metric])
    ending = [row for row in learned if row["update"] > 0.95 * last]
    seats = sorted({row["seat"] for row in learned})
    final = {
        name: [
            _mean([row["metrics"][name] for row in ending if row["seat"] == seat and name in row["metrics"]]) for seat in seats
        ]
        for name in ("value_loss", "policy_loss", "entropy", "explained_variance")
    }
    return {
        "steps": max(row["step"] for row in rows),
        "curves": {str(seed): [_mean(found.get(k, [])) for k in range(POINTS)] for seed, found in points.items()},
        "won": {str(seed): [_mean(found.get(k, [])) for k in range(POINTS)] for seed, found in won.items()},
        "final": {"seats": [seat + 1 for seat in seats], **final},
    }


def foresight(folder: Path) -> dict[str, Any]:
    """How partners were foreseen while learning: by seed and seat at the end of the run, and how near to the floor it ever was.
    In games of selves alone, and in those of practice."""
    with open(folder / "metrics.jsonl", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    found = {}
    for kind, suffix in (("selves", ""), ("practice", "_practice")):
        names = {short: f"foresight_{short}{suffix}" for short in FORESEEN}
        known = [row for row in rows if names["top_1"] in row["metrics"]]
        if not known:
            continue
        late = 0.95 * max(row["update"] for row in known)
        ending = [row for row in known if row["update"] > late]
        at_end = {
            which: {
                str(number): {
                    short: _mean([row["metrics"][name] for row in ending if row[which] == number])
                    for short, name in names.items()
                }
                for number in sorted({row[which] for row in known})
            }
            for which in ("seed", "seat")
        }
        margins = [row["metrics"][names["top_1"]] - row["metrics"][names["floor_top_1"]] for row in known if row["update"] > 1]
        below = sum(margin < 0 for margin in margins)
        found[kind] = at_end | {"least_above_floor": min(margins), "rows_below_floor": below, "rows": len(margins)}
    return found


def _mean(values: list[float]) -> float | None:
    return float(f"{sum(values) / len(values):.5g}") if values else None


def draw() -> None:
    """One picture of all learning curves there are, one line a seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    known = [name for name in EXPERIMENTS if (RESULTS / f"{name}.json").exists()]
    columns = min(4, len(known))
    rows = -(-len(known) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(3.5 * columns, 1 + 2.4 * rows), squeeze=False, layout="constrained")
    for axis in axes.flat[len(known) :]:
        axis.remove()
    for axis, name in zip(axes.flat, known, strict=False):
        found = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        for curve in (found["won"] or found["curves"]).values():
            steps = [(k + 0.5) / POINTS * found["steps"] / 1e6 for k in range(POINTS)]
            axis.plot(steps, [float("nan") if y is None else y for y in curve], linewidth=1)
        player = EXPERIMENTS[name].drawn
        what = f" (player {player})" if player else " (share won)" if found["won"] else ""
        axis.set_title(name.replace("_", " ") + what, fontsize=9)
        axis.tick_params(labelsize=7)
        axis.grid(alpha=0.3)
    figure.supxlabel("million game steps", fontsize=9)
    figure.supylabel("mean reward, a line for each seed", fontsize=9)
    PICTURES.mkdir(exist_ok=True)
    figure.savefig(PICTURES / "learning.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="experiments to run; all that have no result yet if none is named")
    parser.add_argument("--list", action="store_true", help="only show them")
    parser.add_argument("--draw", action="store_true", help="only draw the curves")
    options = parser.parse_args()
    unknown = set(options.names) - set(EXPERIMENTS)
    if unknown:
        parser.error(f"no experiment {', '.join(sorted(unknown))}: choose from {', '.join(EXPERIMENTS)}")
    if options.list:
        for name, experiment in EXPERIMENTS.items():
            print(f"{name:<24} otherminds train --name {name} {experiment.train}")
    elif options.draw:
        draw()
    else:
        for name in options.names or [name for name in EXPERIMENTS if not (RESULTS / f"{name}.json").exists()]:
            run(name)


if __name__ == "__main__":
    main()
