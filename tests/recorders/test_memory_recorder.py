"""The memory recorder on the fake device: exact peaks, invisible resets, honest rows."""

from __future__ import annotations

import contextvars
import gc
import threading
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import probe
from probe.devices import Counters, CpuDevice, Device
from probe.errors import InputError, UnknownNameError
from probe.hooks import Listener, scope, subscribe, watch
from probe.recorders.memory import PATIENCE_NS, MemoryRecorder, _Duration
from probe.recorders.peaks import PeakFold, PeakLedger
from probe.records import GIB, Deferred, Memory, Padding, stamp
from probe.testing import FakeClock, FakeDevice


class Recording(Listener):
    """What a session does with a recorder, at once and in one thread."""

    def __init__(self, recorder: MemoryRecorder) -> None:
        self.recorder = recorder
        self.errors: list[BaseException] = []
        self._put: list[tuple[Any, Any, int]] = []

    def enter(self, event: Any) -> Any:
        return self.recorder.enter(event)

    def leave(self, event: Any, state: Any) -> None:
        item = self.recorder.leave(event, state)
        if item is not None:
            self._put.append((item, event.scope, event.end_ns))

    def failed(self, event: Any, error: BaseException, count: int, switched_off: bool) -> None:
        self.errors.append(error)

    def rows(self) -> list[Memory]:
        assert not self.errors
        rows: list[Memory] = []
        for item, where, time_ns in self._put:
            assert isinstance(item, Deferred)
            rows += [stamp(row, where, rank=0, time_ns=time_ns) for row in item.build()]
        self._put.clear()
        return rows

    def leaves(self) -> dict[str, Memory]:
        return {row.name: row for row in self.rows() if row.edge == "leave"}


@pytest.fixture
def device():
    return FakeDevice(total_bytes=10_000, segment_bytes=10, non_torch_bytes=500)


@pytest.fixture
def recording(device):
    recorder = MemoryRecorder(device)
    heard = Recording(recorder)
    with subscribe(heard, *recorder.points):
        yield heard
    recorder.close()


def watched(device: Device, peaks: str) -> Any:
    recorder = MemoryRecorder(device, peaks)
    heard = Recording(recorder)
    return heard, subscribe(heard, *recorder.points)


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
    duration = _Duration(device, begin, device.event(), clock)
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


# -------------------------------------------------------------------------------------------- what others see


def test_the_users_own_reset_restarts_what_they_see_and_loses_no_peak(device, recording):
    with scope("phase", "outer"):
        device.allocate(90).free()
        device.reset_peak_memory_stats()
        assert device.max_memory_allocated() == 0
        held = device.allocate(20)
        with scope("phase", "inner"):
            device.allocate(10).free()
        assert device.max_memory_allocated() == 30
        held.free()
    leaves = recording.leaves()
    assert leaves["outer"].peak_allocated_bytes == 90
    assert leaves["inner"].peak_allocated_bytes == 30


def test_close_puts_back_exactly_what_was_there():
    device = FakeDevice()
    originals = dict(vars(device.namespace))
    heard, subscription = watched(device, "nested")
    with subscription, scope("phase", "one"):
        assert vars(device.namespace) != originals
    heard.recorder.close()
    heard.recorder.close()
    assert vars(device.namespace) == originals


def test_what_others_read_keeps_its_meaning_after_close():
    device = FakeDevice()
    originals = dict(vars(device.namespace))
    heard, subscription = watched(device, "nested")
    with subscription, scope("phase", "one"):
        device.allocate(90).free()
    heard.recorder.close()
    device.allocate(20).free()
    assert device.max_memory_allocated() == 90
    again, subscription = watched(device, "nested")
    with subscription, scope("phase", "two"):
        device.allocate(30).free()
    assert again.leaves()["two"].peak_allocated_bytes == 30
    again.recorder.close()
    assert device.max_memory_allocated() == 90
    device.reset_peak_memory_stats()
    assert vars(device.namespace) == originals
    device.allocate(10).free()
    assert device.max_memory_allocated() == 10


def test_observe_replaces_and_resets_nothing():
    device = FakeDevice()
    originals = dict(vars(device.namespace))
    heard, subscription = watched(device, "observe")
    with subscription:
        device.allocate(50).free()
        with scope("phase", "one"):
            assert vars(device.namespace) == originals
        assert device._peak_allocated == 50
    heard.recorder.close()


def test_whoever_patched_over_us_stays(device):
    heard, subscription = watched(device, "nested")
    calls = []
    with subscription:
        with scope("phase", "one"):
            ours = device.namespace.memory_stats
            device.namespace.memory_stats = lambda index: calls.append(index) or ours(index)
            device.allocate(70).free()
        with scope("phase", "two"):
            pass
    theirs = device.namespace.memory_stats
    heard.recorder.close()
    assert device.namespace.memory_stats is theirs
    device.allocate(10).free()
    device.namespace.reset_peaks(0)
    assert device.max_memory_allocated() == 0
    assert calls == [0]


