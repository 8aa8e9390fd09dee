"""Parallel games that are stepped by Python, in this process or spread over worker processes.

Workers import this module, so it may not import jax. What passes between processes is raw arrays whose layout both sides know.
"""

import ast
import contextlib
import os
import signal
import struct
import subprocess
import sys
import traceback
import weakref
from collections.abc import Mapping, Sequence
from typing import IO, Any

import numpy as np

from otherminds.config import BadInput, require
from otherminds.games.table import Layout, Table

SECONDS_TO_CLOSE = 5.0  # how long a worker may take to close its games before it is killed

LENGTH = struct.Struct("<Q")
RESET, STEP = b"r", b"s"
FINE, FAILED = b"k", b"e"

_WORKER = "import sys; sys.path[:] = {path!r}; from otherminds.games.host import work; work()"


class GameFailed(RuntimeError):
    """A game raised. The message names it and holds the traceback, from whatever process it comes."""


class HostGames:
    """E games of one kind. Their state is theirs alone: they can only go on, never back.

    The same `entropy` gives the same episodes, whatever the number of `workers`; 0 workers means this process.
    """

    def __init__(
        self, name: str, options: Mapping[str, Any], layout: Layout, games: int, workers: int, entropy: Sequence[int]
    ) -> None:
        require(games >= 1, f"pettingzoo:{name}: {games} games, expected at least 1")
        require(workers >= 0, f"pettingzoo:{name}: {workers} workers, expected 0 (this process) or more")
        self.name = name
        self.layout = layout
        self.games = games
        self.entropy = tuple(int(number) for number in entropy)
        self.episodes = np.zeros(games, np.int64)  # how many each game has opened
        self.moment = 0  # how often the games have been moved on
        cuts = np.linspace(0, games, max(1, min(workers, games)) + 1).astype(int).tolist()
        self._blocks: list[Block | Worker] = []
        self._closing = weakref.finalize(self, _close, self._blocks)
        try:
            for numbers in map(range, cuts, cuts[1:]):
                self._blocks.append(Worker(name, options, layout, numbers) if workers else Block(name, options, numbers))
            for block in self._blocks:
                block.wait_until_open()
        except BaseException:
            self.close()
            raise

    def seed(self, game: int, episode: int) -> int:
        """The seed with which a game opens its n-th episode."""
        return int(np.random.SeedSequence((*self.entropy, game, episode)).generate_state(1)[0] >> 1)

    def reset(self, wanted: np.ndarray) -> np.ndarray:
        """Open a new episode in the wanted games ([E], bool). Gives their rows only, in order."""
        seeds = np.full(self.games, -1, np.int64)
        for game in np.flatnonzero(wanted):
            seeds[game] = self.seed(int(game), int(self.episodes[game]))
        self.episodes += wanted
        return self._everywhere("reset", seeds)

    def step(self, action: np.ndarray) -> np.ndarray:
        """One step of every game. Gives E rows."""
        return self._everywhere("step", np.ascontiguousarray(action, self.layout.action.base))

    def _everywhere(self, what: str, request: np.ndarray) -> np.ndarray:
        self.require_open()
        self.moment += 1
        try:
            for block in self._blocks:
                block.ask(what, request[block.numbers.start : block.numbers.stop])
            return np.concatenate([block.answer() for block in self._blocks])
        except BaseException:
            # Answers of the other workers may be under way: nothing sensible can be asked of them any more.
            self.close()
            raise

    def require_open(self) -> None:
        require(self._closing.alive, f"pettingzoo:{self.name}: these games have been closed, or one failed; start them anew")

    def close(self) -> None:
        """Close all games and end the workers. Happens by itself when nobody holds the games any longer."""
        self._closing()


class Block:
    """Some of the games, in this process."""

    def __init__(self, name: str, options: Mapping[str, Any], numbers: range) -> None:
        self.name = name
        self.numbers = numbers
        self.tables = [Table(name, options) for _ in numbers]
        self._answer = np.empty(0)

    def wait_until_open(self) -> None:
        pass

    def ask(self, what: str, request: np.ndarray) -> None:
        row = self.tables[0].layout.row
        rows = np.zeros(len(request) if what == "step" else int((request >= 0).sum()), row)
        place = 0
        for number, table, asked in zip(self.numbers, self.tables, request, strict=True):
            if what == "reset" and asked < 0:
                continue
            try:
                if what == "step":
                    table.step(asked, rows[place])
                else:
                    table.reset(int(asked), rows[place])
            except Exception as error:
                text = f"pettingzoo:{self.name}: game {number} failed in its {what}\n{traceback.format_exc()}"
                raise GameFailed(text) from error
            place += 1
        self._answer = rows

    def answer(self) -> np.ndarray:
        return self._answer

    def close(self) -> None:
        for table in self.tables:
            table.close()


