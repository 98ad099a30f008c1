"""Scopes on a machine without an accelerator, where an edge only reads what the kernel tells of the process.

After a step's work each function that is called, and each object that is touched, has to come from memory again. So
the training thread does no more at an edge than to ask the kernel and keep its answers as they are. Whoever has the
time makes numbers of them and shows them to the scopes that were open, in the order of the edges.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from probe.devices import UNKNOWN, Counters, CpuDevice, Device
from probe.devices.cpu import MARK, SAME_NS, STATM_BYTES, TELLS, WHO, counters_told, getrusage, kept, pread
from probe.hooks import Event
from probe.recorders.opened import OpenedScope, RowMaker
from probe.recorders.peaks import OpenPeaks, PeakLedger, PeakRange, Peaks

#: So many edges wait at most for the writer's thread; then the training thread sees to them.
WAITING: Final = 2_000

_clock: Final = time.monotonic_ns
_new: Final[Any] = object.__new__
_reference: Final = weakref.ref


def is_told_by_kernel(device: Device) -> bool:
    """Whether scopes on this device can be followed by a :class:`ResidentLedger`.

    Args:
        device: Any.
    """
    return TELLS and type(device) is CpuDevice


class ResidentScope(OpenedScope):
    """A scope with what the kernel told at its edges. Its counters are made of that when its rows are: until then they
    would be two more objects of each scope, which make collections of garbage longer.

    Attributes:
        read_ns: When the first answer was asked for.
        text: What ``/proc/self/statm`` said as it began.
        mark: What ``getrusage`` said as it began, as ``ru_maxrss``, kibibytes.
        text_left: As ``text``, as it ended.
        mark_left: As ``mark``, as it ended.
        has_begun: Whether its begin was seen to.
        has_ended: Likewise.
    """

    __slots__ = ("has_begun", "has_ended", "mark", "mark_left", "read_ns", "text", "text_left")

    read_ns: int
    text: bytes
    mark: int
    text_left: bytes
    mark_left: int
    has_begun: bool
    has_ended: bool


def _before_all() -> ResidentScope:
    """A scope that ended so long ago that nobody shares its readings."""
    scope: ResidentScope = _new(ResidentScope)
    scope.end_ns, scope.text_left, scope.mark_left = -SAME_NS, b"", 0
    return scope


class _Look(NamedTuple):
    """A reading between edges, and when it was asked for."""

    read_ns: int
    counters: Counters


class ResidentLedger(PeakLedger):
    """Keeps what the kernel told at the edges of scopes, and makes peaks of it when it is asked.

    Args:
        device: Whose resident set it is.
        peaks: As of :class:`PeakLedger`; nothing is ever reset here.
        recorder: Makes the rows of a scope.

    A reading counts for a scope if it was asked for while that was open. One that another thread asked for before, and
    got later, doesn't.
    """

    def __init__(self, device: Device, peaks: Peaks, recorder: RowMaker) -> None:
        super().__init__(device, peaks)
        self._recorder = recorder
        #: Each scope when it begins and again when it ends, and the looks in between. Adding one needs no lock.
        self._noted: list[ResidentScope | _Look] = []
        self._left = _before_all()  #: the last scope whose end asked the kernel
        #: When the last begin asked, and what it was told. The scope itself isn't kept: nobody may hold it any more.
        self._entered = (-SAME_NS, b"", 0)

    def enter(self, event: Event) -> ResidentScope:
        """A scope begins. The caller holds what is returned for as long as the scope is open.

        Args:
            event: The scope's, at its begin.
        """
        opened: ResidentScope = _new(ResidentScope)
        now = opened.read_ns = _clock()
        left = self._left
        if now - left.end_ns < SAME_NS:
            opened.text, opened.mark = left.text_left, left.mark_left
        elif now - self._entered[0] < SAME_NS:
            _, opened.text, opened.mark = self._entered
        else:
            try:
                text = pread(kept.statm, STATM_BYTES, 0)
            except OSError:
                text = kept.reopen()
            opened.text = text
            opened.mark = mark = getrusage(WHO)[MARK]
            self._entered = now, text, mark
        opened.has_begun = opened.has_ended = opened.written = False
        opened.recorder = self._recorder
        opened.duration = None
        opened.time_ns = _clock()
        opened.scope = event.scope
        noted = self._noted
        noted.append(opened)
        if len(noted) > WAITING:
            self.settle()
        return opened

    def leave(self, event: Event, state: ResidentScope) -> ResidentScope | None:
        """The scope ends: what its rows are made of.

        Args:
            event: The scope's, at its end.
            state: What :meth:`enter` returned.
        """
        if self.closed:
            return None
        end_ns, left = event.end_ns, self._left
        state.host_ns = end_ns - event.begin_ns
        if end_ns - left.end_ns < SAME_NS:
            state.text_left, state.mark_left = left.text_left, left.mark_left
            state.end_ns = end_ns
        else:
            try:
                state.text_left = pread(kept.statm, STATM_BYTES, 0)
            except OSError:
                state.text_left = kept.reopen()
            state.mark_left = getrusage(WHO)[MARK]
            state.end_ns = end_ns
            self._left = state
        self._noted.append(state)
        return state

    def settle(self) -> None:
        """See to all edges so far; from any thread."""
        noted = self._noted
        with self._lock:
            taken = noted[:]
            del noted[: len(taken)]
            for one in taken:
                if isinstance(one, _Look):
                    self._see_at(one.read_ns, one.counters)
                elif one.has_begun:
                    self._end(one)
                else:
                    self._begin(one)

    def peaks(self, closed: OpenPeaks) -> PeakRange:
        """The peaks of a scope that has ended, and its counters."""
        self.settle()
        if isinstance(closed, ResidentScope) and not closed.has_ended:  # an interrupt came while others were seen to
            with self._lock:
                if not closed.has_begun:
                    self._begin(closed)
                self._end(closed)
        if isinstance(closed, ResidentScope):
            closed.at_enter = counters_told(closed.text, closed.mark)
            closed.at_leave = counters_told(closed.text_left, closed.mark_left)
        return super().peaks(closed)

    def look(self, *, whole: bool = False) -> Counters:
        """The counters now, from any thread."""
        read_ns = _clock()
        counters = self.device.read(whole=whole)
        self._noted.append(_Look(read_ns, counters))
        self.settle()
        return counters

    def scopes(self) -> Iterator[OpenPeaks]:
        """The scopes that are open now; from any thread."""
        self.settle()
        for one in super().scopes():
            if isinstance(one, ResidentScope):
                one.at_enter = counters_told(one.text, one.mark)
            yield one

    def _begin(self, opened: ResidentScope) -> None:
        opened.has_begun = True
        counters = counters_told(opened.text, opened.mark)
        opened.at_enter = opened.at_leave = UNKNOWN
        opened.was_reset = False
        opened.allocated_bytes, opened.reserved_bytes = counters[0], None
        self._see_at(opened.read_ns, counters)
        if not self.closed:
            self._open[id(opened)] = _reference(opened)

    def _end(self, opened: ResidentScope) -> None:
        opened.has_ended = True
        counters = counters_told(opened.text_left, opened.mark_left)
        self._see_at(opened.end_ns, counters)
        opened.see(counters[0], None)
        self._open.pop(id(opened), None)

    def _see_at(self, read_ns: int, counters: Counters) -> None:
        """As ``_see``, of what was asked for at a time: a scope that began later isn't shown it."""
        last, now = self._seen[0], counters[0]
        self._seen = counters
        if now is None or now <= (last or -1):
            return
        for key, reference in list(self._open.items()):
            opened = reference()
            if opened is None:
                del self._open[key]
            elif isinstance(opened, ResidentScope) and opened.time_ns <= read_ns:
                opened.see(now, None)
