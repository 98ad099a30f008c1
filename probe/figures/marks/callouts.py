"""What stands beside marks in words: which steps a bar holds, and the values that a scale cuts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import plotly.graph_objects as go

from probe.figures import colours
from probe.figures import theme as look
from probe.figures.colours import Theme
from probe.figures.marks import units

#: Values that are said where the scale cuts them; of more the largest.
_SAID: Final = 2


class Columns(NamedTuple):
    """The bars of an axis of steps: of one step each, or of several, of which one stands for all.

    Attributes:
        width: How many steps a bar covers.
        middles: Where the bars stand.
        drawn: The step that each shows.
        lows: The smallest value of its steps.
        highs: The largest one.
        told: Which steps they are.
    """

    width: int
    middles: Sequence[float]
    drawn: Sequence[int]
    lows: Sequence[float]
    highs: Sequence[float]
    told: Sequence[str]

    def which(self, place: int) -> str:
        """What a bar is of, in words."""
        if self.width == 1:
            return self.told[place]
        return f"{self.told[place]}; the median one is step {self.drawn[place]}"

    def beyond(self, end: float) -> list[tuple[float, float, str]]:
        """The bars that go further than an axis.

        Args:
            end: Where the axis ends.

        Returns:
            Of each its left edge, its largest value, and which steps it holds.
        """
        rows = zip(self.middles, self.highs, self.told, strict=True)
        return [(middle - self.width / 2, high, told) for middle, high, told in rows if high > end * (1 + 1e-9)]


def breaks(
    figure: go.Figure,
    spec: Mapping[str, Any],
    beyond: Sequence[tuple[float, float, str]],
    axis: tuple[float, float],
    theme: Theme,
    width: float = 1,
) -> str:
    """Draw a gap in each bar that the scale cuts, and say its value.

    Args:
        figure: To draw on.
        spec: A ``live:`` block.
        beyond: What :meth:`Columns.beyond` gives.
        axis: Where the axis ends, as the values are, and what they are divided by.
        theme: Of the figure.
        width: How many steps a bar covers.

    Returns:
        What has to be said of the scale; "" where it holds everything.
    """
    end, divisor = axis
    ground, ink = colours.of_theme("surface", theme), colours.of_theme("ink", theme)
    low, high, slant = (share * end / divisor for share in (0.9, 0.935, 0.025))
    for left, _, _ in beyond:
        right = left + width
        path = f"M{left},{low} L{right},{low + slant} L{right},{high + slant} L{left},{high} Z"
        figure.add_shape(type="path", path=path, fillcolor=ground, line_width=0)
    for left, value, told in sorted(beyond, key=lambda one: -one[1])[:_SAID]:
        figure.add_annotation(
            x=left + width,
            y=0.96 * end / divisor,
            xanchor="left",
            yanchor="middle",
            xshift=3,
            showarrow=False,
            text=look.label(f"{units.spell(spec, value)}: {told}"),
            font={"size": 11, "color": ink},
            bgcolor=ground,
        )
    return f"the scale ends at {units.spell(spec, end)}" if beyond else ""
