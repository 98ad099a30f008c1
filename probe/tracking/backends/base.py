"""What a tracking backend is: a class with ``log`` and ``close``, and methods that do nothing until it has them.

A backend derives from :class:`Backend`. A user's own class need not: one with methods ``log`` and ``close`` is taken as
it is, and what else it has of :class:`Backend`'s members is used (:func:`adapted`, the only place that looks for them).
"""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from probe.errors import BackendError
from probe.tracking.media import Medium
from probe.tracking.state import State, home_of

#: Characters of an alert's title: W&B takes fewer than 64.
TITLE_LENGTH: Final = 63

#: What is said of a run as a whole: the backends' methods that take it, and what each is called in a report.
NOTES: Final = {"params": "the parameters", "describe": "the description", "tag": "the tags", "layout": "the layout"}


class Values(dict[str, float]):
    """The numbers of one call of ``log``: a dict of floats that also knows when the call was.

    Attributes:
        wall_ns: Nanoseconds since the epoch. A value that is sent again after a failure keeps its time.
    """

    __slots__ = ("wall_ns",)

    def __init__(self, values: Mapping[str, float], wall_ns: int) -> None:
        super().__init__(values)
        self.wall_ns = wall_ns


def wall_ns_of(values: Mapping[str, float]) -> int:
    """When the call was: nanoseconds since the epoch; now, for a plain dict."""
    return values.wall_ns if isinstance(values, Values) else time.time_ns()


@dataclass(frozen=True)
class Alert:
    """Something that is wrong, for people.

    Attributes:
        title: A few words, at most :data:`TITLE_LENGTH` characters.
        text: Whole sentences.
        step: Where it began; None where that isn't known.
        wall_ns: When it was told, nanoseconds since the epoch.
    """

    title: str
    text: str
    step: int | None = None
    wall_ns: int = field(default_factory=time.time_ns)


class UnreachableError(BackendError, ConnectionError):
    """The backend doesn't answer now and may do so later; where a run directory keeps what waits, training starts."""


@dataclass(frozen=True)
class Setup:
    """What a backend is made from.

    Attributes:
        project: The project's name, as given to ``Tracking``.
        experiment: The experiment's name, as given to ``Tracking``.
        directory: Of the run, absolute; None leaves the place to the backend.
        report: ``report(about, message)`` tells the user once of something that can't be sent as it is.
        parameters: The configuration, flat, for backends that read settings out of it.
        attempt: Which launch of the training it is; each is a run of its own.
        private: Whether files that hold the configuration, or what is said of the run, are for their owner alone.
    """

    project: str
    experiment: str
    directory: Path | None
    report: Callable[[str, str], None]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    attempt: int = 1
    private: bool = False

    @property
    def suffix(self) -> str:
        """What sets files and folders of a later attempt apart, such as ``"attempt-2"``; "" for the first."""
        return "" if self.attempt == 1 else f"attempt-{self.attempt}"

    def state(self, name: str) -> State:
        """What the backend of that name remembers in the run's directory."""
        return State(None if self.directory is None else home_of(self.directory, self.attempt), name)

    def run_id(self, name: str) -> str:
        """The id under which the backend of that name knows this run: that of the process before, else a new one."""
        state, same = self.state(name), {"project": self.project, "experiment": self.experiment}
        known = state.read()
        if all(known.get(key) == value for key, value in same.items()) and known.get("run_id"):
            return str(known["run_id"])
        run_id = uuid.uuid4().hex
        state.write({**same, "run_id": run_id})
        return run_id


