"""A small line without axes: where its points stand, whatever the values are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Line(NamedTuple):
    """Points of a picture that is one wide and one high, with (0, 0) at its upper left.

    Attributes:
        points: Of the finite values, in their order.
        infinite: Of the infinite ones: at the upper edge what is above all others, at the lower what is below.
    """

    points: list[tuple[float, float]]
    infinite: list[tuple[float, float]]


def line(places: Sequence[float], values: Sequence[float], ends: tuple[float, float] | None = None) -> Line:
    """Where the points of a line stand.

    Args:
        places: Where each value belongs, ascending, such as its step.
        values: NaN where there is none.
        ends: The places of the left and the right edge; None takes those of the first and the last value.

    Returns:
        The points.

    >>> line([0, 1, 2], [5.0, float("inf"), 7.0])
    Line(points=[(0.0, 1.0), (1.0, 0.0)], infinite=[(0.5, 0.0)])
    """
    known = [(place, value) for place, value in zip(places, values, strict=True) if not math.isnan(value)]
    finite = [value for _, value in known if math.isfinite(value)]
    if not known:
        return Line([], [])
    first, last = (known[0][0], known[-1][0]) if ends is None else ends
    wide = (last - first) or 1
    scale = max(map(abs, finite), default=0.0) or 1.0  # the difference of two large numbers may be none
    low, high = min(finite, default=0.0) / scale, max(finite, default=0.0) / scale
    tall = (high - low) or 1.0
    points, infinite = [], []
    for place, value in known:
        across = (place - first) / wide
        if math.isfinite(value):
            points.append((across, 1.0 - (value / scale - low) / tall))
        else:
            infinite.append((across, 0.0 if value > 0 else 1.0))
    return Line(points, infinite)
