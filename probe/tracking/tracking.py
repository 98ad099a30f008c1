"""The one front of all tracking backends: log a step's metrics and go on training."""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Self

from probe import exits
from probe._check import local_directory, whole_number
from probe._io import expanded
from probe.errors import InputTypeError, UnknownNameError
from probe.guard import attempt, on_error
from probe.hooks import SWITCH, is_off, observed
from probe.nothing import Nothing, say_so
from probe.records import Incident
from probe.redaction import Redact, redaction, without_logins
from probe.text import short, visible
from probe.tracking.backends import BACKENDS, load_backend, open_backend
from probe.tracking.backends.base import NOTES, TITLE_LENGTH, Alert, Backend, Setup, UnreachableError, own_object
from probe.tracking.checks import start_checks
from probe.tracking.journal import Journal
from probe.tracking.late import Late
from probe.tracking.notes import Charts, Notes, checked_charts, checked_markdown, checked_tags
from probe.tracking.numbers import Snapshot
from probe.tracking.parameters import flatten
from probe.tracking.reports import Reports
from probe.tracking.state import LastStep, State, home_of
from probe.tracking.stream import Entry, Stream
from probe.tracking.transfer import start_transfer

_log = logging.getLogger("probe.tracking")

#: How long the end of a run may wait for all backends together where nobody says otherwise, seconds.
FINISH_S: Final = 10.0


