"""What a feed says of who writes its run: that it is recorded, quiet since when, gone, or finished."""

from __future__ import annotations

import math
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from probe.live import feed as feed_module
from probe.live import opening
from probe.live.feed import Feed
from probe.records import Process, Scalar
from probe.session import start
from tests.live.feed_rows import ROWS
from tests.live.live_run import opened, roll
from tests.sample_run import clock, write_run


@pytest.fixture
def written_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, Process, float], Feed]:
    """Makes a run whose newest row is so old. The feed's clock stands from then on: the row gets no older meanwhile."""

    def write(directory: Path, process_: Process, past_s: float) -> Feed:
        now_s = time.time()
        monkeypatch.setattr(feed_module, "time", SimpleNamespace(time=lambda: now_s, monotonic=time.monotonic))
        process_.wall_ns = int((now_s - past_s) * 1e9)
        row = Scalar(key="loss", value=1.0, time_ns=process_.time_ns)
        return opened(write_run(directory, {0: [row]}, processes={0: process_}))

    return write


def here(pid: int) -> Process:
    return Process(rank=0, time_ns=clock(0), pid=pid, host=platform.node(), world_size=1)


def test_a_run_with_new_rows_is_recorded(written_by, tmp_path):
    feed = written_by(tmp_path / "run", here(os.getpid()), 1)
    assert feed.activity() == {"newest_at": None, "writers": ""}
    assert Feed(write_run(tmp_path / "empty", {})).activity() == {"newest_at": None, "writers": ""}


@pytest.mark.parametrize("sql", [False, True])
def test_a_quiet_run_says_since_when_and_whether_its_process_lives(written_by, tmp_path, monkeypatch, sql):
    if sql:
        monkeypatch.setattr(opening, "LARGE_BYTES", -1)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        feed = written_by(tmp_path / "run", here(child.pid), 0)
        feed._intake.writers[0].wall_ns = time.time_ns()
        with monkeypatch.context() as patch:
            patch.setattr(feed_module, "QUIET_S", -1.0)
            assert feed.activity()["writers"] == "running"
        child.kill()
        child.wait()
    old = written_by(tmp_path / "old", here(child.pid), 310)
    activity = old.activity()
    assert activity["writers"] == "gone"
    assert activity["newest_at"] == pytest.approx(feed_module.time.time() - 310, abs=0.1)


def ended_child() -> int:
    """The pid of a process that is there no more."""
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    return child.pid


def test_c_a_killed_process_is_gone_as_soon_as_it_is_asked_for(written_by, tmp_path):
    """Not only once no row has come for a while."""
    feed = written_by(tmp_path / "run", here(ended_child()), feed_module.ASK_S + 0.1)
    activity = feed.activity()
    assert activity["writers"] == "gone"
    assert activity["newest_at"] == pytest.approx(feed_module.time.time() - feed_module.ASK_S - 0.1, abs=0.1)
    assert feed_module.ASK_S + feed_module.ASK_S < 10


def test_c_a_process_that_lives_makes_a_run_quiet_and_not_gone(written_by, tmp_path):
    feed = written_by(tmp_path / "run", here(ended_child()), 60)
    other = here(os.getpid())
    other.wall_ns = time.time_ns()
    feed._intake.writers[1] = other
    assert feed.activity()["writers"] == "running"


def test_c_a_copied_run_that_ended_is_not_gone(written_by, tmp_path):
    feed = written_by(tmp_path / "run", here(ended_child()), 1000)
    roll(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    assert opened(tmp_path / "copy").activity()["writers"] == "ended"
    feed._asked_at = -math.inf
    assert feed.activity()["writers"] == "ended"


def test_a_pid_of_another_host_or_of_a_later_process_tells_nothing_wrong(written_by, tmp_path):
    elsewhere = Process(rank=0, time_ns=clock(0), pid=os.getpid(), host="another-host", world_size=1)
    assert written_by(tmp_path / "there", elsewhere, 1000).activity()["writers"] == "unknown"
    began = psutil.Process().create_time()
    reused = written_by(tmp_path / "reused", here(os.getpid()), time.time() - began + 1000)
    assert reused.activity()["writers"] == "gone"


def test_a_process_of_somebody_else_that_may_not_be_looked_at_is_there(written_by, tmp_path, monkeypatch):
    def denied(pid: int) -> None:
        raise psutil.AccessDenied(pid)

    feed = written_by(tmp_path / "run", here(os.getpid()), 1000)
    monkeypatch.setattr(psutil, "Process", denied)
    assert feed.activity()["writers"] == "running"


def test_a_closed_run_is_finished_and_a_killed_one_is_not(tmp_path):
    directory = write_run(tmp_path / "run", ROWS)
    feed = opened(directory)
    assert not feed.finished()
    roll(directory)
    assert feed.finished()


def test_g_a_run_that_was_opened_says_what_memory_means(tmp_path):
    """Of a process on a machine without an accelerator, from its files as from its new rows."""
    with start("feed", run_dir=tmp_path / "run", device="cpu") as session, session.step(0):
        pass
    feed = Feed(tmp_path / "run")
    feed.open()
    assert feed.memory == "process memory (RSS)"
