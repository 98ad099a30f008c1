"""A run of more rows than the live tables hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from probe.records import GIB, Memory, Row, Scalar
from tests.sample_run import MS, clock, write_run

PHASES = ("generate", "old_log_prob", "update")


def long_run(directory: Path, steps: int, ranks: int = 2) -> Path:
    """``steps`` steps of :data:`PHASES` on each rank; those of step n take 100 + n % 7 milliseconds more or less."""
    return write_run(directory, {rank: _rows(rank, steps) for rank in range(ranks)})


def took_ms(step: int, phase: int, rank: int) -> int:
    """How long a phase takes in a step."""
    return (100 + 50 * phase + step % 7 + rank) * (3 if step == 300 else 1)


def _rows(rank: int, steps: int) -> list[Row]:
    rows: list[Row] = []

    def scope(kind: str, name: str, phase: str | None, step: int, begin: int, end: int) -> None:
        of: dict[str, Any] = {
            "kind": kind,
            "name": name,
            "phase": phase,
            "step": step,
            "scope_id": len(rows) + 1,
            "allocated_bytes": GIB,
        }
        rows.append(Memory(time_ns=begin, edge="enter", **of))
        told: dict[str, Any] = {
            "host_duration_ns": end - begin,
            "peak_allocated_bytes": (2 + step % 11) * GIB,
            "peak_kind": "exact",
        }
        rows.append(Memory(time_ns=end, edge="leave", **of, **told))

    for step in range(steps):
        begin = at = clock(rank) + step * 2000 * MS
        for index, phase in enumerate(PHASES):
            end = at + took_ms(step, index, rank) * MS
            scope("phase", phase, phase, step, at, end)
            at = end
        scope("step", "step", None, step, begin, at + 5 * MS)
        rows.append(Scalar(time_ns=at, step=step, key="reward/mean", value=step % 13, source="user"))
    return rows
