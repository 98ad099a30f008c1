"""The files of a run directory, wherever it is: on this machine or behind any ``fsspec`` URL."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from probe.errors import InputTypeError, ProbeError, RunError
from probe.runs.layout import PARTS_NAME, RunInfo, Segment, info_at, part_of, segment_of

#: Paths of the parts of a segment, by table.
Parts = dict[str, str]


class RunFiles:
    """Lists and reads; holds nothing open.

    Args:
        path: a directory, or a URL such as ``s3://bucket/runs/project/experiment``.

    Raises:
        InputTypeError: no path. MissingDependencyError and others of ``fsspec``: an unknown kind of URL.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not isinstance(path, str | os.PathLike):
            raise InputTypeError(f"path: got {path!r}, expected the path or URL of a run directory")
        self.shown = os.fspath(path)
        files, root = fsspec.core.url_to_fs(self.shown)
        self.system: Any = files
        self.local = isinstance(files, LocalFileSystem)
        self.root = str(Path(root).absolute()) if self.local else root.rstrip("/")

    @property
    def location(self) -> str:
        """The absolute path, or the whole URL."""
        return self.root if self.local else self.system.unstrip_protocol(self.root)

    def info(self) -> RunInfo:
        """See :func:`probe.runs.layout.read_info`."""
        with self.asking():
            return info_at(self.system, self.root, self.shown)

    def look(self) -> tuple[set[Segment], dict[Segment, Parts]]:
        """The segments that are JSONL files, and the parts.

        In this order: a segment that isn't among the first any more has all its parts by then.
        """
        segments = set(filter(None, map(segment_of, self._names(self.root))))
        folder = f"{self.root}/{PARTS_NAME}"
        parts: dict[Segment, Parts] = {}
        for name in self._names(folder):
            found = part_of(name)
            if found is not None:
                parts.setdefault(found[1], {})[found[0]] = f"{folder}/{name}"
        return segments, parts

    def _names(self, folder: str) -> list[str]:
        try:
            if self.local:
                return [path.name for path in Path(folder).iterdir()]
            with self.asking():
                self.system.invalidate_cache(folder)
                return [posixpath.basename(path.rstrip("/")) for path in self.system.ls(folder, detail=False)]
        except FileNotFoundError:
            return []

    def read(self, segment: Segment, begin: int) -> bytes | None:
        """What the JSONL file holds from byte ``begin`` on; None where it's shorter than that.

        Raises:
            FileNotFoundError: it was rolled over. RunError: its store doesn't answer, or refuses.
        """
        path = f"{self.root}/{segment.name}"
        if self.local:
            with Path(path).open("rb") as file:
                if os.fstat(file.fileno()).st_size < begin:
                    return None
                file.seek(begin)
                return file.read()
        with self.asking():
            self.system.invalidate_cache(self.root)
            size = self.system.size(path)
            if size <= begin:
                return b"" if size == begin else None
            return self.system.cat_file(path, start=begin, end=size)  # type: ignore[no-any-return]  # fsspec is untyped

    @contextmanager
    def asking(self) -> Iterator[None]:
        """A store that doesn't answer is a RunError; that a file isn't there is an answer."""
        try:
            yield
        except (ProbeError, FileNotFoundError):
            raise
        except Exception as error:  # isolation boundary: each client has its own errors, most of them no OSError
            if self.local:
                raise
            raise RunError(f"run {self.shown!r}: its store can't be read: {type(error).__name__}: {error}") from error
