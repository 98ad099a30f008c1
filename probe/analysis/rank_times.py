"""When each rank began and left each phase, and what it worked in between: arrays of (steps, ranks), on one clock.

Each process has a clock of its own, of which one moment is known by the wall clock. Wall clocks of machines differ. So
the ends of the phase that all ranks leave together, since they wait for each other in it, tell how far the clocks are
apart; how far these ends are apart after that is the error that remains. No collective is needed for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from probe.analysis.grid import Grid, grid
from probe.runs import views
from probe.sql import Sql, identifier, sql

Array = NDArray[np.float64]

#: Steps after which clocks are compared anew: they don't run at one pace.
PACE_STEPS: Final = 64

#: Steps whose ends must be known before clocks are compared.
FEWEST: Final = 3

#: Ends that lie apart by more than this share of the phase aren't those of ranks that wait for each other.
TOGETHER: Final = 0.2

#: Phases say about as well how far clocks are apart up to this factor between their errors, and that many seconds.
NEAR: Final = 10.0
NEAR_S: Final = 0.002


@dataclass(frozen=True)
class RankTimes:
    """One phase on all ranks. Arrays but the first two have the shape (steps, ranks), with NaN where nothing is known.

    Attributes:
        steps: Numbers of the steps, rising.
        ranks: The ranks, rising.
        begin: When the phase began, seconds since a moment that is the same for all phases.
        end: When it ended.
        busy: How long its scopes took together, seconds.
        first: When its first micro-batch began.
        last: When its last micro-batch ended.
        ran: How long its micro-batches took together, seconds.
        device: Time of the device in its micro-batches, seconds.
        batches: How many micro-batches ran.
        cuts: Of how many batches these were, such as mini-batches; NaN where that isn't known.
        tokens: Of its micro-batches.
    """

    steps: Array
    ranks: NDArray[np.int64]
    begin: Array
    end: Array
    busy: Array
    first: Array
    last: Array
    ran: Array
    device: Array
    batches: Array
    cuts: Array
    tokens: Array


@dataclass(frozen=True)
class Clocks:
    """How far the clocks of ranks are apart.

    Attributes:
        offsets: Seconds that each rank's clock is ahead of the middle one, of the shape (steps, ranks), by the steps of
            the phase that tells; empty where nothing tells.
        steps: These steps.
        error_s: What the ends of that phase still differ by in nine of ten, seconds; None where no phase tells.
        phase: That all ranks leave together; None where there is none.
    """

    offsets: Array
    steps: Array
    error_s: float | None
    phase: str | None


#: What :func:`query` tells of each rank.
LISTS: Final = ("begin", "end", "busy", "first", "last", "ran", "device", "batches", "cuts", "tokens")


def query(first: int, last: int) -> str:
    """The query for the times of each phase: a row for each phase of a step, whatever the number of ranks.

    Args:
        first: Of the steps.
        last: Of the steps.

    Returns:
        SQL for columns step, phase, ranks (list, rising) and lists of the same length: begin, end, first and last
        (nanoseconds of the wall clock, by the process's anchor), busy and device (seconds), batches and tokens. By
        step, and in it by begin. Processes without a rank are none of those that wait.
    """
    where = sql("where step between {first} and {last} and rank is not null", first=int(first), last=int(last))
    scopes = views.query(
        "scopes",
        {
            "memory": sql("(select * from memory {where})", where=where),
            "scope_calls": sql("(select * from scope_calls {where})", where=where),
        },
    )
    return sql(
        """
with told as materialized (select * from ({scopes}) where phase is not null),
devices as (
  select step, phase, rank, sum(device_duration_ns) / 1e9 as device from memory
  {where} and phase is not null and edge = 'leave' and kind = 'micro_batch' group by step, phase, rank),
phases as (
  select step, phase, rank, min(begin_ns) as "begin", max(end_ns) as "end",
         coalesce(sum(duration) filter (kind <> 'micro_batch' and name = phase), max(end_ns) - min(begin_ns)) as busy,
         min(begin_ns) filter (kind = 'micro_batch') as first, max(end_ns) filter (kind = 'micro_batch') as last,
         nullif(count(*) filter (kind = 'micro_batch'), 0) as batches,
         sum(duration) filter (kind = 'micro_batch') as ran
  from told group by step, phase, rank),
cut as (
  select step, phase, rank, sum(tokens)::bigint as tokens, count(distinct batch_id) as cuts
  from micro_batches {where} group by step, phase, rank),
whole as (select step, rank, tokens from cut where phase is null)
select step, phase, list(rank order by rank) as ranks,
       {lists},
       list(coalesce(cut.tokens, if(batches is null, null, whole.tokens)) order by rank) as tokens
from phases left join devices using (step, phase, rank)
     left join cut using (step, phase, rank) left join whole using (step, rank)
group by step, phase order by step, min("begin")""",
        scopes=Sql(scopes),
        where=where,
        lists=[
            sql("list({name} order by rank) as {name}", name=identifier(name)) for name in LISTS if name != "tokens"
        ],
    )


def of_rows(columns: Mapping[str, Any]) -> dict[str, RankTimes]:
    """The arrays of each phase, from the columns of :func:`query`.

    Args:
        columns: By name, such as a frame: sequences of the same length, those of ranks and times of arrays.

    Returns:
        By phase, in the order in which phases begin.
    """
    return of_grid(grid(columns, "ranks", LISTS))


def of_grid(told: Grid) -> dict[str, RankTimes]:
    """As :func:`of_rows`, from the same columns as a grid. Nanoseconds since 1970 lose less than a microsecond."""
    names = told.columns["phase"]
    if not len(names):
        return {}
    base = float(np.nanmin(told.values["begin"]))
    ranks, steps, found = np.array(told.keys, dtype=np.int64), told.steps.astype(np.float64), {}
    for phase in dict.fromkeys(names.tolist()):
        own = _rows(names == phase)
        tables = {name: told.values[name][own] for name in LISTS}
        times = {name: (tables[name] - base) / 1e9 for name in ("begin", "end", "first", "last")}
        found[phase] = RankTimes(steps[own], ranks, **{**tables, **times})
    return found


def _rows(chosen: NDArray[np.bool_]) -> Any:
    """What takes these rows out of an array: a slice where they stand equally far apart, which is faster."""
    at = np.flatnonzero(chosen)
    apart = int(at[1] - at[0]) if len(at) > 1 else 1
    if len(at) and (np.diff(at) == apart).all():
        return slice(int(at[0]), int(at[-1]) + 1, apart)
    return at


def clocks(phases: Mapping[str, RankTimes]) -> Clocks:
    """How far clocks are apart, by the phase whose ends say it best.

    Args:
        phases: Of :func:`of_rows`.

    Returns:
        The offsets of the phase whose ends differ least from step to step. A phase that takes one rank longer by the
        same time in each step looks the same as one that all leave together, by another clock. So of phases that say it
        about as well one counts more whose micro-batches tell when a rank began to wait, and then one by which the wall
        clocks are right.
    """
    found: list[tuple[Clocks, bool]] = []
    for phase, times in phases.items():
        known = np.isfinite(times.end).sum(1) > 1
        if known.sum() < FEWEST:
            continue
        apart = times.end[known] - middle(times.end[known], 1)[:, None]
        offsets = _paced(apart)
        error = float(np.nanquantile(np.abs(apart - offsets), 0.9))
        if error <= TOGETHER * float(np.nanmedian(times.end[known] - times.begin[known])):
            own = bool(np.isfinite(times.last).mean() > 0.9)
            found.append((Clocks(offsets, times.steps[known], error, phase), own))
    if not found:
        return Clocks(np.empty((0, 0)), np.empty(0), None, None)
    least = min(clock.error_s or 0.0 for clock, _ in found)
    close = [(clock, own) for clock, own in found if (clock.error_s or 0.0) <= NEAR * least + NEAR_S]
    return max(close, key=lambda one: (one[1], _as_told(one[0]), -(one[0].error_s or 0.0)))[0]


def _as_told(clock: Clocks) -> bool:
    """Whether the phase says of the clocks what their wall clocks say: that they aren't apart."""
    return bool(np.nanmax(np.abs(middle(clock.offsets, 0))) <= 2 * (clock.error_s or 0.0) + NEAR_S)


def aligned(times: RankTimes, clock: Clocks) -> RankTimes:
    """The same times by the middle one of the clocks.

    Args:
        times: Of one phase.
        clock: Of :func:`clocks`.

    Returns:
        Begin, end, first and last moved; as they are where no phase tells.
    """
    if clock.error_s is None:
        return times
    at = np.clip(np.searchsorted(clock.steps, times.steps), 0, len(clock.steps) - 1)
    off = np.nan_to_num(clock.offsets[at])
    return replace(times, begin=times.begin - off, end=times.end - off, first=times.first - off, last=times.last - off)


def _paced(apart: Array) -> Array:
    found = np.empty_like(apart)
    for begin in range(0, len(apart), PACE_STEPS):
        # The last block isn't shorter than half of one.
        part = apart[max(0, min(begin, len(apart) - PACE_STEPS // 2)) : begin + PACE_STEPS]
        found[begin : begin + PACE_STEPS] = middle(part, 0)
    return found


def middle(values: Array, axis: int) -> Array:
    """The median along an axis, of what is known; NaN where nothing is.

    Args:
        values: With NaN where unknown.
        axis: Which goes.

    Returns:
        The medians.
    """
    if not np.isnan(values).any():
        return np.asarray(np.median(values, axis=axis), dtype=np.float64)
    ordered = np.sort(values, axis=axis)  # NaN comes last
    count = np.isfinite(values).sum(axis)
    low, high = np.maximum((count - 1) // 2, 0), np.maximum(count // 2, 0)
    high = np.minimum(high, np.maximum(count - 1, 0))
    taken = [np.take_along_axis(ordered, np.expand_dims(at, axis), axis).squeeze(axis) for at in (low, high)]
    return np.asarray(np.where(count > 0, (taken[0] + taken[1]) / 2, np.nan), dtype=np.float64)
