"""A panel of the dashboards as a figure, for every view that shows a finished picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from probe.dashboards import function_at

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from probe.dashboards import Panel
    from probe.figures.theme import Theme
    from probe.runs.reader import Run


def draw(panel: Panel, run: Run, *, theme: Theme = "light", titled: bool = False, **choice: Any) -> go.Figure:
    """The picture of a panel; a figure that says why in words where the run has nothing to show.

    Args:
        panel: What to draw.
        run: The run to read.
        theme: Colours of the figure: "light" or "dark".
        titled: Whether the panel's title is put into the figure, for places that show nothing around it.
        **choice: One row of the panel's options without its label.

    Returns:
        The figure.
    """
    figure: go.Figure = function_at(panel.figure)(panel.frame(run, **choice), theme=theme)
    if titled:
        figure.update_layout(title={"text": panel.title, "x": 0, "xref": "container", "pad": {"l": 12, "t": 12}})
        figure.update_layout(title_yanchor="top", title_y=1, margin_t=72, height=figure.layout.height + 38)
    return figure
