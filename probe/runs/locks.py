"""A lock that says "this process is writing here", which the system lets go of when the process ends in any way.

It is advisory, and seen on every machine that mounts the directory where its file system supports that. Where there are
no such locks nothing is locked: who asks has to find out by other means.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def hold(descriptor: int) -> bool:
    """Lock an open file or directory for as long as it is open; False where somebody else has it locked."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # a system, or a file system, without such locks
        return True
    return True


@contextlib.contextmanager
def holding(path: Path) -> Iterator[bool]:
    """Lock ``path`` meanwhile; False where somebody else has it locked.

    Raises:
        FileNotFoundError: There is no such file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield hold(descriptor)
    finally:
        os.close(descriptor)
