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

_HEIGHT: Final = 270


def figure(run: Run, title: str, panels: Sequence[str] = PANELS) -> dict[str, Any] | None:
    """The figures of ``panels`` as one plain plotly figure; None where none has anything to show, or where it would
    be larger than :data:`MOST_BYTES`.
    """
    drawn = []
    for name in panels:
        panel = dashboards.panel(name)
        made = draw(panel, run)
        if look.why(made) is None:
            drawn.append((panel.title, made))
    if not drawn:
        return None
    found = _together(drawn, title)
    return found if len(json.dumps(found)) <= MOST_BYTES else None


def _together(drawn: Sequence[tuple[str, Any]], title: str) -> dict[str, Any]:
    height = 80 + _HEIGHT * len(drawn)
    layout: dict[str, Any] = {
        **base_layout(),
        "height": height,
        "margin": {"l": 60, "r": 16, "t": 40, "b": 40},
        "title": {"text": label(title), "x": 0, "xref": "container", "pad": {"l": 12}},
        "annotations": [],
        "shapes": [],
        "barmode": "stack",
    }
    data: list[dict[str, Any]] = []
    for index, (name, made) in enumerate(drawn):
        top = 1 - index / len(drawn)
        box = (top - 0.82 / len(drawn), top - 0.24 / len(drawn))
        suffix = "" if index == 0 else str(index + 1)
        data.extend(_traces(made, suffix))
        _place(layout, made, suffix, box)
        layout["annotations"].append(_heading(name, box))
    return {"data": data, "layout": layout}


def _heading(name: str, box: tuple[float, float]) -> dict[str, Any]:
    place = {"x": 0, "y": box[1], "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom"}
    text = f"<b>{label(name)}</b>"
    return {"text": text, "showarrow": False, "yshift": 26, "font": {"size": 13}, **place}


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


def _place(layout: dict[str, Any], made: Any, suffix: str, box: tuple[float, float]) -> None:
    """The axes, the legend and the guide lines of one figure, in its place."""
    given = _plain(made.layout.to_plotly_json())
    across = {"anchor": f"y{suffix}", "automargin": True}
    up = {"domain": list(box), "anchor": f"x{suffix}", "automargin": True}
    layout[f"xaxis{suffix}"] = {**given.get("xaxis", {}), **across}
    layout[f"yaxis{suffix}"] = {**given.get("yaxis", {}), **up}
    legend = {"orientation": "h", "x": 0, "y": box[1], "xanchor": "left", "yanchor": "bottom"}
    layout[f"legend{suffix}"] = {**legend, "font": {"size": 11}}
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
