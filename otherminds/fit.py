"""Train one module alone on a dataset, and measure it every epoch on episodes it has not seen.

What is left behind is a run like any other: settings, rows of metrics, tables, and a checkpoint that other runs can start from.
"""

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from otherminds import checkpoint, goals, opponent_model, runs, samples, world_model
from otherminds import dataset as datasets
from otherminds.config import Fit, WorldModel, require
from otherminds.dataset import Dataset
from otherminds.diagnostics import beliefs as of_beliefs
from otherminds.diagnostics import goals as of_goals
from otherminds.diagnostics import opponent_model as of_partners
from otherminds.diagnostics import world_model as of_worlds
from otherminds.diagnostics.asking import predicted
from otherminds.evaluate import estimate
from otherminds.games import make
from otherminds.games.base import Game
from otherminds.machine import peak_memory_mb
from otherminds.networks import Dense, Torso, stack
from otherminds.progress import bar

LARGEST_GRADIENT = 1.0
HIDDEN = 0.1  # share of samples from which the goal, or who it is, is kept in learning: in play either may be unknown
VALUE_EPOCHS = 5


@dataclass(frozen=True)
class Task:
    """What is trained and measured: one module, on one split of the data."""

    train: Any  # a pytree of arrays, samples along the first axis
    module: Any
    loss: Callable[[Any, Any, Array, Array], tuple[Array, dict[str, Array]]]
    """Of a module, a batch, a key and the share of the updates that are over: the sum, and its terms."""
    measure: Callable[[Any], dict[str, Any]]  # scores of a module on what was held out
    taught: dict[str, float]  # what can be said of the samples themselves; a module can be no better than these
    learning_rate: float
    batch: int


Test = Callable[[Any], dict[str, Any]]
"""Scores of a module on samples that were drawn before."""


# --- what each module is trained on ---


def opponent_model_task(options: Fit, data: Dataset, seed: int) -> Task:
    config, game = options.opponent_model, data.game
    require(not config.goal or bool(game.goals), f"{game.id} names no goals: --opponent_model.goal False")
    random = np.random.default_rng(seed)
    training, held_out = data.split(options.held_out, seed)
    require(
        not config.goal or options.labels == "reached" or samples.goals_are_known(training),
        "the dataset knows of nobody what it is after: --labels reached, or --opponent_model.goal False",
    )
    known, partners = (training.rows.probabilities,) * 3, len(data.partners)
    chosen = (options.player, options.labels, options.trajectories, options.partner_data)
    train = samples.partner_steps(training, options.samples, random, known, data.partners, *chosen)

    def loss(
        model: opponent_model.OpponentModel, steps: samples.PartnerSteps, key: Array, progress: Array
    ) -> tuple[Array, dict[str, Array]]:
        kept = jax.random.uniform(key, (2, len(steps.action))) > HIDDEN
        logits = model(game.scaled(steps.view), steps.told(config, game, partners, *kept))
        return opponent_model.loss(logits, steps.action, jnp.ones(len(steps.action), bool))

    module = fresh(options, game, partners, random)
    test = opponent_model_test(options, held_out, training, data.partners, random)
    taught = samples.off_the_board(game, train.view)
    return Task(train, module, loss, test, taught, config.learning_rate, config.batch)


def world_model_task(options: Fit, data: Dataset, seed: int) -> Task:
    config, game = options.world_model, data.game
    random = np.random.default_rng(seed)
    training, held_out = data.split(options.held_out, seed)
    value = value_of(training, config, seed, options.player) if config.reward_target == "r+v" else None
    target, later_target = (reward_targets(config, part, value) for part in (training, held_out))
    train, _, _ = samples.own_steps(training, options.samples, random, target, options.player)

    def loss(model: Any, steps: world_model.Step, key: Array, progress: Array) -> tuple[Array, dict[str, Array]]:
        return world_model.losses(model, config, steps)

    module = fresh(options, game, len(data.partners), random)
    test = world_model_test(options, held_out, training, data.partners, random, later_target)
    return Task(train, module, loss, test, samples.by_the_rules(game, train), config.learning_rate, config.batch)


