"""The session's side: whatever becomes of the publisher, training and its end don't notice."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

from probe.errors import InputError
from probe.hooks import current_scope
from probe.publishing import publisher as module
from probe.publishing.messages import Arranged, Described, Done, Numbers, Shown, Tagged, Trouble, encode
from probe.publishing.publisher import Publisher, worthwhile
from probe.tracking.media import Histogram
from probe.tracking.state import State
from tests.waiting import PATIENCE_S, until


class Heard:
    """Stands where ``Tracking`` is: three backends, one of which is a screen."""

    def __init__(self, shows: dict[str, set[str]] | None = None) -> None:
        self.logger = dict.fromkeys(
            shows or {"console": {"text"}, "file": {"figure", "histogram"}, "board": {"histogram"}}
        )
        self._shows = shows or {"console": {"text"}, "file": {"figure", "histogram"}, "board": {"histogram"}}
        self.calls: list[tuple] = []

    def shows(self, kind):
        return [name for name, kinds in self._shows.items() if kind in kinds]

    def log(self, data, step, backend=None):
        self.calls.append(("log", dict(data), step, backend))

    def describe(self, markdown):
        self.calls.append(("describe", markdown))

    def tag(self, tags):
        self.calls.append(("tag", tags))

    def layout(self, charts):
        self.calls.append(("layout", charts))


def child(code: str) -> list[str]:
    """A publisher that does this instead."""
    return [sys.executable, "-c", textwrap.dedent(code)]


def saying_when(sign: Path, *messages) -> list[str]:
    """A publisher that says them once there is a file."""
    lines = b"".join(map(encode, messages))
    return child(
        f"""
        import pathlib, sys, time
        while not pathlib.Path({str(sign)!r}).exists():
            time.sleep(0.01)
        sys.stdout.buffer.write({lines!r})
        """
    )


def ended(made: Publisher) -> bool:
    """Whether nothing is left of it: it has been killed, and who listens to it is on its way out or out."""
    made._thread.join(PATIENCE_S)
    return made._process.poll() is not None and not made._thread.is_alive()


def saying(*messages, then: str = "sys.stdin.readline()") -> list[str]:
    lines = b"".join(map(encode, messages))
    return child(f"import sys, time\nsys.stdout.buffer.write({lines!r})\nsys.stdout.flush()\n{then}")


@pytest.fixture
def incidents():
    return []


def test_the_end_says_how_long_it_waits_for_the_last_edition(tmp_path: Path, incidents, monkeypatch, caplog) -> None:
    class Told(logging.Handler):
        def emit(self, record):
            (tmp_path / "told").touch()

    monkeypatch.setattr(module, "_SILENT_S", 0.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 100.0))
    made = Publisher(tmp_path, Heard(), incidents.append, command=saying_when(tmp_path / "told", Done(final=True)))
    monkeypatch.setattr(module._log, "handlers", [Told()])
    assert made.finish(60)
    assert "waiting up to 60 s for the last figures" in caplog.text
    assert incidents == []


def test_what_it_says_goes_where_it_can_be_shown(tmp_path: Path, incidents) -> None:
    tracking = Heard()
    histogram = Histogram.from_values([1, 2, 3])
    messages = [
        Numbers.from_floats(4, {"a": 1.0, "b": float("nan")}),
        Shown("lengths", 4, histogram.plain(), newest=False),
        Shown("state", 4, histogram.plain()),
        Shown("words", 4, {"kind": "text", "text": "nobody shows this but the console"}),
        Described("found"),
        Tagged({"world_size": "2"}),
        Arranged({"Memory": {}}),
        Done(final=True, steps=[(0, 4)], names=["b", "a"]),
    ]
    made = Publisher(tmp_path, tracking, incidents.append, command=saying(*messages))
    made.at(9)
    assert made.finish(PATIENCE_S)
    assert incidents == []
    numbers, lengths, state, *words = tracking.calls
    assert numbers[1]["a"] == 1.0
    assert numbers[1]["b"] != numbers[1]["b"]
    assert numbers[2:] == (4, ["file", "board"])
    assert lengths == ("log", {"lengths": histogram}, 4, ["board"])  # of that step
    assert state[2] in (4, 9)  # how it stands now: of the newest step, which may have come after it was said
    assert words == [("describe", "found"), ("tag", {"world_size": "2"}), ("layout", {"Memory": {}})]
    assert State(tmp_path, module.STATE).read() == {"steps": [[0, 4]], "names": ["a", "b"]}
    assert made.finish(1)  # twice is once


def test_how_it_stands_is_of_the_step_that_training_is_at(tmp_path: Path, incidents) -> None:
    tracking = Heard()
    plain = Histogram.from_values([1]).plain()
    command = child(
        f"""
        import sys
        line = {encode(Shown("state", 4, plain))!r}
        sys.stdin.readline()
        sys.stdout.buffer.write(line + {encode(Done(final=True))!r})
        """
    )
    made = Publisher(tmp_path, tracking, incidents.append, command=command)
    made.at(9)
    made.at(7)
    assert made.finish(PATIENCE_S)
    assert tracking.calls == [("log", {"state": Histogram.from_values([1])}, 9, ["board"])]


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (child("import sys; sys.exit(3)"), "ended during the run with code 3"),
        (child("raise RuntimeError('out of ideas')"), "ended during the run with code 1"),
        (child("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"), "with code -9"),
        (child("import sys; sys.stdin.readline(); sys.exit(1)"), "ended while the last edition was made with code 1"),
    ],
)
def test_one_that_dies_is_an_incident(tmp_path: Path, incidents, command: list[str], told: str) -> None:
    made = Publisher(tmp_path, Heard(), incidents.append, command=command)
    if "during" in told or "-9" in told:
        made._process.wait(PATIENCE_S)
        made._thread.join(PATIENCE_S)
    assert not made.finish(PATIENCE_S)
    (incident,) = incidents
    assert incident.kind == "publisher"
    assert told in incident.message
    assert "RuntimeError" not in " ".join(command) or "out of ideas" in incident.traceback


@pytest.mark.parametrize(
    "command",
    [
        child("import time; time.sleep(600)"),
        child("import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"),
        child("import sys\nwhile True: sys.stdout.write('x' * 65536)"),  # a line that never ends
    ],
    ids=["hangs", "stubborn", "babbles"],
)
def test_one_that_hangs_costs_its_deadline_and_no_more(tmp_path: Path, incidents, command: list[str]) -> None:
    made = Publisher(tmp_path, Heard(), incidents.append, command=command)
    assert not made.finish(0.5)
    assert ended(made)
    assert "within 0.5 s" in incidents[0].message


@pytest.mark.usefixtures("lenient")
def test_what_can_t_be_read_or_handed_on_is_told_and_the_rest_is_taken(tmp_path: Path, incidents) -> None:
    class Refusing(Heard):
        def tag(self, tags):
            raise ValueError("no tags here")

    tracking = Refusing()
    words = [
        Tagged({"a": "b"}),
        Shown("broken", 1, {"kind": "histogram", "edges": [1], "counts": [1, 2, 3]}),
        Trouble("a panel", "KeyError('x')", "Traceback (most recent call last)"),
        Described("still here"),
        Done(final=True),
    ]
    lines = b"garbage\n\xff\xfe\n" + b"".join(map(encode, words))
    made = Publisher(
        tmp_path, tracking, incidents.append, command=child(f"import sys\nsys.stdout.buffer.write({lines!r})")
    )
    made._thread.join(PATIENCE_S)
    assert made.finish(PATIENCE_S)
    assert tracking.calls == [("describe", "still here")]
    told = [one.message for one in incidents]
    assert len(told) == 5
    assert "a panel can't be made: KeyError('x')" in told
    assert any("no tags here" in one for one in told)


@pytest.mark.slow
def test_a_run_that_can_t_be_read_is_told_by_the_real_one(tmp_path: Path, incidents) -> None:
    made = Publisher(tmp_path / "nothing", Heard(), incidents.append, every_s=0.01)
    made._process.wait(PATIENCE_S)
    made._thread.join(PATIENCE_S)
    assert not made.finish(1)
    assert "RunNotFoundError" in incidents[0].traceback


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """Also where a fork of that process holds the pipe open."""
    code = f"""
        import os, sys, time
        from pathlib import Path
        from tests.publishing.test_publisher import Heard
        from probe.publishing.publisher import Publisher
        from tests.sample_run import sample_rows, write_run
        run = write_run(Path({str(tmp_path / "run")!r}), sample_rows(1, 1))
        made = Publisher(run, Heard(), print)
        if os.fork() == 0:
            time.sleep(600)
        print(made._process.pid, flush=True)
        time.sleep(600)
    """
    root = Path(module.__file__).parent.parent.parent
    parent = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        cwd=root,
        text=True,
        start_new_session=True,
    )
    try:
        pid = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
        until(lambda: _stat(pid), lambda stat: stat == "" or stat.rpartition(")")[2].split()[0] == "Z")
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.stdout.close()
        parent.wait()


def _stat(pid: int) -> str:
    """What the system says of a process; "" where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_a_fork_of_the_training_leaves_it_alone(tmp_path: Path, incidents, monkeypatch) -> None:
    made = Publisher(tmp_path, Heard(), incidents.append, command=saying(Done(final=True)))
    pid = os.getpid()
    monkeypatch.setattr(module.os, "getpid", lambda: pid + 1)
    made.finish(0.1)
    monkeypatch.undo()
    assert made._process.poll() is None
    assert made.finish(PATIENCE_S)


