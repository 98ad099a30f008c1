"""Numbers into parts of nearly equal sum: the arithmetic under sequence balancing. NumPy only, no torch.

:func:`karmarkar_karp` is the largest differencing method in a compact representation. The textbook keeps one Python
object for each part of each state and so needs ``n·k`` of them; here a state is one sorted array of sums, the states
that hold single numbers are never made, and who went where is worked out once, from the last merge back to the first.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from probe.errors import InputError, InputTypeError, ShapeError

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Lengths = Sequence[int] | Sequence[float] | Array
T = TypeVar("T", "list[int]", "Array", "torch.Tensor")

#: Linear share of the work of one token, relative to its attention to one other token: the documented constant of a
#: 7B model (6 · hidden size 4096).
LINEAR_WORKLOAD: Final = 24576

#: So many numbers for each part, and the greedy partition is worth a try before the differencing method.
MANY: Final = 16

#: How far above the mean part a greedy partition may be to be taken: no method can be below the mean.
NEAR: Final = 1.0005

#: Elements that one refinement may look at: keeps it below a few milliseconds however large the problem is.
_REFINEMENT_BUDGET: Final = 400_000


def ceildiv(a: int, b: int) -> int:
    """``a / b`` rounded up, exactly.

    >>> ceildiv(7, 2), ceildiv(8, 2)
    (4, 4)
    """
    if b == 0:
        raise InputError("ceildiv: b is 0, expected another number")
    return -(-a // b)


def roundup_divisible(a: int, b: int) -> int:
    """The smallest multiple of ``b`` that isn't below ``a``.

    >>> roundup_divisible(7, 4), roundup_divisible(8, 4)
    (8, 8)
    """
    return ceildiv(a, b) * b


def calculate_workload(seqlens: T) -> T:
    """The cost of a sequence of L tokens in arbitrary units, attention included: ``24576·L + L²``.

    Args:
        seqlens: lengths in tokens, as a list, an array or a tensor; comes back as what it was. Integers are computed
            in 64 bits (32 would overflow from 46,341 tokens on).

    >>> calculate_workload([0, 1, 1000])
    [0, 24577, 25576000]
    """
    if isinstance(seqlens, list | tuple):
        return cast("T", [LINEAR_WORKLOAD * length + length * length for length in seqlens])
    wide: Any = seqlens
    if isinstance(wide, np.ndarray):
        wide = wide.astype(np.int64) if wide.dtype.kind in "iub" else wide
    elif not wide.is_floating_point():
        wide = wide.long()
    return cast("T", LINEAR_WORKLOAD * wide + wide * wide)


# ----------------------------------------------------------------------------------------------------- partitioning


def karmarkar_karp(seqlen_list: Lengths, k_partitions: int, equal_size: bool) -> list[list[int]]:
    """Balance by the largest differencing method, then improve the largest part by single moves and swaps.

    The method (Karmarkar and Karp, 1982; k-way as by Korf, 2009) starts with one state per number and keeps merging
    the two states with the largest spread between their parts, largest part with smallest. Two remarks make it fast
    without changing what it does. Merging states of single numbers only lists them, until there are k of them: so the
    sorted numbers are taken k at a time, as one array. And while one state is so uneven that it is always on top, each
    merge puts the next number into its smallest part: a heap of sums does that. For ``n`` numbers there remain about
    ``n / k`` merges of two sorted arrays of k sums.

    Ties may be broken otherwise than by another implementation. The greedy partition is tried as well, and the better
    of the two goes through a bounded search for the move or swap that lowers the largest part most.

    Args:
        seqlen_list: n lengths or other weights, finite and not negative.
        k_partitions: number of parts, 1 to n.
        equal_size: every part gets ``n / k_partitions`` indices.

    Returns:
        ``k_partitions`` lists of indices, sorted inside, largest sum first; none is empty, every index is in one.

    Raises:
        InputError: more parts than numbers; ``equal_size`` and n isn't divisible; a weight isn't usable.

    >>> karmarkar_karp([8, 7, 6, 5, 4], 2, equal_size=False)
    [[0, 1], [2, 3, 4]]
    """
    weights = _checked(seqlen_list, k_partitions, equal_size)
    small = weights.dtype.kind == "i" and len(weights) and int(weights.max()).bit_length() < 63 - k_partitions.bit_length()
    if not equal_size and small and len(weights) >= MANY * k_partitions:
        near = _near_optimal(weights, k_partitions)
        if near is not None:
            return near
    return _lists(weights, _balanced(weights, k_partitions, equal_size), k_partitions)


def greedy_partition(seqlen_list: Lengths, k_partitions: int, equal_size: bool) -> list[list[int]]:
    """Put each number, largest first, into the part with the smallest sum that may still take one.

    Arguments, result and errors are those of :func:`karmarkar_karp`.

    >>> greedy_partition([8, 7, 6, 5, 4], 2, equal_size=False)
    [[0, 3, 4], [1, 2]]
    """
    weights = _checked(seqlen_list, k_partitions, equal_size)
    room = len(weights) // k_partitions if equal_size else len(weights)
    parts = _fill_empty(weights, _greedy(weights, k_partitions, room), k_partitions)
    return _lists(weights, parts, k_partitions)


def get_group_balanced_partitions(
    seqlen_list: Lengths, uid_list: Sequence[Hashable] | Array, k_partitions: int
) -> list[list[int]]:
    """Balance like :func:`karmarkar_karp`, with rows of the same uid in the same part.

    Keeps the responses to one prompt together, where a group baseline needs them on one rank.

    Args:
        seqlen_list: length of each row. uid_list: the group of each row; rows of one group needn't be neighbours.
        k_partitions: number of parts, at most the number of different uids.

    Raises:
        InputError: more parts than groups. ShapeError: as many uids as lengths are expected.

    >>> get_group_balanced_partitions([5, 1, 5, 1, 3], ["a", "b", "a", "b", "c"], 2)
    [[0, 2], [1, 3, 4]]
    """
    weights = as_weights(seqlen_list, "seqlen_list")
    if len(uid_list) != len(weights):
        raise ShapeError(f"uid_list: got {len(uid_list)} uids for {len(weights)} lengths")
    groups: dict[Hashable, list[int]] = {}
    for row, uid in enumerate(uid_list.tolist() if isinstance(uid_list, np.ndarray) else uid_list):
        groups.setdefault(uid, []).append(row)
    if not 1 <= k_partitions <= len(groups):
        raise InputError(f"k_partitions: got {k_partitions}, expected 1 to {len(groups)}, the number of different uids")
    members = list(groups.values())
    sums = [sum(weights[row].item() for row in rows) for rows in members]
    parts = karmarkar_karp(sums, k_partitions, equal_size=False)
    return [sorted(row for group in part for row in members[group]) for part in parts]


# ---------------------------------------------------------------------------------------------------- under a cap


def pack(tokens: Ints, weights: Array, cap: int, at_least: int) -> list[list[int]]:
    """Parts whose ``tokens`` stay within ``cap`` and whose ``weights`` are balanced: as few as can be found.

    The number of parts goes up from a lower bound (Martello and Toth's L2) until a balanced partition fits. Where that
    takes long, best-fit decreasing limits the search from above if tokens are what is balanced.

    Args:
        tokens: of each unit; each must fit alone. weights: what is balanced, often ``tokens`` itself.
        at_least: number of parts to start from; at most one part for each unit is made.
    """
    n = len(tokens)
    lowest = min(n, max(at_least, fewest_parts(tokens, cap)))
    for count in range(lowest, min(lowest + 8, n + 1)):
        parts = _fitting(tokens, weights, cap, count)
        if parts is not None:
            return parts
    lowest = min(lowest + 8, n)
    packed = _best_fit(tokens, cap) if weights is tokens else [[row] for row in range(n)]
    if len(packed) < lowest:
        return _split_up(weights, packed, lowest)
    return _search(tokens, weights, cap, lowest, packed)


def _search(tokens: Ints, weights: Array, cap: int, low: int, found: list[list[int]]) -> list[list[int]]:
    """Steps that double, then halve: the first balanced partition that fits into fewer parts than ``found``."""
    high, step = len(found), 1
    while low < high:
        count = min(low + step - 1, high - 1)
        parts = _fitting(tokens, weights, cap, count)
        if parts is None:
            low, step = count + 1, step * 2
        else:
            found, high, step = parts, count, 1
    return found


def pack_into(tokens: Ints, weights: Array, cap: int, count: int, fitting: list[list[int]]) -> list[list[int]]:
    """Exactly ``count`` parts within the cap, at least ``len(fitting)``, given a partition that fits."""
    if count == len(fitting):
        return fitting
    return _fitting(tokens, weights, cap, count) or _split_up(weights, fitting, count)


def fewest_parts(tokens: Ints, cap: int) -> int:
    """No packing under ``cap`` has fewer parts: Martello and Toth's bound L2 (1990).

    What is above half the cap needs a part of its own, and what is left beside it can take only what is small enough.
    """
    if not len(tokens):
        return 0
    ranked = np.sort(tokens)
    running = np.concatenate(([0], np.cumsum(ranked)))
    half = int(np.searchsorted(ranked, cap / 2, side="right"))
    begin = np.concatenate(([0], np.flatnonzero(np.diff(ranked[:half])) + 1)) if half else np.zeros(1, np.int64)
    least = ranked[begin] if half else np.zeros(1, np.int64)
    alone = np.searchsorted(ranked, cap - least, side="right")  # from here on nothing of `least` fits beside
    beside = (alone - half) * cap - (running[alone] - running[half])
    rest = np.maximum(running[half] - running[begin] - beside, 0)
    bound = len(ranked) - half + -(-rest // cap)
    return max(1, int(bound.max()))


def _fitting(tokens: Ints, weights: Array, cap: int, count: int) -> list[list[int]] | None:
    parts = _balanced(weights, count, equal_size=False)
    return None if _sums(tokens, parts, count).max() > cap else _lists(weights, parts, count)


def _best_fit(tokens: Ints, cap: int) -> list[list[int]]:
    """Best-fit decreasing: each unit, largest first, into the fullest part that can take it."""
    parts: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (room left, part), ascending
    order = np.argsort(-tokens, kind="stable")
    for row, need in zip(order.tolist(), tokens[order].tolist(), strict=True):
        place = bisect.bisect_left(room, (need, -1))
        if place < len(room):
            left, part = room.pop(place)
        else:
            left, part = cap, len(parts)
            parts.append([])
        parts[part].append(row)
        bisect.insort(room, (left - need, part))
    return [sorted(part) for part in parts]


def _split_up(weights: Array, parts: list[list[int]], count: int) -> list[list[int]]:
    """``count`` parts out of fewer: the heaviest part of several units is cut into two, again and again."""
    heap = [_cuttable(weights, part) for part in parts]
    heapq.heapify(heap)
    while len(heap) < count:
        _, _, part = heapq.heappop(heap)
        for half in karmarkar_karp(weights[part], 2, equal_size=False):
            heapq.heappush(heap, _cuttable(weights, [part[row] for row in half]))
    return sorted(part for _, _, part in heap)


def _cuttable(weights: Array, part: list[int]) -> tuple[bool, float, list[int]]:
    """Sorts parts of several units first, heaviest first."""
    return len(part) < 2, -weights[part].sum().item(), part


def _checked(seqlen_list: Lengths, k_partitions: int, equal_size: bool) -> Array:
    weights = as_weights(seqlen_list, "seqlen_list")
    if isinstance(k_partitions, bool) or not isinstance(k_partitions, int | np.integer):
        raise InputTypeError(f"k_partitions: got {k_partitions!r}, expected an integer")
    if k_partitions < 1:
        raise InputError(f"k_partitions: got {k_partitions}, expected at least 1")
    if len(weights) < k_partitions:
        raise InputError(
            f"seqlen_list: got {len(weights)} lengths for {k_partitions} partitions, expected at least one for each"
        )
    if equal_size and len(weights) % k_partitions:
        raise InputError(
            f"equal_size: {len(weights)} lengths can't be shared equally by {k_partitions} partitions, "
            f"expected a multiple of {k_partitions}"
        )
    return weights


def as_weights(values: Lengths, argument: str) -> Array:
    """``values`` as a 1-D array of int64 or float64, checked to be finite and not negative."""
    if hasattr(values, "detach"):  # a tensor, possibly on a device
        values = values.detach().cpu().numpy()
    try:
        weights = np.asarray(values)
    except ValueError as error:
        raise ShapeError(f"{argument}: expected a flat sequence of numbers; {error}") from error
    if weights.ndim != 1:
        raise ShapeError(f"{argument}: got shape {weights.shape}, expected one dimension")
    if weights.size == 0:
        return weights.astype(np.int64)
    if weights.dtype == np.int64 and weights.min() >= 0:
        return weights
    if weights.dtype.kind not in "iubf":
        raise InputTypeError(f"{argument}: got {weights.dtype} values, expected numbers")
    weights = weights.astype(np.float64 if weights.dtype.kind == "f" else np.int64)
    usable = np.isfinite(weights) & (weights >= 0)
    if not usable.all():
        row = int(np.argmin(usable))
        raise InputError(
            f"{argument}: got {weights[row].item()} at {row}, expected a finite number that isn't negative"
        )
    return weights


def _lists(weights: Array, parts: Ints, k: int) -> list[list[int]]:
    """Lists of indices by part number, largest sum first."""
    sums = _sums(weights, parts, k)
    order = np.argsort(parts, kind="stable")
    ends = np.cumsum(np.bincount(parts, minlength=k)).tolist()
    rows = order.tolist()
    lists = [rows[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    return [lists[part] for part in sorted(range(k), key=lambda part: (-sums[part], lists[part]))]


def _sums(weights: Array, parts: Ints, k: int) -> Array:
    if weights.dtype.kind == "f":
        return np.bincount(parts, weights, k)
    sums = np.zeros(k, np.int64)  # bincount would add in float64, which is inexact from 2^53 on
    np.add.at(sums, parts, weights)
    return sums


def _balanced(weights: Array, k: int, equal_size: bool) -> Ints:
    """The part of each number: the best that this module knows."""
    if k == 1:
        return np.zeros(len(weights), np.int64)
    if k == len(weights):
        return np.arange(k)
    parts = _difference(weights, k, equal_size)
    return _refine(weights, _fill_empty(weights, parts, k), k, equal_size)


def _greedy(weights: Array, k: int, room: int) -> Ints:
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


def _near_optimal(weights: Ints, k: int) -> list[list[int]] | None:
    """The greedy partition, where its largest part is within :data:`NEAR` of what any method could reach; else None.

    One integer holds a part's sum and its number, which the heap compares faster than a tuple.
    """
    order = np.argsort(-weights, kind="stable")
    shift = k.bit_length()
    mask = (1 << shift) - 1
    heap = list(range(k))
    parts: list[list[int]] = [[] for _ in heap]
    replace = heapq.heapreplace
    for row, weight in zip(order.tolist(), (weights[order] << shift).tolist(), strict=True):
        entry = heap[0]
        parts[entry & mask].append(row)
        replace(heap, entry + weight)
    sums = [0] * k
    for entry in heap:
        sums[entry & mask] = entry >> shift
    enough = int(NEAR * max(int(weights.sum()) / k, int(weights.max())))
    if not all(parts) or not _evened(parts, sums, weights.tolist(), enough):
        return None
    for part in parts:
        part.sort()
    return [parts[part] for part in sorted(range(k), key=lambda part: (-sums[part], parts[part]))]


def _evened(parts: list[list[int]], sums: list[int], weights: list[int], enough: int) -> bool:
    """Swap numbers between the largest and the smallest part until no part is above ``enough``; False: it isn't to be.

    The swap that halves the difference of the two is found by walking both parts in descending order.
    """
    for _ in range(2 * len(parts)):
        largest = max(sums)
        if largest <= enough:
            return True
        heavy, light = sums.index(largest), sums.index(min(sums))
        difference = largest - sums[light]
        give = take = at = to = 0
        nearest = difference
        rows, others = parts[heavy], parts[light]
        while at < len(rows) and to < len(others):
            moved = weights[rows[at]] - weights[others[to]]
            if abs(2 * moved - difference) < nearest:
                nearest, give, take = abs(2 * moved - difference), at, to
            if 2 * moved > difference:
                at += 1
            else:
                to += 1
        if nearest == difference:
            return False
        rows[give], others[take] = others[take], rows[give]
        for part in (heavy, light):
            parts[part].sort(key=lambda row: -weights[row])
            sums[part] = sum([weights[row] for row in parts[part]])
    return False


def _fill_empty(weights: Array, parts: Ints, k: int) -> Ints:
    """Give each empty part one number of a part that has several; no largest sum grows by that."""
    counts = np.bincount(parts, minlength=k)
    for empty in np.flatnonzero(counts == 0):
        sums = np.where(counts > 1, _sums(weights, parts, k), -1)
        rows = np.flatnonzero(parts == np.argmax(sums))
        row = rows[np.argmin(weights[rows])]
        counts[parts[row]] -= 1
        parts[row] = empty
        counts[empty] = 1
    return parts


# ---------------------------------------------------------------------------------------- the differencing method


class _State(NamedTuple):
    """k sums in descending order, and how they came about."""

    sums: Array
    made: Callable[[Ints, Ints], list[tuple[_State, Ints]]]  #: hands part numbers down, see :func:`_hand_down`

    @property
    def spread(self) -> Any:
        return self.sums[0] - self.sums[-1]


def _difference(weights: Array, k: int, equal_size: bool) -> Ints:
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


# -------------------------------------------------------------------------------------------------- improving on it


def _refine(weights: Array, parts: Ints, k: int, equal_size: bool) -> Ints:
    """Lower the largest part by the single move or swap that lowers it most, until none does or the budget is spent.

    Changes ``parts`` in place and returns it. Other parts never grow beyond what the largest was.
    """
    sums = _sums(weights, parts, k)
    counts = np.bincount(parts, minlength=k)
    enough = _lower_bound(weights, k)
    budget = _REFINEMENT_BUDGET
    while budget > 0:
        heavy = int(np.argmax(sums))
        if sums[heavy] <= enough:
            break
        rows = np.flatnonzero(parts == heavy)
        budget -= (len(rows) + 8) * len(weights)
        change = _best_change(weights, parts, sums, rows, heavy, movable=not equal_size and counts[heavy] > 1)
        if change is None:
            break
        give, take, target = change
        moved = weights[give] - (0 if take is None else weights[take])
        parts[give] = target
        counts[[heavy, target]] += (-1, 1) if take is None else (0, 0)
        if take is not None:
            parts[take] = heavy
        sums[heavy] -= moved
        sums[target] += moved
    return parts


def _lower_bound(weights: Array, k: int) -> Any:
    """No partition has a smaller largest part."""
    total = weights.sum()
    mean = ceildiv(int(total), k) if weights.dtype.kind == "i" else total / k
    return max(mean, weights.max())


def _best_change(
    weights: Array, parts: Ints, sums: Array, rows: Ints, heavy: int, *, movable: bool
) -> tuple[int, int | None, int] | None:
    """(row to give, row to take in exchange or None, part to give it to), or None if nothing helps."""
    given = weights[rows][:, None] - weights  # what leaves the heavy part, by row and partner
    after = np.maximum(sums[heavy] - given, sums[parts] + given)
    after[:, rows] = sums[heavy]
    best = int(np.argmin(after))
    give, take = divmod(best, len(weights))
    lowest = after[give, take]
    if movable:
        light = int(np.argmin(sums))
        moved = np.maximum(sums[heavy] - weights[rows], sums[light] + weights[rows])
        single = int(np.argmin(moved))
        if moved[single] < min(lowest, sums[heavy]):
            return int(rows[single]), None, light
    if lowest < sums[heavy]:
        return int(rows[give]), take, int(parts[take])
    return None