def test_two_recorders_on_one_device(device):
    first, one = watched(device, "nested")
    second, two = watched(device, "nested")
    with one, two, scope("phase", "outer"):
        device.allocate(80).free()
        with scope("phase", "inner"):
            device.allocate(30).free()
        assert device.max_memory_allocated() == 80
    for heard in (first, second):
        peaks = {name: row.peak_allocated_bytes for name, row in heard.leaves().items()}
        assert peaks == {"outer": 80, "inner": 30}
    second.recorder.close()
    first.recorder.close()


def test_a_device_whose_readers_arent_known_is_only_observed():
    device = FakeDevice(resettable=False)
    heard, subscription = watched(device, "nested")
    with subscription, scope("phase", "one"):
        device.allocate(50).free()
        with scope("phase", "two"):
            device.allocate(10).free()
    leaves = heard.leaves()
    assert (leaves["one"].peak_allocated_bytes, leaves["one"].peak_kind) == (50, "exact")
    assert (leaves["two"].peak_allocated_bytes, leaves["two"].peak_kind) == (50, "at_most")
    assert device._peak_allocated == 50


class FakeTorch:
    """The two ways into one allocator that torch has: many peaks, other names, tuple keys, two devices."""

    def __init__(self) -> None:
        self.now = {index: {"allocated": 0, "bytes": 0, "pool": 0} for index in (0, 1)}
        self.peak = {index: dict(counts) for index, counts in self.now.items()}

    def take(self, index: int, size: int) -> None:
        for what, change in (("allocated", 1 if size > 0 else -1), ("bytes", size), ("pool", size)):
            self.now[index][what] += change
            self.peak[index][what] = max(self.peak[index][what], self.now[index][what])

    def _leaf(self, index: int, what: str) -> dict[str, int]:
        return {"current": self.now[index][what], "peak": self.peak[index][what], "freed": 0}

    def _cuda_memoryStats(self, index: int) -> dict[str, Any]:
        return {
            "num_ooms": 0,
            "allocation": {
                "all": self._leaf(index, "allocated"),
                "large_pool": self._leaf(index, "allocated"),
            },
            "allocated_bytes": {"all": self._leaf(index, "bytes")},
            "reserved_bytes": {"all": self._leaf(index, "bytes")},
            "oversize_allocations": self._leaf(index, "bytes"),
            "reserved_bytes_by_private_pools": {(0, 1): {"all": self._leaf(index, "pool")}},
        }

    def _accelerator_getDeviceStats(self, index: int) -> dict[str, Any]:
        return {
            "allocated": {"all": self._leaf(index, "allocated")},
            "allocated_bytes": {"all": self._leaf(index, "bytes")},
        }

    def _cuda_resetPeakMemoryStats(self, index: int) -> None:
        self.peak[index] = dict(self.now[index])

    _accelerator_resetPeakStats = _cuda_resetPeakMemoryStats


def _fold(extra: bool = False) -> tuple[FakeTorch, Any, PeakFold]:
    from probe.devices import Statistics

    torch = FakeTorch()
    names = [name for name in dir(torch) if name.startswith(("_cuda", "_acc"))]
    core = SimpleNamespace(**{name: getattr(torch, name) for name in names})
    if extra:
        plain = core._accelerator_getDeviceStats
        core._accelerator_getDeviceStats = lambda index: (
            plain(index) | {"only_here": {"all": torch._leaf(index, "bytes")}}
        )
    pairs = (
        Statistics(core, "_cuda_memoryStats", "_cuda_resetPeakMemoryStats", 0),
        Statistics(core, "_accelerator_getDeviceStats", "_accelerator_resetPeakStats", 0),
    )
    return torch, core, PeakFold(pairs, threading.RLock(), lambda stats: None)


@pytest.mark.parametrize("extra", [False, True])
def test_every_peak_of_both_ways_is_folded_back(extra):
    torch, core, fold = _fold(extra)
    torch.take(0, 70)
    torch.take(0, -70)
    expected = (core._cuda_memoryStats(0), core._accelerator_getDeviceStats(0))
    assert fold.pop_counters()["allocated_bytes"]["all"]["peak"] == 70
    assert torch.peak[0]["bytes"] == 0
    assert (core._cuda_memoryStats(0), core._accelerator_getDeviceStats(0)) == expected
    assert expected[1]["allocated"]["all"]["peak"] == 1
    assert len(fold._read) == (2 if extra else 1)


def test_other_devices_are_passed_through():
    torch, core, fold = _fold()
    torch.take(0, 70)
    torch.take(1, 30)
    fold.pop_counters()
    core._cuda_resetPeakMemoryStats(1)
    assert core._cuda_memoryStats(1)["allocated_bytes"]["all"]["peak"] == 30
    assert core._cuda_memoryStats(0)["allocated_bytes"]["all"]["peak"] == 70


def test_a_reset_through_either_way_counts_for_both():
    torch, core, fold = _fold()
    torch.take(0, 70)
    torch.take(0, -70)
    fold.pop_counters()
    core._accelerator_resetPeakStats(0)
    assert core._cuda_memoryStats(0)["allocated_bytes"]["all"]["peak"] == 0
    assert core._accelerator_getDeviceStats(0)["allocated_bytes"]["all"]["peak"] == 0


