"""The verdict: what is wrong in a run, where, since when, what it costs, and the one change to make."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probe._check import needs_views
from probe.analysis.change import Change
from probe.analysis.verdict.finding import Cost, Finding, Findings, Since, Where

if TYPE_CHECKING:
    from probe.runs.reader import Run

__all__ = ["Change", "Cost", "Finding", "Findings", "Since", "Where", "findings"]


def findings(run: Run) -> Findings:
    """Everything that was found in ``run``: alarms first, then what is worth a change, then what is in order.

    Args:
        run: The run.

    Returns:
        A sequence of :class:`~probe.analysis.verdict.finding.Finding`, which a notebook shows as a list of whole
        sentences and whose ``to_frame()`` is a pandas frame. Empty only for a run without rows.

    Raises:
        MissingDependencyError: A package that reads runs isn't installed.
    """
    needs_views("looking for what is wrong in a run")
    from probe.analysis.verdict import kept

    known = kept.find(run)
    if known is not None:
        return known
    from probe.analysis.verdict.verdict import found  # who shows findings needs nothing of what looks for them

    return found(run)
