"""``probe.lake(run)``: the tables of a run for an engine of many machines, Ray Data.

DuckDB answers about tens of millions of rows on one machine, and that is what every view of probe asks. Beyond that the
same Parquet files are read by Ray's workers; nothing is copied first.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from probe.errors import InputError, UnknownNameError
from probe.runs.files import RunFiles
from probe.runs.finding import find_given
from probe.runs.reader import Run
from probe.runs.snapshot import Snapshot
from probe.runs.sources import Sources
from probe.runs.statements import VIEWS

if TYPE_CHECKING:
    import pyarrow
    import ray.data

#: Rows of JSON lines that make one block.
_BLOCK = 1 << 20


def lake(run: Run | str | os.PathLike[str], attempt: int | None = None) -> Lake:
    """The tables of a run as data sets of Ray Data, read by its workers from where the run is.

    Args:
        run: An open run, its directory or its URL; workers have to reach it by the same path.
        attempt: The attempt that is shown; None is what the run shows, which leaves out what a later one hides.

    Returns:
        The tables of this moment, by name.

    Raises:
        RunNotFoundError: There is nothing.
        InputError: ``attempt`` isn't one of the run's, or Ray Data isn't installed.

    ::

        tokens = probe.lake("s3://bucket/runs/grpo/first")["micro_batches"].groupby(["step", "rank"]).sum("tokens")
    """
    try:
        importlib.import_module("ray.data")
    except ImportError as error:
        raise InputError("lake: needs Ray Data; install it with: pip install 'ray[data]'") from error
    opened = run if isinstance(run, Run) else Run(find_given(run))
    return Lake(opened, attempt if attempt is not None else opened.shown_attempt)


class Lake(Mapping[str, "ray.data.Dataset"]):
    """The tables of a run at one moment, each a :class:`ray.data.Dataset` that is read when it is asked.

    They hold the rows that ``run.table(name)`` has, in any order: of several attempts what is shown, with ranks that
    processes learnt late.

    Args:
        run: An open run.
        attempt: The attempt that is shown; None is what the newest has not hidden of each.
    """

    def __init__(self, run: Run, attempt: int | None = None) -> None:
        self._snapshot = Snapshot(RunFiles(run.path), attempt)
        self._snapshot.refresh()
        self._names = {VIEWS.get(one, one): one for one in self._snapshot.tables}

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> ray.data.Dataset:
        return self.table(name)

    def table(self, name: str, columns: Sequence[str] | None = None) -> ray.data.Dataset:
        """The rows of a table.

        Args:
            name: Of the table, such as ``"micro_batches"``.
            columns: The columns that are wanted; None is all of them.

        Raises:
            UnknownNameError: The run has no such table, or the table no such column.
        """
        if name not in self._names:
            raise UnknownNameError.of("table", name, self._names)
        sources = self._snapshot.sources(self._names[name])
        known = [column for column in sources.columns.names if column != "line"]
        for column in columns or ():
            if column not in known:
                raise UnknownNameError.of("column", column, known)
        found = _read(sources).map_batches(
            _finished, batch_format="pyarrow", fn_kwargs={"sources": sources._replace(rows=None, system=None)}
        )
        chosen: ray.data.Dataset = found.select_columns(list(columns) if columns else known)
        return chosen


def _read(sources: Sources) -> ray.data.Dataset:
    import ray.data

    found: list[Any] = []
    if sources.paths:
        options: dict[str, Any] = {"schema": sources.columns, "partitioning": None}
        if sources.system is not None:
            options["filesystem"] = sources.system
        found.append(ray.data.read_parquet(sources.paths, **options))
    rows = sources.rows
    if rows is not None and len(rows):
        found.append(ray.data.from_arrow([rows.slice(at, _BLOCK) for at in range(0, len(rows), _BLOCK)]))
    if not found:
        return ray.data.from_arrow(sources.columns.empty_table())
    first: ray.data.Dataset = found[0]
    return first.union(*found[1:]) if found[1:] else first


def _finished(found: pyarrow.Table, *, sources: Sources) -> pyarrow.Table:
    return sources.finished(found)
