"""The largest differencing method of Karmarkar and Karp for k parts, with states of two kinds.

The textbook keeps one Python object for each part of each state and so needs ``n·k`` of them. Here the states that hold
single numbers are never made. Where the parts are few, a state is a list of sums and rows: calling NumPy on a handful
of numbers takes longer than adding them. Elsewhere it is one sorted array of sums, and who went where is worked out
once, from the last merge back to the first. Which states are merged is decided in one place, so both kinds give the
same parts.
"""

from __future__ import annotations

import bisect
import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import count
from operator import itemgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
State = TypeVar("State")
_Entry = tuple[Any, int, State]

#: Up to so many parts of so many numbers lists are faster: four times for two parts, as fast for about twenty. With
#: more numbers, joining long lists of rows costs more than what is saved.
_FEW_PARTS: Final = 16
_FEW_NUMBERS: Final = 2048


def difference(weights: Array, k: int, equal_size: bool) -> Ints:
    """The part, 0 … k−1, of each of the numbers; with ``equal_size`` their count is a multiple of k.

    >>> difference(np.array([8, 7, 6, 5, 4]), 2, equal_size=False).tolist()
    [1, 0, 1, 0, 0]
    """
    order = np.argsort(-weights, kind="stable")
    few = k <= _FEW_PARTS and len(weights) <= _FEW_NUMBERS
    kind: type[_Method[Any]] = (_InPairs if k == 2 else _InLists) if few else _InArrays
    parts = np.empty(len(weights), np.int64)
    parts[order] = kind(weights[order], k).parts(equal_size)
    return parts


class _Method(ABC, Generic[State]):
    """Which states are merged, and when. A state is k sums in descending order, and how they came about.

    A state is handed on once, and may be changed by whoever takes it.
    """

    def __init__(self, ranked: Array, k: int) -> None:
        self.ranked = ranked
        self.k = k
        self.made = count()

    @abstractmethod
    def block(self, begin: int, end: int) -> State:
        """Numbers begin … end, at most k of them, one in each part."""

    @abstractmethod
    def merged(self, one: State, two: State) -> State:
        """Largest part of ``one`` with smallest of ``two``, and so on."""

    @abstractmethod
    def entry(self, state: State) -> _Entry[State]:
        """Of a heap: largest spread first, the older first among equals."""

    @abstractmethod
    def sums(self, state: State) -> list[Any]:
        """All sums."""

    @abstractmethod
    def with_numbers(self, state: State, begin: int, slots: list[int], sums: list[Any]) -> State:
        """Numbers from ``begin`` on put into the parts ``slots``, by which these have ``sums``."""

    @abstractmethod
    def handed_out(self, final: State) -> list[int] | Ints:
        """The part of each number."""

    def parts(self, equal_size: bool) -> list[int] | Ints:
        """The part of each number, by the method."""
        return self.handed_out(self._merge_blocks() if equal_size else self._merge_all())

    def _merge_blocks(self) -> State:
        """With equal sizes the method starts from blocks of k numbers."""
        heap = [self.entry(self.block(begin, begin + self.k)) for begin in range(0, len(self.ranked), self.k)]
        heapq.heapify(heap)
        return self._merge_heap(heap)

    def _merge_heap(self, heap: list[_Entry[State]]) -> State:
        while len(heap) > 1:
            one = heapq.heappop(heap)[2]
            heapq.heapreplace(heap, self.entry(self.merged(one, heap[0][2])))
        return heap[0][2]

    def _merge_all(self) -> State:
        """Without equal sizes it starts from single numbers, the larger ones first."""
        heap: list[_Entry[State]] = []
        begin, k, n = 0, self.k, len(self.ranked)
        falling = (-self.ranked).tolist()  # the heap holds spreads below 0, too
        while begin < n:
            if not heap or falling[begin] <= heap[0][0]:
                # Single numbers are on top: they line up to k of them, or until a full state comes before the next one.
                last = min(begin + k, n)
                end = bisect.bisect_right(falling, heap[0][0], begin, last) if heap else last
                state = self.block(begin, end)
                if end - begin < k and heap:
                    state = self.merged(heapq.heappop(heap)[2], state)
                begin = end
            else:
                state = heapq.heappop(heap)[2]
                if not heap or falling[begin] <= heap[0][0]:
                    state, begin = self._dealt(state, begin, -heap[0][0] if heap else -1)
                else:
                    state = self.merged(state, heapq.heappop(heap)[2])
            heapq.heappush(heap, self.entry(state))
        return self._merge_heap(heap)

    def _dealt(self, state: State, begin: int, floor: Any) -> tuple[State, int]:
        """Merge ``state`` with single numbers while it stays on top: each goes into its smallest part.

        Ends where the state's spread falls below the next number, or that number isn't above ``floor``, the spread of
        the next full state. At least one number is dealt.
        """
        sums = self.sums(state)
        heap = [(total, -part) for part, total in enumerate(sums)]
        heapq.heapify(heap)
        largest = sums[0]
        slots: list[int] = []
        for weight in self.ranked[begin:].tolist():
            total, part = heap[0]
            if slots and (weight < floor or largest - total < weight):
                break
            total += weight
            heapq.heapreplace(heap, (total, part))
            largest = max(largest, total)
            sums[-part] = total
            slots.append(-part)
        return self.with_numbers(state, begin, slots, sums), begin + len(slots)


