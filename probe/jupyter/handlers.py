"""What the Jupyter server answers below ``probe/api``: the same to everybody who may read its contents.

Every handler wants a login, is checked for cross-site requests by the server itself (XSRF token, Origin), and asks the
server's authorizer whether this user may read contents. What an address takes and gives:

====================== ======================================= ==================================================
``GET runs``                                                   the list of runs; header :data:`SETTLED`
``GET stream``         ``run``, ``again``                      a WebSocket: frames of the panel, as long as it is open
``POST message``       ``run``; JSON body                      the panel's answer
``GET findings``       ``run``                                 all findings of a run
``POST sql``           JSON: ``run``, ``query``                rows
``GET compare``        ``run``, ``with``                       what differs between two runs
``GET plotly.js``                                              plotly.js
``GET memory``                                                 which kernel or process holds memory here
``POST roots``         JSON: ``roots``                         where else to look, of the user's settings
====================== ======================================= ==================================================

The bodies are those of :mod:`probe.jupyter.reading`. The WebSocket brings first a text
message, a JSON object with ``status`` (as of HTTP), then the body in binary messages. A browser opens six other
connections to one server at most, for all its pages and JupyterLab itself: six panels would hold them all.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from jupyter_server.utils import url_path_join
from tornado import web
from tornado.iostream import StreamClosedError
from tornado.websocket import WebSocketClosedError, WebSocketHandler
from traitlets import List, Unicode
from traitlets.config import Configurable

from probe.errors import RunError
from probe.jupyter.beside import Beside
from probe.jupyter.kernels import kernels

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jupyter_server.serverapp import ServerApp

#: Beginning of the extension's paths below the server's address, and name of its folder of the browser's side.
NAME = "probe"

#: Header with the list of runs: "yes" once a page has posted the directories of its settings, "no" before. A server
#: that was started again knows them no more.
SETTLED = "X-Probe-Settled"


class Runs(Configurable):
    """Configuration of the Jupyter server: ``c.Runs`` … see :data:`roots`."""

    roots = List(
        Unicode(),
        help="Directories beside the server's own in which runs are looked for, such as ['/data/runs'].",
    ).tag(config=True)


class _Asking(JupyterHandler):
    """Knows whom to ask."""

    auth_resource = "contents"

    @property
    def beside(self) -> Beside:
        found: Beside = self.settings["probe_beside"]
        return found


class _Handler(_Asking, APIHandler):
    """Passes an answer on."""

    async def pass_on(self, question: Mapping[str, Any], kind: str = "application/json", encoding: str = "") -> None:
        """Ask the process that reads runs, and write what it answers as it comes.

        Args:
            question: As :mod:`probe.jupyter.reading` describes it.
            kind: Content type of an answer; why there is none is always JSON.
            encoding: In which an answer comes, such as "gzip".
        """
        try:
            async with self.beside.ask(question) as (status, pieces):
                self.set_status(status)
                self.set_header("Content-Type", kind if status == 200 else "application/json")
                if encoding and status == 200:
                    self.set_header("Content-Encoding", encoding)
                self.set_header("Cache-Control", "no-store")
                self.set_header("X-Accel-Buffering", "no")  # a proxy would hold frames back
                self.set_header("X-Content-Type-Options", "nosniff")
                async for piece in pieces:
                    self.write(piece)
                    await self.flush()
        except RunError as error:
            if self._headers_written:
                return
            self.set_status(503)
            self.finish(json.dumps({"message": str(error)}))
        except StreamClosedError:
            return  # the page has gone

    def wanted(self, *names: str) -> dict[str, Any]:
        """The values of a JSON body; refuses anything else."""
        body = self.get_json_body()
        if not isinstance(body, dict) or not set(names) <= body.keys():
            raise web.HTTPError(400, f"body: expected a JSON object with the keys {', '.join(names)}")
        return {name: body[name] for name in names}


class _List(_Handler):
    @web.authenticated
    @authorized("read")
    async def get(self) -> None:
        self.set_header(SETTLED, "yes" if self.settings["probe_settled"] else "no")
        await self.pass_on({"op": "runs"})


class _Stream(WebSocketMixin, WebSocketHandler, _Asking):
    """Who asks is looked at before the WebSocket is there; an unknown ``Origin`` is refused by the mixin."""

    @web.authenticated
    @authorized("read")
    async def get(self) -> None:  # type: ignore[override]  # of its type the decorator knows nothing
        again = self.get_query_argument("again", "") == "1"
        self._question = {"op": "stream", "run": self.get_query_argument("run"), "again": again}
        self._passing: asyncio.Task[None] | None = None
        await super().get()

    def get_login_url(self) -> str:
        """A page can't follow a WebSocket to the login, so it is told."""
        raise web.HTTPError(403)

    def open(self) -> None:
        super().open()
        # Tornado looks for what comes, and so for the end, once this has returned.
        self._passing = asyncio.create_task(self._pass_on())

    def on_message(self, message: str | bytes) -> None:
        """What a panel asks is posted; nothing is expected here."""

    def on_close(self) -> None:
        if self._passing is not None:
            self._passing.cancel()  # nobody looks at the run any more

    async def _pass_on(self) -> None:
        told = False
        try:
            async with self.beside.ask(self._question) as (status, pieces):
                await self.write_message(json.dumps({"status": status}))
                told = True
                async for piece in pieces:
                    await self.write_message(piece, binary=True)
        except RunError as error:
            if not told:
                await self._refuse(503, str(error))
        except WebSocketClosedError:
            return  # the page has gone
        self.close()

    async def _refuse(self, status: int, message: str) -> None:
        with contextlib.suppress(WebSocketClosedError):
            await self.write_message(json.dumps({"status": status}))
            await self.write_message(json.dumps({"message": message}).encode(), binary=True)


