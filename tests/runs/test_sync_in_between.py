"""What a reader of a copy sees while it is made: after each change, after each kill, and beside a run that goes on."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from probe._io import child_environment
from probe.errors import RunError
from probe.opened import Run
from probe.runs import sync as module
from probe.runs.compaction import compact
from probe.runs.copy_target import Target
from probe.runs.sync import Sync, follow
from tests.runs.copies import again, assert_equal, names, numbers, values

# botocore's HTTP sessions are closed by a finalizer of s3fs when the interpreter ends, not before.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore:Unclosed:ResourceWarning")


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
