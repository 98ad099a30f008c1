"""What the browser is given: our script and styles, built by ``make js`` from ``static/src/``, and plotly.js from the
installed plotly.
"""

from __future__ import annotations

import gzip
from functools import cache
from importlib import resources, util
from pathlib import Path

from probe.errors import MissingDependencyError, MissingKeyError


@cache
def script() -> str:
    """The panel's ES module, in one file that imports nothing.

    Returns:
        The text of the module.

    Raises:
        MissingKeyError: When the file isn't there; the installation is broken.
    """
    return _static("panel.js")


@cache
def styles() -> str:
    """The panel's style sheet.

    Returns:
        The text of the style sheet.

    Raises:
        MissingKeyError: When the file isn't there; the installation is broken.
    """
    return _static("panel.css")


@cache
def plotly_packed() -> bytes:
    """plotly.js of the installed plotly package, gzip: a third of its size, and no network needed.

    The package isn't imported.

    Returns:
        The gzipped bytes of the library.

    Raises:
        MissingDependencyError: When plotly isn't installed.
    """
    found = util.find_spec("plotly")
    if found is None or found.origin is None:
        raise MissingDependencyError.of("the live panel", "plotly", "views")
    path = Path(found.origin).parent / "package_data" / "plotly.min.js"
    return gzip.compress(path.read_bytes(), compresslevel=6, mtime=0)


def _static(name: str) -> str:
    path = resources.files("probe.views.panel") / "static" / name
    if not path.is_file():
        raise MissingKeyError(f"static file {name!r}: {path} isn't there; install probe-rl again")
    return path.read_text(encoding="utf-8")
