"""report.html: one run as one file that opens anywhere, with no network and no kernel.

Everything is inside: the words and tables as plain HTML, which are readable without a script, and the
figures as plotly JSON beside one packed copy of plotly.js. Text that came from a user is escaped wherever
it goes; the page's own policy forbids every script but its own.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, Final, cast

import pandas as pd
import plotly.io
from plotly.offline import get_plotlyjs

from probe import text as words
from probe._io import write_atomically
from probe.analysis import overview
from probe.analysis.findings import findings
from probe.dashboards import Dashboard, Panel, dashboards
from probe.errors import InputError, RunError
from probe.figures import colours
from probe.figures import theme as look
from probe.figures.panel import draw
from probe.runs.files import damage
from probe.runs.reader import Run
from probe.runs.visibility import sentence

#: Rows of a table, and choices of a panel, that the page holds; the page says when there are more.
TABLE_ROWS: Final = 50
CHOICES: Final = 6

_SEVERITY: Final = {"problem": ("▲", "Problem"), "notice": ("●", "Notice"), "fine": ("✓", "Fine")}


def write_report(run: Run | str | os.PathLike[str], path: str | os.PathLike[str] | None = None) -> Path:
    """Write the report of ``run``.

    Args:
        run: A reader, or the run directory.
        path: The file; None writes ``report.html`` into the run directory.

    Returns:
        The absolute path of the file, which is complete: it is written aside and renamed.

    Raises:
        InputError: No path was given, and the run is at a URL.
        RunError: The file can't be written.
    """
    if not isinstance(run, Run):
        with Run(run) as opened:
            return write_report(opened, path)
    if path is None and "://" in str(run.path):
        raise InputError(f"path: got None for the run at {run.path}, expected the local file to write")
    target = Path(Path(run.path) / "report.html" if path is None else path).expanduser().absolute()
    try:
        # A lone surrogate, as a broken file name may bring, has no UTF-8.
        write_atomically(target, report_html(run).encode("utf-8", errors="replace"))
    except OSError as error:
        raise RunError(f"path: the report can't be written to {target}: {error}") from error
    return target


def report_html(run: Run) -> str:
    """The report of ``run`` as one HTML document."""
    run = cast("Run", _Once(run))
    drawn = {panel.id: _draw(panel, run) for board in dashboards() for panel in board.panels}
    main = [
        "<main>",
        _tiles(overview.numbers(run)),
        _findings(findings(run)),
        *(_board(board, drawn) for board in dashboards()),
        "</main>",
    ]
    body = "\n".join([_header(run), *main, _footer(run)])  # the header says which files all of it came upon as damaged
    data = {
        panel: [{"label": o.label, "figure": o.figure} for o in d.options] for panel, d in drawn.items() if d.options
    }
    return _page(_title(run), body, data)


class _Once:
    """A run that answers each question once: findings, tiles and panels ask much the same."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._answers: dict[str, pd.DataFrame] = {}

    def sql(self, query: str) -> pd.DataFrame:
        if query not in self._answers:
            self._answers[query] = self._run.sql(query)
        return self._answers[query].copy()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)


# ------------------------------------------------------------------------------------------------------ the
# figures


@dataclass(frozen=True)
class _Option:
    """One choice of a panel: its label, and the figure as plotly's dict without the template."""

    label: str
    figure: dict[str, Any]


@dataclass(frozen=True)
class _Drawn:
    """A panel of this run: its figures, or why there is none, and its table."""

    options: list[_Option]
    missing: str | None
    listing: pd.DataFrame
    memory: str  #: what memory is in it, where that isn't a device's


def _draw(panel: Panel, run: Run) -> _Drawn:
    options, missing = [], None
    for label, choice in panel.options(run)[:CHOICES] or [("", {})]:
        figure = draw(panel, run, **choice)
        missing = look.why(figure)
        if missing is None:
            options.append(_Option(label, _bare(figure)))
    listing = panel.listing(run)
    memory = words.SOURCES["process_rss"] if "memory" in panel.tables and _source(run) == "process_rss" else ""
    if memory:  # a device allocates; of a process the resident set is known
        listing = listing.rename(columns=lambda name: str(name).replace("_allocated_", "_resident_"))
    return _Drawn(options, None if options else missing, listing, memory)


def _bare(figure: Any) -> dict[str, Any]:
    # The template is the same for all figures and depends on the theme: the page brings it once.
    figure.layout.template = None
    bare: dict[str, Any] = json.loads(plotly.io.to_json(figure, engine="json"))
    bare["layout"].pop("template", None)
    return bare


