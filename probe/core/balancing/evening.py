"""The part that each number belongs to: where a search for even parts starts, and how it goes on by moves and swaps.

Parts are an array of their numbers here, from 0 to k - 1, one for each weight. NumPy only, no torch.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from probe.core.balancing.differencing import difference

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]

#: Up to so many numbers the greedy partition is tried as well: where one token counts, luck with ties does too.
_FEW: Final = 512
_VERY_FEW: Final = 128
_OTHER_STARTS: Final = 6

#: Elements that one refinement may look at: keeps it below a few milliseconds however large the problem is.
_REFINEMENT_BUDGET: Final = 400_000


def balanced(weights: Array, k: int, equal_size: bool) -> Ints:
    """The part of each number: the best that this module knows."""
    if k == 1:
        return np.zeros(len(weights), np.int64)
    if k == len(weights):
        return np.arange(k)
    enough = lower_bound(weights, k, equal_size)
    best, least = None, None
    for start in _starts(weights, k, equal_size):
        parts = refined(weights, start, k, enough, equal_size=equal_size)
        largest = part_sums(weights, parts, k).max()
        if least is None or largest < least:
            best, least = parts, largest
        if least <= enough:
            break
    return cast("Ints", best)


def _starts(weights: Array, k: int, equal_size: bool) -> Iterator[Ints]:
    """The differencing method's partition; for few numbers, where luck with ties counts, some others as well."""
    n = len(weights)
    yield difference(weights, k, equal_size)
    if n <= _FEW:
        yield greedy(weights, k, n // k if equal_size else n)
    if n <= _VERY_FEW:
        for shift in range(1, _OTHER_STARTS + 1):  # the same method on numbers that are a little off
            wrong = 1 + 0.06 * ((np.arange(n) * 0.6180339887498949 * shift) % 1)
            yield difference(weights * wrong, k, equal_size)


def greedy(weights: Array, k: int, room: int) -> Ints:
    parts = np.empty(len(weights), np.int64)
    heap: list[tuple[Any, int]] = [(0, part) for part in range(k)]
    free = [room] * k
    chosen: list[int] = []
    order = np.argsort(-weights, kind="stable")
    for weight in weights[order].tolist():
        total, part = heap[0]
        chosen.append(part)
        free[part] -= 1
        if free[part]:
            heapq.heapreplace(heap, (total + weight, part))
        else:
            heapq.heappop(heap)
    parts[order] = chosen
    return parts


def fill_empty(weights: Array, parts: Ints, k: int) -> Ints:
    """Give each empty part one number of a part that has several; no largest sum grows by that."""
    counts = np.bincount(parts, minlength=k)
    if counts.all():
        return parts
    for empty in np.flatnonzero(counts == 0):
        sums = np.where(counts > 1, part_sums(weights, parts, k), -1)
        rows = np.flatnonzero(parts == np.argmax(sums))
        row = rows[np.argmin(weights[rows])]
        counts[parts[row]] -= 1
        parts[row] = empty
        counts[empty] = 1
    return parts


# -------------------------------------------------------------------------------------------------- improving on it


class Limit(NamedTuple):
    """Something else that parts may only hold so much of, now and after each change."""

    amounts: Array  #: of each number
    sums: Array  #: of each part, kept up to date
    cap: int

    def forbids(self, given: Array, giver: int, taker: Any) -> Any:
        """Whether ``given``, which may be below 0, is too much for the part that takes it, or the one that gives it."""
        return (self.sums[taker] + given > self.cap) | (self.sums[giver] - given > self.cap)


def refined(weights: Array, parts: Ints, k: int, enough: Any, *, equal_size: bool, limit: Limit | None = None) -> Ints:
    """Without empty parts, and the largest lowered by the best move or swap until none helps, the budget ends, or it
    isn't above ``enough``.

    Changes ``parts`` in place and returns it. Other parts never grow beyond what the largest was. A ``limit`` is one of
    parts of which none is empty.
    """
    parts = fill_empty(weights, parts, k)
    sums = part_sums(weights, parts, k)
    counts = np.bincount(parts, minlength=k)
    budget = _REFINEMENT_BUDGET
    while budget > 0:
        heavy = int(np.argmax(sums))
        if sums[heavy] <= enough:
            break
        rows = np.flatnonzero(parts == heavy)
        budget -= (len(rows) + 8) * len(weights)
        movable = not equal_size and bool(counts[heavy] > 1)
        change = _best_change(weights, parts, sums, rows, heavy, movable=movable, limit=limit)
        if change is None:
            break
        give, take, target = change
        if limit is not None:
            amount = limit.amounts[give] - (0 if take is None else limit.amounts[take])
            limit.sums[heavy] -= amount
            limit.sums[target] += amount
        moved = weights[give] - (0 if take is None else weights[take])
        parts[give] = target
        counts[[heavy, target]] += (-1, 1) if take is None else (0, 0)
        if take is not None:
            parts[take] = heavy
        sums[heavy] -= moved
        sums[target] += moved
    return parts


def lower_bound(weights: Array, k: int, equal_size: bool) -> Any:
    """No partition has a smaller largest part. With equal sizes the largest number never stands alone."""
    total = weights.sum()
    mean = -(-int(total) // k) if weights.dtype.kind == "i" else total / k
    others = len(weights) // k - 1 if equal_size else 0
    return max(mean, weights.max() + (np.partition(weights, others)[:others].sum() if others else 0))


def _best_change(
    weights: Array, parts: Ints, sums: Array, rows: Ints, heavy: int, *, movable: bool, limit: Limit | None
) -> tuple[int, int | None, int] | None:
    """(row to give, row to take in exchange or None, part to give it to), or None if nothing helps."""
    others = np.flatnonzero(parts != heavy)
    theirs = parts[others]
    given = weights[rows][:, None] - weights[others]  # what leaves the heavy part, by row and partner
    after = sums[theirs] + given
    np.maximum(after, sums[heavy] - given, out=after)
    if limit is not None:
        amounts = limit.amounts[rows][:, None] - limit.amounts[others]
        after[limit.forbids(amounts, heavy, theirs)] = sums[heavy]
    give, partner = divmod(int(np.argmin(after)), len(others))
    lowest = after[give, partner]
    if movable:
        light = int(np.argmin(sums))
        moved = np.maximum(sums[heavy] - weights[rows], sums[light] + weights[rows])
        if limit is not None:
            moved[limit.forbids(limit.amounts[rows], heavy, light)] = sums[heavy]
        single = int(np.argmin(moved))
        if moved[single] < min(lowest, sums[heavy]):
            return int(rows[single]), None, light
    if lowest < sums[heavy]:
        return int(rows[give]), int(others[partner]), int(theirs[partner])
    return None


# ------------------------------------------------------------------------------------------------ what parts hold


def index_lists(weights: Array, parts: Ints, k: int) -> list[list[int]]:
    """Lists of indices by part number, largest sum first."""
    sums = part_sums(weights, parts, k)
    order = np.argsort(parts, kind="stable")
    ends = np.cumsum(np.bincount(parts, minlength=k)).tolist()
    rows = order.tolist()
    lists = [rows[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    return [lists[part] for part in sorted(range(k), key=lambda part: (-sums[part], lists[part]))]


def part_sums(weights: Array, parts: Ints, k: int) -> Array:
    if weights.dtype.kind == "f":
        return np.bincount(parts, weights, k)
    if int(weights.max()) * len(weights) < 2**53:  # bincount adds in float64, which is inexact from there on
        return np.bincount(parts, weights, k).astype(np.int64)
    sums = np.zeros(k, np.int64)
    np.add.at(sums, parts, weights)
    return sums
