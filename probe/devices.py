"""Memory counters, capacity and timing events of one device, behind one small interface.

:func:`detect` finds the device: CUDA, else another accelerator, else the CPU, where memory is the process's
resident set. Three promises hold for each of them:

* nothing here synchronises: events are recorded and asked whether they are done, never waited for;
* nothing here creates a device context: until the trainer itself uses the device its counters are None;
* a number that isn't known is None.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
import os
import platform
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from probe.errors import InputError

#: The module, where the system has it: Windows hasn't.
_resource: Any = importlib.import_module("resource") if importlib.util.find_spec("resource") else None

_clock: Final = time.monotonic_ns
_getrusage: Any = getattr(_resource, "getrusage", None)
#: Of whom the mark is asked. Linux tells any thread that of the whole process, and a thread's usage needn't be added up
#: over all threads, which takes twice as long.
_WHO: Final = getattr(_resource, "RUSAGE_THREAD", 0) if sys.platform == "linux" else 0
_MAXRSS_UNIT: Final = 1 if sys.platform == "darwin" else 1024

#: Timing events that a device keeps for the next scope instead of making new ones.
_SPARE_EVENTS: Final = 1024

#: ``CU_STREAM_CAPTURE_MODE_RELAXED`` and its twin in HIP.
_RELAXED: Final = 2


class Counters(NamedTuple):
    """Memory of one device at one moment, in bytes; None is unknown.

    The peaks are since they were last reset. ``used_bytes`` is what all processes use of the device together, and
    ``process_used_bytes`` what this one does, as the driver counts it. ``alloc_retries`` counts the allocations that
    failed until the allocator had given its cache back.
    """

    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    used_bytes: int | None = None
    total_bytes: int | None = None
    process_used_bytes: int | None = None
    alloc_retries: int | None = None


UNKNOWN: Final = Counters()


class Statistics(NamedTuple):
    """Where others read and reset the allocator's statistics of one device: two functions of one namespace.

    ``namespace.<read>(index)`` returns nested dicts such as
    ``{"allocated_bytes": {"all": {"current": 0, "peak": 0}}}``, and ``namespace.<reset>(index)`` sets every
    ``"peak"`` to its ``"current"``. Every public reader of torch looks them up there when it is called:
    this is the one place where peaks can be folded back.
    """

    namespace: Any
    read: str
    reset: str
    device_index: int


class Device(ABC):
    """One device. Reading takes microseconds and never waits for the device.

    Attributes:
        source: One of ``"cuda"``, ``"accelerator"``, ``"process_rss"`` and ``"fake"``.
        unsure: What a peak that did not rise in a scope is: ``"at_most"`` where the counter may show an older peak,
            ``"at_least"`` where only the values seen are known.
    """

    source: str = ""
    unsure: str = "at_most"

    @property
    @abstractmethod
    def name(self) -> str:
        """Such as ``"cuda:0"`` or ``"cpu"``."""

    @property
    @abstractmethod
    def description(self) -> str:
        """What a person calls it, such as the name of the GPU."""

    @abstractmethod
    def read(self, *, whole: bool = False) -> Counters:
        """Read the counters as they are now.

        Args:
            whole: Whether the driver is asked too, for ``used_bytes`` and ``total_bytes``, which takes longer.
        """

    def bind(self) -> bool:
        """Whether there is anything to read yet. Called by the thread that trains: a device that was named
        without an index becomes that thread's current one, as soon as the trainer uses it."""
        return True

    @property
    def bound(self) -> bool:
        """What :meth:`bind` last answered."""
        return True

    def statistics(self) -> tuple[Statistics, ...]:
        """Through which functions others read the statistics; empty where the peaks must not be reset."""
        return ()

    def event(self) -> Any | None:
        """A timing event recorded on the current stream, or None where there is no such thing."""
        return None

    def done(self, event: Any) -> bool:  # noqa: ARG002  (there is no event to ask)
        """Whether the device has come to the event. Any thread may ask; it does not wait."""
        return True

    def elapsed_ns(self, begin: Any, end: Any) -> int | None:  # noqa: ARG002  (as above)
        """Device time between two events; None while one isn't done, and where it can't be known.

        Args:
            begin: The event before the work.
            end: The event after the work.
        """
        return None

    def recycle(self, *events: Any) -> None:  # noqa: B027  (not every device can use them again)
        """Take back events that nobody needs any longer."""

    def watch_out_of_memory(self, observer: Callable[[], None], entries: int) -> bool:  # noqa: ARG002  (it can't)
        """Call ``observer`` in the thread that asks for more memory than there is, before that is raised, and remember
        from now on what allocated what.

        Args:
            observer: It must not raise.
            entries: How many allocations and frees are remembered at most.

        Returns:
            Whether this device can, and does from now on.
        """
        return False

    def ignore_out_of_memory(self, observer: Callable[[], None]) -> None:  # noqa: B027  (where it can't watch)
        """End what :meth:`watch_out_of_memory` has begun."""

    def label_allocations(self, text: str) -> None:  # noqa: B027  (as above)
        """What is allocated from now on is called so in :meth:`snapshot`."""

    def snapshot(self) -> dict[str, Any]:
        """What is allocated, in the form of ``torch.cuda.memory._snapshot``."""
        return {"segments": [], "device_traces": []}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def counters_of(statistics: Mapping[str, Any]) -> Counters:
    """Counters from the nested statistics of torch's caching allocator; unknown when they are empty.

    >>> counters_of({"allocated_bytes": {"all": {"current": 5, "peak": 7}}})[:4]
    (5, None, 7, None)
    """
    if not statistics:
        return UNKNOWN
    allocated = statistics.get("allocated_bytes", {}).get("all", {})
    reserved = statistics.get("reserved_bytes", {}).get("all", {})
    return Counters(
        allocated.get("current"),
        reserved.get("current"),
        allocated.get("peak"),
        reserved.get("peak"),
        alloc_retries=statistics.get("num_alloc_retries"),
    )


