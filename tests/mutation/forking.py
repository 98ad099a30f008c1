"""Runs of all tests in a fork, which has the big libraries loaded already, and what became of each test in it."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

#: What takes seconds to load, and holds no state of the tests. Nothing of probe.
_BIG = ("numpy", "pandas", "pyarrow", "torch", "duckdb", "plotly.graph_objects", "hypothesis", "pytest")


def load_big_libraries() -> None:
    """Imports what every run would import again. Before the first fork, with one thread for OpenMP as in the tests."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in _BIG:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()  # pytest collects garbage at its end: not that of the libraries, whose pages each fork would copy


class _Recorder:
    """Writes a line for each part of a test: a run that is ended early has told what came before."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", buffering=1)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._tell(report.nodeid, report.failed, report.duration)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._tell(report.nodeid, True, 0.0)

    def _tell(self, *told: Any) -> None:
        self._file.write(json.dumps(told) + "\n")


def run_in_fork(
    tree: Path, tests: list[str], marks: str, limit_s: float, keep_bytecode: bool = False
) -> tuple[int | None, dict[str, float], list[str]]:
    """Runs every test in a copy of the tree.

    Returns:
        pytest's exit status, None where the time was up; the seconds of each test; those that failed. A file that
        can't be imported any more stands for its tests.
    """
    with tempfile.TemporaryDirectory() as place:
        told = Path(place, "told.jsonl")
        child = os.fork()
        if not child:
            _as_pytest(tree, ["-m", marks, *tests], told, keep_bytecode)
        code = _waited(child, limit_s)
        lines = told.read_text("utf-8").splitlines() if told.exists() else []
    seconds: dict[str, float] = {}
    failed: dict[str, None] = {}
    for test, bad, duration in map(json.loads, lines):
        seconds[test] = seconds.get(test, 0.0) + duration
        if bad:
            failed[test] = None
    return code, seconds, list(failed)


def _as_pytest(tree: Path, arguments: list[str], told: Path, keep_bytecode: bool) -> None:
    """Becomes a run of pytest in a copy of the tree. Never returns."""
    code = 70
    try:
        os.setsid()
        os.chdir(tree)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        os.environ.update(PYTHONPATH=str(tree), PYTHONDONTWRITEBYTECODE="1")
        sys.dont_write_bytecode = not keep_bytecode
        root = str(Path(__file__).resolve().parents[2])
        sys.path[:] = [str(tree), *(one for one in sys.path if one not in ("", root, str(Path(root, "tests"))))]
        for name in [one for one in sys.modules if one.partition(".")[0] in ("tests", "probe")]:
            del sys.modules[name]
        import pytest

        loaded_before = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
        options = ["-q", "-p", "no:cacheprovider", "--tb=no", "--no-header", "-W", loaded_before]
        code = int(pytest.main([*options, *arguments], plugins=[_Recorder(told)]))
    finally:
        os._exit(code)


def _waited(child: int, limit_s: float) -> int | None:
    """The exit status of a child, None where the time was up. What it started ends with it."""
    until = time.monotonic() + limit_s
    ended = 0
    try:
        while not ended and time.monotonic() < until:
            ended, status = os.waitpid(child, os.WNOHANG)
            time.sleep(0 if ended else 0.02)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        if not ended:
            os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) if ended else None
