"""One request of a page, and who may ask.

The address is this machine's own, and every path begins with a token that only the printed URL has. A page of
somewhere else can't ask through a person's browser: the Host header must name this machine (against DNS rebinding), an
Origin must be this very server, and nothing here is ever shared with another origin. What the browser may do with the
page is narrowed too: scripts, connections and pictures from here alone.
"""

from __future__ import annotations

import gzip
import hmac
import json
import re
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, Final

from probe.errors import MissingKeyError
from probe.views.server import files
from probe.views.server.streaming import stream

if TYPE_CHECKING:
    from probe.views.server.listener import Listener

#: Seconds for a request to come, and for a page to take what is written.
REQUEST_S: Final = 10.0
WRITE_S: Final = 30.0

#: Bytes of a message from a page.
MOST_BYTES: Final = 64 * 1024

_HOST: Final = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?", re.IGNORECASE)

# Styles may stand in the page, since plotly and uPlot write some; scripts may not.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Connection": "close",
}


class Handler(BaseHTTPRequestHandler):
    """Answers one request, and then the connection ends."""

    server: Listener
    server_version = "probe"
    sys_version = ""
    timeout = REQUEST_S

    def do_GET(self) -> None:
        """A file of the page, or the stream of frames."""
        name = self._admitted()
        if name == "stream":
            self._stream()
        elif name is not None:
            self._file(name)

    def do_POST(self) -> None:
        """What the panel asks."""
        name = self._admitted()
        if name == "message":
            content = self._body()
            if content is not None:
                self._answer(json.dumps(self.server.panel.message(content)).encode(), "application/json")
        elif name is not None:
            self._refuse(HTTPStatus.NOT_FOUND)

    # ------------------------------------------------------------------------------------------- who may ask

    def _admitted(self) -> str | None:
        """What is asked for, without the token; None where the answer has been given: a refusal, or another place."""
        token, slash, name = self.path.partition("?")[0].removeprefix("/").partition("/")
        if not (self._is_for_here() and self._is_from_here(name) and self._knows(token)):
            self._refuse(HTTPStatus.FORBIDDEN)
            return None
        if not slash:  # the page asks for its files beside itself
            self._begin(HTTPStatus.PERMANENT_REDIRECT, {"Location": f"/{self.server.token}/", "Content-Length": "0"})
            return None
        return name

    def _knows(self, token: str) -> bool:
        return hmac.compare_digest(token.encode("utf-8", "replace"), self.server.token.encode())

    def _is_for_here(self) -> bool:
        hosts = self.headers.get_all("Host") or []
        return len(hosts) == 1 and _HOST.fullmatch(hosts[0].strip()) is not None

    def _is_from_here(self, name: str) -> bool:
        """Not asked by a page of another origin. To follow a link to the page itself is everybody's right."""
        origin = self.headers.get("Origin")
        if origin is not None and origin.strip().lower() != f"http://{self.headers['Host'].strip().lower()}":
            return False
        site = self.headers.get("Sec-Fetch-Site", "none")
        follows = self.command == "GET" and not name and self.headers.get("Sec-Fetch-Mode", "navigate") == "navigate"
        return site in ("same-origin", "none") or follows

    # ---------------------------------------------------------------------------------------------- answers

    def _file(self, name: str) -> None:
        try:
            kind, packed = files.packed(name)
        except MissingKeyError:
            return self._refuse(HTTPStatus.NOT_FOUND)
        if "gzip" in self.headers.get("Accept-Encoding", ""):
            return self._answer(packed, kind, {"Content-Encoding": "gzip"})
        return self._answer(gzip.decompress(packed), kind)

    def _stream(self) -> None:
        panel = self.server.panel
        self.connection.settimeout(WRITE_S)
        again = self.path.endswith("?again")
        if len(panel.hub) >= panel.hub.most:
            return self._refuse(HTTPStatus.TOO_MANY_REQUESTS)
        try:
            self._begin(HTTPStatus.OK, {"Content-Type": "application/octet-stream"})
            stream(panel, self.wfile.write, again=again)
        except OSError:
            pass  # the page has gone, or doesn't read
        return None

    def _body(self) -> Any:
        """The JSON of a message; None where it can't be read, which has been answered."""
        if self.headers.get_content_type() != "application/json":  # a form of another page would be sent unasked
            return self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            return self._refuse(HTTPStatus.LENGTH_REQUIRED)
        if len(length) > 9 or int(length) > MOST_BYTES:
            return self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        try:
            return json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            return self._refuse(HTTPStatus.BAD_REQUEST)

    def _answer(self, body: bytes, kind: str, more: dict[str, str] | None = None) -> None:
        self._begin(HTTPStatus.OK, {"Content-Type": kind, "Content-Length": str(len(body)), **(more or {})})
        self.wfile.write(body)

    def _refuse(self, status: HTTPStatus) -> None:
        body = f"{status.value} {status.phrase}\n".encode()
        self._begin(status, {"Content-Type": "text/plain; charset=utf-8", "Content-Length": str(len(body))})
        self.wfile.write(body)

    def _begin(self, status: HTTPStatus, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = True

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """As http.server's, without a word about what was asked."""
        del message, explain  # they may quote the URL, which holds the token
        self._refuse(HTTPStatus(code))

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the URLs hold the token."""
