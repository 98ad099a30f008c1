"""How often noise passes a bound, from what was recorded of it: also a bound that it hasn't passed yet.

A run of 1,000 steps draws more micro-batches than were recorded, so the tail beyond the largest recorded noise decides.
It is a generalised Pareto distribution through the highest tenth: the limit of every common distribution's tail (J.
Pickands, *Annals of Statistics* 3, 1975). Its shape and scale are by probability-weighted moments (J. R. M. Hosking and
J. R. Wallis, *Technometrics* 29, 1987). Where a Gaussian, or the recorded noise itself, passes the bound more often,
that counts.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: The tail is from the highest tenth of the noise: of so many at least, but never of more than half, and so many at
#: most.
_PART: Final = 10
_LEAST: Final = 20
_MOST: Final = 200
#: Shapes of a tail. The highest tenth of a Gaussian has about the first; a bound on noise, as lighter tails have
#: one, can't be known from so few. At the second the variance is no longer finite, and the moments tell no shape.
_SHAPES: Final = (-0.1, 0.5)
#: Where a standard Gaussian's tail is below 1e-19: over all micro-batches of all steps it comes to nothing. Most of
#: them are as far from the end of memory as that.
_FAR: Final = 9.0
#: A shape this near 0 is an exponential tail.
_EXPONENTIAL: Final = 1e-6


class Tail:
    """The tail of recorded noise, drawn anew for each simulated run from its uncertainty (a bootstrap of the noise that
    it is from).

    Args:
        noise: (n,), n at least 2, in standard deviations; gross errors count too.
        runs: How many are simulated.
        random: Draws them.
    """

    def __init__(self, noise: Array, runs: int, random: np.random.Generator) -> None:
        self._noise = np.sort(noise)
        total = len(noise)
        count = min(max(_LEAST, min(_MOST, total // _PART)), total // 2)
        self._from = float(self._noise[-count - 1])
        self._share = count / total
        beyond = np.sort(random.choice(self._noise[-count:] - self._from, (runs, count)), axis=1)
        mean = beyond.mean(axis=1)
        weighted = (beyond * (1 - (np.arange(1, count + 1) - 0.35) / count)).mean(axis=1)
        shape = 2 - mean / np.maximum(mean - 2 * weighted, 1e-300)
        shape = np.clip(shape, *_SHAPES)
        self._shape = np.where(np.abs(shape) < _EXPONENTIAL, _EXPONENTIAL, shape)
        self._scale = np.maximum(mean * (1 - self._shape), 1e-300)  # so that its mean is that of the noise

    def log_below(self, bound: Array) -> Array:
        """The logarithm of the share of noise below a bound.

        Args:
            bound: (m, runs), in standard deviations.
        """
        inside = bound <= self._noise[-1]
        above = _gaussian_above(bound)
        recorded = 1 - np.searchsorted(self._noise, bound[inside]) / len(self._noise)
        above[inside] = np.maximum(above[inside], recorded)
        beyond = bound > self._from
        shape, scale = (np.broadcast_to(one, bound.shape)[beyond] for one in (self._shape, self._scale))
        reached = np.maximum(1 + shape * ((bound[beyond] - self._from) / scale), 1e-300)
        above[beyond] = np.maximum(above[beyond], self._share * np.exp(-np.log(reached) / shape))
        found: Array = np.log1p(-np.minimum(above, 1 - 1e-12))
        return found


def _gaussian_above(bound: Array) -> Array:
    """The share of a standard Gaussian above a bound."""
    above = np.where(bound < 0, 1.0, 0.0)
    near = np.abs(bound) < _FAR
    above[near] = [0.5 * one for one in map(math.erfc, (bound[near] / math.sqrt(2)).tolist())]
    return above
