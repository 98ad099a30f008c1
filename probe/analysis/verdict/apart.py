"""Memory that isn't what tensors need: reserved and idle, not PyTorch's, the process's own, or of some steps only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from probe.analysis import growth, memory_apart
from probe.analysis.by_step import by_step, judged
from probe.analysis.change import Change
from probe.analysis.query import literal
from probe.analysis.verdict import facts
from probe.analysis.verdict.finding import SOON, Cost, Finding, Since, Where
from probe.sql import sql
from probe.text import count, percent, size, sizes, whole
from probe.text import missing as unknown

if TYPE_CHECKING:
    from probe.analysis.grid import Grid
    from probe.runs.reader import Run

#: Steps that are looked at: the newest.
STEPS: Final = 4000
#: Memory that is reserved and idle is worth a change where the peak leaves less of the device than this.
TIGHT: Final = 0.25
#: A peak of some steps is worth a change where it takes this share of the device more.
WORTH: Final = 0.05

#: A cause explains at least this share of a growth, and no more than its inverse.
CAUSE: Final = 0.8

KEPT: Final = "Look at lists that grow: logged tensors, batches that are kept, workers of the data loader."
PINNED: Final = (
    "Pin buffers of few sizes and use them again: PyTorch rounds each up to a power of two, and keeps it for the next "
    "of that size. Look at pinned batches that are kept, and at copies of weights or of an optimiser's state."
)


def memory(run: Run) -> list[Finding]:
    """Memory that is reserved and not allocated, that isn't PyTorch's and grows, and peaks that only steps with a
    validation or a checkpoint have.
    """
    first, last = facts.window(run, STEPS)
    if last is None:
        return []
    grid = by_step(run, memory_apart.query, first, last, "processes", memory_apart.LISTS)
    names, tables, steps = grid.keys, grid.values, grid.steps.astype(float)
    if not names:
        return []
    found = [
        _reserved(run, grid, names, tables),
        _non_torch(run, grid, names, tables),
        _host(run, grid, names, tables),
    ]
    phases = memory_apart.with_phases(grid.columns["phases"])
    # Of a process none of whose scopes has ended yet there is no peak.
    at = int(np.argmax(np.nan_to_num(np.fmax.reduce(tables["peak"], axis=0) if len(steps) else np.zeros(len(names)))))
    one = memory_apart.occasional(steps, tables["peak"][:, at], phases)
    found.append(None if one is None else _occasional(run, one, names[at], _total(tables, at)))
    return [each for each in found if each is not None]


def _total(tables: Mapping[str, np.ndarray], at: int) -> float | None:
    known = tables["total"][:, at][np.isfinite(tables["total"][:, at])]
    return float(known.max()) if len(known) else None


def _rank(run: Run, process: str) -> int | None:
    return whole(
        run.sql(sql("select any_value(rank) as rank from memory where process = {process}", process=literal(process)))[
            "rank"
        ][0]
    )


def _most_reserved(grid: Grid) -> tuple[int, memory_apart.Reserved]:
    steps = grid.steps.astype(float)
    series = [grid.values[name] for name in ("peak", "reserved_peak", "retries")]
    at = memory_apart.most_reserved(steps, *series)
    return at, memory_apart.reserved(steps, *(each[:, at] for each in series))


def _non_torch_growth(grid: Grid) -> tuple[int, growth.Growth]:
    levels = grid.values["non_torch"]
    at = growth.fastest(levels)
    return at, growth.judge(grid.steps.astype(float), levels[:, at], capacity_bytes=_total(grid.values, at))


def _host_growth(grid: Grid) -> tuple[int, growth.Growth]:
    levels = grid.values["rss"]
    at = growth.fastest(levels)
    return at, growth.judge(grid.steps.astype(float), levels[:, at], lasting=growth.LASTING_OF_HOST)


def _reserved(run: Run, grid: Grid, names: list[str], tables: Mapping[str, np.ndarray]) -> Finding | None:
    at, one = judged(run, grid, _most_reserved)
    total, process = _total(tables, at), names[at]
    if one.pressure == "none":
        return None
    reserved = float(np.nanmax(tables["reserved_peak"][:, at]))
    tight = total is not None and 1 - reserved / total < TIGHT
    if one.pressure == "idle" and not tight:
        return None
    rank = _rank(run, process)
    who = "" if rank is None else f" on rank {rank}"
    text = f"PyTorch{who} reserves {size(one.gap_bytes)} that no tensor uses even at the peak: "
    text += f"{percent(one.share)} of all it reserves"
    retried = one.pressure == "retries"
    if retried:
        text += f"; {count(one.retries)} allocation{'s' if one.retries != 1 else ''} failed at first, and PyTorch "
        text += f"had to empty its cache, from step {one.since} on"
    return Finding(
        "alarm" if retried else "tuning",
        "fragmentation",
        text + ".",
        topic="memory",
        where=Where(rank=rank, process=process),
        since=Since(one.since),
        cost=Cost(bytes=int(one.gap_bytes), share=float(one.share)),
        why="The free pieces are too small for new tensors (fragmentation); each retry waits for the device.",
        evidence_sql=sql(
            """select * from memory where process = {process} and edge = 'leave'
            and step >= {since}
            and peak_reserved_bytes > {least} * peak_allocated_bytes""",
            process=literal(process),
            since=one.since or 0,
            least=1 / (1 - memory_apart.IDLE),
        ),
        change=Change(
            "Let the allocator expand its segments; set this in the environment before the training starts.",
            "PYTORCH_CUDA_ALLOC_CONF",
            "expandable_segments:True",
        ),
        urgency=SOON,
        weight=70,
    )


def _non_torch(run: Run, grid: Grid, names: list[str], tables: Mapping[str, np.ndarray]) -> Finding | None:
    levels = tables["non_torch"]
    at, found = judged(run, grid, _non_torch_growth)
    if found.cause != "leak":
        return None
    rank, process = _rank(run, names[at]), names[at]
    who = "" if rank is None else f" of rank {rank}"
    middle = float(np.nanmedian(levels[:, at]))
    return Finding(
        "alarm",
        "non_torch_growth",
        f"Non-PyTorch memory of the device{who} has grown by {size(found.bytes_per_step)} a step since step "
        f"{found.since}, by {size(found.total_bytes)} so far.",
        topic="memory",
        where=Where(rank=rank, process=process),
        since=Since(found.since),
        cost=Cost(bytes=int(found.bytes_per_step)),
        why=f"Each step adds {sizes(found.low, found.high)} (95 % interval), not counting what PyTorch reserved.",
        evidence_sql=sql(
            """select * from memory where process = {process} and step >= {since}
            and non_torch_bytes > {middle}""",
            process=literal(process),
            since=int(found.since or 0),
            middle=int(middle),
        ),
        change=Change(
            "Look at communicators and graphs that are created in each step, and at other libraries' buffers."
        ),
        alternatives=("Another process on the same device takes it.",),
        urgency=SOON,
        weight=85,
    )


def _host(run: Run, grid: Grid, names: list[str], tables: Mapping[str, np.ndarray]) -> Finding | None:
    """The process's own memory beside that of a device; without one it is what :mod:`leaks` looks at."""
    if not np.isfinite(tables["total"]).any():
        return None
    at, found = judged(run, grid, _host_growth)
    if found.cause != "leak":
        return None
    rank, process = _rank(run, names[at]), names[at]
    source = run.sql(
        sql("select any_value(source) as s from memory where process = {process}", process=literal(process))
    )["s"][0]
    if unknown(source) or source == "process_rss":
        return None
    who = "" if rank is None else f" of rank {rank}"
    middle = float(np.nanmedian(tables["rss"][:, at]))
    pinned = _pinned_share(run, process, int(found.since or 0))
    text = f"The process{who} holds {size(found.bytes_per_step)} more of its machine's memory after each step since "
    text += f"step {found.since}, {size(found.total_bytes)} so far"
    return Finding(
        "alarm",
        "host_leak",
        f"{text}." if pinned is None else f"{text}: it is pinned memory, which PyTorch keeps for copies.",
        topic="memory",
        where=Where(rank=rank, process=process),
        since=Since(found.since),
        cost=Cost(bytes=int(found.bytes_per_step)),
        explained=pinned,
        why=f"Each step adds {sizes(found.low, found.high)} (95 % interval).",
        evidence_sql=sql(
            """select * from memory where process = {process} and step >= {since}
            and process_rss_bytes > {middle}""",
            process=literal(process),
            since=int(found.since or 0),
            middle=int(middle),
        ),
        change=Change(KEPT if pinned is None else PINNED),
        urgency=SOON,
        weight=80,
    )


