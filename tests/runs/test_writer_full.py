"""A writer that gets more than it keeps, or whose disk is full: what is lost is counted and told."""

from __future__ import annotations

import contextlib
import resource
import shutil
import subprocess
import sys
import threading

import pytest

from probe.records import Deferred, Incident, Memory, Scalar
from probe.runs.layout import create_run
from probe.runs.reader import Run
from probe.runs.shedding import KEPT, ORDINARY, SAMPLED, Shedding
from probe.runs.writer import RunWriter
from tests.runs.writer_rows import incidents, scalars, until

# ----------------------------------------------------------------------------------------- more than it keeps


def test_the_oldest_sampled_rows_go_first_and_incidents_never():
    queue = Shedding(4)
    for number in range(3):
        queue.add(SAMPLED, "memory", f"sampled {number}")
        queue.add(ORDINARY, "padding", f"ordinary {number}")
        queue.add(KEPT, "incidents", f"kept {number}")
    assert queue.dropped == {"memory": 2}
    for number in range(3, 6):
        queue.add(ORDINARY, "padding", f"ordinary {number}")
    assert queue.dropped == {"memory": 3, "padding": 2}
    assert [one.content for one in queue.pop_entries(2)] == ["kept 0", "kept 1"]
    assert [one.content for one in queue.pop_entries()] == [
        "ordinary 2", "kept 2", "ordinary 3", "ordinary 4", "ordinary 5",
    ]  # fmt: skip
    assert queue.pop_entries() == queue.pop_entries(3) == []


def test_a_queue_loses_nothing_uncounted_among_threads():
    queue = Shedding(100)
    taken = []

    def produce(kind):
        for _ in range(20_000):
            queue.add(kind, str(kind), None)

    threads = [threading.Thread(target=produce, args=(kind,)) for kind in (SAMPLED, SAMPLED, ORDINARY, KEPT)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        taken.extend(queue.pop_entries())
    taken.extend(queue.pop_entries())
    counts = {str(kind): sum(one.table == str(kind) for one in taken) for kind in (SAMPLED, ORDINARY, KEPT)}
    totals = {kind: count + queue.dropped.get(kind, 0) for kind, count in counts.items()}
    assert totals == {str(SAMPLED): 40_000, str(ORDINARY): 20_000, str(KEPT): 20_000}
    assert counts[str(KEPT)] == 20_000


def test_dropped_rows_are_told_in_the_run(directory, writer, put):
    stuck = threading.Event()
    one = writer(capacity=100, interval_s=0.01, on_rows=lambda rows: stuck.wait(60))
    put(one, Scalar(key="first", value=0))
    until(lambda: b"first" in (directory / "rank-00000.jsonl").read_bytes())
    put(
        one,
        [Memory(edge="sample") for _ in range(50)],
        scalars(120),
        Deferred(list),
        Incident(kind="k", where="", message=""),
    )
    assert one.dropped == {"memory": 50, "scalars": 20, "deferred": 1}
    stuck.set()
    assert one.flush()
    one.close()
    told = incidents(directory, "dropped_rows")
    assert dict(zip(told["where"], told["count"], strict=True)) == {
        "memory": 50,
        "scalars": 20,
        "deferred": 1,
    }
    assert len(incidents(directory, "k")) == 1
    with Run(directory) as run:
        assert run.scalars["value"].tolist() == [0.0, *range(20, 120)]


# ------------------------------------------------------------------------------------------------------- disk


FULL_DISK = """
import resource, signal, sys, time
from probe.hooks import current_scope
from probe.records import Process, Scalar
from probe.runs.writer import RunWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
writer = RunWriter(sys.argv[1], rank=0, process=Process(wall_ns=1), interval_s=0.01)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
for value in range(100):
    writer.add_rows(Scalar(key="k", value=value), current_scope(), value + 1)
assert not writer.flush(5)
print("full", flush=True)
sys.stdin.readline()
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
while not writer.flush(5):
    time.sleep(0.05)
print("written", flush=True)
writer.close()
"""


def test_a_full_disk_loses_nothing_once_there_is_room_again(directory):
    child = subprocess.Popen(
        [sys.executable, "-c", FULL_DISK, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout.readline() == "full\n"
    assert (directory / "rank-00000.jsonl").stat().st_size == 1000
    with Run(directory) as run:
        assert 0 < len(run.scalars) < 100
        rows = run.tail("scalars", poll_s=0.01)
        before = [next(rows) for _ in range(len(run.scalars))]
        _, errors = child.communicate("\n", timeout=120)
        assert child.returncode == 0, errors
        after = [next(rows) for _ in range(100 - len(before))]
    assert errors.count("can't be written") == 1
    assert [row.value for row in before + after] == list(range(100))
    with Run(directory) as run:
        assert run.scalars["value"].tolist() == list(range(100))
        assert run.bad_lines == 0
        assert run.incidents["kind"].tolist() == ["writer"]
        assert "File too large" in run.incidents["message"][0]


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_FSIZE)[1] == 0, reason="no file can be written here")
@pytest.mark.usefixtures("lenient")  # its file can't become Parquet there
def test_a_small_disk_that_is_full_for_real(tmp_path, process, put):
    mounted = tmp_path / "small"
    mounted.mkdir()
    mount = shutil.which("mount")
    if (
        mount is None
        or subprocess.run([mount, "-t", "tmpfs", "-o", "size=64k", "none", mounted], capture_output=True).returncode
    ):
        pytest.skip("mounting a file system needs root")
    try:
        directory = create_run("p", "e", root=mounted)
        writer = RunWriter(directory, rank=0, process=process(), interval_s=0.01)
        filler = mounted / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 1024)
        put(writer, scalars(100))
        assert not writer.flush(5)
        filler.unlink()
        until(lambda: writer.flush(5))
        with Run(directory) as run:
            assert run.scalars["value"].tolist() == list(range(100))
            assert "No space left" in run.incidents["message"][0]
        writer.close()
    finally:
        subprocess.run(["umount", mounted], check=True)


