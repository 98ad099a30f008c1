"""Scopes of which the kernel's answers are kept: the same rows as by readings, from one call of ours at an edge."""

from __future__ import annotations

import contextvars
import gc
import os
import random
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from probe.devices import SAME_NS, CpuDevice, cpu, process_rss_bytes
from probe.hooks import Scope, scope, subscribe
from probe.recorders import resident
from probe.recorders.memory import MemoryRecorder
from probe.recorders.peaks import PeakLedger
from probe.recorders.resident import WAITING, ResidentLedger, is_told_by_kernel
from probe.records import Deferred
from tests.recorders.recorded_memory import Recording, watched

pytestmark = pytest.mark.skipif(not cpu.TELLS, reason="Linux alone tells it so")

PAGE = os.sysconf("SC_PAGE_SIZE")


class Ended:
    """An event of a scope, as the recorder sees it."""

    def __init__(self, number: int) -> None:
        self.scope = Scope("phase", f"p{number}")
        self.scope.id = number  # the same beside both recorders
        self.begin_ns = self.end_ns = 0


class Kernel:
    """What the kernel tells, and the time: both stand still until they are set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pages, self.mark, self.now = 1000, 8000, 10**9
        monkeypatch.setattr(resident, "pread", lambda *_: b"9999 %d 5 1 0 7 0\n" % self.pages)
        monkeypatch.setattr(cpu, "pread", lambda *_: b"9999 %d 5 1 0 7 0\n" % self.pages)
        monkeypatch.setattr(resident, "getrusage", lambda _: (0.0, 0.0, self.mark, 0))
        monkeypatch.setattr(cpu, "getrusage", lambda _: SimpleNamespace(ru_maxrss=self.mark))
        monkeypatch.setattr(resident, "_clock", lambda: self.now)
        monkeypatch.setattr(cpu, "_clock", lambda: self.now)


class ReadCpu(CpuDevice):
    """The same device, whose scopes a ``PeakLedger`` reads."""


@pytest.fixture
def kernel(monkeypatch):
    return Kernel(monkeypatch)


def lines(rows):
    told = (
        "edge",
        "scope_id",
        "allocated_bytes",
        "peak_allocated_bytes",
        "peak_kind",
        "process_rss_bytes",
        "reserved_bytes",
    )
    return [tuple(getattr(row, name) for name in told) for row in rows]


def built(found):
    return [row for one in found for row in (one.build() if isinstance(one, Deferred) else [one])]


@pytest.mark.parametrize("seed", range(30))
def test_e_kept_answers_make_the_rows_that_readings_make(kernel, seed):
    chance = random.Random(seed)
    kept, read = MemoryRecorder(CpuDevice()), MemoryRecorder(ReadCpu())
    assert (type(kept._ledger), type(read._ledger)) == (ResidentLedger, PeakLedger)
    opened, rows, number = [], ([], []), 0
    for _ in range(200):
        kernel.now += 10**6
        kernel.pages = max(1, kernel.pages + chance.randint(-300, 300))
        kernel.mark = max(kernel.mark, kernel.pages * PAGE // 1024 + chance.choice([-40, 0, 0, 500]))
        kernel.mark += chance.choice([0] * 15 + [300])  # higher than anybody has read
        action = chance.random()
        if action < 0.45:
            number += 1
            event = Ended(number)
            opened.append((event, kept.enter(event), read.enter(event)))
            event.begin_ns = kernel.now
        elif action < 0.85 and opened:
            event, ours, theirs = opened.pop(chance.randrange(len(opened)))  # in any order
            event.end_ns = kernel.now
            for recorder, state, found in ((kept, ours, rows[0]), (read, theirs, rows[1])):
                found.append(recorder.leave(event, state))
        else:
            for recorder, found in ((kept, rows[0]), (read, rows[1])):
                found += recorder.sample()[:-1]  # the last one tells of the whole machine
                if number % 2:
                    found[:] = built(found)
    ours, theirs = map(built, rows)
    assert len(ours) > 60
    assert {row.peak_kind for row in ours} == {None, "exact", "at_least"}
    assert lines(ours) == lines(theirs)


def test_e_edges_that_touch_share_an_answer(kernel):
    recorder = MemoryRecorder(CpuDevice())
    events = [Ended(number) for number in range(4)]
    states = [recorder.enter(event) for event in events[:3]]
    kernel.pages += 10
    kernel.now += SAME_NS
    ended = []
    for event, state in zip(events, states, strict=False):  # the last one isn't within 20 µs of the one that read
        event.end_ns = kernel.now
        ended.append(recorder.leave(event, state))
        kernel.pages += 10
        kernel.now += SAME_NS // 2 + 1
    kernel.now -= 2
    states.append(recorder.enter(events[3]))
    pages = [row.allocated_bytes // PAGE for one in ended for row in one.build() if row.edge == "leave"]
    assert pages == [1010, 1010, 1030]
    assert (states[3].text == ended[2].text_left, states[0].text == states[2].text) == (True, True)


def test_e_an_answer_that_was_asked_for_before_a_scope_began_isnt_its_own(kernel):
    recorder = MemoryRecorder(CpuDevice())
    early, late = Ended(1), Ended(2)
    first = recorder.enter(early)
    kernel.now = early.end_ns = kernel.now + 10**6  # its thread asks, and hears nothing until the other one has begun
    kernel.now += 10**6
    second = recorder.enter(late)
    kernel.pages = 50_000
    recorder.leave(early, first)
    kernel.pages = 1000
    kernel.now = late.end_ns = kernel.now + 10**6
    (row,) = [row for row in recorder.leave(late, second).build() if row.edge == "leave"]
    assert (row.peak_allocated_bytes, row.peak_kind) == (1000 * PAGE, "at_least")


def test_e_an_end_is_one_call_of_ours_and_two_of_the_kernel():
    recorder, event, called = MemoryRecorder(CpuDevice()), Ended(1), []
    state = recorder.enter(event)
    event.end_ns = state.time_ns + 10**9
    told = {"call": lambda frame, _: frame.f_code.co_name, "c_call": lambda _, function: function.__name__}
    sys.setprofile(lambda frame, kind, what: called.append(told.get(kind, lambda *_: "")(frame, what)))
    try:
        recorder.leave(event, state)
    finally:
        sys.setprofile(None)
    assert [one for one in called if one not in ("", "append", "setprofile")] == ["leave", "pread", "getrusage"]


def test_e_scopes_leave_no_descriptor_and_no_edge():
    heard, subscription = watched(CpuDevice(), "nested")
    with subscription:
        with scope("phase", "first"):
            pass
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(WAITING):
            with scope("phase", "many"):
                pass
        assert len(heard.recorder._ledger._noted) <= WAITING + 1
        assert len(heard.rows()) == 2 * (WAITING + 1)
    assert len(os.listdir("/proc/self/fd")) == before
    assert heard.recorder._ledger._noted == []
    assert heard.recorder._ledger._open == {}


def test_e_threads_that_begin_together_open_one_descriptor(monkeypatch):
    monkeypatch.setattr(resident, "kept", cpu.Kept())
    before, opened = len(os.listdir("/proc/self/fd")), threading.Barrier(8)

    def ask():
        opened.wait(60)
        assert resident.kept.reopen()

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    os.close(resident.kept.statm)


def test_e_a_scope_that_is_never_left_is_forgotten_beside_kept_answers():
    heard, subscription = watched(CpuDevice(), "nested")
    with subscription:
        contextvars.copy_context().run(lambda: scope("phase", "lost").__enter__() and None)
        gc.collect()
        assert [one.scope.name for one in heard.recorder._ledger.scopes()] == []
    assert heard.rows() == []


def test_e_a_forked_child_tells_of_itself():
    recorder, event = MemoryRecorder(CpuDevice()), Ended(1)
    recorder.leave(event, recorder.enter(event))
    assert cpu.kept.statm >= 0
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # nothing of pytest may run on here
        forgotten = cpu.kept.statm
        event.end_ns = 1 << 62
        row = recorder.leave(event, recorder.enter(event)).build()[-1]
        now = int(Path("/proc/self/statm").read_bytes().split()[1]) * PAGE
        os.write(write, b"%d %d %d" % (forgotten, row.allocated_bytes, now))
        os._exit(0)
    os.close(write)
    told, _ = os.read(read, 100), os.close(read)
    assert os.waitpid(child, 0)[1] == 0
    forgotten, by_row, now = map(int, told.split())
    assert forgotten == -1  # what was open tells of the parent
    assert abs(by_row - now) < 8 * 2**20


def test_e_a_descriptor_that_somebody_closed_is_opened_again(tmp_path):
    recorder, events = MemoryRecorder(CpuDevice()), [Ended(number) for number in range(3)]
    process_rss_bytes()
    os.close(cpu.kept.statm)  # as a program does that becomes a daemon
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    os.write(other, b"not counts")
    taken = other == cpu.kept.statm  # the lowest free number
    rows = []
    for number, event in enumerate(events):
        state = recorder.enter(event)
        event.end_ns = state.time_ns + 10**9 * (number + 1)
        rows += recorder.leave(event, state).build()
    os.close(other)
    assert rows[-1].allocated_bytes == pytest.approx(process_rss_bytes(), rel=0.05)
    if taken:
        assert rows[0].allocated_bytes is None  # and no number was made of another file
    assert rows[0].process_rss_bytes is None or rows[0].process_rss_bytes > 10**6


def test_e_an_end_whose_edges_nobody_saw_to_has_its_row():
    """An interrupt may come while the edges so far are seen to."""
    recorder, event = MemoryRecorder(CpuDevice()), Ended(1)
    state = recorder.enter(event)
    event.end_ns = state.time_ns + 10**9
    left = recorder.leave(event, state)
    recorder._ledger._noted.clear()
    begin, end = left.build()
    assert begin.allocated_bytes > 10**6
    assert end.peak_allocated_bytes >= end.allocated_bytes > 10**6


def test_e_what_has_ended_before_the_recorder_closes_has_its_row():
    recorder, events = MemoryRecorder(CpuDevice()), [Ended(1), Ended(2)]
    states = [recorder.enter(event) for event in events]
    events[0].end_ns = states[0].time_ns + 10**9
    left = recorder.leave(events[0], states[0])
    recorder.close()
    assert recorder.leave(events[1], states[1]) is None
    assert [row.edge for row in left.build()] == ["enter", "leave"]
    assert list(recorder._ledger.scopes()) == []


def test_only_the_processor_itself_is_told_by_the_kernel():
    assert is_told_by_kernel(CpuDevice())
    assert not is_told_by_kernel(ReadCpu())
    assert isinstance(MemoryRecorder(ReadCpu()).enter.__self__, MemoryRecorder)


def test_counts_that_arent_counts_are_unknown():
    assert [cpu.resident_bytes(text) for text in (b"", b"x", b"1 y 2")] == [None] * 3
    assert cpu.resident_bytes(Path("/proc/self/statm").read_bytes()) > 10**6


def test_e_scopes_of_threads_are_seen_in_order():
    heard = Recording(MemoryRecorder(CpuDevice()))
    inside, go_on = threading.Event(), threading.Event()

    def other():
        with scope("phase", "other"):
            inside.set()
            go_on.wait(60)

    with subscribe(heard, *heard.recorder.points):
        thread = threading.Thread(target=other)
        thread.start()
        inside.wait(60)
        filled = b"x" * (64 * 2**20)
        with scope("phase", "high"):
            pass
        del filled
        go_on.set()
        thread.join(60)
    leaves = heard.leaves()
    assert leaves["other"].peak_allocated_bytes >= leaves["high"].allocated_bytes
