"""What probe itself costs, step by step."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from probe import text as words
from probe.analysis.findings import COST_TARGET
from probe.figures import theme as look
from probe.figures.theme import Theme

MISSING = "No step has ended yet, so that probe's own cost isn't known."


def over_steps(frame: pd.DataFrame, *, theme: Theme = "light") -> go.Figure:
    """Share of the step that hooks took on the training thread, from ``analysis.cost.by_step``, beside its
    target."""
    frame = frame[frame["own_cost_ratio"].notna()] if not frame.empty else frame
    if frame.empty:
        return look.nothing(MISSING, theme)
    figure = look.blank(theme, height=260)
    lines = (
        ("own_cost_ratio", "worst rank", "solid"),
        ("own_cost_ratio_mean", "mean across ranks", "dot"),
    )
    for column, name, dash in lines:
        part = frame.iloc[look.thin(frame[column])]
        figure.add_trace(
            go.Scatter(
                x=part["step"].astype(float),
                y=part[column].astype(float),
                name=name,
                mode="lines+markers" if len(part) <= 120 else "lines",
                line={"color": look.PALETTE[0], "dash": dash, "width": 2 if dash == "solid" else 1.2},
                marker={"size": 5},
                hovertext=[_hover_text(row, column, name) for row in words.rows(part)],
                hoverinfo="text",
            )
        )
    figure.add_hline(
        y=COST_TARGET,
        line={"color": look.ALARM, "width": 1, "dash": "dash"},
        annotation={
            "text": f"target {words.percent(COST_TARGET)}",
            "font": {"color": look.ALARM, "size": 11},
        },
        annotation_position="bottom right",
    )
    look.step_axis(figure, frame["step"])
    figure.update_yaxes(title_text="share of the step", tickformat=".2%", rangemode="tozero")
    return figure


def _hover_text(row: dict[str, float], column: str, name: str) -> str:
    return look.hover(
        words.percent(row[column]),
        f"{name}, step {words.whole(row['step'])}",
        f"hooks {words.number(row['hooks_ms'])} ms, writer thread {words.number(row['writer_cpu_ms'])} ms",
    )
