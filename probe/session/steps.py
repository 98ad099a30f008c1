"""The steps of a session: as blocks, or begun and ended by calls, as a trainer's callbacks need it."""

from __future__ import annotations

from types import TracebackType

import msgspec

from probe._check import is_whole
from probe.errors import InputError
from probe.hooks import Scope, begin_at_root, current_scope, scope
from probe.own_cost import EndedStep, OwnCost
from probe.session.recording import Recording
from probe.session.sending import Sending
from probe.session.step_metrics import StepMetrics


class Steps:
    """Opens steps; when one ends its metrics are reduced and logged in the writer's thread.

    Args:
        recording: What happens in a step is recorded there.
        sending: Where its metrics go.
        metrics: Keeps the rows of steps that haven't ended.

    Attributes:
        begun: The step that :meth:`begin` began and nobody has ended.
    """

    def __init__(self, recording: Recording, sending: Sending, metrics: StepMetrics) -> None:
        self.begun: scope | None = None
        self._ended: Scope | None = None  # the last that `end` ended
        self._recording, self._sending, self._metrics = recording, sending, metrics
        self._cost = OwnCost(lambda: recording.writer.cost_ns)

    def open(self, step: int) -> scope:
        """A step as a block.

        Args:
            step: The trainer's global step.

        Raises:
            InputError: ``step`` isn't a non-negative whole number.
        """
        if not is_whole(step) or step < 0:
            raise InputError(f"step: got {step!r}, expected a whole number of at least 0")
        return TrainingStep(self, int(step))  # numpy's become Python's

    def begin(self, step: int) -> None:
        """Begin a step; one that was begun before and not ended ends now, and an incident tells of it.

        Args:
            step: The trainer's global step.

        Raises:
            InputError: ``step`` isn't a non-negative whole number. Nothing has begun or ended then.
        """
        opened = self.open(step)
        self.end_abandoned(f"step {step} was begun")
        if current_scope() is self._ended:  # by another thread, which can't take this one out of it
            begin_at_root()
        opened.__enter__()
        self.begun = opened

    def end(self) -> None:
        """End the step that :meth:`begin` began, from any thread; without one nothing ends, and an incident says so."""
        opened, self.begun = self.begun, None
        if opened is None:
            message = "end_step was called without a begin_step before it: no step has ended"
            self._recording.incident("step", "session.end_step", message, None)
            return
        self._ended = opened.scope
        opened.__exit__(None, None, None)

    def end_abandoned(self, when: str) -> None:
        """End the step that :meth:`begin` began and nobody ended.

        Args:
            when: What happens meanwhile, for the incident.
        """
        opened, self.begun = self.begun, None
        if opened is not None and opened.scope is not None:
            message = (
                f"step {opened.scope.step} was begun and not ended: it ends now, as {when}, and its time is too long"
            )
            self._recording.incident("step", "session.begin_step", message, None)
            opened.__exit__(None, None, None)

    def drop(self) -> None:
        """What :meth:`begin` began turns out not to be a step: it ends without a trace."""
        self.begun = self._recording.step = None
        begin_at_root()

    def enter(self, number: int) -> tuple[int, int]:
        """The process is in this step from now on.

        Args:
            number: The step.

        Returns:
            What :meth:`leave` needs of its begin.
        """
        begun = self._cost.begin()
        self._recording.step = number
        self._recording.failing.step_begun()
        return begun

    def leave(self, number: int, begun: tuple[int, int]) -> None:
        """The process has left this step: its metrics are due.

        Args:
            number: The step.
            begun: From :meth:`enter`.
        """
        recording = self._recording
        if recording.step == number:  # else another step has begun since
            recording.step = None
        ended = self._cost.end(number, begun)
        if recording.budget is not None:
            recording.budget.note(ended)
        recording.writer.mark(_Finish(self, ended))  # the step itself may go, interrupted or not

    def finish(self, ended: EndedStep) -> None:
        """Its rows are written: reduce its metrics, in the writer's thread.

        Args:
            ended: The step.
        """
        self._metrics.finish(ended, self._cost, self._recording, self._sending)


class _Finish(msgspec.Struct, gc=False):  # a partial and a method would be counted for the next collection of garbage
    """Calls :meth:`Steps.finish`."""

    steps: Steps
    ended: EndedStep

    def __call__(self) -> None:
        self.steps.finish(self.ended)


class TrainingStep(scope):
    """One training step, as a block.

    Args:
        steps: Of the session.
        step: The trainer's global step.
    """

    __slots__ = ("_begun", "_number", "_steps")

    def __init__(self, steps: Steps, step: int) -> None:
        super().__init__("step", "step", step=step)
        self._steps = steps
        self._number = step
        self._begun = (0, 0)

    def __enter__(self) -> scope:
        self._begun = self._steps.enter(self._number)
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            self._steps.leave(self._number, self._begun)
