"""A straight line through what was measured, in several variables, that a few outliers don't bend.

The fit is reweighted least squares (Rousseeuw and Leroy, *Robust Regression and Outlier Detection*, 1987): Huber's
M-estimate first, then least squares of what is within :data:`_FAR` robust standard deviations of it. Intervals are
those of least squares, which hold what they promise where the noise is Gaussian and alike everywhere. Where it may grow
with what is measured (``uneven``), points are weighted by it, and the errors are those of HC3 (J. G. MacKinnon and H.
White, *Journal of Econometrics* 29, 1985), which hold also where the weights are off. The interval of a new measurement
there is as wide as 95 % of the residuals are, once there are enough of them: noise needn't be Gaussian.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

#: Beyond so many standard deviations a point is an outlier.
_FAR: Final = 4.0
#: Where Huber's loss begins to grow linearly, in standard deviations: 95 % efficient under Gaussian noise.
_BEND: Final = 1.345
#: Standard deviation ÷ median absolute deviation, of a Gaussian.
_MAD: Final = 1.4826
#: Noise is taken to be nowhere less than this share of what it is in the middle.
_LEAST: Final = 0.1
#: It is taken to grow with what is expected where that is worth so many of its own errors.
_GROWS: Final = 1.0
#: From so many degrees of freedom on the residuals themselves say how wide 95 % of them are.
_MANY: Final = 200


@dataclass(frozen=True)
class Fit:
    """What :func:`fit` found.

    Attributes:
        names: Of the regressors.
        coefficients: One for each of them.
        covariance: Of the coefficients, (k, k).
        sigma: Standard deviation of the noise, in the unit of what was measured; of uneven noise that at the point in
            the middle.
        freedom: Degrees of freedom.
        points: How many were measured.
        outliers: How many of them were left out.
        noise: Standard deviation of a Gaussian whose middle 95 % is as wide as that of the noise of a measurement:
            at least the first, else the second + the third × what is expected.
        expected: What the fit gives for each measurement, (points,).
        left: What each measurement, outliers too, is above it, (points,).
    """

    names: tuple[str, ...]
    coefficients: Array
    covariance: Array
    sigma: float
    freedom: int
    points: int
    outliers: int
    noise: tuple[float, float, float]
    expected: Array
    left: Array

    def __getitem__(self, name: str) -> float:
        """The coefficient of a regressor; raises :class:`ValueError` where there is none of that name."""
        return float(self.coefficients[self.names.index(name)])

    def error(self, name: str) -> float:
        """The standard error of a coefficient.

        Args:
            name: Of its regressor.
        """
        at = self.names.index(name)
        return math.sqrt(max(0.0, float(self.covariance[at, at])))

    def mean(self, regressors: ArrayLike) -> Array:
        """The value that is expected for each row.

        Args:
            regressors: (n, k), in the order of ``names``.
        """
        found: Array = np.asarray(regressors, dtype=np.float64) @ self.coefficients
        return found

    def spread(self, regressors: ArrayLike, *, noise: bool = True) -> Array:
        """The standard error of :meth:`mean`; with ``noise`` that of a new measurement there.

        Args:
            regressors: (n, k), in the order of ``names``.
            noise: Whether the noise of a measurement counts.
        """
        rows = np.atleast_2d(np.asarray(regressors, dtype=np.float64))
        own = np.einsum("ij,jk,ik->i", rows, self.covariance, rows)
        found: Array = np.sqrt(np.maximum(own, 0) + (self.noise_at(self.mean(rows)) ** 2 if noise else 0.0))
        return found

    def noise_at(self, expected: ArrayLike) -> Array:
        """The noise of a measurement, see ``noise``.

        Args:
            expected: (n,), what is expected of each.
        """
        least, always, share = self.noise
        found: Array = np.maximum(least, always + share * np.asarray(expected, dtype=np.float64))
        return found

    def reach(self, level: float = 0.95) -> float:
        """How many standard errors an interval reaches to either side.

        Args:
            level: The share of intervals that hold the true value, 0 to 1.
        """
        return student(0.5 + level / 2, self.freedom)


def fit(names: Sequence[str], regressors: ArrayLike, measured: ArrayLike, *, uneven: bool = False) -> Fit | None:
    """The robust fit of ``measured`` on ``regressors``.

    Args:
        names: Of the regressors; a constant, where there is to be one, is a regressor of ones.
        regressors: (n, k).
        measured: (n,).
        uneven: Whether the noise may grow with what is measured, as that of times does.

    Returns:
        None where there are fewer than k + 5 points, or the regressors can't be told apart.

    >>> x = np.arange(20.0)
    >>> found = fit(["one", "x"], np.c_[np.ones(20), x], 3 + 2 * x)
    >>> round(found["x"], 6), found.outliers
    (2.0, 0)
    """
    rows, values = np.asarray(regressors, dtype=np.float64), np.asarray(measured, dtype=np.float64)
    points, count = rows.shape
    if points < count + 5:
        return None
    scale = np.sqrt((rows**2).mean(axis=0))
    if not np.all(scale > 0) or np.linalg.cond(rows / scale) > 1e8:
        return None
    scaled = rows / scale
    kept = _near(scaled, values)
    line, noise = (1.0, 1.0, 0.0), np.ones(points)
    if uneven:
        line, noise = _noise(scaled, values, kept)
        scaled, values = scaled / noise[:, None], values / noise
        kept = _near(scaled, values)
    if kept.sum() < count + 5 or np.linalg.cond(scaled[kept]) > 1e8:
        kept = np.ones(points, dtype=bool)
    inside, told = scaled[kept], values[kept]
    inverse = np.linalg.inv(inside.T @ inside)
    solved = inverse @ (inside.T @ told)
    freedom = int(kept.sum()) - count
    left = told - inside @ solved
    sigma = math.sqrt(float((left**2).sum()) / freedom)
    covariance = _sandwich(inside, inverse, left, sigma) if uneven else sigma**2 * inverse
    wide, expected = sigma, scaled @ solved
    if uneven and freedom >= _MANY:
        wide = _width(values - expected) * math.sqrt(len(told) / freedom) / student(0.975, freedom)
    return Fit(
        tuple(names),
        solved / scale,
        covariance / np.outer(scale, scale),
        sigma,
        freedom,
        points,
        points - int(kept.sum()),
        (wide * line[0], wide * line[1], wide * line[2]),
        expected * noise,
        (values - expected) * noise,
    )


def _noise(rows: Array, values: Array, kept: NDArray[np.bool_]) -> tuple[tuple[float, float, float], Array]:
    """The noise of each point, 1 in the middle, and what it is: at least the first, else the second + the third × what
    is expected. It is the same everywhere but where it clearly grows.
    """
    told, noise = (1.0, 1.0, 0.0), np.ones(len(values))
    for _ in range(2):
        weighted = rows / noise[:, None]
        solved, *_ = np.linalg.lstsq(weighted[kept], values[kept] / noise[kept], rcond=None)
        expected = rows @ solved
        apart = np.abs(values - expected) / noise
        apart = noise * np.minimum(apart, _FAR * _MAD * float(np.median(apart)))
        unit = float(expected.std()) or 1.0
        centred, weights = (expected - expected.mean()) / unit, noise**-2.0
        line = np.stack([np.ones(len(values)), centred], axis=1)
        inverse = np.linalg.pinv((line * weights[:, None]).T @ line, hermitian=True)
        always, share = inverse @ ((line * weights[:, None]).T @ apart)
        left = (apart - line @ [always, share]) * np.sqrt(weights)
        error = math.sqrt(float(inverse[1, 1]) * float((left**2).mean()))
        found = always + share * centred
        middle = float(np.median(found))
        if not middle > 0 or share <= _GROWS * error:
            return (1.0, 1.0, 0.0), np.ones(len(values))
        noise = np.maximum(found / middle, _LEAST)
        told = (_LEAST, float(always - share * expected.mean() / unit) / middle, float(share / unit) / middle)
        kept = _near(rows / noise[:, None], values / noise)
    return told, noise


def _width(left: Array) -> float:
    """Within which 95 % of the residuals are, without gross errors: tails that are heavier than a Gaussian's count."""
    apart = np.abs(left)
    tail = apart <= 2 * _FAR * _MAD * float(np.median(apart))
    return float(np.quantile(apart[tail], 0.95, method="weibull"))


