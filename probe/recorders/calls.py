"""Which observed functions ran, for how long, and what they did to the batch: rows, bytes and keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

from probe.core.metric import Metric
from probe.hooks import SCOPE, Event
from probe.recorders.columns import Size, batches_of, size_of
from probe.recorders.recorder import Recorder, Rows, rows_of
from probe.records import Call, Row

PREFIX = "probe/calls/"

#: Characters of an error that are kept.
_ERROR: Final = 500

_NO_KEYS: Final[list[str]] = []  # shared: nobody adds to a row's

_NOTHING: Final = Size(None, None, None)


class CallsRecorder(Recorder):
    """One row for each observed call and each scope. Moments (``emit``) take no time and get none."""

    rows: ClassVar[tuple[type[Row], ...]] = (Call,)
    points: ClassVar[tuple[str, ...]] = ("*",)
    #: ``time_s`` is host time in which at least one observed call ran: nested and parallel ones aren't added
    #: up.
    keys: ClassVar[tuple[str, ...]] = (f"{PREFIX}observed_calls", f"{PREFIX}failed_calls", f"{PREFIX}time_s")

    def enter(self, event: Event) -> Size | None:
        """Measure what goes in now: the call may change it."""
        return None if event.point is SCOPE else _given(event)

    def leave(self, event: Event, state: Size | None) -> Rows:
        """Measure what came out, and write the row."""
        raised, begin = event.error, event.begin_ns
        error = None if raised is None else f"{type(raised).__name__}: {raised}"[:_ERROR]
        duration = event.end_ns - begin
        if event.point is SCOPE:
            scope = event.scope
            return Call(
                point=f"scope.{scope.kind}",
                name=scope.name,
                begin_ns=begin,
                duration_ns=duration,
                keys_added=_NO_KEYS,
                keys_removed=_NO_KEYS,
                error=error,
            )
        given = state or _NOTHING
        made = _NOTHING if raised is not None else _made(event)
        added, removed = (_NO_KEYS, _NO_KEYS) if made is _NOTHING else _changed(given.keys, made.keys)
        return Call(
            point=event.point.name,
            name=getattr(event.function, "__qualname__", ""),
            begin_ns=begin,
            duration_ns=duration,
            rows_in=given.rows,
            rows_out=made.rows,
            bytes_in=given.bytes,
            bytes_out=made.bytes,
            keys_added=added,
            keys_removed=removed,
            error=error,
        )

    def metrics(self, rows: Sequence[Row]) -> dict[str, Metric]:
        """Of the step's observed calls, scopes left out."""
        calls = [row for row in rows_of(rows, Call) if not row.point.startswith("scope.")]
        if not calls:
            return {}
        busy_ns = covered_ns((row.begin_ns, row.begin_ns + row.duration_ns) for row in calls)
        return {
            f"{PREFIX}observed_calls": Metric("sum", len(calls)),
            f"{PREFIX}failed_calls": Metric("sum", sum(row.error is not None for row in calls)),
            f"{PREFIX}time_s": Metric("sum", busy_ns / 1e9),
        }


def covered_ns(intervals: Iterable[tuple[int, int]]) -> int:
    """Length of the union of ``intervals`` (begin, end)."""
    total, reached = 0, 0
    for begin, end in sorted(intervals):
        total += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def _given(event: Event) -> Size:
    """Rows and keys of the first argument that is a batch, bytes of all of them."""
    first, amount = _NOTHING, 0
    given = (*event.args, *event.kwargs.values()) if event.kwargs else event.args
    for argument in given:
        batches = batches_of(argument)
        if batches:
            size = size_of(batches)
            if first is _NOTHING:
                first = size
            if size.bytes is None:
                return Size(first.rows, None, first.keys)
            amount += size.bytes
    return first if first is _NOTHING else Size(first.rows, amount, first.keys)


def _made(event: Event) -> Size:
    """Of the result; of the first argument where the function works in place and returns nothing."""
    result = event.args[0] if event.result is None and event.args else event.result
    batches = batches_of(result)
    return size_of(batches) if batches else _NOTHING


def _changed(before: Sequence[str] | None, after: Sequence[str] | None) -> tuple[list[str], list[str]]:
    if before is None or after is None or before == after:
        return _NO_KEYS, _NO_KEYS
    old, new = set(before), set(after)
    return sorted(new - old), sorted(old - new)
