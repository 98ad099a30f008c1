"""The wiring: recorders hear of events, one writer thread keeps their rows, and once per step they become metrics.

One session per process. It owns nothing that a view needs: whoever wants to see the run reads its directory.
"""

from __future__ import annotations

import functools
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from probe import devices, exits, own_cost, recorders
from probe._check import is_whole, missing_view, needs_views
from probe._io import expanded
from probe.core.metric import Metric, reduce_metrics
from probe.errors import InputError, InputTypeError, SessionError
from probe.failing import Failing
from probe.hooks import (
    SCOPE,
    Event,
    Listener,
    Scope,
    Subscription,
    begin_at_root,
    current_scope,
    emit,
    follow,
    is_off,
    point,
    scope,
    silenced,
    subscribe,
)
from probe.oom_snapshots import Entered, Left, Snapshots
from probe.own_cost import Budget, EndedStep, OwnCost
from probe.publishing.alarms import VARIABLE as ALARMS_VARIABLE
from probe.publishing.alarms import Alarm, Alarms, alarms_of_the_environment, alert, wanted_alarms
from probe.publishing.last import has_to_be_there
from probe.publishing.publisher import Publisher, interval, worthwhile
from probe.recorders.recorder import Recorder, Rows, StepRows
from probe.records import Incident, Memory, Process, Row, Scalar, who
from probe.redaction import Redact, redaction
from probe.runs.attempts import Joined, is_first, others
from probe.runs.ending import end, told_ns
from probe.runs.layout import complete_run, create_run
from probe.runs.processes import describe, is_child, local_rank, node, part_in_ray, rank_and_size, several
from probe.runs.row_types import bring, table_name
from probe.runs.upload import EVERY_S, UPLOAD_VARIABLE, Upload, checked, from_environment
from probe.runs.writer import RunWriter, take_place
from probe.sampled import what_is_kept
from probe.text import percent
from probe.torch_debug.waiting import begin as begin_debug_server
from probe.tracking.held import HeldTracking
from probe.tracking.recovery import is_behind
from probe.tracking.spans import StepSpans
from probe.tracking.tracking import Tracking

if TYPE_CHECKING:
    from probe.adapters.attachment import Attachment
    from probe.opened import Run

_log = logging.getLogger("probe.session")

#: Metrics of probe's own cost; the recorders declare theirs.
KEYS: Final = own_cost.KEYS

#: Rows of one step that are kept for its metrics; beyond it the step's metrics are left out and an incident says so.
ROWS_PER_STEP: Final = 200_000

#: Steps whose rows are kept for their metrics.
STEPS_KEPT: Final = 64

#: Between two times that a session tells what its budget left out, seconds.
TELL_S: Final = 10.0

_STR: Final = frozenset({str})
_METRIC: Final = frozenset({Metric})

#: How long the end of a session waits for all that others do with it, seconds: the metrics of its last step, a last
#: look for alarms, the last edition of the dashboards and the backends. The rest stays for ``probe doctor``.
END_S: Final = 10.0

#: A process that may be one of several, and doesn't know its rank, sends nothing to backends before it does, or has
#: been alone for so many seconds: where a launcher says that there are others, and for a child of multiprocessing.
ALONE_S: Final = (30.0, 5.0)

#: Of it, what is kept for the backends while the last edition is waited for, seconds.
BACKENDS_S: Final = 3.0

LOG: Final = point("session.log", "a trainer logs the metrics of a step; carries metrics and step")

_current: Session | None = None
_closing: Session | None = None  # its backends are being finished, and may still have something to tell
_lock = threading.Lock()


class _Recording(Listener):
    """Between the hooks and one recorder: hands its rows to the writer."""

    def __init__(self, session: Session, recorder: Recorder) -> None:
        self.recorder = recorder
        self.enter = recorder.enter  # type: ignore[method-assign]  # nothing is done to what it says
        self._leave, self._fire = recorder.leave, recorder.fire
        self._session = session
        self._add_rows = session._writer.add_rows

    def __repr__(self) -> str:
        return f"recorder {type(self.recorder).__name__}"

    def leave(self, event: Event, state: Any) -> None:
        rows = self._leave(event, state)
        if rows is not None:
            self._add_rows(rows, event.scope, event.end_ns)

    def fire(self, event: Event) -> None:
        rows = self._fire(event)
        if rows is not None:
            self._add_rows(rows, event.scope, event.end_ns)

    def failed(self, event: Event, error: BaseException, count: int, switched_off: bool) -> None:
        self._session._incident("listener", event.point.name, f"{self!r}: {error!r}", error, count, switched_off)


class _Budgeted(_Recording):
    """One whose rows may be thinned: at inner points its recorder hears nothing while the budget is exceeded.

    A scope that is left out is one with the scope around it: it gets that one's id, so that what lies inside it, scopes
    and batches, is found where it would be without it. Where calls alone tell of scopes, these are told by their paths,
    and none is left out.
    """

    def __init__(self, session: Session, recorder: Recorder, budget: Budget, *, scopes: bool) -> None:
        super().__init__(session, recorder)
        self.enter = self._enter  # type: ignore[method-assign]
        self._budget = budget
        self._scopes = scopes
        self._table = table_name(recorder.rows[0])

    def _enter(self, event: Event) -> Any:
        is_scope = event.point is SCOPE
        if (is_scope and not self._scopes) or not self._budget.leaves_out(event):
            return self.recorder.enter(event)
        where, around = event.point.name, event.scope.parent
        if is_scope and around is not None:
            where = f"{SCOPE.name}.{event.scope.kind}"
            event.scope.id = around.id
        self._budget.count(self._table, where, 2 if self._table == "memory" else 1)
        return _LEFT_OUT

    def leave(self, event: Event, state: Any) -> None:
        if state is not _LEFT_OUT:
            super().leave(event, state)


_LEFT_OUT: Final = object()


class _Step(scope):
    """One training step of a session."""

    __slots__ = ("_begun", "_number", "_session")

    def __init__(self, session: Session, step: int) -> None:
        super().__init__("step", "step", step=step)
        self._session = session
        self._number = step
        self._begun = (0, 0)

    def __enter__(self) -> scope:
        self._begun = self._session._cost.begin()
        self._session._step = self._number
        self._session._failing.step_begun()
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        session = self._session
        try:
            super().__exit__(kind, error, trace)
        finally:
            if session._step == self._number:  # else another step has begun since
                session._step = None
            ended = session._cost.end(self._number, self._begun)
            if session.budget is not None:
                session.budget.note(ended)
            session._writer.mark(partial(session._finish_step, ended))  # the step itself may go, interrupted or not


