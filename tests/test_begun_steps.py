"""``session.begin_step(n)`` and ``end_step()``, for the callbacks of a trainer that has no place for a block."""

from __future__ import annotations

import threading

import pytest

from probe import hooks
from probe.errors import InputError
from probe.exporting.tables import export_tables
from probe.runs.reader import Run
from probe.session import start
from probe.tracking.tracking import Tracking


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "run"


def steps_of(directory):
    with Run(directory) as run:
        query = (
            "select step, count(*) as n from memory where kind = 'step' and edge = 'leave' group by all order by step"
        )
        found = [tuple(row) for row in run.sql(query).itertuples(index=False)]
        scalars = sorted(set(run.scalars["step"]))
        return found, scalars, [(row.kind, row.where, row.message) for row in run.incidents.itertuples()]


def test_d_a_step_that_callbacks_begin_and_end_is_what_a_block_is(directory):
    with start("p", run_dir=directory) as session:
        for step in range(3):
            session.begin_step(step)
            with hooks.phase("update"):
                assert hooks.current_scope().path == "step/update"
                assert hooks.current_scope().step == step
            session.end_step()
            assert hooks.current_scope().step is None
    assert steps_of(directory) == ([(0, 1), (1, 1), (2, 1)], [0, 1, 2], [])


def test_d_a_step_left_by_an_exception_ends_where_the_next_begins(directory):
    with start("p", run_dir=directory) as session:
        session.begin_step(0)
        with pytest.raises(ZeroDivisionError), hooks.phase("update"):
            1 / 0  # noqa: B018
        session.begin_step(1)
        assert hooks.current_scope().path == "step"
        assert hooks.current_scope().step == 1
        session.end_step()
        assert hooks.current_scope().step is None
    steps, scalars, incidents = steps_of(directory)
    assert steps == [(0, 1), (1, 1)]
    assert scalars == [0, 1]
    assert [one[:2] for one in incidents] == [("step", "session.begin_step")]
    assert "step 0 was begun and not ended: it ends now, as step 1 was begun" in incidents[0][2]


def test_d_a_step_that_nobody_ends_ends_with_the_session(directory):
    with start("p", run_dir=directory) as session:
        session.begin_step(7)
    assert hooks.current_scope().step is None
    steps, scalars, incidents = steps_of(directory)
    assert (steps, scalars) == ([(7, 1)], [7])
    assert "it ends now, as the session was closed" in incidents[0][2]


def test_d_an_end_without_a_beginning_is_an_incident_and_no_exception(directory):
    with start("p", run_dir=directory) as session:
        session.end_step()
        with session.step(0):
            session.end_step()  # the block's step is not its own to end
            assert hooks.current_scope().step == 0
    steps, _, incidents = steps_of(directory)
    assert steps == [(0, 1)]
    assert [one[:2] for one in incidents] == [("step", "session.end_step")] * 2


def test_d_a_step_may_be_ended_by_another_thread(directory):
    with start("p", run_dir=directory) as session:
        session.begin_step(0)
        ender = threading.Thread(target=session.end_step)
        ender.start()
        ender.join()
        session.begin_step(1)
        assert hooks.current_scope().step == 1
        session.end_step()
    assert steps_of(directory) == ([(0, 1), (1, 1)], [0, 1], [])


@pytest.mark.parametrize("step", [-1, 1.5, "3", None, True])
def test_d_a_wrong_step_is_refused_and_leaves_the_open_one(directory, step):
    with start("p", run_dir=directory) as session:
        session.begin_step(0)
        with pytest.raises(InputError, match="step: got"):
            session.begin_step(step)
        assert hooks.current_scope().step == 0
        session.end_step()
    assert steps_of(directory) == ([(0, 1)], [0], [])


@pytest.mark.parametrize("option", ["run_dir", "root"])
@pytest.mark.parametrize("url", ["s3://bucket/run", "hdfs://host/run", "file://localhost/run"])
def test_d_a_url_as_a_run_directory_is_refused_and_makes_nothing(tmp_path, monkeypatch, option, url):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=rf"{option}: got '{url}', expected a local directory"):
        start("p", "e", **{option: url})
    monkeypatch.setenv("PROBE_RUN_DIR", url)
    with pytest.raises(InputError, match="expected a local directory"):
        start("p", "e")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["s3://bucket/run", "hdfs://host/run", "file://localhost/run"])
def test_d_a_url_as_the_directory_of_a_tracking_or_an_export_is_refused_and_makes_nothing(tmp_path, monkeypatch, url):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=rf"directory: got '{url}', expected a local directory"):
        Tracking("p", "e", ["file"], directory=url)
    with pytest.raises(InputError, match=rf"directory: got '{url}', expected a local directory"):
        export_tables(tmp_path / "run", url)
    assert list(tmp_path.iterdir()) == []
