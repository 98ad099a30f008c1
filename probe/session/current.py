"""Which session this process has open. There is one at most, and threads agree on it under one lock."""

from __future__ import annotations

import threading
import time
from typing import Any, Final

from probe.hooks import current_scope
from probe.records import Incident


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


def record_incident(incident: Incident) -> None:
    """Write an incident to the run that is open or being closed: a backend, or the publisher, is in trouble.

    Args:
        incident: Its row, which stands beside the log line that Tracking writes.
    """
    open_now = CURRENT.session or CURRENT.closing
    if open_now is not None:
        open_now.recording.write_rows(incident, current_scope(), time.monotonic_ns())
