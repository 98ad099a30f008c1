"""Where the time of the trainer and of each replica of the rollout goes: what is work, and what each side waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probe.analysis.idle.answer import Idle
from probe.analysis.idle.gathering import gathered

if TYPE_CHECKING:
    from probe.runs.reader import Run

__all__ = ["Idle", "idle"]


def idle(run: Run, *, first: int | None = None, last: int | None = None) -> Idle | None:
    """The wall time of the trainer and of each replica, step by step, by what it went for.

    Args:
        run: The run.
        first: The first step; None begins with the run's.
        last: The last step; None ends with the run's.

    Returns:
        Of each step the time of both sides; None where sampling times weren't recorded, or no step is known to
        its end.
    """
    steps = gathered(run, first, last)
    return Idle(steps) if steps else None
