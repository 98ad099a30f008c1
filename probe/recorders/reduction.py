"""How metrics were reduced: for each key of every ``reduce_metrics`` call, what went in and what came out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple

from probe.core.metric import Metric, as_metric, numbers_of, reducer_for
from probe.errors import ProbeError
from probe.hooks import Event
from probe.recorders.recorder import Recorder, Rows
from probe.records import Deferred, Reduction, Row

PREFIX = "probe/reduction/"

_PLAIN: Final = frozenset({float, int, bool})


class Given(NamedTuple):
    """The values of one key as they were before the call; it may change its argument, as verl's does."""

    reducer: str
    chosen_by: str
    seen: int  #: how many values
    #: A list of plain numbers, a Metric, or None where reading them would mean to wait for a device.
    values: Any


class Kept(NamedTuple):
    """What one call was given; few objects, since those that wait for the writer start collections of garbage."""

    keys: dict[str, int | Given]  #: of a list of plain numbers how many there are
    numbers: list[float]  #: of all such lists, one after the other


class ReductionRecorder(Recorder):
    """Copies lists of plain numbers when the call begins and looks at them later, off the training thread."""

    rows: ClassVar[tuple[type[Row], ...]] = (Reduction,)
    points: ClassVar[tuple[str, ...]] = ("metric.reduce_metrics",)
    keys: ClassVar[tuple[str, ...]] = (f"{PREFIX}keys", f"{PREFIX}nan_values")

    def enter(self, event: Event) -> Kept | None:
        """Keep what is given."""
        metrics = event.argument("metrics")
        if metrics is None and event.args:
            metrics = event.args[0]
        return _kept(metrics) if isinstance(metrics, Mapping) else None

    def leave(self, event: Event, state: Kept | None) -> Rows:
        """Add what came out. A call that raised reduced nothing."""
        if not state or not state.keys or not isinstance(event.result, Mapping):
            return None
        return Deferred(partial(_rows, state, dict(event.result)))

    def metrics(self, rows: Sequence[Row]) -> dict[str, Metric]:
        """Reduced keys and NaN values of the step."""
        reductions = [row for row in rows if isinstance(row, Reduction)]
        if not reductions:
            return {}
        return {
            f"{PREFIX}keys": Metric("sum", len(reductions)),
            f"{PREFIX}nan_values": Metric("sum", [row.nan_count for row in reductions]),
        }


def _kept(metrics: Mapping[str, Any]) -> Kept:
    numbers: list[float] = []
    keys: dict[str, int | Given] = {}
    for key, value in metrics.items():
        if type(value) is list and _PLAIN.issuperset(map(type, value)):
            keys[key] = len(value)
            numbers += value
        else:
            keys[key] = _given(key, value)
    return Kept(keys, numbers)


def _given(key: str, value: Any) -> Given:
    foreign = getattr(value, "aggregation", None)
    if foreign is not None and not isinstance(value, Metric):  # verl's Metric keeps its values in a list
        return _by_type(str(getattr(foreign, "value", foreign)), getattr(value, "values", []))
    if _on_device(value):
        return Given(reducer_for(key).value, "name", _count(value), None)
    try:
        metric = as_metric(key, value)
    except ProbeError:  # the call will say so itself
        return Given(reducer_for(key).value, "name", _count(value), None)
    held = value[0] if isinstance(value, list | tuple) and value else value
    chosen_by = "type" if isinstance(held, Metric) else "name"
    return Given(metric.aggregation.value, chosen_by, metric.count, Metric.merge([metric]))


def _by_type(reducer: str, values: Any) -> Given:
    if _on_device(values):
        return Given(reducer, "type", _count(values), None)
    numbers = numbers_of(values, "values")
    return Given(reducer, "type", len(numbers), numbers)


def _on_device(value: Any) -> bool:
    """Whether a tensor in ``value`` is on a device: reading it would wait for the work queued there."""
    if isinstance(value, list | tuple):
        return any(_on_device(one) for one in value)
    device = getattr(value, "device", None)
    return getattr(device, "type", "cpu") != "cpu"


def _count(value: Any) -> int:
    if isinstance(value, list | tuple):
        return sum(_count(one) for one in value)
    size = getattr(value, "numel", None)
    return int(size()) if callable(size) else 1


def _rows(kept: Kept, result: Mapping[str, Any]) -> list[Reduction]:
    rows, begin = [], 0
    for key, told in kept.keys.items():
        given = told
        if not isinstance(given, Given):
            end = begin + given
            given = Given(reducer_for(key).value, "name", given, kept.numbers[begin:end])
            begin = end
        rows.append(_row(key, given, result.get(key)))
    return rows


def _row(key: str, given: Given, value: Any) -> Reduction:
    values = given.values
    seen: Metric | None = Metric("mean", values) if isinstance(values, list) else values
    return Reduction(
        key=str(key),
        reducer=given.reducer,
        chosen_by=given.chosen_by,
        count=given.seen,
        smallest=None if seen is None else seen.smallest,
        largest=None if seen is None else seen.largest,
        nan_count=0 if seen is None else seen.nan_count,
        value=None if value is None or _on_device(value) else _number(value),
    )


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):  # not a number, so it has no value to show
        return None
