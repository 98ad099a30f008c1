"""``watch`` and ``phase`` on functions and methods of every kind, and around blocks."""

from __future__ import annotations

import functools
import inspect

import pytest

from probe.errors import InputTypeError
from probe.hooks import current_scope, phase, watch


class Actor:
    """Methods of every kind, as a worker has them."""

    @watch(role="actor")
    def update(self, amount):
        """Update."""
        return amount, current_scope().role, current_scope().phase, current_scope().path

    @watch(role="actor")
    @staticmethod
    def inner_static(amount):
        return amount, current_scope().role

    @staticmethod
    @watch(role="actor")
    def outer_static(amount):
        return amount, current_scope().role

    @watch(role="actor")
    @classmethod
    def inner_class(cls, amount):
        return cls.__name__, amount, current_scope().role

    @classmethod
    @watch(role="actor")
    def outer_class(cls, amount):
        return cls.__name__, amount, current_scope().role


def test_watch_on_methods_of_every_kind():
    actor = Actor()
    assert actor.update(3) == (3, "actor", "update", "update")
    assert Actor.inner_static(1) == actor.outer_static(1) == (1, "actor")
    assert Actor.inner_class(2) == actor.outer_class(2) == ("Actor", 2, "actor")
    assert Actor.update.__doc__ == "Update."
    assert current_scope().id == 0


def test_watch_keeps_name_doc_wrapped_and_attributes():
    def function(left: int, right: int = 2) -> int:
        """Doc."""
        return left + right

    function.registered = {"dispatch": "one to all"}
    wrapped = watch(role="actor")(function)
    assert (wrapped.__name__, wrapped.__doc__, wrapped.__wrapped__) == ("function", "Doc.", function)
    assert wrapped.registered is function.registered
    assert inspect.signature(wrapped) == inspect.signature(function)
    assert wrapped.__annotations__ == function.__annotations__


def test_the_phase_is_the_functions_name_unless_there_is_one():
    @watch(role="actor")
    def compute():
        return current_scope().phase

    @watch(role="actor", phase="own")
    def own():
        return current_scope().phase

    @watch(role="actor", name="called otherwise")
    def named():
        return current_scope().path

    assert compute() == "compute"
    with phase("old_log_prob", role="ref"):
        assert compute() == "old_log_prob"
        assert own() == "own"
        assert current_scope().role == "ref"
    assert named() == "called otherwise"


def test_watch_and_phase_around_blocks():
    with watch() as anonymous:
        assert anonymous.scope.name == "watch"
    together = watch(role="actor")
    with together as outer, together as inner:
        assert inner.scope.parent is outer.scope
    assert current_scope().id == 0


@phase("reward")
def rewarded():
    return current_scope().kind, current_scope().phase


def test_phase_as_a_decorator():
    assert rewarded() == ("phase", "reward")


@pytest.mark.parametrize("wrong", [3, "name", Actor, None])
def test_watch_refuses_what_isnt_a_function(wrong):
    with pytest.raises(InputTypeError, match="expected a function"):
        watch(role="actor")(wrong)


def test_watch_on_a_partial_and_on_an_object_that_can_be_called():
    class Callable:
        def __call__(self):
            return current_scope().name

    assert watch()(functools.partial(lambda value: (value, current_scope().name), 3))() == (3, "partial")
    assert watch()(Callable())() == "Callable"


def test_watch_lets_the_exception_through(diary):
    @watch(role="actor")
    def fails():
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        fails()
    assert diary.lines == [("enter", "fails", None), ("leave", "fails", "OSError('disk')")]


def test_recursion():
    @watch(role="actor")
    def down(depth):
        return down(depth - 1) if depth else current_scope().path

    assert down(3) == "down/down/down/down"
