"""The partitioner against the textbook's Karmarkar–Karp in Python objects: time and balance, in one run.

``python -m benchmarks partition`` takes about half a minute; ``--full`` adds 16,384 sequences into 2,048 parts, where
the textbook needs a minute or more.
"""

from __future__ import annotations

import functools
import heapq
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.measure import Size
from probe.core.balancing.partition import karmarkar_karp

# ---------------------------------------------------------------------------------------------------- the textbook


@functools.total_ordering
class Subset:
    """Numbers that end up together."""

    def __init__(self) -> None:
        self.total = 0
        self.members: list[tuple[int, int]] = []

    def add(self, index: int, value: int) -> None:
        self.members.append((index, value))
        self.total += value

    def absorb(self, other: Subset) -> None:
        self.members.extend(other.members)
        self.total += other.total

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Subset) and self.total == other.total

    def __lt__(self, other: Subset) -> bool:
        return self.total < other.total

    __hash__ = None  # type: ignore[assignment]  # mutable


class Candidate:
    """A partial solution: k subsets, largest first."""

    def __init__(self, numbers: list[tuple[int, int]], k: int) -> None:
        self.subsets = [Subset() for _ in range(k)]
        for subset, (value, index) in zip(self.subsets, numbers, strict=False):
            subset.add(index, value)
        self.subsets.sort(reverse=True)

    @property
    def spread(self) -> int:
        return self.subsets[0].total - self.subsets[-1].total

    def absorb(self, other: Candidate) -> None:
        for mine, theirs in zip(self.subsets, reversed(other.subsets), strict=True):
            mine.absorb(theirs)
        self.subsets.sort(reverse=True)

    def __lt__(self, other: Candidate) -> bool:
        if self.spread != other.spread:
            return self.spread > other.spread
        return self.subsets[0] > other.subsets[0]


def textbook(lengths: list[int], k: int, equal_size: bool) -> list[list[int]]:
    """Largest differencing as it is taught: a heap of candidates, the two with the largest spread merged each time."""
    numbers = sorted(((value, index) for index, value in enumerate(lengths)), reverse=True)
    size = k if equal_size else 1
    heap = [Candidate(numbers[begin : begin + size], k) for begin in range(0, len(numbers), size)]
    heapq.heapify(heap)
    while len(heap) > 1:
        first = heapq.heappop(heap)
        first.absorb(heapq.heappop(heap))
        heapq.heappush(heap, first)
    return [sorted(index for index, _ in subset.members) for subset in heap[0].subsets]


# -------------------------------------------------------------------------------------------------------- the cases


def lengths_of(shape: str, n: int, seed: int = 0) -> list[int]:
    """``n`` sequence lengths of one of the shapes that batches have."""
    rng = np.random.default_rng(seed)
    drawn: dict[str, Callable[[], Any]] = {
        "lognormal": lambda: rng.lognormal(6.5, 0.8, n).clip(16, 16384),
        "uniform": lambda: rng.integers(16, 8193, n),
        "bimodal": lambda: np.where(rng.random(n) < 0.5, rng.normal(300, 50, n), rng.normal(7000, 400, n)).clip(16),
        "constant": lambda: np.full(n, 1024),
        "giant": lambda: np.concatenate((rng.pareto(1.5, n - 1) * 300 + 50, [200_000.0])),
    }
    return [int(length) for length in drawn[shape]()]


def largest(lengths: list[int], parts: list[list[int]]) -> int:
    """The sum of the heaviest part."""
    return max(sum(lengths[row] for row in part) for part in parts)


def _seconds(call: Callable[[], Any], at_least: int) -> tuple[float, Any]:
    """Median duration of one call, and its result."""
    durations, result = [], None
    for _ in range(at_least):
        begin = time.perf_counter()
        result = call()
        durations.append(time.perf_counter() - begin)
    return statistics.median(durations), result


#: Shape of the lengths, sequences, parts, whether these are of equal size, and the target: a ratio of the times.
Case = tuple[str, int, int, bool, float | None]
CASES: tuple[Case, ...] = (
    ("lognormal", 512, 16, False, 1 / 100),
    ("lognormal", 4096, 512, False, 1 / 500),
    *((shape, 512, 16, False, 1 / 100) for shape in ("uniform", "bimodal", "constant", "giant")),
    *(
        case
        for shape in ("lognormal", "uniform", "bimodal", "constant", "giant")
        for case in ((shape, 512, 16, True, 1.0), (shape, 1024, 128, False, None))
    ),
)
FULL_CASES: tuple[Case, ...] = (*CASES[:2], ("lognormal", 16384, 2048, False, 1 / 500), *CASES[2:])
SMALL_CASES: tuple[Case, ...] = (("lognormal", 64, 4, False, 1 / 100), ("giant", 64, 4, True, None))


def compare(shape: str, n: int, k: int, equal_size: bool, target: float | None, size: Size) -> list[dict[str, Any]]:
    """One row for the time and one for the largest part."""
    lengths = lengths_of(shape, n)
    theirs_s, theirs = _seconds(lambda: textbook(lengths, k, equal_size), size.pick(1, 15 if n * k < 100_000 else 1))
    ours_s, ours = _seconds(lambda: karmarkar_karp(lengths, k, equal_size), size.pick(1, 101 if n < 1000 else 21))
    name = f"{n} {shape} into {k}{', equal size' if equal_size else ''}"
    return [
        {
            "name": f"partition time, {name}",
            "ours_s": ours_s,
            "theirs_s": theirs_s,
            "ratio": ours_s / theirs_s,
            "target": target if target is not None else "",
            "note": f"{theirs_s / ours_s:,.1f} times as fast as the textbook",
        },
        {
            "name": f"partition balance, {name}",
            "ours_s": None,
            "theirs_s": None,
            "ratio": largest(lengths, ours) / largest(lengths, theirs),
            "target": 1.001,
            "note": f"largest part {largest(lengths, ours):,} against {largest(lengths, theirs):,} tokens",
        },
    ]


def rows(size: Size = Size.USUAL) -> list[dict[str, Any]]:
    """All comparisons. Ratios are ours over theirs; smaller is better; ``target`` is the largest that will do."""
    return [row for case in size.pick(SMALL_CASES, CASES, FULL_CASES) for row in compare(*case, size)]
