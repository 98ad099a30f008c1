"""Metrics and spans for an OpenTelemetry collector: OTLP over HTTP, as protobuf (OTLP 1.x, section "OTLP/HTTP").

Requests are built here rather than by the SDK: its readers aggregate and forget, while each value that is logged has to
arrive, with its own time, and an export that fails has to be known.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import platform
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from probe.errors import BackendError, MissingDependencyError
from probe.redaction import without_logins
from probe.tracking.backends.base import Backend, Setup, UnreachableError, wall_ns_of
from probe.tracking.backends.otlp_names import Named, metric_name, span_name
from probe.tracking.media import Histogram, Medium, Span, Spans
from probe.tracking.reach import unanswered

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue
    from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, NumberDataPoint
    from opentelemetry.proto.trace.v1.trace_pb2 import Span as TraceSpan

_DEFAULT: Final = "http://localhost:4318"
#: Metrics in one request: collectors refuse bodies of more than some megabytes.
METRICS: Final = 2000


class OTLP(Backend):
    """Gauges, histograms and spans under the names of the proposed ``rl.*`` and of the ``hw.gpu.*`` conventions.

    * A metric ``actor/loss`` is the gauge ``rl.actor.loss``; memory that probe has measured is
      ``hw.gpu.memory.usage`` in bytes. The attribute ``rl.metric.name`` holds the name that was logged.
    * The step is a gauge of its own, ``rl.step``, and an exemplar's attribute at each point: as an attribute
      of the point it would make every step a new time series.
    * A ``media.Span`` is a span, a ``media.Spans`` several; those of one step share a trace. The configuration is a
      span ``rl.config``, the description a span ``rl.summary``; tags are attributes of the resource.
    * A call that is sent again holds the same series and times, and spans the same ids.

    Environment as for every exporter: ``OTEL_EXPORTER_OTLP_ENDPOINT`` (by default http://localhost:4318),
    ``…_METRICS_ENDPOINT``, ``…_TRACES_ENDPOINT``, ``…_HEADERS``, ``…_TIMEOUT`` (seconds), ``…_COMPRESSION``,
    ``…_CERTIFICATE``, ``OTEL_SERVICE_NAME``, ``OTEL_RESOURCE_ATTRIBUTES``.

    Raises:
        MissingDependencyError: Without the package opentelemetry-proto.
        UnreachableError: The collector doesn't answer.
        BackendError: It refuses, or another protocol is asked for.
    """

    shows = frozenset({"histogram", "span", "spans"})
    places: ClassVar = {
        "params": "span `rl.config`",
        "describe": "span `rl.summary`",
        "tag": "resource attributes",
        "exit_code": "`rl.run.exit_code`",
    }

    @classmethod
    def reach(cls, directory: Path | None) -> tuple[str, str]:
        """Whether the collector answers."""
        del directory  # nothing is written there
        url = _endpoint("METRICS")
        why = unanswered(url)
        return "reachable", f"{url}: {why}" if why else ""

    def __init__(self, setup: Setup) -> None:
        try:
            from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
            from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
        except ImportError as error:
            raise MissingDependencyError.of("backend 'otlp'", "opentelemetry-proto", "otlp") from error
        self._metrics: Any = metrics_service_pb2
        self._traces: Any = trace_service_pb2
        self._report = setup.report
        protocol = _variable("PROTOCOL", "METRICS") or "http/protobuf"
        if protocol != "http/protobuf":
            raise BackendError(f"backend 'otlp': got OTEL_EXPORTER_OTLP_PROTOCOL={protocol}, expected http/protobuf")
        self.location = _endpoint("METRICS")
        self.run_id = setup.run_id("otlp")
        self._resource = _resource(setup, self.run_id)
        self._post = Poster()
        try:
            self._send_metrics([])  # collectors answer an empty request
        except ConnectionError as error:
            raise UnreachableError(f"backend 'otlp' can't reach {without_logins(self.location)}: {error}") from error

    def log(self, values: dict[str, float], step: int) -> None:
        """Send the numbers of one step."""
        wall_ns = wall_ns_of(values)
        named = [(metric_name(name), name, value) for name, value in values.items()]
        metrics = [self._gauge(*one, step, wall_ns) for one in named]
        metrics.append(self._gauge(Named("rl.step", "{step}"), "", step, step, wall_ns))
        for start in range(0, len(metrics), METRICS):
            self._send_metrics(metrics[start : start + METRICS])

    def _gauge(self, named: Named, name: str, value: float, step: int, wall_ns: int) -> Metric:
        from opentelemetry.proto.metrics.v1 import metrics_pb2

        metric = metrics_pb2.Metric(name=named.name, unit=named.unit)
        point = metric.gauge.data_points.add(time_unix_nano=wall_ns)
        if isinstance(value, int):
            point.as_int = value
        else:
            point.as_double = value * named.factor
        self._stamp(point, named, name, step, wall_ns)
        return metric

    def _stamp(self, point: Any, named: Named, name: str, step: int, wall_ns: int) -> None:
        if name:
            point.attributes.extend(_pairs({"rl.metric.name": _clean(name), **named.attributes}))
        exemplar = point.exemplars.add(time_unix_nano=wall_ns)
        if hasattr(point, "as_double"):
            exemplar.as_double = cast("NumberDataPoint", point).as_double
        exemplar.filtered_attributes.extend(_pairs({"rl.step": step}))

    def show(self, name: str, medium: Medium, step: int, wall_ns: int) -> None:
        """Send one histogram, one span, or the spans of a step."""
        if isinstance(medium, Histogram):
            self._send_metrics([self._histogram(name, medium, step, wall_ns)])
        elif isinstance(medium, Span):
            self._send_span(name, medium, step)
        elif isinstance(medium, Spans):
            self._show_spans(medium, step)

    def _histogram(self, name: str, histogram: Histogram, step: int, wall_ns: int) -> Metric:
        from opentelemetry.proto.metrics.v1 import metrics_pb2

        named = metric_name(name)
        metric = metrics_pb2.Metric(name=named.name, unit=named.unit)
        metric.histogram.aggregation_temporality = metrics_pb2.AGGREGATION_TEMPORALITY_DELTA
        counts = [round(count) for count in histogram.counts]
        point = metric.histogram.data_points.add(
            time_unix_nano=wall_ns,
            start_time_unix_nano=wall_ns - 1,
            count=sum(counts),
            explicit_bounds=[edge * named.factor for edge in histogram.edges],
            bucket_counts=[0, *counts, 0],
        )
        self._stamp(point, named, name, step, wall_ns)
        return metric

    def _send_span(self, name: str, span: Span, step: int) -> None:
        number = _identity(8, self.run_id, name, step, span.begin_ns)
        self._send_spans([self._span(name, span, step, number, self._loop(step))])

    def _show_spans(self, spans: Spans, step: int) -> None:
        loop = next((one.number for one in spans.spans if span_name(one.name) == "rl.loop"), None)
        ids: dict[int | None, bytes] = {
            one.number: _identity(8, self.run_id, step, one.number, one.begin_ns) for one in spans.spans
        }
        ids |= {loop: self._loop(step)} if loop is not None else {}
        known = ((one, ids.get(one.parent, self._loop(step))) for one in spans.spans)
        self._send_spans([self._span(one.name, one, step, ids[one.number], parent) for one, parent in known])

    def _loop(self, step: int) -> bytes:
        """The id of the span that holds the whole step."""
        return _identity(8, self.run_id, "rl.loop", step)

    def _span(self, name: str, span: Span, step: int, number: bytes, parent: bytes) -> TraceSpan:
        from opentelemetry.proto.trace.v1 import trace_pb2

        own = span_name(name)
        is_loop = own == "rl.loop"
        made = trace_pb2.Span(
            trace_id=_identity(16, self.run_id, step),
            span_id=self._loop(step) if is_loop else number,
            parent_span_id=b"" if is_loop else parent,
            name=own,
            kind=trace_pb2.Span.SPAN_KIND_INTERNAL,
            start_time_unix_nano=span.begin_ns,
            end_time_unix_nano=span.end_ns,
            attributes=_pairs({"rl.step": step, "rl.phase": _clean(name), **span.attributes}),
        )
        if span.error:
            made.status.code, made.status.message = trace_pb2.Status.STATUS_CODE_ERROR, _clean(span.error)
        return made

    def _send_spans(self, spans: list[TraceSpan]) -> None:
        request = self._traces.ExportTraceServiceRequest()
        scope = self._fill(request.resource_spans.add()).scope_spans.add()
        scope.scope.name = "probe"
        scope.spans.extend(spans)
        answer = self._traces.ExportTraceServiceResponse()
        answer.ParseFromString(self._post("TRACES", request.SerializeToString()))
        rejected = answer.partial_success.rejected_spans
        if rejected:
            message = f"the collector has rejected {rejected} spans: {answer.partial_success.error_message}"
            self._report("rejected spans", message)

    def params(self, parameters: dict[str, Any]) -> None:
        """Show the configuration, as the attributes of a span."""
        now = time.time_ns()
        attributes = {f"rl.config.{_clean(name)}": value for name, value in parameters.items()}
        self._send_span("rl.config", Span(now, now, attributes), 0)

    def describe(self, markdown: str) -> None:
        """As the attribute ``rl.summary`` of a span of that name."""
        now = time.time_ns()
        self._send_span("rl.summary", Span(now, now, {"rl.summary": markdown}), 0)

    def tag(self, tags: dict[str, str]) -> None:
        """As attributes ``rl.tag.<name>`` of the resource, from here on."""
        self._resource |= {f"rl.tag.{_clean(name)}": value for name, value in tags.items()}

    def close(self, exit_code: int) -> None:
        """Tell how the run has ended: the gauge ``rl.run.exit_code``."""
        now = time.time_ns()
        self._send_metrics([self._gauge(Named("rl.run.exit_code", "1"), "", exit_code, 0, now)])

    def _send_metrics(self, metrics: list[Metric]) -> None:
        request = self._metrics.ExportMetricsServiceRequest()
        if metrics:
            scope = self._fill(request.resource_metrics.add()).scope_metrics.add()
            scope.scope.name = "probe"
            scope.metrics.extend(metrics)
        answer = self._metrics.ExportMetricsServiceResponse()
        answer.ParseFromString(self._post("METRICS", request.SerializeToString()))
        rejected = answer.partial_success.rejected_data_points
        if rejected:  # the protocol forbids sending those again
            message = f"the collector has rejected {rejected} values: {answer.partial_success.error_message}"
            self._report("rejected", message)

    def _fill(self, holder: Any) -> Any:
        holder.resource.attributes.extend(_pairs(self._resource))
        return holder


class Poster:
    """Posts to the endpoints that the environment names."""

    def __init__(self) -> None:
        self._timeout_s = float(_variable("TIMEOUT", "METRICS") or 10.0)
        self._gzip = _variable("COMPRESSION", "METRICS") == "gzip"
        certificate = _variable("CERTIFICATE", "METRICS")
        self._context = ssl.create_default_context(cafile=certificate) if certificate else None

    def __call__(self, signal: str, body: bytes) -> bytes:
        """The collector's answer.

        Raises:
            ConnectionError: It may take the same later (no answer, 408, 429, 5xx).
            BackendError: It won't (another 4xx).
        """
        headers = {"Content-Type": "application/x-protobuf", **_headers(signal)}
        if self._gzip:
            body, headers["Content-Encoding"] = gzip.compress(body, 1), "gzip"
        request = urllib.request.Request(_endpoint(signal), data=body, headers=headers)  # noqa: S310  (see _endpoint)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s, context=self._context) as answer:  # noqa: S310  (as above)
                return cast("bytes", answer.read())
        except urllib.error.HTTPError as error:
            with error:
                text = f"{error.code} {error.reason}"
            if error.code in {408, 429} or error.code >= 500:
                raise ConnectionError(text) from error
            raise BackendError(f"backend 'otlp': {without_logins(request.full_url)} answers {text}") from error
        except OSError as error:
            raise ConnectionError(str(error)) from error


def _variable(name: str, signal: str) -> str:
    prefix = "OTEL_EXPORTER_OTLP"
    return (os.environ.get(f"{prefix}_{signal}_{name}") or os.environ.get(f"{prefix}_{name}") or "").strip()


def _endpoint(signal: str) -> str:
    own = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    base = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or _DEFAULT
    url = own or f"{base.rstrip('/')}/v1/{signal.lower()}"
    if not url.startswith(("http://", "https://")):
        raise BackendError(
            f"backend 'otlp': got the endpoint {without_logins(url)!r}, expected one that begins with http:// or https://"
        )
    return url


def _headers(signal: str) -> dict[str, str]:
    return _listed(_variable("HEADERS", signal))


def _listed(text: str) -> dict[str, str]:
    """``a=1,b=2`` with percent escapes, as in W3C Baggage, which OpenTelemetry's variables follow."""
    pairs = (part.partition("=") for part in text.split(",") if "=" in part)
    return {key.strip(): urllib.parse.unquote(value.strip()) for key, _, value in pairs}


def _resource(setup: Setup, run_id: str) -> dict[str, Any]:
    given = _listed(os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    named = os.environ.get("OTEL_SERVICE_NAME") or given.get("service.name") or setup.project
    own = {
        "rl.system": "probe",
        "rl.project": setup.project,
        "rl.experiment": setup.experiment,
        "rl.run.id": run_id,
        "host.name": platform.node(),
        "process.pid": os.getpid(),
    }
    return own | given | {"service.name": named}


def _pairs(attributes: Mapping[str, Any]) -> list[KeyValue]:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

    made: list[KeyValue] = []
    for key, value in attributes.items():
        if isinstance(value, bool):
            any_value = AnyValue(bool_value=value)
        elif isinstance(value, int) and -(2**63) <= value < 2**63:
            any_value = AnyValue(int_value=value)
        elif isinstance(value, float):
            any_value = AnyValue(double_value=value)
        else:
            any_value = AnyValue(string_value="" if value is None else _clean(str(value)))
        made.append(KeyValue(key=key, value=any_value))
    return made


def _clean(text: str) -> str:
    """Without the half characters that UTF-8 has no bytes for."""
    return text.encode("utf-8", "backslashreplace").decode()


def _identity(length: int, *parts: object) -> bytes:
    return hashlib.sha256("\0".join(map(str, parts)).encode("utf-8", "backslashreplace")).digest()[:length]
