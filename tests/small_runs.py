"""Runs that are over in a moment, and what tests do to them.

Runs with equal settings in one process share one compiled program: tests keep to SMALL wherever they can.
"""

import contextlib
import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path

from otherminds import checkpoint
from otherminds.config import HOP, MAPPO, PPO, Goals, PartnerNetwork, Search, Train, WorldModel

SMALL_GOALS = Goals(
    codes=3,
    size=2,
    steps=4,
    features=4,
    hidden=(8,),
    acts=PartnerNetwork(torso="centred", goal_input="film", hidden=(8,)),
)
SMALL_HOP = HOP(
    hidden=(8,),
    goals=SMALL_GOALS,
    world_model=WorldModel(channels=4, hidden=(8,), batch=8),
    foresight_games=8,
    model_rows=16,
    search=Search(simulations=4, play_simulations=4, share=0.5, begin=0.0),
)
SMALL = Train(
    game="matrix-ipd?horizon=5",
    seats="ppo",
    steps=1280,  # 40 updates: two rounds of fresh starts
    seed=3,
    seeds=3,
    parallel=8,
    rollout=4,
    epochs=2,
    minibatches=2,
    keep=2,
    checkpoint_every=1e-9,  # after every call
    ppo=PPO(hidden=(8,)),
    mappo=MAPPO(hidden=(8,), critic_hidden=(8,)),
    hop=SMALL_HOP,
)


def small(**options):
    return dataclasses.replace(SMALL, **options)


class Killed(BaseException):
    """Stands for a kill: nothing may catch it, and what was not yet done is not done."""


@contextlib.contextmanager
def killed_at(monkeypatch, owner, function, call):
    """Die when `owner.function` is called for the n-th time."""
    plain, calls = getattr(owner, function), []

    def dying(*arguments, **options):
        calls.append(None)
        if len(calls) == call:
            raise Killed
        return plain(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(owner, function, dying)
        try:
            yield
        except Killed:
            return
    raise AssertionError(f"{function} was called {len(calls)} times, and nobody died")


def last_state(folder):
    """The bytes of the newest checkpoint."""
    return (folder / "checkpoints" / str(checkpoint.steps(folder)[-1]) / checkpoint.STATE).read_bytes()


def content(folder):
    """All that a run must have in common with one like it: its newest checkpoint and its metrics, to the last bit."""
    return checkpoint.steps(folder)[-1], last_state(folder), (folder / "metrics.jsonl").read_bytes()


def command_line(config, usual=None, owner=""):
    """What to type for a config, beside its name."""
    usual, words = usual or Train(), []
    for field in dataclasses.fields(config):
        value, plain, name = getattr(config, field.name), getattr(usual, field.name), f"{owner}{field.name}"
        if dataclasses.is_dataclass(value):
            words += command_line(value, plain, f"{name}.")
        elif value not in (plain, ()) and field.name != "preset":
            words += [f"--{name.replace('_', '-')}", *map(str, value if isinstance(value, tuple) else [value])]
    return words


SLOW = """
import sys, time
from otherminds import cli, train
write = train.Session._write
def slow(*arguments):
    time.sleep({pause})
    write(*arguments)
train.Session._write = slow
train.CALL_SECONDS = 0
cli.main()
"""


def child(*arguments, programs, pause=None, **options):
    """`otherminds ARGUMENTS` as a process; with `pause`, it takes so many seconds more over each update: time to interrupt it."""
    code = ["-m", "otherminds"] if pause is None else ["-c", SLOW.format(pause=pause)]
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(programs), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    return subprocess.Popen([sys.executable, *code, *map(str, arguments)], env=environment, **pipes)


def wait_for(condition, process, seconds=120):
    """Wait until something is so, while a process lives."""
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def outcome(process, seconds=120) -> tuple[int, str, str]:
    """(code, standard output, standard error) of a process that ends."""
    output, errors = process.communicate(timeout=seconds)
    return process.returncode, output, errors


def event_points(folder: Path, tag: str) -> dict[int, list[float]]:
    """step -> values in a TensorBoard folder, read as TensorBoard does: a session that starts voids what is not before it."""
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    points: dict[int, list[float]] = {}
    for path in sorted(folder.iterdir()):
        data, place = path.read_bytes(), 0
        while place + 12 <= len(data):
            length = int.from_bytes(data[place : place + 8], "little")
            event = Event.FromString(data[place + 12 : place + 12 + length])
            place += 16 + length
            if event.session_log.status == SessionLog.START:
                points = {step: values for step, values in points.items() if step < event.step}
            for value in event.summary.value:
                if value.tag == tag:
                    points.setdefault(event.step, []).append(value.simple_value)
    return points
