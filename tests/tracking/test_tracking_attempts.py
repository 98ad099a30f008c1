"""Each attempt is a run of its own in every backend: two trainings are never one curve there (A)."""

from __future__ import annotations

import json

import pytest

from probe.session import start
from probe.tracking.journal import unsent
from probe.tracking.recovery import recover
from probe.tracking.state import homes
from probe.tracking.tracking import Tracking
from tests.tracking.test_tracking_recovery import PLAIN, WITH_STATUS, asked, left_behind
from tests.tracking.tracking_readers import mlflow_client, read_mlflow_run, tensorboard_scalars
from tests.waiting import PATIENCE_S


def train(directory, reward, steps, track):
    """A training in this process; the place of each backend."""
    with start("attempts", run_dir=directory, track=track, recorders=[], publish=False) as session:
        for step in steps:
            with session.step(step):
                pass
            session.log({"reward/mean": reward}, step)
        return dict(session.tracking.locations)


def points(directory):
    return [(event.step, round(event.value, 3)) for event in tensorboard_scalars(directory)["reward/mean"]]


def logged(path):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [(row["step"], row["data"]["reward/mean"]) for row in rows if "reward/mean" in row["data"]]


@pytest.mark.slow
def test_a_second_training_has_runs_of_its_own(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    directory = tmp_path / "run"
    train(directory, 0.25, range(3), "mlflow,tensorboard,file")
    train(directory, 0.75, range(2, 4), "mlflow,tensorboard,file")  # resumed
    assert points(directory / "tensorboard") == [(0, 0.25), (1, 0.25), (2, 0.25)]
    assert points(directory / "tensorboard" / "attempt-2") == [(2, 0.75), (3, 0.75)]
    assert logged(directory / "metrics.jsonl") == [(0, 0.25), (1, 0.25), (2, 0.25)]
    assert logged(directory / "metrics.attempt-2.jsonl") == [(2, 0.75), (3, 0.75)]
    uri = f"sqlite:///{directory / 'mlflow.db'}"
    client = mlflow_client(uri)
    (experiment,) = (one for one in client.search_experiments() if one.name != "Default")
    runs = {run.info.run_name: run.info.run_id for run in client.search_runs([experiment.experiment_id])}
    assert sorted(runs) == ["run", "run (attempt 2)"]
    found = {name: read_mlflow_run(uri, run_id)["reward/mean"] for name, run_id in runs.items()}
    assert [step for step, _ in found["run"]] == [0, 1, 2]
    assert [step for step, _ in found["run (attempt 2)"]] == [2, 3]
    assert unsent(directory) == {}


def test_one_attempt_goes_on_with_its_own_run(tmp_path, monkeypatch):
    monkeypatch.setenv("PROBE_ATTEMPT", "2")
    places = [train(tmp_path / "run", 0.5, range(step, step + 1), "file") for step in (0, 1)]
    assert places[0] == places[1] == {"file": str(tmp_path / "run" / "metrics.attempt-2.jsonl")}
    assert logged(tmp_path / "run" / "metrics.attempt-2.jsonl") == [(0, 0.5), (1, 0.5)]


def test_a_place_that_is_named_is_shared_by_no_two_attempts(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path / "tb"))
    monkeypatch.setenv("PROBE_FILE_LOGGER_PATH", str(tmp_path / "own.jsonl"))
    for reward in (0.25, 0.75):
        train(tmp_path / "run", reward, range(1), "tensorboard,file")
    assert (points(tmp_path / "tb"), points(tmp_path / "tb" / "attempt-2")) == ([(0, 0.25)], [(0, 0.75)])
    assert (logged(tmp_path / "own.jsonl"), logged(tmp_path / "own.attempt-2.jsonl")) == ([(0, 0.25)], [(0, 0.75)])


def test_what_an_attempt_left_is_sent_to_its_own_run(tmp_path):
    asked.clear()
    left_behind(tmp_path, steps=3, sent={PLAIN: 1}, exit_code=0, complete=[WITH_STATUS, PLAIN])
    later = tmp_path / "attempts" / "2"
    left_behind(later, steps=5, sent={PLAIN: 4}, exit_code=0, complete=[WITH_STATUS, PLAIN])
    assert homes(tmp_path) == {1: tmp_path, 2: later}
    assert unsent(tmp_path) == {PLAIN: 3}
    assert recover(tmp_path, before=2) == {PLAIN: 1}
    assert [content for _, what, content in asked if what == "log"] == [1, 2]
    assert recover(tmp_path) == {}
    assert [content for _, what, content in asked if what == "log"] == [1, 2, 4]


def test_a_later_attempt_sends_what_the_one_before_left(tmp_path):
    """Into the run of that one, from a process of its own: a backend may have one run in a process."""
    asked.clear()
    left_behind(tmp_path, steps=3, sent={PLAIN: 1}, exit_code=1, complete=[WITH_STATUS, PLAIN])
    (tmp_path / "attempts" / "1").mkdir(parents=True)
    (tmp_path / "attempts" / "1" / "launch.json").write_text("{}")
    (tmp_path / "attempts" / "1" / "rank-00000.json").write_text("{}")
    with start("attempts", run_dir=tmp_path, track=PLAIN, recorders=[], publish=False, rank=0) as session:
        session.log({"x": 1.0}, 7)
        assert session.tracking.flush()
        for thread in session_threads():
            thread.join(PATIENCE_S)
    assert [content for _, what, content in asked if what == "log"] == [7]  # what was sent from here
    assert unsent(tmp_path) == {}


def session_threads():
    import threading

    return [one for one in threading.enumerate() if one.name == "probe-leftovers"]


def test_the_attempt_of_tracking_is_a_whole_number(tmp_path):
    with pytest.raises(ValueError, match="attempt"):
        Tracking("p", "e", "file", directory=tmp_path, attempt=0)
