"""What other libraries left as arrays: it comes in as it was played, or not at all."""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from otherminds import cli, dataset
from otherminds.config import BadInput, Collect, Convert, Fit, OpponentModel
from otherminds.convert import convert
from otherminds.fit import fit

GAMES = {
    "stag_hunt-4x4-4h1s": "nearest_stag+nearest_hare,random,nearest_stag,nearest_hare",
    "snowdrift-4x4": "nearest_drift,random,never_clear,random",
    "matrix-ipd?horizon=7": "tit_for_tat,random",
    "stag_hunt-4x4-4h1s?view=1": "nearest_hare",
}
LANES = 4


@pytest.fixture(scope="module")
def gathered(tmp_path_factory):
    """Small datasets of our own, by game."""
    kept = {}

    def of(game):
        if game not in kept:
            out = tmp_path_factory.mktemp("data") / "x.npz"
            kept[game] = dataset.gather(Collect(out, game=game, seats=GAMES[game], episodes=24, parallel=LANES, meeting=2))
        return kept[game]

    return of


def absolute(game, observation):
    """Players in the order of seats, in the view of every seat."""
    shown = game.seats * game.shown_of_each
    board = observation.copy()
    for seat in range(game.seats):
        board[:, seat, :shown] = np.roll(observation[:, seat, :shown], seat * game.shown_of_each, 1)
    return board


def by_episode(data, column):
    """[episodes, longest, ...], zeros behind an end."""
    table = data.table()
    return np.where((table >= 0).reshape(*table.shape, *(1,) * (column.ndim - 1)), column[table], 0).astype(column.dtype)