FULL_TO_THE_END = """
import resource, signal, sys
from probe.hooks import current_scope
from probe.records import Process, Scalar
from probe.runs.writer import RunWriter
writer = RunWriter(sys.argv[1], rank=0, process=Process(wall_ns=1), interval_s=0.01, capacity=int(sys.argv[2]))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
if sys.argv[3] == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, hard))
else:
    with open(sys.argv[3], "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 512)
        except OSError:
            pass
for value in range(2000):
    writer.add_rows(Scalar(key="k", value=value), current_scope(), value + 1)
    if value % 100 == 0:
        writer.flush(5)
writer.close()
"""


@pytest.mark.parametrize("capacity", [200_000, 300])
@pytest.mark.parametrize("kind", ["limit", "disk"])
def test_a_disk_that_is_full_to_the_end_the_run_itself_says_what_was_lost(tmp_path, kind, capacity):
    mounted = tmp_path / "small"
    mounted.mkdir()
    if (
        kind == "disk"
        and subprocess.run(
            [shutil.which("mount") or "false", "-t", "tmpfs", "-o", "size=160k", "none", mounted], capture_output=True
        ).returncode
    ):
        pytest.skip("mounting a file system needs root")
    try:
        directory = create_run("p", "e", root=mounted)
        told = "limit" if kind == "limit" else str(mounted / "filler")
        command = [sys.executable, "-c", FULL_TO_THE_END, str(directory), str(capacity), told]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        with Run(directory) as run:
            kept = run.scalars["value"].tolist()
            assert len(kept) < 2000
            dropped = run.incidents[run.incidents["kind"] == "dropped_rows"]
            assert dropped["count"].sum() == 2000 - len(kept)
            assert set(dropped["where"]) == {"scalars"}
            assert run.bad_lines == 0
            assert dropped["message"].str.contains("full to the end").any()
        assert "full to the end" in done.stderr
    finally:
        if kind == "disk":
            subprocess.run(["umount", mounted], check=True)


def test_a_removed_directory_is_made_again_and_told(directory, writer, put):
    one = writer(interval_s=0.01)
    put(one, Scalar(key="gone", value=1))
    assert one.flush()
    shutil.rmtree(directory)
    put(one, Scalar(key="after", value=1))
    until(lambda: one.flush() and (directory / "rank-00000.jsonl").exists())
    one.close()
    with Run(directory) as run:
        assert run.scalars["key"].tolist() == ["after"]
        assert "deleted" in run.incidents["message"][0]
        assert run.info.project == "project"


def test_what_could_not_be_written_is_bounded(directory, writer, put):
    one = writer(interval_s=0.01, capacity=50)
    one.flush()
    shutil.rmtree(directory)
    directory.write_text("in the way")
    for value in range(10):
        put(one, scalars(20, key=str(value)))
        assert not one.flush()
    assert one.dropped["scalars"] >= 10 * 20 - 50 - 20
    directory.unlink()
    until(one.flush)
    one.close()
    with Run(directory) as run:
        assert len(run.scalars) == 200 - one.dropped["scalars"]
        told = run.incidents[run.incidents["kind"] == "dropped_rows"]
        assert told["count"].sum() == one.dropped["scalars"]
