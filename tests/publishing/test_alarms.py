"""3: alarms come while the run is live, and when rank 0 is gone; nobody who listens disturbs training."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

import probe
from probe.errors import InputError, InputTypeError
from tests.waiting import PATIENCE_S, until

#: Trains until it is killed: long before its last step. What it records needs no torch, whose import is most of it.
RANK = """
import sys, time
import probe
from probe.testing import FakeDevice
light = {"recorders": [], "device": FakeDevice()}
rank, directory, url = int(sys.argv[1]), sys.argv[2], sys.argv[3]
session = probe.start("p", run_dir=directory, rank=rank, world_size=2, alarms=url or None, **light)
if session.alarms is not None:
    print(session.alarms._process.pid, flush=True)
for step in range(100_000):
    with session.step(step), probe.phase("update"):
        time.sleep(0.05)
"""


class Hook:
    """A server that keeps what is posted to it."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                hook.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def hook() -> Iterator[Hook]:
    made = Hook()
    yield made
    made.server.shutdown()
    made.server.server_close()


def rank_of(rank: int, directory: Path, url: str = "") -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", RANK, str(rank), str(directory), url], stdout=subprocess.PIPE)


def end(rank: subprocess.Popen[bytes]) -> None:
    rank.kill()
    rank.wait()
    rank.stdout.close()


def until_in_a_step(directory: Path, rank: int) -> None:
    def looked() -> Any:
        if not (directory / "run.json").exists():
            return None
        with probe.open(directory) as run:
            return run.now()

    def met(frame: Any) -> bool:
        return frame is not None and bool(((frame["rank"] == rank) & (frame["step"] > 3)).any())

    until(looked, met)


def kill_in_its_phase(process: subprocess.Popen[bytes], directory: Path, rank: int) -> None:
    """Between two steps it is in none: it is held still while that is looked at."""

    def stands_in_it() -> bool:
        process.send_signal(signal.SIGSTOP)
        with probe.open(directory) as run:
            frame = run.now()
        if "update" in set(frame[frame["rank"] == rank]["phase"]):
            return True
        process.send_signal(signal.SIGCONT)
        return False

    until(stands_in_it)
    process.kill()
    process.wait()


def until_it_reads_the_run(pid: int) -> None:
    """Who watches opens the run only when it has loaded what reads it, and looks at it from then on."""
    until(lambda: Path(f"/proc/{pid}/maps").read_text(), lambda maps: "duckdb" in maps)


def posted(hook: Hook, name: str) -> dict[str, Any]:
    """The alarm of that name, as soon as it has been posted."""
    got = until(lambda: list(hook.got), lambda alarms: any(one["name"] == name for one in alarms))
    return next(one for one in got if one["name"] == name)


@pytest.mark.slow
@pytest.mark.multiprocess
def test_3_the_end_of_rank_0_is_posted_by_who_outlives_it(tmp_path: Path, hook: Hook) -> None:
    ranks = [rank_of(0, tmp_path / "run", hook.url), rank_of(1, tmp_path / "run")]
    try:
        until_in_a_step(tmp_path / "run", 0)
        until_in_a_step(tmp_path / "run", 1)
        until_it_reads_the_run(int(ranks[0].stdout.readline()))
        kill_in_its_phase(ranks[0], tmp_path / "run", 0)
        alarm = posted(hook, "killed")
    finally:
        for one in ranks:
            end(one)
    assert alarm["where"]["rank"] == 0
    assert alarm["where"]["phase"] == "update"
    assert alarm["sentence"].startswith("Rank 0 was killed in update")
    assert set(alarm) == {
        "project", "experiment", "kind", "name", "where", "since", "cost", "confidence", "sentence", "setting", "value",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.usefixtures("lenient")
def test_3_a_callback_hears_of_another_rank_while_a_step_is_open(tmp_path: Path) -> None:
    heard: list[dict[str, Any]] = []
    threads: list[str] = []

    def listen(alarm: dict[str, Any]) -> None:
        threads.append(threading.current_thread().name)
        heard.append(alarm)

    def fails(alarm: dict[str, Any]) -> None:
        raise ValueError("a user's mistake")

    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=2) as session:
        session.on_alarm(fails)
        session.on_alarm(listen)
        other = rank_of(1, tmp_path / "run")
        try:
            with session.step(0), probe.phase("update"):
                until_in_a_step(tmp_path / "run", 1)
                other.send_signal(signal.SIGKILL)
                other.wait()
                until(lambda: [one["name"] for one in heard], lambda names: "killed" in names)
                (first,) = [one for one in heard if one["name"] == "killed"]
        finally:
            end(other)
    assert (first["name"], first["where"]["rank"], first["kind"]) == ("killed", 1, "alarm")
    assert threads[0] not in ("MainThread", "probe-alarms")


@pytest.mark.slow
def test_3_a_message_of_the_run_is_not_posted(tmp_path: Path, hook: Hook) -> None:
    code = textwrap.dedent("""
        import pathlib, sys, time
        import probe
        from probe.testing import FakeDevice
        light = {"recorders": [], "device": FakeDevice()}
        with probe.start("p", run_dir=sys.argv[1], rank=0, world_size=1, alarms=sys.argv[2], **light) as session:
            maps = pathlib.Path(f"/proc/{session.alarms._process.pid}/maps")
            while maps.parent.parent.is_dir() and "duckdb" not in maps.read_text():  # it has begun to look
                time.sleep(0.05)
            with session.step(0), probe.phase("update"):
                raise ValueError("the user's secret text")
    """)
    command = [sys.executable, "-c", code, str(tmp_path / "run"), hook.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 1
    alarm = posted(hook, "failed")
    assert alarm["sentence"] == "Rank 0 raised ValueError in update · step 0."
    assert "secret" not in json.dumps(hook.got)
    with probe.open(tmp_path / "run") as run:
        assert "secret text" in run.findings()[0].sentence


def test_3_what_can_t_be_an_address_or_a_callback_is_an_error(tmp_path: Path) -> None:
    for wrong in ("hook", "ftp://example.org", 3, "cmd:", "cmd: ", "cmd:'open", "cmd:no-such-command --now"):
        with pytest.raises(InputError, match="alarms: got"):
            probe.start("p", run_dir=tmp_path / "run", alarms=wrong)  # type: ignore[arg-type]
    with probe.start("p", run_dir=tmp_path / "run") as session:
        with pytest.raises(InputTypeError, match="expected a callable"):
            session.on_alarm("print")  # type: ignore[arg-type]
        assert session.alarms is None


def test_3_nobody_watches_unless_asked(tmp_path: Path) -> None:
    with probe.start("p", run_dir=tmp_path / "run") as session, session.step(0):
        assert session.alarms is None
