"""Peaks among others who read and reset them: nobody can tell, and each is true against brute force."""

from __future__ import annotations

import contextvars
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.hooks import scope
from probe.recorders.peaks import PeakFold
from probe.records import Memory
from probe.testing import FakeDevice
from tests.recorders.recorded_memory import watched

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
