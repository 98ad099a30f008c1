"""What tests of tracking share: a plain environment, real servers on loopback, and readers of what backends wrote."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import os
import threading
import urllib.error
import urllib.request

import pytest

from probe.tracking.tracking import Tracking
from tests.waiting import PATIENCE_S, until

PREFIXES = ("MLFLOW_", "TENSORBOARD_DIR", "PROBE_FILE_", "VERL_FILE_", "WANDB_", "SWANLAB_", "TRACKIO_", "OTEL_")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith(PREFIXES)]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def patient_ends(monkeypatch):
    """The end of a run gives up what isn't sent in ten seconds, and a loaded machine needs more. Tests of that limit
    say one of their own.
    """
    monkeypatch.setattr(Tracking.finish, "__defaults__", (None, PATIENCE_S))
    monkeypatch.setattr(Tracking.flush, "__defaults__", (PATIENCE_S,))
    monkeypatch.setattr("probe.session.patience.END_S", PATIENCE_S)


@pytest.fixture(scope="session")
def mlflow_database(tmp_path_factory):
    """One for all tests that need no other: making its tables takes seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow-database') / 'mlflow.db'}"


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

    def settle(self):
        """Until it has answered all that was sent to it, also by a process that has been killed meanwhile."""
        with contextlib.suppress(urllib.error.HTTPError):  # it takes requests one after the other, this one last
            last = urllib.request.Request(f"{self.url}/settled", b"", {"Content-Type": "application/x-protobuf"})
            urllib.request.urlopen(last, timeout=PATIENCE_S)
        until(lambda: not any("process_request_thread" in one.name for one in threading.enumerate()))

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE_S)


@pytest.fixture
def collector():
    one = Collector()
    yield one
    one.close()
