"""The picture that `probe tail` draws in a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import io
import math
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from probe.hooks import phase
from probe.records import Incident
from probe.runs.now import Now, OpenScope
from probe.session import start
from probe.testing import FakeDevice
from probe.views.terminal import glance
from probe.views.terminal.following import Following
from probe.views.terminal.view import bar, spark
from tests.cli.tailing import drawn, objects, of_step, tail, told
from tests.live.live_run import append, roll
from tests.sample_run import sample_rows, write_run
from tests.waiting import PATIENCE_S

NASTY = "\x1b[2J\x1b]0;owned\x07[red]actor[/]"


def test_the_picture_says_it_all(run: Path) -> None:
    following = Following(str(run))
    following.look()
    said = drawn(following)
    for one in ("arithmetic / grpo-small", "finished", "4 ranks", "step 11", "17 rows dropped", "phases of step 11"):
        assert one in said
    for one in following.numbers.tiles:
        assert re.search(rf"{one.title} +\S", said)
    assert re.search(r"Peak memory .* [█▉▊▋▌▍▎▏·]{20} \d+ % of 80.0 GiB", said)
    assert said.index("dropped_rows") < said.index("connection refused")  # the newest first
    assert all(len(line) <= 110 for line in said.splitlines())
    assert all(len(line) <= 60 for line in drawn(following, 60).splitlines())


def test_names_can_not_steer_the_terminal(tmp_path: Path, capsys) -> None:
    rows = sample_rows(1, 2, actor=NASTY)
    rows[0].append(Incident(kind=NASTY, where=NASTY, message=NASTY, rank=0, step=1, time_ns=rows[0][-1].time_ns))
    for row in rows[0]:
        row.phase = row.phase and f"{row.phase}{NASTY}"
    path = write_run(tmp_path / "run", rows, project=NASTY, experiment=NASTY)
    following = Following(str(path))
    following.look()
    said = drawn(following)
    assert "[red]actor[/]" in said
    roll(path)
    os.utime(path / "parts", (1, 1))
    for more in ([], ["--tables", "incidents,memory"]):
        said += "\n".join(told(capsys, str(path), *more))
    assert not {one for one in said if not one.isprintable()} - {"\n"}


def test_without_anything_it_says_so(tmp_path: Path, capsys) -> None:
    path = write_run(tmp_path / "run", {})
    following = Following(str(path))
    following.look()
    said = drawn(following)
    assert "waiting for rows" in said
    assert "no step yet" in said
    assert drawn(following).count("nan") == 0
    found = objects(told(capsys, str(path), "--json", "--once"))
    assert (found[0]["ranks"], found[0]["last_step"], found[0]["duration_s"]) == (0, None, None)


def test_before_rows_are_read_it_says_where_the_processes_are(tmp_path: Path) -> None:
    session = start("p", NASTY[-5:], run_dir=tmp_path / "run", rank=3, recorders=["memory"], device=FakeDevice())
    with session.step(7), phase(NASTY):
        said = glanced(tmp_path / "run")
        assert "recording" in said
        assert "1 rank · step 7" in said
        assert r"1 in \x1b[2J\x1b]0;owned\x07[red]actor[/] of step 7" in said
        assert "reading its rows" in said
        assert not {one for one in said if not one.isprintable()} - {"\n"}
    assert " of step 7" not in glanced(tmp_path / "run")  # it is between two steps
    session.close()
    assert "finished" in glanced(tmp_path / "run")


def test_before_rows_are_read_the_most_places_are_first() -> None:
    scopes = [OpenScope(name="step", kind="step", scope_id=1, begun_ns=None, step=2)]
    phases = ["update"] * 3 + ["old_log_prob"] * 5 + [f"phase_{one}" for one in range(6)]
    told = [
        Now(process=f"{rank}", rank=rank, attempt=1, step=2, phase=phase, scopes=scopes)
        for rank, phase in enumerate(phases)
    ]
    closed = Now(process="x", rank=None, attempt=1, step=2, phase="update", scopes=scopes, closed=True)
    places = [
        "5 in old_log_prob of step 2",
        "3 in update of step 2",
        *(f"1 in phase_{one} of step 2" for one in range(3)),
    ]
    assert glance._places([*told, closed]) == [*places, "and 3 more places"]


def test_a_run_that_says_nothing_of_its_processes_is_named(run: Path) -> None:
    said = glanced(run)
    assert "arithmetic / grpo-small" in said
    assert "started 20" in said
    assert "recording" not in said


def glanced(path: Path) -> str:
    following = Following(str(path))
    console = Console(file=io.StringIO(), width=110)
    console.print(glance.glance(following))
    assert not following.feed.opened
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_lines_of_the_past_keep_their_peaks() -> None:
    values = [1.0] * 500 + [9.0] + [1.0] * 500
    assert spark(values, 20).count("█") == 1
    assert len(spark(values, 20)) == 20
    assert spark([], 20) == ""
    assert spark([math.nan, math.inf, 1.0, 2.0]) == "  ▁█"
    assert bar(1 / 16, 2) == "▏·"


@pytest.mark.slow
def test_a_terminal_gets_a_picture_that_follows(tmp_path: Path) -> None:
    """In a real terminal: what is seen while it runs, when the run ends, and after Ctrl-C."""
    path = write_run(tmp_path / "run", sample_rows(2, 9))
    with in_terminal(str(path)) as screen:
        screen.await_text("no rows since")
        screen.await_text("Peak memory")
        append(path, of_step(9, 2))
        screen.await_text("phases of step 9")
        screen.process.send_signal(signal.SIGINT)
        assert screen.wait() == 130
        last = screen.seen
        assert "\x1b[?1049l" in last  # the screen of before
        after = last.split("\x1b[?1049l")[1]
        assert "phases of step 9" in after  # and what was seen last
        assert "\x1b[?25h" in last  # with its cursor
        assert after.rstrip().endswith("probe tail: interrupted")
    with in_terminal(str(path)) as screen:
        screen.await_text("recording|no rows since")
        roll(path)
        assert screen.wait() == 0
        assert "finished" in screen.seen
    with in_terminal(str(path), "--once") as screen:
        assert screen.wait() == 0
        assert "phases of step 9" in screen.seen
        assert "reading its rows" not in screen.seen
    with in_terminal(str(path)) as screen:  # it has Parquet now, and may be large
        assert screen.wait() == 0
        assert screen.seen.index("reading its rows") < screen.seen.index("Peak memory")


class Screen:
    """The other end of a terminal."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self.descriptor = descriptor
        self.seen = ""

    def read(self, timeout_s: float) -> bool:
        if not select.select([self.descriptor], [], [], timeout_s)[0]:
            return False
        try:
            got = os.read(self.descriptor, 2**16)
        except OSError:  # the other end has gone
            return False
        self.seen += got.decode(errors="replace")
        return bool(got)

    def await_text(self, pattern: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while not re.search(pattern, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.seen)):
            assert time.monotonic() < end, self.seen[-3000:]
            self.read(0.2)

    def wait(self) -> int:
        """Its exit code. A process whose output nobody reads doesn't end."""
        end = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < end, self.seen[-3000:]
            self.read(0.1)
        while self.read(0.2):
            pass
        return self.process.returncode


@contextlib.contextmanager
def in_terminal(*arguments: str) -> Iterator[Screen]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    with tail(*arguments, stdin=theirs, stdout=theirs, stderr=theirs, text=False, env=environment) as process:
        os.close(theirs)
        try:
            yield Screen(process, ours)
        finally:
            os.close(ours)
