"""What probe itself costs, as it measured it during the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from probe.runs.reader import Run


def by_step(run: Run) -> pd.DataFrame:
    """Cost of each step over ranks.

    Returns:
        Step, hooks_ms (mean time on the training thread), hooks_ms_largest, writer_cpu_ms (mean, another
        thread), overhead_ratio (mean of hooks ÷ step), overhead_ratio_largest.
    """
    return run.sql(
        """
        select step,
               avg(value) filter (key = 'probe/cost/hooks_ms') as hooks_ms,
               max(value) filter (key = 'probe/cost/hooks_ms') as hooks_ms_largest,
               avg(value) filter (key = 'probe/cost/writer_cpu_ms') as writer_cpu_ms,
               avg(value) filter (key = 'probe/cost/overhead_ratio') as overhead_ratio,
               max(value) filter (key = 'probe/cost/overhead_ratio') as overhead_ratio_largest
        from scalars where source = 'probe' and starts_with(key, 'probe/cost/') and step is not null
        group by step order by step
        """
    )
