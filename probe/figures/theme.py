"""One look for all figures: light and dark, and readable without telling colours apart.

The colours of traces are the same in both themes (each has a contrast of at least 3:1 to both backgrounds);
all else that depends on the theme stands in a template, so that a page can change it without drawing anew.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
import plotly.graph_objects as go

from probe import text as words
from probe.errors import UnknownNameError

Theme = Literal["light", "dark"]

#: After Okabe and Ito, moved towards the middle so that each shows on white and on near-black.
PALETTE: Final = ("#2f7ec2", "#d2620f", "#0c9b76", "#b95f9f", "#b98600", "#7b6fd0", "#5c8f2f", "#8a8f98")
#: Not in the palette's order, because they mean something.
ALARM: Final = "#d93f3f"
QUIET: Final = "#8a8f98"

#: Marks and patterns that go with the palette, so that colour is never alone.
SYMBOLS: Final = ("circle", "diamond", "square", "triangle-up", "pentagon", "star", "hexagon", "cross")
PATTERNS: Final = ("", "/", ".", "x", "\\", "-", "|", "+")

_HATCH: Final = "rgba(255,255,255,0.55)"

#: Most points that one trace may have.
POINTS: Final = 4000

BACKGROUND: Final = {"light": "#ffffff", "dark": "#14181f"}
_INK: Final = {"light": "#30363d", "dark": "#c9d1d9"}
_GRID: Final = {"light": "rgba(48,54,61,0.10)", "dark": "rgba(201,209,217,0.12)"}
_AXIS: Final = {"light": "rgba(48,54,61,0.30)", "dark": "rgba(201,209,217,0.30)"}
_SCALE: Final = {
    "light": [[0, "#f2f6fa"], [0.35, "#b7d3ea"], [0.7, "#5f9fd0"], [1, "#174f86"]],
    "dark": [[0, "#1b232e"], [0.35, "#1f4468"], [0.7, "#2f7ec2"], [1, "#a9d4f7"]],
}
_FONT: Final = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def template(theme: Theme = "light") -> go.layout.Template:
    """The plotly template of a theme.

    Raises:
        UnknownNameError: It is neither "light" nor "dark".
    """
    if theme not in BACKGROUND:
        raise UnknownNameError.of("theme", theme, BACKGROUND)
    axis = {
        "gridcolor": _GRID[theme],
        "linecolor": _AXIS[theme],
        "tickcolor": _AXIS[theme],
        "zeroline": False,
        "automargin": True,
        "title": {"standoff": 10, "font": {"size": 12}},
    }
    return go.layout.Template(
        layout={
            "font": {"family": _FONT, "size": 12, "color": _INK[theme]},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "colorway": list(PALETTE),
            "coloraxis": {"colorscale": _SCALE[theme]},
            "xaxis": {**axis, "showgrid": False, "showline": True},
            "yaxis": axis,
            "hoverlabel": {
                "align": "left",
                "bgcolor": BACKGROUND[theme],
                "bordercolor": _AXIS[theme],
                "font": {"family": _FONT, "size": 12, "color": _INK[theme]},
            },
            "legend": {"bgcolor": "rgba(0,0,0,0)"},
            "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": _AXIS[theme], "activecolor": _INK[theme]},
        }
    )


def blank(theme: Theme = "light", *, height: int = 320, **layout: Any) -> go.Figure:
    """An empty figure with the shared look; ``layout`` goes over it."""
    figure = go.Figure()
    figure.update_layout(
        template=template(theme),
        height=height,
        margin={"l": 8, "r": 8, "t": 34, "b": 8},
        legend={
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 1.01,
            "yanchor": "bottom",
            "font": {"size": 12},
        },
        hovermode="closest",
        dragmode="zoom",
    )
    figure.update_layout(layout)
    return figure


def nothing(why: str, theme: Theme = "light") -> go.Figure:
    """A figure that says in words why there is nothing to see."""
    figure = blank(theme, height=160, meta={"missing": why})
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    figure.add_annotation(text="<br>".join(_wrapped(why)), x=0.5, y=0.5, xref="paper", yref="paper", showarrow=False)
    return figure


def why(figure: go.Figure) -> str | None:
    """The words of :func:`nothing` if ``figure`` is one of those, else None."""
    meta = figure.layout.meta
    return str(meta["missing"]) if isinstance(meta, dict) and "missing" in meta else None


def label(text: Any, length: int = 40) -> str:
    """A user's text for a figure: one line, not too long, and no markup.

    >>> label("<b>actor</b>"), label("a" * 50, 8)
    ('&lt;b&gt;actor&lt;/b&gt;', 'aaaaaaa…')
    """
    line = " ".join(str(text).split())
    return html.escape(line if len(line) <= length else line[: length - 1] + "…")


def role(value: Any) -> str:
    """A role's name for a legend."""
    return label(words.name(value, "no role"))


