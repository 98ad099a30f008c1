"""A straight line through points, by least squares."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

#: Fewer points say nothing of a line.
_LEAST: Final = 3


class Fit(NamedTuple):
    """A line ``base + slope * x``.

    Attributes:
        slope: Of y over x.
        base: y where x is 0.
        explained: The share of y's variance that x explains, R²; 0 where y doesn't vary.
    """

    slope: float
    base: float
    explained: float


def least_squares(xs: npt.NDArray[Any], ys: npt.NDArray[Any]) -> Fit | None:
    """The line with the least sum of squared distances in y.

    Args:
        xs: Shape ``(points,)``.
        ys: Shape ``(points,)``.

    Returns:
        The line; None for fewer than three points, and where all are at one x.

    >>> least_squares(np.array([1.0, 2, 3]), np.array([5.0, 7, 9]))
    Fit(slope=2.0, base=3.0, explained=1.0)
    """
    if len(xs) < _LEAST or not np.ptp(xs) > 0:
        return None
    x, y = xs - xs.mean(), ys - ys.mean()
    slope = float((x * y).sum() / (x * x).sum())
    whole = float((y * y).sum())
    left = float(((y - slope * x) ** 2).sum())
    return Fit(slope, float(ys.mean() - slope * xs.mean()), 1 - left / whole if whole else 0.0)
