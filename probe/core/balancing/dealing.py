"""Many numbers into few parts: dealt out greedily, evened by swaps, and taken only where that is certain to be good.

With dozens of numbers for each part almost any sensible partition is nearly perfect, and a bound tells whether one is.
"""

from __future__ import annotations

import heapq
import operator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]

#: So many numbers for each part, and a greedy partition with some swaps is worth a try before the differencing method.
MANY: Final = 16

#: How far above the lower bound such a partition may be to be taken. No method gets below the bound.
NEAR: Final = 1.0009

#: So many numbers for each part are always dealt one by one, before and after the bulk of them: :func:`_dealt_out`.
_HEAD: Final = 4
_TAIL: Final = 8


def near_optimal(weights: Array, k: int, equal_size: bool) -> list[list[int]] | None:
    """A greedy partition with some swaps, where that is certain to be within :data:`NEAR` of the best; else None."""
    n = len(weights)
    if n < MANY * k or weights.dtype.kind != "i":
        return None
    largest = int(weights.max())
    if largest.bit_length() + n.bit_length() + k.bit_length() > 62:  # numbers and their places share 64 bits
        return None
    total = int(weights.sum())
    enough = int(NEAR * max(total / k, largest))
    ranked, rows = _ranked(weights)
    if equal_size and largest + int(ranked[1 - n // k :].sum()) > enough:
        return None  # beside the largest number the smallest ones are too much already
    alone = _alone(ranked, k, total) if largest * k >= total else 0
    for quick in (True,) if equal_size else (True, False):
        names, sums = _dealt_blocks(ranked, k) if equal_size else _dealt_out(ranked, k, alone, quick)
        if max(sums) > (1.3 if equal_size else 1.05) * enough:  # too many swaps away
            continue
        if _evened(ranked, names, sums, enough, n - _TAIL * k) or _evened(ranked, names, sums, enough, 0):
            return _lists_of(rows, names, sums)
    return None


def _ranked(weights: Ints) -> tuple[Ints, Ints]:
    """The numbers in descending order, first row first among equals, and their rows.

    One integer holds a number and its row: sorting those is several times as fast as ``argsort``.
    """
    last, bits = len(weights) - 1, len(weights).bit_length()
    keys = np.sort((weights << bits) | np.arange(last, -1, -1))[::-1]
    return keys >> bits, last - (keys & ((1 << bits) - 1))


def _alone(ranked: Ints, k: int, total: int) -> int:
    """How many numbers, the largest, fill a part alone: each is no less than the mean part of what remains."""
    alone = 0
    for number in ranked[: k - 1].tolist():
        if number * (k - alone) < total:
            break
        total -= number
        alone += 1
    return alone


def _dealt_out(ranked: Ints, k: int, alone: int, quick: bool) -> tuple[Ints, list[int]]:
    """The part of each number, and the sums of the parts: each number goes into the smallest part so far.

    The first ``alone`` numbers have a part each. With ``quick`` the bulk of the others is dealt as many at a time as
    there are parts, forth and back, which hardly changes how far the sums are apart where neighbours are alike; what
    comes after it evens out what is left.
    """
    few = k - alone
    shift = k.bit_length()  # a heap compares integers that hold sum and part faster than tuples
    scaled = ranked << shift
    names = np.empty(len(ranked), np.int64)
    names[:alone] = np.arange(few, k)
    heap = list(range(few))
    begin, end = _bulk(ranked, alone, few) if quick else (alone, alone)
    names[alone:begin] = _onto_smallest(heap, scaled[alone:begin])
    if not alone and few * max(heap) - sum(heap) > int(scaled[end:].sum()):
        end = begin  # what comes after the bulk couldn't even it out
    if end > begin:
        names[begin:end] = _forth_and_back(heap, scaled[begin:end].reshape(-1, 2, few))
    names[end:] = _onto_smallest(heap, scaled[end:])
    return names & ((1 << shift) - 1), _totals(heap, shift) + ranked[:alone].tolist()


def _bulk(ranked: Ints, first: int, k: int) -> tuple[int, int]:
    """Where an even number of blocks of k alike numbers begins and ends; others stay before and after it."""
    begin, end = first + _HEAD * k, first + ((len(ranked) - first) // k - _TAIL) * k
    spreads = ranked[begin:end:k] - ranked[begin + k - 1 : end : k]
    worst = int(spreads.argmax())
    if spreads[worst] * 2 * k > ranked[end:].sum():  # a gap between two modes: the longer side of it
        cut = begin + worst * k
        begin, end = (begin, cut) if cut - begin >= end - cut else (cut + k, end)
    return begin, begin + (end - begin) // (2 * k) * 2 * k


def _onto_smallest(heap: list[int], scaled: Ints) -> list[int]:
    """Add each number to the smallest entry of the heap; the entries that they were added to."""
    replace = heapq.heapreplace
    return [replace(heap, heap[0] + number) for number in scaled.tolist()]


def _forth_and_back(heap: list[int], pairs: Ints) -> Ints:
    """Add rows of numbers to the entries, smallest first, then largest first, and so on; the entries of each."""
    sums = np.sort(np.array(heap))
    dealt = np.empty_like(pairs)
    dealt[:, 0], dealt[:, 1] = sums, sums[::-1]
    heap[:] = (sums + pairs[:, 0].sum(axis=0) + pairs[:, 1, ::-1].sum(axis=0)).tolist()
    heapq.heapify(heap)
    return dealt.ravel()


def _totals(entries: list[int], shift: int) -> list[int]:
    """Sums by part, out of integers that hold both."""
    totals = [0] * len(entries)
    for entry in entries:
        totals[entry & ((1 << shift) - 1)] = entry >> shift
    return totals


def _dealt_blocks(ranked: Ints, k: int) -> tuple[Ints, list[int]]:
    """Like :func:`_dealt_out` for parts of equal size: each k numbers go into k different parts."""
    shift = k.bit_length()
    sums, dealt = list(range(k)), []
    for block in (ranked << shift).reshape(-1, k).tolist():
        dealt.append(sums)
        sums = sorted(map(operator.add, sums, block))
    return np.array(dealt).ravel() & ((1 << shift) - 1), _totals(sums, shift)


def _evened(ranked: Ints, names: Ints, sums: list[int], enough: int, first: int) -> bool:
    """Swap numbers of the largest and the smallest part until no part is above ``enough``; False: that didn't do.

    Looks at the numbers from ``first`` on only. Changes ``names`` and ``sums`` in place.
    """
    if max(sums) <= enough:
        return True
    numbers = ranked[first:].tolist()
    members: list[list[int]] = [[] for _ in sums]
    for place, name in enumerate(names[first:].tolist()):
        members[name].append(place)
    for _ in range(2 * len(sums)):
        largest, smallest = max(sums), min(sums)
        if largest <= enough:
            return True
        heavy, light = sums.index(largest), sums.index(smallest)
        mine, theirs = members[heavy], members[light]
        swap = _swap(numbers, mine, theirs, largest - enough, enough - smallest, largest - smallest)
        if swap is None:
            return False
        give, take = mine[swap[0]], theirs[swap[1]]
        mine[swap[0]], theirs[swap[1]] = take, give
        mine.sort()
        theirs.sort()
        names[first + give], names[first + take] = light, heavy
        sums[heavy] += numbers[take] - numbers[give]
        sums[light] += numbers[give] - numbers[take]
    return False


def _swap(
    numbers: list[int], heavy: list[int], light: list[int], least: int, most: int, gap: int
) -> tuple[int, int] | None:
    """Places of the two numbers to swap: the first pair that differs by ``least`` … ``most``, or the one that comes
    nearest to halving ``gap``; None where none makes it smaller. Walks both parts once, in descending order.
    """
    nearest, best = gap, None
    at = to = 0
    while at < len(heavy) and to < len(light):
        moved = numbers[heavy[at]] - numbers[light[to]]
        if least <= moved <= most:
            return at, to
        if abs(2 * moved - gap) < nearest:
            nearest, best = abs(2 * moved - gap), (at, to)
        if 2 * moved > gap:
            at += 1
        else:
            to += 1
    return best


def _lists_of(rows: Ints, names: Ints, sums: list[int]) -> list[list[int]] | None:
    """Rows of each part, ascending, largest sum first; None where a part is empty."""
    k = len(sums)
    places = np.empty(k, np.int64)
    places[sorted(range(k), key=sums.__getitem__, reverse=True)] = np.arange(k)
    lists = [group.tolist() for group in _grouped(rows, places[names], k)]
    return lists if all(lists) else None


def _grouped(items: Ints, names: Ints, k: int) -> list[Ints]:
    """``items`` of each name, ascending."""
    bits = len(items).bit_length()
    keys = np.sort((names << bits) | items)
    ends = np.searchsorted(keys, np.arange(1, k) << bits).tolist()
    keys &= (1 << bits) - 1
    return [keys[begin:end] for begin, end in zip([0, *ends], [*ends, len(keys)], strict=True)]
