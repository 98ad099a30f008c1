"""Where the memory peaks are: over time, by phase, by micro-batch.

Every scope that ends reports the largest value between its ends, its children's included. The scope that
*made* a peak is therefore the innermost one that has it: no scope inside it has as large a peak. Those are
the "owners" here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd

from probe.analysis.query import POINTS, bucket, empty, extent, literal, started_ns
from probe.runs import views
from probe.sql import Sql, sql

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Columns of :func:`timeline`.
TIMELINE: Final = (
    "series",
    "begin_s",
    "end_s",
    "value_bytes",
    "rank",
    "who",
    "step",
    "role",
    "phase",
    "micro_batch",
    "kind",
    "name",
    "peak_kind",
    "top",
    "source",
    "device_total_bytes",
)

#: What is known of the device of each process. What a device holds is only sampled.
_DEVICES: Final = Sql("""
  select process, max(device_total_bytes) as device_total_bytes, max(non_torch_bytes) as non_torch_bytes,
         max(non_torch_bytes + coalesce(other_processes_bytes, 0)) as others_bytes
  from memory group by process""")

#: By this rows are grouped by rank, and by process those that have none.
_EACH: Final = Sql("rank, if(rank is null, process, null)")


def _owners(where: Sql) -> Sql:
    """Common table expressions that end in ``owners``: who made a peak (the view ``peaks_made``), of the rows of memory
    under ``where``, under the names of the rows.
    """
    made = views.query("peaks_made", {"memory": sql("(select * from memory where {where})", where=where)})
    return sql(
        """
with devices as ({devices}),
owners as materialized (
  select rank, process, who(rank, process) as who, step, role, phase, micro_batch, kind, name, source, peak_kind,
         end_ns as wall_ns, begin_ns,
         end_ns - begin_ns as duration_ns, peak as peak_allocated_bytes, reserved_peak as peak_reserved_bytes
  from ({made}))
