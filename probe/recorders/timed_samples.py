"""When samples ended in processes that know little more of them, such as verl's agent loops."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from probe.hooks import Event
from probe.recorders.recorder import Recorder
from probe.recorders.rollout_rows import Answers, rollouts, times_of
from probe.recorders.token_identity import identity, together
from probe.records import Rollout, Row, TokenIdentity


class TimedSamplesRecorder(Recorder):
    """A row for each replica, and one for what was compared, as soon as no sample of a step is under way any more."""

    rows: ClassVar[tuple[type[Row], ...]] = (Rollout, TokenIdentity)
    points: ClassVar[tuple[str, ...]] = ("samples.timed",)

    def fire(self, event: Event) -> list[Row]:
        """The times as they were told and what was compared, in the step that they were told for."""
        given = event.values
        count = len(given["begin_ns"])
        times, tokens = times_of(given["begin_ns"], given["end_ns"], count), given.get("tokens")
        answers = Answers(given["replicas"], times, tokens=None if tokens is None else np.array(tokens, np.int64))
        rows: list[Row] = list(rollouts(answers, count, -1, given["source"]))
        if given.get("compared"):
            found = together(given["compared"])
            rows.append(identity(found, None, -1, given["source"], given["uids"], keeps_ids=False))
        for row in rows:
            row.step, row.phase = given["step"], given["phase"]
        return rows
