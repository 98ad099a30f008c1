"""What is left of a panel without a kernel: the overview as text, as SVG and as plotly JSON.

All three are made from the live tables by the very tiles that the live overview shows, in a few milliseconds and
without a browser. Names from users are escaped in each of them.
"""

from __future__ import annotations

import base64
import bisect
import html
import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, Final

from probe import text as say
from probe.analysis.verdict.finding import KINDS
from probe.dashboards.courses import Course, Parts
from probe.dashboards.outstanding import who_series
from probe.dashboards.standing import standing
from probe.figures import colours, lines, thinning
from probe.live import series
from probe.live.tables import LiveTable, Words
from probe.views.panel import saved_samples

#: What JupyterLab's extension of probe draws the copy by.
COPY: Final = "application/vnd.probe.copy+json"

#: Points of a line; more are thinned to their extremes.
POINTS: Final = 160

#: Letters of a line of a finding.
_LETTERS: Final = 104

#: Digits of a number in plotly JSON.
_DIGITS: Final = 5

_WIDTH: Final = 760
_TILE: Final = (244, 96)  # width and height
#: Of pictures and copies.
FONT: Final = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"


@dataclass(frozen=True)
class Reading:
    """One tile: its value, and how it went.

    Attributes:
        text: The value as a person says it.
        note: Of what it is, with smallest and largest, or why there is nothing.
        means: What it means, in a sentence.
        status: One of "good", "warn", "alarm" and "none".
        steps: The steps of its course, thinned.
        values: The values of its course, thinned.
        value: The number that ``text`` says; NaN without one.
        who: Which rank stands out, or that none does; empty where nobody is compared.
    """

    title: str
    unit: str
    text: str
    note: str
    means: str
    status: str
    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    value: float = math.nan
    who: str = ""


@dataclass(frozen=True)
class Overview:
    """All that the static forms say.

    Attributes:
        title: Project and experiment.
        facts: A line about the run.
        hint: How to open it again.
        errors: What is wrong with the panel or the run.
        findings: What is wrong in the run or worth a change, worst first: dicts with "kind", "sentence" and "change",
            see :func:`probe.views.panel.looking.told`.
        samples: A few of them, as :func:`probe.views.panel.browsing.kept` gives them; None where there are none.
    """

    title: str
    facts: str
    hint: str
    readings: list[Reading]
    errors: list[str] = field(default_factory=list)
    findings: Sequence[Mapping[str, Any]] = ()
    samples: Mapping[str, Any] | None = None


def readings(
    tables: Mapping[str, LiveTable], words: Words, tiles: Sequence[Mapping[str, Any]], until: int | None = None
) -> list[Reading]:
    """The tiles of a ``live:`` block, read now.

    Args:
        tables: Of the run.
        words: Their texts.
        tiles: The tiles.
        until: The last step that counts; None for all. What is summed up over the run is summed up to now.
    """
    return [_reading(course_of(tables, words, tile, until), tile) for tile in tiles]


def _reading(course: Course, tile: Mapping[str, Any]) -> Reading:
    told = standing(tile, course)
    kept = thinning.thin(course.values, POINTS).tolist() if course.values and not tile.get("total") else []
    return Reading(
        title=str(tile["title"]),
        unit=str(tile.get("unit", "number")),
        text=told.text,
        note=told.note,
        means=told.means,
        status=told.status,
        steps=[course.steps[index] for index in kept],
        values=[course.values[index] for index in kept],
        value=told.value,
        who=told.who,
    )


def course_of(
    tables: Mapping[str, LiveTable], words: Words, tile: Mapping[str, Any], until: int | None = None
) -> Course:
    """A quantity over the run, from its live tables.

    Args:
        tables: Of the run.
        words: Their texts.
        tile: A quantity or a tile.
        until: The last step that counts; None for all.

    Returns:
        What :func:`probe.analysis.quantities.courses` finds by SQL.
    """
    steps, values = series.by_step(tables, words, tile)
    by_rank = {}
    who = who_series(tile)
    if who is not None:
        found = series.cells(tables, words, who)
        known = ((int(step), int(rank), value) for (step, rank), value in found.items() if None not in (step, rank))
        by_rank = {(step, rank): value for step, rank, value in known if step >= 0 and (until is None or step <= until)}
    total = capacity = math.nan
    if tile.get("total") and any(table.count for table in tables.values()):
        total = series.total(tables, words, tile)
    elif "capacity" in tile:
        capacity = series.total(tables, words, {"reduce": "max", **tile["capacity"]})
    if until is not None and not tile.get("total"):
        count = bisect.bisect_right(steps, until)
        steps, values = steps[:count], values[:count]
    return Course(steps, values, total, capacity, by_rank, _parts(tables, words, tile, steps))


