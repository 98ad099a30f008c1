"""The partitions that verl makes, worked out again from lengths and arguments alone, order included.

probe's own partitions are other ones (:mod:`probe.core.balancing.partition`). These here are for looking back: what a
recorded micro-batch would have held under another cap, or which ties decided. verl 0.9.1 keeps the cap
(``strict=True``); the releases before it make as many micro-batches as the sum of tokens needs, and one may be above.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from probe._check import whole_number
from probe.core.balancing.partition import calculate_workload, ceildiv, roundup_divisible
from probe.errors import CapacityError, InputError

Parts = list[list[int]]

#: Rows that end up together: (−sum of weights, −number of rows, the negated rows in the order in which they came).
#: Tuples so compare as verl's sets do, the largest first: by sum, then by number of rows, then by the rows themselves.
_Set = tuple[int, int, tuple[int, ...]]

#: (−spread, sets from the largest to the smallest; empty ones are left out). No two hold the same rows, so that their
#: largest sets decide between equal spreads, and nothing behind those.
_State = tuple[int, list[_Set]]


def _state(sets: list[_Set], k: int) -> _State:
    sets.sort()
    return (sets[0][0] - (sets[-1][0] if len(sets) == k else 0), sets)


def _merged(one: _State, two: _State, k: int) -> _State:
    """The largest set of the one with the smallest of the other, and so on; the rows of ``one`` stand in front."""
    ours, theirs = one[1], two[1]
    alone, met = k - len(theirs), len(ours)
    if alone >= met:  # each set meets an empty one
        return _state(ours + theirs, k)
    sets = ours[:alone]
    for (total, size, rows), (more, others, added) in zip(ours[alone:], reversed(theirs[k - met :]), strict=True):
        sets.append((total + more, size + others, rows + added))
    sets += theirs[: k - met]
    return _state(sets, k)


def verl_partition(weights: Sequence[int], k_partitions: int, equal_size: bool) -> Parts:
    """The largest differencing method as verl carries it out, ties and the order of the parts included.

    Args:
        weights: Whole numbers, one for each row.
        k_partitions: Number of parts.
        equal_size: Whether every part has the same number of rows.

    Returns:
        ``k_partitions`` lists of indices, sorted inside, in the order in which verl's function returns them.

    Raises:
        InputError: There are fewer rows than parts, or with ``equal_size`` the rows can't be shared equally.

    >>> verl_partition([8, 7, 6, 5, 4], 2, equal_size=False)
    [[1, 3, 4], [0, 2]]
    """
    k, n = whole_number("k_partitions", k_partitions, 1), len(weights)
    if n < k or (equal_size and n % k):
        expected = f"a multiple of {k}" if equal_size else f"at least {k}"
        raise InputError(f"weights: got {n} for {k} partitions, expected {expected}")
    if equal_size:
        ranked = sorted(range(n), key=lambda row: (weights[row], row))
        blocks = [ranked[begin : begin + k] for begin in range(0, n, k)]
        heap = [_state([(-weights[row], -1, (-row,)) for row in block], k) for block in blocks]
    else:
        heap = [(-weight if k > 1 else 0, [(-weight, -1, (-row,))]) for row, weight in enumerate(weights)]
    heapq.heapify(heap)
    while len(heap) > 1:
        first = heapq.heappop(heap)
        heapq.heapreplace(heap, _merged(first, heap[0], k))
    parts = [sorted(-row for row in rows) for _, _, rows in heap[0][1]]
    if len(parts) < k:
        raise InputError(f"weights: one of {k} partitions is empty, which verl refuses")
    return parts


@dataclass(frozen=True, kw_only=True)
class VerlCut:
    """What verl's ``rearrange_micro_batches`` is told.

    Attributes:
        cap_tokens: Most tokens of a micro-batch: verl's ``max_token_len_per_gpu`` × the size of sequence parallelism.
        width_tokens: Padded width of the batch, None for a jagged one. verl wants the cap to be at least that.
        divisor: The number of micro-batches is a multiple of it; None means 1.
        minimum_count: At least so many micro-batches; None asks for none.
        ordered: Whether they are ordered by work with the smallest at both ends, as is verl's default; else the
            partition's order.
        group_size: So many neighbouring rows stay together.
        strict: Whether the cap holds, as since verl 0.9.1.
    """

    cap_tokens: int
    width_tokens: int | None = None
    divisor: int | None = None
    minimum_count: int | None = None
    ordered: bool = True
    group_size: int = 1
    strict: bool = True

    @property
    def step(self) -> int:
        """By how much the number of micro-batches grows."""
        return self.divisor or 1


@dataclass(frozen=True)
class _Units:
    """What one rank packs: rows, or groups of neighbouring rows."""

    tokens: list[int]
    weights: list[int]

    @classmethod
    def of(cls, lengths: Sequence[int], cut: VerlCut) -> _Units:
        cap, size = whole_number("cap_tokens", cut.cap_tokens, 1), whole_number("group_size", cut.group_size, 1)
        if len(lengths) % size or not lengths:
            raise InputError(
                f"lengths: got {len(lengths)} rows, expected a positive multiple of force_group_size={size}"
            )
        work, tokens = calculate_workload(list(lengths)), list(lengths)
        if size > 1:
            tokens = [sum(tokens[begin : begin + size]) for begin in range(0, len(tokens), size)]
            work = [sum(work[begin : begin + size]) for begin in range(0, len(work), size)]
        longest = max(*tokens, cut.width_tokens or 0) if cut.strict else max(*lengths, cut.width_tokens or 0)
        if longest > cap:
            raise CapacityError(
                f"cap_tokens: got {cap}, below the {longest} tokens of the longest row or group, or of width_tokens"
            )
        return cls(tokens, work)

    def start(self, cut: VerlCut) -> int:
        """The number of micro-batches that this rank begins with."""
        return max(min(len(self.tokens), ceildiv(sum(self.tokens), cut.cap_tokens)), cut.minimum_count or 0)

    def parts(self, count: int, cap: int | None) -> Parts | None:
        """``count`` parts of units; None where one of them is above the cap."""
        parts, tokens = verl_partition(self.weights, count, equal_size=False), self.tokens
        if cap is not None and any(sum([tokens[item] for item in part]) > cap for part in parts):
            return None
        return parts

    def rows(self, parts: Parts, cut: VerlCut) -> Parts:
        """The parts in their order, as rows."""
        if cut.ordered:
            weights = self.weights
            parts.sort(key=lambda part: (sum([weights[item] for item in part]), part[0]), reverse=True)
            parts = parts[::2][::-1] + parts[1::2]
        if cut.group_size == 1:
            return parts
        return [[item * cut.group_size + at for item in part for at in range(cut.group_size)] for part in parts]


def verl_ranks(ranks: Sequence[Sequence[int]], cut: VerlCut, *, agreed_count: int | None = None) -> list[Parts]:
    """Rows of each micro-batch of ranks that agree on how many of them each makes.

    The number starts at what the rank with the most tokens needs, and grows until on every rank a partition that is
    balanced in work keeps each part's tokens within the cap.

    Args:
        ranks: Tokens of each row of each rank, in the order of its batch: ties depend on it.
        cut: The arguments, the same on all of them.
        agreed_count: The number that was agreed on, where it is known; it isn't raised any more.

    Raises:
        CapacityError: A row, a group or the padded width is above the cap.
        InputError: The rows can't be grouped, or a rank has fewer groups than micro-batches are needed.

    >>> verl_ranks([[5, 5], [9, 9]], VerlCut(cap_tokens=10))
    [[[1], [0]], [[1], [0]]]
    """
    units = [_Units.of(lengths, cut) for lengths in ranks]
    fewest = min(len(one.tokens) for one in units)
    count = agreed_count or roundup_divisible(max(one.start(cut) for one in units), cut.step)
    cap = cut.cap_tokens if cut.strict else None
    while count <= fewest:
        found: list[Parts] = []
        for one in units:
            parts = one.parts(count, cap)
            if parts is None:
                break
            found.append(parts)
        else:
            return [one.rows(parts, cut) for one, parts in zip(units, found, strict=True)]
        count += cut.step
    raise InputError(f"lengths: {count} micro-batches are needed, but a rank has only {fewest} rows or groups")


def verl_micro_batches(
    lengths: Sequence[int],
    cap_tokens: int,
    *,
    width_tokens: int | None = None,
    num_batches_divided_by: int | None = None,
    min_num_micro_batch: int | None = None,
    use_dynamic_bsz_balance: bool = True,
    force_group_size: int = 1,
    agreed_count: int | None = None,
    strict: bool = True,
) -> Parts:
    """Rows of each micro-batch that ``rearrange_micro_batches`` of verl makes on one rank; see :class:`VerlCut`.

    Args:
        lengths: Tokens of each row, in the order of the batch: ties depend on it.
        cap_tokens: As in :class:`VerlCut`.
        width_tokens: As in :class:`VerlCut`.
        num_batches_divided_by: Its ``divisor``.
        min_num_micro_batch: Its ``minimum_count``.
        use_dynamic_bsz_balance: Its ``ordered``.
        force_group_size: Its ``group_size``.
        agreed_count: The number of micro-batches that the ranks agreed on, where they did; other ranks' lengths decided
            it, so that it has to be known.
        strict: As in :class:`VerlCut`.

    Raises:
        CapacityError: A row, a group or the padded width is above the cap.
        InputError: The rows can't be grouped, or there are fewer groups than micro-batches.

    >>> verl_micro_batches([5, 9, 5, 1], 10)
    [[1, 3], [0, 2]]
    """
    cut = VerlCut(
        cap_tokens=cap_tokens,
        width_tokens=width_tokens,
        divisor=num_batches_divided_by,
        minimum_count=min_num_micro_batch,
        ordered=use_dynamic_bsz_balance,
        group_size=force_group_size,
        strict=strict,
    )
    return verl_ranks([lengths], cut, agreed_count=agreed_count)[0]


def verl_fixed_rows(rows: int, micro_batch_size: int, force_group_size: int = 1) -> Parts:
    """Rows of each micro-batch without dynamic batch sizes: neighbours together.

    Args:
        rows: Rows of the batch.
        micro_batch_size: Rows, or groups of rows, of each micro-batch.
        force_group_size: Rows of a group.

    Raises:
        InputError: The rows can't be shared equally.

    >>> verl_fixed_rows(4, 2)
    [[0, 1], [2, 3]]
    """
    each = whole_number("micro_batch_size", micro_batch_size, 1) * whole_number("force_group_size", force_group_size, 1)
    if rows % each:
        raise InputError(f"rows: got {rows}, expected a multiple of {each}")
    return [list(range(begin, begin + each)) for begin in range(0, rows, each)]
