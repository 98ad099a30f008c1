"""`probe doctor` finds what is wrong, says what helps, and ends with 1 when a check failed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from probe import session
from probe.cli import doctor_checks, doctor_run, main
from probe.records import Incident, Reduction, Scalar
from probe.runs.layout import Segment
from probe.runs.parts import roll_over
from tests.cli.command import probe
from tests.sample_run import clock, process, sample_rows, write_run


def diagnose(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, list[tuple[str, str]]]]:
    """Exit code, and (level, message) of the checks by name."""
    code = main(["doctor", *arguments, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] == (code == 0)
    checks: dict[str, list[tuple[str, str]]] = {}
    for check in found["checks"]:
        checks.setdefault(check["name"], []).append((check["level"], check["message"]))
    return code, checks


def finished(place: Path, rows: Any, **told: Any) -> Path:
    """A run whose processes ended in order."""
    run = write_run(place, rows, **told)
    for rank in rows:
        for _ in roll_over(run, Segment.of_rank(rank, 0)):
            pass
    return run


# -------------------------------------------------------------------------------------------------- environment


@pytest.mark.slow
def test_a_sound_environment(tmp_path: Path) -> None:
    """The real command with everything; whatever is wrong on this machine is shown by the failure."""
    done = probe("doctor", "--track", "console,file", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert lines[-1].endswith("checks: no errors, no warnings")
    assert any(line.startswith("ok      environment, torch: torch 2") for line in lines)
    assert any("jagged rows round-trip through" in line for line in lines)
    assert any(line.startswith("ok      hooks, rows: a session of one step was read back") for line in lines)
    assert any(line.startswith("ok      tracking, console: can be used") for line in lines)
    assert done.stderr == ""
    assert not list(tmp_path.iterdir())


def test_unmet_requirements_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, "_version", {"tensordict": "0.10.0", "torch": "2.13.0"}.get)
    wanted = ["torch>=99", "absent-package", "torch>=2 ; extra == 'dev'", "torch ; python_version < '3'"]
    monkeypatch.setattr(doctor_checks.metadata, "requires", lambda _: wanted)
    found = [check.message for check in doctor_checks._requirements()]
    assert found == [
        "tensordict 0.10.0 needs torch>=99, and 2.13.0 is installed: pip install 'torch>=99'",
        "tensordict 0.10.0 needs absent-package, which isn't installed",
    ]


def test_extras_are_there_when_all_that_they_bring_is(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["numpy", "a ; extra == 'one'", "b ; extra == 'two'", "probe-rl[one,two] ; extra == 'both'"]
    monkeypatch.setattr(doctor_checks.metadata, "requires", lambda _: texts)
    assert list(doctor_checks._brought_by("both")) == ["a", "b"]
    monkeypatch.setattr(doctor_checks.metadata, "metadata", lambda _: _Extras())
    monkeypatch.setattr(doctor_checks, "_version", {"a": "1"}.get)
    (check,) = doctor_checks._extras()
    assert check.message == "installed: one; not installed: two, both (pip install 'probe-rl[two]')"


class _Extras:
    def get_all(self, _: str) -> list[str]:
        return ["one", "two", "both", "dev"]


def test_a_check_that_fails_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor_checks, "_torch", lambda: 1 / 0)
    checks = {check.name: check for check in doctor_checks.environment(tmp_path)}
    assert (checks["torch"].level, checks["torch"].message) == ("error", "ZeroDivisionError: division by zero")
    assert {"versions", "device", "disk", "extras"} <= checks.keys()


def test_little_room_is_a_warning_and_none_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.tracking.checks.LITTLE_ROOM", 2**80)
    (check,) = doctor_checks._disk(tmp_path / "new")
    assert check.level == "warning"
    (tmp_path / "file").write_text("")
    (check,) = doctor_checks._disk(tmp_path / "file" / "below")
    assert check.level == "error"


def test_the_hooks_are_not_tried_beside_a_session(tmp_path: Path) -> None:
    with session.start("p", run_dir=tmp_path / "run"):
        (check,) = doctor_checks.hooks()
    assert check.level == "ok"
    assert check.message.startswith("not tried")


def test_hooks_that_bring_no_rows_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.recorders.token_balance.TokenBalanceRecorder.points", (), raising=True)
    found = [check for check in doctor_checks.hooks() if check.level == "error"]
    assert [check.message for check in found] == ["a session of one step left no rows of micro_batches"]


# --------------------------------------------------------------------------------------------------------- runs


def test_a_sound_run(tmp_path: Path, quick: None, capsys: pytest.CaptureFixture[str]) -> None:
    rows = sample_rows(ranks=2, steps=2)
    for own in rows.values():
        own[:] = [row for row in own if not isinstance(row, Incident | Reduction)]  # a metric there is an alarm
    code, checks = diagnose(capsys, str(finished(tmp_path / "run", rows)))
    assert code == 0
    assert {level for found in checks.values() for level, _ in found} == {"ok"}
    assert list(checks) == [
        "findings",
        "opens",
        "files",
        "lines",
        "ranks",
        "frameworks",
        "dropped",
        "incidents",
        "unsent",
    ]


def test_an_empty_run(tmp_path: Path, quick: None, capsys: pytest.CaptureFixture[str]) -> None:
    code, checks = diagnose(capsys, str(write_run(tmp_path / "run", {})))
    assert code == 0
    assert checks["ranks"] == [("warning", "nobody has written yet")]


def test_everything_that_can_be_wrong_with_a_run(
    tmp_path: Path, quick: None, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finished(tmp_path / "run", sample_rows(ranks=2, steps=1), processes={0: process(0, 4), 1: process(1, 4)})
    (run / "rank-00002.jsonl").write_bytes(b'{"table":"scalars","key":7}\nnonsense\n{"table":"sca')
    (run / "parts" / "memory-rank00000-0.parquet.1-ab.tmp").write_bytes(b"half")
    _age(run / "parts" / "memory-rank00000-0.parquet.1-ab.tmp")
    code, checks = diagnose(capsys, str(run))
    assert code == 1
    assert checks["lines"][0] == (
        "error",
        "2 lines are no rows and were skipped: a disk fault, or somebody else's writing",
    )
    assert checks["ranks"][0][0] == "error"
    assert checks["ranks"][0][1].endswith("(set PROBE_RUN_DIR): 3")
    told = [message for level, message in checks["files"] if level == "warning"]
    assert any("end in the middle of a line" in one and "rank-00002.jsonl" in one for one in told)
    assert any("left unfinished by a killed process" in one for one in told)
    assert checks["dropped"] == [
        ("warning", "17 rows were dropped as they came faster than the disk took them; sums and counts miss them")
    ]
    assert checks["incidents"] == [("warning", "backend, mlflow, 3 times: log failed: connection refused")]


def _age(path: Path) -> None:
    import os
    import time

    os.utime(path, (time.time() - 3600,) * 2)


def test_a_part_that_cannot_be_read(tmp_path: Path, quick: None, capsys: pytest.CaptureFixture[str]) -> None:
    run = finished(tmp_path / "run", sample_rows(ranks=2, steps=1))
    part = run / "parts" / "calls-rank00001-0.parquet"
    part.write_bytes(part.read_bytes()[:-9])
    code, checks = diagnose(capsys, str(run))
    assert code == 1
    errors = [message for found in checks.values() for level, message in found if level == "error"]
    assert any("put them back from a copy" in one and "calls-rank00001-0.parquet" in one for one in errors)


def test_a_run_of_a_newer_probe(tmp_path: Path, quick: None, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", {})
    (run / "run.json").write_text('{"schema_version": 99}')
    code, checks = diagnose(capsys, str(run))
    assert code == 1
    assert "this probe reads up to version" in checks["opens"][0][1]


@pytest.mark.slow
def test_what_a_killed_process_left(tmp_path: Path, quick: None, capsys: pytest.CaptureFixture[str]) -> None:
    """A real one that was killed, and one that still writes."""
    place = tmp_path / "run"
    child = subprocess.Popen([sys.executable, "-c", _WRITER, str(place)], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "written\n"
        _, checks = diagnose(capsys, str(place))
        assert [level for level, _ in checks["files"]] == ["ok"]
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    code, checks = diagnose(capsys, str(place))
    assert code == 0
    assert checks["files"][0] == (
        "warning",
        "1 JSONL files are of processes that were killed; `probe compact RUN` makes Parquet of them: rank-00000.jsonl",
    )
    assert main(["compact", str(place), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] > 0
    _, checks = diagnose(capsys, str(place))
    assert [level for level, _ in checks["files"]] == ["ok"]


_WRITER = """
import sys, time
from probe import session
from probe.testing import FakeDevice
light = {"recorders": ["memory"], "device": FakeDevice()}  # which needn't import torch
with session.start("p", run_dir=sys.argv[1], rank=0, **light) as opened:
    with opened.step(0):
        pass
    deadline = time.monotonic() + 300
    import pathlib
    while b'"memory"' not in (pathlib.Path(sys.argv[1]) / "rank-00000.jsonl").read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    print("written", flush=True)
    time.sleep(900)
