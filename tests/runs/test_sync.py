"""A copy of a run in a store reads as the run does, while it is written, compacted, killed and gone on with."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import fsspec
import pandas as pd
import pytest
from fsspec.implementations.local import LocalFileSystem

import probe
from probe._io import child_environment
from probe.errors import InputError, RunError
from probe.opened import Run
from probe.records import Scalar
from probe.runs import sync as module
from probe.runs.compaction import compact
from probe.runs.copy_target import Target
from probe.runs.layout import PARTS_NAME, Segment, complete_run, create_run, is_now_file
from probe.runs.pieces import Piece, cover, pack, piece_of, unpack
from probe.runs.reader import NAMES
from probe.runs.sync import Sent, Sync, alike, follow

# botocore's HTTP sessions are closed by a finalizer of s3fs when the interpreter ends, not before.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore:Unclosed:ResourceWarning")


@pytest.fixture
def memory():
    """The URL of a place in memory."""
    name = uuid.uuid4().hex
    yield f"memory://{name}/run"
    fsspec.filesystem("memory").rm(f"/{name}", recursive=True)


#: A store is one to this module like any other: each test has one of them in every run.
FILE = pytest.param("file", marks=pytest.mark.thorough)
S3 = pytest.param("s3", marks=pytest.mark.slow)
S3_TOO = pytest.param("s3", marks=[pytest.mark.slow, pytest.mark.thorough])


@pytest.fixture
def url(request, tmp_path):
    if request.param == "file":
        return (tmp_path / "copy").as_uri()
    return request.getfixturevalue("memory") if request.param == "memory" else request.getfixturevalue("server").url


def numbers(writer, put, begin, end):
    put(writer, *(Scalar(key="number", value=float(one), step=one) for one in range(begin, end)))
    assert writer.flush()


def assert_equal(directory, url):
    with Run(directory) as here, Run(url) as there:
        assert there.info == here.info
        assert there.ranks == here.ranks
        assert there.bad_lines == here.bad_lines == 0
        for name in NAMES:
            pd.testing.assert_frame_equal(there.table(name), here.table(name))
        assert list(map(repr, there.new_rows())) == list(map(repr, here.new_rows()))


def values(run):
    return [row.value for row in run.new_rows() if isinstance(row, Scalar)]


@pytest.mark.parametrize("url", ["memory", FILE, S3], indirect=True)
def test_7_a_copy_reads_as_the_run_at_each_pass(directory, writer, put, url):
    one, other, sync = writer(0, world_size=2), writer(1, world_size=2), Sync(directory, url)
    for begin in (0, 10, 20):
        numbers(one, put, begin, begin + 10)
        numbers(other, put, begin, begin + 5)
        assert sync.once().files > 0
        assert_equal(directory, url)
    one.close()  # Parquet, while the other stays lines
    assert (directory / PARTS_NAME / "scalars-rank00000-0.parquet").exists()
    sync.once()
    assert_equal(directory, url)
    assert [piece_of(name) for name in names(url) if "rank-00000" in name] == []
    other.close()
    sync.once()
    assert_equal(directory, url)
    assert compact(directory).rows > 0
    sync.once()
    assert_equal(directory, url)
    assert {Path(name).name for name in names(url)} == {
        path.name for path in (*directory.glob("*.json"), *(directory / PARTS_NAME).iterdir())
    }


def names(url):
    files, root = fsspec.core.url_to_fs(url)
    files.invalidate_cache()
    found = [name.removeprefix(root).removeprefix("/") for name in files.find(root)]
    return [name for name in found if not is_now_file(name)]  # which says where a process is, and holds no rows


def test_7_each_row_is_sent_once(directory, writer, put, memory):
    one = writer(0)
    numbers(one, put, 0, 500)
    first = Sync(directory, memory).once()
    assert Sync(directory, memory).once() == Sent()
    numbers(one, put, 500, 510)
    second = Sync(directory, memory).once()
    assert second.files == 1
    assert second.bytes < first.bytes / 4
    pieces = sorted(filter(None, map(piece_of, names(memory))))
    assert [piece.begin for piece in pieces] == [0, pieces[0].end]
    content = fsspec.filesystem("memory").cat_file(f"{memory.removeprefix('memory:/')}/{pieces[1].name}")
    assert unpack(content, pieces[1]).count(b"\n") == 10
    one.close()
    third = Sync(directory, memory).once()
    assert third.files == len(list(directory.glob("parts/*.parquet")))
    assert third.removed == 2
    assert Sync(directory, memory).once() == Sent()


def test_7_a_line_that_is_being_written_waits(directory, writer, put, memory):
    one = writer(0)
    numbers(one, put, 0, 3)
    with (directory / "rank-00000.jsonl").open("ab") as file:  # as a kill in the middle of a write leaves it
        file.write(b'{"table":"scalars","key":"torn"')
    Sync(directory, memory).once()
    with Run(memory) as run:
        assert run.bad_lines == 0
        assert values(run) == [0.0, 1.0, 2.0]


def test_7_pieces_become_fewer_and_no_byte_is_sent_often(directory, writer, put, memory, monkeypatch):
    monkeypatch.setattr(module, "SMALL_BYTES", 1)
    one, sync, most, sent = writer(0), Sync(directory, memory), 0, 0
    with Run(memory if sync.once().files else "") as run:
        got = []
        for step in range(200):
            numbers(one, put, step, step + 1)
            sent += sync.once().files
            most = max(most, len(list(filter(None, map(piece_of, names(memory))))))
            got += values(run)
        assert got == list(range(200))
    assert most < 3 * module.TOGETHER
    assert 200 <= sent < 200 * (1 + 2 / module.TOGETHER)
    assert_equal(directory, memory)


def test_7_which_pieces_become_one():
    def of(*sizes):
        ends = list(itertools.accumulate(sizes, initial=0))
        return [Piece(None, begin, end) for begin, end in itertools.pairwise(ends)]

    large = 2**20
    assert alike(of(*[large] * 7)) == 0
    assert alike(of(*[large] * 8)) == 8
    assert alike(of(8 * large, *[large] * 7)) == 0
    assert alike(of(8 * large, *[large] * 8)) == 8
    assert alike(of(8 * large, *[1] * 9)) == 9
    assert alike([]) == 0


def test_7_what_a_piece_covers_and_what_it_doesn_t():
    whole = b"".join(b"%d\n" % number for number in range(1000))
    piece = Piece(Segment.of_rank(0), 0, len(whole))
    assert unpack(pack(whole), piece) == whole
    for damaged in (pack(whole)[:-5], b"", pack(whole)[:50] + b"xx" + pack(whole)[52:], pack(whole[:100])):
        with pytest.raises(OSError, match=r"rank-00000.jsonl.0-3890.gz is damaged"):
            unpack(damaged, piece)
    assert cover([Piece(None, 5, 9)]) == []
    for name in ("rank-00000.jsonl.5-5.gz", "rank-00000.jsonl.9-5.gz", "rank-00000.jsonl.gz", "x.jsonl.0-5.gz"):
        assert piece_of(name) is None


# ---------------------------------------------------------------------------------- what a reader sees in between


class Between:
    """Calls something after each change of the copy, which may raise, as a kill does."""

    def __init__(self, monkeypatch, act):
        self.changes = 0
        for name in ("put", "put_file", "remove"):
            monkeypatch.setattr(Target, name, self._wrapped(getattr(Target, name), act))

    def _wrapped(self, method, act):
        def call(target, *arguments):
            method(target, *arguments)
            self.changes += 1
            act()

        return call


def test_7_after_each_change_a_reader_has_each_row_once(directory, writer, put, memory, monkeypatch):
    """Of two processes, one killed, over roll-overs, larger pieces and two compactions."""
    monkeypatch.setattr(module, "SMALL_BYTES", 1)
    monkeypatch.setattr(module, "TOGETHER", 3)
    followers, followed, least = [], [], 0

    def read():
        nonlocal least
        if not fsspec.filesystem("memory").exists(f"{memory.removeprefix('memory:/')}/run.json"):
            return
        if not followers:
            followers.append(Run(memory))
        followed.extend(values(followers[0]))
        with Run(memory) as fresh:
            found = fresh.scalars.query("key == 'number'")["value"].tolist()
        assert found == list(range(len(found))), "a row is missing, or there twice"
        assert len(found) >= least, "rows have gone"
        least = len(found)
        assert followed == sorted(set(followed))

    between = Between(monkeypatch, read)
    sync, count = Sync(directory, memory), 0
    for round_ in range(4):
        one = writer(0, roll_over_bytes=10**9)
        for _ in range(4):
            numbers(one, put, count, count + 7)
            count += 7
            sync.once()
        if round_ == 1:  # killed: its lines stay
            one._parquet_at_close = False
        one.close()
        if round_ % 2:
            sync.once()
        if round_ in (2, 3):
            assert compact(directory, force=True).rows
            sync.once()
    sync.once()
    assert between.changes > 40
    assert followed == list(range(count))
    assert_equal(directory, memory)
    followers[0].close()


def test_7_killed_after_any_change_the_next_process_goes_on(directory, writer, put, memory, monkeypatch):
    monkeypatch.setattr(module, "SMALL_BYTES", 1)
    monkeypatch.setattr(module, "TOGETHER", 3)

    class KilledError(BaseException):
        pass

    def kill():
        nonlocal kills
        kills += 1
        if kills % 2:
            raise KilledError

    kills, count = 0, 0
    Between(monkeypatch, kill)
    for round_ in range(3):
        one = writer(0)
        for _ in range(3):
            numbers(one, put, count, count + 3)
            count += 3
            again(directory, memory, KilledError)
        one.close()
        if round_ == 1:
            assert compact(directory, force=True).rows
        again(directory, memory, KilledError)
        assert_equal(directory, memory)
    assert kills > 20
    assert sum(name.endswith(".parquet") for name in names(memory)) == len(list(directory.glob("parts/*.parquet")))


def again(directory, url, error):
    """Copy in process after process, each of which is killed, until one has nothing left to do."""
    while True:
        try:
            Sync(directory, url).once()
            return
        except error:
            with Run(url) as run:
                found = run.scalars["value"].tolist()
                assert found == list(range(len(found)))


@pytest.mark.slow
def test_7_a_process_that_is_killed_by_the_system_is_gone_on_with(directory, writer, put, tmp_path):
    one = writer(0, roll_over_bytes=30_000)
    url = (tmp_path / "copy").as_uri()
    code = "import sys; from probe.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "sync", str(directory), url, "--follow", "--every", "0.01"]
    count = 0
    for _ in range(2):
        process = subprocess.Popen(command, env=child_environment(os.environ))
        try:
            seen, deadline = len(list((tmp_path / "copy").rglob("*"))), time.monotonic() + 300
            while len(list((tmp_path / "copy").rglob("*"))) < seen + 4 and time.monotonic() < deadline:
                numbers(one, put, count, count + 50)
                count += 50
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        with Run(url) as run:
            found = run.scalars["value"].tolist()
            assert found == list(range(len(found)))
    one.close()
    assert subprocess.run(command[:-3], env=child_environment(os.environ), check=False).returncode == 0
    assert_equal(directory, url)


class Plain(LocalFileSystem):
    """A store that writes files in their place, as one over SFTP does, and loses its connection in the middle."""

    protocol = "plain"
    fails = False

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("plain://"))

    def pipe_file(self, path, value, **options):
        super().pipe_file(path, value[: len(value) // 2] if self.fails else value, **options)
        if type(self).fails:
            raise ConnectionError("lost")

    def put_file(self, lpath, rpath, **options):
        self.pipe_file(rpath, Path(lpath).read_bytes())


def test_7_nothing_is_there_by_halves_in_a_store_of_files(directory, writer, put, tmp_path, monkeypatch):
    fsspec.register_implementation("plain", Plain, clobber=True)
    one, copy = writer(0), tmp_path / "copy"
    sync = Sync(directory, f"plain://{copy}")
    sync._there._local = False  # it derives from the local one for its other methods
    numbers(one, put, 0, 5)
    sync.once()
    numbers(one, put, 5, 9)
    one.close()
    monkeypatch.setattr(Plain, "fails", True)
    with pytest.raises(RunError, match="ConnectionError: lost"):
        sync.once()
    assert list(copy.rglob("*.tmp"))
    with Run(copy) as run:
        assert run.scalars["value"].tolist() == [0, 1, 2, 3, 4]
    monkeypatch.setattr(Plain, "fails", False)
    sync.once()
    assert_equal(directory, copy)


def test_7_a_run_that_goes_on_and_a_reader_beside_it(directory, writer, put, memory):
    one, stop = writer(0, roll_over_bytes=20_000, interval_s=0.01), threading.Event()
    passes, got = [], []
    thread = threading.Thread(
        target=follow, args=(Sync(directory, memory), stop), kwargs={"every_s": 0.01, "told": passes.append}
    )
    thread.start()
    try:
        while not passes:
            time.sleep(0.01)
        with Run(memory) as run:
            for begin in range(0, 3_000, 50):
                numbers(one, put, begin, begin + 50)
                got += values(run)
            one.close()
            stop.set()
            thread.join()
            got += values(run)
    finally:
        stop.set()
        thread.join()
    assert [one for one in passes if isinstance(one, Exception)] == []
    assert got == list(range(3_000))
    assert_equal(directory, memory)


def test_7_the_live_tables_of_a_copy_follow_it(directory, writer, put, memory):
    from probe.live.feed import Feed

    one, sync = writer(0), Sync(directory, memory)
    numbers(one, put, 0, 5)
    sync.once()
    feed = Feed(memory)
    feed.open()
    feed.update()
    seen = [feed.rows_read]
    for begin in (5, 10):
        numbers(one, put, begin, begin + 5)
        sync.once()
        feed.update()
        seen.append(feed.rows_read)
    one.close()
    sync.once()
    feed.update()
    assert feed.rows_read == seen[-1]
    assert [after - before for before, after in itertools.pairwise(seen)] == [5, 5]


# ------------------------------------------------------------------------------------------- what can't be copied


def test_7_a_place_that_holds_another_run_is_left_as_it_is(directory, writer, put, memory, tmp_path):
    one = writer(0)
    numbers(one, put, 0, 5)
    Sync(directory, memory).once()
    other = create_run("project", "other", root=tmp_path / "runs")
    another = writer(0, into=other)
    numbers(another, put, 100, 200)
    before = fsspec.filesystem("memory").find(memory.removeprefix("memory:/"), detail=True)
    with pytest.raises(RunError, match=r"holds another run: its rank-00000.jsonl begins otherwise"):
        Sync(other, memory).once()
    one.close()
    Sync(directory, memory).once()
    with pytest.raises(RunError, match=r"holds another run: its rank-00000.jsonl has become Parquet"):
        Sync(other, memory).once()
    another.close()
    with pytest.raises(RunError, match=r"holds another run: its .*parquet has \d+ bytes, and ours has \d+"):
        Sync(other, memory).once()
    assert before
    assert_equal(directory, memory)


def test_7_directories_of_two_machines_become_one_copy(tmp_path, writer, put, memory):
    """Ranks 0 and 1 don't see each other's files; one of them compacts."""
    nodes = [create_run("project", "experiment", root=tmp_path / str(node)) for node in range(2)]
    writers = [writer(rank, into=node, world_size=2) for rank, node in enumerate(nodes)]
    syncs = [Sync(node, memory) for node in nodes]
    for step in range(3):
        for rank, one in enumerate(writers):
            numbers(one, put, 10 * step + rank, 10 * step + rank + 1)
            syncs[rank].once()
            syncs[rank]._there.forget()
    for one in writers:
        one.close()
    assert compact(nodes[0]).rows == 0  # one segment's parts are as few files as there can be
    for sync in syncs:
        sync.once()
    with Run(memory) as run:
        assert run.ranks == [0, 1]
        assert run.missing_ranks == []
        assert sorted(run.scalars["value"]) == [0, 1, 10, 11, 20, 21]


def test_7_what_becomes_known_of_a_run_later_is_sent(directory, writer, put, memory):
    numbers(writer(0), put, 0, 3)
    sync = Sync(directory, memory)
    sync.once()
    assert Run(memory).info.config is None
    complete_run(directory, "project", {"lr": 0.1})
    assert sync.once().files == 1
    assert Run(memory).info.config == {"lr": 0.1}
    assert Sync(directory, memory).once() == Sent()


def test_7_a_copy_that_was_compacted_there_is_told(directory, writer, put, memory):
    for rank in range(2):
        numbers(writer(rank, world_size=2), put, 0, 3)
    Sync(directory, memory).once()
    for one in list(directory.glob("*.jsonl")):
        assert one.stat().st_size
    first, second = writer(2), writer(3)
    first.close()
    second.close()
    Sync(directory, memory).once()
    assert compact(memory).rows > 0
    assert compact(directory).rows > 0
    with pytest.raises(RunError, match="was compacted there, or another machine"):
        Sync(directory, memory).once()
    with Run(memory) as run:
        assert len(run.scalars) == 6
    assert all("in pieces" in why or "copy of an open file" in why for why in compact(memory).left.values())


def test_7_secrets_of_a_url_are_told_to_nobody(directory, tmp_path):
    sync = Sync(directory, f"file://me:hunter2@host{tmp_path}/copy?token=abcdef")
    assert "hunter2" not in sync.shown
    assert "abcdef" not in sync.shown
    with pytest.raises(InputError, match=r"'nothing://\[redacted\]@host/run' can't be opened") as caught:
        Sync(directory, "nothing://me:hunter2@host/run")
    assert "hunter2" not in str(caught.value)
    with pytest.raises(InputError, match="expected a run directory of this machine"):
        Sync("memory://somewhere/run", "memory://else/run")


@pytest.mark.slow
def test_7_a_bucket_that_isn_t_there_is_an_error(directory, writer, put, server):
    numbers(writer(0), put, 0, 3)
    sync = Sync(directory, "s3://no-such-bucket-here/run")
    with pytest.raises(RunError, match="s3://no-such-bucket-here/run can't be used: FileNotFoundError"):
        sync.once()


def test_7_a_store_that_fails_is_tried_again(directory, writer, put, tmp_path):
    numbers(writer(0), put, 0, 3)
    copy, stop, told = tmp_path / "copy", threading.Event(), []
    copy.write_text("in the way")

    def hear(one):
        told.append(one)
        if len(told) == 3:
            copy.unlink()
        if isinstance(one, Sent):
            stop.set()

    assert follow(Sync(directory, str(copy)), stop, every_s=0.01, told=hear)
    assert [type(one) for one in told[:4]] == [RunError, RunError, RunError, Sent]
    assert_equal(directory, copy)
    copy.rename(tmp_path / "away")
    copy.write_text("in the way")
    sync = Sync(directory, str(copy))
    assert not follow(sync, stop, every_s=0.01, last_s=0.01)


FAILS = """
import os, signal, sys
import probe
from probe.testing import FakeDevice
if sys.argv[2] == "killed":
    light = {"recorders": ["memory"], "device": FakeDevice()}  # which needn't import torch
    session = probe.start("p", "e", run_dir=sys.argv[1], rank=0, world_size=1, **light)
    with session.step(3), probe.phase("update"):
        session.flush()
        os.kill(os.getpid(), signal.SIGKILL)
