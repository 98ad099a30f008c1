"""Incidents: when the observing itself went wrong."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from probe import text as words
from probe.figures import colours, thinning
from probe.figures import theme as look
from probe.figures.theme import Theme

MISSING = "No incidents: every listener, backend and writer did its work, and no row was dropped."


def over_time(frame: pd.DataFrame, *, theme: Theme = "light") -> go.Figure:
    """Incidents by step and kind, from ``analysis.incidents.over_time``; those outside steps stand at the
    left."""
    if frame.empty:
        return look.nothing(MISSING, theme)
    figure = look.blank(theme, height=260)
    outside = float(frame["step"].min()) - 1 if frame["step"].notna().any() else 0.0
    kinds = list(dict.fromkeys(frame["kind"]))
    for index, kind in enumerate(kinds):
        part = frame[frame["kind"] == kind]
        part = part.iloc[thinning.thin(part["count"])]
        figure.add_trace(
            go.Scatter(
                x=part["step"].astype(float).fillna(outside),
                y=[index] * len(part),
                mode="markers",
                showlegend=False,
                marker={
                    "color": colours.of_theme("ink_2", theme),
                    "symbol": "circle",
                    "size": [min(9 + 2 * float(n) ** 0.5, 26) for n in part["count"]],
                },
                hovertext=[_hover_text(row) for row in words.rows(part)],
                hoverinfo="text",
            )
        )
    look.step_axis(figure, frame["step"])
    names = [look.label(kind.replace("_", " "), 24) for kind in kinds]
    figure.update_yaxes(tickvals=list(range(len(kinds))), ticktext=names, range=[-0.6, len(kinds) - 0.4])
    return figure


def _hover_text(row: dict[str, object]) -> str:
    where = "outside a step" if words.missing(row["step"]) else f"step {words.whole(row['step'])}"
    return look.hover(f"{words.whole(row['count'])} × {look.label(str(row['kind']).replace('_', ' '))}", where)
