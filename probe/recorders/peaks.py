"""Peaks of nested scopes, from a device that has only one peak counter.

Every scope edge reads the counter, tells it to each open scope, and resets it; a scope's peak is then the
largest value that it was told. So that a reset is invisible to everyone else, :class:`PeakFold` stands in the
functions through which others read and reset the statistics, and puts the running maximum back into what they
are shown.
"""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeVar, overload

from probe.devices import UNKNOWN, Counters, Device, Statistics, counters_of
from probe.errors import UnknownNameError
from probe.records import Deferred

Peaks = Literal["nested", "observe"]
_CHOICES: Final = ("nested", "observe")

#: How a peak is addressed in the nested statistics: the keys above its "peak".
Path = tuple[Any, ...]

_reference: Final = weakref.ref

#: What the accelerator's statistics call differently from those of CUDA.
_ALIASES: Final = {"allocated": "allocation"}


class PeakRange(NamedTuple):
    """The largest values while a scope was open. ``kind``: see ``records.Memory.peak_kind``."""

    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    kind: str | None = None


class OpenPeaks(Deferred):
    """What one open scope was told so far. It ends when it is closed, or when nobody holds it any more.

    A recorder can make it the rows that don't exist yet, too, so that no second object has to be made for them.

    Args:
        at_enter: The counters as the scope began.
    """

    __slots__ = ("__weakref__", "allocated_bytes", "at_enter", "at_leave", "reserved_bytes", "was_reset")

    def __init__(self, at_enter: Counters) -> None:
        self.at_enter = at_enter
        self.at_leave = UNKNOWN
        self.was_reset = False  #: whether the counters were, at every edge of a scope
        self.allocated_bytes = at_enter[0]
        self.reserved_bytes = at_enter[1]

    def see(self, allocated_bytes: int | None, reserved_bytes: int | None) -> None:
        """The device held this much at some time while the scope was open."""
        if allocated_bytes is not None and allocated_bytes > (self.allocated_bytes or -1):
            self.allocated_bytes = allocated_bytes
        if reserved_bytes is not None and reserved_bytes > (self.reserved_bytes or -1):
            self.reserved_bytes = reserved_bytes


_Open = TypeVar("_Open", bound=OpenPeaks)


class PeakLedger:
    """Keeps the peaks of all open scopes of all threads of one device.

    Args:
        device: The device whose peaks are told.
        peaks: ``"nested"`` resets the counters at every edge, ``"observe"`` never does. A device whose readers can't
            all be folded (``Device.statistics`` is empty) is only observed.

    Between reading a counter and resetting it lie a few hundred nanoseconds, in which memory that another
    thread takes *and* gives back is not seen.

    Raises:
        UnknownNameError: ``peaks`` is another word.
    """

    def __init__(self, device: Device, peaks: Peaks = "nested") -> None:
        if peaks not in _CHOICES:
            raise UnknownNameError.of("peaks", peaks, _CHOICES)
        self.device = device
        self.closed = False
        self._nested = peaks == "nested"
        self._always_bound = type(device).bind is Device.bind
        self._fold: PeakFold | None = None
        self._open: dict[int, weakref.ref[OpenPeaks]] = {}
        self._watches = False  #: whether an edge is no more than a reading: of a device that is always there
        self._seen = UNKNOWN  #: what was seen last, where nothing is reset
        # Reentrant: in the middle of an edge the garbage collector may close a generator, hence a scope.
        self._lock = threading.RLock()

    @overload
    def open(self) -> OpenPeaks: ...

    @overload
    def open(self, kind: Callable[[Counters], _Open]) -> _Open: ...

    def open(self, kind: Callable[[Counters], OpenPeaks] = OpenPeaks) -> OpenPeaks:
        """A scope begins. The caller holds what is returned for as long as the scope is open.

        Args:
            kind: What is made, of the counters now.
        """
        with self._lock:
            opened = kind(self._watch() if self._watches else self._edge())
            self._open[id(opened)] = _reference(opened)
        return opened

    def close(self, opened: OpenPeaks) -> None:
        """The scope ends. Scopes may end in any order; what their peaks were is asked of :meth:`peaks`."""
        with self._lock:
            if self._watches:  # then it has seen all that there was
                opened.at_leave = self._watch()
                self._open.pop(id(opened), None)
                return
            now = opened.at_leave = self._edge()
            self._open.pop(id(opened), None)
            opened.was_reset = self._fold is not None
        if now[0] is not None:
            opened.see(now[0], now[1])

    def peaks(self, closed: OpenPeaks) -> PeakRange:
        """The peaks of a scope that has ended; whoever has the time asks."""
        if closed.at_leave.allocated_bytes is None:
            return PeakRange()
        if closed.was_reset:
            return PeakRange(closed.allocated_bytes, closed.reserved_bytes, "exact")
        return _observed(closed, closed.at_leave, self.device.unsure)

    def look(self, *, whole: bool = False) -> Counters:
        """The counters now, from any thread; nothing is reset."""
        if not self.device.bound:
            return UNKNOWN
        counters = self.device.read(whole=whole)
        if self._fold is None:  # else the counter itself sees more than this
            with self._lock:
                self._see(counters)
        return counters

    def stop(self) -> None:
        """Take the fold out, as soon as nobody can tell the difference (see :meth:`PeakFold.retire`)."""
        with self._lock:
            self.closed, self._watches = True, False
            self._open.clear()
            if self._fold is not None:
                self._fold.retire()

    def scopes(self) -> Iterator[OpenPeaks]:
        """The scopes that are open now; from any thread."""
        for reference in list(self._open.values()):
            opened = reference()
            if opened is not None:
                yield opened

    def _show(self, allocated_bytes: int | None, reserved_bytes: int | None) -> None:
        """All open scopes see this; those that nobody holds any more are forgotten."""
        for key, reference in list(self._open.items()):  # a copy: the garbage collector may end a scope meanwhile
            opened = reference()
            if opened is not None:
                opened.see(allocated_bytes, reserved_bytes)
            elif self._open.get(key) is reference:
                del self._open[key]

    def _edge(self) -> Counters:
        if self.closed or not (self._always_bound or self.device.bind()):
            return UNKNOWN
        if self._fold is None:
            if self._nested:
                self._install()
            if self._fold is None:
                self._watches = self._always_bound and not self._nested
                return self._watch()
        counters = counters_of(self._fold.pop_counters())
        self._tell(counters)
        return counters

    def _watch(self) -> Counters:
        counters = self.device.read()
        if counters is not self._seen:  # else it is what was seen last: not even a call is needed
            self._see(counters)
        return counters

    def _see(self, counters: Counters) -> None:
        """Whoever is open has seen, or began with, at least what was seen last: only more than that is news."""
        last = self._seen
        self._seen = counters
        allocated, reserved = counters[0], counters[1]
        if (allocated is not None and allocated > (last[0] or -1)) or (
            reserved is not None and reserved > (last[1] or -1)
        ):
            self._show(allocated, reserved)

    def _tell(self, counters: Counters) -> None:
        self._show(counters.peak_allocated_bytes, counters.peak_reserved_bytes)

    def _install(self) -> None:
        where = self.device.statistics()
        if not where:
            self._nested = False
            return
        self._fold = PeakFold(where, self._lock, lambda stats: self._tell(counters_of(stats)))


