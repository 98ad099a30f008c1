"""Sending what a run has left unsent, without going on with the run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from probe.records import Incident
from probe.tracking.backends import backend_class
from probe.tracking.journal import in_use, unsent, unsent_of
from probe.tracking.notes import unsent_notes
from probe.tracking.state import State, homes
from probe.tracking.tracking import Leftovers

#: How long sending may take where nobody says otherwise, seconds; nobody's training waits for it.
RECOVER_S: Final = 60.0


def recover(
    directory: str | os.PathLike[str],
    *,
    timeout_s: float = RECOVER_S,
    on_incident: Callable[[Incident], None] | None = None,
    before: int | None = None,
) -> dict[str, int]:
    """Send each backend of a run's directory what it hasn't got, and give the run its status.

    For a run that nobody goes on with: a process that was killed, or that ended while a backend was away. The run is
    marked with the exit code that it ended with, and as failed where it never ended. The environment (addresses,
    logins) has to be that of the run. A run whose process is still there is left alone.

    Args:
        directory: The directory of the run.
        timeout_s: Seconds after which it is given up; what is missing stays in the directory.
        on_incident: As for :class:`~probe.tracking.tracking.Tracking`.
        before: Only what attempts before this one have left; None is all.

    Returns:
        What is still missing: backend → calls. Empty when all is sent.

    Raises:
        BackendError: A backend can't be used, other than that it isn't reachable.
        MissingDependencyError: The package of a backend isn't installed.
    """
    place = Path(directory).absolute()
    for attempt, home in homes(place).items():
        if before is None or attempt < before:
            _recover(place, attempt, home, timeout_s, on_incident)
    return unsent(place)


def is_behind(directory: Path, *, before: int) -> bool:
    """Whether a backend lacks anything of an attempt before this one. Reads only.

    Args:
        directory: The directory of the run.
        before: The number of the attempt.

    Returns:
        Whether :func:`recover` has something to do.
    """
    earlier = (home for attempt, home in homes(directory).items() if attempt < before)
    return any(_behind(home, State(home, "run").read(), unsent_of(home)) for home in earlier)


def _recover(
    place: Path, attempt: int, home: Path, timeout_s: float, on_incident: Callable[[Incident], None] | None
) -> None:
    known = State(home, "run").read()
    behind = _behind(home, known, unsent_of(home))
    if not behind or not known or in_use(home):
        return
    code = known.get("exit_code")
    named = known["project"], known["experiment"]
    told: dict[str, Any] = {"directory": place, "on_incident": on_incident, "announce": False, "attempt": attempt}
    Leftovers(*named, behind, **told).finish(1 if code is None else code, timeout_s=timeout_s)


def _behind(place: Path, known: dict[str, Any], waiting: dict[str, int]) -> list[str]:
    """The backends that lack calls, what was said of the run, or its status."""
    named = known.get("backends", [])
    complete = known.get("complete", [])
    unfinished = [name for name in named if name not in complete and backend_class(name).status]
    return list(dict.fromkeys([*waiting, *unsent_notes(place, named), *unfinished]))
