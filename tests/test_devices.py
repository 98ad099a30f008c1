"""Devices: what they read, and that reading them neither makes a context nor waits."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
import torch

from probe.devices import (
    SAME_NS,
    UNKNOWN,
    AcceleratorDevice,
    Counters,
    CpuDevice,
    CudaDevice,
    Device,
    Nvml,
    counters_of,
    cpu,
    detect,
    process_rss_bytes,
)
from probe.devices import cuda as cuda_device
from probe.errors import InputError
from probe.recorders.memory import MemoryRecorder
from probe.testing import FakeClock, FakeDevice


def test_detect_returns_a_device_as_it_is():
    fake = FakeDevice()
    assert detect(fake) is fake


def test_detect_the_processor():
    for given in ("cpu", torch.device("cpu")):
        device = detect(given)
        assert isinstance(device, CpuDevice)
        assert (device.name, device.source) == ("cpu", "process_rss")


def test_detect_without_a_wish():
    found = detect()
    assert isinstance(found, Device)
    if not torch.cuda.is_available() and not torch.accelerator.is_available():
        assert isinstance(found, CpuDevice)


@pytest.mark.parametrize("given", ["nowhere", "cpu:x", 3.5, "cuda:99", "meta"])
def test_detect_refuses_what_isnt_there(given):
    with pytest.raises(InputError, match="device: got"):
        detect(given)


@pytest.mark.slow
def test_detecting_initialises_nothing():
    code = (
        "from probe.devices import detect; import torch; d = detect(); d.read(whole=True); d.bind();"
        "d.description; d.event(); d.statistics(); assert not torch.cuda.is_initialized()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_importing_devices_loads_no_torch():
    code = "import sys, probe.devices; assert 'torch' not in sys.modules and 'psutil' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


# ---------------------------------------------------------------------------------------------- the processor


def test_resident_set_is_what_the_system_says():
    assert process_rss_bytes() == pytest.approx(psutil.Process().memory_info().rss, rel=0.02)


def test_resident_set_grows_and_the_mark_stays():
    device = CpuDevice()
    before = device.read()
    filled = bytearray(b"x") * (48 * 1024**2)
    during = device.read()
    del filled
    after = device.read(whole=True)
    assert during.allocated_bytes - before.allocated_bytes > 40 * 1024**2
    assert during.peak_allocated_bytes >= during.allocated_bytes
    assert after.peak_allocated_bytes >= during.allocated_bytes - 2**20
    assert (after.reserved_bytes, after.peak_reserved_bytes) == (None, None)
    assert 0 < after.used_bytes < after.total_bytes == psutil.virtual_memory().total


def test_e_ends_of_scopes_that_touch_share_a_reading(monkeypatch):
    now, read = [10**9], []
    monkeypatch.setattr(cpu, "_clock", lambda: now[0])
    monkeypatch.setattr(cpu, "process_rss_bytes", lambda: read.append(now[0]) or 10**8 + len(read))
    device = CpuDevice()
    first = device.read()
    now[0] += SAME_NS - 1
    assert device.read() is first
    now[0] += 1
    assert device.read() != first  # not 20 µs after the last one that asked, but after the reading itself
    assert device.read(whole=True).total_bytes is not None
    assert len(read) == 3


def test_d_resetting_the_high_water_mark_would_lower_it_for_everybody():
    """Why probe/devices/cpu.py and docs/design/memory_peaks.md leave it alone."""
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("this system has no such file")
    # A program begins with the mark of the one that started it.
    code = (
        "import resource; mark = lambda: resource.getrusage(0).ru_maxrss; filled = b'x' * (mark() * 1024 + 2**27);"
        "del filled; before = mark(); open('/proc/self/clear_refs', 'w').write('5'); print(before - mark())"
    )
    told = subprocess.run([sys.executable, "-c", code], check=True, timeout=300, capture_output=True, text=True)
    assert int(told.stdout) > 100_000  # KiB


def test_without_proc_psutil_is_asked(monkeypatch):
    monkeypatch.setattr(cpu, "_ON_LINUX", False)
    assert process_rss_bytes() == pytest.approx(psutil.Process().memory_info().rss, rel=0.02)


def test_the_processor_has_no_events_and_no_counters_to_reset():
    device = CpuDevice()
    assert (device.event(), device.statistics(), device.elapsed_ns(1, 2)) == (None, (), None)
    assert device.bind()
    assert device.bound
    assert device.description
    assert repr(device) == "CpuDevice('cpu')"


# ------------------------------------------------------------------------------------------------------- cuda


class FakeCudaEvent:
    def __init__(self, cuda, enable_timing):
        assert enable_timing
        self.cuda, self.stream, self.finished, self.at_ms = cuda, None, False, 0.0
        cuda.made += 1

    def record(self, stream):
        self.stream, self.finished = stream, False

    def query(self):
        if self.cuda.broken:
            raise RuntimeError("CUDA error: device-side assert triggered")
        return self.finished

    def elapsed_time(self, other):
        if not (self.finished and other.finished):
            raise RuntimeError("not ready")
        return other.at_ms - self.at_ms

    def synchronize(self):
        raise AssertionError("probe waits for nothing")


class FakeCuda:
    """As much of ``torch.cuda`` as a device asks; anything that would make a context is an error."""

    def __init__(self):
        self.used = self.capturing = self.broken = False
        self.made = 0

    def is_initialized(self):
        return self.used

    def _must_be_used(self):
        assert self.used, "this call would create a context"

    def current_device(self):
        self._must_be_used()
        return 1

    def get_device_name(self, index):
        self._must_be_used()
        return f"Fake H{index}"

    def memory_stats_as_nested_dict(self, index):
        self._must_be_used()
        return {
            "allocated_bytes": {"all": {"current": 10 * index, "peak": 30}},
            "reserved_bytes": {"all": {"current": 20, "peak": 40}},
        }

    def mem_get_info(self, index):
        self._must_be_used()
        if self.broken:
            raise RuntimeError("CUDA error: device-side assert triggered")
        return 300, 1000

    def is_current_stream_capturing(self):
        self._must_be_used()
        return self.capturing

    def current_stream(self, index):
        self._must_be_used()
        return f"stream of {index}"

    def Event(self, enable_timing):
        return FakeCudaEvent(self, enable_timing)


@pytest.fixture
def cuda(monkeypatch):
    """A CudaDevice over a fake torch.cuda; the driver's capture mode is a fake, too."""
    fake, modes = FakeCuda(), []

    def exchange(reference):
        mode = reference._obj
        modes.append(mode.value)
        mode.value = 0
        return 0

    monkeypatch.setattr(cuda_device, "_exchange_mode", lambda: exchange)
    device = CudaDevice()
    core = SimpleNamespace(_cuda_memoryStats=None, _accelerator_getDeviceStats=None)
    device._torch = SimpleNamespace(cuda=fake, _C=core)
    return SimpleNamespace(cuda=fake, device=device, modes=modes)


