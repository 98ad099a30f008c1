"""A session's steps and phases as spans, for backends that show such: made of rows that are there anyway.

Nothing of it runs on the training thread: the session's writer hands over the rows of a step once it is complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from probe.records import Call, Memory, Process, Row
from probe.tracking.media import Cell, Span, Spans
from probe.tracking.tracking import Tracking

#: The most spans of one step; beyond it the innermost are left out, and the step's span says how many.
MOST: Final = 1000
#: What they are logged as.
NAME: Final = "probe/spans"
#: Backends that could show them and aren't sent them: the run directory beside it has the very rows.
SPARED: Final = frozenset({"file"})


class StepSpans:
    """Logs the spans of each step to the backends that show them.

    Args:
        tracking: Where the spans go; nothing happens where no backend but those of :data:`SPARED` shows spans.
        process: The process whose clock the rows' times are of.

    Example, in the session::

        self._spans = StepSpans(tracking, process)  # where tracking isn't None
        self._spans.log(rows, step)  # when the step is complete, in the writer's thread
    """

    def __init__(self, tracking: Tracking, process: Process) -> None:
        self._tracking = tracking
        self._process = process

    def log(self, rows: Iterable[Row], step: int) -> None:
        """Make the spans of a step's rows and log them. Returns at once."""
        backends = [name for name in self._tracking.shows("spans") if name not in SPARED]
        if backends:
            spans = spans_of(rows, self._process)
            if spans:
                self._tracking.log({NAME: Spans(spans)}, step, backend=backends)


def spans_of(rows: Iterable[Row], process: Process, most: int = MOST) -> list[Span]:
    """One span for each scope that has ended, by the rows of the recorders "calls" and "memory".

    Begin, end and error are those of the ``Call`` row. The ``Memory`` row of the scope's end, where there is one, adds
    what encloses it, its duration on the device, and its peak; without it the enclosing scope is the one of the path
    above that was open at that time.

    Args:
        rows: Rows of the step, of all tables.
        process: Gives the wall-clock time that belongs to a monotonic one.
        most: The most spans, see :data:`MOST`.
    """
    calls: list[Call] = []
    ends: dict[int, Memory] = {}
    for row in rows:
        if isinstance(row, Call) and row.point.startswith("scope."):
            calls.append(row)
        elif isinstance(row, Memory) and row.edge == "leave":
            ends[row.scope_id] = row
    calls.sort(key=lambda row: (row.scope.count("/"), row.begin_ns))
    offset_ns = process.wall_ns - process.time_ns
    by_path: dict[str, list[Call]] = {}
    spans: list[Span] = []
    for row in calls[:most]:
        by_path.setdefault(row.scope, []).append(row)
        spans.append(_span(row, ends.get(row.scope_id), by_path, offset_ns, len(calls) - most))
    return spans


def _span(row: Call, end: Memory | None, by_path: Mapping[str, Sequence[Call]], offset_ns: int, left_out: int) -> Span:
    kind = row.point.removeprefix("scope.")
    attributes: dict[str, Cell] = {"rl.rank": row.rank, "rl.scope": row.scope, "rl.scope.kind": kind}
    more: dict[str, Cell] = {"rl.role": row.role, "rl.micro_batch": row.micro_batch}
    if end is not None:
        more["probe.device_duration_ns"] = end.device_duration_ns
        more["probe.peak_allocated_bytes"] = end.peak_allocated_bytes
    if kind == "step" and left_out > 0:
        more["probe.spans_left_out"] = left_out
    attributes |= {name: value for name, value in more.items() if value is not None}
    begin_ns = row.begin_ns + offset_ns
    return Span(
        begin_ns,
        begin_ns + row.duration_ns,
        attributes,
        row.error or "",
        name="step" if kind == "step" else row.name,
        number=row.scope_id,
        parent=_parent(row, by_path) if end is None else end.parent_id,
    )


def _parent(row: Call, by_path: Mapping[str, Sequence[Call]]) -> int | None:
    above = by_path.get(row.scope.rpartition("/")[0], ())
    end_ns = row.begin_ns + row.duration_ns
    open_then = (one for one in above if one.begin_ns <= row.begin_ns and end_ns <= one.begin_ns + one.duration_ns)
    return next((one.scope_id for one in open_then), None)
