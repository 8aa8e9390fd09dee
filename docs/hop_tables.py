"""The tables on HOP's page, from docs/results: self-play, foresight while learning, strangers, and what differs from what."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from otherminds.config import PRESETS
from otherminds.evaluate import estimate

RESULTS = Path(__file__).resolve().parent / "results"
SEEN = {
    "majority": "floor",
    "top_1": "top-1",
    "top_1_exact": "ceiling",
    "cross_entropy": "cross-entropy",
    "cross_entropy_exact": "ceiling",
}
"""Columns on how partners are foreseen."""
VARIANTS = ("hop_plus_rewarded", "hop_plus_warm")
"""HOP+ that learns of partners from rewarded trajectories alone, or starts from fits."""
BESIDE = [f"beside_{partners}_{player}" for partners in ("3ns", "3nh", "nh_ns_random") for player in range(1, 5)]
COMPARED = (
    ("hop_plus", "no_goal"),
    ("hop_plus", "hop_plus_no_goal"),
    ("hop_plus", "hop_plus_no_model"),
    ("hop_plus", "hop_plus_no_inter"),
    ("hop_plus", "hop_plus_no_intra"),
    ("hop_plus", "hop_plus_no_search"),
    ("hop_plus", "omg"),
    ("hop", "no_goal"),
    ("hop", "direct_om"),
)
"""Who is set beside whom: of each pair, the second lacks something."""
SETS = ("3ns", "3nh", "3random", "nh_ns_random", "2ns_random", "switchers")


def known(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What has been run, by name."""
    files = {name: RESULTS / f"{name}.json" for name in names}
    return {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items() if file.exists()}


