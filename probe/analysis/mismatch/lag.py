"""How many versions behind the trainer's the weights are that sampled each answer."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from probe.analysis.mismatch.tokens import NOT_KNOWN, Array

if TYPE_CHECKING:
    from probe.analysis.mismatch.tokens import Tokens


#: Versions count steps where they rise by so much a step: nearer to 1 than to a sync every other step, or two a step.
_LEAST_RATE, _MOST_RATE = Fraction(3, 4), Fraction(3, 2)


class Lags(NamedTuple):
    """How old the weights of each answer are.

    Attributes:
        behind: Versions that they are behind, int64 (answers,), :data:`NOT_KNOWN` where it isn't known. Below 0 where
            an answer tells a version that the trainer hasn't come to.
        by_steps: Whether it counts from the newest weights seen, as the trainer's version wasn't recorded: what all
            answers lag behind alike isn't in it.
        uncounted: Whether it isn't known as the trainer's version wasn't recorded, and versions count something else
            than steps, such as syncs.
    """

    behind: Array
    by_steps: bool = False
    uncounted: bool = False


def lags(tokens: Tokens) -> Lags:
    """By how many versions the weights of each answer are told to be older than the trainer's.

    Where the trainer's version isn't told with each answer whose weights are known, they are compared with the newest
    against their steps, if versions rise as steps do.

    Args:
        tokens: Of the answers.
    """
    step, version, trainer = (tokens.known(name) for name in ("step", "weight_version", "trainer_version"))
    behind, told = np.full(len(version), NOT_KNOWN), version != NOT_KNOWN
    if told.any() and (trainer[told] == NOT_KNOWN).any() and (step[told] != NOT_KNOWN).all():
        if not _count_steps(step[told], version[told]):
            return Lags(behind, uncounted=True)
        ahead = step[told] - version[told]
        behind[told] = ahead - ahead.min()
        return Lags(behind, by_steps=True)
    both = told & (trainer != NOT_KNOWN)
    behind[both] = trainer[both] - version[both]
    return Lags(behind)


def _count_steps(step: Array, version: Array) -> bool:
    """Whether versions rise as steps do, by the newest version of each step.

    An engine that isn't synced with each step, or no longer, keeps its version and then jumps; so a rise is compared
    with the steps since the change before it. With fewer than two changes all steps are.
    """
    steps, at = np.unique(step, return_inverse=True)
    newest = np.full(len(steps), version.min())
    np.maximum.at(newest, at, version)
    changes = np.flatnonzero(np.diff(newest)) + 1
    if len(changes) < 2 or not (np.diff(newest[changes]) > 0).any():
        changes = np.array([0, len(steps) - 1])
    rises, passed = np.diff(newest[changes]), np.diff(steps[changes])
    if not passed.any():
        return True  # of one step: nothing rises
    rose = rises > 0
    if not rose.any():
        return False
    return _LEAST_RATE <= Fraction(int(rises[rose].sum()), int(passed[rose].sum())) <= _MOST_RATE


def behind_by(tokens: Tokens) -> Array | None:
    """The same, int64 (answers,); None unless it is known of all.

    Args:
        tokens: Of the answers.
    """
    behind = lags(tokens).behind
    return behind if len(behind) and (behind != NOT_KNOWN).all() else None
