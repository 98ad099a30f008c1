"""What is read equals what was written, for every row type, through JSONL and through Parquet."""

from __future__ import annotations

import math
import time
import typing

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from probe.hooks import Scope
from probe.records import ROW_TYPES, SCHEMA_VERSION, TABLES, Incident, Memory, MicroBatch, Process, Reduction, Scalar
from probe.runs.columnar import Columnar
from probe.runs.columns import columns, rows_of
from probe.runs.layout import Segment, create_run
from probe.runs.lines import decode, encode, table_of
from probe.runs.parts import roll_over
from probe.runs.reader import Run
from probe.runs.writer import RunWriter

INTEGERS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    ["NaN", "Infinity", "null", "a\nb\r\n", '"}']
)
VALUES = {
    int: INTEGERS,
    float: st.floats(),
    bool: st.booleans(),
    str: TEXTS,
    list[int]: st.lists(INTEGERS, max_size=4),
    list[str]: st.lists(TEXTS, max_size=3),
}


def _field(hint):
    options = typing.get_args(hint)
    if type(None) in options:
        return st.none() | VALUES[next(one for one in options if one is not type(None))]
    return VALUES[hint]


def rows_of_type(kind):
    hints = typing.get_type_hints(kind)
    fields = {name: _field(hints[name]) for name in kind.__struct_fields__}
    if kind is Process:
        fields |= {
            "schema_version": st.just(SCHEMA_VERSION),
            "wall_ns": st.integers(0, 2**60),
            "time_ns": st.integers(0, 2**60),
        }
    return st.builds(kind, **fields)


ROWS = st.one_of([rows_of_type(kind) for kind in ROW_TYPES])


def same(one, other):
    """Equal with NaN equal to NaN, and of one type."""
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return type(one) is type(other) and one == other


def same_row(one, other):
    return type(one) is type(other) and all(
        same(getattr(one, name), getattr(other, name)) for name in one.__struct_fields__
    )


def plain(value, optional):
    """A value out of a frame as the row had it."""
    if value is None or value is pd.NA:
        assert optional
        return None
    return value.item() if isinstance(value, np.generic) else value


@settings(deadline=None)
@given(ROWS)
def test_a_line_is_one_line_and_the_row_again(row):
    line = encode(row)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert same_row(decode(line), row)


@pytest.mark.slow
@settings(deadline=None, max_examples=12, suppress_health_check=list(HealthCheck))
@given(st.lists(ROWS, max_size=16))
def test_rows_through_columns_parquet_and_frames(tmp_path_factory, rows):
    directory = create_run("p", "e", root=tmp_path_factory.mktemp("runs"))
    (directory / Segment.of_rank(0, 0).name).write_bytes(b"".join(map(encode, rows)))
    from_lines = frames_and_rows(directory)
    for _ in roll_over(directory, Segment.of_rank(0, 0)):
        pass
    assert not list(directory.glob("*.jsonl"))
    for found in (from_lines, frames_and_rows(directory)):
        for kind in ROW_TYPES:
            expected = [row for row in rows if type(row) is kind]
            if kind is not Process:  # the frame holds each process once
                assert len(found[kind]) == len(expected)
                assert all(map(same_row, found[kind], expected))


def frames_and_rows(directory):
    """The rows that the frames hold, by type."""
    found = {}
    with Run(directory) as run:
        for kind in ROW_TYPES:
            table = str(kind.__struct_config__.tag)
            frame = run.table(table)
            optional = {one.name: one.optional for one in columns(table)}
            names = kind.__struct_fields__
            found[kind] = [
                kind(**{name: plain(frame[name][index], optional[name]) for name in names})
                for index in range(len(frame))
            ]
    return found


@settings(deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=8))
def test_columns_are_the_rows_again(rows):
    columnar = Columnar()
    found = columnar.add_lines(b"".join(map(encode, rows)))
    numbered = sorted(
        (pair for table, columns in found.items() for pair in rows_of(table, columns)),
        key=lambda pair: pair[0],
    )
    assert [number for number, _ in numbered] == list(range(len(rows)))
    assert all(same_row(one, other) for (_, one), other in zip(numbered, rows, strict=True))
    assert (columnar.lines, columnar.bad) == (len(rows), 0)


def test_nan_and_missing_differ_in_a_frame(directory, writer, put):
    values = [math.nan, None, math.inf, -math.inf, 1.5, -0.0]
    one = writer()
    put(one, [Reduction(key="k", reducer="max", chosen_by="name", count=1, value=value) for value in values])
    put(one, [Scalar(key="k", value=value) for value in values if value is not None])
    one.close()
    with Run(directory) as run:
        column = run.reductions["value"]
        assert column.dtype == "Float64"
        assert column.isna().tolist() == [value is None for value in values]
        assert np.isnan(column[0])
        assert [column[2], column[3], column[4]] == [math.inf, -math.inf, 1.5]
        assert math.copysign(1, column[5]) == -1
        assert run.scalars["value"].dtype == np.float64
        assert np.isnan(run.scalars["value"][0])
        counted = run.sql(
            "select count(*) as rows, count(value) as known, sum(isnan(value)::int) as nan from reductions"
        )
        assert counted.iloc[0].tolist() == [6, 5, 1]


