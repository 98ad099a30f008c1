"""The mark "line": a value of each series at each step, with guides across."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pandas as pd
import plotly.graph_objects as go

from probe import text as words
from probe.figures import colours
from probe.figures import theme as look
from probe.figures.colours import Style
from probe.figures.marks import units
from probe.figures.theme import Theme

#: Points up to this many are marked.
_MARKED: Final = 120


def draw(spec: Mapping[str, Any], frame: pd.DataFrame, *, missing: str, theme: Theme = "light") -> go.Figure:
    """A line for each series.

    Args:
        spec: A ``live:`` block with ``mark: line`` over steps.
        frame: Its numbers, as :func:`probe.dashboards.frames.numbers` gives them.
        missing: What is said where there are none.
        theme: Colours of the figure.

    Returns:
        The figure.
    """
    known = frame[frame["value"].notna() & frame["step"].notna()]
    if known.empty:
        return look.nothing(missing, theme)
    figure = look.blank(theme, height=300)
    scale = units.scale(spec, float(known["value"].max()))
    names = known["y"] if "beside" in spec else [units.series_name(spec, row) for row in words.rows(known)]
    for name, part in known.groupby(pd.Series(names, known.index), sort=False):
        style = colours.style([] if "beside" in spec else units.columns(spec, "by"), str(name), theme)
        figure.add_trace(_line(spec, part.sort_values("step"), str(name), style, scale.divisor))
    units.guides(figure, spec, scale, theme)
    look.step_axis(figure, known["step"])
    figure.update_yaxes(**units.axis(spec, scale), rangemode="normal" if spec.get("unit") == "ratio" else "tozero")
    return figure


def _line(spec: Mapping[str, Any], part: pd.DataFrame, name: str, style: Style, divisor: float) -> go.Scatter:
    part = part.iloc[look.thin(part["value"])]
    label = look.label(name, 32)
    return go.Scatter(
        x=part["step"].astype(float),
        y=part["value"].astype(float) / divisor,
        name=label,
        mode="lines+markers" if len(part) <= _MARKED else "lines",
        line={"color": style.colour, "dash": style.dash, "width": 2},
        marker={"symbol": style.symbol, "size": 6},
        hovertext=[
            look.hover(units.spell(spec, value), f"{label}, step {int(step)}")
            for step, value in zip(part["step"], part["value"], strict=True)
        ],
        hoverinfo="text",
    )
