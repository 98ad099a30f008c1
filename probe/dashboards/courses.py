"""The values of a quantity over a run, and one number of them: for the whole run, or for the window of a tile."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: Values by step and rank.
ByRank = Mapping[tuple[int, int], float]

#: By series (the values of ``by``) what is divided, and what it is divided by.
Parts = Mapping[tuple[Any, ...], tuple[float, float]]


@dataclass(frozen=True)
class Course:
    """A quantity over a run, wherever it was read: by SQL or from live tables.

    Attributes:
        steps: In order.
        values: One for each step, NaN where there is none.
        total: The sum over the run, of what is counted (``total: true``); else NaN.
        capacity: What it is measured against; NaN without.
        by_rank: The values of :func:`who_series`, by step and rank; none where nobody asked for them.
        parts: Of a ratio of sums (``pooled: true``), for each step: by series what is divided, and by what.
    """

    steps: Sequence[int]
    values: Sequence[float]
    total: float = math.nan
    capacity: float = math.nan
    by_rank: ByRank = field(default_factory=dict)
    parts: Sequence[Parts] = ()


def over_run(spec: Mapping[str, Any], course: Course) -> float:
    """One number for the whole run: the total of what is counted, the largest of bytes, of a ratio of sums that of all
    steps, else the middle of the steps.

    Args:
        spec: A quantity.
        course: Its values.

    Returns:
        The number; NaN where no step has a value.

    >>> over_run({"unit": "s"}, Course([0, 1, 2], [3.0, 1.0, 2.0]))
    2.0
    """
    if spec.get("total"):
        return course.total
    if spec.get("pooled"):
        return _pooled(course.parts)
    known = [one for one in course.values if not math.isnan(one)]
    if not known:
        return math.nan
    return max(known) if spec.get("unit") == "bytes" else statistics.median(known)


def over_window(spec: Mapping[str, Any], course: Course) -> float:
    """The number that a tile shows and judges: the median of the last ``window`` steps that have a value, or where it
    is pooled their ratio of sums.

    Args:
        spec: A tile; without a ``window`` it is of the last step alone.
        course: Its values.

    Returns:
        The number; of what is counted, and of bytes, that of the run. NaN where no step has a value.

    >>> over_window({"unit": "s", "window": 3}, Course([0, 1, 2, 3, 4], [9.0, 3.0, 1.0, math.nan, 2.0]))
    2.0
    """
    if is_of_the_run(spec):
        return over_run(spec, course)
    inside = in_window(spec, course)
    if spec.get("pooled"):
        return _pooled([course.parts[at] for at in inside])
    return statistics.median(course.values[at] for at in inside) if inside else math.nan


def _pooled(parts: Iterable[Parts]) -> float:
    """Sum ÷ sum of each series; the largest of them, NaN where there is none.

    >>> _pooled([{(0,): (1.0, 10.0), (1,): (8.0, 10.0)}, {(0,): (9.0, 10.0)}])
    0.8
    """
    over: dict[tuple[Any, ...], float] = {}
    under: dict[tuple[Any, ...], float] = {}
    for step in parts:
        for series, (above, below) in step.items():
            if not math.isnan(above) and not math.isnan(below):
                over[series] = over.get(series, 0.0) + above
                under[series] = under.get(series, 0.0) + below
    return max((over[series] / below for series, below in under.items() if below), default=math.nan)


def is_of_the_run(spec: Mapping[str, Any]) -> bool:
    return bool(spec.get("total")) or spec.get("unit") == "bytes"


def in_window(spec: Mapping[str, Any], course: Course) -> list[int]:
    """Which of the steps are in it."""
    known = [at for at, one in enumerate(course.values) if not math.isnan(one)]
    return known[-int(spec.get("window", 1)) :]
