"""One damaged file of a run never takes the rest: it is left out, counted and named, and what helps is said."""

from __future__ import annotations

import json
import os
import shutil
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from probe.cli import main
from probe.cli.doctor_run import run_checks
from probe.errors import InputError, RunError
from probe.exporting.perfetto import export_perfetto
from probe.exporting.tables import export_tables
from probe.hooks import current_scope
from probe.live.feed import Feed
from probe.live.pump import Pump
from probe.records import Scalar
from probe.runs.compaction import compact
from probe.runs.files import damage
from probe.runs.layout import create_run, segment_of
from probe.runs.parts import roll_over
from probe.runs.reader import Run
from probe.runs.writer import RunWriter
from probe.views.report.report import report_html
from tests.cli.command import probe
from tests.sample_run import sample_rows, write_run

TABLES = ("memory", "micro_batches", "padding", "calls", "scalars")


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    directory = write_run(tmp_path_factory.mktemp("template") / "run", sample_rows())
    (directory / "parts").mkdir(exist_ok=True)
    for path in directory.glob("rank-*.jsonl"):
        list(roll_over(directory, segment_of(path.name)))
    return directory


@pytest.fixture
def whole(template, tmp_path):
    """A run of two ranks whose rows are all in Parquet parts."""
    return shutil.copytree(template, tmp_path / "run")


