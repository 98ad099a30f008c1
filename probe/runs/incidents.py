"""What a process that writes to a run tells there of its own failures and losses, as incident rows."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Mapping
from pathlib import Path

from probe.guard import Guard
from probe.hooks import current_scope
from probe.records import Incident
from probe.runs.attempts import Claim
from probe.runs.lines import table_of
from probe.runs.shedding import KEPT, Shedding

_log = logging.getLogger("probe.runs")


class Incidents:
    """Puts incident rows among those that wait to be written; called from any thread.

    Args:
        queue: Where rows wait.
    """

    def __init__(self, queue: Shedding) -> None:
        self._queue = queue
        self._told_dropped: dict[str, int] = {}

    def __call__(
        self,
        kind: str,
        where: str,
        message: str,
        error: BaseException | None = None,
        count: int = 1,
        switched_off: bool = False,
    ) -> None:
        """Write an incident, with the rows that come.

        Args:
            kind: Of the incident.
            where: What it happened to.
            message: What happened.
            error: What was raised; its traceback is kept.
            count: How often it happened by now, or to how many rows.
            switched_off: Whether it can't happen any more, as what fails is not called again.
        """
        trace = None if error is None else "".join(traceback.format_exception(error))
        row = Incident(kind=kind, where=where, message=message, traceback=trace, count=count, switched_off=switched_off)
        self._queue.add(KEPT, table_of(row), row, current_scope(), time.monotonic_ns())

    def each(self, kind: str, where: str, message: str, error: BaseException | None, count: int, off: bool) -> None:
        """Write one of many incidents that are alike, each of which counts for itself.

        Args:
            kind: Of the incident.
            where: What it happened to.
            message: What happened.
            error: What was raised; its traceback is kept.
            count: How often it happened by now, which the rows before this one have told.
            off: Whether it can't happen any more.
        """
        del count
        self(kind, where, message, error, switched_off=off)

    def guard(self, where: str, failed: str) -> Guard:
        """Around what the writer tries again however often it fails: an incident each time.

        Args:
            where: What it is.
            failed: What a reader is told; the exception is added.
        """
        return Guard(where, failed, kind="writer", tell=self.each, most=None, log=_log)

    def tell_dropped(self, dropped: Mapping[str, int]) -> None:
        """Tell of rows that were dropped since the last call.

        Args:
            dropped: How many were dropped so far, by table.
        """
        for table, count in dropped.items():
            new = count - self._told_dropped.get(table, 0)
            if new:
                self._told_dropped[table] = count
                message = f"{new} rows of {table} were dropped: more were waiting than the writer keeps"
                self("dropped_rows", table, message, count=new)

    def tell_rival(self, directory: Path, rank: int | None, rival: Claim) -> None:
        """Tell that another process records as this rank.

        Args:
            directory: The run directory.
            rank: Of this process.
            rival: What the other one has claimed.
        """
        where = f"process {rival.pid} on {rival.host}" if rival.pid else "another process"
        message = f"{where} records as rank {rank} of this attempt, too: both are shown under that rank"
        _log.warning("%s: %s", directory, message)
        self("writer", f"rank {rank}", message)
