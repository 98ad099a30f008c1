"""A process's end: one exit code for the run, for each backend and for ``probe list``, whichever way it ends."""

from __future__ import annotations

import builtins
import contextlib
import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from probe import exits
from probe.cli import main
from probe.runs.files import RunFiles
from probe.runs.now import now
from probe.runs.outcome import Outcome, outcome
from probe.runs.reader import Run

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 300

#: A backend that says what it was told at the end.
BACKEND = """
    from pathlib import Path
    class Told:
        def __init__(self, setup): self.place, self.seen = setup.directory, []
        def log(self, values, step): self.seen.append((step, dict(values)))
        def close(self, exit_code): Path(self.place, "told.txt").write_text(f"{exit_code} {self.seen}")
"""

BEGIN = """
    import os, signal, sys
    from probe import session as sessions
    sessions.patience.END_S = 300.0
    by = sys.argv[1]
    if by == "session":
        import probe
        from probe.testing import FakeDevice
        light = {"recorders": ["memory"], "device": FakeDevice()}  # which needn't import torch
        opened = probe.start("p", "e", run_dir="run", track="told_backend:Told", publish=False, **light)
    else:
        from probe.tracking.tracking import Tracking
        os.mkdir("run")
        opened = Tracking("p", "e", "told_backend:Told", directory="run")
    opened.log({"x": 1.0}, 1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
"""

#: What ends it, and what the process and everybody who was told says then.
ENDS = {
    "well": ("pass", 0, "finished"),
    "an exception": ("1 / 0", 1, "failed"),
    "exit 0": ("sys.exit(0)", 0, "finished"),
    "exit": ("sys.exit()", 0, "finished"),
    "exit 3": ("sys.exit(3)", 3, "exited with code 3"),
    "exit with words": ("sys.exit('no data')", 1, "exited with code 1"),
    "ctrl-c": ("signal.raise_signal(signal.SIGINT)", 130, "interrupted"),
    "sigterm": ("signal.raise_signal(signal.SIGTERM)", 143, "exited with code 143"),
}

BLOCKS = {
    "bare": "{}",
    "in with": "with opened:\n    {}",
    "in finally": "try:\n    {}\nfinally:\n    opened.close()",
}

#: By a session or Tracking alone, in a ``with`` block of it or not.
WAYS = [
    *(("session", "in with", how) for how in ("an exception", "exit 0", "exit", "exit 3", "ctrl-c", "sigterm")),
    *(("session", "in finally", how) for how in ("an exception", "exit 0", "ctrl-c")),
    *(("session", "bare", how) for how in ("well", "an exception", "exit 0", "exit with words", "ctrl-c", "sigterm")),
    *(("tracking", "in with", how) for how in ("exit", "ctrl-c")),
    *(("tracking", "bare", how) for how in ("an exception", "exit 3", "ctrl-c", "sigterm")),
]


@pytest.fixture
def backend(tmp_path: Path) -> Path:
    (tmp_path / "told_backend.py").write_text(textwrap.dedent(BACKEND))
    return tmp_path


def ended(place: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{place}"}
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def end_of(place: Path) -> Outcome:
    found = outcome(now(RunFiles(place)))
    assert found is not None
    return found


def shell_s(returned: int) -> int:
    """The code as a shell says it: of a signal 128 and its number."""
    return 128 - returned if returned < 0 else returned


@pytest.mark.slow
@pytest.mark.parametrize(("by", "block", "how"), WAYS)
def test_a1_everybody_is_told_what_the_process_ends_with(
    backend: Path, by: str, block: str, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    statement, code, word = ENDS[how]
    done = ended(backend, textwrap.dedent(BEGIN) + BLOCKS[block].format(statement), by)
    assert shell_s(done.returncode) == code, done.stderr
    assert (backend / "run" / "told.txt").read_text() == f"{code} [(1, {{'x': 1.0}})]", done.stderr
    if by == "session":
        assert end_of(backend / "run").short == word
        assert main(["list", str(backend)]) == 0
        listed = capsys.readouterr().out
        assert word in listed if code else "0 s  " in listed  # of a good end the list says nothing


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        # tests/tracking/test_failed_run_status.py has an exception, on a server.
        pytest.param("1 / 0", "FAILED", marks=pytest.mark.thorough),
        ("sys.exit(0)", "FINISHED"),
        ("signal.raise_signal(signal.SIGINT)", "KILLED"),
    ],
)
def test_a1_mlflow_has_the_status_of_a_run_that_nobody_closed(tmp_path: Path, statement: str, expected: str) -> None:
    code = f"""
        import signal, sys
        import probe
        from probe import session as sessions
        from probe.testing import FakeDevice
        sessions.patience.END_S = 300.0
        light = {{"recorders": ["memory"], "device": FakeDevice()}}  # which needn't import torch
        opened = probe.start("p", "e", run_dir="run", track="mlflow", publish=False, **light)
        opened.log({{"x": 1.0}}, 1)
        {statement}
    """
    done = ended(tmp_path, code)
    with contextlib.closing(sqlite3.connect(tmp_path / "run" / "mlflow.db")) as database:
        found = database.execute(
            "select status, value from runs natural join latest_metrics where key = 'x'"
        ).fetchall()
    assert found == [(expected, 1.0)], done.stderr


