"""The micro-batches that NeMo-RL, prime-rl and slime make, from descriptions of their rules.

None of them is compared with the package: they aren't installed beside probe's tests. What they are held to are worked
examples and what must be true of every cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from probe._check import whole_number
from probe.core.balancing.partition import ceildiv
from probe.core.balancing.verl_rule import verl_partition
from probe.errors import CapacityError, InputError

Parts = list[list[int]]


def nemo_rl_dynamic(
    lengths: Sequence[int], ranks: int, cap_tokens: int, *, round_to: int = 1, width_tokens: int | None = None
) -> list[tuple[Parts, list[int]]]:
    """NeMo-RL's dynamic batching of one global batch: rows sorted by length and dealt to the ranks in turn; a
    micro-batch takes on rows while its rectangle stays within the cap. All ranks have as many micro-batches, of as many
    rows and as wide.

    Args:
        lengths: Tokens of each row.
        ranks: Data-parallel ones.
        cap_tokens: Most tokens of a rectangle: ``max_tokens_per_microbatch``.
        round_to: Widths are a multiple of it: ``sequence_length_round``.
        width_tokens: Padded width of the batch, which no rectangle is wider than; None for none.

    Returns:
        For each rank the rows of its micro-batches, and the width of each of them.

    Raises:
        InputError: The rows can't be shared equally.
        CapacityError: A row is above the cap.

    >>> nemo_rl_dynamic([4, 1, 3, 2], 2, 8)
    [([[1, 2]], [4]), ([[3, 0]], [4])]
    """
    count, cap = whole_number("ranks", ranks, 1), whole_number("cap_tokens", cap_tokens, 1)
    if len(lengths) % count:
        raise InputError(f"lengths: {len(lengths)} rows can't be shared equally by {count} ranks")
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    dealt = [order[rank::count] for rank in range(count)]
    stretches: list[tuple[int, int, int]] = []
    begin = widest = 0
    for place in range(len(lengths) // count):
        wide = ceildiv(max(lengths[rows[place]] for rows in dealt), round_to) * round_to
        wide = wide if width_tokens is None else min(wide, width_tokens)
        if wide > cap:
            raise CapacityError(f"cap_tokens: got {cap}, below the {wide} tokens that a row takes after rounding")
        if place > begin and max(widest, wide) * (place + 1 - begin) > cap:
            stretches.append((begin, place, widest))
            begin, widest = place, 0
        widest = max(widest, wide)
    if lengths:
        stretches.append((begin, len(lengths) // count, widest))
    widths = [wide for *_, wide in stretches]
    return [([rows[start:stop] for start, stop, _ in stretches], widths) for rows in dealt]


def prime_rl_first_fit(lengths: Sequence[int], seq_len: int) -> Parts:
    """prime-rl's micro-batches: the longest rows first, each into the first micro-batch that has room for it.

    prime-rl then adds empty micro-batches until the ranks have as many each. Under a slightly larger cap there may be
    more of them, as with every first fit.

    Args:
        lengths: Tokens of each row.
        seq_len: Tokens that a micro-batch can hold.

    Raises:
        CapacityError: A row is above the cap.

    >>> prime_rl_first_fit([2, 6, 3, 5], 8)
    [[1, 0], [3, 2]]
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    return _first_fit(lengths, order, whole_number("seq_len", seq_len, 1))


def slime_ranks(ranks: Sequence[Sequence[int]], cap_tokens: int, *, agreed_count: int | None = None) -> list[Parts]:
    """slime's micro-batches with ``use_dynamic_batch_size``: first fit in the order of the batch says how many each
    rank needs, the rank that needs most decides, and the rows are balanced over so many by their tokens. The cap isn't
    asked again: a micro-batch may be above it. Under a slightly larger cap first fit may need more of them.

    Args:
        ranks: Tokens of each row of each rank, in the order of its batch.
        cap_tokens: ``max_tokens_per_gpu`` × the size of context parallelism.
        agreed_count: The number that was agreed on, where it is known.

    Raises:
        CapacityError: A row is above the cap.
        InputError: A rank has fewer rows than micro-batches are needed.

    >>> slime_ranks([[4, 3, 3], [6, 6, 6]], 8)
    [[[0], [2], [1]], [[2], [1], [0]]]
    """
    cap = whole_number("cap_tokens", cap_tokens, 1)
    count = agreed_count or max(len(_first_fit(rows, range(len(rows)), cap)) for rows in ranks)
    return [verl_partition(rows, count, equal_size=False) for rows in ranks]


def _first_fit(lengths: Sequence[int], order: Sequence[int], cap: int) -> Parts:
    parts: Parts = []
    rooms: list[int] = []
    for row in order:
        length = lengths[row]
        if length > cap:
            raise CapacityError(f"cap_tokens: got {cap}, below the {length} tokens of row {row}")
        place = next((at for at, room in enumerate(rooms) if room >= length), len(rooms))
        if place == len(rooms):
            parts.append([])
            rooms.append(cap)
        parts[place].append(row)
        rooms[place] -= length
    return parts
