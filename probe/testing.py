"""Fakes that ship with probe: small real parts to test against, without an accelerator or waiting."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from probe.devices import Counters, Device, Statistics, counters_of
from probe.errors import InputError
from probe.hooks import Event, Listener
from probe.recorders.recorder import Recorder
from probe.records import Row, Unbuilt

_MIB = 1024**2


class FakeClock:
    """A clock that stands still until it is told to go on; call it for the time in nanoseconds.

    >>> clock = FakeClock()
    >>> clock.advance(250)
    >>> clock()
    250
    """

    def __init__(self, time_ns: int = 0) -> None:
        self.time_ns = time_ns

    def __call__(self) -> int:
        return self.time_ns

    def advance(self, duration_ns: int) -> None:
        """Let ``duration_ns`` pass."""
        if duration_ns < 0:
            raise InputError(f"duration_ns: got {duration_ns}, expected at least 0")
        self.time_ns += duration_ns


class FakeAllocation:
    """Memory that was taken from a :class:`FakeDevice`; :meth:`free` gives it back, once.

    Args:
        device: The device that the memory is taken from.
        size_bytes: How much is taken.
    """

    def __init__(self, device: FakeDevice, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._device: FakeDevice | None = device

    def free(self) -> None:
        """Give the memory back; safe to call twice."""
        device, self._device = self._device, None
        if device is not None:
            device._add(-self.size_bytes)
            device._labels.pop(id(self), None)


class FakeEvent:
    """A timing event: a position in the fake device's queue of work."""

    def __init__(self, position_ns: int) -> None:
        self.position_ns = position_ns


