"""Code around probe's wrappers: pickled, asynchronous, compiled, it is as without them."""

from __future__ import annotations

import asyncio
import functools
import os
import pickle
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import probe
from probe.core.memory_logger import GPUMemoryLogger
from probe.core.timing import simple_timer
from probe.hooks import Event, Listener, Point, current_scope, observed, phase, point, subscribe, watch
from probe.runs.reader import Run

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 300


class Heard(Listener):
    """Calls that were told of, with how long they took."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, float, Any, BaseException | None]] = []

    def leave(self, event: Event, state: Any) -> None:
        self.ended.append((event.point.name, (event.end_ns - event.begin_ns) / 1e9, event.result, event.error))


# ------------------------------------------------------------------------------------------------------- 13: pickling

#: A script: what it defines is in ``__main__``, which pickles take apart.
SCRIPT = """
    import sys
    import cloudpickle, dill
    import probe
    from probe.core.memory_logger import GPUMemoryLogger
    from probe.hooks import observed, phase, watch
    from probe.testing import FakeDevice

    @observed("wrappers.double", "x")
    def double(x): return 2 * x
    @watch(role="actor")
    def add(x): return x + 1
    @phase("triple")
    def triple(x): return x * 3
    @GPUMemoryLogger(role="actor")
    def fourfold(x): return x * 4
    @watch(role="actor")
    def numbers(x): yield from range(x)
    @observed("wrappers.numbers", "x")
    def told_numbers(x): yield from range(x)
    @observed("wrappers.later", "x")
    async def later(x): return x
    @watch(role="actor")
    async def watched_later(x): return x

    plain = [double, add, triple, fourfold]
    ways = {
        "dill": (dill.dumps, dill.loads),
        "dill, recursively": (lambda one: dill.dumps(one, recurse=True), dill.loads),
        "cloudpickle": (cloudpickle.dumps, cloudpickle.loads),
    }

    def check():
        for name, (dumps, loads) in ways.items():
            assert [loads(dumps(one))(3) for one in plain] == [6, 4, 9, 12], name
            assert [list(loads(dumps(one))(3)) for one in (numbers, told_numbers)] == [[0, 1, 2]] * 2, name
            for one in (later, watched_later):
                try:
                    loads(dumps(one))(3).send(None)
                except StopIteration as stop:
                    assert stop.value == 3, name

    check()
    light = {"recorders": ["memory"], "device": FakeDevice()}  # which needn't import torch
    with probe.start("p", "e", run_dir=sys.argv[1], **light), phase("around"):
        check()
    print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("switch", ["", "off"])
def test_13_what_is_decorated_in_a_script_can_be_pickled(tmp_path: Path, switch: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "run")],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PROBE": switch},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.stdout == "done\n", done.stderr


MAPPED = """
    import datasets, os, sys
    import probe
    from probe.hooks import phase
    from probe.session import current_session

    @phase("tokenise")
    def tokenise(row):
        current_session().flush(300)  # the pool ends its processes by a signal, with what they haven't written
        return {"length": len(row["text"])}

    if __name__ == "__main__":
        rows = datasets.Dataset.from_dict({"text": ["a", "bc", "def", ""]})
        with probe.start("p", "e", run_dir=sys.argv[1]):
            assert rows.map(tokenise, num_proc=2)["length"] == [1, 2, 3, 0]
"""


@pytest.mark.slow
def test_13_a_decorated_function_maps_a_dataset_in_processes_that_record(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(MAPPED))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-W", "ignore", str(script), str(tmp_path / "run")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    with Run(tmp_path / "run") as run:
        told = run.memory[run.memory["phase"] == "tokenise"]
        processes = run.processes["process"].tolist()
    assert (told["edge"] == "enter").sum() == 4  # of as many rows
    assert sorted(told["process"].unique()) == sorted(processes)[1:]
    assert len(processes) == 3


def test_13_a_point_is_that_of_its_name_wherever_it_is_unpickled() -> None:
    made = point("wrappers.a_point", "when it fires")
    assert pickle.loads(pickle.dumps(made)) is made
    assert isinstance(made, Point)


# -------------------------------------------------------------------------------------------------- 14: asynchronous


class Later:
    """Objects that are called like a coroutine function, a generator, and an asynchronous generator."""

    async def __call__(self, seen: list[str]) -> str:
        await asyncio.sleep(0)
        seen.append(current_scope().path)
        return "returned"

    async def method(self, seen: list[str]) -> str:
        return await self(seen)


class Numbers:
    def __call__(self, seen: list[str]) -> Iterator[int]:
        seen.append(current_scope().path)
        yield 1


class LaterNumbers:
    async def __call__(self, seen: list[str]) -> AsyncIterator[int]:
        seen.append(current_scope().path)
        yield 1


MAKERS: dict[str, Callable[[], Any]] = {
    "watch": lambda: watch(role="actor", name="around"),
    "phase": lambda: phase("around"),
    "GPUMemoryLogger": lambda: GPUMemoryLogger(role="around"),
}


@pytest.mark.parametrize("maker", list(MAKERS))
@pytest.mark.parametrize("what", ["object", "partial", "partial of a partial", "method"])
def test_14_the_scope_holds_the_body_of_what_is_awaited(maker: str, what: str) -> None:
    called = {
        "object": Later(),
        "partial": functools.partial(Later()),
        "partial of a partial": functools.partial(functools.partial(Later().method)),
        "method": Later().method,
    }[what]
    bare: list[str] = []
    seen: list[str] = []
    assert asyncio.run(called(bare)) == "returned"
    assert asyncio.run(MAKERS[maker]()(called)(seen)) == "returned"
    assert bare == [""]
    assert seen != bare


