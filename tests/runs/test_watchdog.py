"""The watchdog: where the training thread is in the code, once a scope is open for much too long."""

from __future__ import annotations

import threading
import time

import pytest

import probe
from probe import hooks
from probe.records import Process
from probe.runs.now_file import NowFile
from probe.runs.watchdog import OVERDUE_S, Watchdog, overdue_s, stack_of


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """A page and a way to begin a scope that long ago, in seconds."""
    monkeypatch.setenv("PROBE_OVERDUE_S", "10")
    file = NowFile(tmp_path / "rank-00000.now", Process(process="rank-00000"))

    def begin(name, ago_s, around=None):
        made = hooks.Scope("phase", name, around or file.at, step=1)
        file.entered(made, threading.get_ident(), time.monotonic_ns() - int(ago_s * 1e9))
        return made

    begin.file = file
    yield begin
    file.close()


def test_4_the_stack_of_an_overdue_scope_is_a_row_that_names_the_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PROBE_OVERDUE_S", "0.2")

    def wait_for_the_other_rank():
        until = time.monotonic() + 300
        while session.run.table("stacks").empty and time.monotonic() < until:
            time.sleep(0.05)

    with probe.start("p", "e", run_dir=tmp_path / "run", rank=0, recorders=[]) as session:
        with session.step(4), probe.phase("update"):
            wait_for_the_other_rank()
        row = session.run.table("stacks").iloc[0]
    assert (row["step"], row["phase"], row["scope"], row["kind"]) == (4, "update", "step/update", "phase")
    assert "in wait_for_the_other_rank" in row["stack"]
    assert row["thread"] == threading.current_thread().name
    assert row["seen"]
    assert row["open_ns"] > row["threshold_ns"] == 200_000_000


def test_4_it_is_told_once_and_again_when_it_is_open_for_twice_as_long(opened):
    scope = opened("update", 11)
    watchdog = Watchdog(opened.file)
    told, where = watchdog.look()
    assert where is scope
    assert told.longest_ns is None
    assert watchdog.look() is None
    scope._begun_ns -= 12 * 10**9
    assert watchdog.look()[0].open_ns > 22 * 10**9
    assert watchdog.look() is None


def test_4_a_scope_that_always_takes_long_is_not_overdue(opened):
    root = opened.file.at
    opened.file.left(opened("update", 20), root, threading.get_ident())
    scope = opened("update", 50)
    watchdog = Watchdog(opened.file)
    assert watchdog.look() is None
    scope._begun_ns -= 20 * 10**9
    told, _ = watchdog.look()
    assert told.longest_ns >= 20 * 10**9
    assert told.threshold_ns >= 61 * 10**9


def test_4_a_loop_of_short_scopes_is_told_of_the_scope_around_it(opened):
    around = opened("update", 30)
    opened("poll", 0.1, around)
    assert Watchdog(opened.file).look()[1] is around


def test_between_scopes_nothing_is_overdue(opened):
    assert Watchdog(opened.file).look() is None


def test_a_thread_that_is_not_there_has_no_stack():
    assert stack_of(-1) == ("", "")


@pytest.mark.parametrize(("given", "found"), [("2.5", 2.5), ("no", OVERDUE_S), ("0", OVERDUE_S), ("nan", OVERDUE_S)])
def test_what_is_no_positive_number_changes_nothing(monkeypatch, given, found):
    monkeypatch.setenv("PROBE_OVERDUE_S", given)
    assert overdue_s() == found