def _observed(opened: OpenPeaks, now: Counters, unsure: str) -> PeakRange:
    """The peaks of a scope whose device was never reset, as far as they can be known."""
    before = opened.at_enter
    allocated, kind = _one(
        before.allocated_bytes,
        before.peak_allocated_bytes,
        now.peak_allocated_bytes,
        opened.allocated_bytes,
        unsure,
    )
    reserved, other = _one(
        before.reserved_bytes,
        before.peak_reserved_bytes,
        now.peak_reserved_bytes,
        opened.reserved_bytes,
        unsure,
    )
    return PeakRange(allocated, reserved if other in ("exact", kind) else None, kind)


def _one(
    at_enter: int | None, peak_before: int | None, peak_now: int | None, seen: int | None, unsure: str
) -> tuple[int | None, str | None]:
    if seen is None:
        return None, None
    if peak_now is None:
        return seen, "at_least"  # there is no counter
    if peak_before is not None and peak_now < peak_before:
        return max(seen, peak_now), "at_least"  # somebody reset it inside the scope
    if peak_before is None and at_enter is None:
        return max(peak_now, seen), "exact"  # the device came into use inside the scope
    if peak_now > (peak_before or 0) or seen >= peak_now:
        # The counter rose inside the scope, or its height was seen there. The larger of both, since Linux
        # brings the mark of the resident set up to date a little late.
        return max(peak_now, seen), "exact"
    return (peak_now, unsure) if unsure == "at_most" else (seen, unsure)


# ------------------------------------------------------------------------------------------------- the fold


