"""Parquet and CSV files hold exactly the run's rows, missing and NaN apart."""

from __future__ import annotations

import csv
import json
import math
import resource
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.errors import InputError, RunError, RunNotFoundError, UnknownNameError
from probe.exporting import source
from probe.exporting.tables import NAMES, RUN_KEY, chosen_tables, export_tables
from probe.records import SCHEMA_VERSION, Call, Incident, MicroBatch, Reduction, Scalar
from probe.runs.columns import columns
from probe.runs.frames import table_frame
from probe.runs.layout import Segment
from probe.runs.parts import roll_over
from probe.runs.reader import Run
from tests.sample_run import sample_rows, write_run

AWKWARD = ['a,"b"', "line\nend", "\x00\x1b[2J", "тест 🚀", "", "NaN", "=1+1", " space "]
FLOATS = [0.1, -0.0, math.nan, math.inf, -math.inf, 5e-324, 1.7976931348623157e308, 1 / 3]


def awkward_run(place: Path) -> Path:
    rows = [Scalar(key=key, value=value, time_ns=i) for i, (key, value) in enumerate(zip(AWKWARD, FLOATS, strict=True))]
    rows += [Reduction(key="k", reducer="mean", chosen_by="name", count=1, value=value) for value in (math.nan, None)]
    rows += [Call(point="p", role=role, keys_added=AWKWARD[:3]) for role in ("", None, "actor")]
    rows += [MicroBatch(batch_id=1, micro_batches=1, sequences=0, lengths=[], tokens=0)]
    rows += [Incident(kind="k", where="w", message="m", traceback="one\ntwo", switched_off=True)]
    return write_run(place / "run", {0: rows})


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A run of which some is Parquet and some JSONL."""
    run = write_run(tmp_path / "run", sample_rows(ranks=3, steps=3))
    for _ in roll_over(run, Segment.of_rank(1, 0)):
        pass
    return run


def test_parquet_files_are_the_tables(mixed: Path, tmp_path: Path) -> None:
    files = export_tables(mixed, tmp_path / "out")
    assert [file.table for file in files] == list(NAMES)
    with Run(mixed) as run:
        for file in files:
            expected = run.table(file.table)
            found = table_frame(pq.read_table(file.path), columns(NAMES[file.table]))
            pd.testing.assert_frame_equal(found, expected)
            assert file.rows == len(expected)
            assert file.bytes == Path(file.path).stat().st_size


@pytest.mark.parametrize("format", ["parquet", "csv"])
def test_an_empty_run_has_all_files_with_their_columns(tmp_path: Path, format: str) -> None:
    run = write_run(tmp_path / "run", {})
    files = export_tables(run, tmp_path / "out", format=format)
    assert [(file.table, file.rows) for file in files] == [(name, 0) for name in NAMES]
    for file in files:
        names = [column.name for column in columns(NAMES[file.table])]
        if format == "parquet":
            assert pq.read_schema(file.path).names == names
        else:
            assert next(csv.reader([Path(file.path).read_text(encoding="utf-8")])) == names


def test_parquet_says_which_run_and_schema_it_is_of(mixed: Path, tmp_path: Path) -> None:
    (file,) = export_tables(mixed, tmp_path / "out", tables=["memory"])
    told = pq.read_schema(file.path).metadata
    assert json.loads(told[RUN_KEY])["project"] == "arithmetic"
    assert told[b"probe_schema_version"] == str(SCHEMA_VERSION).encode()


def test_missing_and_nan_stay_apart_in_parquet(tmp_path: Path) -> None:
    export_tables(awkward_run(tmp_path), tmp_path / "out")
    column = pq.read_table(tmp_path / "out" / "reductions.parquet")["value"]
    assert column.null_count == 1
    assert math.isnan(column[0].as_py())
    found = pq.read_table(tmp_path / "out" / "scalars.parquet")
    assert found["key"].to_pylist() == AWKWARD
    assert list(map(repr, found["value"].to_pylist())) == list(map(repr, FLOATS))


def test_csv_is_as_documented(tmp_path: Path) -> None:
    export_tables(awkward_run(tmp_path), tmp_path / "out", format="csv")
    with (tmp_path / "out" / "scalars.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["key"] for row in rows] == ["'=1+1" if one == "=1+1" else one for one in AWKWARD]
    assert [repr(float(row["value"])) for row in rows] == list(map(repr, FLOATS))
    header, *lines = (tmp_path / "out" / "reductions.csv").read_text(encoding="utf-8").splitlines()
    value = header.split(",").index('"value"')
    assert [line.split(",")[value] for line in lines] == ["nan", ""]
    text = (tmp_path / "out" / "calls.csv").read_text(encoding="utf-8")
    assert [text.count(role) for role in (',"",,,0,', ",,,,0,", ',"actor",,,0,')] == [1, 1, 1]
    with (tmp_path / "out" / "calls.csv").open(encoding="utf-8", newline="") as file:
        assert [json.loads(row["keys_added"]) for row in csv.DictReader(file)] == [AWKWARD[:3]] * 3
    with (tmp_path / "out" / "incidents.csv").open(encoding="utf-8", newline="") as file:
        (incident,) = csv.DictReader(file)
    assert (incident["switched_off"], incident["traceback"], incident["role"]) == ("true", "one\ntwo", "")


def test_a_csv_reader_that_knows_quotes_gets_everything_back(mixed: Path, tmp_path: Path) -> None:
    """DuckDB's, told which table it is: every value equal, lists from their JSON."""
    export_tables(mixed, tmp_path / "out", format="csv", tables=["memory", "micro_batches"])
    with Run(mixed) as run:
        for name in ("memory", "micro_batches"):
            path = tmp_path / "out" / f"{name}.csv"
            types = {one.name: "JSON" if "list" in one.type else _TYPES[one.type] for one in columns(name)}
            found = duckdb.read_csv(str(path), columns=types, header=True, quotechar='"').fetchall()
            frame = run.table(name)
            assert [tuple(map(_plain, row)) for row in found] == [
                tuple(map(_plain, row)) for row in frame.itertuples(index=False)
            ]


