"""Train one module alone on a dataset, and measure it every epoch on episodes it has not seen.

What is left behind is a run like any other: settings, rows of metrics, tables, and a checkpoint that other runs can start from.
"""

import dataclasses
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
from jaxtyping import Array, Float, Int, Num

from otherminds import checkpoint, goals, opponent_model, runs, world_model
from otherminds import dataset as datasets
from otherminds.config import BadInput, Fit, require
from otherminds.dataset import Dataset
from otherminds.diagnostics import beliefs as of_beliefs
from otherminds.diagnostics import goals as of_goals
from otherminds.diagnostics import opponent_model as of_partners
from otherminds.diagnostics import world_model as of_worlds
from otherminds.evaluate import estimate
from otherminds.games import make
from otherminds.games.base import Game
from otherminds.games.ego import seen_from, to_ego
from otherminds.machine import peak_memory_mb
from otherminds.networks import stack
from otherminds.progress import bar

LARGEST_GRADIENT = 1.0
AT_ONCE = 1000  # samples that are predicted together
SEQUENCES_AT_ONCE = 128


@dataclass(frozen=True)
class Task:
    """What is trained and measured: one module, on one split of the data."""

    train: Any  # a pytree of arrays, samples along the first axis
    module: Any
    loss: Callable[[Any, Any, Array, Array], tuple[Array, dict[str, Array]]]
    """Of a module, a batch, a key and the share of the updates that are over: the sum, and its terms."""
    measure: Callable[[Any], dict[str, Any]]  # scores of a module on what was held out
    learning_rate: float
    batch: int


class PartnerSteps(eqx.Module):
    """Steps of partners, seen by somebody else."""

    view: Num[Array, "n ..."]  # the partner's own, as far as the one who looks can see it
    place: Int[Array, " n"]  # of the partner, in ego order
    action: Int[Array, " n"]
    goal: Int[Array, " n"]  # that is told; -1 for unknown
    who: Int[Array, " n"]
    exact: Float[Array, "n actions"]
    ego: Int[Array, " n"]  # who looks


def partner_steps(
    data: Dataset, count: int, random: np.random.Generator, player: int | None, labels: str, kept: str
) -> PartnerSteps:
    """Up to `count` different steps of partners, each seen by one other who is there, drawn at random (or `player`, from 1)."""
    rows, game = data.rows, data.game
    reached = reached_in_episode(data)
    looks = rows.present if player is None else rows.present & (np.arange(game.seats) == player - 1)
    seen = rows.present & ((looks.sum(1, keepdims=True) - looks) > 0)
    if kept == "rewarded":
        seen &= reached >= 0
    row, seat = some(seen, count, random)
    require(len(row) > 0, "the dataset has no step of a partner that somebody else sees: collect more episodes, or other seats")
    chance = np.where(looks[row] & (np.arange(game.seats) != seat[:, None]), random.random((len(row), game.seats)), -1.0)
    ego = chance.argmax(1)
    place = (seat - ego) % game.seats
    view = np.empty((len(row), *game.observation_shape), rows.observation.dtype)
    for one in np.unique(place):
        there = place == one
        view[there] = turned(game, rows.observation[row[there], ego[there]], int(one))
    goal = (rows.goal if labels == "true" else reached)[row, seat]
    numbers = (place, rows.action[row, seat], goal, rows.who[row, seat], ego)
    place_, action, goal_, who, ego_ = (jnp.asarray(column, jnp.int32) for column in numbers)
    return PartnerSteps(jnp.asarray(view), place_, action, goal_, who, jnp.asarray(rows.probabilities[row, seat]), ego_)


def turned(game: Game, observation: np.ndarray, place: int) -> np.ndarray:
    """What the partner at `place` sees, not scaled."""
    inner = len(game.observation_shape)
    return np.asarray(seen_from(jnp.asarray(observation), place, game.seats, game.shown_of_each, inner))


def reached_in_episode(data: Dataset) -> np.ndarray:
    """[N, A]: the goal that each seat reaches in the episode of each row; -1 for none."""
    rows = data.rows
    episode = np.cumsum(rows.first) - 1
    reached = np.full((episode[-1] + 1, rows.goal_reached.shape[1]), -1, np.int16)
    np.maximum.at(reached, episode, rows.goal_reached)
    return reached[episode]


