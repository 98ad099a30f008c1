"""Reductions: where the logged value lies between the smallest and the largest that went in."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from probe import text as words
from probe.figures import colours
from probe.figures import theme as look
from probe.figures.theme import Theme

MISSING = "No reduced metric was given several unlike values: nothing to compare."


def spread(frame: pd.DataFrame, *, theme: Theme = "light") -> go.Figure:
    """The position of each value within its range, from ``analysis.reduction.spread``; accidental ones are
    marked."""
    if frame.empty:
        return look.nothing(MISSING, theme)
    rows = words.rows(frame.iloc[::-1])
    place = list(range(len(rows)))
    figure = look.blank(theme, height=110 + 30 * len(rows))
    figure.add_trace(
        go.Bar(
            x=[1] * len(rows),
            y=place,
            orientation="h",
            width=0.34,
            marker={"color": colours.of_theme("line_2", theme)},
            hoverinfo="skip",
            showlegend=False,
        )
    )
    for accidental, name, colour, symbol in (
        (False, "value that was logged", colours.hue("kind_1", theme), "circle"),
        (True, "reduced by accident", colours.of_theme("alarm", theme), "x"),
    ):
        chosen = [(y, row) for y, row in zip(place, rows, strict=True) if bool(row["accidental"]) is accidental]
        if chosen:
            figure.add_trace(_values(chosen, name, colour, symbol))
    figure.update_yaxes(tickvals=place, ticktext=[look.label(row["key"], 28) for row in rows], showgrid=False)
    figure.update_xaxes(tickvals=[0, 0.5, 1], ticktext=["smallest", "", "largest"], range=[-0.06, 1.16])
    return figure


def _values(chosen: list[tuple[int, dict[str, object]]], name: str, colour: str, symbol: str) -> go.Scatter:
    return go.Scatter(
        x=[row["position"] for _, row in chosen],
        y=[y for y, _ in chosen],
        mode="markers",
        name=name,
        marker={"color": colour, "symbol": symbol, "size": 11},
        hovertext=[_hover_text(row) for _, row in chosen],
        hoverinfo="text",
    )


def _hover_text(row: dict[str, object]) -> str:
    numbers = {key: words.number(row[key]) for key in ("value", "smallest", "largest")}
    return look.hover(
        f"{look.label(row['key'])} = {numbers['value']}",
        f"{look.label(row['reducer'])} of values from {numbers['smallest']} to {numbers['largest']}",
        "chosen by a word that only happens to be in the name" if row["accidental"] else None,
        None if words.missing(row["step"]) else f"step {words.whole(row['step'])}",
    )