class Session:
    """An open recording. Made by :func:`start`; ends with :meth:`close` or as a context manager.

    Args:
        directory: The run directory.
        recorders: Instances that are told of what happens.
        process: The row about this process.
        tracking: Where the metrics go; None where nothing tracks.
        place: Of this process in its attempt; None takes one.
        late: Asks for rank and world size while no rank is known; None where nothing is to be asked.
        asked: The recorders as they were asked for, for forked children.
        parquet_at_close: As of :class:`~probe.runs.writer.RunWriter`.
        budget: What probe may cost; None for no limit.
        device: The device whose memory a failure tells.
        save_failed_batch: Whether the micro-batch of a failure is kept in a file.
        oom_snapshot: Whether the device's memory is kept in a file where it runs out.

    Attributes:
        directory: The run directory, absolute.
        process: The row about this process, with what is known of it by now.
        tracking: Where the metrics go, None on ranks other than 0 and when nothing was asked for.
        budget: Thins rows at inner points so that probe costs no more; None where nothing is thinned.
        publisher: Keeps the dashboards there up to date, None where nothing was asked for or could show them.
        upload: Copies the run to a store, None where nothing was asked for.
        alarms: Watches the run for alarms, None where nobody asked for them.
        closed: Whether it has ended.
        automatic: Whether it began because a framework was observed; a :func:`start` of the user's takes it over.
        counts_alone: Whether it began for calls that are counted, and records nothing else.
    """

    def __init__(
        self,
        directory: Path,
        recorders: Sequence[Recorder],
        process: Process,
        *,
        tracking: Tracking | None = None,
        place: Joined | None = None,
        late: Callable[[], tuple[int | None, int | None]] | None = None,
        asked: Sequence[str | Recorder] | None = None,
        parquet_at_close: bool = True,
        budget: Budget | None = None,
        device: devices.Device | None = None,
        save_failed_batch: bool = False,
        oom_snapshot: bool = False,
    ) -> None:
        self.directory = directory
        self.process = process
        self.budget = budget
        self._told_left_out: dict[tuple[str, str], int] = {}
        self._told_adapters: tuple[tuple[str, int], ...] = ()
        self._tell_at = time.monotonic() + TELL_S
        self._late = late
        self._asked = asked
        self._forked = not parquet_at_close
        self.tracking = tracking
        self.publisher: Publisher | None = None
        self.upload: Upload | None = None
        self.alarms: Alarms | None = None
        self._alarms_asked: str | None = None  # where they are to go
        self._alarms_to: str | None = None  # the same, while it isn't known whether this process has them looked for
        self._spans = None if tracking is None else StepSpans(tracking, process)
        self.closed = False
        self.automatic = self.counts_alone = False
        self._recorders = recorders
        self._rows: dict[int, list[Row]] = {}
        self._switched_off: set[tuple[int, str]] = set()  # what is asked of a recorder no more, as it failed
        self._heard_ns: int | None = None  # what the driver said up to then is known; None before the first look
        self._given: _Given | None = None  # while it isn't known whether this process tracks
        self._began = time.monotonic()
        self._step: int | None = None  # the one that the process is in
        self._begun: scope | None = None  # by begin_step, and not ended yet
        self._ended: Scope | None = None  # the last that end_step ended
        self._writer = RunWriter(
            directory,
            rank=process.rank,
            process=process,
            on_rows=self._see,
            tick=self._sample,
            tick_scope=self._sample_scope,
            place=place,
            parquet_at_close=parquet_at_close,
            before_round=self._learn_rank,
        )
        self._subscriptions: list[Subscription] = []
        snapshots = Snapshots(device, directory, lambda: process.process) if oom_snapshot and device else None
        self._failing = Failing(
            self._put_failure,
            directory,
            device,
            lambda: process.process,
            save_batch=save_failed_batch,
            snapshots=snapshots,
        )
        self._failing.install()
        self._follow()
        self._listen()
        self._cost = OwnCost(lambda: self._writer.cost_ns)
        self._forget_end = exits.at_end(self.close)
        _watch_forks()

    @property
    def rank(self) -> int | None:
        """The rank of this process, None while it isn't known."""
        return self.process.rank

    @property
    def world_size(self) -> int:
        """How many ranks the job has."""
        return self.process.world_size

    def record_all(self) -> None:
        """One that :attr:`counts_alone` records everything from now on: more than counts is observed in its process."""
        self._asked, self.counts_alone = None, False
        self._record_with(_recorders(None, devices.detect(), "nested"))

    # ------------------------------------------------------------------------------------------------ for the user

    def step(self, step: int) -> scope:
        """The block is one training step. When it ends its metrics are reduced and logged, off this thread.

        Args:
            step: The trainer's global step.

        Returns:
            A context manager.

        Raises:
            InputError: ``step`` isn't a non-negative whole number.
        """
        if not is_whole(step) or step < 0:
            raise InputError(f"step: got {step!r}, expected a whole number of at least 0")
        return _Step(self, int(step))  # numpy's become Python's

    def begin_step(self, step: int) -> None:
        """Begin a training step where no ``with`` block can stand, as in a trainer's callbacks; see :meth:`end_step`.

        A step that was begun so and never ended, because of an exception or a ``continue``, ends now, and an incident
        tells of it.

        Args:
            step: The trainer's global step.

        Raises:
            InputError: ``step`` isn't a non-negative whole number. Nothing has begun or ended then.
        """
        opened = self.step(step)
        self._end_abandoned(f"step {step} was begun")
        if current_scope() is self._ended:  # by another thread, which can't take this one out of it
            begin_at_root()
        opened.__enter__()
        self._begun = opened

    def end_step(self) -> None:
        """End the step that :meth:`begin_step` began, from any thread: its metrics are reduced and logged.

        Without one it does nothing, and an incident tells of it: a callback that was added in the middle of a step is
        no reason to stop a training.
        """
        opened, self._begun = self._begun, None
        if opened is None:
            message = "end_step was called without a begin_step before it: no step has ended"
            self._incident("step", "session.end_step", message, None)
            return
        self._ended = opened.scope
        opened.__exit__(None, None, None)

    def _end_abandoned(self, when: str) -> None:
        """End the step that begin_step began and nobody ended."""
        opened, self._begun = self._begun, None
        if opened is not None and opened.scope is not None:
            message = f"step {opened.scope.step} was begun and not ended: it ends as {when}, and its time is too long"
            self._incident("step", "session.begin_step", message, None)
            opened.__exit__(None, None, None)

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Log the trainer's own metrics: to the tracking backends (rank 0) and as rows of this run.

        Args:
            metrics: Names to numbers (python, numpy or 0-d tensors).
            step: The global step.
        """
        tracking = self.tracking  # the writer's thread may find out meanwhile that it is none of its business
        if tracking is not None:
            tracking.log(metrics, step)
        else:
            emit(LOG, metrics=metrics, step=step)

    @property
    def run(self) -> Run:
        """A reader of this run, as any other process would open it."""
        from probe.opened import Run  # brings pandas, which a training worker does without

        self.flush()
        return Run(self.directory)

    @property
    def attached(self) -> list[Attachment]:
        """The frameworks that are observed in this process, with what was found and what is missing in each."""
        from probe.adapters.attachment import attached

        return attached()

    def learn(self, *, project: str | None = None, config: Any = None, **facts: Any) -> None:
        """What a framework says of a run that began because it was observed; what a user's :func:`start` said stays.

        Args:
            project: The project's name, for run.json.
            config: The trainer's configuration, for run.json; secrets in it are left out.
            **facts: Of this process, such as ``role="driver"``.
        """
        if not self.automatic:
            return
        if facts:
            self._writer.mark(partial(self._writer.tell, **facts))
        if config is not None:
            complete_run(self.directory, project or self.directory.parent.name, config)

    def panel(self, **options: Any) -> Any:
        """The live panel of this run, for a notebook: a :class:`probe.views.panel.panel.Panel`, which has the options.
        ``where="tab"`` asks JupyterLab for it beside the notebook, see :class:`probe.views.panel.tab.Tab`.
        """
        needs_views("session.panel")
        from probe.views.panel.panel import panel  # a view: a worker that shows none never loads it

        return panel(self, **options)

    def _ipython_display_(self) -> None:
        self.panel()._ipython_display_()

    def on_alarm(self, callback: Callable[[Alarm], None]) -> None:
        """Call ``callback`` with each alarm that is found in the run from now on; on rank 0, elsewhere nothing happens.

        A process beside the training reads the run, within a hundredth of a core, and says what is wrong within ten
        seconds; it doesn't wait for a step to end. The callback is called from the thread that writes rows, and for
        what the last look finds from the one that closes the session; what it raises is logged, and it isn't called
        again.

        Args:
            callback: Takes the alarm as a dict: what :meth:`probe.analysis.verdict.finding.Finding.to_dict` gives.

        Raises:
            InputTypeError: It can't be called.
        """
        if not callable(callback):
            raise InputTypeError(f"callback: got {type(callback).__name__}, expected something that can be called")
        if self.closed or self.process.rank not in (None, 0):
            return
        if self.alarms is None:
            to, self._alarms_to = self._alarms_to, None
            self.alarms = _alarms(self.directory, to or "", self.tracking)
        if self.alarms is not None:
            self.alarms.add(callback)

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until what was recorded so far can be read. Returns False when the time ran out."""
        return self._writer.flush(timeout_s)

    def close(self, exit_code: int | None = None) -> None:
        """End the recording: hooks come off, rows are rolled over, backends are finished. Safe to call twice.

        It waits for all backends and the last edition of the dashboards together :data:`END_S` at most, and says so
        where that takes a moment; what isn't sent then is in the run directory, for ``probe doctor RUN --recover``.

        Args:
            exit_code: 0 for success; it gives a tracked run its status. None is what the process ends with as far as
                that is known: see :func:`probe.exits.code`. In an ``except`` after which all is well give 0.
        """
        global _current, _closing
        if exit_code is None:
            exit_code, error = exits.code(), exits.on_its_way()
            if error is not None and not self.closed:
                self._failing.ended(error)
        until = time.monotonic() + END_S
        with _lock:
            if self.closed:
                return
            self.closed = True
            if _current is self:
                _current, _closing = None, self
        self._end_abandoned("the session was closed")
        self._forget_end()
        follow()
        self._failing.close()
        exit_code = exit_code or self._failing.exit_code()
        for subscription in self._subscriptions:
            subscription.close()
        for recorder in self._recorders:
            self._isolated("close", recorder.close)
        if self.budget is not None:
            self._tell_left_out(self.budget)
        try:
            if self.alarms is not None:
                self._writer.flush(_left(until))
                # What its last look finds goes to the backends, too.
                self._isolated("alarms", partial(self.alarms.finish, _left(until, BACKENDS_S)))
        finally:  # also when somebody loses patience with it
            self._finish_tracking(exit_code, until)
        _closing = None
        self._writer.close(failed=self._failing.fatal, exit_code=exit_code)
        if part_in_ray() == "driver" and not self._forked:
            self._isolated("end", partial(end, self.directory, self.process.attempt))
        if self.upload is not None:  # what is left: all of it is in files now
            self._isolated("upload", self.upload.finish)

    def _finish_tracking(self, exit_code: int, until: float) -> None:
        tracking = self.tracking
        if tracking is not None:
            self._writer.flush(_left(until))  # the last step's metrics are logged from the writer's thread
            try:
                if self.publisher is not None:
                    begun, asked = time.monotonic(), has_to_be_there()
                    patience = None if asked else _left(until, BACKENDS_S)
                    self._isolated("publisher", partial(self.publisher.finish, patience))
                    until += time.monotonic() - begun if asked else 0.0
            finally:  # also when somebody loses patience with it
                tracking.finish(exit_code, _left(until))

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._failing.ended(error)
        self.close(exits.code_of(error))

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"Session({str(self.directory)!r}, {who(self.rank, self.process.process)}, {state})"

    # -------------------------------------------------------------------------------------- on the training thread

    def _listen(self) -> None:
        self._recordings = [self._recording(recorder) for recorder in self._recorders]
        self._subscriptions = [subscribe(one, *one.recorder.points) for one in self._recordings]

    def _follow(self) -> None:
        """Each change of scope is written through, so that a process that is killed was seen where it was."""
        now, where = self._writer.now, current_scope()
        entered: Entered | None = None if now is None else now.entered
        left: Left | None = None if now is None else now.left
        if self._failing.snapshots is not None:
            entered, left = self._failing.snapshots.following(entered, left)
        follow(
            entered=entered,
            left=left,
            raised=self._failing.raised,
            abandoned=self._failing.abandoned,
        )
        if now is not None and where.parent is not None:  # a forked child begins to record inside its first scope
            now.entered(where, threading.get_ident(), time.monotonic_ns())

    def _keep_of_failures(self, device: devices.Device, *, batch: bool, snapshot: bool) -> None:
        """What is kept from now on: the micro-batch, and a snapshot of the device's memory where that runs out."""
        self._failing.save_batch = batch
        if snapshot:
            self._failing.snapshots = Snapshots(device, self.directory, lambda: self.process.process)
            self._follow()

    def _put_failure(self, rows: Rows, where: Scope, time_ns: int, wait: bool) -> None:
        put = self._writer.put_through if wait else self._writer.add_rows
        put(rows, where, time_ns)

    def _record_with(self, recorders: Sequence[Recorder]) -> None:
        """These recorders hear from now on, in the place of those before."""
        for subscription in self._subscriptions:
            subscription.close()
        for recorder in self._recorders:
            if recorder not in recorders:
                self._isolated("close", recorder.close)
        self._recorders = recorders
        tables = bring(kind for recorder in recorders for kind in recorder.rows)
        self._writer.mark(partial(self._writer.tell, tables=tables))
        self._listen()

    def _recording(self, recorder: Recorder) -> _Recording:
        thinnable = recorder.rows and all(kind.sampled for kind in recorder.rows)
        if self.budget is None or not thinnable:
            return _Recording(self, recorder)
        measured = any(Memory in one.rows for one in self._recorders)
        return _Budgeted(self, recorder, self.budget, scopes=measured)

    def _write_rows(self, rows: Rows, scope: Scope, time_ns: int) -> None:
        if rows is not None:
            self._writer.add_rows(rows, scope, time_ns)

    def _incident(
        self,
        kind: str,
        where: str,
        message: str,
        error: BaseException | None,
        count: int = 1,
        off: bool = False,
    ) -> None:
        row = Incident(
            kind=kind,
            where=where,
            message=message,
            traceback=_traceback(error),
            count=count,
            switched_off=off,
        )
        self._write_rows(row, current_scope(), time.monotonic_ns())

    # -------------------------------------------------------------------------------------- in the writer's thread

    def _see(self, rows: list[Row]) -> None:
        failing = getattr(self, "_failing", None)  # the writer's first round may come before we have it
        if failing is not None:
            failing.see(rows)
        last, kept = None, []
        for row in rows:
            step = row.step
            if step is None:
                continue
            if step != last:
                last, kept = step, self._rows.setdefault(step, [])
                while len(self._rows) > STEPS_KEPT:  # of a process that never ends one
                    del self._rows[min(self._rows)]
            if len(kept) <= ROWS_PER_STEP:
                kept.append(row)

    def _sample(self) -> list[Any]:
        with silenced():
            samples = [self._of_recorder(one, "sample", one.sample) for one in self._recorders]
        return [rows for rows in samples if rows is not None]

    def _learn_rank(self) -> None:
        """A process group is made, or ``RANK`` set, after many a process has begun to record."""
        self._tell_adapters()
        self._hear_of_the_end()
        if self.alarms is not None:
            self.alarms.hand_on()
        if self._late is None or not hasattr(self, "_writer"):
            return  # the writer's first round may come before we have it
        if self.process.rank is None:
            rank, world_size = self._late()
            if rank is not None:
                known = {} if world_size is None else {"world_size": world_size}
                self._writer.tell(rank=rank, local_rank=local_rank(), node=node(), **known)
        if self._given is not None and not self.closed:
            self._decide_who_tracks(self._given)
        if self._alarms_to is not None and not self.closed:
            self._decide_who_watches(self._alarms_to)

    def _decide_who_watches(self, to: str) -> None:
        """Rank 0 has alarms looked for; where no process learns its rank, the first one has."""
        rank = self.process.rank
        if rank is None and not (self._has_waited() and is_first(self._writer.place)):
            return  # it isn't known yet
        self._alarms_to = None
        if rank in (None, 0):
            self._aside("probe-watches", partial(self._watch, to))

    def _watch(self, to: str) -> None:
        made = _alarms(self.directory, to, self.tracking)
        with _lock:
            if made is not None and not self.closed and self.alarms is None:
                self.alarms, made = made, None
        if made is not None:
            made.finish(0)

    def _decide_who_tracks(self, given: _Given) -> None:
        """Only rank 0 does; who doesn't know its rank and is alone does, too."""
        tracking, rank = self.tracking, self.process.rank
        if tracking is None or (rank == 0 and not (isinstance(tracking, HeldTracking) and tracking.waits)):
            self._given = None  # it is decided
        elif rank not in (None, 0):
            self._given, self.tracking, self._spans = None, None, None
            if isinstance(tracking, HeldTracking) and tracking.waits:
                tracking.drop()
            else:
                self._aside("probe-tracks-no-more", partial(self._track_no_more, tracking))
        elif isinstance(tracking, HeldTracking) and tracking.waits and (rank == 0 or self._is_alone()):
            self._aside("probe-tracks", partial(self._track, tracking, given))
            self._given = given if rank is None else None

    def _is_alone(self) -> bool:
        return self._has_waited() and not others(self._writer.place)

    def _has_waited(self) -> bool:
        return time.monotonic() > self._began + (ALONE_S[0] if several() else ALONE_S[1])

    def _track(self, tracking: HeldTracking, given: _Given) -> None:
        try:
            tracking.begin()
        except Exception as error:  # at the start it would have been raised: now the training is on its way
            # A session that closes at this moment has told of it.
            self._incident("backend", "tracking", f"it can't be set up: {error!r}", error)
            self.tracking = self._spans = None
            _log.exception("what was asked for by track can't be had; the run goes on without")
            return
        with _lock:
            if not self.closed:
                _publish_figures(self, given)
        _send_leftovers_aside(self.directory, tracking.attempt)

    def _track_no_more(self, tracking: Tracking) -> None:
        """It began before it knew that it is none of its business."""
        names = ", ".join(tracking.logger)
        message = f"{tracking.calls} calls went to {names} before this process knew that it is rank {self.process.rank}"
        self._incident("tracking", "session.start", f"{message}; rank 0 alone sends", None)
        publisher, self.publisher = self.publisher, None
        if publisher is not None:
            self._isolated("publisher", partial(publisher.finish, 0))
        self._isolated("tracking", partial(tracking.finish, 0, END_S))

    def _aside(self, name: str, action: Callable[[], None]) -> None:
        """Do what takes seconds in a thread of its own."""
        with suppress(RuntimeError):  # the system gives no thread
            threading.Thread(target=action, name=name, daemon=True).start()

    def _tell_adapters(self) -> None:
        """Which frameworks are observed in this process stands in its row, for `probe doctor` and whoever reads it."""
        module: Any = sys.modules.get("probe.adapters.attachment")
        if module is None or not hasattr(self, "_writer"):
            return
        there = [one for one in module.attached() if one.imported]
        revisions = tuple((one.framework, one.revision) for one in there)
        if revisions == self._told_adapters:
            return
        self._told_adapters = revisions
        said = "; ".join(one.summary() for one in there)
        if said != self.process.adapters:
            self._writer.tell(adapters=said)

    def _hear_of_the_end(self) -> None:
        """Ray ends its workers without asking: they make Parquet of their rows when the driver says that it ends."""
        if not hasattr(self, "_writer") or part_in_ray() != "worker":
            return
        if self._heard_ns is None:  # an end before this process began isn't for it; one before its first look is
            self._heard_ns = self._writer.place.taken_ns()
        told = told_ns(self.directory, self.process.attempt)
        if told > self._heard_ns:
            self._heard_ns = told
            self._writer.seal()

    def _sample_scope(self) -> Scope:
        """A sample is of the process, in whatever step it is."""
        where = Scope("process", "process", step=self._step)
        where.id = 0
        return where

    def _finish_step(self, ended: EndedStep) -> None:
        step, cost = ended.step, self._cost.bill(ended)
        if self.budget is not None:
            self.budget.note_bill(cost)
            if time.monotonic() > self._tell_at:
                self._tell_left_out(self.budget)
        if self.publisher is not None:
            self.publisher.at(step)
        rows = StepRows(self._rows.pop(step, ()))
        for stale in [other for other in self._rows if other < step]:
            del self._rows[stale]
        if len(rows) > ROWS_PER_STEP:
            message = f"step {step} has more than {ROWS_PER_STEP} rows on this rank: its metrics are left out"
            self._incident("limits", "session.step", message, None)
            return
        with silenced():
            spans, tracking = self._spans, self.tracking
            if spans is not None:
                self._isolated("spans", partial(spans.log, rows, step))
            values = dict(cost)
            for recorder in self._recorders:
                values.update(self._of_recorder(recorder, "metrics", partial(_reduced, recorder, rows)) or {})
            if tracking is not None and values:
                tracking.log(values, step)
        scalars: list[Row] = [Scalar(key=key, value=value, source="probe", step=step) for key, value in values.items()]
        self._writer.add_late(scalars, current_scope(), time.monotonic_ns())

    def _tell_left_out(self, budget: Budget) -> None:
        """What was left out since the last time, by table and point, and what probe costs without it."""
        self._tell_at = time.monotonic() + TELL_S
        for (table, where), count in budget.left_out.copy().items():
            new = count - self._told_left_out.get((table, where), 0)
            if not new:
                continue
            self._told_left_out[table, where] = count
            message = f"rows of {table} left out to keep what probe costs under {percent(budget.ratio)} of the steps"
            if budget.thins:
                message += f"; without them it still is {percent(budget.spent_ratio)}"
            self._incident("budget", f"{table}: {where}", message, None, count=new)

    def _of_recorder(self, recorder: Recorder, what: str, action: Callable[[], Any]) -> Any:
        """What one recorder gives; one that fails isn't asked for that again, which is told once. The others go on."""
        if (id(recorder), what) in self._switched_off:
            return None
        try:
            return action()
        except Exception as error:  # a user's code: it harms neither the writer's thread nor the other recorders
            if not hasattr(self, "_writer"):  # its first round may come before we have it: the next one tells
                return None
            self._switched_off.add((id(recorder), what))
            name = f"{type(recorder).__name__}.{what}"
            _log.exception("recorder %s failed and is switched off; the run goes on", name)
            self._incident("listener", name, f"recorder {name}: {error!r}", error, off=True)
            return None

    def _isolated(self, what: str, action: Any) -> Any:
        try:
            return action()
        except Exception as error:  # a recorder never reaches training, nor the writer thread
            _log.exception("probe failed in %s; the run goes on", what)
            self._incident("listener", what, repr(error), error)
            return None


