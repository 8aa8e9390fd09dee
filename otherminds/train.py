"""The one loop: play, learn, keep. It names no learner; what is in the seats decides who learns.

An update (a rollout and the learning from it) is one compiled program, and one call runs up to CALL of them for all seeds. What
depends on time (how many updates a call has, when a checkpoint is written) changes nothing in the results; what changes the
results (fresh starts, rotating pools, schedules) happens at fixed updates. So a run is a pure function of its config.
"""

import contextlib
import dataclasses
import platform
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from shlex import quote
from typing import Any

import jax
import numpy as np

from otherminds import checkpoint, runs, seats, warm
from otherminds.config import BadInput, Train, require
from otherminds.curves import Curves, check_wandb
from otherminds.evaluate import play_episodes
from otherminds.machine import peak_memory_mb, threads
from otherminds.progress import TrainingView
from otherminds.types import Seated
from otherminds.updates import CALL, Carry, Compiled, OnHost, Setup, policies_at, prepare

CALL_SECONDS = 1.0  # how long a call should last, so that a stopped run stops soon
SCORE_UPDATES = 16  # over how many updates the reward is averaged that decides which checkpoint is best
EVALUATION = 1  # what a key derived from a seed is for


class Stopped(Exception):
    """A run that ended before its time. The message says why and how to go on."""

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code