_TYPES = {"int64": "BIGINT", "double": "DOUBLE", "bool": "BOOLEAN", "string": "VARCHAR"}


def _plain(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("["):
        return json.loads(value)
    if isinstance(value, list):
        return value
    # DuckDB's reader takes a quoted empty text for a missing one, as most do.
    return None if value is pd.NA or value is None or value == "" else value


def test_a_process_counts_once(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", sample_rows(ranks=1, steps=1))
    first = (run / "rank-00000.jsonl").read_bytes().split(b"\n", 1)[0]
    (run / "rank-00000.1.jsonl").write_bytes(first + b"\n")
    (file,) = export_tables(run, tmp_path / "out", tables=["processes"])
    assert file.rows == 1
    assert pq.read_table(file.path).num_rows == 1


@given(
    st.lists(
        st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), st.floats() | st.none()), max_size=8
    )
)
@settings(deadline=None, max_examples=20)
def test_any_rows_come_back(tmp_path_factory: pytest.TempPathFactory, values: list[tuple[str, float | None]]) -> None:
    place = tmp_path_factory.mktemp("any")
    rows = [Reduction(key=key, reducer="r", chosen_by="name", count=1, value=value) for key, value in values]
    export_tables(write_run(place / "run", {0: list(rows)}), place / "out", tables=["reductions"])
    found = pq.read_table(place / "out" / "reductions.parquet")
    assert found["key"].to_pylist() == [key for key, _ in values]
    assert list(map(repr, found["value"].to_pylist())) == [repr(value) for _, value in values]


# ------------------------------------------------------------------------------------------------ which, and where


def test_tables_are_chosen_by_either_of_their_names(mixed: Path, tmp_path: Path) -> None:
    files = export_tables(mixed, tmp_path / "out", tables=["process", "calls", "processes"])
    assert [file.table for file in files] == ["processes", "calls"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["calls.parquet", "processes.parquet"]


@pytest.mark.parametrize(
    ("told", "error", "said"),
    [
        ({"tables": ["memroy"]}, UnknownNameError, "tables: got 'memroy', expected one of calls"),
        ({"tables": []}, InputError, "tables: got none"),
        ({"format": "feather"}, UnknownNameError, "format: got 'feather', expected one of csv, parquet"),
    ],
)
def test_misuse_is_named_before_anything_is_written(
    mixed: Path, tmp_path: Path, told: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        export_tables(mixed, tmp_path / "out", **told)
    assert not (tmp_path / "out").exists()


def test_a_run_or_a_file_is_no_place_for_tables(mixed: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a run directory"):
        export_tables(mixed, mixed)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="is a file"):
        export_tables(mixed, tmp_path / "file")
    with pytest.raises(RunError, match="can't be written"):
        export_tables(mixed, tmp_path / "file" / "below")
    with pytest.raises(RunNotFoundError):
        export_tables(tmp_path / "nowhere", tmp_path / "out")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_file_is_replaced_only_by_a_whole_one(mixed: Path, tmp_path: Path) -> None:
    (file,) = export_tables(mixed, tmp_path / "out", tables=["memory"])
    before = Path(file.path).read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))  # full in the middle of the file
    try:
        with pytest.raises(RunError, match="can't be written"):
            export_tables(mixed, tmp_path / "out", tables=["memory"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert Path(file.path).read_bytes() == before
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["memory.parquet"]


def test_chosen_tables_leaves_what_it_was_given_alone() -> None:
    given_names = ["memory", "memory"]
    assert chosen_tables(given_names) == ["memory"]
    assert given_names == ["memory", "memory"]


def test_a_table_is_never_held_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are read batch by batch: what Arrow holds at any time is far less than the table."""
    run = write_run(tmp_path / "run", {0: []})
    lines = (run / "rank-00000.jsonl").read_bytes()
    row = Scalar(key="some/metric", value=0.5, step=1)
    from probe.runs.lines import encode

    (run / "rank-00000.jsonl").write_bytes(lines + encode(row) * 300_000)
    for _ in roll_over(run, Segment.of_rank(0, 0)):
        pass
    monkeypatch.setattr(source, "BATCH_ROWS", 4096)
    sizes = []
    with source.Source(run) as opened:
        before = pa.total_allocated_bytes()
        for batch in opened.rows("scalars"):
            sizes.append(batch.num_rows)
            assert batch.num_rows <= 4096
        del batch
    assert sum(sizes) == 300_000
    assert pa.total_allocated_bytes() - before < 40 * 2**20
