"""Moves files between stores and this machine: aside first, checked, and then in place with one rename."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

from probe.core.fs.checksum import Checksum, digest_of
from probe.core.fs.progress import Teller
from probe.core.fs.store import (
    Entry,
    Inventory,
    RemoteSource,
    Source,
    telling,
)
from probe.errors import CopyError, NoRoomError, SourceMissingError
from probe.guard import attempt, on_error
from probe.redaction import without_logins

#: Folders that a copy is made in before it is renamed; one that lies about belongs to a process that died.
PARTIAL: Final = ".partial-"

_log = logging.getLogger("probe.core.fs")


def download(
    source: Source, found: Inventory, target: Path, *, reserve_bytes: int = 0, teller: Teller | None = None
) -> None:
    """Copy all of ``found`` to ``target``, which isn't there yet, and check each file.

    Args:
        source: The file or directory that is copied.
        found: What was found there: its files with their sizes and checksums.
        target: The local path to make.
        reserve_bytes: Bytes that must stay free on the disk.
        teller: Says what happens; None logs it at DEBUG.

    Raises:
        NoRoomError: It doesn't fit.
        CopyError: A file can't be read, or what came isn't what the store lists.
    """
    _check_room(found, target.parent, reserve_bytes)
    if found.is_folder:
        target.mkdir()
        for folder in sorted(found.folders):  # a folder stands before those in it
            (target / folder).mkdir()
    stop, teller = threading.Event(), teller or Teller()

    def work(item: tuple[str, Entry]) -> None:
        name, entry = item
        if not stop.is_set():
            copied = target / name if name else target
            fetch(source, entry, copied, stop, partial(at, name))
            at(name, copied.stat().st_size)
            teller.say("copied %s, %s bytes", entry.path, entry.size_bytes)

    with teller.progress(found) as at:
        _each(work, sorted(found.files.items()), source.workers, stop)


def _each(work: Any, items: list[tuple[str, Entry]], workers: int, stop: threading.Event) -> None:
    if workers == 1 or len(items) < 2:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(min(workers, len(items)), thread_name_prefix="probe-fs") as pool:
        futures = [pool.submit(work, item) for item in items]
        with on_error(lambda _: stop.set()):  # Ctrl-C too: transfers under way end at their next chunk
            for future in futures:
                future.result()


def fetch(
    source: Source, entry: Entry, target: Path, stop: threading.Event, at: Callable[[int], object] | None = None
) -> None:
    """One file to ``target``, checked and on the disk; ``at`` is told how many bytes have come.

    Raises:
        NoRoomError: The disk is full.
        CopyError: It can't be read, or isn't what the store lists.
    """
    try:
        source.fetch(entry, target, stop.is_set, at)
        with target.open("rb") as written:
            os.fsync(written.fileno())
    except CopyError as error:
        if _is_full(error.__cause__):
            raise NoRoomError(f"{str(target.parent)!r} is full: {error}") from error
        raise
    except OSError as error:
        kind = NoRoomError if _is_full(error) else CopyError
        raise kind(f"src: {without_logins(entry.path)!r} of {source.shown!r} can't be copied: {error}") from error
    check(source, entry, target)


def check(source: Source, entry: Entry, copied: Path) -> None:
    """Raise CopyError where ``copied`` has another size or checksum than ``entry``."""
    size = copied.stat().st_size
    if entry.size_bytes is not None and size != entry.size_bytes:
        raise CopyError(
            f"src: {without_logins(entry.path)!r} of {source.shown!r} gave {size} bytes, "
            f"but its store lists {entry.size_bytes}"
        )
    if entry.checksum is None:
        return
    digest = digest_of(copied, entry.checksum.algorithm)
    if digest != entry.checksum.digest and source.trusts(entry):
        raise CopyError(
            f"src: {without_logins(entry.path)!r} of {source.shown!r} came with {entry.checksum.algorithm} {digest}, "
            f"but its store lists {entry.checksum.digest}"
        )


def _is_full(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _check_room(found: Inventory, folder: Path, reserve_bytes: int) -> None:
    free = shutil.disk_usage(folder).free - reserve_bytes
    if found.size_bytes > free:
        raise NoRoomError(
            f"src: {found.shown!r} has {found.size_bytes} bytes, but {str(folder)!r} has room for only {max(free, 0)}"
        )


@contextlib.contextmanager
def aside(folder: Path) -> Iterator[Path]:
    """A folder inside ``folder`` to make a copy in; gone at the end with all that is still in it."""
    made = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=folder))
    try:
        yield made
    finally:
        remove(made)


def remove(path: Path) -> None:
    """Delete a file or folder, whatever it is; what can't be deleted is told of, and stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, onerror=lambda _, name, error: _log.warning("%s can't be deleted: %s", name, error[1]))
    else:
        path.unlink(missing_ok=True)


