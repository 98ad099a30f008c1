"""Small runs whose numbers can be worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from probe.records import Call, MicroBatch, Process, Row, Scalar
from probe.runs.reader import Run
from tests.sample_run import MS, clock, open_run, process


def ended(rank: int, step: int, at: int, **values: float) -> list[Row]:
    """The metrics of a session that has ended a step, at that many milliseconds."""
    cost = {"probe/cost/hooks_ms": 1.0, "probe/cost/step_ms": 1000.0, "probe/cost/overhead_ratio": 0.001}
    named = {**cost, **{f"probe/{key}": value for key, value in values.items()}}
    stamp: dict[str, Any] = {"rank": rank, "step": step, "time_ns": clock(rank) + at * MS}
    return [Scalar(key=key, value=value, source="probe", **stamp) for key, value in named.items()]


def took(rank: int, step: int, seconds: float, phase: str | None = None, at: int = 0) -> Call:
    """A step, or one of its phases."""
    kind = "step" if phase is None else "phase"
    return Call(
        point=f"scope.{kind}",
        name=phase or "step",
        duration_ns=int(seconds * 1e9),
        rank=rank,
        step=step,
        phase=phase,
        time_ns=clock(rank) + at * MS,
    )


def cut(rank: int, step: int, lengths: list[int], phase: str | None = "update", batch_id: int = 1) -> MicroBatch:
    """One batch that is one micro-batch."""
    return MicroBatch(
        batch_id=batch_id,
        micro_batches=1,
        sequences=len(lengths),
        lengths=lengths,
        tokens=sum(lengths),
        rank=rank,
        step=step,
        phase=phase,
        micro_batch=0,
        time_ns=clock(rank) + step * MS,
    )


def run_of(directory: Path, rows: dict[int, list[Row]], world_size: int | None = None) -> Run:
    """A run of these rows, opened."""
    told: dict[int, Process] = {rank: process(rank, world_size or len(rows)) for rank in rows}
    return open_run(directory, rows, processes=told)
