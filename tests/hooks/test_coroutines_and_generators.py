"""What is watched though it pauses: coroutines and generators are inside while they run, their callers aren't."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import inspect

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.hooks import Listener, current_scope, phase, scope, silenced, subscribe, watch
from tests.hooks.diary import add


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
