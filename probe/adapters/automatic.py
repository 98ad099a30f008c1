"""The session that an observed framework begins: where the environment says so, at the first thing that is observed."""

from __future__ import annotations

import logging
import os
import threading
from typing import Final

from probe.current import CURRENT
from probe.guard import Guard
from probe.hooks import is_off

#: The run directory of all processes of a job.
VARIABLE: Final = "PROBE_RUN_DIR"

_log = logging.getLogger("probe.adapters")
_lock = threading.Lock()
_tried: Final[set[int]] = set()  #: processes, by id: a forked child tries itself


def is_recording(begin: bool) -> bool:
    """Whether this process records; where it doesn't and the environment asks for it, it begins to.

    Args:
        begin: Whether there is a reason to begin now.
    """
    open_now = CURRENT.session
    if open_now is not None:
        if begin and open_now.counts_alone:
            open_now.record_all()
        return True
    if not begin or os.getpid() in _tried or not os.environ.get(VARIABLE):
        return False
    return _begin()


def is_counting() -> bool:
    """Whether calls that are counted are recorded here; where nobody records, and the environment asks for it, they
    alone are from now on.
    """
    return is_recording(begin=False) or (bool(os.environ.get(VARIABLE)) and _begin(counts_alone=True))


def _begin(project: str | None = None, experiment: str | None = None, *, counts_alone: bool = False) -> bool:
    with _lock:
        if os.getpid() in _tried:
            return False
        _tried.add(os.getpid())
    where = os.environ.get(VARIABLE) or f"runs/{project}/{experiment}"
    # A full disk, a directory that can't be written: there is no run that could be told.
    with Guard("probe.start", f"probe can't record to {where}; training goes on", tell=None, log=_log):
        if is_off():
            return False
        from probe.session import start_automatically

        start_automatically(os.environ.get(VARIABLE), project, experiment, counts_alone=counts_alone)
        return True
    return False


def begin_named(project: str, experiment: str) -> None:
    """Record this process to ``runs/<project>/<experiment>``, unless it records or the environment names a directory.

    Args:
        project: The project's name.
        experiment: The experiment's name.
    """
    if is_recording(begin=True) or os.environ.get(VARIABLE):
        return
    _begin(project, experiment)
