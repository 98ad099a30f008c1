"""``python -m probe.runs.upload_process``: copies a run to a store, for a session that talks to it over its pipes.

Of several machines that copy one directory to one place, as on a shared file system, one does at a time: the others
wait for its lock and take over when it ends. On one machine there is one such process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import msgspec

from probe import _signals
from probe.errors import ProbeError
from probe.runs.copiers import Copiers
from probe.runs.upload import Order, Said

if TYPE_CHECKING:
    from collections.abc import Callable

    from probe._io import FileLock
    from probe.runs.sync import Sent, Sync

    Say = Callable[[Said], None]

#: How often a lock is asked for, and a parent looked after, seconds.
LOOK_S: Final = 1.0

#: How often, after its session's end, it looks whether another one has taken over, seconds.
HAND_OVER_S: Final = 0.2

#: How long the last rows are tried again where the store fails, after the training has ended, seconds.
LAST_S: Final = 600.0


def main() -> int:
    """Copy until the session ends, in whatever way; returns whether something didn't arrive."""
    if _begun_by_one_that_ends():
        return 0
    said = sys.stdin.buffer.readline()
    if not said:  # the session was killed meanwhile
        return 0
    order = msgspec.json.decode(said, type=Order)
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what a library prints isn't part of what we say

    def say(said: Said) -> None:
        with contextlib.suppress(OSError):  # the session is gone; its rows are sent all the same
            out.write(msgspec.json.encode(said) + b"\n")
            out.flush()

    copiers = Copiers(Path(order.directory), order.url)
    lock = _machine_lock(copiers, order)
    if lock is None:
        say(Said(another=True))
        return 0
    stop, leave = threading.Event(), threading.Event()
    _step_back(stop, leave)
    threading.Thread(target=_hear, args=(sys.stdin.buffer, stop), daemon=True).start()
    threading.Thread(target=_stay_with, args=(order.parent, stop), daemon=True).start()
    say(Said(pid=os.getpid()))
    sync = _copy(order, stop, say)
    if sync is not None:
        say(Said(complete=True))
    with contextlib.suppress(OSError):
        out.close()  # the session waits no longer
    if sync is not None:
        _stay_for_others(sync, copiers, lock, leave)
    return 0 if sync is not None else 1


def _machine_lock(copiers: Copiers, order: Order) -> FileLock | None:
    """The lock that the session has handed over, None where another process of this machine has it meanwhile."""
    lock = copiers.machine_lock()
    ours = lock.inherit(order.lock) if order.lock >= 0 else lock.acquire()
    return lock if ours else None


def _stay_for_others(sync: Sync, copiers: Copiers, lock: FileLock, leave: threading.Event) -> None:
    """While other sessions of this machine record: until another process copies, of one of them or of another machine,
    or all have ended, maybe killed, whose last rows are sent then.
    """
    before, used = copiers.passes().begun, copiers.is_used()
    if used:
        lock.release()
    while used:
        if copiers.passes().begun > before or leave.wait(HAND_OVER_S):
            return
        used = copiers.is_used() or copiers.has_machine_lock()  # a session may be killed as it starts its process
    last = sync.lock()
    if last.acquire():
        with contextlib.suppress(ProbeError):  # a store that has taken all else a moment ago
            sync.once()
        last.release()


def _begun_by_one_that_ends() -> bool:
    """Whether this is the process that the session has started, and not the one that copies: that is nobody's child."""
    return hasattr(os, "fork") and os.fork() != 0


def _copy(order: Order, stop: threading.Event, say: Say) -> Sync | None:
    """Copy until the session's end; what copied, None where not everything has arrived."""
    from probe.runs.sync import follow

    failing = False

    def told(found: Sent | ProbeError) -> None:
        nonlocal failing
        if isinstance(found, ProbeError) or failing:
            say(Said(message=str(found) if isinstance(found, ProbeError) else ""))
        failing = isinstance(found, ProbeError)

    sync = _opened(order, stop, told)
    if sync is None:
        return None
    lock = _locked(sync, stop)
    if lock is None:
        return sync
    try:
        return sync if follow(sync, stop, every_s=order.every_s, last_s=LAST_S, told=told) else None
    finally:
        lock.release()


def _opened(order: Order, stop: threading.Event, told: Callable[[ProbeError], None]) -> Sync | None:
    """The store, as soon as it can be opened, which with some is when it answers; None where it never could."""
    from probe.runs.sync import PATIENCE_S, RETRY_S, Sync

    pause, deadline = RETRY_S, 0.0
    while True:
        try:
            return Sync(order.directory, order.url)
        except ProbeError as error:
            told(error)
        if stop.is_set():
            deadline = deadline or time.monotonic() + LAST_S
            if time.monotonic() > deadline:
                return None
            time.sleep(RETRY_S)
        else:
            stop.wait(pause)
            pause = min(2 * pause, PATIENCE_S)


def _locked(sync: Sync, stop: threading.Event) -> FileLock | None:
    """The lock, as soon as nobody else has it; None where, since the end, whoever has it has begun and completed a
    pass, which has sent our rows, too.
    """
    lock, before = sync.lock(), None
    while not lock.acquire():
        if not stop.is_set():
            stop.wait(LOOK_S)
            continue
        passes = sync.passes()
        before = passes.begun if before is None else before
        if passes.completed > before:
            return None
        time.sleep(0.1)
    return lock


def _step_back(stop: threading.Event, leave: threading.Event) -> None:
    """Training goes first in processor time; being asked to end is the order for the last pass."""

    def end(*_: object) -> None:
        stop.set()
        leave.set()

    with contextlib.suppress(ValueError, OSError):
        signal.signal(signal.SIGTERM, end)
    _signals.ignore(signal.SIGTERM)
    with contextlib.suppress(OSError, AttributeError):
        os.nice(10)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _hear(pipe: BinaryIO, stop: threading.Event) -> None:
    for _ in iter(pipe.readline, b""):
        continue
    stop.set()


def _stay_with(parent: int, stop: threading.Event) -> None:
    # A process that the training has forked may hold the pipe open after the training's death.
    import psutil

    with contextlib.suppress(psutil.Error):
        process = psutil.Process(parent)
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE and not stop.is_set():
            time.sleep(LOOK_S)
    stop.set()


if __name__ == "__main__":
    sys.exit(main())
