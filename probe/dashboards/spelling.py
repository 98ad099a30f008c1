"""Values of quantities with their units, as a person says them."""

from __future__ import annotations

import math
from collections.abc import Callable

from probe import text as say


def spell(value: float, unit: str) -> str:
    """A value with its unit.

    >>> spell(3 * 1024**3, "bytes"), spell(1.25, "ratio"), spell(0.06, "percent"), spell(float("nan"), "s")
    ('3.00 GiB', '1.25×', '6.0 %', '–')
    """
    if math.isnan(value):
        return say.UNKNOWN
    spellings: dict[str, Callable[[float | None], str]] = {
        "bytes": say.size,
        "tokens": say.count,
        "tokens/s": say.count,
        "count": say.count,
        "ratio": say.ratio,
        "percent": say.percent,
        "s": say.seconds,
    }
    spelled = spellings.get(unit)
    return say.number(value) if spelled is None else spelled(value)


def extent(low: float, high: float, unit: str) -> str:
    """From one value to another, the unit said once where it is the same.

    Args:
        low: The smaller one.
        high: The larger one.
        unit: Of both.

    Returns:
        The text.

    >>> extent(49.6, 53.0, "s"), extent(0.5, 2.0, "s"), extent(1.0, 1.0, "s")
    ('49.6 to 53.0 s', '500 ms to 2.00 s', '1.00 s')
    """
    first, last = spell(low, unit), spell(high, unit)
    number, space, word = first.rpartition(" ")
    if first == last:
        return last
    return f"{number if space and last.endswith(f' {word}') else first} to {last}"
