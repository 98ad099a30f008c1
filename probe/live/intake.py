"""Rows of records as rows of the live tables, one at a time, with what must be remembered between them."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from probe.dashboards.spec import TABLES
from probe.live.nesting import Cut, Key, Nesting, Span
from probe.live.padding_ledger import PaddingLedger
from probe.live.tables import LiveTable, Words, dtype
from probe.live.thinning import Block
from probe.records import Call, Incident, Memory, MicroBatch, Padding, Process, Reduction, Row, Scalar

#: Rows of a live table in the order of its columns.
Rows = list[tuple[Any, ...]]

_NAN: Final = math.nan
#: What four bytes hold.
_LEAST: Final = -(2**31)
_MOST: Final = 2**31 - 1

_NOTHING: Final = np.empty(0)
#: Of each table the places of its columns by dtype: an array for each dtype is made faster than one for each column.
_PLACES: Final[Mapping[str, Mapping[str, Sequence[int]]]] = {
    table: {code: [at for at, one in enumerate(columns.values()) if dtype(one) == code] for code in codes}
    for table, columns in TABLES.items()
    for codes in [dict.fromkeys(map(dtype, columns.values()))]
}


def block_of(table: str, rows: Rows) -> Block:
    """``rows`` as columns. Whole numbers that don't fit four bytes become the nearest that does."""
    names, columns = tuple(TABLES[table]), tuple(zip(*rows, strict=True))
    found: Block = dict.fromkeys(names, _NOTHING)
    for code, places in _PLACES[table].items():
        chosen = [columns[at] for at in places]
        made = _whole(chosen) if code == "i4" else np.array(chosen, dtype=code)  # None among floats becomes NaN
        for at, values in zip(places, made, strict=True):
            found[names[at]] = values
    return found


def _whole(columns: Sequence[Sequence[int]]) -> npt.NDArray[np.int32]:
    """Several columns of one length as the rows of one array."""
    shape = len(columns), len(columns[0])
    values = itertools.chain.from_iterable(columns)
    try:
        return np.frombuffer(struct.pack(f"={shape[0] * shape[1]}i", *values), np.int32).reshape(shape)
    except struct.error:
        return np.array([[fit(one) for one in column] for column in columns], dtype=np.int32)


class Clocks:
    """Seconds since the run's start, from each rank's own clock.

    Args:
        start_ns: Wall-clock time of the run's start; 0 where it isn't known: then the start of the first process
            counts.
    """

    def __init__(self, start_ns: int = 0) -> None:
        self.start_ns = start_ns
        self._offsets: dict[int, int] = {}  # by rank: wall clock − monotonic

    def begin(self, processes: Iterable[Process]) -> None:
        """Know the start at the latest now, if any process is known."""
        if not self.start_ns:
            self.start_ns = min((one.wall_ns for one in processes), default=0)

    def set(self, process: Process) -> None:
        """From here on, rows of its rank are those of ``process``."""
        self._offsets[process.rank] = process.wall_ns - process.time_ns

    def seconds(self, row: Row, before_ns: int = 0) -> float:
        """When ``row`` happened, or so long before; NaN where its process never said what time it is."""
        offset = self._offsets.get(row.rank)
        return _NAN if offset is None else (row.time_ns + offset - before_ns - self.start_ns) / 1e9


class Scopes:
    """Numbers of scopes that stay unique over the processes of a rank: a resumed run begins to count again."""

    def __init__(self) -> None:
        self._base: dict[int, int] = {}
        self._top: dict[int, int] = {}

    def restart(self, rank: int) -> None:
        """A new process writes for ``rank``."""
        self._base[rank] = self._top.get(rank, -1) + 1

    def resume(self, rank: int, base: int, top: int) -> None:
        """Go on where ``top`` is the largest number given, and ``base`` that of the process's scope 0."""
        self._base[rank], self._top[rank] = base, top

    def number(self, rank: int, scope: int) -> int:
        """The number of scope ``scope`` of the process that writes for ``rank`` now."""
        found = self._base.get(rank, 0) + scope
        if found > self._top.get(rank, -1):
            self._top[rank] = found
        return found


