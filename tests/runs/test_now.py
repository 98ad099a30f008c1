"""Where each process is now, written through at each change of scope: it is there after SIGKILL."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import subprocess
import sys
import textwrap
import threading
import time

import fsspec
import pytest

import probe
from probe import hooks
from probe.records import Process
from probe.runs import now_file
from probe.runs.files import RunFiles
from probe.runs.layout import INFO_NAME
from probe.runs.now import now
from probe.runs.now_file import MOVING, SLOTS, STATE, NowFile
from probe.runs.reader import Run
from probe.text import missing

KILLED = textwrap.dedent("""
    import os, signal, sys
    import probe
    from probe.testing import FakeDevice  # whose session needn't import torch
    session = probe.start("p", "e", run_dir=sys.argv[1], rank=0, world_size=1, recorders=[], device=FakeDevice())
    name = sys.argv[2]
    with session.step(7), probe.phase("old_log_prob", role="actor"):
        pass
    with session.step(8):
        with probe.phase(name, role="actor"):
            os.kill(os.getpid(), signal.SIGKILL)
""")


def run(code, *arguments):
    return subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, check=False)


def test_4_a_process_that_is_killed_at_once_in_a_phase_names_it_20_times_of_20(tmp_path):
    code = f"""
import os, sys
import probe.session, probe.testing  # what a session imports is imported once
for number in range(20):
    child = os.fork()
    if not child:
        sys.argv[1:] = [sys.argv[1] + f"/{{number}}", f"phase_{{number}}"]
        exec({KILLED!r})
    assert os.waitpid(child, 0)[1] == 9