def phase(row: dict[str, Any]) -> str:
    """Role and phase of a row for an axis, whichever it has."""
    names = {key: label(row[key], 18) for key in ("role", "phase", "name") if not words.missing(row.get(key))}
    return words.place(names)


def hover(*lines: str | None) -> str:
    """Lines for a hover box; the first in bold. Users' parts must have gone through :func:`label`."""
    first, *rest = [line for line in lines if line]
    return "<br>".join([f"<b>{first}</b>", *rest])


def place(row: dict[str, Any]) -> str:
    """Where a row happened, for a hover box."""
    return label(words.place(row), 120)


def hatch(shape: str) -> dict[str, Any]:
    """The bar pattern of that shape, drawn lightly over the bar's colour."""
    return {"shape": shape, "size": 6, "solidity": 0.2, "fillmode": "overlay", "fgcolor": _HATCH}


def colours(names: Iterable[Any]) -> dict[Any, int]:
    """A stable index into :data:`PALETTE` for each distinct name, in order of appearance."""
    return {name: index % len(PALETTE) for index, name in enumerate(dict.fromkeys(names))}


def role_colours(roles: Iterable[Any]) -> dict[Any, int]:
    """:func:`colours` of roles by name, so that a role has one colour in all figures; no role (None) comes
    last."""
    names = {None if words.missing(one) else one for one in roles}
    return colours(sorted(names, key=lambda one: (one is None, str(one))))


def thin(values: Sequence[float] | npt.NDArray[Any] | pd.Series, points: int = POINTS) -> npt.NDArray[np.intp]:
    """Indices of at most ``points`` values, with the first, the last, and each slice's smallest and largest.

    Returns:
        Sorted indices, shape ``(n,)``; all of them when there are few enough. NaN is kept where a slice has
        only NaN.

    >>> thin([0, 1, 9, 1, 0, 0, -5, 0], points=6).tolist()
    [0, 2, 4, 6, 7]
    """
    array = np.asarray(values, dtype=float)
    if len(array) <= points:
        return np.arange(len(array))
    edges = np.linspace(0, len(array), max(points // 2 - 1, 1) + 1).astype(int)
    starts = edges[:-1]
    low = np.where(np.isnan(array), np.inf, array)
    high = np.where(np.isnan(array), -np.inf, array)
    kept = {0, len(array) - 1}
    for begin, end in zip(starts.tolist(), edges[1:].tolist(), strict=True):
        kept.update((begin + int(low[begin:end].argmin()), begin + int(high[begin:end].argmax())))
    return np.array(sorted(kept), dtype=np.intp)


def step_axis(figure: go.Figure, steps: pd.Series, title: str = "step") -> None:
    """Whole numbers below an axis of steps."""
    few = steps.nunique() <= 16
    figure.update_xaxes(title_text=title, tickformat="d", **({"dtick": 1} if few else {}))


def _wrapped(text: str, width: int = 64) -> list[str]:
    import textwrap

    return [html.escape(line) for line in textwrap.wrap(text, width)] or [""]
