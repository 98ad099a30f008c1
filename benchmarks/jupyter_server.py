"""What the plugin costs a Jupyter server: at its start, and while a run of 1,024 ranks is open."""

from __future__ import annotations

import contextlib
import http.client
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from pathlib import Path
from typing import Any

import psutil
import websocket

from benchmarks.large_run_data import write_large_run
from benchmarks.measure import Size, row
from probe.dashboards import views

#: Pings before the run is opened, and after; and at least while it is.
PINGS = 600
RANKS, ROWS = 1024, 1_000_000

#: Seconds in which the run is read, its charts are answered, and those that look for findings end; and seconds without
#: work after which that is so.
SETTLED_S, QUIET_S = 100.0, 3.0

# Timed inside the process: between two starts of a server lie hundred milliseconds of other things.
START = """
import time, tornado.web, jupyter_server.base.handlers, jupyter_server.base.websocket
import jupyter_server.auth.decorator, jupyter_server.serverapp
from types import SimpleNamespace
server = jupyter_server.serverapp.ServerApp()
server.web_app = SimpleNamespace(settings={"base_url": "/"}, add_handlers=lambda *_: None)
begin = time.process_time()
import probe.jupyter
probe.jupyter._load_jupyter_server_extension(server)
print(time.process_time() - begin)
"""


def rows(size: Size = Size.USUAL) -> list[dict[str, Any]]:
    ranks, count = size.pick((2, 2_000), (RANKS, ROWS))
    return [_start(size.pick(1, 9)), *_open(ranks, count, *size.pick((20, 0.5), (PINGS, QUIET_S)))]


def _start(repeats: int) -> dict[str, Any]:
    found = []
    for _ in range(repeats):
        done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, check=True)
        found.append(float(done.stdout.split()[-1]))
    # Beside it stands what is allowed: without the plugin there is nothing to time.
    return row("the server's start / 20 ms", statistics.median(found), 0.02, target="20 ms")


def _open(ranks: int, count: int, pings: int, quiet_s: float) -> list[dict[str, Any]]:
    from tests.jupyter.serving import NEVER_IDLE, TOKEN, serving

    with tempfile.TemporaryDirectory() as place:
        root, home = Path(place) / "root", Path(place) / "home"
        (root / "large").mkdir(parents=True)
        home.mkdir()
        write_large_run(root / "large", ranks, count)
        # An open page asks every few seconds, so that the process that reads isn't let go of before it is quiet.
        with serving(root, home, **NEVER_IDLE) as server:
            memory = _Memory(server, quiet_s)
            idle = _pings(server.url, TOKEN, pings)
            with memory:
                server.ask("runs")
                (reader,) = server.readers()
                memory.until_quiet(reader)  # whoever looks for the list's findings has ended
                listed = _peak(reader)
                with _Viewer(server.url, TOKEN, "large"):
                    busy = _busy(server, TOKEN, reader, pings, memory)
                opened, settled = _peak(reader), reader.memory_info().rss
            idle += _pings(server.url, TOKEN, pings)
    made = []
    for name, at in (("median", 50), ("p99", 99)):
        ours, theirs = (statistics.quantiles(found, n=100)[at - 1] for found in (busy, idle))
        note = f"{1000 * (ours - theirs):.2f} ms more; {len(busy):,} pings"
        target = "5 ms more" if at == 99 else ""
        made.append(row(f"a ping, {name}, while a run of {ranks:,} ranks is opened", ours, theirs, target, note))
    told = [f"{size / 1e6:,.0f} MB" for size in (opened, listed, settled, memory.together)]
    made[-1]["note"] += (
        f"; the reader process has at most {told[0]} (target 300; only the list: {told[1]}), {told[2]} after reading; "
        f"with the processes that search for findings {told[3]} for a moment"
    )
    return made


def _busy(server: Any, token: str, reader: psutil.Process, pings: int, memory: _Memory) -> list[float]:
    """Pings while a page opens the run and asks for the charts of its first view, until nobody works any more."""
    found: list[float] = []
    pinging = threading.Event()

    def ping() -> None:
        while not pinging.is_set() or len(found) < pings:
            found.extend(_pings(server.url, token, 50))

    thread = threading.Thread(target=ping)
    thread.start()
    wishes = [{"key": one.id, "spec": dict(one.live)} for one in views()[0].panels]
    asked = {"v": 1, "t": "mark", "id": 1, "ask": "history", "wanted": [*wishes, {"key": "clock", "spec": None}]}
    server.ask("runs")  # the list is open, too
    server.ask("message?run=large", asked)
    memory.until_quiet(reader)
    pinging.set()
    thread.join()
    return found


def _peak(process: psutil.Process) -> int:
    """The most bytes that a process ever had in memory, as the kernel counts it."""
    told = Path(f"/proc/{process.pid}/status").read_text()
    return int(told.split("VmHWM:")[1].split()[0]) * 1024


class _Memory:
    """What the process that reads and those that it begins have in memory together, at most. What several of them
    share, such as libraries, counts once.
    """

    def __init__(self, server: Any, quiet_s: float) -> None:
        self._server, self._quiet_s = server, quiet_s
        self._stop = threading.Event()
        self.together = 0.0

    def __enter__(self) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def until_quiet(self, reader: psutil.Process) -> None:
        """Until a process works no more, and has none beside it."""
        end, since, before = time.monotonic() + SETTLED_S, time.monotonic(), 0.0
        while time.monotonic() - since < self._quiet_s and time.monotonic() < end:
            spent = sum(reader.cpu_times()[:2])
            if reader.children() or spent - before > 0.1:
                since, before = time.monotonic(), spent
            time.sleep(0.5)

    def _watch(self) -> None:
        while not self._stop.wait(0.1):
            together = 0.0
            for reader in self._server.readers():
                for one in (reader, *reader.children(recursive=True)):
                    with contextlib.suppress(psutil.Error):
                        together += one.memory_full_info().pss
            self.together = max(self.together, together)


def _pings(url: str, token: str, count: int) -> list[float]:
    """Seconds of single answers that need nothing but the event loop."""
    host = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(host.hostname or "", host.port, timeout=60)
    found = []
    for _ in range(count):
        begin = time.perf_counter()
        connection.request("GET", f"{host.path}/api", headers={"Authorization": f"token {token}"})
        connection.getresponse().read()
        found.append(time.perf_counter() - begin)
        time.sleep(0.005)
    connection.close()
    return found


class _Viewer:
    """A tab that shows a run, from its first frames on."""

    def __init__(self, url: str, token: str, run: str) -> None:
        address = f"ws{url.removeprefix('http')}/probe/api/stream?run={run}"
        self._frames = websocket.create_connection(address, timeout=120, header=[f"Authorization: token {token}"])
        self._thread = threading.Thread(target=self._read, daemon=True)

    def _read(self) -> None:
        try:
            while self._frames.recv():
                pass
        except (OSError, websocket.WebSocketException):
            return  # closed below

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._frames.close()
