"""The process that reads runs for a Jupyter server: ``python -m probe.jupyter.reading``.

The Jupyter server's event loop passes bytes on and does nothing else; all reading, asking and judging happens here. The
first line of standard input is a JSON object with ``token`` and ``roots``; the answer on standard output is a line with
the ``port`` of 127.0.0.1 on which it listens. It ends with its standard input, so also when the server is killed.

Each request is a connection: one line, a JSON object with ``token``, ``op`` and what the operation takes. The answer is
one line, a JSON object with ``status`` (as of HTTP), and then the body until the connection ends:

============ =================== ==============================================================================
``op``       takes               body
============ =================== ==============================================================================
``runs``                         JSON: ``runs``, as :func:`probe.jupyter.describing.describe` gives them, the newest
                                 first, with ``verdict``, as :meth:`probe.jupyter.judging.Judge.verdict` does;
                                 ``cut``, whether there may be more; ``missing``, the directories that aren't there
``stream``   ``run``, ``again``  frames, see :mod:`probe.views.server.frames`
``message``  ``run``,            JSON: the panel's answer to what a page sends
             ``content``
``findings`` ``run``             JSON: a list of findings, as ``probe findings --json`` prints them
``sql``      ``run``, ``query``  JSON: ``columns``, ``rows`` (at most 10,000) and ``cut``
``compare``  ``run``, ``with``   JSON: what differs, as ``probe compare --json`` prints it
``memory``   ``kernels``,        JSON: what holds memory of this machine's GPUs, as
             ``server``          :meth:`probe.jupyter.memory.Memory.read` gives it
``plotly``                       plotly.js, packed by gzip
============ =================== ==============================================================================

What looks at the rows of a run for anything but its panel is another process, :mod:`probe.jupyter.looking`, which ends
when it has answered: this one stays small. Nothing is written to a run: answers that a large run keeps beside its rows
are used where they are there, and none is added (``PROBE_KEEP_ANSWERS=0``).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import hmac
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from socketserver import StreamRequestHandler, TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final

from probe.errors import InputError, ProbeError, RunError, RunNotFoundError
from probe.guard import Guard

if TYPE_CHECKING:
    from probe.jupyter.judging import Judge, Standing
    from probe.jupyter.memory import Memory
    from probe.views.server.panel import ServedPanel

_log = logging.getLogger("probe.jupyter")

#: Runs that are shown at once. One that nobody looks at is let go after :data:`KEPT_S`, and earlier where another is
#: wanted.
MOST_PANELS: Final = 8
KEPT_S: Final = 20.0

#: Seconds of silence after which a run isn't followed any more, until it is heard again.
SILENT_S: Final = 600.0

#: Seconds after which it is asked again which processes runs have on this machine.
HERE_S: Final = 10.0

#: Bytes of a request, which may name a thousand kernels and their notebooks, and seconds for it to come.
MOST_BYTES: Final = 1024 * 1024
REQUEST_S: Final = 10.0

#: Seconds for a page to take what is written.
WRITE_S: Final = 60.0


class TooManyError(ProbeError):
    """More is looked at than one process can show."""


class Reading:
    """Answers what is asked of the runs below some directories.

    Args:
        roots: The directories, as of :class:`probe.jupyter.roots.Roots`.
    """

    def __init__(self, roots: list[str]) -> None:
        from probe.jupyter.roots import Roots
        from probe.jupyter.searching import Search

        self.roots = Roots(roots)
        self._search = Search(self.roots)
        self._panels: dict[Path, tuple[ServedPanel, float]] = {}
        self._lock = threading.Lock()
        self._listing = threading.Lock()
        self._whole: dict[Path, tuple[list[int] | None, bool]] = {}
        self._judge: Judge | None = None
        self._memory: Memory | None = None
        self._here: dict[int, dict[str, Any]] = {}
        self._here_due = 0.0

    def runs(self) -> dict[str, Any]:
        """The list of runs."""
        with self._listing:
            found = self._described()
            found.sort(key=lambda one: one[1]["started_s"] or 0.0, reverse=True)
            judge = self._begun_judge()
            judge.wish({path: _standing(told) for path, told in found if told["error"] is None})
            for path, told in found:
                found_in = judge.verdict(path)
                told["verdict"] = self._as_shown(path, told, found_in)
                if told["step"] is None and found_in:
                    told["step"] = found_in["last_step"]
            missing = [str(one) for one in self.roots.places if not one.is_dir()] + self.roots.unusable
            return {"runs": [told for _, told in found], "cut": self._search.cut, "missing": missing}

    def memory(self, kernels: Any, server: Any) -> dict[str, Any]:
        """What holds memory on this machine.

        Args:
            kernels: As :func:`probe.jupyter.kernels.kernels` gives them.
            server: The process id of the Jupyter server.
        """
        from probe.jupyter.holders import Holders
        from probe.jupyter.memory import Memory

        with self._listing:
            if time.monotonic() >= self._here_due:
                self._described()
            if self._memory is None:
                self._memory = Memory()
        return self._memory.read(Holders(kernels, server, self._here, self.roots.name))

    def _described(self) -> list[tuple[Path, dict[str, Any]]]:
        """The runs, from their small files; which processes of theirs are on this machine is kept."""
        from probe.jupyter.describing import describe

        paths = [path for path in self._search.runs() if self._is_whole(path)]
        found = [(path, describe(path, self.roots.name(path))) for path in paths]
        self._here = {pid: {"run": told["run"], **one} for _, told in found for pid, one in told.pop("here").items()}
        self._here_due = time.monotonic() + HERE_S
        return found

    def _as_shown(self, path: Path, told: Mapping[str, Any], judged: dict[str, Any] | None) -> dict[str, Any] | None:
        """What the list says of a run: what its open panel shows, so that both say the same; else what was judged.
        The alarms one by one stay those that were judged, which is done more often.
        """
        found = self._panels.get(path)
        if judged is None or found is None:
            return judged
        shown = found[0].found(told["ended"] or 0)
        if shown is None:
            return judged
        alarms = sum(one["kind"] == "alarm" for one in shown)
        return {**judged, "worst": shown[0] if shown else None, "alarms": alarms, "failed": None}

    def _is_whole(self, path: Path) -> bool:
        """Whether nothing in a run leads out of the roots; asked again when it, or a folder in it, has changed."""
        try:
            changed = _changed(path)
            if self._whole.get(path, (None, False))[0] != changed:
                self._whole[path] = changed, self.roots.holds_all(path)
            return self._whole[path][1]
        except OSError:  # gone meanwhile
            return False

    def panel(self, name: str) -> ServedPanel:
        """The panel of a run, which follows it from now on.

        Raises:
            RunNotFoundError: There is no such run.
            RunError: It can't be read.
            InputError: Its run.json is another tool's.
            TooManyError: Too many runs are open.
        """
        from probe.jupyter.searching import is_ours
        from probe.views.server.panel import ServedPanel

        path = self.roots.resolve(name)
        if not is_ours((path / "run.json").read_bytes()) and not (path / "parts").is_dir():
            raise InputError(f"{name}/run.json wasn't written by probe: right-click it, then Open With → Editor")
        with self._lock:
            self._let_go(MOST_PANELS - (path not in self._panels))
            if path not in self._panels:
                panel = ServedPanel(str(path), beside=self.roots.holds(path.parent))
                self._panels[path] = panel, time.monotonic()
                threading.Thread(target=_open, args=(panel,), name="probe-jupyter-open", daemon=True).start()
            panel = self._panels[path][0]
            self._panels[path] = panel, time.monotonic()
            return panel

    def findings(self, name: str) -> list[dict[str, Any]]:
        """What was found in a run, whole.

        Raises:
            RunNotFoundError: There is no such run.
        """
        found: list[dict[str, Any]] = self._once({"findings": str(self.roots.resolve(name))})
        return found

    def sql(self, name: str, query: str) -> dict[str, Any]:
        """The rows of a query, which can neither write nor read anything but the run's tables.

        Raises:
            RunNotFoundError: There is no such run.
            InputError: DuckDB doesn't understand it, or it isn't allowed.
        """
        if not isinstance(query, str) or not query.strip():
            raise InputError(f"query: got {query!r}, expected a query in SQL")
        found: dict[str, Any] = self._once({"sql": str(self.roots.resolve(name)), "query": query})
        return found

    def compare(self, name: str, other: str) -> dict[str, Any]:
        """What differs between two runs.

        Raises:
            RunNotFoundError: One of them isn't there.
        """
        found: dict[str, Any] = self._once({"compare": [str(self.roots.resolve(one)) for one in (name, other)]})
        return found

    def _once(self, question: dict[str, Any]) -> Any:
        """The answer of a process that ends with it, and gives back the memory that it took.

        Raises:
            InputError: What it says against the question.
            RunError: It has ended without an answer.
        """
        from probe.jupyter.judging import aside

        asked = aside()
        try:
            answer = asked.ask(question)
        except (OSError, ValueError) as error:
            raise RunError(f"run: {error}") from error
        finally:
            asked.end()
        if "refused" in answer:
            raise InputError(answer["refused"])
        return answer["answer"]

    def tidy(self) -> None:
        """Let go of panels that nobody has looked at for a while, and of those whose run is gone, or leads out of
        the roots by now: their pages are told.
        """
        with self._lock:
            self._let_go(MOST_PANELS)
            for path, (panel, _) in list(self._panels.items()):
                if not (path / "run.json").exists() or not self._is_whole(path):
                    del self._panels[path]
                    panel.close()

    def close(self) -> None:
        """End all panels."""
        with self._lock:
            for panel, _ in self._panels.values():
                panel.close()
            self._panels.clear()
        if self._judge is not None:
            self._judge.close()

    def _begun_judge(self) -> Judge:
        from probe.jupyter.judging import Judge

        if self._judge is None:
            self._judge = Judge()
        return self._judge

    def _let_go(self, most: int) -> None:
        """End panels that nobody looks at: those that were left long ago, and more where there are more than may be.

        Raises:
            TooManyError: All of them are looked at, and there are too many.
        """
        now, before = time.monotonic(), len(self._panels)
        for path, (panel, used) in list(self._panels.items()):
            if len(panel.hub) or not panel.ready.is_set():  # a page that waits for a large run has joined no hub yet
                self._panels[path] = panel, now
            elif now - used > KEPT_S or len(self._panels) > most:
                del self._panels[path]
                panel.close()
        if len(self._panels) < before:
            _trim()
        if len(self._panels) > most:
            raise TooManyError(f"run: {len(self._panels)} runs are open already; close one")


def _changed(path: Path) -> list[int]:
    """When a directory and the folders in it have changed: another list as soon as anything in them has come or gone.

    Raises:
        OSError: It is gone.
    """
    with os.scandir(path) as entries:
        below = [one.stat(follow_symlinks=False).st_mtime_ns for one in entries if one.is_dir(follow_symlinks=False)]
    return [path.stat().st_mtime_ns, *sorted(below)]


def _standing(told: dict[str, Any]) -> Standing:
    """As the judge wants it: the time of a run that goes on changes with each heartbeat, and one that has been silent
    for long is looked at once, as one that has ended.
    """
    from probe.jupyter.judging import Standing

    state, since_s = told["state"], told["since_s"]
    live = state == "live" or (state == "silent" and since_s is not None and time.time() - since_s < SILENT_S)
    return Standing(live, state, None if live else since_s, told["ended"] or 0)


def _open(panel: ServedPanel) -> None:
    """Read a run, and give back what only the reading of it took."""
    try:
        panel.follow()
    finally:
        panel.ready.set()  # also where that failed: pages are waiting, and are told
        _trim()


def _trim() -> None:
    """Give memory that is free back to the system, where the C library can."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class _Request(StreamRequestHandler):
    """Answers one request."""

    server: Listener
    timeout = REQUEST_S

    def handle(self) -> None:
        try:
            asked = json.loads(self.rfile.readline(MOST_BYTES))
            if not isinstance(asked, dict):
                return
        except (ValueError, OSError, RecursionError):
            return
        if not hmac.compare_digest(str(asked.get("token", "")).encode(), self.server.token.encode()):
            return
        self.connection.settimeout(WRITE_S)
        try:
            self._answer(asked)
        except OSError:
            return  # whoever asked has gone

    def _answer(self, asked: dict[str, Any]) -> None:
        give = self._guard(asked).call(partial(self._of_or_refused, asked))
        if isinstance(give, OSError):
            raise give
        if give is not None:
            give()

    def _guard(self, asked: Mapping[str, Any]) -> Guard:
        """One question that fails is answered with the error, and leaves the process as it is."""

        def tell(_kind: str, _where: str, _message: str, error: BaseException | None, *_: object) -> None:
            self._say(500, {"message": f"{type(error).__name__}: {error}"})

        failed = "a question can't be answered"
        return Guard(str(asked.get("op")), failed, kind="reading", tell=tell, most=None, log=_log, level=logging.DEBUG)

    def _of_or_refused(self, asked: dict[str, Any]) -> Callable[[], None] | OSError:
        """As :meth:`_of`; what refuses, where that does; or the error of a connection or a file that is gone."""
        try:
            return self._of(asked)
        except RunNotFoundError as error:
            status, refused = 404, str(error)
        except TooManyError as error:
            status, refused = 429, str(error)
        except ProbeError as error:
            status, refused = 400, str(error)
        except OSError as error:
            return error
        return lambda: self._say(status, {"message": refused})

    def _of(self, asked: dict[str, Any]) -> Callable[[], None]:
        """What writes the answer. What can be refused has been refused when it is given.

        Raises:
            ProbeError: It can't be answered.
        """
        reading, op, run = self.server.reading, asked.get("op"), asked.get("run", "")
        if op == "stream":
            return self._streaming(reading.panel(run), again=asked.get("again") is True)
        if op == "plotly":
            from probe.views.panel.assets import plotly_packed

            packed = plotly_packed()
            return lambda: self._bytes(packed)
        if op == "message":
            answer: Any = reading.panel(run).message(asked.get("content"))
        elif op == "runs":
            answer = reading.runs()
        elif op == "findings":
            answer = reading.findings(run)
        elif op == "sql":
            answer = reading.sql(run, asked.get("query", ""))
        elif op == "compare":
            answer = reading.compare(run, asked.get("with", ""))
        elif op == "memory":
            answer = reading.memory(asked.get("kernels", []), asked.get("server", 0))
        else:
            raise InputError(
                f"op: got {op!r}, expected runs, stream, message, findings, sql, compare, memory or plotly"
            )
        return lambda: self._say(200, answer)

    def _streaming(self, panel: ServedPanel, *, again: bool) -> Callable[[], None]:
        from probe.views.server.streaming import stream

        if len(panel.hub) >= panel.hub.most:
            raise TooManyError(f"run: {panel.hub.most} views show it already, which is the most; close one")

        def write() -> None:
            self._head(200)
            stream(panel, self.wfile.write, again=again)

        return write

    def _say(self, status: int, answer: Any) -> None:
        from probe.text import plain

        self._head(status)
        self.wfile.write(json.dumps(plain(answer), default=str, allow_nan=False).encode())

    def _bytes(self, body: bytes) -> None:
        self._head(200)
        self.wfile.write(body)

    def _head(self, status: int) -> None:
        self.wfile.write(json.dumps({"status": status}).encode() + b"\n")


