"""What NVIDIA's management library (NVML) tells of the GPUs of this machine, and of who holds memory there.

Its Python package is ``nvidia-ml-py``, module ``pynvml``. It is optional, imported when it is asked first, and makes no
context on a device.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from probe.guard import attempt

T = TypeVar("T")

#: Seconds after which a library that wasn't there is looked for again.
AGAIN_S: Final = 60.0

#: Where a driver of NVIDIA's shows itself: on Linux, and under WSL.
_DRIVERS: Final = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")

#: Who has memory on a device: by compute, by graphics, and through a server that several processes share (MPS).
_LISTS: Final = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)


class Nvml:
    """What each process uses of a device, by its id: from NVIDIA's management library, where a Python package for it is
    installed (``nvidia-ml-py``). In a container that has process ids of its own, nobody is found.
    """

    def __init__(self) -> None:
        self._library: Any = None
        self._handles: dict[str, Any] = {}
        self._missing = False

    def used_bytes(self, uuid: str, pid: int) -> int | None:
        """What one process uses; None where it isn't known.

        Args:
            uuid: Of the device, such as "GPU-2f0e…".
            pid: Of the process.
        """
        if self._missing:
            return None
        running = attempt(lambda: self._running(uuid), lambda _: None)
        if running is None:  # not installed, no driver, no permission: it isn't asked again
            self._missing = True
            return None
        own = [one.usedGpuMemory for one in running if one.pid == pid and one.usedGpuMemory is not None]
        return sum(own) if own else None

    def _running(self, uuid: str) -> Any:
        if self._library is None:
            self._library = importlib.import_module("pynvml")
            self._library.nvmlInit()
        if uuid not in self._handles:
            self._handles[uuid] = self._library.nvmlDeviceGetHandleByUUID(uuid)
        return self._library.nvmlDeviceGetComputeRunningProcesses(self._handles[uuid])


class GpuProcess(NamedTuple):
    """A process that holds memory of a GPU."""

    pid: int  #: as the driver counts it; in a container it may be of the host
    used_bytes: int | None  #: None where the driver doesn't tell


class Gpu(NamedTuple):
    """A GPU, or an instance of one that is divided (MIG), at one moment."""

    number: str  #: as ``nvidia-smi`` counts: "0"; of an instance "0:1"
    name: str = ""
    used_bytes: int | None = None  #: by all processes together, without what the driver reserves where it says so
    total_bytes: int | None = None
    processes: tuple[GpuProcess, ...] | None = None  #: None where the driver doesn't list them
    mig: bool = False  #: whether it is an instance
    why: str = ""  #: why something isn't known, as the driver says it


class Gpus:
    """The NVIDIA GPUs of this machine. Any thread may ask.

    Attributes:
        why: Why none can be read although there is a driver; "" where there is nothing to say.
    """

    def __init__(self) -> None:
        self.why = ""
        self._library: Any = None
        self._due = 0.0
        self._lock = threading.Lock()

    def read(self) -> list[Gpu]:
        """All of them as they are now; none where there is no GPU of NVIDIA's, or it can't be read."""
        with self._lock:
            if self._library is None and time.monotonic() >= self._due:
                self._due = time.monotonic() + AGAIN_S
                self._begin()
            if self._library is None:
                return []
            return attempt(lambda: [one for at in range(self._count()) for one in self._gpus(at)], self._lost)

    # ------------------------------------------------------------------------------------------------- inside

    def _begin(self) -> None:
        def begun() -> Any:
            library = importlib.import_module("pynvml")
            library.nvmlInit()
            return library

        self._library = attempt(begun, self._missing)

    def _missing(self, error: Exception) -> None:
        driver = any(Path(one).exists() for one in _DRIVERS)
        if isinstance(error, ImportError):
            told = "GPU memory needs the package nvidia-ml-py: pip install nvidia-ml-py"
        else:
            told = f"The NVIDIA driver can't be asked: {error}"
        self.why = told if driver else ""

    def _lost(self, error: Exception) -> list[Gpu]:
        """The driver was unloaded, or exchanged: begin anew, later."""
        self._library = None
        self._missing(error)
        return []

    def _count(self) -> int:
        count = int(self._library.nvmlDeviceGetCount())
        self.why = ""
        return count

    def _gpus(self, at: int) -> Iterator[Gpu]:
        """A device; of one that is divided its instances."""
        library = self._library
        handle, why = self._ask(library.nvmlDeviceGetHandleByIndex, at)
        if why:
            yield Gpu(str(at), why=why)
            return
        parts = list(self._instances(handle, at))
        yield from parts or [self._gpu(handle, str(at))]

    def _instances(self, handle: Any, at: int) -> Iterator[Gpu]:
        library = self._library
        mode, _ = self._ask(library.nvmlDeviceGetMigMode, handle)  # most devices can't be divided, and say so
        if not mode or not mode[0]:
            return
        most, _ = self._ask(library.nvmlDeviceGetMaxMigDeviceCount, handle)
        for part in range(most or 0):
            instance, why = self._ask(library.nvmlDeviceGetMigDeviceHandleByIndex, handle, part)
            if not why:  # "not found": fewer instances than there could be
                yield self._gpu(instance, f"{at}:{part}", mig=True)

    def _gpu(self, handle: Any, number: str, *, mig: bool = False) -> Gpu:
        name, _ = self._ask(self._library.nvmlDeviceGetName, handle)
        memory, why = self._memory(handle)
        processes, unlisted = self._processes(handle)
        return Gpu(
            number,
            name.decode(errors="replace") if isinstance(name, bytes) else str(name or ""),
            None if memory is None else int(memory.used),
            None if memory is None else int(memory.total),
            processes,
            mig,
            why or unlisted,
        )

    def _memory(self, handle: Any) -> tuple[Any, str]:
        """As ``nvidia-smi`` counts, which leaves out what the driver reserves; an older driver counts that as used."""
        newer = getattr(self._library, "nvmlMemory_v2", None)
        if newer is not None:
            found, why = self._ask(self._library.nvmlDeviceGetMemoryInfo, handle, newer)
            if not why:
                return found, ""
        return self._ask(self._library.nvmlDeviceGetMemoryInfo, handle)

    def _processes(self, handle: Any) -> tuple[tuple[GpuProcess, ...] | None, str]:
        """Those of all lists: a process may stand in more than one of them, with the same number."""
        used: dict[int, int | None] = {}
        first_why, listed = "", False
        for name in _LISTS:
            ask = getattr(self._library, name, None)
            running, why = ([], "not there") if ask is None else self._ask(ask, handle)
            if why:
                first_why = first_why or why
                continue
            listed = True
            told: dict[int, int | None] = {}
            for one in running or ():
                told[one.pid] = _sum(told.get(one.pid), one.usedGpuMemory)
            for pid, size in told.items():
                used[pid] = _most(used.get(pid), size)
        if not listed:
            return None, first_why
        return tuple(GpuProcess(pid, size) for pid, size in sorted(used.items())), ""

    def _ask(self, question: Callable[..., T], *of: object) -> tuple[T | None, str]:
        """An answer, and why there is none. Newer packages raise another error where the driver is older than they."""
        refusals = (
            self._library.NVMLError,
            getattr(self._library, "NVMLLibraryMismatchError", self._library.NVMLError),
        )
        try:
            return question(*of), ""
        except refusals as error:
            return None, str(error) or type(error).__name__


def _sum(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other


def _most(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)
