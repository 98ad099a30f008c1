"""A test that fails among others is run once more, alone: what passes then is unstable and told at the end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

TWICE = Path(__file__).parent / "twice.py"

#: Each test writes a line a run: how often it was run is counted.
PLANTED = '''
import os
import pathlib

import pytest

RUNS = pathlib.Path("runs")

def run(name):
    """How often a test of this name was run, this time included."""
    with RUNS.open("a") as file:
        file.write(name + "\\n")
    return RUNS.read_text().split().count(name)

@pytest.fixture
def made(request):
    assert run(request.node.name) > 1, "the fixture failed"

@pytest.fixture
def ended(request):
    yield
    assert run(request.node.name) > 1, "the end failed"
'''
SUITE = {
    "sound": "assert run('sound') == 1",
    "always": "assert run('always') == 0",
    "at_first": "assert run('at_first') == 2, 'too early'",
    "kills_its_worker": "run('kills_its_worker'); os._exit(3)",
    "killed_at_first": "run('killed_at_first') == 2 or os._exit(3)",
    "set_up(made)": "pass",
    "tear_down(ended)": "pass",
    "skipped_then": "assert run('skipped_then') > 1\n    pytest.skip('not now')",
    **{f"many_{at}": f"assert run('many_{at}') == 2" for at in range(6)},
}


def looked(place: Path, *names: str, files: tuple[str, ...] = (), options: tuple[str, ...] = ()):
    """What came of a suite of these tests: the exit code, what was said, and how often each test was run."""
    bodies = [f"def test_{name}{'' if '(' in name else '()'}:\n    {SUITE[name]}\n" for name in names]
    (place / "test_planted.py").write_text("\n".join([PLANTED, *bodies]))
    (place / "pytest.ini").write_text("[pytest]\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, str(copied(place)), *options, *(["--", *files] if files else [])],
        cwd=place, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    noted = place / "runs"
    runs = noted.read_text().split() if noted.exists() else []
    return done.returncode, done.stdout, {name: runs.count(name) for name in runs}


def copied(place: Path) -> Path:
    """The script in a folder of its own: there it waits for nobody, and this test may be run by the script itself."""
    made = place / "script" / TWICE.name
    made.parent.mkdir(exist_ok=True)
    made.write_text(TWICE.read_text())
    return made


def noted(place: Path) -> list[str]:
    file = place / "test-artifacts" / "unstable.txt"
    return file.read_text().splitlines() if file.exists() else []


def unstable(place: Path) -> list[str]:
    told = (line.partition("unstable: ") for line in noted(place))
    return sorted(name for before, found, name in told if found and not before)


@pytest.mark.slow
def test_what_passes_alone_is_unstable_and_told_at_the_very_end(tmp_path: Path) -> None:
    code, said, runs = looked(tmp_path, "sound", "at_first")
    assert code == 0
    assert runs == {"sound": 1, "at_first": 2}
    name = "unstable: test_planted.py::test_at_first"
    last = said.splitlines()[said.splitlines().index(name) :]
    assert "AssertionError: too early" in last[1]
    assert all(line.startswith("    ") for line in last[1:])
    assert noted(tmp_path) == last


@pytest.mark.slow
def test_what_fails_twice_is_red_and_nothing_is_run_a_third_time(tmp_path: Path) -> None:
    code, said, runs = looked(tmp_path, "sound", "always", "at_first")
    assert code == 1
    assert runs == {"sound": 1, "always": 2, "at_first": 2}
    assert said.splitlines()[-1] == "failed twice: test_planted.py::test_always"
    assert unstable(tmp_path) == ["test_planted.py::test_at_first"]


@pytest.mark.slow
def test_a_test_that_ends_its_worker_has_failed(tmp_path: Path) -> None:
    code, said, runs = looked(tmp_path, "kills_its_worker", "killed_at_first", "at_first", options=("-n", "2"))
    assert code == 1
    assert runs == {"kills_its_worker": 2, "killed_at_first": 2, "at_first": 2}
    assert "failed twice: test_planted.py::test_kills_its_worker" in said
    assert unstable(tmp_path) == ["test_planted.py::test_at_first", "test_planted.py::test_killed_at_first"]


@pytest.mark.slow
def test_an_error_in_a_fixture_is_a_failure_of_its_test(tmp_path: Path) -> None:
    code, said, _ = looked(tmp_path, "set_up(made)", "tear_down(ended)")
    assert code == 0, said
    assert unstable(tmp_path) == ["test_planted.py::test_set_up", "test_planted.py::test_tear_down"]


@pytest.mark.slow
def test_more_than_five_unstable_tests_are_red(tmp_path: Path) -> None:
    five = [f"many_{at}" for at in range(5)]
    (tmp_path / "five").mkdir()
    assert looked(tmp_path / "five", *five, options=("-n", "2"))[0] == 0
    (tmp_path / "six").mkdir()
    code, said, _ = looked(tmp_path / "six", *five, "many_5")
    assert code == 1
    assert said.splitlines()[-1] == "6 tests are unstable: more than 5 are red"


@pytest.mark.slow
def test_what_is_skipped_the_second_time_has_not_passed(tmp_path: Path) -> None:
    assert looked(tmp_path, "skipped_then")[0] == 1


@pytest.mark.slow
def test_a_file_that_cannot_be_imported_and_a_wrong_option_are_red_at_once(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text("import nothing_of_this_name")
    assert looked(tmp_path, "sound", "at_first")[0] not in {0, 5}
    (tmp_path / "test_broken.py").unlink()
    assert looked(tmp_path, "sound", options=("--no-such-option",))[0] == 4


@pytest.mark.slow
def test_only_the_named_files_are_run_and_only_what_failed_is_run_again(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text("def test_other():\n    assert False")
    code, _, runs = looked(tmp_path, "sound", "at_first", files=("test_planted.py",))
    assert (code, runs) == (0, {"sound": 1, "at_first": 2})


@pytest.mark.slow
def test_a_second_look_waits_until_no_other_tests_are_running(tmp_path: Path) -> None:
    shared = copied(tmp_path)
    for name in ("slow", "failing"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "slow" / "test_slow.py").write_text(
        "import pathlib, time\n"
        "def test_slow():\n"
        "    pathlib.Path('begun').touch()\n"
        "    while not pathlib.Path('../failing/failed').exists():\n"
        "        time.sleep(0.05)\n"
        "    time.sleep(2)\n"
        "    pathlib.Path('ended').touch()\n"
    )
    (tmp_path / "failing" / "test_failing.py").write_text(
        "import pathlib\n"
        "def test_failing():\n"
        "    if pathlib.Path('failed').exists():\n"
        "        assert pathlib.Path('../slow/ended').exists()\n"
        "        return\n"
        "    pathlib.Path('failed').touch()\n"
        "    assert False\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}

    def started(name: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(shared)], cwd=tmp_path / name, env=environment)

    slow = started("slow")
    while not (tmp_path / "slow" / "begun").exists():
        assert slow.poll() is None
        time.sleep(0.05)
    failing = started("failing")
    assert (slow.wait(), failing.wait()) == (0, 0)


@pytest.mark.slow
def test_a_suite_without_failures_says_nothing_more(tmp_path: Path) -> None:
    code, said, _ = looked(tmp_path, "sound")
    assert (code, noted(tmp_path)) == (0, [])
    assert "once more" not in said


@pytest.mark.slow
def test_a_soak_counts_the_failures_of_each_test_while_the_cores_are_busy(tmp_path: Path) -> None:
    markers = "[pytest]\nmarkers =\n  slow\n  browser\n  multiprocess\n"
    (tmp_path / "pytest.ini").write_text(markers)
    (tmp_path / "test_planted.py").write_text(
        "import pathlib, psutil, pytest\n"
        "@pytest.mark.browser\n"
        "def test_often():\n"
        "    file = pathlib.Path('runs')\n"
        "    number = len(file.read_text()) if file.exists() else 0\n"
        "    file.write_text('x' * (number + 1))\n"
        "    assert number == 1, 'too quick'\n"
        "@pytest.mark.slow\n"
        "def test_beside_busy_loops():\n"
        "    others = [one.info['cmdline'] or [] for one in psutil.process_iter(['cmdline'])]\n"
        "    assert any('while True: pass' in one for one in others)\n"
        "def test_left_out():\n"
        "    assert False\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = str(TWICE.parent.parent)
    command = [sys.executable, "-m", "tests.soak", "3"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    *_, often, why, last = done.stdout.splitlines()
    assert often == "2 of 3: test_planted.py::test_often"
    assert "too quick" in why
    assert last == "1 tests failed in 3 rounds"
    assert "round 2 of 3: 0 failed" in done.stdout
