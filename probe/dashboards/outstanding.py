"""Which rank stands out in a quantity, compared with what, in numbers and in a sentence."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from probe.dashboards.courses import ByRank, is_of_the_run
from probe.dashboards.spec import SERIES
from probe.dashboards.spelling import spell

#: Fewer ranks than one more than this are compared with nobody.
MOST_ALONE: Final = 1

#: A rank stands out whose number is so many times as bad as the middle of the others, over so many steps or more.
OUTSTANDING: Final = 1.1
LEAST_STEPS: Final = 3


@dataclass(frozen=True)
class Who:
    """The rank whose numbers are the worst, and what they are compared with.

    Attributes:
        rank: Its number.
        value: Its median of the steps of the window; of bytes its largest of the run.
        others: The middle of the others' numbers.
        ranks: How many ranks are compared.
        low: The smallest of all their numbers.
        high: The largest of all their numbers.
        steps: Over how many steps.
        stands_out: Whether it is worse by so much, over so many steps, that it is named.
    """

    rank: int
    value: float
    others: float
    ranks: int
    low: float
    high: float
    steps: int
    stands_out: bool


def who_series(spec: Mapping[str, Any]) -> dict[str, Any] | None:
    """The series by which the ranks of a quantity are compared.

    Args:
        spec: A quantity, or a tile.

    Returns:
        A series spec over steps; None where nobody is compared.

    >>> who_series({"table": "spans", "y": "peak", "reduce": "max", "title": "Peak", "who": "rank"})
    {'table': 'spans', 'y': 'peak', 'reduce': 'max', 'by': 'rank', 'x': 'step'}
    """
    who = spec.get("who")
    if who is None:
        return None
    own = {name: value for name, value in spec.items() if name in SERIES}
    return {**({**own, "by": who} if isinstance(who, str) else who), "x": "step"}


def who_stands_out(spec: Mapping[str, Any], by_rank: ByRank) -> Who | None:
    """Compare the ranks over the steps that the number of a tile is of.

    Args:
        spec: A quantity, or a tile.
        by_rank: The values of :func:`who_series`, by step and rank.

    Returns:
        The worst rank; None where fewer than two have a value.

    >>> seconds = {(step, rank): 1.0 + (rank == 2) for step in range(3) for rank in range(4)}
    >>> found = who_stands_out({"window": 20}, seconds)
    >>> found.rank, found.value, found.others, found.stands_out
    (2, 2.0, 1.0, True)
    """
    known = {place: value for place, value in by_rank.items() if not math.isnan(value)}
    steps = sorted({step for step, _ in known})
    inside = set(steps if is_of_the_run(spec) else steps[-int(spec.get("window", 1)) :])
    found: dict[int, list[float]] = {}
    for (step, rank), value in known.items():
        if step in inside:
            found.setdefault(rank, []).append(value)
    if len(found) < MOST_ALONE + 1:
        return None
    middle = max if is_of_the_run(spec) else statistics.median
    return _worst({rank: float(middle(values)) for rank, values in sorted(found.items())}, spec, len(inside))


def _worst(numbers: Mapping[int, float], spec: Mapping[str, Any], steps: int) -> Who:
    choose = min if spec.get("better") == "higher" else max
    rank = choose(numbers, key=lambda one: numbers[one])  # of equal ones the first
    value, others = numbers[rank], statistics.median([numbers[one] for one in numbers if one != rank])
    above, below = (others, value) if spec.get("better") == "higher" else (value, others)
    stands_out = steps >= LEAST_STEPS and below > 0 and above >= OUTSTANDING * below
    return Who(rank, value, others, len(numbers), min(numbers.values()), max(numbers.values()), steps, stands_out)


def said_of(who: Who | None, spec: Mapping[str, Any]) -> str:
    """Who stands out, in a sentence.

    Args:
        who: As :func:`who_stands_out` found it.
        spec: The quantity, or the tile.

    Returns:
        The sentence; empty where fewer than two ranks were compared.

    >>> said_of(Who(5, 1.5, 1.25, 8, 1.2, 1.5, 20, True), {"unit": "s"})
    'Rank 5: 1.50 s, the other 7 ranks: 1.25 s.'
    """
    if who is None:
        return ""
    unit = str((who_series(spec) or spec).get("unit", spec.get("unit", "number")))
    value, others, low, high = (
        spell(one, unit) + (" tokens" if unit == "tokens" else "") for one in (who.value, who.others, who.low, who.high)
    )
    if who.stands_out:
        rest = f"the other {who.ranks - 1} ranks" if who.ranks > 2 else "the other rank"
        return f"Rank {who.rank}: {value}, {rest}: {others}."
    extent = f"{low}." if low == high else f"{low} to {high}."
    return f"No rank stands out: {extent}" if who.steps >= LEAST_STEPS else f"{who.ranks} ranks: {extent}"