"""


# ----------------------------------------------------------------------------------------------------- tracking


def test_backends_are_checked_by_name(tmp_path: Path, quick: None, capsys: pytest.CaptureFixture[str]) -> None:
    code, checks = diagnose(capsys, "--track", "console,carrier-pigeon,tests.cli.nowhere:Backend")
    assert code == 1
    assert checks["console"] == [("ok", "can be used from here")]
    assert "carrier-pigeon" in checks["carrier-pigeon: backend"][0][1]
    assert "can't be imported" in checks["tests.cli.nowhere:Backend: backend"][0][1]


def test_names_and_steps_of_a_run_are_held_against_its_backends(
    tmp_path: Path, quick: None, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [("loss", 0), ("loss", 1), ("loss", 0), ("loss/actor", 1), *((f"k{i}%", 1) for i in range(6))]
    rows = [Scalar(key=key, value=0.0, step=step, time_ns=clock(0) + i) for i, (key, step) in enumerate(steps)]
    run = finished(tmp_path / "run", {0: rows, 1: [Scalar(key="loss", value=0.0, step=9, rank=1)]})
    code, checks = diagnose(capsys, str(run), "--track", "mlflow")
    assert code == 0
    (step,) = checks["tracking: step"]
    assert step[1].startswith("'loss' goes back from step 1 to 0")
    told = [message for _, message in checks["mlflow: name"]]
    assert len(told) == doctor_checks.NAMED + 1
    assert told[-1] == "and 3 more like these"
    assert doctor_run.logged(str(run))[:3] == [("loss", 0), ("loss", 1), ("loss", 0)]


def test_what_was_never_sent_is_told_and_sent(tmp_path: Path, quick: None, capsys: pytest.CaptureFixture[str]) -> None:
    """A process that logs and is killed before its backend has anything; the file backend then has each value once."""
    run = tmp_path / "run"
    write_run(run, {})
    subprocess.run([sys.executable, "-c", _KILLED, str(run)], timeout=300, check=False)
    code, checks = diagnose(capsys, str(run))
    assert code == 0
    (waiting,) = checks["unsent: file"]
    assert waiting[0] == "warning"
    assert "3 calls wait; `probe doctor RUN --recover` sends them" in waiting[1]
    code, checks = diagnose(capsys, str(run), "--recover")
    assert code == 0
    assert checks["recover"] == [("ok", "file: 3 calls were sent")]
    assert checks["unsent"] == [("ok", "nothing waits to be sent")]
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines if '"loss"' in line] == [0, 1, 2]


_KILLED = """
import os, signal, sys, threading
from pathlib import Path
from probe.tracking.backends import file
from probe.tracking.tracking import Tracking
file.File.log = lambda *_: threading.Event().wait()
tracking = Tracking("p", "e", ["file"], directory=Path(sys.argv[1]))
for step in range(3):
    tracking.log({"loss": 0.5}, step=step)
