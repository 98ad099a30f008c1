"""Makes what sends a run elsewhere: backends, dashboards, copies, alarms. What can't begin is an incident."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from probe._check import missing_view
from probe.current import CURRENT
from probe.guard import Guard
from probe.hooks import current_scope
from probe.publishing.alarms import Alarms, alert
from probe.publishing.publisher import Publisher
from probe.records import Incident
from probe.redaction import Redact
from probe.runs.upload import EVERY_S, Upload
from probe.tracking.held import HeldTracking
from probe.tracking.recovery import is_behind
from probe.tracking.tracking import Tracking

_log = logging.getLogger("probe.session")


def record_incident(incident: Incident) -> None:
    """Write an incident to the run that is open or being closed: a backend, or the publisher, is in trouble.

    Args:
        incident: Its row, which stands beside the log line that Tracking writes.
    """
    open_now = CURRENT.session or CURRENT.closing
    if open_now is not None:
        open_now.recording.write_rows(incident, current_scope(), time.monotonic_ns())


def make_tracking(
    track: str | Sequence[str] | Tracking | None,
    project: str,
    directory: Path,
    config: Any,
    attempt: int,
    redact: Redact,
    hold: Callable[[], bool] | None,
) -> Tracking | None:
    """The backends that were asked for.

    Args:
        track: As of :func:`probe.session.starting.start`.
        project: Likewise.
        directory: The run directory; its name is the experiment's.
        config: As of ``start``.
        attempt: Of the run.
        redact: As of ``start``.
        hold: Whether this process tracks after all, asked at its end, where that isn't known yet; None where it is.

    Returns:
        None where nothing was asked for.

    Raises:
        UnknownNameError: There is no such backend.
        BackendError: One can't be set up.
    """
    if track is None or isinstance(track, Tracking):
        return track
    names = [name.strip() for name in track.split(",")] if isinstance(track, str) else list(track)
    if not names:
        return None
    more: dict[str, Any] = {"directory": directory, "on_incident": record_incident, "attempt": attempt}
    if hold is not None:
        return HeldTracking(project, directory.name, names, config, redact=redact, at_the_end=hold, **more)
    tracking = Tracking(project, directory.name, names, config, redact=redact, **more)
    send_leftovers(directory, attempt)
    return tracking


def send_leftovers(directory: Path, attempt: int) -> None:
    """Send what backends lack of the attempts before, whose processes are gone, in the background.

    Args:
        directory: The run directory.
        attempt: This one.
    """
    if attempt > 1:
        sender = threading.Thread(
            target=_send_leftovers, args=(directory, attempt), name="probe-leftovers", daemon=True
        )
        with suppress(RuntimeError):  # the system gives no thread: it is sent another time
            sender.start()


def _send_leftovers(directory: Path, attempt: int) -> None:
    """From a process of its own: some backends have one run in a process, and would end the one of this training."""
    code = "import sys; from probe.tracking.recovery import recover; recover(sys.argv[1], before=int(sys.argv[2]))"
    quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    # What is missing stays where it is, and `probe doctor` tells of it.
    failed = "values of earlier attempts that a backend lacks couldn't be sent"
    with Guard("leftovers", failed, tell=None, most=None, log=_log, level=logging.WARNING):
        if is_behind(directory, before=attempt):
            command = [sys.executable, "-c", code, str(directory), str(attempt)]
            subprocess.run(command, check=True, **quiet)


def make_publisher(directory: Path, tracking: Tracking, every_s: float) -> Publisher | None:
    """The process that draws the dashboards for the backends; None where it can't be had.

    Args:
        directory: The run directory.
        tracking: Where the figures go.
        every_s: How old they may get, in seconds.
    """
    missing = missing_view()
    if missing is not None:  # numbers go to the backends all the same
        _log.warning(
            "figures aren't published: %s isn't installed; install it with: pip install 'probe-rl[views]'", missing
        )
        return None
    try:
        return Publisher(directory, tracking, record_incident, every_s=every_s)
    except OSError as error:  # no memory for one more process, say: the run does without
        message = f"figures aren't published: the publisher can't be started: {error}"
        _log.warning("%s", message)
        record_incident(Incident(kind="publisher", where="publishing", message=message))
        return None


def make_upload(directory: Path, url: str) -> Upload | None:
    """The process that copies the run to a store; None where it can't be had.

    Args:
        directory: The run directory.
        url: Of the store.
    """
    try:
        return Upload(directory, url, record_incident, every_s=EVERY_S)
    except OSError as error:  # no memory for one more process, say: `probe sync` copies the run later
        message = f"the run isn't uploaded: the upload can't be started: {error}"
        _log.warning("%s", message)
        record_incident(Incident(kind="upload", where="upload", message=message))
        return None


def make_alarms(directory: Path, to: str, tracking: Tracking | None) -> Alarms | None:
    """The process that looks for alarms; None where it can't be had.

    Args:
        directory: The run directory.
        to: Where each is sent; "" sends it nowhere.
        tracking: Whose backends are told, too.
    """
    missing = missing_view()
    if missing is not None:
        _log.warning(
            "alarms aren't looked for: %s isn't installed; install it with: pip install 'probe-rl[views]'", missing
        )
        return None
    try:
        made = Alarms(directory, to)
    except OSError as error:  # no memory for one more process, say
        message = f"alarms aren't looked for: the process that looks for them can't be started: {error}"
        _log.warning("%s", message)
        record_incident(Incident(kind="alarms", where="alarms", message=message))
        return None
    if tracking is not None:
        made.add(partial(alert, tracking))
    return made
