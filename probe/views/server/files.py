"""The files that a page is made of. The panel's own are those that a notebook gets."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from typing import Final

from probe.errors import MissingKeyError
from probe.views.panel import assets


def _static(name: str) -> bytes:
    path = resources.files("probe.views.server") / "static" / name
    if not path.is_file():
        raise MissingKeyError(f"static file {name!r}: {path} isn't there; install probe-rl again")
    return path.read_bytes()


@cache
def _packed(name: str) -> bytes:
    return gzip.compress(_static(name), mtime=0)


@cache
def _pack(text: str) -> bytes:
    return gzip.compress(text.encode(), mtime=0)


_TEXT: Final = "text/{}; charset=utf-8"
_HTML, _CSS, _JS, _SVG = _TEXT.format("html"), _TEXT.format("css"), _TEXT.format("javascript"), "image/svg+xml"

#: By the name under which a page asks: content type, and what gives the bytes, packed by gzip.
FILES: Final[Mapping[str, tuple[str, Callable[[], bytes]]]] = {
    "": (_HTML, lambda: _packed("page.html")),
    "page.js": (_JS, lambda: _packed("page.js")),
    "page.css": (_CSS, lambda: _packed("page.css")),
    "icon.svg": (_SVG, lambda: _packed("icon.svg")),
    "panel.js": (_JS, lambda: _pack(assets.script())),
    "panel.css": (_CSS, lambda: _pack(assets.styles())),
    "plotly.js": (_JS, assets.plotly_packed),
}


def packed(name: str) -> tuple[str, bytes]:
    """Content type and gzipped bytes of a file of the page.

    Raises:
        MissingKeyError: There is no such file.
    """
    if name not in FILES:
        raise MissingKeyError(f"file: got {name!r}, expected one of {', '.join(filter(None, FILES))}")
    kind, give = FILES[name]
    return kind, give()
