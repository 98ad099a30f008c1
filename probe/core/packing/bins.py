"""The bin packing algorithms: lengths in, bins of their indices out.

Each takes lengths of at most ``capacity``, which its caller has checked, and gives bins that never hold more, without
order inside a bin. How far each may be from the fewest bins stands in :mod:`probe.core.packing`.

The first bin that has room is found by bisection: for the bins of a block, and for the blocks, the largest room so far
is kept, which only grows along the row. The largest sequence that fits is found in a sorted list whose taken places are
skipped. n sequences in b bins cost about n · (log n + b / 32) steps at the most; few of them reach further than the
next few bins.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Bins = list[list[int]]
Lengths = Sequence[int] | npt.NDArray[Any]

#: Bins of one block: as many as are looked through one by one in the worst case.
_BLOCK: Final = 32


def concatenative(lengths: Lengths, capacity: int) -> Bins:
    """In the given order; a new bin where the next sequence doesn't fit.

    >>> concatenative([6, 3, 7, 1], 10)
    [[0, 1], [2, 3]]
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    limits = ends - lengths + min(capacity, total)
    following = ends.searchsorted(limits, side="right").tolist()  # for each row the first that its bin can't hold
    rows = list(range(len(following)))
    bins: Bins = []
    begin = 0
    while begin < len(rows):
        end = following[begin]
        bins.append(rows[begin:end])
        begin = end
    return bins


def first_fit_decreasing(lengths: Lengths, capacity: int) -> Bins:
    """Longest first, each into the first bin that has room. A slightly larger capacity may need more bins."""
    order = np.argsort(-np.asarray(lengths, np.int64), kind="stable")
    return first_fit(lengths, order.tolist(), capacity)


def first_fit(lengths: Lengths, order: Sequence[int], capacity: int) -> Bins:
    """In ``order``, each into the first bin that has room.

    >>> first_fit([6, 3, 7, 4], [0, 1, 2, 3], 10)
    [[0, 1], [2], [3]]
    """
    sizes: Sequence[int] = lengths.tolist() if isinstance(lengths, np.ndarray) else lengths
    blocks: list[tuple[list[int], list[int], Bins]] = []  # of each bin: largest room so far, room, rows
    tops: list[int] = []  # of each block: its largest room
    highest: list[int] = []  # and the largest room so far
    for row in order:
        length = sizes[row]
        block = bisect_left(highest, length)
        if block == len(blocks):
            blocks.append(([capacity] * _BLOCK, [capacity] * _BLOCK, [[] for _ in range(_BLOCK)]))
            tops.append(capacity)
            highest.append(capacity)
        best, rooms, bins = blocks[block]
        place = bisect_left(best, length)
        bins[place].append(row)
        top = rooms[place] = rooms[place] - length
        if place and best[place - 1] > top:
            top = best[place - 1]
        while best[place] != top:  # as _lower does, which would take a fifth of the time for the call alone
            best[place] = top
            place += 1
            if place == _BLOCK:
                tops[block] = top
                _lower(highest, tops, block)
                break
            if rooms[place] > top:  # noqa: PLR1730  (max() would take a third of the loop's time)
                top = rooms[place]
    return [one for _, _, bins in blocks for one in bins if one]


def _lower(highest: list[int], tops: Sequence[int], place: int) -> None:
    """Make ``highest`` the largest of ``tops`` so far again, after that of ``place`` was lowered."""
    top = max(tops[place], highest[place - 1]) if place else tops[place]
    while highest[place] != top:
        highest[place] = top
        place += 1
        if place == len(highest):
            break
        top = max(top, tops[place])


class _Unplaced:
    """Sequences in ascending order of length, from which the largest that fits is taken.

    ``_link[i]`` leads to the nearest place at or below ``i`` that isn't taken, by paths that are shortened on the way;
    place 0 stands for none.
    """

    def __init__(self, lengths: Sequence[int], rows: list[int]) -> None:
        self.rows = rows
        self.lengths = [lengths[row] for row in rows]
        self._link = list(range(len(rows) + 1))
        self._smallest = 0
        self._free = [True] * len(rows)

    def smallest(self) -> int | None:
        """Length of the shortest, None where there is none."""
        place = self._smallest
        while place < len(self.rows) and not self._free[place]:
            place += 1
        self._smallest = place
        return self.lengths[place] if place < len(self.rows) else None

    def take_smallest(self) -> int:
        """Remove the shortest, which there has to be; its row."""
        self.smallest()
        return self._take_at(self._smallest)

    def take_largest(self, room: int) -> int | None:
        """Remove the longest of at most ``room``; its row, None where there is none."""
        place = self._nearest(bisect_right(self.lengths, room))
        return self._take_at(place - 1) if place else None

    def two_smallest(self) -> int | None:
        """Length of the two shortest together, None where there are fewer."""
        first = self.smallest()
        second = self._smallest + 1
        while second < len(self.rows) and not self._free[second]:
            second += 1
        return first + self.lengths[second] if first is not None and second < len(self.rows) else None

    def left(self) -> list[int]:
        """Rows that weren't taken."""
        return list(itertools.compress(self.rows, self._free))

    def _take_at(self, place: int) -> int:
        self._free[place] = False
        self._link[place + 1] = place
        return self.rows[place]

    def _nearest(self, place: int) -> int:
        link, found = self._link, place
        while link[found] != found:
            found = link[found]
        while link[place] != found and place != found:
            link[place], place = found, link[place]
        return found