@pytest.mark.parametrize("maker", list(MAKERS))
def test_14_the_scope_holds_the_body_of_objects_that_are_called_like_generators(maker: str) -> None:
    seen: list[str] = []
    assert list(MAKERS[maker]()(Numbers())(seen)) == [1]

    async def every() -> list[int]:
        return [one async for one in MAKERS[maker]()(LaterNumbers())(seen)]

    assert asyncio.run(every()) == [1]
    assert len(seen) == 2
    assert "" not in seen


BODY_S = 0.02


def test_14_a_call_that_is_awaited_lasts_as_long_as_its_body() -> None:
    @observed("wrappers.sleeps", "x")
    async def sleeps(how_long_s: float) -> str:
        await asyncio.sleep(how_long_s)
        if not how_long_s:
            raise ValueError("too short")
        return "slept"

    heard = Heard()
    with subscribe(heard, "wrappers.sleeps"):
        made = sleeps(BODY_S)
        assert heard.ended == []  # nothing has run yet
        assert asyncio.run(made) == "slept"
        with pytest.raises(ValueError, match="too short"):
            asyncio.run(sleeps(0.0))
    assert [one[2] for one in heard.ended] == ["slept", None]
    assert heard.ended[0][1] >= BODY_S
    assert isinstance(heard.ended[1][3], ValueError)


def test_14_a_generator_s_call_lasts_as_long_as_its_body_and_not_its_consumer() -> None:
    @observed("wrappers.counts", "x")
    def counts(to: int) -> Iterator[int]:
        for number in range(to):
            time.sleep(BODY_S)
            yield number

    heard = Heard()
    with subscribe(heard, "wrappers.counts"):
        for _ in counts(2):
            assert heard.ended == []
            time.sleep(20 * BODY_S)
        list(zip(counts(3), range(1), strict=False))  # one that is left behind
    assert [name for name, *_ in heard.ended] == ["wrappers.counts"] * 2
    assert 2 * BODY_S <= heard.ended[0][1] < 20 * BODY_S
    assert [one[3] for one in heard.ended] == [None, None]


def test_14_an_asynchronous_generator_s_call_ends_with_it() -> None:
    @observed("wrappers.later_counts", "x")
    async def counts(to: int) -> AsyncIterator[int]:
        for number in range(to):
            yield number

    async def every() -> list[int]:
        return [one async for one in counts(3)]

    heard = Heard()
    with subscribe(heard, "wrappers.later_counts"):
        assert asyncio.run(every()) == [0, 1, 2]
    assert [name for name, *_ in heard.ended] == ["wrappers.later_counts"]
    assert asyncio.run(every()) == [0, 1, 2]  # and with nobody listening


# ---------------------------------------------------------------------------------------------------- 15: probe.run


class Trainer:
    async def fit(self, steps: int) -> int:
        await asyncio.sleep(0)
        return steps

    async def __call__(self, steps: int) -> int:
        return await self.fit(steps)


async def train(steps: int) -> int:
    return await Trainer().fit(steps)


@pytest.mark.parametrize(
    "function", [train, Trainer().fit, Trainer(), functools.partial(train), phase("fit")(train), lambda n: train(n)]
)
def test_15_what_is_run_in_a_thread_is_awaited_there(function: Callable[[int], Any]) -> None:
    training = probe.run(function, 3)
    assert training.result(TIMEOUT_S) == 3


def test_15_its_exception_is_the_training_s() -> None:
    async def fails() -> None:
        raise ValueError("in the loop")

    with pytest.raises(ValueError, match="in the loop"):
        probe.run(fails).result(TIMEOUT_S)


# ------------------------------------------------------------------------------------------------ 16: torch.compile


@observed("wrappers.compiled", "x")
def told_double(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@watch(role="actor")
def watched_add(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@phase("compiled")
def triple(x: torch.Tensor) -> torch.Tensor:
    return 3 * x


def in_phase(x: torch.Tensor) -> torch.Tensor:
    with phase("compiled"):
        return 4 * x


def in_watch(x: torch.Tensor) -> torch.Tensor:
    with watch(role="actor"):
        return 5 * x


def in_timer(x: torch.Tensor) -> torch.Tensor:
    with simple_timer("compiled", {}):
        return 6 * x


COMPILED = [
    lambda x: told_double(x) + 0,
    lambda x: watched_add(x) + 0,
    lambda x: triple(x) + 0,
    in_phase,
    in_watch,
    in_timer,
]


def compiled(function: Callable[[torch.Tensor], torch.Tensor]) -> list[float]:
    torch._dynamo.reset()
    made = torch.compile(function, fullgraph=True, backend="eager")
    made(torch.ones(2))
    result: list[float] = made(torch.ones(2)).tolist()
    return result


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_16_a_graph_goes_through_all_of_it_and_nothing_is_told_inside(tmp_path: Path) -> None:
    expected = [[value] * 2 for value in (2.0, 2.0, 3.0, 4.0, 5.0, 6.0)]
    assert [compiled(one) for one in COMPILED] == expected
    with probe.start("p", "e", run_dir=tmp_path / "run") as session, session.step(1), phase("update"):
        assert [compiled(one) for one in COMPILED] == expected
        assert triple(torch.ones(2)).tolist() == [3.0, 3.0]  # outside a graph it is told
    with Run(tmp_path / "run") as run:
        phases = run.memory["phase"].dropna().value_counts()
        assert run.incidents.empty
    assert phases["compiled"] == 2
    torch._dynamo.reset()
