"""Padding: an estimate of the time that it costs."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from probe import text as words
from probe.figures import theme as look
from probe.figures.theme import Theme

#: Bars up to this many steps, areas beyond.
_BARS = 150


def time_over_steps(frame: pd.DataFrame, *, theme: Theme = "light") -> go.Figure:
    """An estimate of the time that padding costs, by phase over steps, from ``analysis.steps.on_padding``."""
    if frame.empty:
        return look.nothing("No micro-batch with a padded width has both its time and its batch recorded.", theme)
    figure = look.blank(theme, height=320, barmode="stack", bargap=0.15)
    shown = frame.assign(phase=[words.name(one, "no phase") for one in frame["phase"]])
    phases = shown.groupby("phase")["padding_s"].sum().sort_values(ascending=False).index
    total = shown.groupby("step")["padding_s"].sum().sort_index()
    kept = total.index[look.thin(total, look.POINTS)]
    for index, phase in enumerate(phases):
        part = shown[shown["phase"] == phase].drop_duplicates("step").set_index("step").reindex(kept)
        figure.add_trace(_time(part, look.label(phase, 28), index))
    look.step_axis(figure, frame["step"])
    figure.update_yaxes(title_text="estimated host seconds, mean across ranks", rangemode="tozero")
    return figure


def _time(part: pd.DataFrame, name: str, index: int) -> go.Bar | go.Scatter:
    told = [
        look.hover(
            f"about {words.seconds(row['padding_s'])} on padding",
            f"{words.percent(row['ratio'])} of {name}'s {words.seconds(row['time_s'])} in micro-batches",
            f"step {int(step)}, from {words.count(row['micro_batches'])} micro-batches",
            f"{words.count(row['left_out'])} more aren't known well enough" if row["left_out"] else None,
        )
        for step, row in zip(part.index, words.rows(part), strict=True)
    ]
    colour = look.PALETTE[index % len(look.PALETTE)]
    seconds = part["padding_s"].fillna(0).astype(float)
    shared = {"x": part.index.astype(float), "y": seconds, "name": name, "hovertext": told, "hoverinfo": "text"}
    if len(part) > _BARS:
        return go.Scatter(**shared, mode="lines", stackgroup="time", line={"width": 0.5, "color": colour})
    pattern = look.hatch(look.PATTERNS[index % len(look.PATTERNS)])
    return go.Bar(**shared, marker={"color": colour, "pattern": pattern})
