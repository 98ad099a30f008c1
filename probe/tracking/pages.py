"""Interactive pages of figures that change often: each holds all of plotly.js, so that they aren't sent each time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from probe.tracking.media import Figure, page

#: A page isn't sent more often than that, seconds; the figure itself always is.
PAGE_S: Final = 30.0


@dataclass(frozen=True)
class Page:
    """The newest state of one figure."""

    path: str
    title: str
    figure: Figure

    def text(self) -> str:
        """The HTML."""
        return page(self.figure, self.title)


class Pages:
    """Which pages are due: at once for a new figure or one that was sent a while ago, the others later.

    Args:
        clock: Gives seconds.

    >>> now = [0.0]
    >>> pages = Pages(lambda: now[0])
    >>> pages.queue_page("a", "a", Figure("{}"))
    >>> pages.done(pages.due())
    >>> pages.queue_page("a", "a", Figure('{"data": []}')); pages.due() is None
    True
    >>> now[0] = 31.0; pages.due().figure.spec
    '{"data": []}'
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: dict[str, Page] = {}
        self._sent: dict[str, tuple[float, Figure]] = {}

    def queue_page(self, path: str, title: str, figure: Figure) -> None:
        """Take a figure's newest state."""
        self._waiting[path] = Page(path, title, figure)

    def due(self, last: bool = False) -> Page | None:
        """A page to send now; ``last`` takes all that differ from what was sent."""
        now = self._clock()
        for path, one in list(self._waiting.items()):
            when, before = self._sent.get(path, (-PAGE_S, None))
            if before == one.figure:
                del self._waiting[path]
            elif last or now - when >= PAGE_S:
                return one
        return None

    def done(self, one: Page) -> None:
        """It was sent."""
        self._sent[one.path] = (self._clock(), one.figure)
        if self._waiting.get(one.path) is one:
            del self._waiting[one.path]