def by_game(data, column):
    """[games, T, ...]: as many steps as the shortest has."""
    episodes = np.cumsum(data.rows.first) - 1
    lanes = [column[episodes * LANES // data.rows.first.sum() == lane] for lane in range(LANES)]
    return np.stack([lane[: min(map(len, lanes))] for lane in lanes])


def columns(data):
    """What an older library would keep of it: no presence, no goals, "stay" for those who have left."""
    rows = data.rows
    return {"obs": rows.observation, "actions": np.maximum(rows.action, 0), "rewards": rows.reward, "dones": rows.end}


def converted(folder, arrays, game, **options):
    path = folder / "foreign.npz"
    np.savez(path, **arrays)
    return convert(Convert(path, game, folder / "out.npz", **options))


def assert_same(found, expected, but=()):
    for name in set(dataset.FIELDS) - {"goal", "probabilities", "who", *but}:
        mine, ours = getattr(found.rows, name), getattr(expected.rows, name)
        np.testing.assert_array_equal(mine, ours, err_msg=name)
        assert mine.dtype == ours.dtype, name


@pytest.mark.parametrize("game", list(GAMES)[:3])
@pytest.mark.parametrize("ends", [True, False])
def test_episodes_come_back_as_they_were_played(gathered, tmp_path, game, ends):
    """Also without a word of where they end, for the rules know it. Snowdrift's labels need all that came before."""
    data = gathered(game)
    arrays = {name: by_episode(data, column) for name, column in columns(data).items() if ends or name != "dones"}
    found, said = converted(tmp_path, arrays, game, meeting=2)
    assert_same(found, data)
    assert said["agreement"] == {"views": 1, "boards": 1, "rewards": 1, "ends": 1}
    assert said["dropped_steps"] == 0
    assert said["unknown"] == ["goal", "probabilities", "who"]
    assert said["absent_actions"] == (~data.rows.present).sum()
    assert (found.rows.goal == -1).all()
    assert not found.rows.probabilities.any()
    assert found.partners == ("unknown",)
    dataset.save(found, tmp_path / "out.npz")
    assert_same(dataset.load(tmp_path / "out.npz", game), data)


@pytest.mark.parametrize("axes", ["time,game,seat", "seat,game,time", "game,time,seat"])
def test_games_that_run_on_come_back_up_to_their_last_end(gathered, tmp_path, axes):
    """As the buffers of on-policy are: one step more of what is seen, a last axis of 1, masks, everything in float32."""
    data = gathered("stag_hunt-4x4-4h1s")
    arrays = {name: by_game(data, column) for name, column in columns(data).items()}
    ended = arrays.pop("dones")
    masks = np.ones((*ended.shape, 4, 1))
    masks[ended] = 0
    arrays["masks"] = np.concatenate([np.ones_like(masks[:, :1]), masks], 1)
    arrays["obs"] = np.concatenate([arrays["obs"], arrays["obs"][:, :1]], 1)
    arrays["actions"], arrays["rewards"] = arrays["actions"][..., None], arrays["rewards"][..., None]
    order = [["game", "time", "seat"].index(axis) for axis in axes.split(",")]
    arrays = {name: x.transpose(*order, *range(3, x.ndim)).astype(np.float32) for name, x in arrays.items()}
    found, said = converted(tmp_path, arrays, data.game.id, axes=axes, meeting=2)
    whole = np.cumsum(ended[:, ::-1], 1)[:, ::-1] > 0
    row = by_game(data, np.arange(len(data)))
    assert_same(found, data.part(row[whole]))
    assert said["dropped_steps"] == (~whole).sum() > 0


@pytest.mark.parametrize("game", list(GAMES)[:3])
@pytest.mark.parametrize("seat_axis", [True, False])
def test_boards_in_the_order_of_seats_are_turned(gathered, tmp_path, game, seat_axis):
    data = gathered(game)
    arrays = columns(data)
    arrays["obs"] = absolute(data.game, data.rows.observation)
    if not seat_axis:
        np.testing.assert_array_equal(arrays["obs"], arrays["obs"][:, :1].repeat(data.game.seats, 1))
        arrays["obs"] = arrays["obs"][:, 0]
    found, _ = converted(tmp_path, arrays, game, axes="row,seat", frame="absolute")
    assert_same(found, data, but=["meeting"])
    assert found.rows.meeting.sum() == found.rows.first.sum()


def test_folders_one_hot_actions_flat_boards_and_blank_views_are_read(gathered, tmp_path):
    """Those who have left see nothing in some libraries, or what they saw last; a dataset shows them the board."""
    data = gathered("stag_hunt-4x4-4h1s")
    rows, arrays = data.rows, columns(data)
    arrays["obs"] = np.where(rows.present[..., None, None, None], rows.observation, 0).reshape(len(data), 4, -1)
    arrays["actions"] = np.eye(7)[rows.action] * rows.present[..., None]
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    found, said = convert(Convert(tmp_path, data.game.id, tmp_path / "out.npz", axes="row,seat"))
    assert_same(found, data, but=["meeting"])
    assert said["absent_actions"] == 0
    arrays = columns(data) | {"active_masks": rows.present.astype(np.float32)}
    for n in range(1, len(data)):
        frozen = ~rows.present[n] & ~rows.first[n]
        arrays["obs"] = arrays["obs"].copy() if n == 1 else arrays["obs"]
        arrays["obs"][n][frozen] = arrays["obs"][n - 1][frozen]
    assert_same(converted(tmp_path, arrays, data.game.id, axes="row,seat")[0], data, but=["meeting"])


def test_what_is_known_of_partners_is_kept(gathered, tmp_path):
    data = gathered("stag_hunt-4x4-4h1s")
    rows = data.rows
    names = np.array(data.partners)[by_episode(data, rows.who)[:, 0]]
    arrays = {name: by_episode(data, column) for name, column in columns(data).items()}
    arrays |= {"aims": by_episode(data, rows.goal), "action_probs": by_episode(data, rows.probabilities), "names": names}
    found, said = converted(tmp_path, arrays, data.game.id, goal="aims", who="names")
    assert said["unknown"] == []
    np.testing.assert_array_equal(found.rows.goal, rows.goal)
    np.testing.assert_array_equal(found.rows.probabilities, rows.probabilities)
    np.testing.assert_array_equal(np.array(found.partners)[found.rows.who], np.array(data.partners)[rows.who])


def test_episodes_of_epymarl_carry_their_final_observation(gathered, tmp_path):
    """Everything has one step more than the longest episode; what is filled says how far, with the final observation."""
    data = gathered("stag_hunt-4x4-4h1s?view=1")
    rows, table = data.rows, data.table()
    length = (table >= 0).sum(1)
    arrays = {name: by_episode(data, column) for name, column in columns(data).items()}
    arrays = {name: np.concatenate([x, np.zeros_like(x[:, :1])], 1) for name, x in arrays.items()}
    arrays["obs"][np.arange(len(table)), length] = rows.next_observation[rows.end]
    arrays["terminated"] = arrays.pop("dones")[..., None]
    arrays["terminated"][0] = 0  # cut off
    arrays["reward"] = arrays.pop("rewards")
    arrays["avail_actions"] = np.concatenate([by_episode(data, rows.legal), np.zeros((len(table), 1, 4, 7))], 1)
    arrays["filled"] = (np.arange(table.shape[1] + 1) <= length[:, None])[..., None]
    names = {"reward": "reward", "end": "terminated", "legal": "avail_actions"}
    found, said = converted(tmp_path, arrays, data.game.id, **names)
    assert_same(found, data, but=["meeting", "goal_reached", "terminated", "truncated"])
    assert (said["agreement"], said["dropped_steps"]) == (None, 0)
    assert said["unknown"] == ["goal", "probabilities", "who", "present", "goal_reached"]
    assert (found.rows.goal_reached == -1).all()
    assert found.rows.truncated.sum() == 1
    assert found.rows.truncated[length[0] - 1]
    assert not found.rows.terminated[: length[0]].any()
    later = found.part(np.arange(length[0], len(data)))
    assert (later.rows.terminated.sum(0) == len(table) - 1).all()  # once a seat and episode


def test_seats_end_when_their_own_mark_says_so(gathered, tmp_path):
    """Marked once or from then on; an episode is over with its last seat."""
    data = gathered("stag_hunt-4x4-4h1s?view=1")
    rows = data.rows
    once = rows.terminated
    episode = np.cumsum(rows.first)
    lasting = np.stack([np.where(episode == episode[n], once[:, :].T, 0)[:, : n + 1].any(1) for n in range(len(data))])
    final = {"new_obs": rows.next_observation}
    for marks in (once, lasting):
        found, _ = converted(tmp_path, columns(data) | final | {"dones": marks}, data.game.id, axes="row,seat")
        assert_same(found, data, but=["meeting", "goal_reached", "legal"])


def test_an_end_that_was_cut_off_terminates_nobody(gathered, tmp_path):
    """As RLlib has it: ends of two kinds in two columns, and what they led to in a third. Who left before stays terminated."""
    data = gathered("stag_hunt-4x4-4h1s?view=1")
    rows = data.rows
    last = np.flatnonzero(rows.end)[-1]
    limit = np.arange(len(data)) == last
    columns_of_rllib = {"terminateds": rows.terminated & ~limit[:, None], "truncateds": limit[:, None] & rows.present}
    arrays = columns(data) | columns_of_rllib | {"new_obs": rows.next_observation}
    arrays.pop("dones")
    found, _ = converted(tmp_path, arrays, data.game.id, axes="row,seat", end="terminateds")
    assert_same(found, data, but=["meeting", "goal_reached", "legal", "terminated", "truncated"])
    np.testing.assert_array_equal(found.rows.truncated, limit)
    np.testing.assert_array_equal(found.rows.terminated, rows.terminated & ~limit[:, None])


def test_last_steps_that_lead_nowhere_are_dropped(gathered, tmp_path):
    data = gathered("stag_hunt-4x4-4h1s?view=1")
    rows = data.rows
    found, said = converted(tmp_path, columns(data), data.game.id, axes="row,seat")
    kept = data.part(~rows.end)
    assert said["dropped_steps"] == rows.end.sum()
    np.testing.assert_array_equal(found.rows.observation, kept.rows.observation)
    np.testing.assert_array_equal(found.rows.next_observation, kept.rows.next_observation)
    np.testing.assert_array_equal(found.rows.end, found.rows.truncated)
    assert not found.rows.terminated.any()


def swapped(x):
    return x[:, [1, 0, 2, 3]]


def shifted(x, by):
    return np.roll(x, by, 0)


def still_on_board(data):
    """Boards from which nobody is ever taken off."""
    rows, observation = data.rows, data.rows.observation.copy()
    for n in range(1, len(data)):
        for seat in np.flatnonzero(~rows.present[n] & ~rows.first[n]):
            for viewer in range(4):
                observation[n, viewer, (seat - viewer) % 4] = observation[n - 1, viewer, (seat - viewer) % 4]
    return observation


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (lambda d, a: {"actions": swapped(a["actions"])}, r"'actions' has the seats in another order .* \[1, 0, 2, 3\]"),
        (lambda d, a: {"actions": np.roll(a["actions"], 1, 1)}, r"'actions' has the seats in another order .* \[1, 2, 3, 0\]"),
        (lambda d, a: {"rewards": swapped(a["rewards"])}, r"'rewards' has the seats in another order .* \[1, 0, 2, 3\]"),
        (lambda d, a: {"actions": shifted(a["actions"], 1)}, "'actions' is shifted by one step, each a step too late"),
        (lambda d, a: {"rewards": shifted(a["rewards"], 1)}, "'rewards' is shifted by one step, each a step too late"),
        (lambda d, a: {"rewards": shifted(a["rewards"], -1)}, "'rewards' is shifted by one step, each a step too early"),
        (lambda d, a: {"rewards": a["rewards"].sum(1)}, "'rewards' is the same for all seats"),
        (lambda d, a: {"rewards": a["rewards"] / 10}, "unscaled"),
        (lambda d, a: {"dones": shifted(a["dones"], 1)}, "'dones' is shifted by one step, each a step too late"),
        (lambda d, a: {"obs": absolute(d.game, a["obs"])}, "in the other frame: --frame absolute"),
        (lambda d, a: {"obs": still_on_board(d)}, "players who have left are still on the board, recorded as if they stayed"),
        (
            lambda d, a: {"actions": np.array([3, 2, 1, 0, 4, 5, 6])[a["actions"]]},
            r"numbered otherwise: their 0 is our 3 \(right\)",
        ),
        (lambda d, a: {"active_masks": shifted(d.rows.present, -1)}, "'active_masks' is 0 for .* is it shifted by a step"),
    ],
)
def test_what_breaks_the_rules_is_refused_by_its_cause(gathered, tmp_path, broken, words):
    """A joint action in another frame than the boards once taught a world model players who jump two cells."""
    data = gathered("stag_hunt-4x4-4h1s")
    arrays = columns(data)
    with pytest.raises(BadInput, match=words):
        converted(tmp_path, arrays | broken(data, arrays), data.game.id, axes="row,seat")


