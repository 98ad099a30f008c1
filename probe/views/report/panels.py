"""The dashboards' panels in the report: a figure, how to read it, and its numbers as a table."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

import pandas as pd
import plotly.io

from probe import text as words
from probe.dashboards import Dashboard, Panel
from probe.figures import theme as look
from probe.figures.panel import draw
from probe.runs.reader import Run
from probe.views.report.escaping import escaped
from probe.views.report.header import memory_source
from probe.views.report.keeping import kept_part

#: Rows of a table, and choices of a panel, that the page holds; the page says when there are more.
TABLE_ROWS: Final = 50
CHOICES: Final = 6


@dataclass(frozen=True)
class Drawn:
    """A panel of this run."""

    article: str  #: as HTML, with a place for its figures
    options: list[dict[str, Any]]  #: the choices: the label of each, and its figure as plotly's dict without template


def draw_panel(panel: Panel, run: Run) -> Drawn:
    """A panel, as it was kept or drawn.

    Args:
        panel: Of a dashboard.
        run: The run.
    """

    def made() -> str:
        return json.dumps(asdict(drawn_panel(panel, run)))

    return Drawn(**json.loads(kept_part(run, f"panel {panel.id}", made)))


def drawn_panel(panel: Panel, run: Run) -> Drawn:
    """A panel, drawn.

    Args:
        panel: Of a dashboard.
        run: The run.
    """
    options, missing = [], None
    for label, choice in panel.options(run)[:CHOICES] or [("", {})]:
        figure = draw(panel, run, **choice)
        missing = look.why(figure)
        if missing is None:
            options.append({"label": label, "figure": _bare(figure)})
    listing = panel.listing(run)
    memory = words.SOURCES["process_rss"] if "memory" in panel.tables and memory_source(run) == "process_rss" else ""
    if memory:  # a device allocates; of a process the resident set is known
        listing = listing.rename(columns=lambda name: str(name).replace("_allocated_", "_resident_"))
    picture = _picture(panel, options) if options else f'<p class="missing">{escaped(missing)}</p>'
    return Drawn(_article(panel, picture, listing, memory), options)


def _bare(figure: Any) -> dict[str, Any]:
    # The template is the same for all figures and depends on the theme: the page brings it once.
    figure.layout.template = None
    bare: dict[str, Any] = json.loads(plotly.io.to_json(figure, engine="json"))
    bare["layout"].pop("template", None)
    return bare


def board_section(board: Dashboard, drawn: dict[str, Drawn]) -> str:
    """A dashboard with its panels.

    Args:
        board: The dashboard.
        drawn: Its panels, by id.
    """
    panels = "\n".join(drawn[panel.id].article for panel in board.panels)
    return (
        f'<section id="{board.name}"><h2>{escaped(board.title)}</h2><p class="lead">{escaped(board.about)}</p>'
        f'<div class="panels">{panels}</div></section>'
    )


def _article(panel: Panel, picture: str, listing: pd.DataFrame, memory: str) -> str:
    """A panel's picture, between what memory is in it and the table of its numbers."""
    shows_it = any("bytes" in str(name) for name in listing.columns) or "peak" in panel.id
    note = f'<p class="note">Memory here: {escaped(memory)}</p>\n' if memory and shows_it else ""
    return f"""<article class="panel" id="panel-{panel.id}">
<h3>{escaped(panel.title)}</h3>
{note}<p class="shows">{escaped(panel.about.shows)}</p>
{picture}
<details><summary>How to read it, and what to do</summary>
<p>{escaped(panel.about.read)}</p><p>{escaped(panel.about.do)}</p></details>
{_listing(listing, panel.unfolded)}
</article>"""


def _picture(panel: Panel, options: list[dict[str, Any]]) -> str:
    height = int(options[0]["figure"]["layout"].get("height", 320))
    label = escaped(f"{panel.title}. {panel.about.shows} The same numbers stand in the table below.")
    chart = (
        f'<div class="chart" id="{panel.id}" data-panel="{panel.id}" role="group" aria-label="{label}"'
        f' style="min-height:{height}px"><p class="waiting">Drawing …</p></div>'
    )
    if len(options) < 2:
        return chart
    choices = "".join(f'<option value="{i}">{escaped(one["label"])}</option>' for i, one in enumerate(options))
    select = f'<select data-for="{panel.id}">{choices}</select>'
    return f'<label class="choose">{escaped(panel.choose)} {select}</label>{chart}'


def _listing(frame: pd.DataFrame, unfolded: bool) -> str:
    if frame.empty:
        return ""
    head = "".join(f'<th scope="col">{escaped(_heading(str(name)))}</th>' for name in frame.columns)
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
        return f'<td class="number">{escaped(_spelled(name, value))}</td>'
    return f"<td>{escaped(value)}</td>"


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
