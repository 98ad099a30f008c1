"""A scope of the memory recorder, from its begin until its rows are written."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from probe.devices import Counters, Device
from probe.hooks import Scope
from probe.recorders.peaks import OpenPeaks
from probe.records import Memory

#: After this long without an answer of the device a row is written without the device's duration.
PATIENCE_NS: Final = 30_000_000_000


class RowMaker(Protocol):
    """Who makes a scope's rows: the recorder."""

    def rows_of_scope(self, closed: OpenedScope) -> list[Memory]:
        """The rows of a scope that has ended.

        Args:
            closed: The scope.
        """


class OpenedScope(OpenPeaks):
    """A scope from its begin to its end. Then it is what its rows are made of, by the writer's thread: one object and
    not five, since what waits for that thread makes collections of garbage longer.
    """

    __slots__ = ("begin", "duration", "end_ns", "host_ns", "recorder", "scope", "time_ns", "written")

    partial = True  # its peak is known, whether or not the device has come to its end

    begin: Any
    duration: Duration | None
    recorder: RowMaker
    end_ns: int
    host_ns: int
    time_ns: int

    def __init__(self, at_enter: Counters) -> None:  # as its base, and more
        self.at_enter = self.at_leave = at_enter  # written out: it is made at each beginning of a scope
        self.was_reset = False
        self.allocated_bytes = at_enter[0]
        self.reserved_bytes = at_enter[1]
        self.scope: Scope | None = None  # until all that its row says is known
        self.written = False  # whether the row of its begin is

    def build(self) -> list[Memory]:
        return self.recorder.rows_of_scope(self)

    def ready(self) -> bool:
        return self.duration is None or self.duration.ready()


class Duration:
    """Device time between two events, read once the device has come to the second one."""

    __slots__ = ("_begin", "_clock", "_deadline_ns", "_device", "_end")

    def __init__(self, device: Device, begin: Any, end: Any, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._device = device
        self._begin = begin
        self._end = end
        self._clock = clock
        self._deadline_ns = clock() + PATIENCE_NS

    def ready(self) -> bool:
        return self._device.done(self._end) or self._clock() > self._deadline_ns

    def pop_ns(self) -> int | None:
        """The duration in ns, or None; the events go back to the device."""
        elapsed_ns = self._device.elapsed_ns(self._begin, self._end)
        if elapsed_ns is not None:
            self._device.recycle(self._begin, self._end)
        self._begin = self._end = None
        return elapsed_ns
