"""A framework is put under observation and taken off again; see tests/adapters/conftest.py for the framework."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import logging
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import probe
from probe.adapters import automatic, telling
from probe.adapters.attachment import Attachment, attach
from probe.adapters.seams import Seam
from probe.errors import SessionError, UnknownNameError
from probe.frameworks import attached
from probe.hooks import current_scope, phase
from probe.hooks.own_time import spent_by_thread


def say(into: list[Any]):
    def tell(call):
        into.append(("begin", call.argument("lengths"), call.argument("cap")))
        try:
            yield
        finally:
            into.append(("end", call.result, call.error))

    return tell


def nothing(call):
    yield


def every(tell=nothing) -> list[Seam]:
    names = ["pack", "Engine.forward", "Engine.still", "Engine.of", "Engine.sync", "Engine.inherited"]
    return [Seam("acme.engine", name, name, tell) for name in names]


@pytest.fixture
def session(tmp_path):
    with probe.start("adapters", run_dir=tmp_path / "run") as opened:
        yield opened


@pytest.mark.parametrize("imported_before", [True, False])
def test_5_calls_are_told_whether_attached_before_or_after_the_import(acme, table, session, imported_before):
    told: list[Any] = []
    table(Seam("acme.engine", "pack", "packing", say(told)))
    if imported_before:
        importlib.import_module("acme.trainer")
    (made,) = attach("acme")
    trainer = importlib.import_module("acme.trainer")
    assert trainer.cut([3, 4]) == [[3], [4]]  # a copy that `from … import` took
    assert told == [("begin", [3, 4], 8), ("end", [[3], [4]], None)]
    assert made.found == ["acme.engine.pack"]
    assert session.attached == [made] == attached()


def test_5_detach_restores_the_identical_objects(acme, table, session):
    engine = importlib.import_module("acme.engine")
    before = {name: inspect.getattr_static(engine.Engine, name) for name in dir(engine.Engine)}
    own = dict(vars(engine.Engine))
    pack = engine.pack
    table(*every())
    (made,) = attach("acme")
    trainer = importlib.import_module("acme.trainer")  # takes copies of what is patched
    assert trainer.cut is engine.pack is not pack
    assert made.detach() == []
    assert engine.pack is trainer.cut is pack
    assert dict(vars(engine.Engine)) == own
    assert {name: inspect.getattr_static(engine.Engine, name) for name in dir(engine.Engine)} == before
    assert not attached()


def test_5_detach_says_what_somebody_else_has_replaced_meanwhile(acme, table, session):
    told: list[Any] = []
    table(Seam("acme.engine", "pack", "packing", say(told)))
    engine = importlib.import_module("acme.engine")
    (made,) = attach("acme")
    ours = engine.pack
    engine.pack = theirs = lambda *args, **kwargs: ours(*args, **kwargs)
    assert made.detach() == ["acme.engine.pack"]
    assert engine.pack is theirs
    assert theirs([1]) == [[1]]
    assert told == []


def test_5_a_function_stays_of_its_kind(acme, table, session):
    engine = importlib.import_module("acme.engine")
    plain = {name: getattr(engine.Engine, name) for name in ("forward", "still", "sync")}
    kinds = {name: type(inspect.getattr_static(engine.Engine, name)) for name in ("forward", "still", "of", "sync")}
    signature = inspect.signature(engine.pack)
    table(*every())
    attach("acme")
    assert inspect.signature(engine.pack) == signature
    assert engine.pack.mode == engine.Engine.forward.mode == "dispatched"
    assert (engine.pack.__name__, engine.pack.__qualname__, engine.pack.__doc__) == ("pack", "pack", "Cut lengths.")
    assert {name: type(inspect.getattr_static(engine.Engine, name)) for name in kinds} == kinds
    assert inspect.iscoroutinefunction(engine.Engine.sync)
    for name, function in plain.items():
        assert inspect.signature(getattr(engine.Engine, name)) == inspect.signature(function)
    one = engine.Engine()
    assert one.forward([1, 2], scale=3) == [3, 6]
    assert engine.Engine.still(1) == one.still(1) == 2
    assert engine.Engine.of(5) == (engine.Engine, 5)
    assert asyncio.run(one.sync(7)) == 7
    assert one.inherited() == "base"
    assert engine.Base().inherited() == "base"
    for function in (engine.pack, engine.Engine.forward):
        assert pickle.loads(pickle.dumps(function)) is function


def test_5_a_coroutine_is_told_of_until_it_ends(acme, table, session):
    told = []

    def tell(call):
        told.append("begin")
        yield
        told.append(call.result)

    table(Seam("acme.engine", "Engine.sync", "weights", tell))
    attach("acme")
    engine = importlib.import_module("acme.engine")
    waiting = engine.Engine().sync(3)
    assert told == []
    assert asyncio.run(waiting) == 3
    assert told == ["begin", 3]


def test_5_an_error_of_the_framework_passes_unchanged_and_is_told(acme, table, session):
    told: list[Any] = []
    engine = importlib.import_module("acme.engine")
    with pytest.raises(ValueError, match="cap") as plain:
        engine.pack([1], cap=0)
    table(Seam("acme.engine", "pack", "packing", say(told)))
    attach("acme")
    with pytest.raises(ValueError, match="cap") as observed:
        engine.pack([1], cap=0)
    assert told[-1] == ("end", None, observed.value)
    assert observed.traceback[-1].name == plain.traceback[-1].name == "pack"
    assert observed.value.__context__ is plain.value.__context__ is None


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("moment", ["begin", "end", "both yields"])
def test_5_what_a_seam_raises_never_reaches_the_framework_and_is_an_incident(acme, table, session, moment, caplog):
    def tell(call):
        if moment == "begin":
            raise RuntimeError("ours")
        yield
        if moment == "both yields":
            yield
            raise RuntimeError("never reached")
        raise RuntimeError("ours")

    table(Seam("acme.engine", "pack", "packing", tell))
    attach("acme")
    engine = importlib.import_module("acme.engine")
    with caplog.at_level(logging.CRITICAL, "probe.adapters"):
        assert [engine.pack([n]) for n in range(5)] == [[[n]] for n in range(5)]
        with pytest.raises(ValueError, match="cap"):
            engine.pack([1], cap=0)
    if moment != "both yields":
        incidents = session.run.incidents
        assert list(incidents["kind"]) == ["adapter"] * 3
        assert list(incidents["where"]) == ["acme.engine.pack"] * 3
        assert list(incidents["switched_off"]) == [False, False, True]


def test_5_what_is_not_there_is_listed_and_what_nobody_imported_waits(acme, table, session):
    table(
        *every(),
        Seam("acme.engine", "Engine.gone", "gone", nothing),
        Seam("acme.engine", "Missing.gone", "gone", nothing),
        Seam("acme.engine", "pack_it", "either", nothing),
        Seam("acme.engine", "pack", "either", nothing),
        Seam("acme.later", "save", "later", nothing),
        Seam("acme.nowhere", "save", "in another version", nothing),
    )
    (made,) = attach("acme")
    assert made.summary() == "acme: not imported"
    importlib.import_module("acme.engine")
    assert made.missing == ["gone", "in another version"]
    assert made.waiting == ["later"]
    assert made.summary() == "acme: 7 of 10 points are observed; not found: gone, in another version"
    for _ in range(50):
        session.flush()
        if session.process.adapters:
            break
    assert session.process.adapters == made.summary()


def test_5_the_summary_is_worked_out_only_when_something_was_found(acme, table, session, monkeypatch):
    asked = []
    summary = Attachment.summary
    monkeypatch.setattr(Attachment, "summary", lambda self: asked.append(self) or summary(self))
    table(*every())
    attach("acme")
    importlib.import_module("acme.engine")
    for _ in range(5):
        assert session.flush()
    before = len(asked)
    assert before
    for _ in range(20):
        assert session.flush()
    assert len(asked) == before


def test_5_an_unknown_framework_is_refused_and_nothing_is_attached(acme, table):
    with pytest.raises(UnknownNameError, match="framework: got 'verlo'"):
        attach("verl", "verlo")
    assert attached() == []


def test_5_attaching_twice_is_attaching_once(acme, table, session):
    told: list[Any] = []
    table(Seam("acme.engine", "pack", "packing", say(told)))
    assert attach("acme") == attach("acme")
    importlib.import_module("acme.engine").pack([1])
    assert len(told) == 2


def test_5_the_modules_keep_their_own_loaders(acme, table):
    importlib.import_module("acme.engine")
    plain = type(sys.modules["acme.engine"].__loader__)
    for name in ("acme", "acme.engine"):
        del sys.modules[name]
    table(*every())
    attach("acme")
    engine = importlib.import_module("acme.engine")
    assert type(engine.__loader__) is type(engine.__spec__.loader) is plain
    assert "class Engine" in inspect.getsource(engine.Engine)


def run_script(acme: Path, code: str, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": f"{acme.parent}:{Path.cwd()}", **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


BEGINS = """
import sys
from probe.adapters import attachment
from probe.adapters.seams import Seam

