"""How far a number of a run may be off by chance, from the run's own steps: the one-sided bounds of a change.

Steps of a training aren't independent draws. What one step left behind, the next finds; some are stragglers, and the
first compiles and fills caches. So the change of the typical step is Huber's M-estimate (P. J. Huber, *Annals of
Mathematical Statistics* 35, 1964), which single odd steps don't decide. Its bounds are Student's, of the steps'
influences on it, for as many independent values as the autocorrelated ones are worth (F. W. Zwiers and H. von Storch,
*Journal of Climate* 8, 1995). Their autocorrelation is taken at its own upper bound, since short runs show too little
of it. Where averages of 2, 4, 8 … steps tell of more noise than single steps do, theirs counts (H. Flyvbjerg and H. G.
Petersen, *Journal of Chemical Physics* 91, 1989).

Nothing is drawn at random: the same rows give the same bounds. ``docs/make_noise.py`` measures how often they are
wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from probe.analysis.fit import student

Array = NDArray[np.float64]

#: ``within``: shown to be inside the margin; ``beyond``: shown to be outside; ``not_shown``: neither.
Verdict = Literal["within", "beyond", "not_shown"]

#: Where Huber's loss begins to grow linearly, in standard deviations: 95 % efficient under Gaussian noise.
_BEND: Final = 1.345
#: Standard deviation ÷ median absolute deviation, and ÷ mean absolute deviation, of a Gaussian.
_MAD: Final = 1.4826
_MEAN: Final = math.sqrt(math.pi / 2)
#: One-sided 95 % of a Gaussian: how many standard errors of it the autocorrelation is taken higher than it was seen.
_HIGHER: Final = 1.645
#: Beyond it steps can't be told from a random walk, of which no number of steps says anything.
_MOST: Final = 0.95
#: Averages of several steps count from so many of them on.
_BLOCKS: Final = 8
#: Degrees of freedom that two or three steps are taken to have.
_FREEDOM: Final = 2.0
#: Ratios that differ by no more are the same.
_ROUNDING: Final = 1e-9
#: No number of steps beyond it is proposed.
MOST_STEPS: Final = 100_000


@dataclass(frozen=True, eq=False)
class Change:
    """How the typical step of a run differs from another one's.

    Attributes:
        confidence: Of each bound, 0.5 to 1.
        steps: How many of the second run were compared.
        paired: Whether each with the step of the same number.
        unit: What a change of 1 is, in the unit of the numbers: NaN where changes are ratios, step by step, and 0 where
            the base's middle step is 0, so that there is nothing to be a share of.
        shift: The change; of ratios the logarithm.
        influences: What each step says of it, in the same unit: an array if paired, one for each run if not.
    """

    confidence: float
    steps: int
    paired: bool
    unit: float
    shift: float
    influences: tuple[Array, ...]

    @property
    def is_constant(self) -> bool:
        """Whether it is the same in every step, so that it has no noise."""
        return all(len(one) > 1 and not one.any() for one in self.influences)

    @property
    def value(self) -> float:
        """The change as a share of the base: 0.05 is 5 % more. In the numbers' own unit where the base is 0."""
        return self._told(self.shift)

    @property
    def interval(self) -> tuple[float, float]:
        """The lower and the upper bound, each at :attr:`confidence`; infinite where a run has one step."""
        reach = self._reach()
        return self._told(self.shift - reach), self._told(self.shift + reach)

    def verdict(self, margin: float, side: Literal["max", "min"]) -> Verdict:
        """Whether the change is inside a margin.

        Args:
            margin: The largest change that is allowed, or with ``side="min"`` the smallest, as :attr:`value` has it.
            side: Which of them. A share of 0 is 0.
        """
        margin = margin if self.unit else 0.0
        low, high = self.interval
        if side == "min":
            low, high, margin = -high, -low, -margin
        if high <= margin + _ROUNDING:
            return "within"
        return "beyond" if low > margin + _ROUNDING else "not_shown"

    def steps_needed(self, margin: float) -> int | None:
        """About how many steps of each run would show on which side of a margin the change is, if it stays as it is.

        Args:
            margin: As :attr:`value` has it.

        Returns:
            None where 100,000 wouldn't, or a single step tells nothing of noise.
        """
        gap = abs(self._shift(margin) - self.shift)
        if self.steps < 2 or not gap:
            return None
        seen = [_seen(one) for one in self.influences]
        more = max(1.0, self._reach() / (math.hypot(*(_first(one, self.confidence) for one in seen)) or 1.0))

        def tells(count: int) -> bool:
            return more * math.hypot(*(one.reach(count, self.confidence) for one in seen)) <= gap

        low, high = self.steps, 2 * self.steps
        while not tells(high):
            low, high = high, 2 * high
            if low > MOST_STEPS:
                return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if tells(middle) else (middle, high)
        return high

    def _reach(self) -> float:
        return math.hypot(*(reach(one, self.confidence) for one in self.influences))

    def _told(self, shift: float) -> float:
        if not math.isnan(self.unit):
            return shift / (self.unit or 1.0)
        return math.expm1(shift) if shift < 700 else math.inf

    def _shift(self, value: float) -> float:
        if not math.isnan(self.unit):
            return value * self.unit
        return math.log1p(value) if value > -1 else -math.inf


