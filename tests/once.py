"""What takes long to make is made once, by the first of pytest's workers that asks for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from probe._io import FileLock


def once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A directory of this run of pytest, for all workers.

    Args:
        tmp_path_factory: pytest's.
        name: Of the directory.
        make: Fills it; where that fails, the next who asks tries again in a directory of its own.

    Returns:
        The directory, which nobody may change.
    """
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # each worker has one of its own below
    told, lock = root / f"{name}.made", FileLock(root / f"{name}.lock")
    lock.acquire(before_waiting=lambda: None)
    try:
        if not told.exists():
            made = tmp_path_factory.mktemp(name)
            make(made)
            told.write_text(str(made))
        return Path(told.read_text())
    finally:
        lock.release()
