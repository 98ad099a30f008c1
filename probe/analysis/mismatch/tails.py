"""How heavy the tails of the differences are, in words."""

from __future__ import annotations

from typing import Final

#: The tails of arithmetic's noise; see :func:`~probe.analysis.mismatch.patterns.heaviness`.
NOISE_TAILS: Final = 2.0


def times(value: float) -> str:
    """How many times as much, with two digits.

    >>> times(1.234), times(123.4)
    ('1.2', '123')
    """
    return f"{value:.2g}" if value < 99.5 else f"{value:,.0f}"


def heavy(tails: float | None) -> str:
    """Of tails that plain noise doesn't have."""
    return (
        f"Their tails are {times(tails or 0)} times those of plain noise: the two disagree about "
        "some contexts and agree about others, as other weights do."
    )


def light(tails: float | None) -> str:
    """Of the tails of plain noise; "" where they aren't known."""
    return "" if tails is None else f"Their tails are {times(tails)} times those of plain noise."
