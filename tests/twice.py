"""Pytest, which looks at each failure twice: ``python tests/twice.py [options] -- [files]``.

What fails among other tests is run once more, one test at a time with nothing beside it. What fails again is red. What
passes then is *unstable*: it is told at the end and noted in ``test-artifacts/unstable.txt``, and has a cause to be
found. More than five unstable tests are red. No test is run a third time. Targets that run side by side wait for each
other there: a second look begins when no other target's tests are running, and none begin meanwhile.

The file is added to, so that all targets of one CI run stand in it: `.ci/run` begins it anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NOTED = Path("test-artifacts/unstable.txt")
AT_MOST = 5
#: More failures than these have a common cause, and are looked at by a person at once.
LOOKED_AT = 40
TESTS_FAILED = 1  # pytest's exit code; all others say that not all tests were run


@dataclass(frozen=True)
class Played:
    """What became of the tests of one run: pytest's exit code, those that passed, and why the others failed."""

    code: int
    passed: set[str]
    failed: dict[str, str]


def main(arguments: list[str]) -> int:
    """Run the tests, and those that failed once more.

    Args:
        arguments: Options for pytest; then, after ``--``, the files. Without files, those of the configuration.

    Returns:
        The exit code of pytest where not all tests could be run; 1 where a test failed twice or too many are unstable.
    """
    at = arguments.index("--") if "--" in arguments else len(arguments)
    options, files = arguments[:at], arguments[at + 1 :]
    with _beside(fcntl.LOCK_SH):
        first = play([*options, *files])
    if first.code != TESTS_FAILED or not 0 < len(first.failed) <= LOOKED_AT:
        return first.code
    print(f"\n{len(first.failed)} failed: each once more, alone", flush=True)
    with _beside(fcntl.LOCK_EX):
        second = play([*options, *_alone(), *first.failed])
    unstable = {test: why for test, why in first.failed.items() if test in second.passed}
    if unstable:
        _note(unstable)
    red = [test for test in first.failed if test not in unstable]
    told = [f"unstable: {test}\n{_indented(why)}" for test, why in unstable.items()]
    print(*told, *(f"failed twice: {test}" for test in red), sep="\n", flush=True)
    if len(unstable) > AT_MOST:
        print(f"{len(unstable)} tests are unstable: more than {AT_MOST} are red", flush=True)
    return int(bool(red) or len(unstable) > AT_MOST)


def play(arguments: list[str]) -> Played:
    """Run pytest.

    Args:
        arguments: What it is told.

    Returns:
        What became of the tests.
    """
    with tempfile.TemporaryDirectory() as place:
        log, told = Path(place, "reports.jsonl"), Path(place, "arguments.txt")
        told.write_text("\n".join(arguments))
        code = subprocess.run(
            [sys.executable, "-m", "pytest", f"--report-log={log}", f"@{told}"], check=False
        ).returncode
        lines = log.read_text().splitlines() if log.exists() else []
    reports = [one for one in map(json.loads, lines) if "nodeid" in one]
    failed: dict[str, str] = {}
    for one in reports:
        if one["outcome"] == "failed":  # a file's import; a test's set-up, call or tear-down, or its worker
            failed.setdefault(one["nodeid"], _why(one))
    called = {one["nodeid"] for one in reports if one.get("when") == "call" and one["outcome"] == "passed"}
    return Played(code, called - failed.keys(), failed)


@contextlib.contextmanager
def _beside(how: int) -> Iterator[None]:
    place = os.open(Path(__file__).parent, os.O_RDONLY)
    try:
        fcntl.flock(place, how)
        yield
    finally:
        os.close(place)


def _alone() -> list[str]:
    # A worker of its own where there are workers: a test that ends it doesn't end the others.
    return ["-n", "1"] if importlib.util.find_spec("xdist") else []


def _why(report: dict[str, Any]) -> str:
    told = report["longrepr"]
    crash = told.get("reprcrash") if isinstance(told, dict) else None
    if crash:
        return f"{crash['path']}:{crash['lineno']}: {crash['message']}"
    return str(told)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines()[:20])


def _note(unstable: dict[str, str]) -> None:
    NOTED.parent.mkdir(exist_ok=True)
    text = "".join(f"unstable: {test}\n{_indented(why)}\n" for test, why in unstable.items())
    with NOTED.open("a") as file:  # in one piece: targets run side by side
        file.write(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
