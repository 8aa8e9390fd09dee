"""How well the next observation, the reward and the end are foreseen, one step and several steps ahead."""

from typing import Any

import numpy as np

MOVES = {"up", "down", "left", "right", "stay"}  # with these, nobody leaves the board


def measure(
    before: np.ndarray,
    action: np.ndarray,
    said: dict[str, np.ndarray],
    true: dict[str, np.ndarray],
    binary: np.ndarray,
    seats: int,
    names: tuple[str, ...],
    on_board: bool,
) -> dict[str, Any]:
    """Scores of predictions of N steps. `said` and `true` hold `observation` (scaled), `reward` and `end` (true or not).

    `binary` tells which entries of an observation are 0 or 1: a board counts as foreseen exactly if all of them are.
    """
    error = (said["observation"] - true["observation"]) ** 2
    board = error[:, binary]
    planes = error.reshape(*error.shape[:2], -1).mean((0, 2))
    rewarded, over = true["reward"] != 0, true["end"]
    off = np.abs(said["reward"] - true["reward"])
    found: dict[str, Any] = {
        "steps": len(error),
        "exact_board": _number(exact(said["observation"], true["observation"], binary).mean()) if binary.any() else None,
        "mse": _number(error.mean()),
        "mse_by_plane": [_number(plane) for plane in planes],
        "psnr": psnr(board) if binary.any() else None,
        "reward_mse": _number((off**2).mean()),
        "reward_recall": _number((off < np.abs(true["reward"]) / 2)[rewarded].mean()) if rewarded.any() else None,
        "end_accuracy": _number((said["end"] == over).mean()),
        "end_recall": _number(said["end"][over].mean()) if over.any() else None,
    }
    if on_board:
        found["broken_laws"] = broken_laws(before, action, said["observation"] > 0.5, binary, seats, names)
    return found


def psnr(squared_error: np.ndarray) -> float:
    """Peak signal to noise, in decibels, of entries between 0 and 1."""
    return _number(10 * np.log10(1 / max(float(squared_error.mean()), 1e-12)))


def exact(said: np.ndarray, true: np.ndarray, binary: np.ndarray) -> np.ndarray:
    """[N]: whether every entry that is 0 or 1 is foreseen."""
    return ((said > 0.5) == (true > 0.5))[:, binary].all(-1)


def broken_laws(
    before: np.ndarray, action: np.ndarray, after: np.ndarray, binary: np.ndarray, seats: int, names: tuple[str, ...]
) -> dict[str, int]:
    """In how many of N foreseen boards each law is broken. `before` [N, planes, H, W] was seen, `after` is foreseen."""
    was, now = before[:, :seats] > 0.5, after[:, :seats]
    there, left = np.any(was, (2, 3)), ~np.any(now, (2, 3))
    may_leave = np.isin(action, [k for k, name in enumerate(names) if name not in MOVES])
    reach = was.copy()  # the cells that one step leads to
    reach[:, :, 1:] |= was[:, :, :-1]
    reach[:, :, :-1] |= was[:, :, 1:]
    reach[:, :, :, 1:] |= was[:, :, :, :-1]
    reach[:, :, :, :-1] |= was[:, :, :, 1:]
    things = binary[seats:].all((1, 2))
    grown = after[:, seats:][:, things] & ~(before[:, seats:][:, things] > 0.5)
    broken = {
        "in_two_places": now.sum((2, 3)) > 1,
        "moved_too_far": now & ~reach & there[:, :, None, None],
        "appeared": ~there & ~left,
        "vanished": there & left & ~may_leave,
        "out_of_nothing": grown,
    }
    return {name: int(cells.reshape(len(before), -1).any(1).sum()) for name, cells in broken.items()}


def _number(value: Any) -> float:
    return float(f"{float(value):.6g}")
