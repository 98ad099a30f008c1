"""What may fail without harming the training goes through one guard, which raises it where the tests ask for that."""

from __future__ import annotations

import ast
import contextlib
import gc
import logging
import weakref
from pathlib import Path
from typing import Any

import pytest

import probe
from probe.errors import InputError
from probe.guard import Guard, attempt, on_error, raised_as

MOST_BROAD = 15
SOURCES = (Path("probe"), Path("probe_rl"))
BROAD = {"Exception", "BaseException"}


class Told:
    """Keeps the incidents that a guard tells."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []

    def __call__(self, *row: Any) -> None:
        self.rows.append(row)


def fail() -> None:
    raise OSError("no room")


@pytest.mark.usefixtures("lenient")
def test_a_failure_is_counted_logged_once_and_told_each_time(caplog: pytest.LogCaptureFixture) -> None:
    told = Told()
    guard = Guard("a.place", "it can't be kept", kind="writer", tell=told)
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            with guard:
                fail()
    assert guard.failures == 2
    assert not guard.off
    assert [record.message for record in caplog.records] == ["it can't be kept"]
    assert "no room" in caplog.text
    assert [(row[:3], row[4:]) for row in told.rows] == [
        (("writer", "a.place", "it can't be kept: OSError('no room')"), (1, False)),
        (("writer", "a.place", "it can't be kept: OSError('no room')"), (2, False)),
    ]


@pytest.mark.usefixtures("lenient")
def test_what_fails_again_and_again_is_switched_off(caplog: pytest.LogCaptureFixture) -> None:
    told, calls = Told(), []
    guard = Guard("a.place", "it can't be kept", tell=told, most=2)

    @guard
    def guarded(number: int) -> int:
        calls.append(number)
        raise OSError(number)

    assert [guarded(number) for number in range(4)] == [None] * 4
    assert calls == [0, 1]
    assert guard.off
    assert [row[-1] for row in told.rows] == [False, True]
    assert caplog.records[-1].message == "a.place: failed 2 times and is switched off"
    assert guard.call(lambda: 7, otherwise=-1) == -1


@pytest.mark.usefixtures("lenient")
def test_without_a_limit_it_is_tried_again() -> None:
    guard = Guard("a.place", "it can't be kept", tell=None, most=None)
    assert [guard.call(fail, otherwise="as before") for _ in range(5)] == ["as before"] * 5
    assert guard.call(lambda: 7) == 7
    assert (guard.failures, guard.off) == (5, False)


def test_strictly_it_is_raised_and_told_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBE_STRICT", "1")
    told = Told()
    guard = Guard("a.place", "it can't be kept", tell=told)
    with pytest.raises(OSError, match="no room"), guard:
        fail()
    with pytest.raises(OSError, match="no room"):
        guard.call(fail)
    with pytest.raises(OSError, match="no room"):
        guard(fail)()
    with pytest.raises(OSError, match="no room") as caught:
        guard.caught(OSError("no room"))
    assert "no room" in str(caught.value)
    assert guard.failures == len(told.rows) == 4


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_ends_a_program_passes(kind: type[BaseException]) -> None:
    guard = Guard("a.place", "it can't be kept", tell=None)
    with pytest.raises(kind), guard:
        raise kind
    assert guard.failures == 0


@pytest.mark.usefixtures("lenient")
def test_whoever_catches_all_lets_ctrl_c_pass() -> None:
    guard = Guard("a.place", "it can't be kept", tell=None, catches=BaseException)
    with guard:
        raise SystemExit(3)
    with pytest.raises(KeyboardInterrupt), guard:
        raise KeyboardInterrupt
    assert guard.failures == 1


@pytest.mark.usefixtures("lenient")
def test_telling_may_fail_and_so_may_the_errors_repr(caplog: pytest.LogCaptureFixture) -> None:
    class Odd(Exception):
        def __repr__(self) -> str:
            raise ValueError

        __str__ = __repr__

    def tell(*_: object) -> None:
        raise RuntimeError("nobody is there")

    with Guard("a.place", "it can't be kept", tell=tell):
        raise Odd
    assert "probe failed while it told of a failure" in caplog.text
    told = Told()
    with Guard("a.place", "it can't be kept", tell=told, level=logging.NOTSET):
        raise Odd
    assert told.rows[0][2] == "it can't be kept: an error whose repr raised ValueError"


@pytest.mark.usefixtures("lenient")
def test_a_run_that_is_recorded_has_the_incident(tmp_path: Path) -> None:
    with probe.start("guard", run_dir=tmp_path / "run", recorders=[]):
        Guard("a.place", "it can't be kept", kind="adapter").call(fail)
    with probe.open(tmp_path / "run") as run:
        row = run.sql("select * from incidents where \"where\" = 'a.place'").iloc[0]
    assert (row.kind, row["count"], row.switched_off) == ("adapter", 1, False)
    assert row.message == "it can't be kept: OSError('no room')"
    assert "raise OSError" in row.traceback


def test_an_attempt_answers_whatever_is_raised() -> None:
    assert attempt(lambda: 1, str) == 1
    assert attempt(fail, str) == "no room"

    def leave() -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        attempt(leave, str)


@pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt])
def test_after_an_error_is_cleaned_up_and_it_goes_on(kind: type[BaseException]) -> None:
    seen: list[BaseException] = []
    with on_error(seen.append):
        pass
    assert not seen
    error = kind("no room")
    with pytest.raises(kind) as caught, on_error(seen.append):
        raise error
    assert seen == [error]
    assert caught.value is error


def test_an_error_is_raised_as_another() -> None:
    def make(error: Exception) -> Exception | None:
        return None if isinstance(error, LookupError) else ValueError(f"it can't be read: {error}")

    with pytest.raises(ValueError, match="it can't be read: no room") as caught, raised_as(make):
        fail()
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(ValueError, match="no room") as caught, raised_as(make, chained=False):
        fail()
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    for as_it_is in (KeyError("a"), InputError("b"), KeyboardInterrupt("c")):
        with pytest.raises(type(as_it_is)) as same, raised_as(make):
            raise as_it_is
        assert same.value is as_it_is


def test_what_an_error_holds_is_let_go_with_it() -> None:
    class Held:
        pass

    def work() -> weakref.ref[Held]:
        held = Held()
        known.append(weakref.ref(held))
        raise OSError

    known: list[weakref.ref[Held]] = []
    gc.disable()  # a cycle would be found by it
    try:
        with contextlib.suppress(ValueError), raised_as(ValueError):
            work()
        assert known[0]() is None
    finally:
        gc.enable()


def test_few_places_catch_everything_and_each_says_why() -> None:
    broad = [place for root in SOURCES for path in sorted(root.rglob("*.py")) for place in places(path)]
    unexplained = [f"{path}:{line}" for path, line, why in broad if not why]
    assert not unexplained
    assert len(broad) <= MOST_BROAD, [f"{path}:{line}" for path, line, _ in broad]


def places(path: Path) -> list[tuple[Path, int, bool]]:
    """Where a file catches everything: an ``except``, or ``suppress``; and whether the line says why."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ExceptHandler):
            caught: list[ast.expr | None] = list(node.type.elts) if isinstance(node.type, ast.Tuple) else [node.type]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "suppress":
            caught = list(node.args)
        else:
            continue
        if any(one is None or (isinstance(one, ast.Name) and one.id in BROAD) for one in caught):
            found.append((path, node.lineno, "#" in lines[node.lineno - 1]))
    return found
