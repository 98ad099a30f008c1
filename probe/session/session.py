"""An open recording: what a training calls, and what it is told when it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, cast

from probe import exits
from probe._check import needs_views
from probe.current import CURRENT
from probe.devices import Device, detect
from probe.errors import InputTypeError
from probe.frameworks import Observed, attached
from probe.hooks import emit, point, scope
from probe.own_cost import Budget
from probe.publishing.alarms import Alarm, Alarms
from probe.publishing.publisher import Publisher
from probe.publishing.working_out import have_worked_out
from probe.recorders.recorder import Recorder
from probe.records import Process, who
from probe.runs.attempts import Joined, is_first
from probe.runs.ending import end
from probe.runs.layout import complete_run
from probe.runs.processes import part_in_ray
from probe.runs.upload import Upload
from probe.session import patience
from probe.session.recording import Recording, load_recorders
from probe.session.sending import Sending
from probe.session.step_metrics import StepMetrics
from probe.session.steps import Steps
from probe.tracking.tracking import Tracking

if TYPE_CHECKING:
    from probe.opened import Run

LOG: Final = point("session.log", "a trainer logs the metrics of a step; carries metrics and step")


class Session:
    """An open recording. Made by :func:`probe.session.start`; ends with :meth:`close` or as a context manager.

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
        recording: Recorders, and the writer of their rows.
        sending: What sends the run elsewhere.
        steps: Opens and ends steps.
        asked: As given, or by the user who took it over.
        forked: Whether it is a forked child's.
        closed: Whether it has ended.
        automatic: Whether it began because a framework was observed. The user's own :func:`probe.session.start` takes
            it over.
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
        device: Device | None = None,
        save_failed_batch: bool = False,
        oom_snapshot: bool = False,
    ) -> None:
        self.directory = directory
        self.process = process
        self.closed = False
        self.automatic = self.counts_alone = False
        self.asked = asked
        self.forked = not parquet_at_close
        self.sending = Sending(directory, process, tracking)
        metrics = StepMetrics()
        self.recording = Recording(
            directory,
            recorders,
            process,
            on_rows=metrics.see,
            before_round=self._before_round,
            place=place,
            late=late,
            parquet_at_close=parquet_at_close,
            budget=budget,
            device=device,
            save_failed_batch=save_failed_batch,
            oom_snapshot=oom_snapshot,
        )
        self.steps = Steps(self.recording, self.sending, metrics)
        self._forget_end = exits.at_end(self.close)

    @property
    def rank(self) -> int | None:
        """The rank of this process, None while it isn't known."""
        return self.process.rank

    @property
    def world_size(self) -> int:
        """How many ranks the job has."""
        return self.process.world_size

    @property
    def tracking(self) -> Tracking | None:
        """Where the metrics go, None on ranks other than 0 and when nothing was asked for."""
        return self.sending.tracking

    @property
    def publisher(self) -> Publisher | None:
        """What keeps the dashboards there up to date, None where nothing was asked for or could show them."""
        return self.sending.publisher

    @property
    def upload(self) -> Upload | None:
        """What copies the run to a store, None where nothing was asked for."""
        return self.sending.upload

    @property
    def alarms(self) -> Alarms | None:
        """What watches the run for alarms, None where nobody asked for them."""
        return self.sending.alarms

    @property
    def budget(self) -> Budget | None:
        """What thins rows at inner points so that probe costs no more; None where nothing is thinned."""
        return self.recording.budget

    def record_all(self) -> None:
        """One that :attr:`counts_alone` records everything from now on: more than counts is observed in its process."""
        self.asked, self.counts_alone = None, False
        self.recording.record_with(load_recorders(None, detect(), "nested"))

    def step(self, step: int) -> scope:
        """The block is one training step. When it ends its metrics are reduced and logged, off this thread.

        Args:
            step: The trainer's global step.

        Returns:
            A context manager.

        Raises:
            InputError: ``step`` isn't a non-negative whole number.
        """
        return self.steps.open(step)

    def begin_step(self, step: int) -> None:
        """Begin a training step where no ``with`` block can stand, as in a trainer's callbacks; see :meth:`end_step`.

        A step that was begun so and never ended, because of an exception or a ``continue``, ends now, and an incident
        tells of it.

        Args:
            step: The trainer's global step.

        Raises:
            InputError: ``step`` isn't a non-negative whole number. Nothing has begun or ended then.
        """
        self.steps.begin(step)

    def end_step(self) -> None:
        """End the step that :meth:`begin_step` began, from any thread: its metrics are reduced and logged.

        Without one it does nothing, and an incident tells of it: a callback that was added in the middle of a step is
        no reason to stop a training.
        """
        self.steps.end()

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
    def attached(self) -> list[Observed]:
        """The frameworks that are observed in this process, with what was found and what is missing in each."""
        return attached()

    def learn(self, *, project: str | None = None, config: Any = None, **facts: Any) -> None:
        """What a framework says of a run that began because it was observed; what a user's
        :func:`probe.session.start` said stays.

        Args:
            project: The project's name, for run.json.
            config: The trainer's configuration, for run.json; secrets in it are left out.
            **facts: Of this process, such as ``role="driver"``.
        """
        if not self.automatic:
            return
        if facts:
            self.recording.tell(**facts)
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
            raise InputTypeError(f"callback: got {type(callback).__name__}, expected a callable")
        self.sending.on_alarm(callback)

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until what was recorded so far can be read. Returns False when the time ran out."""
        return self.recording.writer.flush(timeout_s)

    def close(self, exit_code: int | None = None) -> None:
        """End the recording: hooks come off, rows are rolled over, backends are finished. Safe to call twice.

        It waits for all backends and the last edition of the dashboards together
        :data:`~probe.session.patience.END_S` at most, and says so where that takes a moment; what isn't sent then is in
        the run directory, for ``probe doctor RUN --recover``.

        Args:
            exit_code: 0 for success; it gives a tracked run its status. None is what the process ends with as far as
                that is known: see :func:`probe.exits.code`. In an ``except`` after which all is well give 0.
        """
        recording, sending = self.recording, self.sending
        if exit_code is None:
            exit_code, error = exits.code(), exits.on_its_way()
            if error is not None and not self.closed:
                recording.failing.ended(error)
        until = time.monotonic() + patience.END_S
        with CURRENT.lock:
            if self.closed:
                return
            self.closed = sending.closed = True
            if CURRENT.session is self:
                CURRENT.session, CURRENT.closing = None, self
        self.steps.end_abandoned("the session was closed")
        self._forget_end()
        recording.stop()
        exit_code = exit_code or recording.failing.exit_code()
        sending.finish(exit_code, until, recording)
        CURRENT.closing = None
        recording.writer.close(failed=recording.failing.fatal, exit_code=exit_code)
        if part_in_ray() == "driver" and not self.forked:
            recording.isolated("end", partial(end, self.directory, self.process.attempt))
        if not self.forked and self._is_the_first():
            recording.isolated("answers", partial(have_worked_out, self.directory))
        if sending.upload is not None:  # what is left: all of it is in files now
            recording.isolated("upload", sending.upload.finish)

    def _is_the_first(self) -> bool:
        """Whether this process does what is done once for a run: it is rank 0, or the first of those without a rank."""
        return self.rank == 0 or (self.rank is None and is_first(self.recording.writer.place))

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.recording.failing.ended(error)
        self.close(exits.code_of(error))

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"Session({str(self.directory)!r}, {who(self.rank, self.process.process)}, {state})"

    def _before_round(self) -> None:
        """In the writer's thread: what has become known of the process since the last round."""
        recording: Recording | None = getattr(self, "recording", None)
        if recording is None:
            return  # the writer's first round may come before we have it
        recording.tell_adapters()
        recording.hear_of_the_end()
        if self.sending.alarms is not None:
            self.sending.alarms.hand_on()
        if recording.late is not None:
            recording.learn_rank(recording.late)
            self.sending.decide(recording)

    def fork(self) -> None:
        """In a forked child: the files, the backends and the threads of this session are its parent's."""
        self.recording.failing.close()
        self.closed = self.sending.closed = True
        self.sending.leave_to_parent()
        self._forget_end()
        self.recording.unsubscribe()


def current_session() -> Session | None:
    """The session that this process has open, or None."""
    return cast("Session | None", CURRENT.session)
