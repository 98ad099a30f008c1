"""Memory that isn't what tensors need: reserved and idle, not torch's, the process's own, or needed in some steps only.

What grows is judged by :mod:`probe.analysis.growth`, whatever it is of: :func:`query` has the levels of what isn't
torch's and of the process beside those of the device.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from probe.analysis.grid import grid
from probe.analysis.rank_times import middle
from probe.sql import Sql, sql

Array = NDArray[np.float64]

#: ``retries``: allocations fail until torch gives its cache back; ``idle``: much is reserved that no tensor uses, so
#: far without consequence; ``none``: neither.
Pressure = Literal["retries", "idle", "none"]

#: What is reserved above the peak of what is allocated, as a share of the reserved, from which on it is told.
IDLE: Final = 0.25

#: The share of the steps in which an allocation must have been tried again.
OFTEN: Final = 0.1

#: Of the peak in other steps, what a phase must bring on top.
MATTERS: Final = 0.05

#: A cause is claimed where it explains as much of the excess.
EXPLAINS: Final = 0.8

#: Steps with such a phase, and without it, that must be known.
FEWEST_WITH: Final = 2
FEWEST_WITHOUT: Final = 8

#: Phases that only some steps have.
OCCASIONAL: Final = re.compile(r"valid|eval|test|checkpoint|ckpt|save", re.IGNORECASE)

#: What :func:`query` tells of each process.
LISTS: Final = ("peak", "reserved_peak", "retries", "non_torch", "rss", "total")


@dataclass(frozen=True)
class Reserved:
    """What :func:`reserved` says of one process.

    Attributes:
        pressure: See :data:`Pressure`.
        gap_bytes: Peak of what is reserved minus that of what is allocated, the middle of the steps; NaN where unknown.
        share: Of the reserved.
        retries: Allocations that were tried again in these steps; None where that isn't counted.
        retries_per_step: The same a step; NaN where it isn't counted.
        since: First step with one; None without.
        steps: How many.
    """

    pressure: Pressure
    gap_bytes: float = np.nan
    share: float = np.nan
    retries: int | None = None
    retries_per_step: float = np.nan
    since: int | None = None
    steps: int = 0


@dataclass(frozen=True)
class Occasional:
    """What :func:`occasional` says: the peak is one of steps with a certain phase.

    Attributes:
        phase: That these steps have.
        with_bytes: Peak of a step with it, in the middle.
        without_bytes: Peak of a step without it.
        extra_bytes: The difference.
        low: Lower end of its interval of 95 %.
        high: Upper end.
        share: Of what the highest peak has above the middle of the other steps, 0 to 1.
        steps_with: How many have it.
        steps_without: How many don't.
        since: The first that has it.
    """

    phase: str
    with_bytes: float
    without_bytes: float
    extra_bytes: float
    low: float
    high: float
    share: float
    steps_with: int
    steps_without: int
    since: int


# ------------------------------------------------------------------------------------------------------------- SQL


def query(first: int, last: int) -> str:
    """The query for what each process held in each step beside its tensors: a row a step.

    Args:
        first: Of the steps.
        last: Of the steps.

    Returns:
        SQL for columns step, phases (names, in order), processes (names, in order) and lists in that order: peak and
        reserved_peak (bytes, the largest of the step), retries (that the allocator had counted by its end), non_torch
        and rss (bytes, the least that was sampled in the step), total (bytes that the device has).
    """
    where = sql("where step between {first} and {last}", first=int(first), last=int(last))
    return sql(
        """
with told as (
  select step, process,
         max(peak_allocated_bytes) filter (edge = 'leave' and peak_kind is distinct from 'at_most') as peak,
         max(peak_reserved_bytes) filter (edge = 'leave' and peak_kind is distinct from 'at_most') as reserved_peak,
         max(alloc_retries) as retries, min(non_torch_bytes) as non_torch,
         min(process_rss_bytes) as rss, max(device_total_bytes) as total
  from memory {where} group by step, process),
phases as (
  select step, list(distinct phase order by phase) as phases from memory
  {where} and phase is not null group by step)
select step, coalesce(any_value(phases), []) as phases, list(process order by process) as processes,
       {lists}
