"""GPUMemoryLogger: its lines, on every kind of function, and never in the trainer's way."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import subprocess
import sys

import pytest
import torch.distributed

from probe.core import memory_logger
from probe.core.memory_logger import GPUMemoryLogger, log_gpu_memory_usage
from probe.devices import Counters, CpuDevice
from probe.hooks import Listener, current_scope, subscribe
from probe.testing import FakeDevice

GIB = 1024**3


@pytest.fixture
def device(monkeypatch):
    fake = FakeDevice(total_bytes=80 * GIB, segment_bytes=GIB, non_torch_bytes=GIB)
    monkeypatch.setattr(memory_logger, "_device", lambda: fake)
    monkeypatch.delenv("RANK", raising=False)
    return fake


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.DEBUG, "probe.core.memory_logger")
    return _Lines(caplog)


class _Lines:
    def __init__(self, caplog):
        self.caplog = caplog

    def __call__(self):
        return [record.getMessage() for record in self.caplog.records if record.name.startswith("probe")]

    def heads(self):
        return [line.split(",")[0] for line in self()]


def test_the_documented_lines(device, lines):
    @GPUMemoryLogger(role="actor")
    def update_actor(size):
        held = device.allocate(size)
        device.allocate(2 * GIB).free()
        return held

    held = update_actor(3 * GIB // 2)
    assert lines() == [
        (
            "[actor] Before update_actor, memory allocated (GB): 0.00, memory reserved (GB): 0.00, "
            "device memory used/total (GB): 1.00/80.00, peak memory allocated (GB): 0.00"
        ),
        (
            "[actor] After update_actor, memory allocated (GB): 1.50, memory reserved (GB): 4.00, "
            "device memory used/total (GB): 5.00/80.00, peak memory allocated (GB): 3.50"
        ),
    ]
    held.free()


def test_an_exception_passes_and_the_line_after_it_is_there(device, lines):
    @GPUMemoryLogger(role="actor")
    def too_much():
        device.allocate(70 * GIB).free()
        device.allocate(90 * GIB)

    with pytest.raises(MemoryError):
        too_much()
    assert lines.heads() == ["[actor] Before too_much", "[actor] After too_much"]
    assert lines()[1].endswith("peak memory allocated (GB): 70.00")


def test_methods_coroutines_and_generators(device, lines):
    class Worker:
        """A worker."""

        @GPUMemoryLogger(role="ref")
        def method(self):
            """Doc."""
            return current_scope().role

        @GPUMemoryLogger(role="ref")
        async def coroutine(self):
            await asyncio.sleep(0)
            return current_scope().role

        @GPUMemoryLogger(role="ref")
        def generator(self):
            yield current_scope().role

    worker = Worker()
    assert worker.method() == asyncio.run(worker.coroutine()) == next(iter(list(worker.generator()))) == "ref"
    names = ("method", "coroutine", "generator")
    assert lines.heads() == [f"[ref] {when} {name}" for name in names for when in ("Before", "After")]
    assert (Worker.method.__name__, Worker.method.__doc__) == ("method", "Doc.")
    assert inspect.iscoroutinefunction(Worker.coroutine)


def test_attributes_of_other_decorators_are_kept(device):
    def function():
        return 1

    function.magic = {"dispatch_mode": 3}
    wrapped = GPUMemoryLogger(role="actor")(function)
    assert wrapped.magic is function.magic
    assert wrapped.__wrapped__ is function


def test_as_a_block(device, lines):
    with GPUMemoryLogger(role="actor"):
        assert current_scope().role == "actor"
    assert lines.heads() == ["[actor] Before actor", "[actor] After actor"]


def test_it_is_a_scope_that_a_session_hears(device):
    heard = []

    class Heard(Listener):
        def leave(self, event, state):
            heard.append((event.scope.kind, event.scope.name, event.scope.role, event.scope.phase))

    @GPUMemoryLogger(role="critic")
    def compute_values():
        pass

    with subscribe(Heard(), "scope"):
        compute_values()
    assert heard == [("watch", "compute_values", "critic", "compute_values")]


def test_nothing_is_read_when_nobody_logs(device, monkeypatch):
    monkeypatch.setattr(device, "read", lambda **_: pytest.fail("read though the level is off"))
    logger = logging.getLogger("probe.test.quiet")
    logger.setLevel(logging.INFO)
    assert GPUMemoryLogger(role="actor", logger=logger)(lambda: 7)() == 7
    log_gpu_memory_usage("head", logger=logger)


def test_another_logger_and_level(device, caplog):
    logger = logging.getLogger("probe.test.trainer")
    with caplog.at_level(logging.INFO, logger.name):
        GPUMemoryLogger("actor", logger, logging.INFO)(lambda: None)()
    assert {(record.name, record.levelno) for record in caplog.records} == {(logger.name, logging.INFO)}


def test_the_rank_is_asked_for_at_each_call(device, lines, monkeypatch):
    @GPUMemoryLogger(role="actor")
    def work():
        pass

    @GPUMemoryLogger(role="all", log_only_rank_0=False)
    def everywhere():
        pass

    monkeypatch.setenv("RANK", "1")
    work()
    everywhere()
    assert lines.heads() == ["[all] Before everywhere", "[all] After everywhere"]
    monkeypatch.setenv("RANK", "0")
    work()
    assert len(lines()) == 4
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 3)
    work()
    assert len(lines()) == 4
    log_gpu_memory_usage("rank 3", rank=3)
    log_gpu_memory_usage("rank 0")
    log_gpu_memory_usage("any rank", rank=None)
    assert lines.heads()[4:] == ["rank 3", "any rank"]


def test_log_gpu_memory_usage(device, lines):
    device.allocate(GIB)
    log_gpu_memory_usage("After init")
    assert lines() == [
        (
            "After init, memory allocated (GB): 1.00, memory reserved (GB): 1.00, "
            "device memory used/total (GB): 2.00/80.00, peak memory allocated (GB): 1.00"
        )
    ]


def test_a_device_nobody_uses_yet_is_unknown(device, lines):
    device.in_use = False
    log_gpu_memory_usage("Start")
    assert "memory allocated (GB): unknown" in lines()[0]
    assert "used/total (GB): unknown/unknown" in lines()[0]


def test_a_device_in_an_error_state_doesnt_hide_the_trainers_exception(device, lines, monkeypatch):
    def read(**_) -> Counters:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(device, "read", read)

    @GPUMemoryLogger(role="actor")
    def fails():
        raise OSError("the trainer's own")

    with pytest.raises(OSError, match="own"):
        fails()
    assert lines() == ["[actor] Before fails, memory unknown", "[actor] After fails, memory unknown"]


def test_without_an_accelerator_the_lines_say_resident_set(lines, monkeypatch):
    monkeypatch.setattr(memory_logger, "_device", CpuDevice)
    log_gpu_memory_usage("Start")
    number = r"\d+\.\d\d"
    assert re.fullmatch(
        rf"Start, process RSS \(GB\): {number}, machine memory used/total \(GB\): {number}/{number}, "
        rf"peak RSS \(GB\): {number}",
        lines()[0],
    )


def test_importing_it_loads_no_torch():
    code = "import sys, probe.core.memory_logger; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
