"""How the benchmarks measure: interleaved repeats, medians, and a ratio against an alternative from the same run."""

from __future__ import annotations

import enum
import gc
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Work = Callable[[], Any]
Choice = TypeVar("Choice")


class Size(enum.Enum):
    """How much a benchmark does.

    A small one has the fewest repeats, rows and steps that still run each of its lines: its figures say nothing.
    A full one has the slow rows too.
    """

    SMALL = "small"
    USUAL = "usual"
    FULL = "full"

    def pick(self, small: Choice, usual: Choice, full: Choice | None = None) -> Choice:
        """What goes with this size; a full one takes the usual unless it has its own."""
        if self is Size.SMALL:
            return small
        return full if self is Size.FULL and full is not None else usual

    @classmethod
    def asked(cls, arguments: Sequence[str]) -> Size:
        """Of ``python -m benchmarks.NAME [--full | --small]``."""
        return next((one for one in cls if f"--{one.value}" in arguments), cls.USUAL)


def seconds(work: Work, *others: Work, repeats: int = 15, number: int = 1) -> list[float]:
    """Median seconds of one call of each function; the functions take turns, so drift hits all alike.

    Args:
        work, others: called with nothing. repeats: samples of each. number: calls in one sample.
    """
    all_work = (work, *others)
    samples: list[list[float]] = [[] for _ in all_work]
    for one in all_work:
        one()
    gc.collect()
    gc.disable()
    try:
        for _ in range(repeats):
            for kept, one in zip(samples, all_work, strict=True):
                begin = time.perf_counter_ns()
                for _ in range(number):
                    one()
                kept.append((time.perf_counter_ns() - begin) / number / 1e9)
    finally:
        gc.enable()
    return [statistics.median(kept) for kept in samples]


def row(name: str, ours_s: float, theirs_s: float, target: str = "", note: str = "") -> dict[str, Any]:
    """One line of the table: our time, the alternative's, and their ratio."""
    return {
        "name": name,
        "ours_s": ours_s,
        "theirs_s": theirs_s,
        "ratio": ours_s / theirs_s if theirs_s else float("nan"),
        "target": target,
        "note": note,
    }


def duration(value: float) -> str:
    """Seconds as a person reads them."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"
