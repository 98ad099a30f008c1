"""Ctrl-C at any moment: no later step, session or notebook cell begins in what was left behind."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from probe.hooks import Listener, begin_at_root, current_scope, phase, scope, silenced, subscribe, watch
from probe.hooks.silence import busy
from probe.runs.reader import Run
from probe.session import start

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def at_root():
    begin_at_root()
    yield
    begin_at_root()


def depth():
    return len(list(current_scope().ancestors()))


def interrupted(directory, bursts):
    """Steps in a tight loop, each burst of which ends with Ctrl-C somewhere between two bytecodes. In a process of its
    own: hypothesis looks at every garbage collection, and a Ctrl-C that comes there is lost.
    """
    chance, step, deepest = random.Random(7), 0, 0
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    with start("interrupts", run_dir=directory, recorders=["memory"]) as session:
        (recorder,) = session.recording.recorders
        for burst in range(bursts):
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(2e-5, 2e-4))
                for _ in range(1000):  # it comes within few
                    step += 1
                    with session.step(step), phase(f"p{step % 7}"), watch(role="actor"):
                        pass
            except KeyboardInterrupt:
                deepest = max(deepest, depth())
            if burst % 200 == 0:
                session.flush()
        step += 1
        with session.step(step) as last, phase("after"):
            kinds = [one.kind for one in current_scope().ancestors()]
            held = len(list(recorder._ledger.scopes()))
    print(json.dumps({"step": step, "deepest": deepest, "kinds": kinds, "held": held, "last": last.scope.id}))


@pytest.mark.slow
@pytest.mark.parametrize("bursts", [2_000, pytest.param(10_000, marks=pytest.mark.thorough)])
def test_no_row_after_thousands_of_interrupts_stands_in_a_wrong_step_phase_or_scope(tmp_path, bursts):
    code = f"import sys; from tests.test_interrupts import interrupted; interrupted(sys.argv[1], {bursts})"
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=True)
    found = json.loads(done.stdout)
    assert found["kinds"] == ["phase", "step", "process"]
    assert found["held"] == 2  # the last step and its phase: nothing that was left behind is held
    assert found["deepest"] <= 5  # they don't pile up
    with Run(tmp_path / "run") as run:
        rows = run.sql(
            "select distinct process, scope_id, parent_id, step, phase, kind, role from memory where kind <> ''"
        )
    steps = rows[rows["kind"] == "step"]
    assert len(steps) > bursts / 4
    assert (steps["parent_id"] == 0).all()
    assert steps[["phase", "role"]].isna().all().all()
    assert steps["step"].is_unique
    inside = rows[rows["kind"] != "step"]
    inside = inside[inside["phase"] != "after"]
    assert (inside["phase"] == "p" + (inside["step"] % 7).astype(str)).all()
    phases = inside[inside["kind"] == "phase"].merge(steps, left_on="parent_id", right_on="scope_id")
    assert len(phases) > bursts / 4
    assert (phases["step_x"] == phases["step_y"]).all()
    assert sorted(rows[rows["step"] == found["step"]]["parent_id"]) == [0, found["last"]]


def test_a_scope_whose_block_is_gone_is_forgotten_by_the_next_one():
    scope("phase", "interrupted", step=3, role="actor").__enter__()  # nobody will leave it
    with phase("next") as opened:
        assert opened.scope.path == "next"
        assert (opened.scope.step, opened.scope.role) == (None, None)
    assert current_scope().id == 0


def test_one_that_is_left_behind_inside_another_leaves_that_one_as_it_is():
    with phase("outer") as outer:
        scope("phase", "interrupted").__enter__()
        with phase("inner") as inner:
            assert inner.scope.parent is outer.scope
        assert current_scope() is outer.scope
    assert current_scope().id == 0


def test_a_step_begins_at_the_root_and_restores_what_it_found():
    with watch(role="trainer", phase="fit") as around:
        with scope("step", "step", step=1) as opened:
            where = opened.scope
            assert (where.parent.id, where.path) == (0, "step")
            assert (where.role, where.phase) == ("trainer", "fit")  # as anything that is in a watch
        assert current_scope() is around.scope


def test_a_step_takes_nothing_from_another_step():
    left = scope("step", "step", step=1, role="actor")
    left.__enter__()  # a traceback that is kept holds it
    with scope("step", "step", step=2) as opened:
        assert (opened.scope.step, opened.scope.role, opened.scope.parent.id) == (2, None, 0)
    assert current_scope() is left.scope


def test_a_session_begins_at_the_root(tmp_path):
    left = phase("left")
    left.__enter__()
    with start("interrupts", run_dir=tmp_path / "run") as session, phase("first"):
        assert [one.name for one in current_scope().ancestors()] == ["first", "process"]
        assert session.directory.exists()


def test_a_sample_outside_steps_has_no_step(tmp_path):
    with start("interrupts", run_dir=tmp_path / "run", recorders=["memory"]) as session:
        with session.step(1):
            opened = session.step(2)
            opened.__enter__()
            assert session.recording.sample_scope().step == 2
        assert session.recording.sample_scope().step == 2
        opened.__exit__(None, None, None)
        assert session.recording.sample_scope().step is None


def test_a_task_stays_in_a_scope_that_has_ended():
    """What a step began and nobody waited for belongs to it: that scope ended as it should."""
    seen = []

    async def late(gate):
        await gate.wait()
        with phase("late") as opened:
            seen.append((opened.scope.step, opened.scope.path))

    async def main():
        gate = asyncio.Event()
        with scope("step", "step", step=4):
            task = asyncio.create_task(late(gate))
            await asyncio.sleep(0)
        gate.set()
        await task

    asyncio.run(main())
    assert seen == [(4, "step/late")]


@pytest.mark.parametrize("moment", ["enter", "leave"])
def test_an_interrupt_in_a_listener_leaves_no_scope(moment):
    class Interrupted(Listener):
        def enter(self, event):
            if moment == "enter":
                raise KeyboardInterrupt

        def leave(self, event, state):
            if moment == "leave":
                raise KeyboardInterrupt

    with subscribe(Interrupted(), "scope"), pytest.raises(KeyboardInterrupt), phase("a"):
        pass
    assert current_scope().id == 0
    assert threading.get_ident() not in busy


def test_who_was_silenced_and_interrupted_is_heard_again_from_the_next_cell_on():
    silenced().__enter__()
    assert threading.get_ident() in busy
    begin_at_root()
    assert threading.get_ident() not in busy


def test_one_watch_around_blocks_of_several_threads_and_out_of_order():
    shared, ready, seen = watch(role="actor"), threading.Barrier(2), []

    def work():
        with shared:
            ready.wait(60)
            seen.append(current_scope().path)
            ready.wait(60)
        seen.append(current_scope().path)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == ["", "", "actor", "actor"]
    one, two = watch(role="one"), watch(role="two")
    one.__enter__()
    two.__enter__()
    one.__exit__(None, None, None)
    two.__exit__(None, None, None)
    assert (current_scope().id, one._open, two._open, shared._open) == (0, [], [], [])


@pytest.mark.slow
def test_a_cell_begins_at_the_root(tmp_path):
    import nbformat
    from nbclient import NotebookClient

    light = "recorders=[], device=FakeDevice()"  # which needn't import torch
    begin = f"session = probe.start('a', run_dir={str(tmp_path / 'run')!r}, {light})"
    cells = [
        f"import probe\nfrom probe.hooks import current_scope\nfrom probe.testing import FakeDevice\n{begin}",
        "left = probe.phase('left').__enter__()\nprint(current_scope().path)",
        "print(repr(current_scope().path))\nsession.close()",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in cells])
    here = {"IPYTHONDIR": str(tmp_path / "ipython"), "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime")}
    env = {**os.environ, **here, "PYTHONPATH": str(ROOT)}
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute(env=env)
    assert [cell.outputs[0].text for cell in notebook.cells[1:]] == ["left\n", "''\n"]
