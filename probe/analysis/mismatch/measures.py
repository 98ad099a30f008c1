r"""What two log-probabilities of the same tokens say about each other.

For a token a that the rollout sampled, the *log ratio* is log r = log p_training(a) − log p_rollout(a), in natural
logarithms. All estimators here are means over tokens that were sampled by the rollout, so that the divergence that k1,
k2 and k3 estimate is KL(rollout ‖ training). They are those of J. Schulman, "Approximating KL divergence" (2020,
joschu.net/blog/kl-approx.html), with its q the rollout and its p the training. Where rollout and training agree, all of
them are 0 and the ratio is 1.

Of a large batch only some answers are kept, and bad ones are kept on purpose. So each counts with the inverse of the
probability with which it was kept: one that was chosen by what it is with 1, a drawn one with the number of answers
that were left, divided by how many of them were drawn (Horvitz and Thompson 1952). Means are divided by the sum of the
weights (Hájek 1971).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

#: A log ratio is cut here before it is exponentiated: e²⁰ is 5 · 10⁸, and a float's limit far away.
LARGEST_LOG_RATIO: Final = 20.0

#: Bounds of the importance ratio whose tails are counted.
BELOW, ABOVE = 0.5, 2.0

#: Quantiles of the importance ratio that are told.
QUANTILES: Final = (0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999)


@dataclass(frozen=True, slots=True)
class Measures:
    r"""The mismatch of some tokens; without any, all but ``tokens`` is None.

    Attributes:
        tokens: That were compared.
        k1: Mean of −log r. Unbiased, and may be negative.
        k2: Mean of (log r)² ÷ 2. Biased, never negative.
        k3: Mean of r − 1 − log r. Unbiased, never negative.
        effective_ratio: Effective sample size ÷ tokens, (Σ r)² ÷ (n Σ r²), 1 where all ratios are equal (Kish 1965).
        ratio_mean: Mean of r: 1 in expectation where the rollout's numbers are those that it sampled by.
        ratio_quantiles: Of r, by quantile; between two tokens it is interpolated.
        below_ratio: Share of tokens with r below 0.5.
        above_ratio: Share of tokens with r above 2.
        difference_mean: Mean of \|log r\|.
        difference_largest: The log ratio of largest magnitude, with its sign.
        confident_tokens: Of which one of the two is sure and that the other finds unlikely; see
            :mod:`~probe.analysis.mismatch.confident`. None where it wasn't asked.
    """

    tokens: int
    k1: float | None = None
    k2: float | None = None
    k3: float | None = None
    effective_ratio: float | None = None
    ratio_mean: float | None = None
    ratio_quantiles: dict[float, float] | None = None
    below_ratio: float | None = None
    above_ratio: float | None = None
    difference_mean: float | None = None
    difference_largest: float | None = None
    confident_tokens: int | None = None

    @property
    def tail_ratio(self) -> float | None:
        """Share of tokens whose ratio is below 0.5 or above 2."""
        return None if self.below_ratio is None or self.above_ratio is None else self.below_ratio + self.above_ratio

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        told = asdict(self)
        told["tail_ratio"] = self.tail_ratio
        if self.ratio_quantiles is not None:
            told["ratio_quantiles"] = {f"{at:g}": value for at, value in self.ratio_quantiles.items()}
        return told


def ratios(log_ratio: Array) -> Array:
    """The importance ratio of each token, training ÷ rollout.

    Args:
        log_ratio: Float (n,); cut to ±20.

    >>> ratios(np.array([0.0, np.log(2.0)])).round(6).tolist()
    [1.0, 2.0]
    """
    return np.asarray(np.exp(np.clip(log_ratio, -LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)))


def measured(log_ratio: Array, confident: Array | None = None, weight: Array | None = None) -> Measures:
    """The measures of some tokens.

    Args:
        log_ratio: Float (n,), finite.
        confident: Of which one of the two is sure and that the other finds unlikely, bool (n,); None isn't asked.
        weight: For how many tokens each stands in means, shares and quantiles, float (n,), above 0; None is 1 each.

    >>> found = measured(np.log([1.0, 2.0]))
    >>> round(found.k1, 4), round(found.k2, 4), round(found.k3, 4), round(found.effective_ratio, 4)
    (-0.3466, 0.1201, 0.1534, 0.9)
    """
    if not len(log_ratio):
        return Measures(0, confident_tokens=None if confident is None else 0)
    weight = np.ones(len(log_ratio)) if weight is None else weight
    total = float(weight.sum())
    ratio = ratios(log_ratio)

    def mean(values: Array) -> float:
        return float((weight * values).sum()) / total

    return Measures(
        tokens=len(log_ratio),
        k1=mean(-log_ratio),
        k2=mean(log_ratio**2) / 2,
        k3=mean(np.expm1(np.clip(log_ratio, -LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)) - log_ratio),
        effective_ratio=mean(ratio) ** 2 / mean(ratio**2),
        ratio_mean=mean(ratio),
        ratio_quantiles=_quantiles(ratio, weight),
        below_ratio=mean(ratio < BELOW),
        above_ratio=mean(ratio > ABOVE),
        difference_mean=mean(np.abs(log_ratio)),
        difference_largest=float(log_ratio[np.abs(log_ratio).argmax()]),
        confident_tokens=None if confident is None else int(confident.sum()),
    )


def _quantiles(values: Array, weight: Array) -> dict[float, float]:
    """Of each quantile the value at which the weights of those up to it reach that share, between two of them on the
    line through the middles of their weights.
    """
    order = np.argsort(values, kind="stable")
    middles = np.cumsum(weight[order]) - weight[order] / 2
    found = np.interp(np.array(QUANTILES) * weight.sum(), middles, values[order])
    return dict(zip(QUANTILES, found.tolist(), strict=True))
