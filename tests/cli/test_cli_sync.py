"""``probe sync``: once, again, followed until it is ended, and refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

import probe
from probe._io import child_environment
from probe.cli import main
from probe.runs.reader import Run
from probe.runs.sync import Sync
from tests.waiting import PATIENCE_S, until


@pytest.fixture
def run(tmp_path):
    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1) as session, session.step(0):
        pass
    return tmp_path / "run"


def test_7_a_run_is_copied_and_then_nothing_is_left_to_do(run, tmp_path, capsys):
    copy = str(tmp_path / "copy")
    assert main(["sync", str(run), copy]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.endswith(f" → {copy}\n")
    assert main(["sync", str(run), copy]) == 0
    assert capsys.readouterr().out == f"{copy} has all of it\n"
    assert main(["sync", str(run), copy, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "run": str(run), "url": copy, "files": 0, "bytes": 0, "removed": 0,
    }  # fmt: skip
    with Run(copy) as found:
        assert len(found.memory)


def test_7_what_is_refused_and_what_fails(run, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for place, url, code, said in (
        (tmp_path / "none", tmp_path / "copy", 2, "there is nothing at"),
        ("memory://none/run", tmp_path / "copy", 2, "there is nothing at"),
        (run, "nothing://me:hunter2@host/run", 2, "'nothing://[redacted]@host/run' can't be opened"),
        (run, tmp_path / "file", 1, "file can't be used: "),
    ):
        assert main(["sync", str(place), str(url)]) == code
        told = capsys.readouterr().err
        assert said in told
        assert "hunter2" not in told
    for every in ("0", "-1", "soon", "inf"):
        with pytest.raises(SystemExit) as caught:
            main(["sync", str(run), str(tmp_path / "copy"), "--every", every])
        assert caught.value.code == 2
        assert "expected a positive number of seconds" in capsys.readouterr().err


def test_7_two_at_a_time_are_one_too_many(run, tmp_path, capsys):
    lock = Sync(run, str(tmp_path / "copy")).lock()
    assert lock.acquire()
    try:
        assert main(["sync", str(run), str(tmp_path / "copy")]) == 1
    finally:
        lock.release()
    assert "another process is copying it to" in capsys.readouterr().err
    assert main(["sync", str(run), str(tmp_path / "copy")]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_7_it_follows_a_run_that_begins_later_and_sends_the_rest_when_it_is_ended(tmp_path, end):
    run, copy = tmp_path / "run", tmp_path / "copy"
    code = "import sys; from probe.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "sync", str(run), str(copy), "--follow", "--every", "600"]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=child_environment(os.environ), **options) as process:
        assert "there is no run at" in process.stderr.readline()
        with probe.start("p", run_dir=run, rank=0, world_size=1) as session:
            with session.step(0):
                pass
            until(lambda: sorted(copy.glob("*")), lambda there: copy / "run.json" in there)
            with session.step(1):  # the next look would be in ten minutes
                pass
        process.send_signal(end)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (0, "")
    assert out.endswith(f" → {copy}\n")
    with Run(run) as here, Run(copy) as there:
        assert sorted(set(there.memory["step"].dropna())) == [0, 1]
        assert len(here.memory) == len(there.memory)
