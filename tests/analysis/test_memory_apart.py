"""Item 6 of the verdict: reserved and idle, not torch's, and peaks of some steps only, told apart."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import torch

from probe.analysis import growth, memory_apart
from probe.hooks import phase
from probe.opened import Run
from probe.recorders import memory as memory_recorder
from probe.recorders.host_memory import HostMemoryRecorder
from probe.recorders.memory import MemoryRecorder
from probe.records import GIB
from probe.session import start
from probe.testing import FakeDevice

MIB = 2**20
STEPS = np.arange(40.0)


def test_retries_are_told_with_the_gap_that_makes_them() -> None:
    peak, held = np.full(40, 20.0 * GIB), np.full(40, 40.0 * GIB)
    retries = np.maximum(STEPS - 9, 0)
    found = memory_apart.reserved(STEPS, peak, held, retries)
    assert (found.pressure, found.retries, found.since) == ("retries", 30, 10)
    assert (found.gap_bytes, found.share) == (20 * GIB, 0.5)
    assert memory_apart.reserved(STEPS, peak, held, np.zeros(40)).pressure == "idle"
    assert memory_apart.reserved(STEPS, peak, held).retries is None
    assert memory_apart.reserved(STEPS, peak, peak * 1.1, np.zeros(40)).pressure == "none"
    once = np.where(STEPS >= 5, 1.0, 0.0)  # one that went well is no state to be in
    assert memory_apart.reserved(STEPS, peak, peak * 1.1, once).pressure == "none"
    later = memory_apart.reserved(STEPS + 500, peak, held, retries + 700)
    assert later.retries == 30
    assert memory_apart.reserved(STEPS, peak * np.nan, held).pressure == "none"


def test_a_peak_in_steps_with_a_validation_only() -> None:
    rng = np.random.default_rng(3)
    there = STEPS % 10 == 9
    peak = 40 * GIB + rng.normal(size=40) * 256 * MIB
    names = [["rollout", "update", "validate"] if one else ["rollout", "update"] for one in there]
    phases = memory_apart.with_phases(names)
    assert list(phases) == ["validate"]
    assert memory_apart.occasional(STEPS, peak, phases) is None
    found = memory_apart.occasional(STEPS, peak + 12 * GIB * there, phases)
    assert found is not None
    assert (found.phase, found.steps_with, found.steps_without, found.since) == ("validate", 4, 36, 9)
    assert found.low <= 12 * GIB <= found.high
    assert found.share >= 0.8
    higher = peak + 12 * GIB * there
    higher[4] += 30 * GIB  # another step is higher still: the validation doesn't explain the peak
    assert memory_apart.occasional(STEPS, higher, phases) is None
    assert memory_apart.occasional(STEPS[:9], peak[:9], memory_apart.with_phases(names[:9])) is None
    assert memory_apart.with_phases([]) == {}


def test_healthy_peaks_are_of_no_phase() -> None:
    told = 0
    for seed in range(10, 30):
        for copy in range(15):
            rng = np.random.default_rng([seed, copy])
            peak = 40 * GIB + rng.normal(size=40) * 4 * GIB
            phases = {"validate": STEPS % 10 == 9, "save_checkpoint": STEPS % 15 == 14}
            told += memory_apart.occasional(STEPS, peak, phases) is not None
    print(f"{told} of 300 healthy runs have a peak of some steps only")
    assert told <= 3


def recorded(directory: Path, device: FakeDevice, *, fragments: int, others: int) -> Run:
    recorder = MemoryRecorder(device)
    with start("apart", run_dir=directory, recorders=[recorder]) as session:
        for step in range(20):
            with session.step(step):
                with phase("update"):
                    tensor = device.allocate(4 * GIB)
                    device.fragment(fragments)
                    tensor.free()
                if step % 5 == 4:
                    with phase("validate"):
                        device.allocate(6 * GIB).free()
                session.recording.writer.add_rows(recorder.sample(), session.recording.sample_scope(), 0)
            device.non_torch_bytes += others  # between steps: the writer takes samples of its own whenever it likes
    return Run(directory)


def test_a_run_s_rows_hold_retries_what_isn_t_torch_s_and_the_phases_of_each_step(tmp_path: Path) -> None:
    device = FakeDevice(total_bytes=12 * GIB, non_torch_bytes=GIB // 2)
    frame = recorded(tmp_path / "run", device, fragments=GIB, others=64 * MIB).sql(memory_apart.query(0, 19))
    assert len(frame) == 20
    steps = frame["step"].to_numpy(dtype=float)
    processes, held = memory_apart.by_process(frame, "peak", "reserved_peak", "retries", "non_torch", "total")
    assert len(processes) == 1
    own = {name: table[:, 0] for name, table in held.items()}
    found = memory_apart.reserved(steps, own["peak"], own["reserved_peak"], own["retries"])
    assert found.pressure == "retries"
    assert found.retries == device.namespace.memory_stats(0)["num_alloc_retries"] > 2
    grows = growth.judge(steps, own["non_torch"], capacity_bytes=12 * GIB)
    assert (grows.cause, grows.bytes_per_step) == ("leak", pytest.approx(64 * MIB, rel=0.05))
    assert own["total"].tolist() == [12 * GIB] * 20
    occasional = memory_apart.occasional(steps, own["peak"], memory_apart.with_phases(frame["phases"]))
    assert occasional is not None
    assert (occasional.phase, occasional.extra_bytes) == ("validate", 2 * GIB)


def test_memory_that_the_process_keeps_is_no_leak_of_the_device(tmp_path: Path) -> None:
    device, kept = FakeDevice(total_bytes=12 * GIB), []
    recorder = MemoryRecorder(device)
    with start("host", run_dir=tmp_path / "run", recorders=[recorder]) as session:
        for step in range(24):
            kept.append(np.ones(16 * MIB, dtype=np.uint8))  # between steps, likewise
            with session.step(step):
                device.allocate(GIB).free()
                session.recording.writer.add_rows(recorder.sample(), session.recording.sample_scope(), 0)
    run = Run(tmp_path / "run")
    frame = run.sql(memory_apart.query(0, 23))
    steps = frame["step"].to_numpy(dtype=float)
    _, held = memory_apart.by_process(frame, "rss")
    found = growth.judge(steps, held["rss"][:, 0])
    assert (found.cause, found.bytes_per_step) == ("leak", pytest.approx(16 * MIB, rel=0.1))
    floor = run.sql(growth.query(0, 23))
    assert growth.judge(steps, memory_apart.by_process(floor, "level")[1]["level"][:, 0]).cause == "none"


@pytest.mark.parametrize(("pinned", "share"), [(1.0, 1.0), (0.5, None), (0.0, None)])
def test_a_process_that_grows_by_what_torch_has_pinned_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pinned: float, share: float | None
) -> None:
    device, held = FakeDevice(total_bytes=12 * GIB), 0
    told = tmp_path / "proc/self/status"
    told.parent.mkdir(parents=True)
    memory, host = MemoryRecorder(device), HostMemoryRecorder(tmp_path)
    monkeypatch.setattr(memory_recorder, "process_rss_bytes", lambda: GIB + held)
    counted = lambda: {"allocated_bytes": {"current": int(pinned * held)}}  # noqa: E731
    monkeypatch.setattr(torch.cuda, "host_memory_stats_as_nested_dict", counted)
    with start("host", run_dir=tmp_path / "run", rank=0, world_size=1, recorders=[memory]) as session:
        for step in range(40):
            held += 8 * MIB
            told.write_text(f"VmRSS:\t{(GIB + held) // 1024} kB\n")
            with session.step(step):
                device.allocate(GIB).free()
                host._due = 0.0
                for recorder in (memory, host):
                    session.recording.writer.add_rows(
                        recorder.sample(), session.recording.sample_scope(), time.monotonic_ns()
                    )
    with Run(tmp_path / "run") as run:
        (found,) = [one for one in run.findings() if one.name == "host_leak"]
    assert found.explained == share
    said = "so far." if share is None else "so far: it is pinned memory, which PyTorch keeps for copies."
    assert found.sentence.endswith(said)
    assert found.change is not None
    assert found.change.advice.startswith("Look at lists" if share is None else "Pin buffers of few sizes")


def test_the_fake_device_gives_its_cache_back_before_it_is_full() -> None:
    device = FakeDevice(total_bytes=10 * GIB)
    device.fragment(7 * GIB)
    assert device.read().reserved_bytes == 7 * GIB
    assert device.read().alloc_retries == 0
    tensor = device.allocate(4 * GIB)
    assert (device.read().reserved_bytes, device.read().alloc_retries) == (4 * GIB, 1)
    with pytest.raises(MemoryError):
        device.allocate(7 * GIB)
    assert device.read().alloc_retries == 1  # there was nothing to give back
    tensor.free()
    with pytest.raises(ValueError, match="at least 0"):
        device.fragment(-1)


def test_processes_that_come_and_go_keep_their_columns() -> None:
    columns = {"processes": [["a", "b"], ["b"], []], "rss": [[1, None], [3], []]}
    processes, found = memory_apart.by_process(columns, "rss")
    assert processes == ["a", "b"]
    assert found["rss"] == pytest.approx(np.array([[1, np.nan], [np.nan, 3], [np.nan, np.nan]]), nan_ok=True)
    assert memory_apart.by_process({"processes": [[]], "rss": [[]]}, "rss")[0] == []


def test_3_the_process_with_most_to_say_is_that_which_each_by_itself_says() -> None:
    chance = np.random.default_rng(5)
    for _ in range(60):
        steps = np.arange(30.0) + chance.integers(0, 3)
        peak, reserved = chance.random((30, 6)) * GIB, (1 + chance.random((30, 6))) * GIB
        retries = np.cumsum(chance.random((30, 6)) < chance.choice([0.0, 0.02]), axis=0).astype(float)
        for table in (peak, reserved, retries):
            table[chance.random((30, 6)) < 0.2] = np.nan
            table[:, chance.random(6) < 0.2] = np.nan
        each = [memory_apart.reserved(steps, peak[:, at], reserved[:, at], retries[:, at]) for at in range(6)]
        expected = max(range(6), key=lambda one: (each[one].retries or 0, np.nan_to_num(each[one].gap_bytes)))
        assert memory_apart.most_reserved(steps, peak, reserved, retries) == expected
