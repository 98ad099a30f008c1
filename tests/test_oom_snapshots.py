"""5: what is kept of a device's memory where it runs out, each allocation with its step, phase and micro-batch."""

# ruff: noqa: PT012  (what stands around the exception is what is tested)

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import probe
from probe.devices import CpuDevice
from probe.oom_snapshots import MOST, packed
from probe.opened import Run
from probe.session import Session
from probe.testing import FakeDevice


def start(path: Path, device: Any, **options: Any) -> Session:
    return probe.start("p", run_dir=path, rank=0, world_size=1, device=device, **options)


def run_out(device: FakeDevice, session: Session, step: int = 3) -> None:
    with pytest.raises(torch.OutOfMemoryError), session.step(step):
        with probe.phase("generate", role="actor"):
            cache = device.allocate(20)
        try:
            with probe.phase("update", role="actor"):
                for index in range(3):
                    with probe.micro_batch(index, lengths=[4]):
                        device.allocate(30 if index < 2 else 90).free()
        finally:
            cache.free()


def test_5_allocations_are_labelled_by_phase_and_micro_batch_at_the_moment_in_which_memory_ran_out(
    tmp_path: Path,
) -> None:
    device = FakeDevice(total_bytes=100, segment_bytes=1)
    weights = device.allocate(25)
    with start(tmp_path / "run", device, oom_snapshot=True) as session:
        kept = None
        with session.step(2), probe.phase("update"), probe.micro_batch(7, lengths=[1]):
            kept = device.allocate(5)
        run_out(device, session)
        session.flush()
        told = session.run.post_mortem()
    first = told.events[0]
    assert (first.where.step, first.where.phase, first.where.micro_batch) == (3, "update", 2)
    assert first.snapshot_path is not None
    assert first.snapshot_path in str(told)
    blocks = pickle.loads(Path(first.snapshot_path).read_bytes())["segments"][0]["blocks"]
    assert [(one["size"], one["user_metadata"]) for one in blocks] == [
        (25, ""),
        (5, "step 2, update, micro-batch 7"),
        (20, "step 3, actor, generate"),  # what was allocated when it ran out, and is free by the time of the row
    ]
    weights.free()
    kept.free()


def test_5_a_snapshot_is_off_by_default_and_taken_no_more_after_the_session(tmp_path: Path) -> None:
    device = FakeDevice(total_bytes=100, segment_bytes=1)
    with start(tmp_path / "off", device) as session:
        run_out(device, session)
    assert not (tmp_path / "off" / "failures").exists()
    with start(tmp_path / "on", device, oom_snapshot=True):
        pass
    with pytest.raises(torch.OutOfMemoryError):
        device.allocate(101)
    assert not (tmp_path / "on" / "failures").exists()


def test_5_snapshots_are_bounded_in_number(tmp_path: Path) -> None:
    device = FakeDevice(total_bytes=100, segment_bytes=1)
    with start(tmp_path / "run", device, oom_snapshot=True) as session:
        for step in range(MOST + 2):
            run_out(device, session, step)
    assert len(list((tmp_path / "run" / "failures").iterdir())) == MOST
    with Run(tmp_path / "run") as run:
        paths = run.failures()["snapshot_path"].tolist()
    assert [bool(one) for one in paths] == [True] * MOST + [False] * 2
    assert len(set(paths)) == MOST + 1


def test_5_and_in_size_where_the_history_goes_first_and_then_the_stacks() -> None:
    frames = [{"filename": "a.py", "line": number, "name": "f"} for number in range(500)]
    block = {"size": 8, "state": "active_allocated", "user_metadata": "step 1", "frames": frames}
    whole = {
        "segments": [{"total_size": 8, "frames": frames, "blocks": [block]}],
        "device_traces": [[{"action": "alloc", "size": 8}] * 5000],
    }
    sizes = []
    for limit in (10**9, 30_000, 1_000):
        data = packed(whole, limit)
        assert data is not None
        assert len(data) <= limit
        found = pickle.loads(data)
        kept = found["segments"][0]["blocks"][0]
        assert (kept["size"], kept["user_metadata"]) == (8, "step 1")
        sizes.append((len(found["device_traces"][0]), len(kept["frames"])))
    assert sizes == [(5000, 500), (0, 500), (0, 0)]
    assert packed(whole, 10) is None


def test_5_a_device_that_can_not_say_so_changes_nothing(tmp_path: Path) -> None:
    with start(tmp_path / "run", CpuDevice(), oom_snapshot=True) as session:
        with pytest.raises(torch.OutOfMemoryError), session.step(1), probe.phase("update"):
            raise torch.OutOfMemoryError("by hand")
        assert session.run.failures()["snapshot_path"].tolist() == [""]


@pytest.mark.usefixtures("lenient")
def test_5_a_snapshot_that_can_not_be_taken_leaves_the_exception_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = FakeDevice(total_bytes=100, segment_bytes=1)

    def fails() -> dict[str, Any]:
        raise RuntimeError("no snapshot")

    monkeypatch.setattr(device, "snapshot", fails)
    with start(tmp_path / "run", device, oom_snapshot=True) as session:
        run_out(device, session)
        (found,) = session.run.failures().to_dict("records")
    assert (found["type"], found["snapshot_path"]) == ("torch.OutOfMemoryError", "")
