"""A session's steps and phases as spans: from its real rows to the collector."""

from __future__ import annotations

import time

import pytest

from probe import session as session_module
from probe.hooks import scope
from probe.records import Call, Memory, Process
from probe.tracking.spans import NAME, StepSpans, spans_of
from probe.tracking.tracking import Tracking
from tests.tracking.tracking_readers import otlp_attributes


def update():
    with scope("phase", "update_actor", phase="update_actor"):
        for index in range(2):
            with scope("micro_batch", f"micro_batch {index}", micro_batch=index):
                pass
        raise ValueError("bad luck")


@pytest.mark.parametrize("recorders", [["calls", "memory"], ["calls"]])
def test_a_sessions_steps_arrive_nested_with_wall_clock_times(recorders, collector, tmp_path, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    tracking = Tracking("p", "e", ["otlp", "file"], directory=tmp_path / "tracking")
    begin = time.time_ns()
    session = session_module.start(
        "p", "e", run_dir=tmp_path / "run", track=tracking, recorders=recorders, publish=False
    )
    for step in (1, 2):
        with session.step(step):
            with scope("phase", "gen", phase="gen"):
                pass
            with pytest.raises(ValueError, match="bad"):
                update()
    session.close()
    sent = [list(request.resource_spans[0].scope_spans[0].spans) for request in collector.traces]
    found = [spans for spans in sent if spans[0].name == "rl.loop"]
    assert len(found) == 2
    for step, made in enumerate(found, 1):
        loop, sample, train, first, second = made
        assert [span.name for span in made[:3]] == ["rl.loop", "rl.sample", "rl.train"]
        assert (loop.parent_span_id, sample.parent_span_id, train.parent_span_id) == (b"", loop.span_id, loop.span_id)
        assert first.parent_span_id == second.parent_span_id == train.span_id
        assert {span.trace_id for span in made} == {loop.trace_id}
        assert begin - 10**9 <= loop.start_time_unix_nano <= train.start_time_unix_nano <= train.end_time_unix_nano
        assert train.end_time_unix_nano <= loop.end_time_unix_nano <= time.time_ns() + 10**9
        assert train.status.message == "ValueError: bad luck"
        assert otlp_attributes(second.attributes)["rl.micro_batch"] == 1
        assert otlp_attributes(loop.attributes)["rl.step"] == step
        assert ("probe.peak_allocated_bytes" in otlp_attributes(loop.attributes)) == ("memory" in recorders)
    assert NAME not in (tmp_path / "tracking" / "metrics.jsonl").read_text()  # the run directory has the rows


def test_too_many_leave_out_the_innermost_and_say_so():
    process = Process(time_ns=100, wall_ns=1_000_100)
    rows = [Call(point="scope.step", name="step", scope="step", scope_id=1, begin_ns=100, duration_ns=50)]
    rows += [
        Call(point="scope.phase", name="p", scope="step/p", scope_id=2 + index, begin_ns=101 + index, duration_ns=1)
        for index in range(9)
    ]
    rows.append(Memory(edge="leave", scope_id=1, device_duration_ns=7))
    rows.append(Call(point="data_proto.concat", scope="step"))
    step, first, second = spans_of(reversed(rows), process, most=3)
    assert (step.begin_ns, step.end_ns, step.parent) == (1_000_100, 1_000_150, None)
    assert (step.attributes["probe.spans_left_out"], step.attributes["probe.device_duration_ns"]) == (7, 7)
    assert [(one.begin_ns, one.parent) for one in (first, second)] == [(1_000_101, 1), (1_000_102, 1)]


def test_where_no_backend_shows_spans_nothing_is_logged(tmp_path):
    incidents = []
    with Tracking("p", "e", "tensorboard", directory=tmp_path, on_incident=incidents.append) as tracking:
        StepSpans(tracking, Process()).log([Call(point="scope.step", name="step", scope="step", scope_id=1)], 1)
    assert incidents == []
