"""Every module measured alone, on games it has not learned from: numbers, tables, pictures, and what seems to be broken."""

import dataclasses
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from otherminds import checkpoint, dataset, fit, goals, runs, samples, world_model
from otherminds.checkpoint import Checkpoint
from otherminds.config import BadInput, Diagnose, require
from otherminds.dataset import Dataset
from otherminds.diagnostics import beliefs as of_beliefs
from otherminds.diagnostics import checkpoints, falls, findings, pictures
from otherminds.diagnostics import goals as of_goals
from otherminds.diagnostics import opponent_model as of_partners
from otherminds.diagnostics import world_model as of_worlds
from otherminds.diagnostics.asking import predicted
from otherminds.diagnostics.rounding import number
from otherminds.fit import Fitted
from otherminds.games.base import is_board
from otherminds.learners.base import SIGNS
from otherminds.progress import track
from otherminds.updates import Setup, fixed_policies, prepare

BELIEF_ROWS = 40_000  # of a dataset, through which beliefs are carried
WINDOWS = 5000  # of steps in a row, along which a world model is fed with its own predictions
DEEPEST = max(of_worlds.DEPTHS)
END = 0.05  # share of a run's updates that its end is
FINDINGS: dict[str, Callable[[dict[str, Any]], list[findings.Finding]]] = {
    "opponent_model": findings.of_opponent_model,
    "goals": findings.of_goals,
    "world_model": findings.of_world_model,
}


def diagnose(options: Diagnose) -> dict[str, Any]:
    """Measures by module, and `findings`. What was measured is left in the folder of each target, under diagnostics/."""
    require(len(options.targets) > 0, "diagnose what? A fit or a run: otherminds diagnose NAME")
    require(options.samples > 0, f"--samples is {options.samples}, expected at least 1")
    require(0 <= options.switching < 1, f"--switching is {options.switching}, expected a chance from 0 to 1")
    result: dict[str, Any] = {}
    found: list[findings.Finding] = []
    for target in options.targets:
        folder = runs.find(target)
        config = runs.read_json(folder / "config.json")
        require(isinstance(config, dict), f"{folder / 'config.json'}: expected settings in braces")
        fitted = fit.load(target) if "fit" in config else None
        module = fitted.options.module if fitted else "policy"
        require(module not in result, f"'{target}' is another {module.replace('_', ' ')}: diagnose one at a time")
        measured, broken = _of_fit(folder, fitted, options) if fitted else _of_run(folder, options)
        result[module] = measured
        found += broken
        _write(folder / "diagnostics", measured, broken)
    return result | {"findings": [dataclasses.asdict(finding) for finding in found]}


def _write(place: Path, measured: dict[str, Any], broken: list[findings.Finding]) -> None:
    place.mkdir(exist_ok=True)
    runs.write_json(place / "diagnosis.json", measured | {"findings": [dataclasses.asdict(finding) for finding in broken]})


# --- fits ---


def _of_fit(folder: Path, fitted: Fitted, options: Diagnose) -> tuple[dict[str, Any], list[findings.Finding]]:
    """Measures of every seed, as means with intervals; of the first also as pictures."""
    given = dataset.load(options.data or fitted.options.data, fitted.game.id)
    same = given.digest == fitted.data_sha256
    if options.data is None:
        require(
            same or not fitted.data_sha256,
            f"{fitted.options.data} is not what {folder} learned from: it was collected anew; give --data another file",
        )
    else:
        require(not same, f"{options.data} is what {folder} learned from: leave --data out, and what was held out is measured")
        seed = given.source.get("seed")
        require(
            seed is None or seed != fitted.source.get("seed"),
            f"{options.data} was collected with --seed {seed}, as what {folder} learned from was, and opens on the same boards: "
            "give another --seed to collect",
        )
    asked = dataclasses.replace(fitted.options, test_samples=options.samples)
    scores, broken, module = [], [], fitted.options.module
    for k, model in enumerate(track(fitted.modules, f"diagnose {module}")):
        training, held_out = given.split(asked.held_out, asked.seed + k) if options.data is None else (given, given)
        random = np.random.default_rng(options.seed)
        measured = fit.TESTS[module](asked, held_out, training, fitted.partners, random)(model)
        if module in MORE:
            measured |= MORE[module](model, held_out, training, random, asked, options)
        broken.append(findings.of_samples(module, fitted.taught) + FINDINGS[module](measured))
        (folder / "diagnostics").mkdir(exist_ok=True)
        if k == 0 and options.pictures:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "No artists with labels")  # of a panel that nothing is known for
                DRAW[module](model, held_out, measured, random, asked, folder / "diagnostics")
                pictures.losses(list(runs.rows(folder / "metrics.jsonl")), folder / "diagnostics" / "losses.png")
        scores.append(measured)
    where = {"data": str(options.data or fitted.options.data), "held_out": options.data is None, "seeds": len(scores)}
    where["taught"] = fitted.taught
    return where | fit.over_seeds(scores) | {"first": scores[0]}, findings.of_all_seeds(broken)


