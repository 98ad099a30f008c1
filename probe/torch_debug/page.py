"""probe's page in PyTorch's debug server: where each process of the run is, and what was found."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

TEMPLATE: Final = """
{% extends "base.html" %}
{% block header %}<h1>{% block title %}probe{% endblock %}</h1>{% endblock %}
{% block content %}<pre>{{ text | e }}</pre>{% endblock %}
"""


class Link(NamedTuple):
    """An entry of the server's menu."""

    path: str
    label: str


class Route(NamedTuple):
    """A path of the server, and what answers it."""

    path: str
    handler: Any


class Page:
    """A handler as PyTorch's debug server asks for one: the attributes of its ``DebugHandler``.

    Args:
        directory: The run directory.

    Attributes:
        fetch_timeout: Seconds; the server sets it. Nothing is fetched here.
    """

    fetch_timeout: float = 60.0

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def routes(self) -> list[Route]:
        """What it answers."""
        return [Route("/probe", self.answer)]

    def nav_links(self) -> list[Link]:
        """Its entries of the menu."""
        return [Link("/probe", "probe")]

    def templates(self) -> dict[str, str]:
        """Its page, in the server's own frame."""
        return {"probe.html": TEMPLATE}

    def dump(self) -> str:
        """As a file of the server's periodic dumps."""
        return self.text()

    def dump_filename(self) -> str:
        """The first part of such a file's name."""
        return "probe"

    def answer(self, request: Any) -> bytes:
        """The page.

        Args:
            request: Of the server.
        """
        rendered: bytes = request.frontend.render_template("probe.html", text=self.text())
        return rendered

    def text(self) -> str:
        """What was found, and where each process is, and for how long."""
        from probe.opened import Run
        from probe.text import place, rows, seconds

        with Run(self.directory) as run:
            found, processes = repr(run.findings()), rows(run.now())
        lines = []
        for one in processes:
            where = place(one, rank=False) or "between scopes"
            since = one["begun_ns"] if one["scope"] else one["left_ns"]
            lasts = (
                "" if since is None or one["clock_ns"] is None else f", for {seconds((one['clock_ns'] - since) / 1e9)}"
            )
            lines.append(f"{one['process']}: {where}{lasts}" if one["alive"] else f"{one['process']}: has ended")
        return "\n".join([found, "", *lines, ""])
