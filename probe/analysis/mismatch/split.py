"""How much of the mismatch stale weights add to what the engine makes with the trainer's own.

The measure is k2, the mean of (log r)² ÷ 2: it is a mean of squares, so that differences which have nothing to do with
each other add up in it. Where the engine's noise gives a token ε and its older weights give it δ,
E[(ε + δ)²] = E[ε²] + E[δ²]; k3 has this to second order only, and one token of a large ratio may be most of it.

The parts are differences of means, and sum to k2 exactly. With n tokens, n_l of them of weights l versions old, and e_l
the k2 of these, all counted with the weights of their answers:

* the *engine's* part is what all n would have if they were as those of lag 0: e_0, times the share of the tokens whose
  lag is known;
* the *stale* part is the sum over l ≥ 1 of n_l ÷ n · (e_l − e_0);
* tokens of unknown lag are a part of their own, n_u ÷ n · e_u.

The standard error of the stale part is that of a difference of two ratio estimators over answers, since the tokens of
an answer aren't independent (Cochran 1977, *Sampling Techniques*, 6.4): W² (v_0 + v_s) with W the share of stale tokens
and v = g ÷ (g − 1) · Σ w_a² (x_a − e m_a)² ÷ n² over g answers of weight w_a, of m_a tokens that sum to x_a. Squares
have heavy tails, of which a few answers make a large error; so the ranks of the answers' own k2 are compared, too (Mann
and Whitney 1947).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final

import numpy as np

from probe.analysis.mismatch.lag import Lags
from probe.analysis.mismatch.lines import short
from probe.analysis.mismatch.patterns import apart
from probe.text import percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from probe.analysis.mismatch.tokens import Array, Tokens

#: A difference of so many standard errors, or of so many standard deviations of the sum of ranks, isn't noise.
CLEAR: Final = 3.0
#: Numbers are whole multiples of the largest one's power of two times 2 to the minus so much: sums of them are exact.
_BITS: Final = 46


@dataclass(frozen=True, slots=True)
class Stale:
    """What answers of one lag add.

    Attributes:
        lag: Versions that their weights are behind, from 1 on.
        answers: How many.
        tokens: Kept and compared ones.
        added: To k2, beside the engine's part.
    """

    lag: int
    answers: int
    tokens: int
    added: float


@dataclass(frozen=True, slots=True)
class Split:
    """The parts of k2; ``engine + stale + unknown == total``, in floats too.

    Attributes:
        total: k2 of all tokens.
        engine: What the engine makes, as it does with the trainer's own weights.
        stale: What older weights add; negative where their answers differ less.
        unknown: k2 of the tokens whose lag isn't known, times their share.
        error: Standard error of ``stale``; 0 without stale answers.
        deviations: How many standard deviations the sum of ranks of stale answers is from that of no difference, above
            0 where they differ more; None of fewer than three stale answers, or of others.
        by_lag: The parts of ``stale``, which sum to it.
        fresh_answers: Of lag 0.
        stale_answers: Of all others whose lag is known.
        by_steps: Whether lag counts from the newest weights seen: what all answers lag behind alike is the engine's.
    """

    total: float
    engine: float
    stale: float
    unknown: float
    error: float
    deviations: float | None
    by_lag: tuple[Stale, ...]
    fresh_answers: int
    stale_answers: int
    by_steps: bool = False

    @property
    def clear(self) -> bool:
        """Whether older weights add more than noise."""
        return self.stale > 0 and self._apart(1)

    def _apart(self, sign: int) -> bool:
        """Whether stale answers differ more, or with −1 less, than noise explains."""
        return sign * self.stale > CLEAR * self.error or sign * (self.deviations or 0.0) > CLEAR

    @property
    def sentence(self) -> str:
        """What makes how much of the difference, in one or two sentences."""
        return self._said() + (
            " The trainer's version wasn't recorded: lag counts from the newest weights seen." * self.by_steps
        )

    def _said(self) -> str:
        within = f"{short(abs(self.stale))} ± {short(self.error)}"
        if not self.stale_answers:
            return f"All answers are of the trainer's own weights: nothing of k2 {short(self.total)} is stale."
        if self.clear:
            return (
                f"Older weights add {percent(self.stale / self.total)} of the difference, k2 {within} of "
                f"{short(self.total)}; the engine makes {short(self.engine)} with the trainer's own weights."
            )
        if self.stale < 0 and self._apart(-1):
            return f"Answers of older weights differ less than those of the newest, by k2 {within}."
        return f"Older weights add nothing beyond noise: k2 {'−' * (self.stale < 0)}{within} of {short(self.total)}."


def split(tokens: Tokens, told: Lags) -> Split | None:
    """The parts of the mismatch of the tokens that count in means.

    Args:
        tokens: Of all answers.
        told: How old the weights of each answer are.

    Returns:
        None where no answer with such tokens is of lag 0: what the engine makes can't be told then.
    """
    many, held = len(tokens.answers), tokens.held
    count = np.bincount(tokens.row[held], minlength=many)
    behind = np.where(count > 0, np.maximum(told.behind, -1), -2)  # -1: not known, or newer than the trainer's
    lag = behind[tokens.row]
    squares = tokens.log_ratio**2
    mean_of: dict[int, Fraction] = {}
    size_of: dict[int, Fraction] = {}
    for one in np.unique(behind[count > 0]).tolist():
        inside = held & (lag == one)
        # The sums are rounded once, whatever the order.
        size_of[one] = Fraction(math.fsum(tokens.weight[inside].tolist()))
        mean_of[one] = Fraction(math.fsum((tokens.weight * squares)[inside].tolist())) / (2 * size_of[one])
    if 0 not in mean_of:
        return None
    n, unknown = sum(size_of.values(), Fraction(0)), size_of.get(-1, Fraction(0))
    older = [one for one in mean_of if one > 0]
    parts = [
        mean_of[0] * (n - unknown) / n,
        mean_of.get(-1, Fraction(0)) * unknown / n,
        *((mean_of[one] - mean_of[0]) * size_of[one] / n for one in older),
    ]
    engine, rest, *added = _on_grid(parts, max(mean_of.values()))
    stale = math.fsum(added)
    fresh, old = held & (lag == 0), held & (lag > 0)
    error = math.sqrt(_variance(tokens, fresh, squares) + _variance(tokens, old, squares))
    known = behind >= 0
    own = np.bincount(tokens.row[held], squares[held], minlength=many)[known] / count[known]
    ranked = apart(own, behind[known] > 0)
    return Split(
        total=engine + stale + rest,
        engine=engine,
        stale=stale,
        unknown=rest,
        error=error * float(sum(size_of[one] for one in older) / n) if older else 0.0,
        deviations=None if ranked is None else ranked.deviations,
        by_lag=tuple(
            Stale(one, int((behind == one).sum()), int(count[behind == one].sum()), value)
            for one, value in zip(older, added, strict=True)
        ),
        fresh_answers=int((behind == 0).sum()),
        stale_answers=int((behind > 0).sum()),
        by_steps=told.by_steps,
    )


def _on_grid(parts: Sequence[Fraction], largest: Fraction) -> list[float]:
    """Each as a float, so that sums of them in any order are exact, and all of them sum to their sum's nearest."""
    grid = Fraction(2) ** (math.frexp(float(largest))[1] - _BITS)
    found, before = [], 0
    for at in range(len(parts)):
        upto = round(sum(parts[: at + 1], Fraction(0)) / grid)
        found.append(float((upto - before) * grid))
        before = upto
    return found


def _variance(tokens: Tokens, inside: Array, squares: Array) -> float:
    """Of the k2 of some tokens as an estimate over answers; infinite of one answer, 0 without any."""
    many = len(tokens.answers)
    count = np.bincount(tokens.row[inside], minlength=many)
    there = count > 0
    answers = int(there.sum())
    if answers < 2:
        return math.inf if answers else 0.0
    weight, count = tokens.weights[there], count[there]
    summed = np.bincount(tokens.row[inside], squares[inside] / 2, minlength=many)[there]
    n = math.fsum((weight * count).tolist())
    mean = math.fsum((weight * summed).tolist()) / n
    spread = math.fsum(((weight * (summed - mean * count)) ** 2).tolist())
    return answers / (answers - 1) * spread / n**2
