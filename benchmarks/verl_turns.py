"""Loaded by verl in the processes of :mod:`benchmarks.verl_cost`: each rank observes every second step, and its clock.

A line of JSON for each step of a rank in ``$COUNTER_DIR/turns-<process id>.jsonl``: CPU time of the process and of the
thread that works, and whether the step was observed. Weights that are synchronised end a step.
"""

from __future__ import annotations

import functools
import json
import os
import time
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from probe import frameworks
from probe.adapters.imports import when_imported


class _Turns:
    """Whose turn it is, and the clocks as the step began."""

    def __init__(self) -> None:
        self.on = True
        self.step: int | None = None
        self.begun = (0.0, 0.0, 0.0)

    def next(self, step: int) -> None:
        """A step has ended, and another begins."""
        now = (time.process_time(), time.thread_time(), time.perf_counter())
        if self.step is not None:
            took = [b - a for a, b in zip(self.begun, now, strict=True)]
            line = {"step": self.step, "on": self.on, "process_s": took[0], "thread_s": took[1], "wall_s": took[2]}
            path = Path(os.environ["COUNTER_DIR"]) / f"turns-{os.getpid()}.jsonl"
            with path.open("a") as file:
                file.write(json.dumps(line) + "\n")
        self.step, self.on = step, step % 2 == 0
        for one in frameworks.attached():
            for patch in cast("Any", one)._patches._patches:
                if patch.armed.seam.name != "ActorRolloutRefWorker.update_weights":  # which tells of steps
                    patch.armed.off = not self.on
        self.begun = (time.process_time(), time.thread_time(), time.perf_counter())


_TURNS = _Turns()


def _around(module: ModuleType) -> None:
    observed = module.ActorRolloutRefWorker.update_weights

    @functools.wraps(observed)
    async def update_weights(*args: Any, **kwargs: Any) -> Any:
        result = await observed(*args, **kwargs)
        step = kwargs.get("global_steps")
        if step is not None:
            _TURNS.next(int(step) + 1)
        return result

    module.ActorRolloutRefWorker.update_weights = update_weights


when_imported("verl.workers.engine_workers", _around)
