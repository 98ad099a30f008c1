"""The panels' figures as script files, drawn from the stored example run: no network, no kernel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from probe import dashboards
from probe.figures import colours, theme
from probe.figures.panel import draw
from probe.runs.reader import Run

#: The run that the pages show; ``docs/make_example_run.py`` makes it.
EXAMPLE: Final = Path(__file__).resolve().parent.parent / "example_run"


def scripts() -> dict[str, str]:
    """A script for each panel of a dashboard, by its place in the site, and one with what depends on the theme."""
    templates = {name: json.loads(theme.blank(name).to_json())["layout"]["template"] for name in theme.BACKGROUND}
    both = f"window.probeTemplates = {_json(templates)};\nwindow.probeDark = {_json(colours.dark_of_light())};\n"
    made = {"assets/figures/templates.js": both}
    with Run(EXAMPLE) as run:
        for board in dashboards.dashboards():
            for panel in board.panels:
                figure = json.loads(draw(panel, run).to_json())
                del figure["layout"]["template"]
                made[f"assets/figures/{panel.id}.js"] = (
                    f"window.probeFigures = Object.assign(window.probeFigures || {{}}, {_json({panel.id: figure})});\n"
                )
    return made


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def plotly_script() -> str:
    """plotly.js as the installed plotly brings it."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())
