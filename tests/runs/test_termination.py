"""SIGTERM leaves a mark in the file that says where a process is, and does nothing else."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from probe.opened import Run
from probe.runs import outcome
from probe.runs.files import RunFiles
from probe.runs.now import Now, now
from probe.runs.termination import innermost
from tests.waiting import until

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="this system doesn't say who has SIGTERM"
)

TIMEOUT_S = 120

#: A process that is told by SIGTERM to end, in a lock that is never free: in C, from where no handler in Python is run.
#: Its device is none of torch's, so that it needn't import torch: that took most of its time.
WAITS = """
    import sys, threading, probe
    from probe.testing import FakeDevice
    lock = threading.Lock()
    lock.acquire()
    session = probe.start("p", "e", run_dir=sys.argv[1], rank=0, world_size=1, recorders=[], device=FakeDevice())
    def wait():
        print("here", flush=True)
        lock.acquire()
    with session.step(3), probe.phase("update"):
        wait()
"""


#: Where it is then: having said so, or a moment later.
WAITING = ("<string>:8 wait", "<string>:9 wait")


@contextmanager
def begun(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process that has said that it is there."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "here"
        try:
            yield process
        finally:
            process.kill()


def only(path: Path) -> Now:
    (found,) = now(RunFiles(path))
    return found


def test_who_gets_sigterm_ends_by_it_at_once_and_says_where_it_was(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with begun(WAITS, run) as process:
        assert (only(run).terminated, only(run).stack) == (False, "")
        process.terminate()
        assert process.wait(TIMEOUT_S) == -signal.SIGTERM
    found = only(run)
    assert (found.terminated, found.alive, found.closed, found.failed) == (True, False, False, False)
    assert (found.step, found.phase, found.scope) == (3, "update", "step/update")  # the page itself is what it was
    line = innermost(found.stack)
    assert line in WAITING
    with Run(run) as opened:
        assert opened.sql("select terminated from last_seen")["terminated"].tolist() == [True]
        assert bool(opened.now()["terminated"].iloc[0])
        (finding,) = opened.findings().alarms
        told = opened.post_mortem()
    assert finding.sentence == "Rank 0 was ended by SIGTERM in update · step 3, where it was seen last."
    assert f"at {line}." in finding.why
    assert "out-of-memory" not in str(finding.to_dict())
    assert (told.state, told.events[0].how, told.events[0].stack_line) == ("killed", "terminated", line)
    assert "ended by SIGTERM" in str(told)
    assert "in wait" in told._repr_html_()


def test_who_is_killed_otherwise_has_no_mark(tmp_path: Path) -> None:
    with begun(WAITS, tmp_path / "run") as process:
        process.kill()
        assert process.wait(TIMEOUT_S) == -signal.SIGKILL
    assert (only(tmp_path / "run").terminated, only(tmp_path / "run").stack) == (False, "")


def test_a_copy_of_the_run_has_the_mark(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with begun(WAITS, run) as process:
        process.terminate()
        process.wait(TIMEOUT_S)
    shutil.copytree(run, tmp_path / "copied by hand")
    done = subprocess.run(
        [sys.executable, "-m", "probe", "sync", str(run), str(tmp_path / "copy")], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for copy in ("copied by hand", "copy"):
        assert only(tmp_path / copy).terminated
        assert innermost(only(tmp_path / copy).stack) in WAITING


#: Who else wants the signal, and how the process ends by it then; each says whether it was there before the session.
OTHERS = {
    "python, before": ("signal.signal(signal.SIGTERM, lambda *_: os._exit(7))", "", 7),
    "python, after": ("", "signal.signal(signal.SIGTERM, lambda *_: os._exit(7))", 7),
    "ignored": ("signal.signal(signal.SIGTERM, signal.SIG_IGN)", "", 0),
    "restored": (
        "",
        "old = signal.signal(signal.SIGTERM, lambda *_: os._exit(7)); signal.signal(signal.SIGTERM, old)",
        -15,
    ),
    "faulthandler": ("faulthandler.register(signal.SIGTERM, file=open(sys.argv[2], 'w'), chain=True)", "", -15),
}


@pytest.mark.parametrize("who", OTHERS)
def test_who_else_wants_the_signal_has_it(tmp_path: Path, who: str) -> None:
    before, after, code = OTHERS[who]
    text = f"""
        import faulthandler, os, signal, sys, time, probe
        from probe.testing import FakeDevice
        {before}
        session = probe.start("p", "e", run_dir=sys.argv[1], rank=0, world_size=1, recorders=[], device=FakeDevice())
        {after}
        with session.step(3):
            print("here", flush=True)
            sys.stdin.readline()
            for _ in range(100):
                time.sleep(0.001)
        os._exit(0)
    """
    with begun(text, tmp_path / "run", tmp_path / "theirs") as process:
        process.terminate()
        if who == "ignored":
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        assert process.wait(TIMEOUT_S) == code
    assert not only(tmp_path / "run").terminated
    if who == "faulthandler":
        assert "File" in (tmp_path / "theirs").read_text()


def test_children_say_nothing_in_the_name_of_their_parent(tmp_path: Path) -> None:
    text = """
        import os, pathlib, signal, subprocess, sys, time, probe
        from probe.testing import FakeDevice
        session = probe.start("p", "e", run_dir=sys.argv[1], rank=0, world_size=1, recorders=[], device=FakeDevice())
        with session.step(3):
            for _ in range(50):  # each is told to end before it has come to itself
                child = os.fork()
                if not child:
                    time.sleep(600)
                os.kill(child, signal.SIGTERM)
                assert os.waitpid(child, 0)[1] == signal.SIGTERM
            assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
            ask = "import pathlib; print(pathlib.Path('/proc/self/status').read_text())"
            asked = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True).stdout
            mask = int(next(one for one in asked.splitlines() if one.startswith("SigCgt")).split()[1], 16)
            assert not mask >> (signal.SIGTERM - 1) & 1, asked
            print("here", flush=True)
            time.sleep(600)
    """
    with begun(text, tmp_path / "run") as process:
        process.kill()
        process.wait(TIMEOUT_S)
    assert not only(tmp_path / "run").terminated


def test_each_session_has_its_own_mark_and_between_two_there_is_none(tmp_path: Path) -> None:
    text = """
        import os, sys, time, probe
        from probe.testing import FakeDevice
        def noted():
            names = (f"/proc/self/fd/{one}" for one in os.listdir("/proc/self/fd"))
            return sum(os.path.lexists(one) and os.readlink(one) == os.devnull for one in names)
        place, before = sys.argv[1], noted()
        light = {"rank": 0, "recorders": [], "device": FakeDevice()}
        for number in range(4):
            with probe.start("p", "e", run_dir=f"{place}/{number}", **light) as session, session.step(1):
                pass
            assert noted() == before + 1, number  # one for the whole process
        if sys.argv[2] == "in a step":
            session = probe.start("p", "e", run_dir=f"{place}/4", world_size=1, **light)
            session.step(4).__enter__()
        print("here", flush=True)
        time.sleep(600)
    """
    for when, marked in (("between", []), ("in a step", [4])):
        folder = tmp_path / when
        with begun(text, folder, when) as process:
            process.terminate()
            assert process.wait(TIMEOUT_S) == -signal.SIGTERM
        found = [int(one.name) for one in sorted(folder.iterdir()) if one.name.isdigit() and only(one).terminated]
        sizes = {one.stat().st_size for one in folder.glob("[0-3]/*.now")}
        assert (found, sizes) == (marked, {4096}), when


#: Two ranks: rank 0 waits, and rank 1 goes from scope to scope, so that it was seen later when both are gone.
TWO = """
    import itertools, sys, time, probe
    from probe.testing import FakeDevice
    rank = int(sys.argv[2])
    session = probe.start("p", "e", run_dir=sys.argv[1], rank=rank, world_size=2, recorders=[], device=FakeDevice())
    with session.step(7), probe.phase("update"):
        for number in itertools.count():
            with probe.micro_batch(number, lengths=[3]):
                if number == 1:
                    print("here", flush=True)
                if rank == 0 and number == 1:
                    time.sleep(600)
                if number == 2 and len(sys.argv) > 3 and sys.stdin.readline():
                    raise ValueError("the learning rate is negative")
                time.sleep(0.001)
