"""What the driver tells of a real GPU and its processes, beside what torch says of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from probe.devices import Gpus
from probe.jupyter.holders import Holders

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]

MIB = 1024**2

HOLD = "import sys, torch; held = torch.ones(700 * 2**20, dtype=torch.uint8, device='cuda'); print(1); input()"


def test_what_is_used_and_by_which_process_is_what_the_driver_counts():
    library = pytest.importorskip("pynvml", reason="needs nvidia-ml-py")
    asked = Gpus()
    before = asked.read()
    assert before, asked.why
    assert len([one for one in before if not one.mig]) in (0, torch.cuda.device_count())
    with subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline().strip() == b"1"
        found = asked.read()
        library.nvmlInit()
        for one in found:
            if one.mig:
                continue
            handle = library.nvmlDeviceGetHandleByIndex(int(one.number))
            memory = library.nvmlDeviceGetMemoryInfo(handle, library.nvmlMemory_v2)
            assert one.total_bytes == memory.total
            assert one.used_bytes == pytest.approx(memory.used, abs=64 * MIB)
        grown = [after.used_bytes - first.used_bytes for first, after in zip(before, found, strict=True)]
        assert max(grown) >= 700 * MIB
        listed = {process.pid: process.used_bytes for one in found for process in one.processes or ()}
        if child.pid in listed and listed[child.pid] is not None:  # not in a container with ids of its own
            assert listed[child.pid] >= 700 * MIB
            kernel = {"id": "k", "pid": os.getpid(), "name": "python3", "state": "idle", "last": "", "sessions": []}
            (holder,) = Holders([kernel], 1, {}).on_gpu([(child.pid, listed[child.pid])])
            assert holder["what"] == "kernel"
        child.kill()
