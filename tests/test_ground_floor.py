"""The ground floor: files that are whole or not there, locks that end with their process, and the check of numbers."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from probe import _io
from probe._check import also_named, is_whole, whole_number
from probe._io import AsideFile, FileLock, holding, lock_descriptor, write_atomically, written_aside
from probe.errors import ConflictError, InputError, InputTypeError, MissingKeyError, ProbeError

ROOT = Path(__file__).parents[1]


# ------------------------------------------------------------------------------------------------------ writing


def test_a_file_gets_its_name_when_it_is_whole(tmp_path):
    target = tmp_path / "report.html"
    target.write_text("old")
    with written_aside(target) as aside:
        aside.write_text("half")
        assert target.read_text() == "old"
        assert aside.parent == tmp_path
        aside.write_text("whole")
    assert target.read_text() == "whole"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    target = tmp_path / "report.html"
    target.write_text("old")

    def fail():
        with written_aside(target) as aside:
            aside.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"report.html": "old"}


def test_the_bytes_are_on_the_disk_before_the_name_is(tmp_path, monkeypatch):
    """In the order in which a power cut may come: contents, name, and the directory where it was asked for."""
    done = []
    sync, replace = os.fsync, Path.replace

    def fsync(descriptor):
        done.append("directory" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "content")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", lambda self, target: (done.append("name"), replace(self, target)))
    write_atomically(tmp_path / "a", b"a", sync_folder=True)
    write_atomically(tmp_path / "b", b"b")
    with written_aside(tmp_path / "c", sync=False) as aside:
        aside.write_bytes(b"c")
    assert done == ["content", "name", "directory", "content", "name", "name"]


@pytest.mark.parametrize("links", [True, False])
def test_of_many_writers_that_overwrite_nothing_the_first_wins(links, tmp_path, monkeypatch):
    if not links:  # as on many network file systems

        def refuse(*_):
            raise PermissionError("no hard links here")

        monkeypatch.setattr(os, "link", refuse)
    target = tmp_path / "run.json"
    for content in (b"first", b"second"):
        write_atomically(target, content, overwrite=False)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"run.json": b"first"}


def test_a_name_that_is_used_again_clears_what_a_killed_process_left(tmp_path):
    left = AsideFile(tmp_path / "tracker", unique=False)
    left.path.write_bytes(b"half")
    write_atomically(tmp_path / "tracker", b"7", unique=False)
    assert [path.name for path in tmp_path.iterdir()] == ["tracker"]
    assert AsideFile(tmp_path / "tracker").path != AsideFile(tmp_path / "tracker").path


def test_long_names_stay_names(tmp_path):
    target = tmp_path / ("n" * 250)
    write_atomically(target, b"x")
    assert target.read_bytes() == b"x"


def test_nothing_else_renames_or_locks_files():
    """One atomic write and one file lock: whoever writes another one finds the way here."""
    words = ("fcntl", "os.replace", "os.rename", "NamedTemporaryFile", "mkstemp", "import filelock")
    found = {
        (path.relative_to(ROOT).as_posix(), word)
        for path in (ROOT / "probe").rglob("*.py")
        for word in words
        if word in path.read_text(encoding="utf-8")
    }
    assert found == {("probe/_io.py", "fcntl")}


# ------------------------------------------------------------------------------------------------------ locking


def test_a_lock_is_for_one(tmp_path):
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert first.acquire()
    assert not second.acquire()
    first.release()
    first.release()
    assert second.acquire()
    second.release()


def test_a_lock_waits_for_its_holder_and_says_so_once(tmp_path):
    first, second, told = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock"), []
    assert first.acquire()
    waits = threading.Event()

    def before_waiting():
        told.append("waits")
        waits.set()

    thread = threading.Thread(target=second.acquire, args=(before_waiting,))
    thread.start()
    assert waits.wait(60)
    assert thread.is_alive()
    first.release()
    thread.join(60)
    assert told == ["waits"]
    assert not first.acquire()
    second.release()


def test_whoever_waited_for_a_lock_whose_file_is_gone_locks_the_new_one(tmp_path):
    path = tmp_path / "lock"
    first, second, third = (FileLock(path) for _ in range(3))
    assert first.acquire()

    def before_waiting():
        path.unlink()
        first.release()

    assert second.acquire(before_waiting)
    assert path.exists()
    assert not third.acquire()
    second.release()


def test_a_killed_holder_holds_nothing(tmp_path):
    script = f"""