"""


def test_who_was_killed_is_the_cause_and_not_who_was_told_to_end_then(tmp_path: Path) -> None:
    """As torchrun ends a job: one is killed, the others get SIGTERM a moment later and leave nothing behind."""
    run = tmp_path / "run"
    with begun(TWO, run, 0) as first, begun(TWO, run, 1) as second:
        second.kill()
        second.wait(TIMEOUT_S)
        first.terminate()
        assert first.wait(TIMEOUT_S) == -signal.SIGTERM
    with Run(run) as opened:
        (finding,) = opened.findings().alarms
        told = opened.post_mortem()
    assert (finding.name, finding.where.rank) == ("killed", 1)
    assert finding.sentence.startswith("Rank 1 was killed in update · ")  # in a micro-batch, or between two
    assert finding.sentence.endswith("where it was seen last; 1 other was ended by SIGTERM after it.")
    assert [(one.how, one.where.rank) for one in told.events] == [("killed", 1), ("terminated", 0)]
    assert "isn't known which was killed first" not in str(told)
    ended = outcome.outcome(now(RunFiles(run)))
    assert ended is not None
    assert ended.word == "killed"


def test_of_two_that_are_killed_at_once_it_says_that_the_first_isn_t_known(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with begun(TWO, run, 0) as first, begun(TWO, run, 1) as second:
        first.kill()
        second.kill()
        assert [one.wait(TIMEOUT_S) for one in (first, second)] == [-signal.SIGKILL] * 2
    with Run(run) as opened:
        (finding,) = opened.findings().alarms
        told = opened.post_mortem()
    assert finding.sentence.endswith("so was 1 more.")
    assert "which of them was first isn't known" in finding.why
    assert finding.confidence == "medium"
    assert "it isn't known which was killed first" in str(told)


def test_an_exception_is_the_cause_and_not_who_was_told_to_end_then(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with begun(TWO, run, 0) as first, begun(TWO, run, 1, "raises") as second:
        assert second.stdin is not None
        second.stdin.write("\n")
        second.stdin.close()
        assert second.wait(TIMEOUT_S) == 1
        first.terminate()
        first.wait(TIMEOUT_S)
    with Run(run) as opened:
        (finding,) = opened.findings().alarms
        told = opened.post_mortem()
    assert (finding.name, finding.where.rank) == ("failed", 1)
    assert finding.sentence.startswith("Rank 1 raised ValueError in update · micro-batch ")
    assert [one.sentence[:30] for one in finding.folded] == ["Rank 0 was ended by SIGTERM in"]
    assert [(one.how, one.where.rank) for one in told.events] == [("exception", 1), ("terminated", 0)]
    assert until(lambda: outcome.outcome(now(RunFiles(run)))) == ("failed", ("rank 1",), None)


def test_where_all_were_told_to_end_that_is_said(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with begun(TWO, run, 0) as first, begun(TWO, run, 1) as second:
        for one in (first, second):
            one.terminate()
        assert [one.wait(TIMEOUT_S) for one in (first, second)] == [-signal.SIGTERM] * 2
    with Run(run) as opened:
        (finding,) = opened.findings().alarms
    assert "was ended by SIGTERM in update · micro-batch " in finding.sentence
    assert finding.sentence.endswith("so was 1 more.")
    assert any("time limit" in one for one in finding.alternatives)


def test_between_steps_too(tmp_path: Path) -> None:
    text = """
        import sys, time, probe
        from probe.testing import FakeDevice
        session = probe.start("p", "e", run_dir=sys.argv[1], rank=0, world_size=1, recorders=[], device=FakeDevice())
        with session.step(3):
            pass
        print("here", flush=True)
        time.sleep(600)
    """
    with begun(text, tmp_path / "run") as process:
        process.terminate()
        process.wait(TIMEOUT_S)
    with Run(tmp_path / "run") as opened:
        told = opened.post_mortem()
    assert (told.state, told.sentence) == ("killed", "SIGTERM has ended Rank 0, in no step.")


def test_without_what_says_who_has_the_signal_nothing_is_done(tmp_path: Path) -> None:
    """As on a system without ``/proc``."""
    text = f"""
        import pathlib
        from probe.runs import termination
        termination._STATUS = pathlib.Path({str(tmp_path / "none")!r})
        {textwrap.dedent(WAITS).strip().replace(chr(10), chr(10) + " " * 8)}
    """
    with begun(text, tmp_path / "run") as process:
        process.terminate()
        assert process.wait(TIMEOUT_S) == -signal.SIGTERM
    assert not only(tmp_path / "run").terminated
    assert os.path.getsize(next((tmp_path / "run").glob("*.now"))) == 4096
