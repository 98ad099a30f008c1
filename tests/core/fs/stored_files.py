"""Files of a store, and what lies in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

NAMED = "memory://store/model"


def put(store: Any, **files: bytes) -> None:
    """Files below :data:`NAMED`; in their names, ``_`` stands for a dot and ``__`` for a slash."""
    for name, content in files.items():
        store.pipe_file("/store/model/" + name.replace("__", "/").replace("_", "."), content)


def tree(folder: str | Path) -> dict[str, bytes]:
    """What the files of a folder hold."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def left(folder: str | Path) -> list[str]:
    """What lies in a cache."""
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*")) if Path(folder).exists() else []
