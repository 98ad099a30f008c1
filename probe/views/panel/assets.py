"""What the browser is given: our scripts and styles from ``static/``, and plotly.js from the installed plotly."""

from __future__ import annotations

import gzip
from functools import cache
from importlib import resources, util
from pathlib import Path
from typing import Final

from probe.errors import MissingDependencyError, MissingKeyError

#: In the order in which they are joined; the last one alone exports anything.
SCRIPTS: Final = (
    "uplot.iife.min.js",
    "words.js",
    "store.js",
    "series.js",
    "theme.js",
    "lines.js",
    "plots.js",
    "bars.js",
    "tables.js",
    "details.js",
    "views.js",
    "panel.js",
)
STYLES: Final = ("panel.css",)


@cache
def script() -> str:
    """The panel's ES module: all of :data:`SCRIPTS` in one, no build step.

    Raises:
        MissingKeyError: A file isn't there; the installation is broken.
    """
    return "\n".join(map(_static, SCRIPTS))


@cache
def styles() -> str:
    """The panel's style sheet.

    Raises:
        MissingKeyError: A file isn't there; the installation is broken.
    """
    return "\n".join(map(_static, STYLES))


@cache
def plotly_packed() -> bytes:
    """plotly.js of the installed plotly package, gzip: a third of its size, and no network needed.

    The package isn't imported.

    Raises:
        MissingDependencyError: Plotly isn't installed.
    """
    found = util.find_spec("plotly")
    if found is None or found.origin is None:
        raise MissingDependencyError("the live panel needs the package 'plotly'; install probe-rl again")
    path = Path(found.origin).parent / "package_data" / "plotly.min.js"
    return gzip.compress(path.read_bytes(), compresslevel=6, mtime=0)


def _static(name: str) -> str:
    path = resources.files("probe.views.panel") / "static" / name
    if not path.is_file():
        raise MissingKeyError(f"static file {name!r}: {path} isn't there; install probe-rl again")
    return path.read_text(encoding="utf-8")
