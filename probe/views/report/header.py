"""The report's header and footer: which run it is, on what it ran, how long, and whether all of it was read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from probe import text as words
from probe.dashboards import dashboards
from probe.runs.files import damage
from probe.runs.reader import Run
from probe.runs.visibility import sentence
from probe.views.report.escaping import escaped


def page_title(run: Run) -> str:
    """The name of the page, escaped."""
    return f"{escaped(run.info.project)} · {escaped(run.info.experiment or Path(run.path).name)} · probe"


def header(run: Run, sections: Mapping[str, str]) -> str:
    """What stands above the findings.

    Args:
        run: The run.
        sections: Titles by anchor, of those that are there beside the dashboards.
    """
    facts = "".join(
        f"<div><dt>{escaped(name)}</dt><dd>{escaped(value)}</dd></div>"
        for name, value in _facts(run)
        if value not in (None, "")
    )
    rss = ""
    if memory_source(run) == "process_rss":
        rss = (
            '<p class="remark">No accelerator was used: memory in this report means the resident set (RSS)'
            " of each process, not the memory of a device.</p>"
        )
    told = _attempts(run)
    attempts = f'<p class="remark">{escaped(told)}</p>' if told else ""
    damaged = f'<p class="remark">{escaped(damage(run.damaged))}</p>' if run.damaged else ""
    titles = {**sections, **{board.name: board.title for board in dashboards()}}
    links = "".join(f'<a href="#{anchor}">{escaped(title)}</a>' for anchor, title in titles.items())
    return f"""<header>
<p class="brand">probe <span>run report</span></p>
<h1>{escaped(run.info.project)} <span>{escaped(run.info.experiment or Path(run.path).name)}</span></h1>
<dl class="facts">{facts}</dl>
{attempts}
{damaged}
{rss}
<nav aria-label="Sections"><a href="#findings">Findings</a>{links}</nav>
</header>"""


def _attempts(run: Run) -> str:
    """Which launch of the job is shown, where there were several."""
    if run.shown_attempt is None:
        return sentence(run.hidden)
    return f"Attempt {run.shown_attempt} of {max(run.attempts)}, alone and whole." if len(run.attempts) > 1 else ""


def _facts(run: Run) -> Iterator[tuple[str, Any]]:
    processes = run.processes
    yield "Host", ", ".join(sorted(set(processes["host"]))[:4]) if len(processes) else run.info.host
    devices = words.rows(processes[["device", "device_name"]].drop_duplicates()) if len(processes) else []
    yield "Device", ", ".join(dict.fromkeys(_device(row) for row in devices[:4]))
    yield "Written by", _ranks(run, processes)
    extent = _extent(run)
    yield "Steps", words.count(extent["steps"])
    yield "Duration", words.seconds(extent["seconds"])
    yield "Started", str(run.info.started_at).replace("T", " ")[:19]
    yield "Versions", ", ".join(f"{name} {version}" for name, version in sorted(run.info.versions.items()))


def _device(row: dict[Any, Any]) -> str:
    name, device = str(row["device_name"] or ""), str(row["device"] or "")
    if device == "cpu":
        return f"CPU{f' ({name})' if name and name.lower() != 'cpu' else ''}"
    return f"{name} ({device})" if name else device


def _ranks(run: Run, processes: pd.DataFrame) -> str:
    expected = int(processes["world_size"].max()) if len(processes) else len(run.ranks)
    if run.ranks and len(run.ranks) < expected:
        return f"{len(run.ranks)} of {expected} ranks (the others wrote nothing)"
    return run.written_by


def _extent(run: Run) -> dict[str, float]:
    frame = run.sql(
        """
        with seen as (
          select step, wall_ns from calls union all select step, wall_ns from memory
          union all select step, wall_ns from micro_batches union all select step, wall_ns from scalars
          union all select step, wall_ns from padding union all select step, wall_ns from reductions
        ) select count(distinct step) as steps, max(wall_ns) as last from seen"""
    )
    first, last = run.processes["wall_ns"].min(), frame["last"][0]
    seconds = float("nan") if words.missing(last) or words.missing(first) else (int(last) - int(first)) / 1e9
    return {"steps": float(frame["steps"][0]), "seconds": seconds}


def memory_source(run: Run) -> str | None:
    """Where the memory of a run was measured, such as "process_rss"; None where it wasn't."""
    found = run.sql("select source from memory where source <> '' limit 1")
    return None if found.empty else str(found["source"][0])


def footer(run: Run) -> str:
    """Where the numbers come from."""
    return (
        f"<footer><p>Every number here comes from the rows in <code>{escaped(run.path)}</code>."
        " Times are host times. GiB means 1024³ bytes.</p></footer>"
    )