def tell(call):
    yield

class Table: pass
sys.modules["acme_table"] = table = Table()
table.SEAMS = [Seam("acme.engine", "pack", "packing", tell), Seam("acme.engine", "Engine.forward", "x", tell, False)]
attachment.ADAPTERS["acme"] = attachment.Adapter("acme_table:SEAMS", "acme", "acme")
attachment.attach("acme")
import acme.engine
print("torch" in sys.modules)
acme.engine.Engine().forward([1])
print("torch" in sys.modules)
acme.engine.pack([1])
import probe
session = probe.current_session()
print(session.automatic, session.directory.name)
"""


def test_1_a_session_begins_at_the_first_thing_that_is_observed_and_not_at_import(acme, tmp_path):
    out = run_script(acme, BEGINS, PROBE_RUN_DIR=str(tmp_path / "shared"))
    assert out.split() == ["False", "False", "True", "shared"]
    assert list((tmp_path / "shared").glob("parts/*.parquet"))


def test_1_probe_off_observes_nothing(acme, tmp_path):
    code = BEGINS.replace("print(session.automatic, session.directory.name)", "print(session)")
    out = run_script(acme, code, PROBE_RUN_DIR=str(tmp_path / "shared"), PROBE="off")
    assert out.split() == ["False", "False", "None"]
    assert not (tmp_path / "shared").exists()


@pytest.mark.usefixtures("lenient")
def test_1_a_directory_that_cannot_be_made_stops_no_training(acme, tmp_path):
    (tmp_path / "file").write_text("")
    code = BEGINS.replace("print(session.automatic, session.directory.name)", "print(session)")
    out = run_script(acme, code, PROBE_RUN_DIR=str(tmp_path / "file" / "run"))
    assert out.split()[-1] == "None"


def observed(acme, table, monkeypatch, tmp_path):
    monkeypatch.setattr(automatic, "_tried", set())
    monkeypatch.setenv("PROBE_RUN_DIR", str(tmp_path / "shared"))
    table(Seam("acme.engine", "pack", "packing", nothing))
    attach("acme")
    importlib.import_module("acme.engine").pack([1])
    return probe.current_session()


def test_1_a_users_own_start_takes_the_session_over(acme, table, monkeypatch, tmp_path):
    automatic = observed(acme, table, monkeypatch, tmp_path)
    assert automatic.automatic
    with probe.start("mine", track="file", config={"lr": 0.1}, role="driver", recorders=["calls"]) as mine:
        assert mine is automatic
        assert not mine.automatic
        assert mine.directory == tmp_path / "shared"
        assert mine.tracking is not None
        with mine.step(3):
            pass
        mine.flush()
        with pytest.raises(SessionError, match="already records"):
            probe.start("another")
        run = mine.run
        assert run.info.config == {"lr": 0.1}
        assert run.info.project == "mine"
        assert mine.process.role == "driver"
        assert run.table("calls")["step"].tolist() == [3]


def test_1_a_start_that_is_refused_leaves_the_automatic_session_as_it_was(acme, table, monkeypatch, tmp_path):
    automatic = observed(acme, table, monkeypatch, tmp_path)
    recorders = automatic.recording.recorders
    with pytest.raises(UnknownNameError):
        probe.start("mine", track="no-such-backend", recorders=["calls"])
    assert automatic.automatic
    assert automatic.tracking is None
    assert automatic.recording.recorders is recorders
    automatic.close()


def test_1_a_users_own_start_elsewhere_ends_it(acme, table, monkeypatch, tmp_path):
    automatic = observed(acme, table, monkeypatch, tmp_path)
    with probe.start("mine", run_dir=tmp_path / "mine") as mine:
        assert automatic.closed
        assert mine.directory == tmp_path / "mine"


def test_1_the_plugin_without_the_variable_uses_the_standard_library_alone(acme):
    code = """
