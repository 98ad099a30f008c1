"""The slope of a series on a regressor, with an error that holds whatever memory the noise has.

Ordinary errors take the noise of neighbouring steps for independent. Memory of a process is anything but: what one
step left behind, the next finds, and an ordinary test calls most random walks a trend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Residuals beyond as many robust standard deviations count less.
HUBER: Final = 4.0

#: Below this share of its scale a column is one that is there already, and a residual is rounding.
_ROUNDING: Final = 1e-9


@dataclass(frozen=True)
class Trend:
    """A regression of a series.

    Attributes:
        slope: On the first regressor, in units of the series by its unit.
        error: Standard error of the slope.
        memory: Correlation of the noise with that of the step before, 0 to 1; 1 is a random walk.
        others: What the other regressors say of each value, of the shape of the series, around 0.
        together: Share of the first regressor that the others foretell (R²).
    """

    slope: float
    error: float
    memory: float
    others: Array
    together: float

    @property
    def certainty(self) -> float:
        """The slope in units of its error."""
        return self.slope / self.error


def trend(series: Array, regressors: Sequence[Array]) -> Trend:
    """Regress ``series`` on a constant and ``regressors``.

    The noise is taken for autoregressive of the first order: its correlation is that of the residuals, corrected for
    what short series take from it (Kendall, Biometrika 41, 1954: for a constant (1 + 3 r) / n, and so on with each
    further regressor) and 1, a random walk, where it is within 2 / √n of that (after Perron and Yabu, Journal of
    Econometrics 151, 2009). What correlation is left then is taken into the error (Newey and West, Econometrica 55,
    1987).

    Args:
        series: Values in order, all finite.
        regressors: Of the same length each, all finite; the first is the one of interest and not constant. What is
            constant, or says the same as those before, is left out.

    Returns:
        The regression.
    """
    count = len(series)
    height = float(np.abs(series).max()) or 1.0
    first, others = regressors[0], _distinct(regressors[1:])
    together = _foretold(first, others)
    unit = float(first.std())
    columns = [np.ones(count), (first - first.mean()) / unit]
    columns += others if together < 1 - _ROUNDING else []
    table = np.stack(columns, axis=1)
    residuals = series - table @ _huber(table, series)
    memory = _memory(residuals, table.shape[1])
    told, seen = _differenced(table, memory), _differenced(series[:, None], memory)[:, 0]
    kept = told if memory < 1 else told[:, 1:]  # of a random walk the level says nothing
    found = _huber(kept, seen)
    at = kept.shape[1] - table.shape[1] + 1
    error = _newey_west(kept, seen - kept @ found, at)
    error = max(error, _ROUNDING * height / np.sqrt(count))
    beside = table[:, 2:] @ found[at + 1 :] if table.shape[1] > 2 else np.zeros(count)
    return Trend(float(found[at]) / unit, error / unit, memory, beside, together)


def _distinct(regressors: Sequence[Array]) -> list[Array]:
    """Those that aren't constant nor a sum of those before, centred and scaled."""
    kept: list[Array] = []
    for one in regressors:
        spread = float(one.std())
        if spread <= _ROUNDING * max(float(np.abs(one).max()), 1e-300):
            continue
        scaled = (one - one.mean()) / spread
        if _foretold(scaled, kept) < 1 - 1e-6:
            kept.append(scaled)
    return kept


def _foretold(one: Array, others: Sequence[Array]) -> float:
    """Share of the variance of ``one`` that a constant and ``others`` explain."""
    if not others:
        return 0.0
    table = np.stack([np.ones(len(one)), *others], axis=1)
    left = one - table @ _solved(table, one)
    return float(1 - left.var() / one.var())


def _solved(table: Array, values: Array) -> Array:
    return np.asarray(np.linalg.lstsq(table, values, rcond=None)[0], dtype=np.float64)


def _huber(table: Array, values: Array) -> Array:
    """Coefficients that single odd values don't decide: least squares, weighted anew five times (Huber, 1964)."""
    found = _solved(table, values)
    for _ in range(5):
        left = values - table @ found
        scale = 1.4826 * float(np.median(np.abs(left - np.median(left))))
        if scale <= _ROUNDING * float(np.abs(values).max()):
            return found  # most of it is exact, and what isn't may be what is looked for
        weights = np.sqrt(np.minimum(1.0, HUBER * scale / np.maximum(np.abs(left), scale)))
        if weights.min() == 1:
            return found
        found = _solved(table * weights[:, None], values * weights)
    return found


def _memory(residuals: Array, regressors: int) -> float:
    before = residuals[:-1]
    power = float(before @ before)
    if not power:
        return 0.0
    count = len(residuals)
    seen = float(residuals[1:] @ before) / power
    likely = seen + (regressors + (regressors + 2) * max(seen, 0.0)) / count
    return 1.0 if likely > 1 - 2 / np.sqrt(count) else max(likely, 0.0)


def _differenced(table: Array, memory: float) -> Array:
    """What of each row the noise of the row before doesn't say."""
    rest = table[1:] - memory * table[:-1]
    return rest if memory == 1 else np.concatenate([np.sqrt(1 - memory**2) * table[:1], rest])


def _newey_west(table: Array, left: Array, at: int) -> float:
    """Standard error of the coefficient ``at``."""
    count, columns = table.shape
    inverse = np.linalg.pinv(table.T @ table)
    scores = (table @ inverse[:, at]) * left
    spread = float(scores @ scores)
    lags = int(4 * (count / 100) ** (2 / 9))
    whole = spread + sum(2 * (1 - lag / (lags + 1)) * float(scores[lag:] @ scores[:-lag]) for lag in range(1, lags + 1))
    return float(np.sqrt(max(whole, spread) * count / max(count - columns, 1)))
