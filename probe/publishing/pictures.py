"""Every panel of the dashboards as a figure and a table, and which charts of metrics belong to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from probe.dashboards import WHO, Dashboard, Panel, dashboards
from probe.figures import panel as picture
from probe.figures import theme as look
from probe.text import SOURCES
from probe.tracking.media import Figure, Medium, Table

if TYPE_CHECKING:
    import pandas as pd

    from probe.runs.reader import Run

#: Rows of a table that are sent.
ROWS: Final = 200


def panels() -> list[tuple[str, Panel]]:
    """Each panel with the name that it has in a backend."""
    return [(f"probe/{board.name}/{panel.id}", panel) for board in dashboards() for panel in board.panels]


def draw(name: str, panel: Panel, run: Run) -> dict[str, Medium]:
    """The figure of ``panel`` under ``name``, and its table under ``<name>_table``; less where there is nothing."""
    made: dict[str, Medium] = {}
    figure = picture.draw(panel, run, titled=True)
    if look.why(figure) is None:
        made[name] = Figure(figure.to_json())
    listing = panel.listing(run)
    if len(listing):
        made[f"{name}_table"] = table(listing)
    return made


def table(frame: pd.DataFrame) -> Table:
    """The first :data:`ROWS` rows, missing cells empty. NaN stays NaN."""
    rows: list[list[Any]] = frame.head(ROWS).astype(object).to_numpy().tolist()
    return Table([str(name) for name in frame.columns], [[_cell(cell) for cell in row] for row in rows])


def _cell(cell: Any) -> Any:
    if isinstance(cell, float):
        return cell if math.isfinite(cell) else str(cell)  # JSON has no number for it
    return None if cell is None or type(cell).__name__ == "NAType" else cell


def charts(
    logged: Sequence[str], boards: Sequence[Dashboard] | None = None, who: str = "rank 0"
) -> dict[str, dict[str, dict[str, Any]]]:
    """The dashboards' charts for the metrics that are logged.

    Args:
        logged: The names of the metrics.
        boards: The dashboards; None for all there are.
        who: What the process is shown as that logged them.

    Returns:
        Dashboard → title → kind and keys.
    """
    arranged: dict[str, dict[str, dict[str, Any]]] = {}
    for board in dashboards() if boards is None else boards:
        filled = {
            _said(title, keys, who): {"kind": chart.kind, "keys": list(keys)}
            for panel in board.panels
            for chart in panel.charts
            for title, keys in chart.filled(logged).items()
        }
        if filled:
            arranged[board.title] = filled
    return arranged


def _said(title: str, keys: Sequence[str], who: str) -> str:
    """The title of a chart, which says of whose numbers it is, and of which memory where that isn't a device's.

    >>> _said("Peak of each role, {who} (GiB)", ["probe/memory/actor/peak_rss_gib_max"], "driver")
    'Peak of each role, driver (GiB of process memory (RSS))'
    """
    title = title.replace(WHO, who)
    of_process = all("_rss_" in key for key in keys) and SOURCES["process_rss"] not in title
    return title.replace("(GiB)", f"(GiB of {SOURCES['process_rss']})") if of_process else title


def margins() -> list[str]:
    """The keys of all margin charts, with their places: what has to be compared over the ranks."""
    lined = [key for _, panel in panels() for chart in panel.charts for key in chart.keys]
    return [key for key in dict.fromkeys(lined) if key.startswith("probe/across_ranks/")]