from told left join phases using (step) group by step order by step""",
        where=where,
        lists=[sql("list({name} order by process) as {name}", name=Sql(name)) for name in LISTS],
    )


def by_process(columns: Mapping[str, Any], *names: str) -> tuple[list[str], dict[str, Array]]:
    """Lists by process, as queries of a row a step give them, as arrays.

    Args:
        columns: By name, such as a frame: "processes", a list of names for each step, and lists in that order.
        *names: Of the columns that are wanted.

    Returns:
        The processes, and of each column an array of the shape (steps, processes), NaN where nothing is known.
    """
    lists = columns["processes"]
    told: dict[str, Any] = {"step": np.arange(len(lists)), "processes": lists, **{one: columns[one] for one in names}}
    found = grid(told, "processes", names)
    return found.keys, dict(found.values)


def with_phases(phases: Any) -> dict[str, NDArray[np.bool_]]:
    """Which steps have which of the phases that only some steps have.

    Args:
        phases: The names of each step, as :func:`query` gives them.

    Returns:
        By the phase's name, of the shape of the steps.
    """
    sets = [frozenset(one) for one in phases]
    names = sorted(name for name in frozenset().union(*sets) if OCCASIONAL.search(name)) if sets else []
    return {name: np.array([name in one for one in sets]) for name in names}


# ----------------------------------------------------------------------------------------------------------- judges


def reserved(steps: Array, peak: Array, reserved_peak: Array, retries: Array | None = None) -> Reserved:
    """Whether much is reserved that no tensor uses, and whether allocations fail for it at first.

    Args:
        steps: Numbers of the steps, rising.
        peak: Bytes allocated at most in each, NaN where unknown.
        reserved_peak: Bytes reserved at most.
        retries: That had been counted by the end of each step; None, or NaN, where they aren't.

    Returns:
        What is known of it.
    """
    known = np.isfinite(peak) & np.isfinite(reserved_peak) & (reserved_peak > 0)
    if not known.any():
        return Reserved("none")
    gap, share = (
        float(np.median(one[known])) for one in (reserved_peak - peak, 1 - peak / np.maximum(reserved_peak, 1))
    )
    told = np.flatnonzero(np.isfinite(retries)) if retries is not None else np.array([], dtype=np.int64)
    if retries is None or not len(told):
        return Reserved("idle" if share >= IDLE else "none", gap, share, steps=int(known.sum()))
    counts = np.maximum.accumulate(retries[told])
    # What came before the first of these steps is unknown, unless it is the run's first: then the count began at 0.
    new = np.diff(counts, prepend=0.0 if steps[told[0]] <= 1 else counts[0])
    total, tried = int(new.sum()), new > 0
    pressed = tried.sum() >= max(2, OFTEN * len(told))
    pressure: Pressure = "retries" if pressed else "idle" if share >= IDLE else "none"
    since = int(steps[told[np.argmax(tried)]]) if tried.any() else None
    return Reserved(pressure, gap, share, total, total / len(told), since, int(known.sum()))


def most_reserved(steps: Array, peak: Array, reserved_peak: Array, retries: Array) -> int:
    """Which of several processes :func:`reserved` has most to say of, so that it alone need be judged.

    Args:
        steps: Numbers of the steps, rising.
        peak: Of the shape (steps, processes), and so are the others: see :func:`reserved`.
        reserved_peak: Likewise.
        retries: Likewise.

    Returns:
        The column with the most allocations that were tried again; of several the first with the largest gap.
    """
    known = np.isfinite(peak) & np.isfinite(reserved_peak) & (reserved_peak > 0)
    gaps = np.nan_to_num(middle(np.where(known, reserved_peak - peak, np.nan), 0))
    counted = np.isfinite(retries)
    first = np.argmax(counted, axis=0)
    began = np.where(
        steps[first] <= 1, 0.0, retries[first, np.arange(len(first))]
    )  # the count of a run's first step is new
    most = np.max(retries, axis=0, initial=-np.inf, where=counted)
    tried = np.where(counted.any(0) & known.any(0), most - began, 0.0)
    return int(np.lexsort((-np.arange(len(gaps)), gaps, tried))[-1])


def occasional(steps: Array, peak: Array, phases: Mapping[str, NDArray[np.bool_]]) -> Occasional | None:
    """Whether the highest peaks are those of steps with a validation or a checkpoint.

    Args:
        steps: Numbers of the steps.
        peak: Bytes of each, NaN where unknown.
        phases: Of :func:`with_phases`.

    Returns:
        The phase that explains at least 80 % of what the highest peak has above other steps; None without one.
    """
    found = [one for name, there in phases.items() if (one := _occasional(steps, peak, name, there)) is not None]
    return max(found, key=lambda one: (one.share, one.extra_bytes), default=None)


def _occasional(steps: Array, peak: Array, name: str, there: NDArray[np.bool_]) -> Occasional | None:
    known = np.isfinite(peak)
    with_it, without = peak[known & there], peak[known & ~there]
    if len(with_it) < FEWEST_WITH or len(without) < FEWEST_WITHOUT:
        return None
    usual, high = float(np.median(without)), float(np.median(with_it))
    extra, most = high - usual, float(peak[known].max()) - usual
    # By chance a few steps aren't all above nearly all others.
    if float(with_it.min()) <= np.quantile(without, 0.95) or extra < MATTERS * usual or extra < EXPLAINS * most:
        return None
    error = np.hypot(*(1.2533 * float(one.std(ddof=1)) / np.sqrt(len(one)) for one in (with_it, without)))
    low, above = extra - 1.96 * float(error), extra + 1.96 * float(error)
    since = int(steps[np.argmax(known & there)])
    return Occasional(name, high, usual, extra, low, above, min(extra / most, 1.0), len(with_it), len(without), since)
