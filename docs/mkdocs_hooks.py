"""Hooks of mkdocs: the pages that are made from the code join the site while it is built."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # also for the griffe extension, which is loaded later

from pages import api, commands, figures, findings, inserts, metrics, panels, schema

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files


def generated() -> dict[str, str]:
    """Everything that is made, by its place in the site."""
    return {
        **panels.pages(),
        **api.pages(),
        **figures.scripts(),
        "reference/schema.md": schema.page(),
        "reference/metrics.md": metrics.page(),
        "reference/findings.md": findings.page(),
        "reference/cli.md": commands.page(),
    }


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the generated sections into the navigation, behind the index page of each."""
    made = {"panels/index.md": panels.navigation(), "api/index.md": api.navigation()}
    for entry in _entries(config["nav"]):
        for children in entry.values():
            if isinstance(children, list) and isinstance(children[0], str) and children[0] in made:
                children.extend(made.pop(children[0]))
    return config


def _entries(nav: list[Any]) -> list[dict[str, Any]]:
    found = []
    for entry in nav:
        if isinstance(entry, dict):
            found.append(entry)
            for children in entry.values():
                found += _entries(children) if isinstance(children, list) else []
    return found


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages and scripts."""
    from mkdocs.structure.files import File

    for place, text in generated().items():
        files.append(File.generated(config, place, content=text))
    files.append(File.generated(config, "assets/plotly.min.js", content=figures.plotly_script()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in the small tables of hand-written pages."""
    return inserts.filled(markdown)
