"""A checkpoint is what was written, or it is noticed. Other libraries load half of one without a word."""

import dataclasses
import io
import json
import os
import pickle
import shutil
import stat

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from otherminds import checkpoint, runs
from otherminds.config import BadInput
from otherminds.games.ego import view
from otherminds.train import resume
from otherminds.updates import Compiled, prepare

from small_runs import SMALL, killed_at, small


@pytest.fixture
def notes():
    return []


def tree():
    """One of each kind of leaf that a run has, and the kinds that were lost or changed once."""
    return {
        "keys": jax.random.split(jax.random.key(7), 3),
        "key": jax.random.key(8),
        "flags": jnp.array([True, False]),
        "nothing": jnp.zeros((0, 4)),
        "scalar": jnp.int32(5),
        "yes": jnp.bool_(True),
        "planes": jnp.arange(6, dtype=jnp.uint8).reshape(1, 2, 3),
        "numbers": jnp.array([0.1, -0.0, 1e-45, 3e38]),
        "turned": jnp.arange(6.0).reshape(2, 3).T,
        "half": (jnp.float16(0.1), None, [jnp.uint32(2**32 - 1)]),
    }


def test_everything_comes_back_bit_for_bit(tmp_path, notes):
    """A single number came back as a list of one; a random key is no array until it is opened."""
    checkpoint.save(tmp_path, 12, tree(), {"update": 3, "seconds": 0.1})
    found = checkpoint.newest(tmp_path, notes.append)
    back = checkpoint.filled(tree(), found.arrays)
    assert (found.step, found.facts["update"], found.facts["seconds"], notes) == (12, 3, 0.1, [])
    assert jax.tree.structure(back) == jax.tree.structure(tree())
    for old, new in zip(jax.tree.leaves(tree()), jax.tree.leaves(back), strict=True):
        assert (old.dtype, old.shape) == (new.dtype, new.shape)
    old, new = checkpoint.named(tree()), checkpoint.named(back)
    assert all(old[name].tobytes() == new[name].tobytes() for name in old)
    assert checkpoint.digest(old) == checkpoint.digest(new)
    np.testing.assert_array_equal(jax.random.bits(back["key"], (4,)), jax.random.bits(jax.random.key(8), (4,)))


def test_a_digest_changes_with_anything():
    plain = {"a": np.zeros(2, np.float32), "b": np.ones(2, np.float32)}
    others = [
        {"a": np.zeros(2, np.float32), "b": np.array([1, np.nextafter(np.float32(1), np.float32(2))])},
        {"a": np.zeros((2, 1), np.float32), "b": plain["b"]},
        {"a": np.zeros(2, np.int32), "b": plain["b"]},
        {"a": plain["b"], "b": plain["a"]},
        {"a": plain["a"]},
    ]
    assert checkpoint.digest(dict(reversed(plain.items()))) == checkpoint.digest(plain)
    assert len({checkpoint.digest(arrays) for arrays in [plain, *others]}) == 6


def test_what_does_not_fit_is_refused_by_name():
    arrays = checkpoint.named({"a": jnp.zeros(2), "b": jnp.int32(1)})
    with pytest.raises(BadInput, match=r"the checkpoint has no \['c'\]: it was written with other settings"):
        checkpoint.filled({"c": jnp.zeros(2)}, arrays)
    with pytest.raises(BadInput, match=r"\['a'\] in the checkpoint is float32\[2\], expected float32\[3\]"):
        checkpoint.filled({"a": jnp.zeros(3)}, arrays)
    with pytest.raises(BadInput, match=r"\['b'\] in the checkpoint is int32\[\], expected float32\[\]"):
        checkpoint.filled({"b": jnp.float32(1)}, arrays)


