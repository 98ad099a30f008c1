"""How metrics were reduced: for each key of every ``reduce_metrics`` call, what went in and what came out."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from math import isfinite, isnan
from typing import Any, ClassVar, Final, NamedTuple

from probe.core.metric import AggregationType, Metric, as_metric, numbers_of, reducer_for
from probe.errors import ProbeError
from probe.hooks import Event
from probe.recorders.packed import packed, unpacked
from probe.recorders.recorder import Recorder, Rows, rows_of
from probe.recorders.weights import Collected, Weights, mean_by, total_of
from probe.records import Later, Reduction, Row

PREFIX = "probe/reduction/"

REDUCED: Final = "metric.reduce_metrics"
COLLECTED: Final = "metric.append_to_dict"

_PLAIN: Final = frozenset({float, int, bool})
_FLOAT: Final = frozenset({float})
_STR: Final = frozenset({str})

#: Values of one key that are looked at one by one.
_FEW: Final = 8


class Given(NamedTuple):
    """The values of one key as they were before the call; it may change its argument, as verl's does."""

    reducer: str
    chosen_by: str
    seen: int  #: how many values
    #: A list of plain numbers, a Metric, or None where reading them would mean to wait for a device.
    values: Any
    weights: Weights | None = None  #: where they came with the values


class Kept(Later, gc=False):
    """What one call was given."""

    keys: dict[str, int | Given]  #: of a list of plain numbers how many there are
    numbers: list[float]  #: of all such lists, one after the other
    weights: dict[str, Weights]  #: by the micro-batch that they were collected in, where that is known
    plain: bool  #: whether there are no others
    result: Mapping[str, Any] = {}  #: what the call made of them

    def build(self) -> list[Reduction]:
        rows, begin = [], 0
        for key, told in self.keys.items():
            given = told
            if not isinstance(given, Given):
                end = begin + given
                given = Given(_reducer_name(key), "name", given, self.numbers[begin:end])
                begin = end
            rows.append(_row(key, given, self.result.get(key), self.weights.get(key)))
        return rows


class _Plain(Later, gc=False):
    """The same of lists of plain numbers that became floats, as nearly all calls are; one object, and no garbage
    collection counts it.
    """

    told: Any  #: keys, numbers and result, packed
    weights: dict[str, Weights] | None  #: None where there are none

    def build(self) -> list[Reduction]:
        keys, numbers, result = unpacked(self.told)
        return Kept(keys, numbers, self.weights or {}, True, result).build()


class ReductionRecorder(Recorder):
    """Copies lists of plain numbers when the call begins and looks at them later, off the training thread.

    What is collected in a micro-batch by ``append_to_dict`` is weighted by the tokens and sequences of that
    micro-batch, so that the row has the means that these weights give beside the one that was reported.
    """

    rows: ClassVar[tuple[type[Row], ...]] = (Reduction,)
    points: ClassVar[tuple[str, ...]] = (REDUCED, COLLECTED)
    keys: ClassVar[tuple[str, ...]] = (f"{PREFIX}keys", f"{PREFIX}nan_values")

    def __init__(self) -> None:
        self._collected = Collected()

    def enter(self, event: Event) -> Kept | None:
        """Keep what is given."""
        if event.point.name == COLLECTED:
            return None
        metrics = event.argument("metrics")
        if metrics is None and event.args:
            metrics = event.args[0]
        if type(metrics) is not dict and not isinstance(metrics, Mapping):  # the type alone tells ten times as fast
            return None
        given = event.argument("weights")
        kept = _kept(metrics, {} if given is None or not isinstance(given, Mapping) else given)
        if self._collected.knows(event.scope):
            for key, value in metrics.items():
                weights = self._collected.of(value, event.scope)
                if weights is not None:
                    kept.weights[key] = weights
        return kept

    def leave(self, event: Event, state: Kept | None) -> Rows:
        """Add what came out. A call that raised reduced nothing."""
        if event.point.name == COLLECTED:
            data, new = event.argument("data"), event.argument("new_data")
            if event.error is None and isinstance(data, Mapping) and isinstance(new, Mapping):
                self._collected.add(data, new, event.argument("prefix") or "", event.scope)
            return None
        result = event.result
        if not state or not state.keys or (type(result) is not dict and not isinstance(result, Mapping)):
            return None
        if state.plain and _are_floats(result) and _STR.issuperset(map(type, state.keys)):
            return _Plain(packed((state.keys, state.numbers, result)), state.weights or None)
        state.result = dict(result)
        return state

    def metrics(self, rows: Sequence[Row]) -> dict[str, Metric]:
        """Reduced keys and NaN values of the step."""
        reductions = rows_of(rows, Reduction)
        if not reductions:
            return {}
        return {
            f"{PREFIX}keys": Metric("sum", len(reductions)),
            f"{PREFIX}nan_values": Metric("sum", [row.nan_count for row in reductions]),
        }


def _kept(metrics: Mapping[str, Any], weights: Mapping[str, Any]) -> Kept:
    numbers: list[float] = []
    keys: dict[str, int | Given] = {}
    plain = True
    for key, value in metrics.items():
        if weights and key in weights:
            keys[key], plain = _weighted(key, value, weights[key]), False
        elif type(value) is list and _are_plain(value):
            keys[key] = len(value)
            numbers += value
        else:
            keys[key], plain = _given(key, value), False
    return Kept(keys, numbers, {}, plain)


