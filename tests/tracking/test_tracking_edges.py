"""One bad part never takes the rest: a damaged journal, a backend that hangs at the end, a directory of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

from probe._io import holding
from probe.cli import main
from probe.runs.layout import create_run
from probe.tracking.journal import DAMAGED, unsent
from probe.tracking.tracking import Tracking
from tests.cli.command import probe
from tests.cli.conftest import quick  # noqa: F401  (a fixture)
from tests.waiting import PATIENCE_S

#: Lines that are JSON, or nearly, and no calls.
WRONG = [
    '{"n": "3", "step": 1, "wall_ns": 1, "to": null, "data": {}}',
    '{"n": 3, "step": "one", "wall_ns": 1, "to": null, "data": {"x": 1}}',
    '{"n": 3.5, "step": 1, "wall_ns": 1, "to": null, "data": {"x": 1}}',
    '{"n": true, "step": 1, "wall_ns": 1, "to": null, "data": {"x": 1}}',
    '{"n": -3, "step": 1, "wall_ns": 1, "to": null, "data": {"x": 1}}',
    '{"n": 3, "step": 1, "wall_ns": null, "to": null, "data": {"x": 1}}',
    '{"n": 3, "step": 1, "wall_ns": 1, "to": "file", "data": {"x": 1}}',
    '{"n": 3, "step": 1, "wall_ns": 1, "to": [[]], "data": {"x": 1}}',
    '{"n": 3, "step": 1, "wall_ns": 1, "to": null, "data": {"x": 1' + "0" * 400 + "}}",
    '{"n": 3, "step": 1, "wall_ns": 1, "to": null, "data": [1]}',
    "[" * 100_000,
    "7",
    "no JSON",
]


def journal_line(n, step):
    return json.dumps({"n": n, "step": step, "wall_ns": 1, "to": None, "data": {"x": step}})


def file_steps(directory):
    return [json.loads(line)["step"] for line in (directory / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("wrong", WRONG, ids=range(len(WRONG)))
def test_a_journal_line_of_a_wrong_type_is_put_aside_and_the_others_are_sent(tmp_path, wrong):
    folder = tmp_path / "tracking"
    folder.mkdir()
    lines = [journal_line(1, 1), wrong, journal_line(2, 2)]
    (folder / "journal-000000000001.jsonl").write_text("\n".join(lines) + '\n{"n": 3, "st')  # and a torn one
    (folder / "file.at").write_text("0\n")
    incidents = []
    with Tracking("p", "e", "file", directory=tmp_path, on_incident=incidents.append) as tracking:
        tracking.log({"x": 3}, 3)
    assert file_steps(tmp_path) == [1, 2, 3]
    assert (folder / DAMAGED).read_text() == wrong + "\n"
    [told] = [one for one in incidents if "damaged lines" in one.message]
    assert told.count == 1
    assert DAMAGED in told.message
    assert unsent(tmp_path) == {}
    with Tracking("p", "e", "file", directory=tmp_path, on_incident=incidents.append):
        pass
    assert len([one for one in incidents if "damaged lines" in one.message]) == 1  # it isn't told again


def test_a_failure_of_any_kind_lets_go_of_the_lock(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise ValueError("something unforeseen")

    for name in ("probe.tracking.journal._last_number", "probe.tracking.tracking.Stream"):
        with monkeypatch.context() as patched:
            patched.setattr(name, fail)
            with pytest.raises(ValueError, match="unforeseen"):
                Tracking("p", "e", "file", directory=tmp_path)
        with holding(tmp_path / "tracking" / "lock") as free:
            assert free
    with Tracking("p", "e", "file", directory=tmp_path) as tracking:
        tracking.log({"x": 1}, 1)
    assert file_steps(tmp_path) == [1]


def test_a_notes_of_a_wrong_type_keep_nobody_from_starting_or_ending(tmp_path):
    (tmp_path / "tracking").mkdir()
    (tmp_path / "tracking" / "notes.json").write_text('{"params": 5, "tag": 3, "layout": [1], "describe": {}}')
    with Tracking("p", "e", ["file", "tensorboard"], {"lr": 1}, directory=tmp_path) as tracking:
        tracking.tag({"a": "b"})
        tracking.describe("words")
        tracking.log({"x": 1}, 1)
        assert tracking.flush()
    assert file_steps(tmp_path)[-1] == 1
    assert json.loads((tmp_path / "tracking" / "notes.json").read_text())["tag"] == {"a": "b"}


HANGING = """
    import atexit, logging, sys, time
    from probe.tracking.backends.base import Backend
    from probe.tracking.tracking import Tracking
    class Stuck(Backend):
        location = "nowhere"
        def __init__(self, setup): pass
        def log(self, values, step): time.sleep(3600)
        def close(self, exit_code): pass
    class StuckAtClose(Stuck):
        def log(self, values, step): pass
        def close(self, exit_code): time.sleep(3600)
    atexit.register(lambda: told("over"))  # after what tracking has registered
    backends = ["__main__:Stuck", "__main__:StuckAtClose", "file"]
    tracking = Tracking("p", "e", backends, directory=sys.argv[1], announce=False)
    for step in range(577):
        tracking.log({"x": step}, step)
    begin = time.monotonic()
    def told(what): print(f"{time.monotonic() - begin:.1f} {what}", flush=True)
    class Told(logging.Handler):
        def emit(self, record): told(record.getMessage())
    logging.getLogger("probe.tracking").addHandler(Told())