class PeakFold:
    """Stands in the functions that read and reset a device's statistics, so that our resets can't be seen.

    Args:
        where: All pairs of functions through which this device's statistics are read and reset.
        lock: An RLock, held while a statistic is read or reset.
        told: Is called with the raw statistics before somebody else resets.

    Readers see the larger of the counter and the running maximum of what we have reset away; the running
    maximum starts anew when somebody else resets. Other devices of the same namespace are passed through.
    """

    def __init__(
        self,
        where: Iterable[Statistics],
        lock: Any,
        told: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self.active = True
        self._lock = lock
        self._tell = told
        # Shaped like the statistics, with a number in each peak's place.
        self.retired = False
        where = list(where)
        self._running: dict[Any, Any] = _inherit(where)
        self._pairs = [_Pair(self, one) for one in where]
        self._read = self._pairs[:1] + [pair for pair in self._pairs[1:] if self._adds(pair)]
        for pair in self._pairs:
            pair.install()

    def _adds(self, pair: _Pair) -> bool:
        """Whether this pair shows a peak that the first one doesn't."""
        known = set(_paths(self._pairs[0].read()))
        return not known.issuperset(_paths(pair.read()))

    def pop_counters(self) -> Mapping[str, Any]:
        """The raw statistics of now, reset afterwards. The caller holds the lock."""
        taken = [pair.read() for pair in self._read]
        self._pairs[0].reset()
        for statistics in taken:
            _remember(self._running, statistics)
        return taken[0]

    def remove(self) -> dict[Any, Any]:
        """Put back what was there. Where somebody has patched over us we stay, and only pass through.

        Returns: the running maximum, for a fold that comes next.
        """
        with self._lock:
            self.active = False
            for pair in self._pairs:
                pair.remove()
            return self._running

    def retire(self) -> None:
        """Nobody records any more. While the running maximum is above the counter, readers need it: then the fold
        stays, resets nothing, and goes when somebody resets."""
        with self._lock:
            if any(_exceeds(self._running, pair.read()) for pair in self._read):
                self.retired = True
            else:
                self.remove()

    def shown(self, pair: _Pair) -> Any:
        """The statistics as they would be if we had never reset anything."""
        with self._lock:
            statistics = pair.read()
            _recall(self._running, statistics)
            return statistics

    def restart(self, pair: _Pair) -> Any:
        """Somebody else resets: our open scopes are told what would be lost."""
        with self._lock:
            if not self.retired:
                self._tell(self._pairs[0].read())
            result = pair.reset()
            self._running.clear()
            if self.retired:
                self.remove()
            return result


class _Pair:
    """One read and one reset function: the originals, and ours in their place."""

    def __init__(self, fold: PeakFold, where: Statistics) -> None:
        self._where = where
        self._read = getattr(where.namespace, where.read)
        self._reset = getattr(where.namespace, where.reset)
        self._ours = (
            self._stand_in(self._read, fold, PeakFold.shown),
            self._stand_in(self._reset, fold, PeakFold.restart),
        )

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = self._read(self._where.device_index)
        return found

    def reset(self) -> Any:
        return self._reset(self._where.device_index)

    def install(self) -> None:
        where = self._where
        setattr(where.namespace, where.read, self._ours[0])
        setattr(where.namespace, where.reset, self._ours[1])

    def remove(self) -> None:
        where = self._where
        originals = (self._read, self._reset)
        for name, ours, original in zip((where.read, where.reset), self._ours, originals, strict=True):
            if getattr(where.namespace, name) is ours:
                setattr(where.namespace, name, original)

    def _stand_in(
        self, original: Callable[..., Any], fold: PeakFold, action: Callable[[PeakFold, _Pair], Any]
    ) -> Callable[..., Any]:
        index = self._where.device_index

        def stand_in(device: Any, *args: Any, **kwargs: Any) -> Any:
            if fold.active and device == index and not args and not kwargs:
                return action(fold, self)
            return original(device, *args, **kwargs)

        marked: Any = stand_in
        marked.probe_fold = fold  # a later fold finds a retired one by it
        return stand_in


def _remember(running: dict[Any, Any], statistics: Mapping[Any, Any]) -> None:
    """Raise each running maximum to the peak that the statistics show."""
    for key, value in statistics.items():
        if value.__class__ is not dict:
            continue
        peak = value.get("peak")
        if peak is None:
            _remember(running.setdefault(key, {}), value)
        elif peak > running.get(key, -1):
            running[key] = peak


def _recall(running: Mapping[Any, Any], statistics: Mapping[Any, Any]) -> None:
    """Raise each peak of the statistics to its running maximum."""
    for key, value in statistics.items():
        if value.__class__ is not dict:
            continue
        past = running.get(key, running.get(_ALIASES.get(key)))
        if past.__class__ is dict:
            _recall(past, value)
        elif past is not None and past > value.get("peak", past):
            value["peak"] = past


def _exceeds(running: Mapping[Any, Any], statistics: Mapping[Any, Any]) -> bool:
    """Whether a running maximum is above its peak in the statistics."""
    shown = copy.deepcopy(dict(statistics))
    _recall(running, shown)
    return shown != statistics


def _inherit(where: Iterable[Statistics]) -> dict[Any, Any]:
    """The running maximum of a retired fold that is still in place; it is taken out."""
    running: dict[Any, Any] = {}
    for one in where:
        fold = getattr(getattr(one.namespace, one.read), "probe_fold", None)
        if fold is not None and fold.retired:
            running |= fold.remove()
    return running


def _paths(statistics: Mapping[Any, Any], above: Path = ()) -> Iterator[Path]:
    """The keys that lead to each peak, in the words of CUDA."""
    for key, value in statistics.items():
        if isinstance(value, dict):
            name = key if above else _ALIASES.get(key, key)
            if "peak" in value:
                yield (*above, name)
            else:
                yield from _paths(value, (*above, name))
