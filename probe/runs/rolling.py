"""When the segments of a process become Parquet while it writes, and at its end."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from probe.guard import Guard
from probe.hooks import silenced
from probe.runs.incidents import Incidents
from probe.runs.layout import Segment
from probe.runs.parts import can_roll_over, roll_over, warm_up
from probe.runs.segment_file import SegmentFile


class RollOvers:
    """The segments of one writer that become Parquet, one after the other. Only for the writer's thread, but for
    :attr:`cpu_ns`.

    Args:
        file: Where the writer writes its lines.
        size: A file larger than so many bytes becomes Parquet, and a new one begins.
        report: Is told of a segment that stays as lines.

    Attributes:
        resting: Whether nothing has happened since all that is written became Parquet.
    """

    def __init__(self, file: SegmentFile, size: int, report: Incidents) -> None:
        self.resting = False
        self._directory = file.directory
        self._file = file
        self._bytes = size
        # The file of lines is still there and whole: readers use it as it is.
        self._guard = report.guard("roll_over", "a segment stays as JSONL")
        self._rolling: RollOver | None = None
        self._rolled_cpu_ns = 0  # that those have used which have ended
        self._sealing = False  # what is written is to become Parquet as soon as nothing waits
        self._can_roll_over = can_roll_over()

    @property
    def cpu_ns(self) -> int:
        """CPU time that they have used, nanoseconds."""
        rolling = self._rolling
        return self._rolled_cpu_ns + (0 if rolling is None else rolling.cpu_ns)

    def seal(self) -> None:
        """Make Parquet of what is written as soon as nothing waits."""
        self._sealing = True

    def advance(self, *, idle: bool) -> None:
        """See to what is under way, and begin with what is due.

        Args:
            idle: Whether no row is waiting to be built.
        """
        if self._rolling is not None and self._rolling.ended():
            self._end(self._rolling)
        due = self._file.size > self._bytes or (self._sealing and idle)
        if self._rolling is None and due and not self._file.waiting:
            segment = self._file.finish()  # also where lines stay lines: no file grows for ever
            self.resting, self._sealing = self._sealing, False
            if segment is not None and self._can_roll_over:
                self._rolling = RollOver(self._directory, segment, self._guard)
                self._rolling.start()

    def _end(self, rolling: RollOver) -> None:
        rolling.join()
        self._rolled_cpu_ns += rolling.cpu_ns
        self._rolling = None

    def settle(self) -> None:
        """Wait for what is under way."""
        if self._rolling is not None:
            self._end(self._rolling)

    def finish(self, *, parquet: bool) -> None:
        """End the file.

        Args:
            parquet: Whether it becomes Parquet.
        """
        segment = self._file.finish()
        if segment is not None and parquet and self._can_roll_over:
            RollOver(self._directory, segment, self._guard).run()


class RollOver:
    """A segment on its way to Parquet: importing pyarrow and syncing may take longer than lines can wait.

    Args:
        directory: The run directory.
        segment: One that has ended.
        guard: Of what may fail in it.

    Attributes:
        cpu_ns: CPU time that it has used so far.
    """

    def __init__(self, directory: Path, segment: Segment, guard: Guard) -> None:
        self.cpu_ns = 0
        self._directory, self._segment = directory, segment
        self._guard = guard
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Run it in a thread of its own; here where the system gives none."""
        thread = threading.Thread(target=self.run, name="probe-roll-over", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self.run()
        else:
            self._thread = thread

    def run(self) -> None:
        """Run it here."""
        begin_ns = time.thread_time_ns()
        try:
            with self._guard:
                warm_up()
                with silenced():
                    for _ in roll_over(self._directory, self._segment):
                        self.cpu_ns = time.thread_time_ns() - begin_ns
        finally:
            self.cpu_ns = time.thread_time_ns() - begin_ns

    def ended(self) -> bool:
        """Whether its thread has ended, or it needed none."""
        return self._thread is None or not self._thread.is_alive()

    def join(self) -> None:
        """Wait for its end."""
        if self._thread is not None:
            self._thread.join()
