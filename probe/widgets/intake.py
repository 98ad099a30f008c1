"""Rows of records as rows of the live tables, one at a time, with what must be remembered between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np

from probe.live import TABLES
from probe.records import Call, Incident, Memory, MicroBatch, Padding, Process, Reduction, Row, Scalar
from probe.widgets.padding_ledger import PaddingLedger
from probe.widgets.tables import LiveTable, Words, dtype
from probe.widgets.thinning import Block

#: Rows of a live table in the order of its columns.
Rows = list[tuple[Any, ...]]

#: Steps for which the tokens of micro-batches are remembered until their scopes end.
_STEPS: Final = 64

_NAN: Final = math.nan
_I4: Final = np.iinfo(np.int32)


def block_of(table: str, rows: Rows) -> Block:
    """``rows`` as columns. Whole numbers that don't fit four bytes become the nearest that does."""
    found: Block = {}
    for (name, kind), values in zip(TABLES[table].items(), zip(*rows, strict=True), strict=True):
        if kind in ("f8", "f4"):
            found[name] = np.array(values, dtype=dtype(kind))  # None becomes NaN
        else:
            found[name] = np.array(values, dtype=np.int64).clip(_I4.min, _I4.max).astype(dtype(kind))
    return found


class Clocks:
    """Seconds since the run's start, from each rank's own clock.

    Args:
        start_ns: wall-clock time of the run's start; 0 where it isn't known: then that of the first process counts.
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
        step: the newest step, −1 before the first. lost: rows that the run's writers had to drop.
        world_size: as the processes tell.
    """

    def __init__(self, words: Words, padding: LiveTable, start_ns: int = 0) -> None:
        self.clocks = Clocks(start_ns)
        self.scopes = Scopes()
        self.ledger = PaddingLedger(padding, words)
        self.step = -1
        self.lost = 0
        self.world_size = 0
        self.open: dict[tuple[int, int], tuple[tuple[Any, ...], float]] = {}  # row of the scope, allocated at begin
        self.measured: set[int] = set()  # ranks whose memory is recorded: their scopes come from there
        self.tokens: dict[int, dict[tuple[int, str | None, int], int]] = {}
        self._newest: dict[int, float] = {}  # by rank: time of its last memory row
        self._words = words
        self._opened: set[tuple[int, int]] = set()
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
        self.clocks.begin(row for row in rows if isinstance(row, Process))
        for row in rows:
            if row.step is not None and row.step > self.step:
                self.step = row.step
            self._take[type(row)](row)
        for key in self._opened & self.open.keys():
            self._add("spans", self.open[key][0])
        if self._padding:
            self._rows["padding"] = [*self.ledger.take(self._padding)]
        found = {name: made for name, made in self._rows.items() if made}
        if "memory" in found:
            found["memory"] = self._in_order(found["memory"])
        self._rows, self._opened = {}, set()
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
        self.scopes.restart(row.rank)
        self._newest.pop(row.rank, None)
        for key in [one for one in self.open if one[0] == row.rank]:
            span, _ = self.open.pop(key)  # its process is gone, and ended in it
            if key in self._opened:
                self._add("spans", span)
        self.world_size = max(self.world_size, row.world_size)

    def _memory(self, row: Memory) -> None:
        self.measured.add(row.rank)
        seconds = self.clocks.seconds(row)
        self._add(
            "memory",
            (
                seconds,
                row.rank,
                *self._where(row),
                whole(row.step),
                row.allocated_bytes,
                row.reserved_bytes,
                row.not_torch_bytes,
                row.device_used_bytes,
                row.device_total_bytes,
            ),
        )
        if row.edge == "enter":
            self._enter(row, seconds)
        elif row.edge == "leave":
            self._leave(row, seconds)

    def _enter(self, row: Memory, seconds: float) -> None:
        scope = self.scopes.number(row.rank, row.scope_id)
        begun = _number(row.allocated_bytes)
        self.open[row.rank, scope] = self._span(row, scope, (seconds, _NAN, _NAN, _NAN, begun, _NAN), exact=0), begun
        self._opened.add((row.rank, scope))

    def _leave(self, row: Memory, seconds: float) -> None:
        scope = self.scopes.number(row.rank, row.scope_id)
        opened, begun = self.open.pop((row.rank, scope), (None, _NAN))
        begin = seconds if opened is None else opened[9]
        if row.host_duration_ns is not None:
            begin = self.clocks.seconds(row, row.host_duration_ns)
        peaks = (_number(row.peak_allocated_bytes), _number(row.peak_reserved_bytes))
        times = (begin, seconds, *peaks, begun, _number(row.allocated_bytes))
        self._add("spans", self._span(row, scope, times, exact=int(row.peak_kind == "exact")))

    def _span(self, row: Memory, scope: int, numbers: tuple[float, ...], exact: int) -> tuple[Any, ...]:
        code = self._words.code
        parent = -1 if row.parent_id is None else self.scopes.number(row.rank, row.parent_id)
        tokens = self._tokens_of(row) if row.kind == "micro_batch" else -1
        return (
            whole(row.step),
            row.rank,
            *self._where(row),
            code(row.kind),
            code(row.name),
            whole(row.micro_batch),
            scope,
            parent,
            *numbers,
            tokens,
            exact,
        )

    def _tokens_of(self, row: Row) -> int:
        """Tokens of the micro-batch that ``row`` is of; −1 unless just one of that index was formed in its phase."""
        if row.micro_batch is None:
            return -1
        return self.tokens.get(whole(row.step), {}).get((row.rank, row.phase, row.micro_batch), -1)

    def _micro_batch(self, row: MicroBatch) -> None:
        formed = self.tokens.setdefault(whole(row.step), {})
        if len(self.tokens) > _STEPS:
            self.tokens.pop(next(iter(self.tokens)))
        index = whole(row.micro_batch)
        key = (row.rank, row.phase, index)
        formed[key] = -1 if key in formed else row.tokens
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
        """Nobody records memory: a scope has its times alone."""
        code, end = self._words.code, self.clocks.seconds(row)
        numbers = (self.clocks.seconds(row, row.duration_ns), end, _NAN, _NAN, _NAN, _NAN)
        kind = row.point.removeprefix("scope.")
        self._add(
            "spans",
            (
                whole(row.step),
                row.rank,
                *self._where(row),
                code(kind),
                code(row.name),
                whole(row.micro_batch),
                self.scopes.number(row.rank, row.scope_id),
                -1,
                *numbers,
                self._tokens_of(row) if kind == "micro_batch" else -1,
                0,
            ),
        )

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


def _number(value: int | None) -> float:
    return _NAN if value is None else float(value)
