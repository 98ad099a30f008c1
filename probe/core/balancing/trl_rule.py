"""The batches that TRL makes, worked out again from lengths and arguments alone, order included.

Its online trainers (GRPO, RLOO) generate for several steps at once and cut what came in equal stretches, in the order
that a shuffle by chance has left; SFT packs its data set beforehand: "bfd" (best fit decreasing) cuts off what is too
long, "bfd_split" packs that, too, and "wrapped" cuts the stream of all tokens wherever a sequence is full.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence

from probe._check import whole_number
from probe.errors import InputError, UnknownNameError

Parts = list[list[int]]

#: Parts of (row, tokens): a row that is too long may be in several.
Pieces = list[list[tuple[int, int]]]

STRATEGIES = ("bfd", "bfd_split", "wrapped")


def trl_fixed_rows(rows: int, per_device_batch_size: int) -> Parts:
    """Rows of each micro-batch of a data loader of one rank: neighbours together, what is left in the last one.

    Args:
        rows: Rows of the rank.
        per_device_batch_size: Rows of a micro-batch, ``per_device_train_batch_size``.

    Raises:
        InputError: The size isn't positive.

    >>> trl_fixed_rows(5, 2)
    [[0, 1], [2, 3], [4]]
    """
    each = whole_number("per_device_batch_size", per_device_batch_size, 1)
    return [list(range(begin, min(begin + each, rows))) for begin in range(0, rows, each)]


def trl_steps_per_generation(rows: int, steps: int) -> Parts:
    """Rows of each micro-batch of what was generated at once, in the order after TRL's shuffle.

    Args:
        rows: Rows that a rank generated.
        steps: ``steps_per_generation``.

    Raises:
        InputError: There are fewer rows than steps.

    >>> trl_steps_per_generation(6, 3)
    [[0, 1], [2, 3], [4, 5]]
    """
    count = whole_number("steps", steps, 1)
    if rows < count:
        raise InputError(f"rows: got {rows}, expected at least {count}, one for each step")
    each = rows // count
    return [list(range(begin, begin + each)) for begin in range(0, each * count, each)]


def trl_packed(lengths: Sequence[int], seq_length: int, strategy: str = "bfd") -> Pieces:
    """The sequences of TRL's ``pack_dataset``, each as (row, tokens) of what it holds.

    Unless they are ``wrapped``, there may be more of them under a slightly larger ``seq_length``, as with every best
    fit.

    Args:
        lengths: Tokens of each row of a chunk of the data set; TRL packs a thousand rows at a time.
        seq_length: Tokens that a packed sequence can hold.
        strategy: One of :data:`STRATEGIES`.

    Raises:
        UnknownNameError: There is no such strategy.
        InputError: The length isn't positive.

    >>> trl_packed([5, 2, 3, 1], 4)
    [[(0, 4)], [(2, 3), (3, 1)], [(1, 2)]]
    >>> trl_packed([5, 2], 4, "wrapped")
    [[(0, 4)], [(0, 1), (1, 2)]]
    """
    size = whole_number("seq_length", seq_length, 1)
    if strategy not in STRATEGIES:
        raise UnknownNameError.of("strategy", strategy, STRATEGIES)
    if strategy == "wrapped":
        return _wrapped(lengths, size)
    if strategy == "bfd":
        pieces = [(row, min(length, size)) for row, length in enumerate(lengths)]
    else:
        pieces = [
            (row, min(size, length - begin)) for row, length in enumerate(lengths) for begin in range(0, length, size)
        ]
    return _best_fit(pieces, size)


def _best_fit(pieces: Sequence[tuple[int, int]], size: int) -> Pieces:
    """The longest first, each into the bin with the least room that is enough, of equal ones the one that waits longest
    with this room; else into a new one.
    """
    bins: Pieces = []
    waiting: dict[int, deque[int]] = {}  # bins by the room that they have
    rooms: list[int] = []  # of those that have any, ascending, each once
    for row, tokens in sorted(pieces, key=lambda one: -one[1]):
        at = bisect_left(rooms, tokens)
        if at == len(rooms):
            place, room = len(bins), size
            bins.append([])
        else:
            room = rooms[at]
            place = waiting[room].popleft()
            if not waiting[room]:
                rooms.pop(at)
        bins[place].append((row, tokens))
        left = room - tokens
        if left:
            queue = waiting.setdefault(left, deque())
            if not queue:
                insort(rooms, left)
            queue.append(place)
    return bins


def _wrapped(lengths: Sequence[int], size: int) -> Pieces:
    bins: Pieces = []
    room = 0
    for row, length in enumerate(lengths):
        left = length
        while left > 0:
            if not room:
                bins.append([])
                room = size
            taken = min(room, left)
            bins[-1].append((row, taken))
            room -= taken
            left -= taken
    return bins