def goals_task(options: Fit, data: Dataset, seed: int) -> Task:
    config = options.goals
    random = np.random.default_rng(seed)
    training, held_out = data.split(options.held_out, seed)
    chosen = (config.steps, random, config.discount, options.player, options.labels)
    train, _ = samples.sequences(training, options.samples, *chosen)
    labelled = config.kind != "manual" or bool((train.label >= 0).any())
    require(
        labelled,
        "no episode of the dataset shows a goal to learn by hand: --goals.kind vq, or --labels true where they are known",
    )
    module = fresh(options, data.game, len(data.partners), random)
    test = goals_test(options, held_out, training, data.partners, random)
    taught = samples.off_the_board(data.game, train.view[train.seen])
    return Task(train, module, goals.losses, test, taught, config.learning_rate, config.batch)


TASKS: dict[str, Callable[[Fit, Dataset, int], Task]] = {
    "opponent_model": opponent_model_task,
    "goals": goals_task,
    "world_model": world_model_task,
}


def reward_targets(config: WorldModel, data: Dataset, value: Any) -> np.ndarray:
    """[N, A]: what the reward head should say of each step; `value`, where it is needed, tells what an observation is worth."""
    rows = data.rows
    later = jnp.zeros(rows.reward.size)
    if value is not None:
        flat = jnp.asarray(rows.next_observation.reshape(-1, *data.game.observation_shape))
        later = predicted(value, _valued, flat, data.game)
    parts = (rows.reward, samples.returns_to_go(data, config.discount), rows.terminated)
    reward, returns, end = (jnp.asarray(part).reshape(-1) for part in parts)
    target = world_model.reward_target(config.reward_target, reward, later, returns, end, config.discount)
    return np.asarray(target).reshape(rows.reward.shape)


def _valued(model: tuple[Torso, Dense], observation: Array, game: Game) -> Float[Array, " n"]:
    torso, head = model
    return head(torso(game.scaled(observation)))[:, 0]


def value_of(data: Dataset, config: WorldModel, seed: int, player: int | None) -> Any:
    """What is earned from an observation on, learned from the returns of whoever played."""
    game, random = data.game, np.random.default_rng(seed)
    torso = Torso.make(random, game.observation_shape, config.hidden, "relu")
    module = (torso, Dense.make(random, torso.features, 1, 0.1))
    train, _, _ = samples.own_steps(data, 100_000, random, samples.returns_to_go(data, config.discount), player)

    def loss(model: Any, steps: world_model.Step, key: Array, progress: Array) -> tuple[Array, dict[str, Array]]:
        off = ((_valued(model, steps.observation, game) - steps.target) ** 2).mean()
        return off, {"value": off}

    task = Task(train, module, loss, lambda model: {}, {}, config.learning_rate, config.batch)
    for _, fitted, _ in epochs(task, VALUE_EPOCHS, seed):
        module = fitted
    return module


# --- and measured on ---


def opponent_model_test(
    options: Fit, data: Dataset, counted_on: Dataset, partners: tuple[str, ...], random: np.random.Generator
) -> Test:
    """`counted_on` are the games that tell how often each partner is met; `partners` those the model can be told of.

    True goals are told, whatever the labels were in learning; where the data know none, those of learning are.
    """
    config, known = options.opponent_model, samples.goals_are_known(data)
    bounded = config.goal and (known or config.identity)  # goals as they were reached are of hindsight, which has no bound
    told, without = of_beliefs.ceilings(data, counted_on, partners, (bounded, config.identity), (False, config.identity))
    best = (told.bound, told.mixture, without.bound)
    labels: samples.Labels = "true" if known else options.labels
    steps = samples.partner_steps(data, options.test_samples, random, best, partners, options.player, labels)
    return lambda model: of_partners.scores(model, config, data.game, partners, steps) | by_truth(data)


