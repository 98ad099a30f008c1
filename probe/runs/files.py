"""The files of a run directory, wherever it is: on this machine or behind any ``fsspec`` URL."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from fsspec.implementations.local import LocalFileSystem

from probe.errors import InputTypeError, ProbeError, RunError
from probe.guard import raised_as
from probe.redaction import without_secrets
from probe.runs import version_1
from probe.runs.columns import either_schema, schema
from probe.runs.layout import PARTS_NAME, RunInfo, Segment, info_at, is_now_file, part_of, segment_of
from probe.runs.manifest import Bundle, Manifest, decode_manifest, manifest_name, newest_manifest
from probe.runs.pieces import Piece, cover, piece_of, unpack
from probe.runs.place import system_of
from probe.runs.row_types import row_type

#: Paths of the parts of a segment, by table.
Parts = dict[str, str]

#: Names that an object store lists in one answer, which is of one moment.
_PAGE: Final = 1000

#: Damaged files that a sentence names.
_NAMED: Final = 4

_log = logging.getLogger("probe.runs")

#: Looks for a manifest that is replaced each time.
_TRIES: Final = 20


class Damaged(NamedTuple):
    """A Parquet file of a run that can't be read. It is left out, with the rows that it held."""

    name: str  #: the file's, in ``parts/``
    why: str  #: what its reader says


