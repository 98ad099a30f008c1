"""The queue and its thread, with small real backends that record, raise or hang."""

from __future__ import annotations

import threading
import time

import pytest

from probe.tracking import lane as lane_module
from probe.tracking import stream as stream_module
from probe.tracking.backends.base import Backend
from probe.tracking.journal import Journal
from probe.tracking.media import Text
from probe.tracking.numbers import Snapshot
from probe.tracking.reports import Reports
from probe.tracking.stream import Entry, Stream
from tests.waiting import PATIENCE_S, until


class Recording(Backend):
    def __init__(self):
        self.calls = []
        self.exit_codes = []
        self.flushed = 0

    def log(self, values, step):
        self.calls.append((step, dict(values)))

    def flush(self):
        self.flushed += 1

    def close(self, exit_code):
        self.exit_codes.append(exit_code)


class Failing(Recording):
    """Raises ``error`` in the first ``times`` calls."""

    def __init__(self, error, times=10**9):
        super().__init__()
        self.error = error
        self.times = times

    def log(self, values, step):
        if self.times > 0:
            self.times -= 1
            raise self.error
        super().log(values, step)


class Hanging(Recording):
    def __init__(self):
        super().__init__()
        self.inside = threading.Event()
        self.let_go = threading.Event()

    def log(self, values, step):
        self.inside.set()
        assert self.let_go.wait(PATIENCE_S)
        super().log(values, step)


class HangingAtEnd(Hanging):
    def log(self, values, step):
        Recording.log(self, values, step)

    def close(self, exit_code):
        self.inside.set()
        assert self.let_go.wait(PATIENCE_S)
        super().close(exit_code)


@pytest.fixture
def incidents():
    return []


@pytest.fixture
def opened(incidents):
    before = set(threading.enumerate())
    streams = []

    def make(capacity=100, stall_s=30.0, journal=None, **backends):
        reports = Reports(incidents.append)
        streams.append(Stream(backends, reports, journal=journal, capacity=capacity, stall_s=stall_s))
        streams[-1].reports = reports
        return streams[-1]

    yield make
    for one in streams:
        one.close(0, 60.0)
    until(lambda: set(threading.enumerate()) - before, lambda left: not left)


def put(stream, step, names=None, transfer=None, **values):
    snapshot = Snapshot(values, lambda tensors: transfer)
    stream.enqueue(Entry(snapshot, step, time.time_ns(), names))


class Clock:
    """Stands where ``time`` is in the stream: its deadlines come when the test says so."""

    now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    one = Clock()
    monkeypatch.setattr(stream_module, "time", one)
    return one


def closing(stream, timeout_s):
    """Its end on a thread of its own, and what it will have given."""
    given = []
    thread = threading.Thread(target=lambda: given.append(stream.close(0, timeout_s)))
    thread.start()
    return thread, given


def test_all_arrives_in_order_and_the_thread_ends(opened):
    one, two = Recording(), Recording()
    stream = opened(one=one, two=two)
    for step in range(50):
        put(stream, step, x=float(step))
    assert stream.flush(PATIENCE_S)
    assert one.calls == two.calls == [(step, {"x": float(step)}) for step in range(50)]
    assert (one.flushed, two.flushed) == (1, 1)
    put(stream, 50, x=50.0)
    assert stream.close(3, PATIENCE_S)
    assert one.calls[-1] == (50, {"x": 50.0})
    assert one.exit_codes == two.exit_codes == [3]


def test_a_filter_reaches_only_its_backends(opened):
    one, two = Recording(), Recording()
    stream = opened(one=one, two=two)
    put(stream, 1, names=frozenset({"two"}), x=1.0)
    assert stream.flush(PATIENCE_S)
    assert (one.calls, two.calls) == ([], [(1, {"x": 1.0})])


def test_a_failing_backend_is_told_once_and_loses_nothing_when_it_comes_back(opened, incidents):
    bad, good = Failing(ConnectionError("down"), times=3), Recording()
    stream = opened(bad=bad, good=good)
    for step in range(5):
        put(stream, step, x=1.0)
    assert stream.flush(PATIENCE_S)
    assert [step for step, _ in bad.calls] == [step for step, _ in good.calls] == [0, 1, 2, 3, 4]
    assert [(one.kind, one.where) for one in incidents] == [("backend", "bad")]
    assert "step 0" in incidents[0].message
    assert "down" in incidents[0].message
    assert "ConnectionError" in incidents[0].traceback
    stream.reports.close()
    assert [one.count for one in incidents] == [1, 2]


