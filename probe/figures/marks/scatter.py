"""The mark "scatter": a dot for each row, and the line through each series where it fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from probe import text as words
from probe.dashboards.spec import listed
from probe.figures import colours, thinning
from probe.figures import theme as look
from probe.figures.colours import Style
from probe.figures.marks import units
from probe.figures.marks.fit import Fit, no_line, rising_line
from probe.figures.theme import Theme


def draw(spec: Mapping[str, Any], frame: pd.DataFrame, *, missing: str, theme: Theme = "light") -> go.Figure:
    """A dot for each row.

    Args:
        spec: A ``live:`` block with ``mark: scatter``.
        frame: Its rows, as :func:`probe.dashboards.frames.numbers` gives them.
        missing: What is said where there are none.
        theme: Colours of the figure.

    Returns:
        The figure.
    """
    x, y = listed(spec["x"])[0], listed(spec["y"])[0]
    if frame.empty:
        return look.nothing(missing, theme)
    figure = look.blank(theme, height=340)
    scale = units.scale(spec, float(frame[y].max()))
    names = pd.Series([units.series_name(spec, row) for row in words.rows(frame)], frame.index)
    for name, part in frame.groupby(names, sort=True):
        style = colours.style(units.columns(spec, "by"), str(name), theme)
        figure.add_trace(_dots(spec, part, str(name), style, scale.divisor))
        line = rising_line(part[x].to_numpy(float), part[y].to_numpy(float), spec["fit"]) if "fit" in spec else None
        if line is not None:
            figure.add_trace(_line(spec, part[x].astype(float), line, style, scale.divisor))
    title = str(spec.get("x_title", x.replace("_", " ")))
    if "fit" in spec and all(trace.mode == "markers" for trace in figure.data):
        title += f"<br>{no_line(spec['fit'], int(names.value_counts().max()))}"
    figure.update_xaxes(title_text=title, rangemode="tozero", tickformat=",d")
    figure.update_yaxes(title_text=units.title(spec, units.of_memory(scale, frame)))
    return figure


def _dots(spec: Mapping[str, Any], part: pd.DataFrame, name: str, style: Style, divisor: float) -> go.Scatter:
    x, y = listed(spec["x"])[0], listed(spec["y"])[0]
    shown = part.iloc[thinning.thin(part[y])]
    told = [
        look.hover(
            units.said(spec, row, y),
            f"{words.count(row[x])} {look.label(x)}",
            units.told(spec, row),
            look.place(row),
        )
        for row in words.rows(shown)
    ]
    return go.Scatter(
        x=shown[x].astype(float),
        y=shown[y].astype(float) / divisor,
        mode="markers",
        name=look.label(name, 32),
        marker={"color": style.colour, "symbol": style.symbol, "size": 7, "opacity": 0.6},
        hovertext=told,
        hoverinfo="text",
    )


def _line(spec: Mapping[str, Any], xs: pd.Series, line: Fit, style: Style, divisor: float) -> go.Scatter:
    ends = np.array([xs.min(), xs.max()])
    one = str(listed(spec["x"])[0]).rstrip("s").replace("_", " ")
    told = look.hover(
        f"{units.spell(spec, line.slope)} a {look.label(one)}", f"over a base of {units.spell(spec, line.base)}"
    )
    return go.Scatter(
        x=ends,
        y=(line.base + line.slope * ends) / divisor,
        mode="lines",
        line={"color": style.colour, "width": 1.5, "dash": "dash"},
        showlegend=False,
        name="least squares",
        hovertext=[told, told],
        hoverinfo="text",
    )
