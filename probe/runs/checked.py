"""Parquet files of a run are checked once: that this probe can read them, and that they are what the manifest says."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from probe.runs.files import Parts, RunFiles
from probe.runs.layout import Segment, check_version
from probe.runs.manifest import Bundle
from probe.runs.parts import BAD_LINES


class ChangedError(Exception):
    """A compacted file isn't what its manifest says."""


class Checked:
    """What is known of the Parquet files of a run that were checked.

    Args:
        files: Of the run.

    Attributes:
        bad: How many lines of each segment were unreadable.
        attempts: Of each segment, and of each bundle by its id.
    """

    def __init__(self, files: RunFiles) -> None:
        self.bad: dict[Segment, int] = {}
        self.attempts: dict[Segment | str, frozenset[int]] = {}
        self._files = files

    def copy(self) -> Checked:
        """The same, as known by now."""
        other = Checked(self._files)
        other.bad, other.attempts = self.bad, dict(self.attempts)
        return other

    def check(self, parts: Mapping[Segment, Parts]) -> None:
        """Learn of each segment what the footer of its process part says, and refuse those of a newer probe.

        Args:
            parts: Those that count.

        Raises:
            SchemaVersionError: One is of a newer probe.
        """
        new = {one: tables["process"] for one, tables in parts.items() if one not in self.bad and "process" in tables}
        for segment, footer in zip(new, self._footers(new.values()), strict=True):
            check_version(max(_range(footer, "schema_version"), default=0), self._files.shown)
            self.bad[segment] = int((footer.metadata or {}).get(BAD_LINES, b"0"))
            self.attempts[segment] = frozenset(_range(footer, "attempt"))

    def _footers(self, paths: Iterable[str]) -> Iterator[Any]:
        """Of files of one row each: from another machine all of them at once, and whole."""
        import pyarrow.parquet as pq

        if self._files.local:
            yield from map(pq.read_metadata, paths)
            return
        listed = list(paths)
        with self._files.asking():
            found = self._files.system.cat(listed) if listed else {}
        for path in listed:
            yield pq.read_metadata(io.BytesIO(found[path]))

    def check_bundle(self, bundle: Bundle) -> None:
        """That the files of a manifest are there and are what it says.

        Args:
            bundle: Of the newest manifest.

        Raises:
            ChangedError: One isn't.
        """
        for files in bundle.files.values():
            for file in files:
                path = f"{self._files.folder}/{file.name}"
                found = self._rows(path) if self._files.local else self._bytes(path)
                told = (file.rows, "rows") if self._files.local else (file.bytes, "bytes")
                if found != told[0]:
                    raise ChangedError(
                        f"{file.name} has {found} {told[1]} and the manifest of compacted parts says {told[0]}; it was "
                        f"changed after it was written"
                    )
        told_by = (self._attempts_of(path) for path in paths_of(self._files, bundle, "process"))
        self.attempts[bundle.id] = frozenset(itertools.chain.from_iterable(told_by))

    def _attempts_of(self, path: str) -> set[int]:
        """The attempts of the processes that a compacted file tells of; a row that doesn't say is of the first."""
        import pyarrow.parquet as pq

        source: Any = path
        if not self._files.local:
            with self._files.asking():
                source = io.BytesIO(self._files.system.cat_file(path))
        with pq.ParquetFile(source) as file:  # a data set would load pandas, for a second
            if "attempt" not in file.schema_arrow.names:
                return {1}
            return {one or 1 for one in file.read(["attempt"], use_threads=False)["attempt"].unique().to_pylist()}

    def _rows(self, path: str) -> int:
        import pyarrow.parquet as pq

        return int(pq.read_metadata(path).num_rows)

    def _bytes(self, path: str) -> int:
        with self._files.asking():
            return int(self._files.system.size(path))


def paths_of(files: RunFiles, bundle: Bundle, table: str) -> list[str]:
    """The paths of a bundle's files of a table.

    Args:
        files: Of the run.
        bundle: Of its manifest.
        table: By name.
    """
    return [f"{files.folder}/{file.name}" for file in bundle.files.get(table, ())]


def _range(footer: Any, name: str) -> list[int]:
    """The smallest and the largest value of a column of a process part, by its statistics; one has few rows."""
    found: set[int] = set()
    for group in range(footer.num_row_groups):
        for index in range(footer.num_columns):
            column = footer.row_group(group).column(index)
            if column.path_in_schema == name and column.statistics is not None:
                found |= {column.statistics.min or 0, column.statistics.max or 0}
    return sorted(found)
