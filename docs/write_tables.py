"""Writes the tables of results in the documentation from the files under docs/results: `python docs/write_tables.py`."""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import hop_tables
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


def bench_planning(found: dict[str, Any]) -> str:
    lines = [
        "| world | game | games | simulations | goals drawn | simulations/s | mctx alone | GFLOP/s of peak |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in found["searches"]:
        plain = [str(row[name]) for name in ("world", "game", "games", "simulations", "samples")]
        rates = [f"{row[name]:,}" for name in ("simulations_per_s", "mctx_alone_per_s")]
        flops = f"{row['achieved_gflop_per_s']:.0f} of {row['peak_gflop_per_s']:.0f}"
        lines.append("| " + " | ".join([*plain, *rates, flops]) + " |")
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


# --- single modules ---


def rows_of(prefix: str, columns: dict[str, Callable[[dict[str, Any]], str]]) -> str:
    """A row for each experiment on modules whose name begins so and that has been run; what a column cannot say is left empty."""
    columns = columns | {"diagnosis": blame}
    lines = ["| experiment | " + " | ".join(columns) + " | seeds | s a fit |", "|---" * (len(columns) + 3) + "|"]
    for path in sorted((ROOT / "docs" / "results").glob(f"{prefix}_*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        command = found["command"].removesuffix(f" --seeds {found['seeds']}").replace("otherminds fit ", "")
        cells = [f"`{path.stem}`: `{command}`", *(said(column, found) for column in columns.values())]
        lines.append("| " + " | ".join([*cells, str(found["seeds"]), f"{found['seconds'] / found['seeds']:.0f}"]) + " |")
    return "\n".join(lines)


def said(column: Callable[[dict[str, Any]], str], found: dict[str, Any]) -> str:
    try:
        return column(found["diagnosed"])
    except (KeyError, StopIteration, ValueError):
        return ""


def blame(found: dict[str, Any]) -> str:
    """What `diagnose` says is broken, on held-out games and on others."""
    said = []
    for where, part in found.items():
        place = f" ({where.partition(':')[0]})" if where else ""
        said += [f"{one['module']} {one['what']}, {one['seeds']} seeds{place}" for one in part["findings"]]
    return "; ".join(said)


def number(part: dict[str, float], digits: int = 3) -> str:
    """A mean and, where there are seeds, its interval."""
    mean = f"{part['mean']:.{digits}g}"
    return f"{mean} [{part['low']:.{digits}g}, {part['high']:.{digits}g}]" if "low" in part else mean


def at(*path: str, digits: int = 4, where: str = "") -> Callable[[dict[str, Any]], str]:
    """A column: the number that lies there in what was diagnosed."""

    def column(found: dict[str, Any]) -> str:
        part = found[where]
        for key in path:
            part = part[key]
        return number(part, digits)

    return column


def beside(first: Callable[..., str], second: Callable[..., str], word: str) -> Callable[[dict[str, Any]], str]:
    """Two numbers, the second where anybody knows it."""

    def column(found: dict[str, Any]) -> str:
        try:
            return f"{first(found)} ({word} {second(found)})"
        except KeyError:
            return first(found)

    return column


def recall(found: dict[str, Any]) -> str:
    """The action whose expected recall is lowest beside that of the ceiling."""
    rows = [row for row in found[""]["first"]["by_action"] if row["expected_recall_exact"]]
    worst = min(rows, key=lambda row: row["expected_recall"] / row["expected_recall_exact"])
    return f"{worst['expected_recall'] / worst['expected_recall_exact']:.3f} ({worst['action']})"


def by_player(metric: str) -> Callable[[dict[str, Any]], str]:
    def column(found: dict[str, Any]) -> str:
        means = [part[metric]["mean"] for part in found[""]["by_player"].values() if metric in part]
        return f"{min(means):.4g} to {max(means):.4g}"

    return column


def gap_by_player(found: dict[str, Any]) -> str:
    """Cross-entropy above the ceiling: what the players look at differs a little, and so does what can be known of it."""
    parts = [part for part in found[""]["by_player"].values() if "cross_entropy_exact" in part]
    gaps = [part["cross_entropy"]["mean"] - part["cross_entropy_exact"]["mean"] for part in parts]
    return f"{min(gaps):.3f} to {max(gaps):.3f}"


def unseen(found: dict[str, Any]) -> str:
    other = next(part for name, part in found.items() if name.startswith("new"))
    return f"{number(other['cross_entropy'])} (exact {number(other['cross_entropy_exact'])})"


def laws(found: dict[str, Any]) -> str:
    """On held-out games, and on others."""
    said = []
    for where, part in found.items():
        broken = sum(count["mean"] for count in part["broken_laws"].values())
        said.append(f"{where.partition(':')[0]} {broken:.4g} of {part['steps']['mean']:,.0f}".strip())
    return ", ".join(said)


def elsewhere(found: dict[str, Any]) -> str:
    """Boards foreseen exactly on other data."""
    return ", ".join(f"{name.partition(':')[0]} {number(part['exact_board'], 5)}" for name, part in found.items() if name)


PARTNERS = {
    "cross-entropy": beside(at("cross_entropy"), at("cross_entropy_exact"), "exact"),
    "top-1": beside(at("top_1"), at("top_1_exact"), "exact"),
    "top-3": beside(at("top_3"), at("top_3_exact"), "exact"),
    "lowest expected recall / exact": recall,
    "above exact, by who looks": gap_by_player,
    "partners never met": unseen,
    "goal: told / untold / of others": lambda f: " / ".join(at("goal", name)(f) for name in ("told", "untold", "shuffled")),
}
WORLDS = {
    "exact board": at("exact_board", digits=5),
    "PSNR dB": at("psnr", digits=3),
    "reward MSE": at("reward_mse", digits=2),
    "own target MSE": at("target_mse", digits=2),
    "recall of rewards": at("reward_recall", digits=4),
    "recall of ends": at("end_recall", digits=4),
    "exact after 10 steps": at("open_loop", "10", "exact_board", digits=4),
    "laws broken": laws,
    "exact board by seat": by_player("exact_board"),
    "on other games": elsewhere,
}
GOALS = {
    "without": at("cross_entropy", "without"),
    "hindsight": at("cross_entropy", "hindsight"),
    "by Bayes": at("cross_entropy", "by_bayes"),
    "inferred": at("cross_entropy", "inferred"),
    "of others": at("cross_entropy", "shuffled"),
    "exact Bayes": at("cross_entropy_exact", "episode"),
    "share of exact: Bayes, inferred": lambda f: ", ".join(
        at("usefulness", "of_exact", name, digits=2)(f)
        for name in ("by_bayes", "inferred")
        if name in f[""]["usefulness"]["of_exact"]
    ),
    "information in hindsight: network, Bayes, exact": lambda f: ", ".join(
        at(name, "of_entropy", digits=2)(f) for name in ("hindsight", "hindsight_by_bayes", "hindsight_exact") if name in f[""]
    ),
    "codes used": at("codes_used", digits=2),
}


def by_clock(found: dict[str, Any], where: str, clock: str) -> dict[int, dict[str, float]]:
    """What is believed at each step, or when each episode opens: the mean over seeds."""
    rows = found[where]["beliefs"][f"by_{clock}"]
    return {int(k): {name: part["mean"] for name, part in row.items()} for k, row in rows.items()}


def believed(found: dict[str, Any], where: str, clock: str, chosen: tuple[int, ...]) -> str:
    rows = by_clock(found, where, clock)
    return ", ".join(f"{k}: {rows[k]['model']:.3f} ({rows[k]['exact']:.3f})" for k in chosen if k in rows)


def largest(found: dict[str, Any]) -> str:
    """Where the mean over seeds is furthest from exact beliefs; and the mean over seeds of how far each is at its worst."""
    rows = by_clock(found, "", "step")
    step = max(rows, key=lambda k: rows[k]["difference"])
    return f"{rows[step]['difference']:.3f} at step {step}; {at('beliefs', 'largest_difference', digits=2)(found)}"


BY_HAND = {
    "largest difference to exact: of the mean over seeds; of each seed, in the mean": largest,
    "belief by step: model (exact)": lambda f: believed(f, "", "step", (1, 2, 3, 5, 7)),
    "when episode opens": lambda f: believed(f, "", "episode", (1, 2, 5, 20)),
    "goal changes at step 6, never expected": lambda f: believed(f, "switch4", "step", (5, 6, 7, 8, 10)),
    "expected at 5 % a step": lambda f: believed(f, "switch4:--switching 0.05", "step", (5, 6, 7, 8, 10)),
    "goal changes at episode 11": lambda f: believed(f, "turn4:--switching 0.05", "episode", (10, 11, 12, 15, 20, 25)),
}
MODULES = {"partners": PARTNERS, "world": WORLDS, "goals": GOALS, "by_hand": BY_HAND}


def gate(found: dict[str, Any]) -> str:
    lines = ["| gate | at | steps without inference | cross-entropy | belief in the true goal |", "|---|---|---|---|---|"]
    for row in found["diagnosed"][""]["first"]["gate"]:
        cells = [row["gate"], f"{row['at']:g}", f"{row['saved']:.1%}", f"{row['cross_entropy']:.4f}", f"{row['belief']:.4f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


TABLES: dict[str, Callable[[Any], str]] = {
    "bench_games": bench_games,
    "bench_ppo": bench_ppo,
    "bench_runs": bench_runs,
    "bench_planning": bench_planning,
    "bench_hop": hop_tables.bench_hop,
    "planning_exact": hop_tables.planning_exact,
    "gate": gate,
}
SOURCES = {"gate": "goals_4x4", "planning_exact": "bench_planning"}  # tables that are not named as their files
LEARNING = {"learning_ppo": "ppo", "learning_mappo": "mappo"}  # tables of many files


def table(name: str) -> str:
    if name in hop_tables.TABLES:
        return hop_tables.TABLES[name]()
    if name in LEARNING:
        return learning(LEARNING[name])
    if name in MODULES:
        return rows_of(name, MODULES[name])
    file = ROOT / "docs" / "results" / f"{SOURCES.get(name, name)}.json"
    return TABLES[name](json.loads(file.read_text(encoding="utf-8")))


def filled(page: str) -> str:
    """The page with every marked table written anew from its file."""

    def write(match: re.Match[str]) -> str:
        return f"<!-- table: {match.group(1)} -->\n{table(match.group(1))}\n<!-- end -->"

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
