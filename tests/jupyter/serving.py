"""A Jupyter server with the extension, asked over HTTP, and the process beside it that reads runs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import websocket

from tests.jupyter import plugin
from tests.ports import free_port
from tests.sample_run import sample_rows, write_run

TOKEN = "a-token"
NASTY = "<img src=x onerror=globalThis.__hurt=1>"

#: The process that reads runs doesn't end because a test takes long between two questions.
NEVER_IDLE = {"PROBE_JUPYTER_IDLE_S": "100000"}


class Server:
    """A server, asked as its page would."""

    def __init__(self, url: str, process: subprocess.Popen[bytes]) -> None:
        self.url = url
        self.process = process

    def ask(self, path: str, body: Any = None, token: str | None = TOKEN, **headers: str) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(f"{self.url}/probe/api/{path}", data=data, headers=headers)
        if token is not None:
            asked.add_header("Authorization", f"token {token}")
        try:
            with urllib.request.urlopen(asked, timeout=120) as reply:
                return reply.status, json.loads(reply.read())
        except urllib.error.HTTPError as error:
            with error:
                text = error.read()
            return error.code, json.loads(text) if text.startswith(b"{") else text

    def header(self, path: str, name: str) -> str | None:
        """A header of what is answered."""
        asked = urllib.request.Request(f"{self.url}/probe/api/{path}", headers={"Authorization": f"token {TOKEN}"})
        with urllib.request.urlopen(asked, timeout=120) as reply:
            found: str | None = reply.headers[name]
            return found

    def readers(self) -> list[psutil.Process]:
        """The processes that read runs for it."""
        children = psutil.Process(self.process.pid).children()
        return [one for one in children if "probe.jupyter.reading" in _command(one)]


def _command(one: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(one.cmdline())
    return ""


def await_that(holds: Callable[[], Any], seen: Callable[[], Any] = lambda: "nothing else is known") -> Any:
    """What ``holds`` gives, once that is true or isn't empty; where it never is, what was ``seen`` is said."""
    end = time.monotonic() + 300
    while not (found := holds()):
        assert time.monotonic() < end, f"{found!r} is all that came; {seen()}"
        time.sleep(0.1)
    return found


def one_reader(server: Server) -> psutil.Process:
    """The one process that reads runs for a server, which is asked until that is there: it may be ending just now."""

    def found() -> psutil.Process | None:
        assert server.ask("runs")[0] == 200
        living = [*filter(alive, server.readers())]
        return living[0] if len(living) == 1 else None

    reader: psutil.Process = await_that(found, server.readers)
    return reader


@contextlib.contextmanager
def serving(root: Path, place: Path, *more: str, **variables: str) -> Iterator[Server]:
    plugin.install(place)
    port = free_port()
    command = [
        sys.executable, "-m", "jupyter_server", "--allow-root", "--no-browser", "--ip=127.0.0.1", f"--port={port}",
        "--ServerApp.port_retries=0", f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={root}",
        "--ServerApp.base_url=/a/b/", *more,
    ]  # fmt: skip
    homes = {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data", "JUPYTER_RUNTIME_DIR": "runtime"}
    told = {name: str(place / below) for name, below in homes.items()}
    url = f"http://127.0.0.1:{port}/a/b"
    with (place / "server.log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=root, env={**os.environ, **told, **variables}, stdout=log, stderr=log, start_new_session=True
        )
        try:
            await_that(lambda: _answers(url) or process.poll() is not None, (place / "server.log").read_text)
            yield Server(url, process)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(300)


def _answers(url: str) -> bool:
    with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
        urllib.request.urlopen(f"{url}/api", timeout=30).close()
        return True
    return False


def at(run: str, **more: str) -> str:
    return urllib.parse.urlencode({"run": run, **more})


def home(place: Path) -> Path:
    """A server's directory of one's own, with a run."""
    write_run(place / "home" / "runs" / "first", sample_rows(2, 6), project="shop", experiment="first")
    return place / "home"


def streaming(server: Server, path: str, header: list[str] | None = None, origin: str | None = None) -> Any:
    """A WebSocket of the server, as its page opens it; by default with the token."""
    address = f"ws{server.url.removeprefix('http')}/probe/api/{path}"
    told = [f"Authorization: token {TOKEN}"] if header is None else header
    kept = {"origin": origin} if origin is not None else {"suppress_origin": True}
    return websocket.create_connection(address, timeout=120, header=told, **kept)


def alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):  # it may end between the two questions
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