def cut(path):
    """Half of it: no footer, as after a copy that stopped."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def overwrite(path):
    """Its footer is whole, its columns aren't."""
    content = path.read_bytes()
    path.write_bytes(content[:4] + bytes(len(content) // 3) + content[4 + len(content) // 3 :])


def empty(path):
    path.write_bytes(b"")


def rows(directory):
    with Run(directory) as run:
        return {name: len(run.table(name)) for name in TABLES}


def of_other_types(path):
    """A whole file, of somebody else's."""
    pq.write_table(pa.table({"time_ns": ["one"], "rank": [[1]], "process": ["x"], "step": ["s"]}), path)


#: Each harm and each table once in every run.
OFTEN = [("memory", cut), ("memory", empty), ("scalar", overwrite), ("process", of_other_types)]


@pytest.mark.parametrize(
    ("table", "harm"),
    [
        pytest.param(table, harm, marks=[] if (table, harm) in OFTEN else pytest.mark.thorough)
        for table in ("memory", "process", "scalar")
        for harm in (cut, overwrite, empty, of_other_types)
    ],
)
def test_a_damaged_part_is_left_out_of_frames_queries_and_rows(whole, harm, table, caplog):
    [name] = [path.name for path in (whole / "parts").glob(f"{table}*-rank00001-0.parquet")]
    before = rows(whole)
    ours = {"memory": "memory", "scalar": "scalars", "process": "processes"}[table]
    with Run(whole) as run:
        kept = {one: len(run.table(one)) for one in TABLES}
        kept[ours] = int((run.table(ours)["rank"] != 1).sum())
    harm(whole / "parts" / name)
    with Run(whole) as run:
        assert {one: len(run.table(one)) for one in kept} == kept
        assert [one.name for one in run.damaged] == [name]
    with Run(whole) as run:
        found = run.sql(f"select count(*) as n, sum(step) from {ours}")
        assert found["n"][0] == kept[ours]
        assert [one.name for one in run.damaged] == [name]
    with Run(whole) as run:
        count = sum(1 for _ in run.tail(stop=lambda: True))
        assert count == sum(len(run.table(one)) for one in run.tables)
    told = [one.getMessage() for one in caplog.records if "damaged" in one.getMessage()]
    assert len(told) == 3
    assert all(name in one and "copy" in one and "delete" in one for one in told)
    assert before != kept


def test_a_query_that_is_wrong_is_still_the_query_s_error(whole):
    with Run(whole) as run:
        with pytest.raises(InputError, match="nowhere"):
            run.sql("select * from nowhere")
        with pytest.raises(InputError, match="x"):
            run.sql("select error('x') from memory")
        assert run.damaged == []


@pytest.mark.parametrize("harm", [pytest.param(cut, marks=pytest.mark.thorough), overwrite])
def test_a_damaged_part_is_told_in_report_tail_panel_export_and_sql(whole, tmp_path, harm, capsys, caplog):
    [name] = [path.name for path in (whole / "parts").glob("memory-rank00001-0.parquet")]
    with Run(whole) as run:
        calls = len(run.calls)
    harm(whole / "parts" / name)
    with Run(whole) as run:
        page = report_html(run)
    assert f"1 damaged file is left out, with the rows that it held: {name}" in page
    assert "Put it back from a copy, or delete it" in page

    feed = Feed(whole)
    feed.open()
    assert name in feed.damage
    assert feed.tables["spans"].count
    pump = Pump(Feed(whole), None, 0.05)
    pump.start()
    try:
        deadline = time.monotonic() + 300
        while not pump.state()["errors"] and time.monotonic() < deadline:
            time.sleep(0.02)
        [error] = pump.state()["errors"]
        assert name in error["message"]
    finally:
        pump.stop()

    assert main(["tail", str(whole), "--once"]) == 0
    assert f"! 1 damaged file is left out, with the rows that it held: {name}" in capsys.readouterr().out
    assert main(["tail", str(whole), "--once", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["damaged_files"] == [name]
    told = probe("sql", str(whole), "select count(*) as n, count(allocated_bytes) from memory", "--json")
    assert told.returncode == 0
    assert name in told.stderr
    assert json.loads(told.stdout)[0]["n"] > 0
    caplog.clear()
    assert main(["export", str(whole), "--format", "csv", "-o", str(tmp_path / "csv")]) == 0
    assert name in caplog.text
    files = {file.table: file.rows for file in export_tables(whole, tmp_path / "tables")}
    assert files["calls"] == calls
    assert files["memory"] > 0
    assert export_perfetto(whole, tmp_path / "trace").slices


@pytest.mark.parametrize(
    "harm", [cut, pytest.param(overwrite, marks=pytest.mark.thorough), pytest.param(empty, marks=pytest.mark.thorough)]
)
def test_a_damaged_compacted_file_is_left_out(whole, harm):
    before = rows(whole)
    compact(whole)
    [path] = (whole / "parts").glob("padding-compacted-*.parquet")
    harm(path)
    assert rows(whole) == {**before, "padding": 0}
    with Run(whole) as run:
        assert run.sql("select count(*) as n, sum(tokens) from padding")["n"][0] == 0
        assert run.sql("select count(*) as n, max(value) from scalars")["n"][0] == before["scalars"]
        assert [one.name for one in run.damaged] == [path.name]
        assert len(list(run.tail(stop=lambda: True))) == sum(len(run.table(one)) for one in run.tables)


def test_a_file_that_is_put_back_is_read_again(whole):
    path = whole / "parts" / "memory-rank00001-0.parquet"
    before, content = rows(whole), path.read_bytes()
    cut(path)
    assert rows(whole)["memory"] < before["memory"]
    path.write_bytes(content)
    assert rows(whole) == before


def test_a_compaction_leaves_a_segment_with_a_damaged_part_alone(whole):
    cut(whole / "parts" / "memory-rank00001-0.parquet")
    before = rows(whole)
    done = compact(whole)
    assert list(done.left) == ["rank-00001.jsonl"]
    assert "can't be read" in done.left["rank-00001.jsonl"]
    assert rows(whole) == before
    assert (whole / "parts" / "memory-rank00001-0.parquet").exists()


def test_a_doctor_counts_and_names_them(whole):
    cut(whole / "parts" / "memory-rank00001-0.parquet")
    [told] = [check.message for check in run_checks(str(whole)) if check.level == "error"]
    assert told.startswith("1 parts can't be read")
    assert "memory-rank00001-0.parquet" in told
    assert "from a copy" in told
    assert damage([]) == ""


# ------------------------------------------------------------------------------------------ what isn't a file


@pytest.mark.parametrize("kind", ["fifo", pytest.param("directory", marks=pytest.mark.thorough)])
def test_a_pipe_or_directory_named_like_a_file_of_the_run_holds_no_reader(whole, tmp_path, kind):
    before = rows(whole)
    for name in ("rank-00009.jsonl", "parts/memory-rank00009-0.parquet", "parts/compacted-000001.json"):
        (os.mkfifo if kind == "fifo" else os.mkdir)(whole / name)
    assert rows(whole) == before  # on today's code opening a pipe waits for ever: the test ends by its time limit
    feed = Feed(whole)
    feed.open()
    assert feed.tables["spans"].count
    assert main(["tail", str(whole), "--once"]) == 0
    assert export_tables(whole, tmp_path / "tables")
    assert {check.level for check in run_checks(str(whole))} <= {"ok", "warning"}


def test_a_run_json_that_is_a_pipe_or_no_text_is_an_error_of_ours(tmp_path):
    directory = create_run("p", "e", root=tmp_path)
    path = directory / "run.json"
    path.write_bytes(path.read_bytes().replace(b'"p"', b'"\xff\xfe"'))
    with pytest.raises(RunError, match=r"run\.json isn't what probe writes"):
        Run(directory)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(RunError, match="isn't a file"):
        Run(directory)


def test_a_writer_passes_over_a_directory_in_its_place(tmp_path, process):
    directory = create_run("p", "e", root=tmp_path)
    (directory / "rank-00000.jsonl").mkdir()
    writer = RunWriter(directory, rank=0, process=process())
    writer.add_rows(Scalar(key="k", value=1), current_scope(), 1)
    writer.close()
    with Run(directory) as run:
        assert len(run.scalars) == 1
    shutil.rmtree(directory)
