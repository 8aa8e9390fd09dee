"""What seems to be broken, and in which module: thresholds on measures, each with the figures it rests on."""

import dataclasses
from dataclasses import dataclass
from typing import Any

STAYS = 0.1  # by how much more often "stay" may be foreseen than it is played
UNEQUAL = 0.1  # nats by which the players may differ in how well they foresee partners
ENOUGH = 200  # steps, of all players or of one, below which nothing is said
ABOVE = 0.15  # nats above the ceiling
LITTLE = 0.2  # share of what a goal could bring
MORE = 0.05  # hits beyond those of the commonest action that make a partner worth foreseeing
NOTHING = 0.02  # nats that a goal could bring at best, where it is not worth asking
CLEARLY = 0.8  # share of an error that is left where something explains it
FOLLOWS = 0.99  # share of the steps learned from that have to follow the rules
SHARE_OF_LAWS = 1e-3  # foreseen boards that may break a law
BLURRED = 30.0  # decibels
RECALLED = 0.9  # share of rewards and of ends
VALUE_LOSSES = 5.0  # by what factor the value losses of seats may differ


@dataclass(frozen=True)
class Finding:
    """Something that should not be."""

    module: str
    what: str
    evidence: dict[str, Any]
    seeds: str = "1 of 1"
    judged: bool = True
    """False: there was too little to look at, so nothing is said either way."""


def of_all_seeds(found: list[list[Finding]]) -> list[Finding]:
    """What was found in any seed, with the evidence of the first and in how many."""
    merged: dict[tuple[str, str], list[Finding]] = {}
    for finding in (finding for seed in found for finding in seed):
        merged.setdefault((finding.module, finding.what), []).append(finding)
    return [dataclasses.replace(same[0], seeds=f"{len(same)} of {len(found)}") for same in merged.values()]


def of_samples(module: str, taught: dict[str, float]) -> list[Finding]:
    """`taught` is what a fit said of the samples it learned from."""
    findings = []
    if taught.get("off_the_board", 0.0) > 0:
        findings.append(
            _finding(module, "was taught steps of players who have left, as if they had acted", taught, "off_the_board")
        )
    if taught.get("by_the_rules", 1.0) < FOLLOWS:
        findings.append(
            _finding(
                module,
                "was taught steps that do not follow from their joint actions: were these turned to the ego frame?",
                taught,
                "by_the_rules",
            )
        )
    return findings


def of_opponent_model(found: dict[str, Any]) -> list[Finding]:
    """`found` is of `opponent_model.scores`."""
    if found["steps"] < ENOUGH:
        return [_too_few("opponent_model", found)]
    findings, goal, best = [], found.get("goal"), found.get("cross_entropy_mixture", found["cross_entropy_exact"])
    stay = next((row for row in found["by_action"] if row["action"] == "stay"), None)
    if stay and stay["predicted_share"] > stay["share"] + STAYS:
        findings.append(
            _finding("opponent_model", "foresees `stay` far more often than it is played", stay, "predicted_share", "share")
        )
    learned = goal and "untold_exact" in goal and goal["untold"] < goal["untold_exact"] + ABOVE  # else all is wrong, not goals
    if goal and learned and goal["usefulness_exact"] > NOTHING:
        brings = goal["shuffled"] - goal["told"]  # a model that was taught true goals is misled by those of others
        if brings < LITTLE * goal["usefulness_exact"]:
            findings.append(_finding("goals", "the goal that is told makes no difference: was it the partner's?", goal, *goal))
    could_be = found["top_1_exact"] if found["top_1_exact"] is not None else found.get("top_1_true")
    foreseeable = could_be is None or could_be > found["majority"] + MORE
    if found["top_1"] <= found["majority"] and foreseeable:
        findings.append(_finding("opponent_model", "foresees no better than the commonest action", found, "top_1", "majority"))
    above = {
        name: part["cross_entropy"] - (part["cross_entropy_exact"] or 0.0)  # what they look at differs, and so does its ceiling
        for name, part in found["by_player"].items()
        if part["steps"] >= ENOUGH
    }
    if above and max(above.values()) - min(above.values()) > UNEQUAL:
        findings.append(Finding("opponent_model", "is not the same from every seat", {"above_exact": above}))
    if best is not None and found["cross_entropy"] > best + ABOVE and not findings:
        evidence = {"cross_entropy": found["cross_entropy"], "could_be": best, "top_1": found["top_1"]}
        findings.append(Finding("opponent_model", "is far from what could be known", evidence))
    return findings


