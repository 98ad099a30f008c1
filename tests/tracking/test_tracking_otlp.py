"""OTLP against a collector on loopback that speaks the real protocol."""

from __future__ import annotations

import math
import time

import pytest

from probe.errors import BackendError
from probe.tracking import lane as lane_module
from probe.tracking.media import Histogram, Span
from probe.tracking.tracking import Tracking
from tests.tracking.tracking_readers import otlp_attributes, otlp_points, read_otlp_from


@pytest.fixture
def endpoint(collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setattr(lane_module, "BACK_OFF_S", (0.01, 0.05))
    return collector


def spans(collector):
    for request in collector.traces:
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                yield from scope.spans


def test_names_units_times_and_resource(endpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "my trainer")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "rl.algorithm=grpo,team=a%20b")
    begin = time.time_ns()
    with Tracking("p", "e", "otlp", directory=tmp_path) as tracking:
        tracking.log(
            {"actor/loss": 0.5, "probe/memory/actor/peak_allocated_gib_max": 2.0, "probe/memory/peak_rss_gib_max": 1.0},
            7,
        )
    points = {metric.name: (metric, point, attributes) for metric, point, attributes in otlp_points(endpoint)}
    assert set(points) == {
        "rl.actor.loss",
        "hw.gpu.memory.usage",
        "process.memory.usage",
        "rl.step",
        "rl.run.exit_code",
    }
    metric, point, attributes = points["hw.gpu.memory.usage"]
    assert (metric.unit, point.as_double) == ("By", 2.0 * 1024**3)
    assert attributes["rl.scope"] == "actor"
    assert begin <= point.time_unix_nano <= time.time_ns()
    assert points["rl.step"][1].as_int == 7
    assert points["rl.run.exit_code"][1].as_int == 0
    resource = otlp_attributes(endpoint.metrics[-1].resource_metrics[0].resource.attributes)
    assert resource["service.name"] == "my trainer"
    assert (resource["rl.algorithm"], resource["team"], resource["rl.system"]) == ("grpo", "a b", "probe")
    assert resource["rl.run.id"] == tracking.logger["otlp"].run_id


def test_spans_histograms_and_parameters(endpoint):
    now = time.time_ns()
    phases = {"gen": Span(now, now + 5, {"tokens": 3}), "update_actor": Span(now + 5, now + 9, error="OOM")}
    with Tracking("p", "e", "otlp", {"a": {"lr": 0.5}}) as tracking:
        tracking.log({**phases, "step": Span(now, now + 9), "lengths": Histogram.from_values([1, 2, 2, 5], bins=2)}, 4)
        tracking.log({"gen": Span(now + 20, now + 25)}, 5)
    config, *found = list(spans(endpoint))
    assert otlp_attributes(config.attributes)["rl.config.a/lr"] == 0.5
    assert [span.name for span in found] == ["rl.sample", "rl.train", "rl.loop", "rl.sample"]
    sample, train, loop, later = found
    assert sample.parent_span_id == train.parent_span_id == loop.span_id
    assert sample.trace_id == train.trace_id == loop.trace_id != later.trace_id
    assert (len(loop.trace_id), len(loop.span_id), loop.parent_span_id) == (16, 8, b"")
    assert (train.status.code, train.status.message, sample.status.code) == (2, "OOM", 0)
    assert otlp_attributes(sample.attributes)["tokens"] == 3
    (histogram,) = [point for metric, point, _ in otlp_points(endpoint) if metric.name == "rl.lengths"]
    assert (histogram.count, list(histogram.bucket_counts)) == (4, [0, 3, 1, 0])
    assert list(histogram.explicit_bounds) == [1.0, 3.0, 5.0]


def test_a_collector_that_answers_500_gets_everything_later_in_order(endpoint):
    incidents = []
    with Tracking("p", "e", "otlp", on_incident=incidents.append) as tracking:
        endpoint.answers = [500, 503, 429, 500]
        for step in range(20):
            tracking.log({"x": step}, step)
        assert tracking.flush()
    assert read_otlp_from(endpoint)(tracking, None) == {"x": [(step, float(step)) for step in range(20)]}
    assert [one.kind for one in incidents] == ["backend", "backend"]
    assert (incidents[0].message.count("500"), incidents[1].count) == (1, 3)


def test_what_the_collector_refuses_is_put_aside_with_its_error(endpoint, tmp_path):
    incidents = []
    with Tracking("p", "e", "otlp", directory=tmp_path, on_incident=incidents.append) as tracking:
        endpoint.answers = [400] * lane_module.ATTEMPTS
        tracking.log({"x": 1}, 1)
        tracking.log({"x": 2}, 2)
        assert tracking.flush()
    assert read_otlp_from(endpoint)(tracking, None) == {"x": [(2, 2.0)]}
    refused = (tmp_path / "tracking" / "otlp.refused.jsonl").read_text()
    assert '"step":1' in refused
    assert "400" in refused
    assert any("refuses the values of step 1" in one.message for one in incidents)


def test_values_that_the_collector_drops_are_told(endpoint):
    incidents = []
    endpoint.rejected = 3
    with Tracking("p", "e", "otlp", on_incident=incidents.append) as tracking:
        tracking.log({"x": 1}, 1)
    assert "rejected 3 values: too old" in incidents[0].message


def test_headers_compression_and_endpoints(collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"{collector.url}/v1/metrics")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Basic%20abc,X-Scope=7")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    with Tracking("p", "e", "otlp") as tracking:
        tracking.log({"x": math.nan}, 1)
    sent = collector.headers[-1]
    assert (sent["Authorization"], sent["X-Scope"], sent["Content-Encoding"]) == ("Basic abc", "7", "gzip")
    ((_, value),) = read_otlp_from(collector)(tracking, None)["x"]
    assert math.isnan(value)


def test_what_it_does_not_speak_is_a_loud_error(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(BackendError, match="http/protobuf"):
        Tracking("p", "e", "otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "127.0.0.1:4318")
    with pytest.raises(BackendError, match="http://"):
        Tracking("p", "e", "otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(BackendError, match="can't reach"):
        Tracking("p", "e", "otlp")


@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_CERTIFICATE", "OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE"])
def test_a_certificate_that_is_not_there_is_an_error_at_the_start(endpoint, tmp_path, monkeypatch, variable):
    """Else the collector would be trusted by other certificates than those that the environment names."""
    monkeypatch.setenv(variable, str(tmp_path / "none.pem"))
    with pytest.raises(BackendError, match="otlp"):
        Tracking("p", "e", "otlp", directory=tmp_path)
