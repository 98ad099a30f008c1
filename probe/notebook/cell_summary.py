"""What one cell of a notebook did: time, memory, tokens and padding, from the rows that were written while it ran.

With an open session the rows are those of its run. Without one the same recorders listen while the cell runs, here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from probe import recorders
from probe.hooks import Event, Listener, Scope, silenced, subscribe
from probe.inspection.look import STYLE, escaped, table
from probe.recorders.recorder import Recorder
from probe.records import PLANNED_SOURCES, Memory, MicroBatch, Padding, Row, Unbuilt, counts_for_tax, stamp
from probe.runs.layout import typed_here
from probe.sql import Sql, sql

if TYPE_CHECKING:
    from probe.runs.reader import Run
    from probe.session import Session

_log = logging.getLogger("probe.notebook.magic")

#: Which recorders listen where no session is open.
RECORDERS: Final = ("memory", "token_balance", "padding_tax")

#: How long the rows of a cell are waited for: until they are on disk, or until the device has come to the cell's end.
PATIENCE_S: Final = 3.0

#: The wall clock may be set while a process runs, but not by more than this between its rows, ns.
_SLACK_NS: Final = 60_000_000_000


@dataclass(frozen=True)
class CellSummary:
    """What is shown under a cell. None is unknown.

    Attributes:
        title: Phase, role and step.
        measured: Where the numbers come from.
        host_ns: Time of the host.
        device_ns: Time of the device, between two of its events.
        peak_bytes: Peak of allocated memory, of the process's resident set where ``memory_source`` is "process_rss".
        peak_kind: See ``records.Memory``.
        micro_batches: How many micro-batches were formed.
        tokens: How many tokens are in them.
        rectangle_tokens: Tokens of the batches that were formed, padding included.
        valid_tokens: Tokens of the batches that were formed, without padding.
        padding: Padding of the batches that were formed, by cause.
        error: What the cell raised.
        note: What is missing, and why.
    """

    title: str
    measured: str
    host_ns: int
    device_ns: int | None = None
    peak_bytes: int | None = None
    peak_kind: str | None = None
    memory_source: str = ""
    micro_batches: int = 0
    tokens: int | None = None
    rectangle_tokens: int | None = None
    valid_tokens: int | None = None
    padding: Mapping[str, int] = field(default_factory=dict)
    error: str | None = None
    note: str = ""

    def facts(self) -> list[tuple[str, str]]:
        """The lines of the summary: a name and what there is to say."""
        from probe import text as words

        lines = [("host time", words.seconds(self.host_ns / 1e9))]
        on_device = self.memory_source not in ("", "process_rss")
        if self.device_ns is not None or on_device:
            unknown = "not known: the device has no timing events, or isn't done yet"
            lines.append(("device time", unknown if self.device_ns is None else words.seconds(self.device_ns / 1e9)))
        if self.peak_bytes is not None:
            peak = f"{words.at(self.peak_kind)}{words.size(self.peak_bytes)}"
            lines.append((f"peak {words.memory(self.memory_source)}", peak))
        if self.tokens is not None:
            lines.append(("micro-batches", f"{self.micro_batches:,} with {self.tokens:,} tokens"))
        if self.rectangle_tokens:
            spare = sum(self.padding.values())
            causes = ", ".join(f"{cause} {tokens:,}" for cause, tokens in self.padding.items())
            share = words.percent(spare / self.rectangle_tokens)
            detail = f" ({causes})" if causes else ""
            lines.append(("padding", f"{share} of {self.rectangle_tokens:,} tokens{detail}"))
        if self.tokens is None and not self.rectangle_tokens:
            lines.append(("tokens", "none recorded"))
        lines += [("raised", self.error)] if self.error else []
        return [*lines, ("note", self.note)] if self.note else lines

    def __repr__(self) -> str:
        told = "; ".join(f"{name} {text}" for name, text in self.facts())
        return f"{self.title}: {told} [{self.measured}]"

    def _repr_html_(self) -> str:
        body = table(("cell", self.title), self.facts())
        return f'{STYLE}<div class="probe-batch">{body}<p class="soft">{escaped(self.measured)}</p></div>'


# ------------------------------------------------------------------------------------------- from a session's run


def from_session(session: Session, run: Run, scope: Scope, span: tuple[int, int], base: CellSummary) -> CellSummary:
    """The summary of ``scope`` from what the session has written.

    Args:
        session: The session that recorded.
        run: A reader of its run.
        scope: The scope of the cell.
        span: Monotonic nanoseconds between which the scope ran.
        base: A summary that has title, host time and error.
    """
    flushed = session.closed or session.flush(PATIENCE_S)
    run.refresh()
    since = time.time_ns() - (time.monotonic_ns() - span[0]) - _SLACK_NS
    where, process = Sql("process = ? and wall_ns >= ?"), session.process.process
    memory = _records(
        run,
        sql("select * from memory where {where} and edge = 'leave' and scope_id = ? order by wall_ns", where=where),
        [process, since, scope.id],
    )
    inside = sql("{where} and time_ns between ? and ? and (scope = ? or starts_with(scope, ?))", where=where)
    given = [process, since, span[0], span[1] + _SLACK_NS, scope.path, f"{scope.path}/"]
    micro = _records(run, sql("select tokens from micro_batches where {inside}", inside=inside), given)
    names = Sql("batch_id, source, field, cause, tokens, rectangle_tokens, valid_tokens")
    padding = _records(run, sql("select {names} from padding where {inside}", names=names, inside=inside), given)
    note = "" if flushed else "the writer had not finished: rows may be missing"
    made = replace(base, measured=f"from the rows of run {typed_here(run.path)}", note=note)
    return _with_padding(_with_tokens(_with_memory(made, memory[-1] if memory else {}), micro), padding)


def _records(run: Run, query: str, parameters: list[Any]) -> list[dict[str, Any]]:
    frame = run.sql(query, parameters).astype(object)
    found: list[dict[str, Any]] = frame.where(frame.notna(), None).to_dict("records")
    return found


# -------------------------------------------------------------------------------------------- measured on the spot


class Direct:
    """A context manager: while it's open the recorders listen; :meth:`summary` says what they heard.

    Rows are built as soon as they can be, so that nothing of the training stays alive; a row that waits for the device
    is built when the device has come to it.
    """

    def __init__(self, device: Any = None) -> None:
        options: dict[str, dict[str, Any]] = {"memory": {"device": device}}
        self._heard = [_Heard(recorders.load(name)(**options.get(name, {}))) for name in RECORDERS]
        self._stack = ExitStack()

    def __enter__(self) -> Direct:
        for one in self._heard:
            self._stack.callback(one.recorder.close)
            self._stack.enter_context(subscribe(one, *one.recorder.points))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def summary(self, scope: Scope, base: CellSummary) -> CellSummary:
        """The summary of ``scope``. Waits for the device's answer a little while, and never makes it hurry."""
        deadline = time.monotonic() + PATIENCE_S
        while any(one.waiting() for one in self._heard) and time.monotonic() < deadline:
            time.sleep(0.005)
        rows = [row for one in self._heard for row in one.rows if _is_inside(row, scope)]
        ends = [row for row in rows if isinstance(row, Memory) and row.edge == "leave"]
        memory = [_plain(row) for row in ends if row.scope_id == scope.id]
        micro = [_plain(row) for row in rows if isinstance(row, MicroBatch)]
        padding = [_plain(row) for row in rows if isinstance(row, Padding)]
        late = sum(one.waiting() for one in self._heard)
        note = f"the device had not come to the end of {late} scopes" if late else ""
        made = replace(base, measured="measured directly: no session is open", note=note)
        return _with_padding(_with_tokens(_with_memory(made, memory[-1] if memory else {}), micro), padding)


