"""Numbers into parts of nearly equal sum: the arithmetic under sequence balancing. NumPy only, no torch.

What is public stands first; :func:`karmarkar_karp` says how it is done. The differencing method itself is in
``probe.core.balancing.differencing``, the shortcut for many numbers in ``probe.core.balancing.dealing``, and moves and
swaps in ``probe.core.balancing.evening``.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import numpy as np
import numpy.typing as npt

from probe._check import also_named, whole_number
from probe.core.balancing.dealing import near_optimal
from probe.core.balancing.differencing import difference
from probe.core.balancing.evening import (
    Limit,
    balanced,
    fill_empty,
    greedy,
    index_lists,
    lower_bound,
    part_sums,
    refined,
)
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


def ceildiv(a: int, b: int) -> int:
    """``a / b`` rounded up, exactly.

    Args:
        a: The dividend, a whole number.
        b: The divisor, a whole number other than 0.

    >>> ceildiv(7, 2), ceildiv(8, 2)
    (4, 4)
    """
    if b == 0:
        raise InputError("b: got 0, expected a number other than 0")
    return -(-a // b)


def roundup_divisible(a: int, b: int) -> int:
    """The smallest multiple of ``b`` that isn't below ``a``.

    Args:
        a: The number to round up.
        b: The number that the result is a multiple of.

    >>> roundup_divisible(7, 4), roundup_divisible(8, 4)
    (8, 8)
    """
    return ceildiv(a, b) * b


@also_named(seqlens="seqlen_list")
def calculate_workload(seqlen_list: T) -> T:
    """The cost of a sequence of L tokens in arbitrary units, attention included: ``24576·L + L²``.

    Args:
        seqlen_list: Lengths in tokens, as a list, an array or a tensor; comes back as what it was. Integers are
            computed in 64 bits (32 would overflow from 46,341 tokens on). ``seqlens`` is another name for it.

    >>> calculate_workload([0, 1, 1000])
    [0, 24577, 25576000]
    """
    if isinstance(seqlen_list, list | tuple):
        return cast("T", [LINEAR_WORKLOAD * length + length * length for length in seqlen_list])
    wide: Any = seqlen_list
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

    With :data:`~probe.core.balancing.dealing.MANY` or more numbers for each part a greedy partition comes first,
    evened by swaps. It is taken where its largest part is within :data:`~probe.core.balancing.dealing.NEAR` of a bound
    that no partition gets below. With few numbers, where ties are a matter of luck, a handful of other starts is
    improved in the same way and the best of all is returned. The same input gives the same partition on every machine.

    Args:
        seqlen_list: The n lengths or other weights, finite and not negative.
        k_partitions: Number of parts, from 1 to n.
        equal_size: Every part gets ``n / k_partitions`` indices.

    Returns:
        ``k_partitions`` lists of indices, sorted inside, largest sum first; none is empty, every index is in one.

    Raises:
        InputError: There are more parts than numbers, a weight isn't usable, or with ``equal_size`` n isn't divisible.

    >>> karmarkar_karp([8, 7, 6, 5, 4], 2, equal_size=False)
    [[0, 1], [2, 3, 4]]
    """
    weights = _checked(seqlen_list, k_partitions, equal_size)
    near = near_optimal(weights, k_partitions, equal_size)
    if near is None and equal_size:
        near = _with_a_giant(weights, k_partitions)
    if near is not None:
        return near
    return index_lists(weights, balanced(weights, k_partitions, equal_size), k_partitions)


def _with_a_giant(weights: Array, k: int) -> list[list[int]] | None:
    """The best parts of equal size where one number is so large that with the smallest ones it is the largest part."""
    others = len(weights) // k - 1
    if k < 2 or not others:
        return None
    giant = int(np.argmax(weights))
    smallest = np.argpartition(weights, others)[:others]
    largest = weights[giant] + weights[smallest].sum()
    if giant in smallest or largest * (k - 1) < weights.sum() - largest:
        return None
    rest = np.ones(len(weights), bool)
    rest[[giant, *smallest]] = False
    rows = np.flatnonzero(rest)
    parts = index_lists(weights[rows], difference(weights[rows], k - 1, equal_size=True), k - 1)
    if weights[rows[parts[0]]].sum() > largest:
        return None
    return [sorted([giant, *smallest.tolist()]), *(rows[part].tolist() for part in parts)]


