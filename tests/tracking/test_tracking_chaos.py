"""A real MLflow server that is slowed, killed and restarted again and again under load, by trainers that are killed."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from probe.tracking.journal import in_use, unsent
from probe.tracking.recovery import recover
from probe.tracking.state import State
from tests.tracking.test_tracking_durability import (
    impatient_mlflow,  # noqa: F401  (a fixture)
    proxy,  # noqa: F401  (a fixture)
    python,
)
from tests.tracking.tracking_readers import mlflow_client, tensorboard_scalars
from tests.waiting import until

METRICS = 20
#: Logs without a pause to think, as a trainer with very short steps does, until it is killed.
TRAINER = """
    import sys, time
    from probe.tracking import lane
    from probe.tracking.tracking import Tracking
    lane.BACK_OFF_S = (0.05, 0.5)
    first = int(sys.argv[2])
    tracking = Tracking("chaos", "e", ["mlflow", "tensorboard"], {"lr": 0.5}, directory=sys.argv[1])
    print("go", flush=True)
    for step in range(first, first + 100_000):
        tracking.log({f"group/{index}": step + index / 32 for index in range(20)}, step)
        time.sleep(0.05)
"""


@pytest.mark.slow
def test_after_all_that_the_server_has_every_value_once(
    own_mlflow_server,
    proxy,  # noqa: F811  (the fixture)
    tmp_path,
    monkeypatch,
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", proxy.url)
    slow = threading.Thread(target=slowed, args=(proxy, stop := threading.Event()))
    slow.start()
    try:
        for number in range(2):
            with python(TRAINER, tmp_path, number * 1_000_000) as trainer:
                assert trainer.stdout.readline() == "go\n"
                grows(lambda: proxy.answers)
                # The server itself is killed once: to start it takes seconds. Then nobody answers at its address.
                (proxy.leave if number else own_mlflow_server.stop)()
                grows(lambda: unsent(tmp_path).get("mlflow", 0))
                (proxy.come_back if number else own_mlflow_server.start)()
                grows(lambda: proxy.answers)
                assert in_use(tmp_path)
                assert "mlflow" in recover(tmp_path, timeout_s=1)  # its process is there: it is left alone
                trainer.send_signal(signal.SIGKILL)
                assert trainer.wait(300) == -signal.SIGKILL
    finally:
        stop.set()
        slow.join()
        proxy.delay_s, proxy.swallow = 0.0, 0
    assert recover(tmp_path, timeout_s=300) == {}
    check(own_mlflow_server.url, State(tmp_path, "mlflow").read()["run_id"], tmp_path)


def slowed(proxy, stop):  # noqa: F811  (the fixture's)
    """Slow for a while, then losing answers, then slow again."""
    while not stop.wait(0.7):
        proxy.delay_s = 0.05 - proxy.delay_s
        proxy.swallow = 1


def grows(count):
    """Wait until it is so much more than now that the server, or its absence, has been felt."""
    before = count()
    until(count, lambda now: now >= before + 20)


def check(url, run_id, directory):
    client = mlflow_client(url)
    run = client.get_run(run_id)
    assert (run.info.status, run.data.params) == ("FAILED", {"lr": "0.5"})
    wanted = [event.step for event in tensorboard_scalars(directory / "tensorboard")["group/0"]]
    first, second = [step for step in wanted if step < 1_000_000], [step for step in wanted if step >= 1_000_000]
    assert first
    assert second
    assert wanted == [*range(len(first)), *range(1_000_000, 1_000_000 + len(second))]  # no gap: none was lost
    assert len(run.data.metrics) == METRICS
    for index in (0, 7, 19):
        history = client.get_metric_history(run_id, f"group/{index}")
        assert [(one.step, one.value) for one in history] == [(step, step + index / 32) for step in wanted]


@pytest.mark.slow
def test_a_killed_run_that_had_sent_everything_still_gets_its_status(own_mlflow_server, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", own_mlflow_server.url)
    script = """
        import os, signal, sys
        from probe.tracking.tracking import Tracking
        tracking = Tracking("p", "e", "mlflow", directory=sys.argv[1])
        tracking.log({"x": 1}, 1)
        assert tracking.flush(300)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    with python(script, tmp_path) as process:
        assert process.wait(300) == -signal.SIGKILL
    run_id = State(tmp_path, "mlflow").read()["run_id"]
    client = mlflow_client(own_mlflow_server.url)
    assert (unsent(tmp_path), client.get_run(run_id).info.status) == ({}, "RUNNING")
    assert recover(tmp_path, timeout_s=300) == {}
    assert client.get_run(run_id).info.status == "FAILED"
    state = (tmp_path / "tracking" / "run.json").stat().st_mtime_ns
    assert recover(tmp_path) == {}  # nothing is left to do, and nothing is done
    assert (tmp_path / "tracking" / "run.json").stat().st_mtime_ns == state


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_that_is_forked_while_something_is_reported_does_not_hang():
    from probe.tracking.reports import Reports

    reports = Reports()
    with reports._lock:
        child = os.fork()
        if child == 0:
            reports.tell("value", "tracking", "in the child")
            os._exit(7)
        deadline = time.monotonic() + 300
        while (found := os.waitpid(child, os.WNOHANG)) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.01)
    assert os.waitstatus_to_exitcode(found[1]) == 7


def test_a_clock_that_goes_back_loses_nothing_and_hides_nothing(tmp_path, monkeypatch):
    """The later process's clock is an hour behind: its events must be read after those that there are."""
    from probe.tracking.tracking import Tracking

    now = time.time_ns
    for step, behind_s in ((0, 0), (1, 3600)):
        monkeypatch.setattr("time.time_ns", lambda behind_s=behind_s: now() - behind_s * 10**9)
        with Tracking("p", "e", ["tensorboard", "file"], directory=tmp_path) as tracking:
            tracking.log({"x": step}, step)
    files = sorted((tmp_path / "tensorboard").iterdir())
    assert [path.stat().st_mtime_ns for path in files] == sorted(path.stat().st_mtime_ns for path in files)
    found = tensorboard_scalars(tmp_path / "tensorboard")["x"]
    assert [(event.step, event.value) for event in found] == [(0, 0.0), (1, 1.0)]
    assert found[1].wall_time < found[0].wall_time