def _parts(
    tables: Mapping[str, LiveTable], words: Words, tile: Mapping[str, Any], steps: Sequence[int]
) -> Sequence[Parts]:
    if not tile.get("pooled"):
        return ()
    found: dict[int, dict[tuple[Any, ...], tuple[float, float]]] = {step: {} for step in steps}
    for (step, *key), both in series.parts(tables, words, tile).items():
        if step in found:
            found[step][tuple(key)] = both
    return list(found.values())


# ----------------------------------------------------------------------------------------------------------- text


def text(overview: Overview) -> str:
    """The overview in words, one line a tile; control characters of names are gone."""
    lines = [plain(overview.title), plain(overview.facts), *map(plain, verdict(overview))]
    width = max((len(one.title) for one in overview.readings), default=0)
    value = max((len(one.text) for one in overview.readings), default=0)
    for one in overview.readings:
        mark = {"warn": "  (look at it)", "alarm": "  (problem)"}.get(one.status, "")
        lines.append(f"  {one.title:<{width}}  {one.text:>{value}}   {one.note}{mark}")
    lines += [f"  ! {plain(one)}" for one in overview.errors]
    lines.append(plain(overview.hint))
    return "\n".join(line for line in lines if line)


def verdict(overview: Overview) -> list[str]:
    """The worst finding in whole sentences, its change, and how many more there are; nothing where there is none."""
    if not overview.findings:
        return []
    worst, more = overview.findings[0], len(overview.findings) - 1
    sign, label, _ = KINDS[worst["kind"]]
    change = worst["change"] or {}
    lines = textwrap.wrap(f"{sign} {label}: {plain(worst['sentence'])}", _LETTERS)
    lines += textwrap.wrap(f"→ {plain(change['advice'])} {plain(change['line'] or '')}", _LETTERS) if change else []
    return [*lines, f"{more} more." if more else ""][: None if more else -1]


def plain(value: str) -> str:
    """A text without control characters."""
    return "".join(one if one.isprintable() else " " for one in value)


# ------------------------------------------------------------------------------------------------------------ SVG


