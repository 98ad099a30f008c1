"""Where a run is: a path of this machine, or a URL of any kind that ``fsspec`` knows."""

from __future__ import annotations

import os
from typing import Any

import fsspec


def system_of(place: str | os.PathLike[str]) -> tuple[Any, str]:
    """The file system of a place, and its name there.

    A URL has ``://`` in it. ``fsspec`` takes ``job::2`` for a chain of two and opens ``job``, another run: a path of
    this machine is itself, whatever is in it, and a chain such as ``simplecache::s3://bucket/run`` stays one.

    Args:
        place: A path or URL.

    Raises:
        ValueError: ``fsspec`` knows no such kind of URL.
        ImportError: The package for it isn't installed.

    >>> system_of("/runs/job::2")[1]
    '/runs/job::2'
    >>> system_of("memory://runs/job")[1]
    '/runs/job'
    """
    given = os.fspath(place)
    if "://" in given:
        files, root = fsspec.core.url_to_fs(given)
        return files, str(root)
    local = fsspec.filesystem("file")
    return local, str(local._strip_protocol(f"file://{given}"))  # else "file:" of "file::job" would go
