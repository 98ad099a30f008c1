"""The journal: what was appended comes back, in order, through memory, disk, torn lines and full segments."""

from __future__ import annotations

import errno
import math
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.tracking import journal as journal_module
from probe.tracking.journal import Journal, Record, backend_name, file_name, record_of, records_in, unsent
from probe.tracking.media import Figure, Histogram, Image, Span, Table, Text, medium_of
from probe.tracking.reports import Reports

MEDIA = {
    "h": Histogram((0.0, 1.0, 2.0), (1, 2)),
    "t": Table(["a"], [[1], [None], ["x"]]),
    "text": Text("ä\nb"),
    "figure": Figure('{"data": []}'),
    "image": Image.from_picture(b"\x89PNG\r\n\x1a\n" + bytes(8) + b"\0\0\0\2\0\0\0\3"),
    "span": Span(1, 2, {"k": 1.5}, "error"),
}


def opened(folder, names=("a", "b"), capacity=100, incidents=None):
    return Journal(
        folder, list(names), set(names), Reports((incidents if incidents is not None else []).append), capacity
    )


def append(journal, steps, names=None):
    for step in steps:
        journal.append(step, 10**18 + step, names, {"x": float(step)}, {})


def drain(journal, name, n=None):
    found, n = [], journal.cursor(name) if n is None else n
    while (record := journal.after(name, n)) is not None:
        found.append(record.step)
        n = record.n
    return found


@settings(deadline=None, max_examples=50)
@given(
    st.dictionaries(st.text(max_size=8), st.floats(), max_size=5),
    st.none() | st.frozensets(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), max_size=3),
)
def test_a_record_survives_its_line(values, names):
    record = Record(7, 3, 10**18, names, values, MEDIA)
    line = record.line()
    assert line.count(b"\n") == 1
    again = record_of(line)
    assert (again.n, again.step, again.wall_ns, again.names, again.media) == (7, 3, 10**18, names, MEDIA)
    assert {name: repr(value) for name, value in again.values.items()} == {n: repr(v) for n, v in values.items()}
    for end in range(0, len(line) - 1, 37):
        assert record_of(line[:end]) is None


@pytest.mark.parametrize("medium", MEDIA.values(), ids=MEDIA)
def test_a_medium_survives_json(medium):
    assert medium_of(medium.plain()) == medium


