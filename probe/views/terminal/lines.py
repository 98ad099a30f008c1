"""A run line by line: for a pipe as words, for a machine as JSON. One line a step, an incident, or a row."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from probe import text as words
from probe.dashboards.spelling import spell
from probe.records import Row, who
from probe.runs.lines import table_of
from probe.views.terminal.following import Following
from probe.views.terminal.numbers import Number


def plain(text: Any, *, strip: bool = True) -> str:
    """A text of a run on one line; characters that a terminal takes for commands are written out.

    Args:
        text: Anything that has a text.
        strip: Whether spaces at both ends are left out.

    >>> print(plain("two\\nlines, \\x1b[31mred"))
    two lines, \\x1b[31mred
    """
    told = words.visible(" ".join(str(text).splitlines()).replace("\t", " "))
    return told.strip() if strip else told


# ---------------------------------------------------------------------------------------------------- words


def step_line(run: Following, step: int) -> str:
    """One step in words."""
    told = [f"{_short(one)} {spell(one.at(step), one.unit)}{_mark(one.status(step))}" for one in run.numbers.tiles]
    return "  ".join([f"step {step}", *told])


def _short(one: Number) -> str:
    return one.title.lower()


def _mark(status: str) -> str:
    return {"warn": " (watch)", "alarm": " (act)"}.get(status, "")


def incident_line(incident: Mapping[str, Any], others: int = 0) -> str:
    """One incident in words.

    Args:
        incident: A row of the live table ``events``.
        others: How many other processes tell the same.
    """
    where = "" if incident["step"] is None else f"step {incident['step']}  "
    often = f" (×{incident['count']})" if incident["count"] > 1 else ""
    off = " (switched off)" if incident["off"] else ""
    kind, place, message = (plain(incident[name]) for name in ("kind", "where", "message"))
    name = plain(who(incident["rank"], incident["process"]))
    if others:
        name += f" and {others:,} other{'s' if others > 1 else ''}"
    return f"! {where}{name}  {kind}  {place}: {message}{often}{off}"


def incident_lines(incidents: Iterable[Mapping[str, Any]]) -> list[str]:
    """Incidents in words, in their order; those that processes tell alike in one step are one line.

    Args:
        incidents: Rows of the live table ``events``.
    """
    alike: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    often: Counter[tuple[Any, ...]] = Counter()
    for one in incidents:
        told = tuple(one[name] for name in ("step", "kind", "where", "message", "count", "off"))
        by = (one["rank"], one["process"], *told)
        often[by] += 1  # what one process tells twice is two lines
        alike.setdefault((often[by], *told), []).append(one)
    return [incident_line(those[0], len(those) - 1) for those in alike.values()]


def row_line(row: Row) -> str:
    """One row in words: its table, where it belongs, and what it says; what it doesn't say is left out."""
    stamp = Row.__struct_fields__
    place = words.place({name: getattr(row, name) for name in stamp})
    if row.rank is None:
        place = " · ".join(filter(None, (place, who(None, row.process))))
    fields = [(name, getattr(row, name)) for name in row.__struct_fields__ if name not in stamp]
    told = [f"{name}={plain(value)}" for name, value in fields if value not in (None, "", [])]
    return plain("  ".join([f"{table_of(row):<13}", place, *told]))


def start_line(run: Following) -> str:
    """Which run it is."""
    info = run.feed.info
    return plain(f"{info.project} / {info.experiment or Path(run.feed.path).name}  {run.feed.path}")


def end_line(run: Following) -> str:
    """What is said when nothing more comes."""
    how = failure(run) or ("finished" if run.over else silence(run) or "recording")
    told = [how, words.seconds(run.seconds)]
    if run.step is not None:
        told.append(f"last step {run.step}")
    if run.feed.lost:
        told.append(f"{words.count(run.feed.lost)} rows dropped")
    if run.feed.repeated:
        told.append(run.feed.repeated.rstrip("."))
    return ", ".join(told)


def damage_line(run: Following) -> str:
    """Which damaged files are left out and what helps; "" where none are."""
    return f"! {plain(run.feed.damage)}" if run.feed.damage else ""


def state(run: Following) -> str:
    """How the run stands: how it has ended (:mod:`probe.runs.outcome`), "recording", "quiet" (no rows lately), or
    "gone": the processes that wrote it are gone and haven't closed it, in no step that they are known to be killed in;
    as can be told on their own machine only.
    """
    if run.outcome is not None:
        return run.outcome.word
    if run.over:
        return "finished"
    told = run.feed.activity()
    return "recording" if told["newest_at"] is None else "gone" if told["writers"] == "gone" else "quiet"


def failure(run: Following) -> str:
    """How the run has ended and which of its processes, where it hasn't finished; else ""."""
    return plain(str(run.outcome)) if run.outcome is not None and run.outcome.word != "finished" else ""


def silence(run: Following) -> str:
    """Since when no rows have come, or that nobody is left to write any; empty while they come."""
    told = run.feed.activity()
    if told["newest_at"] is None:
        return ""
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(told["newest_at"]))
    return f"its process is gone, last row at {clock}" if told["writers"] == "gone" else f"no rows since {clock}"