class Worker:
    """Some of the games, in a process of their own.

    It is a fresh interpreter on pipes rather than a `multiprocessing` one: that would run the user's script again, and import
    jax with it. A pipe ends when the process at its other side ends, so neither side can wait for a dead one.
    """

    def __init__(self, name: str, options: Mapping[str, Any], layout: Layout, numbers: range) -> None:
        self.name = name
        self.layout = layout
        self.numbers = numbers
        self._expected = 0
        task = repr((name, dict(options), numbers.start, numbers.stop))
        try:
            ast.literal_eval(task)
        except (ValueError, SyntaxError):
            raise BadInput(f"pettingzoo:{name}: options {dict(options)} cannot be told to a worker process: workers=0") from None
        environment = {"PYGAME_HIDE_SUPPORT_PROMPT": "1", "SDL_VIDEODRIVER": "dummy"} | os.environ
        command = [sys.executable, "-c", _WORKER.format(path=sys.path)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._requests, self._answers = self.process.stdin, self.process.stdout
        self._send(_framed(task.encode()))

    def wait_until_open(self) -> None:
        self._check()
        row = _read_framed(self._answers).decode()
        require(row == repr(self.layout.row), f"pettingzoo:{self.name}: its spaces change from one opening to the next")

    def ask(self, what: str, request: np.ndarray) -> None:
        self._expected = len(request) if what == "step" else int((request >= 0).sum())
        self._send((STEP if what == "step" else RESET) + request.tobytes())

    def answer(self) -> np.ndarray:
        self._check()
        rows = np.empty(self._expected, self.layout.row)
        if _read_into(self._answers, rows.view(np.uint8)) < rows.nbytes:
            self._died()
        return rows

    def _send(self, message: bytes) -> None:
        with contextlib.suppress(OSError):  # if it has ended, `_check` will find out, and read its last words
            self._requests.write(message)
            self._requests.flush()

    def _check(self) -> None:
        status = self._answers.read(1)
        if status == FAILED:
            raise GameFailed(_read_framed(self._answers).decode())
        if status != FINE:
            self._died()

    def _died(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(SECONDS_TO_CLOSE)
        code = self.process.returncode
        games = ", ".join(map(str, self.numbers))
        raise GameFailed(f"pettingzoo:{self.name}: the worker process {self.process.pid} of game {games} died, exit code {code}")

    def close(self) -> None:
        for pipe in (self._requests, self._answers):
            with contextlib.suppress(OSError):  # it cannot take what was still to be sent if it has ended
                pipe.close()
        try:
            self.process.wait(SECONDS_TO_CLOSE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def work() -> None:
    """A worker process: open the games that the parent names, then answer until it closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle; it closes the pipe
    # A game may print, or start programs of its own: neither may touch our pipes.
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    try:
        name, options, start, stop = ast.literal_eval(_read_framed(requests).decode())
        block = Block(name, options, range(start, stop))
        layout = block.tables[0].layout
        _reply(answers, FINE + _framed(repr(layout.row).encode()))
        try:
            while kind := requests.read(1):
                request = np.empty(stop - start, layout.action if kind == STEP else np.int64)
                _read_into(requests, request.reshape(-1).view(np.uint8))
                block.ask("step" if kind == STEP else "reset", request)
                _reply(answers, FINE, block.answer())
        finally:
            block.close()
    except BrokenPipeError:
        pass
    except Exception as error:
        text = str(error) if isinstance(error, GameFailed) else traceback.format_exc()
        with contextlib.suppress(BrokenPipeError):  # another worker may have failed before us, and the parent be gone
            _reply(answers, FAILED + _framed(text.encode()))


def _reply(answers: IO[bytes], head: bytes, rows: np.ndarray | None = None) -> None:
    answers.write(head)
    if rows is not None:
        answers.write(rows.view(np.uint8).data)
    answers.flush()


def _framed(text: bytes) -> bytes:
    return LENGTH.pack(len(text)) + text


def _read_framed(pipe: IO[bytes]) -> bytes:
    """What `_framed` made; cut short, or empty, where the other side has ended."""
    head = pipe.read(LENGTH.size)
    return pipe.read(*LENGTH.unpack(head)) if len(head) == LENGTH.size else b""


def _read_into(pipe: Any, target: np.ndarray) -> int:
    """Fill `target` ([bytes]) from the pipe; how many bytes came before the other side ended."""
    view, filled = target.data, 0
    while filled < len(view):
        count = pipe.readinto(view[filled:])
        if not count:
            break
        filled += count
    return filled


def _close(blocks: "list[Block | Worker]") -> None:
    with contextlib.ExitStack() as all_of_them:  # also if one of them raises
        for block in blocks:
            all_of_them.callback(block.close)