def test_values_that_a_backend_refuses_are_given_up_and_counted(opened, incidents, monkeypatch):
    monkeypatch.setattr(lane_module, "BACK_OFF_S", (0.001, 0.01))
    bad = Failing(ValueError("I don't like it"), times=lane_module.ATTEMPTS)
    stream = opened(bad=bad)
    put(stream, 0, x=1.0)
    put(stream, 1, x=2.0)
    assert stream.flush(PATIENCE_S)
    assert bad.calls == [(1, {"x": 2.0})]
    assert [one.count for one in incidents if "given up" in one.message] == [1]


def test_a_backend_that_is_out_of_order_for_long_loses_nothing(opened, monkeypatch):
    monkeypatch.setattr(lane_module, "BACK_OFF_S", (0.001, 0.002))
    bad = Failing(RuntimeError("any error at all"), times=57)
    stream = opened(bad=bad)
    for step in range(20):
        put(stream, step, x=1.0)
    assert stream.flush(PATIENCE_S)
    assert [step for step, _ in bad.calls] == list(range(20))


def test_a_dead_backend_is_still_closed_and_does_not_hold_up_the_end(opened, incidents):
    bad, good = Failing(RuntimeError("dead")), Recording()
    stream = opened(bad=bad, good=good)
    for step in range(20):
        put(stream, step, x=1.0)
    assert stream.close(1, PATIENCE_S)
    assert len(good.calls) == 20
    assert bad.exit_codes == good.exit_codes == [1]
    assert sum(one.count for one in incidents if "given up" in one.message) == 20


def test_system_exit_from_a_backend_is_its_own_affair(opened):
    bad, good = Failing(SystemExit(1), times=1), Recording()
    stream = opened(bad=bad, good=good)
    put(stream, 0, x=1.0)
    assert stream.flush(PATIENCE_S)
    assert bad.calls == good.calls == [(0, {"x": 1.0})]


def test_a_hanging_backend_leaves_the_others_alone(opened, incidents):
    stuck, good = Hanging(), Recording()
    stream = opened(stall_s=0.1, stuck=stuck, good=good)
    put(stream, 0, x=1.0)
    assert stuck.inside.wait(PATIENCE_S)
    until(lambda: list(incidents))  # it is told as soon as that is known
    put(stream, 1, x=2.0)
    until(lambda: [step for step, _ in good.calls], lambda steps: steps == [0, 1])
    assert [(one.where, one.kind) for one in incidents] == [("stuck", "backend")]
    stuck.let_go.set()
    assert stream.flush(PATIENCE_S)
    assert [step for step, _ in stuck.calls] == [0, 1]


def test_a_backend_that_never_comes_back_meets_the_deadline(opened, incidents, clock):
    stuck, good = Hanging(), Recording()
    stream = opened(stuck=stuck, good=good)
    put(stream, 0, x=1.0)
    assert stuck.inside.wait(PATIENCE_S)
    put(stream, 1, x=1.0)
    end, complete = closing(stream, 1.0)
    until(stream.complete, lambda names: names == ["good"])
    clock.now += 1.0
    end.join(PATIENCE_S)
    assert complete == [False]
    assert good.exit_codes == [0]
    assert len(good.calls) == 2
    assert any("2 calls were not sent" in one.message for one in incidents)
    stuck.let_go.set()


