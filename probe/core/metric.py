"""Metrics as they are collected over micro-batches and workers, and how many values become one.

Two contracts live side by side. :func:`reduce_metrics` keeps the documented one of verl: the reducer is
guessed from the key ("max", then "min", else the mean), which reads "min" in "timing/admin". A
:class:`Metric` carries its own reducer and wins over the name. It keeps its values, and weights where it has them, so
that Metrics can be merged: a mean across ranks with unequal counts is the mean of the values and no mean of means.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any, ClassVar, Final, SupportsFloat, cast

from probe._check import also_named
from probe.core.flattening import flattened
from probe.errors import InputError, InputTypeError, UnknownNameError
from probe.hooks import observed


class AggregationType(enum.StrEnum):
    """How the values of a :class:`Metric` become one number."""

    MEAN = "mean"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    WEIGHTED_MEAN = "weighted_mean"


class Metric:
    """Values of one quantity, and how they become one number.

    Args:
        aggregation: ``"mean"``, ``"sum"``, ``"min"``, ``"max"`` or ``"weighted_mean"``, or an enum member whose value
            is one of them.
        value: What it starts with: a number, a (nested) list, a numpy array, a tensor or a Metric. None means empty.

    Attributes:
        aggregation: How the values become one number.
        values: The values seen, NaN included, as Python floats in their order.
        weights: The weight of each value of a ``"weighted_mean"``; None for any other aggregation, where all count the
            same.

    Raises:
        UnknownNameError: The aggregation isn't one of those.
        InputTypeError: A value isn't a number.

    >>> Metric("mean", [1.0, 2.0, 6.0]).aggregate()
    3.0
    >>> loss = Metric("weighted_mean")
    >>> loss.append(2.0, weight=30)  # the mean over 30 tokens
    >>> loss.append(4.0, weight=10)
    >>> loss.aggregate(), loss.values
    (2.5, [2.0, 4.0])
    >>> Metric("max").aggregate()
    nan
    """

    __slots__ = ("aggregation", "values", "weights")

    def __init__(self, aggregation: str | enum.Enum, value: Any = None) -> None:
        self.aggregation: AggregationType = _aggregation(aggregation)
        self.values: list[float] = []
        self.weights: list[float] | None = [] if self.aggregation is AggregationType.WEIGHTED_MEAN else None
        if isinstance(value, Metric):
            self._merge(value)
        elif value is not None:
            self._add(numbers_of(value, "values"), None)

    @property
    def count(self) -> int:
        """Values seen, NaN included."""
        return len(self.values)

    @property
    def nan_count(self) -> int:
        """How many of them were NaN."""
        return sum(map(math.isnan, self.values))

    @property
    def total(self) -> float:
        """Sum of value × weight; every weight is 1 but those of a weighted mean, and a weight of 0 leaves NaN out."""
        if self.weights is None:
            return exact_sum(self.values)
        return exact_sum([value * weight for value, weight in zip(self.values, self.weights, strict=True) if weight])

    @property
    def weight(self) -> float:
        """Sum of the weights."""
        return float(len(self.values)) if self.weights is None else exact_sum(self.weights)

    @property
    def smallest(self) -> float | None:
        """The smallest of the values that aren't NaN; None where there is none."""
        return min((value for value in self.values if not math.isnan(value)), default=None)

    @property
    def largest(self) -> float | None:
        """The largest of the values that aren't NaN; None where there is none."""
        return max((value for value in self.values if not math.isnan(value)), default=None)

    def append(self, value: Any, weight: SupportsFloat | None = None) -> None:
        """Add one number, or everything that another Metric of the same aggregation has seen.

        Args:
            value: A number, a 0-d array or tensor, or a Metric.
            weight: Only for ``"weighted_mean"``; at least 0, 1 by default. A value of weight 0 leaves the mean alone
                even where it is NaN: it is a mean over nothing.

        Raises:
            InputTypeError: It is not a number.
            InputError: There is more than one value, or a weight where none belongs or that is below 0.
        """
        if isinstance(value, Metric):
            _refuse_weight(weight, "a Metric has its own weights")
            self._merge(value)
            return
        numbers = [value] if type(value) is float else numbers_of(value, "value")
        if len(numbers) != 1:
            raise InputError(f"value: got {len(numbers)} values, expected one number; extend takes many")
        self._add(numbers, None if weight is None else [_weight(weight, self.aggregation)])

    def extend(self, values: Any, weights: Any = None) -> None:
        """Add many numbers, or everything that another Metric of the same aggregation has seen.

        Args:
            values: A (nested) list, tuple, numpy array or tensor of numbers, a number, or a Metric.
            weights: One for each value, only for ``"weighted_mean"``.

        Raises:
            InputTypeError: They are not numbers.
            InputError: Weights don't belong or don't fit, or the other Metric has another aggregation.
        """
        if isinstance(values, Metric):
            _refuse_weight(weights, "a Metric has its own weights")
            self._merge(values)
            return
        numbers = numbers_of(values, "values")
        if weights is None:
            self._add(numbers, None)
            return
        checked = [_weight(one, self.aggregation) for one in numbers_of(weights, "weights")]
        if len(checked) != len(numbers):
            raise InputError(f"weights: got {len(checked)} for {len(numbers)} values, expected one each")
        self._add(numbers, checked)

    def aggregate(self) -> float:
        """The one number. NaN where there is no value (or no weight), and where a value is NaN.

        >>> Metric("sum", [1, 2, float("nan")]).aggregate()
        nan
        """
        if not self.values:
            return math.nan
        if self.aggregation is AggregationType.SUM:
            return self.total
        if self.aggregation in (AggregationType.MEAN, AggregationType.WEIGHTED_MEAN):
            weight = self.weight
            return self.total / weight if weight else math.nan
        if self.nan_count:
            return math.nan
        return min(self.values) if self.aggregation is AggregationType.MIN else max(self.values)

    @staticmethod
    def merge(metrics: Iterable[Metric]) -> Metric:
        """A new Metric that has seen what all of ``metrics`` have; they stay as they are.

        Raises:
            InputError: There is no metric, or they have different aggregations.
            InputTypeError: Something isn't a Metric.
        """
        parts = list(metrics)
        for part in parts:
            if not isinstance(part, Metric):
                raise InputTypeError(f"metrics: got {type(part).__name__} among them, expected only Metrics")
        if not parts:
            raise InputError("metrics: got none, expected at least one Metric")
        merged = parts[0].init_list()
        for part in parts:
            merged._merge(part)
        return merged

    @staticmethod
    @also_named(metrics="metric_lists")
    def aggregate_dp(metric_lists: Iterable[Metric]) -> float:
        """One number from the Metrics of all data-parallel ranks, one each.

        ``"mean"``, ``"min"`` and ``"max"`` are over all values of all ranks. A ``"sum"`` is the mean of the ranks'
        sums, as in verl: it does not grow with the number of ranks. Ranks must have seen equally many values, but for
        a ``"weighted_mean"``, whose weights say what each counts; :meth:`merge` pools whatever there is.

        Args:
            metric_lists: A Metric of each rank; they stay as they are. ``metrics`` is another name for it.

        Raises:
            InputError: There is no Metric, they have different aggregations, or unequal numbers of values.
            InputTypeError: Something isn't a Metric.

        >>> Metric.aggregate_dp([Metric("mean", [1.0, 2.0]), Metric("mean", [5.0, 4.0])])
        3.0
        >>> Metric.aggregate_dp([Metric("sum", [1.0, 2.0]), Metric("sum", [5.0, 0.0])])
        4.0
        """
        parts = list(metric_lists)
        merged = Metric.merge(parts)
        counts = [part.count for part in parts]
        if merged.aggregation is not AggregationType.WEIGHTED_MEAN and len(set(counts)) > 1:
            raise InputError(
                f"metric_lists: the ranks have {counts} values, expected equally many; "
                "Metric.merge takes different numbers"
            )
        return merged.aggregate() / (len(parts) if merged.aggregation is AggregationType.SUM else 1)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], aggregation: str | enum.Enum) -> dict[str, Metric]:
        """A Metric of ``aggregation`` for each value of ``data``.

        Args:
            data: Name to what a Metric may start with.
            aggregation: As for :class:`Metric`.

        >>> Metric.from_dict({"tokens": [3, 4]}, "sum")
        {'tokens': Metric('sum', 7.0, count=2)}
        """
        return {key: cls(aggregation, value) for key, value in data.items()}

    def init_list(self) -> Metric:
        """A new, empty Metric of the same aggregation."""
        return type(self)(self.aggregation)

    def _merge(self, other: Metric) -> None:
        if other.aggregation is not self.aggregation:
            raise InputError(
                f"aggregation: got a {other.aggregation.value!r} Metric, expected {self.aggregation.value!r}"
            )
        self._add(list(other.values), other.weights)

    def _add(self, numbers: list[float], weights: list[float] | None) -> None:
        if self.weights is not None:
            self.weights.extend([1.0] * len(numbers) if weights is None else weights)
        self.values.extend(numbers)

    def __repr__(self) -> str:
        return f"Metric({self.aggregation.value!r}, {self.aggregate()!r}, count={self.count})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Metric):
            return NotImplemented
        return all(_same(getattr(self, name), getattr(other, name)) for name in Metric.__slots__)

    __hash__: ClassVar[Any] = None  # mutable, as a list is