def change(before: ArrayLike, after: ArrayLike, confidence: float, *, paired: bool) -> Change:
    """How the typical step of ``after`` differs from that of ``before``.

    Numbers that are all above 0 are compared as ratios, step by step; others as differences, which are told as shares
    of the middle step of ``before``.

    Args:
        before: (n,), one value for each step, finite and in their order.
        after: (m,), the same of the other run; paired (n,).
        confidence: Of each bound, 0.5 to 1.
        paired: Whether values at the same place are of the same step. What both runs share, such as the sizes of their
            batches or longer answers as training goes on, then drops out.

    >>> found = change([2.0, 4.0, 3.0, 5.0], [2.1, 4.2, 3.15, 5.25], 0.95, paired=True)
    >>> round(found.value, 6), found.verdict(0.06, "max"), found.verdict(0.04, "max")
    (0.05, 'within', 'beyond')
    """
    base, other = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    middle = abs(float(np.median(base)))
    as_ratio = bool((base > 0).all() and (other > 0).all())
    unit = math.nan if as_ratio else middle
    one, two = (np.log(base), np.log(other)) if as_ratio else (base, other)
    rounding = 1e-12 if as_ratio else 1e-12 * max(float(np.abs(base).max()), float(np.abs(other).max()))
    if paired:
        apart = two - one
        found = [_typical(apart, _deviation(apart, rounding))]
        shift = found[0][0]
    else:
        # One deviation for both: of skewed values it moves the middle, and so moves both alike.
        both = (_deviation(one, rounding) + _deviation(two, rounding)) / 2
        found = [_typical(one, both), _typical(two, both)]
        shift = found[1][0] - found[0][0]
    shift = 0.0 if abs(shift) <= rounding else shift
    return Change(confidence, len(other), paired, unit, shift, tuple(influence for _, influence in found))


def _deviation(values: Array, rounding: float) -> float:
    """Robust standard deviation; 0 where values differ by no more than rounding."""
    apart = np.abs(values - np.median(values))
    if float(apart.max()) <= rounding:
        return 0.0
    # Where most values are the same, their median deviation is 0, and says nothing of the others.
    return _MAD * float(np.median(apart)) or _MEAN * float(apart.mean())


def _typical(values: Array, deviation: float) -> tuple[float, Array]:
    """Huber's M-estimate of the middle of values, (n,), and the influence of each on it, (n,).

    What the estimate is off by is about the mean of the influences.
    """
    middle = float(np.median(values))
    if not deviation:
        return middle, np.zeros(len(values))
    for _ in range(50):
        weights = np.minimum(1.0, _BEND * deviation / np.maximum(np.abs(values - middle), 1e-300))
        last, middle = middle, float(weights @ values / weights.sum())
        if abs(middle - last) <= 1e-9 * deviation:
            break
    scaled = (values - middle) / deviation
    inside = max(1.0 / len(values), float((np.abs(scaled) < _BEND).mean()))
    return middle, deviation * np.clip(scaled, -_BEND, _BEND) / inside


def reach(influences: Array, confidence: float) -> float:
    """How far a mean of autocorrelated values may be off, to one side.

    Args:
        influences: (n,), in their order; a mean is off by about theirs.
        confidence: Of the bound, 0.5 to 1.

    Returns:
        In their unit; infinite of a single one.
    """
    count = len(influences)
    if count < 2:
        return math.inf
    found, size = _first(_seen(influences), confidence), 2
    while count // size >= _BLOCKS:
        blocks = count // size
        means = influences[count - blocks * size :].reshape(blocks, size).mean(axis=1)
        one = _first(_seen(means), confidence, higher=0.0)
        found, size = max(found, one * math.sqrt(blocks * size / count)), 2 * size
    return found


@dataclass(frozen=True)
class _Seen:
    """What a series shows of its noise.

    Attributes:
        count: Of its values.
        power: Their mean square around their mean.
        memory: Correlation with the value before, corrected for what short series take from it (M. G. Kendall,
            *Biometrika* 41, 1954: (1 + 3 r) / n).
    """

    count: int
    power: float
    memory: float

    def reach(self, count: int, confidence: float, higher: float = _HIGHER) -> float:
        """Of the mean of so many values."""
        if not self.power:
            return 0.0
        own = _share(self.memory, self.count)  # of the noise that is in the mean, and not around it
        memory = min(_MOST, self.memory + higher * math.sqrt((1 - self.memory**2) / count))
        share = _share(memory, count)
        freedom = min(count - 1.0, max(_FREEDOM, 1 / share - 1))
        spread = self.power / (1 - share) if count == self.count else self.power / (1 - own)
        return student(confidence, freedom) * math.sqrt(spread * share)


def _first(seen: _Seen, confidence: float, higher: float = _HIGHER) -> float:
    """The reach of the mean of the values that were seen."""
    return seen.reach(seen.count, confidence, higher)


def _seen(values: Array) -> _Seen:
    centred = values - values.mean()
    power = float(centred @ centred)
    if not power:
        return _Seen(len(values), 0.0, 0.0)
    raw = float(centred[1:] @ centred[:-1]) / power
    memory = raw + (1 + 3 * max(raw, 0.0)) / len(values)
    return _Seen(len(values), power / len(values), min(_MOST, max(0.0, memory)))


def _share(memory: float, count: int) -> float:
    """Variance of the mean of autoregressive values ÷ their variance.

    >>> round(_share(0.0, 10), 9), round(_share(0.8, 10), 3)
    (0.1, 0.543)
    """
    told = (1 + memory) / (1 - memory) / count - 2 * memory * (1 - memory**count) / (count * (1 - memory)) ** 2
    return min(told, 1 - 1e-9)
