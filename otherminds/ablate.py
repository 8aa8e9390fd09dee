"""Learners side by side that differ in one thing: which part brings what.

Each row is an ordinary run in a folder of its own: trained, evaluated with search and without, and tested among strangers. A row
that is finished is never made again, one that was interrupted is gone on with. Differences are paired by seed.
"""

import shlex
import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import tyro
from rich.table import Table

from otherminds import dataset, fit, runs, warm
from otherminds.adaptation import SETS, adapt, serves
from otherminds.config import (
    PRESETS,
    Ablate,
    Adapt,
    BadInput,
    Collect,
    Evaluate,
    Fit,
    Train,
    closest,
    require,
    values_of,
    with_option,
)
from otherminds.evaluate import Estimate, estimate, evaluate
from otherminds.games import make
from otherminds.learners import LEARNERS
from otherminds.partners import PARTNERS
from otherminds.train import resume, train

FINISHED = "row.json"  # of a row, in the folder of its run
STRETCHES = 50  # of a run, for its peak and its end
WARM_EPISODES, WARM_SAMPLES = 4000, 50_000  # of scripts, and steps of them to fit on


SETTINGS = tuple(part.name for part in fields(Train) if is_dataclass(getattr(Train(), part.name)))  # of learners


@dataclass(frozen=True)
class Row:
    """One of those compared."""

    name: str
    config: Train
    warm: bool = False


def planned(options: Ablate) -> list[Row]:
    """What is to be compared, all of it checked before anything begins."""
    require(bool(options.learners), "--learners is empty: name at least one, --learners hop_plus no_goal")
    require(options.seeds >= 1, f"--seeds is {options.seeds}, expected at least 1")
    require(options.episodes > 1, f"--episodes is {options.episodes}, expected at least 2")
    require(options.replicas >= 1, f"--replicas is {options.replicas}, expected at least 1")
    base = _base(options)
    rows = []
    for learner in options.learners:
        if learner not in LEARNERS:
            raise BadInput(f"no learner '{learner}': {closest(learner, LEARNERS)}")
        plain = replace(base, seats=learner)
        rows.append(Row(learner, plain))
        for text in options.vary:
            option, equals, values = text.partition("=")
            require(bool(equals and option and values), f"--vary '{text}': expected option=value,value, as in hop.practice=0,0.5")
            if (of := option.partition(".")[0]) in SETTINGS and of != _settings(learner):
                require(of in map(_settings, options.learners), f"--vary '{text}': nobody in --learners reads --{of}")
                continue
            for value in values_of(values):
                rows.append(Row(f"{learner} {option}={value}", with_option(plain, option, value, "--vary")))
        if options.warm and learner in PRESETS and warm.startable(plain.of(learner)):
            rows.append(Row(f"{learner} warm", plain, warm=True))
    same: dict[tuple[str, bool], Row] = {}
    for row in rows:  # the value that an option has anyway is no second row
        same.setdefault((repr(row.config), row.warm), row)
    return list(same.values())


def _settings(learner: str) -> str:
    """Where the options of a learner stand; presets share theirs."""
    return "hop" if learner in PRESETS else learner


def _base(options: Ablate) -> Train:
    given = ("game", "steps", "seed", "seeds")
    for word in shlex.split(options.options):
        named = word.partition("=")[0].removeprefix("--")
        require(named not in (*given, "seats", "name", "json"), f"--options {word}: ablate has an option of its own for that")
    try:
        read: Train = tyro.cli(Train, args=shlex.split(options.options), prog="--options", console_outputs=False)
    except SystemExit as problem:
        raise BadInput(f"--options '{options.options}': expected options of train, as in --parallel 64") from problem
    return replace(read, tensorboard=False, **{name: getattr(options, name) for name in given})


