"""Where the time of a step goes: phases on every rank, in host time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pandas as pd

from probe.analysis import words
from probe.analysis.query import empty, literal

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Columns of :func:`timeline`.
TIMELINE: Final = ("rank", "step", "phase", "role", "kind", "name", "begin_s", "duration_s", "depth")

# Scopes are told twice, by calls and by memory; either recorder may be off.
_SCOPES: Final = """
with called as (
  select rank, step, phase, role, split_part(point, '.', 2) as kind, name, duration_ns,
         wall_ns - duration_ns as begin_ns
  from calls where starts_with(point, 'scope.')
), told as (
  select rank, step, phase, role, kind, name, host_duration_ns as duration_ns,
         wall_ns - host_duration_ns as begin_ns
  from memory where edge = 'leave' and host_duration_ns is not null
), scopes as (
  select * from called union all select * from told where not exists (select 1 from called)
)
"""


def durations(run: Run) -> pd.DataFrame:
    """Host time of each phase in each step.

    Returns:
        step, phase, mean_s and largest_s (over ranks, of the sum of that phase's scopes in the step),
        slowest (the rank of the largest), ranks; by step, longest phase of the run first.
    """
    return run.sql(
        _SCOPES  # noqa: S608  (a user's text is quoted by literal())
        + """
        , per_rank as (
          select step, name as phase, rank, sum(duration_ns) / 1e9 as seconds from scopes
          where kind = 'phase' and step is not null group by all
        )
        select step, phase, avg(seconds) as mean_s, max(seconds) as largest_s,
               arg_max(rank, seconds) as slowest, count(*) as ranks
        from per_rank group by step, phase
        order by step, sum(avg(seconds)) over (partition by phase) desc, phase
        """
    )


def times(run: Run) -> pd.DataFrame:
    """Host time of each step: step, mean_s, largest_s (over ranks), slowest (rank), ranks, begin_ns (wall
    clock)."""
    return run.sql(
        _SCOPES  # noqa: S608  (a user's text is quoted by literal())
        + """
        select step, avg(duration_ns) / 1e9 as mean_s, max(duration_ns) / 1e9 as largest_s,
               arg_max(rank, duration_ns) as slowest, count(distinct rank) as ranks, min(begin_ns) as begin_ns
        from scopes where kind = 'step' and step is not null group by step order by step
        """
    )


def choices(run: Run, limit: int = 24) -> pd.DataFrame:
    """Which steps :func:`timeline` can show: label and step, the slowest first, then evenly over the run."""
    frame = times(run)
    if frame.empty:
        return empty(("label", "step"))
    slowest = frame.nlargest(1, "largest_s")
    others = frame.drop(index=slowest.index)
    chosen = pd.concat([slowest, others.iloc[:: max(1, -(-len(others) // (limit - 1)))]])
    label = [f"step {row['step']} · {row['largest_s']:.3g} s" for row in words.rows(chosen)]
    label[0] += " (slowest)"
    return pd.DataFrame({"label": label, "step": chosen["step"].tolist()})


def timeline(run: Run, step: int | None = None, ranks: int = 64, bars: int = 1500) -> pd.DataFrame:
    """Phases of one step on every rank, on one clock.

    Args:
        step: None takes the slowest. ranks: at most so many, those with the longest step.
        bars: at most so many, the longest; micro-batches go first.

    Returns:
        Columns :data:`TIMELINE`; begin_s counts from the first beginning of the step on any rank; depth 0
        is a phase or a watched function outside one, 1 a micro-batch.
    """
    if step is None:
        found = choices(run, 2)
        if found.empty:
            return empty(TIMELINE)
        step = int(found["step"][0])
    frame = run.sql(
        _SCOPES  # noqa: S608  (a user's text is quoted by literal())
        + f"""
        , here as (select * from scopes where step = {literal(int(step))})
        , chosen as (
          select rank from here group by rank order by max(duration_ns) desc, rank limit {int(ranks)})
        select rank, step, phase, role, kind, name,
               (begin_ns - (select min(begin_ns) from here)) / 1e9 as begin_s,
               duration_ns / 1e9 as duration_s,
               (kind = 'micro_batch')::int as depth
        from here semi join chosen on here.rank = chosen.rank
        where kind in ('phase', 'micro_batch')
           or (kind = 'watch' and phase = name)
        order by depth, duration_ns desc limit {int(bars)}
        """  # noqa: S608  (a user's text is quoted by literal())
    )
    return frame.sort_values(["rank", "depth", "begin_s"], kind="stable").reset_index(drop=True)[list(TIMELINE)]
