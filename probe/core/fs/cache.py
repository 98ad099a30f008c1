"""Copies that are kept: one folder for each source, a lock that dies with its process, and a record of what is good.

::

    {cache}/{md5 of the source}/
        {name}              the copy
        .probe-copy.json    written last: what the source listed, and what the copy looked like when it was whole
        .file.lock          held while any of it is looked at or changed
        .partial-…/         a copy being made; one that nobody holds the lock for is the remains of a crash
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from probe._io import FileLock, write_atomically
from probe.core.fs.progress import Teller
from probe.core.fs.store import Inventory, LocalSource, Source
from probe.core.fs.transfer import PARTIAL, aside, download, remove, swap
from probe.errors import CopyError, InputError, InputTypeError
from probe.guard import on_error
from probe.hooks import emit, point

RECORD: Final = ".probe-copy.json"

#: Told each time a copy is asked for, when it is there.
CACHED = point(
    "fs.cached",
    "a valid copy is in its cache; carries source, path, files, size_bytes, reason why it was copied now (absent, "
    "changed, damaged or asked; None if it was already there), waited_ns (for the lock), duration_ns (of the rest)",
)


class Place:
    """Where the copy of one source is kept.

    Args:
        folder: The folder of this source alone.
        name: The name of the copy in the folder.
        lock: Name of the lock file in the folder, or an absolute path.

    Raises:
        InputTypeError: A name or the lock has the wrong type.
        InputError: The lock isn't such a name, or the names can't stand beside each other.
    """

    def __init__(self, folder: Path, name: str, lock: str) -> None:
        if not isinstance(lock, str):
            raise InputTypeError(f"filelock: got {lock!r}, expected the name of a file")
        if not Path(lock).is_absolute() and (not lock or "/" in lock or lock in (".", "..", RECORD) or "\0" in lock):
            raise InputError(f"filelock: got {lock!r}, expected the name of a file, or an absolute path")
        if name in (lock, RECORD) or name.startswith(PARTIAL):
            raise InputError(
                f"src: got the name {name!r}, which the cache uses itself; give another filelock or rename src"
            )
        self.folder = folder
        self.target = folder / name
        self.record = folder / RECORD
        self.lock = folder / lock

    def reason(self, listed: Inventory) -> str | None:
        """Why the copy is no good: ``absent``, ``changed`` (the source) or ``damaged`` (the copy); None: it's good."""
        try:
            record = json.loads(self.record.read_bytes())
            present = LocalSource(str(self.target)).inventory().fingerprint()
        except (FileNotFoundError, ValueError):
            return "absent"
        except CopyError:
            return "damaged"
        if not isinstance(record, dict) or record.get("source") != listed.fingerprint():
            return "changed"
        return None if record.get("copy") == present else "damaged"

    def note(self, listed: Inventory) -> None:
        """Write down that the copy is good."""
        present = LocalSource(str(self.target)).inventory()
        text = json.dumps({"source": listed.fingerprint(), "copy": present.fingerprint(), "of": listed.shown})
        write_atomically(self.record, text.encode("ascii"), unique=False)  # whoever writes it holds the lock


def kept(source: Source, place: Place, *, again: bool, teller: Teller, reserve_bytes: int = 0) -> str:
    """The path of a good copy of ``source``, which is made where there is none.

    Any number of processes and threads may ask at once: one copies, the others wait and then find it.

    Args:
        source: The file or directory that is copied.
        place: Where its copy lies.
        again: Whether to copy even if there is a good one.
        teller: Says what happens.
        reserve_bytes: Bytes that must stay free on the disk.

    Raises:
        NoRoomError: It doesn't fit.
        SourceMissingError: There is nothing at the source. What was there before the call is there still, and nothing
            else.
        CopyError: The source can't be read, or what came isn't equal to it. What was there before the call is there
            still, and nothing else.
    """
    listed = source.inventory()
    begin = time.monotonic_ns()
    with locked(place, teller) as waited:
        locked_ns = time.monotonic_ns()
        if waited:  # for long, perhaps: another one has copied what is there now
            listed = source.inventory()
        reason = "asked" if again else place.reason(listed)
        if reason is not None:
            teller.say("copying %s to %s (%s): %d files", source.shown, place.target, reason, len(listed.files))
            _renew(source, place, listed, teller, reserve_bytes)
        else:
            teller.show(f"{source.shown} is in the cache already: {place.target}")
    if CACHED.listeners:
        emit(
            CACHED,
            source=source.shown,
            path=str(place.target),
            files=len(listed.files),
            size_bytes=listed.size_bytes,
            reason=reason,
            waited_ns=locked_ns - begin,
            duration_ns=time.monotonic_ns() - locked_ns,
        )
    return str(place.target)


def _renew(source: Source, place: Place, listed: Inventory, teller: Teller, reserve_bytes: int) -> None:
    for remains in place.folder.glob(f"{PARTIAL}*"):  # whoever left them held the lock that we hold
        remove(remains)
    with aside(place.folder) as made:
        fresh = made / place.target.name
        download(source, listed, fresh, reserve_bytes=reserve_bytes, teller=teller)
        if source.inventory().fingerprint() != listed.fingerprint():
            raise CopyError(f"src: {source.shown!r} changed while it was copied; copy it again once it is complete")
        place.record.unlink(missing_ok=True)
        swap(fresh, place.target, made)
        place.note(listed)


@contextlib.contextmanager
def locked(place: Place, teller: Teller) -> Iterator[bool]:
    """Hold the place's lock; the value says whether another process had it first.

    The lock is the operating system's, so it ends with the process that holds it, however that ends. Where the block
    raises, a folder with nothing in it but the lock file is deleted.

    Raises:
        CopyError: The folder or the lock file can't be made.
    """
    lock = FileLock(place.lock)
    waited = _acquire(lock, place, teller)
    try:
        with on_error(lambda _: _tidy(place)):
            yield waited
    finally:
        lock.release()


def _acquire(lock: FileLock, place: Place, teller: Teller) -> bool:
    waits: list[Path] = []

    def tell() -> None:
        if not waits:
            teller.show(f"another process is copying to {place.target}; waiting for it")
        waits.append(place.target)

    while True:
        try:
            place.folder.mkdir(parents=True, exist_ok=True)
            lock.acquire(tell)
            return bool(waits)
        except FileNotFoundError as error:
            if place.lock.parent != place.folder:
                raise CopyError(f"filelock: {str(place.lock)!r} can't be created: {error}") from error
            # One whose copy failed has just deleted the folder.
        except OSError as error:
            raise CopyError(f"cache_dir: {str(place.folder)!r} can't be used: {error}") from error


def _tidy(place: Place) -> None:
    """Delete the lock file and the folder where there is nothing else; who waits for the lock then makes them anew."""
    with contextlib.suppress(OSError):
        left: list[Any] = [path for path in place.folder.iterdir() if path != place.lock]
        if not left:
            if place.lock.parent == place.folder:
                place.lock.unlink()
            place.folder.rmdir()