def detect(device: Any = None) -> Device:
    """The device whose memory is of interest.

    Args:
        device: A :class:`Device` (returned as it is), anything that ``torch.device`` takes, or None for CUDA, else
            another accelerator, else the CPU. ``"cuda"`` without an index is the device that is current when the
            trainer first uses CUDA.

    Raises:
        InputError: A device that torch doesn't know, or that this machine doesn't have.
    """
    if isinstance(device, Device):
        return device
    import torch

    if device is None:
        return _default(torch)
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"device: got {device!r}, expected a torch device such as 'cuda:0' or 'cpu'") from error
    return _named(torch, wanted)


def _default(torch: Any) -> Device:
    # device_count asks NVML first, so that a process that forks later can still use CUDA in its children.
    if torch.cuda.device_count() > 0:
        return CudaDevice()
    kind = _accelerator(torch)
    return CpuDevice() if kind is None else AcceleratorDevice(kind)


def _named(torch: Any, wanted: Any) -> Device:
    if wanted.type == "cpu":
        return CpuDevice()
    if wanted.type == "cuda" and torch.cuda.device_count() > (wanted.index or 0):
        return CudaDevice(wanted.index)
    if wanted.type != "cuda" and wanted.type == _accelerator(torch):
        return AcceleratorDevice(wanted.type, wanted.index)
    raise InputError(f"device: got {str(wanted)!r}, expected a device of this machine whose memory torch counts")


def _accelerator(torch: Any) -> str | None:
    """Type of this machine's accelerator when torch counts its memory, such as "xpu"."""
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None or not hasattr(accelerator, "memory_stats") or not accelerator.is_available():
        return None
    current = accelerator.current_accelerator()
    return None if current is None or current.type == "mps" else str(current.type)


# ------------------------------------------------------------------------------------------------------- cuda


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
        try:
            if self._library is None:
                self._library = importlib.import_module("pynvml")
                self._library.nvmlInit()
            if uuid not in self._handles:
                self._handles[uuid] = self._library.nvmlDeviceGetHandleByUUID(uuid)
            running = self._library.nvmlDeviceGetComputeRunningProcesses(self._handles[uuid])
        except Exception:  # not installed, no driver, no permission: it isn't asked again
            self._missing = True
            return None
        own = [one.usedGpuMemory for one in running if one.pid == pid and one.usedGpuMemory is not None]
        return sum(own) if own else None


