"""Which share of a step's time a phase takes: what an imbalance in it costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pandas as pd

from probe.text import missing

if TYPE_CHECKING:
    from probe.runs.reader import Run


def of_phases(run: Run) -> Mapping[str | None, tuple[float, float]]:
    """The median seconds of each phase in a step on its slowest rank, and the share of the step's that this is.

    The first step of a run isn't counted, where there are others: it pays for what is done once.

    Args:
        run: The run.

    Returns:
        Seconds and share by phase. A phase whose time isn't known is missing.
    """
    frame = run.sql(
        """
        with per as (
          select step, phase, process, sum(duration) as seconds from scopes
          where kind in ('phase', 'watch') and step is not null and phase is not null group by all),
        most as (select step, phase, max(seconds) as seconds from per group by all),
        told as (select most.*, steps.step_time_s from most join steps using (step)
                 where step_time_s > 0 and step > (select min(step) from steps)
                    or (select count(*) from steps) = 1)
        select phase, median(seconds) as seconds, median(least(seconds / step_time_s, 1)) as share
        from told group by phase
        """
    )
    return {
        None if missing(row.phase) else str(row.phase): (float(row.seconds), float(row.share))
        for row in frame.itertuples()
        if pd.notna(row.seconds)
    }
