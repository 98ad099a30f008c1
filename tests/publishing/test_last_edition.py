"""The last edition is made by the publisher alone, after the session: nobody waits for it, and it isn't lost."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from probe.publishing import __main__ as process
from probe.publishing import last, pictures
from probe.publishing.editions import Editions
from probe.publishing.messages import Done, Numbers, Shown, encode
from probe.publishing.publisher import Publisher
from probe.runs.reader import Run
from probe.session import start
from probe.session.outlets import record_incident
from probe.tracking.state import State
from probe.tracking.tracking import Tracking
from tests.sample_run import sample_rows, write_run
from tests.tracking.tracking_readers import tensorboard_scalars
from tests.waiting import PATIENCE_S, until

#: What an edition needs and waiting for the backends doesn't. NumPy is there from the start: `probe.tracking` has it.
HEAVY = ("pandas", "plotly", "duckdb", "pyarrow", "mlflow", "torch")


@pytest.fixture
def few_panels(monkeypatch):
    """Where this process makes the last edition: to draw all of them takes seconds."""
    some = pictures.panels()[:4]
    monkeypatch.setattr(pictures, "panels", lambda: some)


@pytest.fixture
def told(monkeypatch):
    monkeypatch.setenv(last.VARIABLE, "leave")
    return []


def begun(directory: Path, told: list) -> tuple[Tracking, Publisher]:
    write_run(directory, sample_rows(2, 3))
    tracking = Tracking("p", "e", ["tensorboard"], directory=directory, announce=False)
    return tracking, Publisher(directory, tracking, told.append)


def words(tracking: Tracking) -> str:
    """The run's description in TensorBoard, as its own reader has it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(tracking.locations["tensorboard"], size_guidance={"tensors": 0}).Reload()
    name = "probe/findings/text_summary"
    return reader.Tensors(name)[-1].tensor_proto.string_val[0].decode() if name in reader.Tags()["tensors"] else ""


def loaded(pid: int) -> set[str]:
    """Packages of which a process has a library in memory."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    return {name for name in HEAVY if f"/site-packages/{name}/" in maps or f"/{name}." in maps}


def test_e_the_end_leaves_the_last_edition_to_a_process_that_has_loaded_nothing_before(tmp_path: Path, told) -> None:
    tracking, publisher = begun(tmp_path / "run", told)
    assert publisher.finish()
    assert publisher._process.poll() is None
    (due,) = last.due(tmp_path / "run")  # it can't be made: we still have the backends
    assert last.under_way(due)
    pid = publisher._process.pid
    until(lambda: os.getsid(pid), lambda session: session == pid)  # it goes on alone
    assert not loaded(pid)
    assert words(tracking) == ""
    tracking.finish(0)
    assert publisher.wait(PATIENCE_S)
    assert last.due(tmp_path / "run") == []
    assert "The whole run, up to step 2; 2 ranks." in words(tracking)
    assert State(tmp_path / "run", "run").read()["exit_code"] == 0
    assert told == []


@pytest.mark.usefixtures("few_panels")
def test_e_a_last_edition_whose_process_is_killed_is_told_and_made_later(tmp_path: Path, told) -> None:
    from probe.cli.doctor_run import unsent_checks

    run = tmp_path / "run"
    tracking, publisher = begun(run, told)
    assert publisher.finish()
    publisher._process.kill()
    publisher._thread.join(PATIENCE_S)
    tracking.finish(3)
    assert not publisher.wait(0)
    (check,) = [one for one in unsent_checks(str(run), recover=False) if one.name == "dashboards"]
    assert check.level == "warning"
    assert "--recover" in check.message
    (check,) = [one for one in unsent_checks(str(run), recover=True) if one.name == "dashboards"]
    assert (check.level, check.message) == ("ok", "the last edition of the dashboards was made")
    assert "The whole run" in words(tracking)
    assert State(run, "run").read()["exit_code"] == 3
    assert last.make(run) == []


@pytest.mark.usefixtures("few_panels")
def test_e_the_script_ends_before_the_last_edition_is_there(tmp_path: Path) -> None:
    """A real training script: at its end the edition is due, as the run says, and then it is there."""
    code = """if True:
        import os, sys, warnings
        warnings.simplefilter("ignore")
        from pathlib import Path
        from probe.publishing import last
        from probe.session import start
        from probe.testing import FakeDevice
        light = {"recorders": ["memory"], "device": FakeDevice()}  # which needn't import torch
        session = start("p", "e", run_dir=sys.argv[1], track="tensorboard", **light)
        with session.step(0):
            pass
        seen = []
        finish = session.tracking.finish
        session.tracking.finish = lambda *how: (seen.append(len(last.due(Path(sys.argv[1])))), finish(*how))
        session.close()
        print(seen, session.publisher._process.pid, session.tracking.locations["tensorboard"])
    """
    environment = {**os.environ, last.VARIABLE: "leave", "PYTHONPATH": str(Path(last.__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run")], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("[1] ")
    from probe.cli.doctor_run import unsent_checks

    assert [one.level for one in unsent_checks(str(tmp_path / "run"), recover=True)][-1] == "ok"
    assert last.due(tmp_path / "run") == []


def test_e_before_an_edition_is_due_none_is_made() -> None:
    asked = process.Asked()
    asked.set(alone=True)

    def make() -> Editions:
        raise AssertionError("an edition was begun")

    process._publish(make, asked, 30.0)


def test_e_where_leaving_would_lose_it_the_end_waits(tmp_path: Path, monkeypatch, told) -> None:
    monkeypatch.setenv(last.VARIABLE, "wait")
    tracking, publisher = begun(tmp_path / "run", told)
    assert publisher.finish()
    assert publisher._complete
    assert last.due(tmp_path / "run") == []
    tracking.finish(0)
    assert "The whole run" in words(tracking)


HANGS = [sys.executable, "-c", "import time; time.sleep(600)"]


class Stuck:
    """A user's backend that never comes back."""

    def __init__(self, setup):
        self.begun, self.free = threading.Event(), threading.Event()

    def log(self, values, step):
        self.begun.set()
        self.free.wait(600)

    def close(self, exit_code):
        pass