@settings(deadline=None, max_examples=30)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_backends_name_can_be_a_files(name):
    assert "/" not in file_name(name)
    assert backend_name(file_name(name)) == name


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40), st.booleans()), max_size=8), st.data())
def test_every_backend_gets_every_call_once_through_any_number_of_processes(rounds, data):
    """Appending and taking by turns, with processes that die between; small limits make all paths run."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(journal_module, "SEGMENT_BYTES", 700)
        patch.setattr(journal_module, "NEAR", 5)
        journal, step = opened(Path(folder)), 0
        got: dict[str, list[int]] = {"a": [], "b": []}
        for appended, taken, dies in rounds:
            append(journal, range(step, step + appended))
            step += appended
            for name, steps in got.items():
                for _ in range(taken if name == "a" else taken // 3):
                    record = journal.after(name, journal.cursor(name))
                    if record is None:
                        break
                    steps.append(record.step)
                    journal.settle(name, record.n)
                    journal.note(name, record.n)
            if dies:
                journal.release()  # the system lets go of a dead process's lock
                if journal._file is not None:
                    with max(Path(folder, "tracking").glob("*.jsonl")).open("ab") as torn:
                        torn.write(b'{"n": 99, "st')
                journal = opened(Path(folder))
        for name, steps in got.items():
            steps += drain(journal, name)
            assert steps == list(range(step))
        journal.close()


def test_done_segments_are_deleted_and_those_of_a_missing_backend_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", 300)
    journal = opened(tmp_path)
    append(journal, range(30))
    for name in "ab":
        journal.settle(name, 20)
        journal.note(name, 20)
    append(journal, range(30, 60))
    firsts = sorted(int(path.stem.partition("-")[2]) for path in (tmp_path / "tracking").glob("journal-*"))
    assert 10 < firsts[0] <= 21
    journal.settle("a", 60)
    journal.note("a", 60)
    journal.close()
    assert unsent(tmp_path) == {"b": 40}
    only_a = opened(tmp_path, ["a"])
    append(only_a, range(60, 70))
    assert drain(only_a, "a") == list(range(60, 70))
    only_a.close()
    both = opened(tmp_path)
    assert drain(both, "b") == list(range(20, 70))
    both.close()


def test_a_new_backend_begins_where_it_comes_in(tmp_path):
    journal = opened(tmp_path, ["a"])
    append(journal, range(5))
    journal.close()
    both = opened(tmp_path)
    append(both, [5])
    assert (drain(both, "a"), drain(both, "b")) == ([0, 1, 2, 3, 4, 5], [5])
    both.close()


def test_calls_for_others_are_skipped(tmp_path):
    journal = opened(tmp_path)
    append(journal, [1], frozenset({"a"}))
    append(journal, [2], frozenset({"b"}))
    assert (drain(journal, "a"), drain(journal, "b")) == ([1], [2])
    assert (journal.waiting("a"), journal.waiting("b")) == (1, 1)
    journal.close()


def test_without_a_disk_the_oldest_goes_and_is_counted():
    incidents: list = []
    journal = opened(None, ["a"], capacity=10, incidents=incidents)
    append(journal, range(25))
    assert drain(journal, "a") == list(range(15, 25))
    assert incidents[0].kind == "dropped_rows"
    assert journal._reports.count("dropped_rows", "a") == 15


def test_no_number_is_changed_on_its_way(tmp_path):
    journal = opened(tmp_path, ["a"])
    values = {"nan": math.nan, "inf": math.inf, "small": 5e-324, "third": 1 / 3, "zero": -0.0, "\ud800": 1.0}
    journal.append(1, 2, None, values, {})
    journal.close()
    again = opened(tmp_path, ["a"])
    found = again.after("a", 0)
    assert {name: repr(value) for name, value in found.values.items()} == {n: repr(v) for n, v in values.items()}
    again.close()


@pytest.mark.parametrize("on_disk", [True, False])
def test_what_a_backend_has_not_got_is_counted_on_disk_and_in_memory(on_disk, tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "NEAR", 3)
    journal = opened(tmp_path if on_disk else None, ["a", "b"], capacity=100)
    for step in range(20):
        journal.append(step, 1, frozenset({"b"}) if step % 5 == 0 else None, {"x": 1.0}, {})
    assert len(journal._window) == (3 if on_disk else 20)  # the rest is on disk only
    assert (journal.waiting("a"), journal.waiting("b")) == (16, 20)
    for settled in range(21):
        journal.settle("a", settled)
        journal.settle("b", settled)
        wanted = [n for n in range(settled + 1, 21) if n % 5 != 1]
        assert (journal.waiting("a"), journal.waiting("b")) == (len(wanted), 20 - settled)
    journal.close()


def test_in_memory_what_was_dropped_waits_no_more():
    journal = opened(None, ["a"], capacity=3)
    append(journal, range(10))
    assert journal.waiting("a") == len(journal._window) == 3
    journal.settle("a", 9)
    assert journal.waiting("a") == 1


def test_calls_of_an_earlier_process_are_counted(tmp_path):
    first = opened(tmp_path, ["a"])
    for step in range(4):
        first.append(step, 1, None, {"x": 1.0}, {})
    first.settle("a", 1)
    first.note("a", 1)
    first.close()
    again = opened(tmp_path, ["a", "new"])
    assert not again._window
    assert (again.waiting("a"), again.waiting("new")) == (3, 0)
    assert unsent(tmp_path) == {"a": 3}
    again.close()


def test_what_the_disk_did_not_take_is_written_when_it_does(tmp_path, monkeypatch):
    """In order, and all of it: nothing but the newest call is at hand when the disk has room again."""
    write, full, incidents = os.write, [True], []

    def write_or_fail(descriptor, content):
        if full:
            raise OSError(errno.ENOSPC, "no space left")
        return write(descriptor, content)

    monkeypatch.setattr(journal_module.os, "write", write_or_fail)
    journal = opened(tmp_path, ["a"], incidents=incidents)
    append(journal, range(3))
    assert list(records_in(tmp_path)) == []
    full.clear()
    append(journal, [3])
    assert [record.step for record in records_in(tmp_path)] == [0, 1, 2, 3]
    assert journal.waiting("a") == 4
    assert len(incidents) == 1
    journal.close()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the system doesn't tell what is open")
def test_a_closed_journal_holds_no_file_open(tmp_path):
    def held():
        links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        return [os.readlink(link) for link in links if os.path.islink(link) and str(tmp_path) in os.readlink(link)]

    journal = opened(tmp_path, ["a", "b"])
    append(journal, range(3))
    assert len(held()) == 4  # the segment, two marks and the lock
    journal.close()
    assert held() == []
