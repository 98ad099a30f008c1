"""Whether one side always gives the higher number: neither noise nor other weights do that.

Of tokens that are sampled from the rollout's own probabilities, training's ÷ rollout's have the mean 1, whatever the
two models are. Where nearly all of these ratios are below 1, and near it, the two numbers aren't of one distribution:
one side's are of a vocabulary that was cut (top-p, top-k, min-p), or they aren't natural logarithms.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from probe.analysis.mismatch.judgement import Judgement, percent
from probe.analysis.mismatch.measures import measured
from probe.analysis.mismatch.missing import LEAST_TOKENS
from probe.analysis.mismatch.tokens import Array, Tokens

#: Half precision, in which log-probabilities are kept, makes no larger difference of usual ones.
ROUNDING: Final = 0.005
#: Differences have one sign where this share of those above rounding has it.
ONE_SIGN: Final = 0.9
#: From this k3 on two models may be so unlike that hardly any sampled token is likelier to the other one.
UNLIKE_K3: Final = 0.5
#: A factor between the two explains the differences from this share of their squares on.
FACTOR_FITS: Final = 0.98
#: Natural logarithms times these are others.
_FACTORS: Final = (
    (1 / np.log(2), "logarithms to the base 2"),
    (1 / np.log(10), "logarithms to the base 10"),
    (-1.0, "logarithms with the other sign"),
)


class Signs(NamedTuple):
    """The signs of some differences.

    Attributes:
        many: Differences above rounding.
        share: The share of these that has the sign of most; 0 where there are none.
        higher: The side that gives the higher number there.
    """

    many: int
    share: float
    higher: str

    @property
    def one(self) -> bool:
        """Whether nearly all have one sign."""
        return self.many >= LEAST_TOKENS and self.share >= ONE_SIGN

    @property
    def sentence(self) -> str:
        """The same in a sentence."""
        if not self.many:
            return "No difference is above rounding."
        return f"{percent(self.share)} of the differences have the same sign: {self.higher} gives the higher number."


def signs(tokens: Tokens, kept: Array) -> Signs:
    """The signs of the differences of some tokens.

    Args:
        tokens: Of all answers.
        kept: Which of them count, bool (tokens,).
    """
    told = tokens.log_ratio[kept]
    below, above = int((told < -ROUNDING).sum()), int((told > ROUNDING).sum())
    many = below + above
    return Signs(many, max(below, above) / many if many else 0.0, "rollout" if below >= above else "training")


def one_sided(tokens: Tokens, kept: Array) -> Judgement | None:
    """That one side gives the higher number for nearly all tokens; None where it doesn't.

    Args:
        tokens: Of all answers.
        kept: Which of them count, bool (tokens,).
    """
    found = signs(tokens, kept)
    if not found.one:
        return None
    told, k3 = _kind(tokens, kept), measured(tokens.log_ratio[kept]).k3 or 0.0
    sure = bool(told) or k3 < UNLIKE_K3
    return Judgement(
        "one_sided",
        "high" if sure else "medium",
        f"{found.sentence} Noise and a temperature make both signs. {told}".strip(),
        () if sure else ("stale", "retokenised"),
        1.0,
        higher=found.higher,
        affected=tuple(range(len(tokens.answers))),
    )


def _kind(tokens: Tokens, kept: Array) -> str:
    """What one side's numbers are instead of natural logarithms, in a sentence; "" where they may be these."""
    rollout, train = tokens.rollout[kept], tokens.train[kept]
    for side, numbers in (("Rollout", rollout), ("Training", train)):
        above = int((numbers > ROUNDING).sum())
        if above:
            return f"{side} gives {above} tokens a number above 0, which no logarithm of a probability is."
    square = float((train**2).sum())
    factor = float((rollout * train).sum()) / square if square else 1.0
    left = 1 - float(((rollout - factor * train) ** 2).sum()) / float(((rollout - train) ** 2).sum())
    if left < FACTOR_FITS:
        return ""
    for times, name in _FACTORS:
        for side, value in (("Rollout", factor), ("Training", 1 / factor if factor else 0.0)):
            if abs(value / times - 1) < 0.02:
                return f"{side} gives {value:.3g} times the other side's numbers: {name}."
    return ""
