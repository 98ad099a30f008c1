"""Scopes: what they inherit, how both ends are heard, and threads, tasks and errors among them."""

from __future__ import annotations

import asyncio
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.hooks import Listener, current_scope, phase, scope, subscribe, watch
from tests.hooks.diary import Diary


def test_a_scope_inherits_what_it_doesnt_set():
    outside = current_scope()
    with scope("step", "step", step=4) as step, watch(role="actor") as role, phase("update"):
        with scope("micro_batch", "micro_batch", micro_batch=0, tokens=17) as opened:
            now = current_scope()
            assert (now.step, now.role, now.phase, now.micro_batch) == (4, "actor", "update", 0)
            assert now.path == "step/actor/update/micro_batch"
            assert [one.kind for one in now.ancestors()] == [
                "micro_batch",
                "phase",
                "watch",
                "step",
                "process",
            ]
            assert opened.values == {"tokens": 17}
            assert now.parent.parent is role.scope
            assert "step=4" in repr(now)
        assert current_scope().micro_batch is None
    assert step.scope.parent is outside
    assert current_scope() is outside
    assert outside.path == ""


def test_scope_ids_are_unique_and_the_process_is_0():
    with scope("phase", "a") as first, scope("phase", "b") as second:
        assert 0 < first.scope.id < second.scope.id
    assert current_scope().id == 0


def test_both_ends_of_a_scope_are_heard_with_values_added_inside():
    values = []

    class Values(Listener):
        def enter(self, event):
            values.append(dict(event.values))

        def leave(self, event, state):
            values.append(dict(event.values))

    with subscribe(Values(), "scope"), scope("phase", "a", tokens=1) as opened:
        opened.values["sequences"] = 2
    assert values == [{"tokens": 1}, {"tokens": 1, "sequences": 2}]


def test_a_scope_that_raises_is_heard_and_left(diary):
    with pytest.raises(ValueError, match="body"), scope("phase", "a"):
        raise ValueError("body")
    assert diary.lines[-1] == ("leave", "a", "ValueError('body')")
    assert current_scope().id == 0


def test_who_subscribes_inside_a_scope_hears_no_half_of_it():
    listener = Diary()
    with scope("phase", "a"):
        subscription = subscribe(listener, "scope")
    subscription.close()
    assert listener.lines == []


def test_who_unsubscribes_inside_a_scope_still_hears_its_end():
    listener = Diary()
    subscription = subscribe(listener, "scope")
    with scope("phase", "a"):
        subscription.close()
    assert [line[0] for line in listener.lines] == ["enter", "leave"]


def test_threads_begin_outside_and_tasks_begin_inside():
    seen = {}

    async def task(name):
        with scope("phase", name):
            await asyncio.sleep(0)
            seen[name] = current_scope().path

    async def both():
        await asyncio.gather(task("one"), task("two"))

    def thread():
        seen["thread"] = current_scope().path

    with scope("phase", "outer"):
        asyncio.run(both())
        worker = threading.Thread(target=thread)
        worker.start()
        worker.join()
    assert seen == {"one": "outer/one", "two": "outer/two", "thread": ""}


def test_a_child_left_open_doesnt_hold_its_parent():
    with scope("phase", "parent"):
        scope("phase", "never left").__enter__()
        assert current_scope().name == "never left"
    assert current_scope().id == 0


def test_a_scope_that_is_left_late_changes_nothing():
    late = scope("phase", "late")
    with scope("phase", "parent"):
        late.__enter__()
    with scope("phase", "other") as other:
        late.__exit__(None, None, None)
        assert current_scope() is other.scope
    assert current_scope().id == 0


_tree = st.recursive(st.just([]), lambda children: st.lists(children, max_size=3), max_leaves=12)


@settings(deadline=None, max_examples=60)
@given(_tree, st.integers(0, 30))
def test_any_tree_of_scopes_with_an_error_anywhere_is_heard_well_nested(tree, fails_at):
    count = 0

    def walk(children):
        nonlocal count
        count += 1
        if count == fails_at:
            raise LookupError
        for number, child in enumerate(children):
            with scope("phase", str(number)):
                walk(child)

    listener = Diary()
    with subscribe(listener, "scope"):
        try:
            walk(tree)
        except LookupError:
            assert 0 < fails_at <= count
    stack = []
    for moment, path, _ in listener.lines:
        if moment == "enter":
            assert path.rpartition("/")[0] == (stack[-1] if stack else "")
            stack.append(path)
        else:
            assert stack.pop() == path
    assert stack == []
    assert current_scope().id == 0