#: A sum and the numbers, by their rank, that it is of.
_Part = tuple[Any, list[int]]
_sum_of = itemgetter(0)


class _InLists(_Method[list[_Part]]):
    """For few parts."""

    def __init__(self, ranked: Array, k: int) -> None:
        super().__init__(ranked, k)
        self.alone: list[_Part] = [(number, [rank]) for rank, number in enumerate(ranked.tolist())]

    def block(self, begin: int, end: int) -> list[_Part]:
        state = self.alone[begin:end]
        while len(state) < self.k:
            state.append((0, []))
        return state

    def merged(self, one: list[_Part], two: list[_Part]) -> list[_Part]:
        two.reverse()
        state = [(a + b, mine + theirs) for (a, mine), (b, theirs) in zip(one, two, strict=True)]
        state.sort(key=_sum_of, reverse=True)  # reverse keeps equal sums in their order
        return state

    def entry(self, state: list[_Part]) -> _Entry[list[_Part]]:
        return state[-1][0] - state[0][0], next(self.made), state

    def sums(self, state: list[_Part]) -> list[Any]:
        return [total for total, _ in state]

    def with_numbers(self, state: list[_Part], begin: int, slots: list[int], sums: list[Any]) -> list[_Part]:
        for rank, slot in enumerate(slots, begin):
            state[slot][1].append(rank)
        state = [(total, ranks) for total, (_, ranks) in zip(sums, state, strict=True)]
        state.sort(key=_sum_of, reverse=True)
        return state

    def handed_out(self, final: list[_Part]) -> list[int]:
        parts = [0] * len(self.ranked)
        for part, (_, ranks) in enumerate(final):
            for rank in ranks:
                parts[rank] = part
        return parts


class _InPairs(_InLists):
    """For two parts, the most frequent case: as :class:`_InLists`, in half the time."""

    def merged(self, one: list[_Part], two: list[_Part]) -> list[_Part]:
        (large, large_rows), (small, small_rows) = one
        (their_large, their_large_rows), (their_small, their_small_rows) = two
        first = (large + their_small, large_rows + their_small_rows)
        second = (small + their_large, small_rows + their_large_rows)
        return [first, second] if first[0] >= second[0] else [second, first]

    def _merge_heap(self, heap: list[_Entry[list[_Part]]]) -> list[_Part]:
        pop, replace, made = heapq.heappop, heapq.heapreplace, self.made
        while len(heap) > 1:
            (large, large_rows), (small, small_rows) = pop(heap)[2]
            (their_large, their_large_rows), (their_small, their_small_rows) = heap[0][2]
            first, second = large + their_small, small + their_large
            one, two = (first, large_rows + their_small_rows), (second, small_rows + their_large_rows)
            state = [one, two] if first >= second else [two, one]
            replace(heap, (-abs(first - second), next(made), state))
        return heap[0][2]


class _Sorted(NamedTuple):
    """An array of sums, and how they came about."""

    sums: Array
    made: Callable[[Ints, Ints], list[tuple[_Sorted, Ints]]]  #: hands part numbers down to the states it was made from


class _InArrays(_Method[_Sorted]):
    """For many parts, or many numbers."""

    def block(self, begin: int, end: int) -> _Sorted:
        sums = self.ranked[begin:end]
        if end - begin < self.k:
            sums = np.concatenate((sums, np.zeros(self.k - (end - begin), sums.dtype)))

        def made(names: Ints, parts: Ints) -> list[tuple[_Sorted, Ints]]:
            parts[begin:end] = names[: end - begin]
            return []

        return _Sorted(sums, made)

    def merged(self, one: _Sorted, two: _Sorted) -> _Sorted:
        sums = one.sums + two.sums[::-1]
        order = np.argsort(-sums, kind="stable")

        def made(names: Ints, _parts: Ints) -> list[tuple[_Sorted, Ints]]:
            before = np.empty_like(names)
            before[order] = names
            return [(one, before), (two, before[::-1])]

        return _Sorted(sums[order], made)

    def entry(self, state: _Sorted) -> _Entry[_Sorted]:
        return (state.sums[-1] - state.sums[0]).item(), next(self.made), state

    def sums(self, state: _Sorted) -> list[Any]:
        told: list[Any] = state.sums.tolist()
        return told

    def with_numbers(self, state: _Sorted, begin: int, slots: list[int], sums: list[Any]) -> _Sorted:
        dealt = np.array(sums, state.sums.dtype)
        order = np.argsort(-dealt, kind="stable")

        def made(names: Ints, parts: Ints) -> list[tuple[_Sorted, Ints]]:
            before = np.empty_like(names)
            before[order] = names
            parts[begin : begin + len(slots)] = before[slots]
            return [(state, before)]

        return _Sorted(dealt[order], made)

    def handed_out(self, final: _Sorted) -> Ints:
        parts = np.empty(len(self.ranked), np.int64)
        waiting = [(final, np.arange(self.k))]
        while waiting:
            state, names = waiting.pop()
            waiting.extend(state.made(names, parts))
        return parts
