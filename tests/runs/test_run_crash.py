"""Killed at any moment: the run is readable, holds each row once, and lacks at most half a second."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from probe.records import Process, Scalar
from probe.runs.layout import PARTS_NAME, Segment, create_run
from probe.runs.lines import encode
from probe.runs.parts import roll_over
from probe.runs.reader import Run

#: Writes rows without end and tells on stdout which it has put and when; "stall" is the longest time for
#: which the machine didn't let it run, which is not the writer's doing.
CHILD = """
import sys, time
from probe.hooks import current_scope
from probe.records import Memory, Process, Scalar
from probe.runs.writer import RunWriter
process = Process(wall_ns=1, pid=int(sys.argv[3]))
writer = RunWriter(sys.argv[1], rank=0, process=process, roll_over_bytes=int(sys.argv[2]))
value, stall, before = 0, 0, time.monotonic_ns()
while True:
    now = time.monotonic_ns()
    stall, before = max(stall, now - before), now
    for _ in range(20):
        rows = [Scalar(key="k", value=value), Memory(edge="sample", allocated_bytes=value)]
        writer.add_rows(rows, current_scope(), now)
        value += 1
    print(value - 1, now, stall, flush=True)
    time.sleep(0.004)
"""


def run_and_kill(directory, seconds, roll_over_bytes, pid=0):
    """The last thing that a writer said before it was killed: value, time and stall."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(directory), str(roll_over_bytes), str(pid)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        lines = [child.stdout.readline()]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            lines.append(child.stdout.readline())
    finally:
        child.send_signal(signal.SIGKILL)
        lines += child.stdout.readlines()
        child.wait()
        child.stdout.close()
    return [tuple(map(int, line.split())) for line in lines if line.count(" ") == 2 and line.endswith("\n")]


@pytest.mark.slow
@pytest.mark.parametrize("roll_over_bytes", [pytest.param(64 * 2**20, marks=pytest.mark.thorough), 150_000])
def test_sigkill_at_random_moments(tmp_path, roll_over_bytes):
    chance = random.Random(roll_over_bytes)
    for attempt in range(3):
        directory = create_run("p", str(attempt), root=tmp_path)
        said = run_and_kill(directory, chance.uniform(0.2, 1.4), roll_over_bytes)
        last_ns, stall_ns = said[-1][1:]
        with Run(directory) as run:
            for found in (run.scalars["value"].tolist(), run.memory["allocated_bytes"].tolist()):
                assert found == list(range(len(found)))  # none twice, none missing in between
                due = [value for value, put_ns, _ in said if put_ns < last_ns - 500_000_000 - stall_ns]
                assert len(found) > max(due, default=-1)
            assert run.bad_lines == 0
            followed = [row.value for row in run.new_rows() if isinstance(row, Scalar)]
            assert followed == run.scalars["value"].tolist()


def test_a_run_that_was_killed_goes_on(tmp_path):
    directory = create_run("p", "e", root=tmp_path)
    kept = []
    for pid in (1, 2):
        run_and_kill(directory, 0.5, 100_000, pid)
        with Run(directory) as run:
            kept.append(len(run.scalars))
            assert run.processes["pid"].tolist() == list(range(1, pid + 1))
            assert run.bad_lines == 0
    assert 0 < kept[0] < kept[1]


@pytest.fixture
def segment(directory):
    """A segment of 30 rows, and a look at the run that checks they are there once."""
    rows = [Process(pid=1, wall_ns=1), *(Scalar(key="k", value=value) for value in range(30))]
    (directory / Segment.of_rank(0, 0).name).write_bytes(b"".join(map(encode, rows)))

    def check():
        with Run(directory) as run:
            assert run.scalars["value"].tolist() == list(range(30))
            assert run.sql("select count(*) as n from scalars")["n"][0] == 30
            assert len(run.processes) == 1
            assert [row.value for row in run.new_rows() if isinstance(row, Scalar)] == list(range(30))

    check()
    return check


def test_every_state_between_lines_and_parts_reads_the_same(directory, segment, tmp_path):
    """Each intermediate state of a roll-over, frozen, is what a crash there leaves."""
    rolling = roll_over(directory, Segment.of_rank(0, 0))
    states = 0
    for _ in rolling:
        states += 1
        segment()
        (directory / PARTS_NAME / "memory-rank00000-0.parquet.9-ff.tmp").write_bytes(b"half a part")
        frozen = tmp_path / f"frozen-{states}"
        shutil.copytree(directory, frozen)
        for _ in roll_over(frozen, Segment.of_rank(0, 0)):  # rolled over again, over what the first try left
            pass
        with Run(frozen) as run:
            assert run.scalars["value"].tolist() == list(range(30))
    assert states >= 3
    assert not list(directory.glob("*.jsonl"))
    segment()


def test_an_empty_file_of_a_taken_number_hides_nothing(directory, segment):
    """A process claims the number of a segment that has just become parts, and has not yet seen it."""
    for _ in roll_over(directory, Segment.of_rank(0, 0)):
        pass
    (directory / Segment.of_rank(0, 0).name).touch()
    segment()


@pytest.mark.slow
def test_killed_while_it_rolls_over(tmp_path):
    """The roll-over itself is caught in the act: killed as soon as the aside file of a part is seen."""
    for attempt in range(3):
        directory = create_run("p", str(attempt), root=tmp_path)
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(directory), "60000", "0"], stdout=subprocess.DEVNULL)
        end = time.monotonic() + 300
        while not list((directory / PARTS_NAME).iterdir()):
            assert time.monotonic() < end
            assert child.poll() is None
        child.kill()
        child.wait()
        assert list(directory.glob("*.jsonl"))
        with Run(directory) as run:
            for found in (run.scalars["value"].tolist(), run.memory["allocated_bytes"].tolist()):
                assert found
                assert found == list(range(len(found)))
            assert run.bad_lines == 0
