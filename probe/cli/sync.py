"""Copy a run to a store, such as an S3 bucket, also while it is written. `probe.open(URL)` reads the copy.

What is there already isn't sent again, so you can stop and start the command at any time. With --follow it goes on
until it is interrupted or terminated, then sends the rest and ends. It also waits for a run that hasn't begun.
"""

from __future__ import annotations

import argparse
import math
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from probe.cli.output import add_json, print_json, remark
from probe.cli.runs import RUN_HELP, find_run
from probe.errors import InputError, ProbeError, RunError, RunNotFoundError
from probe.text import size

if TYPE_CHECKING:
    from probe._io import FileLock
    from probe.runs.sync import Sent, Sync

ABOUT: Final = "copy a run to a store, also while it is written"

EXAMPLE: Final = "probe sync runs/arithmetic/grpo-small s3://bucket/runs/arithmetic/grpo-small --follow"

#: How long the last pass is tried again where the store fails, seconds.
LAST_S: Final = 60.0

#: Between two looks for a run that hasn't begun, seconds.
WAIT_S: Final = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``probe sync``."""
    add = parser.add_argument
    add("run_path", metavar="RUN", help=RUN_HELP.replace("its fsspec URL, ", ""))
    add("url", metavar="URL", help="where to copy to: an fsspec URL, or a directory")
    add("--follow", action="store_true", help="go on while the run is written")
    about = "seconds between two looks at the run, with --follow (10)"
    add("--every", type=_seconds, default=10.0, metavar="SECONDS", help=about)
    add_json(parser)


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a positive number of seconds")
    return found


def run(arguments: argparse.Namespace) -> int:
    """Copy once, or until it is to end."""
    with _ending(arguments.follow) as stop:
        place = _found(arguments, stop)
        if place is None:
            return 0
        from probe.runs.sync import Sync

        sync = Sync(place, arguments.url)
        lock = sync.lock()
        if not _taken(lock, stop, wait=arguments.follow):
            raise RunError(f"run {place!r}: another process is copying it to {sync.shown}")
        try:
            return _follow(sync, stop, arguments) if arguments.follow else _once(sync, arguments)
        finally:
            lock.release()


@contextmanager
def _ending(follow: bool) -> Iterator[threading.Event]:
    """Set when the command is interrupted or terminated, which with --follow is how it ends."""
    stop = threading.Event()
    if not follow or threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {one: signal.signal(one, lambda *_: stop.set()) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _found(arguments: argparse.Namespace, stop: threading.Event) -> str | None:
    """The run, which with --follow may come later; None where it is to end before that."""
    said = False
    while True:
        try:
            place = find_run(arguments.run_path)
        except RunNotFoundError:
            if not arguments.follow:
                raise
            if not said:
                remark("sync", f"there is no run at {arguments.run_path} yet; waiting for it")
            said = True
            if stop.wait(WAIT_S):
                return None
        else:
            if "://" in place:
                raise InputError(f"RUN: got {place!r}, expected a run directory of this machine")
            return place


def _taken(lock: FileLock, stop: threading.Event, *, wait: bool) -> bool:
    if lock.acquire():
        return True
    if wait:
        remark("sync", "another process copies this run there; waiting for it to end")
    while wait and not stop.wait(WAIT_S):
        if lock.acquire():
            return True
    return False


def _once(sync: Sync, arguments: argparse.Namespace) -> int:
    _say(sync.once(), sync, arguments)
    return 0


def _follow(sync: Sync, stop: threading.Event, arguments: argparse.Namespace) -> int:
    from probe.runs.sync import Sent, follow

    total, failing = Sent(), ""

    def told(found: Sent | ProbeError) -> None:
        nonlocal total, failing
        if isinstance(found, ProbeError):
            if str(found) != failing:
                remark("sync", f"{found}; trying again")
            failing = str(found)
            return
        if failing:
            remark("sync", f"{sync.shown} takes rows again")
        total, failing = total + found, ""

    complete = follow(sync, stop, every_s=arguments.every, last_s=LAST_S, told=told)
    _say(total, sync, arguments)
    return 0 if complete else 1


def _say(sent: Sent, sync: Sync, arguments: argparse.Namespace) -> None:
    if arguments.json:
        told: dict[str, Any] = {"run": str(Path(sync.directory)), "url": sync.shown}
        print_json({**told, "files": sent.files, "bytes": sent.bytes, "removed": sent.removed})
    elif sent.files or sent.removed:
        print(f"{sent.files:,} files, {size(sent.bytes)} → {sync.shown}")
    else:
        print(f"{sync.shown} has all of it")
