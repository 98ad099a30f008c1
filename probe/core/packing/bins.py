"""The bin packing algorithms: lengths in, bins of their indices out.

Each takes lengths of at most ``capacity``, which its caller has checked, and gives bins that never hold more, without
order inside a bin. How far each may be from the fewest bins stands in :mod:`probe.core.packing`.

The first bin that has room is found in a tree of rooms, and the largest sequence that fits in a sorted list whose
taken places are skipped, so that n sequences cost about n · log n steps.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Sequence

Bins = list[list[int]]


def concatenative(lengths: Sequence[int], capacity: int) -> Bins:
    """In the given order; a new bin where the next sequence doesn't fit.

    >>> concatenative([6, 3, 7, 1], 10)
    [[0, 1], [2, 3]]
    """
    bins: Bins = []
    room = -1
    for row, length in enumerate(lengths):
        if length > room:
            bins.append([])
            room = capacity
        bins[-1].append(row)
        room -= length
    return bins


def first_fit_decreasing(lengths: Sequence[int], capacity: int) -> Bins:
    """Longest first, each into the first bin that has room."""
    return first_fit(lengths, _decreasing(lengths), capacity)


def _decreasing(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)


def first_fit(lengths: Sequence[int], order: Sequence[int], capacity: int) -> Bins:
    """In ``order``, each into the first bin that has room.

    >>> first_fit([6, 3, 7, 4], [0, 1, 2, 3], 10)
    [[0, 1], [2], [3]]
    """
    bins: Bins = []
    leaves = 1 << (sum(lengths[row] for row in order) // capacity).bit_length()
    rooms = [capacity] * (2 * leaves)  # a tree: each inner node holds the largest room below; unopened bins are whole
    for row in order:
        length = lengths[row]
        if rooms[1] < length:
            rooms, leaves = _doubled(rooms, leaves, capacity), 2 * leaves
        node = 1
        while node < leaves:
            node += node
            if rooms[node] < length:
                node += 1
        place = node - leaves
        if place == len(bins):
            bins.append([row])
        else:
            bins[place].append(row)
        left = rooms[node] = rooms[node] - length
        while node > 1:  # the largest room of each branch above, up to one that another branch holds
            other = rooms[node ^ 1]
            if other > left:  # noqa: PLR1730  (max() would take a third of the loop's time)
                left = other
            node >>= 1
            if rooms[node] == left:
                break
            rooms[node] = left
    return bins


def _doubled(rooms: Sequence[int], leaves: int, capacity: int) -> list[int]:
    """The tree with as many bins again, none of them opened."""
    made = [capacity] * (4 * leaves)
    level = 1
    while level <= leaves:
        made[2 * level : 3 * level] = rooms[level : 2 * level]
        level *= 2
    return made


class _Unplaced:
    """Sequences sorted by length, from which the largest that fits is taken.

    ``_link[i]`` leads to the nearest place at or below ``i`` that isn't taken, by paths that are shortened on the way;
    place 0 stands for none.
    """

    def __init__(self, lengths: Sequence[int], rows: Sequence[int]) -> None:
        self.rows = sorted(rows, key=lengths.__getitem__)
        self.lengths = [lengths[row] for row in self.rows]
        self._link = list(range(len(rows) + 1))
        self._smallest = 0
        self._taken = [False] * len(rows)

    def smallest(self) -> int | None:
        """Length of the shortest, None where there is none."""
        place = self._smallest
        while place < len(self.rows) and self._taken[place]:
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
        while second < len(self.rows) and self._taken[second]:
            second += 1
        return first + self.lengths[second] if first is not None and second < len(self.rows) else None

    def left(self) -> list[int]:
        """Rows that weren't taken."""
        return [row for row, taken in zip(self.rows, self._taken, strict=True) if not taken]

    def _take_at(self, place: int) -> int:
        self._taken[place] = True
        self._link[place + 1] = place
        return self.rows[place]

    def _nearest(self, place: int) -> int:
        link, found = self._link, place
        while link[found] != found:
            found = link[found]
        while link[place] != found and place != found:
            link[place], place = found, link[place]
        return found


def modified_first_fit_decreasing(lengths: Sequence[int], capacity: int) -> Bins:
    """Sequences above half a bin get bins of their own, whose rooms then are filled in an order that wastes little.

    With sizes in parts of the capacity, large is above 1/2, medium above 1/3, small above 1/6, tiny the rest:

    1. one bin for each large sequence, largest first;
    2. forward through the bins: the largest medium sequence that fits, where the smallest does;
    3. backward through the bins without a medium one: the smallest small sequence, and the largest that fits beside it,
       where the two smallest do;
    4. forward again: the largest sequence of any size that fits, as long as any does;
    5. the rest by first fit decreasing into further bins.

    Source: Johnson and Garey, *A 71/60 theorem for bin packing*, Journal of Complexity 1 (1985).

    >>> modified_first_fit_decreasing([60, 35, 55, 40, 10], 100)
    [[0, 3], [2, 1, 4]]
    """
    by_size: list[list[int]] = [[], [], [], []]
    for row in _decreasing(lengths):
        parts = lengths[row] * 6
        by_size[0 if parts > 3 * capacity else 1 if parts > 2 * capacity else 2 if parts > capacity else 3].append(row)
    large, *others = by_size
    bins = [[row] for row in large]
    rooms = [capacity - lengths[row] for row in large]
    medium, small = _Unplaced(lengths, others[0]), _Unplaced(lengths, others[1])
    paired = _add_medium(bins, rooms, medium, lengths)
    _add_small(bins, rooms, small, lengths, paired)
    rest = _Unplaced(lengths, [*medium.left(), *small.left(), *others[2]])
    _fill(bins, rooms, rest, lengths)
    left = rest.left()
    left.reverse()  # longest first
    return bins + first_fit(lengths, left, capacity)


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
