"""The memory recorder on a real CUDA device: what others read of torch doesn't change, and nothing waits."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time

import pytest
import torch

from probe.devices import CudaDevice
from probe.hooks import Listener, scope, subscribe
from probe.recorders.host_memory import pinned_by_torch
from probe.recorders.memory import MemoryRecorder
from probe.records import Deferred

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device"),
]

MIB = 1024**2


def test_what_torch_has_pinned_is_told():
    held = torch.empty(3 * MIB, dtype=torch.uint8, pin_memory=True)
    has, active = pinned_by_torch()
    assert has >= active >= held.numel()
    assert has == torch.cuda.host_memory_stats()["allocated_bytes.current"]
    del held
    assert pinned_by_torch()[1] < active


class Recording(Listener):
    def __init__(self, recorder):
        self.recorder, self.items, self.errors = recorder, [], []

    def enter(self, event):
        return self.recorder.enter(event)

    def leave(self, event, state):
        item = self.recorder.leave(event, state)
        assert isinstance(item, Deferred)
        self.items.append(item)

    def failed(self, event, error, count, switched_off):
        self.errors.append(error)

    def leaves(self):
        assert self.errors == []
        rows = [row for item in self.items for row in item.build()]
        self.items.clear()
        return {row.name: row for row in rows if row.edge == "leave"}


@contextlib.contextmanager
def recording(peaks="nested"):
    recorder = MemoryRecorder("cuda", peaks)
    heard = Recording(recorder)
    try:
        with subscribe(heard, *recorder.points):
            yield heard
    finally:
        recorder.close()


@pytest.fixture(autouse=True)
def _fresh():
    torch.cuda.init()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def take(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def spike(mib):
    take(mib)


def test_detecting_and_watching_make_no_context():
    code = (
        "from probe.devices import detect; from probe.recorders.memory import MemoryRecorder; import torch;"
        "d = detect(); assert d.source == 'cuda', d; r = MemoryRecorder(d); r.sample(); d.description;"
        "assert not torch.cuda.is_initialized()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_nested_peaks_are_exact():
    base = torch.cuda.memory_allocated()
    with recording() as heard:
        with scope("phase", "outer"):
            spike(64)
            with scope("phase", "small"):
                spike(8)
            with scope("phase", "large"):
                spike(128)
        rows = heard.leaves()
    assert {name: row.peak_allocated_bytes - base for name, row in rows.items()} == {
        "outer": 128 * MIB,
        "small": 8 * MIB,
        "large": 128 * MIB,
    }
    assert {row.peak_kind for row in rows.values()} == {"exact"}
    assert {row.device for row in rows.values()} == {f"cuda:{torch.cuda.current_device()}"}
    assert all(row.peak_reserved_bytes >= row.peak_allocated_bytes for row in rows.values())


def _peaks(statistics):
    return {key: value for key, value in statistics.items() if key.endswith(".peak")}


def _trajectory(in_scope):
    """What a trainer reads at many moments of a fixed series of allocations."""
    seen = []

    def read():
        seen.append((torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()))
        seen.append(_peaks(torch.cuda.memory_stats()))
        if hasattr(torch.accelerator, "memory_stats"):
            seen.append(_peaks(torch.accelerator.memory_stats()))

    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for size in (50, 20, 90, 10):
        with in_scope("phase", "outer"):
            spike(size)
            read()
            with in_scope("phase", "inner"):
                held = take(size // 2)
                read()
                if size == 90:
                    torch.cuda.reset_peak_memory_stats()
                    read()
            del held
        read()
    if hasattr(torch.accelerator, "reset_peak_memory_stats"):
        torch.accelerator.reset_peak_memory_stats()
    read()
    return seen


@pytest.mark.parametrize("peaks", ["nested", "observe"])
def test_nobody_can_tell_that_the_counters_are_reset(peaks):
    _trajectory(lambda *_: contextlib.nullcontext())  # the first time reserves memory
    expected = _trajectory(lambda *_: contextlib.nullcontext())
    with recording(peaks):
        assert _trajectory(scope) == expected


def test_the_users_reset_inside_a_scope_loses_no_peak():
    base = torch.cuda.memory_allocated()
    with recording() as heard:
        with scope("phase", "outer"):
            spike(64)
            torch.cuda.reset_peak_memory_stats()
            assert torch.cuda.max_memory_allocated() == base
            spike(16)
        assert torch.cuda.max_memory_allocated() == base + 16 * MIB
        assert heard.leaves()["outer"].peak_allocated_bytes == base + 64 * MIB


def test_close_puts_back_exactly_what_was_there():
    names = [name for name in dir(torch._C) if "emoryStats" in name or "PeakStats" in name or "DeviceStats" in name]
    before = {name: getattr(torch._C, name) for name in names}
    with recording(), scope("phase", "one"):
        assert torch._C._cuda_memoryStats is not before["_cuda_memoryStats"]
    assert {name: getattr(torch._C, name) for name in names} == before


def test_observe_touches_nothing():
    original = torch._C._cuda_memoryStats
    base = torch.cuda.memory_allocated()
    with recording("observe") as heard:
        with scope("phase", "first"):
            spike(64)
            assert torch._C._cuda_memoryStats is original
        with scope("phase", "second"):
            spike(8)
        rows = heard.leaves()
    assert (rows["first"].peak_kind, rows["first"].peak_allocated_bytes) == ("exact", base + 64 * MIB)
    assert (rows["second"].peak_kind, rows["second"].peak_allocated_bytes) == ("at_most", base + 64 * MIB)


def test_device_time_is_measured_without_waiting(monkeypatch):
    cycles = 200_000_000  # about a tenth of a second at 2 GHz
    with recording() as heard:
        with scope("phase", "warm"):
            pass
        torch.cuda.synchronize()
        heard.items.clear()
        monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: pytest.fail("probe waits for nothing"))
        monkeypatch.setattr(torch.cuda.Event, "synchronize", lambda *_: pytest.fail("probe waits for nothing"))
        with scope("phase", "sleep"):
            torch.cuda._sleep(cycles)
        item = heard.items[0]
        assert not item.ready()  # the scope was left while the device still works
        monkeypatch.undo()
        torch.cuda.synchronize()
        assert item.ready()
        row = heard.leaves()["sleep"]
    assert row.device_duration_ns > 20_000_000
    assert row.host_duration_ns < row.device_duration_ns


def test_samples_tell_the_whole_device():
    with recording() as heard, scope("phase", "one"):
        held = take(64)
        (row,) = (one for one in heard.recorder.sample() if one.edge == "sample")
    assert row.device_total_bytes == torch.cuda.mem_get_info()[1]
    assert row.device_used_bytes >= row.reserved_bytes >= row.allocated_bytes >= held.numel()
    others = row.other_processes_bytes or 0  # None where the driver doesn't say what is whose
    assert row.reserved_bytes + row.non_torch_bytes + others == row.device_used_bytes
    assert row.process_rss_bytes > 0


def test_a_graph_can_be_captured_while_another_thread_polls():
    import threading

    static = torch.ones(1024, device="cuda")
    warm = torch.cuda.Stream()
    with torch.cuda.stream(warm):
        static * 2
    torch.cuda.synchronize()
    with recording() as heard:
        with scope("phase", "before"):
            torch.cuda._sleep(200_000_000)
        item, stop, polls = heard.items[0], threading.Event(), []

        def poll():
            while not stop.is_set():
                item.ready()
                heard.recorder.sample()
                polls.append(1)
                time.sleep(0.001)

        thread = threading.Thread(target=poll)
        thread.start()
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph), scope("phase", "captured"):
                result = static * 2
                time.sleep(0.05)
        finally:
            stop.set()
            thread.join()
        graph.replay()
        torch.cuda.synchronize()
        assert polls
        assert torch.equal(result, static * 2)
        rows = heard.leaves()
    assert rows["before"].device_duration_ns > 0
    assert rows["captured"].device_duration_ns is None


def test_events_are_used_again():
    device = CudaDevice()
    device.bind()
    begin, end = device.event(), device.event()
    torch.cuda.synchronize()
    assert device.done(end)
    assert device.elapsed_ns(begin, end) >= 0
    device.recycle(begin, end)
    assert {id(device.event()), id(device.event())} == {id(begin), id(end)}


def test_retries_of_the_allocator_are_those_that_torch_counts():
    device = CudaDevice()
    device.bind()
    held = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    assert device.read().alloc_retries == torch.cuda.memory_stats()["num_alloc_retries"] >= 0
    del held