import sys
before = set(sys.modules)
import probe.adapters.plugin
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(new - sys.stdlib_module_names), "probe.hooks" in sys.modules)
"""
    assert run_script(acme, code).strip() == "['probe'] False"


def test_1_what_telling_takes_is_counted_and_what_the_function_takes_is_not(acme, table, session):
    def tell(call):
        time.sleep(0.02)
        with phase("packing"):
            yield
        time.sleep(0.02)

    table(Seam("acme.engine", "pack", "packing", tell))
    attach("acme")
    engine = importlib.import_module("acme.engine")
    begin_ns, before_ns = time.monotonic_ns(), spent_by_thread.get(threading.get_ident(), 0)
    engine.pack(Slow([1]))
    spent_ns = spent_by_thread[threading.get_ident()] - before_ns
    assert 40_000_000 <= spent_ns <= time.monotonic_ns() - begin_ns - 50_000_000


class Slow(list):
    """What takes the function a while."""

    def __iter__(self):
        time.sleep(0.05)
        return super().__iter__()


ITEMS = """
    def timer(name):
        yield name
        return name + "!"
"""


def test_5_a_generator_functions_call_lasts_as_long_as_its_generator(acme, table, session):
    (acme / "timing.py").write_text(textwrap.dedent(ITEMS))
    told: list[Any] = []

    def tell(call):
        told.append(("begin", call.argument("name")))
        try:
            with phase(call.argument("name")):
                yield
        finally:
            told.append(("end", call.result, call.error))

    table(Seam("acme.timing", "timer", "phases", tell))
    attach("acme")
    timing = importlib.import_module("acme.timing")
    assert inspect.isgeneratorfunction(timing.timer)
    timed = contextlib.contextmanager(timing.timer)
    with timed("gen"):
        assert current_scope().phase == "gen"
    assert current_scope().phase is None
    with pytest.raises(ValueError, match="theirs"), timed("gen"):
        raise ValueError("theirs")
    assert told[:2] == [("begin", "gen"), ("end", "gen!", None)]
    assert told[2] == ("begin", "gen")
    assert isinstance(told[3][2], ValueError)
    assert current_scope().phase is None


def test_5_a_seam_that_decides_whether_anybody_records_is_told_where_nobody_does(acme, table):
    told: list[Any] = []
    table(
        Seam("acme.engine", "pack", "packing", say(told), always=True),
        Seam("acme.engine", "Engine.still", "x", say(told)),
    )
    attach("acme")
    engine = importlib.import_module("acme.engine")
    engine.pack([1])
    engine.Engine.still(1)
    assert told == [("begin", [1], 8), ("end", [[1]], None)]


def test_1_a_followed_step_is_gone_on_with_in_another_task(acme, session):
    """Ray runs each call of an actor that has coroutines as a task of its own."""

    async def told(number):
        telling.follow_step(number)

    async def works():
        with telling.in_step():
            return current_scope().step

    asyncio.run(told(3))
    assert current_scope().step is None
    assert asyncio.run(works()) == 3
    assert telling.followed_step() == 3
    asyncio.run(told(3))
    telling.end_step()
    assert asyncio.run(works()) is None
    telling.end_step()
    session.flush()
    assert session.run.incidents.empty
    steps = session.run.table("calls").query("point == 'scope.step'")
    assert steps["step"].tolist() == [3]
