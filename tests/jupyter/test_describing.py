"""What the list says of runs that have no heartbeats: those of an older probe, and some copies."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from probe.jupyter.describing import MOST_FILES, ROW_BYTES, describe
from tests.live.live_run import opened
from tests.sample_run import clock, process, sample_rows, write_run

DAY_NS = 86_400 * 10**9


def old(place: Path, ranks: int = 2) -> tuple[Path, float]:
    """A run that was written two days ago, with files of this moment, as of a copy; and when its newest row was."""
    rows = sample_rows(ranks, 3)
    begun_ns = time.time_ns() - 2 * DAY_NS
    processes = {rank: process(rank, world_size=ranks) for rank in rows}
    for one in processes.values():
        one.wall_ns = begun_ns
    newest_ns = max(row.time_ns - clock(rank) for rank, own in rows.items() for row in own)
    return write_run(place, rows, processes=processes), (begun_ns + newest_ns) / 1e9


def told(run: Path) -> dict[str, Any]:
    found = describe(run, run.name)
    assert found["error"] is None
    return found


@pytest.mark.parametrize("ranks", [1, 2, MOST_FILES + 2])
def test_a_copied_run_is_as_silent_in_the_list_as_in_its_panel(tmp_path: Path, ranks: int) -> None:
    run, newest_s = old(tmp_path / "run", ranks)
    assert max(one.stat().st_mtime for one in run.iterdir()) > time.time() - 3600
    found = told(run)
    assert found["state"] == "silent"
    if ranks <= MOST_FILES:  # of more ranks not every file is read
        assert found["since_s"] == pytest.approx(newest_s)
        assert opened(run).activity()["newest_at"] == pytest.approx(found["since_s"], abs=0.1)
    assert found["since_s"] == pytest.approx(newest_s, abs=3600)


def test_a_row_of_this_moment_makes_it_live_whatever_its_file_s_time(tmp_path: Path) -> None:
    run, _ = old(tmp_path / "run")
    begun_ns = time.time_ns() - max(row.time_ns - clock(0) for row in sample_rows(2, 3)[0])
    first = process(0)
    first.wall_ns = begun_ns
    fresh = write_run(tmp_path / "fresh", {0: sample_rows(2, 3)[0]}, processes={0: first})
    shutil.copy(fresh / "rank-00000.jsonl", run / "rank-00000.jsonl")
    os.utime(run / "rank-00000.jsonl", (1, 1))
    assert told(run)["state"] == "live"


@pytest.mark.parametrize(
    "tail", [b'{"type":"memory","time_ns":99', b"\xff\xfe torn\n", b"[1]\n", b'{"time_ns":%d}\n' % 10**400]
)
def test_a_torn_last_line_is_no_row(tmp_path: Path, tail: bytes) -> None:
    run, newest_s = old(tmp_path / "run")
    for one in run.glob("*.jsonl"):
        one.write_bytes(one.read_bytes() + tail)
    assert told(run)["since_s"] == pytest.approx(newest_s)


@pytest.mark.parametrize("text", [b"", b"no row\n", b'{"time_ns":1}\n', b'{"wall_ns":"x"}\n', b"x" * 2 * ROW_BYTES])
def test_where_no_row_tells_its_time_the_file_does(tmp_path: Path, text: bytes) -> None:
    run, _ = old(tmp_path / "run")
    for one in run.glob("*.jsonl"):
        one.write_bytes(text)
        os.utime(one, (5, 5))
    assert (told(run)["state"], told(run)["since_s"]) == ("silent", 5.0)


def test_a_writer_that_is_gone_was_killed_as_in_the_panel(tmp_path: Path) -> None:
    run, newest_s = old(tmp_path / "run", 1)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    first = process(0, world_size=1)
    first.host, first.pid, first.wall_ns = platform.node(), ended.pid, time.time_ns() - 2 * DAY_NS
    write_run(run, sample_rows(1, 3), processes={0: first})
    found = told(run)
    assert found["state"] == "killed"
    assert found["since_s"] == pytest.approx(newest_s, abs=60)
    assert opened(run).activity()["writers"] == "gone"


def test_a_run_of_closed_files_alone_has_finished(tmp_path: Path) -> None:
    run, _ = old(tmp_path / "run")
    for one in run.glob("*.jsonl"):
        one.unlink()
    assert told(run)["state"] == "unknown"
    (run / "parts").mkdir()
    (run / "parts" / "memory-rank00000-0.parquet").write_bytes(b"")
    os.utime(run / "parts" / "memory-rank00000-0.parquet", (7, 7))
    assert (told(run)["state"], told(run)["since_s"]) == ("finished", 7.0)