def _script_json(data: Any) -> str:
    """JSON that may stand inside a script element: nothing in it can end the element or open a comment."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@lru_cache(maxsize=1)
def _plotly_packed() -> str:
    """plotly.js, compressed (a third of its size), as base64 text."""
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode("ascii")


# ----------------------------------------------------------------------------------------------------------
# the page


def _page(title: str, body: str, data: dict[str, Any]) -> str:
    templates = {"light": _template("light"), "dark": _template("dark")}
    payload = _script_json({"templates": templates, "dark": colours.dark_of_light(), "panels": data})
    nonce = hashlib.sha256((body + payload).encode("utf-8", "replace")).hexdigest()[:32]
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{_static("report.css")}</style>
</head>
<body>
<a class="skip" href="#findings">Skip to what was found</a>
{body}
<script type="application/json" id="data">{payload}</script>
<script type="text/plain" id="plotly">{_plotly_packed()}</script>
<script nonce="{nonce}">{_static("report.js")}</script>
</body>
</html>
"""


def _template(theme: look.Theme) -> dict[str, Any]:
    empty = look.blank(theme)
    return dict(json.loads(plotly.io.to_json(empty, engine="json"))["layout"]["template"])


@lru_cache(maxsize=4)
def _static(name: str) -> str:
    return (resources.files("probe.views.report") / name).read_text(encoding="utf-8")


def _title(run: Run) -> str:
    return f"{_text(run.info.project)} · {_text(run.info.experiment or Path(run.path).name)} · probe"


def _text(value: Any) -> str:
    return html.escape(str(value), quote=True)


def _header(run: Run) -> str:
    facts = "".join(
        f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>"
        for name, value in _facts(run)
        if value not in (None, "")
    )
    rss = ""
    if _source(run) == "process_rss":
        rss = (
            '<p class="remark">No accelerator was used: memory in this report means the resident set (RSS)'
            " of each process, not the memory of a device.</p>"
        )
    told = _attempts(run)
    attempts = f'<p class="remark">{_text(told)}</p>' if told else ""
    damaged = f'<p class="remark">{_text(damage(run.damaged))}</p>' if run.damaged else ""
    links = "".join(f'<a href="#{board.name}">{_text(board.title)}</a>' for board in dashboards())
    return f"""<header>
<p class="brand">probe <span>run report</span></p>
<h1>{_text(run.info.project)} <span>{_text(run.info.experiment or Path(run.path).name)}</span></h1>
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


def _source(run: Run) -> str | None:
    found = run.sql("select source from memory where source <> '' limit 1")
    return None if found.empty else str(found["source"][0])


def _footer(run: Run) -> str:
    return (
        f"<footer><p>Every number here comes from the rows in <code>{_text(run.path)}</code>."
        " Times are host times. GiB means 1024³ bytes.</p></footer>"
    )


# ------------------------------------------------------------------------------------------------- tiles
# and findings


def _tiles(numbers: pd.DataFrame) -> str:
    tiles = "".join(
        f'<li><p class="name">{_text(row["title"])}</p><p class="value">{_text(row["text"])}</p>'
        f'<p class="note">{_text(row["note"])}</p>{_spark(row["history"])}'
        f'<p class="about">{_text(row["about"])}</p></li>'
        for row in words.rows(numbers)
    )
    return f'<section aria-label="The run in numbers"><ul class="tiles">{tiles}</ul></section>'


def _spark(history: list[float], width: float = 120, height: float = 26) -> str:
    """A small line of the values, without axes; empty for fewer than two."""
    values = pd.Series(history, dtype=float)
    if values.notna().sum() < 2:
        return '<div class="spark"></div>'
    kept = values.iloc[look.thin(values, 120)]
    low, span = kept.min(), (kept.max() - kept.min()) or 1.0
    last = max(len(values) - 1, 1)
    points = " ".join(
        f"{x / last * (width - 4) + 2:.1f},{height - 3 - (y - low) / span * (height - 6):.1f}"
        for x, y in zip(kept.dropna().index.tolist(), kept.dropna().tolist(), strict=True)
    )
    last_point = points.rpartition(" ")[2]  # drawn as a dot: a line without length that has round ends
    return (
        f'<svg class="spark" viewBox="0 0 {width:g} {height:g}" preserveAspectRatio="none"'
        f' aria-hidden="true"><polyline points="{points}"/>'
        f'<polyline class="last" points="{last_point} {last_point}"/></svg>'
    )


def _findings(frame: pd.DataFrame) -> str:
    if frame.empty:
        rows = '<p class="missing">Nothing was recorded yet, so that nothing was found.</p>'
    else:
        cells = "".join(_finding(row) for row in words.rows(frame))
        rows = (
            '<table class="findings"><thead><tr><th scope="col">How bad</th>'
            '<th scope="col">What was found</th><th scope="col">What to do</th></tr></thead>'
            f"<tbody>{cells}</tbody></table>"
        )
    return f'<section id="findings"><h2>What probe found</h2>{rows}</section>'


def _finding(row: dict[Any, Any]) -> str:
    sign, label = _SEVERITY[row["severity"]]
    advice = row["advice"][:1].upper() + row["advice"][1:]
    return (
        f'<tr class="{row["severity"]}"><th scope="row"><span aria-hidden="true">{sign}</span> {label}</th>'
        f'<td>{_text(row["finding"])}</td><td><a href="#{_text(row["topic"])}">{_text(advice)}</a></td></tr>'
    )


# ----------------------------------------------------------------------------------------------------------
# panels


def _board(board: Dashboard, drawn: dict[str, _Drawn]) -> str:
    panels = "\n".join(_panel(panel, drawn[panel.id]) for panel in board.panels)
    return (
        f'<section id="{board.name}"><h2>{_text(board.title)}</h2><p class="lead">{_text(board.about)}</p>'
        f'<div class="panels">{panels}</div></section>'
    )


def _panel(panel: Panel, drawn: _Drawn) -> str:
    picture = f'<p class="missing">{_text(drawn.missing)}</p>' if drawn.missing is not None else _picture(panel, drawn)
    return f"""<article class="panel" id="panel-{panel.id}">
