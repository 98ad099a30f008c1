"""How long the last answers of a step let all others wait, replica by replica, and how old their weights were."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probe.analysis.long_tail.answer import LongTail
from probe.analysis.long_tail.gathering import gathered

if TYPE_CHECKING:
    from probe.runs.reader import Run

__all__ = ["LongTail", "long_tail"]


def long_tail(run: Run, *, first: int | None = None, last: int | None = None) -> LongTail | None:
    """The rollout's long tail, step by step.

    Args:
        run: The run.
        first: The first step; None begins with the run's.
        last: The last step; None ends with the run's.

    Returns:
        Of each step the tail, its replicas and the staleness of its samples; None where none was recorded.
    """
    steps = gathered(run, first, last)
    return LongTail(steps) if steps else None