def damage(found: Sequence[Damaged]) -> str:
    """What is left out of a run and what helps, as a sentence; "" where nothing is.

    >>> damage([Damaged("memory-rank00000-0.parquet", "no footer")])[:88]
    '1 damaged file is left out, with the rows that it held: memory-rank00000-0.parquet (no f'
    """
    if not found:
        return ""
    one = len(found) == 1
    named = ", ".join(f"{each.name} ({each.why})" for each in found[:_NAMED])
    more = f" and {len(found) - _NAMED:,} more" if len(found) > _NAMED else ""
    them, they = ("it", "it held") if one else ("them", "they held")
    return (
        f"{len(found):,} damaged file{' is' if one else 's are'} left out, with the rows that {they}: {named}{more}. "
        f"Put {them} back from a copy, or delete {them} and the run reads as it does now."
    )


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
        given = os.fspath(path)
        self.shown = without_secrets(given, True) if "://" in given else given  # as errors and log lines call it
        files, root = system_of(given)
        self.system: Any = files
        self.local = isinstance(files, LocalFileSystem)
        self.root = str(Path(root).absolute()) if self.local else root.rstrip("/")
        self._manifest = Manifest()
        self._pieces: dict[Segment, list[Piece]] = {}  # of JSONL files that are here in pieces alone
        self._damaged: dict[str, Damaged] = {}  # by path
        self._whole: set[str] = set()  # files that were read to their end
        self._sound = Manifest()  # the manifest without damaged files

    @property
    def damaged(self) -> list[Damaged]:
        """The Parquet files that can't be read, as far as somebody has come upon one; they aren't listed."""
        return sorted(self._damaged.values())

    def examine(self) -> bool:
        """Read all Parquet files to their end, where that wasn't done yet: somebody has come upon one that is damaged.

        Returns:
            Whether some were found that can't be read. They are left out from the next look on, which is logged.
        """
        listed = self.listing()
        paths = {path for tables in listed.parts.values() for path in tables.values()}
        paths |= {f"{self.folder}/{name}" for name in listed.manifest.names()}
        rows = {
            f"{self.folder}/{file.name}": file.rows
            for bundle in listed.manifest.bundles
            for files in bundle.files.values()
            for file in files
        }
        found: dict[str, Damaged] = {}
        for path in sorted(paths - self._whole):
            why = self._unreadable(path, rows.get(path))
            if why:
                found[path] = Damaged(posixpath.basename(path), why)
            else:
                self._whole.add(path)
        self._damaged.update(found)
        if found:
            _log.warning("run %s: %s", self.shown, damage(self.damaged))
        return bool(found)

    def _unreadable(self, path: str, rows: int | None) -> str:
        """Why a Parquet file can't be used; "" where it can, and where it went meanwhile."""
        import pyarrow as pa

        count = 0
        try:
            for batch in self._batches(path):
                count += batch.num_rows
        except FileNotFoundError:
            return ""
        except (pa.ArrowException, OSError, EOFError) as error:
            why = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
            return why.removeprefix(f"Could not open Parquet input source '{path}': ")  # it is named anyhow
        return "" if rows in (None, count) else f"it has {count} rows, and {rows} by the manifest"

    def _batches(self, path: str) -> Iterator[Any]:
        """All of a file, with the columns of its table."""
        import pyarrow.dataset as ds

        table = posixpath.basename(path).partition("-")[0]
        known = row_type(table) is not None
        columns = None if not known else either_schema(table) if self.has_old_rows else schema(table)
        system = None if self.local else self.system
        return iter(ds.dataset([path], schema=columns, filesystem=system, format="parquet").to_batches())

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
        segments = self._segments(self._names(self.root))
        names, manifest = self._compacted()
        gone = manifest.segments()
        parts: dict[Segment, Parts] = {}
        for name in names:
            found = part_of(name)
            if found is not None and found[1] not in gone:
                tables, path = parts.setdefault(found[1], {}), f"{self.folder}/{name}"
                if path not in self._damaged:
                    tables[found[0]] = path
        return Listing(segments - gone, parts, self._without_damaged(manifest))

    def _segments(self, names: list[str]) -> set[Segment]:
        """Those that are JSONL files, in one piece or in several."""
        whole = set(filter(None, map(segment_of, names)))
        pieces: dict[Segment, list[Piece]] = {}
        for piece in filter(None, map(piece_of, names)):
            if piece.segment not in whole:
                pieces.setdefault(piece.segment, []).append(piece)
        covers = {segment: cover(found) for segment, found in pieces.items()}
        self._pieces = {segment: found for segment, found in covers.items() if found}
        return whole | self._pieces.keys()

    def now_paths(self) -> list[str]:
        """The files that say where each process is now, see :mod:`probe.runs.now_file`."""
        return sorted(f"{self.root}/{name}" for name in self._names(self.root) if is_now_file(name))

    def in_pieces(self, segment: Segment) -> bool:
        """Whether a JSONL file was in pieces at the last look: a copy of one that may be open elsewhere."""
        return segment in self._pieces

    def _without_damaged(self, manifest: Manifest) -> Manifest:
        """Rows of a bundle are counted over all files of a table: where one can't be read, its table is left out."""
        names = {one.name for one in self._damaged.values()}
        if names.isdisjoint(manifest.names()):
            return manifest
        bundles = [_without(bundle, names) for bundle in manifest.bundles]
        if self._sound.number != manifest.number or self._sound.bundles != bundles:
            self._sound = msgspec.structs.replace(manifest, bundles=bundles)
        return self._sound

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
        path = f"{self.folder}/{manifest_name(number)}"
        if self.local and not Path(path).is_file():  # a pipe would never be read to its end
            raise FileNotFoundError(path)
        with self.asking():
            data = self.system.cat_file(path)
        return decode_manifest(data, self.shown)

    def _names(self, folder: str) -> list[str]:
        """Of the files; a directory or a pipe that is called like one is none, and reading a pipe would never end."""
        try:
            if self.local:
                with os.scandir(folder) as entries:
                    return [one.name for one in entries if one.is_file()]
        except FileNotFoundError:
            return []
        listed = (one for one in self._listed_entries(folder) if one.get("type") != "directory")
        return [posixpath.basename(one["name"].rstrip("/")) for one in listed]

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
        if segment in self._pieces:
            return self._read_pieces(self._pieces[segment], begin)
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
            found: bytes = self.system.cat_file(path, start=begin, end=size)
            return found

    def _read_pieces(self, pieces: list[Piece], begin: int) -> bytes | None:
        reached = pieces[-1].end
        if reached <= begin:
            return b"" if reached == begin else None
        wanted = [one for one in pieces if one.end > begin]
        paths = [f"{self.root}/{one.name}" for one in wanted]
        with self.asking():
            if len(paths) == 1 or self.local:
                found = {path: self.system.cat_file(path) for path in paths}
            else:
                found = self.system.cat(paths)
        data = b""
        at = begin
        for one, path in zip(wanted, paths, strict=True):
            data += unpack(found[path], one)[at - one.begin :]
            at = one.end
        return data

    def asking(self) -> raised_as:
        """A block in which a store that doesn't answer is a RunError; that a file isn't there is an answer."""
        return raised_as(self._unread, but=(ProbeError, FileNotFoundError))

    def _unread(self, error: Exception) -> RunError | None:
        """Each client has errors of its own, most of them no OSError."""
        if self.local:
            return None
        return RunError(f"run {self.shown!r}: its store can't be read: {type(error).__name__}: {error}")


def _without(bundle: Bundle, names: set[str]) -> Bundle:
    gone = {table for table, files in bundle.files.items() if any(file.name in names for file in files)}
    if not gone:
        return bundle
    files = {table: files for table, files in bundle.files.items() if table not in gone}
    rows = {table: counts for table, counts in bundle.rows.items() if table not in gone}
    return msgspec.structs.replace(bundle, files=files, rows=rows)
