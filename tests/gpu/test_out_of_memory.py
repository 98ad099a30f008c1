"""A CUDA device that really runs out of memory, in one micro-batch."""

# ruff: noqa: PT012  (what stands around the exception is what is tested)

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

import probe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device"),
]

MIB = 1024**2


def batch() -> dict[str, torch.Tensor]:
    lengths = torch.tensor([9, 9, 60, 9])
    mask = (torch.arange(64)[None] < lengths[:, None]).long()
    return {"attention_mask": mask, "input_ids": mask.clone()}


@pytest.mark.parametrize("snapshot", [False, True])
def test_5_out_of_memory_in_a_micro_batch_is_in_the_row_and_named_first(tmp_path: Path, snapshot: bool) -> None:
    torch.empty(1, device="cuda")
    before = torch.cuda.memory_allocated()
    weights = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1, oom_snapshot=snapshot) as session:
        with session.step(0), probe.phase("generate"):
            cache = torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")
        failed = []
        with pytest.raises(torch.OutOfMemoryError), session.step(1), probe.phase("update", role="actor"):
            for index, part in enumerate(probe.micro_batches(batch(), max_token_len=64)):
                if 60 in part["attention_mask"].sum(-1).tolist():
                    failed.append(index)
                    torch.empty(1 << 50, dtype=torch.uint8, device="cuda")  # a pebibyte
        session.flush()
        run = session.run
        (found,) = run.failures().to_dict("records")
        first = run.findings()[0]
        told = run.post_mortem()
    assert (found["step"], found["phase"], found["micro_batch"]) == (1, "update", failed[0])
    assert found["out_of_memory"]
    assert 60 in found["lengths"]
    assert found["source"] == "cuda"
    assert found["allocated_bytes"] - before == 96 * MIB
    assert found["reserved_bytes"] >= found["allocated_bytes"]
    assert found["device_total_bytes"] == torch.cuda.get_device_properties(0).total_memory
    assert first.name == "out_of_memory"
    assert (first.where.step, first.where.phase, first.where.micro_batch) == (1, "update", failed[0])
    assert told.events[0].memory is not None
    assert "generate" in {one.phase for one in told.events[0].phases}
    del weights, cache
    if not snapshot:
        assert found["snapshot_path"] == ""
        return
    held = pickle.loads(Path(found["snapshot_path"]).read_bytes())
    blocks = [one for segment in held["segments"] for one in segment["blocks"] if one["state"] == "active_allocated"]
    assert sum(one["size"] for one in blocks) - before == 96 * MIB
    assert "step 0, generate" in repr(held)  # the label of what that phase has allocated
    assert not torch._C._cuda_isHistoryEnabled()  # it was begun by the session, and ends with it
