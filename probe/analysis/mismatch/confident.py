"""Tokens on which rollout and training disagree confidently: both are sure, of opposite things.

That is a token to which one of the two gives a probability of at least :data:`SURE`, and the other at most
:data:`UNLIKELY`: its ratio is below 1/10 or above 10. Rounding moves a log-probability by some hundredths, so that it
can't do this; it takes other text before the token, a mask that counts what was never sampled, or very different
weights. A ratio that is clipped or truncated hides how far apart the two are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from probe.analysis.mismatch.tokens import NOT_KNOWN, Array
from probe.text import percent

if TYPE_CHECKING:
    from probe.analysis.mismatch.tokens import Tokens

#: One gives a token at least this probability, and the other at most that: see docs/design/mismatch.md.
SURE, UNLIKELY = 0.5, 0.05
#: So few such tokens or answers, or so small a share of the tokens, say nothing.
LEAST_TOKENS, LEAST_ANSWERS, LEAST_SHARE = 3, 2, 5e-4

_WORDS: Final = f"one side gives the token at least {100 * SURE:g} %, the other at most {100 * UNLIKELY:g} %"


@dataclass(frozen=True, slots=True)
class Confident:
    """How many such tokens there are, and where.

    Attributes:
        tokens: How many, of those that are kept.
        ratio: Their share of all tokens, each with the weight of its answer.
        answers: In how many answers.
        rollout_sure: Of which the rollout is sure, and training finds them unlikely.
        training_sure: The other way round.
        position: The middle of their positions, from 0; None without one.
        ranks: On which ranks, in rising order; those that are known.
        lags: How many versions behind the weights of their answers are, likewise.
    """

    tokens: int
    ratio: float
    answers: int
    rollout_sure: int
    training_sure: int
    position: int | None
    ranks: tuple[int, ...]
    lags: tuple[int, ...]

    @property
    def tells(self) -> bool:
        """Whether they are more than chance."""
        return self.tokens >= LEAST_TOKENS and self.answers >= LEAST_ANSWERS and self.ratio >= LEAST_SHARE

    @property
    def sentence(self) -> str:
        """What they say, and what it speaks for; "" where they say nothing."""
        if not self.tells:
            return ""
        return (
            f"Confident disagreement about {self.tokens:,} tokens ({percent(self.ratio)}) in {self.answers:,} answers: "
            f"{_WORDS}. Rounding doesn't do that."
        )


def rollout_sure(tokens: Tokens) -> Array:
    """Which tokens the rollout is sure of and training finds unlikely, bool (tokens,)."""
    return _sure(tokens, tokens.rollout, tokens.train)


def training_sure(tokens: Tokens) -> Array:
    """The other way round, bool (tokens,)."""
    return _sure(tokens, tokens.train, tokens.rollout)


def confident(tokens: Tokens) -> Array:
    """Which tokens one is sure of and the other finds unlikely, bool (tokens,)."""
    return rollout_sure(tokens) | training_sure(tokens)


def _sure(tokens: Tokens, one: Array, other: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return np.asarray(tokens.compared & (one >= np.log(SURE)) & (other <= np.log(UNLIKELY)))


def counted(tokens: Tokens, behind: Array) -> Confident:
    """How many there are, and where, among the tokens that count in means.

    Args:
        tokens: Of all answers.
        behind: Versions that each answer's weights are behind, (answers,).
    """
    held = tokens.held
    rollout, training = rollout_sure(tokens) & held, training_sure(tokens) & held
    flags = rollout | training
    many, rows = int(flags.sum()), np.unique(tokens.row[flags])
    return Confident(
        tokens=many,
        ratio=float(tokens.weight[flags].sum()) / max(float(tokens.weight[held].sum()), 1.0),
        answers=len(rows),
        rollout_sure=int(rollout.sum()),
        training_sure=int(training.sum()),
        position=int(np.median(tokens.position[flags])) if many else None,
        ranks=_values(tokens.known("rank")[rows]),
        lags=_values(behind[rows]),
    )


def _values(found: Array) -> tuple[int, ...]:
    return tuple(np.unique(found[found != NOT_KNOWN]).tolist())
