"""A panel of the dashboards as a figure, for every view that shows a finished picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from probe.dashboards import function_at
from probe.figures import scales
from probe.figures.marks import bars, heat, line, scatter, stack, stragglers, timeline

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from probe.dashboards import Panel
    from probe.figures.theme import Theme
    from probe.runs.reader import Run

#: The renderer of each mark that is drawn from a spec and its numbers alone.
MARKS: Final[Mapping[str, Callable[..., go.Figure]]] = {
    "line": line.draw,
    "stack": stack.draw,
    "bars": bars.draw,
    "heat": heat.draw,
    "timeline": timeline.draw,
    "scatter": scatter.draw,
    "stragglers": stragglers.draw,
}

#: Those that may have more steps than there are pixels.
OVER_STEPS: Final = frozenset({"line", "stack"})


def draw(
    panel: Panel, run: Run, *, theme: Theme = "light", titled: bool = False, bins: int = scales.BINS, **choice: Any
) -> go.Figure:
    """The picture of a panel; a figure that says why in words where the run has nothing to show.

    Args:
        panel: What to draw.
        run: The run to read.
        theme: Colours of the figure: "light" or "dark".
        titled: Whether the panel's title is put into the figure, for places that show nothing around it.
        bins: Of more than twice as many steps several are drawn as one, of which there are at most so many.
        **choice: One row of the panel's options without its label.

    Returns:
        The figure.
    """
    figure = _drawn(panel, panel.frame(run, **choice), theme, bins)
    if titled:
        figure.update_layout(title={"text": panel.title, "x": 0, "xref": "container", "pad": {"l": 12, "t": 12}})
        figure.update_layout(title_yanchor="top", title_y=1, margin_t=72, height=figure.layout.height + 38)
    return figure


def _drawn(panel: Panel, frame: pd.DataFrame, theme: Theme, bins: int) -> go.Figure:
    if panel.figure is not None:
        figure: go.Figure = function_at(panel.figure)(frame, theme=theme)
        return figure
    block = panel.live or {}
    over_steps = {"bins": bins} if block["mark"] in OVER_STEPS else {}
    return MARKS[block["mark"]](block, frame, missing=panel.missing, theme=theme, **over_steps)
