"""The frames of one page, from the first to the last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from probe.views.server.frames import BEAT
from probe.views.server.hub import Channel
from probe.views.server.panel import ServedPanel

#: Seconds between two beats.
BEAT_S: Final = 3.0


def stream(panel: ServedPanel, write: Callable[[bytes], object], *, again: bool) -> None:
    """Write everything that a page is to get, until the panel ends.

    Args:
        panel: What is shown.
        write: Takes the bytes; it may wait for whoever reads them.
        again: Whether the page was here before, see :meth:`probe.views.server.panel.ServedPanel.attach`.

    Raises:
        OSError: What ``write`` raises: nobody reads any more.
    """
    channel = Channel()
    try:
        while not panel.ready.wait(BEAT_S):
            write(BEAT)
        first = panel.attach(channel, again=again)
        if first is None:
            return
        write(first)
        while not channel.over:
            write(channel.next_frame(BEAT_S) or BEAT)
            panel.catch_up(channel)
    finally:
        panel.hub.remove(channel)
