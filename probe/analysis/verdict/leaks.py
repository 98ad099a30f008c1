"""Memory that grows: kept by a phase, held by the process, or explained by batches that grow."""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from probe.analysis import growth
from probe.analysis.by_step import by_step, judged
from probe.analysis.change import Change
from probe.analysis.query import literal
from probe.analysis.verdict import facts
from probe.analysis.verdict.finding import SOON, Cost, Finding, Since, Where
from probe.sql import Sql, sql
from probe.text import missing as unknown
from probe.text import percent, seconds, size, sizes, whole

if TYPE_CHECKING:
    from probe.analysis.grid import Grid
    from probe.runs.reader import Run

#: Steps that are looked at: the newest.
STEPS: Final = 4000
_LISTS: Final = ("level", "reserved_peak", "tokens", "longest", "rank", "total", "hosts")


def floor(run: Run) -> list[Finding]:
    """Whether memory at the ends of steps grows, which phase keeps it, and when it will be full."""
    first, last = facts.window(run, STEPS)
    if last is None:
        return []
    grid = by_step(run, growth.query, first, last, "processes", _LISTS)
    if len(grid) < growth.FEWEST:
        return []
    steps, levels = grid.steps.astype(float), grid.values["level"]
    at, found, about = judged(run, grid, _judged)
    about = dict(about)
    if found.cause == "leak":
        keeper = _keeper(run, found, steps, levels[:, at], about)
        if about["host"] and growth.may_be_the_allocator(found, keeper, levels[:, at]):
            return []
        about["alike"] = _alike(steps, levels, found)
        return [_leak(run, found, keeper, (steps, levels[:, at]), about)]
    if found.cause == "batches":
        return [_follows(found, about)]
    return [_undecided(found, about)] if found.cause == "undecided" else []


def _judged(grid: Grid) -> tuple[int, growth.Growth, dict[str, Any]]:
    """Which process grows fastest, how its level does, and what is known of it."""
    steps, levels = grid.steps.astype(float), grid.values["level"]
    at = growth.fastest(levels)
    tokens, longest = (grid.values[one][:, at] for one in ("tokens", "longest"))
    about = _about(grid, at)
    capacity = None
    if about["total"] is not None and not about["host"]:
        peaks = grid.values["reserved_peak"][:, at]
        above = np.nanmedian((peaks - levels[:, at])[-20:]) if np.isfinite(peaks[-20:]).any() else 0.0
        capacity = float(about["total"]) - max(0.0, float(above))  # a step's peak is full before its end is
    lasting = growth.LASTING_OF_HOST if about["host"] else growth.LASTING
    return at, growth.judge(steps, levels[:, at], tokens, longest, capacity_bytes=capacity, lasting=lasting), about


def _about(grid: Grid, at: int) -> dict[str, Any]:
    """What is known of a process: its name and rank, what its device has, and whether it is its own memory."""
    told = {name: grid.values[name][:, at] for name in ("rank", "total", "hosts")}
    known = {name: values[np.isfinite(values)] for name, values in told.items()}
    return {
        "process": grid.keys[at],
        "rank": int(known["rank"][-1]) if len(known["rank"]) else None,
        "total": float(known["total"].max()) if len(known["total"]) else None,
        "host": bool(len(known["hosts"]) and known["hosts"].all()),
    }