def test_ctrl_c_while_the_last_edition_is_made_leaves_nothing_behind(tmp_path: Path, incidents) -> None:
    when_it_is_asked_to_end = f"""
        import os, signal, sys, time
        sys.stdin.readline()
        os.kill({os.getpid()}, signal.SIGINT)
        time.sleep(600)
    """
    made = Publisher(tmp_path, Heard(), incidents.append, command=child(when_it_is_asked_to_end))
    with pytest.raises(KeyboardInterrupt):
        made.finish(PATIENCE_S)
    assert ended(made)


def test_listening_is_no_part_of_the_training(tmp_path: Path, incidents) -> None:
    """What the publisher logs isn't observed: it would come back as rows of the run."""
    from probe.hooks import Listener, subscribe
    from probe.tracking.tracking import Tracking

    class Counting(Listener):
        def __init__(self):
            self.heard = 0

        def enter(self, event):
            self.heard += 1

    listener = Counting()
    scope = current_scope()
    with Tracking("p", "e", ["file"], directory=tmp_path) as tracking, subscribe(listener, "tracking.log"):
        made = Publisher(
            tmp_path, tracking, incidents.append, command=saying(Numbers.from_floats(1, {"a": 1.0}), Done(final=True))
        )
        assert made.finish(PATIENCE_S)
        assert tracking.flush()
    assert listener.heard == 0
    assert current_scope() is scope
    assert '"a": 1.0' in (tmp_path / "metrics.jsonl").read_text()


@pytest.mark.parametrize(
    ("shows", "worth"),
    [
        ({"console": {"text", "table"}, "file": {"figure", "histogram"}}, False),
        ({"file": {"figure"}, "mlflow": {"figure"}}, True),
        ({"tensorboard": {"histogram"}}, True),
        ({}, False),
    ],
)
def test_it_is_worthwhile_where_pictures_can_be_shown(shows, worth) -> None:
    tracking = Heard({"nothing": set()})
    tracking._shows = shows
    assert worthwhile(tracking) is worth


@pytest.mark.parametrize("publish", [0, -1.0, float("nan"), float("inf"), "yes", [1]])
def test_how_often_is_checked_at_once(publish) -> None:
    with pytest.raises(InputError, match="publish: got"):
        module.interval(publish)