def _more_of_worlds(
    model: Any, data: Dataset, training: Dataset, random: np.random.Generator, asked: Any, options: Diagnose
) -> dict[str, Any]:
    windows = samples.windows(data, min(asked.test_samples, WINDOWS), DEEPEST, random, asked.player)
    table = of_worlds.open_loop(model, data.game, windows)
    return {"open_loop": {str(row["steps"]): row for row in table}, "reward_target": asked.world_model.reward_target}


def _more_of_goals(
    model: goals.Goals, data: Dataset, training: Dataset, random: np.random.Generator, asked: Any, options: Diagnose
) -> dict[str, Any]:
    if model.codebook is None or not data.game.goals:
        return {}
    meeting = np.cumsum(data.rows.meeting)
    few = data.part(meeting <= meeting[min(BELIEF_ROWS, len(data)) - 1])
    config = asked.goals
    rows, where = samples.sequences(data, asked.test_samples, config.steps, random, config.discount, asked.player, asked.labels)
    goal = data.rows.goal[where["row"], where["seat"]].astype(int)
    return {
        "beliefs": of_beliefs.carried(model, few, training, options.switching),
        "gate": of_goals.gate_curve(model, rows, goal, (np.cumsum(data.rows.first) - 1)[where["row"][:, 0]]),
    }


MORE: dict[str, Callable[..., dict[str, Any]]] = {
    "goals": _more_of_goals,
    "world_model": _more_of_worlds,
}


# --- pictures ---


def _draw_partners(model: Any, data: Dataset, found: dict[str, Any], random: Any, asked: Any, place: Path) -> None:
    (place / "actions.csv").write_text(of_partners.as_csv(found["by_action"]), encoding="utf-8")
    pictures.actions(found, place / "actions.png")


def _draw_worlds(
    model: world_model.WorldModel, data: Dataset, found: dict[str, Any], random: np.random.Generator, asked: Any, place: Path
) -> None:
    """The step that is foreseen worst, and one at which somebody is rewarded; and errors by depth."""
    pictures.depth(list(found["open_loop"].values()), place / "depth.png")
    if not is_board(data.game):
        return
    steps, _, _ = samples.own_steps(data, 2000, random, data.rows.reward, asked.player)
    said = of_worlds.foreseen(model, data.game, steps)["observation"]
    true, before = (np.asarray(data.game.scaled(x)) for x in (steps.next_observation, steps.observation))
    off = ((said - true) ** 2).reshape(len(said), -1).mean(1)
    labels = pictures.plane_names(data.game.seats, data.game.things)
    chosen = {"worst": int(off.argmax()), "rewarded": int(np.asarray(steps.target).argmax())}
    for name, k in chosen.items():
        pictures.boards(before[k], true[k], said[k], labels, place / f"planes_{name}.png")


def _draw_goals(
    model: goals.Goals, data: Dataset, found: dict[str, Any], random: np.random.Generator, asked: Any, place: Path
) -> None:
    config = asked.goals
    rows, where = samples.sequences(data, 3000, config.steps, random, config.discount, asked.player, asked.labels)
    goal = data.rows.goal[where["row"], where["seat"]].astype(int)
    said = predicted(model, of_goals.read, rows, at_once=of_goals.AT_ONCE)
    known = np.asarray(said["any_later"]) & (goal >= 0)
    drawn = np.asarray(said["code" if model.codebook is None else "raw"])
    if known.any():
        pictures.goal_map(drawn[known], goal[known], data.game.goals, place / "map.png")
    if "beliefs" in found:
        if found["beliefs"]["by_step"]:
            pictures.belief(found["beliefs"], place / "belief.png")
        pictures.gate(found["gate"], place / "gate.png")
    if model.codebook is not None and is_board(data.game) and known.any():
        code = np.asarray(said["number"])
        used = [k for k in range(len(model.codebook)) if (code[known] == k).mean() > 0.01]
        meant = [np.bincount(goal[known & (code == k)], minlength=len(data.game.goals)) for k in used]
        words = [f"{count.max() / count.sum():.0%} {data.game.goals[int(count.argmax())]}" for count in meant]
        shown = int(np.asarray(rows.view[:, 0, 0]).reshape(len(code), -1).any(1).argmax())  # somebody who can be seen
        odds = np.exp(np.asarray(model.each_code(_moment(rows, shown)))[0, 0])[used]
        shares = [float((code[known] == k).mean()) for k in used]
        pictures.codes(
            np.asarray(rows.view[shown, 0]), data.game.seats, odds, shares, words, data.game.action_names, place / "codes.png"
        )


def _moment(rows: goals.Sequences, episode: int) -> goals.Sequences:
    """The first step of an episode."""
    by_step = {name: getattr(rows, name)[episode : episode + 1, :1] for name in ("view", "action", "reward", "value", "seen")}
    return goals.Sequences(**by_step, **{name: getattr(rows, name)[episode : episode + 1] for name in ("label", "seat", "ego")})


DRAW: dict[str, Callable[..., None]] = {"opponent_model": _draw_partners, "goals": _draw_goals, "world_model": _draw_worlds}


# --- runs ---