def test_dtypes_follow_the_row_types_also_without_rows(directory):
    expected = {
        ("time_ns", "int64"), ("step", "Int64"), ("role", "object"), ("lengths", "object"),
        ("over_cap", "bool"),
        ("utilisation_ratio", "Float64"), ("wall_ns", "Int64"),
    }  # fmt: skip
    with Run(directory) as run:
        for table in TABLES:
            frame = run.table(table)
            assert len(frame) == 0
            assert list(frame.columns[: len(TABLES[table].__struct_fields__)]) == list(TABLES[table].__struct_fields__)
        assert expected <= {(name, str(dtype)) for name, dtype in run.micro_batches.dtypes.items()}
        assert len(run.sql("select * from processes")) == 0


def test_numpy_numbers_and_lone_surrogates_are_written():
    row = MicroBatch(
        batch_id=np.int64(3), micro_batches=1, sequences=1, lengths=[np.int32(4)], tokens=4,
        workload=np.float32("nan"), source="\ud800",
    )  # fmt: skip
    found = decode(encode(row))
    assert (found.batch_id, found.lengths) == (3, [4])
    assert math.isnan(found.workload)
    assert found.source == "\\ud800"


def test_what_is_not_a_row_is_told_from_an_unknown_table():
    assert decode(b'{"table":"of_the_future","x":[1]}') is None
    assert decode(b'{"table":"scalars","key":"k","value":1,"new":{"a":1}}').value == 1.0
    for line in (b"", b"{", b"[]", b'{"table":"memory"}', b'{"table":"scalars","key":1,"value":1}', b"\xff"):
        with pytest.raises((msgspec.MsgspecError, UnicodeDecodeError)):
            decode(line)


@pytest.mark.parametrize(
    "line",
    [b"\n", b"{\n", b'{"table":"memory"}\n', b'{"table":"scalars","key":"\xff","value":1}\n', b"null\n",
     b'{"table":"scalars","key":"k","value":null}\n',
     b'{"table":"calls","point":"p","duration_ns":99999999999999999999}\n',
     b'{"table":"scalars","key":"k","value":1} {"table":"scalars","key":"k","value":1}\n'],
)  # fmt: skip
def test_bad_lines_are_counted_and_skipped(directory, line):
    good = encode(Scalar(key="k", value=1.0))
    path = directory / Segment.of_rank(0, 0).name
    path.write_bytes(encode(Process(wall_ns=5)) + good + line + good + good[:20])
    with Run(directory) as run:
        assert run.scalars["value"].tolist() == [1.0, 1.0]
        assert run.bad_lines == 1
        assert run.scalars["wall_ns"].tolist() == [5, 5]
    path.write_bytes(path.read_bytes() + b"\n")
    for _ in roll_over(directory, Segment.of_rank(0, 0)):
        pass
    with Run(directory) as run:
        assert len(run.scalars) == 2
        assert run.bad_lines == 2  # the torn line has become one


def test_fields_of_an_older_probe_get_their_defaults(directory):
    (directory / Segment.of_rank(0, 0).name).write_bytes(
        b'{"table":"micro_batches","batch_id":1,"micro_batches":1,"sequences":1,"lengths":[3],"tokens":3}\n'
    )
    for roll in (False, True):
        if roll:
            list(roll_over(directory, Segment.of_rank(0, 0)))
        with Run(directory) as run:
            row = run.micro_batches.iloc[0]
            assert (row["indices"], row["over_cap"], row["source"]) == ([], False, "")
            assert row["cap_tokens"] is pd.NA
            assert row["wall_ns"] is pd.NA
            assert run.sql("select over_cap, source from micro_batches").iloc[0].tolist() == [False, ""]


def test_parts_of_an_older_probe_get_their_defaults(directory):
    import pyarrow as pa
    import pyarrow.parquet as pq

    old = pa.table({"key": ["k"], "value": [1.0], "time_ns": [1], "rank": [0], "line": [0]})
    pq.write_table(old, directory / "parts" / Segment.of_rank(0, 0).part("scalars"))
    with Run(directory) as run:
        assert run.scalars["source"].tolist() == ["user"]
        assert run.scalars["scope"].tolist() == [""]
        assert run.sql("select source from scalars")["source"].tolist() == ["user"]
        assert [(row.key, row.source) for row in run.new_rows()] == [("k", "user")]


def test_every_row_type_goes_through_a_writer(directory, process, put):
    """By hand for each type, so that a new row type without a column type fails here."""
    seen = []
    writer = RunWriter(directory, rank=3, process=process(), on_rows=seen.extend)
    scope = Scope("phase", "update", Scope("process", "process"), step=7, role="actor")
    rows = [
        Memory(edge="leave", allocated_bytes=2**40),
        MicroBatch(batch_id=1, micro_batches=2, sequences=2, lengths=[3, 4], tokens=7),
        Incident(kind="k", where="w", message="line\nline", traceback="…"),
        Scalar(key="k", value=math.nan, step=9),
    ]
    writer.add_rows(rows, scope, time.monotonic_ns())
    assert writer.flush()
    assert seen == rows
    writer.close()
    with Run(directory) as run:
        for row in rows:
            frame = run.table(table_of(row))
            assert frame["rank"].tolist() == [3]
            assert frame["role"].tolist() == ["actor"]
            assert frame["scope"].tolist() == ["update"]
            assert frame["step"].tolist() == [row.step]
        assert run.scalars["step"].tolist() == [9]
        wall = run.processes["wall_ns"][0] + run.memory["time_ns"][0] - run.processes["time_ns"][0]
        assert run.memory["wall_ns"].tolist() == [wall]
