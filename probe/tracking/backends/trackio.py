"""Metrics as a Trackio run: a SQLite file for ``trackio show``, or a Trackio server or Space."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import os
import sys
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, cast

from probe._io import expanded_or_same
from probe.errors import BackendError, MissingDependencyError
from probe.guard import raised_as
from probe.tracking.backends.base import Alert, Backend, Setup, wall_ns_of
from probe.tracking.media import Histogram, Image, Medium, Table, Text
from probe.tracking.reach import unanswered, unwritable


class Trackio(Backend):
    """A run of the project ``project``, named ``experiment``. Trackio gives a run no status.

    ``TRACKIO_DIR``, else ``trackio`` in the run's directory, else Trackio's own place. It reads that once in a process:
    a second run with another directory goes to the first one's, which is reported. ``TRACKIO_SPACE_ID`` or
    ``TRACKIO_SERVER_URL`` send to a Space or a server instead, by Trackio's own thread.

    Locally every call is in the file when ``log`` returns, under an identity of its own, so that one that is sent again
    isn't there twice. The run's id is kept in the run's directory: the next start there goes on with the same run.

    Raises:
        MissingDependencyError: Without the package trackio.
        BackendError: It can't be used.
    """

    shows = frozenset({"histogram", "table", "text", "image"})
    places: ClassVar = {
        "params": "config",
        "describe": "markdown `probe/summary`",
        "tag": "config",
        "alert": "an alert",
    }
    status = False
    repeats_notes = True  # the configuration travels with the next values, and there may be none

    @classmethod
    def reach(cls, directory: Path | None) -> tuple[str, str]:
        """Whether a server that is named answers, or the directory can be written."""
        if importlib.util.find_spec("trackio") is None:
            return "backend", "the package trackio is missing: pip install 'probe-rl[trackio]'"
        url = os.environ.get("TRACKIO_SERVER_URL")
        if url:
            why = unanswered(url)
            return "reachable", f"{url.partition('?')[0]}: {why}" if why else ""  # what follows is a token
        home = expanded_or_same("~")
        place = os.environ.get("TRACKIO_DIR") or (home if directory is None else directory / "trackio")
        return "writable", unwritable(Path(place))

    def __init__(self, setup: Setup) -> None:
        self._trackio = _import(setup.directory)
        self._report = setup.report
        self._project, self._name = setup.project, setup.experiment
        self._remote = bool(os.environ.get("TRACKIO_SPACE_ID") or os.environ.get("TRACKIO_SERVER_URL"))
        self._run: Any = None
        self._storage: Any = self._trackio.SQLiteStorage
        self._config: dict[str, Any] = {}
        self._config_waits = False
        self._last_step = 0
        self.run_id = setup.run_id("trackio")
        with raised_as(lambda error: BackendError(f"backend 'trackio' can't be used: {error!r}"), but=()):
            if self._remote:
                self._run = self._open_remote()
                self.location = str(self._run.url)
            else:
                self._storage.validate_project_name(setup.project)
                self.location = str(self._storage.init_db(setup.project))
                self._tell_place(setup.directory)

    def _open_remote(self) -> Any:
        with contextlib.redirect_stdout(io.StringIO()):  # its greeting
            return self._trackio.init(
                project=self._project,
                name=self._name,
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def _tell_place(self, directory: Path | None) -> None:
        if directory is not None and not os.environ.get("TRACKIO_DIR"):
            used = Path(self.location).parent
            if used != directory / "trackio":
                message = f"Trackio was loaded for {used} and writes there, not into {directory / 'trackio'}"
                self._report("place", message)

    def log(self, values: dict[str, float], step: int) -> None:
        """Send the numbers of one step."""
        self._last_step = step
        self._write_row(dict(values), step, wall_ns_of(values))

    def show(self, name: str, medium: Medium, step: int, wall_ns: int) -> None:
        """Send one histogram, table, text or image."""
        self._write_row({name: self._own(medium, step)}, step, wall_ns)

    def _own(self, medium: Medium, step: int) -> Any:
        where = {"project": self._project, "run": self._name, "step": step}
        if isinstance(medium, Histogram):
            own = self._trackio.Histogram(np_histogram=(list(medium.counts), list(medium.edges)))
        elif isinstance(medium, Table):
            columns, rows = list(medium.columns), [list(row) for row in medium.rows]
            own = self._trackio.Table(columns=columns, data=rows)
            return own if self._remote else own._to_dict(**where)
        elif isinstance(medium, Image):
            own = self._trackio.Image(importlib.import_module("PIL.Image").open(io.BytesIO(medium.png)))
            if not self._remote:
                own._save(**where)
        else:
            own = self._trackio.Markdown(cast("Text", medium).text)
        return own if self._remote else own._to_dict()

    def _write_row(self, values: dict[str, Any], step: int, wall_ns: int) -> None:
        if self._remote:
            self._run.log(values, step=step)
            return
        identity = uuid.uuid5(uuid.NAMESPACE_OID, f"{self.run_id} {step} {wall_ns} {sorted(values)}").hex
        when = datetime.fromtimestamp(wall_ns / 1e9, UTC).isoformat()
        self._storage.bulk_log(
            project=self._project,
            run=self._name,
            run_id=self.run_id,
            metrics_list=[values],
            steps=[step],
            timestamps=[when],
            log_ids=[identity],
            config=self._config if self._config_waits else None,
        )
        self._config_waits = False

    def params(self, parameters: dict[str, Any]) -> None:
        """Show the configuration; locally it travels with the next values."""
        self._show_config(parameters)

    def describe(self, markdown: str) -> None:
        """The markdown ``probe/summary`` at the newest step."""
        self._write_row({"probe/summary": self._own(Text(markdown), self._last_step)}, self._last_step, time.time_ns())

    def tag(self, tags: dict[str, str]) -> None:
        """``tag/<name>`` of the configuration."""
        self._show_config({f"tag/{name}": value for name, value in tags.items()})

    def _show_config(self, more: dict[str, Any]) -> None:
        if self._remote:
            self._run.config.update(more)
            return
        if not self._config:  # of an earlier process: Trackio replaces all of it
            self._config = dict(self._storage.get_run_config(self._project, self._name) or {})
        self._config |= more
        self._config_waits = True

    def alert(self, alert: Alert) -> None:
        """An alert of the level "error" in the dashboard, and at ``TRACKIO_WEBHOOK_URL`` where that is set. Trackio
        0.5 has none.
        """
        if self._remote:
            if hasattr(self._run, "alert"):
                with contextlib.redirect_stdout(io.StringIO()):  # it prints each
                    level = self._trackio.AlertLevel.ERROR
                    self._run.alert(title=alert.title, text=alert.text, level=level, step=alert.step)
            return
        if not hasattr(self._storage, "bulk_alert"):
            return
        step, when = alert.step or 0, datetime.fromtimestamp(alert.wall_ns / 1e9, UTC).isoformat()
        identity = uuid.uuid5(uuid.NAMESPACE_OID, f"{self.run_id} {alert.wall_ns} {alert.title}").hex
        self._storage.bulk_alert(
            project=self._project,
            run=self._name,
            run_id=self.run_id,
            titles=[alert.title],
            texts=[alert.text],
            levels=["error"],
            steps=[step],
            timestamps=[when],
            alert_ids=[identity],
        )
        self._post(alert, step, when)

    def _post(self, alert: Alert, step: int, when: str) -> None:
        """As Trackio's own call does, in its own form for Slack, Discord and others; it says what fails in its log."""
        url = os.environ.get("TRACKIO_WEBHOOK_URL")
        if url:
            alerts = importlib.import_module("trackio.alerts")
            told = (alerts.AlertLevel.ERROR, alert.title, alert.text, self._project, self._name, step, when)
            alerts.send_webhook(url, *told)

    def close(self, exit_code: int) -> None:
        """Send what its own thread still holds."""
        del exit_code  # Trackio has no status
        if self._run is not None:
            self._run.finish()


def _import(directory: Path | None) -> Any:
    chosen = "trackio" not in sys.modules and "TRACKIO_DIR" not in os.environ and directory is not None
    if chosen:
        os.environ["TRACKIO_DIR"] = str(Path(str(directory)) / "trackio")  # read while it is imported
    try:
        return importlib.import_module("trackio")
    except ImportError as error:
        raise MissingDependencyError.of("backend 'trackio'", "trackio", "trackio") from error
    finally:
        if chosen:
            del os.environ["TRACKIO_DIR"]
