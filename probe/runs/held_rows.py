"""The rows of a run's files at one moment, hidden ones too: where those of a table are, and all of them as columns."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from probe.runs import version_1
from probe.runs.checked import paths_of
from probe.runs.columns import conformed, either_schema, schema
from probe.runs.files import Parts, RunFiles
from probe.runs.layout import Segment
from probe.runs.manifest import Bundle, Span
from probe.runs.tail import Fresh, Tail

if TYPE_CHECKING:
    import pyarrow


class HeldRows:
    """The rows of the files that count at one moment. What is worked out of them is kept for that moment.

    Args:
        files: Of the run.
        tails: The JSONL files.
        parts: Every segment that is Parquet; {} where it is compacted.
        bundles: What compaction has made, by id.

    Attributes:
        tails: As given.
        parts: As given.
        bundles: As given.
        scans: Tables as pyarrow data sets that were asked for.
    """

    def __init__(
        self,
        files: RunFiles,
        tails: dict[Segment, Tail] | None = None,
        parts: dict[Segment, Parts] | None = None,
        bundles: dict[str, Bundle] | None = None,
    ) -> None:
        self.tails = {} if tails is None else tails
        self.parts = {} if parts is None else parts
        self.bundles = {} if bundles is None else bundles
        self.scans: dict[str, Any] = {}
        self._files = files
        self._joined: dict[str, pyarrow.Table | None] = {}  # the rows of JSONL files
        self._writers: list[version_1.Writer] | None = None
        self._late: dict[str, int] | None = None
        self._measured: bool | None = None

    def same(self, tails: Mapping[Segment, dict[str, list[pyarrow.Table]]]) -> HeldRows:
        """The same moment, with these rows of the JSONL files.

        Args:
            tails: By segment and table.
        """
        other = HeldRows(self._files, {}, self.parts, self.bundles)
        other.scans, other._writers = self.scans, self.old_writers()
        other._late, other._measured = self.late_ranks(), self.all_measured()
        for segment, tables in tails.items():
            kept = other.tails[segment] = Tail()
            kept.tables = tables
        return other

    def copy(self) -> HeldRows:
        """The same moment, which lines that are read later don't change."""
        other = self.same(
            {one: {name: list(rows) for name, rows in tail.tables.items()} for one, tail in self.tails.items()}
        )
        other._joined = self._joined
        return other

    def may_have(self, name: str) -> bool:
        """Whether a table may have rows: whether there is a file or a line of it. Nothing is read to know it."""
        bundled = (name in bundle.files for bundle in self.bundles.values())
        parted = (name in tables for tables in self.parts.values())
        return any(bundled) or any(parted) or any(tail.tables.get(name) for tail in self.tails.values())

    def has(self, table: str) -> bool:
        """Whether there are rows of a table, as the names of the files and the manifest say it: hidden ones, too."""
        return (
            any(tail.tables.get(table) for tail in self.tails.values())
            or any(table in one for one in self.parts.values())
            or any(one.files.get(table) for one in self.bundles.values())
        )

    def late_ranks(self) -> dict[str, int]:
        """The ranks of processes that began to write before they knew them, by what the processes are called. A file
        that is named by a rank is of one that knew.
        """
        if self._late is None:
            self._late = {}
            if any(one.rank is None for one in (*self.tails, *self.parts)):
                told = self.attributed(self.as_written("process"))
                pairs = list(zip(told["process"].to_pylist(), told["rank"].to_pylist(), strict=True))
                early = {process for process, rank in pairs if rank is None}
                self._late = {process: rank for process, rank in pairs if rank is not None and process in early}
        return self._late

    def old_writers(self) -> list[version_1.Writer]:
        """The processes of version 1 that wrote to the run."""
        if self._writers is None:
            self._writers = version_1.writers(self.as_written("process")) if self._files.has_old_rows else []
        return self._writers

    def as_written(self, name: str) -> pyarrow.Table:
        """All rows of a table, as their files have them; those of one process in the order of writing."""
        import pyarrow as pa

        whole = {key: self._loaded(name, paths_of(self._files, one, name)) for key, one in self.bundles.items()}
        spans = {key: one.spans(name) for key, one in self.bundles.items()}
        pieces = [schema(name).empty_table()]
        for kind, group in self._groups():
            if kind in whole:
                pieces.extend(whole[kind].slice(begin, end - begin) for begin, end in _joined(spans[kind], group))
            else:
                pieces.extend(conformed(name, piece.to_table()) for piece in self._loose(name, kind, group))
        return pa.concat_tables(pieces)

    def all_measured(self) -> bool:
        """Whether every process that has told of calls has told of its memory, as far as the files' names and the
        manifest say it: a segment is of one process.
        """
        loose = (tables.keys() for tables in self.parts.values())
        tails = (tail.tables.keys() for tail in self.tails.values())
        if self._measured is None:
            self._measured = not any("calls" in one and "memory" not in one for one in (*loose, *tails)) and all(
                memory > 0 or calls == 0
                for bundle in self.bundles.values()
                for calls, memory in zip(bundle.counts("calls"), bundle.counts("memory"), strict=True)
            )
        return self._measured

    def attributed(self, found: pyarrow.Table) -> pyarrow.Table:
        """``found`` with who wrote each row, where rows of version 1 may be among them."""
        return version_1.attributed(found, self.old_writers()) if self._files.has_old_rows else found

    def whole(self, name: str) -> Any:
        """The rows of all attempts, as a pyarrow data set."""
        import pyarrow.dataset as ds

        if name not in self.scans and self._files.has_old_rows:
            self.scans[name] = ds.dataset(self.attributed(self.as_written(name)))
        if name not in self.scans:
            self.scans[name] = ds.dataset([ds.dataset(schema(name).empty_table()), *self.pieces(name)])
        return self.scans[name]

    def _groups(self) -> Iterator[tuple[str, list[Segment]]]:
        """All segments in their order; neighbours of one kind ("tail", "part" or a bundle's id) together."""
        kinds = dict.fromkeys(self.parts, "part") | dict.fromkeys(self.tails, "tail")
        kinds |= {held.key: bundle.id for bundle in self.bundles.values() for held in bundle.segments}
        for kind, group in itertools.groupby(sorted(kinds), kinds.__getitem__):
            yield kind, list(group)

    def pieces(self, name: str, *, bundled: bool = True) -> Iterator[Any]:
        """Data sets that together hold the table.

        Args:
            name: Of the table.
            bundled: Whether those of compacted files are among them.
        """
        if bundled:
            paths = [path for bundle in self.bundles.values() for path in paths_of(self._files, bundle, name)]
            if paths:
                yield self._dataset(name, paths)
        for kind, group in self._groups():
            yield from self._loose(name, kind, group)

    def _loose(self, name: str, kind: str, group: list[Segment]) -> Iterator[Any]:
        """Data sets of neighbours that aren't compacted, in their order."""
        if kind == "tail":
            chunks = self.tail_of(name, group)
            if chunks is not None:
                import pyarrow.dataset as ds

                yield ds.dataset(chunks)
        elif kind == "part":
            paths = [self.parts[one][name] for one in group if name in self.parts[one]]
            if paths:
                yield self._dataset(name, paths)

    def tail_of(self, name: str, group: Iterable[Segment]) -> pyarrow.Table | None:
        """The rows of a table in some JSONL files; None where there are none.

        Args:
            name: Of the table.
            group: Whose files.
        """
        import pyarrow as pa

        chunks = [chunk for one in group for chunk in self.tails[one].tables.get(name, [])]
        return pa.concat_tables(chunks).cast(schema(name)) if chunks else None

    def whole_tail(self, name: str) -> pyarrow.Table | None:
        """The rows of a table in all JSONL files."""
        if name not in self._joined:
            self._joined[name] = self.tail_of(name, sorted(self.tails))
        return self._joined[name]

    def as_one(self, name: str, fresh: Fresh) -> pyarrow.Table | None:
        """The rows of a table in all JSONL files, in one piece; None where there are none.

        Args:
            name: Of the table.
            fresh: What was read last of the files.
        """
        pieces, whole = fresh.get(name, ((), None))
        segments = sorted(self.tails)
        told = (piece for one in segments for piece in self.tails[one].tables.get(name, ()))
        if whole is not None and all(
            map(operator.is_, itertools.chain(told, (None,)), itertools.chain(pieces, (None,)))
        ):
            return whole.cast(schema(name)).combine_chunks()
        found = self.tail_of(name, segments)
        return None if found is None else found.combine_chunks()

    def _loaded(self, name: str, paths: list[str]) -> pyarrow.Table:
        return conformed(name, self._dataset(name, paths).to_table())

    def _dataset(self, name: str, paths: list[str]) -> Any:
        import pyarrow.dataset as ds

        if not paths:
            return ds.dataset(schema(name).empty_table())
        system = None if self._files.local else self._files.system
        columns = either_schema(name) if self._files.has_old_rows else schema(name)
        return ds.dataset(paths, schema=columns, filesystem=system, format="parquet")

    def paths(self, name: str) -> Iterator[str]:
        """Of the Parquet files of a table."""
        for bundle in self.bundles.values():
            yield from paths_of(self._files, bundle, name)
        for segment in sorted(self.parts):
            if name in self.parts[segment]:
                yield self.parts[segment][name]


def _joined(spans: dict[Segment, Span], group: list[Segment]) -> Iterator[tuple[int, int]]:
    """The rows of neighbours as few stretches."""
    begin = end = 0
    for segment in group:
        if spans[segment].begin != end:
            yield begin, end
            begin = spans[segment].begin
        end = spans[segment].end
    yield begin, end
