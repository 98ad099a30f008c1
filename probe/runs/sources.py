"""Where the rows of a table are at one moment, for an engine that reads them itself, and what it makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from probe.runs import version_1
from probe.runs.columns import columns, conformed

if TYPE_CHECKING:
    import pyarrow


class Sources(NamedTuple):
    """The rows of a table at one moment: files that never change, rows that aren't in such files yet, and what a reader
    makes of both.
    """

    table: str
    paths: list[str]  #: of Parquet files that count
    rows: pyarrow.Table | None  #: of JSON lines
    columns: pyarrow.Schema  #: to read the files by
    system: Any  #: the fsspec file system that has them; None is this machine
    shown: Any  #: a pyarrow expression; None shows all
    late: Mapping[str, int]
    old_writers: list[version_1.Writer]

    def finished(self, found: pyarrow.Table) -> pyarrow.Table:
        """Rows as a reader gives them: without those that are hidden, with the ranks that became known later, and with
        the defaults of columns that an older probe hadn't.

        Args:
            found: Some of the rows, as their file has them.
        """
        if self.old_writers:
            found = version_1.attributed(found, self.old_writers)
        found = ranked(conformed(self.table, found), self.late)
        for column in columns(self.table):
            if not column.optional and column.default is not msgspec.NODEFAULT and not column.type.startswith("list"):
                place = found.schema.get_field_index(column.name)
                filled = found[column.name].fill_null(column.default)
                found = found.set_column(place, found.schema.field(place), filled)
        return found if self.shown is None else found.filter(self.shown)


def ranked(found: pyarrow.Table | pyarrow.RecordBatch, late: Mapping[str, int]) -> Any:
    """``found`` with the ranks that became known later: see :meth:`~probe.runs.held_rows.HeldRows.late_ranks`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not late:
        return found
    place = pc.index_in(found["process"], pa.array(list(late), pa.string()))
    known = pc.take(pa.array(list(late.values()), pa.int64()), place)
    column = found.schema.get_field_index("rank")
    return found.set_column(column, found.schema.field(column), pc.coalesce(found["rank"], known))
