"""The reader: what it refuses, what it tolerates, and that it follows a run exactly."""

from __future__ import annotations

import json
import threading
import time

import fsspec
import pytest

from probe.errors import (
    InputError,
    InputTypeError,
    RunError,
    RunNotFoundError,
    SchemaVersionError,
    UnknownNameError,
)
from probe.records import SCHEMA_VERSION, TABLES, Memory, MicroBatch, Process, Scalar
from probe.runs.layout import Segment, create_run
from probe.runs.lines import encode
from probe.runs.parts import roll_over
from probe.runs.reader import NAMES, Run


def segment(directory, rank, number, *values, process=None):
    """Write a segment by hand: a Process row, then a scalar for each value."""
    rows = [
        process or Process(rank=rank, pid=rank + 1, wall_ns=1000, world_size=4),
        *(scalar(value, rank) for value in values),
    ]
    path = directory / Segment.of_rank(rank, number).name
    path.write_bytes(b"".join(map(encode, rows)))
    return path


def scalar(value, rank=0):
    return Scalar(key="k", value=value, rank=rank, time_ns=int(value) + 1)


def parts(directory, rank=0, number=0):
    for _ in roll_over(directory, Segment.of_rank(rank, number)):
        pass


def values(rows):
    return [row.value for row in rows if isinstance(row, Scalar)]


# --------------------------------------------------------------------------------------- what can't be opened


def test_nothing_there_says_what_to_check(tmp_path):
    with pytest.raises(RunNotFoundError, match=r"missing.*Check the spelling"):
        Run(tmp_path / "missing")
    with pytest.raises(FileNotFoundError):
        Run(str(tmp_path / "missing"))


def test_a_directory_that_is_no_run_says_so(tmp_path):
    with pytest.raises(RunError, match=r"isn't a run.*run\.json"):
        Run(tmp_path)
    with pytest.raises(InputTypeError, match="path: got 3"):
        Run(3)


def test_a_newer_run_names_both_versions(directory):
    told = json.loads((directory / "run.json").read_text())
    (directory / "run.json").write_text(json.dumps({**told, "schema_version": 99}))
    with pytest.raises(SchemaVersionError, match=rf"version 99\b.*version {SCHEMA_VERSION}\b"):
        Run(directory)


@pytest.mark.parametrize("rolled", [False, True])
def test_a_newer_process_in_the_run_names_both_versions(directory, rolled):
    segment(directory, 0, 0, 1, process=Process(schema_version=99))
    if rolled:
        parts(directory)
    run = Run(directory)
    for act in (
        lambda: run.memory,
        run.refresh,
        lambda: run.sql("select 1"),
        run.new_rows,
        lambda: list(run.tail(stop=lambda: True)),
    ):
        with pytest.raises(SchemaVersionError, match=rf"version 99\b.*version {SCHEMA_VERSION}\b"):
            act()


def test_unknown_tables_and_fields_are_tolerated(directory):
    path = segment(directory, 0, 0, 1)
    future = b'{"table":"of_the_future","x":1}\n{"table":"scalars","key":"k","value":2,"new":{"deep":[1]}}\n'
    path.write_bytes(path.read_bytes() + future)
    for rolled in (False, True):
        if rolled:
            parts(directory)
        with Run(directory) as run:
            assert run.scalars["value"].tolist() == [1, 2]
            assert run.bad_lines == 0
            assert values(run.new_rows()) == [1, 2]
    (directory / "parts" / Segment.of_rank(0, 0).part("of_the_future")).write_bytes(b"anything")
    with Run(directory) as run:
        assert run.scalars["value"].tolist() == [1, 2]
        assert values(run.new_rows()) == [1, 2]


def test_a_damaged_part_is_left_out_and_named(directory):
    segment(directory, 0, 0, 1)
    parts(directory)
    (directory / "parts" / Segment.of_rank(0, 0).part("scalars")).write_bytes(b"not parquet")
    with Run(directory) as run:
        assert len(run.scalars) == 0
        assert [one.name for one in run.damaged] == [Segment.of_rank(0, 0).part("scalars")]


