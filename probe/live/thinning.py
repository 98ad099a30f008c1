"""Which rows a full table forgets: of rows that lie together the extremes stay, so that peaks survive.

Sums over a step must stay exact where a table is summed up: tables of scopes, micro-batches and padding keep or lose
the rows of a step together, as long as that is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from probe.dashboards.columns import Thinning

#: A table's columns, all of one length.
Block = dict[str, npt.NDArray[Any]]
Mask = npt.NDArray[np.bool_]


#: A thinning that frees less than this share of the rows isn't worth its time; a blunter one is taken.
_WORTH: Final = 0.1


def keep(rule: Thinning, columns: Block, count: int) -> Mask:
    """The rows of a full table that stay: all of the newer half, about half of the older one.

    Args:
        rule: Of the table.
        columns: At least ``count`` long.
        count: The number of rows that there are.

    Returns:
        A mask, shape ``(count,)``, with at least a tenth of the rows to go.
    """
    half = count // 2
    kept = np.ones(count, dtype=bool)
    if rule.whole:
        group = [columns[one][:count] for one in rule.group]
        kept = _whole_steps(columns["step"][:count], columns[rule.scores[0]][:count], half, group)
    if _freed(kept) < _WORTH * count:
        old = {column: values[:half] for column, values in columns.items()}
        kept = np.ones(count, dtype=bool)
        kept[:half] = extremes(rule, old, 2 * (len(rule.scores) + 1))
    if _freed(kept) < _WORTH * count:  # more groups than buckets: the oldest go
        kept[: count // 4] = False
    return kept


def extremes(rule: Thinning, columns: Block, size: int) -> Mask:
    """Of each ``size`` rows of a group that follow each other, those that hold an extreme: the smallest and the largest
    of the first score, the largest of each other; and one NaN, where there is one. The newest bucket of each group
    may be smaller.
    """
    count = len(next(iter(columns.values())))
    kept = np.zeros(count, dtype=bool)
    if not count:
        return kept
    bucket = _buckets([columns[one] for one in rule.group], count, size)
    for index, score in enumerate(rule.scores):
        values = columns[score].astype(np.float64)
        order = np.lexsort((values, bucket))  # NaN comes last
        starts = np.flatnonzero(np.diff(bucket[order], prepend=-1))
        unknown = np.isnan(values[order])
        missing = np.add.reduceat(unknown.astype(np.int64), starts)
        ends = np.append(starts[1:], count)
        kept[order[np.maximum(ends - 1 - missing, starts)]] = True
        if index == 0:
            kept[order[starts]] = True
            kept[order[ends[missing > 0] - 1]] = True
    return kept


def reduced(rule: Thinning, columns: Block, target: int) -> tuple[Block, int]:
    """``columns`` cut down to about ``target`` rows by :func:`extremes`, and how many rows went."""
    count = len(next(iter(columns.values())))
    found, left = columns, count
    while left > target:
        per_bucket = 2 * max(len(rule.scores), 1)
        kept = extremes(rule, found, max(per_bucket + 1, -(-left * per_bucket // target)))
        if _freed(kept) < _WORTH * left:  # nearly every row is a group of its own
            kept = np.zeros(left, dtype=bool)
            kept[np.linspace(0, left - 1, target).astype(int)] = True
        found = {column: values[kept] for column, values in found.items()}
        left = int(kept.sum())
    return found, count - left


def _freed(kept: Mask) -> int:
    return int(len(kept) - kept.sum())


def _whole_steps(
    steps: npt.NDArray[Any], score: npt.NDArray[Any], half: int, group: list[npt.NDArray[Any]] | None = None
) -> Mask:
    """Of each four steps (of one group) whose rows all lie in the older half, the one with the largest and the smallest
    score.
    """
    distinct, inverse = _distinct([*(group or []), steps])
    last = np.zeros(distinct.shape[1], dtype=np.int64)
    np.maximum.at(last, inverse, np.arange(len(steps)))
    top = np.full(len(last), -np.inf)
    np.fmax.at(top, inverse, score.astype(np.float64))
    old = np.flatnonzero((last < half) & (distinct[-1] >= 0))
    fours = _fours(old[np.lexsort((last[old], *distinct[:-1, old][::-1]))], distinct[:-1])
    largest, smallest = top[fours].argmax(axis=1), top[fours].argmin(axis=1)
    smallest = np.where(smallest == largest, (largest + 1) % 4, smallest)
    place = np.arange(4)
    goes = (place != largest[:, None]) & (place != smallest[:, None])
    dropped = np.zeros(len(last), dtype=bool)
    dropped[fours[goes]] = True
    return ~dropped[inverse]


def _distinct(columns: Sequence[npt.NDArray[Any]]) -> tuple[npt.NDArray[Any], npt.NDArray[np.intp]]:
    """The distinct rows of ``columns``, shape ``(columns, distinct)``, and of each row which it is."""
    if len(columns) > 2:
        distinct, inverse = np.unique(np.stack(columns), axis=1, return_inverse=True)
        return distinct, inverse.reshape(-1)
    # Of one or two columns of four bytes as one number each, which is sorted several times as fast.
    packed = columns[-1].astype(np.int64) & 0xFFFFFFFF
    if len(columns) == 2:
        packed |= columns[0].astype(np.int64) << 32
    found, inverse = np.unique(packed, return_inverse=True)
    halves = [found >> 32, found & 0xFFFFFFFF][-len(columns) :]
    return np.stack([half.astype(np.int32) for half in halves]), inverse.reshape(-1)


def _fours(places: npt.NDArray[np.intp], groups: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """``places``, which are sorted by their group, in fours of one group; what is left over of a group stays out."""
    if not len(places):
        return places.reshape(0, 4)
    own = groups[:, places]
    new = np.append(True, (own[:, 1:] != own[:, :-1]).any(axis=0))
    begins = np.flatnonzero(new)
    sizes = np.diff(np.append(begins, len(places)))
    at = np.arange(len(places)) - np.repeat(begins, sizes)
    return places[at < np.repeat(sizes // 4 * 4, sizes)].reshape(-1, 4)


def _buckets(group: list[npt.NDArray[Any]], count: int, size: int) -> npt.NDArray[np.int64]:
    """A number for each row: the same for up to ``size`` rows of one group that follow each other."""
    if not group:
        return np.arange(count, dtype=np.int64) // size
    order = np.lexsort(group[::-1])
    new = np.zeros(count, dtype=bool)
    new[0] = True
    for column in group:
        sorted_ = column[order]
        new[1:] |= sorted_[1:] != sorted_[:-1]
    begins = np.flatnonzero(new)
    place = np.arange(count) - np.repeat(begins, np.diff(np.append(begins, count)))
    number = np.cumsum(new | (place % size == 0)) - 1
    found = np.empty(count, dtype=np.int64)
    found[order] = number
    return found
