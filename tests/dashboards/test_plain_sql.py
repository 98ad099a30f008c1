"""The SQL files that DuckDB runs as they are: without probe they say of a run what probe says of it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import numpy as np
import pandas as pd
import pytest

from probe.dashboards import plain_sql
from probe.dashboards.compile import by_step
from probe.dashboards.quantities import quantities
from probe.records import TABLES, Process, Row
from probe.runs import views
from probe.runs.compaction import compact
from probe.runs.lines import decode, encode
from probe.runs.reader import Run
from probe.runs.statements import VIEWS
from probe.text import missing
from tests.live.nested_run import random_rows
from tests.sample_run import MS, sample_rows, write_run

LATE = "worker"


def again(row: Row) -> Row | None:
    """The row as a second launch writes it, which goes on at step 2 with half of the tokens."""
    step = getattr(row, "step", None)
    if step is not None and step < 2:
        return None
    changes: dict[str, Any] = {"attempt": 2, "time_ns": row.time_ns + 10**15}
    if isinstance(row, Process):
        changes["wall_ns"] = row.wall_ns + 3_600_000 * MS
    if hasattr(row, "lengths"):
        changes |= {"lengths": [one // 2 for one in row.lengths], "tokens": sum(one // 2 for one in row.lengths)}
    return msgspec.structs.replace(row, **changes)


def late(row: Row) -> Row:
    return msgspec.structs.replace(row, process=LATE, rank=None)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks, launched twice, and a process that learnt its rank late; all of it Parquet files."""
    made = tmp_path_factory.mktemp("plain") / "run"
    rows: dict[int, list[Row]] = {rank: list(own) for rank, own in sample_rows(ranks=2, steps=4).items()}
    rows[2] = random_rows(2, 5)
    rows[3] = random_rows(3, 5, told_by="calls")  # a process whose memory isn't recorded
    write_run(made, rows)
    second = [found for row in read(made / "rank-00000.jsonl") if (found := again(row)) is not None]
    (made / "rank-00000.2.jsonl").write_bytes(b"".join(map(encode, second)))
    third = [late(row) for row in read(made / "rank-00001.jsonl")]
    first = next(row for row in third if isinstance(row, Process))
    third.append(msgspec.structs.replace(first, rank=4, revision=1))
    (made / f"process-{LATE}.jsonl").write_bytes(b"".join(map(encode, third)))
    return as_parquet(made)


def as_parquet(run: Path) -> Path:
    """All of its files, of processes that have been silent for an hour, as Parquet."""
    for segment in run.glob("*.jsonl"):
        os.utime(segment, (time.time() - 3600,) * 2)
    assert not compact(str(run), force=True).left
    return run


def read(path: Path) -> list[Row]:
    return [row for line in path.read_bytes().splitlines() if isinstance(row := decode(line), Row)]


def opened(directory: Path) -> duckdb.DuckDBPyConnection:
    """DuckDB, told where the run is, and given the files as they are."""
    made = duckdb.connect()
    made.execute(f"set variable run = '{directory}'")
    for name in plain_sql.FILES:
        made.execute((plain_sql.folder() / f"{name}.sql").read_text(encoding="utf-8"))
    return made


@pytest.fixture(scope="module")
def run(directory: Path) -> Iterator[Run]:
    with Run(directory) as opened_run:
        yield opened_run


@pytest.fixture(scope="module")
def database(directory: Path) -> duckdb.DuckDBPyConnection:
    return opened(directory)


def told(frame: pd.DataFrame) -> list[str]:
    """Its rows in one order, floats without the last digits, which depend on the order of a sum."""
    return sorted(repr([_plain(value) for value in row]) for row in frame.itertuples(index=False, name=None))


def _plain(value: Any) -> Any:
    if hasattr(value, "__len__") and not isinstance(value, str):
        return [_plain(one) for one in value]
    if missing(value):
        return None
    return float(f"{float(value):.12g}") if isinstance(value, int | float | np.number) else value


def test_7_the_files_are_made_of_what_probe_asks():
    for name, text in plain_sql.texts().items():
        assert (plain_sql.folder() / f"{name}.sql").read_text(encoding="utf-8") == text, "python docs/make_sql.py"


def test_7_each_quantity_is_the_same_in_duckdb_without_probe(run, database):
    assert run.attempts == [1, 2]
    known = 0
    for name, spec in quantities().items():
        found = told(database.sql(f"select step, value from quantity_{name}").df())
        assert found == told(run.sql(by_step(spec))), name
        known += bool(found)
    assert known >= 8


@pytest.mark.parametrize("name", [one for one in views.texts() if one not in plain_sql.WITHIN] + list(TABLES))
def test_7_each_table_and_view_has_the_same_rows_in_duckdb_without_probe(run, database, name):
    asked = VIEWS.get(name, name)
    expected = run.sql(f"select * from {asked}") if name in views.texts() or run.has(name) else pd.DataFrame()
    columns = ", ".join(f'"{one}"' for one in expected.columns) or "*"
    found = told(database.sql(f"select {columns} from {asked}").df())
    assert found == told(expected)
    assert found or name in UNTOLD


#: Tables of which the sample has no rows.
UNTOLD = frozenset(
    {
        *("host_memory", "partitions", "samples", "token_blocks", "token_identity", "group_baselines"),
        *("rollouts", "later_passes", "failures", "stacks"),
    }
)


def test_7_a_run_without_rows_of_a_table_has_an_empty_one(tmp_path):
    write_run(tmp_path / "run", {0: []})
    made = opened(as_parquet(tmp_path / "run"))
    assert made.sql("select count(*) from memory").fetchall() == [(0,)]
    assert made.sql("select count(*) from quantity_step_time").fetchall() == [(0,)]
    assert made.sql("select count(*) from processes").fetchall() == [(1,)]