<h3>{_text(panel.title)}</h3>
{_of_memory(panel, drawn)}<p class="shows">{_text(panel.about.shows)}</p>
{picture}
<details><summary>How to read it, and what to do</summary>
<p>{_text(panel.about.read)}</p><p>{_text(panel.about.do)}</p></details>
{_listing(drawn.listing, panel.unfolded)}
</article>"""


def _of_memory(panel: Panel, drawn: _Drawn) -> str:
    shows_it = any("bytes" in str(name) for name in drawn.listing.columns) or "peak" in panel.id
    return f'<p class="note">Memory here: {_text(drawn.memory)}</p>\n' if drawn.memory and shows_it else ""


def _picture(panel: Panel, drawn: _Drawn) -> str:
    height = int(drawn.options[0].figure["layout"].get("height", 320))
    label = _text(f"{panel.title}. {panel.about.shows} The same numbers stand in the table below.")
    chart = (
        f'<div class="chart" id="{panel.id}" data-panel="{panel.id}" role="group" aria-label="{label}"'
        f' style="min-height:{height}px"><p class="waiting">Drawing …</p></div>'
    )
    if len(drawn.options) < 2:
        return chart
    options = "".join(f'<option value="{i}">{_text(o.label)}</option>' for i, o in enumerate(drawn.options))
    select = f'<select data-for="{panel.id}">{options}</select>'
    return f'<label class="choose">{_text(panel.choose)} {select}</label>{chart}'


def _listing(frame: pd.DataFrame, unfolded: bool) -> str:
    if frame.empty:
        return ""
    head = "".join(f'<th scope="col">{_text(_heading(str(name)))}</th>' for name in frame.columns)
    rows = "".join(
        "<tr>" + "".join(_cell(str(name), value) for name, value in row.items()) + "</tr>"
        for row in words.rows(frame.head(TABLE_ROWS))
    )
    more = ""
    if len(frame) > TABLE_ROWS:
        more = f"<p class=note>The first {TABLE_ROWS} of {words.count(len(frame))} rows.</p>"
    return (
        f"<details{' open' if unfolded else ''}><summary>As a table</summary>"
        f'<div class="scroll" tabindex="0" role="region" aria-label="Table">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{more}</details>"
    )


#: How a column is spelled, by the end of its name; the first that fits.
_SPELLINGS: Final[dict[str, Callable[[Any], str]]] = {
    "rank_imbalance_ratio": words.ratio,
    "micro_batch_imbalance_ratio": words.ratio,
    "sync_wait_ratio": words.ratio,
    "share_ratio": words.ratio,
    "_ratio": words.percent,
    "bytes": words.size,
    "_s": words.seconds,
    "smallest": words.number,
    "largest": words.number,
    "last": words.number,
    "_ms": words.number,
}


def _heading(name: str) -> str:
    if name == "who":
        return "rank or process"
    for suffix in ("_bytes", "_ratio", "_s"):
        name = name.removesuffix(suffix)
    return name.replace("_", " ")


def _cell(name: str, value: Any) -> str:
    if not isinstance(value, str):
        return f'<td class="number">{_text(_spelled(name, value))}</td>'
    return f"<td>{_text(value)}</td>"


def _spelled(name: str, value: Any) -> str:
    """A cell's number with the unit that its column's name says."""
    if value is None or value is pd.NA:
        return words.UNKNOWN
    spell = next((one for suffix, one in _SPELLINGS.items() if name.endswith(suffix)), None)
    if spell is not None:
        return spell(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return words.count(value) if words.missing(value) or float(value).is_integer() else words.number(value)
