"""The mark "line": a value of each series at each step, with guides across."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pandas as pd
import plotly.graph_objects as go

from probe import text as words
from probe.figures import colours, scales
from probe.figures import theme as look
from probe.figures.colours import Style
from probe.figures.marks import callouts, units
from probe.figures.theme import Theme

#: Points up to this many are marked.
_MARKED: Final = 120

#: Values that are said where the scale cuts them; of more the largest.
_SAID: Final = 2


def draw(
    spec: Mapping[str, Any],
    frame: pd.DataFrame,
    *,
    missing: str,
    theme: Theme = "light",
    bins: int = scales.BINS,
) -> go.Figure:
    """A line for each series.

    Args:
        spec: A ``live:`` block with ``mark: line`` over steps.
        frame: Its numbers, as :func:`probe.dashboards.frames.numbers` gives them.
        missing: What is said where there are none.
        theme: Colours of the figure.
        bins: Of more than twice as many steps several share a point, of which a series has at most so many.

    Returns:
        The figure.
    """
    known = frame[frame["value"].notna() & frame["step"].notna()]
    if known.empty:
        return look.nothing(missing, theme)
    figure = look.blank(theme, height=300)
    cut = _cut(spec, known)
    scale = units.scale(spec, cut or float(known["value"].max()))
    names = known["y"] if "beside" in spec else [units.series_name(spec, row) for row in words.rows(known)]
    width, ends = 1, []
    for name, part in known.groupby(pd.Series(names, known.index), sort=False):
        style = colours.style([] if "beside" in spec else units.columns(spec, "by"), str(name), theme)
        traces, width = _series(spec, part.sort_values("step"), str(name), style, scale.divisor, bins)
        figure.add_traces(traces)
        ends.append(callouts.End(str(name), float(part.sort_values("step")["value"].iloc[-1]), style.colour))
    units.guides(figure, spec, scale, theme)
    low, high = _extent(spec, known, cut)
    figure.update_yaxes(**units.axis(spec, scale), range=[low / scale.divisor, high / scale.divisor])
    note = "" if cut is None else _beyond(figure, spec, known, cut, scale.divisor, theme)
    callouts.name_ends(figure, spec, ends, (low, high, scale.divisor), theme)
    binned = f"each point is the median of {width} steps, the band their range" if width > 1 else ""
    look.step_axis(figure, known["step"], look.below("step", binned, note))
    return figure


def _cut(spec: Mapping[str, Any], known: pd.DataFrame) -> float | None:
    """Where the axis ends so that a few values don't flatten the rest; None where it needn't, and of memory: what
    decides there is the largest."""
    if spec.get("unit") == "bytes" or known["value"].min() < 0:
        return None
    return scales.robust_end(known.groupby("step")["value"].max().sort_index().tolist())


def _extent(spec: Mapping[str, Any], known: pd.DataFrame, cut: float | None) -> tuple[float, float]:
    """Where the axis of values begins and ends: at 0 but for ratios and what is below it."""
    limits = [float(line["value"]) for line in spec.get("lines", ()) if isinstance(line.get("value"), int | float)]
    least, most = float(known["value"].min()), float(max([known["value"].max(), *limits]))
    end = most if cut is None else cut
    margin = 0.05 * (end - least or abs(end) or 1.0)
    begin = least - margin if least < 0 or spec.get("unit") == "ratio" else 0.0
    return begin, end if cut is not None else end + margin


def _series(
    spec: Mapping[str, Any], part: pd.DataFrame, name: str, style: Style, divisor: float, bins: int
) -> tuple[list[go.Scatter], int]:
    """The traces of a series, and how many steps a point is of."""
    steps, values = part["step"].astype(int).tolist(), part["value"].astype(float).tolist()
    found = scales.bins_of(steps, bins, 2 * bins)
    if found is None:
        told = [f"step {step}" for step in steps]
        return [_line(spec, (steps, values, told), name, style, divisor)], 1
    kept = [scales.median_place(values, begin, end) for begin, end in found.runs]
    places = [begin if place is None else place for place, (begin, _) in zip(kept, found.runs, strict=True)]
    told = [
        f"steps {steps[begin]} to {steps[end - 1]}; the median one is step {steps[place]}"
        for place, (begin, end) in zip(places, found.runs, strict=True)
    ]
    middles = [(steps[begin] + steps[end - 1]) / 2 for begin, end in found.runs]
    line = _line(spec, (middles, [values[place] for place in places], told), name, style, divisor)
    return [_band(values, found.runs, middles, style, divisor), line], found.width


def _band(
    values: Sequence[float], runs: Sequence[tuple[int, int]], middles: Sequence[float], style: Style, divisor: float
) -> go.Scatter:
    """From the smallest to the largest value of the steps that share a point."""
    low, high = ([pick(values[begin:end]) / divisor for begin, end in runs] for pick in (min, max))
    return go.Scatter(
        x=[*middles, *reversed(middles)],
        y=[*high, *reversed(low)],
        mode="lines",
        fill="toself",
        opacity=0.22,
        line={"width": 0, "color": style.colour},
        fillcolor=style.colour,
        name="range of its steps",
        hoverinfo="skip",
        showlegend=False,
    )


def _line(
    spec: Mapping[str, Any],
    points: tuple[Sequence[float], Sequence[float], Sequence[str]],
    name: str,
    style: Style,
    divisor: float,
) -> go.Scatter:
    xs, values, told = points
    label = look.label(name, 32)
    return go.Scatter(
        x=[float(x) for x in xs],
        y=[value / divisor for value in values],
        name=label,
        mode="lines+markers" if len(xs) <= _MARKED else "lines",
        line={"color": style.colour, "dash": style.dash, "width": 2},
        marker={"symbol": style.symbol, "size": 6},
        hovertext=[
            look.hover(units.spell(spec, value), f"{label}, {which}") for value, which in zip(values, told, strict=True)
        ],
        hoverinfo="text",
    )


def _beyond(
    figure: go.Figure, spec: Mapping[str, Any], known: pd.DataFrame, end: float, divisor: float, theme: Theme
) -> str:
    """Mark what lies beyond the end of the axis, and say how large it is."""
    largest = known.groupby("step")["value"].max()
    above = largest[largest > end].sort_values(ascending=False)
    ink = colours.of_theme("ink", theme)
    figure.add_trace(
        go.Scatter(
            x=[float(step) for step in above.index],
            y=[end / divisor] * len(above),
            mode="markers",
            name="beyond the scale",
            marker={"symbol": "triangle-up-open", "size": 9, "color": ink},
            hovertext=[look.hover(units.spell(spec, value), f"step {step}") for step, value in above.items()],
            hoverinfo="text",
            cliponaxis=False,
            showlegend=False,
        )
    )
    for step, value in above.head(_SAID).items():
        said = look.label(f"{units.spell(spec, value)}: step {step}")
        place = {"x": step, "y": end / divisor, "xanchor": "left", "yanchor": "top", "xshift": 6, "yshift": 2}
        figure.add_annotation(text=said, showarrow=False, font={"size": 11, "color": ink}, **place)
    return f"the scale ends at {units.spell(spec, end)}"
