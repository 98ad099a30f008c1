"""3: alarms leave the run by a command as well, each once, also where nobody calls ``probe.start``."""

from __future__ import annotations

import json
import multiprocessing
import os
import shlex
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import probe
import probe.session as sessions
from probe.adapters import automatic
from probe.publishing import sending
from probe.publishing.sending import Sender, run_command
from probe.session import start_automatically
from probe.testing import FakeDevice
from tests.adapters.start_file import ROOT, TIMER, package
from tests.waiting import PATIENCE_S, until

#: Keeps what it is given on its standard input, and how it was started.
KEEPS = """
import json, os, pathlib, signal, sys
told = json.loads(sys.stdin.read())
told["_names"] = sorted(name for name in os.environ if name.startswith("PROBE"))
told["_off"], told["_term"] = os.environ["PROBE"], signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
with pathlib.Path(sys.argv[1]).open("a") as file:
    file.write(json.dumps(told) + "\\n")
"""

#: Rank 0 raises when whoever watches has begun to look; rank 1 waits for its end.
JOB = """
import os, pathlib, sys, time
from nemo_rl.utils.timer import Timer

rank, place = int(os.environ["RANK"]), pathlib.Path(sys.argv[1])
with Timer().time("generation"):
    pass
import probe
alarms = probe.current_session().alarms
(place / f"watches-{rank}").write_text(str(alarms is not None))
if rank == 1:
    time.sleep(600)
maps = pathlib.Path(f"/proc/{alarms._process.pid}/maps")
while "duckdb" not in maps.read_text() or not (place / "watches-1").exists():
    time.sleep(0.05)
with Timer().time("policy_training"):
    raise ValueError("a secret text of the user's")
"""

LIGHT: dict[str, Any] = {"recorders": [], "device": FakeDevice()}


def keeping(place: Path) -> tuple[str, Path]:
    """A command that keeps what it is told, and where."""
    script, kept = place / "keep s.py", place / "kept.jsonl"
    script.write_text(KEEPS)
    return "cmd:" + shlex.join([sys.executable, str(script), str(kept)]), kept


class Nonsense:
    """A server that doesn't speak HTTP."""

    def __enter__(self) -> str:
        self._server = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._answer, daemon=True).start()
        return f"http://127.0.0.1:{self._server.getsockname()[1]}/hook"

    def _answer(self) -> None:
        caller, _ = self._server.accept()
        with caller:
            caller.recv(65536)
            caller.sendall(b"220 mail.example.org ESMTP\r\n")

    def __exit__(self, *_: object) -> None:
        self._server.close()


def lines(kept: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []


@pytest.mark.slow
@pytest.mark.multiprocess
def test_3_under_probe_run_the_variable_has_each_alarm_told_once_by_a_command(tmp_path: Path) -> None:
    path = package(tmp_path / "packages", "nemo_rl", **{"utils.timer": TIMER})
    job = tmp_path / "job.py"
    job.write_text(JOB)
    command, kept = keeping(tmp_path)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "probe", "run", "--run-dir", str(tmp_path / "run"), "--", *launch, str(job), tmp_path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(path), ROOT]), "PROBE_ALARMS": command},
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert [(tmp_path / f"watches-{rank}").read_text() for rank in (0, 1)] == ["True", "False"]
    (alarm,) = [one for one in until(lambda: lines(kept), bool) if one["name"] == "failed"]
    assert alarm["sentence"] == "Rank 0 raised ValueError in policy_training."
    assert alarm["where"]["rank"] == 0
    assert "secret" not in kept.read_text()
    assert (alarm["_off"], alarm["_term"]) == ("off", True)  # what it does isn't recorded, and it ends as it expects to
    assert not {"PROBE_RUN_DIR", "PROBE_ALARMS_GO_TO"} & set(alarm["_names"])


def test_3_a_command_is_given_what_it_reads_and_says_why_it_failed(tmp_path: Path) -> None:
    command, kept = keeping(tmp_path)
    assert run_command(command, b'{"name": "leak"}') == ""
    assert [one["name"] for one in lines(kept)] == ["leak"]
    assert run_command("cmd:true", b"x" * 2**20) == ""  # which reads none of it
    assert run_command("cmd:sh -c 'echo no such address >&2; exit 3'", b"{}") == (
        "the command of alarms ended with 3: no such address"
    )
    assert run_command("cmd:sh -c 'setsid sleep 30 & exit 0'", b"{}") == ""  # nobody waits for what it leaves behind
    assert run_command("cmd:no-such-command", b"{}") == (
        "the command of alarms ended with 1: no-such-command: No such file or directory"
    )


def test_3_a_command_that_takes_too_long_is_killed_with_what_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "COMMAND_S", 2.0)
    said = run_command(f"cmd:sh -c 'sleep 300 & echo $! > {tmp_path}/pid; wait'", b"{}")
    assert said == "the command of alarms took longer than 2 s, and was killed"

    def gone() -> bool:
        try:
            return Path(f"/proc/{int((tmp_path / 'pid').read_text())}/stat").read_text().split()[2] == "Z"
        except OSError:
            return True

    until(gone, bool)


