"""Figures of the dashboards put together into one small plotly figure, for a panel that has been closed.

The figures are those of the report. They are cut down so that a notebook stays small: fewer points, fewer digits, no
hover texts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from probe import dashboards
from probe.figures import theme as look
from probe.figures.panel import draw
from probe.views.panel.static_bundle import base_layout, label

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: What stands in it, one below the other: legends and labels have room at any width.
PANELS: Final = ("phase_durations", "memory_by_phase", "balance_over_steps", "padding_over_steps")

#: Entries of one trace, and bytes of the whole as JSON.
POINTS: Final = 120
MOST_BYTES: Final = 60_000

#: Pixels of the heading, the plot, what stands below its axis, and a line of the legend.
_HEADING, _PLOT, _AXIS, _LINE = 30, 190, 52, 19

#: Pixels between two figures, and those around all of them.
_GAP, _TOP, _BOTTOM = 18, 44, 12

#: How wide a legend may be on a narrow page, and what an entry takes beside its letters.
_LEGEND, _ENTRY, _LETTER = 270, 48, 6.4


def figure(run: Run, title: str, panels: Sequence[str] = PANELS) -> dict[str, Any] | None:
    """The figures of ``panels`` as one plain plotly figure; None where none has anything to show, or where it would
    be larger than :data:`MOST_BYTES`.
    """
    drawn = []
    for name in panels:
        panel = dashboards.panel(name)
        made = draw(panel, run, bins=POINTS // 2)
        if look.why(made) is None:
            drawn.append((panel.title, made))
    if not drawn:
        return None
    found = _together(drawn, title)
    return found if len(json.dumps(found)) <= MOST_BYTES else None


def _together(drawn: Sequence[tuple[str, Any]], title: str) -> dict[str, Any]:
    axes = [_AXIS + _LINE * str(made.layout.xaxis.title.text).count("<br>") for _, made in drawn]
    legends = [_LINE * _legend_lines(made) for _, made in drawn]
    heights = [_HEADING + _PLOT + axis + legend + _GAP for axis, legend in zip(axes, legends, strict=True)]
    inside = sum(heights)
    layout: dict[str, Any] = {
        **base_layout(),
        "height": _TOP + inside + _BOTTOM,
        "margin": {"l": 60, "r": 16, "t": _TOP, "b": _BOTTOM},
        "title": {
            "text": label(title),
            "x": 0,
            "xref": "container",
            "y": 1,
            "yanchor": "top",
            "pad": {"l": 12, "t": 12},
            "font": {"size": 15},
        },
        "annotations": [],
        "shapes": [],
        "barmode": "stack",
    }
    data: list[dict[str, Any]] = []
    top = float(inside)
    for index, ((name, made), height) in enumerate(zip(drawn, heights, strict=True)):
        box = ((top - _HEADING - _PLOT) / inside, (top - _HEADING) / inside)
        suffix = "" if index == 0 else str(index + 1)
        data.extend(_traces(made, suffix))
        _place(layout, made, suffix, box, legend=box[0] - axes[index] / inside)
        layout["annotations"].append(_heading(name, box))
        top -= height
    return {"data": data, "layout": layout}


def _legend_lines(made: Any) -> int:
    """Lines of a figure's legend on a narrow page, where its entries stand in columns as wide as the widest."""
    names = [str(one.name) for one in made.data if one.name and one.showlegend is not False]
    if len(names) < 2 and not any(one.showlegend for one in made.data):
        return 0
    widest = max(_ENTRY + _LETTER * len(name) for name in names)
    return -(-len(names) // max(int(_LEGEND // widest), 1))


def _heading(name: str, box: tuple[float, float]) -> dict[str, Any]:
    place = {"x": 0, "y": box[1], "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom"}
    text = f"<b>{label(name)}</b>"
    return {"text": text, "showarrow": False, "yshift": 6, "font": {"size": 13}, **place}


def _traces(made: Any, suffix: str) -> Iterator[dict[str, Any]]:
    for trace in made.data:
        plain = _plain(trace.to_plotly_json(), _kept(trace))
        for name in ("hovertext", "hoverinfo", "customdata", "hovertemplate", "uid"):
            plain.pop(name, None)
        plain |= {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}", "legend": f"legend{suffix}"}
        if "legendgroup" in plain:
            plain["legendgroup"] = f"{suffix}:{plain['legendgroup']}"
        yield plain


def _kept(trace: Any) -> list[int] | None:
    """Which entries of a long trace stay: spread evenly, so that traces that are stacked keep the same ones."""
    count = len(trace.x) if trace.x is not None else 0
    return None if count <= POINTS else np.unique(np.linspace(0, count - 1, POINTS).astype(int)).tolist()


def _plain(value: Any, kept: list[int] | None = None) -> Any:
    """Plain JSON: no arrays, few digits; of long lists the entries ``kept``."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one, kept) for key, one in value.items()}
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        whole = list(value) if kept is None or len(value) <= kept[-1] else [value[index] for index in kept]
        return [_plain(one) for one in whole]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return float(f"{value:.5g}") if np.isfinite(value) else None
    return value


def _place(layout: dict[str, Any], made: Any, suffix: str, box: tuple[float, float], legend: float) -> None:
    """The axes, the legend and the guide lines of one figure, in its place."""
    given = _plain(made.layout.to_plotly_json())
    across = {"anchor": f"y{suffix}", "automargin": True}
    up = {"domain": list(box), "anchor": f"x{suffix}", "automargin": True}
    layout[f"xaxis{suffix}"] = {**given.get("xaxis", {}), **across}
    layout[f"yaxis{suffix}"] = {**given.get("yaxis", {}), **up}
    # Below the axis: there it grows downwards where the page is narrow, and never over the heading.
    place = {"orientation": "h", "x": 0, "y": legend, "xanchor": "left", "yanchor": "top"}
    layout[f"legend{suffix}"] = {**place, "font": {"size": 11}}
    for name in ("shapes", "annotations"):
        for one in given.get(name, ()):
            if one.get("xref", "x") != "paper" and one.get("yref", "y") != "paper":
                layout[name].append({**one, "xref": _moved(one, "x", suffix), "yref": _moved(one, "y", suffix)})


def _moved(one: Mapping[str, Any], axis: str, suffix: str) -> str:
    """A reference to the figure's own axis as one to its axis here.

    >>> _moved({"xref": "x domain"}, "x", "2"), _moved({}, "y", "")
    ('x2 domain', 'y')
    """
    given = str(one.get(f"{axis}ref", axis))
    return f"{axis}{suffix}{given[1:]}"
