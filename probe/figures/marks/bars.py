"""The mark "bars": values side by side along a category."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pandas as pd
import plotly.graph_objects as go

from probe import text as words
from probe.figures import colours
from probe.figures import theme as look
from probe.figures.marks import units
from probe.figures.theme import Theme

#: Bars that are drawn, the longest ones.
_MOST: Final = 24


def draw(spec: Mapping[str, Any], frame: pd.DataFrame, *, missing: str, theme: Theme = "light") -> go.Figure:
    """A bar for each category and series, the longest at the top.

    Args:
        spec: A ``live:`` block with ``mark: bars``.
        frame: Its numbers, as :func:`probe.dashboards.frames.numbers` gives them.
        missing: What is said where there are none.
        theme: Colours of the figure.

    Returns:
        The figure.
    """
    bars = frame[frame["value"].notna()].sort_values("value", ascending=False, kind="stable").head(_MOST).iloc[::-1]
    if bars.empty:
        return look.nothing(missing, theme)
    rows = words.rows(bars)
    scale = units.scale(spec, float(bars["value"].max()))
    figure = look.blank(theme, height=90 + 30 * len(rows), bargap=0.35)
    figure.add_trace(_bars(spec, rows, scale.divisor, theme))
    if "ticks" in spec and (bars["tick"] != bars["value"]).any():
        figure.add_trace(_ticks(spec, rows, scale.divisor, theme))
    names = [look.label(_place(spec, row), 40) for row in rows]
    figure.update_yaxes(tickvals=list(range(len(rows))), ticktext=names, showgrid=False)
    figure.update_xaxes(**units.axis(spec, units.of_memory(scale, bars)), showgrid=True, rangemode="tozero")
    return figure


def _place(spec: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """The series and the category of a bar, each name once."""
    by = {"by": [*units.columns(spec, "by"), *units.columns(spec, "x")]}
    return units.series_name(by, row)


def _bars(spec: Mapping[str, Any], rows: list[dict[str, Any]], divisor: float, theme: Theme) -> go.Bar:
    told = [units.said(spec, row) for row in rows]
    return go.Bar(
        x=[float(row["value"]) / divisor for row in rows],
        y=list(range(len(rows))),
        orientation="h",
        marker={"color": [_colour(spec, row, theme) for row in rows]},
        text=told,
        textposition="inside",
        insidetextanchor="start",
        hovertext=[look.hover(text, look.place(row) or None) for text, row in zip(told, rows, strict=True)],
        hoverinfo="text",
        showlegend=False,
    )


def _colour(spec: Mapping[str, Any], row: Mapping[str, Any], theme: Theme) -> str:
    """That of the phase where the bars are of phases, else that of the role, else that of the series."""
    there = [*units.columns(spec, "by"), *units.columns(spec, "x")]
    named = next((one for one in ("phase", "role") if one in there), None)
    if named is None and len(units.columns(spec, "by")) == 0:
        return colours.hue("kind_1", theme)
    column = named or units.columns(spec, "by")[0]
    return colours.style([column], units.name_of(column, row[column]), theme).colour


def _ticks(spec: Mapping[str, Any], rows: list[dict[str, Any]], divisor: float, theme: Theme) -> go.Scatter:
    title = look.label(spec["ticks"]["title"])
    return go.Scatter(
        x=[float(row["tick"]) / divisor for row in rows],
        y=list(range(len(rows))),
        mode="markers",
        name=title,
        showlegend=True,
        marker={"symbol": "line-ns-open", "size": 18, "color": colours.of_theme("ink", theme), "line": {"width": 3}},
        hovertext=[look.hover(units.spell(spec, row["tick"]), title) for row in rows],
        hoverinfo="text",
    )
