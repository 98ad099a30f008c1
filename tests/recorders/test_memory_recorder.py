"""The memory recorder on the fake device: exact peaks, invisible resets, honest rows."""

from __future__ import annotations

import contextvars
import gc
import threading
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import probe
from probe.devices import Counters, CpuDevice
from probe.errors import InputError, UnknownNameError
from probe.hooks import scope, watch
from probe.recorders.memory import MemoryRecorder
from probe.recorders.opened import PATIENCE_NS, Duration
from probe.recorders.peaks import PeakLedger
from probe.records import GIB, Memory, Padding
from probe.testing import FakeClock, FakeDevice
from tests.recorders.recorded_memory import watched

# ------------------------------------------------------------------------------------------------------- rows


def test_rows_of_one_scope(device, recording):
    before = device.allocate(100)
    with scope("step", "step", step=3):
        with scope("phase", "update", phase="update", role="actor") as opened:
            device.allocate(250).free()
            device.enqueue(7_000)
        device.run()
    enter, leave = [row for row in recording.rows() if row.name == "update"]
    assert (enter.edge, enter.allocated_bytes, enter.peak_allocated_bytes, enter.peak_kind) == (
        "enter",
        100,
        None,
        None,
    )
    assert (leave.edge, leave.allocated_bytes, leave.reserved_bytes) == ("leave", 100, 350)
    assert (leave.peak_allocated_bytes, leave.peak_reserved_bytes, leave.peak_kind) == (350, 350, "exact")
    assert leave.device_duration_ns == 7_000
    assert leave.host_duration_ns > 0
    assert (leave.kind, leave.step, leave.role, leave.phase) == ("phase", 3, "actor", "update")
    assert (leave.scope_id, leave.scope) == (opened.scope.id, "step/update")
    assert leave.parent_id == opened.scope.parent.id
    assert (leave.device, leave.source) == ("fake:0", "fake")
    assert enter.time_ns < leave.time_ns
    assert (enter.device_used_bytes, enter.non_torch_bytes, enter.process_rss_bytes) == (None, None, None)
    before.free()


def test_peak_before_a_scope_isnt_its_own(device, recording):
    device.allocate(900).free()
    with scope("phase", "small"):
        device.allocate(10).free()
    assert recording.leaves()["small"].peak_allocated_bytes == 10
    assert device.max_memory_allocated() == 900


def test_parent_peak_holds_the_childs_and_not_the_other_way_round(device, recording):
    with scope("phase", "parent"):
        device.allocate(50).free()
        with scope("phase", "child"):
            device.allocate(20).free()
        with scope("phase", "high"):
            device.allocate(70).free()
    leaves = recording.leaves()
    assert {name: row.peak_allocated_bytes for name, row in leaves.items()} == {
        "parent": 70,
        "child": 20,
        "high": 70,
    }


def test_scope_that_raises_has_its_rows(device, recording):
    with pytest.raises(MemoryError), scope("phase", "too much"):
        device.allocate(40) and device.allocate(20_000)
    assert recording.leaves()["too much"].peak_allocated_bytes == 40


def test_device_duration_is_read_late_and_never_waited_for(device, recording):
    with scope("phase", "work"):
        device.enqueue(5_000)
    item = recording._put[0][0]
    assert not item.ready()
    device.run(4_999)
    assert not item.ready()
    device.run(1)
    assert item.ready()
    assert recording.leaves()["work"].device_duration_ns == 5_000


def test_the_peak_of_work_that_still_runs_when_the_session_closes_is_written(device, tmp_path):
    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1, device=device) as session, session.step(0):
        device.allocate(70).free()
        device.enqueue(5_000)
    with probe.open(tmp_path / "run") as run:
        (leave,) = run.memory[run.memory["edge"] == "leave"].to_dict("records")
        assert run.incidents.empty
    assert (leave["kind"], leave["peak_allocated_bytes"], leave["peak_kind"]) == ("step", 70, "exact")
    assert pd.isna(leave["device_duration_ns"])


def test_a_device_that_never_answers_holds_nothing_up(device):
    clock = FakeClock()
    begin = device.event()
    device.enqueue(1)
    duration = Duration(device, begin, device.event(), clock)
    clock.advance(PATIENCE_NS)
    assert not duration.ready()
    clock.advance(1)
    assert duration.ready()
    assert duration.pop_ns() is None


def test_device_that_isnt_in_use_yet_is_unknown_and_then_exact(device, recording):
    device.in_use = False
    with scope("phase", "idle"):
        pass
    with scope("phase", "first"):
        device.in_use = True
        device.allocate(30).free()
        with scope("phase", "second"):
            device.allocate(20).free()
    leaves = recording.leaves()
    idle, first, second = leaves["idle"], leaves["first"], leaves["second"]
    assert (idle.allocated_bytes, idle.peak_allocated_bytes, idle.peak_kind) == (None, None, None)
    assert (first.peak_allocated_bytes, first.peak_kind) == (30, "exact")
    assert (second.peak_allocated_bytes, second.peak_kind) == (20, "exact")