def test_3_of_two_that_watch_one_run_one_sends_and_the_other_when_it_has_gone(tmp_path: Path) -> None:
    command, kept = keeping(tmp_path)
    elsewhere = f"{command} more"
    with Sender(command, tmp_path) as first, Sender(command, tmp_path) as second, Sender(elsewhere, tmp_path) as third:
        first.send({"name": "first"})
        second.send({"name": "second"})
        third.send({"name": "third"})
        first.send({"name": "again"})
        first.__exit__(None, None, None)
        second.send({"name": "later"})
    assert [one["name"] for one in lines(kept)] == ["first", "third", "again", "later"]
    with Sender("", tmp_path) as nobody:
        nobody.send({"name": "none"})
    assert len(lines(kept)) == 4


def test_3_what_fails_to_leave_is_told_once_and_without_the_address(tmp_path: Path) -> None:
    with Sender("http://127.0.0.1:9/token-of-mine", tmp_path) as sender:
        sender.send({"name": "first"})
        sender.send({"name": "second"})
    (why,) = sender.failed
    assert why == "the URL of alarms took none: URLError"
    with Nonsense() as url, Sender(url, tmp_path) as sender:
        sender.send({"name": "first"})
    assert sender.failed == ["the URL of alarms took none: BadStatusLine"]
    with Sender("cmd:false", tmp_path / "nowhere") as sender:  # the directory has gone: rather twice than never
        sender.send({"name": "first"})
    assert sender.failed == ["the command of alarms ended with 1"]


@pytest.mark.parametrize("said", ["on", "1", "cmd:cat", "http://127.0.0.1:9/hook"])
def test_3_the_variable_asks_where_start_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setenv("PROBE_ALARMS", said)
    with probe.start("p", run_dir=tmp_path / "run", **LIGHT) as session:
        assert session.alarms is not None
        assert session.run.incidents.empty
    with probe.start("p", run_dir=tmp_path / "not", alarms=False, **LIGHT) as session:
        assert session.alarms is None


def test_3_a_variable_that_can_not_be_used_is_a_warning_and_an_incident_and_no_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PROBE_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("PROBE_ALARMS", "cmd:no-such-command --token mine")
    monkeypatch.setattr(automatic, "_tried", set())
    assert automatic.is_recording(begin=True)
    with probe.current_session() as session:  # type: ignore[union-attr]
        assert session.alarms is None
        (told,) = session.run.incidents.to_dict("records")
    assert (told["kind"], told["where"]) == ("alarms", "PROBE_ALARMS")
    assert told["message"] == (
        "PROBE_ALARMS: alarms of this run aren't looked for: there is no command 'no-such-command' here"
    )
    assert [one.message for one in caplog.records if one.levelname == "WARNING"] == [told["message"]]


@pytest.mark.parametrize("said", ["", "off", "0"])
def test_3_an_empty_variable_asks_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setenv("PROBE_ALARMS", said)
    with probe.start("p", run_dir=tmp_path / "run", **LIGHT) as session:
        assert session.alarms is None
        assert session.run.incidents.empty


def test_3_what_the_program_says_takes_the_place_of_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBE_ALARMS", "on")
    with start_automatically(tmp_path / "run") as session:
        first = session.alarms
        assert first is not None
        assert probe.start("p", run_dir=tmp_path / "run", **LIGHT) is session  # takes it over, and says nothing of them
        assert session.alarms is first
    with start_automatically(tmp_path / "run2") as session:
        first = session.alarms
        probe.start("p", run_dir=tmp_path / "run2", alarms="cmd:cat", **LIGHT)
        assert session.alarms is not None
        assert session.alarms is not first
        assert first._process.wait(PATIENCE_S) is not None
    with start_automatically(tmp_path / "run3") as session:
        probe.start("p", run_dir=tmp_path / "run3", alarms=False, **LIGHT)
        assert session.alarms is None


def _child(rank: int, place: str, pipe: Connection) -> None:
    with probe.start("p", run_dir=place, alarms=True, **LIGHT) as session:
        pipe.send(session.alarms is not None)
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2"}
        until(lambda: session.process.rank, lambda known: known == rank)
        if rank == 0:
            until(lambda: session.alarms, lambda alarms: alarms is not None)
        until(lambda: session.sending.alarms_to, lambda to: to is None)
        pipe.send(session.alarms is not None)
        pipe.recv()


@pytest.mark.slow
@pytest.mark.multiprocess
def test_3_of_processes_that_learn_their_ranks_late_rank_0_has_alarms_looked_for(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    pipes, children = [], []
    for rank in (0, 1):
        ours, theirs = spawn.Pipe()
        child = spawn.Process(target=_child, args=(rank, str(tmp_path / "run"), theirs))
        child.start()
        pipes.append(ours)
        children.append(child)
    try:
        assert [pipe.recv() for pipe in pipes] == [False, False]
        assert [pipe.recv() for pipe in pipes] == [True, False]
    finally:
        for pipe in pipes:
            pipe.send(None)
        for child in children:
            child.join()
    assert [child.exitcode for child in children] == [0, 0]


def test_3_where_no_process_learns_a_rank_the_first_has_alarms_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions.sending, "several", lambda: True)
    monkeypatch.setattr(sessions.sending, "ALONE_S", (0.0, 0.0))
    heard: list[Any] = []
    with probe.start("p", run_dir=tmp_path / "run", alarms="cmd:cat", **LIGHT) as session:
        assert session.alarms is None
        until(lambda: session.alarms, lambda alarms: alarms is not None)
        assert session.alarms is not None
        assert session.alarms._sends
    with probe.start("p", run_dir=tmp_path / "run2", alarms="cmd:cat", **LIGHT) as session:
        session.on_alarm(heard.append)  # who wants to hear of them at once needn't wait
        assert session.alarms is not None
        assert session.alarms._sends
