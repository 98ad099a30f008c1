"""What probe itself costs, as it measured it during the run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from probe.analysis.quantities import course
from probe.dashboards.quantities import field_of, quantity
from probe.text import missing

if TYPE_CHECKING:
    import pandas as pd

    from probe.runs.reader import Run


def by_step(run: Run) -> pd.DataFrame:
    """Cost of each step across ranks.

    Args:
        run: The run.

    Returns:
        Step, hooks_ms (mean time on the training thread), hooks_ms_largest, writer_cpu_ms (mean, another thread),
        own_cost_ratio (the quantity ``own_cost``: of the worst rank), own_cost_ratio_mean (of the ranks). The first
        step of a process has no ratio.
    """
    frame = run.sql(
        """
        select step,
               avg(value) filter (key = 'probe/cost/hooks_ms') as hooks_ms,
               max(value) filter (key = 'probe/cost/hooks_ms') as hooks_ms_largest,
               avg(value) filter (key = 'probe/cost/writer_cpu_ms') as writer_cpu_ms,
               avg(value) filter (key = 'probe/cost/overhead_ratio') as mean
        from scalars where source = 'probe' and starts_with(key, 'probe/cost/') and step is not null
        group by step order by step
        """
    )
    name, worst = field_of(quantity("own_cost")), course(run, "own_cost")
    mean = frame.pop("mean").astype("Float64").to_numpy(float, na_value=math.nan)
    frame[name] = frame["step"].map(dict(zip(worst.steps, worst.values, strict=True))).astype("float64")
    frame[f"{name}_mean"] = mean
    return frame


def first_step_ms(run: Run) -> float:
    """What probe cost in the first step of a process, the largest of them; NaN where none has ended."""
    found = run.sql("select max(value) as ms from scalars where key = 'probe/cost/first_step_overhead_ms'")["ms"][0]
    return math.nan if missing(found) else float(found)
