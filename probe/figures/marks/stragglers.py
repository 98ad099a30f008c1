"""The mark "stragglers": each rank's tokens beside the mean of the ranks, and who is the fullest most often."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pandas as pd
import plotly.graph_objects as go

from probe import text as words
from probe.figures import colours, scales
from probe.figures import theme as look
from probe.figures.theme import Theme

#: A rank stands out where it is the fullest most often and has so many times the mean.
_STANDS_OUT: Final = 1.02

#: Ranks that are drawn, the fullest ones.
_MOST: Final = 32


def draw(spec: Mapping[str, Any], frame: pd.DataFrame, *, missing: str, theme: Theme = "light") -> go.Figure:
    """A bar for each rank; that of the one that stands out is hatched.

    Args:
        spec: A ``live:`` block with ``mark: stragglers``.
        frame: Rank, share_ratio, tokens, largest_in and rounds, the one that is fullest most often first, as
            :func:`probe.analysis.token_balance.stragglers` gives them.
        missing: What is said where there are none.
        theme: Colours of the figure.

    Returns:
        The figure.
    """
    if frame.empty:
        return look.nothing(missing, theme)
    part = frame.nlargest(_MOST, "share_ratio").sort_values("rank")
    first = words.rows(frame)[0]
    stands = first["largest_in"] > 0 and first["share_ratio"] >= _STANDS_OUT
    worst = int(first["rank"]) if stands else None
    figure = look.blank(theme, height=280, bargap=0.3)
    rows = list(enumerate(words.rows(part)))
    figure.add_trace(_ranks([one for one in rows if one[1]["rank"] != worst], colours.hue("kind_1", theme), "", theme))
    figure.add_trace(
        _ranks([one for one in rows if one[1]["rank"] == worst], colours.of_theme("alarm", theme), "/", theme)
    )
    figure.add_hline(
        y=1,
        line={"color": colours.of_theme("ink_3", theme), "width": 1.5, "dash": "dot"},
        annotation_text="even",
        annotation_position="top right",
    )
    named = rows[:: scales.whole_step(len(rows) - 1)]
    figure.update_xaxes(tickvals=[place for place, _ in named], ticktext=[f"rank {row['rank']}" for _, row in named])
    figure.update_yaxes(title_text=f"{spec['y']} ÷ mean of the ranks", rangemode="tozero")
    return figure


def _ranks(rows: list[tuple[int, dict[str, Any]]], colour: str, pattern: str, theme: Theme) -> go.Bar:
    return go.Bar(
        x=[place for place, _ in rows],
        y=[float(row["share_ratio"]) for _, row in rows],
        width=0.7,
        marker={"color": colour, "pattern": look.hatch(pattern, theme)},
        text=[words.ratio(row["share_ratio"]) for _, row in rows],
        textposition="inside",
        insidetextanchor="middle",
        hovertext=[
            look.hover(
                f"rank {row['rank']}: {words.ratio(row['share_ratio'])} the mean",
                f"{words.count(row['tokens'])} tokens",
                f"fullest in {words.count(row['largest_in'])} of {words.count(row['rounds'])} batches",
            )
            for _, row in rows
        ],
        hoverinfo="text",
        showlegend=False,
    )