_PLAIN: Final = frozenset({float, int})

#: The order in which the documented rule looks into a key; what holds neither is averaged.
_NAMED: Final = (AggregationType.MAX, AggregationType.MIN)


def reducer_for(key: str) -> AggregationType:
    """The reducer that the documented rule of :func:`reduce_metrics` picks for ``key``. Case-sensitive.

    >>> [str(reducer_for(key)) for key in ("max_reward", "min_error", "minmax_diff", "loss", "Max")]
    ['max', 'min', 'max', 'mean', 'mean']
    """
    return next((reducer for reducer in _NAMED if reducer.value in key), AggregationType.MEAN)


@observed(
    "metric.reduce_metrics",
    "values become one number each; arguments metrics: dict of key to values, weights: dict of key to weights or None; "
    "result: dict of key to float",
)
def reduce_metrics(metrics: Mapping[str, Any], weights: Mapping[str, Any] | None = None) -> dict[str, float]:
    """Reduce each entry of ``metrics`` to one Python float, by verl's documented rule.

    "max" in the key means the largest value, else "min" in it the smallest, else the mean; case counts, and
    the rule also finds "min" in "timing/admin". A :class:`Metric`, or a list of Metrics, is reduced by its
    own aggregation. Values may be numbers, numpy arrays, tensors (one on a device is copied, which waits for
    it) and lists of those, however ragged: they are flattened.

    Args:
        metrics: Name to a Metric, a number or a list of numbers; it stays as it is.
        weights: Name to what each of its values stands for, such as the tokens that it is the mean of: what the rule
            would average is then averaged by them. The largest and the smallest value stay what they are. A name that
            has none, and None, is reduced as ever.

    Returns:
        A new dict with the keys of ``metrics``. No value gives NaN; a NaN among the values gives NaN.

    Raises:
        InputTypeError: ``metrics`` or ``weights`` isn't a mapping, or a value isn't a number (None, str …); the key is
            named.
        InputError: Weights are negative, not as many as the values, or of a Metric, which has its own.
        UnknownNameError: There are weights for a name that ``metrics`` doesn't have.

    >>> reduce_metrics({"loss": [1.0, 2.0, 3.0], "max_reward": [5.0, 8.0], "min_error": [0.1, 0.05]})
    {'loss': 2.0, 'max_reward': 8.0, 'min_error': 0.05}
    >>> reduce_metrics({"max_reward": [], "tokens": Metric("sum", [3, 4])})
    {'max_reward': nan, 'tokens': 7.0}
    >>> reduce_metrics({"loss": [2.0, 4.0]}, weights={"loss": [30, 10]})
    {'loss': 2.5}
    """
    if not isinstance(metrics, Mapping):
        raise InputTypeError(f"metrics: got {type(metrics).__name__}, expected a dict of lists of numbers")
    if weights is None:
        return {key: as_metric(key, value).aggregate() for key, value in metrics.items()}
    if not isinstance(weights, Mapping):
        raise InputTypeError(f"weights: got {type(weights).__name__}, expected a dict of lists of numbers")
    for key in weights:
        if key not in metrics:
            raise UnknownNameError.of("weights", key, list(metrics))
    return {key: as_metric(key, value, weights.get(key)).aggregate() for key, value in metrics.items()}