def greedy_partition(seqlen_list: Lengths, k_partitions: int, equal_size: bool) -> list[list[int]]:
    """Put each number, largest first, into the part with the smallest sum that may still take one.

    Arguments, result and errors are those of :func:`karmarkar_karp`.

    Args:
        seqlen_list: The n lengths or other weights, finite and not negative.
        k_partitions: Number of parts, from 1 to n.
        equal_size: Whether every part gets ``n / k_partitions`` indices.

    >>> greedy_partition([8, 7, 6, 5, 4], 2, equal_size=False)
    [[0, 3, 4], [1, 2]]
    """
    weights = _checked(seqlen_list, k_partitions, equal_size)
    room = len(weights) // k_partitions if equal_size else len(weights)
    parts = fill_empty(weights, greedy(weights, k_partitions, room), k_partitions)
    return index_lists(weights, parts, k_partitions)


def get_group_balanced_partitions(
    seqlen_list: Lengths, uid_list: Sequence[Hashable] | Array, k_partitions: int
) -> list[list[int]]:
    """Balance like :func:`karmarkar_karp`, with rows of the same uid in the same part.

    Keeps the responses to one prompt together, where a group baseline needs them on one rank.

    Args:
        seqlen_list: Length of each row.
        uid_list: The group of each row; rows of one group needn't be neighbours.
        k_partitions: Number of parts, at most the number of different uids.

    Raises:
        InputError: There are more parts than groups.
        ShapeError: There aren't as many uids as lengths.

    >>> get_group_balanced_partitions([5, 1, 5, 1, 3], ["a", "b", "a", "b", "c"], 2)
    [[0, 2], [1, 3, 4]]
    """
    weights = as_weights(seqlen_list, "seqlen_list")
    if len(uid_list) != len(weights):
        raise ShapeError(f"uid_list: got {len(uid_list)} uids for {len(weights)} lengths, expected one for each length")
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

    The number of parts goes up from a lower bound (Martello and Toth's L2) until a balanced partition fits: where one
    that is balanced in ``weights`` doesn't, one balanced in ``tokens`` may, and is then evened under the cap. Where
    that takes long, best-fit decreasing limits the search from above.

    Args:
        tokens: Tokens of each unit; each unit must fit into a part alone.
        weights: What is balanced, often ``tokens`` itself.
        cap: Most tokens of a part.
        at_least: Number of parts to start from; at most one part for each unit is made.
    """
    n = len(tokens)
    lowest = min(n, max(at_least, fewest_parts(tokens, cap)))
    for count in range(lowest, min(lowest + 8, n + 1)):
        parts = _fitting(tokens, weights, cap, count)
        if parts is not None:
            return parts
    lowest = min(lowest + 8, n)
    packed = _best_fit(tokens, cap)
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
    parts = balanced(weights, count, equal_size=False)
    if part_sums(tokens, parts, count).max() <= cap:
        return index_lists(weights, parts, count)
    if weights is tokens:
        return None
    parts = balanced(tokens, count, equal_size=False)
    sums = part_sums(tokens, parts, count)
    if sums.max() > cap:
        return None
    enough = lower_bound(weights, count, equal_size=False)
    limit = Limit(tokens, sums, cap)
    return index_lists(weights, refined(weights, parts, count, enough, equal_size=False, limit=limit), count)


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
    whole_number("k_partitions", k_partitions, 1, expected="an integer")
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
        raise ShapeError(
            f"{argument}: got {type(values).__name__}, expected a flat sequence of numbers: {error}"
        ) from error
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
