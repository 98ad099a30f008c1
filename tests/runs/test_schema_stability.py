"""What was written once is read for ever: the schema, and a run of every version, stand here as files.

If a test of this file fails, a run on somebody's disk would read otherwise than it did. A new optional field is
allowed, and a new table: add it to ``golden/schema-<version>.json``. Anything else is a new ``SCHEMA_VERSION``, with a
reader for the old one and a golden run of its own; the old golden files stay as they are.
``python tests/runs/test_schema_stability.py`` writes those of the present version where they are missing.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from probe.records import (
    SCHEMA_VERSION,
    TABLES,
    Call,
    Incident,
    Memory,
    MicroBatch,
    Padding,
    Process,
    Reduction,
    Scalar,
)
from probe.runs import version_1
from probe.runs.columns import LINE, schema
from probe.runs.compaction import compact
from probe.runs.files import RunFiles
from probe.runs.follower import Follower
from probe.runs.layout import Segment
from probe.runs.lines import encode
from probe.runs.parts import roll_over
from probe.runs.reader import NAMES, Run
from probe.runs.snapshot import Snapshot

GOLDEN = Path(__file__).parent / "golden"
VERSIONS = range(1, SCHEMA_VERSION + 1)


def schemas():
    """The Arrow schema of every table, as text."""
    return {table: {field.name: str(field.type) for field in schema(table)} for table in TABLES}


def golden_json(kind, version):
    """A golden file by today's names: those of version 1 go through the same mapping as its rows do."""
    golden = json.loads((GOLDEN / f"{kind}-{version}.json").read_text())
    return {table: _named_now(table, columns) for table, columns in golden.items()} if version == 1 else golden


def _named_now(table, columns):
    now = {version_1.old_columns(table).get(name, name): column for name, column in columns.items()}
    for name, rules in version_1.VALUES.get(table, {}).items():
        if isinstance(now[name], list):
            now[name] = [version_1.renamed(value, rules) for value in now[name]]
    return now


def values(directory):
    """All values of all tables, by column, exactly: JSON text of Python's shortest floats, NaN and infinities named."""
    snapshot = Snapshot(RunFiles(directory))
    snapshot.refresh()
    return {table: snapshot.table(table).to_pydict() for table in TABLES}


