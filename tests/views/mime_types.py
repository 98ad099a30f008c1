"""MIME types of what a cell may show."""

from __future__ import annotations

PLOTLY, SVG, TEXT, HTML = "application/vnd.plotly.v1+json", "image/svg+xml", "text/plain", "text/html"
VIEW = "application/vnd.jupyter.widget-view+json"
COPY = "application/vnd.probe.copy+json"