def _left(until: float, kept_s: float = 0.0) -> float:
    """Seconds until then, without those that are kept for what comes later."""
    return max(0.0, until - kept_s - time.monotonic())


def start(
    project: str,
    experiment: str | None = None,
    *,
    run_dir: str | os.PathLike[str] | None = None,
    root: str | os.PathLike[str] = "runs",
    track: str | Sequence[str] | Tracking | None = None,
    config: Any = None,
    recorders: Sequence[str | Recorder] | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    name: str | None = None,
    role: str | None = None,
    device: Any = None,
    peaks: Literal["nested", "observe"] = "nested",
    publish: bool | float | None = None,
    budget: float | None = None,
    redact: Redact = True,
    upload: str | os.PathLike[str] | None = None,
    alarms: bool | str | None = None,
    save_failed_batch: bool = False,
    oom_snapshot: bool = False,
    samples: Literal["text"] | None = None,
) -> Session:
    """Begin to record this process. Every process of a job calls it with the same project and experiment.

    A process that isn't a rank of the job, such as a driver or a rollout worker, is shown by its name. A rank that
    becomes known later, when a process group is initialised, is the rank of all that the process has recorded. A forked
    child has a session of its own as soon as it has something to record.

    Args:
        project: The first part of the run directory ``root/project/experiment``.
        experiment: The second part. Without it the directory is named by the time; then give ``run_dir`` or set
            ``PROBE_RUN_DIR`` so that all ranks agree.
        run_dir: The directory itself, used as it is.
        root: The directory that holds all runs.
        track: Backends for the metrics of each step, such as ``"console,tensorboard"`` or a :class:`Tracking`. Of the
            ranks only rank 0 tracks, so that all of them may ask for it. None means the run directory alone.
        config: The trainer's configuration, any shape; kept with the run and sent to the backends as parameters.
        recorders: Names out of ``recorders.RECORDERS`` or instances; None takes all.
        rank: The process's number in the job; None asks torch.distributed, then the environment (``RANK``), now and
            as long as neither knows.
        world_size: How many ranks the job has; None asks torch.distributed, then the environment (``WORLD_SIZE``).
        name: What the process is shown as while it has no rank, such as "driver"; None is the Ray actor's, the child
            process's or the script's name, or "notebook".
        role: What it does in the job, such as "trainer", "driver", "rollout" or "reward".
        device: The device whose memory is watched; None detects one.
        peaks: ``"nested"`` gives every scope its exact peak (device counters are reset at scope ends, and what others
            read of them is folded back); ``"observe"`` never touches the counters.
        publish: Whether the dashboards are kept up to date in the backends, by a process beside rank 0 that reads the
            run directory: figures, tables, numbers over all ranks, what was found. None means where a backend can show
            pictures. A number says how old figures may get, in seconds (30).
        budget: The share of the steps' time that probe may cost, such as 0.01. Where it costs more, rows of sampled
            tables are left out at inner points (observed calls, and watched functions inside a phase), which is told;
            steps, phases, micro-batches, padding, reductions and metrics never are. None leaves nothing out.
        redact: Whether secrets of ``config`` (keys, tokens, passwords, URLs that carry one) are left out of run.json
            and of what backends get; see :mod:`probe.redaction`. A list of names adds these. False keeps all, in a
            run.json that its owner alone can read. A :class:`Tracking` of one's own has its own ``redact``.
        upload: Where a process beside the training copies the run to while it is written, such as
            ``"s3://bucket/runs/project/experiment"``, so that others open it there; see :mod:`probe.runs.sync`. All
            processes of a job may give the same. A store that fails is tried again, and is an incident. None asks the
            environment (``PROBE_UPLOAD``), where a URL that can't be opened is an incident, too.
        alarms: Whether a process beside rank 0 looks for alarms, and outlives it. Each is logged once, and told by the
            alert calls of W&B and Trackio where ``track`` has them. A URL, such as ``"https://example.org/hook"``, gets
            each as JSON by POST, too: its name, sentence, place and cost; nothing of the configuration, no text of the
            run and no tokens. A command, such as ``"cmd:mail -s alarm me@example.org"``, is run for each, without a
            shell, with the same JSON on its standard input; it is killed after ten seconds. None asks the environment
            (``PROBE_ALARMS``: ``on``, ``off``, a URL or a command), where what can't be used is an incident. See also
            :meth:`Session.on_alarm`.
        save_failed_batch: Whether the micro-batch in which an exception came is kept in a file of the run, without
            pickle, for :func:`probe.replay`.
        oom_snapshot: Whether torch's memory snapshot is kept in a file of the run where CUDA runs out of memory, with
            the step, phase and micro-batch of each allocation; see :mod:`probe.oom_snapshots`. Torch then records the
            stacks of allocations, about 2 µs each.
        samples: ``"text"`` keeps prompts and answers, as text and token ids, of the samples that get a row, where
            :func:`probe.samples` or an adapter is told them. None keeps numbers alone.

    Returns:
        The open session. Where the environment says ``PROBE=off`` it is one that does nothing: no directory, no file,
        no thread, and no argument is looked at.

    Raises:
        InputError: ``peaks``, ``publish`` or ``budget`` is none of the above, ``run_dir`` or ``root`` is a URL,
            ``upload`` is one that can't be opened, ``alarms`` is none, or the environment's ``PROBE`` is neither on nor
            off.
        SessionError: This process has an open session already.
        UnknownNameError: There is no such recorder or backend, or ``samples`` is another word.
        BackendError: A backend can't be set up.
        MissingDependencyError: ``publish`` asks for figures, and a package that draws them isn't installed.
    """
    global _current
    if is_off():
        from probe.inert import InertSession

        _current = InertSession(project, experiment, root=root, run_dir=run_dir)
        return _current
    if peaks not in ("nested", "observe"):
        raise InputError(f"peaks: got {peaks!r}, expected 'nested' or 'observe'")
    rule = redaction(redact)
    redact = False if rule is None else rule
    every_s = interval(publish)
    limit = _budget(budget)
    copy_to, refused = from_environment() if upload is None else (checked(upload), "")
    alarms_to, not_looked_for = alarms_of_the_environment() if alarms is None else (wanted_alarms(alarms), "")
    if publish not in (None, False) and not track:
        raise InputError(f"publish: got {publish!r} without track: name the backends that it is for")
    if publish not in (None, False):
        needs_views(f"publish={publish!r}")
    given = _Given(project, config, redact, track, publish, every_s, copy_to, alarms_to, alarms is None)
    automatic = _current if _current is not None and _current.automatic else None
    if automatic is not None and run_dir is not None and expanded("run_dir", run_dir).absolute() != automatic.directory:
        _log.warning("recorded to %s so far, because of PROBE_RUN_DIR; from now on to %s", automatic.directory, run_dir)
        automatic.close()
    with _lock:
        if _current is not None and _current.automatic:
            who_it_is = {"rank": rank, "world_size": world_size, "name": name, "role": role}
            changed = (recorders, device, samples, peaks, _current.counts_alone) != (None, None, None, "nested", False)
            chosen = _recorders(recorders, devices.detect(device), peaks, samples) if changed else None
            _current._keep_of_failures(devices.detect(device), batch=save_failed_batch, snapshot=oom_snapshot)
            return _take_over(_current, given, chosen, limit, who_it_is, recorders)
        if _current is not None:
            raise SessionError(f"this process already records to {_current.directory}; close that session first")
        begin_at_root()
        _watch_cells()
        found = devices.detect(device)
        chosen = _recorders(recorders, found, peaks, samples)
        tables = bring(kind for recorder in chosen for kind in recorder.rows)
        directory = create_run(project, experiment, root=root, run_dir=run_dir, config=config, redact=redact)
        who_we_are: dict[str, Any] = {"rank": rank, "world_size": world_size, "name": name, "role": role}
        process = describe(**who_we_are, device=found.name, device_name=found.description, tables=tables)
        place = take_place(directory, process)
        try:
            tracking = _tracking_of(process, given, directory, place)
            ours: dict[str, Any] = {"late": rank_and_size if rank is None else None, "asked": recorders}
            ours |= {"device": found, "save_failed_batch": save_failed_batch, "oom_snapshot": oom_snapshot}
            _current = Session(directory, chosen, process, tracking=tracking, place=place, budget=limit, **ours)
        except BaseException:
            place.leave()
            raise
        _publish(_current, given)
        begin_debug_server(directory)
        _tell_refused(_current, {UPLOAD_VARIABLE: refused, ALARMS_VARIABLE: not_looked_for})
        return _current