"""
    done = run(code, tmp_path)
    assert done.returncode == 0, done.stderr
    named = []
    for number in range(20):
        (found,) = now(RunFiles(tmp_path / str(number)))
        named.append((found.step, found.role, found.phase, found.scope, found.alive, found.closed))
    assert named == [(8, "actor", f"phase_{n}", f"step/phase_{n}", False, False) for n in range(20)]


def test_4_what_a_killed_process_says_is_in_a_frame(tmp_path):
    assert run(KILLED, tmp_path / "run", "update").returncode == -signal.SIGKILL
    with Run(tmp_path / "run") as opened:
        (row,) = opened.now().to_dict("records")
        began = opened.processes["wall_ns"].iloc[0]
        (told,) = opened.now_rows()
    assert told == {name: None if missing(value) else value for name, value in row.items()}
    assert (row["process"], row["rank"], row["attempt"], row["kind"]) == ("rank-00000", 0, 1, "phase")
    assert began <= row["begun_ns"] <= time.time_ns()
    assert [one["name"] for one in row["scopes"]] == ["step", "update"]
    assert row["scopes"][0]["begun_ns"] <= row["scopes"][1]["begun_ns"]


def test_4_every_change_of_scope_is_seen_at_once(tmp_path):
    files = RunFiles(tmp_path / "run")

    def where():
        (found,) = now(files)
        return (found.scope, found.step, found.micro_batch)

    with probe.start("p", "e", run_dir=tmp_path / "run", rank=0, recorders=[]) as session:
        assert where() == ("", None, None)
        with session.step(3):
            assert where() == ("step", 3, None)
            with probe.phase("update"):
                for index in range(2):
                    with probe.micro_batch(index, lengths=[2]):
                        assert where() == (f"step/update/{index}", 3, index)
                    assert where() == ("step/update", 3, None)
            assert where() == ("step", 3, None)
        assert where() == ("", None, None)
    (found,) = now(files)
    assert found.closed
    assert not found.failed
    assert found.ended_ns is not None


def test_a_generator_that_steps_out_is_not_where_the_process_is(tmp_path):
    @probe.watch(name="rows")
    def rows():
        yield where()
        yield where()

    def where():
        return now(RunFiles(tmp_path / "run"))[0].scope

    with probe.start("p", "e", run_dir=tmp_path / "run", rank=0, recorders=[]), probe.phase("load"):
        made = rows()
        assert [next(made), where(), next(made), where()] == ["load/rows", "load", "load/rows", "load"]
        made.close()


def test_what_other_threads_do_is_not_where_the_training_is(tmp_path):
    def where():
        return now(RunFiles(tmp_path / "run"))[0].scope

    def other():
        with probe.phase("prefetch"):
            seen.append(where())

    seen = []
    with probe.start("p", "e", run_dir=tmp_path / "run", rank=0, recorders=[]) as session:
        with session.step(1), probe.phase("update"):
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
            seen.append(where())
        thread = threading.Thread(target=other)  # nothing is open here: the other one is all there is
        thread.start()
        thread.join()
        with session.step(2):  # and a step takes the file back
            seen.append(where())
    assert seen == ["step/update", "step/update", "prefetch", "step"]


def test_tasks_that_interleave_are_each_shown_whole(tmp_path):
    seen = []

    async def task(name, enter, done):
        with probe.phase(name):
            await enter.wait()
            with probe.watch(name="inner"):
                seen.append(now(RunFiles(tmp_path / "run"))[0].scope)
            done.set()

    async def main():
        first, second, done, last = (asyncio.Event() for _ in range(4))
        tasks = [asyncio.ensure_future(task("one", first, done)), asyncio.ensure_future(task("two", second, last))]
        await asyncio.sleep(0)
        first.set()
        await done.wait()
        second.set()
        await asyncio.gather(*tasks)

    with probe.start("p", "e", run_dir=tmp_path / "run", rank=0, recorders=[]):
        asyncio.run(main())
    assert seen == ["one/inner", "two/inner"]


def test_scopes_deeper_than_there_is_room_show_the_innermost(tmp_path):
    with probe.start("p", "e", run_dir=tmp_path / "run", rank=0, recorders=[]):
        opened = [hooks.scope("watch", f"level {level}") for level in range(SLOTS + 3)]
        for one in opened:
            one.__enter__()
        (found,) = now(RunFiles(tmp_path / "run"))
        assert found.scope.endswith(f"/level {SLOTS + 2}")
        assert len(found.scopes) == SLOTS
        for one in reversed(opened):
            one.__exit__(None, None, None)
        (found,) = now(RunFiles(tmp_path / "run"))
        assert found.scope == ""


def test_names_that_have_no_room_are_cut_and_odd_ones_change_no_other_field(tmp_path):
    with probe.start("p", "e", run_dir=tmp_path / "run", rank=0, recorders=[]), probe.phase("ö" * 200, role="a\x1fb\0"):
        (found,) = now(RunFiles(tmp_path / "run"))
    assert found.scope == "ö" * 40
    assert found.role == "a b "


def test_a_reader_never_sees_half_of_a_change(tmp_path):
    """In a process of its own: two scopes alternate as fast as they can, whose numbers belong together."""
    code = textwrap.dedent("""
        import sys
        import probe
        from probe.testing import FakeDevice  # whose session needn't import torch
        session = probe.start("p", "e", run_dir=sys.argv[1], rank=0, recorders=[], device=FakeDevice())
        print("begun", flush=True)
        for step in range(10 ** 9):
            with session.step(step), probe.phase("even" if step % 2 == 0 else "odd"):
                with probe.micro_batch(step, lengths=[1]):
                    pass
    """)
    running = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    try:
        assert running.stdout.readline() == "begun\n"
        files = RunFiles(tmp_path / "run")
        seen, last = set(), -1
        until = time.monotonic() + 300
        while len(seen) < 300 and time.monotonic() < until:
            (found,) = now(files)
            assert found.sequence >= last
            last = found.sequence
            seen.add(found.sequence)
            steps = {one.step for one in found.scopes}
            assert len(steps) <= 1
            if len(found.scopes) > 1:
                assert found.scopes[1].name == ("even" if found.step % 2 == 0 else "odd")
            if len(found.scopes) > 2:
                assert found.scopes[2].micro_batch == found.step
            assert len(found.scopes) <= 3
        assert len(seen) == 300
        assert found.alive
        assert found.heartbeats > 0
    finally:
        running.kill()
        running.communicate()


def test_it_is_read_from_a_store_by_its_url(tmp_path):
    assert run(KILLED, tmp_path / "run", "update").returncode == -signal.SIGKILL
    store = fsspec.filesystem("memory")
    for name in (INFO_NAME, "rank-00000.now"):
        store.pipe(f"/now-test/{name}", (tmp_path / "run" / name).read_bytes())
    (found,) = now(RunFiles("memory://now-test"))
    assert (found.step, found.phase) == (8, "update")


def test_it_is_read_without_pandas(tmp_path):
    assert run(KILLED, tmp_path / "run", "update").returncode == -signal.SIGKILL
    code = (
        "import sys; sys.modules['pandas'] = None; from probe.runs.now import now;"
        "from probe.runs.files import RunFiles;"
        "print(now(RunFiles(sys.argv[1]))[0].scope)"
    )
    done = run(code, tmp_path / "run")
    assert done.stdout.decode().strip() == "step/update", done.stderr


def test_a_rank_that_becomes_known_later_is_there(tmp_path):
    process = Process(process="driver", time_ns=5, wall_ns=1005, pid=os.getpid(), attempt=2)
    (tmp_path / INFO_NAME).write_text("{}")
    file = NowFile(tmp_path / "process-driver.now", process)
    process.rank = 3
    file.tell(process)
    (found,) = now(RunFiles(tmp_path))
    assert (found.rank, found.attempt) == (3, 2)
    file.close(failed=True)
    (found,) = now(RunFiles(tmp_path))
    assert (found.closed, found.failed) == (False, True)


def test_only_the_newest_attempt_is_told_unless_all_are_asked_for(tmp_path):
    for attempt, name in ((1, "rank-00000.now"), (2, "rank-00000.1.now")):
        NowFile(tmp_path / name, Process(process=name, attempt=attempt)).close()
    files = RunFiles(tmp_path)
    assert [one.attempt for one in now(files)] == [2]
    assert [one.attempt for one in now(files, 1)] == [1]
    assert [one.attempt for one in now(files, 0)] == [1, 2]


def test_a_file_that_is_none_of_ours_or_was_left_in_the_middle_of_a_change_is_no_error(tmp_path):
    (tmp_path / "rank-00001.now").write_bytes(b"something else")
    file = NowFile(tmp_path / "rank-00000.now", Process(process="rank-00000", rank=0))
    file._words[STATE] = (7 << 8) + MOVING
    (found,) = now(RunFiles(tmp_path))
    assert (found.scope, found.sequence) == ("", 7)
    file.close()


def test_without_room_for_the_page_training_goes_on(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(now_file.mmap, "mmap", full)
    with probe.start("p", "e", run_dir=tmp_path / "run", rank=0) as session, session.step(1):
        pass
    assert now(RunFiles(tmp_path / "run")) == []
    with Run(tmp_path / "run") as opened:
        assert opened.now().empty


@pytest.mark.usefixtures("lenient")
def test_writing_after_the_end_and_odd_numbers_never_raise(tmp_path):
    file = NowFile(tmp_path / "rank-00000.now", Process(process="rank-00000"))
    root = file.at
    odd = hooks.Scope("phase", "x", root, step=2**70)
    file.entered(odd, threading.get_ident(), 1)
    file.left(odd, root, threading.get_ident())
    file.close()
    file.entered(odd, threading.get_ident(), 1)
    file.left(odd, root, threading.get_ident())
    file.beat()
    file.close()


def test_a_forked_child_writes_its_own(tmp_path):
    session = probe.start("p", "e", run_dir=tmp_path / "run", rank=0, recorders=["memory"])
    with session, session.step(1), probe.phase("load"):
        child = os.fork()
        if not child:
            with probe.phase("in the child"):
                os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        found = {one.rank: one.scope for one in now(RunFiles(tmp_path / "run"))}
    assert found == {0: "step/load", None: "in the child"}


def test_the_slot_holds_what_its_text_may_take():
    assert struct.calcsize(now_file.SLOT_FORMAT) == now_file.SLOT


@pytest.mark.parametrize(("given", "told"), [(0, 0), (3, 3), (130, 130), (-1, 255), (256, 0), (2**80 + 5, 5)])
def test_5_the_code_that_a_process_ends_with_is_what_the_system_makes_of_it(tmp_path, given, told):
    file = NowFile(tmp_path / "rank-00000.now", Process(process="rank-00000", rank=0))
    file.close(exit_code=given)
    (found,) = now(RunFiles(tmp_path))
    assert (found.exit_code, found.closed, found.failed) == (told, True, False)
