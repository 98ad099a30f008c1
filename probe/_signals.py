"""Signals that a terminal or a scheduler sends to all processes of a job, and the processes beside a training.

``scancel`` and ``--signal=USR1@60`` reach every process of a job step, and so does a terminal that is closed. What the
training does then is the trainer's business: what runs beside it goes on, and ends with it.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Final

#: Of a whole job. What is asked of one process alone, such as SIGQUIT for its stacks, isn't among them.
OF_THE_JOB: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)
)


@contextlib.contextmanager
def kept_back() -> Iterator[None]:
    """Start a process in the block: such a signal reaches it once it has called :func:`ignore`, and not before."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, OF_THE_JOB)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore(*but: signal.Signals) -> None:
    """None of these signals means anything in this process from now on, those of ``but`` what they meant before."""
    for one in OF_THE_JOB:
        if one not in but:
            with contextlib.suppress(ValueError, OSError):
                signal.signal(one, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, OF_THE_JOB)