def svg(overview: Overview) -> str:
    """The overview as a picture that needs no script, no font and no network; legible on light and on dark."""
    across = 3
    rows = -(-len(overview.readings) // across)
    told = verdict(overview)
    top = 62 + 18 * (len(told) + len(overview.errors))
    height = top + rows * (_TILE[1] + 8) + 30
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    label = f'role="img" aria-label="{escaped(overview.title)}" font-family="{FONT}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {label}>',
        f"<title>{escaped(overview.title)}</title><desc>{escaped(text(overview))}</desc>",
        f'<rect width="{_WIDTH}" height="{height}" rx="8" fill="#ffffff" stroke="#d0d7de"/>',
        _words(16, 28, overview.title, 16, "#1f2328", bold=True, room=700),
        _words(16, 48, overview.facts, 12, "#59636e", room=700),
    ]
    for index, line in enumerate(told):
        colour = KINDS[overview.findings[0]["kind"]][2] if index == 0 else "#1f2328"
        parts.append(_words(16, 66 + 18 * index, line, 12, colour, bold=index == 0, room=728))
    for index, error in enumerate(overview.errors, len(told)):
        parts.append(_words(16, 66 + 18 * index, f"! {error}", 12, "#b42318", room=700))
    for index, one in enumerate(overview.readings):
        x = 8 + (index % across) * (_TILE[0] + 6)
        parts.append(_tile(one, x, top + (index // across) * (_TILE[1] + 8)))
    parts.append(_words(16, height - 12, overview.hint, 12, "#59636e", room=700))
    return "".join([*parts, "</svg>"])


def _tile(one: Reading, x: int, y: int) -> str:
    width, height = _TILE
    colour = {"warn": "#9a6700", "alarm": "#b42318"}.get(one.status, "#1f2328")
    return "".join(
        [
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="#f6f8fa"/>',
            _words(x + 10, y + 20, one.title, 12, "#59636e", room=width - 20),
            _words(x + 10, y + 45, one.text, 20, colour, bold=True, room=width - 20),
            _words(x + 10, y + 62, one.note, 11, "#59636e", room=width - 20),
            _spark(one, x + 10, y + 68, width - 20, height - 76),
        ]
    )


def _spark(one: Reading, x: int, y: int, width: int, height: int) -> str:
    found = lines.line(one.steps, one.values)
    if len(found.points) + len(found.infinite) < 2:
        return ""

    def placed(point: tuple[float, float]) -> tuple[str, str]:
        return f"{x + point[0] * width:.1f}", f"{y + point[1] * height:.1f}"

    def dot(name: str, point: tuple[float, float], colour: str) -> str:
        across, down = placed(point)
        return f'<circle class="{name}" cx="{across}" cy="{down}" r="2.5" fill="{colours.of_theme(colour)}"/>'

    points = " ".join(",".join(placed(point)) for point in found.points)
    stroke = f'fill="none" stroke="{colours.of_theme("ink_2")}" stroke-width="1.5"'
    drawn = f'<polyline points="{points}" {stroke}/>' if found.points else ""
    drawn += "".join(dot("last", point, "accent") for point in found.points[-1:])
    return drawn + "".join(dot("infinite", point, "alarm") for point in found.infinite)


def _words(x: int, y: int, value: str, size: int, colour: str, *, room: int, bold: bool = False) -> str:
    most = max(int(room / (0.54 * size)), 4)
    value = value if len(value) <= most else value[: most - 1] + "…"
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}"{weight}>{escaped(value)}</text>'


def escaped(value: str) -> str:
    """Text for XML: no markup, and none of the characters that XML can't hold."""
    kept = "".join(one if one.isprintable() or one == "\n" else " " for one in value)
    return html.escape(kept.encode("utf-8", "replace").decode(), quote=True)


# --------------------------------------------------------------------------------------------------------- plotly


@cache
def base_layout() -> dict[str, Any]:
    """The layout that all of probe's figures share, as plain JSON. On white, since nobody can change the theme."""
    from probe.figures import theme as look  # with plotly, which a picture in a terminal doesn't need

    paper = look.BACKGROUND["light"]
    template = json.loads(json.dumps(look.template("light").to_plotly_json()))
    return {"template": template, "paper_bgcolor": paper, "plot_bgcolor": paper}


def label(value: str) -> str:
    """A text for plotly, which reads some markup.

    >>> label("<b>actor</b> & 1")
    '&lt;b&gt;actor&lt;/b&gt; &amp; 1'
    """
    return html.escape(plain(value), quote=False)


def plotly_figure(overview: Overview) -> dict[str, Any]:
    """The tiles' courses as small charts, as a plain plotly figure; words where there is nothing to draw."""
    drawn = [one for one in overview.readings if sum(map(math.isfinite, one.values)) >= 2]
    if not drawn:
        return _nothing(overview)
    rows = -(-len(drawn) // 2)
    figure = _blank(overview, height=70 + 170 * rows)
    for index, one in enumerate(drawn):
        _small_chart(figure, one, index, rows)
    return figure


def _blank(overview: Overview, height: int) -> dict[str, Any]:
    title = f'<b>{label(overview.title)}</b><br><span style="font-size:12px">{label(overview.hint)}</span>'
    layout: dict[str, Any] = {
        **base_layout(),
        "height": height,
        "margin": {"l": 56, "r": 16, "t": 84, "b": 32},
        "title": {"text": title, "x": 0, "xref": "container", "pad": {"l": 12}, "font": {"size": 15}},
        "showlegend": False,
        "annotations": [],
    }
    return {"data": [], "layout": layout}


def _nothing(overview: Overview) -> dict[str, Any]:
    figure = _blank(overview, height=180)
    words = [overview.facts or "Nothing was recorded yet.", *overview.errors]
    hidden = {"visible": False}
    figure["layout"] |= {"xaxis": hidden, "yaxis": hidden}
    figure["layout"]["annotations"].append(
        {
            "text": "<br>".join(map(label, words)),
            "x": 0.5,
            "y": 0.5,
            "xref": "paper",
            "yref": "paper",
            "showarrow": False,
        }
    )
    return figure


def _small_chart(figure: dict[str, Any], one: Reading, index: int, rows: int) -> None:
    suffix = "" if index == 0 else str(index + 1)
    column, row = index % 2, index // 2
    left, height = 0.54 * column, 1 / rows
    bottom = 1 - (row + 1) * height + 0.28 * height / 2
    scale, unit = _scale(one)
    figure["data"].append(
        {
            "type": "scatter",
            "mode": "lines" if len(one.values) > 30 else "lines+markers",
            "x": one.steps,
            "y": [None if not math.isfinite(value) else _short(value / scale) for value in one.values],
            "name": one.title,
            "xaxis": f"x{suffix}",
            "yaxis": f"y{suffix}",
            "line": {"color": colours.of_theme("ink_2"), "width": 1.5},
            "hovertemplate": f"step %{{x}}: %{{y}} {unit}<extra></extra>",
        }
    )
    top = bottom + 0.68 * height
    figure["layout"][f"xaxis{suffix}"] = {"domain": [left, left + 0.46], "anchor": f"y{suffix}", "automargin": True}
    figure["layout"][f"yaxis{suffix}"] = {"domain": [bottom, top], "anchor": f"x{suffix}", "automargin": True}
    title = f"<b>{label(one.title)}</b>  {label(one.text)}"
    place = {"x": left, "y": top, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom"}
    figure["layout"]["annotations"].append({"text": title, "showarrow": False, "font": {"size": 12}, **place})


def _scale(one: Reading) -> tuple[float, str]:
    """What to divide by, and the unit to show."""
    if one.unit == "bytes":
        return say.byte_unit(max((value for value in one.values if math.isfinite(value)), default=0.0))
    return (0.01, "%") if one.unit == "percent" else (1.0, one.unit)


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def bundle(overview: Overview) -> dict[str, Any]:
    """The static MIME bundle: plotly JSON, SVG and text."""
    return {
        "application/vnd.plotly.v1+json": plotly_figure(overview),
        "image/svg+xml": svg(overview),
        "text/plain": text(overview),
    }


def copy(overview: Overview, key: str, directory: str | None = None) -> dict[str, Any]:
    """The MIME bundle of the copy that stands beside a live panel: a page, SVG and text.

    The page is a picture, hidden while the live panel stands in it whose root element has ``key`` as its ``data-key``.
    The picture is an ``<img>``, which stays where a front end takes scripts, styles and SVG out of what it shows.

    Args:
        overview: What it says.
        key: The live panel's.
        directory: Absolute path of the run, for JupyterLab's extension, which adds a way to a tab; None without one.
    """
    picture = svg(overview)
    encoded = base64.b64encode(picture.encode()).decode()
    made = f"{datetime.now().astimezone():%Y-%m-%d %H:%M}"
    page = (
        f'<style>:root:has([data-key="{key}"]) .probe-copy-{key}{{display:none}}</style>'
        f'<div class="probe-copy probe-copy-{key}" style="max-width:760px;font:13px/1.5 {FONT}">'
        f'<img alt="{escaped(text(overview))}" src="data:image/svg+xml;base64,{encoded}" '
        f'style="max-width:100%;display:block"><p style="margin:6px 0">Saved copy of {made}. '
        "The live panel needs a kernel that isn't busy, and anywidget where Jupyter runs: run "
        f"<code>{escaped(overview.hint)}</code></p>"
        f"{saved_samples.section(overview.samples)}</div>"
    )
    beside = {} if directory is None else {COPY: {"run": directory, "key": key}}
    return {**beside, "text/html": page, "image/svg+xml": picture, "text/plain": text(overview)}


def size_of(found: Mapping[str, Any]) -> int:
    """Bytes of a bundle in a notebook."""
    return len(json.dumps(found))
