"""Files that are whole or not there, and locks that end with their process: the one place where probe does either.

The standard library only. The package ``filelock`` isn't used: where a file system has no locks it falls back to a
marker file, which outlives a killed process and would keep the next one out for ever; and it locks files of its own
only, while a run's segments and folders are locked themselves, so that a reader can ask whether their writer lives.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import site
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Final

from probe.errors import InputError

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

#: How the name of a file ends that isn't complete yet.
ASIDE: Final = ".tmp"


def child_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Of a process beside the training: that of this one, with this package found first and no accelerator in sight.

    Args:
        given: The environment of this process.
    """
    root = str(Path(__file__).resolve().parent.parent)
    made = dict(given) | {"CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}
    if root not in {*site.getsitepackages(), site.getusersitepackages()}:
        made["PYTHONPATH"] = os.pathsep.join(filter(None, [root, given.get("PYTHONPATH", "")]))
    return made


def expanded(argument: str, place: str | os.PathLike[str]) -> Path:
    """A path whose ``~`` is the home directory.

    Args:
        argument: What it was given as.
        place: The path.

    Raises:
        InputError: It begins with ``~``, and there is none: no ``HOME``, and no entry for the user's id, as in many a
            container.
    """
    try:
        return Path(place).expanduser()
    except RuntimeError as error:
        raise InputError(
            f"{argument}: got {os.fspath(place)!r}, but there is no home directory here ({error}); "
            "give a path without '~', or set HOME"
        ) from None


def expanded_or_same(place: str) -> str:
    """A path whose ``~`` is the home directory; the same text where there is none.

    Args:
        place: The path.
    """
    return os.path.expanduser(place)  # noqa: PTH111  (a Path raises where there is no home)


class AsideFile:
    """A name beside ``target`` to write to; :meth:`commit` gives what is there the target's name, in one step.

    Args:
        target: The file that is to be written.
        sync: Wait until the bytes are on the disk before the file gets its name.
        overwrite: False leaves a target that is there already as it is, also where another process makes it meanwhile.
        unique: False uses the same name each time, so that a later write clears what a killed process has left; for
            targets that one process at a time writes.

    Attributes:
        path: Where to write.
    """

    def __init__(self, target: Path, *, sync: bool = True, overwrite: bool = True, unique: bool = True) -> None:
        self._target = target
        self._sync = sync
        self._overwrite = overwrite
        mark = f".{os.getpid()}-{secrets.token_hex(4)}" if unique else ""
        self.path = target.with_name(f".{target.name[:80]}{mark}{ASIDE}")

    def commit(self) -> None:
        """Give what was written its name. Whoever opens it sees all of the old file or all of the new one.

        Raises:
            OSError: It can't be written through or renamed; the target is as it was.
        """
        if self._sync:
            with self.path.open("rb") as written:
                os.fsync(written.fileno())
        if self._overwrite:
            self.path.replace(self._target)
        else:
            _link_or_copy(self.path, self._target)
            self.discard()

    def discard(self) -> None:
        """Delete what was written, if it is still there."""
        with contextlib.suppress(OSError):  # such as a directory that is gone, too
            self.path.unlink(missing_ok=True)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileExistsError:
        return
    except OSError:  # a file system without hard links: for a moment readers see less than the whole
        with contextlib.suppress(FileExistsError), source.open("rb") as written:
            target.touch(source.stat().st_mode & 0o777, exist_ok=False)
            with target.open("wb") as file:
                shutil.copyfileobj(written, file)


@contextlib.contextmanager
def written_aside(
    target: Path, *, sync: bool = True, overwrite: bool = True, unique: bool = True, sync_folder: bool = False
) -> Iterator[Path]:
    """A path to write to. What is there becomes ``target`` when the block ends, and is deleted when the block raises.

    Args:
        target: The file that is to be written; its directory exists.
        sync: See :class:`AsideFile`.
        overwrite: See :class:`AsideFile`.
        unique: See :class:`AsideFile`.
        sync_folder: Also wait until the new name is on the disk, so that it survives a power cut.

    Yields:
        The path beside ``target``.

    Raises:
        OSError: It can't be renamed; the target is as it was.
    """
    aside = AsideFile(target, sync=sync, overwrite=overwrite, unique=unique)
    try:
        yield aside.path
        aside.commit()
    finally:
        aside.discard()
    if sync_folder:
        sync_directory(target.parent)


def write_atomically(
    target: Path,
    content: bytes,
    *,
    overwrite: bool = True,
    unique: bool = True,
    sync_folder: bool = False,
    private: bool = False,
) -> None:
    """Make ``target`` hold ``content``, on the disk: readers see all of the old content or all of the new, always.

    Args:
        target: The file; its directory exists.
        content: What it is to hold.
        overwrite: See :class:`AsideFile`.
        unique: See :class:`AsideFile`.
        sync_folder: See :func:`written_aside`.
        private: Whether nobody but its owner may read it, from its first byte on.

    Raises:
        OSError: It can't be written; the target is as it was.
    """
    with written_aside(target, overwrite=overwrite, unique=unique, sync_folder=sync_folder) as aside:
        aside.touch(0o600 if private else 0o666)
        aside.write_bytes(content)


def write_durably(target: Path, content: bytes) -> None:
    """Write ``target`` in its place and wait until the bytes are on the disk; for files that nobody reads yet.

    Args:
        target: The file.
        content: What it is to hold.

    Raises:
        OSError: It can't be written; half of it may be there.
    """
    with target.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(directory: Path) -> None:
    """Make new names, renames and deletions in ``directory`` survive a power cut, where the system can."""
    with contextlib.suppress(OSError):  # some network file systems refuse; their renames are durable on their own
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def lock_descriptor(descriptor: int, *, wait: bool = False, shared: bool = False) -> bool:
    """Lock an open file or directory, for as long as it is open; the system lets go of it when the process ends.

    The lock is advisory, and seen on every machine that mounts the directory where its file system supports that. Where
    there are no such locks nothing is locked: who asks has to find out by other means.

    Args:
        descriptor: Of the open file or directory.
        wait: Wait for whoever has it.
        shared: Whether others may have it, too, who share it.

    Returns:
        False where somebody else has it locked, which may be this process by another descriptor.
    """
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # a file system without such locks
        return True
    return True


class FileLock:
    """One holder at a time, in this process and all others, of a lock on a file or directory.

    A child that is forked meanwhile doesn't hold it: a data loader's process that survives its trainer keeps nobody
    out.

    Args:
        path: Of the file, or of a directory that exists.
        create: Make the file where it is missing.
        shared: Whether others may hold it, too, who share it.
    """

    def __init__(self, path: Path, *, create: bool = True, shared: bool = False) -> None:
        self._path = path
        self._shared = shared
        self._flags = os.O_RDWR | os.O_CREAT if create else os.O_RDONLY
        self._descriptor: int | None = None

    def acquire(self, before_waiting: Callable[[], object] | None = None) -> bool:
        """Lock it.

        Args:
            before_waiting: Called once when somebody else has the lock, for which this then waits; None doesn't wait.

        Returns:
            False where somebody else has it.

        Raises:
            OSError: The file can't be opened; FileNotFoundError where it, or its directory, isn't there.
        """
        while True:
            descriptor = os.open(self._path, self._flags | getattr(os, "O_CLOEXEC", 0), 0o666)
            with contextlib.ExitStack() as unless_held:
                unless_held.callback(os.close, descriptor)
                ours = lock_descriptor(descriptor, shared=self._shared)
                if not ours and before_waiting is not None:
                    before_waiting()
                    before_waiting = _nothing
                    ours = lock_descriptor(descriptor, wait=True, shared=self._shared)
                if not ours:
                    return False
                # Whoever had it may have deleted the file with it: then others lock the one that is there now.
                if _is_at(descriptor, self._path):
                    unless_held.pop_all()
                    self._descriptor = descriptor
                    _held.add(self)
                    return True

    def release(self) -> None:
        """Let go. Safe to call twice."""
        _held.discard(self)
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            if fcntl is not None:
                with contextlib.suppress(OSError):  # a child of a fork that Python doesn't know has the descriptor, too
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    @property
    def descriptor(self) -> int | None:
        """Of the file while it is held: a process that inherits it holds the lock, too."""
        return self._descriptor

    def inherit(self, descriptor: int) -> bool:
        """Hold the lock that the process which started this one has handed over.

        Args:
            descriptor: That was open there, and is here.

        Returns:
            False where somebody else has it: some file systems hand no lock over.
        """
        if not lock_descriptor(descriptor, shared=self._shared):
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        _held.add(self)
        return True

    def forget(self) -> None:
        """Close it without unlocking: a forked child, whose parent goes on holding it, or who has handed it over."""
        _held.discard(self)
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


@contextlib.contextmanager
def holding(path: Path) -> Iterator[bool]:
    """Lock the file or directory ``path``, which exists, meanwhile.

    Yields:
        False where somebody else has it locked.

    Raises:
        FileNotFoundError: There is no such file.
    """
    lock = FileLock(path, create=False)
    ours = lock.acquire()
    try:
        yield ours
    finally:
        lock.release()


def _nothing() -> None:
    """The message was given."""


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


#: The locks that this process holds; a forked child lets go of its copies.
_held: Final[weakref.WeakSet[FileLock]] = weakref.WeakSet()


def _forget_in_child() -> None:
    for lock in list(_held):
        lock.forget()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