def _tell_refused(session: Session, refused: Mapping[str, str]) -> None:
    """Variables of the environment that can't be used, and why, are incidents."""
    for variable, why in refused.items():
        if why:
            session._incident("upload" if variable == UPLOAD_VARIABLE else "alarms", variable, why, None)


def start_automatically(
    directory: str | os.PathLike[str] | None,
    project: str | None = None,
    experiment: str | None = None,
    *,
    counts_alone: bool = False,
) -> Session:
    """Begin to record this process because of something that was observed in it, and not because its code says so.

    A :func:`start` of the user's takes the session over instead of raising.

    Args:
        directory: The run directory; None is ``runs/<project>/<experiment>``.
        project: The project's name; None takes it from ``directory``, as does ``experiment``.
        experiment: The experiment's name.
        counts_alone: Whether only calls that are counted are recorded, until more is observed.

    Raises:
        SessionError: This process has an open session already.
        RunError: The directory can't be made.
    """
    where = None if directory is None else expanded("run_dir", directory).absolute()
    if where is not None:
        project, experiment = project or where.parent.name or where.name, experiment or where.name
    opened = start(
        project or "run",
        experiment,
        run_dir=where,
        recorders=["counted_calls", "timed_samples"] if counts_alone else None,
    )
    opened.automatic, opened.counts_alone = True, counts_alone
    return opened


