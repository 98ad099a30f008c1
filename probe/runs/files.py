"""The files of a run directory, wherever it is: on this machine or behind any ``fsspec`` URL."""

from __future__ import annotations

import contextlib
import functools
import os
import posixpath
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import fsspec
from fsspec.implementations.local import LocalFileSystem

from probe.errors import InputTypeError, ProbeError, RunError
from probe.runs import version_1
from probe.runs.layout import PARTS_NAME, RunInfo, Segment, info_at, part_of, segment_of
from probe.runs.manifest import Manifest, decode_manifest, manifest_name, newest_manifest

#: Paths of the parts of a segment, by table.
Parts = dict[str, str]

#: Names that an object store lists in one answer, which is of one moment.
_PAGE: Final = 1000

#: Looks for a manifest that is replaced each time.
_TRIES: Final = 20


class Listing(NamedTuple):
    """The files that count, as they were at one look. A segment is in one of the three at least; where a manifest
    names it, in the manifest alone.
    """

    segments: set[Segment]  #: JSONL files
    parts: dict[Segment, Parts]
    manifest: Manifest


class RunFiles:
    """Lists and reads; holds nothing open.

    Args:
        path: A directory, or a URL such as ``s3://bucket/runs/project/experiment``.

    Raises:
        InputTypeError: It is no path.
        ValueError: The URL is of a kind that ``fsspec`` doesn't know.
        ImportError: The package for this kind of URL isn't installed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not isinstance(path, str | os.PathLike):
            raise InputTypeError(f"path: got {path!r}, expected the path or URL of a run directory")
        self.shown = os.fspath(path)
        files, root = fsspec.core.url_to_fs(self.shown)
        self.system: Any = files
        self.local = isinstance(files, LocalFileSystem)
        self.root = str(Path(root).absolute()) if self.local else root.rstrip("/")
        self._manifest = Manifest()

    @property
    def location(self) -> str:
        """The absolute path, or the whole URL."""
        return self.root if self.local else self.system.unstrip_protocol(self.root)

    def info(self) -> RunInfo:
        """See :func:`probe.runs.layout.read_info`."""
        with self.asking():
            return info_at(self.system, self.root, self.shown)

    def look(self) -> tuple[set[Segment], dict[Segment, Parts]]:
        """The segments that are JSONL files, and those that are Parquet (by table, the paths of the parts of those
        that aren't compacted).
        """
        found = self.listing()
        return found.segments, {**{one: {} for one in found.manifest.segments()}, **found.parts}

    def listing(self) -> Listing:
        """The files that count.

        In this order: a segment that isn't among the JSONL files any more has all its parts by then, and one that
        isn't among the parts any more is in a manifest by then.

        Raises:
            RunError: The manifest is broken, or the store doesn't answer.
        """
        segments = set(filter(None, map(segment_of, self._names(self.root))))
        names, manifest = self._compacted()
        gone = manifest.segments()
        parts: dict[Segment, Parts] = {}
        for name in names:
            found = part_of(name)
            if found is not None and found[1] not in gone:
                parts.setdefault(found[1], {})[found[0]] = f"{self.folder}/{name}"
        return Listing(segments - gone, parts, manifest)

    @functools.cached_property
    def has_old_rows(self) -> bool:
        """Whether rows of version 1 may be here: an older probe has begun the run, and a new one may go on in it."""
        try:
            return self.info().schema_version <= version_1.VERSION
        except RunError:  # there is no run.json, or a broken one: whoever needs it says so
            return False

    @property
    def folder(self) -> str:
        """Where parts and compacted files are."""
        return f"{self.root}/{PARTS_NAME}"

    def _compacted(self) -> tuple[list[str], Manifest]:
        for _ in range(_TRIES):
            names = self._names(self.folder)
            with contextlib.suppress(FileNotFoundError):  # the next one replaced it since we listed
                return names, self._manifest_of(names)
        raise RunError(f"run {self.shown!r}: manifests of compacted parts vanish while they are read")

    def _manifest_of(self, names: list[str]) -> Manifest:
        number = newest_manifest(names)
        if number != self._manifest.number:
            self._manifest = self._read_manifest(number) if number else Manifest()
        # A listing that isn't of one moment may miss a manifest that came meanwhile, and the files that it replaced.
        while self.local or len(names) >= _PAGE:
            try:
                self._manifest = self._read_manifest(self._manifest.number + 1)
            except FileNotFoundError:
                break
        return self._manifest

    def _read_manifest(self, number: int) -> Manifest:
        with self.asking():
            data = self.system.cat_file(f"{self.folder}/{manifest_name(number)}")
        return decode_manifest(data, self.shown)

    def _names(self, folder: str) -> list[str]:
        try:
            if self.local:
                return [path.name for path in Path(folder).iterdir()]
        except FileNotFoundError:
            return []
        return [posixpath.basename(one["name"].rstrip("/")) for one in self._listed_entries(folder)]

    def sizes(self, paths: Iterable[str]) -> dict[str, int]:
        """Bytes of files of the run, of those that are there."""
        wanted = set(paths)
        if self.local:
            found = {}
            for path in wanted:
                with contextlib.suppress(FileNotFoundError):
                    found[path] = Path(path).stat().st_size
            return found
        told = [*self._listed_entries(self.root), *self._listed_entries(self.folder)]
        return {one["name"]: int(one["size"]) for one in told if one["name"] in wanted}

    def _listed_entries(self, folder: str) -> list[dict[str, Any]]:
        try:
            with self.asking():
                self.system.invalidate_cache(folder)
                return list(self.system.ls(folder, detail=True))
        except FileNotFoundError:
            return []

    def read(self, segment: Segment, begin: int) -> bytes | None:
        """What the JSONL file holds from byte ``begin`` on; None where it's shorter than that.

        Raises:
            FileNotFoundError: It was rolled over.
            RunError: Its store doesn't answer, or refuses.
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
