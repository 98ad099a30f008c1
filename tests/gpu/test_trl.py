"""TRL and Transformers on a GPU, under observation: nothing of ours waits, peaks of theirs stay what they were.

``make test-trl``'s environment has what it needs, with a torch for CUDA.
"""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

import probe
from probe.adapters.lengths import Arrivals, rows_of
from tests.frameworks import small_trl
from tests.gpu.waiting_is_an_error import nobody_waits

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
    pytest.mark.filterwarnings("ignore"),
]
needs_trl = pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="needs TRL (make test-trl)")


def batches() -> list[dict[str, Any]]:
    ids = torch.arange(12, device="cuda").reshape(2, 6)
    mask = torch.tensor([[1, 1, 1, 0, 0, 0], [1] * 6], device="cuda")
    flat = {"input_ids": ids.reshape(1, 12), "labels": ids.reshape(1, 12)}
    return [
        {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)},
        {"prompt_ids": ids, "prompt_mask": mask, "completion_ids": ids, "completion_mask": mask},
        {**flat, "cu_seq_lens_q": torch.tensor([0, 5, 12], device="cuda", dtype=torch.int32)},
    ]


def test_6_lengths_come_from_the_device_and_nobody_waits():
    made, arrivals = batches(), Arrivals()
    said: list[Any] = []
    arrivals.read(rows_of(made[0]), lambda *told: None)  # the first pinned memory is had from the driver
    torch.cuda.synchronize()
    arrivals.deliver()
    with nobody_waits():
        for one in made:
            arrivals.read(rows_of(one), lambda *told: said.append(told))
        arrivals.deliver()
    torch.cuda.synchronize()
    arrivals.deliver()
    assert said == [([3, 6], [2, 5]), ([6, 12], [3, 6]), ([5, 7], [4, 7])]
    assert len(arrivals) == 0


def test_6_reading_lengths_keeps_no_memory_of_the_device():
    made, arrivals = batches(), Arrivals()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for one in made:
        arrivals.read(rows_of(one), lambda *told: None)
    assert torch.cuda.memory_allocated() == before
    torch.cuda.synchronize()
    arrivals.deliver()


def trained(kind: str, base: Any = None) -> Any:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    folder = Path(tempfile.mkdtemp())
    made = small_trl.trainer(kind, folder / "out", base, full_determinism=True, skip_memory_metrics=False)
    made.train()
    return made


def peaks(made: Any) -> dict[str, int]:
    """What Transformers' own tracker says of the device's memory."""
    last = made.state.log_history[-1]
    return {name: value for name, value in last.items() if name.startswith("train_mem_gpu")}


@needs_trl
@pytest.mark.parametrize("kind", small_trl.KINDS)
def test_6_recorded_is_received_and_their_peaks_stay_what_they_were(kind, tmp_path):
    trained(kind)  # what the device's libraries take once is taken
    first, second = (trained(kind) for _ in range(2))
    small_trl.same(small_trl.outcome(first), small_trl.outcome(second))
    notes: list[dict[str, Any]] = []
    attached = probe.attach("trl")
    try:
        with probe.start("trl", run_dir=tmp_path / "run"):
            made = trained(kind)
            noted = trained(kind, small_trl.witness(notes))  # reading its inputs, the witness waits for the device
    finally:
        for one in attached:
            one.detach()
    small_trl.same(small_trl.outcome(first), small_trl.outcome(made))
    small_trl.same(small_trl.outcome(first), small_trl.outcome(noted))
    assert peaks(first)
    assert peaks(made) == peaks(first) == peaks(second)
    run = probe.open(tmp_path / "run")
    rows = run.table("micro_batches").sort_values("time_ns")
    assert [list(one) for one in rows["lengths"]] == 2 * [one["lengths"] for one in notes]
    assert run.incidents.empty
