"""`make fuzz` tells once what it found, with how to draw it again; `make test` draws the same examples every time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

PLANTED = """
from hypothesis import given, settings
from hypothesis import strategies as st

@settings(max_examples=500)
@given(st.integers(0, 100))
def test_planted(number):
    assert number != 77

@given(st.integers())
def test_sound(number):
    with open({drawn!r}, "a") as file:
        print(number, file=file)
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project with the real configuration and two property tests, one of which fails now and then."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "probe").symlink_to(TESTS.parent / "probe")
    shutil.copy(TESTS.parent / "pyproject.toml", tmp_path)
    for name in ("conftest.py", "fuzz.py", "mlflow_server.py", "once.py", "ports.py"):
        shutil.copy(TESTS / name, tmp_path / "tests")
    (tmp_path / "tests" / "test_planted.py").write_text(PLANTED.format(drawn=str(tmp_path / "drawn")))
    return tmp_path


def run(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    environment.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_what_is_found_is_told_once_and_can_be_drawn_again(tree: Path) -> None:
    done = run(tree, "tests/fuzz.py", "0.2")
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.count(" found tests/test_planted.py::test_planted") == 1
    assert "number=77" in done.stdout
    assert "@reproduce_failure(" in done.stdout
    assert done.stdout.splitlines()[-1] == "tests/test_planted.py::test_planted"


@pytest.mark.slow
def test_two_runs_draw_the_same(tree: Path) -> None:
    drawn = []
    for _ in range(2):
        assert run(tree, "-m", "pytest", "-q", "tests/test_planted.py", "-k", "sound").returncode == 0
        drawn.append((tree / "drawn").read_text())
        (tree / "drawn").unlink()
    assert drawn[0] == drawn[1]
    assert len(drawn[0].splitlines()) > 50
