"""Real ranks over gloo: bitwise continuation, another number of ranks, crashes in the middle, damaged files."""

from __future__ import annotations

import json
import signal

import pytest
import torch
from safetensors.torch import load_file

from probe.core.checkpoint import FSDPCheckpointManager, find_latest_ckpt_path
from probe.core.checkpoint.shards import load_shards, read_chunks
from tests.core.checkpoint import checkpoint_ranks
from tests.ranks import ended_ranks

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]

KINDS = ("fsdp2", "fsdp1", "fsdp1_flat")


def on_ranks(scenario, world, folder):
    """Run a scenario of checkpoint_ranks.py; what each rank told (None: it was killed), and how each ended."""
    calls = [(scenario, rank, world, folder) for rank in range(world)]
    codes, output = ended_ranks(checkpoint_ranks.main, calls, folder)
    files = [folder / f"{scenario}_{rank}.json" for rank in range(world)]
    told = [json.loads(path.read_text()) if path.exists() else None for path in files]
    return told, codes, output


def tensors_of(checkpoint):
    chunks = read_chunks(checkpoint / "shards")
    made = {n: torch.empty(one.size, dtype=one.properties.dtype) for n, one in chunks.state_dict_metadata.items()}
    load_shards(made, checkpoint / "shards", chunks, None)
    return made


def assert_equal(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    told, codes, output = on_ranks("train", 2, folder)
    assert codes == [0, 0], output
    return folder, told, output


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_training_gives_the_same_losses_bit_for_bit(trained, kind):
    for rank, told in enumerate(trained[1]):
        one = told[kind]
        assert len(one["reference"]) == 4
        assert one["continued"] == one["reference"] == one["again"], rank
    assert trained[1][0][kind]["reference"] != trained[1][1][kind]["reference"], "each rank has random state of its own"


@pytest.mark.parametrize("kind", KINDS)
def test_saving_before_the_first_step_changes_nothing(trained, kind):
    folder, told, _ = trained
    assert [one[kind]["untouched"] for one in told] == [0, 0]
    saved = tensors_of(folder / kind / "global_step_0")
    assert not [name for name in saved if name.startswith("optimizer.")]
    assert told[0][kind]["from_zero"] == told[0]["fsdp2"]["from_zero"]


def test_all_kinds_of_wrapping_save_the_same(trained):
    folder = trained[0]
    reference = tensors_of(folder / "fsdp2" / "global_step_3")
    assert "optimizer.state.first.weight.exp_avg" in reference
    assert reference["optimizer.state.first.weight.step"] == 3
    for kind in KINDS:
        saved = folder / kind / "global_step_3"
        assert_equal(tensors_of(saved), reference)
        full = load_file(saved / "huggingface" / "model.safetensors")
        assert_equal(full, {n.removeprefix("model."): t for n, t in reference.items() if n.startswith("model.")})


def test_torch_warns_of_nothing_through_us(trained):
    assert "Warning" not in trained[2]


def test_three_ranks_and_one_load_what_two_have_saved(trained):
    folder, told, _ = trained
    reference = tensors_of(folder / "fsdp2" / "global_step_3")
    resumed, codes, output = on_ranks("resume", 3, folder)
    assert codes == [0, 0, 0], output
    assert "saved by 2 ranks, loaded by 3" in output
    for kind in KINDS:
        for source in ("fsdp2", "fsdp1"):
            assert_equal(tensors_of(folder / f"{kind}_of_{source}"), reference)
            # The first rank draws the numbers that it drew before, so that its first loss is the same.
            losses = resumed[0][f"{kind}_of_{source}"]
            assert losses[0] == told[0]["fsdp2"]["reference"][0]
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    torch.set_num_threads(1)  # as the ranks did: the last bit depends on it
    try:
        alone = checkpoint_ranks.Training("plain", seed=5)
        alone.manager.load_checkpoint(folder / "fsdp1" / "global_step_3")
        assert alone.steps(1)[0] == told[0]["fsdp2"]["reference"][0]
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(state)
    assert alone.scheduler.last_epoch == 4


def test_one_rank_s_failure_stops_all_and_costs_nothing(trained):
    folder, told, _ = trained
    first, second = (one["failures"] for one in told)
    for what in ("exception", "overwrite"):
        assert first[what] == ["PeerError", "rank 1: ZeroDivisionError: on purpose"]
        assert second[what] == ["ZeroDivisionError", "on purpose"]
    assert first["disk"][0] == "PeerError"
    assert second["disk"][0] == "OSError"
    assert "File too large" in first["disk"][1]
    assert "File too large" in second["disk"][1]
    for one in (first, second):
        assert one["left"] == ["global_step_0", "global_step_3", "latest_checkpointed_iteration.txt"]
        assert one["latest"] == str(folder / "fsdp2" / "global_step_3")
        assert one["loads"] is None


def test_a_damaged_or_missing_shard_is_named_on_every_rank(trained):
    for one in (told["failures"] for told in trained[1]):
        kind, text = one["corrupt"]
        assert kind == "InputError"
        assert "shards/__1_0.distcp is corrupted" in text
        kind, text = one["missing"]
        assert kind == "InputError"
        assert "shards/__1_0.distcp is missing. Expected " in text
        expected, found = text.split("; found ")
        assert "shards/__1_0.distcp, shards/chunks.json" in expected
        assert "shards/__0_0.distcp, shards/chunks.json" in found


def test_a_rank_killed_in_the_middle_of_a_save_leaves_the_previous_one(tmp_path):
    told, codes, _ = on_ranks("killed", 2, tmp_path)
    assert codes[1] == -signal.SIGKILL
    assert told[0] is not None, "the other rank hangs or dies"
    assert told[0][0] == "RuntimeError"
    root = tmp_path / "killed"
    assert (root / "global_step_2.incomplete").is_dir()
    assert find_latest_ckpt_path(root) == str(root / "global_step_1")
    model = checkpoint_ranks.Tiny(seed=9)
    manager = FSDPCheckpointManager(model)
    state = torch.get_rng_state()
    manager.load_checkpoint(find_latest_ckpt_path(root))
    torch.set_rng_state(state)
    assert torch.equal(model.first.weight, tensors_of(root / "global_step_1")["model.first.weight"])
    # The next save of that step clears what was left.
    manager.save_checkpoint(root / "global_step_2", global_step=2)
    assert sorted(path.name for path in root.iterdir()) == [
        "global_step_1",
        "global_step_2",
        "latest_checkpointed_iteration.txt",
    ]
