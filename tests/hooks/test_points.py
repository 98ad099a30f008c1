"""Points: calls and moments are heard, arguments are found, and nothing is kept alive."""

from __future__ import annotations

import gc
import inspect
import subprocess
import sys
import weakref

from probe.hooks import Listener, emit, observed, point, points, subscribe
from tests.hooks.diary import MOMENT, add


def test_nobody_listening_calls_straight_through():
    assert add(1, 2) == 3
    assert add.__name__ == "add"
    assert add.__doc__ == "Add."
    assert inspect.signature(add) == inspect.signature(add.__wrapped__)
    emit(MOMENT, value=1)


def test_a_call_is_heard_with_its_result(diary):
    assert add(1, 2) == 3
    assert diary.lines == [("enter", "test.add", None), ("leave", "test.add", 3)]


def test_the_functions_own_exception_passes_unchanged(diary):
    error = None
    try:
        add(1, scale=0)
    except ZeroDivisionError as raised:
        error = raised
    assert error is not None
    assert error.__context__ is None
    assert diary.lines[-1] == ("leave", "test.add", "ZeroDivisionError('scale')")


def test_a_moment_is_heard_with_its_values(diary):
    emit(MOMENT, tokens=7)
    assert diary.lines == [("fire", "test.moment", {"tokens": 7})]


def test_points_are_one_for_each_name():
    assert point("test.moment") is MOMENT
    assert points()["test.moment"] is MOMENT
    assert point("test.late") is point("test.late", "told later")
    assert point("test.late", "not again").about == "told later"
    assert list(points()) == sorted(points())
    assert repr(MOMENT) == "Point('test.moment', 0 listeners)"


def test_argument_finds_what_the_function_would_see():
    seen = []

    class Arguments(Listener):
        def leave(self, event, state):
            seen.append(tuple(event.argument(name, "absent") for name in ("left", "right", "scale", "nothing")))

    with subscribe(Arguments(), "test.add"):
        add(1)
        add(1, 2)
        add(left=3, right=4, scale=5)
    assert seen == [(1, 10, 1, "absent"), (1, 2, 1, "absent"), (3, 4, 5, "absent")]


def test_argument_of_a_keyword_only_parameter_behind_rest():
    seen = []

    class Arguments(Listener):
        def leave(self, event, state):
            seen.append(event.argument("scale"))

    with subscribe(Arguments(), "test.add"):
        add(1, 2, 30, 40)
    assert seen == [1]


def test_an_event_keeps_nothing_alive():
    kept = []

    class Keeps(Listener):
        def leave(self, event, state):
            kept.append(event)

    class Big:
        pass

    @observed("test.big")
    def big(value):
        return value

    value = Big()
    alive = weakref.ref(value)
    with subscribe(Keeps(), "test.big"):
        big(value)
    del value
    gc.collect()
    assert alive() is None
    event = kept[0]
    assert (event.args, event.result, event.error, event.function) == ((), None, None, None)
    assert event.argument("value", 5) == 5


def test_hooks_load_only_the_standard_library():
    code = "import sys, probe.hooks; assert not {'torch', 'numpy', 'msgspec', 'pandas'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
