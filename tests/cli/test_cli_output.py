"""`probe report`, `probe export` and `probe sql`: what they print and write."""

from __future__ import annotations

import csv
import io
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.parquet as pq
import pytest

from probe.cli import main
from probe.records import Call, Reduction, Scalar
from probe.runs.reader import Run
from tests.cli.command import probe
from tests.exporting.trace_reader import read
from tests.sample_run import sample_rows, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("cli") / "run", sample_rows(ranks=2, steps=2))


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(said(capsys, *arguments, "--json"))


# ------------------------------------------------------------------------------------------------------- report


@pytest.mark.slow
def test_a_report_goes_where_it_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", {})  # quickly drawn
    target = tmp_path / "my report.html"
    target.write_text("old")
    found = told(capsys, "report", str(run), "-o", str(target))
    assert found == {"run": str(run), "path": str(target), "bytes": target.stat().st_size}
    assert "<html" in target.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_report_belongs_to_its_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = write_run(tmp_path / "runs" / "p" / "e", {})
    assert said(capsys, "report", str(tmp_path / "runs")).startswith(f"{place / 'report.html'} (")
    assert (place / "report.html").exists()


@pytest.mark.slow
def test_a_report_needs_a_file(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run), "-o", str(tmp_path)]) == 2
    assert "is a directory, expected a file such as" in capsys.readouterr().err
    empty = write_run(tmp_path / "run", {})  # quickly drawn
    assert main(["report", str(empty), "-o", str(tmp_path / "no" / "such" / "report.html")]) == 1
    assert capsys.readouterr().err.startswith("probe report: path: the report can't be written")


# ------------------------------------------------------------------------------------------------------- export


@pytest.mark.parametrize("format", ["parquet", "csv"])
def test_tables_are_exported(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], format: str) -> None:
    out = tmp_path / "out"
    found = told(capsys, "export", str(run), "--format", format, "-o", str(out), "--tables", "calls, memory")
    assert {key: found[key] for key in ("run", "format", "path")} == {
        "run": str(run),
        "format": format,
        "path": str(out),
    }
    assert [file["table"] for file in found["files"]] == ["calls", "memory"]
    with Run(run) as opened:
        for file in found["files"]:
            assert file["rows"] == len(opened.table(file["table"]))
            assert Path(file["path"]).parent == out
    if format == "parquet":
        assert pq.read_table(out / "calls.parquet").num_rows == found["files"][0]["rows"]


def test_a_trace_is_exported(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "trace.pftrace"
    found = told(capsys, "export", str(run), "--format", "perfetto", "-o", str(target))
    trace = read(target)
    assert found["slices"] == len(trace.slices) > 0
    assert found["counters"] == sum(map(len, trace.counters.values()))
    assert (found["ranks"], found["instants"], found["unplaced"]) == (2, 2, 0)
    assert "Open it at https://ui.perfetto.dev" in said(
        capsys, "export", str(run), "--format", "perfetto", "-o", str(target)
    )


def test_rows_that_are_left_out_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", {0: [Call(point="p")]})
    rows = (run / "rank-00000.jsonl").read_bytes().split(b"\n", 1)[1]
    (run / "rank-00000.jsonl").write_bytes(rows)
    assert main(["export", str(run), "--format", "perfetto", "-o", str(tmp_path / "t")]) == 0
    assert "probe export: 1 rows are left out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--format", "perfetto", "-o", "t", "--tables", "calls"], "--tables: got it with --format perfetto"),
        (["--format", "csv", "-o", "t", "--tables", "calls,nope"], "tables: got 'nope', expected one of"),
        (["--format", "csv", "-o", "t", "--tables", ","], "tables: got none"),
        (["--format", "csv", "-o", "."], "is a run directory"),
        (["--format", "perfetto", "-o", "."], "is a directory, expected a file"),
    ],
)
def test_a_wrong_export_writes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    complaint: str,
) -> None:
    monkeypatch.chdir(write_run(tmp_path / "run", {}))
    assert main(["export", ".", *arguments]) == 2
    assert complaint in capsys.readouterr().err
    assert [path.name for path in Path().iterdir()] == ["run.json"]


# ---------------------------------------------------------------------------------------------------------- sql

QUERY = "select rank, count(*) as calls from calls group by rank order by rank"