class _Given(NamedTuple):
    """What a user gave :func:`start` that isn't about this process alone."""

    project: str
    config: Any
    redact: Redact
    track: str | Sequence[str] | Tracking | None
    publish: bool | float | None
    every_s: float | None
    upload: str | None
    alarms: str | None  # "" where they are wanted and sent nowhere
    alarms_of_environment: bool = False


def _take_over(
    session: Session,
    given: _Given,
    chosen: Sequence[Recorder] | None,
    limit: Budget | None,
    who_it_is: dict[str, Any],
    asked: Sequence[str | Recorder] | None,
) -> Session:
    """A session that began automatically becomes the user's: with their recorders, names, backends and limits. What
    can't be had raises before anything has changed.
    """
    if given.config is not None:
        complete_run(session.directory, given.project, given.config, redact=given.redact)
    session.tracking = _tracking_of(session.process, given, session.directory, session._writer.place)
    session.automatic = session.counts_alone = False
    if limit is not None:
        session.budget = limit
    if chosen is not None:
        session._asked = asked
    if chosen is not None or limit is not None:
        session._record_with(session._recorders if chosen is None else chosen)
    facts = {fact: value for fact, value in who_it_is.items() if value is not None}
    if facts:
        session._writer.mark(partial(session._writer.tell, **facts))
    session._spans = None if session.tracking is None else StepSpans(session.tracking, session.process)
    _publish(session, given)
    return session


