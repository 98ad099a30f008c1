"""When samples ended in processes that know no more of them, such as the agent loops of verl."""

from __future__ import annotations

from typing import ClassVar

from probe.hooks import Event
from probe.recorders.recorder import Recorder
from probe.recorders.rollout_rows import Answers, rollouts, times_of
from probe.records import Rollout, Row


class TimedSamplesRecorder(Recorder):
    """A row for each replica, as soon as no sample of a step is under way any more."""

    rows: ClassVar[tuple[type[Row], ...]] = (Rollout,)
    points: ClassVar[tuple[str, ...]] = ("samples.timed",)

    def fire(self, event: Event) -> list[Row]:
        """The times as they were told, in the step that they were told for."""
        given = event.values
        count = len(given["begin_ns"])
        answers = Answers(given["replicas"], times_of(given["begin_ns"], given["end_ns"], count))
        rows: list[Row] = list(rollouts(answers, count, -1, given["source"]))
        for row in rows:
            row.step, row.phase = given["step"], given["phase"]
        return rows