def world_model_test(
    options: Fit,
    data: Dataset,
    counted_on: Dataset,
    partners: tuple[str, ...],
    random: np.random.Generator,
    target: np.ndarray | None = None,
) -> Test:
    steps, row, seat = samples.own_steps(data, options.test_samples, random, data.rows.reward, options.player)
    unturned = data.rows.action[row]
    said_of = None if target is None else target[row, seat]
    return lambda model: of_worlds.scores(model, data.game, steps, seat, unturned, said_of)


def goals_test(options: Fit, data: Dataset, counted_on: Dataset, partners: tuple[str, ...], random: np.random.Generator) -> Test:
    config = options.goals
    chosen = (config.steps, random, config.discount, options.player, options.labels)
    test, where = samples.sequences(data, options.test_samples, *chosen)
    goal = data.rows.goal[where["row"], where["seat"]].astype(int)
    exact = of_beliefs.history(data, counted_on, where["row"], where["seat"], where["seen"])
    episode = (np.cumsum(data.rows.first) - 1)[where["row"][:, 0]]
    return lambda model: of_goals.scores(model, test, goal, episode, exact) | by_truth(data)


def by_truth(data: Dataset) -> dict[str, float]:
    """How whoever knows everything would foresee; nothing where somebody left no probabilities behind."""
    there = data.rows.present
    odds = data.rows.probabilities[there].astype(float)
    if not odds.any(-1).all():
        return {}
    played = np.take_along_axis(odds, np.maximum(data.rows.action[there], 0).astype(int)[:, None], -1)
    return {"top_1_true": float(odds.max(-1).mean()), "cross_entropy_true": float(-np.log(np.maximum(played, 1e-12)).mean())}


TESTS: dict[str, Callable[..., Test]] = {
    "opponent_model": opponent_model_test,
    "goals": goals_test,
    "world_model": world_model_test,
}


# --- the loop ---


def fit(options: Fit) -> dict[str, Any]:
    """Train the module, once for each seed, and leave the results in the folder of the run."""
    check(options)
    data = datasets.load(options.data)
    seats = data.game.seats
    require(options.player in (None, *range(1, seats + 1)), f"--player is {options.player}, expected a number from 1 to {seats}")
    folder = runs.folder_of(f"{options.module}-{options.data.stem}" if options.name is None else options.name)
    runs.require_name(folder)
    require(not folder.exists(), f"{folder} exists already: give another --name, or remove it first")
    tasks = [TASKS[options.module](options, data, options.seed)]  # what cannot be fitted should be said before a folder is there
    begin = time.perf_counter()
    folder.mkdir(parents=True)
    runs.write_json(folder / "config.json", {"format": runs.FORMAT, "fit": runs.as_dict(options) | {"data": str(options.data)}})
    rows, modules, scores = runs.Rows(folder / "metrics.jsonl"), [], []
    try:
        with bar() as progress:
            shown = progress.add_task(f"fit {options.module}", total=options.seeds * options.epochs)
            for seed in range(options.seed, options.seed + options.seeds):
                task = tasks.pop() if tasks else TASKS[options.module](options, data, seed)
                for epoch, module, terms in epochs(task, options.epochs, seed):
                    found = task.measure(module)
                    rows.write([row(epoch, seed, "train", terms), row(epoch, seed, "held_out", found)])
                    write_tables(folder, epoch, seed, found)
                    progress.advance(shown)
                modules.append(eqx.filter(module, eqx.is_array))
                scores.append(found)
    finally:
        rows.close()
    facts = {"fit": runs.as_dict(options) | {"data": str(options.data)}, "game": data.game.id, "partners": list(data.partners)}
    facts |= {"taught": task.taught, "data_sha256": data.digest, "source": data.source}
    checkpoint.save(folder, options.epochs, stack(modules), facts)
    size = len(jax.tree.leaves(task.train)[0])
    sizes = {"samples": size}
    if isinstance(task.train, goals.Sequences):
        sizes = {"samples": int(task.train.seen.sum()), "episodes": size}
    result = {
        "fit": str(folder),
        "module": options.module,
        "game": data.game.id,
        **sizes,
        "epochs": options.epochs,
        "seeds": options.seeds,
        "seconds": round(time.perf_counter() - begin, 1),
        "peak_memory_mb": round(peak_memory_mb()),
        "taught": task.taught,
        "scores": over_seeds(scores),
    }
    runs.write_json(folder / "result.json", result)
    return result