def train(config: Train, *, folder: Path | None = None, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Train as the config says; what `train --json` prints. The folder of the run must not hold another."""
    config = warm.taken_over(dataclasses.replace(config, seats=seats.pinned(config.seats)))
    setup = prepare(config)
    folder = folder or runs.folder_of(default_name(config) if config.name is None else config.name)
    runs.require_name(folder)
    _require_free(folder)
    check_wandb(config)
    folder.mkdir(parents=True, exist_ok=True)
    with runs.locked(folder):
        _require_free(folder)  # nobody was faster
        runs.write_config(folder, config)
        return _run(setup, folder, say)


def _require_free(folder: Path) -> None:
    """Refuse a folder that holds anything; what a process left that died before it wrote its config is nothing."""
    if (folder / "config.json").exists():
        raise BadInput(f"{folder} holds a run already: otherminds resume {quote(str(folder))}, or give another --name")
    nothing = {".lock", ".config.json.part"}
    require(
        not folder.exists() or (folder.is_dir() and {path.name for path in folder.iterdir()} <= nothing),
        f"{folder} exists and is no run: give another --name",
    )


def default_name(config: Train) -> str:
    """A name for a run that was given none."""
    words = f"{config.seats}-{config.game}"
    return runs.shortened("".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in words))


def resume(run: str, *, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Go on with a run from its newest whole checkpoint, as if it had never stopped."""
    folder = runs.find(run)
    setup = prepare(runs.read_config(folder))
    with runs.locked(folder):
        return _run(setup, folder, say)


def _run(setup: Setup, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    session = Session(setup, folder, say)
    try:
        return session.go()
    except OSError as error:
        known = checkpoint.steps(folder)
        saved = f"the checkpoint at step {known[-1]:,} is safe" if known else "there was no checkpoint yet"
        reason = error.strerror or error
        raise Stopped(f"{folder}: {reason}; {saved}; when that is mended: otherminds resume {quote(str(folder))}", 1) from error
    finally:
        session.close()


class Session:
    """One process working on a run: where it stands, what it writes."""

    def __init__(self, setup: Setup, folder: Path, say: Callable[[str], None]):
        self.setup, self.folder, self.say = setup, folder, say
        self.config = setup.config
        self.engine = (OnHost if setup.game.on_host else Compiled)(setup, warm.modules)
        self.begin = time.perf_counter()
        self.update, self.phase = 0, 0
        self.place = (folder / ".lock").stat().st_ino
        self.partners = seats.seals(self.config.seats)
        self.seconds_before = self.compile_before = 0.0
        self.frozen: list[dict[str, Any]] = []
        self.recent: deque[float] = deque(maxlen=SCORE_UPDATES)
        self.best: tuple[float, int] | None = None
        self.metrics, self.timing = runs.Rows(folder / "metrics.jsonl"), runs.Rows(folder / "timing.jsonl")
        self.curves: Curves | None = None
        self.update_seconds = 0.0
        self.spent = 0.0  # seconds until the newest checkpoint
        self.working = 0.0  # seconds spent in calls, without compiling

    def close(self) -> None:
        self.engine.close()
        self.metrics.close()
        self.timing.close()
        if self.curves:
            self.curves.close()

    def go(self) -> dict[str, Any]:
        carry = self._begin()
        self._require_alive(carry)
        if self.update >= self.config.updates:
            self.say(f"{self.folder} is finished: {self.update * self.config.steps_per_update:,} steps")
            with contextlib.suppress(BadInput, OSError):
                return runs.read_json(self.folder / "result.json") | {"run": str(self.folder)}  # it may have been moved
            return self._finish(carry)
        runs.write_json(self.folder / "run.json", about())
        view = TrainingView(self.folder.name, self.setup.phases[self.phase].entries, self.config.steps, self.config.seeds)
        saved = time.perf_counter()
        with _signals() as stop, view:
            while self.update < self.config.updates:
                carry = self.engine.before(carry, self.phase, self.update)
                self._enter(self.setup.phase_at(self.update))
                count = self._count()
                begin, compiled = time.perf_counter(), self.engine.compile_s
                carry, metrics = self.engine.advance(carry, self.update, count)
                metrics = jax.device_get(metrics)
                spent = time.perf_counter() - begin - (self.engine.compile_s - compiled)
                self.working += spent
                self.update_seconds = spent / count
                rows = self._rows(metrics, count)
                self.update += count
                self._write(rows, spent, count)
                if self._evaluation_due():
                    evaluated = self._evaluate(carry)
                    self.metrics.write(evaluated)
                    rows += evaluated
                view.update(
                    self.update * self.config.steps_per_update, self._speed(), rows, self.setup.phases[self.phase].entries
                )
                assert self.curves is not None
                self.curves.add(rows)
                alive = np.asarray(carry.alive)
                over = self.update >= self.config.updates or not alive.any()
                if over or stop or time.perf_counter() - saved >= self.config.checkpoint_every:
                    self._save(carry)
                    saved = time.perf_counter()
                self._require_alive(carry)
                if stop and not over:
                    step = self.update * self.config.steps_per_update
                    again = f"otherminds resume {quote(str(self.folder))}"
                    raise Stopped(f"{self.folder}: stopped and saved at step {step:,}; {again}", stop[0])
        return self._finish(carry)

    def _begin(self) -> Carry:
        """From the newest whole checkpoint, or from nothing."""
        found = checkpoint.newest(self.folder, self.say)
        if found is None:
            self._require_unfinished()
            if self.metrics.size():
                self.say(f"{self.folder}: there is no checkpoint yet: beginning anew")
            self.metrics.cut(0)
            self.timing.cut(0)
            checkpoint.cut(self.folder, 0)
            self.curves = Curves(self.folder, self.config, after=0)
            return self.engine.first()
        step, facts = found.step, found.facts
        checkpoint.config_of(found)  # refuses other settings
        self._require_same_partners(facts.get("partners", {}))
        self.update, self.phase = facts["update"], facts["phase"]
        self.seconds_before, self.compile_before = facts["seconds"], facts["compile_s"]
        self.working, self.spent = facts["working"], facts["seconds"]
        self.frozen, self.recent = facts["frozen"], deque(facts["recent"], maxlen=SCORE_UPDATES)
        self.best = tuple(facts["best"]) if facts["best"] else None
        for rows, size in ((self.metrics, facts["metrics_bytes"]), (self.timing, facts["timing_bytes"])):
            if not rows.cut(size):
                self.say(f"{rows.path} is shorter than it was at step {step:,}: rows are lost, and the curves have a gap")
        checkpoint.cut(self.folder, step)
        self._warn_of_changes()
        if self.update < self.config.updates:
            self.curves = Curves(self.folder, self.config, after=step)
            (self.folder / "result.json").unlink(missing_ok=True)  # of an end that is no longer one
            self.say(f"{self.folder}: going on at step {step:,} of {self.config.steps:,}")
            if self.setup.game.on_host:
                self.say(f"{self.config.game} is stepped on the host and cannot be saved: its episodes begin anew")
        return checkpoint.filled(self.engine.like(self.phase), found.arrays)

    def _require_unfinished(self) -> None:
        finished = (self.folder / "result.json").exists()
        require(not finished, f"{self.folder} came to its end, and its checkpoints are gone: train it anew with another --name")

    def _require_same_partners(self, then: dict[str, str]) -> None:
        """Refuse to go on beside others: a frozen policy may have been trained anew under its name."""
        for name, seal in self.partners.items():
            require(
                then.get(name, seal) == seal,
                f"{name} is not what it was when {self.folder} began: bring it back, or train a new run",
            )

    def _require_place(self) -> None:
        """A folder that was removed, and perhaps made anew by another process, is no longer ours to write to."""
        lock = self.folder / ".lock"
        if not lock.exists() or lock.stat().st_ino != self.place:
            raise Stopped(f"{self.folder} was removed or replaced while it was being trained: nothing more is written there", 1)

    def _enter(self, phase: int) -> None:
        """Rewards before and after a change of seats cannot be compared: the best checkpoint is the best since then."""
        if phase != self.phase:
            self.phase, self.best = phase, None
            self.recent.clear()

    def _warn_of_changes(self) -> None:
        """Bit for bit the same only on the same machine with the same libraries."""
        now, path = about(), self.folder / "run.json"
        try:
            then = runs.read_json(path) if path.exists() else now
        except BadInput:
            then = {}
        if not isinstance(then, dict) or not then:
            self.say(f"{path} cannot be read: what the run was made with is not known")
            return
        for fact in ("machine", "threads", "otherminds", "jax", "jaxlib", "python"):
            if then.get(fact) != now[fact]:
                self.say(
                    f"{fact} was {then.get(fact)} and is {now[fact]}: results may differ in the last bits from a run in one go"
                )

    def _count(self) -> int:
        """How many updates the next call has: about CALL_SECONDS of them, up to whatever happens next."""
        stops = [self.config.updates, (self.update // CALL + 1) * CALL, *self.setup.boundaries]
        if self.config.evaluate_every:
            every = self._evaluate_updates()
            stops.append((self.update // every + 1) * every)
        wanted = max(1, int(CALL_SECONDS / self.update_seconds)) if self.update_seconds else 1
        return min(wanted, min(stop for stop in stops if stop > self.update) - self.update)

    def _evaluate_updates(self) -> int:
        return -(-self.config.evaluate_every // self.config.steps_per_update)

    def _evaluation_due(self) -> bool:
        return bool(self.config.evaluate_every) and self.update % self._evaluate_updates() == 0

    def _evaluate(self, carry: Carry) -> list[dict[str, Any]]:
        """Rows of an evaluation with a bank of its own; it changes nothing in the training."""
        rows = []
        fixed = self.engine.policies(self.phase, self.update)
        for k, seed in enumerate(self.setup.seeds):
            if not carry.alive[k]:
                continue
            learners = jax.tree.map(lambda leaf, k=k: leaf[k], carry.learners)
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), EVALUATION), self.update)
            policies = policies_at(self.setup, self.phase, learners, fixed)
            policies = tuple(Seated(seated.policy.without_noise(), seated.seats) for seated in policies)
            played = play_episodes(self.setup.game, policies, self.config.evaluate_episodes, key)
            for seat in range(self.setup.game.seats):
                metrics = {"evaluation_reward": number(played.reward[:, seat].mean())}
                if played.won is not None:
                    metrics["evaluation_won"] = number(played.won.mean())
                rows.append(self._row(self.update, seed, seat, metrics))
        return rows

    def _row(self, update: int, seed: int, seat: int, metrics: dict[str, float]) -> dict[str, Any]:
        step = update * self.config.steps_per_update
        return {"update": update, "step": step, "seed": seed, "seat": seat, "metrics": metrics}

    def _rows(self, metrics: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
        """One row an update, seed and seat. Updates that were not finite are named instead."""
        rows = []
        place = {seat: (str(k), j) for k in self.setup.active(self.phase) for j, seat in enumerate(self.setup.groups[k].seats)}
        for i in range(count):
            update = self.update + i + 1
            rewards = []
            for s, seed in enumerate(self.setup.seeds):
                if not metrics["alive"][i, s]:
                    if metrics["was_alive"][i, s]:
                        self._bury(metrics["learners"], i, s, update, seed)
                    continue
                for seat in range(self.setup.game.seats):
                    values = {name: x[i, s, seat] for name, x in metrics["seats"].items()}
                    if seat in place:
                        k, j = place[seat]
                        values |= {name: x[i, s, j] for name, x in metrics["learners"][k].items()}
                        rewards.append(values["reward"])
                    row = {name: number(value) for name, value in values.items() if np.isfinite(value)}
                    rows.append(self._row(update, seed, seat, row))
            finite = [reward for reward in rewards if np.isfinite(reward)]
            if finite:
                self.recent.append(number(np.mean(finite)))
        return rows

    def _bury(self, logged: Mapping[str, Any], i: int, s: int, update: int, seed: int) -> None:
        """Name the update that was not finite: its seed, its seat, the first metric that says so."""
        for k, metrics in logged.items():
            for name, values in metrics.items():
                for j, seat in enumerate(self.setup.groups[int(k)].seats):
                    if not np.isfinite(values[i, s, j]):
                        self._name(update, seed, seat, name)
                        return
        self._name(update, seed, None, "parameters")

    def _name(self, update: int, seed: int, seat: int | None, metric: str) -> None:
        self.frozen.append({"update": update, "seed": seed, "seat": seat, "metric": metric})
        who = f"player_{seat + 1}" if seat is not None else "some seat"
        self.say(
            f"update {update}: {metric} of {who}, seed {seed}, is not finite; "
            "the update is discarded and the seed stays as it was before"
        )

    def _require_alive(self, carry: Carry) -> None:
        if not np.asarray(carry.alive).any():
            deaths = "; ".join(f"seed {f['seed']} at update {f['update']} ({f['metric']})" for f in self.frozen)
            raise Stopped(f"{self.folder}: no seed is left that is finite: {deaths}", 1)

    def _write(self, rows: list[dict[str, Any]], spent: float, count: int) -> None:
        self.metrics.write(rows)
        step, seconds = self.update * self.config.steps_per_update, self._seconds()
        speed = count * self.config.steps_per_update * self.config.seeds / spent
        row = {"update": self.update, "step": step, "seconds": round(seconds, 3), "game_steps_per_s": round(speed)}
        self.timing.write([row | {"peak_memory_mb": round(peak_memory_mb())}])

    def _speed(self) -> float:
        """Game steps a second, all seeds together, without compiling."""
        played = self.update * self.config.steps_per_update * self.config.seeds
        return played / self.working if self.working else 0.0

    def _seconds(self) -> float:
        """Spent on this run, by all processes that worked on it."""
        self.spent = self.seconds_before + time.perf_counter() - self.begin
        return self.spent

    def _save(self, carry: Carry) -> None:
        self._require_place()
        step = self.update * self.config.steps_per_update
        score = float(np.mean(self.recent)) if self.recent else None
        if score is not None and (self.best is None or score > self.best[0]):
            self.best = (score, step)
        facts = {
            "update": self.update,
            "phase": self.phase,
            "config": runs.as_dict(self.config),
            "partners": self.partners,
            "score": score,
            "best": self.best,
            "recent": list(self.recent),
            "frozen": self.frozen,
            "seconds": self._seconds(),
            "working": self.working,
            "compile_s": self.compile_before + self.engine.compile_s,
            "metrics_bytes": self.metrics.size(),
            "timing_bytes": self.timing.size(),
        }
        if self.curves:
            self.curves.flush()
        checkpoint.save(self.folder, step, carry, facts)
        checkpoint.prune(self.folder, self.config.keep, [step, *([self.best[1]] if self.best else [])])

    def _finish(self, carry: Carry) -> dict[str, Any]:
        trained = [learner.trainable(state) for learner, state in zip(self.setup.learners, carry.learners, strict=True)]
        result = {
            "run": str(self.folder),
            "steps": self.update * self.config.steps_per_update,
            "seconds": round(self.spent, 2),
            "compile_s": round(self.compile_before + self.engine.compile_s, 2),
            "game_steps_per_s": round(self._speed()),
            "parameters_sha256": checkpoint.digest(checkpoint.named(trained)),
            "reward": float(np.mean(self.recent)) if self.recent else None,
            "frozen": self.frozen,
            "peak_memory_mb": round(peak_memory_mb()),
        }
        runs.write_json(self.folder / "result.json", result)
        return result


def number(value: Any) -> float:
    """As it is written: six digits are more than any metric is good for."""
    return float(f"{float(value):.6g}")


def about() -> dict[str, Any]:
    """What a run was made with."""
    return {
        "format": runs.FORMAT,
        "otherminds": version("otherminds"),
        "python": platform.python_version(),
        "jax": version("jax"),
        "jaxlib": version("jaxlib"),
        "machine": f"{platform.system()} {platform.machine()} {jax.devices()[0].device_kind}",
        "threads": threads(),
        "commit": _commit(),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


def _commit() -> str | None:
    """The commit of the code, if it lies in a repository."""
    head = Path(__file__).resolve().parent.parent / ".git" / "HEAD"
    with contextlib.suppress(OSError):
        text = head.read_text(encoding="utf-8").strip()
        name = text.removeprefix("ref: ")
        return text if name == text else (head.parent / name).read_text(encoding="utf-8").strip()
    return None


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """A list that holds the exit code once somebody wants us to stop; asked a second time, we stop at once."""
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def handle(number: int, frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(128 + number)

    kinds = [signal.SIGINT, signal.SIGTERM]
    hang_up = getattr(signal, "SIGHUP", None)  # a terminal that was closed; Windows has none
    if hang_up and signal.getsignal(hang_up) != signal.SIG_IGN:  # started with nohup, a run goes on
        kinds.append(hang_up)
    before = {kind: signal.signal(kind, handle) for kind in kinds}
    try:
        yield asked
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
