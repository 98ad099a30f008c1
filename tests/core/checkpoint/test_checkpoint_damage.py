"""Damaged and crafted checkpoints: nothing in them is ever run, and what is loaded stays as it was."""

from __future__ import annotations

import hashlib
import json
import os
import pickle

import pytest
import torch

from probe.core.checkpoint import files as checkpoint_files
from probe.errors import (
    InputError,
    ProbeError,
    SerializationError,
)
from tests.core.checkpoint.checkpoint_training import Training, snapshot

pytestmark = pytest.mark.usefixtures("same_random_state")


# ---------------------------------------------------------------------------------------------------- what doesn't fit


@pytest.mark.parametrize("verify", [True, False])
def test_damage_is_found_before_anything_is_loaded(tmp_path, verify):
    training = Training(verify_checksums=verify)
    training.manager.save_checkpoint(tmp_path / "one")
    for name in snapshot(tmp_path / "one"):
        path = tmp_path / "one" / name
        content = path.read_bytes()
        path.write_bytes(content[:-3])
        assert not checkpoint_files.is_complete(tmp_path / "one")
        with pytest.raises((InputError, SerializationError), match=name.rpartition("/")[2]):
            training.manager.load_checkpoint(tmp_path / "one")
        path.write_bytes(content)
        if verify and name != "manifest.json":
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
            with pytest.raises(InputError, match="is corrupted"):
                training.manager.load_checkpoint(tmp_path / "one")
            path.write_bytes(content)
    training.manager.load_checkpoint(tmp_path / "one")


# ----------------------------------------------------------------------------------------------- nothing is ever run


