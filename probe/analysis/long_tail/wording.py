"""A replica's answers and its long tail in words, as the tables of a step say them."""

from __future__ import annotations

from probe import text as words
from probe.analysis.long_tail.tail import Step


def cells(step: Step, at: int) -> tuple[str, ...]:
    """What is said of one replica in a table, in words.

    Args:
        step: The step.
        at: The replica's place.
    """
    one = step.replicas[at]
    times = [_told_seconds(value) for value in (one.median_ns, one.ninth_decile_ns, one.longest_ns)]
    return (one.name, words.count(one.samples), *times, words.count(one.late), _told_seconds(one.idle_ns))


def _told_seconds(value: int | None) -> str:
    return words.seconds(None if value is None else value / 1e9)
