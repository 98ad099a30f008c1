"""The page around the report: its policy, style and script, and the figures as data beside one packed plotly.js."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from functools import lru_cache
from importlib import resources
from typing import Any

import plotly.io
from plotly.offline import get_plotlyjs

from probe.figures import colours
from probe.figures import theme as look


def page(title: str, body: str, data: dict[str, Any]) -> str:
    """The whole document.

    Args:
        title: Of the page, escaped.
        body: Its content.
        data: By panel the choices: label and figure of each.
    """
    templates = {"light": _template("light"), "dark": _template("dark")}
    payload = _script_json({"templates": templates, "dark": colours.dark_of_light(), "panels": data})
    nonce = hashlib.sha256((body + payload).encode("utf-8", "replace")).hexdigest()[:32]
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{_static("report.css")}</style>
</head>
<body>
<a class="skip" href="#findings">Skip to what was found</a>
{body}
<script type="application/json" id="data">{payload}</script>
<script type="text/plain" id="plotly">{plotly_packed()}</script>
<script nonce="{nonce}">{_static("report.js")}</script>
</body>
</html>
"""


def _template(theme: look.Theme) -> dict[str, Any]:
    empty = look.blank(theme)
    return dict(json.loads(plotly.io.to_json(empty, engine="json"))["layout"]["template"])


@lru_cache(maxsize=4)
def _static(name: str) -> str:
    return (resources.files("probe.views.report") / name).read_text(encoding="utf-8")


def _script_json(data: Any) -> str:
    """JSON that may stand inside a script element: nothing in it can end the element or open a comment."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@lru_cache(maxsize=1)
def plotly_packed() -> str:
    """plotly.js, compressed (a third of its size), as base64 text."""
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode("ascii")