class Backend(ABC):
    """Sends metrics to one place; all of its methods are called from one thread at a time.

    :meth:`log` and :meth:`close` are what it must have. What else it overrides is used, and what it doesn't override
    does nothing. The constructor takes a :class:`Setup` and raises when it can't work: set-up is loud. What a method
    raises later reaches nobody but the incidents, and the same call comes again.

    Attributes:
        location: Where it writes: an absolute path or a URL, told once at the start; empty where there is none.
        run_id: Of the run there; what is said of the run is sent again to another one. Empty where runs have none.
        shows: Kinds of ``media.Medium`` that :meth:`show` can send; the others are reported once and left out.
        places: Where what is said of the run as a whole stands there, in a few words for the docs: by the name of the
            method (``params``, ``describe``, ``tag``, ``layout``, ``alert``), and ``exit_code``.
        settles_s: How long a value that was sent may still be lost when the process is killed, seconds.
        status: False where a run has no status there, so that one whose process died needs none.
        lasting: False where nothing is kept for it until the next start.
        repeats_notes: True where what is said of the run is sent to the same run at each start, too.
        directories: True where names are paths there, so that ``a`` can't stand beside ``a/b``.
        reopens: True where a later process that opens the run adds to the same place what it then says.
    """

    location: str = ""
    run_id: str = ""
    shows: frozenset[str] = frozenset()
    places: ClassVar[Mapping[str, str]] = {}
    settles_s: float = 0.0
    status: ClassVar[bool] = True
    lasting: ClassVar[bool] = True
    repeats_notes: ClassVar[bool] = False
    directories: ClassVar[bool] = False
    reopens: ClassVar[bool] = False

    @classmethod
    def reach(cls, directory: Path | None) -> tuple[str, str]:
        """What ``probe doctor`` asks before a run: creates and changes nothing.

        Args:
            directory: Of the run; None where there is none.

        Returns:
            The name of the check ("backend", "reachable" or "writable"), and why it fails; empty where it doesn't.
        """
        return "", ""

    @staticmethod
    def clean(name: str) -> str:
        """A metric's name as this backend can take it."""
        return name

    @abstractmethod
    def log(self, values: dict[str, float], step: int) -> None:
        """Send the numbers of one step. May be called again with the same numbers after it has raised.

        Args:
            values: Name to number, NaN and infinities included; in fact :class:`Values`.
            step: The global step.
        """

    @abstractmethod
    def close(self, exit_code: int) -> None:
        """Complete the run; ``exit_code`` is 0 for success."""

    def log_many(self, calls: Sequence[tuple[dict[str, float], int]]) -> None:
        """Send several calls at once, each (values, step); for a backend that is behind and saves requests by it."""
        for values, step in calls:
            self.log(values, step)

    def missing(self, values: dict[str, float], step: int) -> dict[str, float]:
        """Those of ``values`` that the backend hasn't got.

        Asked at the start, of the calls of which a killed process didn't note whether they arrived. A backend that
        can't tell gets them (again).
        """
        return values

    def show(self, name: str, medium: Medium, step: int, wall_ns: int) -> None:
        """Send one medium of the kinds in :attr:`shows`."""

    def params(self, parameters: dict[str, Any]) -> None:
        """Show the flat configuration, name to scalar."""

    def describe(self, markdown: str) -> None:
        """Show what the run is or has found; the newest counts."""

    def tag(self, tags: dict[str, str]) -> None:
        """Label the run; labels of other names stay."""

    def layout(self, charts: dict[str, Any]) -> None:
        """Arrange the charts, as given to ``Tracking.layout``."""

    def alert(self, alert: Alert) -> None:
        """Tell people of something that is wrong, where the backend has a way to: a mail, a message. May be called
        again with the same one after it has raised.
        """

    def flush(self) -> None:
        """Send what the backend itself still holds."""

    @classmethod
    def has(cls, method: str) -> bool:
        """Whether this backend does something of its own in ``method``, one of those that do nothing here."""
        return getattr(cls, method) is not getattr(Backend, method)

    def takes(self, method: str) -> bool:
        """Whether this very backend does; one that isn't reached yet may say so of everything."""
        return self.has(method)


#: What a class that doesn't derive from :class:`Backend` may have of it.
_MEMBERS: Final = frozenset(name for name in vars(Backend) if not name.startswith("_")) - {"has", "takes"}


class _Adapted(Backend):
    """A user's own object with ``log`` and ``close``; what else it has takes the place of what does nothing."""

    def __init__(self, own: Any) -> None:
        self.own = own

    def __getattribute__(self, name: str) -> Any:
        if name in _MEMBERS:
            own = object.__getattribute__(self, "own")
            if hasattr(own, name):
                return getattr(own, name)
        return object.__getattribute__(self, name)

    def takes(self, method: str) -> bool:
        return hasattr(self.own, method)

    def log(self, values: dict[str, float], step: int) -> None:
        raise NotImplementedError  # the object's own is found first

    def close(self, exit_code: int) -> None:
        raise NotImplementedError


def adapted(made: Any, name: str = "") -> Backend:
    """``made`` as a :class:`Backend`: itself, or in front of a user's own object that isn't derived from it.

    Raises:
        BackendError: It hasn't got the methods ``log`` and ``close``.
    """
    if isinstance(made, Backend):
        return made
    if not all(callable(getattr(made, method, None)) for method in ("log", "close")):
        raise BackendError(
            f"backend {name!r}: got {type(made).__name__}, expected an object with the methods log and close"
        )
    return _Adapted(made)


def adapted_class(made: Any) -> type[Backend]:
    """What is known of a backend before it is made: its class, or one with the members that a user's own class has."""
    if isinstance(made, type) and issubclass(made, Backend):
        return made
    own = {name: getattr(made, name) for name in _MEMBERS if hasattr(made, name)}
    return type("Adapted", (Backend,), own)  # never made, only asked


def own_object(backend: Backend) -> Any:
    """What :func:`adapted` was given."""
    return backend.own if isinstance(backend, _Adapted) else backend