class Tracking:
    """Sends metrics to one or more backends, from threads of its own: ``log`` returns at once.

    Numbers of every kind are taken (python, numpy, tensors of one element, ``Metric``) as they are at the
    call; those on a device travel by asynchronous copy. Text, plotly figures, pictures, pandas frames and the
    kinds of ``probe.tracking.media`` are taken too and sent where the backend can show them. What is neither is
    reported once by name and left out.

    A backend that fails, hangs or is full is reported once, tried again, and harms neither training nor
    the other backends. Where the environment says ``PROBE=off`` nothing is opened, kept or sent, and no argument is
    looked at. With a ``directory`` every call is on disk before it is sent: what a backend misses is sent
    later in order, by this process or, after its death, by the next one that is given the same directory, once. A
    backend that isn't reachable at the start is then waited for too; without a directory that is an error.

    Args:
        project_name: The project's name, not empty.
        experiment_name: The experiment's name, not empty.
        default_backend: One name or several: of :attr:`supported_backend`, or the dotted path of a user's own class
            (``"package.module:Class"``; see ``probe.tracking.backends``).
        config: The trainer's configuration, any shape; backends show it as parameters.
        directory: Where backends put their files, and where calls wait that can't be sent; None leaves the place to
            each and keeps what waits in memory. Their environment variables win.
        on_incident: Is given an ``Incident`` for each trouble, on the thread where it shows.
        capacity: Calls that may wait in memory; then the oldest that isn't on disk is dropped and counted.
        announce: Whether to tell once where each backend writes: to the log, or where that shows no infos to standard
            error.
        attempt: Which launch of the training this is. From 2 on it is a run of its own in every backend, with
            "(attempt 2)" behind its name, and has files of its own.
        redact: Whether secrets of ``config`` are left out of what is kept and sent; see :mod:`probe.redaction`. A list
            of names adds these; False keeps all, in files that their owner alone can read.

    Attributes:
        supported_backend: The names there are.
        logger: Backend by the name it was asked for.
        locations: Absolute path or URL by backend name.
        attempt: Which launch of the training this is.
        home: Where the next process finds what this one has left; None where nothing is kept.
        calls: How often :meth:`log` was called with something that was to be sent.

    Raises:
        InputError: ``directory`` is a URL, or in a home directory where there is none.
        UnknownNameError: There is no such backend.
        BackendError: A backend can't be used. Set-up is loud; importing mlflow and making its database takes some
            seconds here rather than later.
        MissingDependencyError: The package of a backend isn't installed.

    Example::

        with Tracking("demo", "first", ["console", "tensorboard"]) as tracking:
            tracking.log({"loss": loss, "reward": 0.5}, step=1)  # `loss` may be a tensor on the GPU
    """

    supported_backend: ClassVar[list[str]] = list(BACKENDS)

    #: Whether ``PROBE=off`` makes it inert.
    switched: ClassVar[bool] = True

    calls = 0

    def __init__(
        self,
        project_name: str,
        experiment_name: str,
        default_backend: str | Sequence[str] = "console",
        config: Any = None,
        *,
        directory: str | os.PathLike[str] | None = None,
        on_incident: Callable[[Incident], None] | None = None,
        capacity: int = 4096,
        announce: bool = True,
        attempt: int = 1,
        redact: Redact = True,
    ) -> None:
        self._off = self.switched and is_off()
        if self._off:
            self._begin_nothing(default_backend, attempt)
            return
        rule = redaction(redact)
        for argument, given in (("project_name", project_name), ("experiment_name", experiment_name)):
            if not isinstance(given, str) or not given:
                raise InputTypeError(f"{argument}: got {given!r}, expected a non-empty str")
        whole_number("capacity", capacity, 1)
        whole_number("attempt", attempt, 1)
        local_directory("directory", directory)
        place = None if directory is None else expanded("directory", directory).absolute()
        self._backends: dict[str, Backend] = {}
        self._finished = False
        self._pid = os.getpid()
        self._reports = Reports(on_incident)
        self._redact: Redact = False if rule is None else rule
        self._parameters = self._flat(config)
        self.attempt = attempt
        self._private = self._redact is False or (place is not None and _is_private(home_of(place, attempt)))
        self._open(names_of("default_backend", default_backend), project_name, experiment_name, place)
        self.logger: dict[str, Any] = {name: own_object(backend) for name, backend in self._backends.items()}
        self.locations = {name: backend.location for name, backend in self._backends.items() if backend.location}
        if announce:
            _announce(self.locations)
        lasting = {name for name, backend in self._backends.items() if backend.lasting}
        kept = home_of(place, attempt) if lasting and place is not None else None
        with on_error(lambda _: self._close_backends()):
            journal = Journal(kept, list(self.logger), lasting, self._reports, capacity, private=self._private)
            with on_error(lambda _: journal.release()):  # such as a system that gives no more threads
                self._begin(journal, project_name, experiment_name, lasting, kept, capacity)
        self._forget_end = exits.at_end(self.finish)

    def _begin_nothing(self, asked: Any, attempt: int) -> None:
        """Every call is there, and none does anything."""
        self._backends, self._finished, self._pid = {}, True, os.getpid()
        names = [asked] if isinstance(asked, str) else asked
        self.logger = {str(one): Nothing() for one in names} if isinstance(names, Iterable) else {}
        self.locations, self.attempt = {}, attempt
        self.home: Path | None = None
        say_so()

    def _begin(
        self, journal: Journal, project: str, experiment: str, lasting: set[str], kept: Path | None, capacity: int
    ) -> None:
        kept = None if journal.folder is None else kept  # another process may have it
        self.home = kept
        self._ending = State(kept, "run")
        run = {"project": project, "experiment": experiment, "backends": sorted(lasting)}
        self._ending.write({**run, "exit_code": None})
        self._stream = Stream(
            self._backends,
            self._reports,
            journal=journal,
            notes=Notes(kept, self._backends, private=self._private),
            last_step=LastStep(kept),
            capacity=capacity,
        )
        self._check_start(kept)
        if self._parameters:
            self._stream.note("params", self._parameters)

    def _check_start(self, kept: Path | None) -> None:
        # What it looks at may be damaged in any way: the run starts all the same.
        with self._reports.guard("backend", "the start couldn't be checked", about="start"):
            for one in start_checks(None, kept):
                self._reports.tell(one.kind, one.where, one.message, about="start")

    def _open(self, names: Sequence[str], project: str, experiment: str, directory: Path | None) -> None:
        names = [_current_name(name) for name in names]
        experiment = experiment if self.attempt == 1 else f"{experiment} (attempt {self.attempt})"
        for name in names:
            load_backend(name)  # nothing is opened when one of them can't be
        with on_error(lambda _: self._close_backends()):
            for name in names:
                report = partial(self._report, name)
                setup = Setup(project, experiment, directory, report, self._parameters, self.attempt, self._private)
                self._backends[name] = self._opened(name, setup)

    def _close_backends(self) -> None:
        for opened, backend in self._backends.items():
            _close_quietly(opened, backend)

    def _opened(self, name: str, setup: Setup) -> Backend:
        try:
            return open_backend(name, setup)
        except UnreachableError as error:
            if setup.directory is None:
                raise
            message = f"can't be reached yet: {error}; what is logged is kept in {setup.directory} and sent later"
            self._reports.tell("backend", name, message, about="not there", error=error)
            return Late(name, setup)

    def _report(self, name: str, about: str, message: str) -> None:
        self._reports.tell("name" if about.startswith("name ") else "value", name, message, about=about)

    def _flat(self, config: Any) -> dict[str, Any]:
        # A config object may be of the user's own making; the metrics matter more.
        return attempt(lambda: dict(flatten(config, self._redact)), self._without_config)

    def _without_config(self, error: Exception) -> dict[str, Any]:
        self._reports.tell("value", "tracking", f"config is left out: {error!r}", about="config", error=error)
        return {}

    @observed("tracking.log", "metrics are logged for a step; arguments data (name to number), step, backend")
    def log(self, data: Mapping[str, Any], step: int, backend: str | Sequence[str] | None = None) -> None:
        """Send the metrics of one step. Returns at once; nothing that happens later is raised.

        Args:
            data: Name to number, or to one of the kinds of ``probe.tracking.media``, or to what becomes one by itself
                (text, a plotly figure, a Pillow image, a pandas frame). It and what is in it may be changed afterwards.
            step: The global step, 0 or more.
            backend: Names of the only backends that get it; None for all.

        Raises:
            InputTypeError: ``data`` isn't a mapping or ``step`` no whole number.
            InputError: ``step`` is negative.
            UnknownNameError: This Tracking has no such backend.
        """
        self._log(data, step, backend)

    def _log(self, data: Mapping[str, Any], step: int, backend: str | Sequence[str] | None) -> None:
        if self._off:
            return
        if not isinstance(data, Mapping):
            raise InputTypeError(f"data: got {type(data).__name__}, expected a mapping of names to numbers")
        checked = step if type(step) is int and step >= 0 else whole_number("step", step, 0)
        names = None if backend is None else self._chosen(backend)
        if self._open_here(f"metrics logged (step {checked})"):
            exits.went_on()
            self.calls += 1
            self._stream.enqueue(Entry(Snapshot(data, start_transfer), checked, time.time_ns(), names))

    def describe(self, markdown: str) -> None:
        """Say in words what this run is or has found: the newest counts, in every backend that has a place for it.

        Returns at once. It reaches a backend that is away later, and with a ``directory`` after this process too.

        Raises:
            InputTypeError: It is not a str.
        """
        if not self._off:
            self._note("describe", checked_markdown(markdown))

    def tag(self, tags: Mapping[str, str]) -> None:
        """Label the run; labels of other names stay. Otherwise as :meth:`describe`.

        Raises:
            InputTypeError: It is not a mapping, or a name isn't a non-empty str.
        """
        if not self._off:
            self._note("tag", checked_tags(tags))

    def layout(self, charts: Charts) -> None:
        """Arrange the charts, where a backend can (TensorBoard's custom scalars). Otherwise as :meth:`describe`.

        Args:
            charts: Category → title → ``{"kind": "line", "keys": [...]}``, or of kind "margin" with keys in threes:
                smallest, mean, largest. A ``{part}`` in a key stands for any one part of a name.

        Raises:
            InputTypeError: It is not a mapping of that form.
            InputError: A chart is neither "line" nor "margin", has no keys, or a margin's keys don't come in threes.
        """
        if not self._off:
            self._note("layout", checked_charts(charts))

    def alert(self, title: str, text: str, step: int | None = None) -> None:
        """Tell people of something that is wrong, where a backend has a way to (W&B's and Trackio's alerts). Returns
        at once; nothing that happens later is raised. What a backend that is away hasn't got when this process ends is
        lost: an alert is for now.

        Args:
            title: A few words; what is longer than 63 characters is cut.
            text: Whole sentences.
            step: Where it began; None where that isn't known.

        Raises:
            InputTypeError: The title or the text is not a str.
        """
        if self._off:
            return
        for argument, given in (("title", title), ("text", text)):
            if not isinstance(given, str):
                raise InputTypeError(f"{argument}: got {type(given).__name__}, expected a str")
        if not self._open_here("an alert given"):
            return
        alert = Alert(short(title, TITLE_LENGTH), text, step)
        for name, backend in self._backends.items():
            if backend.takes("alert"):
                self._stream.do(name, f"alert {alert.wall_ns} {alert.title}", partial(backend.alert, alert))

    def shows(self, kind: str) -> list[str]:
        """The backends that show a kind of ``probe.tracking.media``, such as "figure" or "spans"."""
        return [name for name, backend in self._backends.items() if kind in backend.shows]

    def _note(self, kind: str, content: Any) -> None:
        if self._open_here(f"{NOTES[kind]} given"):
            self._stream.note(kind, content)

    def _open_here(self, what: str) -> bool:
        if not self._finished and os.getpid() == self._pid:
            return True
        why = "after finish()" if self._finished else "in a forked process, which has no thread to send them"
        self._reports.tell("value", "tracking", f"{what} {why}: left out", about=why)
        return False

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Wait until everything so far has reached the backends. False when the time ran out."""
        if self._finished or os.getpid() != self._pid:
            return True
        return self._stream.flush(timeout_s)

    def finish(self, exit_code: int | None = None, timeout_s: float = FINISH_S) -> None:
        """Send what waits and complete the run in every backend. Safe to call twice.

        Args:
            exit_code: 0 for success; anything else marks the run as failed where the backend has a status, and 130 and
                143 (Ctrl-C, SIGTERM) as killed where it tells these apart. None is what the process ends with as far as
                that is known: see :func:`probe.exits.code`. Leaving a ``with`` block gives it by itself.
            timeout_s: Seconds after which all backends together are given up: what is missing is reported, and stays in
                the directory for the next process or for ``probe doctor RUN --recover``. That it waits is logged.
        """
        if self._finished or os.getpid() != self._pid:
            return
        exit_code = exits.code() if exit_code is None else exit_code
        self._finished = True
        self._forget_end()
        ended = {**self._ending.read(), "exit_code": exit_code}
        self._ending.write(ended)
        self._stream.close(exit_code, timeout_s)
        self._ending.write({**ended, "complete": self._stream.complete()})
        self._reports.close()

    def _chosen(self, backend: str | Sequence[str]) -> frozenset[str]:
        names = frozenset(names_of("backend", backend))
        for name in names:
            if name not in self.logger:
                raise UnknownNameError.of("backend", name, self.logger)
        return names

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish(exits.code_of(error))

    def __repr__(self) -> str:
        if self._off:
            return f"Tracking({SWITCH}=off: nothing is sent)"
        return f"Tracking({', '.join(self.logger) or 'no backend'}, {'finished' if self._finished else 'open'})"


class Leftovers(Tracking):
    """Sends what a run has left, whatever ``PROBE`` says: who asks for it wants nothing else."""

    switched = False


def _is_private(folder: Path) -> bool:
    """Whether a process before has kept secrets there: what is added is for their owner alone, too."""
    try:
        return not folder.stat().st_mode & 0o077
    except OSError:
        return False


def names_of(argument: str, given: str | Sequence[str]) -> list[str]:
    """Names of backends, each once.

    Args:
        argument: What they were given as.
        given: One or several.

    Raises:
        InputTypeError: It is something else.
    """
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, Sequence | set | frozenset) or not all(isinstance(name, str) for name in names):
        raise InputTypeError(f"{argument}: got {given!r}, expected a name or a list of names")
    return list(dict.fromkeys(names))


def _current_name(name: str) -> str:
    if name == "tracking":
        warnings.warn("the backend name 'tracking' is deprecated; use 'wandb'", DeprecationWarning, stacklevel=4)
        return "wandb"
    return name


def _announce(locations: Mapping[str, str]) -> None:
    for name, url in locations.items():
        location = without_logins(url)
        _log.info("%s: %s", name, location)
        if name != "console" and not _log.isEnabledFor(logging.INFO) and sys.stderr is not None:
            sys.stderr.write(f"probe: {name}: {visible(location)}\n")


def _close_quietly(name: str, backend: Backend) -> None:
    def failed(error: Exception) -> None:  # another backend's error is on its way to the user
        _log.error("backend %s failed to close", name, exc_info=error)

    attempt(lambda: backend.close(1), failed)
