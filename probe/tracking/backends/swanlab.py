"""Metrics as a SwanLab run."""

from __future__ import annotations

import atexit
import html
import importlib
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Final, cast

from probe.errors import BackendError, MissingDependencyError
from probe.guard import attempt, raised_as
from probe.tracking.backends.base import Backend, Setup, UnreachableError
from probe.tracking.media import Figure, Image, Medium, Table, Text, page
from probe.tracking.names import NameMap, swanlab_name
from probe.tracking.reach import unanswered, unwritable

#: How long its own thread may take to write, seconds.
_WRITES_S: Final = 0.75


class SwanLab(Backend):
    """A run of the project ``project``, named ``experiment``; finished as a success, as crashed, or as aborted.

    ``SWANLAB_MODE`` (``cloud``, which is the default, ``local``, ``offline``, ``disabled``), ``SWANLAB_API_KEY``, and
    ``SWANLAB_LOG_DIR``, else ``swanlog`` in the run's directory, else in the working directory. The next start in the
    run's directory goes on with an online run; offline it makes a new one, which gets what a killed process hadn't
    written. SwanLab has one run in a process. What is printed, and the machine, aren't captured.

    Raises:
        MissingDependencyError: Without the package swanlab.
        UnreachableError: Its server doesn't answer.
        BackendError: It refuses, or a run is open already.
    """

    clean = staticmethod(swanlab_name)
    shows = frozenset({"text", "image", "figure", "table"})
    places: ClassVar = {"params": "config", "describe": "text `probe/summary`", "tag": "config", "exit_code": "state"}
    #: Its own thread writes every half second, into a buffer that is flushed here with each call.
    settles_s = 2.0

    @classmethod
    def reach(cls, directory: Path | None) -> tuple[str, str]:
        """Whether its server answers; in other modes, whether the directory can be written."""
        if importlib.util.find_spec("swanlab") is None:
            return "backend", "the package swanlab is missing: pip install 'probe-rl[swanlab]'"
        if os.environ.get("SWANLAB_MODE", "cloud") in {"cloud", "online"}:
            url = os.environ.get("SWANLAB_API_HOST") or "https://api.swanlab.cn"
            why = unanswered(url)
            return "reachable", f"{url}: {why}" if why else ""
        return "writable", unwritable(_place(Setup("project", "experiment", directory, lambda *_: None)))

    def __init__(self, setup: Setup) -> None:
        try:
            self._swanlab: Any = importlib.import_module("swanlab")
        except ImportError as error:
            raise MissingDependencyError.of("backend 'swanlab'", "swanlab", "swanlab") from error
        self._report = setup.report
        self._last_step = 0
        if not hasattr(self._swanlab, "Html"):  # an older version
            self.shows = frozenset({"text", "image"})
        place, hook = _place(setup), sys.excepthook
        try:
            with raised_as(_unusable, but=()):  # its errors have no common base
                place.mkdir(parents=True, exist_ok=True)
                with self._quiet():
                    self._run: Any = _apart(lambda: self._swanlab.init(**self._options(setup, place)))
        finally:
            sys.excepthook = hook  # else it ends the run itself at an error, before what waits is sent
        if self._run is None:
            raise BackendError(
                "backend 'swanlab' can't be used: a SwanLab run is already open in this process; finish it first"
            )
        _not_at_exit(self._run)
        self.location = self._where(place)
        self.run_id = str(getattr(self._run, "id", ""))
        state = setup.state("swanlab")
        self._before = str(state.read().get("files") or "")
        self._written: set[tuple[str, int]] | None = None
        known = {"project": setup.project, "experiment": setup.experiment, "run_id": self.run_id}
        state.write({**known, "files": str(getattr(self._run, "dir", ""))})
        self._names = NameMap(swanlab_name, self._collided, directories=False)

    def _collided(self, name: str, wanted: str, mapped: str) -> None:
        self._report(f"name {name}", f"{name!r} is called {mapped!r} here, as {wanted!r} collides with another name")

    def _options(self, setup: Setup, place: Path) -> dict[str, Any]:
        options: dict[str, Any] = {
            "project": setup.project,
            "experiment_name": setup.experiment,
            "logdir": str(place),
            "mode": os.environ.get("SWANLAB_MODE", "cloud"),
            "config": {"FRAMEWORK": "probe"},
        }
        settings = self._swanlab.Settings
        if hasattr(settings, "Terminal"):  # from 0.8 on
            options["settings"] = settings(
                interactive=False, terminal=settings.Terminal(proxy_type="none"), probe=settings.Probe(monitor=False)
            )
        state = setup.state("swanlab").read()
        same = (state.get("project"), state.get("experiment")) == (setup.project, setup.experiment)
        if same and state.get("run_id") and options["mode"] in {"cloud", "online"}:
            options |= {"id": state["run_id"], "resume": "allow"}
        return options

    def _where(self, place: Path) -> str:
        # Only an online run has a page, and each version says so in its own way.
        return attempt(self._page, lambda _: "") or str(getattr(self._run, "dir", place))

    def _page(self) -> str:
        url = self._run.url if hasattr(self._run, "url") else None
        return str(url) if url else ""

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Its greetings go to standard output, which isn't ours."""
        console = None
        with suppress(ImportError, AttributeError):
            console = importlib.import_module("swanlab.sdk.internal.pkg.console").c
        before = getattr(console, "quiet", None)
        if console is not None:
            console.quiet = True
        try:
            yield
        finally:
            if console is not None:
                console.quiet = before

    def log(self, values: dict[str, float], step: int) -> None:
        """Send the numbers of one step."""
        self._last_step = step
        with self._quiet():
            self._run.log({self._names(name): value for name, value in values.items()}, step=step)
            self._flush_file()

    def missing(self, values: dict[str, float], step: int) -> dict[str, float]:
        """Those that aren't in the files of the process before."""
        if self._written is None:
            self._written = _written_in(Path(self._before)) if self._before else set()
        return {name: value for name, value in values.items() if (self._names(name), step) not in self._written}

    def flush(self) -> None:
        """Give its thread the time to write, and write through."""
        time.sleep(_WRITES_S)
        self._flush_file()

    def _flush_file(self) -> None:
        def write_through() -> None:
            self._run._core._store.ensure_flushed()

        # A killed process loses what is in the buffer, and there is no public way to it.
        attempt(write_through, lambda _: None)

    def show(self, name: str, medium: Medium, step: int, wall_ns: int) -> None:
        """Send one text, image, figure or table."""
        del wall_ns  # SwanLab takes its own time
        with self._quiet(), tempfile.TemporaryDirectory() as folder:
            self._run.log({self._names(name): self._own(medium, Path(folder))}, step=step)

    def _own(self, medium: Medium, folder: Path) -> Any:
        if isinstance(medium, Text):
            return self._swanlab.Text(medium.text)
        if isinstance(medium, Image):
            path = folder / "image.png"
            path.write_bytes(medium.png)
            return self._swanlab.Image(str(path))
        text = page(medium, "figure") if isinstance(medium, Figure) else _html(cast("Table", medium))
        return self._swanlab.Html(text)

    def params(self, parameters: dict[str, Any]) -> None:
        """Show the configuration."""
        with self._quiet():
            self._run.config.update(parameters)

    def describe(self, markdown: str) -> None:
        """The text ``probe/summary`` at the newest step: a run's own description can't be changed once it runs."""
        with self._quiet():
            self._run.log({"probe/summary": self._swanlab.Text(markdown)}, step=self._last_step)

    def tag(self, tags: dict[str, str]) -> None:
        """``tags`` of the configuration."""
        with self._quiet():
            self._run.config.update({"tags": tags})

    def close(self, exit_code: int) -> None:
        """Complete the run."""
        with self._quiet():
            if exit_code in {130, 143}:  # Ctrl-C and SIGTERM
                self._run.finish(state="aborted", error=f"exit code {exit_code}")
            elif exit_code:
                self._run.finish(state="crashed", error=f"exit code {exit_code}")
            else:
                self._run.finish(state="success")


