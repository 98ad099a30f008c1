"""The metrics of a step: its rows are kept until it ends, and then each recorder reduces them to numbers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from probe.core.metric import Metric, reduce_metrics
from probe.errors import InputTypeError
from probe.hooks import current_scope, silenced
from probe.own_cost import EndedStep, OwnCost
from probe.recorders.recorder import Recorder, StepRows
from probe.records import Row, Scalar
from probe.session.recording import Recording
from probe.session.sending import Sending

#: Rows of one step that are kept for its metrics; beyond it the step's metrics are left out and an incident says so.
ROWS_PER_STEP: Final = 200_000

#: Steps whose rows are kept for their metrics.
STEPS_KEPT: Final = 64

_STR: Final = frozenset({str})
_METRIC: Final = frozenset({Metric})


class StepMetrics:
    """Rows of open steps, by step. Everything happens in the writer's thread."""

    def __init__(self) -> None:
        self._rows: dict[int, list[Row]] = {}

    def see(self, rows: list[Row]) -> None:
        """Keep those that belong to a step.

        Args:
            rows: Of a round of the writer.
        """
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

    def finish(self, ended: EndedStep, cost: OwnCost, recording: Recording, sending: Sending) -> None:
        """Reduce a step's rows, log the metrics, and write them as rows.

        Args:
            ended: The step.
            cost: Bills it.
            recording: Has the recorders, and writes the rows.
            sending: Where the metrics go.
        """
        step, bill = ended.step, cost.bill(ended)
        if recording.budget is not None:
            recording.budget.note_bill(bill)
            recording.tell_left_out_at_times()
        if sending.publisher is not None:
            sending.publisher.at(step)
        rows = StepRows(self._rows.pop(step, ()))
        for stale in [other for other in self._rows if other < step]:
            del self._rows[stale]
        if len(rows) > ROWS_PER_STEP:
            message = f"step {step} has more than {ROWS_PER_STEP} rows on this rank: its metrics are left out"
            recording.incident("limits", "session.step", message, None)
            return
        with silenced():
            spans, tracking = sending.spans, sending.tracking
            if spans is not None:
                recording.isolated("spans", partial(spans.log, rows, step))
            values: dict[str, float] = dict(bill)
            for recorder in recording.recorders:
                values.update(recording.ask(recorder, "metrics", partial(_reduced, recorder, rows)) or {})
            if tracking is not None and values:
                tracking.log(values, step)
        scalars: list[Row] = [Scalar(key=key, value=value, source="probe", step=step) for key, value in values.items()]
        recording.writer.add_late(scalars, current_scope(), time.monotonic_ns())


def _reduced(recorder: Recorder, rows: Sequence[Row]) -> dict[str, float]:
    """The metrics of one recorder as numbers.

    Raises:
        InputTypeError: It gives something else than a mapping of names.
    """
    found: Any = recorder.metrics(rows)
    if type(found) is dict and _STR.issuperset(map(type, found)) and _METRIC.issuperset(map(type, found.values())):
        return {name: metric.aggregate() for name, metric in found.items()}
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise InputTypeError(f"metrics: got {found!r:.200}, expected a dict of names to Metric")
    return reduce_metrics(dict(found))
