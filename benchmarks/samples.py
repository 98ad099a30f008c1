"""What samples cost a step of the demo, in CPU time: told, worked out and encoded, beside the step itself.

CPU time, so that what else the machine does counts little. The work is that of the recorder, on both of its threads.

python -m benchmarks.samples
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.demo_overhead import SMALL
from benchmarks.measure import Size, row
from probe import hooks
from probe.demo.data import read_problems, write_problems
from probe.demo.settings import Settings
from probe.demo.trainer import Trainer
from probe.recorders.samples import SamplesRecorder
from probe.runs.lines import encode_all

ROUNDS = 12
TARGET = "at most 0.5 % of a step"


class _Spent(hooks.Listener):
    """Runs the recorder as a session does, and counts the CPU time of both of its threads."""

    def __init__(self) -> None:
        self._recorder = SamplesRecorder()
        self.cpu_s = 0.0
        self.written = 0

    def fire(self, event: hooks.Event) -> None:
        begin = time.thread_time()
        self._write(self._recorder.fire(event))
        self.cpu_s += time.thread_time() - begin

    def leave(self, event: hooks.Event, state: Any) -> None:
        begin = time.thread_time()
        self._write(self._recorder.leave(event, state))
        self.cpu_s += time.thread_time() - begin

    def _write(self, rows: Any) -> None:
        for one in rows or ():
            built = list(one.build())
            encode_all(built)
            self.written += len(built)


def rows(size: Size = Size.USUAL) -> list[dict[str, Any]]:
    """The share of the demo's step."""
    rounds = size.pick(1, ROUNDS)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            settings = size.pick(SMALL, Settings())
            problems = read_problems(write_problems(Path(folder) / "problems.parquet", rows=200, seed=0), settings)
            spent, steps, written = _steps(Trainer(settings, problems), rounds)
    finally:
        torch.set_num_threads(threads)
    share = statistics.median(one / whole for one, whole in zip(spent, steps, strict=True))
    answers = settings.prompts_per_rank * settings.group_size
    note = f"{share * 100:.2f} % of a step, {written // rounds} rows for {answers} answers and two epochs"
    ours, theirs = statistics.median(spent), statistics.median(steps)
    return [row("recording a step's samples / the step, CPU time", ours, theirs, TARGET, note)]


def _steps(trainer: Trainer, rounds: int) -> tuple[list[float], list[float], int]:
    spent: list[float] = []
    steps: list[float] = []
    listener = _Spent()
    with hooks.subscribe(listener, *SamplesRecorder.points):
        for index in range(rounds):
            before, begin = listener.cpu_s, time.process_time()
            with hooks.scope("step", "step", step=index):
                trainer.step(index)
            took = time.process_time() - begin
            spent.append(listener.cpu_s - before)
            steps.append(took - spent[-1])
    return spent, steps, listener.written


if __name__ == "__main__":
    for one in rows():
        print(one)
