"""Steps: the phases of one step on every rank."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from probe import text as words
from probe.figures import theme as look
from probe.figures.theme import Theme

MISSING = "No phases were recorded: put `with probe.phase(…)` around the parts of a step."


def timeline(frame: pd.DataFrame, *, theme: Theme = "light") -> go.Figure:
    """Phases of one step as bars, a line for each rank, from ``analysis.steps.timeline``; micro-batches
    below them."""
    if frame.empty:
        return look.nothing(MISSING, theme)
    ranks = sorted(frame["rank"].unique().tolist())
    line = {rank: index for index, rank in enumerate(ranks)}
    inside = bool((frame["depth"] == 1).any())
    figure = look.blank(theme, height=int(np.clip(130 + 46 * len(ranks), 240, 900)), barmode="overlay")
    phases = frame[frame["depth"] == 0]
    longest = phases.groupby("phase")["duration_s"].sum().sort_values(ascending=False).index
    colour = look.colours(longest)
    for index, name in enumerate(longest):
        figure.add_trace(_bars(phases[phases["phase"] == name], line, str(name), colour[name], index, inside))
    if inside:
        figure.add_trace(_micro_batches(frame[frame["depth"] == 1], line, colour))
    if len(ranks) <= 24:
        figure.update_yaxes(tickvals=list(line.values()), ticktext=[f"rank {rank}" for rank in ranks])
    else:
        figure.update_yaxes(title_text="rank")
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_xaxes(title_text=f"seconds since step {int(frame['step'].iloc[0])} began (host time)", showgrid=True)
    return figure


def _bars(part: pd.DataFrame, line: dict[int, int], name: str, colour: int, index: int, inside: bool) -> go.Bar:
    return go.Bar(
        x=part["duration_s"].astype(float),
        base=part["begin_s"].astype(float),
        y=[line[rank] - (0.12 if inside else 0) for rank in part["rank"]],
        width=0.5 if inside else 0.7,
        orientation="h",
        name=look.label(name, 28),
        marker={
            "color": look.PALETTE[colour],
            "pattern": look.hatch(look.PATTERNS[index % len(look.PATTERNS)]),
        },
        hovertext=_hover_texts(part),
        hoverinfo="text",
    )


def _micro_batches(part: pd.DataFrame, line: dict[int, int], colour: dict[str, int]) -> go.Bar:
    shade = [look.PALETTE[colour[phase]] if phase in colour else look.QUIET for phase in part["phase"]]
    return go.Bar(
        x=part["duration_s"].astype(float),
        base=part["begin_s"].astype(float),
        y=[line[rank] + 0.28 for rank in part["rank"]],
        width=0.2,
        orientation="h",
        name="micro-batches",
        marker={"color": shade, "opacity": 0.65, "line": {"width": 0}},
        hovertext=_hover_texts(part),
        hoverinfo="text",
        showlegend=False,
    )


def _hover_texts(part: pd.DataFrame) -> list[str]:
    return [
        look.hover(
            f"{look.label(row['name'])}: {words.seconds(row['duration_s'])}",
            look.place({"role": row["role"], "phase": row["phase"], "rank": row["rank"], "step": row["step"]}),
            f"from {words.seconds(row['begin_s'])} to {words.seconds(row['begin_s'] + row['duration_s'])}",
        )
        for row in words.rows(part)
    ]
