"""The mark "stack": parts of a whole, one on the other, over steps or along a category."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pandas as pd
import plotly.graph_objects as go

from probe import text as words
from probe.dashboards.spec import listed
from probe.figures import colours
from probe.figures import theme as look
from probe.figures.marks import units
from probe.figures.theme import Theme

#: Bars up to this many steps, areas beyond.
_BARS: Final = 150

#: Categories that are drawn, the largest ones.
_MOST: Final = 20


def draw(spec: Mapping[str, Any], frame: pd.DataFrame, *, missing: str, theme: Theme = "light") -> go.Figure:
    """Stacked bars of each ``by``.

    Args:
        spec: A ``live:`` block with ``mark: stack``.
        frame: Its numbers, as :func:`probe.dashboards.frames.numbers` gives them.
        missing: What is said where there are none.
        theme: Colours of the figure.

    Returns:
        The figure.
    """
    parts = _parts(spec, frame)
    if parts.empty:
        return look.nothing(missing, theme)
    if spec.get("x") in ("step", None):
        return _over_steps(spec, parts, theme)
    return _along(spec, parts, theme)


def _parts(spec: Mapping[str, Any], frame: pd.DataFrame) -> pd.DataFrame:
    """The numbers that are known: at (the place on the axis), part, value and, of shares, count and whole."""
    at = listed(spec.get("x") or "step")[0]
    labels = [units.series_name(spec, row) for row in words.rows(frame)]
    parts = frame.assign(at=frame[at], part=labels, count=frame["value"])
    if "whole" in frame:
        parts["value"] = frame["value"] / frame["whole"].where(frame["whole"] > 0)
    parts = parts[parts["at"].notna() & parts["value"].notna()]
    if at != "step":
        return parts[parts["value"] > 0]
    totals = parts.groupby("part")["value"].transform("sum")
    return parts[totals > 0] if (totals > 0).any() else parts  # nothing in any step is known, and shown


def _order(parts: pd.DataFrame, column: str) -> list[Any]:
    """The values of ``column``, that with the largest sum first."""
    return list(parts.groupby(column)["value"].sum().sort_values(ascending=False, kind="stable").index)


def _over_steps(spec: Mapping[str, Any], parts: pd.DataFrame, theme: Theme) -> go.Figure:
    figure = look.blank(theme, height=320, barmode="stack", bargap=0.15)
    total = parts.groupby("at")["value"].sum().sort_index()
    kept = total.index[look.thin(total)]
    scale = units.scale(spec, float(total.max()))
    for part in _order(parts, "part"):
        own = parts[parts["part"] == part].drop_duplicates("at").set_index("at").reindex(kept)
        figure.add_trace(_steps(spec, own, _label(part), _marker(spec, part, theme), scale.divisor))
    look.step_axis(figure, parts["at"])
    share = {"tickformat": ".0%", "range": [0, 1]} if "share" in spec else {"rangemode": "tozero"}
    figure.update_yaxes(title_text=units.title(spec, scale), **share)
    return figure


def _steps(
    spec: Mapping[str, Any], own: pd.DataFrame, name: str, marker: dict[str, Any], divisor: float
) -> go.Bar | go.Scatter:
    told = [
        look.hover(f"{name}: {units.spell(spec, row['value'])}", _of_whole(row), f"step {int(step)}")
        for step, row in zip(own.index, words.rows(own), strict=True)
    ]
    shared = {
        "x": own.index.astype(float),
        "y": own["value"].fillna(0).astype(float) / divisor,
        "name": name,
        "hovertext": told,
        "hoverinfo": "text",
    }
    if len(own) > _BARS:
        return go.Scatter(**shared, mode="lines", stackgroup="parts", line={"width": 0.5, "color": marker["color"]})
    return go.Bar(**shared, marker=marker)


def _of_whole(row: Mapping[str, Any]) -> str | None:
    if words.missing(row.get("whole")) or words.missing(row["count"]):
        return None
    return f"{words.count(row['count'])} of {words.count(row['whole'])}"


def _along(spec: Mapping[str, Any], parts: pd.DataFrame, theme: Theme) -> go.Figure:
    names = _order(parts, "at")[:_MOST][::-1]
    place = {name: index for index, name in enumerate(names)}
    scale = units.scale(spec, float(parts.groupby("at")["value"].sum().max()))
    figure = look.blank(theme, height=110 + 32 * len(names), barmode="stack", bargap=0.35)
    for part in _order(parts, "part"):
        own = parts[(parts["part"] == part) & parts["at"].isin(names)]
        told = [
            look.hover(units.spell(spec, value), f"{look.label(at)}: {_label(part)}")
            for at, value in zip(own["at"], own["value"], strict=True)
        ]
        figure.add_trace(
            go.Bar(
                x=own["value"] / scale.divisor,
                y=[place[one] for one in own["at"]],
                orientation="h",
                name=_label(part),
                marker=_marker(spec, part, theme),
                hovertext=told,
                hoverinfo="text",
            )
        )
    ticks = [look.label(name, 28) for name in names]
    figure.update_yaxes(tickvals=list(place.values()), ticktext=ticks, showgrid=False)
    title = f"over the whole run, {units.title(spec, scale)}"
    figure.update_xaxes(title_text=title, showgrid=True, rangemode="tozero")
    return figure


def _label(part: str) -> str:
    return look.label(part, 28)


def _marker(spec: Mapping[str, Any], part: str, theme: Theme) -> dict[str, Any]:
    return look.filling(colours.style(units.columns(spec, "by"), part, theme), theme)
