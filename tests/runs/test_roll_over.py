"""Segments of a writer: how lines become Parquet, which number comes next, and what a fork or an exit leaves."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import subprocess
import sys
import threading

import pytest

from probe.records import Padding, Process, Scalar
from probe.runs.layout import Segment
from probe.runs.reader import Run
from probe.runs.segment_file import claim
from probe.runs.writer import RunWriter
from tests.runs.writer_rows import scalars, until


def test_lines_are_written_while_a_file_becomes_parquet(directory, writer, put, monkeypatch):
    """However long that takes: the first time it imports pyarrow, and it waits for the disk."""
    held, going = threading.Event(), threading.Event()

    def slow(*_):
        going.set()
        assert held.wait(60)
        yield

    monkeypatch.setattr("probe.runs.rolling.roll_over", slow)
    one = writer(interval_s=0.01, roll_over_bytes=5000)
    try:
        put(one, scalars(200))
        assert going.wait(60)
        put(one, scalars(203)[200:])
        assert one.flush(60)
        with Run(directory) as run:
            assert run.scalars["value"].tolist() == list(range(203))
    finally:
        held.set()


def test_where_no_thread_can_be_begun_a_file_becomes_parquet_all_the_same(directory, writer, put, monkeypatch):
    begin = threading.Thread.start

    def refused(thread):
        if thread.name == "probe-roll-over":
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    one = writer(interval_s=0.01, roll_over_bytes=5000)
    put(one, scalars(200))
    until(lambda: list((directory / "parts").glob("scalars-*")))
    put(one, scalars(203)[200:])
    one.close()
    with Run(directory) as run:
        assert run.scalars["value"].tolist() == list(range(203))
        assert run.incidents.empty


WARM = """
import sys, time
from pathlib import Path
opened = []
def hear(event, arguments):
    if event == "open" and ".so" in str(arguments[0]):
        opened.append(Path(str(arguments[0])).name)
    if event == "import" and arguments[0] == "pyarrow" and "pyarrow" not in sys.modules and not opened[-1:] == [None]:
        opened.append(None)
from probe.hooks import current_scope
from probe.records import Process, Scalar
from probe.runs.writer import RunWriter
writer = RunWriter(sys.argv[1], rank=0, process=Process(wall_ns=1), interval_s=0.01, roll_over_bytes=1000)
assert "pyarrow" not in sys.modules
sys.addaudithook(hear)
for value in range(100):
    writer.add_rows(Scalar(key="k", value=value), current_scope(), value + 1)
deadline = time.monotonic() + 300
while "pyarrow.parquet" not in sys.modules and time.monotonic() < deadline:
    time.sleep(0.01)
