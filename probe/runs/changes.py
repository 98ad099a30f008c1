"""Which steps have got rows since a moment of a run: whatever was worked out of other steps is still right."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from probe.runs.files import Parts
    from probe.runs.layout import Segment


#: Rows of which numpy finds the extent sooner.
FEW: Final = 1000


class Extent(NamedTuple):
    """Of which steps some rows are."""

    first: float = math.inf
    last: float = -math.inf
    unstepped: bool = False  #: whether rows of no step are among them

    def with_(self, other: Extent) -> Extent:
        """Of both.

        >>> Extent(3, 5).with_(Extent(4, 9, True))
        Extent(first=3, last=9, unstepped=True)
        """
        if other.first >= self.first and other.last <= self.last and self.unstepped >= other.unstepped:
            return self
        return Extent(min(self.first, other.first), max(self.last, other.last), self.unstepped or other.unstepped)


#: What is said of a file that doesn't tell.
ANY: Final = Extent(-math.inf, math.inf, True)

#: The steps that have got rows, by table; a table that isn't there has got none. None: anything may differ.
Changed = Mapping[str, Extent]


class Read(NamedTuple):
    """How far a JSONL file had been read."""

    tail: object  #: what had read it
    rows: Mapping[str, int]  #: rows of each table


class Moment(NamedTuple):
    """A moment of a run that a later one can be compared with."""

    read: Mapping[Segment, Read]
    parts: Mapping[Segment, Parts]
    bundles: frozenset[str]
    meaning: object  #: by what rows are hidden, or get a rank that became known later


def of_steps(steps: Any) -> Extent:
    """The extent of a column of steps, Arrow's.

    >>> import pyarrow
    >>> of_steps(pyarrow.array([3, None, 5]))
    Extent(first=3, last=5, unstepped=True)
    """
    import pyarrow.compute as pc

    if not len(steps):
        return Extent()
    if steps.null_count == len(steps):
        return Extent(unstepped=True)
    if not steps.null_count and len(steps) < FEW:
        values = steps.to_numpy()
        return Extent(int(values.min()), int(values.max()))
    found = pc.min_max(steps)
    return Extent(found["min"].as_py(), found["max"].as_py(), steps.null_count > 0)


def of_file(path: str) -> Extent:
    """The extent of a Parquet file of this machine, as its footer tells it."""
    import pyarrow.parquet as pq

    footer, found = pq.read_metadata(path), Extent()
    for group in map(footer.row_group, range(footer.num_row_groups)):
        told = next((one for one in map(group.column, range(group.num_columns)) if one.path_in_schema == "step"), None)
        if told is None or told.statistics is None or not told.statistics.has_null_count:
            return ANY
        statistics = told.statistics
        if statistics.has_min_max:
            found = found.with_(Extent(statistics.min, statistics.max))
        elif statistics.null_count < group.num_rows:
            return ANY
        found = found.with_(Extent(unstepped=statistics.null_count > 0))
    return found


def of_file_from(path: str, row: int) -> Extent:
    """The extent of the rows of a Parquet file from one on."""
    import pyarrow.parquet as pq

    if not row:
        return of_file(path)
    with pq.ParquetFile(path) as file:
        if "step" not in file.schema_arrow.names:
            return ANY
        return of_steps(file.read(["step"], use_threads=False)["step"].slice(row))


def since(
    before: Moment, now: Moment, tails: Mapping[Segment, Any], covered: Mapping[str, Iterable[Segment]]
) -> Changed | None:
    """What has changed between two moments.

    Args:
        before: The older one.
        now: The newer one.
        tails: What has read the JSONL files by now.
        covered: The segments of each compacted bundle.

    Returns:
        See :data:`Changed`.
    """
    if before.meaning != now.meaning or not before.bundles <= now.bundles:
        return None
    if any(one not in before.parts for bundle in now.bundles - before.bundles for one in covered[bundle]):
        return None
    if any(one not in now.parts or (now.parts[one] and now.parts[one] != told) for one, told in before.parts.items()):
        return None
    if any(one not in now.read and one not in now.parts for one in before.read):
        return None
    found: dict[str, Extent] = {}
    nothing = Read(None, {})
    for segment, tail in tails.items():
        known = before.read.get(segment, nothing)
        if known.tail is not None and known.tail is not tail:
            return None
        for table in tail.tables:
            row = known.rows.get(table, 0)
            if tail.rows[table] > row:
                found[table] = found.get(table, Extent()).with_(_of_tail(tail, table, row))
    for segment, paths in now.parts.items():
        if segment in before.parts:
            continue
        rows = before.read.get(segment, nothing).rows
        for table, path in paths.items():
            found[table] = found.get(table, Extent()).with_(of_file_from(path, rows.get(table, 0)))
    return found


def _of_tail(tail: Any, table: str, row: int) -> Extent:
    """The extent of the rows of a JSONL file from one on."""
    pieces, extents, begin = tail.tables[table], tail.extents(table), tail.rows[table]
    found = Extent()
    if begin - len(pieces[-1]) == row:
        return found.with_(extents[-1])
    for piece, extent in zip(reversed(pieces), reversed(extents), strict=True):
        if begin <= row:
            break
        begin -= len(piece)
        found = found.with_(extent if begin >= row else of_steps(piece["step"].slice(row - begin)))
    return found
