"""What the host_memory table says: process, shared and pinned memory, and the container's limit, by cgroups 1 and 2."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest
import torch

from probe.hooks import phase
from probe.recorders.host_memory import EVERY_S, FIRST_S, HostMemoryRecorder, look
from probe.runs.reader import Run
from probe.session import start

MIB = 2**20

ROLLUP = """55ae-7ffd ---p 00000000 00:00 0    [rollup]
Rss:               10240 kB
Pss:                8192 kB
Pss_Shmem:          1024 kB
Shared_Clean:       2048 kB
Shared_Dirty:       1024 kB
Private_Clean:      3072 kB
Private_Dirty:      4096 kB
Swap:                512 kB
"""
STATUS = "Name:\tpython\nVmLck:\t  64 kB\nVmPin:\t 2048 kB\nVmRSS:\t 10240 kB\nThreads:\t4\n"


def machine(root: Path, cgroup: str, **files: str) -> Path:
    own = {"proc/self/smaps_rollup": ROLLUP, "proc/self/status": STATUS, "proc/self/cgroup": cgroup, **files}
    for name, text in own.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_the_process_and_the_tightest_limit_of_version_2(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        "0::/job/worker\n",
        **{
            "sys/fs/cgroup/job/worker/memory.max": "max\n",
            "sys/fs/cgroup/job/worker/memory.current": "111\n",
            "sys/fs/cgroup/job/memory.max": "5000\n",
            "sys/fs/cgroup/job/memory.current": "4000\n",
            "sys/fs/cgroup/job/memory.stat": "anon 5\ninactive_file 700\n",
        },
    )
    row = look(root)
    assert row is not None
    assert (row.rss_bytes, row.pss_bytes, row.uss_bytes) == (10 * MIB, 8 * MIB, 7 * MIB)
    assert (row.shared_bytes, row.shmem_bytes, row.pinned_bytes, row.swapped_bytes) == (3 * MIB, MIB, 2 * MIB, MIB // 2)
    assert (row.cgroup_limit_bytes, row.cgroup_used_bytes, row.cgroup_reclaimable_bytes) == (5000, 4000, 700)


def test_version_1_and_a_container_that_sees_its_group_as_the_root(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        "5:cpu:/docker/abc\n4:memory:/docker/abc\n0::/docker/abc\n",
        **{
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9000\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "8000\n",
            "sys/fs/cgroup/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 2\n",
        },
    )
    row = look(root)
    assert row is not None
    assert (row.cgroup_limit_bytes, row.cgroup_used_bytes) == (9000, 8000)
    (root / "sys/fs/cgroup/memory/memory.limit_in_bytes").write_text("9223372036854771712\n")
    row = look(root)
    assert row is not None
    assert (row.cgroup_limit_bytes, row.cgroup_used_bytes) == (None, 8000)


def test_a_system_that_tells_nothing_has_no_row(tmp_path: Path) -> None:
    assert look(tmp_path) is None
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text(STATUS)
    row = look(tmp_path)
    assert row is not None
    assert (row.rss_bytes, row.uss_bytes, row.cgroup_limit_bytes) == (10 * MIB, None, None)


def test_what_torch_has_pinned_is_told_where_it_counts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sampled() -> tuple[int | None, int | None]:
        recorder = HostMemoryRecorder(machine(tmp_path, ""), clock=lambda: FIRST_S)
        recorder._due = 0.0
        row = recorder.sample()
        assert row is not None
        assert row.rss_bytes == 10 * MIB
        return row.torch_pinned_bytes, row.torch_pinned_active_bytes

    counted = {"allocated_bytes": {"current": 4 * MIB, "peak": 8 * MIB}, "active_bytes": {"current": 3 * MIB}}
    monkeypatch.setattr(torch.cuda, "host_memory_stats_as_nested_dict", lambda: counted)
    assert sampled() == (4 * MIB, 3 * MIB)
    monkeypatch.setattr(torch.cuda, "host_memory_stats_as_nested_dict", dict)  # nobody has used CUDA yet
    assert sampled() == (None, None)

    def lost() -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(torch.cuda, "host_memory_stats_as_nested_dict", lost)
    assert sampled() == (None, None)
    monkeypatch.delattr(torch.cuda, "host_memory_stats_as_nested_dict")  # an older torch
    assert sampled() == (None, None)


def test_it_looks_every_half_minute_and_takes_a_hundredth_of_the_time_at_most(tmp_path: Path) -> None:
    root, now = machine(tmp_path, ""), [0.0]
    seconds = iter([0.0, FIRST_S - 1, FIRST_S, FIRST_S + 2.0, 200.0, FIRST_S + 200.0, FIRST_S + 200.0])
    recorder = HostMemoryRecorder(root, clock=lambda: next(seconds))
    assert recorder.sample() is None  # it is too early
    assert recorder.sample() is not None  # this look takes two seconds
    assert recorder.sample() is None  # of which 200 are a hundredth
    assert recorder.sample() is not None
    quick = HostMemoryRecorder(root, clock=lambda: now[0])
    now[0] = FIRST_S
    assert quick.sample() is not None
    now[0] = FIRST_S + EVERY_S - 0.1
    assert quick.sample() is None
    now[0] = FIRST_S + EVERY_S
    assert quick.sample() is not None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux counts it so")
def test_a_session_writes_what_linux_counts(tmp_path: Path) -> None:
    held = mmap.mmap(-1, 64 * MIB)  # shared and anonymous: shmem
    held.write(b"x" * (64 * MIB))
    recorder = HostMemoryRecorder()
    recorder._due = 0.0
    with start("host", run_dir=tmp_path / "run", recorders=[recorder]) as session, session.step(0), phase("update"):
        session.flush()
    frame = Run(tmp_path / "run").host_memory
    held.close()
    assert len(frame) == 1
    row = frame.iloc[0]
    assert row["rss_bytes"] >= row["pss_bytes"] >= row["uss_bytes"] > 0
    assert row["shmem_bytes"] >= 64 * MIB