def check(options: Fit) -> None:
    for name in ("samples", "test_samples", "epochs", "seeds"):
        require(getattr(options, name) > 0, f"--{name.replace('_', '-')} is {getattr(options, name)}, expected at least 1")
    require(0 < options.held_out < 1, f"--held-out is {options.held_out}, expected a share between 0 and 1")
    check_settings(getattr(options, options.module), f"--{options.module}")


LEAST = {"repeats": 0, "codes": 2, "steps": goals.LATER + 1, "horizon": goals.LATER}
"""The smallest whole number that makes sense; 1 for all others."""
SHARES = ("discount", "learning_rate")  # numbers from 0 to 1


def check_settings(config: Any, owner: str) -> None:
    """Refuse numbers that make no sense, by name, before anything is made of them."""
    for name, value in ((field.name, getattr(config, field.name)) for field in dataclasses.fields(config)):
        option = f"{owner}.{name.replace('_', '-')}"
        if dataclasses.is_dataclass(value):
            check_settings(value, option)
        elif isinstance(value, bool | str):
            continue
        elif isinstance(value, int):
            least = LEAST.get(name, 1)
            require(least <= value < 10_000, f"{option} is {value}, expected a whole number from {least} to 9999")
        elif isinstance(value, float):
            most = 1.0 if name in SHARES else math.inf
            fits = math.isfinite(value) and 0 <= value <= most
            require(fits, f"{option} is {value}, expected a finite number of at least 0" + (" and at most 1" * (most == 1)))
        elif name == "hidden":
            fits = len(value) > 0 and all(0 < count < 10_000 for count in value)
            require(fits, f"{option} is {value}, expected the units of each layer: {option} 64 64")
        elif value:  # weights of planes
            fits = all(math.isfinite(weight) and weight >= 0 for weight in value) and any(value)
            require(fits, f"{option} is {value}, expected numbers of at least 0, not all of them 0")


def epochs(task: Task, count: int, seed: int) -> Iterator[tuple[int, Any, dict[str, float]]]:
    """(epoch, module after it, mean of each term of the loss in it)."""
    size = len(jax.tree.leaves(task.train)[0])
    batch = min(task.batch, size)
    rate = optax.cosine_decay_schedule(task.learning_rate, count * (size // batch))
    optimiser = optax.chain(optax.clip_by_global_norm(LARGEST_GRADIENT), optax.adam(rate))
    parts, static = eqx.partition(task.module, eqx.is_array)
    state = optimiser.init(parts)

    @jax.jit
    def one_epoch(
        parts: Any, state: Any, order: Int[Array, "batches batch"], keys: Array, over: Float[Array, " batches"], train: Any
    ) -> tuple[Any, Any, dict[str, Array]]:
        def step(carry: tuple[Any, Any], row: tuple[Array, Array, Array]) -> tuple[tuple[Any, Any], dict[str, Array]]:
            (parts, state), (chosen, key, progress) = carry, row
            some = jax.tree.map(lambda leaf: leaf[chosen], train)
            gradient, terms = jax.grad(lambda p: task.loss(eqx.combine(p, static), some, key, progress), has_aux=True)(parts)
            moves, state = optimiser.update(gradient, state)
            return (optax.apply_updates(parts, moves), state), terms

        (parts, state), terms = jax.lax.scan(step, (parts, state), (order, keys, over))
        return parts, state, jax.tree.map(jnp.mean, terms)

    random = np.random.default_rng(seed)
    for epoch in range(1, count + 1):
        order = random.permutation(size)[: size // batch * batch].reshape(-1, batch)
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), epoch), len(order))
        over = (epoch - 1 + jnp.arange(len(order)) / len(order)) / count
        parts, state, terms = one_epoch(parts, state, jnp.asarray(order), keys, over, task.train)
        means = {name: float(f"{float(term):.6g}") for name, term in terms.items()}
        broken = [name for name, mean in means.items() if not np.isfinite(mean)]
        require(not broken, f"epoch {epoch} of seed {seed}: {', '.join(broken)} is no longer finite: lower the learning rate")
        yield epoch, eqx.combine(parts, static), means


