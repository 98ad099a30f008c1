"""Seconds since a run's start, told by the clocks of its processes."""

from __future__ import annotations

import math
from collections.abc import Iterable

from probe.records import Process, Row


class Clocks:
    """Seconds since the run's start, from each process's own clock.

    Args:
        start_ns: Wall-clock time of the run's start; 0 where it isn't known: then that of the first process counts.
    """

    def __init__(self, start_ns: int = 0) -> None:
        self.start_ns = start_ns
        self._offsets: dict[str, int] = {}  # by process: wall clock − monotonic

    def begin(self, processes: Iterable[Process]) -> None:
        """Know the start at the latest now, if any process is known."""
        if not self.start_ns:
            self.start_ns = min((one.wall_ns for one in processes), default=0)

    def set(self, process: Process) -> None:
        """Rows of ``process`` have its clock."""
        self._offsets[process.process] = process.wall_ns - process.time_ns

    def seconds(self, row: Row, before_ns: int = 0) -> float:
        """When ``row`` happened, or so long before; NaN where its process never said what time it is."""
        offset = self._offsets.get(row.process)
        return math.nan if offset is None else (row.time_ns + offset - before_ns - self.start_ns) / 1e9
