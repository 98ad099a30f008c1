"""Which process of a job sends the run elsewhere: rank 0, all of it, and nobody else.

Many a process learns its rank after it has begun to record. Until then it holds what it would send; then it sends all
of it, or nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from probe.current import CURRENT
from probe.guard import Guard
from probe.publishing.alarms import Alarm, Alarms
from probe.publishing.last import has_to_be_there
from probe.publishing.publisher import Publisher, worthwhile
from probe.records import Process
from probe.redaction import Redact
from probe.runs.attempts import Joined, is_first, others
from probe.runs.processes import is_child, several
from probe.runs.upload import Upload
from probe.session import patience
from probe.session.outlets import make_alarms, make_publisher, make_tracking, make_upload, send_leftovers
from probe.session.recording import Recording
from probe.tracking.held import HeldTracking
from probe.tracking.spans import StepSpans
from probe.tracking.tracking import Tracking

_log = logging.getLogger("probe.session")

#: A process that may be one of several, and doesn't know its rank, sends nothing to backends before it does, or has
#: been alone for so many seconds: where a launcher says that there are others, and for a child of multiprocessing.
ALONE_S: Final = (30.0, 5.0)


class Given(NamedTuple):
    """What a user gave :func:`probe.session.starting.start` that isn't about this process alone."""

    project: str
    config: Any
    redact: Redact
    track: str | Sequence[str] | Tracking | None
    publish: bool | float | None
    every_s: float | None
    upload: str | None
    alarms: str | None  # "" where they are wanted and sent nowhere
    alarms_of_environment: bool = False