def _pinned_share(run: Run, process: str, since: int) -> float | None:
    """The part of a process's growth that is pinned memory of torch's, between the same looks at both; None where it
    isn't the cause, or isn't known.
    """
    if not run.has("host_memory"):
        return None
    told = run.sql(
        sql(
            """select max_by(pinned, wall_ns) - min_by(pinned, wall_ns) as pinned,
                   max_by(rss_bytes, wall_ns) - min_by(rss_bytes, wall_ns) as held
            from (select torch_pinned_bytes as pinned, rss_bytes, wall_ns from host_memory
                  where process = {process} and step >= {since}
                    and torch_pinned_bytes is not null and rss_bytes is not null)""",
            process=literal(process),
            since=since,
        )
    )
    pinned, held = told["pinned"][0], told["held"][0]
    if unknown(pinned) or unknown(held) or held <= 0 or not CAUSE <= pinned / held <= 1 / CAUSE:
        return None
    return min(1.0, float(pinned / held))


def _occasional(run: Run, one: memory_apart.Occasional, process: str, total: float | None) -> Finding | None:
    kind: Any = "tuning" if total is None or one.extra_bytes >= WORTH * total else "fine"
    share = None if total is None else one.extra_bytes / total
    text = f"Only steps with {one.phase} reach the peak: {size(one.with_bytes)}, where others have "
    text += f"{size(one.without_bytes)}."
    return Finding(
        kind,
        "validation_peak",
        text,
        topic="memory",
        where=Where(phase=one.phase, rank=_rank(run, process), process=process),
        since=Since(one.since),
        cost=Cost(bytes=int(one.extra_bytes), share=share),
        explained=float(one.share),
        why=f"{count(one.steps_with)} steps have it and {count(one.steps_without)} don't; the difference is "
        f"{sizes(one.low, one.high)} (95 % interval).",
        evidence_sql=sql(
            """select * from memory where process = {process} and edge = 'leave'
            and phase = {phase} and peak_allocated_bytes > {without_bytes}""",
            process=literal(process),
            phase=literal(one.phase),
            without_bytes=int(one.without_bytes),
        ),
        change=Change(f"Lower the batch size of {one.phase}: training itself needs less memory."),
        weight=50,
    )
