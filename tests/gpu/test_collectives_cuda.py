"""13: PyTorch's flight recorder of NCCL's groups is read without waiting for the device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from probe.runs.collectives import waited_in

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]

CYCLES = 4_000_000_000  # seconds on any GPU


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("nccl", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_13_the_collective_that_waits_behind_other_work_is_named_while_it_does() -> None:
    given = torch.ones(8, 3, device="cuda")
    dist.all_reduce(given)
    torch.cuda.synchronize()
    work = torch.cuda.Event()
    torch.cuda._sleep(CYCLES)
    work.record()
    dist.all_reduce(given)
    found = waited_in()
    at_work = not work.query()
    torch.cuda.synchronize()
    assert at_work  # the device was asked nothing that it would have had to come to first
    assert found is not None
    assert found.name == "nccl:all_reduce"
    assert (found.group, found.number, found.sizes) == ("default_pg", 2, "8x3")
    assert waited_in() is None
