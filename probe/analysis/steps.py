"""Where the time of a step goes: phases on every rank, in host time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import pandas as pd

from probe import text as words
from probe.analysis.query import empty
from probe.dashboards import frames, panel
from probe.dashboards.compile import series as series_query
from probe.dashboards.quantities import quantity
from probe.runs import views
from probe.sql import Sql, sql

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Columns of :func:`timeline`.
TIMELINE: Final = ("rank", "who", "step", "phase", "role", "kind", "name", "begin_s", "duration_s", "depth")


def durations(run: Run) -> pd.DataFrame:
    """Host time of each phase in each step, as the panel ``phase_durations`` defines it: no time is in two.

    Args:
        run: The run.

    Returns:
        Step, phase, mean_s and largest_s (across the ranks and other processes that have the phase, of the sum of its
        scopes in the step), slowest (who has the largest), processes; by step, longest phase of the run first.
    """
    live = panel("phase_durations").live or {}
    of_rank = frames.series(run, {**live, "by": ["phase", "who"], "each": None, "reduce": "sum"})
    frame = _compared(of_rank, ["step", "phase"])
    whole = frame.groupby("phase", dropna=False)["mean_s"].transform("sum")
    order = frame.assign(whole=-whole).sort_values(["step", "whole", "phase"], kind="stable")
    return order.drop(columns="whole").reset_index(drop=True)


def times(run: Run) -> pd.DataFrame:
    """Host time of each step: the quantity ``step_time`` of each rank, or process without one.

    Args:
        run: The run.

    Returns:
        Step, mean_s, largest_s, slowest (who has the largest), processes; by step.
    """
    return _compared(frames.series(run, {**quantity("step_time"), "by": "who"}), ["step"])


def _compared(frame: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """The value of each as mean_s, largest_s, slowest and processes; of equal ones the lowest rank is the slowest."""
    known = frame.dropna(subset=["step", "value"]).sort_values("who", kind="stable", key=_numbered)
    groups = known.groupby(keys, dropna=False, sort=True)["value"]
    found = groups.agg(["mean", "max", "idxmax", "count"]).reset_index()
    found.columns = pd.Index([*keys, "mean_s", "largest_s", "slowest", "processes"])
    found["slowest"] = known["who"].reindex(found["slowest"]).to_numpy()
    return found


def _numbered(names: pd.Series) -> pd.Series:
    """The place of each text in an order in which "rank 2" comes before "rank 10"."""
    places = {name: place for place, name in enumerate(sorted(names.unique().tolist(), key=words.in_order))}
    return names.map(places)


def on_padding(run: Run) -> pd.DataFrame:
    """An estimate of the time that padding costs: that of each micro-batch × the share of its slots that is padding.

    It takes time to be proportional to token slots, which holds for a model that computes on the padded rectangle; one
    that packs its rows first spends none on padding. Only micro-batches count of which it is known which batch they
    are of, and how wide its rectangle is.

    Args:
        run: The run.

    Returns:
        Step, phase, padding_s (the series of the panel ``padding_time``) and time_s (mean across processes, of the sums
        over those micro-batches), ratio (padding_s ÷ time_s), micro_batches (how many the numbers are from), left_out
        (others that ran); by step and phase.
    """
    timed = views.query("micro_batches_timed")
    series = series_query(panel("padding_time").live or {}).replace(f"({timed})", "timed")
    found = run.sql(
        sql(
            """
        with timed as materialized ({timed}),
        per_process as (
          select step, phase, process, sum(end_ns - begin_ns) filter (tokens / nullif(slots, 0) is not null) as ns,
                 count(tokens / nullif(slots, 0)) as known, count(*) as every
          from timed where end_ns is not null and step is not null group by all),
        around as (
          select step, phase, avg(ns) / 1e9 as time_s, sum(known)::bigint as micro_batches,
                 sum(every - known)::bigint as left_out
          from per_process group by step, phase)
        select around.step, around.phase, p.value as padding_s, time_s, micro_batches, left_out
        from ({series}) p join around on p.step = around.step and p.phase is not distinct from around.phase
        order by around.step, around.phase nulls last
        """,
            timed=Sql(timed),
            series=Sql(series),
        )
    )
    found["padding_s"] = found["padding_s"].astype("Float64").to_numpy(float, na_value=math.nan)
    found.insert(4, "ratio", found["padding_s"] / found["time_s"].where(found["time_s"] > 0))
    return found


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
    """Phases of one step on every rank, and on every process without one, on one clock.

    Args:
        run: The run to read.
        step: None takes the slowest.
        ranks: At most so many, those with the longest step.
        bars: At most so many, the longest; micro-batches go first.

    Returns:
        Columns :data:`TIMELINE`; begin_s counts from the first beginning of the step on any rank; depth 0
        is a phase, 1 a micro-batch.
    """
    if step is None:
        found = choices(run, 2)
        if found.empty:
            return empty(TIMELINE)
        step = int(found["step"][0])
    # What lies around a scope of the step is of the step, or of none.
    memory = sql("(select * from memory where step = {step} or step is null)", step=int(step))
    frame = run.sql(
        sql(
            """
        with here as materialized (
          select *, end_ns - begin_ns as duration_ns from ({spans})
          where step = {step} and end_ns is not null),
        chosen as (
          select process from here group by process order by max(duration_ns) desc, min(rank), process
          limit {ranks})
        select rank, who(rank, process) as who, step, phase, role, kind, name,
               (begin_ns - (select min(begin_ns) from here)) / 1e9 as begin_s,
               duration_ns / 1e9 as duration_s,
               (level = 'micro_batch')::int as depth
        from here semi join chosen using (process)
        where level in ('phase', 'micro_batch')
        order by depth, duration_ns desc limit {bars}
        """,
            spans=Sql(views.query("spans", {"memory": memory})),
            step=int(step),
            ranks=int(ranks),
            bars=int(bars),
        )
    )
    return frame.sort_values(["rank", "who", "depth", "begin_s"], kind="stable").reset_index(drop=True)[list(TIMELINE)]