class CudaDevice(Device):
    """A CUDA (or ROCm) device, through torch's caching allocator.

    Args:
        index: Number of the device; None takes the one that is current when the trainer first uses CUDA.
    """

    source = "cuda"

    def __init__(self, index: int | None = None) -> None:
        import torch

        self._torch: Any = torch
        self._index = index
        self._bound = False
        self._nvml = Nvml()
        self._uuid: str | None = None  # "" where torch doesn't know it
        self._spare: deque[Any] = deque(maxlen=_SPARE_EVENTS)
        self._stream: tuple[Any, Any] = (None, None)  # what torch calls the current one, and its object

    @property
    def name(self) -> str:
        return "cuda" if self._index is None else f"cuda:{self._index}"

    @property
    def description(self) -> str:
        if not self.bind():
            return "CUDA device, not in use yet"
        return str(self._torch.cuda.get_device_name(self._index))

    def bind(self) -> bool:
        if not self._torch.cuda.is_initialized():
            # Never before the trainer: that would create a context, perhaps on a device it doesn't want.
            self._bound = False
        elif not self._bound:
            if self._index is None:
                self._index = int(self._torch.cuda.current_device())
            self._bound = True
        return self._bound

    @property
    def bound(self) -> bool:
        return self._bound

    def read(self, *, whole: bool = False) -> Counters:
        if not self._bound and not self.bind():
            return UNKNOWN
        # The nested form: flattening and sorting it, as `memory_stats` does, takes longer than all the rest.
        counters = counters_of(self._torch.cuda.memory_stats_as_nested_dict(self._index))
        return counters._replace(**self._whole()) if whole else counters

    def _whole(self) -> dict[str, int | None]:
        with _relaxed_capture() as relaxed:
            if not relaxed:
                return {}
            try:
                free, total = self._torch.cuda.mem_get_info(self._index)
            except RuntimeError:  # the device is in an error state, which is not ours to report
                return {}
        return {"used_bytes": total - free, "total_bytes": total, "process_used_bytes": self._own_bytes()}

    def _own_bytes(self) -> int | None:
        if self._uuid is None:
            ask = getattr(self._torch.cuda, "get_device_properties", None)
            self._uuid = "" if ask is None else str(getattr(ask(self._index), "uuid", ""))
        return self._nvml.used_bytes(f"GPU-{self._uuid}", os.getpid()) if self._uuid else None

    def statistics(self) -> tuple[Statistics, ...]:
        if not self._bound or self._index is None:
            return ()
        core = self._torch._C
        pairs = (
            ("_cuda_memoryStats", "_cuda_resetPeakMemoryStats"),
            ("_accelerator_getDeviceStats", "_accelerator_resetPeakStats"),
        )
        return tuple(Statistics(core, read, reset, self._index) for read, reset in pairs if hasattr(core, read))

    def event(self) -> Any | None:
        cuda = self._torch.cuda
        # A captured event would become a node of the user's graph.
        if not self._bound or cuda.is_current_stream_capturing() or not _can_relax():
            return None
        try:
            event = self._spare.pop()
        except IndexError:
            event = cuda.Event(enable_timing=True)
        event.record(self._current_stream())
        return event

    def _current_stream(self) -> Any:
        """The stream that this thread's work goes to. Making its object takes longer than to record an event."""
        ask = getattr(self._torch._C, "_cuda_getCurrentStream", None)
        now = None if ask is None else ask(self._index)
        known, stream = self._stream
        if now is None or now != known:
            stream = self._torch.cuda.current_stream(self._index)
            self._stream = (now, stream)
        return stream

    def done(self, event: Any) -> bool:
        with _relaxed_capture():
            return _query(event)

    def elapsed_ns(self, begin: Any, end: Any) -> int | None:
        with _relaxed_capture():
            return _elapsed_ns(begin, end)

    def recycle(self, *events: Any) -> None:
        self._spare.extend(events)

    def watch_out_of_memory(self, observer: Callable[[], None], entries: int) -> bool:
        core, memory = self._torch._C, self._torch.cuda.memory
        attach = getattr(core, "_cuda_attach_out_of_memory_observer", None)
        if not self._bound or attach is None:
            return False
        if not _observers.attached:  # torch can't take an observer off: one stays, and calls those of now
            attach(_observers.ran_out)
            _observers.attached = True
        _observers.told.append(observer)
        if not core._cuda_isHistoryEnabled():  # else the trainer records it, and in its own way
            memory._record_memory_history("all", context="alloc", stacks="python", max_entries=entries)
            _observers.records = True
        return True

    def ignore_out_of_memory(self, observer: Callable[[], None]) -> None:
        _observers.told.remove(observer)
        if _observers.records and not _observers.told:
            self._torch.cuda.memory._record_memory_history(None)
            _observers.records = False

    def label_allocations(self, text: str) -> None:
        label = getattr(self._torch._C, "_cuda_setMemoryMetadata", None)
        if label is not None:
            label(text)

    def snapshot(self) -> dict[str, Any]:
        return dict(self._torch.cuda.memory._snapshot())


