"""``python -m probe.publishing RUN``: the publisher. It is started by a session, and talks to it over its pipes."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from probe import _signals
from probe.publishing import last
from probe.publishing.messages import FINAL, LAST, Message, encode

if TYPE_CHECKING:
    from probe.publishing.editions import Editions

#: How often new steps are looked for, seconds. A look takes at most a tenth of the time.
POLL_S: Final = 2.0
SHARE: Final = 0.1

#: The first figures are there after so long, seconds.
FIRST_S: Final = 10.0

#: A figure may be older than asked for by this share of the run's age: a run of days isn't redrawn 10,000 times.
AGE_SHARE: Final = 0.01

#: So long a publisher goes on that was left alone, seconds: one that hangs then isn't there for ever.
ALONE_S: Final = 900.0


class _HandedOverError(BrokenPipeError):
    """The session listens no more: the last edition is made alone."""


class Asked:
    """What the session has asked for.

    Attributes:
        alone: Whether the last edition is made alone, when the session has ended.
    """

    def __init__(self) -> None:
        self.alone = False
        self._event = threading.Event()

    def set(self, *, alone: bool = False) -> None:
        """It is the end."""
        self.alone = self.alone or alone
        self._event.set()

    def is_set(self) -> bool:
        """Whether it is the end."""
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Whether it is the end within so many seconds."""
        return self._event.wait(seconds)


def main(argv: Sequence[str] | None = None) -> int:
    """Publish until the session says that it is the end, or isn't there any more."""
    parser = argparse.ArgumentParser(prog="python -m probe.publishing", description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--every", type=float, default=30.0, metavar="SECONDS")
    parser.add_argument("--parent", type=int, default=os.getppid(), metavar="PID")
    arguments = parser.parse_args(argv)
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints isn't part of what we say
    _step_back()
    asked = Asked()
    threading.Thread(target=_hear, args=(sys.stdin.buffer, asked), daemon=True).start()
    threading.Thread(target=_stay_with, args=(arguments.parent, asked), daemon=True).start()

    def say(message: Message) -> None:
        if asked.alone:
            raise _HandedOverError
        out.write(encode(message))
        out.flush()

    def make() -> Editions:
        return last.opened(arguments.run, say, pid=arguments.parent)

    try:
        _publish(make, asked, arguments.every)
    except BrokenPipeError:  # the session is gone, or leaves us alone
        if not asked.alone:
            return 1
    if asked.alone:
        _go_on_alone(arguments.run)
    return 0


def _publish(make: Callable[[], Editions], asked: Asked, every_s: float) -> None:
    began = time.monotonic()
    next_pictures = began + min(FIRST_S, every_s)
    editions = None
    if not asked.wait(next_pictures - began):  # a run that is shorter never loads what makes figures
        editions = make()
    while editions is not None and not asked.is_set():
        begin = time.monotonic()
        editions.numbers()
        cost = time.monotonic() - begin
        editions.verdict()
        if begin >= next_pictures and not asked.is_set():
            editions.pictures()
            spent = time.monotonic() - begin
            next_pictures = begin + max(every_s, AGE_SHARE * (begin - began), spent / SHARE)
        asked.wait(max(min(POLL_S, every_s), cost / SHARE))
    if asked.alone:
        return
    editions = editions or make()
    patience = time.monotonic() + last.SETTLE_S
    while not editions.settled() and time.monotonic() < patience:
        time.sleep(0.1)
    editions.numbers(final=True)
    editions.pictures(final=True)


def _go_on_alone(directory: Path) -> None:
    with contextlib.suppress(OSError):
        os.setsid()  # a terminal that is closed ends what belongs to it
    with contextlib.suppress(ValueError, OSError):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # whoever sends it now means this process
    last.make(directory)


def _step_back() -> None:
    """Training goes first: in processor time, when memory runs out, and in what signals are for."""
    _signals.ignore()  # the session decides when to end
    with contextlib.suppress(OSError, AttributeError):
        os.nice(10)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _hear(pipe: BinaryIO, asked: Asked) -> None:
    for line in iter(pipe.readline, b""):
        if line in (FINAL, LAST):
            asked.set(alone=line == LAST)
    if asked.alone:
        time.sleep(ALONE_S)
    os._exit(1)  # the session has ended without a word, or what is made alone isn't made after all this time


def _stay_with(parent: int, asked: Asked) -> None:
    # A process that the training has forked may hold the pipe open after the training's death.
    while os.getppid() == parent:
        time.sleep(1.0)
    time.sleep(1.0)  # its last word may still be in the pipe
    if not asked.alone:
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
