"""One look for all figures: light and dark, and readable without telling colours apart.

The colours of traces are those of :mod:`probe.figures.colours`. A page that follows the person's theme changes them by
its table of light and dark ones; all else that depends on the theme stands in a template, so nothing is drawn anew.
"""

from __future__ import annotations

import functools
import html
from collections.abc import Iterable
from typing import Any, Final

import pandas as pd
import plotly.graph_objects as go

from probe import text as words
from probe.errors import UnknownNameError
from probe.figures import colours, scales

Theme = colours.Theme

_THEMES: Final[tuple[Theme, ...]] = ("light", "dark")
BACKGROUND: Final = {theme: colours.of_theme("surface", theme) for theme in _THEMES}
_FONT: Final = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def template(theme: Theme = "light") -> go.layout.Template:
    """The plotly template of a theme.

    Raises:
        UnknownNameError: It is neither "light" nor "dark".
    """
    if theme not in BACKGROUND:
        raise UnknownNameError.of("theme", theme, BACKGROUND)
    ink, edge = colours.of_theme("ink", theme), colours.of_theme("line_2", theme)
    axis = {
        "gridcolor": colours.of_theme("grid", theme),
        "linecolor": edge,
        "tickcolor": edge,
        "tickfont": {"size": 11, "color": colours.of_theme("ink_3", theme)},
        "zeroline": False,
        "automargin": True,
        "title": {"standoff": 10, "font": {"size": 12}},
    }
    return go.layout.Template(
        layout={
            "font": {"family": _FONT, "size": 12, "color": ink},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "colorway": [colours.hue(one, theme) for one in colours.defined()["own"]],
            "coloraxis": {"colorscale": colours.defined()["themes"][theme]["scale"]},
            "xaxis": {**axis, "showgrid": False, "showline": True},
            "yaxis": axis,
            "hoverlabel": {
                "align": "left",
                "bgcolor": BACKGROUND[theme],
                "bordercolor": edge,
                "font": {"family": _FONT, "size": 12, "color": ink},
            },
            "legend": {"bgcolor": "rgba(0,0,0,0)"},
            "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": edge, "activecolor": ink},
        }
    )


_shared = functools.cache(template)


def blank(theme: Theme = "light", *, height: int = 320, **layout: Any) -> go.Figure:
    """An empty figure with the shared look; ``layout`` goes over it."""
    figure = go.Figure(
        layout={
            "template": _shared(theme),  # plotly copies it
            "height": height,
            "margin": {"l": 8, "r": 8, "t": 34, "b": 8},
            "legend": {
                "orientation": "h",
                "x": 0,
                "xanchor": "left",
                "y": 1.01,
                "yanchor": "bottom",
                "font": {"size": 12},
            },
            "hovermode": "closest",
            "dragmode": "zoom",
        }
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


def hatch(shape: str, theme: Theme = "light") -> dict[str, Any]:
    """The bar pattern of that shape, drawn lightly over the bar's colour."""
    return {
        "shape": shape,
        "size": 6,
        "solidity": 0.2,
        "fillmode": "overlay",
        "fgcolor": colours.of_theme("hatch", theme),
    }


def filling(style: colours.Style, theme: Theme = "light") -> dict[str, Any]:
    """What the bars of a series are filled with.

    Args:
        style: The look of the series.
        theme: Of the figure.

    Returns:
        plotly's marker.
    """
    return {"color": style.colour, "pattern": hatch(style.pattern, theme)}


def role_names(roles: Iterable[Any]) -> list[Any]:
    """The roles by name, each once; no role (None) comes last."""
    names = {None if words.missing(one) else one for one in roles}
    return sorted(names, key=lambda one: (one is None, str(one)))


def step_axis(figure: go.Figure, steps: pd.Series, title: str = "step") -> None:
    """Whole numbers below an axis of steps: at most ten, and none twice, also where a part of it is looked at."""
    known = steps.dropna()
    span = float(known.max() - known.min()) if len(known) else 0.0
    figure.update_xaxes(title_text=title, tickformat="d", tick0=0, dtick=scales.whole_step(span))


def below(title: str, *notes: str) -> str:
    """The title of an axis, and below it what has to be said of the picture.

    >>> below("step", "", "the scale ends at 5 s")
    'step<br>the scale ends at 5 s'
    """
    said = "; ".join(note for note in notes if note)
    return f"{title}<br>{said}" if said else title


def _wrapped(text: str, width: int = 64) -> list[str]:
    import textwrap

    return [html.escape(line) for line in textwrap.wrap(text, width)] or [""]