@pytest.mark.parametrize(("told", "limits"), [("", (7.0, 10.0)), ("wait", (None, 10.0))])
def test_a_backends_and_the_last_edition_that_hang_share_ten_seconds(tmp_path: Path, monkeypatch, told, limits) -> None:
    """Scaled down a hundred times. One after the other they had 60 s and 10 s."""
    monkeypatch.setitem(sys.modules, "stuck_backend", sys.modules[__name__])
    monkeypatch.setenv(last.VARIABLE, told)
    monkeypatch.setattr(last, "_first_process", lambda: "bash")  # a container
    monkeypatch.setattr("probe.session.patience.END_S", 0.1)
    monkeypatch.setattr("probe.session.patience.BACKENDS_S", 0.03)
    monkeypatch.setattr("probe.publishing.publisher.FINAL_S", 0.6)
    session = start("p", run_dir=tmp_path / "run", track="stuck_backend:Stuck", publish=False)
    backend = session.tracking.logger["stuck_backend:Stuck"]
    session.sending.publisher = Publisher(tmp_path / "run", session.tracking, record_incident, command=HANGS)
    given = []
    for one in (session.publisher, session.tracking):
        noted(monkeypatch, one, given)
    session.log({"loss": 1.0}, 0)
    assert backend.begun.wait(PATIENCE_S)
    session.close()
    backend.free.set()
    waited, finished = given
    if limits[0] is None:
        assert waited is None  # as long as it takes: the user asked for that
        assert 0 <= finished <= 0.1
    else:
        assert 0 <= waited <= limits[0] / 100
        assert 0 <= finished <= limits[1] / 100 - waited
    with session.run as run:
        incidents = run.incidents
    assert {"publisher", "backend"} <= set(incidents["kind"])
    assert any("the next start in this directory sends it" in one for one in incidents["message"])


def noted(monkeypatch, one, given: list) -> None:
    finish = one.finish

    def finishes(*how):
        given.append(how[-1])
        return finish(*how)

    monkeypatch.setattr(one, "finish", finishes)


def test_a_an_edition_that_isn_t_there_in_time_is_left_to_the_publisher_or_the_doctor(
    tmp_path: Path, monkeypatch, told, caplog
) -> None:
    monkeypatch.setattr(last, "_first_process", lambda: "bash")
    monkeypatch.delenv(last.VARIABLE)
    run = tmp_path / "run"
    write_run(run, sample_rows(2, 3))
    tracking = Tracking("p", "e", ["tensorboard"], directory=run, announce=False)
    publisher = Publisher(run, tracking, told.append, command=HANGS)
    assert publisher.finish(0.05)
    assert "makes it with --recover" in caplog.text
    assert told == []
    publisher._process.kill()
    publisher._thread.join(PATIENCE_S)
    tracking.finish(0)
    (due,) = last.due(run)
    assert not last.under_way(due)


@pytest.mark.parametrize(
    ("environment", "waits"),
    [
        ({"PROBE_LAST_EDITION": "wait"}, True),
        ({"SLURM_JOB_ID": "7"}, True),
        ({"SLURM_JOB_ID": "7", "PROBE_LAST_EDITION": " Leave"}, False),
    ],
)
def test_e_the_end_waits_where_what_is_left_behind_is_killed(environment, waits) -> None:
    assert last.waits(environment) is waits


def test_e_in_a_container_the_end_waits(monkeypatch) -> None:
    monkeypatch.setattr(last, "_first_process", lambda: "bash")
    assert last.waits({})
    monkeypatch.setattr(last, "_first_process", lambda: "systemd")
    assert not last.waits({})


