"""Padding tax: what part of each step's token slots is padding and why, and how many bytes each field
pays."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from probe import text as words
from probe.figures import theme as look
from probe.figures.theme import Theme

MISSING = "No batch with an attention mask was formed, so that nothing is known about padding."

#: Bars up to this many steps, areas beyond.
_BARS = 150


def over_steps(frame: pd.DataFrame, *, theme: Theme = "light") -> go.Figure:
    """Padding by cause, stacked over steps, from ``analysis.padding_tax.by_step``; as a share of all token
    slots."""
    frame = frame[frame["step"].notna()]
    if frame.empty or not frame["rectangle_tokens"].sum():
        return look.nothing(MISSING, theme)
    figure = look.blank(theme, height=320, barmode="stack", bargap=0.15)
    causes = frame[frame["cause"] != "none"].groupby("cause")["tokens"].sum().sort_values(ascending=False)
    steps = frame.drop_duplicates("step").set_index("step")[["rectangle_tokens", "valid_tokens"]]
    total = (steps["rectangle_tokens"] - steps["valid_tokens"]).sort_index()
    kept = total.index[look.thin(total, look.POINTS)]
    for index, cause in enumerate(causes.index):
        tokens = frame[frame["cause"] == cause].set_index("step")["tokens"].reindex(kept).fillna(0)
        figure.add_trace(_stack(cause, index, tokens, steps.loc[kept, "rectangle_tokens"]))
    if causes.empty:
        figure.add_annotation(text="no padding in any step", x=0.5, y=0.5, xref="paper", yref="paper", showarrow=False)
    look.step_axis(figure, frame["step"])
    figure.update_yaxes(title_text="share of token slots", tickformat=".0%", range=[0, 1])
    return figure


def _stack(cause: str, index: int, tokens: pd.Series, rectangle: pd.Series) -> go.Bar | go.Scatter:
    share = (tokens / rectangle.where(rectangle > 0)).astype(float)
    name, colour = look.label(cause.replace("_", " ")), look.PALETTE[index % len(look.PALETTE)]
    told = [
        look.hover(
            f"{words.percent(ratio)} {name}",
            f"{words.count(count)} of {words.count(slots)} slots",
            f"step {int(step)}",
        )
        for step, ratio, count, slots in zip(tokens.index, share, tokens, rectangle, strict=True)
    ]
    shared = {
        "x": tokens.index.astype(float),
        "y": share,
        "name": name,
        "hovertext": told,
        "hoverinfo": "text",
    }
    if len(tokens) > _BARS:
        return go.Scatter(**shared, mode="lines", stackgroup="tax", line={"width": 0.5, "color": colour})
    pattern = look.hatch(look.PATTERNS[index % len(look.PATTERNS)])
    return go.Bar(**shared, marker={"color": colour, "pattern": pattern})


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


def by_field(frame: pd.DataFrame, *, theme: Theme = "light", most: int = 20) -> go.Figure:
    """Bytes of padding by field, stacked by cause, from ``analysis.padding_tax.by_field``."""
    if frame.empty:
        return look.nothing("No field holds any padding.", theme)
    fields = list(dict.fromkeys(frame["field"]))[:most][::-1]
    place = {field: index for index, field in enumerate(fields)}
    totals = frame.groupby("field")["bytes"].sum()
    divisor, unit = words.byte_unit(float(totals.max()))
    figure = look.blank(theme, height=110 + 32 * len(fields), barmode="stack", bargap=0.35)
    causes = frame.groupby("cause")["bytes"].sum().sort_values(ascending=False).index
    for index, cause in enumerate(causes):
        part = frame[(frame["cause"] == cause) & frame["field"].isin(fields)]
        name = look.label(str(cause).replace("_", " "))
        figure.add_trace(
            go.Bar(
                x=part["bytes"].astype(float) / divisor,
                y=[place[field] for field in part["field"]],
                orientation="h",
                name=name,
                marker={
                    "color": look.PALETTE[index % len(look.PALETTE)],
                    "pattern": look.hatch(look.PATTERNS[index % len(look.PATTERNS)]),
                },
                hovertext=[
                    look.hover(
                        words.size(row["bytes"]),
                        f"{look.label(row['field'])}: {name}",
                        f"{words.count(row['tokens'])} slots",
                    )
                    for row in words.rows(part)
                ],
                hoverinfo="text",
            )
        )
    figure.update_yaxes(
        tickvals=list(place.values()), ticktext=[look.label(field, 28) for field in fields], showgrid=False
    )
    figure.update_xaxes(title_text=f"padding over the whole run, {unit}", showgrid=True, rangemode="tozero")
    return figure
