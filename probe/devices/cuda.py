"""CUDA and ROCm devices, through torch's caching allocator."""

from __future__ import annotations

import ctypes
import functools
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from probe.devices.device import UNKNOWN, Counters, Device, Statistics, counters_of
from probe.devices.nvml import Nvml
from probe.devices.timing_events import elapsed_ns, query

#: Timing events that a device keeps for the next scope instead of making new ones.
_SPARE_EVENTS: Final = 1024

#: ``CU_STREAM_CAPTURE_MODE_RELAXED`` and its twin in HIP.
_RELAXED: Final = 2


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
            return query(event)

    def elapsed_ns(self, begin: Any, end: Any) -> int | None:
        with _relaxed_capture():
            return elapsed_ns(begin, end)

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