@pytest.mark.parametrize("file", [checkpoint.STATE, checkpoint.FACTS])
@pytest.mark.parametrize("damage", ["flip first", "flip middle", "flip last", "cut", "empty", "a list", "remove"])
def test_damage_is_noticed_and_the_one_before_is_used(file, damage, tmp_path, notes):
    """A disk that lies, a copy that was cut off: training on from it would be training on noise."""
    for step in (1, 2):
        checkpoint.save(tmp_path, step, {"a": jnp.arange(100.0) + step}, {"update": step})
    path = tmp_path / "checkpoints" / "2" / file
    content = bytearray(path.read_bytes())
    if damage.startswith("flip"):
        content[{"first": 0, "middle": len(content) // 2, "last": -2}[damage.split()[1]]] ^= 1
    path.write_bytes({"cut": content[:-5], "empty": b"", "a list": b"[]"}.get(damage, content))
    if damage == "remove":
        path.unlink()
    found = checkpoint.newest(tmp_path, notes.append)
    assert (found.step, found.facts["update"]) == (1, 1)
    (note,) = notes
    assert f"{tmp_path}: checkpoint 2 " in note
    assert note.endswith("; using the one before")
    with pytest.raises(checkpoint.Damaged, match="checkpoint 2 "):
        checkpoint.facts_of(tmp_path, 2)


def test_every_flipped_bit_of_the_facts_is_noticed(tmp_path):
    checkpoint.save(tmp_path, 1, {"a": jnp.zeros(1)}, {"update": 1, "best": None})
    path = tmp_path / "checkpoints" / "1" / checkpoint.FACTS
    content = path.read_bytes()
    meant = json.loads(content)
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 4
        path.write_bytes(changed)
        try:
            harmless = json.loads(changed) == meant  # a space that became another
        except ValueError:
            harmless = False
        if not harmless:
            with pytest.raises(checkpoint.Damaged):
                checkpoint.facts_of(tmp_path, 1)


def test_when_none_is_whole_nothing_is_removed(copied, notes):
    """Resuming began again and swept up all that was there, though the files might only have been out of reach."""
    known = checkpoint.steps(copied)
    metrics = (copied / "metrics.jsonl").read_bytes()
    for step in known:
        (copied / "checkpoints" / str(step) / checkpoint.FACTS).write_text("{")
    with pytest.raises(BadInput, match=r"none of its \d+ checkpoints can be read; to begin again, remove .*checkpoints"):
        resume(str(copied), say=notes.append)
    assert checkpoint.steps(copied) == known
    assert (copied / "metrics.jsonl").read_bytes() == metrics


def test_a_disk_that_does_not_answer_is_no_damage(tmp_path, monkeypatch, notes):
    for step in (1, 2):
        checkpoint.save(tmp_path, step, tree(), {"update": step})

    def unreadable(*arguments):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(checkpoint, "_checksum", unreadable)
    with pytest.raises(OSError, match="Input/output"):
        checkpoint.newest(tmp_path, notes.append)
    assert notes == []


def test_a_checkpoint_that_is_removed_while_it_is_read_is_no_damage(tmp_path, monkeypatch, notes):
    """A run that goes on prunes what an evaluation has just picked."""
    for step in (1, 2):
        checkpoint.save(tmp_path, step, tree(), {"update": step})
    facts_of, seen = checkpoint.facts_of, []

    def pruned(run, step):
        if not seen:
            checkpoint.save(run, 3, tree(), {"update": 3})
            for old in (1, 2):
                shutil.rmtree(run / "checkpoints" / str(old))
        seen.append(step)
        return facts_of(run, step)

    monkeypatch.setattr(checkpoint, "facts_of", pruned)
    assert checkpoint.newest(tmp_path, notes.append).step == 3
    assert (seen, notes) == ([2, 1, 3], [])


def test_half_written_ones_are_ignored_and_swept_up(tmp_path, monkeypatch, notes):
    checkpoint.save(tmp_path, 1, tree(), {"update": 1})
    for function in ("named", "_checksum", "_flush_folder"):
        with killed_at(monkeypatch, checkpoint, function, 1):
            checkpoint.save(tmp_path, 2, tree(), {"update": 2})
        if function != "_flush_folder":  # by then it is in its place
            assert checkpoint.steps(tmp_path) == [1]
            assert checkpoint.newest(tmp_path, notes.append).step == 1
    assert checkpoint.newest(tmp_path, notes.append).step == 2
    (tmp_path / "checkpoints" / ".3.part").mkdir()
    (tmp_path / "checkpoints" / "notes").mkdir()
    checkpoint.cut(tmp_path, 1)
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["1", "notes"]
    assert notes == []


def test_a_save_that_fails_leaves_the_others_as_they_are(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, 1, tree(), {"update": 1})

    def full(handle):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            checkpoint.save(tmp_path, 2, tree(), {"update": 2})
    assert os.listdir(tmp_path / "checkpoints") == ["1"]
    checkpoint.facts_of(tmp_path, 1)


def test_others_may_read_what_was_saved(tmp_path):
    """The state alone was written for its owner's eyes only, and a colleague could open the run and not play it."""
    place = checkpoint.save(tmp_path, 1, tree(), {})
    modes = {stat.S_IMODE((place / file).stat().st_mode) for file in (checkpoint.STATE, checkpoint.FACTS)}
    assert len(modes) == 1


def test_the_newest_and_the_best_are_kept(tmp_path):
    for step in (1, 2, 10, 20, 30):
        checkpoint.save(tmp_path, step, {}, {"update": step})
    checkpoint.prune(tmp_path, 2, [2])
    assert checkpoint.steps(tmp_path) == [2, 20, 30]
    checkpoint.prune(tmp_path, 5, [])
    assert checkpoint.steps(tmp_path) == [2, 20, 30]


def test_a_run_keeps_the_newest_and_its_best(trained):
    known = checkpoint.steps(trained)
    facts = checkpoint.facts_of(trained, known[-1])
    score, best = facts["best"]
    assert known[-1] == SMALL.steps
    assert best in known
    assert len(known) == SMALL.keep + (best not in known[-SMALL.keep :])
    assert checkpoint.facts_of(trained, best)["score"] == score
    assert all(checkpoint.facts_of(trained, step)["score"] <= score for step in known)
    assert (checkpoint.pick(trained, "best"), checkpoint.pick(trained, "final")) == (best, known[-1])


@pytest.mark.parametrize(
    ("which", "words"),
    [("7", "has no checkpoint at step 7: choose from .*1280"), ("last", "'last' is no checkpoint: expected a number")],
)
def test_checkpoints_that_are_not_there_are_refused(trained, which, words):
    with pytest.raises(BadInput, match=words):
        checkpoint.pick(trained, which)


def test_a_run_without_checkpoints_is_refused(tmp_path):
    with pytest.raises(BadInput, match="has no checkpoint yet"):
        checkpoint.pick(tmp_path, "final")


class Bomb:
    """Unpickled, it would run code."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was opened",))


def put_in(run, step, content):
    """Somebody replaces the arrays of a checkpoint, and seals it anew."""
    place = run / "checkpoints" / str(step)
    (place / checkpoint.STATE).write_bytes(content)
    facts = json.loads((place / checkpoint.FACTS).read_text())
    facts.pop("sha256")
    facts["sha256"] = checkpoint._checksum(place / checkpoint.STATE, facts)
    (place / checkpoint.FACTS).write_text(json.dumps(facts))


def test_a_pickle_is_refused_and_never_opened(copied, notes):
    zipped = io.BytesIO()
    np.savez(zipped, np.array([Bomb()], dtype=object))
    for content in (pickle.dumps(Bomb()), zipped.getvalue(), b""):
        put_in(copied, SMALL.steps, content)
        with pytest.raises(BadInput, match="checkpoint 1280 cannot be read"):
            checkpoint.load_policy(copied, 0, "1280")
        found = checkpoint.newest(copied, notes.append)
        assert found.step < SMALL.steps
        assert "checkpoint 1280 cannot be read" in notes[-1]


def test_unknown_formats_are_refused_by_name(tmp_path, notes):
    """Not taken for damage: the one before would be used, and the newer one thrown away."""
    checkpoint.save(tmp_path, 1, {}, {"update": 1})
    checkpoint.save(tmp_path, 2, {}, {"update": 2, "format": 9})
    with pytest.raises(BadInput, match="2 is of format 9, and this version of otherminds reads 1"):
        checkpoint.newest(tmp_path, notes.append)
    assert notes == []


@pytest.mark.parametrize("seed", [3, 5])
def test_a_policy_plays_as_it_did_in_training(trained, seed):
    """The same logits and values in the same places, to the last bit: loaded policies once had another seat's weights."""
    setup = prepare(SMALL)
    engine = Compiled(setup)
    carry = checkpoint.filled(engine.like(0), checkpoint.arrays_of(trained, SMALL.steps))
    own = jax.tree.map(lambda leaf: leaf[seed - SMALL.seed], carry)
    group = setup.learners[0].policy(own.learners[0]).greedy()
    now = own.play.now
    memory = jax.tree.map(lambda leaf: leaf, own.play.memories[0])
    action, _, extras = group.act(view(now, (0, 1)), memory, jax.random.key(0))
    logits = []
    for seat in (0, 1):
        policy = checkpoint.load_policy(trained, seat, seed=seed).greedy()
        alone = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (SMALL.parallel, *leaf.shape)), policy.initial_memory())
        mine, _, said = policy.act(view(now, (seat,)), alone, jax.random.key(0))
        np.testing.assert_array_equal(mine[:, 0], action[:, seat])
        np.testing.assert_array_equal(said.policy_logits[:, 0], extras.policy_logits[:, seat])
        np.testing.assert_array_equal(said.value[:, 0], extras.value[:, seat])
        logits.append(np.asarray(said.policy_logits))
    assert np.abs(logits[0] - logits[1]).max() > 1e-6