""",
        devices=_DEVICES,
        made=Sql(made),
    )


def largest(run: Run) -> pd.DataFrame:
    """The first row of :func:`peaks`, the largest of all; no row where there is none.

    It looks only at scopes as high as the largest, so at few rows, whatever the size of the run.

    Args:
        run: The run.

    Returns:
        Columns of :func:`peaks`.
    """
    high = run.sql("select max(peak) as height from peaks_counted")["height"][0]
    return peaks(run, "false" if pd.isna(high) else f"peak_allocated_bytes >= {int(high)}").head(1)


def _with_headroom(frame: pd.DataFrame) -> pd.DataFrame:
    held = frame["peak_reserved_bytes"].fillna(frame["peak_allocated_bytes"])
    others = frame.pop("others_bytes").fillna(0)
    frame["headroom_ratio"] = 1 - (held + others) / frame["device_total_bytes"]
    return frame


def peaks(run: Run, where: str = "true") -> pd.DataFrame:
    """The largest peak of each role and the scope that made it, largest first.

    Args:
        run: The run.
        where: An SQL condition on the rows of memory.

    Returns:
        One row a role: role (None outside any), phase, micro_batch, step, rank, process, who, kind, name,
        peak_allocated_bytes, peak_reserved_bytes, peak_kind, device_total_bytes, non_torch_bytes (the most
        that was seen on that rank), headroom_ratio (share of the device that was left: what is reserved, or
        else allocated, and what isn't torch's are taken off), source, wall_ns.
    """
    frame = run.sql(
        sql(
            """{owners}
        , heights as (select role, max(peak_allocated_bytes) as height from owners group by role)
        , best as (
          select owners.* from owners semi join heights
            on owners.role is not distinct from heights.role and peak_allocated_bytes = height
          qualify row_number() over (partition by owners.role order by duration_ns, wall_ns, rank) = 1)
        select best.*, device_total_bytes, non_torch_bytes, others_bytes from best join devices using (process)
        order by peak_allocated_bytes desc, role
        """,
            owners=_owners(Sql(where)),
        )
    )
    return _with_headroom(frame)


def by_phase(run: Run) -> pd.DataFrame:
    """The peak of each phase: the largest with its place, and the smallest that any rank had as its largest.

    Returns:
        Role, phase, peak_allocated_bytes, least_rank_bytes, ranks, rank, who, step, micro_batch, name,
        peak_kind, source, device_total_bytes; largest first. A phase's value is that of its owners, so a
        step's own code outside any phase has a row with phase None.
    """
    return run.sql(
        sql(
            """{owners}
        , per_rank as (select role, phase, rank, max(peak_allocated_bytes) as peak from owners
                       group by role, phase, {each})
        , spread as materialized (
          select role, phase, max(peak) as height, coalesce(min(peak) filter (rank is not null), min(peak))
                 as least_rank_bytes, count(rank) as ranks
          from per_rank group by role, phase)
        , best as (
          select owners.*, least_rank_bytes, ranks from owners join spread
            on owners.role is not distinct from spread.role and owners.phase is not distinct from spread.phase
           and peak_allocated_bytes = height
          qualify row_number() over (
            partition by owners.role, owners.phase order by duration_ns, wall_ns, rank) = 1)
        select role, phase, peak_allocated_bytes, least_rank_bytes, ranks, rank, who, step, micro_batch, name,
               peak_kind, source, device_total_bytes
        from best join devices using (process)
        order by peak_allocated_bytes desc, role, phase
        """,
            owners=_owners(Sql("true")),
            each=_EACH,
        )
    )


def by_tokens(run: Run, points: int = POINTS, rank: int | str | None = None) -> pd.DataFrame:
    """Peak memory of each micro-batch beside its tokens: what one more token costs.

    Which batch a micro-batch was of is told by the view ``spans``; those of which it can't be
    told are left out. Beyond ``points`` rows the largest peaks are kept and the rest are thinned evenly. ``rank``
    takes only that rank's, or those of a process without a rank by its name.

    Returns:
        Rank, who, step, role, phase, micro_batch, tokens, sequences, longest, peak_allocated_bytes, source.
    """
    where = Sql("true") if rank is None else _written_by(rank)
    narrowed = {
        name: sql("(select * from {name} where {where})", name=Sql(name), where=where) for name in views.SOURCES
    }
    sources = {} if rank is None else narrowed
    frame = run.sql(
        sql(
            """
        select rank, who(rank, process) as who, step, role, phase, micro_batch, tokens, sequences, longest,
               peak as peak_allocated_bytes, source
        from ({spans})
        where tokens > 0 and peak is not null
        order by peak desc, rank, step, phase, micro_batch, begin_ns
        """,
            spans=Sql(views.query("spans", sources)),
        )
    )
    if len(frame) <= points:
        return frame
    kept = np.unique(np.concatenate([np.arange(points // 4), np.linspace(0, len(frame) - 1, points * 3 // 4)]))
    return frame.iloc[kept.astype(int)].reset_index(drop=True)


def timeline(run: Run, rank: int | str | None = None, points: int = 800) -> pd.DataFrame:
    """Memory of one rank over time, or of one process without a rank.

    Args:
        run: The run to read.
        rank: Its number, or the process's name; None takes the one that made the largest peak.
        points: At most so many scopes of a role, and so many values of a line; peaks are kept.

    Returns:
        Columns :data:`TIMELINE`; ``series`` is "peak" (a scope that made its own peak, from begin_s to
        end_s; top marks the largest of its role), or "allocated", "reserved", "device_used" (a value at
        begin_s). Seconds since the run began.
    """
    if rank is None:
        found = ranks(run)
        if found.empty:
            return empty(TIMELINE)
        rank = found["rank"][0]
    frame = pd.concat([_scopes(run, rank, points), *_lines(run, rank, points)], ignore_index=True)
    start = started_ns(run)
    for name in ("begin", "end"):
        frame[f"{name}_s"] = (frame.pop(f"{name}_ns") - start) / 1e9
    return frame[list(TIMELINE)]


def ranks(run: Run) -> pd.DataFrame:
    """Choices for :func:`timeline`: label and rank (a number, or the name of a process without one), the ones with the
    largest peaks first (at most 16).
    """
    frame = run.sql(
        sql(
            """select rank, who(rank, any_value(process)) as who,
               max(coalesce(peak_allocated_bytes, allocated_bytes)) as most
        from memory group by {each} having most is not null order by most desc, rank, who limit 16""",
            each=_EACH,
        )
    )
    label = list(frame["who"])
    if label:
        label[0] += " (largest peak)"
    known = [name if pd.isna(rank) else int(rank) for rank, name in zip(frame["rank"], frame["who"], strict=True)]
    return pd.DataFrame({"label": label, "rank": pd.Series(known, dtype=object)})


def _written_by(rank: int | str) -> Sql:
    """The SQL condition for the rows of a rank, or of a process without one by its name."""
    if isinstance(rank, str):
        return sql("(rank is null and who(rank, process) = {rank})", rank=literal(rank))
    return sql("rank = {rank}", rank=int(rank))


def _scopes(run: Run, rank: int | str, points: int) -> pd.DataFrame:
    where = _written_by(rank)
    _, begin, end = extent(run, "memory", where)
    frame = run.sql(
        sql(
            """{owners}
        select 'peak' as series, min(begin_ns) as begin_ns, max(wall_ns) as end_ns,
               max(peak_allocated_bytes) as value_bytes, rank, any_value(who) as who, role,
               arg_max(step, peak_allocated_bytes) as step, arg_max(phase, peak_allocated_bytes) as phase,
               arg_max(micro_batch, peak_allocated_bytes) as micro_batch,
               arg_max(kind, peak_allocated_bytes) as kind, arg_max(name, peak_allocated_bytes) as name,
               arg_max(peak_kind, peak_allocated_bytes) as peak_kind, any_value(source) as source,
               (select max(device_total_bytes) from memory where {where}) as device_total_bytes
        from (select *, count(*) over (partition by role) as of, row_number() over (order by wall_ns) as nth
              from owners)
        group by rank, role,
                 case when of <= {points} then nth else -1 - {bucket} end
        order by begin_ns
        """,
            owners=_owners(where),
            where=where,
            points=points,
            bucket=bucket("wall_ns", begin, end, points),
        )
    )
    frame["top"] = False
    if not frame.empty:
        frame.loc[frame.groupby("role", dropna=False)["value_bytes"].idxmax(), "top"] = True
    return frame


def _lines(run: Run, rank: int | str, points: int) -> list[pd.DataFrame]:
    return [_line(run, rank, name, points) for name in ("allocated", "reserved", "device_used")]


def _line(run: Run, rank: int | str, name: str, points: int) -> pd.DataFrame:
    column = Sql(f"{name}_bytes")
    where = sql("{written_by} and {column} is not null", written_by=_written_by(rank), column=column)
    if name == "device_used":
        where = sql("{where} and source <> 'process_rss'", where=where)  # there it is the whole machine's
    _, begin, end = extent(run, "memory", where)
    # Of each time slice the smallest and the largest value, in the order they came: a peak is never thinned
    # away.
    frame = run.sql(
        sql(
            """
        select distinct wall_ns as begin_ns, wall_ns as end_ns, {column} as value_bytes, source,
               device_total_bytes
        from (select *, {bucket} as slice from memory
              where {where})
        qualify row_number() over (partition by slice order by {column}, wall_ns) = 1
             or row_number() over (partition by slice order by {column} desc, wall_ns) = 1
        order by begin_ns
        """,
            column=column,
            bucket=bucket("wall_ns", begin, end, max(points // 2, 1)),
            where=where,
        )
    )
    places = dict.fromkeys(("role", "phase", "kind", "name", "peak_kind"))
    shown = {"rank": np.nan, "who": rank} if isinstance(rank, str) else {"rank": rank, "who": f"rank {rank}"}
    return frame.assign(series=name, **shown, step=np.nan, micro_batch=np.nan, top=False, **places)