def _tracking_of(process: Process, given: _Given, directory: Path, place: Joined) -> Tracking | None:
    if process.rank not in (None, 0):
        return None
    may_be_another = process.rank is None and (several() or is_child() or others(place))
    hold = partial(_tracks_at_the_end, process, place) if may_be_another else None
    return _tracking(given.track, given.project, directory, given.config, place.attempt, given.redact, hold)


def _tracks_at_the_end(process: Process, place: Joined) -> bool:
    """Of processes that never knew their ranks the first tracks."""
    return process.rank == 0 or (process.rank is None and is_first(place))


def _publish(session: Session, given: _Given) -> None:
    tracking = session.tracking
    if session.process.rank is None and tracking is not None and tracking is not given.track:
        session._given = given
    _publish_figures(session, given)
    if given.upload is not None and (session.upload is None or session.upload.url != given.upload):
        if session.upload is not None:  # the environment's: what it has by now it sends, and ends
            session.upload.finish(0)
        session.upload = _upload(session.directory, given.upload)
    if given.alarms != session._alarms_asked:
        _have_watched(session, given)


def _have_watched(session: Session, given: _Given) -> None:
    """Have alarms looked for: at once by rank 0, and by who can't learn that it is another. Where all processes of a
    job are told to, by their environment, those that come later wait to know, too.
    """
    ended, session.alarms = session.alarms, None
    session._alarms_asked = session._alarms_to = given.alarms
    if ended is not None:  # the environment's
        ended.finish(0)
    rank = session.process.rank
    may_be_another = several() or is_child() or (given.alarms_of_environment and others(session._writer.place))
    if given.alarms is not None and (rank == 0 or (rank is None and not may_be_another)):
        session._alarms_to = None
        session.alarms = _alarms(session.directory, given.alarms, session.tracking)


