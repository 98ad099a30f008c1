"""Where probe stands in NeMo-RL: its timer, codec, shards and rows, and the events and spans of its data plane."""

from __future__ import annotations

import time
from typing import Any

import pandas as pd
import pytest
import torch

from probe.adapters.attachment import attach
from probe.moments import TokenField
from tests.adapters.heard import scopes


def test_3_labels_of_nemos_timer_are_phases_and_its_errors_pass(frameworks, session):
    attach("nemo_rl")
    timer = frameworks("nemo_rl.utils.timer").Timer()
    with timer.time("total_step_time"), timer.time("generation"):
        pass
    with pytest.raises(ValueError, match="theirs") as caught, timer.time("policy_training"):
        raise ValueError("theirs")
    assert caught.value.__context__ is None
    assert [row[:3] for row in scopes(session)] == [
        (None, "phase", "generation"),
        (None, "phase", "total_step_time"),
        (None, "phase", "policy_training"),
    ]


def test_3_what_nemos_codec_pads_adds_up(frameworks, session, told):
    attach("nemo_rl")
    codec = frameworks("nemo_rl.data_plane.codec")
    added = told("padding.added")
    rows = [torch.arange(3), torch.arange(5), torch.arange(1)]
    nested = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    made = codec.materialize({"input_ids": nested}, pad_to_seqlen=8)
    assert made["input_ids"].shape == (3, 8)
    assert [(one["cause"], one["tokens"], one["pad_tokens"]) for one in added.values] == [
        ("longest_row", 9, 3 * 5 - 9),
        ("fixed_width", 9, 3 * 3),
    ]
    assert sum(one["pad_tokens"] for one in added.values) == made["input_ids"].numel() - 9
    assert added.values[0]["fields"] == [TokenField("input_ids", 8)]


@pytest.mark.parametrize("arguments", [{}, {"dynamic_batching_args": {"input_lengths_key": "lens"}}])
def test_3_nemos_shards_are_dealt_rows(frameworks, session, told, arguments):
    attach("nemo_rl")
    kind = frameworks("nemo_rl.distributed.batched_data_dict").BatchedDataDict
    dealt = told("token_balance.dealt")
    key = "lens" if arguments else "input_lengths"
    kind({key: torch.tensor([4, 1, 3, 2])}).shard_by_batch_size(2, **arguments)
    (one,) = dealt.values
    assert one["lengths"] == [4, 3, 1, 2]
    assert one["partitions"] == [[0, 1], [2, 3]]
    assert one["packer"] == ("nemo_rl.dynamic_batching" if arguments else "")


def test_3_nemos_rows_are_told_one_global_batch_after_the_other(frameworks, session, told):
    attach("nemo_rl")
    dealt = told("token_balance.dealt")
    batch = frameworks("nemo_rl.distributed.batched_data_dict").BatchedDataDict(
        {"input_lengths": torch.tensor([4, 1, 3, 2, 6, 5])}
    )
    batch.counts = [1, 2]  # of each shard, whose rows are 4, 3, 6 and 1, 2, 5
    batch.shard_by_batch_size(2, batch_size=2, dynamic_batching_args={"max_tokens_per_microbatch": 8})
    (one,) = dealt.values
    assert one["lengths"] == [4, 1, 3, 6, 2, 5]
    assert one["partitions"] == [[0, 2, 3], [1, 4, 5]]
    assert one["arguments"] == {"shards": 2, "batch_size": 2, "max_tokens_per_microbatch": 8}


def counted(session: Any) -> list[tuple[Any, ...]]:
    session.flush()
    columns = "phase, name, calls, failed, total_ns, smallest_ns, largest_ns, moved_bytes, moved_keys, source"
    rows = session.run.sql(f"select {columns} from counted_calls order by phase, name")
    return [tuple(None if pd.isna(one) else one for one in row) for row in rows.astype(object).itertuples(index=False)]


def test_3_events_of_nemos_data_plane_are_counted_by_phase_and_operation(frameworks, session):
    attach("nemo_rl")
    timer = frameworks("nemo_rl.utils.timer").Timer()
    heard: list[Any] = []
    client = frameworks("nemo_rl.data_plane.observability").MetricsDataPlaneClient(None, heard.append)
    with timer.time("total_step_time"):
        with timer.time("generation"):
            client.put(100)
            client.put(50, status="timeout")
            client.get()
        client.get()
    assert counted(session) == [
        ("generation", "get", 1, 0, 250_000, 250_000, 250_000, 8, 1, "nemo_rl.data_plane"),
        ("generation", "put", 2, 1, 3_000_000, 1_500_000, 1_500_000, 150, 4, "nemo_rl.data_plane"),
        ("total_step_time", "get", 1, 0, 250_000, 250_000, 250_000, 8, 1, "nemo_rl.data_plane"),
    ]
    assert [one["op"] for one in heard] == ["put", "put", "get", "get"]  # their own callback hears all of it
    assert session.run.incidents.empty


