"""What compaction has put together: a few large Parquet files in the place of many small files.

::

    runs/<project>/<experiment>/parts/
      memory-compacted-4f1c09ab-0.parquet   rows of many segments, by (place, segment, line)
      compacted-000001.json                 Manifest: which segments these files hold, and how many rows of each

The manifest with the largest number is the truth about every segment that it names: their JSONL files and parts are
leftovers, and so are compacted files that it doesn't name. Publishing a manifest is the commit of a compaction, and
deleting what it replaces comes after. What it says is checked against the files before their rows are used.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from probe.errors import RunError
from probe.records import SCHEMA_VERSION
from probe.runs.layout import Segment, check_version, place_of_rank

_MANIFEST: Final = re.compile(r"compacted-(\d{6,})\.json")
_COMPACTED: Final = re.compile(r"([a-z_]+)-compacted-([0-9a-f]+)-(\d+)\.parquet")


def manifest_name(number: int) -> str:
    """File name, inside ``parts/``, of the ``number``-th manifest.

    >>> manifest_name(1)
    'compacted-000001.json'
    """
    return f"compacted-{number:06d}.json"


def manifest_number(name: str) -> int | None:
    """The number of the manifest called ``name``; None for any other file.

    >>> manifest_number("compacted-000012.json")
    12
    """
    found = _MANIFEST.fullmatch(name)
    return int(found[1]) if found else None


def compacted_name(table: str, bundle: str, number: int) -> str:
    """File name, inside ``parts/``, of the ``number``-th file of ``table`` in a bundle.

    >>> compacted_name("memory", "4f1c09ab", 0)
    'memory-compacted-4f1c09ab-0.parquet'
    """
    return f"{table}-compacted-{bundle}-{number}.parquet"


def bundle_of(name: str) -> str | None:
    """The bundle that a compacted file called ``name`` is of; None for any other file.

    >>> bundle_of("memory-compacted-4f1c09ab-0.parquet")
    '4f1c09ab'
    """
    found = _COMPACTED.fullmatch(name)
    return found[2] if found else None


class Held(NamedTuple):
    """One segment in a bundle."""

    place: str | int  #: a number is the rank's, as version 1 wrote it
    segment: int
    bad: int  #: lines that were unreadable, and are left out

    @property
    def key(self) -> Segment:
        return Segment(place_of_rank(self.place) if isinstance(self.place, int) else self.place, self.segment)


class Compacted(msgspec.Struct, frozen=True):
    """One compacted file. The ranges are what its columns hold, None where they hold nothing."""

    name: str
    rows: int
    bytes: int
    ranks: tuple[int, int] | None = None
    steps: tuple[int, int] | None = None
    wall_ns: tuple[int, int] | None = None


class Span(NamedTuple):
    """Rows ``begin`` to ``end`` of a table, counted over all files of a bundle."""

    begin: int
    end: int


class Bundle(msgspec.Struct, frozen=True):
    """What one compaction has put together."""

    id: str
    segments: list[Held]  #: by place and segment, which is the order of their rows
    files: dict[str, list[Compacted]]  #: by table, in the order of their rows
    rows: dict[str, list[int]]  #: by table: how many of each of ``segments``

    @property
    def size(self) -> int:
        """Rows of all tables."""
        return sum(map(sum, self.rows.values()))

    def spans(self, table: str) -> dict[Segment, Span]:
        """Where the rows of each segment are; tables that the bundle hasn't are empty."""
        counts = self.counts(table)
        ends = list(itertools.accumulate(counts))
        return {held.key: Span(end - count, end) for held, count, end in zip(self.segments, counts, ends, strict=True)}

    def counts(self, table: str) -> list[int]:
        """Rows of one table, by segment."""
        return self.rows.get(table, [0] * len(self.segments))

    def total(self, table: str) -> int:
        """Rows of one table."""
        return sum(self.rows.get(table, ()))


class Manifest(msgspec.Struct, frozen=True):
    """What all compactions of a run have put together."""

    schema_version: int = SCHEMA_VERSION
    number: int = 0
    bundles: list[Bundle] = []

    def segments(self) -> set[Segment]:
        """The segments about which this manifest is the truth."""
        return {held.key for bundle in self.bundles for held in bundle.segments}

    def names(self) -> Iterator[str]:
        """The compacted files that count."""
        for bundle in self.bundles:
            for files in bundle.files.values():
                yield from (file.name for file in files)


class _Version(msgspec.Struct):
    schema_version: int = SCHEMA_VERSION


def decode_manifest(data: bytes, shown: str) -> Manifest:
    """The manifest of the run ``shown`` from the bytes of its file.

    Raises:
        SchemaVersionError: A newer probe wrote it.
        RunError: It isn't what probe writes, or contradicts itself.
    """
    try:
        check_version(msgspec.json.decode(data, type=_Version).schema_version, shown)
        found = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RunError(f"run {shown!r}: its manifest of compacted parts isn't what probe writes: {error}") from error
    for bundle in found.bundles:
        for table, counts in bundle.rows.items():
            total = sum(file.rows for file in bundle.files.get(table, ()))
            if len(counts) != len(bundle.segments) or sum(counts) != total:
                raise RunError(
                    f"run {shown!r}: its manifest of compacted parts contradicts itself: {table} has {sum(counts)} "
                    f"rows by segment and {total} by file in bundle {bundle.id}"
                )
    return found


def encode_manifest(manifest: Manifest) -> bytes:
    """``manifest`` as the bytes of its file."""
    return msgspec.json.encode(manifest) + b"\n"


def newest_manifest(names: Iterable[str]) -> int:
    """The largest number of the manifests among file names, 0 where there is none.

    >>> newest_manifest(["compacted-000002.json", "compacted-000010.json", "memory-rank00000-0.parquet"])
    10
    """
    return max(filter(None, map(manifest_number, names)), default=0)
