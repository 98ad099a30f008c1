"""The newest step of a run is noted when tracking ends, so that the next process knows how far this one has come."""

from __future__ import annotations

from probe.tracking.state import NOTE_S, LastStep
from probe.tracking.tracking import Tracking


def test_the_last_step_is_noted_when_tracking_ends(tmp_path):
    tracking = Tracking("p", "e", ["file"], {}, directory=tmp_path)
    for step in (1, 2, 3):
        tracking.log({"loss": 1.0}, step)
    tracking.finish()
    assert LastStep(tmp_path).before == 3


def test_in_between_it_is_noted_now_and_then(tmp_path):
    seen = LastStep(tmp_path)
    assert [seen.see(step) for step in (5, 6)] == [None, None]
    assert LastStep(tmp_path).before == 5  # the first at once, the next one not within NOTE_S
    seen._noted_at -= NOTE_S + 1
    seen.see(7)
    assert LastStep(tmp_path).before == 7
    seen.see(6)
    seen.note()
    assert LastStep(tmp_path).before == 7  # it is the largest


def test_a_process_that_begins_before_it_is_told_once(tmp_path):
    first = LastStep(tmp_path)
    first.see(9)
    later = LastStep(tmp_path)
    assert [later.see(4), later.see(5)] == [9, None]
    assert LastStep(tmp_path).see(9) is None
