"""The server of one run's pages, for this machine alone: standard library, a thread for each page that is open."""

from __future__ import annotations

import os
import secrets
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from probe.errors import InputError, RunError
from probe.views.server.handler import Handler
from probe.views.server.listener import HOST, Listener
from probe.views.server.panel import ServedPanel

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Seconds that pages get to hear that it's over.
FAREWELL_S: Final = 1.5


class PageServer:
    """Serves the live panel of one run.

    It follows the run directory and nothing else; closing it leaves the run as it is. Use it as a context manager.

    Args:
        source: A run directory or its URL, or a reader of it.
        port: The port to listen on; 0 takes a free one.

    Attributes:
        panel: What is shown.
        token: The text in the URL without which a caller is refused.
        url: URL of the page.

    Raises:
        RunNotFoundError: There is no run.
        RunError: It can't be read, or the port can't be had.
        InputError: There is no such port.
    """

    def __init__(self, source: str | os.PathLike[str] | Run, *, port: int = 0) -> None:
        if not (isinstance(port, int) and 0 <= port < 2**16):
            raise InputError(f"port: got {port!r}, expected 0 to 65535")
        self.panel = ServedPanel(source)
        self.token = secrets.token_urlsafe(32)
        try:
            self._listener = Listener((HOST, port), Handler, self.panel, self.token)
        except OSError as error:
            raise RunError(f"port {port}: can't listen on it: {error.strerror or error}") from error
        self.url = f"http://{HOST}:{self._listener.server_address[1]}/{self.token}/"
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to answer, in a thread. Pages wait until :meth:`follow` has read the run."""
        if self._thread is None:
            listen = self._listener.serve_forever
            self._thread = threading.Thread(target=listen, args=(0.1,), name="probe-page-server", daemon=True)
            self._thread.start()

    def follow(self) -> None:
        """Read the run as it is, and follow it from now on. What fails is shown by the pages."""
        self.panel.follow()

    def close(self) -> None:
        """End everything: the pages are told, and no thread stays. Safe to call twice."""
        self.panel.close()
        self.panel.ready.set()  # for pages that still wait for it; they are told that it's over
        if self._thread is not None and self._thread.is_alive():
            self._listener.shutdown()
            self._thread.join()
        self._listener.finish(FAREWELL_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