@pytest.mark.parametrize("kept", [False, True])
def test_what_is_told_at_the_deadline_is_of_the_backend_that_is_late_alone(opened, incidents, tmp_path, kept):
    folder = tmp_path / "journal" if kept else None
    names = ["good", "stuck"]
    journal = Journal(folder, names, set(names), Reports(incidents.append), 100)
    stuck, good = Hanging(), Recording()
    stream = opened(journal=journal, good=good, stuck=stuck)
    put(stream, 0, x=1.0)
    assert stuck.inside.wait(PATIENCE_S)
    end, _ = closing(stream, PATIENCE_S)
    until(stream.complete, lambda names: names == ["good"])
    stream._tell_unsent(complete=False, timeout_s=9.992237)  # as if the deadline had come here
    stuck.let_go.set()
    end.join(PATIENCE_S)
    kept_there = f"1 call is kept in {journal.folder}; the next start in this directory sends it"
    assert [(one.where, one.message) for one in incidents] == [
        ("stuck", "not finished within 9.99 s; 1 call was not sent"),
        ("stuck", kept_there if kept else "1 call was given up"),
    ]
    assert stream.complete() == ["good", "stuck"]


def test_a_backend_that_has_everything_and_is_late_to_close_lacks_no_calls(opened, incidents):
    late = HangingAtEnd()
    stream = opened(late=late)
    put(stream, 0, x=1.0)
    assert stream.flush(PATIENCE_S)
    end, _ = closing(stream, PATIENCE_S)
    assert late.inside.wait(PATIENCE_S)
    stream._tell_unsent(complete=False, timeout_s=9.992237)  # as if the deadline had come here
    late.let_go.set()
    end.join(PATIENCE_S)
    assert [(one.where, one.message) for one in incidents] == [("late", "not finished within 9.99 s")]


def test_a_full_queue_drops_the_oldest_and_says_so(opened, incidents):
    stuck = Hanging()
    stream = opened(capacity=3, stuck=stuck)
    put(stream, 0, x=1.0)
    assert stuck.inside.wait(PATIENCE_S)
    for step in range(1, 9):
        put(stream, step, x=1.0)
    stuck.let_go.set()
    assert stream.flush(PATIENCE_S)
    steps = [step for step, _ in stuck.calls]
    assert steps[0] == 0
    assert steps[-3:] == [6, 7, 8]
    stream.reports.close()
    assert sum(one.count for one in incidents if one.kind == "dropped_rows") == 9 - len(steps)


def test_values_under_way_are_waited_for_in_order(opened):
    import torch

    class Arriving:
        arrived = False

        def ready(self):
            return self.arrived

        def read(self):
            return [0.5]

    transfer, good = Arriving(), Recording()
    stream = opened(good=good)
    put(stream, 0, transfer=transfer, x=torch.empty((), device="meta"))
    put(stream, 1, x=1.0)
    assert not stream.flush(0.1)
    assert good.calls == []
    transfer.arrived = True
    assert stream.flush(PATIENCE_S)
    assert good.calls == [(0, {"x": 0.5}), (1, {"x": 1.0})]


def test_values_that_never_arrive_do_not_hold_up_the_end(opened, incidents, clock):
    import torch

    class Never:
        def ready(self):
            return False

        def read(self):
            raise AssertionError("read before it was ready")

    good = Recording()
    stream = opened(good=good)
    put(stream, 0, transfer=Never(), x=torch.empty((), device="meta"))
    put(stream, 1, x=1.0)
    end, complete = closing(stream, 3.0)
    until(lambda: stream._patient_until)  # it is closing: what arrives later than half of its time is left out
    clock.now += 2.0
    end.join(PATIENCE_S)
    assert complete == [True]
    assert (good.calls, good.exit_codes) == ([(1, {"x": 1.0})], [0])
    assert [(one.kind, "not arrived" in one.message) for one in incidents] == [("value", True)]


def test_a_step_that_goes_back_is_told_once_and_sent(opened, incidents):
    good = Recording()
    stream = opened(good=good)
    for step, name in ((5, "a"), (4, "b"), (4, "a"), (3, "a")):
        put(stream, step, **{name: 1.0})
    assert stream.flush(PATIENCE_S)
    assert len(good.calls) == 4
    assert [(one.kind, one.count) for one in incidents] == [("step", 1)]
    assert "'a' goes back from step 5 to 4" in incidents[0].message


@pytest.mark.usefixtures("lenient")
def test_an_on_incident_that_raises_harms_nothing():
    def refuse(incident):
        raise RuntimeError("no")

    stream = Stream({"bad": Failing(RuntimeError("x"), 1)}, Reports(refuse))
    put(stream, 0, x=1.0)
    assert stream.close(0, 60)


