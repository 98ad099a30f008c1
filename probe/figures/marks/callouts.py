"""What stands beside marks in words: which steps a bar holds, values that a scale cuts, names at last values."""

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


#: Pixels between two names at last values, of the longest row of them, and of a figure above and below its axes.
_LINE: Final = 15
_LONGEST: Final = 250
_AROUND: Final = 64

#: The names at last values are annotations of this name: a page that has no room for them takes the legend instead.
END: Final = "end"


class End(NamedTuple):
    """The last value of a series.

    Attributes:
        label: What the series is called.
        value: As the values are.
        colour: Of its line.
    """

    label: str
    value: float
    colour: str


def name_ends(
    figure: go.Figure, spec: Mapping[str, Any], ends: Sequence[End], axis: tuple[float, float, float], theme: Theme
) -> None:
    """Name each series at its last value, with leaders where names would touch; of more than fit a legend has to do.

    Args:
        figure: To draw on; its height is known.
        spec: A ``live:`` block.
        ends: Of the series.
        axis: Where the axis of values begins and ends, as the values are, and what they are divided by.
        theme: Of the figure.
    """
    low, high, divisor = axis
    room = figure.layout.height - _AROUND
    if not high > low or len(ends) * _LINE > room:
        return
    wanted = [room * (min(max(one.value, low), high) - low) / (high - low) for one in ends]
    told = [look.label(units.spell(spec, one.value), 24) for one in ends]
    for one, text, at, place in zip(ends, told, wanted, spread(wanted, _LINE, room), strict=True):
        figure.add_annotation(
            name=END,
            x=1,
            xref="paper",
            y=min(max(one.value, low), high) / divisor,
            ax=16,
            ay=at - place,
            xanchor="left",
            yanchor="middle",
            align="left",
            text=f"{look.label(one.label, 28)}  <b>{text}</b>",
            font={"size": 11, "color": colours.of_theme("ink", theme)},
            showarrow=True,
            arrowhead=0,
            arrowwidth=1.5,
            arrowcolor=one.colour,
        )
    longest = max(len(one.label[:28]) + len(text) for one, text in zip(ends, told, strict=True))
    figure.update_layout(showlegend=False, margin={"r": min(32 + 6.6 * longest, _LONGEST), "t": 14})


def spread(wanted: Sequence[float], gap: float, room: float) -> list[float]:
    """Places on a line that are at least ``gap`` apart, those that would touch around their middle.

    Args:
        wanted: Where each belongs, from 0 to ``room``.
        gap: Between two.
        room: The length of the line, which holds them all.

    Returns:
        The places, in the order of ``wanted``.

    >>> spread([10, 90, 12], 15, 200), spread([198, 199], 15, 200)
    ([3.5, 90.0, 18.5], [185, 200])
    """
    order = sorted(range(len(wanted)), key=lambda at: wanted[at])
    blocks: list[tuple[float, int]] = []  # those that touch: where the first of them wants to be, and how many they are
    for nth, at in enumerate(order):
        start, many = float(wanted[at] - nth * gap), 1
        while blocks and blocks[-1][0] >= start:
            before, more = blocks.pop()
            start, many = (before * more + start * many) / (more + many), more + many
        blocks.append((start, many))
    most = room - (len(wanted) - 1) * gap
    starts = [max(min(start, most), 0.0) for start, many in blocks for _ in range(many)]
    places = dict(zip(order, (start + nth * gap for nth, start in enumerate(starts)), strict=True))
    return [places[at] for at in range(len(wanted))]


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