def _alike(steps: np.ndarray, levels: np.ndarray, found: growth.Growth) -> int:
    """How many processes grow by at least half as much as the one that was judged, that one among them."""
    since = steps >= (found.since or 0)
    third = max(1, int(since.sum()) // 3)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # of a process that has no rows there
        rise = np.nanmedian(levels[since][-third:], axis=0) - np.nanmedian(levels[since][:third], axis=0)
    return int((rise >= 0.5 * np.nanmax(rise)).sum())


def _keeper(
    run: Run, found: growth.Growth, steps: np.ndarray, level: np.ndarray, about: dict[str, Any]
) -> growth.Keeper:
    """Which phase of the process keeps what it grows by."""
    query = functools.partial(growth.phases_query, str(about["process"]))
    told = by_step(run, query, int(steps[0]), int(steps[-1]))
    return growth.keeper(_of_phases(told, steps), level, found, steps)


def _leak(
    run: Run,
    found: growth.Growth,
    keeper: growth.Keeper,
    series: tuple[np.ndarray, np.ndarray],
    about: dict[str, Any],
) -> Finding:
    (steps, level), host = series, about["host"]
    by = f"after each {keeper.phase}" if keeper.phase else "after each step"
    who = "" if unknown(about["rank"]) else f" of rank {whole(about['rank'])}"
    others = about["alike"] - 1
    text = f"The process{who} holds {size(found.bytes_per_step)} more of its machine's memory {by}"
    if not host:
        text = f"{size(found.bytes_per_step)} more stay on the device{who} {by}"
    text += f" since step {found.since}, {size(found.total_bytes)} so far"
    text += f", and {others} other rank{'s grow' if others > 1 else ' grows'} as fast" if others else ""
    text += f"; memory runs out near step {found.full_step}." if found.full_step is not None else "."
    why = f"Each step adds {sizes(found.low, found.high)} (95 % interval)"
    why += " that neither tokens nor the longest sequence explain" if found.tokens_known else ""
    why += f"; {keeper.phase} keeps {percent(keeper.share)} of it." if keeper.phase else "."
    half = float(np.nanmedian(level[steps >= (found.since or 0)])) if found.since is not None else 0.0
    place = Where(phase=keeper.phase or None, rank=whole(about["rank"]), process=str(about["process"]))
    after = (
        Sql("")
        if keeper.phase is None or not keeper.phase
        else sql("and phase = {phase} ", phase=literal(keeper.phase))
    )
    advice = f"Look at what {keeper.phase} keeps" if keeper.phase else "Look at what is kept from step to step"
    advice += (
        ": lists of tensors with their graphs, caches without a limit, buffers that are allocated again each time."
    )
    remaining = _remaining_s(run, found, int(steps[-1]))
    return Finding(
        "alarm",
        "host_leak" if host else "device_leak",
        text,
        topic="memory",
        where=place,
        since=Since(found.since),
        cost=Cost(bytes=int(found.bytes_per_step), share=None),
        explained=_explained(found, keeper),
        why=why + ("" if remaining is None else f" At the pace of the last steps that is in {seconds(remaining)}."),
        evidence_sql=sql(
            """select * from memory where edge = 'leave' {after}and process = {process}
            and step >= {since} and allocated_bytes > {half}""",
            after=after,
            process=literal(str(about["process"])),
            since=int(found.since or 0),
            half=int(half),
        ),
        change=Change(advice),
        missing=() if found.tokens_known else (_NO_TOKENS,),
        alternatives=() if found.explained >= growth.EXPLAINS else ("Batches grow, too, and are part of the rise.",),
        urgency=SOON,
        weight=90 + (0 if remaining is None or remaining > 3600 else 50),
    )


_NO_TOKENS: Final = "Tokens of the steps weren't recorded: whether batches grow isn't known."


def _explained(found: growth.Growth, keeper: growth.Keeper) -> float | None:
    """The share of the growth that the phase keeps, where one is named; else of the rise that steps explain, where that
    is enough to say so.
    """
    share = keeper.share if keeper.phase else found.explained
    return float(share) if share >= growth.EXPLAINS else None


def _of_phases(told: Grid, steps: np.ndarray) -> dict[str, np.ndarray]:
    """What each phase kept in each of ``steps``, bytes; NaN in steps without it."""
    names, kept = told.columns["phase"], np.asarray(told.columns["kept"], dtype=np.float64)
    place = np.searchsorted(steps, told.steps)
    there = (place < len(steps)) & (steps[np.minimum(place, len(steps) - 1)] == told.steps)
    found = {}
    for name in sorted(set(names.tolist())):
        found[str(name)] = np.full(len(steps), np.nan)
        own = there & (names == name)
        found[str(name)][place[own]] = kept[own]
    return found


def _remaining_s(run: Run, found: growth.Growth, newest: int) -> float | None:
    pace = facts.step_time_s(run, newest - 19, newest) if found.full_step is not None else None
    return None if pace is None or found.full_step is None else max(0.0, (found.full_step - newest) * pace)


def _follows(found: growth.Growth, about: dict[str, Any]) -> Finding:
    what = "The process's memory" if about["host"] else "Device memory"
    text = f"{what} grows because the batches grow: their tokens explain {percent(found.explained)} of the growth."
    return Finding(
        "fine",
        "memory_follows_tokens",
        text,
        topic="memory",
        where=Where(rank=whole(about["rank"]), process=str(about["process"])),
        cost=Cost(bytes=int(found.total_bytes)),
        explained=float(found.explained),
        why="This is no leak: without what the tokens explain, memory doesn't grow with the steps.",
        weight=90,
    )


def _undecided(found: growth.Growth, about: dict[str, Any]) -> Finding:
    text = f"Memory grew by {size(found.total_bytes)}, but tokens rise with the steps, so whether it leaks isn't known."
    return Finding(
        "tuning",
        "growing_memory",
        text,
        topic="memory",
        where=Where(rank=whole(about["rank"]), process=str(about["process"])),
        cost=Cost(bytes=int(found.total_bytes)),
        change=Change("Train a few steps on batches of the same size: if memory still grows, it leaks."),
        evidence_sql=sql(
            "select * from memory where edge = 'leave' and process = {process}", process=literal(str(about["process"]))
        ),
        confidence="low",
        alternatives=("Memory follows batches that grow.", "Something is kept in each step."),
        weight=20,
    )