import torch
session = probe.start("p", "e", run_dir=sys.argv[1], rank=0, world_size=1, save_failed_batch=True)
lengths = torch.arange(1, 5)
batch = {"attention_mask": (torch.arange(8)[None] < lengths[:, None]).long(), "input_ids": torch.arange(32).view(4, 8)}
with session.step(3), probe.phase("update"):
    for index, _ in enumerate(probe.micro_batches(batch, max_token_len=4)):
        if index == 1:
            raise ValueError("in a micro-batch")
"""


@pytest.fixture
def ended(tmp_path):
    """A run that has ended as is said, in another process."""

    def end(how):
        command = [sys.executable, "-c", FAILS, str(tmp_path / "run"), how]
        subprocess.run(command, check=False, stderr=subprocess.DEVNULL)
        return tmp_path / "run"

    return end


@pytest.mark.parametrize("url", ["memory", FILE, S3_TOO], indirect=True)
def test_12_7_where_a_process_was_seen_last_goes_along(ended, url):
    directory = ended("killed")
    assert Sync(directory, url).once().files > 0
    with Run(directory) as here, Run(url) as there:
        told, copied = here.now(), there.now()
        assert told["copied_ns"].isna().all()
        assert copied["copied_ns"].iloc[0] > copied["heartbeat_ns"].iloc[0]
        pd.testing.assert_frame_equal(told.drop(columns="copied_ns"), copied.drop(columns="copied_ns"))
        assert copied["scope"].tolist() == ["step/update"]
        assert there.post_mortem().state == "killed"
        assert there.post_mortem().to_dict()["events"] == here.post_mortem().to_dict()["events"]
    again = Sync(directory, url).once()
    assert (again, again.pages) == (Sent(), 0)  # nothing has changed since


@pytest.mark.parametrize("url", ["memory", FILE, S3_TOO], indirect=True)
def test_12_7_the_micro_batch_of_a_failure_goes_along_and_is_replayed_from_there(ended, url):
    directory = ended("raises")
    Sync(directory, url).once()
    with Run(directory) as here, Run(url) as there:
        assert there.post_mortem().state == "failed"
        (found,) = there.failures().to_dict("records")
        assert found["batch_path"].startswith(there.path)
        (ours,) = here.failures().to_dict("records")
    ids = probe.replay(found, lambda data: data.batch["input_ids"])
    assert ids.tolist() == probe.replay(ours, lambda data: data.batch["input_ids"]).tolist()
    assert len(ids) == len(found["lengths"])
    again = Sync(directory, url).once()
    assert (again, again.pages) == (Sent(), 0)


def test_12_7_a_change_of_scope_arrives_with_the_next_pass(tmp_path, memory):
    with probe.start("p", "e", run_dir=tmp_path / "run", rank=0, world_size=1, recorders=[]) as session:
        sync = Sync(tmp_path / "run", memory)
        for name in ("generate", "update"):
            with session.step(1), probe.phase(name):
                sync.once()
                with Run(memory) as there:
                    assert there.now()["phase"].tolist() == [name]