class _Message(_Handler):
    @web.authenticated
    @authorized("read")
    async def post(self) -> None:
        content = self.get_json_body()
        await self.pass_on({"op": "message", "run": self.get_query_argument("run"), "content": content})


class _Findings(_Handler):
    @web.authenticated
    @authorized("read")
    async def get(self) -> None:
        await self.pass_on({"op": "findings", "run": self.get_query_argument("run")})


class _Sql(_Handler):
    @web.authenticated
    @authorized("read")
    async def post(self) -> None:
        await self.pass_on({"op": "sql", **self.wanted("run", "query")})


class _Compare(_Handler):
    @web.authenticated
    @authorized("read")
    async def get(self) -> None:
        ask = self.get_query_argument
        await self.pass_on({"op": "compare", "run": ask("run"), "with": ask("with")})


class _Memory(_Handler):
    """Of all kernels and notebooks it names those of this server alone: it knows no other's."""

    @web.authenticated
    @authorized("read", resource="sessions")
    async def get(self) -> None:
        own = await kernels(self.session_manager, self.kernel_manager)
        await self.pass_on({"op": "memory", "kernels": own, "server": os.getpid()})


class _Roots(_Handler):
    """Whoever may run code here may also say where runs are."""

    @web.authenticated
    @authorized("execute", resource="kernels")
    async def post(self) -> None:
        more = self.wanted("roots")["roots"]
        if not isinstance(more, list) or not all(isinstance(one, str) for one in more):
            raise web.HTTPError(400, f"roots: got {more!r}, expected a list of directories")
        self.beside.set_roots([*self.settings["probe_roots"], *more])
        self.settings["probe_settled"] = True
        self.finish("{}")


class _Plotly(_Handler):
    @web.authenticated
    @authorized("read")
    async def get(self) -> None:
        await self.pass_on({"op": "plotly"}, "text/javascript; charset=utf-8", "gzip")


def add_handlers(server_app: ServerApp) -> None:
    """Add the handlers to a Jupyter server; no process begins, and nothing is read.

    Args:
        server_app: The server.
    """
    app = server_app.web_app
    configured = Runs(parent=server_app).roots
    roots = [server_app.root_dir, *configured]
    app.settings["probe_roots"] = roots
    app.settings["probe_settled"] = False
    app.settings["probe_beside"] = Beside(roots)
    handlers = {
        "runs": _List,
        "stream": _Stream,
        "message": _Message,
        "findings": _Findings,
        "sql": _Sql,
        "compare": _Compare,
        "memory": _Memory,
        "roots": _Roots,
        "plotly.js": _Plotly,
    }
    base = app.settings["base_url"]
    app.add_handlers(".*$", [(url_path_join(base, NAME, "api", path), one) for path, one in handlers.items()])
