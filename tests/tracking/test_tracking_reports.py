"""Troubles are told once and counted; what raises while it is told harms nobody."""

from __future__ import annotations

import logging

import pytest

from probe.tracking.reports import Reports


@pytest.fixture
def told():
    return []


def test_the_first_of_a_kind_is_told_and_the_end_tells_how_many_more_there_were(told):
    reports = Reports(told.append)
    for message in ("first", "second", "third"):
        reports.tell("value", "tracking", message, about="loss")
    reports.tell("value", "tracking", "other", about="reward")
    reports.tell("backend", "tracking", "another", about="loss")
    assert [(one.kind, one.message, one.count) for one in told] == [
        ("value", "first", 1),
        ("value", "other", 1),
        ("backend", "another", 1),
    ]
    assert (reports.count("value", "tracking", "loss"), reports.count("value", "tracking", "never")) == (3, 0)
    told.clear()
    reports.close()
    assert [(one.kind, one.where, one.message, one.count) for one in told] == [
        ("value", "tracking", "loss: 2 more since the first report", 2)
    ]


def test_a_second_end_tells_only_what_is_new(told):
    reports = Reports(told.append)
    reports.tell("value", "a", "first", about="x", count=5)
    reports.tell("value", "a", "again", about="x", count=2)
    reports.close()
    told.clear()
    reports.close()
    assert told == []
    reports.tell("value", "a", "late", about="x", count=4)
    reports.close()
    assert [one.count for one in told] == [4]


@pytest.mark.usefixtures("lenient")
def test_what_fails_while_it_is_told_is_logged_and_goes_no_further(caplog):
    def fail(incident):
        raise OSError(f"no room for {incident.message}")

    with caplog.at_level(logging.WARNING, "probe.tracking"):
        Reports(fail).tell("value", "a", "trouble", error=ValueError("why"))
    assert [one.message for one in caplog.records] == ["a: trouble", "on_incident failed; training goes on"]


def test_an_error_is_told_with_its_traceback(told):
    try:
        raise ValueError("why")
    except ValueError as error:
        Reports(told.append).tell("value", "a", "trouble", error=error)
    assert "ValueError: why" in told[0].traceback
    assert "test_tracking_reports.py" in told[0].traceback
