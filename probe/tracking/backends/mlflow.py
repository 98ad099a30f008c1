"""Metrics as an MLflow run, through its client only: a fluent run that the user has open is never touched."""

from __future__ import annotations

import errno
import importlib.util
import json
import math
import os
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from probe.errors import BackendError
from probe.guard import raised_as
from probe.redaction import without_logins
from probe.tracking.backends.base import Backend, Setup, UnreachableError, wall_ns_of
from probe.tracking.backends.mlflow_client import LASTING, import_client, quiet, stores, switched_on, translated
from probe.tracking.media import Figure, Histogram, Image, Medium, Table, Text
from probe.tracking.names import NameMap, mlflow_name
from probe.tracking.pages import Pages
from probe.tracking.reach import unanswered, unwritable

if TYPE_CHECKING:
    from mlflow.entities import Metric, Run
    from mlflow.tracking import MlflowClient

#: Limits of MLflow: metrics and parameters a call, characters of a parameter.
METRICS, PARAMETERS, PARAMETER_LENGTH = 1000, 100, 6000
#: Characters that go into one tag; older servers take 5,000.
TAG_LENGTH: Final = 4500
#: Tags with what MLflow has no place for: names that had to change (MLflow's → the metric's), infinities.
NAMES_TAG, INFINITIES_TAG = "probe.names", "probe.infinities"
#: Tag by which a run is found whose maker died before it could note the run's id.
KEY_TAG: Final = "probe.key"
#: Tag that says how the run has ended, in the words of :mod:`probe.runs.outcome`: MLflow's status has fewer.
END_TAG: Final = "probe.end"
#: What it says while the run goes on.
NO_END: Final = "none"

#: Tag in which MLflow looks for tables.
TABLES_TAG: Final = "mlflow.loggedArtifacts"
_STATUS: Final = {0: "FINISHED", 130: "KILLED", 143: "KILLED"}
#: What such a code says of the end where nobody has looked at the processes; any other is "exited".
_ENDS: Final = {0: "finished", 1: "failed", 130: "interrupted", 137: "killed", 143: "killed"}