def test_sql_gives_csv_where_nobody_looks(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Run(run) as opened:
        counts = opened.calls.groupby("rank").size().tolist()
    assert said(capsys, "sql", str(run), QUERY) == f'"rank","calls"\n0,{counts[0]}\n1,{counts[1]}\n'
    assert told(capsys, "sql", str(run), QUERY) == [{"rank": rank, "calls": count} for rank, count in enumerate(counts)]


def test_sql_keeps_missing_nan_and_lists_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = [None, math.nan, math.inf, -math.inf, 0.1]
    rows = [
        Reduction(key='k,"', reducer="", chosen_by="x\ny", count=1, value=value, step=i)
        for i, value in enumerate(values)
    ]
    run = str(write_run(tmp_path / "run", {0: [*rows, Call(point="p", keys_added=["a", "ü"])]}))
    query = "select value, key, reducer, chosen_by, role, step = 1 as is_one from reductions order by step"
    found = told(capsys, "sql", run, query)
    assert [row["value"] for row in found] == [None, "NaN", "Infinity", "-Infinity", 0.1]
    assert found[1] == {"value": "NaN", "key": 'k,"', "reducer": "", "chosen_by": "x\ny", "role": None, "is_one": True}
    text = said(capsys, "sql", run, query)
    assert text.startswith('"value","key","reducer","chosen_by","role","is_one"\n,"k,""","","x\ny",,false\nnan,')
    parsed = list(csv.DictReader(io.StringIO(text)))
    assert [row["value"] for row in parsed] == ["", "nan", "inf", "-inf", "0.1"]
    assert parsed[0]["chosen_by"] == "x\ny"
    assert told(capsys, "sql", run, "select keys_added from calls") == [{"keys_added": ["a", "ü"]}]
    assert said(capsys, "sql", run, "select keys_added from calls") == '"keys_added"\n"[""a"", ""ü""]"\n'


@pytest.mark.parametrize(
    ("given", "expected"), [("3", 3), ("0.5", 0.5), ("true", True), ("null", None), ("it's", "it's"), ('"3"', '"3"')]
)
def test_sql_takes_parameters(run: Path, capsys: pytest.CaptureFixture[str], given: str, expected: object) -> None:
    assert told(capsys, "sql", str(run), "select ? as x", given) == [{"x": expected}]


@pytest.mark.slow
def test_sql_reads_a_query_from_standard_input(run: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "probe", "sql", str(run), "-", "--json"],
        input="select 1 as one", capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == [{"one": 1}]


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ("selec 1", 'Parser Error: syntax error at or near "selec"'),
        ("select * from nothing", "Catalog Error: Table with name nothing does not exist"),
        ("select ? as x", "query: "),
        ("copy (select 1) to 'stolen.csv'", "query: "),
        ("select * from read_csv('/etc/passwd')", "query: "),
    ],
)
def test_what_duckdb_says_of_a_wrong_query_is_misuse(
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    query: str,
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["sql", str(run), query]) == 2
    heard = capsys.readouterr()
    assert heard.out == ""
    assert f"probe sql: {complaint}" in heard.err or complaint in heard.err
    assert not list(tmp_path.iterdir())


def test_sql_shows_a_table_to_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Scalar(key=f"[red]k{i}\x1b[2J", value=float(i), time_ns=i) for i in range(50)]
    run = str(write_run(tmp_path / "run", {0: rows}))
    query = "select key, value, step from scalars order by time_ns"
    lines = said(capsys, "sql", run, query, "--format", "table").splitlines()
    assert lines[0].split() == ["key", "value", "step"]
    assert lines[1].split() == ["[red]k0\\x1b[2J", "0.0", "–"]
    assert lines[-1] == "50 rows, 10 of them not shown (--rows 0)"
    assert len(lines) == 42
    assert len(said(capsys, "sql", run, query, "--format", "table", "--rows", "0").splitlines()) == 52


def test_columns_of_one_name_are_both_there(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = "select a.rank, b.rank from (select 1 as rank) a, (select 2 as rank) b"
    assert said(capsys, "sql", str(run), query).splitlines()[1] == "1,2"
    assert "1     2" in said(capsys, "sql", str(run), query, "--format", "table")
    code = main(["sql", str(run), query, "--json"])
    heard = capsys.readouterr()
    assert code == 2, heard.out
    assert "more than one column is called 'rank'" in heard.err


@pytest.mark.slow
def test_a_reader_that_has_enough_is_no_error(run: Path) -> None:
    command = (
        f"{sys.executable} -m probe sql {run} 'select * from calls, range(2000)' | head -1; echo ${{PIPESTATUS[0]}}"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.splitlines()[-1] == "141"
    assert done.stderr == ""


# --------------------------------------------------------------------------------------------------- being written


@pytest.mark.slow
def test_a_run_that_is_being_written_can_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its last line isn't whole yet."""
    run = write_run(tmp_path / "run", sample_rows(ranks=1, steps=2))
    with Run(run) as opened:
        before = len(opened.reductions), len(opened.calls)
    with (run / "rank-00000.jsonl").open("ab") as file:
        file.write(b'{"table":"scalars","ti')
    out = tmp_path / "out"
    assert told(capsys, "sql", str(run), "select count(*) as n from reductions") == [{"n": before[0]}]
    files = told(capsys, "export", str(run), "--format", "parquet", "-o", str(out))["files"]
    assert {file["table"]: file["rows"] for file in files}["calls"] == before[1]
    assert main(["report", str(run)]) == 0


@pytest.mark.slow
def test_standard_output_holds_the_result_alone(tmp_path: Path) -> None:
    """As a program sees it: the choice among runs is a remark."""
    run = write_run(tmp_path / "runs" / "a", sample_rows(ranks=1, steps=1))
    done = probe("export", str(tmp_path / "runs"), "--format", "perfetto", "-o", "t.pftrace", "--json", cwd=tmp_path)
    assert done.returncode == 0
    assert json.loads(done.stdout)["run"] == str(run)
    assert done.stderr == f"probe: {tmp_path / 'runs'} holds 1 run; taking {run}\n"
    assert (tmp_path / "t.pftrace").exists()


def test_a_run_in_a_store_is_exported_like_one_on_the_disk(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = fsspec.filesystem("memory")
    try:
        for path in run.iterdir():
            files.pipe_file(f"/bucket/run/{path.name}", path.read_bytes())
        for format, place in (("parquet", "tables"), ("perfetto", "trace")):
            here = told(capsys, "export", str(run), "--format", format, "-o", str(tmp_path / "here" / place))
            there = told(capsys, "export", "memory://bucket", "--format", format, "-o", str(tmp_path / "there" / place))
            assert there["run"] == "memory:///bucket/run"
            assert {**there, "run": 0, "path": 0, "files": 0} == {**here, "run": 0, "path": 0, "files": 0}
        for path in (tmp_path / "here" / "tables").iterdir():
            assert pq.read_table(path).equals(pq.read_table(tmp_path / "there" / "tables" / path.name))
        assert read(tmp_path / "here" / "trace") == read(tmp_path / "there" / "trace")
    finally:
        files.rm("/bucket", recursive=True)
