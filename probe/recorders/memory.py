"""The memory table: what a device held at the ends of each scope, the peak in between, and samples."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final, cast

from probe.core.metric import Metric
from probe.devices import Counters, Device, detect, process_rss_bytes
from probe.hooks import SCOPE, Event, Scope
from probe.recorders.opened import Duration, OpenedScope
from probe.recorders.peaks import PeakLedger, Peaks
from probe.recorders.recorder import Recorder, Rows, rows_of
from probe.recorders.resident import ResidentLedger, is_told_by_kernel
from probe.records import GIB, Deferred, Memory, Row

_clock: Final = time.monotonic_ns

#: What a role can't be called, since keys of the same depth have these names.
_TAKEN: Final = frozenset(
    {
        "phase",
        "peak_allocated_gib_max",
        "peak_reserved_gib_max",
        "peak_rss_gib_max",
        "device_used_gib_max",
        "non_torch_gib_max",
        "headroom_gib",
    }
)


class MemoryRecorder(Recorder):
    """Writes two :class:`~probe.records.Memory` rows for each scope, and samples in between.

    The row of a scope's beginning is written with that of its end, or with the next sample if the scope is
    still open then: a run whose process was killed says in which scopes that happened.

    Args:
        device: Anything that ``devices.detect`` takes; None detects one.
        peaks: ``"nested"`` gives every scope its exact peak; ``"observe"`` never resets the device's counters.

    Used and total memory of the whole device stand in samples only: they take a call of the driver.

    Raises:
        InputError: This machine doesn't have the device.
        UnknownNameError: ``peaks`` is another word.
    """

    rows: ClassVar[tuple[type[Row], ...]] = (Memory,)
    points: ClassVar[tuple[str, ...]] = (SCOPE.name,)
    keys: ClassVar[tuple[str, ...]] = (
        "probe/memory/peak_allocated_gib_max",
        "probe/memory/peak_reserved_gib_max",
        "probe/memory/peak_rss_gib_max",
        "probe/memory/device_used_gib_max",
        "probe/memory/non_torch_gib_max",
        "probe/memory/headroom_gib",
        "probe/memory/{role}/peak_allocated_gib_max",
        "probe/memory/{role}/peak_reserved_gib_max",
        "probe/memory/{role}/peak_rss_gib_max",
        "probe/memory/phase/{phase}/peak_allocated_gib_max",
        "probe/memory/phase/{phase}/peak_reserved_gib_max",
        "probe/memory/phase/{phase}/peak_rss_gib_max",
    )

    def __init__(self, device: Device | Any = None, peaks: Peaks = "nested") -> None:
        self.device = detect(device)
        if is_told_by_kernel(self.device):
            resident = ResidentLedger(self.device, peaks, self)
            self._ledger: PeakLedger = resident
            own: Any = self
            own.enter, own.leave = resident.enter, resident.leave  # nothing is done to what they say
        else:
            self._ledger = PeakLedger(self.device, peaks)
        self._has_events = type(self.device).event is not Device.event

    def enter(self, event: Event) -> OpenedScope:
        opened = self._ledger.open(OpenedScope)
        opened.recorder = self
        opened.begin = self.device.event() if self._has_events else None
        opened.time_ns = _clock()
        opened.scope = event.scope
        return opened

    def leave(self, event: Event, state: OpenedScope) -> Deferred | None:
        if self._ledger.closed:
            return None
        begin = state.begin
        end = None if begin is None else self.device.event()
        self._ledger.close(state)
        end_ns = event.end_ns
        state.end_ns = end_ns or _clock()
        state.host_ns = end_ns - event.begin_ns
        state.duration = None if begin is None or end is None else Duration(self.device, begin, end)
        return state

    def sample(self) -> Rows:
        if self._ledger.closed:
            return None
        opened = [one for one in self._ledger.scopes() if isinstance(one, OpenedScope)]
        begun = [self._begun(one, one.scope) for one in opened if one.scope is not None and not one.written]
        return [*begun, self._sampled_row()]

    def _sampled_row(self) -> Memory:
        now = self._ledger.look(whole=True)
        row = self._row("sample", now)
        row.time_ns = time.monotonic_ns()
        row.device_used_bytes, row.device_total_bytes = now.used_bytes, now.total_bytes
        if now.used_bytes is not None and now.reserved_bytes is not None:
            row.non_torch_bytes = now.used_bytes - now.reserved_bytes
            own = now.process_used_bytes
            if own is not None and now.reserved_bytes <= own <= now.used_bytes:  # else they are of unlike moments
                row.non_torch_bytes = own - now.reserved_bytes
                row.other_processes_bytes = now.used_bytes - own
        row.process_rss_bytes = process_rss_bytes()
        return row

    def metrics(self, rows: Sequence[Row]) -> dict[str, Metric]:
        found: dict[tuple[str, str], list[float]] = {}
        for row in rows_of(rows, Memory):
            for key, value, aggregation in _values(row):
                found.setdefault((key, aggregation), []).append(value / GIB)
        return {key: Metric(aggregation, values) for (key, aggregation), values in found.items()}

    def close(self) -> None:
        self._ledger.stop()

    def _row(self, edge: str, counters: Counters) -> Memory:
        return Memory(
            edge=edge,
            device=self.device.name,
            source=self.device.source,
            allocated_bytes=counters.allocated_bytes,
            reserved_bytes=counters.reserved_bytes,
            alloc_retries=counters.alloc_retries,
        )

    def rows_of_scope(self, closed: OpenedScope) -> list[Memory]:
        """The rows of a scope that has ended; the writer's thread asks, once."""
        scope, peaks = cast("Scope", closed.scope), self._ledger.peaks(closed)
        end = self._edge("leave", scope, closed.end_ns, closed.at_leave)
        end.peak_allocated_bytes = peaks.allocated_bytes
        end.peak_reserved_bytes = peaks.reserved_bytes
        end.peak_kind = peaks.kind
        end.host_duration_ns = closed.host_ns
        end.device_duration_ns = None if closed.duration is None else closed.duration.pop_ns()
        return [end] if closed.written else [self._begun(closed, scope), end]

    def _begun(self, opened: OpenedScope, where: Scope) -> Memory:
        opened.written = True
        row = self._edge("enter", where, opened.time_ns, opened.at_enter)
        # A sample's stamp would be the writer's own scope.
        row.step, row.role, row.phase, row.micro_batch = where.step, where.role, where.phase, where.micro_batch
        return row

    def _edge(self, edge: str, scope: Scope, time_ns: int, counters: Counters) -> Memory:
        device = self.device
        return Memory(
            edge=edge,
            time_ns=time_ns,
            kind=scope.kind,
            name=scope.name,
            scope_id=scope.id,
            scope=scope.path,
            parent_id=None if scope.parent is None else scope.parent.id,
            device=device.name,
            source=device.source,
            allocated_bytes=counters.allocated_bytes,
            reserved_bytes=counters.reserved_bytes,
            process_rss_bytes=counters.allocated_bytes if device.source == "process_rss" else None,
            alloc_retries=counters.alloc_retries,
        )


