"""Rows of records as rows of the live tables, with what must be remembered between them.

What a column is a copy of says its declaration (:mod:`probe.dashboards.columns`); here stands what is made of several
fields, or of other rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

import numpy as np

from probe.dashboards.columns import LIVE, Column, Table, name_of, of_row_type
from probe.live.blocks import Plan, block_by, block_of, fit, whole
from probe.live.clocks import Clocks
from probe.live.completeness import Completeness
from probe.live.nesting import Cut, Key, Nesting, Span
from probe.live.padding_ledger import PaddingLedger
from probe.live.rounds import Rounds
from probe.live.tables import LiveTable, Words
from probe.live.thinning import Block
from probe.records import (
    Call,
    Incident,
    LaterPasses,
    Memory,
    MicroBatch,
    Padding,
    Process,
    Reduction,
    Rollout,
    Row,
    Sample,
    Scalar,
    TokenBlock,
    TokenFate,
    place_of_process,
    who,
)

_NAN: Final = math.nan
#: Live table by the row type that it is made of, row by row.
_COPIED: Final[Mapping[type[Row], str]] = {
    Memory: "memory",
    MicroBatch: "micro",
    Reduction: "reductions",
    Scalar: "scalars",
    TokenFate: "fates",
    Call: "calls",
    Incident: "events",
}

#: The columns of a span that it holds itself.
_HELD: Final = tuple(name for name in LIVE["spans"].columns if name != "who")
_SPAN: Final = attrgetter(*_HELD)


@dataclass(slots=True)
class _Gathered:
    """Rows of one live table that came since the last look, and what is known of each when it comes."""

    name: str
    table: Table
    rows: list[Any] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


class Intake:
    """Turns rows into live rows.

    Args:
        words: Numbers of the texts.
        tables: The live tables that hold what was given so far.
        start_ns: Wall-clock time of the run's start; 0 where it isn't known.

    Attributes:
        rows: How many were read.
        step: The newest step, −1 before the first.
        lost: Rows that the run's writers had to drop.
        world_size: As the processes tell.
        writers: Of each rank the process that began last; by name those without a rank.
        newest: When the newest row was written, seconds since the run's start; NaN before the first.
        completeness: How far each process has come.
        found_tables: Tables of row types that aren't declared, by name.
    """

    def __init__(self, words: Words, tables: Mapping[str, LiveTable], start_ns: int = 0) -> None:
        self.clocks = Clocks(start_ns)
        self.completeness = Completeness()
        self.ledger = PaddingLedger(tables["padding"], words)
        self.rounds = Rounds(tables["micro"])
        self.step = -1
        self.lost = 0
        self.rows = 0
        self.world_size = 0
        self.writers: dict[int | str, Process] = {}
        self.newest = _NAN
        self.nesting = Nesting(words)
        self._unlearnt: Callable[[], None] | None = None
        self.open: dict[Key, tuple[float, float]] = {}  # when the scope began, and what was allocated then
        self.measured: set[int] = set()  # processes whose memory is recorded: their scopes come from there
        self.found_tables: dict[str, Table] = {}
        self._measured: set[str] = set()  # the same by name
        self._newest: dict[int, float] = {}  # by process: time of its last memory row
        self._whos: dict[tuple[int, int], int] = {}  # by rank and process
        self._words = words
        self._gathered: dict[type[Row], _Gathered] = {}
        self._padding: list[Padding] = []
        self._plans: dict[str, Plan] = {}  # by live table
        self._readers: Mapping[type[Row], Callable[[Any, float], None]] = {
            Process: lambda row, _: self.begin_process(row),
            Memory: self._read_memory,
            MicroBatch: self._read_micro_batch,
            Padding: self._read_padding,
            Call: self._read_call,
            Incident: self._read_incident,
            Sample: _leave_out,  # answers and their tokens are asked for one by one
            TokenBlock: _leave_out,
            LaterPasses: _leave_out,
            Rollout: _leave_out,
        }

    def learn_before_rows(self, learn: Callable[[], None]) -> None:
        """Have something done before the next rows are read, which nothing else needs."""
        self._unlearnt = learn

    def catch_up(self) -> None:
        """Do now what :meth:`learn_before_rows` has put off."""
        learn = self._unlearnt
        self._unlearnt = None
        if learn is not None:
            learn()

    def read(self, rows: Iterable[Row], came_s: float = _NAN) -> dict[str, Block]:
        """The live rows that ``rows`` make, by table; tables without any are left out.

        Args:
            rows: What was written.
            came_s: When they came, seconds since the run's start by this machine's clock; NaN for what was there
                before anybody looked: then their own clocks count.
        """
        rows = list(rows)
        if rows:
            self.catch_up()
        self.rows += len(rows)
        if not self.clocks.start_ns:
            self.clocks.begin(row for row in rows if isinstance(row, Process))
        readers, seconds, step = self._readers, self.clocks.seconds, self.step
        for row in rows:
            if row.step is not None and row.step > step:
                step = row.step
            readers.get(type(row), self._gather)(row, seconds(row))
        self.step = step
        for row in {row.process: row for row in rows}.values():  # the last of each process
            at = seconds(row)
            self.newest = later(self.newest, at)
            self.completeness.hear(row.process, at if math.isnan(came_s) else came_s)
        for row in {row.process: row for row in rows if row.step is not None}.values():
            self.completeness.hear(row.process, seconds(row) if math.isnan(came_s) else came_s, row.step)
        return {name: block for name, block in self._blocks().items() if len(next(iter(block.values())))}

    def table(self, name: str) -> Table:
        """What the columns of a live table are."""
        return LIVE.get(name) or self.found_tables[name]

    def remember_order(self, process: int, seconds: float) -> None:
        """Memory rows of ``process`` up to that time have been given."""
        self._newest[process] = seconds

    # ------------------------------------------------------------------------------------------ rows as columns

    def _blocks(self) -> dict[str, Block]:
        gathered, self._gathered = self._gathered, {}
        found = {one.name: self._block(one) for one in gathered.values()}
        if "memory" in found:
            found["memory"] = self._in_order(found["memory"])
        if "micro" in found:
            found["micro"] = self.rounds.numbered(found["micro"])
        spans = self.nesting.changed()
        if spans:
            self._note_steps(spans)
            table = LIVE["spans"]
            columns = dict(zip(_HELD, zip(*map(_SPAN, spans), strict=True), strict=True))
            found["spans"] = block_by(table, self._plan("spans", table), self._named(columns))
        if self._padding:
            found["padding"] = block_of(LIVE["padding"], self._named(self.ledger.changed(self._padding)))
            self._padding = []
        return found

    def _note_steps(self, spans: Iterable[Span]) -> None:
        step, texts = self._words.code("step"), self._words.texts
        for one in spans:
            if one.kind == step and one.step >= 0:
                self.completeness.note_step(texts[one.process], one.step, one.begin, one.end)

    def _block(self, gathered: _Gathered) -> Block:
        name, table, rows = gathered.name, gathered.table, gathered.rows
        known: dict[str, Sequence[Any]] = {"t": gathered.seconds}
        if name == "micro":
            known["round"] = known["once"] = [0] * len(rows)  # told by the rows around it, once they are a block
        plan = self._plan(name, table)
        for (one, column), values in zip(plan.copied, zip(*map(plan.fields, rows), strict=True), strict=True):
            known[one] = self._coded(column, values)
        for one, column, made in plan.made:
            known[one] = self._coded(column, [made(row) for row in rows])
        return block_by(table, plan, self._named(known))

    def _named(self, columns: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
        """With what each row's process is shown as."""
        whos = [self.who(*one) for one in zip(columns["rank"], columns["process"], strict=True)]
        return {**columns, "who": whos}

    def who(self, rank: int, process: int) -> int:
        """The code of what a process is shown as.

        Args:
            rank: −1 for none.
            process: The code of what it is called.
        """
        found = self._whos.get((rank, process))
        if found is None:
            name = self._words.texts[process] if process >= 0 else ""
            found = self._words.code(who(None if rank < 0 else rank, name))
            self._whos[rank, process] = found
        return found

    def _plan(self, name: str, table: Table) -> Plan:
        plan = self._plans.get(name)
        if plan is None:
            plan = self._plans[name] = Plan(name, table)
        return plan

    def _coded(self, column: Column, values: Sequence[Any]) -> Sequence[Any]:
        if column.unit == "word":
            return self._words.codes(values)
        return [-1 if one is None else one for one in values] if column.dtype == "i4" and None in values else values

    def _gather(self, row: Row, seconds: float) -> None:
        kind = type(row)
        gathered = self._gathered.get(kind)
        if gathered is None:
            name = _COPIED.get(kind) or self._found(kind)
            gathered = self._gathered[kind] = _Gathered(name, self.table(name))
        gathered.rows.append(row)
        gathered.seconds.append(seconds)

    def _found(self, kind: type[Row]) -> str:
        """The name of the live table of a row type that isn't declared."""
        name = name_of(kind)
        if name not in self.found_tables:
            self.found_tables[name] = of_row_type(kind)
        return name

    def _in_order(self, block: Block) -> Block:
        """By time, those of a process never going back.

        The beginning of a long scope is written late, with the next sample; what was allocated then stands in the
        scope's own row, and a line that goes back in time can't be drawn.
        """
        times, processes = block["t"].tolist(), block["process"].tolist()
        alone = processes.count(processes[0]) == len(processes)
        if alone and times == sorted(times) and times[0] >= self._newest.get(processes[0], -math.inf):
            self._newest[processes[0]] = times[-1]
            return block
        order = np.argsort(block["t"], kind="stable")
        kept = []
        for place, seconds, process in zip(
            order.tolist(), block["t"][order].tolist(), block["process"][order].tolist(), strict=True
        ):
            if not seconds < self._newest.get(process, -math.inf):
                kept.append(place)
                self._newest[process] = seconds
        return {name: values[kept] for name, values in block.items()}

    def renames(self, rows: Iterable[Row]) -> bool:
        """Whether one of ``rows`` tells the rank of a process that had none before, and has written rows without it."""
        told = (row for row in rows if type(row) is Process and row.rank is not None)
        return any(self._is_nameless(row.process) for row in told)

    def _is_nameless(self, process: str) -> bool:
        known = self.writers.get(place_of_process(process))
        return known is not None and known.process == process and known.rank is None

    # --------------------------------------------------------------------------------- what one row says of others

    def begin_process(self, row: Process) -> None:
        """A process begins to write."""
        self.clocks.set(row)
        self.completeness.begin(row.process, row.rank, self.clocks.seconds(row))
        place = place_of_process(row.process) if row.rank is None else row.rank
        if row.rank is not None and place_of_process(row.process) in self.writers:  # it has learnt its rank since
            del self.writers[place_of_process(row.process)]
        before = self.writers.get(place)
        self.writers[place] = row
        if before is not None and before.process != row.process:  # it is gone, and ended in what is open
            gone = self._words.code(before.process)
            self._newest.pop(gone, None)
            for key in [one for one in self.open if one[0] == gone]:
                del self.open[key]
        self.world_size = max(self.world_size, row.world_size)

    def _read_memory(self, row: Memory, seconds: float) -> None:
        if row.process not in self._measured:
            self._measured.add(row.process)
            self.measured.add(self._words.code(row.process))
        self._gather(row, seconds)
        if row.edge == "enter":
            self._enter(row, seconds)
        elif row.edge == "leave":
            self._leave(row, seconds)

    def _enter(self, row: Memory, seconds: float) -> None:
        begun = _number(row.allocated_bytes)
        span = self._scope(row, (seconds, _NAN), begun)
        span.at_end = span.peak = span.reserved_peak = _NAN
        self.open[span.key] = seconds, begun
        self.nesting.add(span)

    def _leave(self, row: Memory, seconds: float) -> None:
        _, begun = self.open.pop((self._words.code(row.process), row.scope_id), (seconds, _NAN))
        begin = self.clocks.seconds(row, row.host_duration_ns or 0)
        self.nesting.add(self._scope(row, (begin, seconds), begun))

    def _place(self, row: Row) -> dict[str, int]:
        """Where a scope stands, as its span says it."""
        code = self._words.code
        return {
            "step": whole(row.step),
            "rank": whole(row.rank),
            "process": code(row.process),
            "role": code(row.role),
            "phase": code(row.phase),
            "micro_batch": whole(row.micro_batch),
            "scope": row.scope_id,
        }

    def _scope(self, row: Memory, times: tuple[float, float], begun: float) -> Span:
        code = self._words.code
        return Span(
            **self._place(row),
            kind=code(row.kind),
            name=code(row.name),
            parent=row.parent_id or 0,
            begin=times[0],
            end=times[1],
            peak=_number(row.peak_allocated_bytes),
            reserved_peak=_number(row.peak_reserved_bytes),
            at_begin=begun,
            at_end=_number(row.allocated_bytes),
            peak_kind=code(row.peak_kind),
        )

    def _read_micro_batch(self, row: MicroBatch, seconds: float) -> None:
        if row.micro_batch is not None:
            slots = -1 if row.width_tokens is None else row.sequences * row.width_tokens
            numbers = map(fit, (row.batch_id, row.tokens, slots))
            self.nesting.add_cut((self._words.code(row.process), row.scope_id, row.micro_batch), Cut(seconds, *numbers))
        self._gather(row, seconds)

    def _read_padding(self, row: Padding, _: float) -> None:
        self._padding.append(row)

    def _read_call(self, row: Call, seconds: float) -> None:
        if not row.point.startswith("scope."):
            self._gather(row, seconds)
        elif self._words.code(row.process) not in self.measured:
            self._scope_call(row, seconds)

    def _scope_call(self, row: Call, seconds: float) -> None:
        """Nobody records memory: a scope has its times alone, and its path says where it lies."""
        code = self._words.code
        is_outermost = bool(row.scope) and row.scope == row.name
        span = Span(
            **self._place(row),
            kind=code(row.point.removeprefix("scope.")),
            name=code(row.name),
            parent=0 if is_outermost else -1,
            begin=self.clocks.seconds(row, row.duration_ns),
            end=seconds,
        )
        around = "" if is_outermost else row.scope[: max(len(row.scope) - len(row.name) - 1, 0)]
        self.nesting.add_call(span, row.scope, around)

    def _read_incident(self, row: Incident, seconds: float) -> None:
        if row.kind == "dropped_rows":
            self.lost += row.count
        self._gather(row, seconds)


def _leave_out(row: Row, seconds: float) -> None:
    """No live table has it."""


def later(one: float, other: float) -> float:
    """The later of two times, either of which may be NaN for unknown.

    >>> later(math.nan, 2.0), later(3.0, 2.0), later(3.0, math.nan)
    (2.0, 3.0, 3.0)
    """
    return other if math.isnan(one) or other > one else one


def _number(value: int | None) -> float:
    return _NAN if value is None else float(value)
