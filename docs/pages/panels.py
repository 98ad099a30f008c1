"""One page for each panel, from ``dashboards/*.yaml``, with the panel drawn from the stored example run."""

from __future__ import annotations

import html
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pages.panel_notes import NOTES
from probe import dashboards

#: Pictures of panels that are drawn by the browser alone; ``docs/make_pictures.py`` takes them.
PICTURES: Final = "images/live"

INTRODUCTION: Final = """Each panel is an entry of a file in `dashboards/`, and each place draws it from there: the
report, the live panel of a notebook, and the tracking backends. The pictures on these pages are drawn from
`docs/example_run`, a run of `probe demo` on two ranks without an accelerator: memory is the resident set of the
processes there."""

_DOCS: Final = Path(__file__).resolve().parent.parent


def pages() -> dict[str, str]:
    """Every page of this section, by its place in the site; the order is that of the navigation."""
    made = {"panels/index.md": _index()}
    for board in dashboards.dashboards():
        made |= {f"panels/{panel.id}.md": _page(board, panel) for panel in board.panels}
    for view, panel in live_only():
        made[f"panels/{panel.id}.md"] = _live_page(view, panel)
    return made


def navigation() -> list[dict[str, object]]:
    """Titles and places, grouped by dashboard."""
    groups: list[dict[str, object]] = [
        {board.title: [{panel.title: f"panels/{panel.id}.md"} for panel in board.panels]}
        for board in dashboards.dashboards()
    ]
    live = [{panel.title: f"panels/{panel.id}.md"} for _, panel in live_only()]
    return [*groups, {"Only in the live panel": live}]


def live_only() -> Iterator[tuple[dashboards.View, dashboards.LivePanel]]:
    """The panels that no dashboard has, each with its view."""
    shared = {panel.id for board in dashboards.dashboards() for panel in board.panels}
    for view in dashboards.views():
        yield from ((view, panel) for panel in view.panels if panel.id not in shared)


def _index() -> str:
    text = [
        "# Panels",
        "",
        INTRODUCTION,
        "",
    ]
    for board in dashboards.dashboards():
        text += [f"## {board.title}", "", board.about, "", "| panel | shows |", "|---|---|"]
        text += [f"| [{panel.title}]({panel.id}.md) | {_cell(panel.about.shows)} |" for panel in board.panels]
        text.append("")
    text += ["## Only in the live panel", "", "| panel | shows | view |", "|---|---|---|"]
    text += [
        f"| [{panel.title}]({panel.id}.md) | {_cell(panel.about.shows)} | {view.title} |" for view, panel in live_only()
    ]
    return "\n".join([*text, ""])


def _page(board: dashboards.Dashboard, panel: dashboards.Panel) -> str:
    views = [view.title for view in dashboards.views() if any(one.id == panel.id for one in view.panels)]
    where = f"Dashboard *{board.title}*" + (f", view *{', '.join(views)}* of the live panel." if views else ".")
    text = [
        f"# {panel.title}",
        "",
        where,
        "",
        *_about(panel.about),
        *_notes(panel.id),
        _place(panel),
        '<script src="../assets/plotly.min.js"></script>',
        '<script src="../assets/figures/templates.js"></script>',
        f'<script src="../assets/figures/{panel.id}.js"></script>',
        "",
    ]
    if panel.choices:
        text += [f"One *{panel.choose.lower()}* is shown at a time; which one is chosen above the panel.", ""]
    text += ["## Behind it", "", *_tables(panel), *_keys(panel), *_charts(board, panel), *_analysis(panel)]
    return "\n".join([*text, ""])


def _place(panel: dashboards.Panel) -> str:
    label = html.escape(panel.about.shows)
    opening = f'<div class="probe-figure" id="figure-{panel.id}" role="img" aria-label="{label}">'
    return f"{opening}The picture needs JavaScript.</div>"


def _about(about: dashboards.About) -> list[str]:
    return [
        "| | |",
        "|---|---|",
        f"| **Shows** | {_cell(about.shows)} |",
        f"| **How to read it** | {_cell(about.read)} |",
        f"| **What to do** | {_cell(about.do)} |",
        "",
    ]


def _notes(id: str) -> list[str]:
    """What the caption has no room for."""
    notes = NOTES.get(id, ())
    return [*(f"* {note}" for note in notes), ""] if notes else []


def _tables(panel: dashboards.Panel) -> list[str]:
    links = ", ".join(f"[`{table}`](../reference/schema.md#{table})" for table in panel.tables)
    text = [f"Tables: {links}.", ""]
    if panel.columns:
        listed = ", ".join(f"`{name}`" for name in panel.columns)
        text += [f"Columns of its table in the report: {listed}.", ""]
    return text


def _keys(panel: dashboards.Panel) -> list[str]:
    if not panel.keys:
        return []
    listed = [f"* `{key}`" for key in panel.keys]
    return ["[Metrics](../reference/metrics.md) that tell of the same in a tracking backend:", "", *listed, ""]


def _charts(board: dashboards.Dashboard, panel: dashboards.Panel) -> list[str]:
    """What a tracking backend has of the panel: its figure and table, and charts that it draws with its own means."""
    name = f"probe/{board.name}/{panel.id}"
    text = [f"[Published](../guides/dashboards.md) as `{name}` (figure) and `{name}_table`.", ""]
    if not panel.charts:
        return text
    text += [f"Charts of TensorBoard's custom scalars, in *{board.title}*; a margin is smallest, mean and largest:", ""]
    text += ["| chart | keys |", "|---|---|"]
    for chart in panel.charts:
        title = chart.title.replace(dashboards.WHO, "of the process that tracks")
        text.append(f"| {_cell(title)} | {'<br>'.join(f'`{key}`' for key in chart.keys)} |")
    return [*text, ""]


def _analysis(panel: dashboards.Panel) -> list[str]:
    return [
        "The numbers and the figure in Python:",
        "",
        "```python",
        "import probe",
        "from probe import dashboards",
        "from probe.figures.panel import draw",
        "",
        'run = probe.open("runs/first")',
        f'panel = dashboards.panel("{panel.id}")',
        f"panel.frame(run)  # {_numbers(panel)}, a pandas frame",
        "draw(panel, run)  # a plotly figure",
        "run.close()",
        "```",
        "",
        *_reference(panel.analysis or panel.table),
    ]


def _numbers(panel: dashboards.Panel) -> str:
    return f"{panel.analysis}(run)" if panel.analysis else "what the panel's `live:` block asks for"


def _reference(path: str | None) -> list[str]:
    """The page's section on the function at ``path``."""
    options = ["    options:", "      heading_level: 3", "      show_root_full_path: true"]
    return [f"::: {path}", *options, ""] if path else []


def _live_page(view: dashboards.View, panel: dashboards.LivePanel) -> str:
    picture = f"{PICTURES}_{panel.id}.png"
    text = [
        f"# {panel.title}",
        "",
        f"View *{view.title}* of the live panel.",
        "",
        *_about(panel.about),
        *_notes(panel.id),
    ]
    if (_DOCS / picture).exists():
        text += [f"![{panel.title}: {_cell(panel.about.shows)}](../{picture})", ""]
    return "\n".join(text)


def _cell(text: str) -> str:
    """``text`` for a cell of a Markdown table."""
    return " ".join(text.replace("``", "`").split()).replace("|", "\\|")
