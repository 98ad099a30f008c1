"""What tests of tracking share: a plain environment, real servers on loopback, and readers of what backends wrote."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request

import pytest

from tests.ports import free_port

PREFIXES = ("MLFLOW_", "TENSORBOARD_DIR", "PROBE_FILE_", "VERL_FILE_", "WANDB_", "SWANLAB_", "TRACKIO_", "OTEL_")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith(PREFIXES)]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def mlflow_database(tmp_path_factory):
    """One for all tests that need no other: making its tables takes seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow-database') / 'mlflow.db'}"


class MLflowServer:
    """A real one, that can be stopped and started again on its port with its data."""

    def __init__(self, place, port=None):
        self.place = place
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process = None

    def start(self):
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{self.place / 'server.db'}"]
        command += ["--artifacts-destination", str(self.place / "art")]
        environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
        environment["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"  # ten processes that nothing here needs
        with (self.place / "log").open("ab") as log:
            # A session of its own: the server has workers, and all of them must end with the test.
            self._process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, cwd=self.place, start_new_session=True
            )
        deadline = time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=5):
                return
            assert self._process.poll() is None, (self.place / "log").read_text()
            assert time.monotonic() < deadline, "the MLflow server didn't start"
            time.sleep(0.2)

    def stop(self):
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)  # its orderly end takes ten seconds, and nothing needs it
            self._process.wait(60)
            self._process = None


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory):
    server = MLflowServer(tmp_path_factory.mktemp("mlflow-server"))
    try:
        server.start()
        yield server.url
    finally:
        server.stop()


@pytest.fixture
def own_mlflow_server(tmp_path_factory):
    """One that the test may stop and start."""
    server = MLflowServer(tmp_path_factory.mktemp("own-mlflow-server"))
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def trackio_directory(tmp_path_factory):
    """One for all tests: Trackio reads the variable once in a process."""
    return str(tmp_path_factory.mktemp("trackio"))


class Collector:
    """An OpenTelemetry collector's side of OTLP over HTTP: takes protobuf, answers protobuf."""

    def __init__(self):
        self.metrics = []
        self.traces = []
        self.headers = []
        self.answers = []  # status codes for the next requests, instead of 200
        self.rejected = 0
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                collector._take(self)

            def log_message(self, *args):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def _take(self, handler):
        from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_service
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_service

        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        assert handler.headers["Content-Type"] == "application/x-protobuf"
        if handler.headers["Content-Encoding"] == "gzip":
            body = gzip.decompress(body)
        code = self.answers.pop(0) if self.answers else 200
        answer = b""
        if code == 200:
            self.headers.append(dict(handler.headers))
            if handler.path == "/v1/metrics":
                self.metrics.append(metrics_service.ExportMetricsServiceRequest.FromString(body))
                made = metrics_service.ExportMetricsServiceResponse()
                if self.rejected:
                    made.partial_success.rejected_data_points = self.rejected
                    made.partial_success.error_message = "too old"
                answer = made.SerializeToString()
            elif handler.path == "/v1/traces":
                self.traces.append(trace_service.ExportTraceServiceRequest.FromString(body))
                answer = trace_service.ExportTraceServiceResponse().SerializeToString()
            else:
                code = 404
        handler.send_response(code)
        handler.send_header("Content-Type", "application/x-protobuf")
        handler.send_header("Content-Length", str(len(answer)))
        handler.end_headers()
        handler.wfile.write(answer)

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)


@pytest.fixture
def collector():
    one = Collector()
    yield one
    one.close()