@pytest.fixture
def tracer() -> Any:
    """Of OpenTelemetry's own SDK, which NeMo-RL makes its spans with; made when NeMo-RL is attached to."""
    trace = pytest.importorskip("opentelemetry.sdk.trace", reason="the SDK is an extra")

    def made(name: str = "nemo_rl.lens") -> Any:
        return trace.TracerProvider(shutdown_on_exit=False).get_tracer(name)

    return made


def test_12_spans_that_nemo_makes_are_counted_by_phase_and_name(frameworks, session, tracer):
    attach("nemo_rl")
    timer, theirs = frameworks("nemo_rl.utils.timer").Timer(), tracer()
    at = time.time_ns()

    def span(name: str, took_ns: int, **more: Any) -> None:
        theirs.start_span(name, start_time=at, **more).end(at + took_ns)

    with timer.time("generation"):
        span("rl.sample", 1_000)
        span("rl.sample", 3_000)
        with pytest.raises(ValueError, match="theirs"), theirs.start_as_current_span("rl.reward"):
            raise ValueError("theirs")
    span("rl.loop", 9_000)  # around all phases
    source = "opentelemetry nemo_rl.lens"
    reward, sample, loop = counted(session)
    assert loop == (None, "rl.loop", 1, 0, 9_000, 9_000, 9_000, None, None, source)
    assert reward[:4] == ("generation", "rl.reward", 1, 1)
    assert sample == ("generation", "rl.sample", 2, 0, 4_000, 1_000, 3_000, None, None, source)
    assert scopes(session) == [(None, "phase", "generation", None)]


def test_12_spans_of_too_many_names_are_counted_together_and_none_after_detaching(frameworks, session, tracer):
    (attached,) = attach("nemo_rl")
    timer, theirs = frameworks("nemo_rl.utils.timer").Timer(), tracer()
    with timer.time("generation"):
        for number in range(100):
            theirs.start_span(f"request {number}").end()
    attached.detach()
    theirs.start_span("later").end()
    rows = counted(session)
    assert len(rows) == 65
    assert {row[2] for row in rows if row[1] != "(others)"} == {1}
    assert [row[2] for row in rows if row[1] == "(others)"] == [36]


@pytest.mark.usefixtures("lenient")
def test_12_a_span_that_cannot_be_read_stops_nothing(frameworks, session, tracer, caplog, monkeypatch):
    from probe.adapters import nemo_rl_events

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("ours")

    attach("nemo_rl")
    frameworks("nemo_rl.utils.timer")
    theirs = tracer()
    monkeypatch.setattr(nemo_rl_events, "_count", broken)
    for _ in range(5):
        theirs.start_span("rl.sample").end()
    said = [one.message for one in caplog.records]
    assert said == ["probe can't read a span of OpenTelemetry", "opentelemetry: failed 3 times and is switched off"]


@pytest.mark.usefixtures("lenient")
def test_3_what_nemos_own_callback_raises_is_its_callers_and_one_that_probe_cannot_read_stops_nothing(
    frameworks, session, caplog
):
    attach("nemo_rl")
    module = frameworks("nemo_rl.data_plane.observability")

    def theirs(event: Any) -> None:
        raise KeyError("theirs")

    with pytest.raises(KeyError, match="theirs"):
        module.MetricsDataPlaneClient(None, theirs).put(1)
    client = module.MetricsDataPlaneClient(None)
    for _ in range(5):
        client.put("no number")
    assert [one.message for one in caplog.records] == [
        "probe can't read an event of NeMo-RL's data plane",
        "nemo_rl.data_plane: failed 3 times and is switched off",
    ]
    assert session.run.incidents["message"].str.startswith("probe can't read an event of NeMo-RL's data plane: ").all()
    assert session.run.incidents["switched_off"].tolist() == [False, False, True]


@pytest.mark.usefixtures("lenient")
def test_3_a_client_without_a_callback_of_a_known_name_is_an_incident(frameworks, session):
    attach("nemo_rl")
    module = frameworks("nemo_rl.data_plane.observability")

    class Another(module.MetricsDataPlaneClient):
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__("tell" if name == "_callback" else name, value)

    Another(None)
    (told,) = session.run.incidents.to_dict("records")
    assert told["kind"] == "adapter"
    assert "Another has none of the callbacks callback, _callback, on_event, _on_event" in told["message"]


def test_3_detached_nobody_counts_nemos_events(frameworks, session):
    (attached,) = attach("nemo_rl")
    timer = frameworks("nemo_rl.utils.timer").Timer()
    client = frameworks("nemo_rl.data_plane.observability").MetricsDataPlaneClient(None)
    with timer.time("generation"):
        client.get()
    attached.detach()
    client.get()
    with timer.time("generation"):
        client.get()
    assert len(counted(session)) == 1