def _values(row: Memory) -> Iterator[tuple[str, int, str]]:
    """Metric key, bytes and aggregation of what one row contributes."""
    if row.edge == "sample":
        yield from _sampled(row)
        return
    # "at_most" is the height of an older peak, which isn't this scope's.
    if row.edge != "leave" or row.peak_kind not in ("exact", "at_least"):
        return
    for allocated, reserved in _peak_keys(row.role, row.phase, row.source):
        if row.peak_allocated_bytes is not None:
            yield allocated, row.peak_allocated_bytes, "max"
        if row.peak_reserved_bytes is not None:
            yield reserved, row.peak_reserved_bytes, "max"


@functools.lru_cache(maxsize=256)
def _peak_keys(role: str | None, phase: str | None, source: str) -> tuple[tuple[str, str], ...]:
    """Of the process, of a role and of a phase: the keys of the peaks of what is allocated, and reserved."""
    names = [""]
    if role is not None:
        names.append(f"{_segment(role, _TAKEN)}/")
    if phase is not None:
        names.append(f"phase/{_segment(phase)}/")
    allocated = "peak_rss_gib_max" if source == "process_rss" else "peak_allocated_gib_max"
    return tuple((f"probe/memory/{name}{allocated}", f"probe/memory/{name}peak_reserved_gib_max") for name in names)


def _sampled(row: Memory) -> Iterator[tuple[str, int, str]]:
    if row.device_used_bytes is not None:
        yield "probe/memory/device_used_gib_max", row.device_used_bytes, "max"
        if row.device_total_bytes is not None:
            yield "probe/memory/headroom_gib", row.device_total_bytes - row.device_used_bytes, "min"
    if row.non_torch_bytes is not None:
        yield "probe/memory/non_torch_gib_max", row.non_torch_bytes, "max"


def _segment(text: str, taken: frozenset[str] = frozenset()) -> str:
    """``text`` as one segment of a metric's name.

    >>> _segment("actor / rollout"), _segment("phase", _TAKEN), _segment("")
    ('actor___rollout', 'phase_', '_')
    """
    segment = re.sub(r"[^A-Za-z0-9_.-]", "_", text)
    return f"{segment}_" if segment in taken or not segment.strip(".") else segment