def some(which: np.ndarray, count: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(rows, seats) of up to `count` of those that are marked [N, A], in any order."""
    row, seat = np.nonzero(which)
    chosen = random.permutation(len(row))[:count]
    return row[chosen], seat[chosen]


def own_steps(data: Dataset, count: int, random: np.random.Generator, player: int | None) -> world_model.Step:
    """Up to `count` different steps of seats that are there, each in its own frame."""
    rows, game = data.rows, data.game
    there = rows.present if player is None else rows.present & (np.arange(game.seats) == player - 1)
    row, seat = some(there, count, random)
    return world_model.Step(
        jnp.asarray(rows.observation[row, seat]),
        jax.vmap(to_ego)(jnp.asarray(rows.action[row], jnp.int32), jnp.asarray(seat)),
        jnp.asarray(rows.next_observation[row, seat]),
        jnp.asarray(rows.reward[row, seat], jnp.float32),
        jnp.asarray(rows.terminated[row, seat]),
        jnp.ones(len(row), bool),
    )


# --- what each module is trained and measured on ---


def opponent_model_task(options: Fit, data: Dataset, seed: int) -> Task:
    config, game = options.opponent_model, data.game
    require(not config.goal or bool(game.goals), f"{game.id} names no goals: --opponent_model.goal False")
    random = np.random.default_rng(seed)
    training, held_out = data.split(options.held_out, seed)
    train = partner_steps(training, options.samples, random, options.player, options.labels, options.trajectories)
    test = partner_steps(held_out, options.test_samples, random, options.player, "true", "all")

    def logits(model: Any, steps: PartnerSteps) -> Float[Array, "n actions"]:
        goal, identity = jax.nn.one_hot(steps.goal, len(game.goals)), jax.nn.one_hot(steps.who, len(data.partners))
        return model(game.scaled(steps.view), opponent_model.tell(config, game, steps.place, goal, identity))

    def loss(model: Any, steps: PartnerSteps, key: Array, progress: Array) -> tuple[Array, dict[str, Array]]:
        return opponent_model.loss(logits(model, steps), steps.action, jnp.ones(len(steps.action), bool))

    def measure(model: Any) -> dict[str, Any]:
        log_odds = np.asarray(jax.nn.log_softmax(predicted(model, logits, test)), np.float64)
        players = [f"player_{seat + 1}" for seat in range(game.seats)]
        groups = {"by_partner": (np.asarray(test.who), data.partners), "by_player": (np.asarray(test.ego), players)}
        return of_partners.measure(
            log_odds, np.asarray(test.action), np.asarray(test.exact, np.float64), game.action_names, groups
        )

    return Task(train, fresh(options, game, len(data.partners), random), loss, measure, config.learning_rate, config.batch)


def world_model_task(options: Fit, data: Dataset, seed: int) -> Task:
    config, game = options.world_model, data.game
    require(config.reward_target in ("none", "r"), "a dataset has no values: --world_model.reward-target r, or none")
    random = np.random.default_rng(seed)
    training, held_out = data.split(options.held_out, seed)
    train = own_steps(training, options.samples, random, options.player)
    test = own_steps(held_out, options.test_samples, random, options.player)
    true = {
        "observation": np.asarray(game.scaled(test.next_observation)),
        "reward": np.asarray(test.target),
        "end": np.asarray(test.end),
    }
    before, binary = np.asarray(test.observation), np.asarray(world_model.binary(game))

    def foreseen(model: Any, steps: world_model.Step) -> dict[str, Array]:
        said = model(game.scaled(steps.observation), steps.action)
        return {"observation": said.observation(game), "reward": said.reward, "end": said.end > 0}

    def measure(model: Any) -> dict[str, Any]:
        said = {name: np.asarray(part) for name, part in predicted(model, foreseen, test).items()}
        names, laws = game.action_names, opponent_model.is_board(game) and shows_all(game)
        return of_worlds.measure(before, np.asarray(test.action), said, true, binary, game.seats, names, laws)

    def loss(model: Any, steps: world_model.Step, key: Array, progress: Array) -> tuple[Array, dict[str, Array]]:
        return world_model.losses(model, config, steps)

    return Task(train, fresh(options, game, len(data.partners), random), loss, measure, config.learning_rate, config.batch)


def sequences(
    data: Dataset, count: int, steps: int, random: np.random.Generator, player: int | None
) -> tuple[goals.Sequences, dict[str, np.ndarray]]:
    """Episodes of partners with about `count` steps in all, each seen by one other, and of each step its row and seat."""
    rows, game = data.rows, data.game
    table = data.table()[:, :steps]
    filled = table >= 0
    episode, seat = (index.ravel() for index in np.indices((len(table), game.seats)))
    others = [k for k in range(game.seats) if player is None or k == player - 1]
    ego = random.choice(others, len(seat))
    ego = np.where(ego == seat, (ego + 1 + random.integers(max(game.seats - 1, 1), size=len(seat))) % game.seats, ego)
    apart = (ego != seat) & (np.isin(ego, others))
    index, there = table[episode], filled[episode]
    seen = there & rows.present[index, seat[:, None]] & rows.present[index, ego[:, None]] & apart[:, None]
    order = random.permutation(np.flatnonzero(seen.any(1)))
    enough = int(np.searchsorted(np.cumsum(seen[order].sum(1)), count)) + 1
    chosen = order[:enough]
    require(
        len(chosen) > 1, "the dataset has no episode of a partner that somebody else sees: collect more episodes, or other seats"
    )
    index, seen, seat, ego = index[chosen], seen[chosen], seat[chosen], ego[chosen]
    place = (seat - ego) % game.seats
    view = np.empty((*index.shape, *game.observation_shape), rows.observation.dtype)
    for one in np.unique(place):
        who = place == one
        looked = rows.observation[index[who], ego[who, None]]
        view[who] = turned(game, looked, int(one))
    columns = (rows.action, rows.reward, returns_to_go(data))
    action, reward, value = (column[index, by[:, None]] for column, by in zip(columns, (seat, seat, ego), strict=True))
    parts = (np.where(seen, action, -1).astype(np.int32), np.where(seen, reward, 0.0), np.where(seen, value, 0.0), seen)
    found = goals.Sequences(jnp.asarray(view), *(jnp.asarray(part) for part in parts))
    return found, {"row": index, "seat": np.broadcast_to(seat[:, None], index.shape), "seen": seen}


def returns_to_go(data: Dataset, discount: float = 0.95) -> np.ndarray:
    """[N, A]: what each seat earns from each row to the end of its episode, later rewards discounted."""
    rows = data.rows
    found = np.zeros_like(rows.reward)
    later = np.zeros(rows.reward.shape[1], rows.reward.dtype)
    for n in range(len(found) - 1, -1, -1):
        later = rows.reward[n] + (0.0 if rows.end[n] else discount * later)
        found[n] = later
    return found


def goals_task(options: Fit, data: Dataset, seed: int) -> Task:
    config, game = options.goals, data.game
    random = np.random.default_rng(seed)
    training, held_out = data.split(options.held_out, seed)
    train, _ = sequences(training, options.samples, config.steps, random, options.player)
    test, where = sequences(held_out, options.test_samples, config.steps, random, options.player)
    exact = exact_history(held_out, where)

    def measure(model: Any) -> dict[str, Any]:
        said = {name: np.asarray(part, np.float64) for name, part in predicted(model, all_codes, test, SEQUENCES_AT_ONCE).items()}
        return of_goals.measure(
            said, np.asarray(test.action), where["seen"], held_out.rows.goal[where["row"], where["seat"]], exact
        )

    module = fresh(options, game, len(data.partners), random)
    return Task(train, module, goals.losses, measure, config.learning_rate, config.batch)


def exact_history(data: Dataset, where: dict[str, np.ndarray]) -> dict[str, float] | None:
    """Cross-entropy of the steps at `where` by exact beliefs, without and with the history of the episode. None: no scripts."""
    try:
        found = {seat: of_beliefs.minds_of(data, seat) for seat in range(data.game.seats)}
    except BadInput:
        return None
    total = {"without": 0.0, "episode": 0.0}
    for seat, minds in found.items():
        rows = where["row"][where["seen"] & (where["seat"] == seat)]
        action = data.rows.action[rows, seat].astype(int)
        for name, belief in (
            ("without", np.broadcast_to(minds.share, (len(data), len(minds.share)))),
            ("episode", of_beliefs.posterior(data, seat, minds, False)),
        ):
            odds = of_beliefs.expected(minds, belief)[rows, action]
            total[name] -= float(np.log(np.maximum(odds, 1e-12)).sum())
    return {name: value / where["seen"].sum() for name, value in total.items()}


def all_codes(model: goals.Goals, rows: goals.Sequences) -> dict[str, Array]:
    """For every step: the code of hindsight, and the actions foreseen with each kind of code, as logarithms of odds."""
    seen = model.eye(model.game.scaled(rows.view))
    raw, any_later = model.hindsight(rows, seen)
    code, drawn_from = model.settled(raw, None)
    thought = model.inferred(rows, seen)
    found = {
        "code": drawn_from.logits.argmax(-1) if model.codebook is not None else code,
        "any_later": any_later,
        "without": model.log_odds(rows, jnp.zeros_like(code)),
        "hindsight": model.log_odds(rows, jnp.where(any_later[..., None], code, 0.0)),
        "shuffled": model.log_odds(rows, jnp.where(any_later[..., None], jnp.roll(code, 1, 0), 0.0)),
    }
    if model.codebook is None:
        return found | {"inferred": model.log_odds(rows, thought.mean)}
    each = model.each_code(rows)
    bayes = goals.by_bayes(model, rows, jax.nn.softmax(model.prior))
    mixed = {"inferred": jax.nn.log_softmax(thought.logits), "by_bayes": jnp.log(jnp.maximum(bayes, 1e-9))}
    return found | {name: jax.nn.logsumexp(each + weight[..., None], 2) for name, weight in mixed.items()}


def shows_all(game: Game) -> bool:
    """Whether an observation determines the state."""
    try:
        jax.eval_shape(lambda: game.state_of(jnp.zeros(game.observation_shape, game.observation_dtype), 0))
    except BadInput:
        return False
    return True


TASKS: dict[str, Callable[[Fit, Dataset, int], Task]] = {
    "opponent_model": opponent_model_task,
    "goals": goals_task,
    "world_model": world_model_task,
}


@eqx.filter_jit
def predicted(model: Any, function: Callable[[Any, Any], Any], samples: Any, at_once: int = AT_ONCE) -> Any:
    """A function of a module and samples, so many samples at a time."""
    count = len(jax.tree.leaves(samples)[0])
    blocks = -(-count // at_once)

    def blocked(leaf: Array) -> Array:
        padded = jnp.concatenate([leaf, jnp.repeat(leaf[-1:], blocks * at_once - count, 0)])
        return padded.reshape(blocks, at_once, *leaf.shape[1:])

    said = jax.lax.map(lambda part: function(model, part), jax.tree.map(blocked, samples))
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:count], said)


# --- the loop ---


def fit(options: Fit) -> dict[str, Any]:
    """Train the module, once for each seed, and leave the results in the folder of the run."""
    check(options)
    data = datasets.load(options.data)
    seats = data.game.seats
    require(options.player in (None, *range(1, seats + 1)), f"--player is {options.player}, expected a number from 1 to {seats}")
    folder = runs.folder_of(options.name or f"{options.module}-{options.data.stem}")
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
    checkpoint.save(folder, options.epochs, stack(modules), facts)
    result = {
        "fit": str(folder),
        "module": options.module,
        "game": data.game.id,
        "samples": len(jax.tree.leaves(task.train)[0]),
        "epochs": options.epochs,
        "seeds": options.seeds,
        "seconds": round(time.perf_counter() - begin, 1),
        "peak_memory_mb": round(peak_memory_mb()),
        "scores": over_seeds(scores),
    }
    runs.write_json(folder / "result.json", result)
    return result


def check(options: Fit) -> None:
    for name in ("samples", "test_samples", "epochs", "seeds"):
        require(getattr(options, name) > 0, f"--{name.replace('_', '-')} is {getattr(options, name)}, expected at least 1")
    require(0 < options.held_out < 1, f"--held-out is {options.held_out}, expected a share between 0 and 1")
    config = getattr(options, options.module)
    for name, value in dataclasses.asdict(config).items():
        finite = not isinstance(value, float) or math.isfinite(value)
        require(finite, f"--{options.module}.{name} is {value}, expected a finite number")
    require(config.batch > 0, f"--{options.module}.batch is {config.batch}, expected at least 1")
    rate = config.learning_rate
    require(0 <= rate < 1, f"--{options.module}.learning-rate is {rate}, expected a number from 0 to 1")


def epochs(task: Task, count: int, seed: int) -> Iterator[tuple[int, Any, dict[str, float]]]:
    """(epoch, module after it, mean of each term of the loss in it)."""
    samples = len(jax.tree.leaves(task.train)[0])
    batch = min(task.batch, samples)
    rate = optax.cosine_decay_schedule(task.learning_rate, count * (samples // batch))
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
        order = random.permutation(samples)[: samples // batch * batch].reshape(-1, batch)
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), epoch), len(order))
        over = (epoch - 1 + jnp.arange(len(order)) / len(order)) / count
        parts, state, terms = one_epoch(parts, state, jnp.asarray(order), keys, over, task.train)
        means = {name: float(f"{float(term):.6g}") for name, term in terms.items()}
        broken = [name for name, mean in means.items() if not np.isfinite(mean)]
        require(not broken, f"epoch {epoch} of seed {seed}: {', '.join(broken)} is no longer finite: lower the learning rate")
        yield epoch, eqx.combine(parts, static), means


def row(epoch: int, seed: int, split: str, metrics: dict[str, Any]) -> dict[str, Any]:
    """Of metrics.jsonl: plain numbers only; tables are files of their own."""
    plain = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
    return {"epoch": epoch, "seed": seed, "split": split, "metrics": plain}


def write_tables(folder: Path, epoch: int, seed: int, found: dict[str, Any]) -> None:
    """What is no single number, by epoch and seed."""
    place = folder / "tables"
    place.mkdir(exist_ok=True)
    if "by_action" in found:
        (place / f"actions-{seed}-{epoch}.csv").write_text(of_partners.as_csv(found["by_action"]), encoding="utf-8")
    runs.write_json(place / f"scores-{seed}-{epoch}.json", found)


def over_seeds(scores: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and interval over seeds of every number, wherever it stands; a single seed has no interval."""
    first = scores[0]
    found: dict[str, Any] = {}
    for name, value in first.items():
        values = [score[name] for score in scores]
        if isinstance(value, dict):
            found[name] = over_seeds(values)
        elif all(isinstance(value, int | float) for value in values):
            whole = estimate(np.array(values, float))
            found[name] = {"mean": whole.mean, "low": whole.low, "high": whole.high} if len(values) > 1 else {"mean": whole.mean}
    return found


# --- what was fitted, read again ---


@dataclass(frozen=True)
class Fitted:
    """The modules of a fit, one for each seed."""

    options: Fit
    game: Game
    partners: tuple[str, ...]
    modules: tuple[Any, ...]


def load(name: str) -> Fitted:
    """A fit by its name under runs/, or by its path."""
    folder = runs.find(name)
    found = checkpoint.newest(folder, lambda damage: None)
    require(found is not None and "fit" in found.facts, f"{folder} is no fit that came to its end: otherminds fit ...")
    assert found is not None
    settings = dict(found.facts["fit"])
    options: Fit = runs.from_dict(Fit, settings, f"{folder}: fit")
    game, partners = make(found.facts["game"]), tuple(found.facts["partners"])
    like = fresh(options, game, len(partners), np.random.default_rng(0))
    modules = [
        eqx.combine(checkpoint.filled(eqx.filter(like, eqx.is_array), {n: a[k] for n, a in found.arrays.items()}), like)
        for k in range(options.seeds)
    ]
    return Fitted(options, game, partners, tuple(modules))


def fresh(options: Fit, game: Game, partners: int, random: np.random.Generator) -> Any:
    """The module before it has learned anything."""
    if options.module == "world_model":
        return world_model.WorldModel.make(options.world_model, game, random)
    if options.module == "goals":
        return goals.Goals.make(options.goals, game, random)
    told = opponent_model.told_size(options.opponent_model, game, len(game.goals), partners)
    return opponent_model.OpponentModel.make(options.opponent_model, game, told, random)