class Sending:
    """Backends, dashboards, copy and alarms of one process; all None where it sends nothing.

    Args:
        directory: The run directory.
        process: The row about this process, with what is known of it by now.
        tracking: Where the metrics go.

    Attributes:
        tracking: Where the metrics go.
        spans: Makes spans of steps for backends that show them.
        publisher: Keeps the dashboards there up to date.
        upload: Copies the run to a store.
        alarms: Watches the run for alarms.
        alarms_to: Where alarms go, while it isn't known whether this process has them looked for.
        closed: Whether the session has ended.
    """

    def __init__(self, directory: Path, process: Process, tracking: Tracking | None) -> None:
        self._directory = directory
        self._process = process
        self._given: Given | None = None  # while it isn't known whether this process tracks
        self._alarms_asked: str | None = None  # where they are to go
        self._began = time.monotonic()
        self.publisher: Publisher | None = None
        self.upload: Upload | None = None
        self.alarms: Alarms | None = None
        self.alarms_to: str | None = None
        self.closed = False
        self.track_to(tracking)

    def track_to(self, tracking: Tracking | None) -> None:
        """Send metrics there from now on.

        Args:
            tracking: None sends them nowhere.
        """
        self.tracking = tracking
        self.spans = None if tracking is None else StepSpans(tracking, self._process)

    # ---------------------------------------------------------------------------------------------- what was asked

    def begin(self, given: Given, place: Joined) -> None:
        """Send what was asked for.

        Args:
            given: By the user.
            place: Of this process in its attempt.
        """
        tracking = self.tracking
        if self._process.rank is None and tracking is not None and tracking is not given.track:
            self._given = given
        self._publish_figures(given)
        if given.upload is not None and (self.upload is None or self.upload.url != given.upload):
            if self.upload is not None:  # the environment's: what it has by now it sends, and ends
                self.upload.finish(0)
            self.upload = make_upload(self._directory, given.upload)
        if given.alarms != self._alarms_asked:
            self._have_watched(given, place)

    def _publish_figures(self, given: Given) -> None:
        tracking = self.tracking
        if tracking is None or given.every_s is None or (isinstance(tracking, HeldTracking) and tracking.waits):
            return
        if given.publish is not None or worthwhile(tracking):
            self.publisher = make_publisher(self._directory, tracking, given.every_s)

    def _have_watched(self, given: Given, place: Joined) -> None:
        """Have alarms looked for: at once by rank 0, and by who can't learn that it is another. Where all processes of
        a job are told to, by their environment, those that come later wait to know, too.
        """
        ended, self.alarms = self.alarms, None
        self._alarms_asked = self.alarms_to = given.alarms
        if ended is not None:  # the environment's
            ended.finish(0)
        rank = self._process.rank
        may_be_another = several() or is_child() or (given.alarms_of_environment and others(place))
        if given.alarms is not None and (rank == 0 or (rank is None and not may_be_another)):
            self.alarms_to = None
            self.alarms = make_alarms(self._directory, given.alarms, self.tracking)

    def on_alarm(self, callback: Callable[[Alarm], None]) -> None:
        """Have alarms looked for, and told to ``callback``; on rank 0, elsewhere nothing happens.

        Args:
            callback: Takes an alarm.
        """
        if self.closed or self._process.rank not in (None, 0):
            return
        if self.alarms is None:
            to, self.alarms_to = self.alarms_to, None
            self.alarms = make_alarms(self._directory, to or "", self.tracking)
        if self.alarms is not None:
            self.alarms.add(callback)

    def leave_to_parent(self) -> None:
        """In a forked child: all of it is the parent's."""
        self.tracking = self.publisher = self.upload = self.alarms = None

    # -------------------------------------------------------------------------------------- in the writer's thread

    def decide(self, recording: Recording) -> None:
        """Look whether it is known by now who tracks and who watches.

        Args:
            recording: Of the same process.
        """
        if self._given is not None and not self.closed:
            self._decide_who_tracks(self._given, recording)
        if self.alarms_to is not None and not self.closed:
            self._decide_who_watches(self.alarms_to, recording.writer.place)

    def _decide_who_watches(self, to: str, place: Joined) -> None:
        """Rank 0 has alarms looked for; where no process learns its rank, the first one has."""
        rank = self._process.rank
        if rank is None and not (self._has_waited() and is_first(place)):
            return  # it isn't known yet
        self.alarms_to = None
        if rank in (None, 0):
            _aside("probe-watches", partial(self._watch, to))

    def _watch(self, to: str) -> None:
        made = make_alarms(self._directory, to, self.tracking)
        with CURRENT.lock:
            if made is not None and not self.closed and self.alarms is None:
                self.alarms, made = made, None
        if made is not None:
            made.finish(0)

    def _decide_who_tracks(self, given: Given, recording: Recording) -> None:
        """Only rank 0 does; who doesn't know its rank and is alone does, too."""
        tracking, rank = self.tracking, self._process.rank
        if tracking is None or (rank == 0 and not (isinstance(tracking, HeldTracking) and tracking.waits)):
            self._given = None  # it is decided
        elif rank not in (None, 0):
            self._given, self.tracking, self.spans = None, None, None
            if isinstance(tracking, HeldTracking) and tracking.waits:
                tracking.drop()
            else:
                _aside("probe-tracks-no-more", partial(self._track_no_more, tracking, recording))
        elif isinstance(tracking, HeldTracking) and tracking.waits and (rank == 0 or self._is_alone(recording)):
            _aside("probe-tracks", partial(self._track, tracking, given, recording))
            self._given = given if rank is None else None

    def _is_alone(self, recording: Recording) -> bool:
        return self._has_waited() and not others(recording.writer.place)

    def _has_waited(self) -> bool:
        return time.monotonic() > self._began + (ALONE_S[0] if several() else ALONE_S[1])

    def _track(self, tracking: HeldTracking, given: Given, recording: Recording) -> None:
        # At the start it would have been raised: now the training is on its way. A session that closes at this moment
        # has told of it.
        failed = "the backends of track= can't be set up; the run goes on without them"
        guard = Guard("tracking", failed, kind="backend", tell=recording.incident, log=_log)
        try:
            with guard:
                tracking.begin()
        finally:
            if guard.failures:  # told by now: who sees that nothing is tracked may end the session
                self.tracking = self.spans = None
        if guard.failures:
            return
        with CURRENT.lock:
            if not self.closed:
                self._publish_figures(given)
        send_leftovers(self._directory, tracking.attempt)

    def _track_no_more(self, tracking: Tracking, recording: Recording) -> None:
        """It began before it knew that it is none of its business."""
        names = ", ".join(tracking.logger)
        message = (
            f"{tracking.calls} calls went to {names} before this process knew that it is rank {self._process.rank}"
        )
        recording.incident("tracking", "session.start", f"{message}; rank 0 alone sends", None)
        publisher, self.publisher = self.publisher, None
        if publisher is not None:
            recording.isolated("publisher", partial(publisher.finish, 0))
        recording.isolated("tracking", partial(tracking.finish, 0, patience.END_S))

    # ------------------------------------------------------------------------------------------------- at the end

    def finish(self, exit_code: int, until: float, recording: Recording) -> None:
        """Have the last alarms, figures and metrics sent; what isn't sent by ``until`` stays for ``probe doctor``.

        Args:
            exit_code: What the process ends with.
            until: A time of ``time.monotonic``.
            recording: Of the same process.
        """
        try:
            if self.alarms is not None:
                recording.writer.flush(patience.left(until))
                # What its last look finds goes to the backends, too.
                last_look = partial(self.alarms.finish, patience.left(until, patience.BACKENDS_S))
                recording.isolated("alarms", last_look)
        finally:  # also when somebody loses patience with it
            self._finish_tracking(exit_code, until, recording)

    def _finish_tracking(self, exit_code: int, until: float, recording: Recording) -> None:
        tracking = self.tracking
        if tracking is not None:
            recording.writer.flush(patience.left(until))  # the last step's metrics come from the writer's thread
            try:
                if self.publisher is not None:
                    begun, asked = time.monotonic(), has_to_be_there()
                    most = None if asked else patience.left(until, patience.BACKENDS_S)
                    recording.isolated("publisher", partial(self.publisher.finish, most))
                    until += time.monotonic() - begun if asked else 0.0
            finally:  # also when somebody loses patience with it
                tracking.finish(exit_code, patience.left(until))


def tracking_of(process: Process, given: Given, directory: Path, place: Joined) -> Tracking | None:
    """Where the metrics of a process go; None on a rank other than 0, and where nothing was asked for.

    Args:
        process: The row about it.
        given: By the user.
        directory: The run directory.
        place: Of the process in its attempt.

    Raises:
        UnknownNameError: There is no such backend.
        BackendError: One can't be set up.
    """
    if process.rank not in (None, 0):
        return None
    may_be_another = process.rank is None and (several() or is_child() or others(place))
    hold = partial(_tracks_at_the_end, process, place) if may_be_another else None
    return make_tracking(given.track, given.project, directory, given.config, place.attempt, given.redact, hold)


def _tracks_at_the_end(process: Process, place: Joined) -> bool:
    """Of processes that never knew their ranks the first tracks."""
    return process.rank == 0 or (process.rank is None and is_first(place))


def _aside(name: str, action: Callable[[], None]) -> None:
    """Do what takes seconds in a thread of its own."""
    with suppress(RuntimeError):  # the system gives no thread
        threading.Thread(target=action, name=name, daemon=True).start()