def _publish_figures(session: Session, given: _Given) -> None:
    tracking = session.tracking
    if tracking is None or given.every_s is None or (isinstance(tracking, HeldTracking) and tracking.waits):
        return
    if given.publish is not None or worthwhile(tracking):
        session.publisher = _publisher(session.directory, tracking, given.every_s)


def _budget(ratio: float | None) -> Budget | None:
    if ratio is None:
        return None
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio <= 1:
        raise InputError(
            f"budget: got {ratio!r}, expected a share of the steps' time above 0 and up to 1, such as 0.01"
        )
    return Budget(float(ratio))


def _watch_cells() -> None:
    """In IPython each cell begins at the root, whatever the one before it was interrupted in."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is not None:
        shell.events.register("pre_run_cell", _begin_cell)


def _begin_cell(*_: Any) -> None:
    begin_at_root()


def current_session() -> Session | None:
    """The session that this process has open, or None."""
    return _current


def _recorders(
    asked: Sequence[str | Recorder] | None, device: Any, peaks: str, samples: str | None = None
) -> list[Recorder]:
    options: dict[str, dict[str, Any]] = {"memory": {"device": device, "peaks": peaks}}
    options["samples"] = {"text": what_is_kept(samples)}
    names = list(recorders.RECORDERS) if asked is None else asked
    return [recorders.load(one)(**options.get(one, {})) if isinstance(one, str) else one for one in names]


def _tracking(
    track: str | Sequence[str] | Tracking | None,
    project: str,
    directory: Path,
    config: Any,
    attempt: int,
    redact: Redact,
    hold: Callable[[], bool] | None,
) -> Tracking | None:
    if track is None or isinstance(track, Tracking):
        return track
    names = [name.strip() for name in track.split(",")] if isinstance(track, str) else list(track)
    if not names:
        return None
    more: dict[str, Any] = {"directory": directory, "on_incident": _record_incident, "attempt": attempt}
    if hold is not None:
        return HeldTracking(project, directory.name, names, config, redact=redact, at_the_end=hold, **more)
    tracking = Tracking(project, directory.name, names, config, redact=redact, **more)
    _send_leftovers_aside(directory, attempt)
    return tracking


def _send_leftovers_aside(directory: Path, attempt: int) -> None:
    if attempt > 1:
        sender = threading.Thread(
            target=_send_leftovers, args=(directory, attempt), name="probe-leftovers", daemon=True
        )
        with suppress(RuntimeError):  # the system gives no thread: it is sent another time
            sender.start()


def _send_leftovers(directory: Path, attempt: int) -> None:
    """What backends lack of the attempts before, whose processes are gone. From a process of its own: some backends
    have one run in a process, and would end the one of this training.
    """
    code = "import sys; from probe.tracking.recovery import recover; recover(sys.argv[1], before=int(sys.argv[2]))"
    quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    try:
        if is_behind(directory, before=attempt):
            command = [sys.executable, "-c", code, str(directory), str(attempt)]
            subprocess.run(command, check=True, **quiet)  # noqa: S603  (our own command)
    except Exception:  # what is missing stays where it is, and `probe doctor` tells of it
        _log.warning("what backends lack of earlier attempts couldn't be sent", exc_info=True)


def _publisher(directory: Path, tracking: Tracking, every_s: float) -> Publisher | None:
    missing = missing_view()
    if missing is not None:  # numbers go to the backends all the same
        _log.warning("figures aren't published: %s isn't installed: pip install 'probe-rl[views]'", missing)
        return None
    try:
        return Publisher(directory, tracking, _record_incident, every_s=every_s)
    except OSError as error:  # no memory for one more process, say: the run does without
        _log.warning("no publisher: %s", error)
        _record_incident(Incident(kind="publisher", where="publishing", message=f"it can't be started: {error}"))
        return None


def _upload(directory: Path, url: str) -> Upload | None:
    try:
        return Upload(directory, url, _record_incident, every_s=EVERY_S)
    except OSError as error:  # no memory for one more process, say: `probe sync` copies the run later
        _log.warning("no upload: %s", error)
        _record_incident(Incident(kind="upload", where="upload", message=f"it can't be started: {error}"))
        return None


def _alarms(directory: Path, to: str, tracking: Tracking | None) -> Alarms | None:
    missing = missing_view()
    if missing is not None:
        _log.warning("alarms aren't looked for: %s isn't installed: pip install 'probe-rl[views]'", missing)
        return None
    try:
        made = Alarms(directory, to)
    except OSError as error:  # no memory for one more process, say
        _log.warning("no alarms: %s", error)
        _record_incident(Incident(kind="alarms", where="alarms", message=f"what looks for them can't start: {error}"))
        return None
    if tracking is not None:
        made.add(partial(alert, tracking))
    return made


def _record_incident(incident: Incident) -> None:
    """A backend, or the publisher, is in trouble: a row of the run, beside the log line that Tracking writes."""
    open_now = _current or _closing
    if open_now is not None:
        open_now._write_rows(incident, current_scope(), time.monotonic_ns())


class _Heir(Listener):
    """Waits in a forked child for the first thing that happens there, and begins the child's own session with it."""

    def __init__(self, parent: Session) -> None:
        self._parent = parent
        self._subscription = subscribe(self, *{one for recorder in parent._recorders for one in recorder.points})

    def __repr__(self) -> str:
        return "a forked child's session"

    def _begin(self, event: Event) -> list[_Recording]:
        """Those that are to be told of this event, too: they subscribe too late for it."""
        self._subscription.close()
        session = _start_child(self._parent)
        return [] if session is None else [one for one in session._recordings if one in event.point.listeners]

    def enter(self, event: Event) -> Any:
        return [(one, one.enter(event)) for one in self._begin(event)]

    def leave(self, event: Event, state: Any) -> None:
        for one, its in state:
            one.leave(event, its)

    def fire(self, event: Event) -> None:
        for one in self._begin(event):
            one.fire(event)

    def failed(self, *_: object) -> None:
        self._subscription.close()


