"""Lightning on a GPU, under observation: nothing of ours waits, and no bit and no peak of theirs differs.

``make test-trl``'s environment has what it needs, with a torch for CUDA.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
import torch

import probe
from probe import frameworks
from probe.adapters.seams import ToldCall
from tests.frameworks import test_lightning as small
from tests.gpu.waiting_is_an_error import nobody_waits

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
    pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="needs Lightning (make test-trl)"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Whatever of the adapter waits for the device raises, which is an incident; how often it was looked at."""
    seen = [0]
    for name in ("__enter__", "__exit__"):
        monkeypatch.setattr(ToldCall, name, _watched(getattr(ToldCall, name), seen))
    yield seen
    for one in frameworks.attached():
        one.detach()


def _watched(method, seen):
    def run(*args):
        seen[0] += 1
        with nobody_waits():
            return method(*args)

    return run


def trained() -> tuple[dict[str, torch.Tensor], int, object]:
    """Weights, torch's own peak, and the module."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    made = small.fit(accelerator="gpu")
    return made.state_dict(), torch.cuda.max_memory_allocated(), made


def test_6_recorded_is_received_and_weights_and_peaks_stay_what_they_were(tmp_path, watched):
    trained()  # what the device's libraries take once is taken
    first, second = trained(), trained()
    small.same(first[0], second[0])
    probe.attach("lightning")
    with probe.start("lightning", run_dir=tmp_path / "run"):
        weights, peak, made = trained()
    small.same(first[0], weights)
    assert peak == first[1] == second[1]
    assert watched[0] > 10
    run = probe.open(tmp_path / "run")
    small.recorded_is_received(run, made)
    steps = run.memory[(run.memory["kind"] == "step") & (run.memory["edge"] == "leave")]
    assert steps["peak_allocated_bytes"].max() <= peak
    assert set(steps["source"]) == {"cuda"}