def as_metric(key: str, value: Any, weights: Any = None) -> Metric:
    """What :func:`reduce_metrics` makes of one entry: the Metric itself, or the values under the documented rule.

    Args:
        key: The metric's name, which chooses the reducer of plain values.
        value: A Metric, a number, or a list of numbers.
        weights: As :func:`reduce_metrics` takes them for this name.

    Raises:
        InputTypeError: As :func:`reduce_metrics`.
        InputError: As :func:`reduce_metrics`.
    """
    if isinstance(value, Metric):
        _refuse_weight(weights, f"metrics[{key!r}] is a Metric, which has its own")
        return value
    where = f"metrics[{key!r}]"
    if isinstance(value, list | tuple) and any(isinstance(one, Metric) for one in value):
        _refuse_weight(weights, f"{where} are Metrics, which have their own")
        if not all(isinstance(one, Metric) for one in value):
            raise InputTypeError(f"{where}: got Metrics and plain values in one list, expected one kind")
        return Metric.merge(value)
    reducer = reducer_for(key) if isinstance(key, str) else AggregationType.MEAN
    if weights is not None:
        metric = Metric(AggregationType.WEIGHTED_MEAN)
        metric.extend(numbers_of(value, where), weights)
        if reducer is AggregationType.MEAN:
            return metric
    metric = Metric(reducer)
    metric._add(numbers_of(value, where), None)
    return metric


