"""When a change can be made: at once, or only after a leak is fixed, which would make it run out of memory.

The level of a phase is what its micro-batches' peaks leave when the tokens are taken off. Whether it leaks is judged as
of the ends of steps (:mod:`probe.analysis.growth`), and so is the step in which memory is full: here with what the
micro-batches of the change need above the level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from probe.analysis import growth
from probe.analysis.framework_settings import number, setting
from probe.analysis.memory_fit import REGRESSORS
from probe.analysis.memory_model import MemoryModel, newest
from probe.analysis.query import same
from probe.analysis.what_if.answering import WhatIf
from probe.sql import joined, sql
from probe.text import count, missing, rows

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: ``ready``: nothing speaks against it; ``untold``: its peak isn't known; ``after_leak``: memory would run out.
State = Literal["ready", "untold", "after_leak"]

#: Steps after the last one in which a change may not run out of memory, where the configuration doesn't say how many a
#: run has: as many as the risk is told of.
AHEAD: Final = 1000

_PEAKS: Final = """
select step, process, peak, coalesce(slots, tokens) as tokens, longest, sequences as rows from spans s
where kind = 'micro_batch' and peak is not null and tokens is not null and sequences > 0 and longest is not null
  and step is not null and {where}"""


@dataclass(frozen=True)
class When:
    """When a change can be made.

    Attributes:
        state: See :data:`State`.
        fails_near_step: In which memory would run out if the change were made before the leak is fixed; else None.
    """

    state: State = "ready"
    fails_near_step: int | None = None

    def told(self, who: str = "alone") -> str:
        """In words.

        Args:
            who: Whether the change is made alone, or together with others.

        >>> When().told(), When("after_leak", 434).told()
        ('alone: ready', 'only after the leak is fixed: it would fail near step 434')
        """
        if self.fails_near_step is not None:
            return f"only after the leak is fixed: it would fail near step {count(self.fails_near_step)}"
        return f"{who}: ready" if self.state == "ready" else f"{who}: its peak isn't known"

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {"state": self.state, "fails_near_step": self.fails_near_step, "told": self.told()}


READY: Final = When()


@dataclass(frozen=True)
class Leak:
    """What leaks in a phase.

    Attributes:
        step: The last one.
        level_bytes: What was allocated in it without any token, on the process whose level grows fastest.
        bytes_per_step: What comes on top each step.
    """

    step: int
    level_bytes: float
    bytes_per_step: float


class Times:
    """When changes of one run can be made.

    Args:
        run: The run.
        models: The memory model of each role and phase.
    """

    def __init__(self, run: Run, models: Sequence[MemoryModel]) -> None:
        self._run = run
        self._models = {(one.role, one.phase): one for one in models if one.fit is not None}
        self._leaks: dict[tuple[str | None, str | None], Leak | None] = {}
        total = number(setting(run, "steps")[1])
        self._total = total if total is not None and total > 0 else None

    def of(self, answer: WhatIf) -> When:
        """When a change can be made.

        Args:
            answer: Its replay.
        """
        found = [self._of_phase(one) for one in rows(answer.frame[answer.frame["number"] == "predicted_peak_bytes"])]
        full = [one.fails_near_step for one in found if one.fails_near_step is not None]
        if full:
            return When("after_leak", min(full))
        return next((one for one in found if one.state == "untold"), READY)

    def _of_phase(self, row: dict[str, Any]) -> When:
        """Of one row of predicted peaks."""
        key = (None if missing(row["role"]) else str(row["role"]), None if missing(row["phase"]) else str(row["phase"]))
        model = self._models.get(key)
        if model is None or model.room_bytes is None:
            return READY
        if missing(row["after"]):
            return When("untold")
        if not missing(row["modelled"]) and row["after"] - row["modelled"] <= row["high"] - row["after"]:
            return READY  # today's lasts no longer
        if key not in self._leaks:
            self._leaks[key] = leak_of(self._run, model)
        leak = self._leaks[key]
        if leak is None:
            return READY
        capacity = model.room_bytes - (row["after"] - model.floor_bytes)
        full = growth.full_step(leak.step, leak.level_bytes, leak.bytes_per_step, capacity)
        last = leak.step + AHEAD if self._total is None else self._total
        return When("after_leak", max(full, leak.step + 1)) if full <= last else READY


def leak_of(run: Run, model: MemoryModel) -> Leak | None:
    """What leaks in the micro-batches of a role and phase; None where none does, or that isn't known.

    Args:
        run: The run.
        model: Of the role and phase, with a fit.
    """
    places = [same(f"s.{name}", getattr(model, name)) for name in ("role", "phase")]
    frame = run.sql(sql(_PEAKS, where=joined([*places, newest(run, "s.step")], " and ")))
    frame["level"] = frame["peak"] - sum(model.coefficient(name)[0] * frame[name] for name in REGRESSORS)
    by_step = frame.groupby(["step", "process"]).agg({"level": "median", "tokens": "sum", "longest": "max"}).unstack()
    steps = by_step.index.to_numpy(dtype=float)
    if len(steps) < growth.FEWEST:
        return None
    levels = by_step["level"].to_numpy(dtype=float)
    at = growth.fastest(levels)
    beside = (by_step[name].to_numpy(dtype=float)[:, at] for name in ("tokens", "longest"))
    found = growth.judge(steps, levels[:, at], *beside)
    if found.cause != "leak":
        return None
    now = levels[np.isfinite(levels[:, at]), at][-growth.NOW :]
    return Leak(int(steps[-1]), float(np.median(now)), found.bytes_per_step)
