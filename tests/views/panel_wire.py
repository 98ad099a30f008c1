"""What a panel sends to its pages, without any page."""

from __future__ import annotations

import json
from typing import Any

from probe.views.panel.panel import Panel


class Wire:
    """In the place of a widget's way to the browser."""

    def __init__(self, shown: Panel) -> None:
        self.heads: list[dict[str, Any]] = []
        self.broken = False
        shown.widget.send = self
        shown._pump.deliver = self

    def __call__(self, head: dict[str, Any], buffers: Any = None) -> None:
        if self.broken:
            raise OSError("the comm is gone")
        self.heads.append(json.loads(json.dumps(head)))

    @property
    def last(self) -> dict[str, Any]:
        """The last message that says how the run is; between them may be such that we are still there."""
        return next((head for head in reversed(self.heads) if "step" in head.get("state", {})), {})

    @property
    def anew(self) -> list[dict[str, Any]]:
        """The messages that take the place of all that was there: of another attempt."""
        return [head for head in self.heads if head["t"] == "k" and head.get("anew")]

    @property
    def rows(self) -> dict[str, int]:
        return {
            entry["name"]: entry["from"] + entry["n"]
            for head in self.heads
            if head["t"] == "d"
            for entry in head["tables"]
        }
