"""A made-up run as large as one likes, in the very files that the writer makes.

One rank's rows are written by probe itself, with rows of every table, and rolled over to Parquet; every other rank
and every later stretch of steps is that rank's columns with its own rank, clock, steps, scopes and sizes.
"""

from __future__ import annotations

import itertools
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from probe.records import TABLES
from probe.runs.columns import LINE, schema
from probe.runs.layout import PARTS_NAME, Segment, place_of_rank
from probe.runs.parts import roll_over

#: Steps of the stretch that is repeated, and what its counters are moved by from one stretch to the next.
STEPS: Final = 5
MOVED: Final = {"step": STEPS, "scope_id": 100_000, "parent_id": 100_000, "batch_id": 1_000_000}
#: Sizes that differ between ranks, by up to a quarter.
SIZES: Final = ("peak_allocated_bytes", "allocated_bytes", "host_duration_ns", "duration_ns")


def write_large_run(directory: Path, ranks: int, rows: int, workers: int = 2) -> int:
    """Write a run of ``ranks`` ranks with about ``rows`` rows of eight tables; returns how many it has."""
    stretch = _one_rank(directory)
    with ProcessPoolExecutor(workers, initializer=_begin, initargs=(directory, stretch, ranks)) as pool:
        return sum(pool.map(_write_rank, range(ranks), itertools.repeat(rows // ranks), chunksize=16))


def _one_rank(directory: Path) -> dict[str, Any]:
    from tests.sample_run import sample_rows, write_run

    write_run(directory, {0: sample_rows(1, STEPS)[0]}, project="large", experiment=directory.name)
    for _ in roll_over(directory, Segment.of_rank(0)):
        pass
    paths = {table: directory / PARTS_NAME / Segment.of_rank(0).part(table) for table in TABLES}
    return {table: pq.read_table(path) for table, path in paths.items() if path.exists()}


_now: dict[str, Any] = {}


def _begin(directory: Path, stretch: dict[str, Any], ranks: int) -> None:
    _now.update(directory=directory, stretch=stretch, ranks=ranks)


def _write_rank(rank: int, wanted: int) -> int:
    stretch, written = _now["stretch"], 0
    size = sum(map(len, stretch.values()))
    repeats = -(-wanted // size)
    for table, base in stretch.items():
        times = repeats if table not in ("process", "incidents") else 1
        found = pa.concat_tables([_moved(base, rank, index) for index in range(times)])
        path = _now["directory"] / PARTS_NAME / Segment.of_rank(rank).part(table)
        pq.write_table(found.replace_schema_metadata(base.schema.metadata), path, compression="zstd")
        written += len(found)
    return written


def _moved(base: pa.Table, rank: int, index: int) -> pa.Table:
    """The ``index``-th stretch of ``rank``."""
    random = np.random.default_rng([rank, index])
    columns = {name: base[name] for name in base.column_names}
    columns["rank"] = pa.array(np.full(len(base), rank))
    columns["process"] = pa.array([place_of_rank(rank)] * len(base))
    if "pid" in columns:
        columns["pid"] = pa.array(np.full(len(base), 100 + rank))
        columns["world_size"] = pa.array(np.full(len(base), _now["ranks"]))
    for name, by in MOVED.items():
        if name in columns and index:
            columns[name] = pc.add(columns[name], by * index)
    drift = pa.array(np.cumsum(random.integers(0, 2000, len(base))) + index * 10**11)
    for name in ("time_ns", "wall_ns", "begin_ns"):
        if name in columns and len(base) > 1:
            columns[name] = pc.add(columns[name], drift)
    columns[LINE] = pc.add(columns[LINE], index * 10**6)
    for name in SIZES:
        if name in columns:
            scaled = pc.multiply(columns[name].cast(pa.float64()), pa.array(random.uniform(1, 1.25, len(base))))
            columns[name] = scaled.cast(pa.int64(), safe=False)
    known = next(table for table in TABLES if set(schema(table).names) == set(base.column_names))
    return pa.table(columns).select(schema(known).names).cast(schema(known))