def ablate(options: Ablate, say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """All rows, and how each differs from the first of its learner and from the first of all."""
    rows, folder = planned(options), runs.folder_of(options.name)
    sets = _sets(options)
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for number, row in enumerate(rows, 1):
        say(f"{number} of {len(rows)}: {row.name}")
        found.append(measured(row, folder, options, sets, say))
        runs.write_json(folder / "ablation.json", result := _result(options, found, len(rows)))
        (folder / "ablation.md").write_text(as_text(result), encoding="utf-8")
    return result


def _sets(options: Ablate) -> tuple[str, ...]:
    game = make(options.game)
    if options.sets is None:
        return tuple(name for name in SETS if serves(game, name))
    for name in options.sets:
        if name not in SETS:
            raise BadInput(f"no set of partners '{name}': {closest(name, SETS)}")
        require(serves(game, name), f"--sets {name}: these partners do not play {game.id}")
    return options.sets


def measured(row: Row, folder: Path, options: Ablate, sets: tuple[str, ...], say: Callable[[str], None]) -> dict[str, Any]:
    """A row: what was found if it is finished, else made or gone on with."""
    run, asked = (
        folder / runs.file_name(row.name),
        {"episodes": options.episodes, "sets": list(sets), "replicas": options.replicas},
    )
    if (run / FINISHED).exists():
        kept: dict[str, Any] = runs.read_json(run / FINISHED)
        _require_same(run, row)
        if kept["asked"] == asked:
            return kept
    config = replace(row.config, hop=replace(row.config.hop, start=_fitted(row.config, folder, say))) if row.warm else row.config
    if (run / "config.json").exists():
        _require_same(run, row)
        trained = runs.read_json(run / "result.json") if (run / "result.json").exists() else resume(str(run), say=say)
    else:
        trained = train(config, folder=run, say=say)
    searches = row.config.seats in PRESETS and PRESETS[row.config.seats].search
    result = {
        "name": row.name,
        "learner": row.config.seats,
        "warm": row.warm,
        "asked": asked,
        "steps": trained["steps"],
        "seconds_per_seed": round(trained["seconds"] / options.seeds, 1),
        **_course(run),
        "reward": _played(run, options.episodes, search=True),
        "without_search": _played(run, options.episodes, search=False) if searches else None,
        "strangers": _met(run, sets, options.replicas, search=True),
        "strangers_without_search": _met(run, sets, options.replicas, search=False) if searches else {},
    }
    runs.write_json(run / FINISHED, result)
    return result


def _require_same(run: Path, row: Row) -> None:
    """Refuse a run that other options made: its figures would stand in this row."""
    before, now = (runs.as_dict(config) for config in (runs.read_config(run), row.config))
    if row.warm:
        for part in (before["hop"], now["hop"]):
            for name in ("start", "goals", "world_model"):  # taken over from the fits
                part.pop(name)
    other = [name for name in now if name != "name" and before[name] != now[name]]
    require(not other, f"{run} was made with another --{' --'.join(other)}: give another --name, or remove it")


def _course(run: Path) -> dict[str, Any]:
    """The best and the last stretch of the learning curve of each seed."""
    sums: dict[int, dict[int, list[float]]] = {}
    rows = [row for row in runs.rows(run / "metrics.jsonl") if "reward" in row["metrics"]]
    last = max(row["update"] for row in rows)
    for row in rows:
        stretch = (row["update"] - 1) * STRETCHES // last
        sums.setdefault(row["seed"], {}).setdefault(stretch, []).append(row["metrics"]["reward"])
    curves = {seed: [float(np.mean(of_seed[k])) for k in sorted(of_seed)] for seed, of_seed in sorted(sums.items())}
    return {
        "peak": _over([max(curve) for curve in curves.values()]),
        "final": _over([curve[-1] for curve in curves.values()]),
        "curves": {str(seed): [round(value, 4) for value in curve] for seed, curve in curves.items()},
    }


def _played(run: Path, episodes: int, *, search: bool) -> dict[str, Any]:
    found = evaluate(Evaluate(str(run), episodes=episodes, search=search))
    kept = {"per_seed": found["per_seed"], **_over(found["per_seed"])}
    return kept | {name: found[name] for name in ("win_rate", "win_rate_per_seed") if name in found}


def _met(run: Path, sets: tuple[str, ...], replicas: int, *, search: bool) -> dict[str, Any]:
    if not sets:
        return {}
    found = adapt(Adapt(str(run), sets=sets, replicas=replicas, search=search))
    return {
        one["set"]: _over(one["per_seed"])
        | {"per_seed": one["per_seed"]}
        | {
            name: one[name]
            for name in ("foresight", "misled_cross_entropy", "belief", "steps_until_sure", "searched")
            if name in one
        }
        for one in found["sets"]
    }


def _over(values: Iterable[float]) -> dict[str, float | None]:
    """Mean and 95 % interval over seeds; none of one seed."""
    whole = estimate(np.array(list(values), float))
    known = bool(np.isfinite(whole.low))
    return {"mean": whole.mean, "low": whole.low if known else None, "high": whole.high if known else None}


def _result(options: Ablate, rows: list[dict[str, Any]], planned: int) -> dict[str, Any]:
    first = {row["learner"]: row for row in reversed(rows)}
    differences = []
    for row in rows:
        bases = {id(base): base for base in (first[row["learner"]], rows[0]) if base is not row}
        differences += [_difference(row, base) for base in bases.values()]
    command = asdict(options) | {"sets": options.sets}
    return {"ablation": options.name, "options": command, "planned": planned, "rows": rows, "differences": differences}


def _difference(row: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """How much more a row earns than another, seed by seed."""
    parts = {"reward": (row["reward"], base["reward"])}
    parts |= {name: (part, base["strangers"][name]) for name, part in row["strangers"].items() if name in base["strangers"]}
    return {
        "row": row["name"],
        "less": base["name"],
        **{name: _over(np.subtract(left["per_seed"], right["per_seed"])) for name, (left, right) in parts.items()},
    }


# --- starting from fits ---


def _fitted(config: Train, folder: Path, say: Callable[[str], None]) -> tuple[str, ...]:
    """Names of fits to start from, made if they are not there: games of the scripts that the game has, and what they teach."""
    data, game = folder / "scripts.npz", make(config.game)
    if not data.exists():
        say("collecting games of scripts")
        names = "+".join(name for name in PARTNERS.get(game.family, {}) if name not in ("stubborn", "switcher"))
        collected = dataset.gather(Collect(data, game=config.game, seats=names or "random", episodes=WARM_EPISODES))
        dataset.save(collected, data)
    made = []
    for module in sorted(warm.startable(config.of(config.seats))):
        parts = PRESETS[config.seats]
        kind = "manual" if parts.goals == "manual" else "vae" if parts.numbers else config.hop.goals.kind
        name = folder / (f"fit-goals-{kind}" if module == "goals" else f"fit-{module}")
        if not (name / "result.json").exists():
            say(f"fitting {module}")
            shutil.rmtree(name, ignore_errors=True)  # one that was interrupted
            asked = Fit(cast(Any, module), data, name=str(name), samples=WARM_SAMPLES, world_model=config.hop.world_model)
            own, told = replace(config.hop.goals, kind=kind), replace(asked.opponent_model, goal=False)
            fit.fit(replace(asked, goals=own, opponent_model=told))
        made.append(str(name))
    return tuple(made)


# --- for people ---


def as_text(result: dict[str, Any]) -> str:
    """The tables in Markdown."""
    parts = []
    for title, columns, rows in _tables(result):
        lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
        parts += [f"{title}\n\n" + "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def tables(result: dict[str, Any]) -> list[Table]:
    """The same for a terminal."""
    made = []
    for title, columns, rows in _tables(result):
        table = Table(*columns, title=title)
        for row in rows:
            table.add_row(*row)
        made.append(table)
    return made


def _tables(result: dict[str, Any]) -> list[tuple[str, list[str], list[list[str]]]]:
    rows, game = result["rows"], result["options"]["game"]
    sets = list(dict.fromkeys(name for row in rows for name in row["strangers"]))
    columns = ["learner", "reward", "without search", "peak", "end", *sets, "steps", "s a seed"]
    body = [
        [
            row["name"],
            _shown(row["reward"]),
            _shown(row["without_search"]),
            _shown(row["peak"]),
            _shown(row["final"]),
            *(_shown(row["strangers"].get(name)) for name in sets),
            f"{row['steps']:,}",
            f"{row['seconds_per_seed']:,.0f}",
        ]
        for row in rows
    ]
    seeds = result["options"]["seeds"]
    missing = "" if len(rows) == result["planned"] else f", {result['planned'] - len(rows)} rows still missing"
    made = [(f"{game}, {seeds} seeds, means with 95 % intervals over seeds{missing}", columns, body)]
    if result["differences"]:
        body = [
            [one["row"], one["less"], *(_shown(one.get(name), starred=True) for name in ("reward", *sets))]
            for one in result["differences"]
        ]
        made.append(("Differences, paired by seed; * the interval excludes 0", ["learner", "less", "reward", *sets], body))
    return made


def _shown(part: dict[str, Any] | None, starred: bool = False) -> str:
    if part is None:
        return ""
    if part["low"] is None:
        return f"{part['mean']:.3f}"
    apart = "*" if starred and part["low"] * part["high"] > 0 else ""
    return f"{Estimate(part['mean'], part['low'], part['high'])}{apart}"
