"""The mark "heat": cells of a category by the series, with those over a limit marked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from probe import text as words
from probe.dashboards.spec import listed
from probe.figures import colours, scales
from probe.figures import theme as look
from probe.figures.marks import units
from probe.figures.theme import Theme

#: Cells up to this many carry their number.
_NUMBERED: Final = 160

#: Rows and columns up to this many are all named.
_NAMED: Final = 24


def draw(spec: Mapping[str, Any], frame: pd.DataFrame, *, missing: str, theme: Theme = "light") -> go.Figure:
    """A cell for each ``x`` and ``by``; a gap where there is none.

    Args:
        spec: A ``live:`` block with ``mark: heat``.
        frame: Its numbers, as :func:`probe.dashboards.frames.numbers` gives them.
        missing: What is said where there are none.
        theme: Colours of the figure.

    Returns:
        The figure.
    """
    across, down = listed(spec["x"])[0], listed(spec["by"])[0]
    known = frame[frame["value"].notna() & frame[across].notna() & frame[down].notna()]
    if known.empty:
        return look.nothing(missing, theme)
    lines, slots = sorted(known[down].unique().tolist(), key=words.in_order), _columns(known[across])
    grid = known.pivot_table("value", down, across, aggfunc="max").reindex(index=lines, columns=slots)
    values = grid.to_numpy(dtype=float, na_value=np.nan)
    figure = look.blank(theme, height=int(np.clip(150 + 34 * len(lines), 240, 640)))
    figure.add_trace(_cells(spec, known, values, (lines, slots)))
    cap = known["cap"].max() if "cap" in known else math.nan
    _mark_over(figure, known, (lines, slots), (across, down), theme)
    figure.update_layout(coloraxis=_scale(spec, float(np.nanmax(values)), None if math.isnan(cap) else float(cap)))
    figure.update_xaxes(showline=False, **_axis(across, slots, alone=False))
    figure.update_yaxes(autorange="reversed", showgrid=False, **_axis(down, lines, alone=True))
    return figure


def _columns(found: pd.Series) -> list[Any]:
    """All numbers from 0 to the largest, so that an empty cell is seen as one; else the names."""
    if pd.api.types.is_numeric_dtype(found):
        return list(range(int(found.max()) + 1))
    return sorted(found.unique().tolist(), key=words.in_order)


def _cells(
    spec: Mapping[str, Any], known: pd.DataFrame, values: Any, places: tuple[list[Any], list[Any]]
) -> go.Heatmap:
    numbered = values.size <= _NUMBERED
    lines, slots = places
    return go.Heatmap(
        z=values,
        x=list(range(len(slots))),
        y=list(range(len(lines))),
        coloraxis="coloraxis",
        xgap=2,
        ygap=2,
        hoverongaps=False,
        text=[["" if np.isnan(one) else units.spell(spec, one) for one in line] for line in values]
        if numbered
        else None,
        texttemplate="%{text}" if numbered else None,
        textfont={"size": 11},
        hovertext=_hover_texts(spec, known, lines, slots),
        hoverinfo="text",
    )


def _hover_texts(spec: Mapping[str, Any], known: pd.DataFrame, lines: list[Any], slots: list[Any]) -> Any:
    """The texts of all cells, shape (lines, slots). As an array: plotly checks each text of a list by itself."""
    across, down = listed(spec["x"])[0], listed(spec["by"])[0]
    row_of = {one: index for index, one in enumerate(lines)}
    column_of = {one: index for index, one in enumerate(slots)}
    line_names = {one: units.name_of(down, one) for one in lines}
    slot_names = {one: units.name_of(across, one) for one in slots}
    noun = listed(spec["y"])[0].replace("_", " ")
    told = np.full((len(lines), len(slots)), "", dtype=object)
    for row in words.rows(known):
        what = f"{units.spell(spec, row['value'])} {noun}"
        place = f"{line_names[row[down]]}, {slot_names[row[across]]}"
        lines_told = (look.label(what), _use(spec, row), units.told(spec, row), look.label(place))
        told[row_of[row[down]], column_of[row[across]]] = look.hover(*lines_told)
    return told


def _use(spec: Mapping[str, Any], row: Mapping[str, Any]) -> str | None:
    if "cap" not in spec:
        return None
    if words.missing(row["cap"]) or not row["cap"]:
        return "no cap"
    over = ", over it" if row.get("over") else ""
    return f"{words.percent(row['value'] / row['cap'])} of the cap of {units.spell(spec, row['cap'])}{over}"


def _mark_over(
    figure: go.Figure,
    known: pd.DataFrame,
    places: tuple[Sequence[Any], Sequence[Any]],
    names: tuple[str, str],
    theme: Theme,
) -> None:
    over = known[known["over"].fillna(0) > 0] if "over" in known else known.head(0)
    if over.empty:
        return
    (across, down), (lines, slots) = names, places
    red, edge = colours.of_theme("alarm", theme), colours.of_theme("surface", theme)
    figure.add_trace(
        go.Scatter(
            x=[slots.index(one) + 0.38 for one in over[across]],
            y=[lines.index(one) for one in over[down]],
            mode="markers",
            name="over the cap",
            showlegend=True,
            marker={"symbol": "triangle-up", "size": 11, "color": red, "line": {"width": 1.5, "color": edge}},
            hoverinfo="skip",
        )
    )


def _scale(spec: Mapping[str, Any], largest: float, cap: float | None) -> dict[str, object]:
    top = max(largest, cap or 0, 1)
    ticks = [0, cap] if cap else [0, top]
    names = ["0", f"cap {units.spell(spec, cap)}"] if cap else ["0", units.spell(spec, top)]
    if cap and largest > 1.12 * cap:
        ticks, names = [*ticks, largest], [*names, units.spell(spec, largest)]
    bar = {"thickness": 10, "tickvals": ticks, "ticktext": names, "outlinewidth": 0, "x": 1.01, "xpad": 0}
    return {"cmin": 0, "cmax": top, "colorbar": bar}


def _axis(column: str, values: Sequence[Any], *, alone: bool) -> dict[str, Any]:
    """The names of a few rows or columns; of many the name of what they are. ``alone`` names say what they are."""
    title = column.replace("_", "-")
    every = max(1, -(-len(values) // _NAMED)) if alone else scales.whole_step(len(values) - 1)
    shown = range(0, len(values), every)
    name = [look.label(units.name_of(column, values[one]) if alone else str(values[one]), 18) for one in shown]
    few = alone and every == 1
    return {"tickvals": list(shown), "ticktext": name} | ({} if few else {"title_text": title})