def test_cuda_that_nobody_uses_yet_is_unknown(cuda):
    device = cuda.device
    assert not device.bind()
    assert not device.bound
    assert device.read(whole=True) == UNKNOWN
    assert (device.event(), device.statistics()) == (None, ())
    assert (device.name, device.description) == ("cuda", "CUDA device, not in use yet")


def test_cuda_takes_the_current_device_once_it_is_in_use(cuda):
    cuda.cuda.used = True
    device = cuda.device
    assert device.bind()
    assert (device.name, device.description) == ("cuda:1", "Fake H1")
    assert device.read()[:6] == (10, 20, 30, 40, None, None)
    assert cuda.modes == []
    assert device.read(whole=True)[:6] == (10, 20, 30, 40, 700, 1000)
    assert [(one.read, one.reset, one.device_index) for one in device.statistics()] == [
        ("_cuda_memoryStats", "_cuda_resetPeakMemoryStats", 1),
        ("_accelerator_getDeviceStats", "_accelerator_resetPeakStats", 1),
    ]


def test_a_forked_child_has_nothing_to_read(cuda):
    cuda.cuda.used = True
    cuda.device.bind()
    cuda.cuda.used = False  # as torch says in a child that was forked
    assert not cuda.device.bind()
    assert cuda.device.read() == UNKNOWN


def test_cuda_events_are_queried_in_relaxed_mode_and_used_again(cuda):
    cuda.cuda.used = True
    device = cuda.device
    device.bind()
    begin, end = device.event(), device.event()
    assert begin.stream == "stream of 1"
    assert not device.done(end)
    assert device.elapsed_ns(begin, end) is None
    begin.finished = end.finished = True
    end.at_ms = 0.0125
    assert device.done(end)
    assert device.elapsed_ns(begin, end) == 12_500
    assert cuda.modes == [2, 0] * 4
    device.recycle(begin, end)
    assert {device.event(), device.event()} == {begin, end}
    assert cuda.cuda.made == 2


def test_no_event_enters_a_graph_that_is_being_captured(cuda):
    cuda.cuda.used = cuda.cuda.capturing = True
    cuda.device.bind()
    assert cuda.device.event() is None


def test_a_device_in_an_error_state_is_unknown_and_raises_nothing(cuda):
    cuda.cuda.used = True
    device = cuda.device
    device.bind()
    begin = device.event()
    cuda.cuda.broken = True
    assert device.done(begin)
    assert device.elapsed_ns(begin, begin) is None
    assert device.read(whole=True)[4:6] == (None, None)


def test_without_the_drivers_help_nothing_is_asked_that_could_break_a_capture(cuda, monkeypatch):
    monkeypatch.setattr(cuda_device, "_exchange_mode", lambda: None)
    cuda.cuda.used = True
    cuda.device.bind()
    assert cuda.device.event() is None
    assert cuda.device.read(whole=True)[:6] == (10, 20, 30, 40, None, None)


# ----------------------------------------------------------------------------------------- other accelerators


