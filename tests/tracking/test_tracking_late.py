"""A backend that wasn't there when the run began: every call reaches it once it is."""

from __future__ import annotations

import sys
import textwrap

import pytest

from probe.tracking.backends import Setup, UnreachableError
from probe.tracking.backends.base import Alert, Backend
from probe.tracking.late import Late
from probe.tracking.media import KINDS, Histogram, Text

OWN = """
    from probe.tracking.backends import UnreachableError
    from probe.tracking.backends.base import Backend

    class Remembering(Backend):
        error = None
        settles_s = 0.25
        shows = frozenset({"text"})
        def __init__(self, setup):
            if type(self).error: raise type(self).error
            self.calls, self.location, self.run_id = [], "over there", "r1"
        def missing(self, values, step):
            self.calls.append(("missing", values, step))
            return {"b": 2.0}

    def remember(name):
        def method(self, *content): self.calls.append((name, *content))
        return method

    for name in ("log", "log_many", "show", "params", "describe", "tag", "layout", "alert", "flush", "close"):
        setattr(Remembering, name, remember(name))
    Remembering.__abstractmethods__ = frozenset()
"""

#: A call of each method.
CALLS = {
    "log": ({"a": 1.0}, 3),
    "log_many": ([({"a": 1.0}, 3)],),
    "missing": ({"a": 1.0, "b": 2.0}, 3),
    "show": ("t", Text("hello"), 3, 9),
    "params": ({"lr": 0.1},),
    "describe": ("# found",),
    "tag": ({"model": "small"},),
    "layout": ({"Memory": {}},),
    "alert": (Alert("hang", "Rank 0 waits for rank 1.", 3),),
    "flush": (),
    "close": (0,),
}


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "late_own_backend.py").write_text(textwrap.dedent(OWN))
    monkeypatch.syspath_prepend(str(tmp_path))
    import late_own_backend

    yield late_own_backend.Remembering
    sys.modules.pop("late_own_backend")


@pytest.fixture
def reports():
    return []


@pytest.fixture
def late(own, reports, tmp_path):
    def report(about, message):
        reports.append((about, message))

    return Late("late_own_backend:Remembering", Setup("p", "e", tmp_path, report))


def test_the_calls_of_these_tests_are_all_that_a_backend_has():
    methods = {name for name, one in vars(Backend).items() if callable(one) and not name.startswith("_")}
    assert set(CALLS) == methods - {"has", "takes", "clean"}


@pytest.mark.parametrize("method", CALLS)
def test_each_call_waits_until_the_backend_is_there_and_then_reaches_it(own, late, method):
    for error in (UnreachableError("down"), RuntimeError("what it says while it starts")):
        own.error = error
        with pytest.raises(UnreachableError):
            getattr(late, method)(*CALLS[method])
    own.error = None
    assert getattr(late, method)(*CALLS[method]) == ({"b": 2.0} if method == "missing" else None)
    assert late.backend.calls == [(method, *CALLS[method])]


def test_what_is_known_of_it_changes_when_it_is_there(own, late):
    own.error = UnreachableError("down")
    with pytest.raises(UnreachableError):
        late.flush()
    assert late.location == "late_own_backend:Remembering (not reached yet)"
    assert (late.run_id, late.shows, late.settles_s) == ("", KINDS, 1.0)
    assert [late.takes(name) for name in ("log_many", "describe", "show")] == [False, True, True]
    own.error = None
    late.flush()
    assert (late.location, late.run_id, late.shows, late.settles_s) == ("over there", "r1", {"text"}, 0.25)
    assert late.takes("log_many")


def test_a_medium_that_it_turns_out_not_to_show_is_reported_and_left_out(late, reports):
    late.show("h", Histogram.from_values([1.0, 2.0]), 3, 9)
    assert late.backend.calls == []
    assert reports == [("kind histogram", "can't show a histogram: 'h' at step 3 is left out")]