from probe.tracking.journal import unsent
import time
while unsent(Path(sys.argv[1])) != {"file": 3}:
    time.sleep(0.05)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("arguments", [["--recover"], ["memory://bucket/run", "--recover"]])
def test_recovery_needs_a_run_on_this_machine(
    quick: None, capsys: pytest.CaptureFixture[str], arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probe.cli.doctor.find_run", lambda text: text)
    assert main(["doctor", *arguments]) == 2
    assert "expected a run directory on this machine" in capsys.readouterr().err


def test_findings_show_what_they_are_to_people(tmp_path: Path, quick: None, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Incident(kind="backend", where="\x1b[2J", message="[red]no[/red]", count=2)]
    assert main(["doctor", str(finished(tmp_path / "run", {0: rows}))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "warning run, incidents: backend, \\x1b[2J, 2 times: [red]no[/red]" in lines
    assert lines[-1] == "9 checks: no errors, 1 warning"


# ---------------------------------------------------------------------------------------------- how a run has ended


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "code", "level", "said"),
    [
        ("raises", 1, "error", "failed; "),
        ("killed", 1, "error", "killed; "),
        ("well", 0, "ok", "finished: Nothing went wrong"),
    ],
)
def test_5_doctor_says_that_a_run_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], quick: None, how: str, code: int, level: str, said: str
) -> None:
    script = """
import os, signal, sys
import probe
from probe.testing import FakeDevice  # which needn't import torch
session = probe.start("p", "e", run_dir=sys.argv[1], rank=0, world_size=1, recorders=[], device=FakeDevice())
with session.step(2), probe.phase("update"):
    if sys.argv[2] == "raises":
        raise ValueError("no")
    if sys.argv[2] == "killed":
        session.flush()
        os.kill(os.getpid(), signal.SIGKILL)
"""
    command = [sys.executable, "-c", script, str(tmp_path / "run"), how]
    subprocess.run(command, check=False, stderr=subprocess.DEVNULL)
    found_code, checks = diagnose(capsys, str(tmp_path / "run"))
    ((found_level, message),) = checks["end"]
    assert (found_code, found_level) == (code, level)
    assert message.startswith(said)
    everything = [told for found in checks.values() for _, told in found]
    assert sum("in update" in told for told in everything) == code  # a failure is said once
