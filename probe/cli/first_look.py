"""Work out what the views of a large run ask first, so that it is there when somebody opens it.

``probe compact`` does so at its end. ``python -m probe.cli.first_look RUN`` is the process that the end of a session
leaves behind: it waits until all processes of the run have ended.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from probe._io import FileLock
from probe.errors import ProbeError
from probe.runs import answers
from probe.runs.files import RunFiles
from probe.runs.layout import PARTS_NAME
from probe.runs.liveness import all_gone

#: So long the other processes of a run are waited for, seconds, and so long between two looks at them.
WAIT_S: Final = 600.0
LOOK_S: Final = 2.0

#: Held by who works them out: one process is enough.
LOCK_NAME: Final = "in_progress"


def work_out(place: str) -> None:
    """Have the answers kept that the panel, the overview, the report and ``probe tail`` ask first.

    Args:
        place: The run directory.

    Raises:
        RunError: It can't be read.
        SchemaVersionError: A newer probe wrote it.
    """
    from probe.cli import tail
    from probe.views.first_look import work_out

    work_out(place)
    tail.once(place)


def main(argv: Sequence[str] | None = None) -> int:
    """Wait for the end of a run, and work its answers out where it is large."""
    (place,) = sys.argv[1:] if argv is None else argv
    _step_back()
    try:
        if not _has_ended(place) or _size(place) < answers.LEAST_BYTES:
            return 0
        folder = Path(place) / answers.FOLDER
        folder.mkdir(exist_ok=True)
        lock = FileLock(folder / LOCK_NAME)
        if not lock.acquire():
            return 0
        try:
            work_out(place)
        finally:
            with contextlib.suppress(OSError):
                (folder / LOCK_NAME).unlink(missing_ok=True)
            lock.release()
    except (ProbeError, OSError):  # it is gone, or belongs to somebody else: the first reader works them out
        return 1
    return 0


def _has_ended(place: str) -> bool:
    """Whether all rows of the run are in Parquet; those of its processes that are on their way out are waited for."""
    files, until = RunFiles(place), time.monotonic() + WAIT_S
    while any(Path(place).glob("*.jsonl")):
        if time.monotonic() > until or all_gone(files):  # those that were killed leave their JSONL files as they are
            return False
        time.sleep(LOOK_S)
    return True


def _size(place: str) -> int:
    return sum(one.stat().st_size for one in (Path(place) / PARTS_NAME).glob("*.parquet"))


def _step_back() -> None:
    """Whatever else runs on this machine goes first: in processor time, and when memory runs out."""
    with contextlib.suppress(OSError, AttributeError):
        os.nice(19)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    sys.exit(main())