class FakeDevice(Device):
    """A device that allocates on demand, with a caching allocator, peaks and a queue of work.

    What a trainer would ask of torch it asks here: :meth:`max_memory_allocated`,
    :meth:`reset_peak_memory_stats` and so on go through the functions in :attr:`namespace`, as torch's do
    through those of ``torch._C``.

    Args:
        total_bytes: Bytes that the device has.
        segment_bytes: Reserved memory grows in multiples of it.
        non_torch_bytes: What others hold on the device: context, libraries, other processes.
        name: What rows call the device.
        resettable: Whether its peaks may be reset; False is a device whose readers aren't all known.

    >>> device = FakeDevice(total_bytes=100, segment_bytes=10)
    >>> tensor = device.allocate(25)
    >>> tensor.free()
    >>> device.read()[:4]
    (0, 30, 25, 30)
    """

    source = "fake"

    def __init__(
        self,
        total_bytes: int = 80 * 1024 * _MIB,
        *,
        segment_bytes: int = 2 * _MIB,
        non_torch_bytes: int = 0,
        name: str = "fake:0",
        resettable: bool = True,
    ) -> None:
        self.total_bytes = total_bytes
        self.non_torch_bytes = non_torch_bytes
        self.in_use = True  #: False: the trainer hasn't used the device yet, and nothing is known of it
        self.namespace = SimpleNamespace(memory_stats=self._statistics, reset_peaks=self._reset)
        self._segment_bytes = segment_bytes
        self._name = name
        self._resettable = resettable
        self._lock = threading.Lock()
        self._allocated = self._reserved = 0
        self._peak_allocated = self._peak_reserved = 0
        self._fragments = self._retries = 0
        self._queued_ns = self._done_ns = 0
        self._observers: list[Callable[[], None]] = []
        self._label = ""
        self._labels: dict[int, tuple[int, str]] = {}  # size and label of each allocation

    # ------------------------------------------------------------------------------------ what a trainer does

    def allocate(self, size_bytes: int) -> FakeAllocation:
        """Take memory of the device.

        Raises:
            InputError: The size is negative.
            torch.OutOfMemoryError: The device is full. It is a MemoryError, too.
        """
        if size_bytes < 0:
            raise InputError(f"size_bytes: got {size_bytes}, expected at least 0")
        try:
            self._add(size_bytes)
        except MemoryError:
            for observer in self._observers:
                observer()
            raise
        made = FakeAllocation(self, size_bytes)
        self._labels[id(made)] = (size_bytes, self._label)
        return made

    def free(self, allocation: FakeAllocation) -> None:
        """Give memory back; it stays reserved."""
        allocation.free()

    def fragment(self, size_bytes: int) -> None:
        """Let more of what is reserved lie idle, in pieces that fit no allocation, until the cache is given back.

        Args:
            size_bytes: Of the pieces together.

        Raises:
            InputError: The size is negative.
        """
        if size_bytes < 0:
            raise InputError(f"size_bytes: got {size_bytes}, expected at least 0")
        with self._lock:
            self._fragments += size_bytes
            self._reserved = min(self._needed(self._allocated), self.total_bytes - self.non_torch_bytes)
            self._peak_reserved = max(self._peak_reserved, self._reserved)

    def empty_cache(self) -> None:
        """Give back what is reserved and not allocated."""
        with self._lock:
            self._fragments = 0
            self._reserved = self._rounded(self._allocated)

    def memory_allocated(self) -> int:
        """Bytes that are allocated, as ``torch.cuda.memory_allocated`` tells."""
        return self._user("allocated_bytes", "current")

    def max_memory_allocated(self) -> int:
        """The most bytes that were allocated at once, as ``torch.cuda.max_memory_allocated`` tells."""
        return self._user("allocated_bytes", "peak")

    def max_memory_reserved(self) -> int:
        """The most bytes that were reserved at once, as ``torch.cuda.max_memory_reserved`` tells."""
        return self._user("reserved_bytes", "peak")

    def reset_peak_memory_stats(self) -> None:
        """Let the peaks begin anew, as ``torch.cuda.reset_peak_memory_stats`` does."""
        self.namespace.reset_peaks(0)

    def enqueue(self, duration_ns: int) -> None:
        """Give the device work; it isn't done before :meth:`run`."""
        self._queued_ns += duration_ns

    def run(self, duration_ns: int | None = None) -> None:
        """Let the device work for ``duration_ns``, or until its queue is empty."""
        until = self._queued_ns if duration_ns is None else self._done_ns + duration_ns
        self._done_ns = min(until, self._queued_ns)

    # ---------------------------------------------------------------------------------------- what probe asks

    @property
    def name(self) -> str:
        return self._name

    @property
    def description(self) -> str:
        return "fake device"

    def bind(self) -> bool:
        return self.in_use

    @property
    def bound(self) -> bool:
        return self.in_use

    def read(self, *, whole: bool = False) -> Counters:
        counters = counters_of(self.namespace.memory_stats(0) if self.in_use else {})
        if not whole or not self.in_use:
            return counters
        used = self.non_torch_bytes + (counters.reserved_bytes or 0)
        return counters._replace(used_bytes=used, total_bytes=self.total_bytes)

    def statistics(self) -> tuple[Statistics, ...]:
        usable = self._resettable and self.in_use
        return (Statistics(self.namespace, "memory_stats", "reset_peaks", 0),) if usable else ()

    def event(self) -> FakeEvent | None:
        return FakeEvent(self._queued_ns) if self.in_use else None

    def done(self, event: FakeEvent) -> bool:
        return self._done_ns >= event.position_ns

    def elapsed_ns(self, begin: FakeEvent, end: FakeEvent) -> int | None:
        return end.position_ns - begin.position_ns if self.done(begin) and self.done(end) else None

    def watch_out_of_memory(self, observer: Callable[[], None], entries: int) -> bool:
        del entries  # it has no history
        self._observers.append(observer)
        return True

    def ignore_out_of_memory(self, observer: Callable[[], None]) -> None:
        self._observers.remove(observer)

    def label_allocations(self, text: str) -> None:
        self._label = text

    def snapshot(self) -> dict[str, Any]:
        blocks = [
            {"size": size, "state": "active_allocated", "user_metadata": label, "frames": []}
            for size, label in self._labels.values()
        ]
        return {"segments": [{"device": 0, "total_size": self._reserved, "blocks": blocks}], "device_traces": [[]]}

    # --------------------------------------------------------------------------------------------- the inside

    def _user(self, what: str, when: str) -> int:
        return int(self.namespace.memory_stats(0)[what]["all"][when])

    def _add(self, size_bytes: int) -> None:
        with self._lock:
            allocated = self._allocated + size_bytes
            reserved = max(self._reserved, self._needed(allocated))
            if reserved + self.non_torch_bytes > self.total_bytes and self._fragments:  # as torch: its cache goes first
                self._fragments, self._retries = 0, self._retries + 1
                reserved = self._rounded(allocated)
            if reserved + self.non_torch_bytes > self.total_bytes:
                raise _out_of_memory()(
                    f"fake device out of memory: {size_bytes} bytes asked for, {self._allocated} of "
                    f"{self.total_bytes} allocated"
                )
            self._allocated, self._reserved = allocated, reserved
            self._peak_allocated = max(self._peak_allocated, allocated)
            self._peak_reserved = max(self._peak_reserved, reserved)

    def _needed(self, allocated: int) -> int:
        return self._rounded(allocated + self._fragments)

    def _rounded(self, size_bytes: int) -> int:
        return -(-size_bytes // self._segment_bytes) * self._segment_bytes

    def _statistics(self, index: int) -> dict[str, Any]:
        del index  # there is one device
        with self._lock:
            return {
                "num_ooms": 0,
                "num_alloc_retries": self._retries,
                "allocated_bytes": {"all": {"current": self._allocated, "peak": self._peak_allocated}},
                "reserved_bytes": {"all": {"current": self._reserved, "peak": self._peak_reserved}},
            }

    def _reset(self, index: int) -> None:
        del index  # there is one device
        with self._lock:
            self._peak_allocated, self._peak_reserved = self._allocated, self._reserved


@functools.cache
def _out_of_memory() -> type[Exception]:
    """What torch raises; a MemoryError as well, as this device has always raised."""
    import torch

    return type("OutOfMemoryError", (torch.OutOfMemoryError, MemoryError), {"__module__": "torch"})


class Collect(Listener):
    """What a session is to a recorder, without its queue: for tests of recorders.

    Subscribe it to the recorder's points. What the recorder raises is raised by :meth:`rows`.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.items: list[Any] = []
        self.errors: list[BaseException] = []

    def enter(self, event: Event) -> Any:
        return self.recorder.enter(event)

    def leave(self, event: Event, state: Any) -> None:
        self.items.append(self.recorder.leave(event, state))

    def fire(self, event: Event) -> None:
        self.items.append(self.recorder.fire(event))

    def failed(self, event: Event, error: BaseException, count: int, switched_off: bool) -> None:
        del event, count, switched_off  # only the error is raised again
        self.errors.append(error)

    def rows(self) -> list[Row]:
        """The rows of all that was heard since the last call, deferred ones built."""
        if self.errors:
            raise self.errors[0]
        items, self.items = self.items, []
        return [row for item in items for row in _built(item)]


def _built(item: Any) -> Iterable[Row]:
    if item is None or isinstance(item, Row):
        return [] if item is None else [item]
    return item.build() if isinstance(item, Unbuilt) else [row for one in item for row in _built(one)]
