"""Metrics as a Weights & Biases run of its own: a run that the user has open stays as it is."""

from __future__ import annotations

import html
import importlib
import importlib.util
import io
import os
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Final, cast

from probe.errors import BackendError, MissingDependencyError
from probe.tracking.backends.base import Alert, Backend, Setup, UnreachableError, wall_ns_of
from probe.tracking.media import Figure, Histogram, Image, Medium, Table, Text
from probe.tracking.reach import unanswered, unwritable

#: Names that W&B writes itself.
_RESERVED: Final = frozenset({"_step", "_timestamp", "_runtime", "_wandb"})
#: The longest tag that W&B takes.
TAG_LENGTH: Final = 64


class WandB(Backend):
    """A run of the project ``project``, named ``experiment``; finished with the exit code.

    ``WANDB_*`` works as W&B documents it: ``WANDB_MODE`` (``offline`` writes files for ``wandb sync``),
    ``WANDB_ENTITY``, ``WANDB_DIR``, else the run's directory, else the working directory. ``trainer.wandb_proxy`` of
    the configuration is the proxy. The run's id (``WANDB_RUN_ID``, else a new one) is kept in the run's directory: the
    next start there goes on with the same run.

    W&B takes no step before the last one: such a call is left out and reported.

    Raises:
        MissingDependencyError: Without the package wandb.
        UnreachableError: The server doesn't answer.
        BackendError: W&B refuses, such as without a login.
    """

    shows = frozenset({"histogram", "table", "figure", "text", "image"})
    places: ClassVar = {
        "params": "config",
        "describe": "notes",
        "tag": "tags, config",
        "alert": "an alert",
        "exit_code": "exit code",
    }
    #: Its own process writes every half second, and a step's row when the next step begins. What the next process sends
    #: again W&B drops, as a run's steps only grow.
    settles_s = 2.0

    @staticmethod
    def clean(name: str) -> str:
        """Names that W&B writes itself get ``metric`` in front."""
        return f"metric{name}" if name in _RESERVED else name

    @classmethod
    def reach(cls, directory: Path | None) -> tuple[str, str]:
        """Whether its server answers; offline, whether the directory can be written."""
        if importlib.util.find_spec("wandb") is None:
            return "backend", "the package wandb is missing: pip install 'probe-rl[wandb]'"
        if _offline():
            return "writable", unwritable(Path(os.environ.get("WANDB_DIR") or directory or "."))
        url = os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai"
        why = unanswered(url)
        return "reachable", f"{url}: {why}" if why else ""

    def __init__(self, setup: Setup) -> None:
        try:
            self._wandb: Any = importlib.import_module("wandb")
        except ImportError as error:
            raise MissingDependencyError.of("backend 'wandb'", "wandb", "wandb") from error
        self._report = setup.report
        self._parameters: dict[str, Any] = {}
        run_id = _run_id(setup) or uuid.uuid4().hex[:8]
        try:
            self._run: Any = self._wandb.init(
                project=setup.project,
                name=setup.experiment,
                entity=os.environ.get("WANDB_ENTITY"),
                id=run_id,
                resume=None if _offline() else "allow",
                dir=os.environ.get("WANDB_DIR") or setup.directory,
                reinit="create_new",
                settings=self._settings(setup),
            )
        except self._wandb.errors.CommError as error:
            raise UnreachableError(f"backend 'wandb' can't be reached: {error}") from error
        except (self._wandb.errors.Error, OSError) as error:
            raise BackendError(f"backend 'wandb' can't be used: {error}") from error
        setup.state("wandb").write({"project": setup.project, "experiment": setup.experiment, "run_id": run_id})
        self.run_id = str(self._run.id)
        self.location = self._where()
        self._last = self._first = int(self._run.step or 0)

    def _settings(self, setup: Setup) -> Any:
        # It neither prints nor captures what others print, and looks at nothing but what is logged.
        chosen: dict[str, Any] = {
            "silent": True,
            "console": "off",
            "x_disable_stats": True,
            "disable_git": True,
            "x_transaction_log_flush_interval": 0.5,
        }
        proxy = setup.parameters.get("trainer/wandb_proxy")
        if proxy:
            chosen["https_proxy"] = str(proxy)
        return self._wandb.Settings(**chosen)

    def _where(self) -> str:
        """The run's page, or its directory where it isn't online."""
        if not _offline() and self._run.url:
            return str(self._run.url)
        return os.path.normpath(Path(self._run.settings.sync_dir).absolute())

    def log(self, values: dict[str, float], step: int) -> None:
        """Send the numbers of one step."""
        self._log(dict(values), step, wall_ns_of(values))

    def _log(self, values: dict[str, Any], step: int, wall_ns: int) -> None:
        if step < self._last:
            name = next(iter(values))
            message = f"{name!r} at step {step} is left out: W&B is at step {self._last} and takes none before it"
            self._report("step back", message)
            return
        self._last = step
        row = {self.clean(name): value for name, value in values.items()}
        self._run.log({**row, "_timestamp": wall_ns / 1e9}, step=step)

    def missing(self, values: dict[str, float], step: int) -> dict[str, float]:
        """None, where a resumed run is past that step: W&B keeps whole steps."""
        return {} if step < self._first else values

    def show(self, name: str, medium: Medium, step: int, wall_ns: int) -> None:
        """Send one histogram, table, figure, text or image."""
        self._log({self.clean(name): self._own(medium)}, step, wall_ns)

    def _own(self, medium: Medium) -> Any:
        if isinstance(medium, Histogram):
            return self._wandb.Histogram(np_histogram=(list(medium.counts), list(medium.edges)))
        if isinstance(medium, Table):
            rows = [list(row) for row in medium.rows]  # a cell without a value is a text, also in a column of numbers
            return self._wandb.Table(columns=list(medium.columns), data=rows, allow_mixed_types=True)
        if isinstance(medium, Figure):
            # Whoever logs a figure has loaded plotly; by its name, as this package doesn't depend on it.
            return self._wandb.Plotly(importlib.import_module("plotly.io").from_json(medium.spec))
        if isinstance(medium, Image):
            return self._wandb.Image(importlib.import_module("PIL.Image").open(io.BytesIO(medium.png)))
        return self._wandb.Html(f"<pre>{html.escape(cast('Text', medium).text)}</pre>", inject=False)

    def params(self, parameters: dict[str, Any]) -> None:
        """Show the configuration."""
        self._run.config.update(parameters, allow_val_change=True)

    def describe(self, markdown: str) -> None:
        """The run's notes, and ``probe/summary`` of its summary."""
        self._run.notes = markdown
        self._run.summary.update({"probe/summary": markdown})

    def tag(self, tags: dict[str, str]) -> None:
        """``tags`` of the configuration; as W&B's own tags ``name:value`` those that are short enough for one."""
        self._run.config.update({"tags": tags}, allow_val_change=True)
        given = {tag.partition(":")[0]: tag for tag in self._run.tags or ()}
        given |= {name: f"{name}:{value}" for name, value in tags.items()}
        self._run.tags = tuple(tag for tag in given.values() if len(tag) <= TAG_LENGTH)

    def alert(self, alert: Alert) -> None:
        """An alert of the level ERROR, which W&B mails or posts as the user has set it there."""
        # By itself it keeps back what comes under the same title within a minute; another rank's alarm may.
        self._run.alert(title=alert.title, text=alert.text, level="ERROR", wait_duration=timedelta(milliseconds=1))

    def close(self, exit_code: int) -> None:
        """Complete the run; anything but 0 marks it as failed."""
        self._run.finish(exit_code=exit_code)


def _offline() -> bool:
    return os.environ.get("WANDB_MODE", "").lower() in {"offline", "dryrun", "disabled"}


def _run_id(setup: Setup) -> str | None:
    named = os.environ.get("WANDB_RUN_ID")
    if named:
        return named
    known = setup.state("wandb").read()
    same = (known.get("project"), known.get("experiment")) == (setup.project, setup.experiment)
    return known.get("run_id") if same else None
