"""A run as a Perfetto trace, for https://ui.perfetto.dev (which opens the file in the browser and sends it nowhere).

Each rank, and each process without one, is a process. Its steps, phases, watches, micro-batches and observed
functions are nested slices; memory and tokens are counters; incidents are instants. All ranks stand on one timeline,
the wall clock of their hosts: it is as exact as those clocks agree.

=====================  ==============================================================================================
in the trace           from
=====================  ==============================================================================================
slice                  a row of ``calls``. Selected, it shows the row's numbers, the scope's peak memory and, for a
                       micro-batch, its tokens. Categories: step, phase, watch, micro_batch, scope, function
slice "(unfinished)"   a scope that a process was in when it wrote its last row: killed, or still running
counter, bytes         a row of ``memory``: allocated, reserved, device used, process memory
counter, tokens        tokens of the micro-batch that is running (0 between them), and of each batch that was cut
instant                a row of ``incidents``
=====================  ==============================================================================================

Which batch a micro-batch was of is told by the view ``batches_run``, as everywhere; where it can't be
told, the slice has no tokens. A category is the kind of a scope: what counts as a phase of a step is for figures.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from probe._io import expanded
from probe.exporting.source import Source, opened_for, written
from probe.exporting.trace_writer import TraceWriter
from probe.runs import views
from probe.sql import Sql, joined, sql

_PROCESSES: Final = """
select rank, count(*) as processes, arg_max(host, wall_ns) as host, arg_max(device, wall_ns) as device,
       string_agg(distinct pid::varchar, ', ' order by pid::varchar) as pids
from processes group by rank order by rank
"""

# A row's own wall clock less its monotonic one is that of the process: it tells a resumed rank's processes apart. The
# cap and the sequences of a micro-batch are known only where its batch is.
_SLICES: Final = """
with batch_of as (
  with told as materialized ({nested}), paired as ({run}), caps as (
    select process, batch_id, micro_batch, any_value(cap_tokens) as cap_tokens from micro_batches
    where micro_batch is not null group by all
  )
  select process, scope_id, any_value(tokens) as tokens,
         any_value(if(batch_id is null, null, sequences)) as sequences, any_value(cap_tokens) as cap_tokens
  from paired join told using (process, scope_id)
              left join caps using (process, batch_id, micro_batch)
  group by all having count(*) = 1
), leaves as (
  select rank, scope_id, time_ns, max(peak_allocated_bytes) as peak_allocated_bytes,
         any_value(peak_kind) as peak_kind, max(device_duration_ns) as device_duration_ns
  from memory where edge = 'leave' group by rank, scope_id, time_ns
), timed as (
  select *, greatest(wall_ns - time_ns + if(begin_ns > 0, begin_ns, time_ns - duration_ns), 0) as begin
  from calls where wall_ns >= 0
), seen as (
  select rank, anchor, max(wall_ns) as wall_ns from (
    select rank, wall_ns - time_ns as anchor, wall_ns from memory
    union all select rank, wall_ns - time_ns, wall_ns from calls
  ) group by rank, anchor
), ends as (
  select rank, process, wall_ns - time_ns as anchor, scope_id, time_ns, wall_ns, edge, kind, name, scope, step, role,
         phase, micro_batch, line
  from memory where edge in ('enter', 'leave') and wall_ns >= 0 and scope_id > 0
), latest as (
  select rank, anchor, arg_max(scope, (time_ns, line)) as scope from ends group by rank, anchor
), unfinished as (
  select distinct on (ends.rank, ends.anchor, ends.scope_id) ends.*, seen.wall_ns as seen_ns
  from ends join latest on ends.rank = latest.rank and ends.anchor = latest.anchor
            join seen on ends.rank = seen.rank and ends.anchor = seen.anchor
  where edge = 'enter' and starts_with(latest.scope || '/', ends.scope || '/') and not exists (
    select 1 from ends other where other.edge = 'leave' and other.rank = ends.rank
      and other.anchor = ends.anchor and other.scope_id = ends.scope_id)
), slices as (
  select timed.rank, process, begin, begin + greatest(duration_ns, 0) as "end",
         if(starts_with(point, 'scope.'), point[7:], 'function') as category, name, point, timed.scope_id,
         timed.time_ns, step, role, phase, micro_batch, rows_in, rows_out, bytes_in, bytes_out, error,
         peak_allocated_bytes, peak_kind, device_duration_ns, false as unfinished
  from timed
  left join leaves on starts_with(point, 'scope.') and timed.rank = leaves.rank
    and timed.scope_id = leaves.scope_id and timed.time_ns = leaves.time_ns
  union all by name
  select rank, process, wall_ns as begin, greatest(seen_ns, wall_ns) as "end", kind as category, name,
         'scope.' || kind as point, scope_id, time_ns, step, role, phase, micro_batch, true as unfinished
  from unfinished
)
select slices.* exclude (process), tokens, sequences, cap_tokens
from slices left join batch_of on point = 'scope.micro_batch' and slices.process = batch_of.process
  and slices.scope_id = batch_of.scope_id