def exact(found):
    return json.dumps(found, sort_keys=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_has_its_golden_files(version):
    assert (GOLDEN / f"schema-{version}.json").exists()
    assert (GOLDEN / f"run-{version}" / "run.json").exists()
    assert sum(path.stat().st_size for path in GOLDEN.rglob("*") if path.is_file()) < 100_000 * len(VERSIONS)


def test_the_schema_is_the_golden_one():
    golden = golden_json("schema", SCHEMA_VERSION)
    assert schemas() == golden, "a field changed or went away: that is a new SCHEMA_VERSION with a reader for the old"


@pytest.mark.parametrize("version", VERSIONS)
def test_fields_of_every_version_are_still_there(version):
    golden = golden_json("schema", version)
    for table, fields in golden.items():
        assert fields.items() <= schemas()[table].items()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_golden_run_reads_to_the_same_values(version, tmp_path):
    golden = golden_json("values", version)
    run = tmp_path / "run"
    shutil.copytree(GOLDEN / f"run-{version}", run)
    for path in run.glob("*.jsonl"):
        os.utime(path, (0, 0))  # nobody writes to it any more
    for _ in range(2):
        found = values(run)
        for table, columns in golden.items():
            assert exact({name: found[table][name] for name in columns}) == exact(columns)
        with Run(run) as opened:
            assert opened.bad_lines == 1
            assert (opened.info.schema_version, opened.info.project) == (version, "golden")
            for name, table in NAMES.items():
                counted = opened.sql(f"select count(*) as n from {name}")["n"][0]
                assert len(opened.table(name)) == counted
                if table not in golden:  # it has come since
                    assert counted == 0
                    continue
                rows = len(golden[table][LINE])
                assert counted == (2 if table == "process" else rows)
                told = opened.sql(f"select distinct attempt, process, rank from {name} order by all").values.tolist()
                assert told == [[1, "rank-00000", 0], [1, "rank-00001", 1]]
        rows = Follower(RunFiles(run)).poll()
        assert len(rows) == 2 + sum(len(columns[LINE]) for table, columns in golden.items() if table != "process")
        assert {(row.attempt, row.process, row.rank) for row in rows} == {(1, "rank-00000", 0), (1, "rank-00001", 1)}
        assert compact(run, force=True).left == {}  # and what compaction makes of it, too


# --------------------------------------------------------------------------------------- how they were made


def golden_rows(rank):
    """Rows of every type, with all fields once given and once left out, and every kind of number."""
    stamp = {"step": 3, "role": "actor", "phase": "update", "micro_batch": 1, "scope_id": 7, "scope": "step/update"}
    place = {"rank": rank, "attempt": 1, "process": f"rank-{rank:05d}"}
    yield Process(
        time_ns=100, wall_ns=1_790_000_000_000_000_000, pid=41 + rank, host="golden", world_size=2, name="trainer",
        node="node-a", local_rank=rank, tables="", **place,
    )  # fmt: skip
    for index, value in enumerate(
        (0.1, float("nan"), float("inf"), float("-inf"), -0.0, 5e-324, 1.7976931348623157e308)
    ):
        yield Scalar(key='loss ☃ " \\ \n', value=value, time_ns=200 + index, **place, **stamp)
    yield Scalar(key="", value=1.0, source="probe", **place)
    yield Memory(
        edge="leave", kind="phase", name="update", parent_id=3, device="cuda:0", source="cuda", allocated_bytes=2**40,
        reserved_bytes=2**41, peak_allocated_bytes=2**62, peak_reserved_bytes=2**41, peak_kind="exact",
        device_used_bytes=1, device_total_bytes=2, non_torch_bytes=0, process_rss_bytes=4, host_duration_ns=5,
        device_duration_ns=6, time_ns=300, **place, **stamp,
    )  # fmt: skip
    yield Memory(edge="sample", **place)
    yield MicroBatch(
        batch_id=1, micro_batches=2, sequences=2, lengths=[5, 0], indices=[1, 0], tokens=5, width_tokens=5,
        cap_tokens=8, utilisation_ratio=0.625, over_cap=True, workload=1.5, source="s", **place, **stamp,
    )  # fmt: skip
    yield MicroBatch(batch_id=2, micro_batches=1, sequences=0, lengths=[], tokens=0, **place)
    yield Padding(
        batch_id=1, source="s", field="input_ids", cause="longest_row", tokens=5, bytes=40, rectangle_tokens=10,
        valid_tokens=5, rows=2, width_tokens=5, decision="jagged", reason="r", stripped_tokens=1, stripped_bytes=8,
        **place, **stamp,
    )  # fmt: skip
    yield Call(
        point="data_proto.concat", name="n", begin_ns=1, duration_ns=2, rows_in=3, rows_out=4, bytes_in=5, bytes_out=6,
        keys_added=["a", ""], keys_removed=["b"], error="ValueError: x", **place, **stamp,
    )  # fmt: skip
    yield Call(point="scope.step", **place)
    yield Reduction(
        key="k", reducer="mean", chosen_by="type", count=2, smallest=float("nan"), largest=2.0, nan_count=1, value=0.3,
        **place, **stamp,
    )  # fmt: skip
    yield Reduction(key="k", reducer="max", chosen_by="name", count=1, **place)
    yield Incident(kind="writer", where="w", message="m", traceback="t", count=2, switched_off=True, **place, **stamp)


def write_golden():
    """Write the files of the present version, unless they are there."""
    run = GOLDEN / f"run-{SCHEMA_VERSION}"
    if run.exists():
        raise SystemExit(f"{run} is there: golden files are never written again")
    (run / "parts").mkdir(parents=True)
    told = {"schema_version": SCHEMA_VERSION, "project": "golden", "experiment": "e", "config": {"lr": 1e-6}}
    (run / "run.json").write_text(json.dumps(told) + "\n")
    for rank in range(2):
        lines = [encode(row) for row in golden_rows(rank)]
        lines.insert(3, b"no row\n" if rank == 0 else b"")
        (run / Segment.of_rank(rank, 0).name).write_bytes(b"".join(lines))
    for _ in roll_over(run, Segment.of_rank(0, 0)):  # of one rank parts, of the other lines
        pass
    (GOLDEN / f"schema-{SCHEMA_VERSION}.json").write_text(json.dumps(schemas(), indent=1) + "\n")
    (GOLDEN / f"values-{SCHEMA_VERSION}.json").write_text(json.dumps(values(run), indent=1) + "\n")


if __name__ == "__main__":
    write_golden()