def test_samples_tell_the_whole_device(device, recording):
    device.allocate(95)
    (row,) = recording.recorder.sample()
    assert (row.edge, row.allocated_bytes, row.reserved_bytes) == ("sample", 95, 100)
    assert (row.device_used_bytes, row.device_total_bytes, row.non_torch_bytes) == (600, 10_000, 500)
    assert row.process_rss_bytes > 1_000_000
    assert (row.peak_allocated_bytes, row.peak_kind) == (None, None)
    assert row.time_ns > 0


def test_a_scope_that_is_still_open_is_told_with_a_sample_and_once(device, recording):
    with scope("phase", "long", step=3, role="actor"):
        device.allocate(7)
        begun, sample = recording.recorder.sample()
        assert (begun.edge, begun.name, begun.step, begun.role, begun.allocated_bytes) == (
            "enter",
            "long",
            3,
            "actor",
            0,
        )
        assert begun.time_ns < sample.time_ns
        assert [row.edge for row in recording.recorder.sample()] == ["sample"]
    (end,) = recording.rows()
    assert (end.edge, end.scope_id, end.allocated_bytes) == ("leave", begun.scope_id, 7)


def test_sample_resets_nothing(device, recording):
    with scope("phase", "one"):
        device.allocate(80).free()
        recording.recorder.sample()
    assert recording.leaves()["one"].peak_allocated_bytes == 80


def test_sample_of_an_unused_device(device, recording):
    device.in_use = False
    (row,) = recording.recorder.sample()
    assert (row.allocated_bytes, row.device_used_bytes, row.non_torch_bytes) == (None, None, None)
    assert row.process_rss_bytes > 0


def test_after_close_nothing_is_recorded(device, recording):
    with scope("phase", "cut off"):
        recording.recorder.close()
    assert recording.rows() == []
    assert recording.recorder.sample() is None


def test_wrong_arguments():
    with pytest.raises(UnknownNameError, match="peaks: got 'reset', expected one of nested, observe"):
        MemoryRecorder(FakeDevice(), "reset")
    with pytest.raises(InputError, match="device: got"):
        MemoryRecorder("no such device")


# -------------------------------------------------------------------------------------- scopes that misbehave


def test_generator_left_open_corrupts_nothing(device, recording):
    @watch(role="rollout")
    def batches():
        held = device.allocate(30)
        yield 1
        held.free()
        yield 2

    with scope("phase", "parent"):
        stream = batches()
        next(stream)
        device.allocate(100).free()
    with scope("phase", "next"):
        device.allocate(5).free()
    leaves = recording.leaves()
    assert leaves["parent"].peak_allocated_bytes == 130
    assert leaves["next"].peak_allocated_bytes == 35
    assert "batches" not in leaves
    stream.close()
    assert recording.leaves()["batches"].peak_allocated_bytes == 130


def test_scope_that_is_never_left_is_forgotten(device, recording):
    contextvars.copy_context().run(lambda: scope("phase", "lost").__enter__() and None)
    gc.collect()
    assert list(recording.recorder._ledger.scopes()) == []
    with scope("phase", "next"):
        device.allocate(10).free()
    assert recording.recorder._ledger._open == {}
    assert recording.leaves().keys() == {"next"}


def test_scopes_of_threads_overlap(device, recording):
    inside, go_on = threading.Event(), threading.Event()

    def other() -> None:
        with scope("phase", "other"):
            held = device.allocate(40)
            inside.set()
            go_on.wait(60)
            held.free()

    with scope("phase", "main"):
        thread = threading.Thread(target=other)
        thread.start()
        inside.wait(60)
        device.allocate(60).free()
        with scope("phase", "short"):
            pass
    go_on.set()
    thread.join()
    leaves = recording.leaves()
    assert {name: row.peak_allocated_bytes for name, row in leaves.items()} == {
        "main": 100,
        "other": 100,
        "short": 40,
    }


# ---------------------------------------------------------------------------------------------- the processor


class ScriptedCpu(CpuDevice):
    """The CPU with a resident set that the test sets; its high-water mark can't be reset."""

    def __init__(self) -> None:
        self.resident, self.mark = 100, 500

    def read(self, *, whole: bool = False) -> Counters:
        self.mark = max(self.mark, self.resident)
        return Counters(self.resident, None, self.mark, None)


def test_on_a_processor_the_peak_is_a_lower_bound_until_the_mark_rises():
    device = ScriptedCpu()
    heard, subscription = watched(device, "nested")
    with subscription, scope("phase", "outer"):
        with scope("phase", "low"):
            device.resident = 300
            heard.recorder.sample()
            device.resident = 120
        with scope("phase", "high"):
            device.mark = 900
    leaves = heard.leaves()
    assert (leaves["low"].peak_allocated_bytes, leaves["low"].peak_kind) == (300, "at_least")
    assert (leaves["high"].peak_allocated_bytes, leaves["high"].peak_kind) == (900, "exact")
    assert (leaves["outer"].peak_allocated_bytes, leaves["outer"].peak_kind) == (900, "exact")
    assert leaves["low"].process_rss_bytes == leaves["low"].allocated_bytes == 120
    assert (leaves["low"].reserved_bytes, leaves["low"].peak_reserved_bytes) == (None, None)