def _start_child(parent: Session) -> Session | None:
    """The session of a forked child: of the same run and attempt. It can't use the parent's accelerator."""
    global _current
    with _lock:
        if _current is not None:
            return None  # it has begun one itself meanwhile
        before = parent.process
        child, role = _name_of_child()
        found = devices.detect("cpu")
        chosen = _recorders(parent._asked, found, "observe")
        tables = bring(kind for recorder in chosen for kind in recorder.rows)
        process = describe(
            name=f"{who(before.rank, before.process)} {child}",
            role=role,
            device=found.name,
            device_name=found.description,
            tables=tables,
        )
        process.rank = process.local_rank = None  # the environment's are its parent's
        place = take_place(parent.directory, process, before.attempt)
        ours: dict[str, Any] = {"asked": parent._asked, "parquet_at_close": False}
        ours |= {"device": found, "save_failed_batch": parent._failing.save_batch}
        ours["budget"] = None if parent.budget is None else Budget(parent.budget.ratio)
        _current = Session(parent.directory, chosen, process, place=place, **ours)
        _current.counts_alone = parent.counts_alone
        return _current


def _name_of_child() -> tuple[str, str | None]:
    """What a child goes by beside its parent, and its role."""
    data: Any = sys.modules.get("torch.utils.data")
    worker = None if data is None else data.get_worker_info()
    if worker is not None:
        return f"loader {worker.id}", "loader"
    processes: Any = sys.modules.get("multiprocessing.process")
    if processes is None or processes.parent_process() is None:
        return "child", None
    return processes.current_process().name, None


@functools.cache  # once in a process
def _watch_forks() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forked)


def _forked() -> None:
    """In a forked child the session is its parent's, and so are the files, the backends and the threads."""
    global _current, _closing, _lock
    parent, _current, _closing = _current, None, None
    _lock = threading.Lock()  # a thread that isn't here may have held it
    if parent is not None:
        begin_at_root()
        parent._failing.close()
        parent.closed, parent.tracking, parent.publisher, parent.upload = True, None, None, None
        parent.alarms = None
        parent._forget_end()
        for subscription in parent._subscriptions:
            subscription.close()
        _Heir(parent)


def _reduced(recorder: Recorder, rows: Sequence[Row]) -> dict[str, float]:
    """The metrics of one recorder as numbers.

    Raises:
        InputTypeError: It gives something else than a mapping of names.
    """
    found = recorder.metrics(rows)
    if type(found) is dict and _STR.issuperset(map(type, found)) and _METRIC.issuperset(map(type, found.values())):
        return {name: metric.aggregate() for name, metric in found.items()}
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise InputTypeError(f"metrics: got {found!r:.200}, expected a dict of names to Metric")
    return reduce_metrics(dict(found))


def _traceback(error: BaseException | None) -> str | None:
    import traceback

    return None if error is None else "".join(traceback.format_exception(error))