class _Observers:
    """Who is told when CUDA's allocator has no more memory to give.

    Attributes:
        told: Are called, each in the thread that asked for memory.
        attached: Whether torch calls :meth:`ran_out`.
        records: Whether we have begun torch's recording of the history.
    """

    def __init__(self) -> None:
        self.told: list[Callable[[], None]] = []
        self.attached = self.records = False

    def ran_out(self, *_: Any) -> None:
        """What torch calls, with the device, the size that was asked for, and the sizes of what there is."""
        for one in tuple(self.told):
            one()


_observers: Final = _Observers()


def _query(event: Any) -> bool:
    try:
        return bool(event.query())
    except RuntimeError:  # the device is in an error state: there is nothing more to wait for
        return True


def _elapsed_ns(begin: Any, end: Any) -> int | None:
    try:
        if not (begin.query() and end.query()):
            return None
        return round(float(begin.elapsed_time(end)) * 1e6)
    except RuntimeError:  # the device is in an error state, or one of the events was never recorded
        return None


@functools.cache
def _exchange_mode() -> Any | None:
    """The driver's function that changes what the calling thread may call while another one captures."""
    candidates = (
        ("libcuda.so.1", "cuThreadExchangeStreamCaptureMode"),
        ("libamdhip64.so", "hipThreadExchangeStreamCaptureMode"),
        ("nvcuda.dll", "cuThreadExchangeStreamCaptureMode"),
    )
    for library, function in candidates:
        try:
            return getattr(ctypes.CDLL(library), function)
        except (OSError, AttributeError):
            continue
    return None


def _can_relax() -> bool:
    return _exchange_mode() is not None


@contextmanager
def _relaxed_capture() -> Iterator[bool]:
    """Inside, the calling thread's queries don't break a CUDA graph that another thread is capturing.

    In the default mode the driver invalidates a capture when *any* thread asks an event whether it's done.
    Yields whether that could be arranged.
    """
    exchange = _exchange_mode()
    mode = ctypes.c_int(_RELAXED)
    relaxed = exchange is not None and exchange(ctypes.byref(mode)) == 0
    try:
        yield relaxed
    finally:
        if relaxed and exchange is not None:
            exchange(ctypes.byref(mode))  # it now holds the mode of before


# ----------------------------------------------------------------------------------------- other accelerators


class AcceleratorDevice(Device):
    """Any accelerator whose memory ``torch.accelerator`` counts, such as XPU.

    Args:
        kind: The accelerator's type, as ``torch.device`` names it.
        index: Number of the device; None takes the one that is current when the trainer first uses it.
    """

    source = "accelerator"

    def __init__(self, kind: str, index: int | None = None) -> None:
        import torch

        self._torch: Any = torch
        self._kind = kind
        self._index = index
        self._bound = False

    @property
    def name(self) -> str:
        return self._kind if self._index is None else f"{self._kind}:{self._index}"

    @property
    def description(self) -> str:
        if not self.bind():
            return f"{self._kind} device, not in use yet"
        named = getattr(self._torch.get_device_module(self._kind), "get_device_name", None)
        return self.name if named is None else str(named(self._index))

    def bind(self) -> bool:
        # Empty until the allocator is in use; asking makes no context.
        if not self._bound and self._torch.accelerator.memory_stats(self._index or 0):
            if self._index is None:
                self._index = int(self._torch.accelerator.current_device_index())
            self._bound = True
        return self._bound

    @property
    def bound(self) -> bool:
        return self._bound

    def read(self, *, whole: bool = False) -> Counters:
        if not self._bound and not self.bind():
            return UNKNOWN
        flat = self._torch.accelerator.memory_stats(self._index)
        values = (flat.get(f"{what}_bytes.all.{when}") for when in ("current", "peak") for what in _KINDS)
        counters = Counters(*values)._replace(alloc_retries=flat.get("num_alloc_retries"))
        return counters._replace(**self._whole()) if whole else counters

    def _whole(self) -> dict[str, int]:
        ask = getattr(self._torch.accelerator, "get_memory_info", None)
        if ask is None:
            return {}
        try:
            free, total = ask(self._index)
        except RuntimeError:  # not every accelerator tells
            return {}
        return {"used_bytes": total - free, "total_bytes": total}

    def statistics(self) -> tuple[Statistics, ...]:
        # Of XPU all readers are known. Another vendor's own module may read in a way that can't be folded.
        if not self._bound or self._index is None or self._kind != "xpu":
            return ()
        core = self._torch._C
        pairs = (
            ("_xpu_memoryStats", "_xpu_resetPeakMemoryStats"),
            ("_accelerator_getDeviceStats", "_accelerator_resetPeakStats"),
        )
        return tuple(Statistics(core, read, reset, self._index) for read, reset in pairs if hasattr(core, read))

    def event(self) -> Any | None:
        if not self._bound:
            return None
        try:
            event = self._torch.Event(device=self.name, enable_timing=True)
            event.record(self._torch.accelerator.current_stream(self._index))
        except RuntimeError:  # not every accelerator has timing events
            return None
        return event

    def done(self, event: Any) -> bool:
        return _query(event)

    def elapsed_ns(self, begin: Any, end: Any) -> int | None:
        return _elapsed_ns(begin, end)


