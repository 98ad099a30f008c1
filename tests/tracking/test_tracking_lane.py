"""One backend's lane, a job at a time by hand: no thread, a clock of its own."""

from __future__ import annotations

import threading

import pytest

from probe.tracking import lane as lane_module
from probe.tracking.backends.base import Backend
from probe.tracking.journal import Journal
from probe.tracking.lane import ATTEMPTS, BACK_OFF_S, CLOSING_FAILURES, Item, Lane
from probe.tracking.media import Text
from probe.tracking.reports import Reports


class Clock:
    now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    one = Clock()
    monkeypatch.setattr(lane_module, "time", one)
    return one


class Picky(Backend):
    """Refuses the steps and media that it is told of, with ``error``; counts how often it was asked for each."""

    shows = frozenset({"text"})

    def __init__(self, *refused, error=None):
        self.refused = set(refused)
        self.error = error or ValueError("no")
        self.asked = []
        self.got = []

    def _get(self, what):
        self.asked.append(what)
        if what in self.refused:
            raise self.error
        self.got.append(what)

    def log(self, values, step):
        self._get(step)

    def show(self, name, medium, step, wall_ns):
        self._get(name)

    def close(self, exit_code):
        self._get("close")


class Hand:
    """Does a lane's jobs one by one, as the stream's thread does."""

    def __init__(self, backend, directory=None, capacity=100):
        self.incidents = []
        reports = Reports(self.incidents.append)
        self.journal = Journal(directory, ["a"], {"a"}, reports, capacity)
        self.lane = Lane("a", backend, self.journal, reports, threading.Lock())
        self.backend = backend

    def log(self, *steps, **media):
        for step in steps:
            values = {"x": float(step)} if step is not None else {}
            self.journal.append(step or 0, 1, None, values, {name: Text(one) for name, one in media.items()})

    def work(self, times=1, *, closing=False):
        """Do so many jobs, or as many as there are."""
        for _ in range(times):
            job = self.lane.job(closing)
            if job is None:
                return
            try:
                job()
            except Exception as error:
                self.lane.failed(error, closing)
            else:
                self.lane.succeeded()

    def told(self, words):
        return [one.message for one in self.incidents if words in one.message]


# ------------------------------------------------------------------------------------- a call that is given up


def test_a_call_is_given_up_after_so_many_attempts_and_not_before():
    hand = Hand(Picky(0))
    hand.log(0, 1)
    hand.work(ATTEMPTS)
    assert hand.backend.asked == [0] * ATTEMPTS
    assert hand.journal.cursor("a") == 0
    hand.work()
    assert hand.backend.asked == [0] * ATTEMPTS + [1]
    assert hand.journal.cursor("a") == 1
    hand.work(5)
    assert hand.backend.got == [1]  # its proof isn't sent again
    assert hand.journal.cursor("a") == 2
    assert len(hand.told("refuses the values of step 0")) == 1


def test_nothing_is_given_up_while_there_is_no_other_call_to_tell_by():
    hand = Hand(Picky(0))
    hand.log(0)
    hand.work(3 * ATTEMPTS)
    assert hand.backend.asked == [0] * 3 * ATTEMPTS
    assert hand.journal.cursor("a") == 0
    assert hand.told("given up") == []
    hand.backend.refused.clear()
    hand.work()
    assert (hand.backend.got, hand.journal.cursor("a")) == ([0], 1)


def test_nothing_is_given_up_where_the_next_call_is_not_taken_either():
    hand = Hand(Picky(0, 1))
    hand.log(0, 1)
    hand.work(2 * ATTEMPTS)
    assert hand.backend.asked == ([0] * ATTEMPTS + [1] + [0] * ATTEMPTS)[: 2 * ATTEMPTS]
    assert (hand.journal.cursor("a"), hand.told("given up")) == (0, [])


def test_nothing_is_given_up_where_the_connection_is_the_reason():
    hand = Hand(Picky(0, error=ConnectionError("away")))
    hand.log(0, 1)
    hand.work(3 * ATTEMPTS)
    assert hand.backend.asked == [0] * 3 * ATTEMPTS
    assert hand.told("given up") == []


def test_while_closing_a_call_is_given_up_sooner():
    hand = Hand(Picky(0))
    hand.log(0, 1)
    hand.work(3, closing=True)
    assert hand.backend.asked == [0, 0, 1]
    assert len(hand.told("given up")) == 1


def test_a_refused_call_is_kept_beside_the_journal(tmp_path):
    hand = Hand(Picky(0), tmp_path)
    hand.log(0, 1)
    hand.work(ATTEMPTS + 2)
    (line,) = (tmp_path / "tracking" / "a.refused.jsonl").read_text().splitlines()
    assert '"step":0' in line.replace(" ", "")
    assert "ValueError" in line
    hand.journal.close()


# ---------------------------------------------------------------------------------------- media, other jobs


def test_a_medium_is_given_up_after_so_many_attempts_and_the_next_at_once():
    hand = Hand(Picky("a", "b"))
    hand.log(0, a="words", b="more", c="fine")
    hand.work(1 + ATTEMPTS)
    assert hand.backend.asked == [0] + ["a"] * ATTEMPTS
    hand.work(2)
    assert hand.backend.asked.count("b") == 1
    hand.work(2)
    assert hand.backend.got == [0, "c"]
    assert len(hand.told("is given up")) == 1  # the second is counted with it
    hand.log(1, a="again")
    hand.work(3)
    assert hand.backend.asked.count("a") == ATTEMPTS + 3  # one was taken meanwhile, so that it gets its attempts


def test_a_medium_is_not_given_up_where_the_connection_is_the_reason():
    hand = Hand(Picky("a", error=TimeoutError("slow")))
    hand.log(0, a="words")
    hand.work(3 * ATTEMPTS)
    assert hand.told("given up") == []
    hand.backend.refused.clear()
    hand.work()
    assert hand.backend.got == [0, "a"]


@pytest.mark.parametrize(("error", "left"), [(ValueError("no"), 0), (OSError("away"), 1)])
def test_another_job_is_given_up_after_so_many_attempts_unless_the_connection_is_the_reason(error, left):
    hand = Hand(Picky())
    asked = []

    def fail():
        asked.append(1)
        raise error

    hand.lane.todo.append(Item("the tags", fail, 0))
    hand.work(ATTEMPTS - 1)
    assert len(hand.lane.todo) == 1
    hand.work()
    assert len(hand.lane.todo) == left
    hand.work(ATTEMPTS)
    assert len(asked) == ATTEMPTS + ATTEMPTS * left


def test_another_job_waits_for_the_calls_before_it():
    hand, done = Hand(Picky()), []
    hand.log(0)
    hand.lane.todo.append(Item("the tags", lambda: done.append(list(hand.backend.got)), 1))
    hand.work(5)
    assert done == [[0]]
    assert hand.lane.idle()


# ------------------------------------------------------------------------------------- pauses, stalls, the end


def test_pauses_grow_up_to_the_longest_and_start_anew(clock):
    hand = Hand(Picky(0, error=ConnectionError("away")))
    hand.log(0)
    pauses = []
    for _ in range(12):
        hand.work()
        pauses.append(hand.lane.retry_at - clock.now)
    first, longest = BACK_OFF_S
    assert pauses == pytest.approx([min(longest, first * 2**place) for place in range(12)])
    hand.backend.refused.clear()
    hand.work()
    assert (hand.lane.retry_at, hand.lane.failures) == (0.0, 0)


def test_while_closing_pauses_are_short_and_few_failures_are_enough(clock):
    hand = Hand(Picky(0, error=ConnectionError("away")))
    hand.log(0)
    hand.work(CLOSING_FAILURES + 3)
    assert not hand.lane.gave_up  # it isn't closing
    hand.lane.failures = 0
    for count in range(1, CLOSING_FAILURES + 1):
        hand.work(closing=True)
        assert hand.lane.gave_up == (count >= CLOSING_FAILURES)
        assert hand.lane.retry_at - clock.now <= 4 * BACK_OFF_S[0] + 1e-9


def test_a_backend_that_does_not_answer_is_told_once_for_each_time():
    hand = Hand(Picky())
    assert not hand.lane.stuck(1e9, 10)
    hand.lane.busy_since = 100.0
    assert [hand.lane.stuck(now, 10) for now in (105.0, 110.0, 110.5, 200.0)] == [False, False, True, False]
    hand.lane.busy_since = 300.0
    assert hand.lane.stuck(311.0, 10)


@pytest.mark.parametrize("gave_up", [False, True])
def test_the_end_notes_what_the_backend_has_unless_it_was_given_up(gave_up, tmp_path):
    class Slow(Picky):
        settles_s = 5.0

    hand = Hand(Slow(), tmp_path)
    hand.log(0)
    hand.work()
    hand.lane.gave_up = gave_up
    hand.lane.end(0)()
    assert (hand.lane.closed, hand.lane.ended, hand.backend.got) == (True, True, [0, "close"])
    hand.journal.close()
    assert int((tmp_path / "tracking" / "a.at").read_text()) == (0 if gave_up else 1)


def test_what_settles_later_is_noted_later(clock, tmp_path):
    """A value counts as there when it was sent some seconds ago and a later step has followed it."""

    class Slow(Picky):
        settles_s = 5.0

    def noted():
        return int((tmp_path / "tracking" / "a.at").read_text())

    hand = Hand(Slow(), tmp_path)
    for step, now, expected in ((0, 100.0, 0), (1, 104.0, 0), (1, 105.0, 1), (1, 120.0, 1), (2, 121.0, 3)):
        clock.now = now
        hand.log(step)
        hand.work()
        assert noted() == expected, (step, now)
    hand.journal.close()


# ------------------------------------------------------------------------ what tells that the backend is in order


def test_a_call_with_numbers_tells_more_than_one_of_media_alone():
    hand = Hand(Picky(0, "a"))
    hand.log(0)
    hand.log(None, a="refused too")
    hand.log(2)
    hand.work(ATTEMPTS + 1)
    assert hand.backend.asked == [0] * ATTEMPTS + [2]
    assert len(hand.told("refuses the values of step 0")) == 1


def test_where_there_are_no_numbers_a_call_of_media_tells():
    hand = Hand(Picky(0))
    hand.log(0)
    hand.log(None, a="taken")
    hand.work(ATTEMPTS + 1)
    assert hand.backend.asked == [0] * ATTEMPTS + ["a"]
    assert len(hand.told("refuses the values of step 0")) == 1


class Unsure(Picky):
    """Can't say what it has of a call without numbers."""

    def missing(self, values, step):
        if not values:
            raise ValueError("nothing to look for")
        return values


def test_the_numbers_of_a_call_that_told_for_two_others_are_sent_once(tmp_path):
    before = Hand(Picky(), tmp_path)
    before.log(0)
    before.log(None, a="words")
    before.log(2)
    before.journal.close()
    hand = Hand(Unsure(0), tmp_path)
    hand.work(3 * ATTEMPTS)
    assert hand.backend.asked == [0] * ATTEMPTS + [2]
    assert hand.journal.cursor("a") == 3
    assert len((tmp_path / "tracking" / "a.refused.jsonl").read_text().splitlines()) == 2
    hand.journal.close()


class Several(Picky):
    """Takes several calls at once, and knows what it has."""

    def __init__(self):
        super().__init__()
        self.looked_up = []
        self.there = set()

    def log_many(self, calls):
        self.got.append([step for _, step in calls])

    def missing(self, values, step):
        self.looked_up.append(step)
        return {} if step in self.there else values


def test_calls_that_a_killed_process_may_have_sent_are_looked_up_and_no_others(tmp_path):
    """It may have died between sending and noting that: of one call, or of two."""
    before = Hand(Picky(), tmp_path)
    before.log(*range(6))
    before.journal.close()
    hand = Hand(Several(), tmp_path)
    hand.backend.there = {0}
    hand.work(10)
    assert hand.backend.looked_up == [0, 1]
    assert hand.backend.got == [1, [2, 3, 4, 5]]
    hand.log(6)
    hand.work()
    assert (hand.backend.looked_up, hand.backend.got[-1]) == ([0, 1], 6)
    hand.journal.close()


def test_calls_are_not_put_together_over_one_with_media_nor_after_a_failure():
    hand = Hand(Several())
    hand.log(0, 1, 2)
    hand.log(3, a="words")
    hand.log(4, 5)
    hand.work(10)
    assert hand.backend.got == [[0, 1, 2], 3, "a", [4, 5]]
    hand.backend.refused = {6}
    hand.backend.log_many = lambda calls: hand.backend.asked.append("many") or (_ for _ in ()).throw(ValueError("no"))
    hand.log(6, 7)
    hand.work(2)
    assert hand.backend.asked[-2:] == ["many", 6]


def test_so_many_values_at_most_are_sent_at_once(monkeypatch):
    monkeypatch.setattr(lane_module, "TOGETHER", 4)
    hand = Hand(Several())
    hand.log(*range(9))
    hand.work(10)
    assert hand.backend.got == [[0, 1, 2, 3], [4, 5, 6, 7], 8]
