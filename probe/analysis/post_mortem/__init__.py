"""The post-mortem: what ended a run, in which order, and what each process held and did then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probe._check import needs_views
from probe.analysis.post_mortem.answer import PostMortem
from probe.analysis.post_mortem.record import Column, DeviceMemory, Event, LastRow, PhaseMemory, Standing

if TYPE_CHECKING:
    from probe.runs.reader import Run

__all__ = ["Column", "DeviceMemory", "Event", "LastRow", "PhaseMemory", "PostMortem", "Standing", "post_mortem"]


def post_mortem(run: Run) -> PostMortem:
    """What ended the attempt of ``run`` that is shown, or its newest.

    Args:
        run: The run, whether it has ended or not.

    Returns:
        A record that a terminal and a notebook show, and ``to_dict()`` gives as JSON has it. Of a run that has ended
        well, or goes on, it says so and has no events.

    Raises:
        MissingDependencyError: A package that reads runs isn't installed.
        RunError: The run can't be read.
    """
    needs_views("the post-mortem of a run")
    from probe.analysis.post_mortem.gathering import gathered  # who shows one needs nothing of what gathers it

    return gathered(run)