class Attack:
    """Its pickle makes a directory when it is read."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def vouch(checkpoint):
    """Let the manifest list what is there now, as an attacker would."""
    told = checkpoint_files.Manifest.read(checkpoint)
    files = checkpoint_files.entries(checkpoint, checkpoint_files.files_of(checkpoint))
    checkpoint_files.Manifest(told.global_step, told.world_size, told.contents, files).write(checkpoint)


def test_no_file_of_a_checkpoint_is_executed(tmp_path):
    ran = tmp_path / "ran"
    attack = pickle.dumps(Attack(ran))
    pickle.loads(attack)
    assert ran.is_dir(), "the attack works"
    ran.rmdir()
    training = Training()
    training.steps(1)
    one = tmp_path / "one"
    training.manager.save_checkpoint(one)
    names = snapshot(one)
    for name, content in names.items():
        (one / name).write_bytes(attack)
        if name != "manifest.json":
            vouch(one)
        with pytest.raises((SerializationError, InputError)):
            training.manager.load_checkpoint(one)
        (one / name).write_bytes(content)
        vouch(one)
    # A whole torch file with the attack inside, where the list of chunks says that a tensor is.
    torch.save(Attack(ran), one / "shards" / "__0_0.distcp")
    size = (one / "shards" / "__0_0.distcp").stat().st_size
    chunks = json.loads((one / "shards" / "chunks.json").read_text())
    for tensor in chunks["tensors"].values():
        for chunk in tensor["chunks"]:
            chunk[3:] = [0, size]
    (one / "shards" / "chunks.json").write_text(json.dumps(chunks))
    (one / "shards" / ".metadata").write_bytes(attack)
    vouch(one)
    with pytest.raises(SerializationError, match="doesn't hold the tensors"):
        training.manager.load_checkpoint(one)
    assert not ran.exists()


def test_a_checkpoint_cannot_name_files_outside_of_it(tmp_path):
    training = Training()
    one = tmp_path / "one"
    training.manager.save_checkpoint(one)
    text = (one / "shards" / "chunks.json").read_text()
    (one / "shards" / "chunks.json").write_text(text.replace("__0_0.distcp", "../../../etc/passwd"))
    vouch(one)
    with pytest.raises(SerializationError, match="expected a file name without a directory"):
        training.manager.load_checkpoint(one)
    (one / "manifest.json").write_text((one / "manifest.json").read_text().replace("shards/chunks", "../chunks"))
    with pytest.raises(SerializationError, match="outside the checkpoint"):
        training.manager.load_checkpoint(one)


# ---------------------------------------------------------------------------- damaged under a checksum that fits


def forged(path, name, content):
    """Replace a file of a checkpoint, and its checksum with it."""
    (path / name).write_bytes(content)
    manifest = json.loads((path / "manifest.json").read_bytes())
    manifest["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (path / "manifest.json").write_text(json.dumps(manifest))


def everything_of(training):
    tensors = [*training.model.state_dict().values()]
    tensors += [one for state in training.optimizer.state.values() for one in state.values()]
    return (
        [one.clone() for one in tensors if isinstance(one, torch.Tensor)],
        training.scheduler.state_dict(),
        torch.get_rng_state(),
    )


def unchanged(before, after):
    return all(map(torch.equal, before[0], after[0])) and before[1] == after[1] and torch.equal(before[2], after[2])


@pytest.fixture
def saved(tmp_path):
    first = Training()
    first.steps(3)
    first.manager.save_checkpoint(tmp_path / "step", global_step=3)
    other = Training(seed=7)
    other.steps(2)
    return tmp_path / "step", other


def test_a_damaged_shard_under_a_fitting_checksum_leaves_everything_untouched(saved):
    path, training = saved
    [shard] = [one for one in (path / "shards").iterdir() if one.suffix == ".distcp"]
    content = shard.read_bytes()
    before = everything_of(training)
    for begin in range(0, len(content), max(1, len(content) // 23)):
        forged(path, f"shards/{shard.name}", content[:begin] + bytes(200) + content[begin + 200 :])
        try:
            training.manager.load_checkpoint(path)
        except SerializationError:
            assert unchanged(before, everything_of(training)), begin
        else:  # bytes of a number, which no reader can tell
            training.manager.save_checkpoint(path.with_name("again"))
            before = everything_of(training)


@pytest.mark.parametrize("kind", ["chunk of another dtype", "hole", "outside"])
def test_a_list_of_chunks_that_does_not_fit_leaves_everything_untouched(saved, kind):
    path, training = saved
    chunks = json.loads((path / "shards/chunks.json").read_bytes())
    before = everything_of(training)
    tensor = chunks["tensors"]["model.2.weight"]
    if kind == "hole":
        tensor["chunks"] = []
    elif kind == "outside":
        tensor["chunks"][0][0] = [5, 5]
    else:
        tensor["chunks"][0][2:] = chunks["tensors"]["model.2.bias"]["chunks"][0][2:]
    forged(path, "shards/chunks.json", json.dumps(chunks).encode())
    with pytest.raises(SerializationError):
        training.manager.load_checkpoint(path)
    assert unchanged(before, everything_of(training))


def places(value, path=()):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        yield (*path, key)
        yield from places(one, (*path, key))


def test_a_crafted_structure_with_the_right_checksum_is_an_error_of_ours_and_changes_nothing(saved):
    path, training = saved
    name = "shards/structure.json"
    whole = (path / name).read_bytes()
    before = everything_of(training)
    found = [one for one in places(json.loads(whole)) if "lr" not in one and len(one) < 5]
    refused = 0
    for place in found[:: max(1, len(found) // 25)]:
        for wrong in (None, 7, "words", [], {"$tensor": "nowhere"}, {"$dict": [[{}, 1]]}, {"$tuple": 3}):
            trees = json.loads(whole)
            inner = trees
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = wrong
            forged(path, name, json.dumps(trees).encode())
            try:
                training.manager.load_checkpoint(path)
            except ProbeError:
                refused += 1
                assert unchanged(before, everything_of(training)), (place, wrong)
            else:
                before = everything_of(training)
    assert refused > 20
    for content in (b"[" * 100_000, b"\xff\xfe", b"", b"null", b'{"model": 3}', b'{"model": {}}'):
        forged(path, name, content)
        with pytest.raises(ProbeError):
            training.manager.load_checkpoint(path)
        assert unchanged(before, everything_of(training))


def test_a_damaged_scheduler_or_generator_state_leaves_the_model_untouched(saved):
    path, training = saved
    before = everything_of(training)
    for name in ("extra/lr_scheduler.safetensors", "extra/rng_rank_00000.safetensors"):
        content = (path / name).read_bytes()
        forged(path, name, content[:20])
        with pytest.raises(SerializationError):
            training.manager.load_checkpoint(path)
        assert unchanged(before, everything_of(training))
        forged(path, name, content)