class _Heard(Listener):
    """What a session is to one recorder, for one cell."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.rows: list[Row] = []
        self._waiting: list[tuple[Unbuilt, Scope, int]] = []

    def __repr__(self) -> str:
        return f"recorder {type(self.recorder).__name__} of a cell"

    def enter(self, event: Event) -> Any:
        return self.recorder.enter(event)

    def leave(self, event: Event, state: Any) -> None:
        self._add_rows(self.recorder.leave(event, state), event.scope, event.end_ns)

    def fire(self, event: Event) -> None:
        self._add_rows(self.recorder.fire(event), event.scope, event.end_ns)

    def waiting(self) -> int:
        """Rows that wait for the device still; those that needn't any more are built."""
        waiting, self._waiting = self._waiting, []
        for item in waiting:
            self._add_rows(*item)
        return len(self._waiting)

    def _add_rows(self, item: Any, scope: Scope, time_ns: int) -> None:
        if item is None:
            return
        if isinstance(item, Row):
            self.rows.append(stamp(item, scope, rank=None, time_ns=time_ns))
        elif not isinstance(item, Unbuilt):
            for one in item:
                self._add_rows(one, scope, time_ns)
        elif item.ready is not None and not item.ready():
            self._waiting.append((item, scope, time_ns))
        else:
            with silenced():
                self._add_rows(list(item.build()), scope, time_ns)


def _is_inside(row: Row, scope: Scope) -> bool:
    return row.scope == scope.path or row.scope.startswith(f"{scope.path}/")


def _plain(row: Row) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__struct_fields__}


# ----------------------------------------------------------------------------------------------------- adding up


def _with_memory(base: CellSummary, row: Mapping[str, Any]) -> CellSummary:
    if not row:
        return base
    return replace(
        base,
        host_ns=row["host_duration_ns"] or base.host_ns,
        device_ns=row["device_duration_ns"],
        peak_bytes=row["peak_allocated_bytes"],
        peak_kind=row["peak_kind"],
        memory_source=row["source"],
    )


def _with_tokens(base: CellSummary, rows: Sequence[Mapping[str, Any]]) -> CellSummary:
    if not rows:
        return base
    return replace(base, micro_batches=len(rows), tokens=sum(int(row["tokens"]) for row in rows))


def _with_padding(base: CellSummary, rows: Sequence[Mapping[str, Any]]) -> CellSummary:
    """Each token once: of micro-batches where there are any, else of batches; of each the widest field."""
    cut = any(row["source"] in PLANNED_SOURCES for row in rows)
    chosen = [row for row in rows if counts_for_tax(row["source"], cut)]
    widest: dict[tuple[Any, Any], Mapping[str, Any]] = {}
    for row in chosen:
        key = (row["source"], row["batch_id"])
        if key not in widest or _width(row) > _width(widest[key]):
            widest[key] = row
    causes: dict[str, int] = {}
    for row in chosen:
        if widest[row["source"], row["batch_id"]]["field"] == row["field"] and row["cause"] != "none":
            causes[row["cause"]] = causes.get(row["cause"], 0) + int(row["tokens"])
    if not widest:
        return base
    return replace(
        base,
        rectangle_tokens=sum(int(row["rectangle_tokens"]) for row in widest.values()),
        valid_tokens=sum(int(row["valid_tokens"]) for row in widest.values()),
        padding=dict(sorted(causes.items(), key=lambda pair: -pair[1])),
    )


def _width(row: Mapping[str, Any]) -> tuple[int, bool]:
    return int(row["rectangle_tokens"]), row["field"] == "input_ids"