def _sandwich(rows: Array, inverse: Array, left: Array, sigma: float) -> Array:
    """The covariance by HC3: each point's own square, larger the more the point itself draws the line to it."""
    drawn = np.einsum("ij,jk,ik->i", rows, inverse, rows)
    own = 1.0 - drawn
    # A point that alone tells a coefficient has no residual, and says nothing of its noise.
    squares = np.where(own > 1e-6, (left / np.maximum(own, 1e-6)) ** 2, sigma**2)
    found: Array = inverse @ ((rows * squares[:, None]).T @ rows) @ inverse
    return found


def _near(rows: Array, values: Array) -> NDArray[np.bool_]:
    """Which points are near Huber's fit."""
    weights = np.ones(len(values))
    residuals = values
    deviation = 0.0
    for _ in range(50):
        root = np.sqrt(weights)
        solved, *_ = np.linalg.lstsq(rows * root[:, None], values * root, rcond=None)
        residuals = values - rows @ solved
        before, deviation = deviation, _MAD * float(np.median(np.abs(residuals - np.median(residuals))))
        if deviation <= 1e-12 * max(1.0, float(np.abs(values).max())):
            break
        weights = np.minimum(1.0, _BEND * deviation / np.maximum(np.abs(residuals), 1e-300))
        if abs(deviation - before) <= 1e-6 * deviation:
            break
    smallest = 1e-9 * max(1.0, float(np.abs(values).max()))
    near: NDArray[np.bool_] = np.abs(residuals) <= max(_FAR * deviation, smallest)
    return near


def student(share: float, freedom: float) -> float:
    """The quantile of Student's t distribution (expansion of Fisher and Cornish, 1960; of 1 and 2 in closed form).

    Args:
        share: Of the distribution below it, 0 to 1.
        freedom: Degrees of freedom, at least 1; of 1, of 2, and from 5 on it is right to a hundredth.

    >>> round(student(0.975, 5), 2), round(student(0.975, 1000), 2)
    (2.57, 1.96)
    >>> round(student(0.95, 1), 2), round(student(0.95, 2), 2)
    (6.31, 2.92)
    """
    if freedom == 1:
        return math.tan(math.pi * (share - 0.5))
    if freedom == 2:
        return (2 * share - 1) / math.sqrt(2 * share * (1 - share))
    z, v = NormalDist().inv_cdf(share), float(freedom)
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )
