"""The pump by hand, a round at a time: what it tells of itself, and how long it waits for the next look."""

from __future__ import annotations

import pytest

from probe.live import pump as pump_module
from probe.live.feed import Feed
from probe.live.pump import (
    BUSY_SHARE,
    FINISHED_S,
    HEARTBEAT_S,
    KEPT,
    MOST_PATIENT_S,
    REMOTE_S,
    SILENCE_S,
    Pump,
)
from tests.live.live_run import append, await_true
from tests.sample_run import sample_rows, write_run

INTERVAL_S = 0.25


class Clock:
    """Seconds that go on when the test says so."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def thread_time_ns(self) -> int:
        return int(self.now * 1e9)


@pytest.fixture
def clock(monkeypatch) -> Clock:
    one = Clock()
    monkeypatch.setattr(pump_module, "time", one)
    return one


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run", sample_rows(1, 3))


@pytest.fixture
def heads():
    return []


@pytest.fixture
def pump(run, heads, clock) -> Pump:
    made = Pump(Feed(run), lambda head, _: heads.append(head), INTERVAL_S)
    made.open()
    return made


def fail(message: str, kind: type[Exception] = OSError) -> None:
    raise kind(message)


def test_what_is_missing_is_counted_by_its_reason(pump):
    feed = pump.feed
    feed._intake.lost, feed.coalesced, feed.left_out = 7, 5, 3
    feed.tables["memory"].thinned, feed.tables["spans"].thinned = 20, 100
    state = pump.state()
    assert (state["lost"], state["coalesced"], state["dropped"], state["thinned"]) == (7, 5, 12, 123)


@pytest.mark.usefixtures("lenient")
def test_a_failure_is_kept_once_while_it_lasts_and_shown_until_it_is_over(pump):
    for message in ("gone", "gone", "slow"):
        assert pump.isolated("send", lambda message=message: fail(message)) is None
    assert [(one["where"], one["message"], one["at"]) for one in pump.failures] == [
        ("send", "OSError: gone", 1000.0),
        ("send", "OSError: slow", 1000.0),
    ]
    assert pump.state()["errors"] == [{"where": "send", "message": "OSError: slow"}]
    pump.succeeded("send")
    assert pump.state()["errors"] == []
    assert len(pump.failures) == 2
    pump.isolated("send", lambda: fail("gone"))
    assert len(pump.failures) == 3  # it had worked in between


def test_the_newest_failures_are_kept(pump):
    for number in range(KEPT + 5):
        pump.fail("copy", ValueError(number))
    assert [one["message"] for one in pump.failures] == [f"ValueError: {number}" for number in range(5, KEPT + 5)]


def test_a_run_that_can_be_read_again_was_opened_too(pump):
    pump.fail("open", OSError("no"))
    pump.fail("copy", OSError("no"))
    pump.succeeded("run")
    assert [one["where"] for one in pump.state()["errors"]] == ["copy"]


def test_looks_become_rarer_with_each_failure_up_to_a_bound_and_at_once_frequent_again(pump):
    pauses = []
    for number in range(8):
        pump.fail("run", OSError(number))
        pauses.append(pump._pause())
    assert pauses == [min(INTERVAL_S * 2 ** (number + 1), MOST_PATIENT_S) for number in range(8)]
    pump.fail("send", OSError("too"))
    pump.succeeded("run")
    assert pump._pause() == MOST_PATIENT_S  # sending fails still
    pump.succeeded("send")
    assert pump._pause() == INTERVAL_S


def test_a_copy_that_fails_makes_no_look_rarer(pump):
    pump.fail("copy", OSError("no"))
    assert pump._pause() == INTERVAL_S


def test_a_look_takes_its_share_of_the_time_and_no_more(pump):
    pump._took_s = 2.0
    assert pump._pause() == 2.0 / BUSY_SHARE
    pump._took_s = 0.001
    assert pump._pause() == INTERVAL_S


def test_a_finished_run_is_looked_at_less_often(pump):
    pump._finished = True
    assert pump._pause() == FINISHED_S


def test_another_machines_run_is_looked_at_less_often(run):
    feed = Feed(run)
    feed.local = False
    assert Pump(feed, None, INTERVAL_S)._pause() == REMOTE_S
    assert Pump(feed, None, 5.0)._pause() == 5.0


def test_the_end_of_a_run_is_looked_for_now_and_then_and_where_it_is_asked(pump, clock, monkeypatch):
    asked = []
    monkeypatch.setattr(pump.feed, "finished", lambda: asked.append(clock.now) or False)
    for after_s in (0.1, FINISHED_S - 0.2, 0.1, 0.1):
        clock.now += after_s
        pump.round()
    assert asked == [pytest.approx(1000.0 + FINISHED_S)]
    pump.round(to_the_end=True)
    assert len(asked) == 2


def test_new_rows_are_sent_once_and_nothing_where_nothing_is_new(pump, heads, run):
    pump.round()
    heads.clear()
    pump.round()
    assert heads == []
    append(run, sample_rows(1, 5)[0][-3:])
    pump.round()
    assert [head["t"] for head in heads] == ["d"]
    pump.round()
    assert len(heads) == 1


def test_c_a_page_hears_every_other_second_that_somebody_is_there_though_nothing_is_new(pump, heads, clock):
    pump.round()
    heads.clear()
    for _ in range(11):
        clock.now += INTERVAL_S
        pump.round()
    assert len(heads) == 1
    head = heads[0]
    assert (head["t"], head["seq"]) == ("s", pump._sender.seq)  # it has no number: losing it loses nothing
    assert set(head["state"]) == {"updated_at", "silence_s"}
    assert HEARTBEAT_S < head["state"]["silence_s"] < 8  # with the page's own 2 s between two looks at its clock: 10


def test_c_who_looks_long_is_not_taken_for_gone(pump):
    pump._took_s = 7.0
    assert pump.state()["silence_s"] == SILENCE_S + 14


def test_c_a_page_is_told_also_between_two_looks_that_are_far_apart(run, heads, monkeypatch):
    monkeypatch.setattr(pump_module, "HEARTBEAT_S", 0.01)
    pump = Pump(Feed(run), lambda head, _: heads.append(head), 3600)
    pump.open()
    pump.start()
    await_true(lambda: len(heads) >= 3, lambda: heads)
    pump.stop()
    assert {head["t"] for head in heads[:3]} == {"s"}


def test_a_run_that_had_finished_goes_on_with_its_next_row(pump, heads, run):
    pump._finished = True
    append(run, sample_rows(1, 5)[0][-3:])
    pump.round()
    assert not pump.finished
    assert heads[-1]["state"]["finished"] is False


def test_who_asks_for_all_gets_it_once(pump, heads, run):
    pump.round()
    pump.ask_for_all()
    pump.round()
    assert heads[-1]["t"] == "k"
    count = len(heads)
    pump.round()
    assert [head["t"] for head in heads[count:]] == []


@pytest.mark.usefixtures("lenient")
def test_a_run_that_could_not_be_opened_is_told_as_a_whole_once_it_can(run, heads, monkeypatch):
    pump = Pump(Feed(run), lambda head, _: heads.append(head), INTERVAL_S)
    with monkeypatch.context() as patch:
        patch.setattr(pump.feed, "open", lambda: fail("away"))
        pump.open()
        pump.round()
    assert heads == []
    assert {one["where"] for one in pump.state()["errors"]} == {"open", "run"}
    pump.round()
    assert [head["t"] for head in heads] == ["k"]
    assert heads[0]["state"]["errors"] == []


def test_the_end_is_told_and_once(pump, heads):
    pump.stop()
    assert heads[-1]["state"]["live"] is False
    count = len(heads)
    pump.stop()
    assert len(heads) == count
    pump.start()  # it's over
    assert not pump.running
    assert not pump.catch_up(0.1)


def test_what_a_message_took_is_told_with_the_next(pump, heads, clock):
    pump.deliver = lambda head, _: heads.append(head) or setattr(clock, "now", clock.now + 0.002)
    pump.ask_for_all()
    pump.round()
    cost = pump.state()["cost"]
    assert cost["kernel_ms"] == pytest.approx(2.0)
    assert cost["bytes"] > 100
