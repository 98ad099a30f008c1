"""``python -m probe.publishing RUN``: the publisher. It is started by a session, and talks to it over its pipes."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from probe.publishing.messages import FINAL, Message, encode

if TYPE_CHECKING:
    from probe.publishing.editions import Editions

#: How often new steps are looked for, seconds. A look takes at most a tenth of the time.
POLL_S: Final = 2.0
SHARE: Final = 0.1

#: The first figures are there after so long, seconds.
FIRST_S: Final = 10.0

#: A figure may be older than asked for by this share of the run's age: a run of days isn't redrawn 10,000 times.
AGE_SHARE: Final = 0.01

#: How long the end waits for the last rows of other ranks, seconds.
SETTLE_S: Final = 2.0


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
    asked = threading.Event()
    threading.Thread(target=_hear, args=(sys.stdin.buffer, asked), daemon=True).start()
    threading.Thread(target=_stay_with, args=(arguments.parent,), daemon=True).start()

    def say(message: Message) -> None:
        out.write(encode(message))
        out.flush()

    try:
        _publish(_editions(arguments.run, arguments.parent, say), asked, arguments.every)
    except BrokenPipeError:  # the session is gone
        return 1
    return 0


def _editions(path: Path, parent: int, say: object) -> Editions:
    import platform

    from probe.publishing.editions import Editions  # pandas and plotly: after we have stepped back
    from probe.publishing.publisher import STATE
    from probe.runs.reader import Run
    from probe.tracking.state import State

    said = State(path, STATE).read().get("steps", [])
    told: dict[str, Any] = {"pid": parent, "host": platform.node(), "folder": Path.cwd()}
    return Editions(Run(path), say, said=said, **told)  # type: ignore[arg-type]  # main's


def _publish(editions: Editions, asked: threading.Event, every_s: float) -> None:
    began = time.monotonic()
    next_pictures = began + min(FIRST_S, every_s)
    while not asked.is_set():
        begin = time.monotonic()
        editions.numbers()
        cost = time.monotonic() - begin
        if begin >= next_pictures and not asked.is_set():
            editions.pictures()
            spent = time.monotonic() - begin
            next_pictures = begin + max(every_s, AGE_SHARE * (begin - began), spent / SHARE)
        asked.wait(max(min(POLL_S, every_s), cost / SHARE))
    patience = time.monotonic() + SETTLE_S
    while not editions.settled() and time.monotonic() < patience:
        time.sleep(0.1)
    editions.numbers(final=True)
    editions.pictures(final=True)


def _step_back() -> None:
    """Training goes first: in processor time, when memory runs out, and in what Ctrl-C is for."""
    with contextlib.suppress(ValueError, OSError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the session decides when to end
    with contextlib.suppress(OSError, AttributeError):
        os.nice(10)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _hear(pipe: BinaryIO, asked: threading.Event) -> None:
    for line in iter(pipe.readline, b""):
        if line == FINAL:
            asked.set()
    os._exit(1)  # the session has ended without a word; nothing here is worth a moment more


def _stay_with(parent: int) -> None:
    # A process that the training has forked may hold the pipe open after the training's death.
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
