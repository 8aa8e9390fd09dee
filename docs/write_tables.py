"""Writes the tables of results in the documentation from the files under docs/results: `python docs/write_tables.py`."""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from otherminds.evaluate import estimate

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "README.zh-CN.md", *sorted((ROOT / "docs").glob("*.md"))]


def bench_games(found: dict[str, Any]) -> str:
    lines = [
        "| game | parallel games | game steps/s | with final observations | × coin_game | × overcooked | compile s | memory MB |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|")
    for row in [*found["games"], *found["peers"]]:
        if row["parallel"] != 1024:
            continue
        ratios = [row.get(f"ratio_to_jaxmarl:{peer}", "") for peer in ("coin_game", "overcooked")]
        final = f"{row['with_final_observations']:,}" if "with_final_observations" in row else ""
        cells = [row["game"], row["parallel"], f"{row['game_steps_per_s']:,}", final, *ratios, row["compile_s"], row["memory_mb"]]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    machine = found["machine"]
    lines.append(
        f"\nPeak memory of the whole process, all games and sizes: {found['peak_memory_mb']:,} MB. "
        f"{machine['cores']} cores, Python {machine['python']}, jax {machine['jax']}."
    )
    return "\n".join(lines)


def bench_ppo(found: dict[str, Any]) -> str:
    lines = [
        "| training | parallel games | seats | game steps/s | × JaxMARL IPPO | compile s | memory MB |",
        "|---|---|---|---|---|---|---|",
    ]
    spread = found["simple_spread"]
    rows = [(f"`{row['game']}`", row, "") for row in found["growth"]]
    rows += [(f"simple_spread, {name} parameters", spread[name], spread[f"ratio_{name}"]) for name in ("shared", "own")]
    for name, row, ratio in [*rows, ("simple_spread, JaxMARL IPPO", spread["peer"], "")]:
        cells = [name, row["parallel"], row["seats"], f"{row['game_steps_per_s']:,}", ratio, row["compile_s"], row["memory_mb"]]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    update, reached, machine = found["update"], found["time_to_reward"], found["machine"]
    lines.append(
        f"\nFrom typing `otherminds train` to a mean reward of {reached['reward']} on {reached['game']}, with nothing "
        f"compiled before: {reached['seconds']} s, {reached['steps']:,} game steps. "
        f"There {update['rollout_share']:.0%} of an update is play and {update['learning_share']:.0%} learning, "
        f"whose matrix products reach {update['achieved_gflop_per_s']:.0f} of the "
        f"{update['peak_gflop_per_s']:.0f} GFLOP/s of a large product ({update['share_of_peak']:.0%}); peak memory "
        f"{update['peak_memory_mb']:,} MB. {machine['cores']} cores, Python {machine['python']}, jax {machine['jax']}."
    )
    return "\n".join(lines)


def bench_runs(found: dict[str, Any]) -> str:
    lines = [
        "| game | first update | the second time | memory, 1 seed: PPO, MAPPO | 8 seeds: PPO, MAPPO |",
        "|---|---|---|---|---|",
    ]
    for row in found["start"]:
        memory = {(m["learner"], m["seeds"]): f"{m['peak_memory_mb']:,}" for m in found["memory"] if m["game"] == row["game"]}
        sizes = [f"{memory['ppo', seeds]}, {memory['mappo', seeds]} MB" for seeds in (1, 8)]
        lines.append("| " + " | ".join([row["game"], f"{row['first_s']} s", f"{row['second_s']} s", *sizes]) + " |")
    beside, kills, machine = found["side_by_side"], found["kills"], found["machine"]
    kept = " and ".join(f"{same(kills[f'same_{name}'])} {name}" for name in ("parameters", "metrics", "state"))
    lines.append(
        f"\n`otherminds --help` takes {found['help_s']} s. Two trainings with the defaults side by side: {beside['two_s']} s, "
        f"one alone {beside['alone_s']} s, with {same(beside['same_parameters'])} parameters. "
        f"A run killed {kills['kills']} times, {kills['while_writing']} of them while a checkpoint was being written, and gone "
        f"on with each time ends with {kept} as one left alone. "
        f"{machine['cores']} cores, Python {machine['python']}, jax {machine['jax']}."
    )
    return "\n".join(lines)


def same(is_so: bool) -> str:
    return "the same" if is_so else "OTHER"


def learning(learner: str) -> str:
    """One row for each experiment of a learner that has been run."""
    lines = [
        "| experiment | reward | IQM of seeds | by seat | above 2 | won | seeds | steps | wall s | audit |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for path in sorted((ROOT / "docs" / "results").glob(f"{learner}_*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        evaluated, trained, audit = found["evaluate"], found["train"], found["audit"]
        seeds = evaluated["per_seed"]
        won = "; ".join(
            f"{played}: {interval(asdict(estimate(np.array(part['win_rate_per_seed']))))}"
            for played, part in (("drawn actions", evaluated), ("likeliest", evaluated.get("greedy", {})))
            if "win_rate" in part
        )
        cells = [
            f"`{path.stem}`: `{found['command'].replace(f'--name {path.stem} ', '')}`",
            interval(evaluated["reward"]),
            interval(evaluated["iqm"]) if "iqm" in evaluated else "",
            ", ".join(f"{seat['mean']:.2f}" for seat in evaluated["reward"]["per_seat"]),
            share(sum(mean > 2 for mean in seeds), len(seeds)) if evaluated["game"].startswith("stag_hunt") else "",
            won,
            len(seeds),
            f"{trained['steps']:,}",
            f"{trained['seconds']:,.0f}",
            f"{', '.join(audit['failed'])} failed" if audit["failed"] else "passed",
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def share(count: int, all_: int) -> str:
    """How many of all, with Wilson's 95 % interval of the share."""
    z, p = 1.96, count / all_
    middle, half = p + z * z / (2 * all_), z * (p * (1 - p) / all_ + z * z / (4 * all_ * all_)) ** 0.5
    low, high = ((middle + sign * half) / (1 + z * z / all_) for sign in (-1, 1))
    return f"{count} of {all_} [{max(low, 0):.2f}, {min(high, 1):.2f}]"


def interval(part: dict[str, float]) -> str:
    return f"{part['mean']:.3f} [{part['low']:.3f}, {part['high']:.3f}]"


TABLES: dict[str, Callable[[Any], str]] = {"bench_games": bench_games, "bench_ppo": bench_ppo, "bench_runs": bench_runs}
LEARNING = {"learning_ppo": "ppo", "learning_mappo": "mappo"}  # tables of many files


def filled(page: str) -> str:
    """The page with every marked table written anew from its file."""

    def write(match: re.Match[str]) -> str:
        name = match.group(1)
        if name in LEARNING:
            return f"<!-- table: {name} -->\n{learning(LEARNING[name])}\n<!-- end -->"
        found = json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text(encoding="utf-8"))
        return f"<!-- table: {name} -->\n{TABLES[name](found)}\n<!-- end -->"

    return re.sub(r"<!-- table: (\w+) -->\n.*?<!-- end -->", write, page, flags=re.DOTALL)


def main() -> None:
    """Write the pages; with --check, only say whether they are up to date."""
    stale = [page for page in PAGES if filled(page.read_text(encoding="utf-8")) != page.read_text(encoding="utf-8")]
    if "--check" in sys.argv:
        sys.exit(f"not up to date: {', '.join(page.name for page in stale)}" if stale else 0)
    for page in stale:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
