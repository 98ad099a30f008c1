"""A device that tests tell what it holds, and a memory recorder that watches it."""

from __future__ import annotations

import pytest

from probe.hooks import subscribe
from probe.recorders.memory import MemoryRecorder
from probe.testing import FakeDevice
from tests.recorders.recorded_memory import Recording


@pytest.fixture
def device():
    return FakeDevice(total_bytes=10_000, segment_bytes=10, non_torch_bytes=500)


@pytest.fixture
def recording(device):
    recorder = MemoryRecorder(device)
    heard = Recording(recorder)
    with subscribe(heard, *recorder.points):
        yield heard
    recorder.close()