def _unusable(error: Exception) -> BackendError:
    if isinstance(error, ConnectionError | TimeoutError):
        return UnreachableError(f"backend 'swanlab' can't be reached: {error}")
    return BackendError(f"backend 'swanlab' can't be used: {error!r}")


def _written_in(folder: Path) -> set[tuple[str, int]]:
    """Name and step of the numbers in an earlier run's files, as far as they can be read."""
    found: set[tuple[str, int]] = set()
    # A file may be torn at its end, or of another version: what is behind that is sent again.
    attempt(lambda: found.update(_read(folder)), lambda _: None)
    return found


def _read(folder: Path) -> Iterator[tuple[str, int]]:
    reader = importlib.import_module("swanlab.sdk.internal.core_python.store").DataStoreReader()
    record = importlib.import_module("swanlab.proto.swanlab.record.v1.record_pb2").Record
    for path in folder.glob("run-*.swanlab"):
        try:
            reader.open(str(path))
            for data in reader:
                found = record.FromString(data)
                if found.WhichOneof("record_type") == "scalar":
                    yield found.scalar.key, found.scalar.step
        finally:
            reader.close()


def _not_at_exit(run: Any) -> None:
    """Else it ends the run itself at the interpreter's end, before what waits is sent."""
    own = getattr(run, "_handle_atexit", None)
    if own is not None:
        atexit.unregister(own)


def _apart(make: Callable[[], Any]) -> Any:
    """On another thread: on the main one SwanLab takes over Ctrl-C, and can be finished from nowhere else."""
    with ThreadPoolExecutor(1, thread_name_prefix="probe-swanlab") as threads:
        return threads.submit(make).result()


def _place(setup: Setup) -> Path:
    named = os.environ.get("SWANLAB_LOG_DIR")
    if named:
        return Path(named).absolute()
    return (setup.directory or Path.cwd()) / "swanlog"


def _html(medium: Table) -> str:
    lines = ["".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) for row in medium.rows]
    head = "".join(f"<th>{html.escape(column)}</th>" for column in medium.columns)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
