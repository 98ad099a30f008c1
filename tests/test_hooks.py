"""Hooks: points, listeners, scopes and watch, also where things go wrong."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import inspect
import logging
import subprocess
import sys
import threading
import weakref
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe import hooks
from probe.errors import InputTypeError
from probe.hooks import (
    MAX_FAILURES,
    Event,
    Listener,
    current_scope,
    emit,
    observed,
    phase,
    point,
    points,
    scope,
    silenced,
    subscribe,
    unsubscribe,
    watch,
)


class Diary(Listener):
    """Writes down what it hears, taking what it needs, as a listener must."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.lines: list[Any] = []
        self.failures: list[tuple[str, str, int, bool]] = []

    def _note(self, moment: str, event: Event, more: Any = None) -> None:
        name = event.scope.path if event.point is hooks.SCOPE else event.point.name
        self.lines.append((moment, name, more))

    def enter(self, event: Event) -> Any:
        self._note("enter", event)
        return event.point.name

    def leave(self, event: Event, state: Any) -> None:
        assert state == event.point.name
        assert event.end_ns >= event.begin_ns > 0
        self._note("leave", event, event.result if event.error is None else repr(event.error))

    def fire(self, event: Event) -> None:
        self._note("fire", event, dict(event.values))

    def failed(self, event: Event, error: BaseException, count: int, switched_off: bool) -> None:
        self.failures.append((event.point.name, repr(error), count, switched_off))


class Broken(Diary):
    """Raises where it is told to."""

    def __init__(self, *moments: str, error: BaseException | None = None) -> None:
        super().__init__()
        self.moments = moments
        self.error = error or ValueError("listener")
        self.calls = 0

    def _note(self, moment: str, event: Event, more: Any = None) -> None:
        self.calls += 1
        if moment in self.moments:
            raise self.error


@observed("test.add", "two numbers")
def add(left, right=10, *rest, scale=1):
    """Add."""
    if scale == 0:
        raise ZeroDivisionError("scale")
    return (left + right + sum(rest)) * scale


MOMENT = point("test.moment", "a moment")


@pytest.fixture
def diary():
    listener = Diary()
    with subscribe(listener, "test.*", "scope"):
        yield listener


# ----------------------------------------------------------------------------------------------------- points


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


# ---------------------------------------------------------------------------------------- listeners that fail


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


# ----------------------------------------------------------------------------------------------------- scopes


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


# ------------------------------------------------------------------------------------------------------ watch


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


# --------------------------------------------------------------------------------- coroutines and generators


def test_a_coroutine_is_inside_while_it_waits(diary):
    @watch(role="actor")
    async def work(name):
        before = current_scope()
        await asyncio.sleep(0)
        assert current_scope() is before
        return name, before.role

    async def main():
        return await asyncio.gather(work("a"), work("b"))

    assert inspect.iscoroutinefunction(work)
    assert asyncio.run(main()) == [("a", "actor"), ("b", "actor")]
    assert [line[0] for line in diary.lines] == ["enter", "enter", "leave", "leave"]


def test_a_cancelled_coroutine_is_left(diary):
    @watch(role="actor")
    async def forever():
        await asyncio.Event().wait()

    async def main():
        task = asyncio.ensure_future(forever())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert current_scope().id == 0

    asyncio.run(main())
    assert diary.lines[-1][:2] == ("leave", "forever")
    assert "CancelledError" in diary.lines[-1][2]


@watch(role="data")
def conversation(first):
    """Yields, hears what is sent, survives what is thrown, returns."""
    heard = []
    item = first
    while True:
        assert current_scope().name == "conversation"
        try:
            heard.append((yield item))
        except KeyError as error:
            heard.append(f"caught {error.args[0]}")
        if heard[-1] == "stop":
            return heard
        item = f"{heard[-1]}!"
        assert current_scope().role == "data"


def test_a_generators_body_is_inside_and_its_consumer_outside(diary):
    assert inspect.isgeneratorfunction(conversation)
    stream = conversation("hello")
    assert diary.lines == []
    assert next(stream) == "hello"
    assert current_scope().id == 0
    assert stream.send("more") == "more!"
    assert stream.throw(KeyError("k")) == "caught k!"
    with phase("elsewhere"):
        assert next(stream) == "None!"
        assert current_scope().path == "elsewhere"
    with pytest.raises(StopIteration) as stopped:
        stream.send("stop")
    assert stopped.value.value == ["more", "caught k", None, "stop"]
    assert [line[:2] for line in diary.lines if "conversation" in line[1]] == [
        ("enter", "conversation"),
        ("leave", "conversation"),
    ]
    assert current_scope().id == 0