class Many(Recording):
    """Takes several calls at once, and refuses those that hold the value 13."""

    def __init__(self):
        super().__init__()
        self.batches = []
        self.away = True

    def log(self, values, step):
        self.log_many([(values, step)])

    def log_many(self, calls):
        if self.away:
            raise ConnectionError("away")
        if any(13.0 in values.values() for values, _ in calls):
            raise ValueError("unlucky")
        self.batches.append(len(calls))
        self.calls += [(step, dict(values)) for values, step in calls]


def test_a_backend_that_takes_several_calls_gets_what_it_missed_in_few(opened, incidents, monkeypatch):
    monkeypatch.setattr(lane_module, "BACK_OFF_S", (0.01, 0.02))
    many = Many()
    stream = opened(many=many, capacity=5000)
    for step in range(2000):
        put(stream, step, x=float(step), y=0.0)
    until(lambda: list(incidents))
    until(lambda: stream._journal.last, lambda last: last == 2000)  # it has missed all of them
    many.away = False
    assert stream.flush(PATIENCE_S)
    lucky = [(step, {"x": float(step), "y": 0.0}) for step in range(2000) if step != 13]
    assert many.calls == lucky  # in order, and the one that it refuses kept nothing else back
    assert len(many.batches) < 30
    assert max(many.batches) == 500
    assert any("refuses the values of step 13" in one.message for one in incidents)


class Wordless(Recording):
    """Takes numbers, and no text as long as it is told so."""

    shows = frozenset({"text"})

    def __init__(self):
        super().__init__()
        self.speechless = True
        self.attempts = []

    def show(self, name, medium, step, wall_ns):
        self.attempts.append((name, step))
        if self.speechless:
            raise ValueError("no words")
        self.calls.append((step, medium.text))


def test_media_that_a_backend_refuses_hold_up_no_values(opened, incidents, monkeypatch):
    monkeypatch.setattr(lane_module, "BACK_OFF_S", (0.001, 0.002))
    one = Wordless()
    stream = opened(one=one)
    for step in range(4):
        put(stream, step, x=float(step), a=Text("words"), b=Text("more"))
        put(stream, step, c=Text("alone"))
    assert stream.flush(PATIENCE_S)
    assert one.calls == [(step, {"x": float(step)}) for step in range(4)]
    assert one.attempts.count(("a", 0)) == lane_module.ATTEMPTS
    assert len(one.attempts) == lane_module.ATTEMPTS + 11  # the others were tried once
    assert [incident.count for incident in incidents if "is given up" in incident.message] == [1]
    one.speechless = False
    put(stream, 9, a=Text("words"))
    assert stream.flush(PATIENCE_S)
    assert one.calls[-1] == (9, "words")


def test_a_refused_call_before_one_with_refused_media_is_put_aside_alone(opened, monkeypatch):
    monkeypatch.setattr(lane_module, "BACK_OFF_S", (0.001, 0.002))

    class Both(Wordless):
        def log(self, values, step):
            if 13.0 in values.values():
                raise ValueError("unlucky")
            super().log(values, step)

    one = Both()
    stream = opened(one=one)
    put(stream, 0, x=13.0)
    put(stream, 1, a=Text("words"))
    put(stream, 2, x=2.0, a=Text("words"))
    put(stream, 3, x=13.0)
    put(stream, 4, x=4.0, a=Text("words"))
    put(stream, 5, x=5.0)
    assert stream.flush(PATIENCE_S)
    assert [step for step, _ in one.calls] == [2, 4, 5]


def test_many_names_are_told_once_and_again_when_they_are_ten_times_as_many(opened, incidents, monkeypatch):
    monkeypatch.setattr("probe.tracking.stream.MANY_NAMES", 3)
    stream = opened(good=Recording())
    for step in range(4):
        put(stream, step, **{f"name{number}": 1.0 for number in range(5)})
    put(stream, 4, **{f"name{number}": 1.0 for number in range(60)})
    assert stream.close(0, PATIENCE_S)
    stream._reports.close()
    told = [one for one in incidents if "distinct names" in one.message or "many names" in one.message]
    assert sum(one.count for one in told) == 2
    assert told[0].message.startswith("5 distinct names")
