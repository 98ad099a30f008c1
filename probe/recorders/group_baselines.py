"""The table group_baselines: whether answers that failed, or that the loss leaves out, move a group's baseline.

An advantage that compares an answer with its group is a straight line of its reward: it is 0 at the baseline. Two
answers of a group with different rewards say where that is, and so whether all answers of the group make it up or those
alone that are trained. That holds for the mean of the group and of its other answers, divided by a deviation or not;
where advantages aren't such a line (whitened over the batch, by token, clipped) nothing is said. Nor is it where the
baselines of many groups lie elsewhere: then these groups aren't told whole, and the few that fit do so by chance.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

import numpy as np

from probe.recorders.sample_arrays import Array
from probe.records import GroupBaseline

#: How far the baseline may be from where it is said to be, as a share of the distance between the two places.
NEAR: Final = 0.02
#: How far advantages may be from a straight line, as a share of the largest.
STRAIGHT: Final = 0.01
#: From this share of a batch's judged groups on whose baseline lies elsewhere, none of it is judged.
ELSEWHERE: Final = 0.1


class Baseline(Enum):
    """Whose mean the baseline of a group is."""

    ALL = "all"  #: of all its answers
    TRAINED = "trained"  #: of those alone that are trained
    ELSEWHERE = "elsewhere"  #: of neither
    MOVED = "moved"  #: not of the trained ones, which have equal rewards: these say no more
    UNKNOWN = "unknown"


def baseline(rewards: Array, advantages: Array, trained: Array) -> Baseline:
    """Look at one group.

    Args:
        rewards: Of its answers, float (n,).
        advantages: Likewise; NaN where an answer has no one advantage.
        trained: Which of them are, bool (n,).

    >>> rewards, trained = np.array([1.0, 0.5, 0.0]), np.array([True, True, False])
    >>> baseline(rewards, rewards - 0.5, trained)  # 0.5 is the mean of all three
    <Baseline.ALL: 'all'>
    >>> baseline(rewards, rewards - 0.75, trained)
    <Baseline.TRAINED: 'trained'>
    """
    mine, theirs = rewards[trained], advantages[trained]
    if not trained.any() or not np.isfinite(rewards).all() or not np.isfinite(theirs).all():
        return Baseline.UNKNOWN
    shift, scale = float(rewards.mean() - mine.mean()), max(float(np.abs(rewards).max()), 1e-12)
    if abs(shift) <= 1e-6 * scale:  # the two means are one
        return Baseline.UNKNOWN
    low, high = int(mine.argmin()), int(mine.argmax())
    if mine[high] - mine[low] <= 1e-6 * scale:
        return _of_equals(theirs, shift, scale)
    slope = (theirs[high] - theirs[low]) / (mine[high] - mine[low])
    line = slope * (mine - mine[low]) + theirs[low]
    if slope <= 0 or np.abs(theirs - line).max() > STRAIGHT * np.abs(theirs).max():
        return Baseline.UNKNOWN
    at = float(mine[low] - theirs[low] / slope)
    return _placed((at - float(mine.mean())) / shift)


def _placed(beside: float) -> Baseline:
    """Given where a baseline lies between the mean of the trained answers, 0, and that of all, 1."""
    if abs(beside - 1) <= NEAR:
        return Baseline.ALL
    return Baseline.TRAINED if abs(beside) <= NEAR else Baseline.ELSEWHERE


def _of_equals(advantages: Array, shift: float, scale: float) -> Baseline:
    """Of answers with equal rewards: their own mean gives them no advantage, another one gives all of them the same."""
    largest = float(np.abs(advantages).max())
    if largest <= 1e-6 * max(1.0, scale):
        return Baseline.TRAINED
    alike = np.ptp(advantages) <= STRAIGHT * largest and np.sign(advantages[0]) == -np.sign(shift)
    return Baseline.MOVED if alike else Baseline.UNKNOWN


class Known(NamedTuple):
    """What is known of the answers of a batch, each (n,).

    Attributes:
        groups: The name of each one's group.
        rewards: Float.
        advantages: Float; NaN where the counted tokens of an answer have more than one.
        failed: Which of them failed, bool.
        trained: That aren't dropped and of which the loss counts a token, bool.
    """

    groups: list[str]
    rewards: Array
    advantages: Array
    failed: Array
    trained: Array


def baselines(known: Known, batch_id: int, source: str) -> GroupBaseline | None:
    """The row of a batch; None where every answer is trained and none has failed.

    Args:
        known: Of its answers.
        batch_id: Of the batch.
        source: Who told.
    """
    apart = known.failed | ~known.trained
    if not apart.any():
        return None
    names, of = np.unique(np.asarray(known.groups, dtype=object).astype(str), return_inverse=True)
    looked = {at: np.flatnonzero(of == at) for at in np.unique(of[apart]).tolist()}
    found = {
        at: baseline(known.rewards[inside], known.advantages[inside], ~apart[inside]) for at, inside in looked.items()
    }
    row = GroupBaseline(
        batch_id=batch_id,
        source=source,
        answers=len(known.groups),
        failed_answers=int(known.failed.sum()),
        masked_answers=int((~known.trained & ~known.failed).sum()),
        groups=len(found),
        elsewhere_groups=_many(found, Baseline.ELSEWHERE),
    )
    moved = _moved(found, row.elsewhere_groups)
    row.unknown_groups = row.groups - row.elsewhere_groups - _many(found, Baseline.TRAINED) - len(moved)
    if moved:
        _of_moved(row, known, apart, [looked[at] for at in moved])
        row.first_group = str(names[max(moved, key=lambda at: bool(known.failed[looked[at]].any()))])
    return row


def _many(found: dict[int, Baseline], what: Baseline) -> int:
    return sum(one is what for one in found.values())


def _moved(found: dict[int, Baseline], elsewhere: int) -> list[int]:
    """Groups whose baseline counts what isn't trained: by proof, and then those that only fit."""
    proved = _many(found, Baseline.ALL)
    if not proved or elsewhere > ELSEWHERE * (proved + elsewhere + _many(found, Baseline.TRAINED)):
        return []
    return [at for at, one in found.items() if one in (Baseline.ALL, Baseline.MOVED)]


def _of_moved(row: GroupBaseline, known: Known, apart: Array, groups: list[Array]) -> None:
    """Fill in what is known of groups whose baseline is moved, each given by the places of its answers."""
    shifts = np.asarray([abs(known.rewards[one].mean() - known.rewards[one][~apart[one]].mean()) for one in groups])
    answers = np.asarray([(~apart[one]).sum() for one in groups])
    paid = np.concatenate([known.rewards[one][known.failed[one]] for one in groups])
    row.moved_groups, row.moved_answers = len(groups), int(answers.sum())
    row.shift_mean, row.shift_largest = float(shifts.mean()), float(shifts.max())
    by_failed = np.asarray([bool(known.failed[one].any()) for one in groups])
    if by_failed.any():
        row.moved_by_failed, row.answers_by_failed = int(by_failed.sum()), int(answers[by_failed].sum())
        row.shift_by_failed, row.failed_reward_mean = float(shifts[by_failed].mean()), float(paid.mean())
