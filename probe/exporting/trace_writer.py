"""The tracks of a trace: which rank they belong to, what stands on them, and how slices nest."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from probe.exporting import trace_wire as wire

if TYPE_CHECKING:
    import pyarrow

#: Columns of a slice that it shows when it's selected, beside its point.
ARGUMENTS: Final = (
    "step",
    "role",
    "phase",
    "micro_batch",
    "rows_in",
    "rows_out",
    "bytes_in",
    "bytes_out",
    "error",
    "peak_allocated_bytes",
    "peak_kind",
    "device_duration_ns",
    "tokens",
    "sequences",
    "cap_tokens",
)

#: Counter by column, and what it is called.
COUNTERS: Final = {
    "allocated_bytes": "allocated",
    "reserved_bytes": "reserved",
    "device_used_bytes": "device used by all processes",
    "process_rss_bytes": "process memory (RSS)",
}

RUNNING: Final = "tokens of the running micro-batch"
CUT: Final = "tokens of the batch that was cut"
SLICES: Final = "steps, phases and calls"
INSTANTS: Final = "incidents"

#: Where a track stands among those of its rank.
_ORDER: Final = {INSTANTS: 0, SLICES: 1, RUNNING: 1001, CUT: 1002}
_COUNTER_ORDER: Final = 1010


class _Lane:
    """A track on which slices nest: the ends of those that are open, the outermost first."""

    def __init__(self, uuid: int) -> None:
        self.begins = wire.place(wire.BEGIN, uuid)
        self.ends = wire.place(wire.END, uuid)
        self.open: list[tuple[int, bytes]] = []


class TraceWriter:
    """Writes a trace as its rows come. Tracks are declared when they are first needed.

    Args:
        write: Takes the bytes.
        wall_ns: A moment of the run, by which a viewer tells the time of day.
        names: What those are called that have a number instead of a rank.

    Attributes:
        slices: How many slices were written.
        counters: How many values of counters were written.
        instants: How many instants were written.
        ranks: Those that have anything.
    """

    def __init__(self, write: Callable[[bytes], Any], wall_ns: int, names: Mapping[int, str] | None = None) -> None:
        self._write = write
        self._names = names or {}
        self._uuids = itertools.count(1)
        self._processes: dict[int, int] = {}
        self._places: dict[tuple[int, str], bytes] = {}
        self._lanes: list[_Lane] = []  # of the rank whose slices are being written
        self._rank: int | None = None
        self.slices = self.counters = self.instants = 0
        write(wire.clocks(wall_ns))
        self._events = wire.Sequence(write)

    @property
    def ranks(self) -> list[int]:
        """Those that have a process in the trace."""
        return sorted(self._processes)

    # -------------------------------------------------------------------------------------------------- tracks

    def process(self, rank: int, about: str = "") -> int:
        """The track of a rank, under which its others stand. Its process number is made up, as several hosts have
        the same.
        """
        uuid = self._processes.get(rank)
        if uuid is None:
            uuid = self._processes[rank] = next(self._uuids)
            self._write(wire.process(uuid, rank + 1, f"{self._names.get(rank, f'rank {rank}')}{about}"))
        return uuid

    def _track(self, rank: int, name: str, order: int, unit: int | str | None = None) -> int:
        uuid = next(self._uuids)
        self._write(wire.track(uuid, self.process(rank), name, order, unit=unit))
        return uuid

    def _counter(self, rank: int, name: str, order: int, unit: int | str) -> bytes:
        where = self._places.get((rank, name))
        if where is None:
            where = wire.place(wire.COUNTER, self._track(rank, name, order, unit))
            self._places[rank, name] = where
        return where

    # -------------------------------------------------------------------------------------------------- slices

    def add_slices(self, batch: pyarrow.RecordBatch) -> None:
        """Slices in the order of (rank, begin, outermost first); columns rank, begin, end, category, name, point,
        unfinished and :data:`ARGUMENTS`.
        """
        columns = {name: batch[name].to_pylist() for name in batch.schema.names}
        begins, ends = (wire.stamps(batch[name].to_numpy()) for name in ("begin", "end"))
        shown = [self._events.arguments(name, columns[name]) for name in ("point", *ARGUMENTS)]
        for i, details in enumerate(zip(*shown, strict=True)):
            rank, begin, end = columns["rank"][i], columns["begin"][i], columns["end"][i]
            if rank != self._rank:
                self.end_slices()
                self._rank = rank
            lane = self._lane(rank, begin, end)
            lane.open.append((end, ends[i]))
            content = self._events.named(_name(columns, i), columns["category"][i] or "scope")
            self._events.event(lane.begins, begins[i], content + b"".join(details))
            if columns["tokens"][i] is not None:
                self._running(rank, columns["tokens"][i], begins[i], ends[i])
        self.slices += batch.num_rows

    def _lane(self, rank: int, begin: int, end: int) -> _Lane:
        """The first track on which the slice lies inside or beside what is there; threads make further ones."""
        for lane in self._lanes:
            self._close(lane, begin)
            if not lane.open or end <= lane.open[-1][0]:
                return lane
        number = len(self._lanes)
        name = f"{SLICES}, overlapping ({number + 1})" if number else SLICES
        self._lanes.append(_Lane(self._track(rank, name, _ORDER[SLICES] + number)))
        return self._lanes[-1]

    def _close(self, lane: _Lane, until: int) -> None:
        while lane.open and lane.open[-1][0] <= until:
            self._events.event(lane.ends, lane.open.pop()[1])

    def end_slices(self) -> None:
        """The rank's last slices have come."""
        for lane in self._lanes:
            while lane.open:
                self._events.event(lane.ends, lane.open.pop()[1])
        self._lanes = []

    def _running(self, rank: int, tokens: int, begin: bytes, end: bytes) -> None:
        where = self._counter(rank, RUNNING, _ORDER[RUNNING], wire.UNIT_TOKENS)
        self._events.event(where, begin, wire.counted(tokens))
        self._events.event(where, end, wire.counted(0))
        self.counters += 2

    # ------------------------------------------------------------------------------------ counters and instants

    def add_memory(self, batch: pyarrow.RecordBatch) -> None:
        """Memory: columns rank, wall_ns, device, source and those of :data:`COUNTERS`."""
        wall_ns = batch["wall_ns"].to_numpy()
        for rows, (rank, device, source) in _groups(batch, "rank", "device", "source"):
            for column in COUNTERS:
                self._add(self._memory_counter(rank, column, device, source), wall_ns, batch[column], rows)

    def _add(
        self, where: Callable[[], bytes], wall_ns: NDArray[np.int64], values: Any, rows: NDArray[np.int64]
    ) -> None:
        """The values of one counter, of those rows that have one."""
        rows = rows[values.is_valid().to_numpy(zero_copy_only=False)[rows]]
        if len(rows):
            numbers = values.fill_null(0).to_numpy()
            self._events.counters(where(), wall_ns[rows], numbers[rows])
            self.counters += len(rows)

    def _memory_counter(self, rank: int, column: str, device: str, source: str) -> Callable[[], bytes]:
        if source == "process_rss" and column == "allocated_bytes":
            column = "process_rss_bytes"  # on a machine without an accelerator that's what is meant
        name = COUNTERS[column] if column == "process_rss_bytes" else f"{COUNTERS[column]}, {device}"
        order = _COUNTER_ORDER + list(COUNTERS).index(column)
        return partial(self._counter, rank, name, order, wire.UNIT_BYTES)

    def add_batches(self, batch: pyarrow.RecordBatch) -> None:
        """Batches that were cut into micro-batches: columns rank, wall_ns and tokens."""
        wall_ns = batch["wall_ns"].to_numpy()
        for rows, (rank,) in _groups(batch, "rank"):
            where = partial(self._counter, rank, CUT, _ORDER[CUT], wire.UNIT_TOKENS)
            self._add(where, wall_ns, batch["tokens"], rows)

    def add_incidents(self, batch: pyarrow.RecordBatch) -> None:
        """Incidents: columns rank, wall_ns, kind, where, and others that are shown."""
        stamps = wire.stamps(batch["wall_ns"].to_numpy())
        for stamp, row in zip(stamps, batch.to_pylist(), strict=True):
            key = (row["rank"], INSTANTS)
            if key not in self._places:
                self._places[key] = wire.place(wire.INSTANT, self._track(row["rank"], INSTANTS, _ORDER[INSTANTS]))
            content = self._events.named(f"{row['kind']}: {row['where']}", "incident")
            for name, value in row.items():
                if value is not None and name not in {"rank", "wall_ns", "kind", "where"}:
                    content += self._events.argument(name, value)
            self._events.event(self._places[key], stamp, content)
        self.instants += batch.num_rows


def _groups(batch: pyarrow.RecordBatch, *names: str) -> Iterator[tuple[NDArray[np.int64], tuple[Any, ...]]]:
    """The rows of each combination of values, in the order in which they come."""
    rows: dict[tuple[Any, ...], list[int]] = {}
    for row, key in enumerate(zip(*(batch[name].to_pylist() for name in names), strict=True)):
        rows.setdefault(key, []).append(row)
    for key, found in rows.items():
        yield np.array(found), key


def _name(columns: dict[str, list[Any]], i: int) -> str:
    """What a slice is called: scopes that are counted carry their number."""
    category, name = columns["category"][i], columns["name"][i] or columns["point"][i]
    if category == "step" and columns["step"][i] is not None:
        name = f"{name} {columns['step'][i]}"
    if category == "micro_batch":
        name = f"micro-batch {name.removeprefix('micro_batch ')}"
    return f"{name} (unfinished)" if columns["unfinished"][i] else name