def swap(fresh: Path, target: Path, made_aside: Path) -> None:
    """Put ``fresh`` in the place of ``target``; what was there goes aside, and comes back if that fails."""
    if not fresh.is_dir() and not target.is_dir():
        fresh.replace(target)
        return
    old = made_aside / ".replaced"
    if os.path.lexists(target):
        target.rename(old)
    try:
        fresh.rename(target)
    except OSError:
        if os.path.lexists(old):
            old.rename(target)
        raise


def merge(fresh: Path, target: Path, found: Inventory) -> None:
    """Move the files of the folder ``fresh`` into the folder ``target``, each in one step."""
    for folder in sorted(found.folders):
        (target / folder).mkdir(exist_ok=True)
    for name in found.files:
        (fresh / name).replace(target / name)


# ------------------------------------------------------------------------------------------------------- the other way


def upload(source: Source, found: Inventory, target: RemoteSource) -> None:
    """Copy all of ``found`` to a store, and check that it lists what was sent.

    A store has no rename that covers many files: readers may see a part of a folder until this returns.

    Raises:
        CopyError: The store refuses, or lists something else; what was sent has been deleted again, but for files that
            were there before.
    """
    before = _there(target)
    sent: list[str] = []
    with on_error(lambda _: _take_back(target, set(sent) - before)):
        for name, entry in sorted(found.files.items()):
            path = f"{target.root}/{name}" if name else target.root
            sent.append(path)
            with telling(target.shown, path):
                _send(source, entry, target, path)
        for folder in _empty(found):
            with telling(target.shown, folder):
                target.files.makedirs(f"{target.root}/{folder}".rstrip("/"), exist_ok=True)
        wrong = list(differences(found, target.inventory(), extra=True, folders=False)) if found.files else []
        if wrong:
            raise CopyError(f"dst: {target.shown!r} isn't what was sent: {'; '.join(wrong[:5])}")


def _take_back(target: RemoteSource, paths: set[str]) -> None:
    """As far as the store lets us: the error that brought us here is the one to see."""
    for path in paths:
        attempt(partial(target.files.rm_file, path), lambda _: None)


def _there(target: RemoteSource) -> set[str]:
    try:
        return {entry.path for entry in target.inventory().files.values()}
    except SourceMissingError:
        return set()


def _empty(found: Inventory) -> list[str]:
    """Folders that no file implies; the outermost is ``""``. Object stores do nothing where they are made."""
    if not found.is_folder:
        return []
    around = {name.rpartition("/")[0] for name in (*found.files, *found.folders)}
    return sorted(({""} | found.folders) - around)


def _send(source: Source, entry: Entry, target: RemoteSource, path: str) -> None:
    if not isinstance(source, RemoteSource):
        target.files.put_file(entry.path, path)
    elif source.files is target.files:
        target.files.cp_file(entry.path, path)
    else:
        with tempfile.TemporaryDirectory(prefix="probe-fs-") as between:
            fetch(source, entry, Path(between) / "file", threading.Event())
            target.files.put_file(str(Path(between) / "file"), path)


# ------------------------------------------------------------------------------------------------------ are they equal


def differences(one: Inventory, other: Inventory, *, extra: bool = False, folders: bool = True) -> Iterator[str]:
    """What a copy ``other`` has in another way than ``one``, in words; nothing where they are equal.

    Args:
        one: What the original has.
        other: What the copy has.
        extra: Whether ``other`` may hold more.
        folders: Whether empty folders count; object stores have none.
    """
    if one.is_folder != other.is_folder:
        yield f"{one.shown} is a {_kind(one)}, {other.shown} is a {_kind(other)}"
        return
    left: list[set[str]] = [set(one.files), set(other.files)]
    if folders:
        left = [left[0] | one.folders, left[1] | other.folders]
    yield from (f"{name} is missing" for name in sorted(left[0] - left[1]))
    if not extra:
        yield from (f"{name} isn't in the original" for name in sorted(left[1] - left[0]))
    for name in sorted(one.files.keys() & other.files.keys()):
        yield from _unequal(name, one, other)


def _kind(found: Inventory) -> str:
    return "directory" if found.is_folder else "file"


def _unequal(name: str, expected: Inventory, present: Inventory) -> Iterator[str]:
    one, other = expected.files[name], present.files[name]
    sizes = (one.size_bytes, other.size_bytes)
    if None not in sizes and sizes[0] != sizes[1]:
        yield f"{name or other.path} has {sizes[1]} bytes, expected {sizes[0]}"
        return
    told = one.checksum or other.checksum
    if told is None:
        return
    digests = (_digest(one, told, expected.is_local), _digest(other, told, present.is_local))
    if None not in digests and digests[0] != digests[1]:
        yield f"{name or other.path} has {told.algorithm} {digests[1]}, expected {digests[0]}"


def _digest(entry: Entry, told: Checksum, is_local: bool) -> str | None:
    if entry.checksum is not None:
        return entry.checksum.digest if entry.checksum.algorithm == told.algorithm else None
    return digest_of(entry.path, told.algorithm) if is_local else None
