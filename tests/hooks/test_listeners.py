"""Listeners: what they subscribe to and hear, silence, and what becomes of those that fail."""

from __future__ import annotations

import logging
import threading

import pytest

from probe.hooks import MAX_FAILURES, Listener, emit, point, scope, silenced, subscribe, unsubscribe
from tests.hooks.diary import MOMENT, Broken, Diary, add


def test_patterns_reach_points_that_are_made_later():
    listener = Diary()
    with subscribe(listener, "later.*"):
        made = point("later.one")
        emit(made)
        emit(MOMENT)
    emit(made)
    assert [line[1] for line in listener.lines] == ["later.one"]


def test_one_listener_hears_once_though_two_patterns_match():
    listener = Diary()
    with subscribe(listener, "test.*", "*.moment"):
        emit(MOMENT)
    assert len(listener.lines) == 1


def test_listeners_are_left_in_the_reverse_order():
    order = []

    class Ordered(Listener):
        def __init__(self, name):
            self.name = name

        def enter(self, event):
            order.append(f"enter {self.name}")

        def leave(self, event, state):
            order.append(f"leave {self.name}")

    with subscribe(Ordered("a"), "test.add"), subscribe(Ordered("b"), "test.add"):
        add(1)
    assert order == ["enter a", "enter b", "leave b", "leave a"]


def test_closing_a_subscription_twice_is_fine(diary):
    subscription = subscribe(Diary(), "test.add")
    subscription.close()
    subscription.close()
    unsubscribe(Diary())
    add(1)
    assert len(diary.lines) == 2


def test_what_a_listener_calls_is_not_observed(diary):
    class Nested(Listener):
        def enter(self, event):
            assert add(1, 1) == 2
            emit(MOMENT)
            with scope("phase", "inside a listener"):
                pass

    with subscribe(Nested(), "test.add"):
        add(5, 5)
    assert [line[1] for line in diary.lines] == ["test.add", "test.add"]


def test_silenced_is_for_one_thread_and_nests(diary):
    with silenced():
        with silenced():
            add(1)
        add(1)
        thread = threading.Thread(target=lambda: add(2, 2))
        thread.start()
        thread.join()
    add(3, 3)
    assert [line[2] for line in diary.lines if line[0] == "leave"] == [4, 6]


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("moment", ["enter", "leave", "fire"])
def test_a_failing_listener_never_reaches_training(moment, caplog, diary):
    broken = Broken(moment)
    with subscribe(broken, "test.*"), caplog.at_level(logging.ERROR, "probe.hooks"):
        for number in range(MAX_FAILURES + 2):
            assert add(number, 1) == number + 1
            emit(MOMENT)
    assert [count for _, _, count, _ in broken.failures] == list(range(1, MAX_FAILURES + 1))
    assert [off for *_, off in broken.failures] == [False] * (MAX_FAILURES - 1) + [True]
    with_traceback = [record for record in caplog.records if record.exc_info]
    assert len(with_traceback) == 1
    assert "switched off" in caplog.records[-1].getMessage()
    assert len([line for line in diary.lines if line[0] == "leave"]) == MAX_FAILURES + 2
    assert broken not in MOMENT.listeners


@pytest.mark.usefixtures("lenient")
def test_a_listener_that_failed_to_enter_isnt_asked_to_leave():
    broken = Broken("enter")
    with subscribe(broken, "test.add"):
        add(1)
    assert broken.calls == 1


@pytest.mark.usefixtures("lenient")
def test_both_the_functions_and_the_listeners_error(diary):
    broken = Broken("leave")
    with subscribe(broken, "test.add"), pytest.raises(ZeroDivisionError, match="scale"):
        add(1, scale=0)
    assert len(broken.failures) == 1


@pytest.mark.usefixtures("lenient")
def test_a_listener_that_exits_the_process_doesnt():
    broken = Broken("enter", error=SystemExit(3))
    with subscribe(broken, "test.add"):
        assert add(1, 1) == 2
    assert broken.failures[0][1] == "SystemExit(3)"


def test_control_c_inside_a_listener_is_the_users():
    broken = Broken("leave", error=KeyboardInterrupt())
    with subscribe(broken, "test.add"), pytest.raises(KeyboardInterrupt):
        add(1, 1)
    assert add(1, 1) == 2
    assert broken.failures == []


@pytest.mark.usefixtures("lenient")
def test_a_listener_that_fails_at_being_told_of_its_failure(caplog):
    class Worse(Broken):
        def failed(self, event, error, count, switched_off):
            raise RuntimeError("again")

    with subscribe(Worse("enter"), "test.add"), caplog.at_level(logging.ERROR, "probe.hooks"):
        assert add(1, 1) == 2
    assert "told of its failure" in caplog.text


def test_strictly_what_a_listener_raises_is_raised_after_it_was_told(monkeypatch):
    monkeypatch.setenv("PROBE_STRICT", "1")
    broken = Broken("leave")
    with subscribe(broken, "test.add"), pytest.raises(type(broken.error), match=str(broken.error)):
        add(1)
    assert [count for _, _, count, _ in broken.failures] == [1]


@pytest.mark.usefixtures("lenient")
def test_failures_start_anew_with_a_new_subscription():
    broken = Broken("enter")
    for _ in range(2):
        with subscribe(broken, "test.add"):
            add(1)
    assert [count for _, _, count, _ in broken.failures] == [1, 1]
