"""What handing one row over costs the training thread: ``RunWriter.add_rows``, a locked queue, and writing it.

The alternatives are what trainers do otherwise: ``queue.Queue.put`` to a thread of one's own, and one line of JSON
written and flushed on the spot. The row is made before the clock starts, for all of them.

python -m benchmarks.producer
"""

from __future__ import annotations

import gc
import json
import queue
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import Size, duration, row
from probe.hooks import Scope, current_scope
from probe.records import GIB, Memory, Process
from probe.runs.layout import create_run
from probe.runs.writer import RunWriter

ROUNDS = 300
BURSTS = 60
#: Rows of one recorder call that has many to tell, such as the micro-batches of a step.
BURST = 1000
TARGET = "at most 1 µs per row"
#: Training between two rows: caches are cold again, and the writer's thread gets its turn.
STEP_S = 0.002


def rows(size: Size = Size.USUAL) -> list[dict[str, Any]]:
    """One row at a time, with training in between; bursts; and what a caller waits at worst."""
    scope = current_scope()
    rounds, bursts = size.pick((2, 1), (ROUNDS, BURSTS))
    with tempfile.TemporaryDirectory() as folder:
        directory = create_run("benchmark", "producer", root=folder)
        writer = RunWriter(directory, rank=0, process=Process(time_ns=1, wall_ns=time.time_ns()))
        locked: queue.Queue[Any] = queue.Queue()
        with (Path(folder) / "plain.jsonl").open("a") as file:
            put, line = _put(writer, scope), _line(file)
            one = _alone(rounds, put, locked.put, line)
            many = _burst(bursts, put, locked.put, line)
            worst = _alone(rounds, put, pick=_worst)[0]
        writer.close()
    return [
        _named("one row, training between rows / queue.Queue.put", one[0], one[1]),
        _named("one row, training between rows / json.dumps, write, flush", one[0], one[2]),
        _named(f"each row of {BURST:,} at once / queue.Queue.put", many[0], many[1]),
        _named(f"each row of {BURST:,} at once / json.dumps, write, flush", many[0], many[2]),
        _named("one row, 99th percentile / median", worst, one[0], ""),
    ]


def _named(what: str, ours: float, theirs: float, target: str = TARGET) -> dict[str, Any]:
    return row(
        f"RunWriter.add_rows: {what}", ours, theirs, target, "on the training thread, including the clock's own time"
    )


def _row(index: int) -> Memory:
    """A sample as the memory recorder makes it."""
    used = 20 * GIB + index
    return Memory(edge="sample", device="cuda:0", source="cuda", allocated_bytes=used, reserved_bytes=used)


def _put(writer: RunWriter, scope: Scope) -> Callable[[Memory], None]:
    now = time.monotonic_ns()
    return lambda item: writer.add_rows(item, scope, now)


def _line(file: Any) -> Callable[[Memory], None]:
    def write(item: Memory) -> None:
        file.write(json.dumps({name: getattr(item, name) for name in item.__struct_fields__}) + "\n")
        file.flush()

    return write


def _alone(
    rounds: int, *takers: Callable[[Memory], Any], pick: Callable[[list[float]], float] = statistics.median
) -> list[float]:
    weights = torch.randn(256, 256)
    samples: list[list[float]] = [[] for _ in takers]
    for index in range(rounds):
        for take, kept in zip(takers, samples, strict=True):
            _train(weights)
            item = _row(index)
            begin = time.perf_counter_ns()
            take(item)
            kept.append((time.perf_counter_ns() - begin) / 1e9)
    return [pick(kept) for kept in samples]


def _train(weights: torch.Tensor) -> None:
    end = time.perf_counter() + STEP_S
    while time.perf_counter() < end:
        torch.matmul(weights, weights)


def _worst(samples: list[float]) -> float:
    return statistics.quantiles(samples, n=100)[98]


def _burst(rounds: int, *takers: Callable[[Memory], Any]) -> list[float]:
    samples: list[list[float]] = [[] for _ in takers]
    gc.collect()
    for _ in range(rounds):
        for take, kept in zip(takers, samples, strict=True):
            items = [_row(index) for index in range(BURST)]
            begin = time.perf_counter_ns()
            for item in items:
                take(item)
            kept.append((time.perf_counter_ns() - begin) / 1e9 / BURST)
            time.sleep(0.005)
    return [statistics.median(kept) for kept in samples]


if __name__ == "__main__":
    for one in rows():
        ours, theirs = duration(one["ours_s"]), duration(one["theirs_s"])
        print(f"{one['name']:76} {ours:>10} {theirs:>10}  {one['ratio']:.3f}  {one['target']}")
