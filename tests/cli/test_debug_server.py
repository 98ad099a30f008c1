"""Issue 13, supplement: ``probe run --debug-server`` turns on PyTorch's debug server, with a page of probe's in it.

Real ranks under torchrun, on gloo. Their script has no ``if __name__ == "__main__"``.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from probe.torch_debug import waiting
from probe.torch_debug.page import Page
from tests.served_run import served_run

SCRIPT = """
import os, pathlib, time
import torch, torch.distributed as dist
import probe

place = pathlib.Path(os.environ["PLACE"])
(place / f"ran-{os.getpid()}").touch()
dist.init_process_group("gloo")
rank = dist.get_rank()
with probe.start("debug", "server") as session:
    number = 0
    while True:
        number += 1
        with session.step(number), probe.phase("update"):
            total = torch.full((4,), rank + 1.0)
            dist.all_reduce(total)
            more = torch.tensor([float((place / "enough").exists())])
            dist.broadcast(more, 0)
            if number == 3:
                (place / f"pid-{rank}").write_text(str(os.getpid()))
            if more.item():
                break
        time.sleep(0.05)
(place / f"done-{rank}").write_text(str(total.tolist()))
"""

LIMIT_S = 120


def free_port() -> int:
    with socket.socket(socket.AF_INET6) as one:
        one.bind(("::", 0))
        return int(one.getsockname()[1])


def until(ask: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not ask():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def page_of(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://localhost:{port}{path}", timeout=LIMIT_S) as answer:
        return str(answer.read().decode())


def listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


class Ranks:
    """Two ranks with the server, beside this process."""

    def __init__(self, place: Path, port: int) -> None:
        self.place, self.port = place, port
        script = place / "train.py"
        script.write_text(SCRIPT)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
        torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
        command = [sys.executable, "-m", "probe", "run", "--run-dir", str(place / "run"), f"--debug-server={port}"]
        with (place / "output").open("w") as output:
            self.process = subprocess.Popen(
                [*command, "--", *torchrun, str(script)],
                stdout=output,
                stderr=output,
                env={**os.environ, "PLACE": str(place), "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return (self.place / "output").read_text()

    def run(self) -> None:
        """Until both are in their third step, and the page answers."""
        until(lambda: all((self.place / f"pid-{rank}").exists() for rank in range(2)), "no third step")
        until(lambda: listens(self.port) or self.process.poll() is not None, "no page")
        assert self.process.poll() is None, self.output


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    try:
        port = free_port()
    except OSError:
        pytest.skip("PyTorch's server listens on IPv6, which this machine hasn't")
    made = Ranks(tmp_path, port)
    yield made
    if made.process.poll() is None:
        os.killpg(made.process.pid, signal.SIGKILL)
    made.process.wait()


@pytest.mark.slow
def test_13_the_debug_server_tells_of_all_ranks_and_has_probe_s_page(ranks: Ranks) -> None:
    ranks.run()
    assert 'href="/probe"' in page_of(ranks.port, "/")
    stacks = page_of(ranks.port, "/stacks")
    assert all(f"Rank {rank}: http" in stacks for rank in range(2))
    assert "train.py" in stacks
    until(lambda: "rank-00001:" in page_of(ranks.port, "/probe"), "rank 1 isn't told")
    told = page_of(ranks.port, "/probe")
    assert "rank-00000: " in told
    assert "In order: " in told
    (ranks.place / "enough").touch()
    assert ranks.process.wait(LIMIT_S) == 0, ranks.output
    assert [(ranks.place / f"done-{rank}").read_text() for rank in range(2)] == ["[3.0, 3.0, 3.0, 3.0]"] * 2
    assert len(list(ranks.place.glob("ran-*"))) == 2  # the page's process hasn't run the script
    assert "without a password" in ranks.output
    until(lambda: not listens(ranks.port), "the page is still there")


@pytest.mark.slow
def test_13_the_page_of_the_debug_server_goes_with_a_rank_that_is_killed(ranks: Ranks) -> None:
    ranks.run()
    os.kill(int((ranks.place / "pid-0").read_text()), signal.SIGKILL)
    until(lambda: not listens(ranks.port), "the page is still there")
    assert ranks.process.wait(LIMIT_S) != 0


def test_13_a_page_says_what_was_found_and_where_each_process_is(tmp_path: Path) -> None:
    text = Page(str(served_run(tmp_path / "run", steps=5))).text()
    assert "Worth a change: A step waits" in text
    assert text.rstrip().endswith("has ended")


@pytest.mark.parametrize("lacks", [waiting.VARIABLE, "RANK", "MASTER_PORT"])
def test_13_nothing_waits_where_no_server_is_asked_for_or_no_launcher_began_the_process(
    lacks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_begun", threading.Event())
    environ = dict.fromkeys((waiting.VARIABLE, *waiting._NEEDED), "1")
    del environ[lacks]
    assert waiting.begin(tmp_path, environ) is None


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("port", ["twelve", "25999"])
def test_13_what_cannot_be_started_is_a_warning_and_nothing_else(
    port: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waiting, "_begun", threading.Event())
    monkeypatch.setattr(waiting, "_stands", lambda: True)
    monkeypatch.setitem(sys.modules, "torch.distributed.debug", None)  # as in a PyTorch that has none
    environ = {**dict.fromkeys(waiting._NEEDED, "1"), waiting.VARIABLE: port}
    with caplog.at_level(logging.WARNING, "probe.torch_debug"):
        started = waiting.begin(tmp_path, environ)
        assert started is not None
        started.join(60)
    assert waiting.begin(tmp_path, environ) is None  # once for a process
    assert "PyTorch's debug server can't be started" in caplog.text
