"""``probe.start(upload=…)``: whatever becomes of the store or of the training, the copy gets what was recorded."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pandas as pd
import psutil
import pytest

import probe
from probe._io import child_environment
from probe.errors import InputError, InputTypeError, RunError
from probe.runs import upload as module
from probe.runs.reader import NAMES, Run
from probe.runs.upload import Upload

WAIT_S = 300

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore:Unclosed:ResourceWarning")


def wait_for(condition):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it didn't come"
        time.sleep(0.05)


def steps_in(url):
    try:
        with Run(url) as run:
            return sorted(set(run.memory["step"].dropna().astype(int)))
    except RunError:
        return []


def assert_equal(directory, url):
    with Run(directory) as here, Run(url) as there:
        for name in NAMES:
            pd.testing.assert_frame_equal(there.table(name), here.table(name))


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr("probe.session.outlets.EVERY_S", 0.1)


@pytest.mark.slow
def test_7_a_run_is_read_at_its_url_while_it_is_recorded(tmp_path, server):
    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1, upload=server.url) as session:
        for step in range(3):
            with session.step(step), probe.phase("update"):
                pass
            wait_for(lambda step=step: step in steps_in(server.url))
        pid = session.upload.pid
    assert_equal(tmp_path / "run", server.url)
    wait_for(lambda: not psutil.pid_exists(pid))
    with Run(server.url) as run:
        assert run.incidents.empty


@pytest.mark.slow
def test_7_a_store_that_fails_is_an_incident_and_gets_everything_later(tmp_path):
    copy = tmp_path / "copy"
    copy.write_text("in the way")
    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1, upload=copy) as session:
        with session.step(0):
            pass
        wait_for(lambda: len(session.run.incidents))
        copy.unlink()
        with session.step(1):
            pass
        wait_for(lambda: 1 in steps_in(copy))
    assert_equal(tmp_path / "run", copy)
    with Run(copy) as run:
        (told,) = run.incidents.to_dict("records")
    assert told["kind"] == "upload"
    assert told["message"].startswith("rows can't be sent now and will be sent later: ")


RUN = "RUN_OF_THIS_TEST"  #: in the environment of all processes of a training

TRAIN = """
import os, sys, time
import probe
from probe.testing import FakeDevice
light = {"recorders": ["memory"], "device": FakeDevice()}  # which needn't import torch
session = probe.start("p", run_dir=sys.argv[1], rank=int(sys.argv[3]), world_size=2, upload=sys.argv[2], **light)
for step in range(int(sys.argv[4])):
    with session.step(step), probe.phase("update"):
        pass
assert session.flush()
while sys.argv[5] == "kill" and not session.upload.pid:
    time.sleep(0.01)
print(session.upload.pid, flush=True)
if sys.argv[5] == "kill":
    time.sleep(0.2)
    os.kill(os.getpid(), 9)
if sys.argv[5] == "wait":
    for line in sys.stdin:
        with session.step(int(line)), probe.phase("update"):
            pass
        assert session.flush()
        print(session.upload.pid, flush=True)
session.close()
"""


def train(directory, url, rank, steps, end):
    command = [sys.executable, "-c", TRAIN, directory, url, rank, steps, end]
    return subprocess.Popen(
        [str(one) for one in command],
        env=child_environment({**os.environ, RUN: str(directory)}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def say(process, step):
    """It records one more step; the process that copies for it, 0 where another rank's does."""
    process.stdin.write(f"{step}\n")
    process.stdin.flush()
    return int(process.stdout.readline())


def close(processes):
    for one in processes:
        one.stdin.close()
    for one in processes:
        assert one.wait(WAIT_S) == 0


def copying(directory):
    """The processes that copy ``directory``, or wait for that; one that begins another and ends is the same."""
    found = set()
    for one in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(psutil.Error, ProcessLookupError, KeyError, TypeError):
            if "probe.runs.upload_process" in one.info["cmdline"] and one.environ()[RUN] == str(directory):
                found.add(os.getsid(one.pid))
    return found


