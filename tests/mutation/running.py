"""Runs of tests in copies of the tree, and what became of each mutant in them."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.mutation.mutants import ROOT, Mutant
from tests.mutation.suites import suite_for

#: What the tests are run with; a first run leaves out the slow ones, which mostly aren't needed to kill a mutant.
QUICK = "not slow and not multiprocess and not browser and not gpu and not framework"
REST = "(slow or multiprocess) and not browser and not gpu and not framework"


@dataclass(frozen=True)
class Result:
    """What became of a mutant: "killed", "timed out" (which kills it too) or "survived".

    ``killers`` are all tests that failed, where they were asked for; ``killer`` is the first.
    """

    name: str
    path: str
    line: int
    kind: str
    outcome: str
    seconds: float
    killer: str
    diff: str
    killers: list[str] = field(default_factory=list)


#: Runs of tests that have to end with this process.
_RUNNING: set[subprocess.Popen[bytes]] = set()


@dataclass(frozen=True)
class Run:
    """One run of some tests.

    Attributes:
        code: pytest's exit status, None where the time was up.
        seconds: How long it took.
        failed: The first test that failed, or the file that can't be imported any more; "" where none did.
        output: The end of what pytest wrote.
    """

    code: int | None
    seconds: float
    failed: str
    output: str

    @property
    def passed(self) -> bool:
        return self.code in (0, 5)  # 5: no test has these marks

    @property
    def says_nothing(self) -> bool:
        """pytest itself failed, so nothing is known of the mutant."""
        return not self.passed and self.code is not None and not self.failed


def run_tests(tree: Path, tests: list[str], marks: str, limit_s: float) -> Run:
    """Runs tests in a copy of the tree until the first fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", "-m", marks, *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    began = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(
            command, cwd=tree, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        _RUNNING.add(process)
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _ended(process)
        output.seek(0)
        text = output.read()
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
    return Run(code, time.monotonic() - began, failed[1] if failed else "", text[-2000:])


def _ended(process: subprocess.Popen[bytes]) -> None:
    """Ends what the tests started too: a mutant may leave ranks behind that wait for each other."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    _RUNNING.discard(process)


def copy_of_tree(place: Path) -> Path:
    """The tracked files, and those that git doesn't ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in listed.stdout.decode().split("\0"):
        source = ROOT / name
        if name and source.is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, place / name)
    return place


def outcome_of(tree: Path, target: str, mutant: Mutant, limits_s: dict[str, float]) -> Result:
    """Runs a mutant against the quick tests, and if it lives against the others."""
    file = tree / mutant.path
    source = file.read_text("utf-8")
    blank = Result(mutant.name, mutant.path, mutant.line, mutant.kind, "survived", 0.0, "", mutant.diff(source))
    seconds = 0.0
    file.write_text(mutant.applied(source), "utf-8")
    try:
        for marks, limit_s in limits_s.items():
            run = run_tests(tree, suite_for(tree, target, mutant.path), marks, limit_s)
            seconds += run.seconds
            if run.says_nothing:
                raise RuntimeError(f"pytest failed (exit status {run.code}):\n{run.output}")
            if not run.passed:
                outcome = "timed out" if run.code is None else "killed"
                return replace(blank, outcome=outcome, seconds=round(seconds, 1), killer=run.failed)
    finally:
        file.write_text(source, "utf-8")
    return replace(blank, seconds=round(seconds, 1))


def limits_of(tree: Path, target: str, stages: list[str], factor: float) -> dict[str, float]:
    """How long each stage may take: ``factor`` times what it takes with nothing changed, which has to pass."""
    limits = {}
    for marks in stages:
        run = run_tests(tree, suite_for(tree, target, target), marks, 3600)
        if not run.passed:
            raise SystemExit(f"{target}: its tests fail with nothing changed ({run.failed or run.output})")
        limits[marks] = 20 + factor * run.seconds
    return limits


class Results:
    """The results so far, in a file of JSON lines."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._lock = threading.Lock()
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        self.by_name = {one["name"]: Result(**one) for one in map(json.loads, lines)}

    def add(self, result: Result) -> None:
        """Keeps a result and says it in one line."""
        with self._lock:
            self.by_name[result.name] = result
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(result)) + "\n")
            print(f"{result.outcome:9} {result.path}:{result.line} {result.kind} ({result.seconds:.0f} s)", flush=True)


def run_all(work: list[tuple[str, Mutant]], results: Results, stages: list[str], jobs: int, factor: float) -> None:
    """Runs what has no result yet, ``jobs`` mutants at a time."""
    left: queue.SimpleQueue[tuple[str, Mutant]] = queue.SimpleQueue()
    for one in work:
        if one[1].name not in results.by_name:
            left.put(one)
    with tempfile.TemporaryDirectory(prefix="probe-mutants-") as place:
        trees = [copy_of_tree(Path(place, str(at))) for at in range(jobs)]
        waiting = {target for target, mutant in work if mutant.name not in results.by_name}
        limits = {target: limits_of(trees[0], target, stages, factor) for target in sorted(waiting)}
        threads = [threading.Thread(target=_worker, args=(tree, left, limits, results), daemon=True) for tree in trees]
        for thread in threads:
            thread.start()
        try:
            _joined(threads)
        except KeyboardInterrupt:
            while not left.empty():
                with contextlib.suppress(queue.Empty):
                    left.get_nowait()
            for process in list(_RUNNING):
                _ended(process)
            _joined(threads)
            raise


def _joined(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join()


def _worker(tree: Path, left: Any, limits: dict[str, dict[str, float]], results: Results) -> None:
    while True:
        try:
            target, mutant = left.get_nowait()
        except queue.Empty:
            return
        try:
            results.add(outcome_of(tree, target, mutant, limits[target]))
        except RuntimeError as error:
            print(f"no verdict on {mutant.path}:{mutant.line}: {error}", flush=True)
