"""Who copies a run to a store: what they agree on by files beside the run, in its folder ``sync/``.

One process at a time copies a run to a place, and on each machine at most one waits for that. Sessions that want the
copy hold a lock together, so that the one that copies knows whether others of its machine still record.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import time
from pathlib import Path
from typing import Final

import msgspec

from probe._io import FileLock, write_atomically

#: The folder of a run in which a copying process says that it is there.
FOLDER: Final = "sync"

#: Other names of a store's kind.
_ALSO: Final = {"s3a": "s3", "gcs": "gs", "abfss": "abfs"}

#: How often a lock is tried that others have for a moment only, and the pause between, seconds.
_TRIES: Final = 20
_PAUSE_S: Final = 0.01


class Passes(msgspec.Struct):
    """Numbers of the passes over a run, by whatever processes."""

    begun: int = 0
    completed: int = 0


class Copiers:
    """The files by which those who copy ``directory`` to ``url`` know of one another.

    Args:
        directory: A run directory of this machine.
        url: Where the copy is to be. Nothing is opened there.
    """

    def __init__(self, directory: Path, url: str) -> None:
        self._folder = directory / FOLDER
        self._key = hashlib.sha256(_plain(url).encode()).hexdigest()[:12]
        self._here = f"{self._key}.{re.sub(r'[^A-Za-z0-9.-]', '_', platform.node())[:80]}"
        self._told = self._folder / f"{self._key}.json"

    def lock(self) -> FileLock:
        """Of the one that copies.

        Raises:
            OSError: The run directory can't be written to.
        """
        return self._lock(f"{self._key}.lock")

    def machine_lock(self) -> FileLock:
        """Of the one process of this machine that copies, or waits for another machine's to end.

        Raises:
            OSError: The run directory can't be written to.
        """
        return self._lock(f"{self._here}.lock")

    def use(self) -> FileLock:
        """Say that this process records and wants the copy, until the lock is released or the process ends.

        Raises:
            OSError: The run directory can't be written to.
        """
        lock = self._lock(f"{self._here}.users", shared=True)
        for _ in range(_TRIES):  # who looks whether anybody uses it has it for a moment
            if lock.acquire():
                break
            time.sleep(_PAUSE_S)
        return lock

    def is_used(self) -> bool:
        """Whether some process of this machine records and wants the copy; False where there are no locks."""
        return self._is_locked(f"{self._here}.users")

    def has_machine_lock(self) -> bool:
        """Whether a process of this machine copies."""
        return self._is_locked(f"{self._here}.lock")

    def passes(self) -> Passes:
        """Those that whoever has the lock has begun and completed."""
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            return msgspec.json.decode(self._told.read_bytes(), type=Passes)
        return Passes()

    def tell_pass(self, *, begins: bool, number: int = 0) -> int:
        """A pass begins or is complete.

        Args:
            begins: Whether it begins.
            number: Of the pass that is complete.

        Returns:
            Its number.
        """
        before = self.passes()
        now = Passes(before.begun + 1, before.completed) if begins else Passes(before.begun, number)
        with contextlib.suppress(OSError):  # there is no lock, or no run any more: the pass itself tells
            write_atomically(self._told, msgspec.json.encode(now))
        return now.begun

    def _lock(self, name: str, *, shared: bool = False) -> FileLock:
        self._folder.mkdir(exist_ok=True)
        return FileLock(self._folder / name, shared=shared)

    def _is_locked(self, name: str) -> bool:
        with contextlib.suppress(OSError):  # the run is gone: so is everybody
            lock = self._lock(name)
            if not lock.acquire():
                return True
            lock.release()
        return False


def _plain(url: str) -> str:
    """One text for one place, however it is written.

    >>> _plain("s3a://bucket/run/"), _plain("copies/../first") == _plain("first")
    ('s3://bucket/run', True)
    """
    protocol, found, rest = url.partition("://")
    if not found or protocol in ("file", "local"):
        return f"file://{os.path.abspath(os.path.expanduser(rest if found else url))}"  # noqa: PTH100, PTH111  # a text
    return f"{_ALSO.get(protocol, protocol)}://{rest.rstrip('/')}"