@pytest.mark.slow
def test_7_what_a_killed_training_has_recorded_is_sent_by_the_process_that_stays(tmp_path):
    process = train(tmp_path / "run", tmp_path / "copy", 0, 5, "kill")
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.stdout.close()
    process.stdin.close()
    assert process.wait() == -signal.SIGKILL
    wait_for(lambda: not psutil.pid_exists(pid))
    assert steps_in(tmp_path / "copy") == [0, 1, 2, 3, 4]
    assert_equal(tmp_path / "run", tmp_path / "copy")


@pytest.mark.slow
def test_7_ranks_of_one_directory_copy_it_once(tmp_path):
    both = [train(tmp_path / "run", tmp_path / "copy", rank, 3, "close") for rank in range(2)]
    for one in both:
        one.communicate(timeout=WAIT_S)
        assert one.returncode == 0
    assert_equal(tmp_path / "run", tmp_path / "copy")
    with Run(tmp_path / "copy") as run:
        assert run.ranks == [0, 1]


@pytest.fixture
def ranks(tmp_path):
    """Four ranks of one directory that have recorded a step, and record another whenever they are told to."""
    made = [train(tmp_path / "run", tmp_path / "copy", rank, 1, "wait") for rank in range(4)]
    for one in made:
        one.stdout.readline()
    yield made
    for one in made:
        one.kill()
        one.wait()
        one.stdin.close()
        one.stdout.close()


@pytest.mark.slow
def test_7_ranks_of_a_machine_have_one_process_that_copies(tmp_path, ranks):
    begun(ranks)
    for step in range(2, 5):
        assert len([one for one in ranks if say(one, step)]) == 1
        assert len(copying(tmp_path / "run")) == 1
    close(ranks)
    wait_for(lambda: not copying(tmp_path / "run"))
    assert_equal(tmp_path / "run", tmp_path / "copy")
    with Run(tmp_path / "copy") as run:
        assert run.ranks == [0, 1, 2, 3]
        assert run.incidents.empty


@pytest.mark.slow
@pytest.mark.parametrize("end", ["closes", "is killed"])
def test_7_another_rank_s_process_copies_when_the_one_that_had_it_has_gone(tmp_path, ranks, end):
    first = begun(ranks)
    before = copying(tmp_path / "run")
    if end == "is killed":
        first.kill()
    first.stdin.close()
    first.wait()
    left = [one for one in ranks if one is not first]
    wait_for(lambda: copying(tmp_path / "run") - before)
    begun(left, step=2)
    wait_for(lambda: len(copying(tmp_path / "run")) == 1)  # the one before stays until then
    close(left)
    wait_for(lambda: not copying(tmp_path / "run"))
    assert_equal(tmp_path / "run", tmp_path / "copy")


@pytest.mark.slow
def test_7_what_ranks_recorded_that_are_killed_together_is_sent(tmp_path, ranks):
    """Also of those that had no process of their own, and had no time to take over."""
    first = begun(ranks)
    for one in ranks:
        say(one, 5)
    first.kill()
    time.sleep(0.05)  # its process has begun its last pass, or not
    for one in ranks:
        if one is not first:
            say(one, 6)
            one.kill()
    wait_for(lambda: not copying(tmp_path / "run"))
    assert_equal(tmp_path / "run", tmp_path / "copy")
    with Run(tmp_path / "copy") as run:
        assert len(run.memory.query("step == 6")["rank"].unique()) == 3


def begun(ranks, step=1):
    """The rank whose process copies, as soon as it has said so; each records a step meanwhile."""
    found = []

    def look():
        found[:] = [one for one in ranks if say(one, step)]
        return found

    wait_for(look)
    return found[0]


@pytest.mark.slow
def test_7_one_that_waits_for_another_s_lock_doesn_t_wait_for_its_training(tmp_path):
    first = probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=2, upload=tmp_path / "copy")
    try:
        with first.step(0):
            pass
        wait_for(lambda: 0 in steps_in(tmp_path / "copy"))
        other = train(tmp_path / "run", tmp_path / "copy", 1, 4, "close")
        other.communicate(timeout=WAIT_S)
        assert other.returncode == 0
        with Run(tmp_path / "copy") as run:  # the first one's process has sent it
            assert sorted(run.memory.query("rank == 1")["step"].dropna().unique()) == [0, 1, 2, 3]
    finally:
        first.close()
    assert_equal(tmp_path / "run", tmp_path / "copy")


