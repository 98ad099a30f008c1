"""NVIDIA's library (module ``pynvml`` of ``nvidia-ml-py``) as it documents its functions, structures and errors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

GIB = 1024**3


class NVMLError(Exception):
    """What every function raises for a return code that isn't success."""


class NVMLLibraryMismatchError(Exception):
    """What a package raises that is newer than the driver; no ``NVMLError``."""


def process(pid: int, used: int | None) -> SimpleNamespace:
    """``nvmlProcessInfo_t``; None is the package's word for "not available"."""
    return SimpleNamespace(pid=pid, usedGpuMemory=used, gpuInstanceId=0xFFFFFFFF, computeInstanceId=0xFFFFFFFF)


def gpu(name: str = "NVIDIA H200", used: int = 71 * GIB, total: int = 141 * GIB, **more: Any) -> dict[str, Any]:
    """A device. Of ``name``, ``memory``, ``compute``, ``graphics`` and ``mps`` each may be an error.

    ``parts`` are the instances of one that is divided (MIG), None where there is a free place.
    """
    memory = SimpleNamespace(total=total, free=total - used, used=used)
    return {"name": name, "memory": memory, "compute": [], "graphics": [], "mps": [], "parts": None, **more}


class FakeNvml:
    """The module, with these devices."""

    NVMLError = NVMLError
    NVMLLibraryMismatchError = NVMLLibraryMismatchError
    nvmlMemory_v2 = 0x02000028

    def __init__(self, *devices: Any, init: Exception | None = None, reserved: int = 0, v2: bool = True) -> None:
        self.devices, self.init, self.reserved, self.v2 = list(devices), init, reserved, v2
        self.begun = 0

    def nvmlInit(self) -> None:
        self.begun += 1
        if self.init is not None:
            raise self.init

    def nvmlDeviceGetCount(self) -> int:
        if self.init is not None:
            raise self.init
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, at: int) -> Any:
        return _or_raised(self.devices[at])

    def nvmlDeviceGetName(self, handle: Any) -> Any:
        return _or_raised(handle["name"])

    def nvmlDeviceGetMemoryInfo(self, handle: Any, version: int | None = None) -> Any:
        memory = _or_raised(handle["memory"])
        if version is not None:
            if not self.v2:
                raise NVMLError("Function Not Found")
            return memory
        return SimpleNamespace(total=memory.total, free=memory.free, used=memory.used + self.reserved)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> Any:
        return _or_raised(handle["compute"])

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: Any) -> Any:
        return _or_raised(handle["graphics"])

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: Any) -> Any:
        return _or_raised(handle["mps"])

    def nvmlDeviceGetMigMode(self, handle: Any) -> list[int]:
        if "parts" not in handle or handle["parts"] is None:
            raise NVMLError("Not Supported")
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any) -> int:
        return len(handle["parts"])

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, at: int) -> Any:
        if handle["parts"][at] is None:
            raise NVMLError("Not Found")
        return handle["parts"][at]


def _or_raised(what: Any) -> Any:
    if isinstance(what, Exception):
        raise what
    return what
