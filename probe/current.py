"""Which session this process has open: one at most. Standard library only, so that whoever asks loads nothing."""

from __future__ import annotations

import threading
from typing import Any, Final


class Current:
    """The sessions of this process.

    Attributes:
        session: The :class:`~probe.session.session.Session` that is open; None without one.
        closing: One whose backends are being finished, and may still have something to tell.
        lock: Held while any of them changes.
    """

    __slots__ = ("closing", "lock", "session")

    def __init__(self) -> None:
        self.session: Any = None
        self.closing: Any = None
        self.lock = threading.Lock()

    def forked(self) -> Any:
        """In a forked child: no session is open here. Returns the parent's."""
        parent, self.session, self.closing = self.session, None, None
        self.lock = threading.Lock()  # a thread that isn't here may have held it
        return parent


CURRENT: Final = Current()
