import dataclasses
import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from otherminds import dataset
from otherminds.config import BadInput, Collect
from otherminds.games.stag_hunt import StagHunt
from otherminds.partners import make_partner


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A dataset of pools in two seats, and its file."""
    path = tmp_path_factory.mktemp("data") / "small.npz"
    seats = "nearest_stag+nearest_hare,random,stubborn=0.7:stag+switcher=stag-hare@5,nearest_stag"
    data = dataset.gather(Collect(path, seats=seats, episodes=40, parallel=8, meeting=2))
    dataset.save(data, path)
    return data, path


def test_what_is_read_is_what_was_written(small):
    data, path = small
    again = dataset.load(path, "stag_hunt-4x4-4h1s")
    for name in dataset.FIELDS:
        np.testing.assert_array_equal(getattr(again.rows, name), getattr(data.rows, name))
    assert again.partners == data.partners
    assert again.source["seed"] == 0


def test_every_game_plays_equally_many_whole_episodes(small):
    rows = small[0].rows
    assert rows.first.sum() == rows.end.sum() == 40
    np.testing.assert_array_equal(rows.first[1:], rows.end[:-1])
    assert rows.meeting.sum() == 8 * 3  # five episodes in each game, two a meeting


def test_a_step_leads_to_the_next_row(small):
    rows = small[0].rows
    inside = np.flatnonzero(~rows.end)
    np.testing.assert_array_equal(rows.next_observation[inside], rows.observation[inside + 1])
    np.testing.assert_array_equal(rows.next_present[inside], rows.present[inside + 1])
    assert not rows.next_present[rows.end].any()


def test_absent_seats_have_no_action_no_goal_and_no_odds(small):
    rows = small[0].rows
    assert (rows.action[~rows.present] == -1).all()
    assert (rows.goal[~rows.present] == -1).all()
    assert (rows.goal_reached[~rows.present] == -1).all()
    assert not rows.probabilities[~rows.present].any()
    assert not rows.present.all()


def test_true_probabilities_are_those_of_whom_the_row_names(small):
    """Pools deal their members to lanes; labels that were dealt otherwise would make every ceiling wrong."""
    data, _ = small
    rows = data.rows
    for name, goal in (("nearest_stag", 0), ("nearest_hare", 1)):
        script = make_partner(name, data.game, 1)
        mine = rows.present & (rows.who == data.partners.index(name))
        expected = script.rule(jnp.asarray(rows.observation[mine]), jnp.asarray(rows.legal[mine]))
        np.testing.assert_allclose(rows.probabilities[mine], expected, atol=1e-6)
        assert (rows.goal[mine] == goal).all()
    for partner in data.partners:
        assert (rows.present & (rows.who == data.partners.index(partner))).any()


def test_played_actions_have_positive_probability(small):
    rows = small[0].rows
    acted = rows.present
    chance = np.take_along_axis(rows.probabilities[acted], rows.action[acted][:, None].astype(int), -1)
    assert (chance > 0).all()
    np.testing.assert_allclose(rows.probabilities[acted].sum(-1), 1, atol=1e-5)


def test_held_out_meetings_are_whole_and_apart(small):
    data, _ = small
    training, held_out = data.split(0.25, seed=1)
    assert len(training) + len(held_out) == len(data)
    assert held_out.rows.meeting.sum() == 6
    assert held_out.rows.first[0]
    assert held_out.rows.end[-1]


def test_every_episode_has_a_start_of_its_own(monkeypatch, tmp_path):
    """One bank served a whole dataset: two thirds of what was held out opened on boards that training had seen."""
    monkeypatch.setattr(StagHunt, "bank_size", 64)
    options = Collect(tmp_path / "data.npz", "stag_hunt-4x4-4h1s?horizon=6", "nearest_hare", episodes=1500, parallel=4)
    data = dataset.gather(options)
    boards = data.rows.observation[data.rows.first, 0].reshape(1500, -1)
    assert len(np.unique(boards, axis=0)) >= 1499
    again = dataset.gather(options)
    for name in dataset.FIELDS:
        np.testing.assert_array_equal(getattr(again.rows, name), getattr(data.rows, name))


def test_a_table_of_episodes_holds_every_row_once(small):
    table = small[0].table()
    np.testing.assert_array_equal(np.sort(table[table >= 0]), np.arange(len(small[0])))


def _changed(path, folder, change):
    """A copy of a dataset with something changed in its arrays or its schema."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    schema = json.loads(str(arrays["schema"]))
    change(arrays, schema)
    if "schema" in arrays:
        arrays["schema"] = np.array(json.dumps(schema))
    np.savez(folder / "changed.npz", **arrays)
    return folder / "changed.npz"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda arrays, schema: arrays.pop("schema"), "no schema"),
        (lambda arrays, schema: schema.update(format=99), "format 99"),
        (lambda arrays, schema: arrays["reward"].__setitem__(0, 7.0), "sha256 of 'reward'"),
        (lambda arrays, schema: arrays.pop("action"), "action"),
        (lambda arrays, schema: schema.update(game="stag_hunt-8x8-4h1s"), "shape"),
        (lambda arrays, schema: schema.update(game="chess"), "chess"),
        (lambda arrays, schema: schema.update(partners=["nobody"]), "not listed"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(small, tmp_path, change, reason):
    with pytest.raises(BadInput, match=reason):
        dataset.load(_changed(small[1], tmp_path, change))


def _set(name, value, where=slice(0, 1)):
    """A change of some rows of one array."""

    def change(rows):
        rows[name][where] = value

    return change


def _cut(rows):
    rows["reward"] = rows["reward"][:10]


def _halves(rows):
    rows["action"] = rows["action"] + 0.5


def _counts(rows):
    rows["reward"] = rows["reward"].astype(np.int64)


def _absent(rows):
    rows["action"][~rows["present"]] = 4


def _inside(rows):
    rows["meeting"][np.flatnonzero(~rows["first"])[0]] = True


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_cut, r"'reward' has the shape \(10, 4\)"),
        (_halves, "'action' holds float"),
        (_counts, "'reward' holds int64, expected real numbers"),
        (_absent, "an absent seat has an action"),
        (_set("action", 7), "outside of 0 to 6"),
        (_set("goal", 9), "'goal' is outside of -1 to 1"),
        (_set("goal_reached", -2), "'goal_reached' is outside of -1 to 1"),
        (_set("who", -1), "not listed"),
        (_set("reward", np.nan), "'reward' holds numbers that are not finite"),
        (_set("probabilities", np.inf), "'probabilities' holds numbers that are not finite"),
        (_set("probabilities", -0.5), "'probabilities' holds numbers below 0"),
        (_set("end", False, slice(None)), "its last episode has no end"),
        (_set("first", False), "'first' is not where an episode opens"),
        (_set("first", True, slice(None)), "'first' is not where an episode opens"),
        (_set("meeting", False), "'meeting' is not"),
        (_inside, "'meeting' is not where an episode opens"),
    ],
)
def test_rows_that_make_no_sense_are_refused_though_nothing_is_damaged(small, tmp_path, change, reason):
    """Some ended in tracebacks, others in models of nothing."""
    data, path = small[0], tmp_path / "odd.npz"
    rows = {name: getattr(data.rows, name).copy() for name in dataset.FIELDS}
    change(rows)
    dataset.save(dataclasses.replace(data, rows=dataset.Rows(**rows)), path)
    with pytest.raises(BadInput, match=reason) as refused:
        dataset.load(path)
    assert "\n" not in str(refused.value)