class Intake:
    """Turns rows into live rows.

    Attributes:
        rows: How many were taken.
        step: The newest step, −1 before the first.
        lost: Rows that the run's writers had to drop.
        world_size: As the processes tell.
        writers: The process of each rank that began last.
        newest: When the newest row was written, seconds since the run's start; NaN before the first.
    """

    def __init__(self, words: Words, padding: LiveTable, start_ns: int = 0) -> None:
        self.clocks = Clocks(start_ns)
        self.scopes = Scopes()
        self.ledger = PaddingLedger(padding, words)
        self.step = -1
        self.lost = 0
        self.rows = 0
        self.world_size = 0
        self.writers: dict[int, Process] = {}
        self.newest = _NAN
        self.nesting = Nesting(words)
        self.open: dict[Key, tuple[float, float]] = {}  # when the scope began, and what was allocated then
        self.measured: set[int] = set()  # ranks whose memory is recorded: their scopes come from there
        self._newest: dict[int, float] = {}  # by rank: time of its last memory row
        self._words = words
        self._rows: dict[str, Rows] = {}
        self._padding: list[Padding] = []
        self._take: dict[type[Row], Callable[[Any], None]] = {
            Process: self._process,
            Memory: self._memory,
            MicroBatch: self._micro_batch,
            Padding: self._padding.append,
            Call: self._call,
            Reduction: self._reduction,
            Scalar: self._scalar,
            Incident: self._incident,
        }

    def take(self, rows: Iterable[Row]) -> dict[str, Rows]:
        """The live rows that ``rows`` make, by table; tables without any are left out."""
        rows = list(rows)
        self.rows += len(rows)
        self.clocks.begin(row for row in rows if isinstance(row, Process))
        for row in rows:
            if row.step is not None and row.step > self.step:
                self.step = row.step
            self._take[type(row)](row)
        for row in {row.rank: row for row in rows}.values():  # the last of each rank
            self.newest = later(self.newest, self.clocks.seconds(row))
        self._rows["spans"] = [*self.nesting.take()]
        if self._padding:
            self._rows["padding"] = [*self.ledger.take(self._padding)]
        found = {name: made for name, made in self._rows.items() if made}
        if "memory" in found:
            found["memory"] = self._in_order(found["memory"])
        self._rows = {}
        self._padding.clear()
        return {name: made for name, made in found.items() if made}

    def remember_order(self, rank: int, seconds: float) -> None:
        """Memory rows of ``rank`` up to that time have been given."""
        self._newest[rank] = seconds

    def _in_order(self, rows: Rows) -> Rows:
        """By time, those of a rank never going back.

        The beginning of a long scope is written late, with the next sample; what was allocated then stands in the
        scope's own row, and a line that goes back in time can't be drawn.
        """
        kept: Rows = []
        for row in sorted(rows, key=lambda one: one[0]):
            seconds, rank = row[0], row[1]
            if not seconds < self._newest.get(rank, -math.inf):
                kept.append(row)
                self._newest[rank] = seconds
        return kept

    def _add(self, table: str, row: tuple[Any, ...]) -> None:
        self._rows.setdefault(table, []).append(row)

    def _where(self, row: Row) -> tuple[int, int]:
        code = self._words.code
        return code(row.role), code(row.phase)

    def _process(self, row: Process) -> None:
        self.clocks.set(row)
        self.writers[row.rank] = row
        self.scopes.restart(row.rank)
        self._newest.pop(row.rank, None)
        for key in [one for one in self.open if one[0] == row.rank]:
            del self.open[key]  # its process is gone, and ended in it
        self.world_size = max(self.world_size, row.world_size)

    def _memory(self, row: Memory) -> None:
        self.measured.add(row.rank)
        seconds, where = self.clocks.seconds(row), self._where(row)
        self._add(
            "memory",
            (
                seconds,
                row.rank,
                *where,
                whole(row.step),
                row.allocated_bytes,
                row.reserved_bytes,
                row.non_torch_bytes,
                row.device_used_bytes,
                row.device_total_bytes,
            ),
        )
        if row.edge == "enter":
            self._enter(row, seconds, where)
        elif row.edge == "leave":
            self._leave(row, seconds, where)

    def _enter(self, row: Memory, seconds: float, where: tuple[int, int]) -> None:
        begun = _number(row.allocated_bytes)
        span = self._scope(row, self.scopes.number(row.rank, row.scope_id), where, (seconds, _NAN), begun)
        span.at_end = span.peak = span.reserved_peak = _NAN
        self.open[span.key] = seconds, begun
        self.nesting.put(span)

    def _leave(self, row: Memory, seconds: float, where: tuple[int, int]) -> None:
        scope = self.scopes.number(row.rank, row.scope_id)
        begin, begun = self.open.pop((row.rank, scope), (seconds, _NAN))
        if row.host_duration_ns is not None:
            begin = self.clocks.seconds(row, row.host_duration_ns)
        self.nesting.put(self._scope(row, scope, where, (begin, seconds), begun))

    def _scope(self, row: Memory, scope: int, where: tuple[int, int], times: tuple[float, float], begun: float) -> Span:
        code = self._words.code
        return Span(
            step=whole(row.step),
            rank=row.rank,
            role=where[0],
            phase=where[1],
            kind=code(row.kind),
            name=code(row.name),
            micro_batch=whole(row.micro_batch),
            scope=scope,
            parent=self.scopes.number(row.rank, row.parent_id or 0),
            begin=times[0],
            end=times[1],
            peak=_number(row.peak_allocated_bytes),
            reserved_peak=_number(row.peak_reserved_bytes),
            at_begin=begun,
            at_end=_number(row.allocated_bytes),
            peak_kind=code(row.peak_kind),
            top=not row.parent_id,
        )

    def _micro_batch(self, row: MicroBatch) -> None:
        index = whole(row.micro_batch)
        if row.micro_batch is not None:
            slot = (row.rank, self.scopes.number(row.rank, row.scope_id), index)
            slots = -1 if row.width_tokens is None else row.sequences * row.width_tokens
            numbers = map(fit, (row.batch_id, row.tokens, slots))
            self.nesting.put_cut(slot, Cut(self.clocks.seconds(row), *numbers))
        self._add(
            "micro",
            (
                whole(row.step),
                row.rank,
                *self._where(row),
                row.batch_id,
                index,
                row.tokens,
                row.sequences,
                max(row.lengths, default=0),
                whole(row.width_tokens),
                whole(row.cap_tokens),
                row.workload,
                int(row.over_cap),
            ),
        )

    def _call(self, row: Call) -> None:
        if row.point.startswith("scope."):
            if row.rank not in self.measured:
                self._scope_call(row)
            return
        code = self._words.code
        self._add(
            "calls",
            (
                self.clocks.seconds(row),
                whole(row.step),
                row.rank,
                *self._where(row),
                code(row.point),
                code(row.name),
                row.duration_ns / 1e9,
                whole(row.rows_in),
                whole(row.rows_out),
                row.bytes_in,
                row.bytes_out,
                code(", ".join(row.keys_added) or None),
                code(", ".join(row.keys_removed) or None),
                code(row.error),
            ),
        )

    def _scope_call(self, row: Call) -> None:
        """Nobody records memory: a scope has its times alone, and its path says where it lies."""
        code, number = self._words.code, self.scopes.number
        top = bool(row.scope) and row.scope == row.name
        span = Span(
            step=whole(row.step),
            rank=row.rank,
            role=code(row.role),
            phase=code(row.phase),
            kind=code(row.point.removeprefix("scope.")),
            name=code(row.name),
            micro_batch=whole(row.micro_batch),
            scope=number(row.rank, row.scope_id),
            parent=number(row.rank, 0) if top else -1,
            begin=self.clocks.seconds(row, row.duration_ns),
            end=self.clocks.seconds(row),
            top=top,
        )
        around = "" if top else row.scope[: max(len(row.scope) - len(row.name) - 1, 0)]
        self.nesting.put_call(span, row.scope, around)

    def _reduction(self, row: Reduction) -> None:
        code = self._words.code
        names = (code(row.key), code(row.reducer), code(row.chosen_by))
        numbers = (row.count, row.smallest, row.largest, row.nan_count, row.value)
        self._add("reductions", (whole(row.step), row.rank, *names, *numbers))

    def _scalar(self, row: Scalar) -> None:
        key, own = self._words.code(row.key), int(row.source == "probe")
        self._add("scalars", (self.clocks.seconds(row), whole(row.step), row.rank, key, row.value, own))

    def _incident(self, row: Incident) -> None:
        if row.kind == "dropped_rows":
            self.lost += row.count
        # A listener's row says for which time it failed, and there is one for each.
        count = 1 if row.kind == "listener" else row.count
        texts = [self._words.code(text) for text in (row.kind, row.where, row.message)]
        self._add("events", (self.clocks.seconds(row), whole(row.step), row.rank, *texts, count, int(row.switched_off)))


def whole(value: int | None) -> int:
    """A whole number for a column, −1 for none.

    >>> whole(3), whole(None)
    (3, -1)
    """
    return -1 if value is None else value


def later(one: float, other: float) -> float:
    """The later of two times, either of which may be NaN for unknown.

    >>> later(math.nan, 2.0), later(3.0, 2.0), later(3.0, math.nan)
    (2.0, 3.0, 3.0)
    """
    return other if math.isnan(one) or other > one else one


def fit(value: int) -> int:
    """The nearest whole number that a column can hold.

    >>> fit(7), fit(2**40)
    (7, 2147483647)
    """
    return min(max(value, _LEAST), _MOST)


def _number(value: int | None) -> float:
    return _NAN if value is None else float(value)
