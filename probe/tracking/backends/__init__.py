"""What a tracking backend is, which there are, and how one is opened.

A user's own backend is a class with :meth:`Backend.log` and :meth:`Backend.close`, named by its dotted path
(``"my_package.my_module:MyBackend"``). It is made with one argument, the :class:`Setup`.
"""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, cast, runtime_checkable

from probe.errors import BackendError, ProbeError, UnknownNameError
from probe.tracking.state import State

#: Backend by name: where its class is. Nothing is imported before it is asked for.
BACKENDS: Final[dict[str, str]] = {
    "console": "probe.tracking.backends.console:Console",
    "file": "probe.tracking.backends.file:File",
    "mlflow": "probe.tracking.backends.mlflow:MLflow",
    "otlp": "probe.tracking.backends.otlp:OTLP",
    "swanlab": "probe.tracking.backends.swanlab:SwanLab",
    "tensorboard": "probe.tracking.backends.tensorboard:TensorBoard",
    "trackio": "probe.tracking.backends.trackio:Trackio",
    "wandb": "probe.tracking.backends.wandb:WandB",
}


class Values(dict[str, float]):
    """The numbers of one call of ``log``: a dict of floats that also knows when the call was.

    Attributes:
        wall_ns: Nanoseconds since the epoch. A value that is sent again after a failure keeps its time.
    """

    __slots__ = ("wall_ns",)

    def __init__(self, values: Mapping[str, float], wall_ns: int) -> None:
        super().__init__(values)
        self.wall_ns = wall_ns


class UnreachableError(BackendError, ConnectionError):
    """The backend doesn't answer now and may do so later; where a run directory keeps what waits, training starts."""


@dataclass(frozen=True)
class Setup:
    """What a backend is made from.

    Attributes:
        project: The project's name, as given to ``Tracking``.
        experiment: The experiment's name, as given to ``Tracking``.
        directory: The directory of the run, absolute; None leaves the place to the backend.
        report: ``report(about, message)`` tells the user once of something that can't be sent as it is.
        parameters: The configuration, flat, for backends that read settings out of it.
    """

    project: str
    experiment: str
    directory: Path | None
    report: Callable[[str, str], None]
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def state(self, name: str) -> State:
        """What the backend of that name remembers in the run's directory."""
        return State(self.directory, name)

    def run_id(self, name: str) -> str:
        """The id under which the backend of that name knows this run: that of the process before, else a new one."""
        state, same = self.state(name), {"project": self.project, "experiment": self.experiment}
        known = state.read()
        if all(known.get(key) == value for key, value in same.items()) and known.get("run_id"):
            return str(known["run_id"])
        run_id = uuid.uuid4().hex
        state.write({**same, "run_id": run_id})
        return run_id


@runtime_checkable
class Backend(Protocol):
    """Two methods, called from one thread at a time. After an error the same values are sent again.

    The constructor takes a :class:`Setup` and raises when it can't work: set-up is loud. Further members are
    optional:

    * ``location``: absolute path or URL.
    * ``params(parameters: dict[str, scalar])``: the flat configuration.
    * ``describe(markdown: str)``, ``tag(tags: dict[str, str])``: what is said of the run; the newest counts.
    * ``layout(charts)``: how charts are arranged, as given to ``Tracking.layout``.
    * ``flush()``.
    * ``shows``: kinds of ``media.Medium`` that ``show(name, medium, step, wall_ns)`` can send.
    * ``log_many(calls)``: several calls at once, each (values, step), where one that is behind saves requests by it.
    * ``missing(values, step)``: those of ``values`` that the backend hasn't got. Asked at the start, of the calls of
      which a killed process didn't note whether they arrived. Without it they are sent (again).
    * ``settles_s``: how long a value that was sent may still be lost when the process is killed.
    * ``reach(directory)``, a class method: the name of a check and why it fails here, empty where it doesn't.
    * ``clean(name)``, static: a metric's name there; ``directories``: whether names are paths there.
    * ``run_id``: of the run there; what is said of the run is sent again to another one. ``repeats_notes = True``: and
      to the same one at each start.
    * ``status = False``: a run has none there, so that one whose process died needs none.
    * ``lasting = False``: nothing is kept for it until the next start.
    """

    def log(self, values: dict[str, float], step: int) -> None:
        """Send the numbers of one step. May be called again with the same numbers after it has raised.

        Args:
            values: Name to number, NaN and infinities included; in fact :class:`Values`.
            step: The global step.
        """
        ...

    def close(self, exit_code: int) -> None:
        """Complete the run; ``exit_code`` is 0 for success."""
        ...


def open_backend(name: str, setup: Setup) -> Backend:
    """The backend of that name, or of that dotted path, ready to be used.

    Raises:
        UnknownNameError: Neither a name of :data:`BACKENDS` nor a dotted path.
        BackendError: It can't be set up.
        MissingDependencyError: It needs a package that isn't installed.
    """
    make = load_backend(name)
    try:
        backend = make(setup)
    except ProbeError:
        raise
    except Exception as error:
        raise BackendError(f"backend {name!r} can't be set up: {error!r}") from error
    if not isinstance(backend, Backend):
        raise BackendError(f"backend {name!r}: got {type(backend).__name__}, expected methods log and close")
    return backend


def load_backend(name: str) -> Callable[[Setup], Backend]:
    """What makes the backend ``name``, imported.

    Raises:
        UnknownNameError: As :func:`open_backend`.
        BackendError: As :func:`open_backend`.
    """
    path = BACKENDS.get(name, name)
    module, colon, attribute = path.partition(":")
    if not colon:
        module, _, attribute = path.rpartition(".")
    if not module or not attribute:
        raise UnknownNameError.of("default_backend", name, [*BACKENDS, "a dotted path 'package.module:Class'"])
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise BackendError(f"backend {name!r} can't be imported: {error!r}") from error
    if not callable(found):
        raise BackendError(f"backend {name!r}: got {type(found).__name__}, expected a class")
    return cast("Callable[[Setup], Backend]", found)