def row(epoch: int, seed: int, split: str, metrics: dict[str, Any]) -> dict[str, Any]:
    """Of metrics.jsonl: plain numbers, and those of one group under its name; tables are files of their own."""
    groups = {name: part for name, part in metrics.items() if isinstance(part, dict)}
    named = metrics | {f"{name}_{key}": value for name, part in groups.items() for key, value in part.items()}
    plain = {name: value for name, value in named.items() if isinstance(value, int | float)}
    return {"epoch": epoch, "seed": seed, "split": split, "metrics": plain}


def write_tables(folder: Path, epoch: int, seed: int, found: dict[str, Any]) -> None:
    """What is no single number, by epoch and seed."""
    place = folder / "tables"
    place.mkdir(exist_ok=True)
    if "by_action" in found:
        (place / f"actions-{seed}-{epoch}.csv").write_text(of_partners.as_csv(found["by_action"]), encoding="utf-8")
    runs.write_json(place / f"scores-{seed}-{epoch}.json", found)


def over_seeds(scores: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and interval over seeds of every number, wherever it stands, also in tables; a single seed has no interval."""
    first = scores[0]
    found: dict[str, Any] = {}
    for name, value in first.items():
        values = [score[name] for score in scores if name in score]
        if isinstance(value, dict):
            found[name] = over_seeds(values)
        elif isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
            found[name] = over_seeds([{_label(row): row for row in rows} for rows in values])
        elif all(isinstance(value, int | float) for value in values):
            whole = estimate(np.array(values, float))
            found[name] = {"mean": whole.mean, "low": whole.low, "high": whole.high} if len(values) > 1 else {"mean": whole.mean}
    return found


def _label(row: dict[str, Any]) -> str:
    """What a row of a table is about."""
    return " ".join(str(row[name]) for name in ("action", "gate", "at", "step", "episode") if name in row)


# --- what was fitted, read again ---


@dataclass(frozen=True)
class Fitted:
    """The modules of a fit, one for each seed."""

    options: Fit
    game: Game
    partners: tuple[str, ...]
    taught: dict[str, float]
    data_sha256: str
    source: dict[str, Any]  # the options its data were collected with; none for fits of older versions
    modules: tuple[Any, ...]


def load(name: str) -> Fitted:
    """A fit by its name under runs/, or by its path."""
    folder = runs.find(name)
    found = checkpoint.newest(folder, lambda damage: None)
    require(found is not None and "fit" in found.facts, f"{folder} is no fit that came to its end: otherminds fit ...")
    assert found is not None
    settings = dict(found.facts["fit"])
    written = runs.read_json(folder / "config.json")
    require(
        isinstance(written, dict) and written.get("fit") == json.loads(json.dumps(settings)),
        f"{folder / 'config.json'} is not what the fit was made with: it was edited since, or is another's",
    )
    options: Fit = runs.from_dict(Fit, settings, f"{folder}: fit")
    game, partners = make(found.facts["game"]), tuple(found.facts["partners"])
    like = fresh(options, game, len(partners), np.random.default_rng(0))
    modules = [
        eqx.combine(checkpoint.filled(eqx.filter(like, eqx.is_array), {n: a[k] for n, a in found.arrays.items()}), like)
        for k in range(options.seeds)
    ]
    facts = found.facts
    return Fitted(
        options, game, partners, facts.get("taught", {}), facts.get("data_sha256", ""), facts.get("source", {}), tuple(modules)
    )


def fresh(options: Fit, game: Game, partners: int, random: np.random.Generator) -> Any:
    """The module before it has learned anything."""
    if options.module == "world_model":
        return world_model.WorldModel.make(options.world_model, game, random)
    if options.module == "goals":
        return goals.Goals.make(options.goals, game, random)
    told = opponent_model.told_size(options.opponent_model, game, len(game.goals) + 1, partners)  # one for no goal
    return opponent_model.OpponentModel.make(options.opponent_model, game, told, random)