# -------------------------------------------------------------------------------------------- ranks and order


def test_ranks_and_missing_ranks(directory):
    segment(directory, 0, 0, 1)
    segment(directory, 2, 0, 2)
    parts(directory, 2)
    with Run(directory) as run:
        assert run.ranks == [0, 2]
        assert run.missing_ranks == [1, 3]
        assert sorted(run.processes["rank"]) == [0, 2]


def test_rows_of_a_rank_are_in_the_order_of_writing(directory):
    segment(directory, 0, 0, 1, 2)
    segment(directory, 0, 1, 3)
    segment(directory, 0, 2, 4)
    segment(directory, 0, 10, 5)
    parts(directory, 0, 1)  # segment 0 is left over from a crash
    parts(directory, 0, 2)
    with Run(directory) as run:
        assert run.scalars["value"].tolist() == [1, 2, 3, 4, 5]
        assert values(run.new_rows()) == [1, 2, 3, 4, 5]
        assert run.scalars["wall_ns"].tolist() == [1002, 1003, 1004, 1005, 1006]


def test_an_empty_run_has_empty_tables(directory):
    with Run(directory) as run:
        assert all(run.table(name).empty for name in NAMES)
        assert (run.ranks, run.missing_ranks, run.bad_lines, run.new_rows()) == ([], [], 0, [])
        for name in NAMES:
            assert run.sql(f"select * from {name}").empty


# -------------------------------------------------------------------------------------------------------- SQL


def test_sql_over_lines_and_parts_with_parameters(directory):
    segment(directory, 0, 0, 1, 2)
    segment(directory, 1, 0, 3)
    parts(directory)
    with Run(directory) as run:
        found = run.sql(
            "select rank, sum(value) as total from scalars where value > ? group by rank order by rank", [1]
        )
        assert found.to_dict("list") == {"rank": [0, 1], "total": [2.0, 3.0]}
        assert run.sql("select sum(time_ns) as total from scalars").dtypes["total"] == "int64"
        assert (
            run.sql(
                "select count(*) as n from scalars s join processes p using (rank) where key = $key",
                {"key": "k"},
            )["n"][0]
            == 3
        )
        assert list(run.sql("select * from scalars").columns) == list(run.scalars.columns)
        assert run.sql("select 1 as a, 2 as a").shape == (1, 2)
        assert run.sql("select NULL::double as a, [1,2] as b, 'x' as c")["b"][0] == [1, 2]


def test_sql_can_do_no_harm(directory, tmp_path):
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    local_frame = secret  # a Python variable that a query must not see
    with Run(directory) as run:
        for query in (
            f"copy scalars to '{tmp_path}/out.csv'",
            f"select * from read_csv('{secret}')",
            f"select * from '{secret}'",
            f"attach '{tmp_path}/x.db'",
            "set enable_external_access = true",
            "select * from local_frame",
            "install httpfs",
            "selekt",
            "select * from nothing",
        ):
            with pytest.raises(InputError, match="query: "):
                run.sql(query)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "secret.csv"]
    assert local_frame


