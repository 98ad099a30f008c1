"""Each check finds what it is for, and nothing where nothing is wrong."""

from __future__ import annotations

from typing import ClassVar

import pytest

from probe.tracking.backends import BACKENDS
from probe.tracking.backends.base import Backend
from probe.tracking.checks import (
    Finding,
    check_backend,
    check_count,
    check_directory,
    check_names,
    check_steps,
    check_tracking,
    logged_in,
    start_checks,
)
from probe.tracking.reach import unwritable
from probe.tracking.tracking import Tracking


def told(findings):
    return [(finding.level, finding.where, finding.check) for finding in findings]


def test_nothing_is_found_where_nothing_is_wrong(tmp_path, collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("WANDB_MODE", "offline")
    logged = [("actor/loss", 1), ("actor/lr", 1), ("actor/loss", 2)]
    backends = ["console", "file", "mlflow", "otlp", "tensorboard", "wandb"]
    assert check_tracking(backends, directory=tmp_path / "new", logged=logged) == []
    assert list(tmp_path.iterdir()) == []
    assert collector.metrics == []


def test_backends_that_are_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("SWANLAB_API_HOST", "http://127.0.0.1:9")
    monkeypatch.setenv("TRACKIO_SERVER_URL", "http://127.0.0.1:9?write_token=secret")
    for name in ("mlflow", "otlp", "wandb"):
        (finding,) = check_backend(name)
        assert (finding.level, finding.check) == ("error", "reachable")
        assert "127.0.0.1:9" in finding.message
    for name in ("swanlab", "trackio"):
        (finding,) = check_backend(name)
        assert finding.check in {"reachable", "backend"}
        assert "secret" not in finding.message
    assert told(check_backend("nothing")) == [("error", "nothing", "backend")]
    assert told(check_backend("no_such_package.x:Y")) == [("error", "no_such_package.x:Y", "backend")]


class Refusing(Backend):
    """A user's own, whose look at its settings fails with :attr:`error`."""

    error: ClassVar[Exception]

    @classmethod
    def reach(cls, directory):
        raise cls.error

    def log(self, values, step):
        pass

    def close(self, exit_code):
        pass


@pytest.mark.parametrize(("error", "message"), [(ValueError("no port"), "no port"), (KeyError(), "KeyError()")])
def test_a_backend_whose_look_fails_is_named_with_the_reason(error, message, monkeypatch):
    monkeypatch.setattr(Refusing, "error", error, raising=False)
    name = f"{__name__}:Refusing"
    assert check_backend(name) == [Finding("error", name, "backend", message)]


def test_an_mlflow_server_that_answers(mlflow_server, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server)
    assert check_backend("mlflow") == []


@pytest.mark.parametrize("name", ["file", "mlflow", "tensorboard"])
def test_a_place_that_cannot_be_written(name, tmp_path):
    (tmp_path / "taken").write_text("")
    (finding,) = check_backend(name, directory=tmp_path / "taken" / "run")
    assert (finding.level, finding.check) == ("error", "writable")
    assert "taken" in finding.message
    assert told(check_directory(tmp_path / "taken" / "run")) == [("error", "tracking", "writable")]


def test_what_waits_is_found_and_left_alone(tmp_path, collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setattr("probe.tracking.lane.BACK_OFF_S", (0.01, 0.02))
    tracking = Tracking("p", "e", ["otlp"], directory=tmp_path)
    collector.answers = [500] * 1000
    for step in range(5):
        tracking.log({"x": step}, step)
    tracking.finish()  # it gives up what fails
    for _ in range(2):
        (finding,) = check_directory(tmp_path)
        assert told([finding]) == [("warning", "otlp", "unsent")]
        assert "5 calls wait" in finding.message


@pytest.mark.parametrize("backend", sorted(BACKENDS))
def test_names_by_each_backends_own_rule(backend):
    names = ["a", "a/b", "acc@5", "acc_at_5", "_step", " x ", "fine/name"]
    found = {message.message.partition(" would be ")[0]: message.message for message in check_names(names, backend)}
    expected = {
        "mlflow": ["'a/b'", "'acc@5'", "'acc_at_5'"],
        "wandb": ["'_step'"],
        "swanlab": ["' x '"],
    }
    assert list(found) == expected.get(backend, [])
    if backend == "mlflow":
        assert "collides" in found["'a/b'"]
        assert "collides" in found["'acc_at_5'"]


def test_many_names_show_their_kind():
    assert check_count(f"a{index}" for index in range(100)) == []
    (finding,) = check_count(["loss", *(f"sample/{index}/reward" for index in range(3000))])
    assert "3001 distinct names, 3000 of them like 'sample/#/reward'" in finding.message


def test_steps_that_go_back_are_told_once_a_metric():
    logged = [("a", 3), ("a", 2), ("a", 1), ("b", 1), ("b", 1), ("c", 9), ("c", 8)]
    assert [finding.message.split()[0] for finding in check_steps(logged)] == ["'a'", "'c'"]


def test_a_run_that_is_there_is_read_for_names_and_steps(tmp_path, collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    logged = [("loss", 3), ("loss/actor", 3), ("loss", 2)]
    with Tracking("p", "e", "file", {"lr": 1}, directory=tmp_path) as tracking:
        for name, step in logged:
            tracking.log({name: 1.0}, step)
    assert logged_in(tmp_path) == logged
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 4, "da')
    found = check_tracking(["mlflow", "nothing"], directory=tmp_path)
    assert told(found) == [
        ("warning", "mlflow", "name"),
        ("error", "nothing", "backend"),
        ("warning", "tracking", "step"),
    ]


def test_what_waits_in_the_journal_is_read_for_names_too(tmp_path, collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setattr("probe.tracking.lane.BACK_OFF_S", (0.01, 0.02))
    tracking = Tracking("p", "e", ["otlp"], directory=tmp_path)
    collector.answers = [500] * 1000
    tracking.log({"a": 1, "a/b": 2}, 1)
    tracking.finish()  # it gives up what fails
    assert [one.check for one in check_tracking(["mlflow"], directory=tmp_path)] == ["unsent", "name"]


def test_a_setting_that_a_backend_refuses_is_a_finding(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "127.0.0.1:4318")
    assert told(check_backend("otlp")) == [("error", "otlp", "backend")]


def test_the_start_of_a_run_is_checked_without_asking_a_network(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://10.255.255.1:9")
    assert start_checks(["console", "mlflow"], tmp_path) == []
    assert [one.where for one in start_checks(["console", "nothing"], None)] == ["nothing"]
    monkeypatch.setattr("probe.tracking.checks.LITTLE_ROOM", 2**80)
    incidents = []
    with Tracking("p", "e", "file", directory=tmp_path, on_incident=incidents.append):
        pass
    assert ["is free" in one.message for one in incidents] == [True]


@pytest.mark.parametrize(("step", "told_of"), [(5, 1), (9, 0), (10, 0)])
def test_a_run_that_goes_on_at_an_earlier_step_says_so(step, told_of, tmp_path):
    with Tracking("p", "e", "file", directory=tmp_path) as tracking:
        tracking.log({"x": 1}, 9)
        tracking.log({"x": 1}, 8)
    incidents = []
    with Tracking("p", "e", "file", directory=tmp_path, on_incident=incidents.append) as tracking:
        tracking.log({"x": 1}, step)
        tracking.log({"x": 1}, step + 1)
    assert len(["was at step 9" in one.message for one in incidents]) == told_of


def test_why_a_place_cannot_be_written_is_text_and_empty_where_it_can(tmp_path):
    assert unwritable(tmp_path / "not" / "there" / "yet") == ""
    (tmp_path / "file").write_text("")
    assert unwritable(tmp_path / "file" / "below").startswith(f"{tmp_path / 'file'}: ")
