"""The mark "stack": parts of a whole, one on the other, over steps or along a category."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pandas as pd
import plotly.graph_objects as go

from probe import text as words
from probe.dashboards.spec import listed
from probe.figures import colours, scales
from probe.figures import theme as look
from probe.figures.marks import callouts, units
from probe.figures.marks.callouts import Columns
from probe.figures.theme import Theme

#: Categories that are drawn, the largest ones.
_MOST: Final = 20


def draw(
    spec: Mapping[str, Any],
    frame: pd.DataFrame,
    *,
    missing: str,
    theme: Theme = "light",
    bins: int = scales.BINS,
) -> go.Figure:
    """Stacked bars of each ``by``.

    Args:
        spec: A ``live:`` block with ``mark: stack``.
        frame: Its numbers, as :func:`probe.dashboards.frames.numbers` gives them.
        missing: What is said where there are none.
        theme: Colours of the figure.
        bins: Of more than twice as many steps several share a bar, of which there are at most so many.

    Returns:
        The figure.
    """
    parts = _parts(spec, frame)
    if parts.empty:
        return look.nothing(missing, theme)
    if spec.get("x") in ("step", None):
        return _over_steps(spec, parts, theme, bins)
    return _along(spec, parts, theme)


def _parts(spec: Mapping[str, Any], frame: pd.DataFrame) -> pd.DataFrame:
    """The numbers that are known: at (the place on the axis), part, value and, of shares, count and whole."""
    at = listed(spec.get("x") or "step")[0]
    labels = [units.series_name(spec, row) for row in words.rows(frame)]
    parts = frame.assign(at=frame[at], part=labels, count=frame["value"])
    if "whole" in frame:
        parts["value"] = frame["value"] / frame["whole"].where(frame["whole"] > 0)
    parts = parts[parts["at"].notna() & parts["value"].notna()]
    if at != "step":
        return parts[parts["value"] > 0]
    totals = parts.groupby("part")["value"].transform("sum")
    return parts[totals > 0] if (totals > 0).any() else parts  # nothing in any step is known, and shown


def _order(parts: pd.DataFrame, column: str) -> list[Any]:
    """The values of ``column``, that with the largest sum first."""
    return list(parts.groupby(column)["value"].sum().sort_values(ascending=False, kind="stable").index)


def _over_steps(spec: Mapping[str, Any], parts: pd.DataFrame, theme: Theme, bins: int) -> go.Figure:
    figure = look.blank(theme, height=320, barmode="stack", bargap=0.15)
    totals = parts.groupby("at")["value"].sum().sort_index()
    columns = _columns(totals, bins)
    cut = scales.robust_end(totals.tolist())
    end = cut or 1.08 * float(totals.max()) or 1.0
    scale = units.scale(spec, end)
    for part in colours.in_pipeline(units.columns(spec, "by"), parts["part"].unique()):
        own = parts[parts["part"] == part].drop_duplicates("at").set_index("at")
        figure.add_trace(_steps(spec, own, _label(part), _marker(spec, part, theme), columns, scale.divisor))
    if columns.width > 1:
        figure.add_trace(_range(columns, scale.divisor, theme))
    limit = min(1.0, end) if "share" in spec else end
    note = callouts.breaks(figure, spec, columns.beyond(limit), (limit, scale.divisor), theme, columns.width)
    binned = f"each bar is the median of {columns.width} steps" if columns.width > 1 else ""
    look.step_axis(figure, parts["at"], look.below("step", binned, note))
    share = {"tickformat": ".0%"} if "share" in spec else {}
    figure.update_yaxes(title_text=units.title(spec, scale), range=[0, limit / scale.divisor], **share)
    return figure


def _columns(totals: pd.Series, bins: int) -> Columns:
    """A bar for each step, or for several."""
    steps, values = [int(one) for one in totals.index], totals.tolist()
    found = scales.bins_of(steps, bins, 2 * bins)
    if found is None:
        return Columns(1, steps, steps, values, values, [f"step {one}" for one in steps])
    middles, drawn, told = [], [], []
    for begin, end in found.runs:
        place = scales.median_place(values, begin, end)
        drawn.append(steps[begin if place is None else place])
        middles.append((steps[begin] // found.width + 0.5) * found.width - 0.5)
        told.append(f"steps {steps[begin]} to {steps[end - 1]}")
    lows, highs = ([pick(values[begin:end]) for begin, end in found.runs] for pick in (min, max))
    return Columns(found.width, middles, drawn, lows, highs, told)


def _steps(
    spec: Mapping[str, Any],
    own: pd.DataFrame,
    name: str,
    marker: dict[str, Any],
    columns: Columns,
    divisor: float,
) -> go.Bar:
    rows = words.rows(own.reindex(columns.drawn))
    told = [
        look.hover(f"{name}: {units.spell(spec, row['value'])}", _of_whole(row), columns.which(place))
        for place, row in enumerate(rows)
    ]
    values = own["value"].reindex(columns.drawn).fillna(0).astype(float) / divisor
    return go.Bar(x=columns.middles, y=values, name=name, hovertext=told, hoverinfo="text", marker=marker)


def _range(columns: Columns, divisor: float, theme: Theme) -> go.Bar:
    """From the smallest to the largest sum of the steps that share a bar."""
    spans = [(high - low) / divisor for low, high in zip(columns.lows, columns.highs, strict=True)]
    return go.Bar(
        x=columns.middles,
        base=[low / divisor for low in columns.lows],
        y=spans,
        width=0.4 * columns.width,
        name="range of its steps",
        marker={"color": colours.of_theme("ink_3", theme), "opacity": 0.35},
        hoverinfo="skip",
        showlegend=False,
    )


def _of_whole(row: Mapping[str, Any]) -> str | None:
    if words.missing(row.get("whole")) or words.missing(row["count"]):
        return None
    return f"{words.count(row['count'])} of {words.count(row['whole'])}"


def _along(spec: Mapping[str, Any], parts: pd.DataFrame, theme: Theme) -> go.Figure:
    names = _order(parts, "at")[:_MOST][::-1]
    place = {name: index for index, name in enumerate(names)}
    scale = units.scale(spec, float(parts.groupby("at")["value"].sum().max()))
    figure = look.blank(theme, height=110 + 32 * len(names), barmode="stack", bargap=0.35)
    for part in _order(parts, "part"):
        own = parts[(parts["part"] == part) & parts["at"].isin(names)]
        told = [
            look.hover(units.spell(spec, value), f"{look.label(at)}: {_label(part)}")
            for at, value in zip(own["at"], own["value"], strict=True)
        ]
        figure.add_trace(
            go.Bar(
                x=own["value"] / scale.divisor,
                y=[place[one] for one in own["at"]],
                orientation="h",
                name=_label(part),
                marker=_marker(spec, part, theme),
                hovertext=told,
                hoverinfo="text",
            )
        )
    ticks = [look.label(name, 28) for name in names]
    figure.update_yaxes(tickvals=list(place.values()), ticktext=ticks, showgrid=False)
    title = f"over the whole run, {units.title(spec, scale)}"
    figure.update_xaxes(title_text=title, showgrid=True, rangemode="tozero")
    return figure


def _label(part: str) -> str:
    return look.label(part, 28)


def _marker(spec: Mapping[str, Any], part: str, theme: Theme) -> dict[str, Any]:
    return look.filling(colours.style(units.columns(spec, "by"), part, theme), theme)