def test_many_threads_may_query_at_once(directory):
    segment(directory, 0, 0, *range(500))
    found = []
    with Run(directory) as run:
        threads = [
            threading.Thread(target=lambda: found.append(run.sql("select sum(value) as s from scalars")["s"][0]))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [sum(range(500))] * 8


# ------------------------------------------------------------------------------------------ snapshot, refresh


def test_tables_show_one_moment_until_refresh(directory, writer, put):
    one = writer(interval_s=0.01)
    put(one, Scalar(key="k", value=1))
    one.flush()
    with Run(directory) as run:
        assert len(run.scalars) == 1
        put(one, Scalar(key="k", value=2), Memory(edge="sample"))
        one.flush()
        assert (len(run.scalars), len(run.memory), run.sql("select count(*) as n from scalars")["n"][0]) == (
            1,
            0,
            1,
        )
        assert (len(run.refresh().scalars), len(run.memory)) == (2, 1)
        one.close()
        assert len(run.refresh().scalars) == 2
        assert run.sql("select count(*) as n from scalars")["n"][0] == 2
        assert run.scalars is run.scalars


def test_a_run_made_anew_at_the_same_place(directory):
    segment(directory, 0, 0, 1, 2, 3)
    with Run(directory) as run:
        assert len(run.scalars) == 3
        segment(directory, 0, 0, 9)
        assert run.refresh().scalars["value"].tolist() == [9]


def test_a_closed_run_says_so(directory):
    run = Run(directory)
    run.close()
    run.close()
    with pytest.raises(RunError, match="closed"):
        assert run.memory is None
    assert "Run(" in repr(run)
    assert "Run(" in run._repr_html_()


def test_unknown_table_lists_the_choices(directory):
    with Run(directory) as run:
        with pytest.raises(UnknownNameError, match=r"table: got 'memry'.*micro_batches"):
            run.table("memry")
        with pytest.raises(UnknownNameError):
            run.tail("memry")
        with pytest.raises(InputError, match="poll_s"):
            run.tail(poll_s=0)
        assert run.table("process").equals(run.processes)


def test_reprs_are_short_and_escaped(tmp_path):
    directory = create_run("<b>bold</b>", "e&e", root=tmp_path)
    segment(directory, 0, 0, 1)
    with Run(directory) as run:
        assert repr(run) == f"Run({str(directory)!r}, project='<b>bold</b>', 1 rank)"
        html = run._repr_html_()
    assert "<b>" not in html
    assert "&lt;b&gt;bold" in html
    assert "e&amp;e" in html
    assert "<td>scalars</td><td>1</td>" in html


# ------------------------------------------------------------------------------------------ following the run


def test_new_rows_gives_each_row_once_through_every_form(directory):
    path = segment(directory, 0, 0, 1, 2)
    with Run(directory) as run:
        first = run.new_rows()
        assert [type(row) for row in first] == [Process, Scalar, Scalar]
        assert run.new_rows() == []
        line = encode(scalar(3))
        path.write_bytes(path.read_bytes() + line[:30])
        assert run.new_rows() == []
        path.write_bytes(path.read_bytes() + line[30:] + b"not a row\n" + encode(scalar(4)))
        parts(directory)  # seen neither 3, 4 nor the bad line as lines
        segment(directory, 0, 1, 5)
        parts(directory, 0, 1)  # came and went between two looks
        segment(directory, 0, 2, 6)
        assert values(run.new_rows()) == [3, 4, 5, 6]
        parts(directory, 0, 2)
        assert run.new_rows() == []


def test_a_bad_line_read_as_a_line_does_not_shift_the_place(directory):
    path = segment(directory, 0, 0, 1)
    path.write_bytes(path.read_bytes() + b"bad\n" + encode(scalar(2)))
    with Run(directory) as run:
        assert values(run.new_rows()) == [1, 2]
        path.write_bytes(path.read_bytes() + encode(scalar(3)))
        parts(directory)
        assert values(run.new_rows()) == [3]


def test_new_rows_keep_the_order_of_tables_that_alternate(directory):
    rows = [Process(pid=1, wall_ns=1)]
    for index in range(20):
        rows += [scalar(index), Memory(edge="sample", allocated_bytes=index)]
        rows += [MicroBatch(batch_id=index, micro_batches=1, sequences=1, lengths=[1], tokens=1)]
    (directory / Segment.of_rank(0, 0).name).write_bytes(b"".join(map(encode, rows)))
    for rolled in (False, True):
        if rolled:
            parts(directory)
        with Run(directory) as run:
            assert run.new_rows() == rows


def test_tail_across_many_roll_overs_of_many_ranks(directory, writer, put):
    writers = [writer(rank, interval_s=0.01, roll_over_bytes=4000, world_size=3) for rank in range(3)]
    done = threading.Event()

    def produce(one):
        for value in range(0, 600, 10):
            put(one, [Scalar(key="k", value=value + more) for more in range(10)])
            time.sleep(0.005)
        one.close()

    threads = [threading.Thread(target=produce, args=(one,)) for one in writers]

    def wait():
        for thread in threads:
            thread.join()
        done.set()

    waiting = threading.Thread(target=wait)
    found: dict[int, list[float]] = {0: [], 1: [], 2: []}
    processes = []
    with Run(directory) as run:
        rows = run.tail(poll_s=0.002, stop=done)
        for thread in [*threads, waiting]:
            thread.start()
        for row in rows:
            if isinstance(row, Scalar):
                found[row.rank].append(row.value)
            else:
                processes.append(row)
        waiting.join()
        assert found == {rank: [float(value) for value in range(600)] for rank in range(3)}
        assert sorted(row.rank for row in processes) == [0, 1, 2]
        assert len(run.scalars) == 1800
    assert len(list((directory / "parts").glob("scalars-*"))) > 6


@pytest.mark.slow
def test_refresh_while_segments_roll_over_sees_each_row_once(directory, writer, put):
    one = writer(interval_s=0.005, roll_over_bytes=3000)
    with Run(directory) as run:
        for value in range(0, 600, 10):
            put(one, [Scalar(key="k", value=value + more) for more in range(10)])
            seen = run.refresh().scalars["value"].tolist()
            assert seen == [float(number) for number in range(len(seen))]
        one.close()
        assert len(run.refresh().scalars) == 600


def test_tail_of_some_tables_from_now_on(directory, writer, put):
    one = writer(interval_s=0.01)
    put(one, Scalar(key="old", value=1))
    one.flush()
    with Run(directory) as run:
        rows = run.tail("scalars", from_start=False, poll_s=0.01)
        put(one, Memory(edge="sample"), Scalar(key="new", value=1))
        assert next(rows).key == "new"
        assert [type(row) for row in run.tail(["memory"], stop=lambda: True)] == [Memory]


# -------------------------------------------------------------------------------------------------- elsewhere


def test_a_run_on_another_file_system(directory):
    segment(directory, 0, 0, 1, 2)
    segment(directory, 0, 1, 3)
    segment(directory, 3, 0, 4)
    parts(directory)
    memory = fsspec.filesystem("memory")
    try:
        memory.put(str(directory), "/elsewhere/run", recursive=True)
        with Run("memory://elsewhere/run") as run:
            assert run.path.startswith("memory://")
            assert run.scalars["value"].tolist() == [1, 2, 3, 4]
            assert run.sql("select count(*) as n from scalars")["n"][0] == 4
            assert (run.ranks, run.missing_ranks) == ([0, 3], [1, 2])
            assert values(run.new_rows()) == [1, 2, 3, 4]
            with memory.open("/elsewhere/run/rank-00000.1.jsonl", "ab") as file:
                file.write(encode(scalar(5)))
            assert values(run.new_rows()) == [5]
            assert len(run.refresh().scalars) == 5
            assert "elsewhere" in repr(run)
        with pytest.raises(RunNotFoundError):
            Run("memory://nowhere")
        with pytest.raises(RunError, match="isn't a run"):
            Run("memory://elsewhere")
        with Run(f"file://{directory}") as run:
            assert len(run.scalars) == 4
    finally:
        memory.rm("/elsewhere", recursive=True)


def test_every_table_has_a_property(directory):
    with Run(directory) as run:
        assert all(getattr(run, name).equals(run.table(name)) for name in NAMES if name != "failures")
        assert run.failures().empty  # each once, of the rows of the table
        assert run.table("failures").empty
        assert set(NAMES.values()) == set(TABLES)