@pytest.mark.parametrize(
    ("names", "able"), [(["tensorboard", "mlflow", "file", "console"], True), (["tensorboard", "wandb"], False)]
)
def test_e_a_backend_that_would_begin_a_new_place_is_waited_for(tmp_path: Path, names, able) -> None:
    with Tracking("p", "e", ["file"], directory=tmp_path / "run", announce=False) as tracking:
        tracking.logger = dict.fromkeys(names)
        assert last.able(tmp_path / "run", tracking) is able


def test_e_backends_that_another_process_can_t_open_are_waited_for(tmp_path: Path) -> None:
    with Tracking("p", "e", ["file"], directory=tmp_path / "here", announce=False) as tracking:
        assert last.able(tmp_path / "here", tracking)
        assert not last.able(tmp_path / "there", tracking)
        tracking.logger["mine:Backend"] = None
        assert not last.able(tmp_path / "here", tracking)
    with Tracking("p", "e", ["console"], announce=False) as tracking:
        assert not last.able(tmp_path, tracking)


def test_e_what_the_session_has_handed_on_is_not_said_twice(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", sample_rows(2, 3))

    def said(**options) -> tuple[set[int], set[tuple[str, int]]]:
        messages: list = []
        Editions(Run(directory), messages.append, **options).numbers(final=True)
        shown = {(one.name, one.step) for one in messages if isinstance(one, Shown)}
        return {one.step for one in messages if isinstance(one, Numbers)}, shown

    numbers, shown = said()
    assert numbers == {0, 1, 2}
    first = min(shown)
    assert said(partly=([1], [list(first)])) == ({0, 2}, shown - {first})
    assert said(said=[(0, 1)])[0] == {2}


def test_e_the_last_arrangement_has_the_charts_of_all_that_was_handed_on(tmp_path: Path, told, monkeypatch) -> None:
    """The session has handed on every number, and the figures of the last edition weren't there in time."""
    monkeypatch.setattr(Editions, "_say_panel", lambda *_: None)  # to draw all of them takes seconds
    directory = write_run(tmp_path / "run", sample_rows(2, 3))
    tracking = Tracking("p", "e", ["tensorboard"], directory=directory, announce=False)
    messages: list = []
    Editions(Run(directory), messages.append).numbers()
    (done,) = [one for one in messages if isinstance(one, Done)]
    saying = f"import sys; sys.stdout.buffer.write({encode(done)!r}); sys.stdout.flush(); sys.stdin.read()"
    made = Publisher(directory, tracking, told.append, command=[sys.executable, "-c", saying])
    known = until(lambda: State(directory, last.STATE).read())
    assert known == {"steps": [[0, 2]], "names": done.names}
    assert made.finish()  # it leaves the last edition to a process that does nothing
    made._process.kill()
    tracking.finish()
    assert last.due(directory)[0]["names"] == done.names
    assert last.make(directory) == []
    assert State(directory, last.STATE).read() == known
    assert "Time of a phase across ranks (s): update_actor" in arranged(tracking)


def arranged(tracking: Tracking) -> str:
    """What is under Custom Scalars in TensorBoard, as its own reader has it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.custom_scalar import layout_pb2, metadata

    reader = EventAccumulator(tracking.locations["tensorboard"], size_guidance={"tensors": 0}).Reload()
    content = reader.Tensors(metadata.CONFIG_SUMMARY_TAG)[-1].tensor_proto.string_val[0]
    return str(layout_pb2.Layout.FromString(content))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["leave", pytest.param("wait", marks=pytest.mark.thorough)])
def test_a4_the_last_steps_are_everywhere(tmp_path: Path, monkeypatch, how) -> None:
    """Their own metrics once what was recorded is flushed, and their numbers across ranks after an ordinary end."""
    monkeypatch.setenv(last.VARIABLE, how)
    name, steps = "probe/across_ranks/step_time_s", list(range(1, 48))
    # Of memory alone: every figure that isn't empty is drawn in each edition.
    where = {"run_dir": tmp_path / "run", "rank": 0, "world_size": 1, "recorders": ["memory", "scalars"]}
    with start("p", "e", track="tensorboard,mlflow", publish=1, **where) as session:
        for step in steps:
            with session.step(step):
                time.sleep(0.01)
        assert session.flush(PATIENCE_S)
        with Run(tmp_path / "run") as run:
            own = run.sql("select key, max(step) as newest from scalars group by key")
        assert set(own["newest"][~own["key"].str.contains("first_step|headroom|device")]) == {steps[-1]}

    def in_mlflow() -> list[int]:
        with contextlib.closing(sqlite3.connect(tmp_path / "run" / "mlflow.db")) as database:
            found = database.execute("select distinct step from metrics where key = ? order by step", [name]).fetchall()
        return [step for (step,) in found]

    def in_tensorboard() -> list[int]:
        return [one.step for one in tensorboard_scalars(tmp_path / "run" / "tensorboard").get(name, [])]

    for found in (in_tensorboard, in_mlflow):
        until(found, lambda there: there == steps)