@pytest.mark.slow
def test_a1_an_exit_that_somebody_caught_is_no_end(backend: Path) -> None:
    code = textwrap.dedent(BEGIN) + textwrap.dedent("""
        try:
            sys.exit(3)
        except SystemExit:
            pass
        opened.log({"x": 2.0}, 2)
    """)
    for by in ("session", "tracking"):
        place = backend / by
        place.mkdir()
        (place / "told_backend.py").write_text(textwrap.dedent(BACKEND))
        done = ended(place, code, by)
        assert done.returncode == 0, done.stderr
        assert (place / "run" / "told.txt").read_text().startswith("0 ")


def test_a1_who_wants_to_know_of_exits_leaves_the_function_as_it_was() -> None:
    before = sys.exit
    one, two = exits.at_end(lambda: None), exits.at_end(lambda: None)
    assert sys.exit is not before
    assert sys.exit.__doc__ == before.__doc__
    with pytest.raises(SystemExit, match="3"):
        sys.exit(3)
    one()
    assert sys.exit is not before
    two()
    assert sys.exit is before
    exits.went_on()


def test_a1_an_exit_of_another_thread_says_nothing_of_the_process() -> None:
    def leave() -> None:
        with pytest.raises(SystemExit):
            sys.exit(3)

    forget = exits.at_end(lambda: None)
    thread = threading.Thread(target=leave)
    thread.start()
    thread.join(TIMEOUT_S)
    assert exits.code() == 0
    forget()


def test_a1_a_cell_that_exits_ends_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    forget = exits.at_end(lambda: None)
    with pytest.raises(SystemExit):
        sys.exit(3)
    assert exits.code() == 3
    monkeypatch.setattr(builtins, "__IPYTHON__", True, raising=False)
    assert exits.code() == 0
    exits.went_on()
    forget()


def test_a1_what_is_on_its_way_when_it_is_closed_counts() -> None:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert exits.code() == 130
    assert exits.code() == 0


# ----------------------------------------------------------------------------------------------------------- children

CHILDREN = """
    import multiprocessing, os, signal, sys
    from concurrent.futures import ProcessPoolExecutor

    def work(index):
        if sys.argv[2] == "session":
            import probe
            from probe import session as sessions
            sessions.patience.END_S = 300.0
            from probe.testing import FakeDevice
            light = {"recorders": ["memory"], "device": FakeDevice()}  # which needn't import torch
            opened = probe.start("p", "e", run_dir=f"run{index}", track="told_backend:Told", publish=False, **light)
            with opened.step(1), probe.phase("generate"):
                pass
        else:
            from probe.tracking.tracking import Tracking
            os.makedirs(f"run{index}")
            opened = Tracking("p", "e", "told_backend:Told", directory=f"run{index}")
        opened.log({"x": 1.0}, 1)
        if index == 1:
            raise ValueError("the second one")

    if __name__ == "__main__":
        how, _, method = sys.argv[1].partition(" ")
        context = multiprocessing.get_context(method)
        if how == "process":
            children = [context.Process(target=work, args=(index,)) for index in range(2)]
            [child.start() for child in children]
            [child.join() for child in children]
            assert [child.exitcode for child in children] == [0, 1]
        elif how == "pool":
            with context.Pool(1) as pool:
                results = [pool.apply_async(work, (0,))]
                results[0].get()
                pool.close()
                pool.join()
        elif how == "executor":
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                pool.submit(work, 0).result()
        else:
            import torch.multiprocessing
            torch.multiprocessing.start_processes(work, nprocs=1, start_method=method)
"""

CHILDREN_S = [
    *(("session", way) for way in ("process fork", "process spawn", "torch fork")),
    ("tracking", "executor forkserver"),
    *(
        pytest.param(by, way, marks=pytest.mark.thorough)
        for by, way in (("session", "process forkserver"), ("session", "pool fork"), ("tracking", "process fork"))
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("by", "way"), CHILDREN_S)
def test_a2_a_child_that_returns_has_ended_what_it_began(backend: Path, by: str, way: str) -> None:
    """At once, before the writer's first round: multiprocessing's children end without atexit."""
    script = backend / "script.py"
    script.write_text(textwrap.dedent(CHILDREN))
    done = subprocess.run(
        [sys.executable, str(script), way, by],
        cwd=backend,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{backend}"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for index in range(2 if way.startswith("process") else 1):
        place = backend / f"run{index}"
        told = (place / "told.txt").read_text()
        assert told.startswith(f"{index} "), "the second one fails"
        assert "'x': 1.0" in told
        if by == "session":
            assert end_of(place).word == ("failed" if index else "finished")
            with Run(place) as run:
                assert "generate" in set(run.memory["phase"].dropna())