"""


@pytest.mark.slow
def test_a_hung_backend_holds_the_exit_for_ten_seconds_at_most_and_says_so(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(HANGING), str(tmp_path)],
        capture_output=True, text=True, timeout=PATIENCE_S, check=True,
    )  # fmt: skip
    told = [line.split(" ", 1) for line in done.stdout.splitlines()]
    waits = [(float(at), text) for at, text in told if "waiting up to" in text]
    (over,) = (float(at) for at, text in told if text == "over")
    assert over < 25  # it is a little over 10 on an idle machine; it was 64
    assert len(waits) == 1
    assert waits[0][0] < over / 2  # at its beginning, not when it is over
    assert "__main__:Stuck, __main__:StuckAtClose" in waits[0][1]
    assert str(tmp_path) in waits[0][1]
    assert unsent(tmp_path)["__main__:Stuck"] == 577
    assert file_steps(tmp_path) == list(range(577))


def wait_for_nobody(directory):
    """A ``Tracking`` of one's own, whose process was killed before "file" had anything."""
    script = """
        import os, sys
        from probe.tracking.backends import file
        from probe.tracking.tracking import Tracking
        def hang(*_): raise ConnectionError("away")
        file.File.log = file.File.log_many = hang
        tracking = Tracking("p", "e", "file", directory=sys.argv[1], announce=False)
        for step in range(577):
            tracking.log({"x": step}, step)
        tracking.finish(timeout_s=300)  # it gives up what fails long before
        os._exit(9)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script), str(directory)], timeout=PATIENCE_S, check=False)
    assert unsent(directory) == {"file": 577}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("beside_a_run", [False, True])
def test_a_doctor_recovers_the_directory_of_a_tracking_of_its_own(tmp_path, capsys, beside_a_run):
    directory = tmp_path / "metrics"
    wait_for_nobody(directory)
    if beside_a_run:
        create_run("p", "other", root=tmp_path / "metrics" / "runs")
    main(["doctor", str(directory)])
    assert "577 calls wait" in capsys.readouterr().out
    main(["doctor", str(directory), "--recover"])
    told = capsys.readouterr().out
    assert "577 calls were sent" in told
    assert "nothing waits" in told
    assert file_steps(directory) == list(range(577))


def test_a_tracking_folder_is_never_taken_for_a_run_of_probe(tmp_path):
    """Its metrics are read as a log that others wrote, and nothing is added to them; what waits there is no run."""
    with Tracking("p", "e", "file", directory=tmp_path / "metrics") as tracking:
        tracking.log({"x": 1}, 1)
    kept = sorted(tmp_path.rglob("*"))
    told = probe("tail", str(tmp_path), "--once")
    assert told.returncode == 0
    assert "was not written by probe" in told.stderr
    assert sorted(tmp_path.rglob("*")) == kept
    (tmp_path / "metrics" / "metrics.jsonl").unlink()
    told = probe("tail", str(tmp_path), "--once")
    assert told.returncode
    assert "no run in" in told.stderr


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("make", ["mkfifo", "mkdir"])
def test_a_pipe_or_directory_named_like_a_file_of_the_journal_holds_nobody(tmp_path, make):
    (tmp_path / "tracking").mkdir()
    for name in ("journal-000000000001.jsonl", "journal-000000000007.jsonl", "other.at"):
        getattr(os, make)(tmp_path / "tracking" / name)
    script = """
        import sys
        from pathlib import Path
        from probe.tracking.journal import unsent
        from probe.tracking.tracking import Tracking
        with Tracking("p", "e", ["file"], directory=sys.argv[1]) as tracking:
            for step in range(20):
                tracking.log({"x": step}, step)
            unsent(Path(sys.argv[1]))
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    subprocess.run(command, timeout=PATIENCE_S, check=True)
    assert file_steps(tmp_path) == list(range(20))