_KINDS: Final = ("allocated", "reserved")


# -------------------------------------------------------------------------------------------------------- cpu


#: Readings of the resident set that lie closer together are one, nanoseconds. A page fault takes 0.1 µs at the least,
#: so that a few hundred pages can come or go meanwhile. The kernel itself counts no more exactly: each of its threads
#: or CPUs adds what it has counted to the sum only 32 or 64 pages at a time. A scope and the first in it share one.
SAME_NS: Final = 20_000


class CpuDevice(Device):
    """No accelerator: memory means the process's resident set (RSS), and allocated means resident."""

    source = "process_rss"
    unsure = "at_least"
    _last: Counters = UNKNOWN  # the same object as long as the numbers are the same
    _read_ns = -SAME_NS  # when they were read

    def __init__(self) -> None:
        import psutil  # now: a child that is forked while another thread imports it never gets the rest

        self._machine = psutil.virtual_memory

    @property
    def name(self) -> str:
        return "cpu"

    @property
    def description(self) -> str:
        return platform.processor() or platform.machine()

    def read(self, *, whole: bool = False) -> Counters:
        now = _clock()
        if now - self._read_ns < SAME_NS and not whole:
            return self._last
        resident = process_rss_bytes()
        peak = None if _getrusage is None else _getrusage(_WHO).ru_maxrss * _MAXRSS_UNIT  # as _peak_rss_bytes
        if peak is not None and resident is not None and peak < resident:
            peak = resident  # the kernel brings its mark up to date late
        if not whole:
            last = self._last
            if last[0] != resident or last[2] != peak:
                self._last = last = Counters(resident, None, peak)
            self._read_ns = now
            return last
        machine = self._machine()
        return Counters(resident, None, peak, None, machine.total - machine.available, machine.total)


_ON_LINUX: Final = sys.platform.startswith("linux")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def process_rss_bytes() -> int | None:
    """Resident set of this process, now. None where the system doesn't tell.

    >>> process_rss_bytes() > 1_000_000
    True
    """
    if not _ON_LINUX:
        return _psutil_rss()
    global _told
    try:
        text = _pread(_open_statm() if _statm < 0 else _statm, 128, 0)
    except OSError:
        return _psutil_rss()
    told = _told
    if told[0] != text:  # between two edges of scopes it mostly is the same
        told = _told = (text, int(text.split(None, 2)[1]) * _PAGE)
    return told[1]


_pread: Any = getattr(os, "pread", None)

#: The kernel's page counts as they were read last, and the bytes that are resident by them.
_told: tuple[bytes, int] = (b"", 0)

#: The kernel's page counts of this process, kept open: opening costs four times as much as reading. −1 is not open.
_statm = -1


def _open_statm() -> int:
    global _statm
    _statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    return _statm


def _forget_statm() -> None:
    """In a forked child: the parent's descriptor still tells of the parent."""
    global _statm
    _statm = -1


if _ON_LINUX:
    os.register_at_fork(after_in_child=_forget_statm)


def _psutil_rss() -> int | None:
    import psutil

    try:
        return int(psutil.Process().memory_info().rss)
    except psutil.Error:
        return None


def _peak_rss_bytes() -> int | None:
    """High-water mark of the resident set since the process began. ``/proc/self/clear_refs`` could reset it, but for
    everybody who reads it.

    It may have been inherited from the program that started this one, and then it only stands still for
    longer.
    """
    if _getrusage is None:
        return None
    peak: int = _getrusage(_WHO).ru_maxrss
    return peak * _MAXRSS_UNIT
