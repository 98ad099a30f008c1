"""How much each of several factors has changed a number."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping

Factors = Mapping[str, float]


def shares(number: Callable[[Factors], float], before: Factors, after: Factors) -> dict[str, float]:
    """Shapley's value of each factor: what it changes, as a mean over all orders in which the factors could change.

    Args:
        number: Of the factors.
        before: Each factor by name; at most ten.
        after: The same names.

    Returns:
        By name; they sum to ``number(after) - number(before)``, up to rounding. A factor that is the same has 0.

    >>> shares(lambda one: one["rows"] * one["length"], {"rows": 2, "length": 3}, {"rows": 4, "length": 3})
    {'rows': 6.0, 'length': 0.0}
    """
    names = list(before)
    changed = [name for name in names if before[name] != after[name]]
    count = len(changed)
    numbers = {
        chosen: number({name: after[name] if name in chosen else before[name] for name in names})
        for size in range(count + 1)
        for chosen in map(frozenset, itertools.combinations(changed, size))
    }
    found = dict.fromkeys(names, 0.0)
    for name in changed:
        others = [chosen for chosen in numbers if name not in chosen]
        found[name] = math.fsum(
            (numbers[chosen | {name}] - numbers[chosen]) / (count * math.comb(count - 1, len(chosen)))
            for chosen in others
        )
    return found