# ---------------------------------------------------------------------------------------- against brute force

ACTORS = 3
_sizes = st.integers(0, 60)
_operation = st.one_of(
    st.tuples(st.just("enter"), st.integers(0, ACTORS - 1)),
    st.tuples(st.just("leave"), st.integers(0, ACTORS - 1)),
    st.tuples(st.just("allocate"), _sizes),
    st.tuples(st.just("spike"), _sizes),
    st.tuples(st.just("free"), st.integers(0, 9)),
    st.tuples(st.just("empty_cache"), st.just(0)),
    st.tuples(st.just("sample"), st.just(0)),
    st.tuples(st.just("user_reset"), st.just(0)),
)


class Model:
    """What is true, by remembering everything: the height at every moment, in one list."""

    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.heights: list[tuple[int, int]] = [(0, 0)]
        self.user_from = 0

    def note(self) -> None:
        self.heights.append((self.device._allocated, self.device._reserved))

    def peak(self, since: int, what: int = 0) -> int:
        return max(height[what] for height in self.heights[since:])


class World:
    """Random scopes of several threads (contexts, driven by one thread) over random allocations."""

    def __init__(self, peaks: str, resettable: bool = True) -> None:
        self.device = FakeDevice(total_bytes=10**6, segment_bytes=8, resettable=resettable)
        self.model = Model(self.device)
        self.heard, self.subscription = watched(self.device, peaks)
        self.contexts = [contextvars.Context() for _ in range(ACTORS)]
        self.stacks: list[list[tuple[Any, int]]] = [[] for _ in range(ACTORS)]
        self.held: list[Any] = []
        self.truth: dict[int, tuple[int, int]] = {}
        self.number = 0

    def apply(self, what: str, value: int) -> None:
        getattr(self, what)(value)
        self.model.note()
        assert self.device.max_memory_allocated() == self.model.peak(self.model.user_from)
        assert self.device.max_memory_reserved() == self.model.peak(self.model.user_from, 1)

    def enter(self, actor: int) -> None:
        opened = scope("phase", f"scope {self.number}")
        self.number += 1
        self.contexts[actor].run(opened.__enter__)
        self.stacks[actor].append((opened, len(self.model.heights)))

    def leave(self, actor: int) -> None:
        if self.stacks[actor]:
            opened, since = self.stacks[actor].pop()
            # The height at its beginning is the one noted just before.
            self.truth[opened.scope.id] = (self.model.peak(since - 1), self.model.peak(since - 1, 1))
            self.contexts[actor].run(opened.__exit__, None, None, None)

    def allocate(self, size: int) -> None:
        self.held.append(self.device.allocate(size))

    def spike(self, size: int) -> None:
        spike = self.device.allocate(size)
        self.model.note()
        spike.free()

    def free(self, which: int) -> None:
        if self.held:
            self.held.pop(which % len(self.held)).free()

    def empty_cache(self, _: int) -> None:
        self.device.empty_cache()

    def sample(self, _: int) -> None:
        self.heard.recorder.sample()

    def user_reset(self, _: int) -> None:
        self.device.reset_peak_memory_stats()
        self.model.user_from = len(self.model.heights)

    def run(self, operations: Any) -> list[Memory]:
        with self.subscription:
            for what, value in operations:
                self.apply(what, value)
            for actor in range(ACTORS):
                while self.stacks[actor]:
                    self.apply("leave", actor)
        rows = [row for row in self.heard.rows() if row.edge == "leave"]
        self.heard.recorder.close()
        return rows


@settings(deadline=None, max_examples=75)
@given(st.lists(_operation, max_size=60))
def test_nested_peaks_are_true_and_nobody_can_tell(operations):
    world = World("nested")
    rows = world.run(operations)
    assert {row.scope_id for row in rows} == set(world.truth)
    for row in rows:
        assert (row.peak_allocated_bytes, row.peak_reserved_bytes) == world.truth[row.scope_id]
        assert row.peak_kind == "exact"


@settings(deadline=None, max_examples=75)
@given(st.lists(_operation.filter(lambda one: one[0] != "user_reset"), max_size=60), st.booleans())
def test_observed_peaks_never_claim_too_much(operations, resettable):
    world = World("observe" if resettable else "nested", resettable)
    for row in world.run(operations):
        allocated, reserved = world.truth[row.scope_id]
        if row.peak_kind == "exact":
            assert row.peak_allocated_bytes == allocated
            assert row.peak_reserved_bytes in (reserved, None)
        else:
            assert row.peak_kind == "at_most"
            assert row.peak_allocated_bytes >= allocated
            assert row.peak_reserved_bytes is None or row.peak_reserved_bytes >= reserved


@settings(deadline=None, max_examples=50)
@given(st.lists(_operation, max_size=40))
def test_a_fresh_high_is_always_exact_when_observed(operations):
    world = World("observe")
    world.run(operations)
    heard, subscription = watched(world.device, "observe")
    with subscription, scope("phase", "high"):
        world.device.allocate(5_000).free()
    row = heard.leaves()["high"]
    assert (row.peak_kind, row.peak_allocated_bytes) == ("exact", world.device._allocated + 5_000)


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
