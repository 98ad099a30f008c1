"""Few rows are taken into DuckDB once; many stay in their files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from probe.runs import database, snapshot
from probe.runs.layout import Segment
from probe.runs.parts import roll_over
from probe.runs.reader import Run
from tests.sample_run import sample_rows, write_run

RANKS = 2
TABLES = ("memory", "calls", "padding")


@pytest.fixture
def parted(tmp_path: Path) -> Path:
    """A run of two ranks, all of whose rows are Parquet."""
    write_run(tmp_path / "run", sample_rows(RANKS, 3))
    for rank in range(RANKS):
        for _ in roll_over(tmp_path / "run", Segment.of_rank(rank)):
            pass
    return tmp_path / "run"


@pytest.fixture
def files(parted: Path) -> dict[str, list[str]]:
    return {table: sorted(map(str, (parted / "parts").glob(f"{table}-*.parquet"))) for table in TABLES}


def kinds(parquet: database.Parquet) -> dict[str, str]:
    """Whether DuckDB has the rows of each table, or reads its files."""
    cursor, _ = parquet.cursor("select * from memory, calls, padding")
    with cursor:
        told = cursor.execute("select table_name, table_type from information_schema.tables").fetchall()
    return {name.removeprefix("parts_"): {"BASE TABLE": "rows", "VIEW": "files"}[kind] for name, kind in told}


def test_the_rows_of_small_files_are_taken_into_the_database(files) -> None:
    assert kinds(database.Parquet(files)) == dict.fromkeys(files, "rows")


def test_of_large_files_none_are_and_of_several_tables_those_that_have_room(files, monkeypatch) -> None:
    monkeypatch.setattr(database, "FEW_BYTES", 0)
    assert kinds(database.Parquet(files)) == dict.fromkeys(files, "files")
    sizes = {table: database.bytes_of(paths) for table, paths in files.items()}
    monkeypatch.setattr(database, "FEW_BYTES", max(sizes.values()))
    told = kinds(database.Parquet(files))
    taken = [sizes[table] for table, kind in told.items() if kind == "rows"]
    assert 0 < len(taken) < len(files)
    assert sum(taken) <= max(sizes.values())


def test_where_memory_is_limited_less_is_taken(files, monkeypatch) -> None:
    monkeypatch.setattr(database, "_FEW_BYTES_OF_A_MB", max(map(database.bytes_of, files.values())) / 2)
    for limit, kind in (("1MB", "files"), ("64MB", "rows")):
        monkeypatch.setenv(database.SMALL, limit)
        assert kinds(database.Parquet(files)) == dict.fromkeys(files, kind)


def test_nobody_counts_the_bytes_of_thousands_of_files_or_of_one_that_has_gone(files, monkeypatch) -> None:
    assert database.bytes_of([*files["calls"], "/nowhere/calls.parquet"]) == float("inf")
    monkeypatch.setattr(database, "_FEW_FILES", 1)
    assert database.bytes_of(files["calls"]) == float("inf")


@pytest.fixture
def threads(monkeypatch) -> Iterator[list[int]]:
    """By how many threads the databases that are opened work; 0 is as many as there are cores."""
    seen: list[int] = []
    opened = database.Parquet._open

    def noted(self: database.Parquet):
        seen.append(self.threads)
        return opened(self)

    monkeypatch.setattr(database.Parquet, "_open", noted)
    return seen


def test_one_thread_works_out_what_few_rows_say_and_all_of_them_what_many_do(parted, threads, monkeypatch) -> None:
    with Run(parted) as run:
        run.sql("select count(*) from memory")
    monkeypatch.setattr(database, "FEW_BYTES", 0)
    with Run(parted) as run:
        run.sql("select count(*) from memory")
    assert threads == [1, 0]


def test_a_run_that_grows_is_asked_by_all_threads_in_the_end(tmp_path, threads, monkeypatch) -> None:
    growing = write_run(tmp_path / "run", sample_rows(1, 6)) / Segment.of_rank(0).name
    whole = growing.read_bytes()
    growing.write_bytes(whole[: whole.index(b"\n", len(whole) // 3) + 1])
    count = "select count(*) as n from calls"
    with Run(tmp_path / "run") as run:
        before = run.sql(count)["n"][0]
        monkeypatch.setattr(snapshot, "FEW_ROWS", 0)
        assert run.sql(count)["n"][0] == before  # of the same moment
        growing.write_bytes(whole)
        after = run.refresh().sql(count)["n"][0]
    assert before < after
    assert threads == [1, 0]