def missing_lines(run: Following) -> list[str]:
    """Who isn't waited for though others go on, a sentence each."""
    return [_missing_line(one) for one in run.feed.missing()]


def _missing_line(missing: Mapping[str, Any]) -> str:
    clock = time.strftime("%H:%M:%S", time.localtime(missing["since"]))
    name = plain(missing["name"])
    if missing["why"] == "ended":
        return f"{name} has ended at {clock}: later steps don't wait for it"
    if missing["why"] == "gone":
        return f"the process of {name} is gone, its last row came at {clock}: its steps aren't waited for"
    return f"{name} is silent since {clock}: its steps aren't waited for"


# ----------------------------------------------------------------------------------------------------- JSON


def step_object(run: Following, step: int) -> dict[str, Any]:
    """One step: each tile of the panel under its id and unit, and the phases, the longest first."""
    found: dict[str, Any] = {"type": "step", "step": step}
    for one in run.numbers.tiles:
        found[one.field] = _number(one.at(step))
        if "capacity" in one.field or not math.isnan(one.capacity):
            found[f"{one.id}_capacity{one.field.removeprefix(one.id)}"] = _number(one.capacity)
    found["phases"] = [
        {
            "phase": phase.name,
            "time_s": _number(phase.time_s),
            "peak_memory_bytes": _number(phase.peak_bytes),
            "tokens": _number(phase.tokens),
        }
        for phase in run.numbers.phases(step)
    ]
    return found


def incident_object(incident: Mapping[str, Any]) -> dict[str, Any]:
    """One incident; ``t_s`` counts from the run's start."""
    names = ("step", "rank", "process", "kind", "where", "message", "count")
    told = {name: incident[name] for name in names}
    return {"type": "incident", "t_s": incident["t"], **told, "switched_off": bool(incident["off"])}


def run_object(run: Following) -> dict[str, Any]:
    """Which run it is, and where it stands."""
    info, feed = run.feed.info, run.feed
    return {
        "type": "run",
        "path": feed.path,
        "project": info.project,
        "experiment": info.experiment,
        "started_at": info.started_at,
        "state": state(run),
        "world_size": feed.world_size,
        "ranks": run.ranks,
        "last_step": run.step,
        "not_waited_for": [one["name"] for one in feed.missing()],
        "duration_s": _number(run.seconds),
        "steps_per_second": _number(run.numbers.steps_per_second),
        "dropped_rows": feed.lost,
        "bad_lines": feed.bad_lines,
        "damaged_files": [one.name for one in feed.files.damaged],
    }


def _number(value: float) -> float | int | None:
    """A number for JSON, which has none that isn't finite; a whole one as such.

    >>> _number(3.0), _number(0.5), _number(float("nan"))
    (3, 0.5, None)
    """
    if not math.isfinite(value):
        return None
    return int(value) if float(value).is_integer() else value


def json_line(found: Mapping[str, Any]) -> str:
    """An object as one line."""
    return json.dumps(found, allow_nan=False)
