"""The mark "timeline": boxes from begin to end, in a lane for each ``by``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from probe import text as words
from probe.dashboards.spec import listed
from probe.figures import colours
from probe.figures import theme as look
from probe.figures.marks import units
from probe.figures.theme import Theme

#: Lanes that are drawn, those with the longest box; and boxes, the longest of the outer ones first.
_LANES, _BOXES = 64, 1500

#: Lanes up to this many are named.
_NAMED: Final = 24


def draw(spec: Mapping[str, Any], frame: pd.DataFrame, *, missing: str, theme: Theme = "light") -> go.Figure:
    """Boxes on one clock, which begins with the step; micro-batches are thin ones below the others.

    Args:
        spec: A ``live:`` block with ``mark: timeline`` and lanes.
        frame: Its rows, as :func:`probe.dashboards.frames.numbers` gives them.
        missing: What is said where there are none.
        theme: Colours of the figure.

    Returns:
        The figure.
    """
    by, colour = listed(spec["by"])[0], listed(spec.get("colour", spec["by"]))[0]
    boxes = _foremost(frame[frame["duration"].notna()], by)
    if boxes.empty:
        return look.nothing(missing, theme)
    boxes = boxes.assign(part=boxes[colour].fillna("").astype(str))
    lanes = sorted(boxes[by].dropna().unique().tolist(), key=words.in_order) + (
        [None] if boxes[by].isna().any() else []
    )
    boxes["lane"] = [len(lanes) - 1 if words.missing(one) else lanes.index(one) for one in boxes[by]]
    figure = look.blank(theme, height=int(np.clip(130 + 46 * len(lanes), 240, 900)), barmode="overlay")
    _add_boxes(figure, boxes, colour, theme)
    if len(lanes) <= _NAMED:
        names = [look.label(units.name_of(by, one), 24) for one in lanes]
        figure.update_yaxes(tickvals=list(range(len(lanes))), ticktext=names)
    else:
        figure.update_yaxes(title_text=by)
    step = words.whole(boxes["step"].dropna().iloc[0]) if boxes["step"].notna().any() else None
    since = "the first began" if step is None else f"step {step} began"
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_xaxes(title_text=f"seconds since {since} (host time)", showgrid=True)
    return figure


def _foremost(frame: pd.DataFrame, by: str) -> pd.DataFrame:
    lanes = frame.groupby(by, dropna=False)["duration"]
    boxes = frame[lanes.transform("max") >= lanes.max().nlargest(_LANES).min()]
    inner = boxes["kind"] == "micro_batch"
    order = boxes.assign(inner=inner).sort_values(["inner", "duration"], ascending=[True, False], kind="stable")
    return order.head(_BOXES).sort_values([by, "inner", "begin"], kind="stable")


def _add_boxes(figure: go.Figure, boxes: pd.DataFrame, colour: str, theme: Theme) -> None:
    outer, inner = boxes[~boxes["inner"]], boxes[boxes["inner"]]
    longest = outer.groupby("part")["duration"].sum().sort_values(ascending=False, kind="stable").index
    below = not inner.empty
    for part in longest:
        own = outer[outer["part"] == part]
        marker = look.filling(colours.style([colour], part, theme), theme)
        name = look.label(part or f"no {colour}", 28)
        figure.add_trace(_boxes(own, name, marker, (-0.12, 0.5) if below else (0, 0.7)))
    if below:
        shades = [colours.style([colour], one, theme).colour for one in inner["part"]]
        marker = {"color": shades, "opacity": 0.65, "line": {"width": 0}}
        figure.add_trace(_boxes(inner, "micro-batches", marker, (0.28, 0.2)).update(showlegend=False))


def _boxes(part: pd.DataFrame, name: str, marker: dict[str, Any], place: tuple[float, float]) -> go.Bar:
    shift, width = place
    return go.Bar(
        x=part["duration"].astype(float),
        base=part["begin"].astype(float),
        y=part["lane"] + shift,
        width=width,
        orientation="h",
        name=name,
        marker=marker,
        hovertext=[_hover_text(row) for row in words.rows(part)],
        hoverinfo="text",
    )


def _hover_text(row: dict[str, Any]) -> str:
    what = f"micro-batch {words.whole(row['micro_batch'])}" if row["inner"] else look.label(row["name"])
    return look.hover(
        f"{what}: {words.seconds(row['duration'])}",
        look.place({**row, "micro_batch": None}),
        f"from {words.seconds(row['begin'])} to {words.seconds(row['begin'] + row['duration'])}",
    )