import sys
from pathlib import Path
from probe._io import FileLock
lock = FileLock(Path({str(tmp_path / "lock")!r}))
print(lock.acquire(), flush=True)
sys.stdin.read()
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, env=environment, stdin=-1, stdout=-1, text=True) as holder:
        assert holder.stdout.readline() == "True\n"
        assert not FileLock(tmp_path / "lock").acquire()
        holder.kill()
        holder.wait(60)
        lock = FileLock(tmp_path / "lock")
        assert lock.acquire()
        lock.release()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_that_outlives_its_parents_lock_keeps_nobody_out(tmp_path):
    """As a data loader's process does when its trainer is killed: then nobody unlocks, the descriptor just goes."""
    lock = FileLock(tmp_path / "lock")
    assert lock.acquire()
    (go_on, end), (started, start) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(start, b".")
        os.close(end)
        os.read(go_on, 1)
        os._exit(0)
    try:
        os.read(started, 1)
        lock.forget()
        other = FileLock(tmp_path / "lock")
        assert other.acquire()
        other.release()
    finally:
        for descriptor in (end, go_on, start, started):
            os.close(descriptor)
        os.waitpid(child, 0)


def test_a_directory_and_an_open_file_can_be_locked_themselves(tmp_path):
    with holding(tmp_path) as ours:
        assert ours
        with holding(tmp_path) as theirs:
            assert not theirs
    path = tmp_path / "rank-00000.jsonl"
    with path.open("ab") as file:
        assert lock_descriptor(file.fileno())
        with holding(path) as ours:
            assert not ours
    with holding(path) as ours:
        assert ours
    assert path.read_bytes() == b""
    with pytest.raises(FileNotFoundError), holding(tmp_path / "none"):
        pass


def test_without_locks_nothing_is_locked(tmp_path, monkeypatch):
    """Where neither the system nor the file system has any, work goes on."""

    def refuse(*_):
        raise OSError("no locks on this file system")

    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    monkeypatch.setattr(_io.fcntl, "flock", refuse)
    assert first.acquire()
    monkeypatch.setattr(_io, "fcntl", None)
    assert second.acquire()
    first.release()
    second.release()


# ------------------------------------------------------------------------------------------------------- checks


@pytest.mark.parametrize("given", [3, np.int64(3), np.uint8(3)])
def test_whole_numbers_become_ints(given):
    assert is_whole(given)
    found = whole_number("rows", given, 3)
    assert (found, type(found)) == (3, int)


@pytest.mark.parametrize("given", [True, np.bool_(True), 3.0, np.float64(3), "3", None, torch.tensor(3)])
def test_what_is_no_whole_number_is_refused(given):
    """A tensor too: reading it could make the program wait for a device."""
    assert not is_whole(given)
    with pytest.raises(InputTypeError, match=r"^rows: got .*, expected 3 or more$"):
        whole_number("rows", given, expected="3 or more")


def test_too_small_a_number_is_refused():
    with pytest.raises(InputError, match=r"^rows: got -1, expected at least 0$"):
        whole_number("rows", -1, 0)
    assert whole_number("rows", -1) == -1


# ------------------------------------------------------------------------------------ what callers of peers catch


@pytest.mark.parametrize(
    ("kind", "also"),
    [(InputError, ValueError), (InputTypeError, TypeError), (InputTypeError, ValueError), (MissingKeyError, KeyError)],
)
def test_c_what_is_wrong_with_an_argument_is_an_assertion_error_too(kind, also):
    assert issubclass(kind, ProbeError)
    assert issubclass(kind, AssertionError)
    assert issubclass(kind, also)
    assert str(kind("rows: got 0")) == "rows: got 0"


def test_c_an_argument_may_have_a_second_name():
    @also_named(second="first", other="last")
    def both(first, middle=1, last=None):
        """What it does."""
        return first, middle, last

    assert both.__doc__ == "What it does."
    assert both(1, 2, 3) == both(second=1, middle=2, other=3) == both(1, 2, other=3) == (1, 2, 3)
    assert both(None, second=4) == both(first=None, second=4) == (4, 1, None)
    assert both(4, second=None) == both(4, other=None) == (4, 1, None)
    same = [1]
    assert both(same, second=same)[0] is same
    for misuse in (lambda: both(1, second=2), lambda: both(first=1, second=2), lambda: both(1, 2, 3, other=4)):
        with pytest.raises(ConflictError, match="both were given"):
            misuse()
    with pytest.raises(TypeError, match="first"):
        both(other=3)


def test_the_environment_of_a_process_beside_the_training_finds_this_package_and_no_accelerator(monkeypatch) -> None:
    made = _io.child_environment({"PYTHONPATH": "/mine", "CUDA_VISIBLE_DEVICES": "0,1", "HOME": "/h"})
    assert made["CUDA_VISIBLE_DEVICES"] == ""
    assert made["HOME"] == "/h"
    root = str(Path(_io.__file__).resolve().parents[1])
    assert made["PYTHONPATH"] == os.pathsep.join([root, "/mine"])
    monkeypatch.setattr(_io.site, "getsitepackages", lambda: [root])
    assert _io.child_environment({"PYTHONPATH": "/mine"})["PYTHONPATH"] == "/mine"