def table(columns: list[str], rows: list[list[Any]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def interval(part: dict[str, float], digits: int = 2) -> str:
    if "low" not in part:
        return f"{part['mean']:.{digits}f}"
    return f"{part['mean']:.{digits}f} [{part['low']:.{digits}f}, {part['high']:.{digits}f}]"


def over(values: Iterable[float], digits: int = 2) -> str:
    return interval(asdict(estimate(np.array(list(values), float))), digits)


def peaks(found: dict[str, Any]) -> list[float]:
    """The best stretch of each seed's curve."""
    return [max(value for value in curve if value is not None) for curve in found["curves"].values()]


def self_play() -> str:
    rows = []
    for name, found in known([*PRESETS, *VARIANTS]).items():
        evaluated, trained = found["evaluate"], found["train"]
        plain = evaluated.get("without_search")
        last = [curve[-1] for curve in found["curves"].values()]
        kept = [end / best for end, best in zip(last, peaks(found), strict=True)]
        seeds = len(evaluated["per_seed"])
        rows.append(
            [
                f"`{name}`",
                interval(evaluated["reward"], 3),
                interval(plain["reward"], 3) if plain else "",
                over(peaks(found), 3),
                over(kept, 3),
                f"{trained['steps']:,}",
                f"{trained['seconds'] / seeds:,.0f}",
                seeds,
                f"{', '.join(found['audit']['failed'])} failed" if found["audit"]["failed"] else "passed",
            ]
        )
    columns = ["learner", "reward", "without search", "peak while learning", "end / peak", "steps", "s a seed", "seeds", "audit"]
    return table(columns, rows)


def foresight() -> str:
    """Selves foreseen while learning."""
    rows = []
    for name, found in known([*PRESETS, *VARIANTS]).items():
        part = found.get("foresight", {}).get("selves")
        if not part:
            continue
        seeds = list(part["seed"].values())
        of_ceiling = [seed["top_1"] / seed["ceiling_top_1"] for seed in seeds]
        columns = ("floor_top_1", "top_1", "ceiling_top_1", "cross_entropy", "ceiling_cross_entropy")
        means = [over([seed[column] for seed in seeds], 3) for column in columns]
        near = f"{part['least_above_floor']:.3f} ({part['rows_below_floor']} of {part['rows']:,} rows below)"
        rows.append([f"`{name}`", *means, over(of_ceiling, 3), near])
    columns = [
        "learner",
        "floor",
        "top-1",
        "ceiling",
        "cross-entropy",
        "ceiling",
        "share of the ceiling",
        "least above the floor",
    ]
    return table(columns, rows)


def strangers() -> str:
    rows = []
    for name, found in known(PRESETS).items():
        for adapted in found["adapt"]:
            by_set = {one["set"]: one for one in adapted["sets"]}
            searched = np.mean([one["searched"]["mean"] for one in by_set.values()])
            how = f"{searched:.0%} of moves" if searched else "no"
            rows.append([f"`{name}`", how, *(interval(by_set[one]["reward"]) for one in SETS)])
    return table(["learner", "search", *SETS], rows)


def differences() -> str:
    """Paired by seed: how much more is earned than by another."""
    runs, rows = known(PRESETS), []
    for name, base in COMPARED:
        if name in runs and base in runs:
            left, right = (_per_seed(runs[which]) for which in (name, base))
            rows.append([f"`{name}` less `{base}`", *(over(left[one] - right[one]) for one in left)])
    return table(["", "self-play", *SETS], rows)


def gains() -> str:
    """Paired by seed: how much more is earned with search at play than without it."""
    rows = []
    for name, found in known(PRESETS).items():
        if len(found["adapt"]) == 2:
            left, right = _per_seed(found), _per_seed(found, searching=False)
            share = np.mean([one["searched"]["mean"] for one in found["adapt"][0]["sets"]])
            rows.append([f"`{name}`", f"{share:.0%}", *(over(left[one] - right[one]) for one in left)])
    return table(["learner", "moves decided by search", "self-play", *SETS], rows)


def _per_seed(found: dict[str, Any], searching: bool = True) -> dict[str, np.ndarray]:
    """What each seed earned, in self-play and among strangers; who does not search is the same either way."""
    evaluated = found["evaluate"]
    own = evaluated if searching else evaluated["without_search"]
    sets = found["adapt"][0 if searching else 1]["sets"]
    return {"self-play": np.array(own["per_seed"])} | {one["set"]: np.array(one["per_seed"]) for one in sets}


def inferred() -> str:
    """What is foreseen and believed of strangers."""
    rows = []
    for name, found in known(PRESETS).items():
        for one in found["adapt"][0]["sets"]:
            if "foresight" not in one:
                continue
            part = one["foresight"]
            seen = [
                interval(part[column], 3)
                for column in ("majority", "top_1", "top_1_exact", "cross_entropy", "cross_entropy_exact")
            ]
            misled = interval(one["misled_cross_entropy"], 3) if "misled_cross_entropy" in one else ""
            belief = ", ".join(f"{value:.2f}" for value in one.get("belief_by_step", [])[:6])
            sure = interval(one["steps_until_sure"], 1) if one.get("steps_until_sure") else ""
            rows.append([f"`{name}`", one["set"], *seen, misled, belief, sure])
    columns = [
        "learner",
        "partners",
        "floor",
        "top-1",
        "ceiling",
        "cross-entropy",
        "ceiling",
        "misled",
        "belief by step",
        "steps until 0.9",
    ]
    return table(columns, rows)


def beside() -> str:
    """Trained beside scripts, once in each seat."""
    rows = []
    for name, found in known(BESIDE).items():
        player = int(name[-1])
        reward = found["evaluate"]["reward"]["per_seat"][player - 1]
        for partner, part in found["adapt"][0]["sets"][0]["by_partner"].items():
            seen = [
                interval(part[column], 3)
                for column in ("majority", "top_1", "top_1_exact", "cross_entropy", "cross_entropy_exact")
            ]
            recall = {
                action: row["expected_recall"]["mean"] / row["expected_recall_exact"]["mean"]
                for action, row in part["by_action"].items()
                if row["expected_recall_exact"]
            }
            worst = min(recall, key=lambda action: recall[action])
            rows.append([f"`{name}`", interval(reward), partner, *seen, f"{recall[worst]:.2f} ({worst})"])
    columns = [
        "run",
        "reward",
        "partner",
        "floor",
        "top-1",
        "ceiling",
        "cross-entropy",
        "ceiling",
        "lowest expected recall / exact",
    ]
    return table(columns, rows)


def recalls() -> str:
    """How often each action of each kind of partner is expected when it comes, beside knowing the partner's probabilities; means
    over the seats that learned beside it."""
    found: dict[tuple[str, str], dict[str, list[tuple[float, float]]]] = {}
    for name, one in known(BESIDE).items():
        for partner, part in one["adapt"][0]["sets"][0]["by_partner"].items():
            for action, row in part["by_action"].items():
                pair = row["expected_recall"]["mean"], row["expected_recall_exact"]["mean"]
                found.setdefault((name[:-2].removeprefix("beside_"), partner), {}).setdefault(action, []).append(pair)
    actions = list(dict.fromkeys(action for row in found.values() for action in row))
    rows = []
    for (beside, partner), row in found.items():
        means = [np.mean(row[action], 0) if action in row else None for action in actions]
        rows.append([beside, partner, *("" if mean is None else f"{mean[0]:.2f} of {mean[1]:.2f}" for mean in means)])
    return table(["trained beside", "partner", *actions], rows)


def planning_exact(found: dict[str, Any]) -> str:
    """What is lost beside exhaustive search, as searches and trees grow."""
    cases: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in found["exact"]:
        how = "throws dice" if row["dice"] else "first choice"
        case = (f"`{row['game']}`", f"{row['partner']}, {how}", row["steps"], f"{row['best']:.3f}")
        amount = f"{row['trees']} trees of {row['simulations']}" if row["dice"] else f"{row['simulations']} simulations"
        cases.setdefault(case, {})[amount] = row["lost"]
    rows = [[*case, ", ".join(f"{amount}: {lost:.4f}" for amount, lost in lost.items())] for case, lost in cases.items()]
    coin = ", ".join(f"{row['gambles']:.1%} with {row['trees']}" for row in found["coin"])
    said = table(["game", "partner", "steps left", "to be had", "lost on average with"], rows)
    return said + f"\n\nA fair coin, ±1, is preferred to a sure 0.3 in {coin} trees of 16 simulations, of 1,000 searches each."


def bench_hop(found: dict[str, Any]) -> str:
    phases = list(found["updates"][0]["phases_s"])
    rows = [
        [
            f"`{row['preset']}`",
            f"{1000 * row['update_s']:.0f}",
            *(f"{1000 * row['phases_s'][phase]:.0f}" for phase in phases),
            f"{row['game_steps_per_s']:,}",
            f"{row['memory_mb']:.0f}",
            f"{row['compile_s']:.0f}",
        ]
        for row in found["updates"]
    ]
    columns = ["learner", "ms an update", *(phase.replace("_", " ") for phase in phases), "game steps/s", "MB", "compile s"]
    return table(columns, rows)


TABLES = {
    "hop_self_play": self_play,
    "hop_foresight": foresight,
    "hop_strangers": strangers,
    "hop_differences": differences,
    "hop_gains": gains,
    "hop_inferred": inferred,
    "hop_beside": beside,
    "hop_recall": recalls,
}