def test_policies_that_are_not_there_are_refused(trained, copied):
    with pytest.raises(BadInput, match="has seeds 3 to 5, not 0"):
        checkpoint.load_policy(trained, 0, seed=0)
    with pytest.raises(BadInput, match=r"player_3 of .* learned nothing; those who did: 1, 2"):
        checkpoint.load_policy(trained, 2)
    found = checkpoint.read(copied, 1280)
    for seats, message in (
        ("ppo,always_c", r"player_2 of .* learned nothing; those who did: 1"),
        ("mappo", r"it was written with other settings or another version|in the checkpoint is"),
    ):
        other = small(seats=seats)
        runs.write_config(copied, other)
        with pytest.raises(BadInput, match=message):
            checkpoint.policy_of(dataclasses.replace(found, facts=found.facts | {"config": runs.as_dict(other)}), 1)


def test_a_damaged_checkpoint_is_not_played(copied):
    path = copied / "checkpoints" / str(SMALL.steps) / checkpoint.STATE
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BadInput, match="checkpoint 1280 is damaged: its checksum does not fit"):
        checkpoint.load_policy(copied, 0, "1280")
    with pytest.warns(UserWarning, match="its checksum does not fit; using the one before"):
        checkpoint.load_policy(copied, 0)
    shutil.rmtree(path.parent)
    assert checkpoint.pick(copied, "final") < SMALL.steps
