"""The largest differencing method of Karmarkar and Karp for k parts, in a compact representation.

The textbook keeps one Python object for each part of each state and so needs ``n·k`` of them; here a state is one
sorted array of sums, the states that hold single numbers are never made, and who went where is worked out once, from
the last merge back to the first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]


class _State(NamedTuple):
    """k sums in descending order, and how they came about."""

    sums: Array
    made: Callable[[Ints, Ints], list[tuple[_State, Ints]]]  #: hands part numbers down, see :func:`_hand_down`

    @property
    def spread(self) -> Any:
        return self.sums[0] - self.sums[-1]


def difference(weights: Array, k: int, equal_size: bool) -> Ints:
    """The part, 0 … k−1, of each of the numbers; with ``equal_size`` their count is a multiple of k.

    >>> difference(np.array([8, 7, 6, 5, 4]), 2, equal_size=False).tolist()
    [1, 0, 1, 0, 0]
    """
    order = np.argsort(-weights, kind="stable")
    ranked = weights[order]
    final = _merge_blocks(ranked, k) if equal_size else _merge_all(ranked, k)
    parts = np.empty(len(weights), np.int64)
    parts[order] = _hand_down(final, len(weights), k)
    return parts


def _hand_down(final: _State, n: int, k: int) -> Ints:
    """The part of each ranked number: each state tells those that it was made from what its parts are called."""
    parts = np.empty(n, np.int64)
    waiting = [(final, np.arange(k))]
    while waiting:
        state, names = waiting.pop()
        waiting.extend(state.made(names, parts))
    return parts


def _block(ranked: Array, begin: int, end: int, k: int) -> _State:
    """Numbers begin … end, at most k of them, one in each part."""
    sums = ranked[begin:end]
    if end - begin < k:
        sums = np.concatenate((sums, np.zeros(k - (end - begin), ranked.dtype)))

    def made(names: Ints, parts: Ints) -> list[tuple[_State, Ints]]:
        parts[begin:end] = names[: end - begin]
        return []

    return _State(sums, made)


def _merged(one: _State, two: _State) -> _State:
    """Largest part of ``one`` with smallest of ``two``, and so on."""
    sums = one.sums + two.sums[::-1]
    order = np.argsort(-sums, kind="stable")

    def made(names: Ints, parts: Ints) -> list[tuple[_State, Ints]]:  # noqa: ARG001  (the signature of all of them)
        before = np.empty_like(names)
        before[order] = names
        return [(one, before), (two, before[::-1])]

    return _State(sums[order], made)


def _dealt(state: _State, ranked: Array, begin: int, floor: Any) -> tuple[_State, int]:
    """Merge ``state`` with single numbers while it stays on top: each goes into its smallest part.

    Ends where the state's spread falls below the next number, or that number isn't above ``floor``, the spread of the
    next full state. At least one number is dealt.
    """
    sums = state.sums.tolist()
    heap = [(total, -part) for part, total in enumerate(sums)]
    heapq.heapify(heap)
    largest = sums[0]
    slots: list[int] = []
    for weight in ranked[begin:].tolist():
        if slots and (weight < floor or largest - heap[0][0] < weight):
            break
        total, part = heap[0]
        heapq.heapreplace(heap, (total + weight, part))
        largest = max(largest, total + weight)
        slots.append(-part)
    dealt = np.array([total for total, _ in sorted(heap, key=lambda pair: -pair[1])], ranked.dtype)
    order = np.argsort(-dealt, kind="stable")
    end = begin + len(slots)

    def made(names: Ints, parts: Ints) -> list[tuple[_State, Ints]]:
        before = np.empty_like(names)
        before[order] = names
        parts[begin:end] = before[slots]
        return [(state, before)]

    return _State(dealt[order], made), end


class _Heap:
    """Full states, largest spread first, the older first among equals."""

    def __init__(self) -> None:
        self._entries: list[tuple[Any, int, _State]] = []
        self._pushed = 0

    def __len__(self) -> int:
        return len(self._entries)

    def push(self, state: _State) -> None:
        heapq.heappush(self._entries, (-state.spread, self._pushed, state))
        self._pushed += 1

    def pop(self) -> _State:
        return heapq.heappop(self._entries)[2]

    @property
    def spread(self) -> Any:
        """Of the state on top; -1 where there is none."""
        return -self._entries[0][0] if self._entries else -1


def _merge_blocks(ranked: Array, k: int) -> _State:
    """With equal sizes the method starts from blocks of k numbers."""
    heap = _Heap()
    for begin in range(0, len(ranked), k):
        heap.push(_block(ranked, begin, begin + k, k))
    while len(heap) > 1:
        heap.push(_merged(heap.pop(), heap.pop()))
    return heap.pop()


def _merge_all(ranked: Array, k: int) -> _State:
    """Without equal sizes it starts from single numbers, the larger ones first."""
    heap, begin, n = _Heap(), 0, len(ranked)
    falling = -ranked
    while begin < n or len(heap) > 1:
        if begin < n and ranked[begin] >= heap.spread:
            # Single numbers are on top: they line up to k of them, or until a full state comes before the next one.
            end = min(begin + k, int(np.searchsorted(falling, -heap.spread, side="right")))
            state = _block(ranked, begin, end, k)
            if end - begin < k and len(heap):
                state = _merged(heap.pop(), state)
            begin = end
        else:
            state = heap.pop()
            if begin < n and ranked[begin] >= heap.spread:
                state, begin = _dealt(state, ranked, begin, heap.spread)
            else:
                state = _merged(state, heap.pop())
        heap.push(state)
    return heap.pop()
