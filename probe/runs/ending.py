"""The end of a launch, told to processes that nobody asks to end: Ray ends its actors without ``atexit``.

The driver says that it has come to its end in a file of the run, ``attempts/<n>/ended``. Actors look for it in the
rounds of their writers, on every machine that has the run directory, and make Parquet of what they have written; the
driver waits for that, and then for nothing more. What processes have left that Ray had ended before becomes Parquet
too. A driver that was killed says nothing, and what its actors leave looks like what it is.
"""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from probe._io import holding, write_atomically
from probe.errors import RunError
from probe.records import Process
from probe.runs.attempts import ATTEMPTS_NAME, actors
from probe.runs.files import RunFiles
from probe.runs.layout import Segment
from probe.runs.liveness import QUIET_S, state_of, why_alive, writer_of
from probe.runs.parts import can_roll_over, roll_over

ENDED_NAME: Final = "ended"

#: How long a driver waits for its actors at most, seconds.
WAIT_S: Final = 10.0

#: Between two looks at their files, seconds.
_LOOK_S: Final = 0.05


def told_ns(directory: Path, attempt: int) -> int:
    """When the driver of an attempt has said that it ends: nanoseconds since the epoch, 0 while it hasn't.

    Args:
        directory: The run directory.
        attempt: Its number.
    """
    try:
        return (directory / ATTEMPTS_NAME / str(attempt) / ENDED_NAME).stat().st_mtime_ns
    except OSError:
        return 0


def end(directory: Path, attempt: int, *, wait_s: float = WAIT_S) -> None:
    """Say that the driver of an attempt ends, wait until its actors have made Parquet of their rows, and do so for
    those of its processes that are gone.

    Args:
        directory: The run directory.
        attempt: Its number.
        wait_s: How long actors are waited for at most, seconds.

    Raises:
        OSError: The directory can't be written to.
        RunError: It can't be read.
    """
    folder = directory / ATTEMPTS_NAME / str(attempt)
    if not folder.is_dir():
        return  # nobody has recorded
    write_atomically(folder / ENDED_NAME, str(time.time_ns()).encode())
    until = time.monotonic() + wait_s
    while time.monotonic() < until and _writing(directory, attempt):
        time.sleep(_LOOK_S)
    seal(directory, attempt)


def seal(directory: Path, attempt: int | None) -> list[str]:
    """Make Parquet of what the processes of an attempt have written that are gone.

    Args:
        directory: The run directory.
        attempt: Its number; None for all.

    Returns:
        Names of the JSONL files that became Parquet; none where pyarrow isn't installed.

    Raises:
        OSError: A file can't be written.
        RunError: The directory can't be read.
    """
    files = RunFiles(directory)
    sealed: list[str] = []
    if not can_roll_over():
        return sealed
    for segment, _ in _open_segments(files, attempt):
        path = directory / segment.name
        with contextlib.suppress(FileNotFoundError), holding(path) as free:
            if free and why_alive(files, segment, force=False) is None:
                for _ in roll_over(directory, segment):
                    pass
                sealed.append(segment.name)
    return sealed


def seal_ended(directory: Path, attempt: int, *, wait_s: float = WAIT_S) -> None:
    """As :func:`seal`, when Ray has just ended its actors on this machine: those that are still on their way out are
    waited for.

    Args:
        directory: The run directory.
        attempt: Its number.
        wait_s: How long they are waited for at most, seconds.

    Raises:
        OSError: A file can't be written.
        RunError: The directory can't be read.
    """
    until = time.monotonic() + wait_s
    seal(directory, attempt)
    while time.monotonic() < until and _writing(directory, attempt):
        time.sleep(_LOOK_S)
    seal(directory, attempt)


def _open_segments(files: RunFiles, attempt: int | None) -> Iterator[tuple[Segment, Process]]:
    """The JSONL files of an attempt, and who wrote them."""
    for segment in sorted(files.look()[0]):
        with contextlib.suppress(FileNotFoundError, RunError):
            process = writer_of(files, segment)
            if process is not None and attempt in (None, process.attempt):
                yield segment, process


def _writing(directory: Path, attempt: int) -> bool:
    """Whether an actor that may live has a JSONL file still."""
    living = actors(directory, attempt)
    for segment, process in _open_segments(RunFiles(directory), attempt):
        if (process.host, process.pid) in living and _may_live(directory / segment.name, process):
            return True
    return False


def _may_live(path: Path, process: Process) -> bool:
    with contextlib.suppress(FileNotFoundError):
        if process.host != platform.node():  # its lock may not be seen here
            return time.time() - path.stat().st_mtime < QUIET_S
        with holding(path) as free:  # it is let go of before it becomes Parquet, which may take an import of pyarrow
            return not free or (can_roll_over() and state_of(process) == "running")
    return False
