"""The panel of a notebook without the notebook: the same configuration, the same messages, sent to pages."""

from __future__ import annotations

import shlex
import threading
from typing import Any

from probe.live.feed import Feed
from probe.runs.layout import typed_here
from probe.views.panel.asks import answer_ask
from probe.views.panel.panel import Panel
from probe.views.panel.widget import packed
from probe.views.server.frames import frame
from probe.views.server.hub import Channel, Hub


class ServedPanel(Panel):
    """A panel that is shown by pages. See :class:`probe.views.panel.panel.Panel` for what can go wrong.

    Args:
        source: A run, or where one is.
        beside: Whether earlier runs beside it may be read.

    Attributes:
        hub: The pages.
        ready: Set once the run has been read.
    """

    shared = False  # a notebook in this process that shows the same run gets a panel of its own

    def __init__(self, source: Any, *, beside: bool = True) -> None:
        self.beside = beside
        super().__init__(source)
        self.hub = Hub()
        self.ready = threading.Event()

    @property
    def command(self) -> str:
        """What shows this run again, to be typed in the same directory."""
        return f"probe open {shlex.quote(typed_here(self.path))}"

    def follow(self) -> None:
        """Read what is there, and send what is new from now on."""
        self.send_to(self.hub.send)
        self.ready.set()

    def config(self) -> dict[str, Any]:
        """As in a notebook; and whom the panel asks, as its texts call it."""
        return {**super().config(), "asks": "server"}

    def found(self, ended: int) -> list[dict[str, Any]] | None:
        """What it says is wrong in the run, worst first, as :func:`probe.views.panel.looking.told` gives it.

        Args:
            ended: How many of the run's processes have ended, as whoever asks has heard; where these are more than
                before, alarms are looked for at once.

        Returns:
            The findings; None where nothing is known yet, or an earlier attempt is shown.
        """
        self._ended = max(self._ended, ended)
        told: list[dict[str, Any]] | None = self._verdict.told["findings"]
        return told if self.pump.feed.attempt is None else None

    def attach(self, channel: Channel, *, again: bool) -> bytes | None:
        """Let a page take part. Nothing is missed: no message is sent between the snapshot and the first one.

        Args:
            channel: Where the page's messages wait.
            again: Whether the page was here before. It keeps what it has, and the next message brings what it missed.

        Returns:
            The frame to begin with; None where there are too many pages.
        """

        def join(_feed: Feed) -> tuple[dict[str, Any], bytes] | None:
            if not self.hub.add(channel):
                return None
            found: tuple[dict[str, Any], bytes] = ({}, b"") if again else self.pump.snapshot()
            if not found[0]:
                self.pump.ask_for_all()
            return found

        snapshot: tuple[dict[str, Any], bytes] | None = self.pump.read(join)
        if snapshot is None:
            return None
        head, data = packed(*snapshot)
        return frame("hello", [data], config=self.config(), command=self.command, head=head or None)

    def catch_up(self, channel: Channel) -> None:
        """Where a page was too slow: let the next message bring everything."""
        if channel.behind:
            channel.behind = False
            self.pump.ask_for_all()

    def message(self, content: Any) -> dict[str, Any]:
        """The answer to what a page sends: a mark, as the browser side of the panel sends it to a kernel.

        Returns:
            The answer; empty for anything that isn't a mark.
        """
        if not isinstance(content, dict) or content.get("v") != 1 or content.get("t") != "mark":
            return {}
        if content.get("ask") == "samples":  # of one page alone: the others have asked for something else
            return self._samples.ask(content, self.pump.feed.attempt)
        answer_ask(self.pump, content)
        return {"v": 1, "t": "a", "id": content.get("id")}

    def close(self) -> None:
        """End the panel, and tell the pages. Safe to call twice."""
        super().close()
        self.hub.end()
