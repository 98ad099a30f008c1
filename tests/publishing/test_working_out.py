"""The end of a session leaves a process behind that works out what views of a large run ask first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from probe._io import FileLock
from probe.analysis.verdict import kept
from probe.cli import first_look
from probe.publishing import working_out
from probe.runs import answers
from probe.runs.layout import PARTS_NAME, Segment
from probe.runs.parts import roll_over
from probe.runs.reader import Run
from probe.session import session as sessions
from probe.session import start
from probe.testing import FakeDevice
from tests.sample_run import sample_rows, write_run
from tests.waiting import PATIENCE_S, until

#: The process with a run of any size as a large one.
CHILD = """if True:
    import os, sys
    from probe.cli.first_look import main
    from probe.runs import answers
    answers.LEAST_BYTES = 1
    {do}
"""

#: A training that is killed in its step.
KILLED = """if True:
    import os, signal, sys
    from probe.session import start
    from probe.testing import FakeDevice
    session = start("p", "e", run_dir=sys.argv[1], rank=5, recorders=["memory"], device=FakeDevice())
    with session.step(9):
        session.flush()
        os.kill(os.getpid(), signal.SIGKILL)
"""


def ended_run(directory: Path) -> Path:
    write_run(directory, sample_rows(2, 3))
    for rank in (0, 1):
        assert list(roll_over(directory, Segment.of_rank(rank, 0)))
    return directory


def command(directory: Path, do: str = "sys.exit(main())") -> list[str]:
    return [sys.executable, "-P", "-c", CHILD.format(do=do), str(directory)]


@pytest.fixture
def large(monkeypatch):
    """Every run is a large one, in this process."""
    monkeypatch.delenv(answers.KEEP_VARIABLE, raising=False)
    monkeypatch.setattr(answers, "LEAST_BYTES", 1)
    monkeypatch.setattr(working_out, "LEAST_BYTES", 1)


@pytest.fixture
def left(monkeypatch):
    """The directories that a process was left behind for."""
    asked: list[Path] = []
    monkeypatch.setattr(sessions, "have_worked_out", asked.append)
    return asked


def light(directory: Path, **options):
    return start("p", "e", run_dir=directory, recorders=["memory"], device=FakeDevice(), **options)


@pytest.mark.usefixtures("large")
def test_a_process_that_outlives_the_session_keeps_what_views_ask_first(tmp_path: Path, monkeypatch) -> None:
    run = tmp_path / "run"
    real = working_out.have_worked_out
    pids: list[int | None] = []
    monkeypatch.setattr(sessions, "have_worked_out", lambda place: pids.append(real(place, command(place))))
    with light(run) as session, session.step(0):
        pass
    (pid,) = pids
    assert pid is not None
    assert os.getsid(pid) == pid  # a terminal that is closed doesn't end it
    (process,) = [one for one in working_out._left if one.pid == pid]
    assert process.wait(PATIENCE_S) == 0
    monkeypatch.setenv(answers.KEEP_VARIABLE, "0")  # nothing that is found here was kept by us
    with Run(run) as opened:
        assert kept.find(opened) is not None
    assert not (run / answers.FOLDER / first_look.LOCK_NAME).exists()


@pytest.mark.parametrize(("rank", "asks"), [(0, True), (1, False), (None, True)])
def test_one_process_of_a_run_has_it_done(tmp_path: Path, left, rank, asks) -> None:
    light(tmp_path / "run", rank=rank, world_size=None if rank is None else 2).close()
    assert left == [tmp_path / "run"] * asks


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("why", ["the variable", "no views", "a small run"])
def test_nothing_is_left_behind_where_nothing_is_to_be_kept(tmp_path: Path, monkeypatch, why) -> None:
    run = ended_run(tmp_path / "run")
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    if why == "the variable":
        monkeypatch.setenv(answers.KEEP_VARIABLE, "0")
    elif why == "no views":
        monkeypatch.setattr(working_out, "missing_view", lambda: "duckdb")
    else:
        monkeypatch.setattr(working_out, "LEAST_BYTES", 10**9)
    assert working_out.have_worked_out(run) is None


def test_how_large_a_run_will_be_is_estimated_from_a_few_files(tmp_path: Path, monkeypatch) -> None:
    parts = tmp_path / PARTS_NAME
    parts.mkdir()
    assert working_out.about_bytes(tmp_path) == 0
    for number in range(1000):
        (parts / f"memory-rank{number:05}-0.parquet").write_bytes(b"x" * 40)
        (parts / f"process-rank{number:05}-0.parquet").write_bytes(b"x" * 10)
    for rank in range(3):
        (tmp_path / f"rank-{rank:05}.jsonl").write_bytes(b"x" * 1000)
    asked: list[Path] = []
    stat = Path.stat
    monkeypatch.setattr(Path, "stat", lambda one, **options: (asked.append(one), stat(one, **options))[1])
    estimate = working_out.about_bytes(tmp_path)
    assert abs(estimate - (1000 * 50 + 300)) < 2000
    assert len([one for one in asked if one.suffix]) <= 2 * working_out._ASKED + 3


@pytest.mark.usefixtures("large")
def test_a_process_that_still_writes_is_waited_for(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(first_look, "LOOK_S", 0.01)
    monkeypatch.setattr(first_look, "_step_back", lambda: None)
    done: list[str] = []
    monkeypatch.setattr(first_look, "work_out", done.append)
    run = tmp_path / "run"
    session = light(run)
    waiting = threading.Thread(target=first_look.main, args=([str(run)],))
    waiting.start()
    with session.step(0):
        time.sleep(0.1)
    assert done == []
    session.close()
    waiting.join(PATIENCE_S)
    assert done == [str(run)]


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("why", ["killed", "too long", "small", "another does"])
def test_what_cannot_be_kept_is_left_to_the_first_reader(tmp_path: Path, monkeypatch, why) -> None:
    monkeypatch.setattr(first_look, "_step_back", lambda: None)
    monkeypatch.setattr(first_look, "work_out", lambda _: pytest.fail("it was worked out"))
    run = ended_run(tmp_path / "run")
    lock = None
    if why == "killed":
        killed = subprocess.run([sys.executable, "-c", KILLED, str(run)], timeout=PATIENCE_S, check=False)
        assert killed.returncode == -signal.SIGKILL
        assert list(run.glob("*.jsonl"))
    elif why == "too long":
        (run / "rank-00007.jsonl").write_text("")
        monkeypatch.setattr(first_look, "WAIT_S", 0.0)
    elif why == "small":
        monkeypatch.setattr(answers, "LEAST_BYTES", 10**9)
    else:
        (run / answers.FOLDER).mkdir()
        lock = FileLock(run / answers.FOLDER / first_look.LOCK_NAME)
        assert lock.acquire()
    try:
        assert first_look.main([str(run)]) == 0
    finally:
        if lock is not None:
            lock.release()


def test_a_run_that_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    told = subprocess.run(command(tmp_path / "none"), capture_output=True, timeout=PATIENCE_S, check=True)
    assert (told.stdout, told.stderr) == (b"", b"")
    assert not (tmp_path / "none").exists()


@pytest.mark.usefixtures("large")
def test_the_process_looks_at_the_size_itself(tmp_path: Path) -> None:
    run = ended_run(tmp_path / "run")
    assert working_out.have_worked_out(run) is not None  # an estimate is what it takes to begin it
    assert working_out._left[-1].wait(PATIENCE_S) == 0
    assert not (run / answers.FOLDER).exists()


def test_everything_else_on_the_machine_goes_first(tmp_path: Path) -> None:
    done = "main.__globals__['work_out'] = lambda _: print(os.nice(0), open('/proc/self/oom_score_adj').read()); main()"
    told = subprocess.run(
        command(ended_run(tmp_path / "run"), done), capture_output=True, timeout=PATIENCE_S, check=True
    )
    assert told.stdout.split() == [b"19", b"1000"]
    assert until(lambda: (tmp_path / "run" / answers.FOLDER).is_dir(), bool)
