"""Compaction: few large files in the place of many, and the run reads exactly the same, whatever happens meanwhile."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe._io import holding
from probe.errors import InputError, RunError, SchemaVersionError
from probe.records import TABLES, Incident, Memory, MicroBatch, Process, Scalar
from probe.runs import bundles
from probe.runs.columns import schema
from probe.runs.compaction import compact
from probe.runs.files import RunFiles
from probe.runs.follower import Follower
from probe.runs.layout import PARTS_NAME, Segment, create_run
from probe.runs.lines import encode
from probe.runs.parts import roll_over
from probe.runs.reader import NAMES, Run
from probe.runs.snapshot import Snapshot
from probe.runs.writer import RunWriter

GONE = 2**22 + 1  # larger than any process id


def rows_of(rank, number, count=5):
    """Rows of several tables, with all that is hard to keep: NaN, infinities, missing values and lists."""
    yield Process(rank=rank, pid=GONE, host=platform.node(), wall_ns=1000 + number, time_ns=number, world_size=3)
    for index in range(count):
        value = [float("nan"), float("inf"), -0.0, 1 / 3, 5e-324][index % 5]
        stamp = {"rank": rank, "step": index if index % 2 else None, "time_ns": number * 1000 + index + 1}
        yield Scalar(key="it's", value=value, **stamp)
        yield MicroBatch(batch_id=index, micro_batches=1, sequences=2, lengths=[index, 3], tokens=3 + index, **stamp)
        yield Memory(edge="leave", allocated_bytes=index << 40, role=None if index % 3 else "a/b", **stamp)
    if number % 2:
        yield Incident(kind="writer", where="w", message="m\n\u2028", rank=rank)


def segment(directory, rank, number, *, rolled=True, count=5, rows=None):
    lines = [encode(row) for row in rows or rows_of(rank, number, count)]
    (directory / Segment.of_rank(rank, number).name).write_bytes(b"".join(lines))
    if rolled:
        for _ in roll_over(directory, Segment.of_rank(rank, number)):
            pass


def tables(directory):
    snapshot = Snapshot(RunFiles(directory))
    snapshot.refresh()
    return {name: snapshot.table(name) for name in TABLES}


def followed(directory):
    """All rows as text (NaN equals itself there), rank by rank as a follower gives them."""
    rows = Follower(RunFiles(directory)).poll()
    return {rank: [repr(row) for row in rows if row.rank == rank] for rank in {row.rank for row in rows}}


def same(directory, before, rows=None):
    now = tables(directory)
    for name, table in before.items():
        # Compared as text, too: Arrow takes a NaN for another one.
        assert now[name].schema.equals(table.schema, check_metadata=True)
        assert repr(now[name].to_pylist()) == repr(table.to_pylist()), name
    if rows is not None:
        assert followed(directory) == rows


def names(directory):
    return sorted(path.name for path in (directory / PARTS_NAME).iterdir())


def fill(directory, ranks=3):
    for rank in range(ranks):
        segment(directory, rank, 0)
        segment(directory, rank, 1, rolled=rank % 2 == 0)


# ------------------------------------------------------------------------------------------------ what it does


@pytest.mark.slow
def test_lines_and_parts_become_one_file_for_each_table(directory):
    fill(directory)
    path = directory / Segment.of_rank(1, 1).name
    path.write_bytes(path.read_bytes() + b'no row\n{"table":"scalars","key":"torn')
    before, rows = tables(directory), followed(directory)
    with Run(directory) as run:
        bad = run.bad_lines
        assert bad == 1
        done = compact(run)
        assert (done.segments, done.left) == (6, {})
        assert done.rows == sum(map(len, before.values()))
        assert (done.parts_before, done.parts_after) == (5 * 4 + 2 + 1, 5)
        assert done.bytes_before > done.bytes_after > 0
        assert run.refresh().bad_lines == bad
        assert run.ranks == [0, 1, 2]
    assert not list(directory.glob("*.jsonl"))
    assert len(names(directory)) == 6  # five tables have rows; and the manifest
    same(directory, before, rows)
    for name in NAMES:
        with Run(directory) as run:
            assert len(run.table(name)) == run.sql(f"select count(*) as n from {name}")["n"][0]
    assert compact(directory).rows == 0
    same(directory, before, rows)


def test_order_schema_and_manifest_are_what_they_say(directory):
    fill(directory)
    compact(directory)
    manifest = json.loads((directory / PARTS_NAME / "compacted-000001.json").read_text())
    (bundle,) = manifest["bundles"]
    assert [held[:2] for held in bundle["segments"]] == [
        [f"rank-0000{rank}", number] for rank in range(3) for number in range(2)
    ]
    for table, files in bundle["files"].items():
        (file,) = files
        path = directory / PARTS_NAME / file["name"]
        found = pq.read_table(path)
        assert found.schema.equals(schema(table))
        assert found.schema.metadata == schema(table).metadata
        assert file["rows"] == len(found)
        assert file["bytes"] == path.stat().st_size
        assert file["ranks"] == [0, 2]
        assert found["rank"].to_pylist() == sorted(found["rank"].to_pylist())


@pytest.mark.slow
def test_later_segments_come_to_it_and_bundles_stay_few(directory):
    for number in range(7):
        for rank in range(3):
            segment(directory, rank, number)
        before, rows = tables(directory), followed(directory)
        compact(directory)
        same(directory, before, rows)
        manifest = RunFiles(directory).listing().manifest
        assert manifest.number == number + 1
        assert len(manifest.bundles) <= 3
    assert len([name for name in names(directory) if name.endswith(".json")]) == 2


@pytest.mark.slow
def test_many_row_groups_and_files(directory, monkeypatch):
    monkeypatch.setattr(bundles, "GROUP_ROWS", 7)
    monkeypatch.setattr(bundles, "FILE_ROWS", 21)
    for rank in range(4):
        segment(directory, rank, 0, count=13)
    segment(directory, 1, 1, count=40, rolled=False)
    before, rows = tables(directory), followed(directory)
    compact(directory)
    assert len([name for name in names(directory) if name.startswith("scalars-")]) == 5
    same(directory, before, rows)
    segment(directory, 0, 1, count=3)
    before, rows = tables(directory), followed(directory)
    compact(directory)
    same(directory, before, rows)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(0, 9), st.booleans()), min_size=1, max_size=8))
def test_any_history_reads_the_same(tmp_path_factory, history):
    """Segments come as parts or lines, with a compaction after some of them."""
    directory = create_run("p", "e", root=tmp_path_factory.mktemp("runs"))
    numbers = dict.fromkeys(range(4), 0)
    for rank, rolled, count, compacted in history:
        segment(directory, rank, numbers[rank], rolled=rolled, count=count)
        numbers[rank] += 1
        if compacted:
            before, rows = tables(directory), followed(directory)
            compact(directory)
            same(directory, before, rows)


# -------------------------------------------------------------------------------------- killed, and side by side


@pytest.mark.slow
def test_every_state_in_between_reads_the_same(directory, tmp_path, monkeypatch):
    """Each state of the directory, frozen before every change, is what a kill leaves; the next one completes it."""
    fill(directory)
    compact(directory)
    fill_more = [(0, 2, True), (1, 2, False), (3, 0, True)]
    for rank, number, rolled in fill_more:
        segment(directory, rank, number, rolled=rolled)
    before, rows = tables(directory), followed(directory)
    frozen = []

    def freeze(change):
        def changing(path, *args, **options):
            frozen.append(tmp_path / f"frozen-{len(frozen)}")
            shutil.copytree(directory, frozen[-1])
            return change(path, *args, **options)

        return changing

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", freeze(Path.replace))
        patch.setattr(Path, "unlink", freeze(Path.unlink))
        assert compact(directory).rows
    assert len(frozen) > 12
    for one in frozen:
        same(one, before, rows)
        compact(one)
        same(one, before)
        assert not list(one.glob("*.jsonl"))
        assert names(one) == sorted({*names(one)} - {name for name in names(one) if "rank" in name})


def test_a_follower_goes_on_over_a_compaction(directory):
    fill(directory)
    follower = Follower(RunFiles(directory))
    path = directory / Segment.of_rank(1, 1).name
    half = path.read_bytes()
    path.write_bytes(b"".join(half.splitlines(keepends=True)[:7]))
    seen = [repr(row) for row in follower.poll()]
    path.write_bytes(half)
    expected = sorted(repr(row) for row in Follower(RunFiles(directory)).poll())
    compact(directory)
    segment(directory, 0, 2)
    segment(directory, 2, 2)
    new = [repr(row) for row in follower.poll()]
    compact(directory)
    assert follower.poll() == []
    assert len(seen) + len(new) == len(expected) + 2 * len(list(rows_of(0, 2)))
    assert sorted(seen + new)[: len(expected)] != seen  # it did go on
    assert set(expected) <= set(seen + new)


def test_a_reader_that_looked_before_goes_on(directory):
    fill(directory)
    with Run(directory) as run:
        first = run.sql("select count(*) as n from scalars")["n"][0]
        compact(directory)
        assert run.sql("select count(*) as n from scalars")["n"][0] == first
        assert len(run.memory) == run.sql("select count(*) as n from memory")["n"][0]
        with pytest.raises(InputError, match="nothing_here"):
            run.sql("select * from nothing_here")


@pytest.mark.slow
def test_writers_and_readers_beside_it_lose_nothing(directory, process):
    """A rank writes and rolls over all the time, readers look and follow all the time, and it is compacted all the
    time.
    """
    total = 0
    writer = RunWriter(directory, rank=0, process=process(), interval_s=0.01, roll_over_bytes=20_000)
    follower, seen, looks, stop = Follower(RunFiles(directory)), [], [], threading.Event()

    def look():
        with Run(directory) as run:
            while not stop.is_set():
                found = run.refresh().sql("select count(*) as n, count(distinct value) as d from scalars")
                looks.append((int(found["n"][0]), int(found["d"][0])))
                seen.extend(row.value for row in follower.poll() if isinstance(row, Scalar))

    reader = threading.Thread(target=look)
    reader.start()
    from probe.hooks import current_scope

    compactions = 0
    deadline = time.monotonic() + 120
    while total < 3000 or compactions < 2:  # a file becomes Parquet in a thread of its own, when that comes to run
        assert time.monotonic() < deadline
        for value in range(total, total + 100):
            writer.add_rows(Scalar(key="k", value=value), current_scope(), time.monotonic_ns())
        total += 100
        assert writer.flush(60)
        compactions += compact(directory).rows > 0
    writer.close()
    compact(directory)
    time.sleep(0.05)
    stop.set()
    reader.join()
    seen.extend(row.value for row in follower.poll() if isinstance(row, Scalar))
    assert seen == list(range(total))
    assert [n for n, _ in looks] == sorted(n for n, _ in looks)
    assert all(n == d for n, d in looks)
    with Run(directory) as run:
        assert run.scalars["value"].tolist() == list(range(total))
        assert run.incidents.empty


def test_a_rank_that_starts_again_takes_no_compacted_number(directory, process):
    segment(directory, 0, 0)
    segment(directory, 0, 1)
    compact(directory)
    before = tables(directory)["scalars"]
    writer = RunWriter(directory, rank=0, process=process())
    assert (directory / Segment.of_rank(0, 2).name).exists()
    writer.close()
    assert tables(directory)["scalars"].to_pylist().__repr__() == repr(before.to_pylist())


def test_two_at_a_time(directory):
    fill(directory)
    with holding(directory / PARTS_NAME) as ours:
        assert ours
        with pytest.raises(RunError, match="another process is compacting it"):
            compact(directory)
    assert compact(directory).rows


# --------------------------------------------------------------------------------------- what is left alone


def test_what_a_living_process_writes_is_left_alone(directory, process):
    fill(directory)
    writer = RunWriter(directory, rank=7, process=process())
    for force in (False, True):
        assert compact(directory, force=force).left == {Segment.of_rank(7, 0).name: "its process is writing to it"}
    writer.close()
    assert compact(directory).left == {}


def test_a_process_without_a_lock_is_known_by_its_id(directory):
    fill(directory)
    mine = Process(rank=5, pid=os.getpid(), host=platform.node(), wall_ns=time.time_ns())
    segment(directory, 5, 0, rolled=False, rows=[mine, Scalar(key="k", value=1.0, rank=5)])
    reused = Process(rank=6, pid=os.getpid(), host=platform.node(), wall_ns=1)
    segment(directory, 6, 0, rolled=False, rows=[reused, Scalar(key="k", value=2.0, rank=6)])
    assert compact(directory).left == {Segment.of_rank(5, 0).name: f"process {os.getpid()} is alive"}
    assert compact(directory, force=True).left == {}
    with Run(directory) as run:
        assert set(run.scalars["value"][-2:]) == {1.0, 2.0}


def test_of_another_machine_only_the_age_is_known(directory):
    segment(directory, 0, 0)
    other = Process(rank=1, pid=GONE, host="another", wall_ns=1)
    segment(directory, 1, 0, rolled=False, rows=[other, Scalar(key="k", value=1.0, rank=1)])
    path = directory / Segment.of_rank(1, 0).name
    for force in (False, True):
        assert "on the machine another" in compact(directory, force=force).left[path.name]
    os.utime(path, (time.time() - 3600, time.time() - 3600))
    assert "force=True" in compact(directory).left[path.name]
    assert compact(directory, force=True).left == {}
    assert not path.exists()


def test_what_it_cannot_keep_is_left_alone(directory):
    fill(directory)
    path = directory / Segment.of_rank(8, 0).name
    segment(directory, 8, 0, rolled=False)
    path.write_bytes(path.read_bytes() + b'{"table":"of_the_future","x":1}\n')
    segment(directory, 9, 0)
    newer = directory / PARTS_NAME / Segment.of_rank(9, 0).part("scalars")
    found = pq.read_table(newer)
    pq.write_table(found.append_column("of_the_future", found["rank"]), newer)
    (directory / PARTS_NAME / Segment.of_rank(2, 0).part("of_the_future")).write_bytes(b"anything")
    (directory / Segment.of_rank(4, 0).name).touch()
    before, rows = tables(directory), followed(directory)
    left = compact(directory).left
    assert set(left) == {
        Segment.of_rank(8, 0).name,
        Segment.of_rank(9, 0).name,
        Segment.of_rank(2, 0).part("of_the_future"),
        Segment.of_rank(4, 0).name,
    }
    assert path.exists()
    assert newer.exists()
    same(directory, before, rows)


def test_a_newer_process_is_refused_and_nothing_changes(directory):
    fill(directory)
    segment(directory, 4, 0, rows=[Process(schema_version=99, pid=GONE), Scalar(key="k", value=1.0)])
    before = names(directory)
    with pytest.raises(SchemaVersionError, match="version 99"):
        compact(directory)
    assert names(directory) == before


# ------------------------------------------------------------------------------- a manifest is checked, not trusted


def test_a_manifest_that_does_not_fit_its_files_is_refused(directory):
    fill(directory)
    compact(directory)
    path = directory / PARTS_NAME / "compacted-000001.json"
    good = path.read_bytes()
    told = json.loads(good)
    told["bundles"][0]["rows"]["scalars"][0] += 1
    path.write_text(json.dumps(told))
    with pytest.raises(RunError, match="contradicts itself: scalars"):
        Run(directory).refresh()
    told["bundles"][0]["files"]["scalars"][0]["rows"] += 1
    path.write_text(json.dumps(told))
    with Run(directory) as run:  # the file was changed after it was written: it is left out
        assert len(run.scalars) == 0
        assert [one.why for one in run.damaged] == ["it has 30 rows, and 31 by the manifest"]
    path.write_bytes(b"{}x")
    with pytest.raises(RunError, match="isn't what probe writes"):
        Run(directory).refresh()
    path.write_text(json.dumps({"schema_version": 99}))
    with pytest.raises(SchemaVersionError, match="version 99"):
        Run(directory).refresh()
    path.write_bytes(good)
    assert len(Run(directory).scalars) == 30
    (directory / PARTS_NAME / told["bundles"][0]["files"]["scalars"][0]["name"]).unlink()
    with pytest.raises(RunError, match="vanish"):
        Run(directory).refresh()


# ------------------------------------------------------------------------------------------------ the real kill

CHILD = """
import sys
from probe.runs.compaction import compact
print("begin", flush=True)
compact(sys.argv[1])
print("end", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "delay_s", [0.02, 0.1, *(pytest.param(one, marks=pytest.mark.thorough) for one in (0.0, 0.05, 0.2))]
)
def test_killed_at_some_moment(directory, delay_s):
    for rank in range(20):
        segment(directory, rank, 0, count=50, rolled=rank % 3 > 0)
    before = tables(directory)
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(directory)], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "begin\n"
    time.sleep(delay_s)
    child.kill()
    child.wait()
    child.stdout.close()
    same(directory, before)
    compact(directory)
    same(directory, before)
    assert len([name for name in names(directory) if name.endswith(".parquet")]) == 4
