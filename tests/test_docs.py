"""What the pages say is true: tables come from files, named files exist, ids can be made, both READMEs hold the same commands."""

import importlib.util
import re
import shlex
import subprocess
import sys
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
import tyro

from otherminds import config, make
from otherminds.config import Convert, Evaluate, Fit, Train
from otherminds.games import GAMES
from otherminds.partners import PARTNERS

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "README.zh-CN.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_tables_are_up_to_date():
    assert subprocess.run([sys.executable, ROOT / "docs" / "write_tables.py", "--check"], check=False).returncode == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_every_game_and_partner_has_its_place_on_the_page():
    page = (ROOT / "docs" / "games.md").read_text(encoding="utf-8")
    for game_id in GAMES:
        assert game_id in page or game_id.removeprefix("stag_hunt").removeprefix("snowdrift") in page, game_id
    for names in PARTNERS.values():
        assert all(name in page for name in names)


def test_ids_in_the_readme_can_be_made():
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    found = set(re.findall(r"(?<![\w:/])(?:stag_hunt|snowdrift|matrix)[-\w]*(?:\?[\w=&,.]+)?(?=[`\" ])", page))
    assert len(found) >= 4
    for game_id in found - {"stag_hunt", "snowdrift", "matrix"}:
        make(game_id)


def test_our_options_named_beside_those_of_older_stacks_are_there():
    """On a page full of others' options, one of ours that is gone would not be noticed."""
    page = (ROOT / "docs" / "from_older_stacks.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ") and line.count(" | ") >= 2]
    said = " ".join(" ".join(row[1:]) for row in rows) + " ".join(re.findall(r"```sh\n(.*?)```", page, re.DOTALL))
    found = {name.replace("-", "_") for name in re.findall(r"--([a-z_.-]+[a-z])", said)}
    assert len(found) > 50
    ours = set()
    for command in (Train, Fit, Convert, Evaluate):
        for field in fields(command):
            nested = field.default_factory() if field.default_factory is not MISSING else None
            ours |= {field.name} | {f"{field.name}.{part.name}" for part in (fields(nested) if nested else ())}
    assert found <= ours, found - ours


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_on_the_pages_can_be_typed(page):
    """Every option is there and takes what it is given."""
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    for line in (line for block in blocks for line in block.splitlines()):
        words = shlex.split(line, comments=True)
        if words[:1] == ["otherminds"] and "COMMAND" not in words:
            tyro.cli(getattr(config, words[1].capitalize()), args=words[2:])


def test_both_readmes_hold_the_same_commands():
    def code(name):
        blocks = re.findall(r"```\w*\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)
        return [re.sub(r"\s*#.*", "", line) for block in blocks for line in block.splitlines()]

    assert code("README.md") == code("README.zh-CN.md")


def test_the_opponent_model_of_the_readme_is_told_in_learning_what_it_is_measured_with():
    """It learned by the goals that were reached, and the next line but one called it far from what could be known."""
    (line,) = re.findall(r"^otherminds fit (opponent_model .*)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert tyro.cli(Fit, args=shlex.split(line, comments=True)).labels == "true"


def test_a_dataset_of_other_options_is_not_taken_for_the_one_that_is_meant(tmp_path, monkeypatch):
    """A recipe was changed, and figures were made anew from the games of the old one."""
    spec = importlib.util.spec_from_file_location("modules", ROOT / "docs" / "modules.py")
    modules = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "modules", modules)  # its dataclasses look it up there
    spec.loader.exec_module(modules)
    monkeypatch.setattr(modules, "DATA", tmp_path)
    monkeypatch.setattr(modules, "otherminds", lambda *words: Path(words[2]).touch())
    path = modules.dataset("random4")
    assert modules.dataset("random4") == path
    monkeypatch.setitem(modules.DATASETS, "random4", "--seats random --episodes 9")
    with pytest.raises(SystemExit, match="collected by other options than random4 has now"):
        modules.dataset("random4")
    path.with_suffix(".txt").unlink()  # from before there were notes
    assert modules.dataset("random4") == path


def test_the_python_in_the_readme_runs():
    block = re.search(r"```python\n(import jax\n.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    result = subprocess.run([sys.executable, "-c", block[1]], capture_output=True, text=True, timeout=200, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_run(example, tmp_path):
    """One ended in a traceback after all its training: a bare name is looked for under runs/."""
    command = [sys.executable, str(example), "tried", "5120"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    assert "FAIL" not in result.stdout
    assert (tmp_path / "runs" / "tried" / "replay.gif").stat().st_size > 1000
