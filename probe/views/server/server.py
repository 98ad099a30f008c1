"""The server of one run's pages, for this machine alone: standard library, a thread for each page that is open."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
import threading
import time
from http.server import ThreadingHTTPServer
from socketserver import TCPServer
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from probe.errors import InputError, RunError
from probe.views.server.handler import Handler
from probe.views.server.panel import ServedPanel

if TYPE_CHECKING:
    from probe.runs.reader import Run

_log = logging.getLogger("probe.views.server")

HOST: Final = "127.0.0.1"

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
            self._listener = Listener((HOST, port), self.panel, self.token)
        except OSError as error:
            raise RunError(f"port {port}: can't be listened on: {error.strerror or error}") from error
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


class Listener(ThreadingHTTPServer):
    """Takes connections, and can end those that are open."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = os.name == "posix"  # elsewhere it would let others take the port, too
    request_queue_size = 32

    def __init__(self, address: tuple[str, int], panel: ServedPanel, token: str) -> None:
        self.panel = panel
        self.token = token
        self._open: dict[Any, threading.Thread] = {}
        self._lock = threading.Lock()
        super().__init__(address, Handler)

    def server_bind(self) -> None:
        """Without asking anybody for this machine's name, as http.server would."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """A thread for it, which is remembered."""
        work = self.process_request_thread
        thread = threading.Thread(target=work, args=(request, client_address), name="probe-page", daemon=True)
        with self._lock:
            self._open[request] = thread
        thread.start()

    def shutdown_request(self, request: Any) -> None:
        """End a connection."""
        super().shutdown_request(request)
        with self._lock:
            self._open.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  (socketserver's)
        """A page that goes while it is answered is no failure."""
        if not isinstance(sys.exception(), OSError):
            _log.exception("a request for the page of %s failed", self.panel.path)

    def finish(self, patience_s: float) -> None:
        """Wait for the answers that are under way, then cut them off."""
        self.server_close()
        self._join(patience_s)
        with self._lock:
            left = list(self._open)
        for connection in left:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # it ended by itself meanwhile
        self._join(patience_s)

    def _join(self, patience_s: float) -> None:
        end = time.monotonic() + patience_s
        with self._lock:
            threads = list(self._open.values())
        for thread in threads:
            thread.join(max(end - time.monotonic(), 0.0))
