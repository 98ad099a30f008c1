"""The packers against first fit decreasing as it is taught, which looks at one bin after the other: time and bins.

``python -m benchmarks.packing`` takes a few seconds.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.measure import row, seconds
from benchmarks.partition import lengths_of
from probe.core.batched_data_dict import BatchedDataDict
from probe.core.packing.bins import first_fit_decreasing, modified_first_fit_decreasing

CAPACITY = 16_384


def textbook(lengths: list[int], capacity: int) -> list[list[int]]:
    """First fit decreasing with plain lists."""
    bins: list[list[int]] = []
    rooms: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: lengths[index], reverse=True):
        for place, room in enumerate(rooms):
            if lengths[index] <= room:
                bins[place].append(index)
                rooms[place] -= lengths[index]
                break
        else:
            bins.append([index])
            rooms.append(capacity - lengths[index])
    return bins


def compare(shape: str, n: int) -> list[dict[str, Any]]:
    """One row for the time and one for the bins of each algorithm."""
    lengths = [min(length, CAPACITY) for length in lengths_of(shape, n)]
    packers = {"first fit decreasing": first_fit_decreasing, "modified": modified_first_fit_decreasing}
    works = [lambda pack=pack: pack(lengths, CAPACITY) for pack in packers.values()]
    *ours, theirs_s = seconds(*works, lambda: textbook(lengths, CAPACITY), number=1, repeats=9)
    fewest, found = len(textbook(lengths, CAPACITY)), []
    for (name, pack), ours_s in zip(packers.items(), ours, strict=True):
        bins = len(pack(lengths, CAPACITY))
        found += [
            row(f"{name}, time, {n} {shape}", ours_s, theirs_s, "1.5" if n < 1000 else "0.25"),
            {
                "name": f"{name}, bins, {n} {shape}",
                "ours_s": bins,
                "theirs_s": fewest,
                "unit": "bins",
                "ratio": bins / fewest,
                "target": "1" if name == "first fit decreasing" else "1.02",
                "note": f"the sum needs {-(-sum(lengths) // CAPACITY)}",
            },
        ]
    return found


def sharded(n: int) -> dict[str, Any]:
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
        repeats=9,
    )
    return row(
        f"shard_by_batch_size with packing, {n} × 2048 int64 to 8", ours_s, theirs_s, "", "over copying the rows"
    )


def rows() -> list[dict[str, Any]]:
    """All comparisons. Ratios are ours over theirs; smaller is better."""
    found = []
    for shape, n in (
        ("lognormal", 512),
        ("lognormal", 4096),
        ("uniform", 4096),
        ("bimodal", 4096),
        ("lognormal", 16_384),
    ):
        found += compare(shape, n)
    return [*found, sharded(1024)]


def main() -> None:
    for one in rows():
        print(f"{one['name']:<60} {one['ratio']:.4f}  (target {one.get('target', '')})  {one.get('note', '')}")


if __name__ == "__main__":
    main()