def test_damaged_files_and_other_games_are_refused(small, tmp_path):
    data = small[1].read_bytes()
    cut = tmp_path / "cut.npz"
    cut.write_bytes(data[: len(data) // 2])
    with pytest.raises(BadInput, match="damaged"):
        dataset.load(cut)
    cut.write_bytes(b"PK\x03\x04 nothing of ours")
    with pytest.raises(BadInput, match="damaged"):
        dataset.load(cut)
    np.save(tmp_path / "plain.npy", np.zeros(3))
    with pytest.raises(BadInput, match="no dataset"):
        dataset.load(tmp_path / "plain.npy")
    with pytest.raises(BadInput, match="expected stag_hunt-8x8"):
        dataset.load(small[1], "stag_hunt-8x8-4h1s")
    with pytest.raises(BadInput, match="otherminds collect"):
        dataset.load(tmp_path / "absent.npz")


def test_objects_are_never_unpickled(tmp_path):
    np.savez(tmp_path / "evil.npz", schema=np.array([print], dtype=object))
    with pytest.raises(BadInput, match="damaged or no dataset"):
        dataset.load(tmp_path / "evil.npz")


def test_continuous_actions_are_refused():
    with pytest.raises(BadInput, match="continuous"):
        dataset.gather(Collect(Path("x.npz"), game="jaxmarl:MPE_simple_spread_v3?action_type=continuous"))


def test_pools_that_need_more_games_than_there_is_memory_for_are_refused(tmp_path):
    """Five members in eight seats meet in 390,625 ways: once, that was asked for and the machine had no memory left."""
    options = Collect(
        tmp_path / "data.npz",
        "stag_hunt?height=4&width=4&players=8",
        "random+nearest_stag+nearest_hare+stubborn=0.5+stubborn=0.7",
    )
    with pytest.raises(BadInput, match="390,625 games at once"):
        dataset.gather(options)
