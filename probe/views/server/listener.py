"""Takes the connections of the pages that are open, a thread for each, and ends them."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
from http.server import ThreadingHTTPServer
from socketserver import BaseRequestHandler, TCPServer
from typing import Any, Final

from probe.views.server.panel import ServedPanel

_log = logging.getLogger("probe.views.server")

HOST: Final = "127.0.0.1"


class Listener(ThreadingHTTPServer):
    """Takes connections, and can end those that are open.

    Args:
        address: Host and port.
        handler: What answers a request.
        panel: What is shown.
        token: The text in the URL without which a caller is refused.
    """

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = os.name == "posix"  # elsewhere it would let others take the port, too
    request_queue_size = 32

    def __init__(
        self, address: tuple[str, int], handler: type[BaseRequestHandler], panel: ServedPanel, token: str
    ) -> None:
        self.panel = panel
        self.token = token
        self._open: dict[Any, threading.Thread] = {}
        self._lock = threading.Lock()
        super().__init__(address, handler)

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

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A page that goes while it is answered is no failure."""
        del request, client_address  # socketserver gives them; the log names neither
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