def _are_floats(result: Mapping[str, Any]) -> bool:
    """Whether it is a dict of texts to floats, and nothing derived from either."""
    return type(result) is dict and _STR.issuperset(map(type, result)) and _FLOAT.issuperset(map(type, result.values()))


def _are_plain(values: list[Any]) -> bool:
    """Whether they are plain numbers. Of a few that are floats, as nearly all are, it is seen without making a set."""
    if len(values) <= _FEW:
        for one in values:
            if type(one) is not float:
                break
        else:
            return True
    return _PLAIN.issuperset(map(type, values))


def _weighted(key: str, value: Any, weights: Any) -> Given:
    if _on_device(value) or _on_device(weights):
        return Given(reducer_for(key).value, "name", _count(value), None)
    try:
        metric, numbers = as_metric(key, value, weights), numbers_of(weights, "weights")
    except ProbeError:  # the call will say so itself
        return Given(reducer_for(key).value, "name", _count(value), None)
    chosen_by = "weights" if metric.aggregation is AggregationType.WEIGHTED_MEAN else "name"
    return Given(metric.aggregation.value, chosen_by, metric.count, metric.values, Weights(numbers, None))


def _given(key: str, value: Any) -> Given:
    foreign = getattr(value, "aggregation", None)
    if foreign is not None and not isinstance(value, Metric):  # verl's Metric keeps its values in a list
        return _by_type(str(getattr(foreign, "value", foreign)), value)
    if _on_device(value):
        return Given(reducer_for(key).value, "name", _count(value), None)
    try:
        metric = as_metric(key, value)
    except ProbeError:  # the call will say so itself
        return Given(reducer_for(key).value, "name", _count(value), None)
    held = value[0] if isinstance(value, list | tuple) and value else value
    chosen_by = "type" if isinstance(held, Metric) else "name"
    copied = Metric.merge([metric])
    weights = None if copied.weights is None else Weights(copied.weights, None)
    return Given(metric.aggregation.value, chosen_by, metric.count, copied, weights)


def _by_type(reducer: str, value: Any) -> Given:
    values, chosen_by = getattr(value, "values", []), getattr(value, "chosen_by", "type")
    if _on_device(values):
        return Given(reducer, chosen_by, _count(values), None)
    numbers, samples = numbers_of(values, "values"), getattr(value, "samples", None)
    weights = None if samples is None else Weights(None, list(samples))
    return Given(reducer, chosen_by, len(numbers), numbers, weights)


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


@functools.lru_cache(maxsize=4096)
def _reducer_name(key: str) -> str:
    return reducer_for(key).value


def _row(key: str, given: Given, value: Any, scope: Weights | None) -> Reduction:
    smallest, largest, nan_count = _extremes(given.values)
    nan_at, outlier_at, share = _places(given.values, nan_count)
    row = Reduction(
        key=str(key),
        reducer=given.reducer,
        chosen_by=given.chosen_by,
        count=given.seen,
        smallest=smallest,
        largest=largest,
        nan_count=nan_count,
        value=value if type(value) is float else None if value is None or _on_device(value) else _number(value),
        nan_at=nan_at,
        outlier_at=outlier_at,
        outlier_share_ratio=share,
    )
    values = given.values.values if isinstance(given.values, Metric) else given.values
    if values:
        row.total, row.last = total_of(values), float(values[-1])
        _weigh(row, values, given.weights, scope)
    return row


def _weigh(row: Reduction, values: list[float], given: Weights | None, scope: Weights | None) -> None:
    """Write what the values stand for, and their means by it. Weights that came with them go before the scope's."""
    for weights, told in ((scope, "scope"), (given, "given")):
        if weights is None:
            continue
        tokens, by_token = mean_by(values, weights.tokens)
        sequences, by_sequence = mean_by(values, weights.sequences)
        if tokens is not None:
            row.tokens, row.token_mean, row.weights_from = tokens, by_token, told
        if sequences is not None:
            row.sequences, row.sequence_mean, row.weights_from = sequences, by_sequence, told


def _places(values: list[float] | Metric | None, nan_count: int) -> tuple[int | None, int | None, float | None]:
    """Where the first NaN is, and the value with the largest magnitude with its share of the sum of magnitudes.

    >>> _places([1.0, -8.0, 1.0], 0)
    (None, 1, 0.8)
    """
    if not isinstance(values, list):
        return None, None, None
    if nan_count:
        return next(at for at, value in enumerate(values) if isnan(value)), None, None
    if len(values) < 3:
        return None, None, None
    sizes = list(map(abs, values))
    total, largest = sum(sizes), max(sizes)
    return (None, sizes.index(largest), largest / total) if isfinite(total) and total else (None, None, None)


def _extremes(values: list[float] | Metric | None) -> tuple[float | None, float | None, int]:
    """The smallest and the largest of what is known, and how many are NaN."""
    if values is None:
        return None, None, 0
    if isinstance(values, list):
        if values and isfinite(sum(values)):  # so is each of them
            return float(min(values)), float(max(values)), 0
        values = Metric("mean", values)
    return values.smallest, values.largest, values.nan_count


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):  # not a number, so it has no value to show
        return None
