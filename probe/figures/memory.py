"""Memory over time by role, with its peaks marked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from probe import text as words
from probe.figures import colours, thinning
from probe.figures import theme as look
from probe.figures.colours import Style
from probe.figures.theme import Theme

MISSING = "No memory was recorded: the memory recorder was off, or no scope has ended yet."

#: The device's capacity is drawn when the peak reaches this share of it; below, it would flatten everything
#: else.
_SHOW_CAPACITY = 0.4

_LINES = (
    ("device_used", "device used", "dash"),
    ("reserved", "reserved", "dot"),
    ("allocated", "allocated", "solid"),
)


def timeline(frame: pd.DataFrame, *, theme: Theme = "light") -> go.Figure:
    """Memory of one rank over time, from ``analysis.memory.timeline``: an area for each role, its peak
    marked."""
    if frame.empty:
        return look.nothing(MISSING, theme)
    figure = look.blank(theme, height=380)
    divisor, unit = words.byte_unit(float(frame["value_bytes"].max()))
    what = words.memory(frame["source"].dropna().iloc[0] if frame["source"].notna().any() else None)
    for series, name, dash in _LINES:
        part = frame[frame["series"] == series]
        if not part.empty:
            shown = "resident" if name == "allocated" and what == words.SOURCES["process_rss"] else name
            figure.add_trace(_line(part, shown, dash, divisor, theme))
    scopes = frame[frame["series"] == "peak"]
    highest = float(scopes["value_bytes"].max()) if len(scopes) else 0.0
    for index, role in enumerate(look.role_names(scopes["role"])):
        style = colours.style(["role"], words.name(role, "no role"), theme)
        part = scopes[scopes["role"].isna() if role is None else scopes["role"] == role]
        part = part.iloc[thinning.thin(part["value_bytes"], thinning.POINTS // 5)]
        figure.add_trace(_areas(part, role, (str(index), style), divisor))
        figure.add_trace(_dots_on(part, role, (str(index), style), divisor))
        figure.add_trace(_marks(part[part["top"].astype(bool)], role, (str(index), style), divisor, highest))
    _capacity(figure, frame, divisor, theme)
    figure.update_xaxes(title_text="seconds since the run began")
    figure.update_yaxes(title_text=f"{what}, {unit}", rangemode="tozero")
    return figure


def _line(part: pd.DataFrame, name: str, dash: str, divisor: float, theme: Theme) -> go.Scatter:
    part = part.iloc[thinning.thin(part["value_bytes"])]
    return go.Scatter(
        x=part["begin_s"],
        y=part["value_bytes"] / divisor,
        name=name,
        mode="lines",
        line={"color": colours.of_theme("ink_3", theme), "width": 1, "dash": dash, "shape": "hv"},
        hovertext=[look.hover(words.size(value), f"{name} at this moment") for value in part["value_bytes"]],
        hoverinfo="text",
    )


def _areas(part: pd.DataFrame, role: Any, group: tuple[str, Style], divisor: float) -> go.Scatter:
    # Each scope is a box from its begin to its end at the height of its peak: five points, the last one a
    # gap.
    nan, zero = np.full(len(part), np.nan), np.zeros(len(part))
    begin, end = part["begin_s"].to_numpy(float), part["end_s"].to_numpy(float)
    peak = part["value_bytes"].to_numpy(float) / divisor
    return go.Scatter(
        x=np.column_stack([begin, begin, end, end, nan]).ravel(),
        y=np.column_stack([zero, peak, peak, zero, nan]).ravel(),
        name=look.role(role),
        legendgroup=group[0],
        mode="lines",
        fill="tozeroy",
        line={"color": group[1].colour, "width": 1},
        hoverinfo="skip",
    )


def _dots_on(part: pd.DataFrame, role: Any, group: tuple[str, Style], divisor: float) -> go.Scatter:
    return go.Scatter(
        x=(part["begin_s"] + part["end_s"]) / 2,
        y=part["value_bytes"].astype(float) / divisor,
        name=f"scopes of {look.role(role)}",
        legendgroup=group[0],
        showlegend=False,
        mode="markers",
        marker={"color": group[1].colour, "size": 3},
        hovertext=[_hover_text(row) for row in words.rows(part)],
        hoverinfo="text",
    )


def _marks(part: pd.DataFrame, role: Any, group: tuple[str, Style], divisor: float, highest: float) -> go.Scatter:
    return go.Scatter(
        x=(part["begin_s"] + part["end_s"]) / 2,
        y=part["value_bytes"] / divisor,
        mode="markers+text",
        marker={
            "color": group[1].colour,
            "symbol": group[1].symbol,
            "size": 10,
            "line": {"width": 1},
        },
        # Only the highest says its number: those of other roles may stand at the same place.
        text=[
            f"{words.at(kind)}{words.size(value)}" if value >= highest else ""
            for kind, value in zip(part["peak_kind"], part["value_bytes"], strict=True)
        ],
        textposition="top center",
        cliponaxis=False,
        name=f"peak of {look.role(role)}",
        legendgroup=group[0],
        showlegend=False,
        hovertext=[_hover_text(row, "largest peak of this role") for row in words.rows(part)],
        hoverinfo="text",
    )


def _hover_text(row: dict[str, Any], more: str | None = None) -> str:
    seconds = words.seconds(row["end_s"] - row["begin_s"])
    return look.hover(
        f"{words.at(row['peak_kind'])}{words.size(row['value_bytes'])} at its peak",
        look.place(row),
        f"{look.label(' '.join(words.name(row[key], '') for key in ('kind', 'name')))}, {seconds}",
        more,
    )


def _capacity(figure: go.Figure, frame: pd.DataFrame, divisor: float, theme: Theme) -> None:
    total, peak = frame["device_total_bytes"].max(), frame["value_bytes"].max()
    if not words.missing(total) and peak >= _SHOW_CAPACITY * total:
        figure.add_hline(
            y=float(total) / divisor,
            line={"color": colours.of_theme("alarm", theme), "width": 1.5},
            annotation={
                "text": f"capacity {words.size(total)}",
                "font": {"color": colours.of_theme("alarm_text", theme), "size": 11},
            },
            annotation_position="bottom right",
        )
