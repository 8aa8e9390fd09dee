"""A run on disk: its folder, its settings, its rows. Loads nothing heavy, so that a report can read runs without jax."""

import contextlib
import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

from otherminds.config import NOT_SAVED, BadInput, Train, as_type, check_options, closest, require

FORMAT = 1
LONGEST_NAME = 150  # bytes in the name of a file or folder of ours; most disks take 255


def folder_of(name: str) -> Path:
    """A bare name lies under runs/; anything with a separator is a path."""
    require(name not in ("", ".", ".."), f"'{name}' is no name of a run: expected a name or a path of a folder")
    separated = any(separator and separator in name for separator in (os.sep, os.altsep))
    return Path(name) if separated or Path(name).is_absolute() else Path("runs") / name


def require_name(folder: Path) -> None:
    """Refuse a name that `--seats run:NAME` could not say."""
    found = [letter for letter in ",+~#@:" if letter in folder.name]
    require(not found, f"'{folder.name}' is no name for a run: {' '.join(found)} would mean something else in --seats run:NAME")


def shortened(name: str) -> str:
    """A name that every disk takes: they count bytes, and not every letter is one."""
    return name.encode()[:LONGEST_NAME].decode(errors="ignore")


def file_name(words: str) -> str:
    """Words as the name of a file. Where letters had to go, a checksum keeps different words apart."""
    name = shortened(re.sub(r"[^\w.=+-]+", "_", words))
    return name if name == words else f"{name}-{hashlib.sha256(words.encode()).hexdigest()[:8]}"


def beside(folder: Path) -> list[str]:
    """The names of runs in the same place."""
    return [path.parent.name for path in folder.parent.glob("*/config.json")] if folder.parent.is_dir() else []


def find(name: str) -> Path:
    """The folder of a run that exists."""
    folder = folder_of(name)
    if not (folder / "config.json").is_file():
        known = beside(folder)
        hint = closest(folder.name, known) if known else f"{folder.parent}{os.sep} holds no runs"
        raise BadInput(f"no run '{name}' ({folder}): {hint}")
    return folder


def as_dict(config: Any) -> dict[str, Any]:
    """Settings as config.json holds them."""
    return {key: value for key, value in dataclasses.asdict(config).items() if key not in NOT_SAVED}


def from_dict(kind: Any, data: Any, owner: str) -> Any:
    """Settings out of what a config.json holds; refuses what is unknown or of the wrong type, by name."""
    require(isinstance(data, dict), f"{owner}: expected settings in braces, got {data!r}")
    types = get_type_hints(kind)
    check_options(data, [name for name in types if name not in NOT_SAVED], owner)
    given = {}
    for name, value in data.items():
        if dataclasses.is_dataclass(types[name]):
            given[name] = from_dict(types[name], value, f"{owner}: {name}")
        else:
            given[name] = as_type(value, types[name], owner, name)
    return kind(**given)


def write_json(path: Path, content: Any) -> None:
    """Write a file so that it is never seen half written."""
    part = path.with_name(f".{path.name}.part")
    try:
        with open(part, "w", encoding="utf-8") as file:
            file.write(json.dumps(content, indent=1, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        error.filename = str(path)  # which a write that fails does not say
        raise


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise BadInput(f"{path} cannot be read as JSON: {error}") from error


def read_config(path: Path) -> Train:
    """The settings of a run, from its folder or its config.json."""
    file = path / "config.json" if path.is_dir() else path
    require(file.is_file(), f"no file {file}: expected the config.json of a run")
    data = read_json(file)
    require(isinstance(data, dict), f"{file}: expected settings in braces")
    version = data.pop("format", None)
    require(version == FORMAT, f"{file} is of format {version}, and this version of otherminds reads {FORMAT}")
    config: Train = from_dict(Train, data, str(file))
    return config


def write_config(folder: Path, config: Train) -> None:
    write_json(folder / "config.json", {"format": FORMAT} | as_dict(config))


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file of JSON lines; one that was cut off in writing ends them."""
    if not path.exists():
        return
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                row = json.loads(line)
            except ValueError as error:  # also what is no text at all
                raise BadInput(f"{path}, line {number}: not JSON: {error}") from error
            require(isinstance(row, dict), f"{path}, line {number}: expected a row in braces, got {row!r}")
            yield row


class Rows:
    """A file of JSON lines that can be cut back to where it was at a checkpoint."""

    def __init__(self, path: Path):
        self.path = path
        # Open as long as the run. Without a buffer: one that a full disk has kept from being written fails once more on closing.
        self.file = open(path, "ab", buffering=0)  # noqa: SIM115

    def write(self, new: list[dict[str, Any]]) -> None:
        left = "".join(json.dumps(row, allow_nan=False) + "\n" for row in new).encode()
        while left:
            left = left[self.file.write(left) :]

    def size(self) -> int:
        """Bytes that are safely on disk."""
        os.fsync(self.file.fileno())
        return self.file.tell()

    def cut(self, size: int) -> bool:
        """Forget what was written later. False if there is less than there was: what is left is cut back to whole lines."""
        whole = os.fstat(self.file.fileno()).st_size >= size
        if not whole:
            size = self.path.read_bytes().rfind(b"\n") + 1
        self.file.truncate(size)
        self.file.seek(0, os.SEEK_END)
        return whole

    def close(self) -> None:
        self.file.close()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a second process from training in the same folder. The system lifts the lock of a process that dies."""
    with open(folder / ".lock", "a+b") as file:
        try:
            _lock(file)
        except (BlockingIOError, PermissionError) as error:
            raise BadInput(f"{folder} is being trained by another process: wait for it, or give another --name") from error
        yield


def _lock(file: Any) -> None:
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    else:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
