"""How many versions behind the trainer's the weights are that sampled each answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from probe.analysis.mismatch.tokens import NOT_KNOWN, Array

if TYPE_CHECKING:
    from probe.analysis.mismatch.tokens import Tokens


class Lags(NamedTuple):
    """How old the weights of each answer are.

    Attributes:
        behind: Versions that they are behind, int64 (answers,), :data:`NOT_KNOWN` where it isn't known. Below 0 where
            an answer tells a version that the trainer hasn't come to.
        by_steps: Whether it counts from the newest weights seen, as the trainer's version wasn't recorded: what all
            answers lag behind alike isn't in it.
    """

    behind: Array
    by_steps: bool = False


def lags(tokens: Tokens) -> Lags:
    """By how many versions the weights of each answer are told to be older than the trainer's.

    Where the trainer's version isn't told with each answer whose weights are known, they are compared with the newest
    against their steps.

    Args:
        tokens: Of the answers.
    """
    step, version, trainer = (tokens.known(name) for name in ("step", "weight_version", "trainer_version"))
    behind, told = np.full(len(version), NOT_KNOWN), version != NOT_KNOWN
    if told.any() and (trainer[told] == NOT_KNOWN).any() and (step[told] != NOT_KNOWN).all():
        ahead = step[told] - version[told]
        behind[told] = ahead - ahead.min()
        return Lags(behind, by_steps=True)
    both = told & (trainer != NOT_KNOWN)
    behind[both] = trainer[both] - version[both]
    return Lags(behind)


def behind_by(tokens: Tokens) -> Array | None:
    """The same, int64 (answers,); None unless it is known of all.

    Args:
        tokens: Of the answers.
    """
    behind = lags(tokens).behind
    return behind if len(behind) and (behind != NOT_KNOWN).all() else None