class MLflow(Backend):
    """A run of the experiment ``project``, named ``experiment``; FINISHED or FAILED by the exit code.

    Where: ``MLFLOW_TRACKING_URI``, else the sqlite file ``mlflow.db`` in the run's directory, else in the
    working directory (where ``mlflow ui`` looks by itself). ``MLFLOW_RUN_ID`` goes on with that run.

    * Names follow ``names.mlflow_name``; a collision is reported, and the tag ``probe.names`` leads back.
    * MLflow keeps NaN, but its stores turn an infinity into 1.8e308. No such number is sent: infinities go to
      the tag ``probe.infinities`` (name → step → text), and each metric is reported once.
    * A value that is sent again keeps its time, so that MLflow recognises it.
    * If mlflow isn't imported yet it is imported with its usage telemetry off.
    * The run's id is kept in the run's directory: the next start there goes on with the same run.
    * Figures, tables, texts, images and histograms are artifacts. All figures together are one page,
      ``figures.html``, which needs no network and holds the newest state of each; MLflow's viewer can't load a file
      beside the one that it shows. ``figures/<name>.json`` is a figure's newest state as plotly reads it. Page and
      JSON together stay below 8 MB: a figure that doesn't fit is reported. Of a table there is also
      ``tables/<name>.json`` with its newest state, which MLflow lists among its evaluation tables.
    * The description is the run's (``mlflow.note.content``). Exit codes 130 and 143, which are Ctrl-C and SIGTERM, make
      the run KILLED.

    Raises:
        MissingDependencyError: Without the package mlflow.
        UnreachableError: The server doesn't answer, or answers with an error of its own.
        BackendError: The server, the database or the run can't be used.
    """

    shows = frozenset({"figure", "table", "text", "image", "histogram"})
    places: ClassVar = {"params": "parameters", "describe": "description", "tag": "tags", "exit_code": "status"}
    clean = staticmethod(mlflow_name)
    directories = True
    reopens = True

    @classmethod
    def reach(cls, directory: Path | None) -> tuple[str, str]:
        """Whether the server answers, or the database's folder can be written."""
        if importlib.util.find_spec("mlflow") is None:
            return "backend", "the package mlflow is missing: pip install 'probe-rl[mlflow]'"
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if uri:
            why = _unanswered(uri)
            return "reachable", f"{without_logins(uri)}: {why}" if why else ""
        return "writable", unwritable(directory or Path.cwd())

    def __init__(self, setup: Setup) -> None:
        self._report = setup.report
        client_class = import_client()
        uri, artifacts = stores(setup.directory, private=setup.private)
        why = _unanswered(uri)
        if why:
            raise UnreachableError(f"backend 'mlflow' can't use {without_logins(uri)}: {why}")
        with quiet(), raised_as(partial(_unusable, uri), but=BackendError):
            self._client: MlflowClient = client_class(tracking_uri=uri)
            earlier = self._resume() or self._go_on(setup, uri)
            run = earlier or self._create(setup, uri, artifacts)
        self.tracking_uri = uri
        self.run_id = str(run.info.run_id)
        self.experiment_id: str = run.info.experiment_id
        self.location = self._where()
        self._parameters = dict(run.data.params)
        self._infinities: dict[str, dict[str, str]] = _tagged(run, INFINITIES_TAG)
        known = {name: mapped for mapped, name in _tagged(run, NAMES_TAG).items()}
        self._names = NameMap(mlflow_name, self._collided, known, run.data.metrics)
        self._kept_names = len(known)
        self._pages = Pages()
        self._went_on = earlier is not None
        self._tables = _listed_tables(run)

    def _where(self) -> str:
        """The page of the run on a server, or the database."""
        if self.tracking_uri.startswith(("http://", "https://")):
            return f"{self.tracking_uri.rstrip('/')}/{page_of(self.experiment_id, self.run_id)}"
        return self.tracking_uri

    def log(self, values: dict[str, float], step: int) -> None:
        """Send the numbers of one step."""
        self.log_many([(values, step)])

    def log_many(self, calls: Sequence[tuple[dict[str, float], int]]) -> None:
        """Send several calls in as few requests as they take: a server that was away has a lot to be told."""
        metrics = [one for values, step in calls for one in self._metrics(values, step)]
        with translated():
            for start in range(0, len(metrics), METRICS):
                self._client.log_batch(self.run_id, metrics=metrics[start : start + METRICS], synchronous=True)
            for values, step in calls:
                self._keep_infinities({name: value for name, value in values.items() if math.isinf(value)}, step)
            self._keep_names()

    def _metrics(self, values: dict[str, float], step: int) -> list[Metric]:
        from mlflow.entities import Metric

        time_ms = (wall_ns_of(values)) // 1_000_000
        finite = ((name, value) for name, value in values.items() if not math.isinf(value))
        return [Metric(self._names(name), value, time_ms, step) for name, value in finite]

    def params(self, parameters: dict[str, Any]) -> None:
        """Send the configuration. What is too long is cut; what a resumed run has stays as it is."""
        from mlflow.entities import Param

        names = NameMap(mlflow_name, self._collided)
        new: list[Param] = []
        for name, value in parameters.items():
            key, text = names(name), self._cut(name, str(value))
            if key not in self._parameters:
                new.append(Param(key, text))
            elif self._parameters[key] != text:
                self._report(
                    f"parameter {name}",
                    f"parameter {name!r} keeps the value of the resumed run: {text!r} is not sent",
                )
        with translated():
            for start in range(0, len(new), PARAMETERS):
                batch = new[start : start + PARAMETERS]
                self._client.log_batch(self.run_id, params=batch, synchronous=True)
                self._parameters.update((param.key, param.value) for param in batch)

    def show(self, name: str, medium: Medium, step: int, wall_ns: int) -> None:
        """Keep it as an artifact: a figure's newest state, and anything else of each step."""
        del wall_ns  # MLflow takes its own time
        path = self._names(name)
        with self._artifacts():
            if isinstance(medium, Figure):
                self._put_figure(name, path, medium)
                self._pages.queue_figure(path, f"{name}, step {step}", medium)
                self._put_page()
            elif isinstance(medium, Table):
                self._put_table(path, medium, step)
            elif isinstance(medium, Histogram):
                content = {"edges": list(medium.edges), "counts": list(medium.counts)}
                self._put_text(json.dumps(content), f"histograms/{path}/step-{step:08d}.json")
                self._pages.queue_figure(path, f"{name}, step {step}", medium.figure(name))
                self._put_page()
            elif isinstance(medium, Text):
                self._put_text(medium.text, f"texts/{path}/step-{step:08d}.txt")
            elif isinstance(medium, Image):
                with tempfile.TemporaryDirectory() as folder:
                    picture = Path(folder, f"step-{step:08d}.png")
                    picture.write_bytes(medium.png)
                    self._client.log_artifact(self.run_id, str(picture), f"images/{path}")
        with translated():
            self._keep_names()

    @contextmanager
    def _artifacts(self) -> Iterator[None]:
        """Tell artifacts that can't be put, often for want of a right, from a server that isn't there: values go on."""
        with raised_as(self._not_put, but=()), translated():
            yield

    def _not_put(self, error: Exception) -> BackendError | None:
        if getattr(error, "errno", None) in {errno.ENOSPC, errno.EDQUOT}:
            return None
        with translated():
            self._client.get_run(self.run_id)
        return BackendError(f"backend 'mlflow' can't put an artifact: {error}")

    def _put_text(self, text: str, path: str) -> None:
        self._client.log_text(self.run_id, text, path)

    def _put_figure(self, name: str, path: str, figure: Figure) -> None:
        if self._pages.has_room(path, len(figure.spec)):
            self._put_text(figure.spec, f"figures/{path}.json")
        else:
            self._report(
                f"figure {name}", f"figures/{path}.json isn't kept: figures would weigh more than 8 MB together"
            )

    def _put_page(self, last: bool = False) -> None:
        if self._pages.due(last):
            if self._went_on:
                self._went_on = False
                self._add_earlier_figures()
            self._put_text(self._pages.text(), "figures.html")
            self._pages.done()

    def _add_earlier_figures(self) -> None:
        """The page of a run that is gone on with has the figures of before, too."""
        with tempfile.TemporaryDirectory() as folder:
            if not self._client.list_artifacts(self.run_id, "figures"):
                return
            place = Path(self._client.download_artifacts(self.run_id, "figures", folder))
            for file in sorted(place.rglob("*.json")):
                path, spec = file.relative_to(place).with_suffix("").as_posix(), file.read_text(encoding="utf-8")
                if path not in self._pages and self._pages.has_room(path, len(spec)):
                    self._pages.queue_figure(path, path, Figure(spec))

    def _put_table(self, path: str, table: Table, step: int) -> None:
        """As MLflow's own ``log_table`` writes it, which would load pandas."""
        content = json.dumps({"columns": table.columns, "data": table.rows})
        self._put_text(content, f"tables/{path}/step-{step:08d}.json")
        newest = f"tables/{path}.json"
        self._put_text(content, newest)
        if newest not in self._tables:
            listed = json.dumps([{"path": one, "type": "table"} for one in [*self._tables, newest]])
            if len(listed) <= TAG_LENGTH:
                self._client.set_tag(self.run_id, TABLES_TAG, listed)
            self._tables.append(newest)

    def describe(self, markdown: str) -> None:
        """The run's description; one that is too long is cut there, and whole in the artifact ``description.md``."""
        text = markdown
        if len(markdown) > TAG_LENGTH:
            text = markdown[: TAG_LENGTH - 60] + "\n\n… the whole is in the artifact description.md"
        with translated():
            self._client.set_tag(self.run_id, "mlflow.note.content", text)
        if text != markdown:
            with self._artifacts():
                self._put_text(markdown, "description.md")

    def tag(self, tags: dict[str, str]) -> None:
        """The run's tags. A name that probe uses itself, or that MLflow doesn't take, is changed."""
        from mlflow.entities import RunTag

        own = {f"probe's own {name}": name for name in (NAMES_TAG, INFINITIES_TAG, KEY_TAG)}
        names = NameMap(mlflow_name, self._collided, own)
        made = [RunTag(names(name), value[:TAG_LENGTH]) for name, value in tags.items()]
        with translated():
            for start in range(0, len(made), PARAMETERS):
                self._client.log_batch(self.run_id, tags=made[start : start + PARAMETERS], synchronous=True)

    def flush(self) -> None:
        """Put the page of figures, where it has changed."""
        with self._artifacts():
            self._put_page(last=True)

    def close(self, exit_code: int) -> None:
        """Put the page of figures, and give the run its status."""
        status = _STATUS.get(exit_code, "FAILED")
        try:
            self.flush()
        except BackendError as error:  # the run still gets its status
            self._report("pages", f"the newest figures are missing in the page: {error}")
        with switched_on("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"), translated():
            told = self._client.get_run(self.run_id).data.tags.get(END_TAG, NO_END)
            if told == NO_END:  # else the processes have said it: another one was killed, of which this one failed
                self._client.set_tag(self.run_id, END_TAG, _ENDS.get(exit_code, "exited"))
            self._client.set_terminated(self.run_id, status)

    def _resume(self) -> Run | None:
        run_id = os.environ.get("MLFLOW_RUN_ID")
        if not run_id:
            return None
        from mlflow.exceptions import MlflowException

        try:
            run = self._client.get_run(run_id)
        except MlflowException as error:
            raise BackendError(f"backend 'mlflow': MLFLOW_RUN_ID={run_id} can't be resumed: {error}") from error
        if run.info.lifecycle_stage == "deleted":
            raise BackendError(f"backend 'mlflow': the run MLFLOW_RUN_ID={run_id} is deleted; restore it first")
        self._client.update_run(run_id, status="RUNNING")
        self._client.set_tag(run_id, END_TAG, NO_END)
        return run

    def _go_on(self, setup: Setup, uri: str) -> Run | None:
        """The run that an earlier process of this run's directory has made, if it's still there."""
        from mlflow.exceptions import MlflowException

        known = setup.state("mlflow").read()
        if not known or any(known.get(key) != value for key, value in _identity(setup, uri).items()):
            return None
        try:
            run_id = known.get("run_id") or self._find(setup, str(known.get("key")))
            run = None if run_id is None else self._client.get_run(run_id)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            run = None
        if run is None or run.info.lifecycle_stage == "deleted":
            if known.get("run_id"):
                self._report("resume", f"the run {known['run_id']} of this directory is gone: a new one is made")
            return None
        self._client.update_run(run.info.run_id, status="RUNNING")
        self._client.set_tag(run.info.run_id, END_TAG, NO_END)
        if not known.get("run_id"):
            setup.state("mlflow").write({**known, "run_id": run.info.run_id})
        return run

    def _find(self, setup: Setup, key: str) -> str | None:
        """A run that was made by a process that didn't live to note its id."""
        experiment = self._client.get_experiment_by_name(setup.project)
        if experiment is None:
            return None
        found = self._client.search_runs([experiment.experiment_id], f"tags.`{KEY_TAG}` = '{key}'", max_results=1)
        return found[0].info.run_id if found else None

    def _create(self, setup: Setup, uri: str, artifacts: str | None) -> Run:
        experiment_id = self._experiment(setup, artifacts)
        state = setup.state("mlflow")
        known = {**_identity(setup, uri), "key": uuid.uuid4().hex, "experiment_id": experiment_id}
        state.write(known)
        run = self._client.create_run(experiment_id, run_name=setup.experiment, tags={KEY_TAG: known["key"]})
        if not state.write({**known, "run_id": run.info.run_id}) and setup.directory is not None:
            self._report("resume", f"{setup.directory} can't be written: a later process will make a run of its own")
        return run

    def _experiment(self, setup: Setup, artifacts: str | None) -> str:
        from mlflow.exceptions import MlflowException

        experiment = self._client.get_experiment_by_name(setup.project)
        if experiment is None:
            try:
                return str(self._client.create_experiment(setup.project, artifact_location=artifacts))
            except MlflowException:  # another process was faster
                experiment = self._client.get_experiment_by_name(setup.project)
                if experiment is None:
                    raise
        if experiment.lifecycle_stage == "deleted":
            raise BackendError(f"backend 'mlflow': the experiment {setup.project!r} is deleted; restore it first")
        return str(experiment.experiment_id)

    def _collided(self, name: str, wanted: str, mapped: str) -> None:
        self._report(f"name {name}", f"{name!r} is called {mapped!r} here, as {wanted!r} collides with another name")

    def _cut(self, name: str, text: str) -> str:
        if len(text) <= PARAMETER_LENGTH:
            return text
        self._report(
            f"parameter {name}",
            f"parameter {name!r} has {len(text)} characters and is cut to {PARAMETER_LENGTH}",
        )
        return text[: PARAMETER_LENGTH - 6] + " […cut"

    def _keep_names(self) -> None:
        if len(self._names.changed) == self._kept_names:
            return
        changed = {mapped: name for name, mapped in self._names.changed.items()}
        self._set_tags(NAMES_TAG, changed)
        self._kept_names = len(changed)

    def _keep_infinities(self, infinite: dict[str, float], step: int) -> None:
        for name, value in infinite.items():
            text = "Infinity" if value > 0 else "-Infinity"
            message = f"{name!r} is {text} at step {step}, which MLflow can't keep: see the tag {INFINITIES_TAG}"
            self._report(f"infinity {name}", message)
            self._infinities.setdefault(name, {})[str(step)] = text
        if infinite:
            self._set_tags(INFINITIES_TAG, self._infinities)

    def _set_tags(self, tag: str, content: dict[str, Any]) -> None:
        """Write ``content`` as JSON into as many tags as it takes: ``tag``, ``tag.1``, ``tag.2`` …"""
        text = json.dumps(content, ensure_ascii=True)
        for number, start in enumerate(range(0, len(text), TAG_LENGTH)):
            self._client.set_tag(self.run_id, f"{tag}.{number}" if number else tag, text[start : start + TAG_LENGTH])