order by slices.rank, begin, "end" desc, category = 'function', slices.scope_id, time_ns desc
"""

_MEMORY: Final = """
select rank, wall_ns, device, source, allocated_bytes, reserved_bytes, device_used_bytes,
       if(source = 'process_rss', null, process_rss_bytes) as process_rss_bytes
from memory where wall_ns >= 0
"""

_BATCHES: Final = """
select rank, min(wall_ns) as wall_ns, sum(tokens)::bigint as tokens
from micro_batches where wall_ns >= 0 group by rank, batch_id, wall_ns - time_ns order by rank, wall_ns, batch_id
"""

_INCIDENTS: Final = """
select rank, wall_ns, kind, "where", message, count, step, switched_off, traceback
from incidents where wall_ns >= 0
"""

_UNPLACED: Final = joined(
    (
        sql("select count(*) as rows from {table} where coalesce(wall_ns, -1) < 0", table=Sql(table))
        for table in ("calls", "memory", "micro_batches", "incidents")
    ),
    " union all ",
)


@dataclass(frozen=True)
class Trace:
    """What was written: of how many ranks and other processes, and how many slices, counter values and instants.

    Attributes:
        unplaced: Rows that have no wall-clock time, as their process never told one, and are left out.
    """

    path: str
    ranks: int
    slices: int
    counters: int
    instants: int
    unplaced: int
    bytes: int


def export_perfetto(run: str | os.PathLike[str], path: str | os.PathLike[str], attempt: int | None = None) -> Trace:
    """Write the run to ``path`` in Perfetto's own format (protocol buffers, ``TracePacket``).

    The run is streamed: what is held is some batches of rows, and DuckDB's sort of at most a gigabyte, which goes
    through a temporary directory beyond that.

    Args:
        run: A run directory or an ``fsspec`` URL of one.
        path: The file, which appears when it is complete; with the ending ``.gz`` it is compressed, which Perfetto
            opens as well.
        attempt: The attempt that is written, alone and whole; None is what the newest has not hidden of each.

    Raises:
        RunNotFoundError: The run can't be read.
        RunError: The run can't be read. The file can't be written.
        SchemaVersionError: The run can't be read.
        InputError: The path is a directory. There is no such attempt.
    """
    target = expanded("path", path).absolute()
    with Source(run, attempt, numbered=True) as source:
        return written(source, partial(_export, source, target))


def _export(source: Source, target: Path) -> Trace:
    with opened_for(target) as file:
        writer = TraceWriter(file.write, source.info.wall_ns, source.names)
        for batch in source.ask(_PROCESSES):
            for row in batch.to_pylist():
                writer.process(row["rank"], f": {row['host']}, {row['device']}, pid {row['pids']}")
        for batch in source.ask(_slices()):
            writer.add_slices(batch)
        writer.end_slices()
        for query, add in (
            (_MEMORY, writer.add_memory),
            (_BATCHES, writer.add_batches),
            (_INCIDENTS, writer.add_incidents),
        ):
            for batch in source.ask(query):
                add(batch)
        unplaced = sum(sum(batch["rows"].to_pylist()) for batch in source.ask(_UNPLACED))
    size = target.stat().st_size
    return Trace(str(target), len(writer.ranks), writer.slices, writer.counters, writer.instants, unplaced, size)


def _slices() -> str:
    """The query of the slices, outermost first."""
    run = views.query("batches_run", {"scopes_nested": "told"})
    return _SLICES.format(nested=views.query("scopes_nested"), run=run)
