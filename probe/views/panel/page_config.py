"""What the browser is told once: what the run is, the views, and how they are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from probe import dashboards
from probe.dashboards import compile as sql
from probe.dashboards.columns import as_data
from probe.errors import InputError, UnknownNameError
from probe.live.feed import Feed
from probe.live.tables import ROWS
from probe.runs.layout import typed_here
from probe.views.panel.verdict import topics

#: Points of one line in the browser.
POINTS: Final = 4000


def chosen_views(asked: Sequence[str] | None) -> tuple[dashboards.View, ...]:
    """The views that a panel shows.

    Args:
        asked: Their ids, in order; None means all.

    Raises:
        InputError: It is no list of ids.
        UnknownNameError: There is no such view.
    """
    known = {view.id: view for view in dashboards.views()}
    if asked is None:
        return tuple(known.values())
    if isinstance(asked, str) or not asked:
        raise InputError(f"views: got {asked!r}, expected a list of ids out of {', '.join(known)}")
    for id in asked:
        if id not in known:
            raise UnknownNameError.of("views", id, known)
    return tuple(known[id] for id in asked)


def page_config(
    feed: Feed, views: Sequence[dashboards.View], *, key: str, title: str, path: str, hint: str
) -> dict[str, Any]:
    """What the browser is told once.

    Args:
        feed: Follows the run.
        views: That are shown, in their order.
        key: Of the panel, the same for all its pages.
        title: What stands above it.
        path: Path or URL of the run directory.
        hint: The code that opens the panel again.
    """
    panels = {panel.id: panel for view in views for panel in view.panels}
    return {
        "version": 1,
        "key": key,
        "title": title,
        "run": {
            "project": feed.info.project,
            "experiment": feed.info.experiment or Path(path).name,
            "path": typed_here(path),
            "directory": None if "://" in path else str(Path(path).absolute()),
            "world_size": feed.world_size,
            "started_at": feed.started_s,
        },
        "views": [
            {"id": view.id, "title": view.title, "about": view.about, "panels": [panel.id for panel in view.panels]}
            for view in views
        ],
        "panels": {
            id: {
                "title": panel.title,
                "about": {"shows": panel.about.shows, "read": panel.about.read, "do": panel.about.do},
                "live": dict(panel.live),
                "missing": panel.missing,
                "sql": " ".join(sql.numbers(panel.live).split()),
            }
            for id, panel in panels.items()
        },
        "topics": topics(views),
        "thresholds": {},
        "hint": hint,
        "limits": {"rows": ROWS, "points": POINTS},
        "schema": as_data({name: table.declared for name, table in feed.tables.items()}),
    }
