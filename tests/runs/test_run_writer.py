"""The writer: what is put is stamped, seen and written, and nothing that goes wrong reaches the caller."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import threading
import time

import pytest

from probe import hooks
from probe.errors import InputError, RunError
from probe.hooks import current_scope, scope
from probe.records import Call, Deferred, Incident, Memory, Padding, Process, Row, Scalar
from probe.runs.layout import Segment, create_run
from probe.runs.reader import Run
from probe.runs.segment_file import claim
from probe.runs.shedding import KEPT, ORDINARY, SAMPLED, Shedding
from probe.runs.writer import SOON, RunWriter


def scalars(count, key="k"):
    return [Scalar(key=key, value=float(value)) for value in range(count)]


def incidents(directory, kind=None):
    with Run(directory) as run:
        found = run.incidents
        return found if kind is None else found[found["kind"] == kind]


def keys(directory):
    with Run(directory) as run:
        return run.scalars["key"].tolist()


def until(condition):
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


# ------------------------------------------------------------------------------------------------ what is put


def test_items_of_every_shape_are_taken(directory, writer, put):
    one = writer()
    put(
        one,
        Scalar(key="row", value=1),
        None,
        [Scalar(key="list", value=2), None, [Scalar(key="nested", value=3)]],
    )
    put(
        one,
        (Scalar(key=key, value=4) for key in ("generated",)),
        Deferred(lambda: [Scalar(key="deferred", value=5)]),
    )
    assert one.flush()
    with Run(directory) as run:
        assert run.scalars["key"].tolist() == ["row", "list", "nested", "generated", "deferred"]


def test_a_generator_is_consumed_at_once(writer, put):
    one = writer()
    taken = []

    def rows():
        taken.append(threading.current_thread())
        yield Scalar(key="k", value=1)

    put(one, rows())
    assert taken == [threading.current_thread()]


@pytest.mark.usefixtures("lenient")
def test_what_is_no_item_is_told_and_never_raises(directory, writer, put):
    def broken():
        yield Scalar(key="k", value=1)
        raise OSError("in the recorder")

    class Foreign(Row, kw_only=True, tag="foreign"):
        pass

    one = writer()
    put(one, 3, "text", broken(), Foreign(), Memory(edge=object()), Scalar(key="k", value=2))
    assert one.flush()
    assert one.flush()
    with Run(directory) as run:
        assert run.scalars["value"].tolist() == [1, 2]
        assert run.incidents["kind"].tolist() == ["writer"] * 5
        assert "in the recorder" in "".join(run.incidents["traceback"])


def test_rows_are_stamped_with_the_scope_of_their_put(directory, writer, put):
    one = writer(rank=2)
    with scope("step", "step", step=4, role="actor"), scope("phase", "update", phase="update"):
        put(one, Scalar(key="k", value=1))
        inner = current_scope()
    one.flush()
    with Run(directory) as run:
        row = run.scalars.iloc[0]
    assert (row["rank"], row["step"], row["role"], row["phase"]) == (2, 4, "actor", "update")
    assert (row["scope"], row["scope_id"]) == ("step/update", inner.id)


def test_rows_of_one_thread_keep_their_order_and_none_is_lost(directory, writer):
    one = writer(interval_s=0.01)

    def produce(thread):
        for value in range(2000):
            kind = (
                Memory(edge=str(thread), allocated_bytes=value)
                if value % 2
                else Call(point=str(thread), begin_ns=value)
            )
            one.add_rows(kind, current_scope(), 1)

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert one.flush(20)
    with Run(directory) as run:
        for thread in map(str, range(4)):
            memory = run.memory[run.memory["edge"] == thread]["allocated_bytes"]
            calls = run.calls[run.calls["point"] == thread]["begin_ns"]
            assert memory.tolist() == list(range(1, 2000, 2))
            assert calls.tolist() == list(range(0, 2000, 2))
    assert one.dropped == {}


def test_rows_are_written_without_being_asked(directory, writer, put):
    put(writer(), Scalar(key="k", value=1))
    until(lambda: b'"scalars"' in (directory / "rank-00000.jsonl").read_bytes())


# --------------------------------------------------------------------------------------------------- deferred


def test_a_deferred_waits_for_its_turn_and_holds_up_nobody(directory, writer, put):
    one = writer(interval_s=0.01)
    ready, built = threading.Event(), []

    def build():
        built.append(threading.current_thread().name)
        return [Scalar(key="late", value=1)]

    with scope("phase", "p", step=3):
        put(one, Deferred(build, ready.is_set))
    put(one, Scalar(key="early", value=1))
    until(lambda: b"early" in (directory / "rank-00000.jsonl").read_bytes())
    assert not built
    ready.set()
    assert one.flush()
    assert built == ["probe-run-writer"]
    with Run(directory) as run:
        assert run.scalars[["key", "step"]].iloc[1].tolist() == ["late", 3]


@pytest.mark.usefixtures("lenient")
def test_a_deferred_that_fails_is_an_incident(directory, writer, put):
    one = writer()
    put(
        one,
        Deferred(lambda: 1 / 0),
        Deferred(list, lambda: 1 / 0),
        Deferred(lambda: [Scalar(key="k", value=1)]),
    )
    assert one.flush()
    assert one.flush()
    found = incidents(directory)
    assert found["kind"].tolist() == ["deferred"] * 2
    assert "ZeroDivisionError" in found["traceback"][0]


def test_building_is_not_observed(writer, put):
    heard = []

    class Hear(hooks.Listener):
        def leave(self, event, state):
            heard.append(event.point.name)

    @hooks.observed("test_writer.work")
    def work():
        return [Scalar(key="k", value=1)]

    one = writer()
    with hooks.subscribe(Hear(), "test_writer.*"):
        put(one, Deferred(work))
        assert one.flush()
    assert heard == []


def test_a_deferred_that_is_never_ready_is_given_up_at_close(directory, writer, put):
    one = writer()
    put(one, Deferred(list, lambda: False), Scalar(key="k", value=1))
    one.close()
    assert incidents(directory, "deferred")["count"].tolist() == [1]


class Partly(Deferred):
    """Rows of which something is known before they are ready."""

    partial = True


def test_what_is_known_of_rows_that_are_never_ready_is_written_at_close(directory, writer, put):
    one = writer()
    put(one, Partly(lambda: [Scalar(key="known", value=1)], lambda: False))
    one.close()
    assert keys(directory) == ["known"]
    assert incidents(directory, "deferred").empty


def test_the_end_waits_a_moment_for_rows_that_become_ready(directory, writer, put):
    one, asked = writer(), []

    def ready():
        asked.append(1)
        return one._stop.is_set() and len(asked) > 20

    put(one, Deferred(lambda: [Scalar(key="late", value=1)], ready))
    one.close()
    assert keys(directory) == ["late"]
    assert incidents(directory, "deferred").empty


# --------------------------------------------------------------------------------------- marks, on_rows, tick


def test_a_mark_comes_after_all_that_was_put_before(directory, writer, put):
    seen, at_mark = [], []
    ready = threading.Event()
    one = writer(interval_s=0.01, on_rows=seen.extend)
    put(one, scalars(500), Deferred(lambda: [Scalar(key="late", value=1)], ready.is_set))

    def marked():
        at_mark.append((len(seen), (directory / "rank-00000.jsonl").read_bytes().count(b'"scalars"')))

    one.mark(marked)
    time.sleep(0.05)
    assert not at_mark
    ready.set()
    assert one.flush()
    assert at_mark == [(501, 501)]


def test_e_many_rows_that_wait_at_a_mark_are_written_at_once(directory, writer, put):
    one = writer(interval_s=600, sample_interval_s=600)
    assert one.flush()  # the round with which it begins is over
    called = threading.Event()
    put(one, scalars(SOON))
    one.mark(called.set)
    assert not called.wait(0.5)
    put(one, scalars(1))
    one.mark(lambda: None)
    assert called.wait(60)


def test_a_mark_does_not_wait_for_ever(writer, put, monkeypatch):
    monkeypatch.setattr("probe.runs.marks.MARK_WAIT_S", 0.05)
    one = writer(interval_s=0.01)
    put(one, Deferred(list, lambda: False))
    called = threading.Event()
    one.mark(called.set)
    assert called.wait(60)


def test_what_the_last_mark_puts_is_written(directory, writer, put):
    one = writer(interval_s=5)
    one.mark(lambda: put(one, Scalar(key="from the mark", value=1)))
    one.close()
    with Run(directory) as run:
        assert run.scalars["key"].tolist() == ["from the mark"]


@pytest.mark.usefixtures("lenient")
def test_a_mark_that_fails_is_an_incident_and_the_next_is_called(directory, writer):
    one = writer()
    one.mark(lambda: 1 / 0)
    assert one.flush()
    one.close()
    assert incidents(directory)["where"].tolist() == ["mark"]


@pytest.mark.usefixtures("lenient")
def test_callbacks_that_fail_are_switched_off(directory, writer, put):
    calls = []

    def on_rows(rows):
        calls.append(rows)
        raise ValueError("on_rows")

    def tick():
        raise ValueError("tick")

    one = writer(interval_s=0.01, sample_interval_s=0.01, on_rows=on_rows, tick=tick)
    for value in range(6):
        put(one, Scalar(key="k", value=value))
        assert one.flush()
    until(lambda: len(incidents(directory)) == 6)
    found = incidents(directory)
    for name in ("on_rows", "tick"):
        of_one = found[found["where"] == name]
        assert of_one["count"].tolist() == [1, 2, 3]
        assert of_one["switched_off"].tolist() == [False, False, True]
    assert len(calls) == 3
    with Run(directory) as run:
        assert len(run.scalars) == 6


def test_tick_puts_samples_in_the_process_scope(directory, writer):
    def tick():
        yield [Memory(edge="sample", allocated_bytes=threading.get_ident())]

    with scope("step", "step", step=1):
        one = writer(sample_interval_s=0.01, interval_s=0.01, tick=tick)
        until(lambda: b"sample" in (directory / "rank-00000.jsonl").read_bytes())
    one.close()
    with Run(directory) as run:
        assert run.memory["step"].isna().all()
        assert set(run.memory["scope_id"]) == {0}
        assert threading.get_ident() not in set(run.memory["allocated_bytes"])


def test_own_cost_is_counted(writer, put):
    one = writer()
    put(one, scalars(2000))
    assert one.flush()
    until(lambda: one.cost_ns > 0)


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


def test_a_directory_that_cannot_be_used_is_an_error_at_once(tmp_path, process):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="can't be written to"):
        RunWriter(tmp_path / "file", rank=0, process=process())


@pytest.mark.parametrize(
    "bad", [{"rank": -1}, {"capacity": 0}, {"interval_s": 0}, {"roll_over_bytes": 0}, {"rank": "0"}]
)
def test_bad_arguments_are_named(directory, process, bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        RunWriter(directory, **{"rank": 0, "process": process(), **bad})
    assert not list(directory.glob("*.jsonl"))


# ------------------------------------------------------------------------------------- segments and processes


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
