"""The packers against the same algorithms as they are taught, which look at one bin after the other: time and bins.

Ours is the whole of ``get_packer(…).pack(lengths)``: the lengths checked, the bins sorted, what the metrics need kept.
The plain ways check the longest only. ``python -m benchmarks.packing`` takes some ten seconds.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.measure import Size, duration, row, seconds
from benchmarks.partition import lengths_of
from probe.core.batched_data_dict import BatchedDataDict
from probe.core.packing import _lengths, get_packer

Bins = list[list[int]]

CAPACITY = 16_384
#: Shape of the lengths, and sequences.
BATCHES = (
    ("lognormal", 512),
    ("uniform", 512),
    ("lognormal", 4096),
    ("uniform", 4096),
    ("bimodal", 4096),
    ("lognormal", 16_384),
)
SMALL_BATCHES = (("uniform", 64),)


def check(lengths: list[int], capacity: int) -> None:
    """Refuse a sequence that no bin can hold."""
    if max(lengths, default=0) > capacity:
        raise ValueError("a sequence is longer than a bin")


def plain_concatenative(lengths: list[int], capacity: int) -> Bins:
    """In the given order; a new bin where the next sequence doesn't fit."""
    check(lengths, capacity)
    bins: Bins = []
    current: list[int] = []
    filled = 0
    for index, length in enumerate(lengths):
        if filled + length > capacity:
            bins.append(current)
            current, filled = [], 0
        current.append(index)
        filled += length
    return [*bins, current] if current else bins


def plain_first_fit(lengths: list[int], order: list[int], capacity: int) -> Bins:
    """Each into the first bin that has room."""
    bins: Bins = []
    rooms: list[int] = []
    for index in order:
        length = lengths[index]
        for place, room in enumerate(rooms):
            if length <= room:
                bins[place].append(index)
                rooms[place] = room - length
                break
        else:
            bins.append([index])
            rooms.append(capacity - length)
    return bins


def descending(lengths: list[int]) -> list[int]:
    """Indices, longest first."""
    return sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)


def plain_decreasing(lengths: list[int], capacity: int) -> Bins:
    """First fit, longest first."""
    check(lengths, capacity)
    return plain_first_fit(lengths, descending(lengths), capacity)


def plain_shuffle(lengths: list[int], capacity: int) -> Bins:
    """First fit in an order by chance."""
    check(lengths, capacity)
    order = list(range(len(lengths)))
    random.Random(0).shuffle(order)
    return plain_first_fit(lengths, order, capacity)


def plain_modified(lengths: list[int], capacity: int) -> Bins:
    """The five steps of Johnson and Garey with sorted lists, from which what was placed is deleted."""
    check(lengths, capacity)
    order = descending(lengths)
    bins = [[index] for index in order if lengths[index] * 2 > capacity]
    rooms = [capacity - lengths[one[0]] for one in bins]
    medium = [index for index in order if lengths[index] * 2 <= capacity < lengths[index] * 3]
    small = [index for index in order if lengths[index] * 3 <= capacity < lengths[index] * 6]
    tiny = [index for index in order if lengths[index] * 6 <= capacity]

    def add_largest(rest: list[int], place: int, begin: int = 0) -> int:
        for at in range(begin, len(rest)):
            if lengths[rest[at]] <= rooms[place]:
                bins[place].append(rest[at])
                rooms[place] -= lengths[rest[at]]
                del rest[at]
                return at
        return -1

    paired = [add_largest(medium, place) >= 0 for place in range(len(bins))]
    for place in reversed(range(len(bins))):
        if not paired[place] and len(small) > 1 and lengths[small[-1]] + lengths[small[-2]] <= rooms[place]:
            add_largest(small, place, len(small) - 1)
            add_largest(small, place)
    rest = sorted(medium + small + tiny, key=lengths.__getitem__, reverse=True)
    for place in range(len(bins)):
        at = 0
        while at >= 0:
            at = add_largest(rest, place, at)
    return bins + plain_first_fit(lengths, rest, capacity)


PLAIN: dict[str, Callable[[list[int], int], Bins]] = {
    "concatenative": plain_concatenative,
    "first_fit_decreasing": plain_decreasing,
    "first_fit_shuffle": plain_shuffle,
    "modified_first_fit_decreasing": plain_modified,
}
MOST_BINS = {"first_fit_decreasing": "1", "modified_first_fit_decreasing": "1.02"}


def checked(lengths: list[int]) -> Any:
    """What every packer does first: a copy, of whole numbers, with the smallest and the largest known."""
    found = _lengths(lengths)
    return found, found.min(), found.max()


def compare(shape: str, n: int, repeats: int) -> list[dict[str, Any]]:
    """One row for the time and one for the bins of each algorithm."""
    lengths = [min(length, CAPACITY) for length in lengths_of(shape, n)]
    fewest, found = len(plain_decreasing(lengths, CAPACITY)), []
    for name, plain in PLAIN.items():
        pack = get_packer(name, CAPACITY).pack
        works: list[Callable[[], Any]] = [
            partial(pack, lengths),
            partial(plain, lengths, CAPACITY),
            partial(checked, lengths),
        ]
        ours, theirs, checks = seconds(*works, number=max(1, 2048 // n), repeats=repeats)
        in_order = name == "concatenative"
        note = f"checking and copying the lengths takes {duration(checks)} of it" if in_order else ""
        found += [
            row(f"{name}, time, {n} {shape}", ours, theirs, "1.5" if in_order else "1", note),
            {
                "name": f"{name}, bins, {n} {shape}",
                "ours_s": (bins := len(pack(lengths))),
                "theirs_s": fewest,
                "unit": "bins",
                "ratio": bins / fewest,
                "target": MOST_BINS.get(name, ""),
                "note": f"against first-fit decreasing; at least {-(-sum(lengths) // CAPACITY)} bins for the sum",
            },
        ]
    return found


def sharded(n: int, repeats: int) -> dict[str, Any]:
    """The plan of a whole shard call, listeners off, beside the copies of the rows that it can't avoid."""
    lengths = [min(length, 2048) for length in lengths_of("lognormal", n)]
    ids = torch.zeros(n, 2048, dtype=torch.long)
    batch: BatchedDataDict[Any] = BatchedDataDict(ids=ids, length=torch.tensor(lengths))
    args = {"max_tokens_per_microbatch": CAPACITY, "input_key": "ids", "input_lengths_key": "length"}
    order = [torch.randperm(n)[start::8] for start in range(8)]
    ours_s, theirs_s = seconds(
        lambda: batch.shard_by_batch_size(8, sequence_packing_args=args),
        lambda: [ids.index_select(0, index) for index in order],
        number=1,
        repeats=repeats,
    )
    return row(
        f"shard_by_batch_size with packing, {n} × 2048 int64 to 8", ours_s, theirs_s, "", "against copying the rows"
    )


def rows(size: Size = Size.USUAL) -> list[dict[str, Any]]:
    """All comparisons. Ratios are ours over theirs; smaller is better."""
    found, repeats = [], size.pick(1, 9)
    for shape, n in size.pick(SMALL_BATCHES, BATCHES):
        found += compare(shape, n, repeats)
    return [*found, sharded(size.pick(64, 1024), repeats)]


def main() -> None:
    for one in rows():
        print(f"{one['name']:<60} {one['ratio']:.4f}  (target {one.get('target', '')})  {one.get('note', '')}")


if __name__ == "__main__":
    main()