def test_7_what_can_t_be_a_place_is_said_at_once(tmp_path):
    for wrong, error in ((7, InputTypeError), ("", InputTypeError), ("nothing://me:hunter2@host/run", InputError)):
        with pytest.raises(error, match=r"^upload: ") as caught:
            probe.start("p", run_dir=tmp_path / "run", upload=wrong)
        assert "hunter2" not in str(caught.value)
    assert not (tmp_path / "run").exists()
    assert probe.current_session() is None


def test_7_where_probe_is_off_nothing_is_copied(tmp_path, monkeypatch):
    monkeypatch.setenv("PROBE", "off")
    with probe.start("p", run_dir=tmp_path / "run", upload=tmp_path / "copy") as session:
        assert session.upload is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_7_a_secret_of_the_url_is_on_no_command_line_and_in_no_row(tmp_path, caplog):
    url = "ftp://me:hunter2@localhost:1/run"  # nobody answers there
    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1, upload=url) as session:
        wait_for(lambda: len(session.run.incidents))
        process = psutil.Process(session.upload.pid)
        words = process.cmdline()
        session.upload._ended.set()  # it would be tried again for ten minutes
        process.kill()
        session.upload._thread.join()
        session.upload._process.stdin.close()
    with Run(tmp_path / "run") as run:
        (told,) = run.incidents.to_dict("records")
    files = [path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert told["where"] == "ftp://[redacted]@localhost:1/run"
    assert not any("hunter2" in text for text in (*words, str(told), caplog.text))
    assert not any(b"hunter2" in content for content in files)


def child(monkeypatch, code):
    place = [sys.executable, "-c", textwrap.dedent(code)]
    popen = subprocess.Popen
    monkeypatch.setattr(module.subprocess, "Popen", lambda _, **options: popen(place, **options))


@pytest.mark.usefixtures("lenient")
def test_7_a_process_that_dies_is_told_and_training_doesn_t_notice(tmp_path, monkeypatch):
    child(monkeypatch, "import sys; sys.stdin.readline(); print('what'); sys.exit(3)")
    told = []
    upload = Upload(tmp_path, "memory://x/run", told.append, every_s=1.0)
    wait_for(lambda: len(told) == 2)
    assert "can't be read" in told[0].message
    assert "has ended" in told[1].message
    assert upload.finish() is False
    assert upload.finish() is False


def test_7_the_end_waits_so_long_and_no_longer(tmp_path, monkeypatch, caplog):
    child(monkeypatch, "import os, sys, time; os.fork() and os._exit(0); sys.stdin.read(); time.sleep(1)")
    upload = Upload(tmp_path, "memory://x/run", list, every_s=1.0)
    assert upload.finish(0.01) is False
    assert "a process goes on to send them" in caplog.text
    upload._thread.join()


def test_7_a_forked_child_leaves_the_upload_alone(tmp_path, monkeypatch):
    child(monkeypatch, "import os, sys; os.fork() and os._exit(0); sys.stdin.read()")
    upload = Upload(Path(tmp_path), "memory://x/run", list, every_s=1.0)
    pid = os.getpid()
    monkeypatch.setattr(module.os, "getpid", lambda: pid + 1)
    upload.finish()
    assert upload._thread.is_alive()
    monkeypatch.undo()
    upload.finish()
    assert not upload._thread.is_alive()


@pytest.mark.slow
def test_7_neither_the_process_nor_the_command_loads_what_it_doesn_t_need():
    code = "import sys, probe.runs.upload_process, probe.runs.sync, probe.cli.sync; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "msgspec" in loaded
    assert loaded.isdisjoint({"torch", "numpy", "tensordict", "pandas", "pyarrow", "duckdb", "plotly"})
