"""What every row carries, and its stamp: when and where it happened."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec


class Row(msgspec.Struct, kw_only=True, tag_field="table", omit_defaults=False, gc=False):  # it is in no cycle
    """What every row carries: when and where."""

    #: A full queue drops the oldest rows of sampled tables first.
    sampled: ClassVar[bool] = False

    time_ns: int = 0  #: monotonic; the end of what the row describes
    attempt: int = 1  #: one launch of the job, shared by its processes; the first is 1
    process: str = ""  #: unique in the run: "rank-00000" or "driver"; "driver.1" for one that took its place later
    rank: int | None = None  #: None until known; of a process that learns it late, readers know it in all rows
    step: int | None = None
    role: str | None = None
    phase: str | None = None
    micro_batch: int | None = None
    scope_id: int = 0  #: unique in the process; 0 is the process itself
    scope: str = ""  #: names from the outermost scope inward, joined by "/"


def stamp(row: Row, scope: Any, *, rank: int | None, time_ns: int, process: str = "", attempt: int = 1) -> Row:
    """:func:`stamp_all` of one row.

    Args:
        row: Changed in place and returned.
        scope: A ``probe.hooks.Scope``, duck-typed so that this module imports nothing.
        rank: The rank of this process.
        time_ns: Used where the row has none.
        process: The name of this process, unique in the run.
        attempt: The launch of the job that this process belongs to.

    Returns:
        The row.
    """
    stamp_all((row,), scope, rank=rank, time_ns=time_ns, process=process, attempt=attempt)
    return row


def stamp_all(
    rows: Iterable[Row], scope: Any, *, rank: int | None, time_ns: int, process: str = "", attempt: int = 1
) -> None:
    """Write into ``rows`` where and when they happened. What the recorder has set itself stays.

    Args:
        rows: Of one scope and moment; changed in place.
        scope: A ``probe.hooks.Scope``, duck-typed so that this module imports nothing.
        rank: The rank of this process.
        time_ns: Used where a row has none.
        process: The name of this process, unique in the run.
        attempt: The launch of the job that this process belongs to.
    """
    step, role, phase, micro_batch = scope.step, scope.role, scope.phase, scope.micro_batch
    scope_id, path = scope.id, scope.path
    for row in rows:
        row.attempt = attempt
        row.process = process
        row.rank = rank
        if not row.time_ns:
            row.time_ns = time_ns
        if row.step is None:
            row.step = step
        if row.role is None:
            row.role = role
        if row.phase is None:
            row.phase = phase
        if row.micro_batch is None:
            row.micro_batch = micro_batch
        if not row.scope_id:
            row.scope_id = scope_id
            row.scope = path