@observed(
    "metric.append_to_dict",
    "values are collected; arguments data: dict of key to list or Metric, new_data: dict of key to value, prefix",
)
def append_to_dict(data: MutableMapping[str, Any], new_data: Mapping[str, Any], prefix: str = "") -> None:
    """Collect the values of ``new_data`` in the lists of ``data``, in place.

    A list extends the list under its key, any other value is appended to it, and a missing list is made. A
    :class:`Metric` extends a Metric under its key, or a copy of it is put there; plain numbers are added to a
    Metric that is already there. All or nothing: on an error ``data`` is as it was.

    Args:
        data: Key to list, or to Metric; changed in place.
        new_data: Key to value; stays as it is, and none of its lists is shared.
        prefix: Stands before each key that doesn't begin with it.

    Raises:
        InputTypeError: An entry of ``data`` is neither list nor Metric, a Metric is added to a list, or something that
            isn't a number to a Metric; the message names the key.
        InputError: A Metric has another aggregation.

    >>> metrics = {"loss": [1.0]}
    >>> append_to_dict(metrics, {"loss": 2.0, "grad_norm": [0.5, 0.7]})
    >>> metrics
    {'loss': [1.0, 2.0], 'grad_norm': [0.5, 0.7]}
    >>> append_to_dict(metrics, {"tokens": Metric("sum", 3)}, prefix="actor/")
    >>> metrics["actor/tokens"]
    Metric('sum', 3.0, count=1)
    """
    for name, given in (("data", data), ("new_data", new_data)):
        if not isinstance(given, Mapping):
            raise InputTypeError(f"{name}: got {type(given).__name__}, expected a dict")
    added: dict[str, list[Any] | Metric] = {}
    for name, value in new_data.items():
        key = name if not prefix or name.startswith(prefix) else prefix + name
        _collect(added, key, data.get(key), value)
    for key, news in added.items():
        if key in data:
            data[key].extend(news)
        else:
            data[key] = news