def page_of(experiment_id: str, run_id: str) -> str:
    """The page of a run, below the address of a server.

    >>> page_of("1", "a")
    '#/experiments/1/runs/a'
    """
    return f"#/experiments/{experiment_id}/runs/{run_id}"


def _listed_tables(run: Run) -> list[str]:
    try:
        listed = json.loads(run.data.tags.get(TABLES_TAG, "[]"))
        return [one["path"] for one in listed if one["type"] == "table"]
    except (ValueError, TypeError, KeyError):  # somebody edited it
        return []


def _unusable(uri: str, error: Exception) -> BackendError:
    kind = BackendError if getattr(error, "error_code", "") in LASTING else UnreachableError
    return kind(without_logins(f"backend 'mlflow' can't use {uri}: {error}"))


def _unanswered(uri: str) -> str:
    return unanswered(f"{uri.rstrip('/')}/health")


def _identity(setup: Setup, uri: str) -> dict[str, str]:
    return {"tracking_uri": uri, "project": setup.project, "experiment": setup.experiment}


def _tagged(run: Run, tag: str) -> dict[str, Any]:
    parts = [run.data.tags.get(tag, "")]
    while (part := run.data.tags.get(f"{tag}.{len(parts)}")) is not None:
        parts.append(part)
    try:
        content = json.loads("".join(parts) or "{}")
    except ValueError:  # somebody edited it, or a process died between two parts
        return {}
    return content if isinstance(content, dict) else {}