class Listener(ThreadingMixIn, TCPServer):
    """Takes connections of this machine."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, reading: Reading, token: str) -> None:
        self.reading = reading
        self.token = token
        super().__init__(("127.0.0.1", 0), _Request)

    def get_request(self) -> tuple[socket.socket, Any]:
        """A connection whose small pieces aren't held back."""
        connection, address = super().get_request()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection, address


def main() -> int:
    """Answer until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the Jupyter server, which ends us
    if hasattr(os, "nice"):
        os.nice(10)  # whoever trains on this machine goes first
    begun = json.loads(sys.stdin.readline())
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints isn't for the server
    reading = Reading(list(begun["roots"]))
    with Listener(reading, str(begun["token"])) as listener:
        threading.Thread(target=listener.serve_forever, args=(0.2,), name="probe-jupyter-listen", daemon=True).start()
        out.write(json.dumps({"port": listener.server_address[1]}) + "\n")
        out.close()
        ended = threading.Event()
        threading.Thread(target=_wait_for_the_end, args=(ended,), daemon=True).start()
        while not ended.wait(5.0):
            reading.tidy()
        listener.shutdown()
        reading.close()
    return 0


def _wait_for_the_end(ended: threading.Event) -> None:
    while sys.stdin.read(1024):
        pass
    ended.set()


if __name__ == "__main__":
    os._exit(main())  # a thread that is still asking DuckDB would make an orderly end a crash