def modified_first_fit_decreasing(lengths: Lengths, capacity: int) -> Bins:
    """Sequences above half a bin get bins of their own, whose rooms then are filled in an order that wastes little.

    With sizes in parts of the capacity, large is above 1/2, medium above 1/3, small above 1/6, tiny the rest:

    1. one bin for each large sequence, largest first;
    2. forward through the bins: the largest medium sequence that fits, where the smallest does;
    3. backward through the bins without a medium one: the smallest small sequence, and the largest that fits beside it,
       where the two smallest do;
    4. forward again: the largest sequence of any size that fits, as long as any does;
    5. the rest by first fit decreasing into further bins.

    A slightly larger capacity may need more bins.

    Source: Johnson and Garey, *A 71/60 theorem for bin packing*, Journal of Complexity 1 (1985).

    >>> modified_first_fit_decreasing([60, 35, 55, 40, 10], 100)
    [[0, 3], [2, 1, 4]]
    """
    array = np.asarray(lengths, np.int64)
    order = np.argsort(array, kind="stable")
    cuts = array[order].searchsorted([capacity // 6, capacity // 3, capacity // 2], side="right").tolist()
    sizes: list[int] = array.tolist()
    rows: list[int] = order.tolist()
    tiny, smalls, mediums, large = (rows[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(rows)]))
    large.sort(key=sizes.__getitem__, reverse=True)
    bins = [[row] for row in large]
    rooms = [capacity - sizes[row] for row in large]
    medium, small = _Unplaced(sizes, mediums), _Unplaced(sizes, smalls)
    paired = _add_medium(bins, rooms, medium, sizes)
    _add_small(bins, rooms, small, sizes, paired)
    rest = _Unplaced(sizes, [*tiny, *small.left(), *medium.left()])
    _fill(bins, rooms, rest, sizes)
    left = rest.left()
    left.reverse()  # longest first
    return bins + first_fit(sizes, left, capacity)


def _add_medium(bins: Bins, rooms: list[int], medium: _Unplaced, lengths: Sequence[int]) -> set[int]:
    """Step 2; the bins that got one."""
    paired = set()
    for place in range(len(bins)):
        row = medium.take_largest(rooms[place])
        if row is not None:
            bins[place].append(row)
            rooms[place] -= lengths[row]
            paired.add(place)
    return paired


def _add_small(bins: Bins, rooms: list[int], small: _Unplaced, lengths: Sequence[int], paired: set[int]) -> None:
    """Step 3."""
    for place in reversed(range(len(bins))):
        if place in paired:
            continue
        two = small.two_smallest()
        if two is None:
            return
        if two > rooms[place]:
            continue
        first = small.take_smallest()
        second = small.take_largest(rooms[place] - lengths[first])
        chosen = [first] if second is None else [first, second]
        bins[place].extend(chosen)
        rooms[place] -= sum(lengths[row] for row in chosen)


def _fill(bins: Bins, rooms: list[int], rest: _Unplaced, lengths: Sequence[int]) -> None:
    """Step 4."""
    for place in range(len(bins)):
        while (row := rest.take_largest(rooms[place])) is not None:
            bins[place].append(row)
            rooms[place] -= lengths[row]


def split_to(bins: Bins, lengths: Sequence[int], count: int) -> None:
    """Halve the fullest bins that hold at least two sequences until there are ``count``, in place.

    >>> bins = [[0, 1, 2], [3]]
    >>> split_to(bins, [4, 3, 1, 9], 3); bins
    [[0], [3], [1, 2]]
    """
    heap = [(-sum(lengths[row] for row in one), place) for place, one in enumerate(bins) if len(one) > 1]
    heapq.heapify(heap)
    while len(bins) < count:
        _, place = heapq.heappop(heap)
        halves: Bins = [[], []]
        sums = [0, 0]
        for row in sorted(bins[place], key=lengths.__getitem__, reverse=True):
            lighter = int((sums[1], len(halves[1])) < (sums[0], len(halves[0])))
            halves[lighter].append(row)
            sums[lighter] += lengths[row]
        bins[place] = halves[0]
        bins.append(halves[1])
        for where, total, half in zip((place, len(bins) - 1), sums, halves, strict=True):
            if len(half) > 1:
                heapq.heappush(heap, (-total, where))
