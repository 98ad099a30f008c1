"""Each check finds what it is for, and nothing where nothing is wrong."""

from __future__ import annotations

import pytest

from probe.tracking.backends import BACKENDS
from probe.tracking.checks import check_backend, check_count, check_directory, check_names, check_steps, check_tracking
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
    tracking.finish(timeout_s=10)
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
