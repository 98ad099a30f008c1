"""One process at a time: a lock on a file, let go of by the system when its process dies."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

_held: Final[set[str]] = set()
_guard: Final = threading.Lock()


class Lock:
    """Tried once, when it is made.

    It is POSIX's record lock, which children don't inherit: a data loader's process that survives its trainer keeps
    nobody out. Such locks don't tell two users in one process apart, so that this module does.

    Attributes:
        taken: Whether it is ours. Where the file system has no locks it is.
    """

    def __init__(self, path: Path) -> None:
        self._name = str(path.resolve())
        self._file: int | None = None
        with _guard:
            self.taken = self._name not in _held and self._lock(path)
            if self.taken:
                _held.add(self._name)

    def _lock(self, path: Path) -> bool:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            import fcntl
        except ImportError:  # Windows
            return True
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            os.close(self._file)
            self._file = None
            return False
        except OSError:  # some network file systems have none
            return True
        return True

    def release(self) -> None:
        """Let go. Safe to call twice."""
        with _guard:
            if self._file is not None:
                os.close(self._file)
                self._file = None
                _held.discard(self._name)
