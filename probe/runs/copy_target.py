"""The place of a run's copy: a store of any kind, whose files are there whole or not at all."""

from __future__ import annotations

import contextlib
import posixpath
from pathlib import Path
from typing import Any, Final

from fsspec.implementations.local import LocalFileSystem

from probe._io import ASIDE, write_atomically
from probe.errors import InputError, RunError
from probe.guard import raised_as
from probe.redaction import without_secrets
from probe.runs.layout import FAILURES_NAME, PARTS_NAME, Segment, part_of
from probe.runs.pieces import Piece, piece_of, unpack
from probe.runs.place import system_of

#: Stores in which an object appears when it is complete. In others a file is written aside and renamed.
COMPLETE: Final = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "memory"})


class Target:
    """The place of the copy: its names, and writing so that a file is there whole or not at all.

    Args:
        url: Of the place.
        shown: The same without its secrets.

    Attributes:
        files: Bytes of each file, by its name below the place.

    Raises:
        InputError: ``url`` can't be opened.
    """

    def __init__(self, url: str, shown: str) -> None:
        def unopened(error: Exception) -> InputError:
            return InputError(f"url: {shown!r} can't be opened: {without_secrets(str(error), True)}")

        with raised_as(unopened, but=(), chained=False):
            system, root = system_of(url)  # an unknown protocol, a missing package, a client's own refusal
        self.files: dict[str, int] = {}
        self._system: Any = system
        self._shown = shown
        self._root = root.rstrip("/")
        self._local = isinstance(system, LocalFileSystem)
        protocols = {system.protocol} if isinstance(system.protocol, str) else set(system.protocol)
        self._complete = not protocols.isdisjoint(COMPLETE)
        self._pieces: dict[Segment, set[Piece]] = {}
        self._parts: set[Segment] = set()
        self._looked = False

    def look(self) -> None:
        """List the copy, where that wasn't done since something went wrong."""
        if self._looked:
            return
        self.files, self._pieces, self._parts = {}, {}, set()
        for folder in ("", f"{PARTS_NAME}/", f"{FAILURES_NAME}/"):
            for entry in self._entries(f"{self._root}/{folder}".rstrip("/")):
                if entry["type"] != "directory":
                    self._note(f"{folder}{posixpath.basename(entry['name'])}", int(entry["size"] or 0))
        self._looked = True

    def _entries(self, folder: str) -> list[dict[str, Any]]:
        with self._asking():
            try:
                self._system.invalidate_cache(folder)
                return list(self._system.ls(folder, detail=True))
            except FileNotFoundError:
                return []

    def _note(self, name: str, size: int) -> None:
        self.files[name] = size
        piece, part = piece_of(name), part_of(posixpath.basename(name))
        if piece is not None:
            self._pieces.setdefault(piece.segment, set()).add(piece)
        if part is not None:
            self._parts.add(part[1])

    def forget(self) -> None:
        """The next :meth:`look` lists it again."""
        self._looked = False

    def pieces(self, segment: Segment) -> list[Piece]:
        """Of one segment, all that are there."""
        return sorted(self._pieces.get(segment, ()))

    def has_parts(self, segment: Segment) -> bool:
        """Whether some of its parts are there."""
        return segment in self._parts

    def read(self, name: str) -> bytes:
        """The content of a file."""
        with self._asking():
            return bytes(self._system.cat_file(f"{self._root}/{name}"))

    def read_piece(self, piece: Piece) -> bytes:
        """The lines of a piece."""
        with self._asking():
            return unpack(bytes(self._system.cat_file(f"{self._root}/{piece.name}")), piece)

    def put(self, name: str, content: bytes) -> None:
        """Write a file whole."""
        path = f"{self._root}/{name}"
        with self._asking():
            self._make_folder(path)
            if self._local:
                write_atomically(Path(path), content)
            elif self._complete:
                self._system.pipe_file(path, content)
            else:
                self._system.pipe_file(f"{path}{ASIDE}", content)
                self._system.mv(f"{path}{ASIDE}", path)
        self._note(name, len(content))

    def put_file(self, source: Path, name: str) -> None:
        """Copy a file whole."""
        path = f"{self._root}/{name}"
        size = source.stat().st_size
        with self._asking():
            self._make_folder(path)
            aside = path if self._complete else f"{path}{ASIDE}"
            self._system.put_file(str(source), aside)
            if aside != path:
                self._system.mv(aside, path)
        self._note(name, size)

    def _make_folder(self, path: str) -> None:
        if not self._complete:
            self._system.makedirs(posixpath.dirname(path), exist_ok=True)

    def remove(self, name: str) -> None:
        """Delete a file; one that is gone already is none."""
        with self._asking(), contextlib.suppress(FileNotFoundError):
            self._system.rm_file(f"{self._root}/{name}")
        self.files.pop(name, None)
        piece = piece_of(name)
        if piece is not None:
            self._pieces[piece.segment].discard(piece)

    def _asking(self) -> raised_as:
        """A block: a store that doesn't answer, or refuses, is a RunError, and so is one that has no such bucket."""
        return raised_as(self._unusable, chained=False)

    def _unusable(self, error: Exception) -> RunError:
        """Each client has errors of its own, most of them no OSError."""
        said = without_secrets(f"{type(error).__name__}: {error}", True)
        return RunError(f"{self._shown} can't be used: {said}")
