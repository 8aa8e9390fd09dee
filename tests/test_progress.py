"""What is shown while work goes on; and that work does not depend on somebody looking."""

import io

import pytest

from otherminds.progress import Onlooker, TrainingView


class Watched(io.StringIO):
    """A stream whose reader may leave."""

    error: OSError | None = None

    def write(self, text):
        if self.error:
            raise self.error
        return len(text)

    def isatty(self):
        return True


def rows(reward):
    return [{"update": 1, "step": 64, "seed": 0, "seat": seat, "metrics": {"reward": reward, "kl": 0.25}} for seat in (0, 1)]


def test_a_reader_who_leaves_does_not_end_the_work():
    """`otherminds train 2>&1 | head -1` ended the run with the second line, and nothing was saved."""
    stream = Watched()
    console = Onlooker(file=stream)
    console.print("one")
    assert not console.quiet
    stream.error = BrokenPipeError()
    console.print("two")
    assert console.quiet


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), BrokenPipeError()])
def test_a_terminal_that_is_gone_does_not_end_the_work(error, monkeypatch):
    stream = Watched()
    monkeypatch.setattr("sys.stderr", stream)
    with TrainingView("run", ["ppo", "ppo"], 128, 1) as view:
        view.update(64, 1000.0, rows(1.0), ["ppo", "ppo"])
        stream.error = error
        view.update(128, 1000.0, rows(1.0), ["ppo", "ppo"])


def test_without_a_terminal_there_is_a_line_now_and_then(capsys):
    with TrainingView("run", ["ppo", "ppo"], 128, 2) as view:
        for step in (32, 64, 96):
            view.update(step, 64.0, rows(1.5), ["ppo", "ppo"])
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "run  32 of 128 steps  64 game steps/s  0:03 left  reward 1.50  1.50"


def test_the_table_has_a_row_for_each_seat():
    view = TrainingView("run", ["ppo", "always_c"], 128, 3)
    view.update(64, 64.0, rows(1.5), ["ppo", "mappo"])
    table = view._table(64, 64.0)
    assert [list(column.cells) for column in table.columns] == [
        ["player_1", "player_2"],
        ["ppo", "mappo"],
        ["1.500", "1.500"],
        ["0.250", "0.250"],
    ]
    assert table.title.endswith("mean of 3 seeds")
