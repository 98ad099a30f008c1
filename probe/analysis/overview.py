"""The run in a handful of numbers, each with its course over the steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from probe.analysis.quantities import courses
from probe.dashboards import overview_tiles
from probe.dashboards.courses import Course
from probe.dashboards.quantities import field_of, quantities
from probe.dashboards.standing import standing
from probe.text import SOURCES

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Columns of :func:`numbers`.
NUMBERS: Final = ("name", "title", "value", "text", "note", "about", "status", "history", "who")


def by_step(run: Run, rows: str = "") -> pd.DataFrame:
    """Every step on one row, for charts that set the quantities side by side.

    Args:
        run: The run.
        rows: An SQL condition on the rows that are looked at, such as ``step between 3 and 7``.

    Returns:
        Step, and each quantity of ``dashboards/quantities.yaml`` under its name with its unit: step_time_s, tokens,
        tokens_per_second, tokens_processed, tokens_processed_per_second, peak_memory_bytes, rank_imbalance_ratio,
        sync_wait_ratio, micro_batch_imbalance_ratio, padding_tax_ratio, reward, own_cost_ratio, alerts. NaN where a
        step has no such value.
    """
    specs = list(quantities().values())
    found = courses(run, specs, rows)
    steps = _steps(specs, found)
    columns = {field_of(spec): _filled(course, steps) for spec, course in zip(specs, found, strict=True)}
    return pd.DataFrame({"step": pd.Series(steps, dtype="int64"), **columns})


def _steps(specs: Sequence[Mapping[str, Any]], found: Sequence[Course]) -> list[int]:
    """The steps of a run: those of which more is known than what is counted, such as alerts."""
    told = (course.steps for spec, course in zip(specs, found, strict=True) if not spec.get("total"))
    return sorted({step for steps in told for step in steps})


def _filled(course: Course, steps: list[int]) -> pd.Series:
    known = dict(zip(course.steps, course.values, strict=True))
    return pd.Series([known.get(step, math.nan) for step in steps], dtype="float64")


def _memory(run: Run) -> str:
    """What memory means where that isn't the memory of a device."""
    found = run.sql("select source from memory where source <> '' limit 1", keep=True)
    process = not found.empty and found["source"][0] == "process_rss"
    return SOURCES["process_rss"] if process else ""


def numbers(run: Run) -> pd.DataFrame:
    """The tiles of the overview, as the panel shows them.

    Args:
        run: The run.

    Returns:
        Columns :data:`NUMBERS`, one row a tile: its name, title, value (None when nothing was recorded), the value as
        text, a short note, what it means, whether it is "good", "warn", "alarm" or "none", and its history (a list,
        one value a step, NaN for unknown), and which rank stands out, in a sentence.
    """
    tiles = overview_tiles()
    found = courses(run, tiles, compared=True)
    if not any(course.steps for course in found) and not any(one.total for one in found if not math.isnan(one.total)):
        found = [Course([], []) for _ in found]  # nothing was recorded: that's not a zero
    steps = _steps(tiles, found)
    rows, memory = [], _memory(run)
    for tile, course in zip(tiles, found, strict=True):
        told = standing(tile, course)
        value = None if math.isnan(told.value) else told.value
        history = _filled(course, steps).tolist()
        about = f"This is {memory}." if memory and tile.get("unit") == "bytes" else ""
        note = " ".join(filter(None, [about, told.note]))  # as the panel says it
        rows.append((tile["id"], tile["title"], value, told.text, note, told.means, told.status, history, told.who))
    return pd.DataFrame(rows, columns=list(NUMBERS))