def _collect(added: dict[str, list[Any] | Metric], key: str, target: Any, value: Any) -> None:
    """Add ``value`` to what ``key`` will receive, or raise before anything has changed."""
    into = added.get(key, target)
    if not (into is None or isinstance(into, list | Metric)):
        raise InputTypeError(f"data[{key!r}]: got {type(into).__name__}, expected a list or a Metric")
    if isinstance(into, list) and isinstance(value, Metric):
        raise InputTypeError(f"new_data[{key!r}]: got a Metric, but data[{key!r}] is a list of plain values")
    if isinstance(into, Metric) or isinstance(value, Metric):
        news = added.setdefault(key, (into if isinstance(into, Metric) else value).init_list())
        given = value if isinstance(value, Metric) else numbers_of(value, f"new_data[{key!r}]")
        cast("Metric", news).extend(given)
    else:
        plain = cast("list[Any]", added.setdefault(key, []))
        plain.extend(value if isinstance(value, list) else [value])


def numbers_of(values: Any, where: str) -> list[float]:
    """The numbers in ``values``, flattened: a number, array or tensor, or a (nested, even ragged) list of
    those.

    Args:
        values: Numbers in any of those forms.
        where: What errors call the argument.

    Raises:
        InputTypeError: Something in it isn't a number.

    >>> numbers_of([1, [2.5, [True]]], "values")
    [1.0, 2.5, 1.0]
    """
    kind = type(values)
    if kind is float:
        return [values]
    if kind is int or (kind is list and _PLAIN.issuperset(map(type, values))):
        try:
            return list(map(float, values)) if kind is list else [float(values)]
        except OverflowError:
            return flattened(values, where)  # says which one is too large
    return flattened(values, where)


def exact_sum(numbers: Sequence[float]) -> float:
    """The sum, rounded once, where it is finite; infinities and NaN as in IEEE arithmetic."""
    try:
        return math.fsum(numbers)
    except (OverflowError, ValueError):  # an intermediate overflow, or inf + -inf
        return float(sum(numbers))


_BY_NAME: Final[dict[Any, AggregationType]] = {one.value: one for one in AggregationType}


def _aggregation(given: str | enum.Enum) -> AggregationType:
    if type(given) is str and given in _BY_NAME:  # a third of what the enum takes
        return _BY_NAME[given]
    name = given.value if isinstance(given, enum.Enum) else given  # verl's own enum fits as well
    try:
        return AggregationType(name)
    except ValueError:
        raise UnknownNameError.of("aggregation", given, list(AggregationType)) from None


def _weight(weight: SupportsFloat, aggregation: AggregationType) -> float:
    if aggregation is not AggregationType.WEIGHTED_MEAN:
        raise InputError(f"weight: got {weight!r} for a {aggregation.value!r} Metric, expected none")
    (number,) = numbers_of(weight, "weight") or (math.nan,)
    if not number >= 0:
        raise InputError(f"weight: got {number!r}, expected 0 or more")
    return number


def _refuse_weight(weight: Any, why: str) -> None:
    if weight is not None:
        raise InputError(f"weight: got {weight!r}, expected none: {why}")


def _same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, list) and isinstance(theirs, list):
        return len(mine) == len(theirs) and all(map(_same, mine, theirs))
    if isinstance(mine, float) and isinstance(theirs, float) and math.isnan(mine):
        return math.isnan(theirs)
    return bool(mine == theirs)
