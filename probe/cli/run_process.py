"""Another program as a child that behaves as if nobody stood around it: its signals, its terminal, its exit code."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final, NoReturn

#: Signals that people and launchers send to a job.
_PASSED: Final = frozenset(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)

#: How long it takes at most until the whole group has a signal that one of it has, seconds.
_GROUP_S: Final = 0.2

_DIES_WITH_PARENT: Final = 1  #: PR_SET_PDEATHSIG of Linux


def run_process(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run ``command`` to its end, in this process group and on this terminal.

    What is sent to this process alone is sent on. What the whole group gets, as from Ctrl-C or ``kill -- -GROUP``, the
    child has already. Where this process is killed, so is the child.

    Args:
        command: The program and its arguments.
        environ: Its environment.

    Returns:
        Its exit code; the negative number of the signal that ended it.

    Raises:
        OSError: There is no such program, or it can't be run.
    """
    if not hasattr(signal, "sigtimedwait"):
        return _run_simply(command, environ)
    with _blocked(_PASSED | {signal.SIGCHLD}), _Group() as group:
        child = _begin(command, environ)
        while child.poll() is None:
            told = signal.sigtimedwait(_PASSED | {signal.SIGCHLD}, 1.0)
            if told is None or told.si_signo == signal.SIGCHLD:
                continue
            if not group.has(told):
                with contextlib.suppress(ProcessLookupError):
                    child.send_signal(told.si_signo)
        return child.returncode


def end_as(code: int) -> int:
    """End as the child has ended: by the same signal where it was one.

    Args:
        code: As of :func:`run_process`.

    Returns:
        The exit code, where no signal ended the child.
    """
    if code < 0:
        _die(-code)
    return code


def _die(number: int) -> NoReturn:
    with contextlib.suppress(ImportError, ValueError, OSError):  # it has left a core file already, if any
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    raise SystemExit(128 + number)  # it is one that ends nobody


def _begin(command: Sequence[str], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    parent = os.getpid()

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED | {signal.SIGCHLD})
        _die_with(parent)

    first = prepare if hasattr(signal, "pthread_sigmask") else None
    return subprocess.Popen(list(command), env=dict(environ), preexec_fn=first, close_fds=False)  # noqa: PLW1509  (it must die with us)


def _die_with(parent: int) -> None:
    """In the child: a signal that can't be passed on, SIGKILL, ends it with its parent (Linux)."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # a C library that has no such call
            ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGKILL)


def _run_simply(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Where it can't be asked who sent a signal: those of the keyboard are the child's, the others are sent on."""
    child: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _: Any) -> None:
        if child and number not in (signal.SIGINT, signal.SIGQUIT):
            child[0].send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in _PASSED}
    try:
        child.append(_begin(command, environ))
        return child[0].wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _blocked(signals: frozenset[signal.Signals]) -> Generator[None, None, None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Group:
    """Tells signals of the whole group from those that are for this process alone.

    The kernel doesn't say to whom a signal was sent. A second process of the group, which does nothing but wait, gets
    the ones of the group too, and says so through a pipe.
    """

    def __enter__(self) -> _Group:
        self._pipe, write = os.pipe()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            _listen(write, parent)
        os.close(write)
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._pipe)

    def has(self, told: signal.struct_siginfo) -> bool:
        """Whether the whole group got the signal."""
        if told.si_pid == 0:  # from the terminal
            return True
        while select.select([self._pipe], [], [], _GROUP_S)[0]:
            data = os.read(self._pipe, 1)
            if not data:
                return False
            if data[0] == told.si_signo:
                return True
        return False


def _listen(pipe: int, parent: int) -> NoReturn:
    """Tell of each signal that this process gets, until the parent has gone."""
    _die_with(parent)
    while os.getppid() == parent:
        told = signal.sigtimedwait(_PASSED, 5.0)
        if told is not None:
            os.write(pipe, bytes([told.si_signo]))
    os._exit(0)
