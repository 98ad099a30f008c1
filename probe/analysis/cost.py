"""What probe itself costs, as it measured it during the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probe.analysis.quantities import courses
from probe.dashboards.quantities import field_of, quantity

if TYPE_CHECKING:
    import pandas as pd

    from probe.runs.reader import Run


def by_step(run: Run) -> pd.DataFrame:
    """Cost of each step across ranks.

    Args:
        run: The run.

    Returns:
        Step, hooks_ms (mean time on the training thread), hooks_ms_largest, writer_cpu_ms (mean, another thread),
        own_cost_ratio (the quantity ``own_cost``: of the worst rank), own_cost_ratio_mean (of the ranks).
    """
    frame = run.sql(
        """
        select step,
               avg(value) filter (key = 'probe/cost/hooks_ms') as hooks_ms,
               max(value) filter (key = 'probe/cost/hooks_ms') as hooks_ms_largest,
               avg(value) filter (key = 'probe/cost/writer_cpu_ms') as writer_cpu_ms
        from scalars where source = 'probe' and starts_with(key, 'probe/cost/') and step is not null
        group by step order by step
        """
    )
    worst = quantity("own_cost")
    name = field_of(worst)
    found = courses(run, [worst, {**worst, "reduce": "mean"}])
    for column, course in zip((name, f"{name}_mean"), found, strict=True):
        frame[column] = frame["step"].map(dict(zip(course.steps, course.values, strict=True))).astype("float64")
    return frame
