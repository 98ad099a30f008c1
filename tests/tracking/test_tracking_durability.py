"""Nothing is lost, nothing comes twice: a real MLflow server that stops and comes back, processes that are killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import pytest

from probe.tracking.journal import unsent
from probe.tracking.recovery import recover
from probe.tracking.tracking import Tracking
from tests.tracking.tracking_readers import mlflow_client, read_mlflow_run, tensorboard_scalars
from tests.waiting import PATIENCE_S, until

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def impatient_mlflow(monkeypatch):
    """Its client alone would try for minutes; ours is the back-off that is tested."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr("probe.tracking.lane.BACK_OFF_S", (0.05, 0.5))


class Proxy:
    """TCP in front of a server: passes on, holds back for a while, swallows answers, or refuses."""

    def __init__(self, port):
        self.target = port
        self.delay_s = 0.0
        self.swallow = 0  # so many answers get lost on their way
        self.delayed = 0  # so many pieces were held back
        self.answers = 0  # so many pieces came from the server, those that got lost among them
        self._sockets = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open = True
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self):
        while self._open:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target), 5)
            except OSError:
                client.close()
                continue
            self._sockets |= {client, server}
            for source, sink, answers in ((client, server, False), (server, client, True)):
                thread = threading.Thread(target=self._pump, args=(source, sink, answers), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pump(self, source, sink, answers):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self.delay_s:
                    time.sleep(self.delay_s)
                    self.delayed += 1
                self.answers += answers
                if answers and self.swallow > 0:
                    self.swallow -= 1
                    break
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def leave(self):
        """Nobody answers at this address any more, as where the server has stopped: to start that takes seconds."""
        self._open = False
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join(PATIENCE_S)  # it adds to the sockets
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def come_back(self):
        self._listener = socket.create_server(("127.0.0.1", int(self.url.rsplit(":", 1)[1])))
        self._open, self._sockets = True, set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    close = leave


@pytest.fixture
def proxy(own_mlflow_server):
    one = Proxy(own_mlflow_server.port)
    yield one
    one.close()


def expected(steps):
    return {"x": [(step, float(step)) for step in range(steps)], "y/z": [(step, -step / 7) for step in range(steps)]}


def log(tracking, steps):
    for step in steps:
        tracking.log({"x": step, "y/z": -step / 7}, step)


def in_steps(found):
    return {name: sorted(points) for name, points in found.items()}


@pytest.mark.slow
def test_a_server_that_is_slow_then_loses_answers_then_stops_has_every_value_once(
    own_mlflow_server, proxy, tmp_path, monkeypatch
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", proxy.url)
    incidents = []
    with Tracking("p", "e", ["mlflow", "file"], directory=tmp_path, on_incident=incidents.append) as tracking:
        run_id = tracking.logger["mlflow"].run_id
        log(tracking, range(20))
        proxy.delay_s = 0.15
        log(tracking, range(20, 40))
        until(lambda: proxy.delayed)
        proxy.delay_s, proxy.swallow = 0.0, 4
        log(tracking, range(40, 60))
        until(lambda: proxy.swallow, lambda left: left == 0)
        own_mlflow_server.stop()
        log(tracking, range(60, 100))  # training doesn't wait: the server comes back after it only
        until(lambda: lines(tmp_path / "metrics.jsonl"), lambda count: count == 100)  # nor does the neighbour
        until(lambda: [one.where for one in incidents], lambda told: "mlflow" in told)
        own_mlflow_server.start()
        assert tracking.flush()
    found = read_mlflow_run(own_mlflow_server.url, run_id)
    assert found == expected(100)
    assert mlflow_client(own_mlflow_server.url).get_run(run_id).info.status == "FINISHED"
    assert {one.kind for one in incidents} == {"backend"}


def lines(path):
    return len(path.read_bytes().splitlines()) if path.exists() else 0


@pytest.mark.slow
def test_a_killed_process_is_completed_by_the_next_start_in_the_same_run(
    own_mlflow_server, proxy, tmp_path, monkeypatch
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", proxy.url)
    script = """
        import os, signal, sys, time
        from probe.tracking.tracking import Tracking
        from probe.tracking.journal import unsent
        tracking = Tracking("killed", "e", ["mlflow", "file", "tensorboard"], directory=sys.argv[1])
        for step in range(30):
            tracking.log({"x": step, "y/z": -step / 7}, step)
        assert tracking.flush(300)
        print(tracking.logger["mlflow"].run_id, flush=True)
        sys.stdin.readline()  # the server goes away meanwhile
        for step in range(30, 60):
            tracking.log({"x": step, "y/z": -step / 7}, step)
        while not tracking._stream._journal.last == 60:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    with python(script, tmp_path) as process:
        run_id = process.stdout.readline().strip()
        proxy.leave()
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait(300) == -signal.SIGKILL
    assert unsent(tmp_path)["mlflow"] == 30
    # Still away: the next start isn't held up, and sends when the server is there.
    incidents = []
    backends = ["mlflow", "file", "tensorboard"]
    with Tracking("killed", "e", backends, directory=tmp_path, on_incident=incidents.append) as tracking:
        assert any("can't be reached yet" in one.message for one in incidents)
        log(tracking, range(60, 70))
        proxy.come_back()
        assert tracking.flush()
    assert read_mlflow_run(own_mlflow_server.url, run_id) == expected(70)
    client = mlflow_client(own_mlflow_server.url)
    (experiment,) = client.search_experiments(filter_string="name = 'killed'")
    assert [run.info.run_id for run in client.search_runs([experiment.experiment_id])] == [run_id]
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == list(range(70))
    found = tensorboard_scalars(tmp_path / "tensorboard")
    assert [event.step for event in found["x"]] == list(range(70))
    assert unsent(tmp_path) == {}
    assert list((tmp_path / "tracking").glob("journal-*")) == []


@contextlib.contextmanager
def python(script, *arguments):
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow
def test_kills_at_any_moment_leave_nothing_out_and_nothing_twice(tmp_path):
    script = """
        import os, signal, sys, threading
        from probe.tracking.tracking import Tracking
        first, moment = int(sys.argv[2]), float(sys.argv[3])
        tracking = Tracking("p", "e", ["file", "tensorboard"], directory=sys.argv[1])
        journal = tracking._stream._journal
        print("go", flush=True)
        for step in range(first, first + 400):
            tracking.log({"x": step}, step)
            if step % 20 == 19:
                while tracking._stream._queue: pass
        threading.Event().wait(moment)
        while journal.last < first + 400: pass
        os.kill(os.getpid(), signal.SIGKILL)
    """
    for number, moment in enumerate((0.0, 0.003, 0.01)):
        with python(script, tmp_path, number * 400, moment) as process:
            assert process.wait(300) == -signal.SIGKILL
    with Tracking("p", "e", ["file", "tensorboard"], directory=tmp_path) as tracking:
        assert tracking.flush()
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1200))
    assert [event.step for event in tensorboard_scalars(tmp_path / "tensorboard")["x"]] == list(range(1200))


@pytest.mark.slow
def test_a_run_that_ended_while_its_server_was_away_is_completed_later(own_mlflow_server, proxy, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", proxy.url)
    incidents = []
    tracking = Tracking("p", "e", "mlflow", directory=tmp_path, on_incident=incidents.append)
    run_id = tracking.logger["mlflow"].run_id
    log(tracking, range(10))
    assert tracking.flush()
    proxy.leave()
    log(tracking, range(10, 30))
    until(lambda: tracking._stream._journal.last, lambda last: last == 30)
    tracking.finish(3, timeout_s=2)  # it ends, though the server is away for as long as that takes
    assert any("20 calls are kept" in one.message for one in incidents)
    assert recover(tmp_path, timeout_s=1) == {"mlflow": 20}  # it's still away
    proxy.come_back()
    assert recover(tmp_path, timeout_s=300) == {}
    assert read_mlflow_run(own_mlflow_server.url, run_id) == expected(30)
    assert mlflow_client(own_mlflow_server.url).get_run(run_id).info.status == "FAILED"


# ------------------------------------------------------------------------------------------- disks and directories


def test_a_full_disk_costs_nothing_once_there_is_room_again(tmp_path):
    script = """
        import json, resource, sys, time
        from probe.tracking.tracking import Tracking
        incidents = []
        backends = ["file", "tensorboard"]
        tracking = Tracking("p", "e", backends, directory=sys.argv[1], on_incident=incidents.append)
        for step in range(20):
            tracking.log({"x": step}, step)
        assert tracking.flush(300)
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))  # each file is full in the middle of a line
        for step in range(20, 120):
            tracking.log({"x": step}, step)
        deadline = time.monotonic() + 300
        while len({one.where for one in incidents}) < 3:
            assert time.monotonic() < deadline, incidents
            time.sleep(0.01)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        tracking.log({"x": 120}, 120)
        assert tracking.flush(300)
        tracking.finish()
        print(json.dumps(sorted({one.where for one in incidents})))
    """
    with python(script, tmp_path) as process:
        told = process.stdout.read()
        assert process.wait(PATIENCE_S) == 0
    assert json.loads(told) == ["file", "journal", "tensorboard"]
    good = []
    for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
        with contextlib.suppress(ValueError):
            good.append(json.loads(line)["step"])
    assert good == list(range(121))
    assert [event.step for event in tensorboard_scalars(tmp_path / "tensorboard")["x"]] == list(range(121))


def test_a_disk_that_is_full_to_the_end_keeps_only_what_it_has_and_the_rest_is_told_as_lost(tmp_path):
    script = """
        import json, resource, sys
        from probe.tracking.tracking import Tracking
        incidents = []
        tracking = Tracking("p", "e", ["file"], directory=sys.argv[1], on_incident=incidents.append)
        for step in range(20):
            tracking.log({"x": step}, step)
        assert tracking.flush(300)
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))
        for step in range(20, 120):
            tracking.log({"x": step}, step)
        tracking.finish(timeout_s=2)
        print(json.dumps([(one.kind, one.count, one.message) for one in incidents if one.where == "file"]))
    """
    with python(script, tmp_path) as process:
        told = json.loads(process.stdout.read())
        assert process.wait(PATIENCE_S) == 0
    sent = len((tmp_path / "metrics.jsonl").read_text().splitlines())
    kept = sum(count for _, count, message in told if "kept in" in message)
    ((kind, lost, _),) = [one for one in told if "lost" in one[2]]
    assert (kind, kept) == ("dropped_rows", unsent(tmp_path).get("file", 0))
    assert lost > 0
    assert 119 <= sent + kept + lost <= 121  # half a line may stand at the end


def test_a_directory_that_cannot_be_written_is_told_and_the_backends_go_on(tmp_path, collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tracking").write_text("not a folder: root may write into a folder without permission")
    incidents = []
    with Tracking("p", "e", ["otlp"], directory=tmp_path / "run", on_incident=incidents.append) as tracking:
        log(tracking, range(10))
    assert len(collector.metrics) == 1 + 10 + 1
    assert [(one.where, "in memory only" in one.message) for one in incidents] == [("journal", True)]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="drops root's rights to be refused")
def test_a_read_only_directory_is_told_and_the_backends_go_on(collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are closed to other users
        Path(folder).chmod(0o755)
        run = Path(folder, "run")
        run.mkdir(mode=0o555)
        _log_as_nobody(run)
        assert len(collector.metrics) == 1 + 10 + 1
        assert list(run.iterdir()) == []


def _log_as_nobody(run):
    script = """
        import os, sys
        from probe.tracking.backends import otlp
        from probe.tracking.backends import console
        from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
        from probe.tracking.tracking import Tracking
        import encodings.idna
        os.seteuid(65534)
        incidents = []
        with Tracking("p", "e", ["otlp"], directory=sys.argv[1], on_incident=incidents.append) as tracking:
            for step in range(10):
                tracking.log({"x": step}, step)
            assert tracking.flush(300)
        os.seteuid(0)
        print([one.where for one in incidents])
    """
    with python(script, run) as process:
        assert process.stdout.read().strip() == "['journal']"
        assert process.wait(PATIENCE_S) == 0


def test_two_processes_in_one_directory_do_not_mix(tmp_path):
    first_told, second_told = [], []
    with Tracking("p", "e", "file", directory=tmp_path, on_incident=first_told.append) as first:
        with Tracking("p", "e", "file", directory=tmp_path, on_incident=second_told.append) as second:
            second.log({"b": 1}, 1)
        first.log({"a": 1}, 1)
    assert first_told == []
    assert [one.where for one in second_told] == ["journal"]
    assert lines(tmp_path / "metrics.jsonl") == 2