def of_world_model(found: dict[str, Any]) -> list[Finding]:
    """`found` is of `world_model.scores`."""
    if found["steps"] < ENOUGH:
        return [_too_few("world_model", found)]
    findings = []
    turned = found.get("turned")
    if turned and turned["mse_unturned"] < CLEARLY * turned["mse"]:
        findings.append(
            _finding(
                "world_model",
                "does better with joint actions by seat than in ego order: it was trained on actions that were not turned",
                turned,
                "mse",
                "mse_unturned",
            )
        )
    laws = {name: count for name, count in found.get("broken_laws", {}).items() if count > SHARE_OF_LAWS * found["steps"]}
    if laws:
        findings.append(Finding("world_model", "foresees what the rules forbid", laws | {"steps": found["steps"]}))
    if found["psnr"] is not None and found["psnr"] < BLURRED:
        findings.append(_finding("world_model", "foresees blurred boards", found, "psnr", "exact_board"))
    if found["reward_recall"] is not None and found["reward_recall"] < RECALLED and found.get("reward_target", "r") == "r":
        findings.append(_finding("world_model", "misses rewards", found, "reward_recall", "reward_mse"))
    if found["end_recall"] is not None and found["end_recall"] < RECALLED:
        findings.append(_finding("world_model", "misses ends", found, "end_recall", "end_accuracy"))
    return findings


def of_goals(found: dict[str, Any]) -> list[Finding]:
    """`found` is of `goals.scores`."""
    if found["steps"] < ENOUGH:
        return [_too_few("goals", found)]
    findings, missed = [], found["cross_entropy"]
    without = min(missed["without"], found.get("cross_entropy_exact", missed)["without"])
    best = found["usefulness"]["exact"] if "usefulness" in found else without - missed["hindsight"]
    if "usefulness" in found and best < NOTHING:
        return []  # partners whose goals, if they have any, do not show in what they do
    if "usefulness" not in found and missed["without"] - found.get("cross_entropy_true", -1.0) < NOTHING:
        return []  # nor is anything left to know where a look at the moment tells all
    codes = found.get("codes_used")
    if codes == 1:
        findings.append(Finding("goals", "one code stands for everything", {"codes_used": codes}))
    if missed["shuffled"] - missed["hindsight"] < LITTLE * max(best, NOTHING):
        findings.append(
            _finding(
                "goals", "codes tell nothing of what is done: those of others serve as well", missed, "hindsight", "shuffled"
            )
        )
    information = found.get("hindsight", {})
    if information.get("of_entropy", 1.0) < LITTLE:
        findings.append(Finding("goals", "codes tell next to nothing of the true goals", information))
    known = found.get("cross_entropy_exact", {}).get("exact", -1.0)
    if missed["hindsight"] < known - NOTHING:
        evidence = {"hindsight": missed["hindsight"], "knowing_everything": known}
        findings.append(Finding("goals", "codes tell more than can be known before an action: they tell the action", evidence))
    if findings:
        return findings
    if missed.get("told", 0.0) > known + ABOVE and known >= 0:
        words = "told what partners are after, it is far from what could be known, and beliefs rest on it"
        return [Finding("opponent_model", words, {"told": missed["told"], "could_be": known})]
    for name, how in (("inferred", "by the network that reads it"), ("by_bayes", "by Bayes' rule")):
        if name in missed and without - missed[name] < LITTLE * best:
            words = f"codes are good in hindsight, and are not inferred from what came before {how}"
            findings.append(_finding("beliefs", words, missed, *missed))
    return findings


def of_policy(found: dict[str, Any]) -> list[Finding]:
    """`found` has the metrics of each seat at the end of a run."""
    losses = {seat: part["value_loss"] for seat, part in found["by_seat"].items() if part.get("value_loss") is not None}
    if len(losses) > 1 and max(losses.values()) > VALUE_LOSSES * max(min(losses.values()), 1e-12):
        return [
            Finding("policy", "value losses differ between seats: does each learn from its own data?", {"value_loss": losses})
        ]
    return []


def of_fall(found: dict[str, Any]) -> list[Finding]:
    """`found` has `reward`, of `falls.of_rewards`, and `moved`, of `falls.table`."""
    if not found["reward"]["fell"]:
        return []
    figures = {name: found["reward"][name] for name in ("peak", "peak_step", "final")}
    if not found["moved"]:
        return [Finding("reward", "fell, and had its peak too early to say what was otherwise then", figures)]
    fallen = [row["left_at_step"] for row in found["moved"] if row["module"] == "reward"]
    moved = [row for row in found["moved"] if row["module"] != "reward" and row["left_at_step"] is not None]
    if not moved:
        return [Finding("reward", "fell after its peak, and no metric of any module left its band", figures)]
    first = moved[0]
    when = first["left_at_step"]
    figures["left_its_band_at_step"] = when
    if fallen and fallen[0] is not None:
        figures["reward_left_its_band_at_step"] = fallen[0]
    together = sorted({row["module"] for row in moved if row["left_at_step"] == when} - {first["module"]})
    words = f"moved first, and the reward fell from its peak: `{first['metric']}` left its band"
    if together:
        words += f", and at the same update {' and '.join(together)} did"
    if fallen and fallen[0] is not None and fallen[0] < when:
        words += "; the reward itself had left its own before, so look elsewhere too"
    return [Finding(first["module"], words, figures)]


def _too_few(module: str, found: dict[str, Any]) -> Finding:
    return Finding(module, "too few steps to judge", {"steps": found["steps"], "needed": ENOUGH}, judged=False)


def _finding(module: str, what: str, found: dict[str, Any], *names: str) -> Finding:
    return Finding(module, what, {name: found[name] for name in names})