before = opened[: opened.index(None)]
assert any(name.startswith("libarrow.so") for name in before), opened
assert any(name.startswith("libparquet") for name in before), opened
writer.close()
"""


def test_a_first_roll_over_reads_libraries_before_it_loads_them(directory):
    """Loading holds the whole process, as long as the disk takes; reading lets the writer's thread go on."""
    done = subprocess.run([sys.executable, "-c", WARM, str(directory)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


SLOW_IMPORT = """
import itertools, json, sys, time
from pathlib import Path
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "pyarrow":
            sys.meta_path.remove(self)
            begun.append(time.monotonic())
            time.sleep(8)  # as long as a cold disk takes, and without the interpreter's lock as a disk is waited for
begun = []
from probe.hooks import current_scope
from probe.records import Process, Scalar
from probe.runs.writer import RunWriter
writer = RunWriter(sys.argv[1], rank=0, process=Process(wall_ns=1), interval_s=0.1, roll_over_bytes=1000)
sys.meta_path.insert(0, Slow())
def written():
    files = Path(sys.argv[1]).rglob("*.jsonl")
    return max((int(line.split('"value":')[1].split("}")[0].split(",")[0]) for file in files
                for line in file.read_text().splitlines() if '"value":' in line), default=-1)
added, lag = [], 0.0
for value in itertools.count():
    writer.add_rows(Scalar(key="k", value=value), current_scope(), value + 1)
    added.append(time.monotonic())
    seen = written()
    lag = max(lag, time.monotonic() - added[min(seen + 1, value)])
    if begun and time.monotonic() > begun[0] + 6:
        break
    time.sleep(0.02)
print(lag)
writer.close()
"""


def test_a_rows_reach_the_disk_while_a_first_roll_over_loads_its_library(directory):
    """Half a second is lost at most: here a library takes eight, and no row waits half as long for its file."""
    done = subprocess.run(
        [sys.executable, "-c", SLOW_IMPORT, str(directory)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 4


def test_close_leaves_parquet_alone_and_no_thread(directory, writer, put):
    one = writer()
    put(
        one,
        scalars(3),
        Padding(
            batch_id=0,
            source="",
            field="f",
            cause="none",
            tokens=0,
            bytes=0,
            rectangle_tokens=1,
            valid_tokens=1,
        ),
    )
    one.close()
    one.close()
    put(one, Scalar(key="too late", value=1))
    one.mark(lambda: pytest.fail("closed"))
    assert not one.flush()
    assert sorted(path.name for path in directory.iterdir()) == ["attempts", "parts", "rank-00000.now", "run.json"]
    assert sorted(path.name for path in (directory / "parts").iterdir()) == [
        "padding-rank00000-0.parquet", "process-rank00000-0.parquet", "scalars-rank00000-0.parquet",
    ]  # fmt: skip
    assert not [thread for thread in threading.enumerate() if thread.name == "probe-run-writer"]


def test_a_large_segment_rolls_over_while_writing_goes_on(directory, writer, put):
    one = writer(interval_s=0.01, roll_over_bytes=20_000)
    values = itertools.count()

    def rolled_over():
        put(one, [Scalar(key="k", value=next(values)) for _ in range(100)])
        assert one.flush(60)
        return len(list((directory / "parts").glob("scalars-*"))) >= 5

    until(rolled_over)
    many = next(values)
    with Run(directory) as run:
        assert run.scalars["value"].tolist() == list(range(many))
        assert len(run.processes) == 1
    one.close()
    with Run(directory) as run:
        assert run.scalars["value"].tolist() == list(range(many))
        assert len(run.processes) == len(run.sql("select * from processes")) == 1
        assert run.scalars["wall_ns"].notna().all()
        assert run.incidents.empty


@pytest.mark.usefixtures("lenient")
def test_a_roll_over_that_fails_leaves_the_lines(directory, writer, put):
    one = writer(interval_s=0.01)
    put(one, scalars(3))
    (directory / "parts").rmdir()
    (directory / "parts").write_text("in the way")
    one.close()
    (directory / "parts").unlink()
    with Run(directory) as run:
        assert len(run.scalars) == 3


def test_a_restart_takes_the_next_segment(directory, writer, put):
    for value in range(3):
        one = writer()
        put(one, Scalar(key="k", value=value))
        one.close()
    with Run(directory) as run:
        assert run.scalars["value"].tolist() == [0, 1, 2]
        assert len(run.processes) == 3
        assert run.ranks == [0]


def test_two_writers_of_one_rank_do_not_meet(directory, writer, put):
    first, second = (
        writer(interval_s=0.01, roll_over_bytes=5000),
        writer(interval_s=0.01, roll_over_bytes=5000),
    )
    for value in range(300):
        put(first, Scalar(key="first", value=value))
        put(second, Scalar(key="second", value=value))
        if value % 20 == 0:
            first.flush()
            second.flush()
    first.close()
    second.close()
    with Run(directory) as run:
        for key in ("first", "second"):
            assert sorted(run.scalars[run.scalars["key"] == key]["value"]) == list(range(300))
        assert run.bad_lines == 0


def test_a_taken_number_is_not_used_again(directory, process, put):
    """The file of a segment is gone once it's parts; its number stays taken."""
    one = RunWriter(directory, rank=0, process=process())
    put(one, Scalar(key="k", value=1))
    one.close()
    (directory / "parts" / "process-rank00000-0.parquet").unlink()  # any of the parts holds the number
    two = RunWriter(directory, rank=0, process=process())
    assert [path.name for path in directory.glob("*.jsonl")] == ["rank-00000.1.jsonl"]
    two.close()


def test_a_number_that_became_parts_while_it_was_claimed_is_given_back(directory, process):
    """The claimer looked before another process of its rank rolled segment 0 over, and creates its file after."""
    RunWriter(directory, rank=0, process=process()).close()
    segment, descriptor = claim(directory, "rank-00000", 0)
    os.close(descriptor)
    assert segment == Segment.of_rank(0, 1)
    assert [path.name for path in directory.glob("*.jsonl")] == ["rank-00000.1.jsonl"]


def test_rolling_over_loads_no_pandas(directory):
    code = (
        "import sys\n"
        "from probe.hooks import current_scope\n"
        "from probe.records import Incident, MicroBatch, Process, Reduction, Scalar\n"
        "from probe.runs.writer import RunWriter\n"
        "writer = RunWriter(sys.argv[1], rank=0, process=Process(wall_ns=1))\n"
        "nan = float('nan')\n"
        "rows = [Scalar(key='k', value=nan), Reduction(key='k', reducer='max', chosen_by='name', count=1, value=nan),\n"
        "    MicroBatch(batch_id=1, micro_batches=1, sequences=1, lengths=[1], tokens=1, workload=nan)]\n"
        "writer.add_rows(rows, current_scope(), 1)\n"
        "writer.close()\n"
        "print([name for name in ('pandas', 'torch', 'duckdb') if name in sys.modules])\n"
    )
    command = [sys.executable, "-c", code, str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")
    assert len(list((directory / "parts").iterdir())) == 4


def test_stale_aside_files_are_swept_and_fresh_ones_are_not(directory, process):
    stale, fresh = (
        directory / "parts" / "memory-rank00000-9.parquet.1-ab.tmp",
        directory / "run.json.1-cd.tmp",
    )
    for path in (stale, fresh):
        path.write_bytes(b"half")
    os.utime(stale, (1, 1))
    RunWriter(directory, rank=0, process=process()).close()
    assert not stale.exists()
    assert fresh.exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system can't fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_writes_nothing(directory, writer, put):
    one = writer(interval_s=0.01)
    put(one, Scalar(key="parent", value=1))
    assert one.flush()

    def child():
        put(one, Scalar(key="child", value=1))
        assert not one.flush()
        one.mark(lambda: None)
        one.close()

    forked = multiprocessing.get_context("fork").Process(target=child)
    forked.start()
    forked.join(60)
    assert forked.exitcode == 0
    put(one, Scalar(key="parent", value=2))
    one.close()
    with Run(directory) as run:
        assert run.scalars["key"].tolist() == ["parent", "parent"]


def test_a_process_that_ends_without_close_loses_nothing(directory):
    code = (
        "import sys\n"
        "from probe.hooks import current_scope\n"
        "from probe.records import Process, Scalar\n"
        "from probe.runs.writer import RunWriter\n"
        "writer = RunWriter(sys.argv[1], rank=0, process=Process(wall_ns=1), interval_s=10)\n"
        "writer.add_rows(Scalar(key='k', value=1), current_scope(), 1)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(directory)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert [path.name for path in directory.glob("*.jsonl")] == []
    with Run(directory) as run:
        assert len(run.scalars) == 1
        assert isinstance(run.new_rows()[0], Process)