class FakeAccelerator:
    def __init__(self):
        self.used, self.tells = False, True

    def memory_stats(self, index):
        return (
            {
                "allocated_bytes.all.current": 1,
                "reserved_bytes.all.current": 2,
                "allocated_bytes.all.peak": 3,
                "reserved_bytes.all.peak": 4,
            }
            if self.used
            else {}
        )

    def current_device_index(self):
        assert self.used
        return 2

    def get_memory_info(self, index):
        if not self.tells:
            raise RuntimeError("not supported")
        return 30, 100


@pytest.mark.parametrize(("kind", "pairs"), [("xpu", 2), ("npu", 0)])
def test_other_accelerators(kind, pairs):
    accelerator = FakeAccelerator()
    device = AcceleratorDevice(kind)
    core = SimpleNamespace(_xpu_memoryStats=None, _accelerator_getDeviceStats=None)
    module = SimpleNamespace(get_device_name=lambda index: f"board {index}")
    device._torch = SimpleNamespace(accelerator=accelerator, _C=core, get_device_module=lambda name: module)
    assert device.read() == UNKNOWN
    assert (device.name, device.bound, device.event()) == (kind, False, None)
    assert device.description == f"{kind} device, not in use yet"
    accelerator.used = True
    assert device.read(whole=True)[:6] == (1, 2, 3, 4, 70, 100)
    assert (device.name, device.description, device.source) == (f"{kind}:2", "board 2", "accelerator")
    assert len(device.statistics()) == pairs
    accelerator.tells = False
    assert device.read(whole=True)[:6] == (1, 2, 3, 4, None, None)


def test_counters_of_nothing_are_unknown():
    assert counters_of({}) == UNKNOWN
    assert counters_of({"num_ooms": 3}) == UNKNOWN


# --------------------------------------------------------------------------------------------------- the fake


def test_the_fake_reserves_like_a_caching_allocator():
    device = FakeDevice(total_bytes=100, segment_bytes=10, non_torch_bytes=20)
    first, second = device.allocate(15), device.allocate(10)
    assert device.read(whole=True)[:6] == (25, 30, 25, 30, 50, 100)
    device.free(first)
    first.free()
    assert device.read()[:2] == (10, 30)
    device.empty_cache()
    assert device.read()[:6] == (10, 10, 25, 30, None, None)
    assert (device.memory_allocated(), device.max_memory_allocated(), device.max_memory_reserved()) == (
        10,
        25,
        30,
    )
    device.reset_peak_memory_stats()
    assert device.max_memory_allocated() == 10
    with pytest.raises(MemoryError, match="80 bytes asked for, 10 of 100 allocated"):
        device.allocate(80)
    assert device.read()[:2] == (10, 10)
    second.free()
    with pytest.raises(InputError, match="size_bytes: got -1"):
        device.allocate(-1)


def test_the_fakes_clock_refuses_to_go_back():
    clock = FakeClock(5)
    clock.advance(2)
    assert clock() == 7
    with pytest.raises(InputError, match="duration_ns: got -1"):
        clock.advance(-1)


# ------------------------------------------------------------------------------------- several processes on a device


class _Library:
    """What probe asks of NVIDIA's library, with two processes on one device."""

    def __init__(self, *, broken: bool = False) -> None:
        self.broken, self.asked = broken, 0

    def nvmlInit(self) -> None:
        self.asked += 1
        if self.broken:
            raise OSError("no driver")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[SimpleNamespace]:
        assert handle == "GPU-1"
        own = SimpleNamespace(pid=11, usedGpuMemory=300)
        return [own, SimpleNamespace(pid=12, usedGpuMemory=500), SimpleNamespace(pid=13, usedGpuMemory=None)]


def test_b_the_driver_tells_processes_on_one_device_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", _Library())
    asked = Nvml()
    assert [asked.used_bytes("GPU-1", pid) for pid in (11, 12, 13, 14)] == [300, 500, None, None]


def test_b_a_driver_that_tells_nothing_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    library = _Library(broken=True)
    monkeypatch.setitem(sys.modules, "pynvml", library)
    asked = Nvml()
    assert [asked.used_bytes("GPU-1", 11) for _ in range(3)] == [None] * 3
    assert library.asked == 1


class _Shared(FakeDevice):
    """A device that another process uses as well."""

    def read(self, *, whole: bool = False) -> Counters:
        found = super().read(whole=whole)
        if not whole or found.used_bytes is None:
            return found
        return found._replace(used_bytes=found.used_bytes + 700, process_used_bytes=found.used_bytes)


def test_b_what_other_processes_use_is_not_called_ours() -> None:
    device = _Shared(non_torch_bytes=200)
    recorder = MemoryRecorder(device)
    held = device.allocate(1_000)
    row = recorder.sample()[-1]
    assert row.device_used_bytes == row.reserved_bytes + 200 + 700
    assert (row.non_torch_bytes, row.other_processes_bytes) == (200, 700)
    device.free(held)
    recorder.close()
