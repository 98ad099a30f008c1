"""What was measured of the batches that are replayed: their time, their peaks, and the time of their steps."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from probe.sql import literal, sql
from probe.text import missing, rows

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: A step, role and phase.
Place = tuple[int | None, str | None, str | None]

#: Ranks wait for each other after each batch, so that a round takes as long as the rank that takes longest. Of an
#: accelerator only what its events measured counts.
_SECONDS: Final = """
with ends as (
  select process, scope_id, coalesce(device_duration_ns, host_duration_ns) / 1e9 as seconds from memory
  where edge = 'leave' and kind = 'micro_batch' and step in ({steps})
    and (device_duration_ns is not null or coalesce(device, '') = '' or starts_with(device, 'cpu'))),
ran as (
  select s.step, s.role, s.phase, s.process, s.batch, sum(ends.seconds) as seconds, count(ends.seconds) as n
  from spans s join ends on ends.process = s.process and ends.scope_id = s.scope
  where s.kind = 'micro_batch' and s.sequences > 0 and s.step in ({steps}) group by all),
numbered as (
  select *, row_number() over (partition by step, role, phase, process order by batch) as round from ran),
took as (
  select step, role, phase, sum(slowest) as seconds, sum(n) as n from (
    select step, role, phase, round, max(seconds) as slowest, sum(n) as n from numbered group by all) group by all),
made as (
  select step, role, phase, count(*) as n from micro_batches
  where step in ({steps}) and sequences > 0 group by all)
select took.step, took.role, took.phase, took.seconds from took join made
on took.step = made.step and took.role is not distinct from made.role and took.phase is not distinct from made.phase
where took.n = made.n"""

_PEAKS: Final = """
select step, role, phase, max(peak) as peak from spans
where kind = 'micro_batch' and peak is not null and peak_kind = 'exact' and step in ({steps}) group by all"""

_STEPS: Final = "select step, step_time_s from steps where step_time_s is not null and step in ({steps})"


@dataclass(frozen=True)
class Happened:
    """What was measured; what isn't known isn't in it.

    Attributes:
        seconds: By step, role and phase: seconds of the micro-batches of the slowest rank of each round. Only where
            every micro-batch ran once and was timed.
        peak_bytes: By step, role and phase: the largest peak of a micro-batch.
        step_s: By step: seconds of the slowest rank.
    """

    seconds: dict[Place, float] = field(default_factory=dict)
    peak_bytes: dict[Place, float] = field(default_factory=dict)
    step_s: dict[int | None, float] = field(default_factory=dict)


def happened(run: Run, steps: Collection[int]) -> Happened:
    """What was measured in these steps.

    Args:
        run: The run.
        steps: Their numbers.
    """
    if not steps or not run.has("memory") or not run.has("micro_batches"):
        return Happened()
    wanted = [literal(int(one)) for one in sorted(steps)]
    seconds, peaks, whole = (list(rows(run.sql(sql(query, steps=wanted)))) for query in (_SECONDS, _PEAKS, _STEPS))
    return Happened(
        {_place(row): float(row["seconds"]) for row in seconds},
        {_place(row): float(row["peak"]) for row in peaks},
        {int(row["step"]): float(row["step_time_s"]) for row in whole},
    )


def _place(row: dict[str, Any]) -> Place:
    role, phase = (None if missing(row[name]) else str(row[name]) for name in ("role", "phase"))
    return int(row["step"]), role, phase
