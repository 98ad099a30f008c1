"""The difference of two runs as a waterfall: what each cause adds or takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import plotly.graph_objects as go

from probe import text as words
from probe.figures import colours
from probe.figures import theme as look

if TYPE_CHECKING:
    from probe.figures.theme import Theme


class Part(Protocol):
    """One cause of a difference, in one phase, as :class:`probe.analysis.difference.parts.Part` tells it."""

    @property
    def cause(self) -> str: ...

    @property
    def phase(self) -> str: ...

    @property
    def value(self) -> float: ...

    @property
    def about(self) -> str: ...


class Falling(Protocol):
    """What a waterfall is drawn of: :class:`probe.analysis.difference.parts.Waterfall` has it."""

    @property
    def title(self) -> str: ...

    @property
    def unit(self) -> str: ...

    @property
    def before(self) -> float: ...

    @property
    def after(self) -> float: ...

    @property
    def parts(self) -> Sequence[Part]: ...

    @property
    def by_cause(self) -> Mapping[str, float]: ...

    def spelled(self, value: float, *, signed: bool = False) -> str:
        """A number with its unit.

        Args:
            value: In the unit.
            signed: Whether a plus stands before it.
        """


def draw(of: Falling, causes: Mapping[str, str], *, theme: Theme = "light") -> go.Figure:
    """A bar for either run and one for each cause between them, which together lead from one to the other.

    Colour is for what was found: more and less differ by direction and lightness.

    Args:
        of: What makes a number differ.
        causes: What each cause is called.
        theme: Colours of the figure.

    Returns:
        The figure.
    """
    parts = {cause: value for cause, value in of.by_cause.items() if value}
    divisor, unit = _scale(of)
    values = [of.before, *parts.values(), of.after]
    texts = [of.spelled(of.before), *(of.spelled(one, signed=True) for one in parts.values()), of.spelled(of.after)]
    names = ["First run", *(causes[cause] for cause in parts), "Second run"]
    abouts = [None, *(_about(of, cause) for cause in parts), None]
    figure = look.blank(theme, height=340)
    figure.add_trace(
        go.Waterfall(
            x=list(range(len(values))),
            y=[one / divisor for one in values],
            measure=["absolute", *["relative"] * len(parts), "total"],
            text=texts,
            textposition="outside",
            cliponaxis=False,
            connector={"line": {"color": colours.of_theme("line_2", theme), "width": 1}},
            increasing={"marker": {"color": colours.hue("kind_1", theme)}},
            decreasing={"marker": {"color": colours.hue("kind_2", theme)}},
            totals={"marker": {"color": colours.hue("kind_3", theme)}},
            hovertext=[
                look.hover(f"{name}: {text}", about) for name, text, about in zip(names, texts, abouts, strict=True)
            ],
            hoverinfo="text",
            showlegend=False,
        )
    )
    figure.update_xaxes(tickvals=list(range(len(names))), ticktext=[look.label(one, 24) for one in names])
    figure.update_yaxes(title_text=f"{of.title}, {unit}", rangemode="tozero")
    return figure


def _scale(of: Falling) -> tuple[float, str]:
    largest = max(abs(of.before), abs(of.after))
    if of.unit == "bytes":
        return words.byte_unit(largest)
    if of.unit == "s":
        return (1.0, "s") if largest >= 1 else (1e-3, "ms")
    return 1.0, of.unit


def _about(of: Falling, cause: str) -> str | None:
    own = sorted((one for one in of.parts if one.cause == cause and one.value), key=lambda one: -abs(one.value))
    return "<br>".join(look.label(" · ".join(filter(None, [one.phase, one.about])), 160) for one in own[:3]) or None
