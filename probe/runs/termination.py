"""SIGTERM leaves a mark: where several processes of a job are gone, those that were told to end didn't end it.

A launcher that loses one process sends SIGTERM to the others a tenth of a second later: torchrun does, and so does a
scheduler. They end at once, with nothing written, and look like the one that was killed. The interpreter's
``faulthandler`` writes the stack of the thread that gets the signal behind the page of :mod:`probe.runs.now_file`,
wherever that thread is, in C code too, and then lets the signal do what it does without us: the process ends by it.

That is so where nobody else has asked for the signal. A handler that is there already, Ray's or the trainer's, keeps
it, and so does one that comes later. Once there, ours stays to the end of the process and writes to nowhere between
two sessions: to take it away might take somebody else's.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import threading
from pathlib import Path
from typing import Final

#: What the system says of this process.
_STATUS: Final = Path("/proc/self/status")

#: The masks of signals that it has a handler for, or ignores.
_TAKEN: Final = re.compile(r"^Sig(?:Cgt|Ign):\s*([0-9a-f]+)$", re.MULTILINE)

#: A line of a stack as ``faulthandler`` writes it.
_LINE: Final = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)

_descriptor: int | None = None  # that the handler writes to, from the first session to the end of the process
_noted: Path | None = None  # the file behind it; None is nowhere
_mask: Final = threading.local()  # the signals that a thread which forks had blocked before


def note(path: Path) -> bool:
    """SIGTERM appends a stack to a file from now on, in place of the one that it was appended to before.

    Args:
        path: Of the file, which is there.

    Returns:
        Whether it will: not where the signal is somebody else's, nor on a system that doesn't say whether it is.
    """
    global _descriptor, _noted
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        if _descriptor is None and not _free():
            return False
        opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        if _descriptor is None:
            os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_forked)
            faulthandler.register(signal.SIGTERM, file=opened, all_threads=False, chain=True)
            _descriptor = opened
        else:
            _redirect(_descriptor, opened)
        _noted = path
        return True
    return False


def forget(path: Path) -> None:
    """SIGTERM appends nothing to this file any more.

    Args:
        path: As of :func:`note`. Of another one nothing changes.
    """
    global _noted
    with contextlib.suppress(OSError):
        if _noted == path and _descriptor is not None:
            _redirect(_descriptor, os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC))
            _noted = None


# The signal is held back while the process forks: a child that gets it at once must not speak for its parent.


def _hold() -> None:
    _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _release() -> None:
    before = getattr(_mask, "before", None)
    if before is not None:  # else the fork had begun before there was anything to hold back
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _forked() -> None:
    if _noted is not None:
        forget(_noted)
    _release()


def _redirect(descriptor: int, opened: int) -> None:
    try:
        os.dup2(opened, descriptor, inheritable=False)
    finally:
        os.close(opened)


def _free() -> bool:
    """Whether SIGTERM does in this process what it does by default.

    The interpreter knows handlers in Python alone: the system knows all.
    """
    if not hasattr(faulthandler, "register"):
        return False
    masks = [int(one, 16) for one in _TAKEN.findall(_STATUS.read_text())]
    return len(masks) == 2 and not any(mask >> (signal.SIGTERM - 1) & 1 for mask in masks)


def innermost(stack: str) -> str:
    r"""The innermost line of a stack that was noted, as "file:line function"; "" without one.

    >>> innermost('Current thread 0x1f (most recent call first):\n  File "a.py", line 3 in wait\n  File "b.py", line 1')
    'a.py:3 wait'
    """
    found = _LINE.search(stack)
    return "" if found is None else f"{found[1]}:{found[2]} {found[3]}"
