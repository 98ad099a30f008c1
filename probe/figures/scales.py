"""Where ticks stand, where an axis ends, and which steps share a bar, as ``scales.js`` has it for the panel."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

#: The most ticks of an axis of whole numbers.
TICKS: Final = 10

#: A figure that is drawn at rest doesn't know its width: of more steps than twice this several share a bar, and there
#: are at most so many.
BINS: Final = 200

#: An axis ends at so much times its 99th percentile.
_BEYOND: Final = 1.15


class Bins(NamedTuple):
    """Runs of steps that are drawn as one.

    Attributes:
        width: How many steps one covers.
        runs: The first place of each run among the steps, and the place behind its last.
    """

    width: int
    runs: list[tuple[int, int]]


def whole_step(span: float, most: int = TICKS) -> int:
    """The smallest of 1, 2, 5, 10, 20 … of which at most ``most`` multiples fit into a span of whole numbers.

    >>> whole_step(2), whole_step(11), whole_step(2000)
    (1, 2, 500)
    """
    for power in itertools.count():
        for one in (1, 2, 5):
            if span // (one * 10**power) < most:
                return int(one * 10**power)
    raise AssertionError  # pragma: no cover  (there is no largest power)


def robust_end(values: Sequence[float]) -> float | None:
    """Where an axis ends so that a few large values don't flatten the rest.

    Args:
        values: In the order of their steps; the first is often slow, and isn't asked.

    Returns:
        1.15 times the 99th percentile; None where nothing is larger.

    >>> robust_end([1.0, 1.2, 1.1]) is None
    True
    >>> round(robust_end([90.0, 1.0, 1.0, 1.0]), 2)
    1.15
    """
    known = [float(one) for one in values if math.isfinite(one)]
    later = known[1:] or known
    if not later:
        return None
    end = _BEYOND * float(np.percentile(later, 99))
    return end if end > 0 and max(known) > end else None


def bins_of(steps: Sequence[int], most: int = BINS, apart: int = 2 * BINS) -> Bins | None:
    """Which steps share a bar.

    Args:
        steps: The steps in order.
        most: How many bars there may be.
        apart: So many steps have bars of their own.

    Returns:
        The runs; None where each step has its own.

    >>> bins_of([0, 1, 2, 3, 4], most=3, apart=4)
    Bins(width=2, runs=[(0, 2), (2, 4), (4, 5)])
    """
    if len(steps) <= apart:
        return None
    width = whole_step(steps[-1] - steps[0], most)
    edges = [at for at in range(len(steps)) if at == 0 or steps[at] // width != steps[at - 1] // width]
    return Bins(width, list(itertools.pairwise([*edges, len(steps)])))


def median_place(values: Sequence[float], begin: int, end: int) -> int | None:
    """The place of the median among some values: of an even number the lower one, so that it is one that was there.

    Args:
        values: All of them.
        begin: Where the run begins.
        end: The place behind the run.

    Returns:
        The place; None where there is no number in the run.

    >>> median_place([5.0, 9.0, 1.0, 7.0], 0, 4)
    0
    """
    places = [at for at in range(begin, end) if math.isfinite(values[at])]
    places.sort(key=lambda at: (values[at], at))
    return places[(len(places) - 1) // 2] if places else None
