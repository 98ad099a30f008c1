"""What NVIDIA's library tells of the GPUs of a machine, in each of the ways in which it tells less."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from probe.devices import GpuProcess, Gpus, nvml
from tests.nvml import GIB, FakeNvml, NVMLError, NVMLLibraryMismatchError, gpu, process


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a library the installed one. Gives what asks it."""

    def install(library: Any, driver: str = "/nowhere") -> Gpus:
        monkeypatch.setitem(sys.modules, "pynvml", library)
        monkeypatch.setattr(nvml, "_DRIVERS", (driver,))
        return Gpus()

    return install


def test_each_gpu_has_its_memory_and_the_processes_of_all_lists(installed: Any) -> None:
    first = gpu(
        compute=[process(11, 40 * GIB), process(12, 30 * GIB)],
        graphics=[process(11, 40 * GIB), process(13, 5)],
        mps=[process(14, 7)],
    )
    second = gpu(b"Tesla V100", used=0, total=16 * GIB)  # an old package gives bytes
    one, other = installed(FakeNvml(first, second)).read()
    assert (one.number, one.name, one.used_bytes, one.total_bytes) == ("0", "NVIDIA H200", 71 * GIB, 141 * GIB)
    assert one.processes == ((11, 40 * GIB), (12, 30 * GIB), (13, 5), (14, 7))
    assert (other.number, other.name, other.used_bytes, other.processes) == ("1", "Tesla V100", 0, ())
    assert not one.why + other.why
    assert not one.mig


def test_what_the_driver_reserves_is_left_out_where_it_says_so(installed: Any) -> None:
    for v2, expected in ((True, 71 * GIB), (False, 72 * GIB)):
        (one,) = installed(FakeNvml(gpu(), reserved=GIB, v2=v2)).read()
        assert one.used_bytes == expected
        assert one.why == ""
    old = FakeNvml(gpu(), reserved=GIB)
    old.nvmlMemory_v2 = None  # type: ignore[assignment] # a package that has no such version
    assert installed(old).read()[0].used_bytes == 72 * GIB


def test_a_number_that_is_not_available_is_none(installed: Any) -> None:
    told = gpu(compute=[process(11, None), process(12, 5)], graphics=[process(12, None), process(11, None)])
    (one,) = installed(FakeNvml(told)).read()
    assert one.processes == (GpuProcess(11, None), GpuProcess(12, 5))


def test_a_list_that_is_refused_leaves_the_others_and_all_refused_say_why(installed: Any) -> None:
    refused = NVMLError("Insufficient Permissions")
    (one,) = installed(FakeNvml(gpu(compute=[process(11, 5)], graphics=refused, mps=refused))).read()
    assert one.processes == ((11, 5),)
    assert one.why == ""
    older = NVMLLibraryMismatchError("does not match")
    (one,) = installed(FakeNvml(gpu(compute=older, graphics=older, mps=older))).read()
    assert (one.processes, one.why, one.used_bytes) == (None, "does not match", 71 * GIB)


def test_a_device_that_fails_leaves_the_others(installed: Any) -> None:
    memory = gpu(memory=NVMLError("Not Supported"), compute=[process(11, 5)])
    lost, whole, shared = installed(FakeNvml(NVMLError("GPU is lost"), gpu(), memory)).read()
    assert (lost.number, lost.why, lost.used_bytes, lost.processes) == ("0", "GPU is lost", None, None)
    assert (whole.number, whole.why) == ("1", "")
    assert (shared.used_bytes, shared.total_bytes, shared.why) == (None, None, "Not Supported")
    assert shared.processes == ((11, 5),)


def test_instances_of_a_divided_gpu_stand_in_its_place(installed: Any) -> None:
    part = gpu("NVIDIA H200 MIG 1g.18gb", used=GIB, total=16 * GIB, compute=[process(11, GIB)])
    del part["parts"]
    divided, undivided = gpu(parts=[None, part, None]), gpu(parts=[None])
    found = installed(FakeNvml(divided, undivided, gpu(parts=None))).read()
    assert [(one.number, one.mig) for one in found] == [("0:1", True), ("1", False), ("2", False)]
    assert found[0].processes == ((11, GIB),)
    assert found[0].total_bytes == 16 * GIB


@pytest.mark.parametrize(
    ("library", "told"),
    [
        (None, "GPU memory needs the package nvidia-ml-py: pip install nvidia-ml-py"),
        (FakeNvml(init=NVMLError("Driver/library version mismatch")), "The NVIDIA driver can't be asked: "),
    ],
)
def test_why_nothing_is_read_is_said_where_there_is_a_driver(
    installed: Any, library: Any, told: str, tmp_path: Path
) -> None:
    (tmp_path / "nvidiactl").touch()
    for driver, expected in ((str(tmp_path / "nvidiactl"), told), ("/nowhere", "")):
        asked = installed(library, driver)
        assert asked.read() == []
        assert asked.why.startswith(expected)
        assert bool(asked.why) is bool(expected)


def test_a_library_that_is_not_there_is_looked_for_again_but_not_at_each_look(
    installed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = FakeNvml(gpu(), init=NVMLError("Driver Not Loaded"))
    asked = installed(library)
    assert [asked.read() for _ in range(3)] == [[]] * 3
    assert library.begun == 1
    library.init = None
    now = nvml.time.monotonic()
    monkeypatch.setattr(nvml.time, "monotonic", lambda: now + nvml.AGAIN_S + 1)
    assert len(asked.read()) == 1
    assert len(asked.read()) == 1
    assert library.begun == 2


def test_a_driver_that_is_unloaded_meanwhile_is_said_and_asked_anew(
    installed: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "nvidiactl").touch()
    library = FakeNvml(gpu())
    asked = installed(library, str(tmp_path / "nvidiactl"))
    assert len(asked.read()) == 1
    library.init = NVMLError("Uninitialized")
    assert asked.read() == []
    assert asked.why == "The NVIDIA driver can't be asked: Uninitialized"
    library.init = None
    now = nvml.time.monotonic()
    monkeypatch.setattr(nvml.time, "monotonic", lambda: now + nvml.AGAIN_S + 1)
    assert len(asked.read()) == 1
    assert asked.why == ""