def test_counter_that_somebody_reset_inside_a_scope():
    device = FakeDevice(resettable=False)
    heard, subscription = watched(device, "observe")
    device.allocate(900).free()
    with subscription, scope("phase", "one"):
        device.allocate(300).free()
        device.reset_peak_memory_stats()
        device.allocate(200).free()
    row = heard.leaves()["one"]
    assert (row.peak_kind, row.peak_allocated_bytes) == ("at_least", 200)


def test_the_real_processor():
    heard, subscription = watched(CpuDevice(), "nested")
    with subscription, scope("phase", "grow", role="actor"):
        filled = bytearray(b"x") * (64 * 1024**2)
        with scope("phase", "inside"):
            pass
        del filled
    leaves = heard.leaves()
    grow = leaves["grow"]
    assert grow.peak_allocated_bytes >= leaves["inside"].allocated_bytes
    assert grow.peak_kind in ("exact", "at_least")
    assert (grow.device, grow.source) == ("cpu", "process_rss")
    assert heard.recorder.metrics([grow]).keys() == {
        "probe/memory/peak_rss_gib_max",
        "probe/memory/actor/peak_rss_gib_max",
    }


# ------------------------------------------------------------------------------------------------ the metrics


def leave(**fields: Any) -> Memory:
    return Memory(**({"edge": "leave", "source": "cuda", "peak_kind": "exact"} | fields))


def test_metrics_by_role_and_phase():
    rows = [
        leave(role="actor", phase="update", peak_allocated_bytes=2 * GIB, peak_reserved_bytes=3 * GIB),
        leave(role="actor", phase="old_log_prob", peak_allocated_bytes=5 * GIB),
        leave(peak_allocated_bytes=6 * GIB, peak_kind="at_most", role="critic"),
        leave(peak_allocated_bytes=None, peak_kind=None, role="critic"),
        Memory(edge="enter", role="critic", allocated_bytes=9 * GIB),
        Memory(edge="sample", device_used_bytes=10 * GIB, device_total_bytes=16 * GIB, non_torch_bytes=GIB),
        Memory(edge="sample", device_used_bytes=12 * GIB, device_total_bytes=16 * GIB, non_torch_bytes=GIB // 2),
        Padding(
            batch_id=0,
            source="",
            field="",
            cause="none",
            tokens=0,
            bytes=0,
            rectangle_tokens=0,
            valid_tokens=0,
        ),
    ]
    metrics = MemoryRecorder(FakeDevice()).metrics(rows)
    assert {key: metric.aggregate() for key, metric in metrics.items()} == {
        "probe/memory/peak_allocated_gib_max": 5.0,
        "probe/memory/peak_reserved_gib_max": 3.0,
        "probe/memory/actor/peak_allocated_gib_max": 5.0,
        "probe/memory/actor/peak_reserved_gib_max": 3.0,
        "probe/memory/phase/update/peak_allocated_gib_max": 2.0,
        "probe/memory/phase/update/peak_reserved_gib_max": 3.0,
        "probe/memory/phase/old_log_prob/peak_allocated_gib_max": 5.0,
        "probe/memory/device_used_gib_max": 12.0,
        "probe/memory/headroom_gib": 4.0,
        "probe/memory/non_torch_gib_max": 1.0,
    }


_texts = st.one_of(st.text(max_size=8), st.sampled_from(["phase", "headroom_gib", "..", "a/b", "peak_rss_gib_max"]))


@given(st.lists(st.tuples(_texts, _texts), max_size=5))
def test_keys_are_declared_and_no_key_is_a_path_prefix_of_another(names):
    rows = [
        leave(role=role, phase=phase, peak_allocated_bytes=1, peak_reserved_bytes=1, source=source)
        for role, phase in names
        for source in ("cuda", "process_rss")
    ]
    rows.append(Memory(edge="sample", device_used_bytes=1, device_total_bytes=2, non_torch_bytes=1))
    keys = MemoryRecorder(FakeDevice()).metrics(rows).keys()
    shapes = {tuple(key.split("/")) for key in MemoryRecorder.keys}
    for key in keys:
        assert not any(other.startswith(f"{key}/") for other in keys)
        parts = tuple(key.split("/"))
        assert any(
            len(shape) == len(parts) and all(a == b or a.startswith("{") for a, b in zip(shape, parts, strict=True))
            for shape in shapes
        )
        assert all(part and set(part) <= set(_ALLOWED) for part in parts)


_ALLOWED = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"


def test_ledger_refuses_an_unknown_word():
    with pytest.raises(UnknownNameError):
        PeakLedger(FakeDevice(), "always")
