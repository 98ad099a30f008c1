"""The panel's thread: it follows a run, its attempts and its failures, and what a session still holds."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from probe.opened import Run
from probe.views.panel import panel as panels
from probe.views.panel.panel import Panel
from tests.live.live_run import append, in_order, roll
from tests.runs.test_attempts import train
from tests.sample_run import sample_rows, write_run
from tests.views.panel_wire import Wire
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.usefixtures("no_panel_is_left_open")

ROOT = Path(__file__).parents[2]


# ----------------------------------------------------------------------------------------------- the thread


@pytest.mark.slow
def test_it_follows_a_run_that_another_process_writes(tmp_path):
    writer = subprocess.Popen(
        [sys.executable, "-m", "tests.views.panel_writer", str(tmp_path), "40"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    try:
        path = tmp_path / "written" / "elsewhere"
        assert writer.stdin is not None
        assert writer.stdout is not None
        assert writer.stdout.readline() == "written\n"
        shown = Panel(path)
        wire = Wire(shown)
        until(lambda: shown._pump.feed.step, lambda step: step == 19)
        writer.stdin.write("go on\n")
        writer.stdin.flush()
        assert writer.stdout.readline() == "written\n"
        until(lambda: shown._pump.feed.step, lambda step: step == 39)
        assert not shown.state["finished"]
        writer.communicate("end\n")
        until(lambda: shown.state["finished"])
        shown.close()
        assert wire.heads[-1]["state"]["live"] is False
        tables = {name: table.next for name, table in shown._pump.feed.tables.items()}
        assert tables["spans"] >= 80
        assert all(count == tables[name] for name, count in wire.rows.items())
        assert max(len(head["tables"]) for head in wire.heads if head["t"] == "d") >= 1
    finally:
        writer.kill()
        writer.communicate()


@pytest.mark.usefixtures("lenient")
def test_a_failure_is_kept_and_shown_and_the_thread_goes_on(directory, caplog):
    shown = Panel(directory)
    wire = Wire(shown)
    rows = in_order(sample_rows(1, 2, seed=5))
    wire.broken = True
    append(directory, rows[:50])
    until(lambda: shown.errors)
    assert shown.errors[0]["where"] == "send"
    assert "OSError: the comm is gone" in shown.errors[0]["message"]
    assert "send: OSError" in repr(shown)
    wire.broken = False
    append(directory, rows[50:])
    until(lambda: shown.state["errors"], lambda errors: not errors)
    assert "the comm is gone" not in repr(shown)
    assert len(shown.errors) == 1
    assert shown._pump.running
    shown.close()
    assert caplog.text.count("the live panel of") == 1


def test_a_new_attempt_takes_the_place_of_the_one_before_in_a_panel_that_is_open(tmp_path):
    train(tmp_path / "run", 0.25, 4)
    with Panel(tmp_path / "run") as shown:
        wire = Wire(shown)
        assert shown.state["repeated"] == ""
        train(tmp_path / "run", 0.75, 2)
        until(lambda: shown.state["repeated"])
        assert shown.state["repeated"] == "Steps 0 to 3 were recorded twice; the newest is shown."
        # The first message goes out after the state that it brings: there may be none yet.
        until(lambda: wire.last, lambda head: head and head["state"]["step"] == 1)
        (keyframe,) = wire.anew  # what the page had is gone
        assert "spans" in {entry["name"] for entry in keyframe["tables"]}
        assert "recorded twice" in repr(shown)
        with Panel(Run(tmp_path / "run", 1)) as first:
            assert "recorded twice" not in repr(first)
            assert (first.state["step"], first.state["repeated"]) == (3, "")


def test_a_page_may_choose_an_attempt_and_go_back_to_the_newest(tmp_path):
    train(tmp_path / "run", 0.25, 4)
    train(tmp_path / "run", 0.75, 2)
    shown = Panel(tmp_path / "run")
    wire = Wire(shown)
    assert (shown.state["attempts"], shown.state["attempt"]) == ([[1, 0, 3], [2, 0, 1]], None)
    name = shown._name()
    shown._marked({"v": 1, "t": "mark", "ask": "attempt", "attempt": 1})
    until(lambda: shown.state["attempt"], lambda attempt: attempt == 1)
    (keyframe,) = until(lambda: wire.anew)  # what the page had is of another attempt
    assert keyframe["state"]["step"] == 3
    assert shown._name() == name  # who asks for the panel of this run gets this one
    for nonsense in (7, "1", True, None):  # none of them is an attempt, and the last goes back
        shown._marked({"v": 1, "t": "mark", "ask": "attempt", "attempt": nonsense})
    _, keyframe = until(lambda: wire.anew, lambda found: len(found) > 1)
    assert (shown.state["attempt"], keyframe["state"]["step"]) == (None, 1)
    assert shown.state["repeated"].startswith("Steps 0 to 3 were recorded twice")
    assert not shown.errors
    shown.close()


def test_a_broken_part_is_named_and_a_mended_one_is_read(directory):
    roll(directory)
    part = next((directory / "parts").glob("memory-*"))
    whole = part.read_bytes()
    part.write_bytes(whole[: len(whole) // 2])
    with Panel(directory) as shown:
        assert part.name in repr(shown)
        shown._start()
        assert len(shown._pump.feed.tables["micro"].columns()["tokens"])  # the other parts are read
        assert part.name in str(shown.state["errors"])
    part.write_bytes(whole)
    with Panel(directory) as shown:
        assert not shown.state["errors"]


def test_a_directory_that_goes_away_ends_nothing(directory):
    shown = Panel(directory)
    Wire(shown)
    for path in directory.glob("*.jsonl"):
        path.unlink()
    shown._pump.round()
    assert shown._pump.running
    shown.close()


# ------------------------------------------------------------------------------------- rows in memory, and the copy


class Recording:
    """A session as a panel sees one: where it writes, and a flush that writes what it still holds.

    Args:
        directory: Of the run.
        held: Rows that only a flush writes.
    """

    def __init__(self, directory: Path, held: list[Any]) -> None:
        self.directory = directory
        self.waits: list[float] = []
        self._held = held

    def flush(self, timeout_s: float) -> None:
        self.waits.append(timeout_s)
        append(self.directory, self._held)


def test_what_a_session_still_holds_is_seen_when_its_panel_closes(tmp_path):
    every = in_order(sample_rows(2, 4))
    newest = next(index for index, row in enumerate(every) if row.step == 3)
    directory = write_run(tmp_path / "run", {0: [], 1: []})
    append(directory, every[:newest])
    source = Recording(directory, every[newest:])
    shown = Panel(source)
    wire = Wire(shown)
    assert shown.state["step"] == 2
    before = dict(wire.rows)
    shown.close()
    assert source.waits == [panels.FLUSH_S]
    assert shown.state["step"] == 7
    last = wire.heads[-1]
    assert (last["state"]["step"], last["state"]["live"]) == (7, False)
    assert wire.rows != before  # in the last message, or in one that the thread has sent before it
    shown.close()
    assert source.waits == [panels.FLUSH_S]


@pytest.mark.usefixtures("lenient")
def test_a_flush_that_fails_is_shown_and_the_panel_closes(tmp_path):
    directory = write_run(tmp_path / "run", sample_rows(2, 4))
    source = Recording(directory, [])
    source.flush = lambda timeout_s: (_ for _ in ()).throw(OSError(f"no room, after {timeout_s} s"))  # type: ignore[method-assign]  # it fails
    shown = Panel(source)
    Wire(shown)
    shown.close()
    assert shown.closed
    assert [(one["where"], one["message"]) for one in shown.errors] == [("flush", "OSError: no room, after 1.0 s")]
    assert shown.state["step"] == 7


def test_a_panel_that_nobody_showed_flushes_nothing(tmp_path):
    source = Recording(write_run(tmp_path / "run", {0: []}), [])
    Panel(source).close()
    assert source.waits == []


def test_the_copy_is_made_before_the_cell_is_over_though_the_thread_began_one(directory, monkeypatch):
    """What comes when a cell is over is lost to programs that run notebooks: the next cell finds the old copy."""
    shown, began, may_go_on, kept = Panel(directory), threading.Event(), threading.Event(), []
    shown._verdict.stop()  # what it finds comes when it likes, and is another reason for a copy
    Wire(shown)
    cells = threading.current_thread()
    monkeypatch.setattr(shown._outputs, "keep", lambda copy: kept.append(threading.current_thread() is cells))
    whole = shown._copy

    def slow() -> dict[str, Any]:
        if threading.current_thread() is not cells:
            began.set()
            may_go_on.wait(PATIENCE_S)
        return whole()

    monkeypatch.setattr(shown, "_copy", slow)
    monkeypatch.setattr(shown._outputs, "live", True)
    shown._pump._wake.set()
    assert began.wait(PATIENCE_S)  # the thread makes a copy of the very same
    monkeypatch.setattr(shown._pump, "catch_up", lambda: True)
    threading.Timer(0.2, may_go_on.set).start()
    shown._cell_ended()
    assert kept == [False, True]  # in the order in which they were begun
    shown._cell_at = 0.0
    shown._cell_ended()
    assert kept == [False, True]  # nothing is new
    shown.close()