def _of_run(folder: Path, options: Diagnose) -> tuple[dict[str, Any], list[findings.Finding]]:
    """What a run logged of its learning: the mean of every metric of each seat over its end, and how it went."""
    rows = [row for row in runs.rows(folder / "metrics.jsonl") if "data_seat" in row["metrics"]]
    require(len(rows) > 0, f"{folder} has logged nothing of learning yet")
    last = max(row["update"] for row in rows)
    ending = [row for row in rows if row["update"] > (1 - END) * last]
    names = sorted({name for row in ending for name in row["metrics"]})
    by_seat = {}
    for seat in sorted({row["seat"] for row in ending}):
        own = [row["metrics"] for row in ending if row["seat"] == seat]
        means = {name: [metrics[name] for metrics in own if metrics.get(name) is not None] for name in names}
        by_seat[f"player_{seat + 1}"] = {name: float(jnp.mean(jnp.array(x))) for name, x in means.items() if x}
    measured = {"updates": last, "by_seat": by_seat}
    if options.pictures:
        drawn = [name for name in ("reward", "value_loss", "policy_loss", "entropy", "kl", "explained_variance") if name in names]
        (folder / "diagnostics").mkdir(exist_ok=True)
        pictures.by_seat(rows, drawn, folder / "diagnostics" / "policy.png")
    found, broken = _of_checkpoints(folder, rows, options)
    return measured | {"checkpoints": found}, findings.of_policy(measured) + broken


def _of_checkpoints(folder: Path, rows: list[dict[str, Any]], options: Diagnose) -> tuple[dict[str, Any], list[findings.Finding]]:
    """Whether the reward fell after its peak, which module moved first, and the best checkpoint beside the final one."""
    try:
        final = checkpoint.find(folder, "final")
        setup = prepare(checkpoint.config_of(final))
    except BadInput as problem:
        return {"reward": {"fell": None}, "moved": [], "compared": {"reason": str(problem)}}, [_not_compared(problem)]
    frozen, every = {death["seed"] for death in final.facts["frozen"]}, setup.config.steps_per_update
    rows = [row for row in rows if row["update"] <= final.facts["update"] and row["seed"] not in frozen]
    phase = final.facts["phase"]
    begin, active = setup.boundaries[phase], setup.active(phase)
    held, figures = falls.of_rewards(rows, begin)
    found: dict[str, Any] = {"reward": {"fell": None if held is None else not held}, "moved": []}
    if held is False:
        signs = [sign for k in active for sign in getattr(setup.learners[k], "signs", lambda: SIGNS)()]
        drawn = falls.courses(rows, signs, figures, begin)
        found["moved"] = falls.table(drawn, every)
        if options.pictures and drawn:
            pictures.courses(drawn, every, folder / "diagnostics" / "checkpoints.png")
    if "peak_update" in figures:
        figures["peak_step"] = figures.pop("peak_update") * every
    found["reward"] |= {name: number(value) if isinstance(value, float) else value for name, value in figures.items()}
    broken = findings.of_fall(found)
    try:
        found["compared"] = _compared(final, setup, sorted(set(setup.seeds) - frozen), options)
    except BadInput as problem:
        found["compared"] = {"reason": str(problem)}
        broken.append(_not_compared(problem))
    return found, broken


def _not_compared(problem: BadInput) -> findings.Finding:
    return findings.Finding("checkpoints", f"the best and the final one were not compared: {problem}", {}, judged=False)


def _compared(final: Checkpoint, setup: Setup, seeds: list[int], options: Diagnose) -> dict[str, Any]:
    """The best checkpoint and the final one in fresh games; one alone where they are the same."""
    run, phase = final.run, final.facts["phase"]
    require(bool(seeds), f"every seed of {run} was frozen")
    require(bool(setup.active(phase)), f"nobody learned in {run} when its last checkpoint was written")
    require(final.facts["best"] is not None, f"no episode had ended in {run}, so no checkpoint is the best")
    best = int(final.facts["best"][1])
    known = checkpoint.steps(run)
    require(best in known, f"{run} has lost its best checkpoint, of step {best}: there are {', '.join(map(str, known))}")
    kept = {"final": final} if best == final.step else {"best": checkpoint.read(run, best), "final": final}
    teams = {name: [_team(one, setup, seed) for seed in seeds] for name, one in kept.items()}
    fixed = fixed_policies(setup, phase)
    found = checkpoints.compared(setup.game, teams, fixed, options.samples, jax.random.key(options.seed))
    return {name: {"step": kept[name].step, "score": kept[name].facts["score"]} | found[name] for name in kept}


def _team(found: Checkpoint, setup: Setup, seed: int) -> checkpoints.Team:
    """All learners of one seed, as a checkpoint has them."""
    team = []
    for k in setup.active(found.facts["phase"]):
        group = setup.groups[k]
        settings = setup.config.of(group.learner)
        policy = checkpoint.group_policy(found, k, seed)
        ranked = getattr(settings, "ranked_reward", None) is not None  # then values are of ranks
        discount = None if ranked else settings.discount
        team.append(checkpoints.Learned(policy, group.seats, discount, getattr(settings, "prosocial", 0.0)))
    return tuple(team)