def test_views_said_to_be_in_order_of_seats_and_other_horizons_are_refused(gathered, tmp_path):
    data = gathered("stag_hunt-4x4-4h1s")
    with pytest.raises(BadInput, match="--frame ego"):
        converted(tmp_path, columns(data), data.game.id, axes="row,seat", frame="absolute")
    with pytest.raises(BadInput, match=r"the longest after \d+ steps: .* horizon="):
        converted(tmp_path, columns(data), "stag_hunt-4x4-4h1s?horizon=5", axes="row,seat")


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ({"obs": None}, {}, "has no array 'obs': --observation NAME, "),
        ({}, {"reward": "reward"}, "has no array 'reward': --reward NAME, did you mean rewards"),
        ({}, {"present": "alive"}, "has no array 'alive': --present NAME"),
        ({}, {"axes": "time,seat"}, "--axes is time,seat, expected"),
        ({}, {"axes": "seat,row"}, r"'actions' has the shape \(\d+, 4\), expected seat,row with 4 seats"),
        ({}, {"meeting": 0}, "--meeting is 0"),
        ({}, {"meeting": 2**70}, "--meeting is 1180591620717411303424"),
        ({"actions": lambda x: x[:0]}, {}, r"'actions' has the shape \(0, 4\)"),
        ({"partners": lambda x: np.full((len(x), 4), np.nan)}, {}, "'partners' names nobody in some places"),
        (
            {"obs": lambda x: x[:, :, :7]},
            {},
            r"'obs' has the shape \(\d+, 4, 7, 4, 4\), expected \(\d+ of time, 4 of seat, 8, 4, 4\)",
        ),
        ({"obs": lambda x: x / 35}, {}, "expected it unscaled"),
        ({"actions": lambda x: x + 0.5}, {}, "'actions' holds fractions"),
        ({"actions": lambda x: np.full((*x.shape, 7), 1 / 7)}, {}, "neither whole numbers nor one-hot"),
        ({"actions": lambda x: x + 7}, {}, "expected 0 to 6|the boards of"),
        ({"actions": lambda x: x.astype(str)}, {}, "expected numbers"),
        ({"rewards": lambda x: x[:-1]}, {}, "'rewards' has the shape"),
        ({"rewards": lambda x: x * np.nan}, {}, "'rewards' holds numbers that are not finite"),
        ({"obs": lambda x: x.astype(object)}, {}, "cannot read 'obs' of .* it holds Python objects, which can run code"),
        ({"action_probs": lambda x: np.ones((len(x), 4, 7))}, {}, "probabilities that sum to 1"),
        (
            {"goals": lambda x: np.full((len(x), 4), 2)},
            {},
            "'goals' holds other numbers than -1 and those of the goals stag, hare",
        ),
        ({"dones": lambda x: np.zeros(len(x))}, {}, "holds no whole episode"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(gathered, tmp_path, changes, options, words):
    data = gathered("stag_hunt-4x4-4h1s")
    arrays = columns(data)
    for name, change in changes.items():
        old = arrays.pop(name, data.rows.first)
        arrays |= {} if change is None else {name: change(old)}
    with pytest.raises(BadInput, match=words):
        converted(tmp_path, arrays, data.game.id, **{"axes": "row,seat"} | options)


def test_ends_that_nobody_noted_and_legal_actions_that_forbid_the_played_are_refused(gathered, tmp_path):
    data = gathered("stag_hunt-4x4-4h1s?view=1")
    arrays = columns(data)
    legal = shifted(data.rows.legal, 1)
    with pytest.raises(BadInput, match=r"'available_actions' forbids .* of the actions taken"):
        converted(tmp_path, arrays | {"available_actions": legal}, data.game.id, axes="row,seat")
    arrays.pop("dones")
    with pytest.raises(BadInput, match="says nowhere where an episode ends: --end NAME"):
        converted(tmp_path, arrays, data.game.id, axes="row,seat")


def test_files_that_are_no_arrays_are_refused(tmp_path):
    (tmp_path / "text.npz").write_text("hello")
    (tmp_path / "empty").mkdir()
    for path, words in ((tmp_path / "text.npz", "no archive"), (tmp_path / "no", "no archive"), (tmp_path / "empty", "no .npy")):
        with pytest.raises(BadInput, match=words):
            convert(Convert(path, "matrix-ipd", tmp_path / "out.npz"))


def test_damaged_archives_are_refused(gathered, tmp_path):
    """Cut short, or changed inside: one line either way."""
    np.savez(tmp_path / "whole.npz", **columns(gathered("stag_hunt-4x4-4h1s")))
    content = (tmp_path / "whole.npz").read_bytes()
    middle = len(content) // 2
    for damaged in (content[:middle], content[:middle] + b"damage" + content[middle + 6 :]):
        (tmp_path / "damaged.npz").write_bytes(damaged)
        with pytest.raises(BadInput, match=r"no archive of arrays|cannot read 'obs' of .* damaged"):
            convert(Convert(tmp_path / "damaged.npz", "stag_hunt-4x4-4h1s", tmp_path / "out.npz", axes="row,seat"))


def called(monkeypatch, *arguments):
    monkeypatch.setattr(cli, "keep_programs", lambda: None)
    monkeypatch.setattr(sys, "argv", ["otherminds", "convert", *map(str, arguments)])
    cli.main()


def test_the_command_writes_a_dataset_once_and_says_what_it_did(gathered, tmp_path, monkeypatch, capsys):
    data = gathered("stag_hunt-4x4-4h1s")
    np.savez(tmp_path / "foreign.npz", **columns(data))
    out = tmp_path / "mine.npz"
    words = [tmp_path / "foreign.npz", "--game", data.game.id, "--axes", "row,seat", "--out", out]
    called(monkeypatch, *words, "--json")
    said = json.loads(capsys.readouterr().out)
    assert said == {
        "data": str(out),
        "game": data.game.id,
        "rows": len(data),
        "episodes": 24,
        "agreement": {"views": 1, "boards": 1, "rewards": 1, "ends": 1},
        "dropped_steps": 0,
        "absent_actions": int((~data.rows.present).sum()),
        "unknown": ["goal", "probabilities", "who"],
    }
    assert dataset.load(out).source["converted"] == "foreign.npz"
    with pytest.raises(SystemExit):
        called(monkeypatch, *words)
    assert "exists already" in capsys.readouterr().err
    called(monkeypatch, *words[:-1], tmp_path / "other.npz")
    shown = capsys.readouterr().out
    assert f"{len(data):,} steps of 24 episodes" in shown
    assert "boards 100.00%" in shown
    assert "players who had left" in shown


def test_partners_whose_probabilities_are_unknown_have_no_ceilings(gathered, tmp_path):
    """Zeros taken for probabilities gave a ceiling of 27 nats, below every model."""
    data = gathered("stag_hunt-4x4-4h1s")
    found, _ = converted(tmp_path, columns(data), data.game.id, axes="row,seat")
    dataset.save(found, tmp_path / "out.npz")
    small = OpponentModel(channels=4, repeats=1, hidden=(4,))
    fitting = Fit(
        "opponent_model", tmp_path / "out.npz", name=str(tmp_path / "fit"), epochs=1, labels="reached", opponent_model=small
    )
    scores = fit(fitting)["scores"]
    assert "cross_entropy" in scores
    assert not any(name.endswith("_exact") for name in scores)


def test_every_array_can_be_named():
    """An option that nobody reads would be a silent failure of its own."""
    text = "".join((Path(cli.__file__).parent / f"{name}.py").read_text() for name in ("convert", "foreign"))
    for field in dataclasses.fields(Convert):
        assert f'"{field.name}"' in text or f"options.{field.name}" in text, field.name
