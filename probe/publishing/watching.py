"""``python -m probe.publishing.watching RUN``: says alarms of a run while it is written, and sends them where asked.

A session starts it. It outlives the process that started it until the run has ended or nobody is left to end it, so
that the end of rank 0 is told, too. What it says goes to its standard output, one JSON object a line: an alarm, or
what couldn't be looked for.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from probe import _signals
from probe.publishing.alarms import FAILED, GO_TO, LAST
from probe.publishing.sending import Sender

if TYPE_CHECKING:
    from probe.analysis.verdict.finding import Finding
    from probe.runs.reader import Run

_log = logging.getLogger("probe.alarms")

#: The most alarms that are told of one run.
MOST: Final = 50
#: How long it goes on at most after the process that started it has gone, seconds.
ALONE_S: Final = 120.0
#: What looking takes of a core at most; with what is urgent, which is looked for in any case, about one percent.
SHARE: Final = 0.007
#: Before the run has begun there is nothing to look at.
FIRST_S: Final = 2.0


def main(argv: Sequence[str] | None = None) -> int:
    """Watch until the session says that it is the end, or the run has ended without it."""
    parser = argparse.ArgumentParser(prog="python -m probe.publishing.watching", description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--parent", type=int, default=os.getppid(), metavar="PID")
    arguments = parser.parse_args(argv)
    _signals.ignore()
    with contextlib.suppress(OSError, AttributeError):
        os.nice(10)
    with contextlib.suppress(OSError):
        os.setsid()  # who kills the training's process group leaves this one to say so
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints isn't part of what we say
    ended = threading.Event()
    # Without a buffer: a thread that still waits in one when the interpreter ends has the process aborted.
    orders = os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=0)
    threading.Thread(target=_hear, args=(orders, ended), daemon=True).start()

    def line(told: Any) -> None:
        with contextlib.suppress(OSError, ValueError):  # who listened is gone
            out.write(json.dumps(told, default=str).encode() + b"\n")
            out.flush()

    def say(alarm: Finding) -> None:
        line(alarm.to_dict())

    def confess(what: str) -> None:
        line({FAILED: what})

    watch(arguments.run, say, ended, confess=confess, to=os.environ.get(GO_TO, ""), parent=arguments.parent)
    return 0


def watch(
    directory: Path,
    say: Callable[[Finding], None],
    ended: threading.Event,
    *,
    confess: Callable[[str], None] = _log.warning,
    to: str = "",
    parent: int = 0,
) -> None:
    """Look at a run until it has ended, and say each alarm once.

    Args:
        directory: The run directory.
        say: Is called with each alarm.
        ended: Is set when the session ends.
        confess: Is called with each thing that couldn't be looked for, and why.
        to: Where each alarm is sent: a URL, or a command; "" for nowhere.
        parent: The process that started this one.
    """
    if ended.wait(FIRST_S):  # a run that is as short never loads what reads it
        return
    from probe.analysis.verdict.verdict import OFTEN
    from probe.analysis.verdict.watch import Watch
    from probe.runs.reader import Run

    told, alone_since = 0, None
    failed: set[str] = set()
    with Run(directory) as run, Sender(to, directory) as sender:
        watching = Watch(run, SHARE, looks=OFTEN)
        while told < MOST:
            last = ended.is_set()
            watching.look(whole=True if last else None)
            for alarm in watching.new_alarms():
                told += 1
                say(alarm)
                sender.send(body(run, alarm))
            for what in {*watching.failed, *sender.failed} - failed:
                failed.add(what)
                confess(what)
            if last:
                return
            if parent and os.getppid() != parent:
                alone_since = time.monotonic() if alone_since is None else alone_since
                if _nobody(run) or time.monotonic() - alone_since > ALONE_S:
                    return
            ended.wait(max(0.2, watching.pause_s))


def _nobody(run: Run) -> bool:
    """Whether no process of the run is left."""
    return not any(one["alive"] is not False for one in run.now_rows())


def _hear(pipe: Any, ended: threading.Event) -> None:
    for line in iter(pipe.readline, b""):
        if line == LAST:
            ended.set()


def body(run: Run, alarm: Finding) -> dict[str, Any]:
    """What is sent of an alarm: which, where, since when and what it costs. Texts of the run, such as the message of
    an exception, aren't in it.
    """
    told = alarm.to_dict()
    kept = {name: told[name] for name in ("kind", "name", "where", "since", "cost", "confidence")}
    sentence = alarm.sentence if not alarm.quoted else alarm.quoted
    change = told["change"] or {}
    return {
        "project": run.info.project,
        "experiment": run.info.experiment or Path(run.path).name,
        **kept,
        "sentence": sentence,
        "setting": change.get("setting"),
        "value": change.get("value"),
    }


if __name__ == "__main__":
    sys.exit(main())
