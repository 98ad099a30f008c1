"""A straight line through points, by least squares."""

from __future__ import annotations

from collections.abc import Mapping
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


def rising_line(xs: npt.NDArray[Any], ys: npt.NDArray[Any], fit: Mapping[str, Any]) -> Fit | None:
    """The line through points where they say that y rises with x: what is drawn, and what may be advised upon.

    Args:
        xs: Shape ``(points,)``.
        ys: Shape ``(points,)``.
        fit: What a line must be: ``rows``, the least number of points, and ``explained``, the least share of y's
            variance that it explains.

    Returns:
        The line; None where there are too few points, or where x explains too little, and where y falls, since that is
        no price of x.
    """
    line = least_squares(xs, ys) if len(xs) >= fit["rows"] else None
    return line if line is not None and line.slope > 0 and line.explained >= fit["explained"] else None


def no_line(fit: Mapping[str, Any], points: int) -> str:
    """Why no line is drawn.

    Args:
        fit: As for :func:`rising_line`.
        points: Of the series that has most.

    Returns:
        The reason in a few words.

    >>> no_line({"explained": 0.5, "rows": 8}, 3)
    'no line: needs 8 dots of a series or more'
    >>> no_line({"explained": 0.5, "rows": 8}, 30)
    'no line: no rising line explains 50 % of the variance'
    """
    if points < fit["rows"]:
        return f"no line: needs {fit['rows']} dots of a series or more"
    return f"no line: no rising line explains {fit['explained']:.0%} of the variance".replace("%", " %")