def test_a_generator_that_raises_or_is_closed_is_left_once(diary):
    cleaned = []

    @watch(role="data")
    def items():
        try:
            yield 1
            raise OSError("disk")
        finally:
            cleaned.append(current_scope().name)

    first = items()
    next(first)
    with pytest.raises(OSError, match="disk"):
        next(first)
    second = items()
    next(second)
    second.close()
    with pytest.raises(StopIteration):
        next(second)
    third = items()
    next(third)
    del third
    gc.collect()
    assert cleaned == ["items"] * 3
    assert [line[0] for line in diary.lines] == ["enter", "leave"] * 3
    assert current_scope().id == 0


def test_a_generator_that_outlives_its_parent():
    @watch(role="data")
    def items():
        yield current_scope().path
        yield current_scope().path

    with phase("parent"):
        stream = items()
        assert next(stream) == "parent/items"
    assert current_scope().id == 0
    assert next(stream) == "parent/items"
    assert current_scope().id == 0
    assert list(stream) == []


def test_yield_from_and_interleaved_generators():
    @watch(role="data")
    def inner(name):
        for number in range(2):
            assert current_scope().name == "inner"
            yield name, number

    @watch(role="outer")
    def outer(name):
        yield from inner(name)
        assert current_scope().name == "outer"

    pairs = list(zip(outer("a"), outer("b"), strict=True))
    assert pairs == [(("a", 0), ("b", 0)), (("a", 1), ("b", 1))]
    assert current_scope().id == 0


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["next", "send", "throw", "close"])), max_size=25))
def test_watched_generators_do_what_bare_ones_do(actions):
    def talk():
        total = 0
        for _ in range(4):
            try:
                sent = yield total
                total += sent or 1
            except KeyError:
                total += 100
        return total

    def play(make):
        streams, log = [make() for _ in range(4)], []
        for which, action in actions:
            stream = streams[which]
            calls = {
                "next": lambda stream=stream: next(stream),
                "send": lambda stream=stream: stream.send(
                    5 if inspect.getgeneratorstate(stream) != "GEN_CREATED" else None
                ),
                "throw": lambda stream=stream: stream.throw(KeyError("k")),
                "close": stream.close,
            }
            try:
                log.append(calls[action]())
            except (StopIteration, KeyError) as error:
                log.append((type(error), error.args))
            assert current_scope().id == 0
        for stream in streams:
            stream.close()
        return log

    assert play(watch(role="data")(talk)) == play(talk)


def test_an_async_generator_is_inside_and_its_consumer_outside(diary):
    @watch(role="rollout")
    async def tokens(count):
        for number in range(count):
            await asyncio.sleep(0)
            assert current_scope().role == "rollout"
            yield number

    async def main():
        assert inspect.isasyncgenfunction(tokens)
        seen = []
        async for number in tokens(3):
            assert current_scope().id == 0
            seen.append(number)
        return seen

    assert asyncio.run(main()) == [0, 1, 2]
    assert [line[:2] for line in diary.lines] == [("enter", "tokens"), ("leave", "tokens")]


def test_an_async_generator_that_raises(diary):
    @watch(role="rollout")
    async def tokens():
        yield 1
        raise OSError("disk")

    async def main():
        with pytest.raises(OSError, match="disk"):
            async for _ in tokens():
                pass
        assert current_scope().id == 0

    asyncio.run(main())
    assert diary.lines[-1] == ("leave", "tokens", "OSError('disk')")


def test_a_closed_async_generator_is_left_at_once(diary):
    @watch(role="rollout")
    async def tokens():
        yield 1
        yield 2

    async def main():
        stream = tokens()
        await anext(stream)
        await stream.aclose()
        return [line[0] for line in diary.lines]

    assert asyncio.run(main()) == ["enter", "leave"]


def test_what_is_sent_into_an_async_generator_arrives():
    @watch(role="rollout")
    async def talk():
        heard = yield "first"
        yield heard

    async def main():
        stream = talk()
        await anext(stream)
        heard = await stream.asend("sent")
        await stream.aclose()
        return heard

    assert asyncio.run(main()) == "sent"


def test_a_scope_left_inside_silence_doesnt_end_it(diary):
    opened = scope("phase", "a")
    opened.__enter__()
    with silenced():
        opened.__exit__(None, None, None)
        add(1)
    assert [line[1] for line in diary.lines] == ["a", "a"]


def test_tasks_that_share_one_watch_object_leave_their_own_scope():
    shared = watch(role="actor")
    left = []

    async def task(name, pauses):
        with shared as opened:
            opened.values["name"] = name
            for _ in range(pauses):
                await asyncio.sleep(0)

    class Names(Listener):
        def leave(self, event, state):
            left.append(event.values["name"])

    async def main():
        await asyncio.gather(task("long", 3), task("short", 1), task("middle", 2))

    with subscribe(Names(), "scope"):
        contextvars.copy_context().run(asyncio.run, main())
    assert left == ["short", "middle", "long"]


def test_hooks_load_only_the_standard_library():
    code = "import sys, probe.hooks; assert not {'torch', 'numpy', 'msgspec', 'pandas'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
