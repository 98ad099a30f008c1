"""What every test shares: a test leaves the world as it found it, and draws the examples that it drew before."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before anything imports torch: tests share the cores with other workers, targets and the processes that they start,
# and threads of OpenMP that wait for each other hold theirs. Beside two busy loops TRL's took more than twice as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# On a loaded machine a last edition takes longer than the end of a session waits for it in a container, and would be
# left to a process that a test then leaves behind. Tests of that say otherwise.
os.environ.setdefault("PROBE_LAST_EDITION", "wait")

# A guard raises what it catches: a fault of probe's own never stays green. Where a test plants one: `lenient`.
os.environ.setdefault("PROBE_STRICT", "1")

import hypothesis
import pytest

from probe import hooks
from probe.hooks import listeners
from tests.mlflow_server import MLflowServer
from tests.once import once

THREADS_END_S = 300  # much longer than a thread needs on a loaded machine: only one that never ends is left behind

# The same examples in every run, on every machine. `make fuzz` draws others.
hypothesis.settings.register_profile("fixed", derandomize=True, database=None, deadline=None)
hypothesis.settings.register_profile("fuzz", deadline=None, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("PROBE_EXAMPLES", "fixed"))


class TorchRandom:
    """Torch's generator, for Hypothesis: an example seeds it, as it seeds those of Python and NumPy."""

    def seed(self, number: int) -> None:
        if torch := sys.modules.get("torch"):
            # Not torch.manual_seed, which notes a stack for each device that there isn't: at some ten thousand examples
            # these took longer than the examples.
            torch.default_generator.manual_seed(number + int(os.environ.get("PROBE_FUZZ_SEED", "0")))

    def getstate(self) -> Any:
        torch = sys.modules.get("torch")
        return torch and torch.get_rng_state()

    def setstate(self, state: Any) -> None:
        if state is not None:
            sys.modules["torch"].set_rng_state(state)


TORCH_RANDOM = TorchRandom()  # Hypothesis keeps a weak reference
hypothesis.register_random(TORCH_RANDOM)


@pytest.fixture
def lenient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that plants a fault in what probe guards: it is kept from the training as it is for users."""
    monkeypatch.setenv("PROBE_STRICT", "0")


SLOW_FIXTURES = {"demo", "mlflow_server", "own_mlflow_server", "mlflow_database"}
DEMO_STEPS = 16


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Whoever asks for a server or a browser is marked for it; what is thorough waits to be asked for."""
    for item in items:
        asked = set(getattr(item, "fixturenames", ()))
        if asked & SLOW_FIXTURES:
            item.add_marker("slow")
        if "chromium" in asked:
            item.add_marker("browser")
    if not os.environ.get("PROBE_THOROUGH") and not any("::" in one for one in config.args):
        left = [item for item in items if item.get_closest_marker("thorough")]
        if left:
            config.hook.pytest_deselected(items=left)
            items[:] = [item for item in items if not item.get_closest_marker("thorough")]


@pytest.fixture(autouse=True, scope="session")
def _can_be_interrupted() -> Iterator[None]:
    """A shell starts a background job with SIGINT ignored, and children inherit that: Ctrl-C has its meaning here."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    if ignored:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.fixture(autouse=True)
def _nothing_is_left_behind():
    """Fail a test that leaves a hook, a session, a thread or a child process behind."""
    hooks_before = list(listeners._subscriptions)
    threads_before = set(threading.enumerate())
    scope_before = hooks.current_scope()
    yield
    assert listeners._subscriptions == hooks_before, "the test left hooks behind"
    assert hooks.current_scope() is scope_before, "the test left a scope open"
    assert not multiprocessing.active_children(), "the test left a child process behind"
    deadline = time.monotonic() + THREADS_END_S
    while left := [one for one in threading.enumerate() if _is_ours(one) and one not in threads_before]:
        assert time.monotonic() < deadline, f"the test left threads behind: {left}"
        time.sleep(0.01)


def _is_ours(thread: threading.Thread) -> bool:
    return thread.is_alive() and thread.name.startswith("probe")


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a short demo, as ``make demo`` makes one; beside it ``said.txt``, what it printed.

    CI has run ``make demo`` before, and says in ``PROBE_DEMO`` where.
    """
    if made := os.environ.get("PROBE_DEMO"):
        return Path(made) / "run"
    return once(tmp_path_factory, "demo", _demo) / "run"


def _demo(place: Path) -> None:
    command = [sys.executable, "-m", "probe", "demo", "--steps", str(DEMO_STEPS), "--run-dir", str(place / "run")]
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "TENSORBOARD_"))}
    wide = plain | {"COLUMNS": "1200"}  # a finding on a line of its own
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, env=wide, check=False)
    assert done.returncode == 0, done.stderr
    (place / "said.txt").write_text(done.stdout)


@pytest.fixture(scope="session")
def one_mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MLflowServer]:
    """One for all tests: what starts it loads MLflow in several processes, and makes its tables."""
    server = MLflowServer(tmp_path_factory.mktemp("mlflow-server"))
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def mlflow_server(one_mlflow_server: MLflowServer) -> str:
    """Its URL."""
    one_mlflow_server.start()
    return one_mlflow_server.url


@pytest.fixture
def own_mlflow_server(one_mlflow_server: MLflowServer) -> MLflowServer:
    """The server itself, which the test may stop and start: the next one that asks has it running."""
    one_mlflow_server.start()
    return one_mlflow_server


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a real Chromium. Missing: a skip on a person's machine, a failure in CI."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        reason = "no chromium on this machine (Debian: apt-get install chromium)"
        if os.environ.get("PROBE_REQUIRE_BROWSER"):
            pytest.fail(reason)
        pytest.skip(reason)
    with contextlib.suppress(ImportError):
        from playwright.sync_api import expect

        expect.set_options(timeout=180_000)  # five seconds prove nothing on a loaded machine
    return path
