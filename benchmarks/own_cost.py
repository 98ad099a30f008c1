"""What a run says of its own cost, against what its steps take with probe off: the same steps, taking turns.

Both are told in their parts, so that a difference says where it comes from. What is said are hooks, and waiting for the
lock that the writer's thread holds. What is measured is CPU time that the training thread uses more (hooks, and what
it loses by caches and the allocator to what probe does), and time that it doesn't run (waits for the lock, and for a
core where the writer takes it: on one core that is all of the writer's CPU time).
"""

from __future__ import annotations

import gc
import math
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measure import Size, row
from probe.analysis.quantities import course
from probe.dashboards.courses import over_run
from probe.dashboards.quantities import quantity
from probe.hooks import phase
from probe.own_cost import HOOKS, WRITER
from probe.runs.reader import Run
from probe.session import start

ROUNDS = 24

#: Seconds that the steps of one turn take together: a few rounds of the writer.
TURN_S = 0.8


def rows(size: Size = Size.USUAL) -> list[dict[str, Any]]:
    turns = size.pick((1, 0.02), (ROUNDS, TURN_S))
    made = [
        _compared(f"steps of {ms:g} ms of Python", ms / 1e3, _compute(ms / 1e3), *turns)
        for ms in size.pick((0.8,), (0.8, 5, 50))
    ]
    made.append(_compared("steps of 5 ms of waiting", 0.005, lambda: time.sleep(0.005), *turns))
    with _holding_the_lock():
        made.append(_compared("steps of 5 ms next to a busy Python thread", 0.005, _compute(0.005), *turns))
    return made


def _compared(name: str, step_s: float, work: Callable[[], Any], rounds: int, turn_s: float) -> dict[str, Any]:
    steps = max(8, round(turn_s / step_s))
    shares: list[float] = []
    said: list[float] = []
    parts: list[tuple[float, ...]] = []
    _off(work, steps)
    for index in range(rounds):
        turns: dict[bool, Took] = {}
        for on in (True, False)[:: 1 if index % 2 else -1]:
            if on:
                turns[on], told = _on(work, steps)
                said.append(told.ratio)
            else:
                turns[on] = _off(work, steps)
        off, whole = turns[False], turns[True].wall_s
        shares.append(1 - off.wall_s / whole)
        more = turns[True].cpu_s - off.cpu_s
        parts.append((told.hooks_s / whole, told.ratio - told.hooks_s / whole, told.writer_s / whole, more / whole))
    truth, ours = statistics.median(shares), statistics.median(said)
    low, high = _interval(shares)
    verdict = "the report is within" if truth / 1.5 <= ours <= truth * 1.5 else "the report is not within"
    note = f"probe adds {truth:.2%} (95 % interval {low:.2%} to {high:.2%}); "
    note += f"{verdict} a factor of 1.5" if low > 0 else "too little to tell from noise"
    hooks, lock, writer, cpu = (statistics.median(one) for one in zip(*parts, strict=True))
    note += f"; reported: hooks {hooks:.2%}, waiting for the GIL {lock:.2%} (writer's CPU time {writer:.2%})"
    note += f"; measured: CPU time {cpu:.2%}, not running {truth - cpu:.2%}"
    said_pct, measured_pct = (float(f"{100 * one:.3g}") for one in (ours, truth))
    return row(f"{name}: reported / measured", said_pct, measured_pct, "0.67 to 1.5", note) | {"unit": "% of a step"}


def _interval(values: list[float]) -> tuple[float, float]:
    """Of their median, by order alone, so that a turn in which the machine did something else counts as one."""
    many = len(values)
    reach = max(0, round((many - 1.96 * math.sqrt(many)) / 2) - 1)
    ordered = sorted(values)
    return ordered[reach], ordered[many - 1 - reach]


class Took(NamedTuple):
    """Seconds that the steps of a turn took: of the clock, and of the training thread's CPU time."""

    wall_s: float
    cpu_s: float


class Told(NamedTuple):
    """What a run says of them: its own cost as a share, and in it the seconds of hooks; the writer's CPU time."""

    ratio: float
    hooks_s: float
    writer_s: float


def _off(work: Callable[[], Any], steps: int) -> Took:
    gc.collect()  # reading a run leaves many objects, whose collection would come in somebody's step
    begin, cpu = time.perf_counter(), time.thread_time()
    for _ in range(steps):
        with phase("work"):
            work()
    return Took(time.perf_counter() - begin, time.thread_time() - cpu)


def _on(work: Callable[[], Any], steps: int) -> tuple[Took, Told]:
    """What the steps took, and what the run says of them; what a session does once isn't timed."""
    with tempfile.TemporaryDirectory() as folder:
        with start("benchmark", run_dir=Path(folder) / "run") as session:
            for step in range(2):
                with session.step(step), phase("work"):
                    work()
            session.flush()
            gc.collect()
            begin, cpu = time.perf_counter(), time.thread_time()
            for step in range(2, steps + 2):
                with session.step(step), phase("work"):
                    work()
            took = Took(time.perf_counter() - begin, time.thread_time() - cpu)
        with Run(Path(folder) / "run") as run:
            ratio = over_run(quantity("own_cost"), course(run, "own_cost", "step >= 2"))
            return took, Told(ratio, _sum_s(run, HOOKS), _sum_s(run, WRITER))


def _sum_s(run: Run, key: str) -> float:
    """Of a metric in ms, over the steps that are timed."""
    return float(run.sql(f"select sum(value) / 1e3 as s from scalars where key = '{key}' and step >= 2")["s"][0])


def _compute(seconds: float) -> Callable[[], Any]:
    """A fixed amount of Python that takes about so long here."""

    def work(count: int) -> int:
        total = 0
        for number in range(count):
            total += number & 3
        return total

    begin = time.perf_counter()
    work(1_000_000)
    count = round(1_000_000 * seconds / (time.perf_counter() - begin))
    return lambda: work(count)


@contextmanager
def _holding_the_lock() -> Iterator[None]:
    """Beside it a thread computes in Python a fifth of the time, with probe and without."""
    over, work = threading.Event(), _compute(0.002)

    def run() -> None:
        while not over.wait(0.008):
            work()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


if __name__ == "__main__":
    for one in rows():
        print(one)
