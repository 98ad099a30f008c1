"""Rows of runs that a feed is opened on, and ways to open it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from probe.live import opening
from probe.live.feed import Feed
from probe.records import Call, Incident, Memory, MicroBatch, Padding, Process, Row, Scalar
from tests.live.live_run import append, opened
from tests.sample_run import MS, WALL_NS, clock, process, sample_rows, write_run

ROWS = sample_rows(3, 6)


def mixed_rows() -> dict[int, list[Row]]:
    """What the sample run lacks: resumed and silent ranks, open scopes, NaN, calls, batches told of twice."""
    extra: dict[int, list[Row]] = {rank: list(own) for rank, own in sample_rows(2, 3).items()}
    base = max(row.time_ns for row in extra[0]) + MS
    at: dict[str, Any] = {"rank": 0, "step": 3, "phase": "update_actor"}
    extra[0] += [
        Call(point="data_proto.union", name="union", duration_ns=5 * MS, rows_in=4, bytes_out=9, time_ns=base, **at),
        Call(point="data_proto.pop", keys_removed=["a", "b"], error="KeyError: 'x'", time_ns=base + 1, **at),
        Scalar(key="loss", value=math.nan, time_ns=base + 2, **at),
        Scalar(key="loss", value=math.inf, time_ns=base + 3, **at),
        Incident(kind="listener", where="a.b", message="boom", count=3, switched_off=True, time_ns=base + 4, **at),
        padding("data_proto.from_dict", "input_ids", "longest_row", 4, base + 5, batch=900, **at),
        padding("codec.packed", "input_ids", "none", 0, base + 6, batch=901, **at),
        Memory(edge="enter", kind="step", name="step", scope_id=900, allocated_bytes=7, time_ns=base + 7, **at),
    ]
    extra[2] = [  # nobody records its memory
        Call(
            rank=2, point="scope.step", name="step", duration_ns=3 * MS, scope_id=1, step=0, time_ns=clock(2) + 9 * MS
        ),
        MicroBatch(rank=2, batch_id=1, micro_batches=1, sequences=0, lengths=[], tokens=0, time_ns=clock(2) + 9 * MS),
    ]
    return extra


def again(rows: dict[int, list[Row]]) -> list[Row]:
    """Rank 0 is resumed: another process, which counts its scopes from the start and has a file of its own."""
    base = max(row.time_ns for row in rows[0]) - clock(0) + MS
    at: dict[str, Any] = {"rank": 0, "step": 3, "phase": "update_actor"}
    return [
        Process(rank=0, time_ns=5, wall_ns=WALL_NS + base, pid=999, world_size=2),
        Memory(edge="enter", kind="phase", name="again", scope_id=1, allocated_bytes=8, time_ns=6, **at),
        Memory(edge="leave", kind="phase", name="again", scope_id=1, peak_allocated_bytes=9, time_ns=9 * MS, **at)
        | host(2 * MS),
        Memory(edge="enter", kind="phase", name="open", scope_id=2, parent_id=1, time_ns=10 * MS, **at),
    ]


def write_mixed(directory: Path) -> Path:
    rows = mixed_rows()
    write_run(directory, rows, processes={2: process(2, 3)})
    append(directory, again(rows), segment=1)
    return directory


class host:
    """``row | host(n)``: the row with that host duration."""

    def __init__(self, duration_ns: int) -> None:
        self.duration_ns = duration_ns

    def __ror__(self, row: Memory) -> Memory:
        row.host_duration_ns = self.duration_ns
        return row


def padding(source: str, field: str, cause: str, tokens: int, time_ns: int, *, batch: int, **stamp: Any) -> Padding:
    return Padding(
        batch_id=batch, source=source, field=field, cause=cause, tokens=tokens, bytes=8 * tokens,
        rectangle_tokens=100, valid_tokens=100 - tokens, time_ns=time_ns, **stamp,
    )  # fmt: skip


def by_sql(monkeypatch: pytest.MonkeyPatch, path: Path, **options: Any) -> Feed:
    with monkeypatch.context() as patch:
        patch.setattr(opening, "LARGE_BYTES", -1)
        return opened(path, **options)
