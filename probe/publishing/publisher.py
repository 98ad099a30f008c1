"""The session's side of publishing: it starts the publisher, hands on what that says, and ends it.

Nothing here loads pandas or plotly, waits for the publisher while training goes on, or raises into it.
"""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from probe import _signals
from probe._io import child_environment
from probe.errors import InputError
from probe.guard import Guard
from probe.hooks import silenced
from probe.publishing import last
from probe.publishing.delivery import hand_on, showing
from probe.publishing.last import STATE
from probe.publishing.messages import FINAL, LAST, Done, Message, Numbers, Shown, Trouble, decode
from probe.records import Incident
from probe.tracking.state import State
from probe.tracking.tracking import Tracking

_log = logging.getLogger("probe.publishing")

#: How old figures get before they are made anew, seconds.
EVERY_S: Final = 30.0

#: How long the last edition is waited for where somebody asks for that, seconds. It takes three on an idle machine.
FINAL_S = 60.0

#: After so many seconds of it a message says that it waits.
_SILENT_S: Final = 1.0


def worthwhile(tracking: Tracking) -> bool:
    """Whether one of the backends can show pictures."""
    return bool(showing(tracking, "figure") or showing(tracking, "histogram"))


class Publisher:
    """A child process that publishes the run in ``directory``, and the thread that listens to it.

    Args:
        directory: The run directory.
        tracking: Where the figures and numbers go.
        report: Is told of trouble, from the listening thread too.
        every_s: How old figures may get, in seconds.
        command: The command line of the process; None for that of ``probe.publishing``.
    """

    def __init__(
        self,
        directory: Path,
        tracking: Tracking,
        report: Callable[[Incident], None],
        *,
        every_s: float = EVERY_S,
        command: Sequence[str] | None = None,
    ) -> None:
        self._tracking = tracking
        self._report = report
        self._directory = Path(directory).absolute()
        self._state = State(directory, STATE)
        known = self._state.read()
        self._steps: list[tuple[int, int]] = known.get("steps", [])  # whose numbers were handed on
        self._names: set[str] = set(known.get("names", ()))  # of these numbers
        self._numbers: set[int] = set()  # and since then
        self._lengths: set[tuple[str, int]] = set()
        self._handing_on = threading.Lock()
        failed = "a message of the publisher can't be handed on to the backends"
        self._hands_on = Guard(
            "publishing", failed, kind="publisher", tell=self._tell_failure, most=None, log=_log, level=logging.WARNING
        )
        self._left = False  # it makes the last edition alone
        self._pid = os.getpid()
        self._newest = 0
        self._muted = False  # what comes now comes too late
        self._asked = False
        self._ended = False
        self._complete = False
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        options = [str(directory), "--every", str(every_s), "--parent", str(self._pid)]
        own = [sys.executable, "-P", "-m", "probe.publishing", *options]
        try:
            with _signals.kept_back():
                self._process = subprocess.Popen(  # this interpreter, or what the caller asks for
                    own if command is None else command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._errors,
                    env=child_environment(os.environ),
                )
        except OSError:
            self._errors.close()
            raise
        self._thread = threading.Thread(target=self._listen, name="probe-publisher", daemon=True)
        self._thread.start()

    def at(self, step: int) -> None:
        """The training has come to ``step``: what shows how the run stands is of that step or a later one."""
        self._newest = max(self._newest, step)

    def finish(self, timeout_s: float | None = None) -> bool:
        """Ask for the last edition. Where another process can open the backends again it is made by the publisher
        alone, which goes on after this process (:mod:`probe.publishing.last`), and nobody waits; otherwise, and where
        what is left behind would be killed, it is waited for. One that isn't there in time is left to the publisher
        where that is possible, and to ``probe doctor RUN --recover`` where the publisher is killed; else it is given
        up.

        Args:
            timeout_s: Seconds that are waited at most, where anybody waits; None takes :data:`FINAL_S`.

        Returns:
            Whether it is there, or made by the publisher alone. False where it is given up; that is reported.
        """
        if os.getpid() != self._pid or self._ended:  # in a fork of the training the process isn't its child
            return self._complete or self._left
        if not last.waits() and self._leave():
            return True
        timeout_s = FINAL_S if timeout_s is None else timeout_s
        deadline = time.monotonic() + timeout_s
        self._asked = True
        try:
            self._ask(FINAL)
            self._thread.join(min(_SILENT_S, timeout_s))
            if self._thread.is_alive() and timeout_s > _SILENT_S:
                left = math.ceil(deadline - time.monotonic())
                _log.warning("waiting up to %d s for the last figures; PROBE_LAST_EDITION=leave waits for none", left)
            self._thread.join(max(0.0, deadline - time.monotonic()))
            if self._thread.is_alive() and not self._leave() and not self._complete:
                message = f"the last edition of the figures wasn't made within {timeout_s:.3g} s and was given up"
                self._tell(message, error=self._said_last())
        finally:
            if not self._left:
                self._end()
        return self._complete or self._left

    def wait(self, timeout_s: float = FINAL_S) -> bool:
        """Wait for a publisher that goes on alone. It needn't be: the process may end before.

        Returns:
            Whether the last edition is made, and with the backends or kept for them.
        """
        self._thread.join(timeout_s)
        return self._complete or (self._left and not last.due(self._directory))

    def _leave(self) -> bool:
        """Leave the last edition to the publisher. False where it can't be."""
        if self._process.poll() is not None or not last.able(self._directory, self._tracking):
            return False
        with self._handing_on:
            if self._complete:  # it came at the last moment
                return False
            self._muted = True  # what it says from now on it will make anew
        told = {"steps": self._steps, "numbers": sorted(self._numbers), "lengths": sorted(self._lengths)}
        told |= {"names": sorted(self._names), "tracks": self._pid}
        if not last.announce(self._directory, told, attempt=self._tracking.attempt, pid=self._process.pid):
            self._muted = False
            return False
        self._left = self._ended = True
        self._ask(LAST)
        _log.log(
            logging.WARNING if self._asked else logging.INFO,  # it was waited for: this process may end a container
            "the last edition of the dashboards is made by process %d, which goes on after this one; "
            "`probe doctor %s` says when it is there, and makes it with --recover where that process was killed",
            self._process.pid,
            self._directory,
        )
        return True

    def _ask(self, what: bytes) -> None:
        pipe = self._process.stdin
        try:
            if pipe is not None:
                pipe.write(what)
                pipe.flush()
        except OSError:  # it is dead already; the listening thread has seen that
            _log.debug("the publisher was gone before the last edition")

    def _end(self) -> None:
        self._muted = self._ended = True
        self._process.kill()
        self._process.wait()
        self._thread.join(1.0)
        self._close_pipes()

    def _close_pipes(self) -> None:
        listening = self._thread.is_alive() and self._thread is not threading.current_thread()
        for pipe in (self._process.stdin, None if listening else self._process.stdout, self._errors):
            try:
                if pipe is not None:
                    pipe.close()
            except OSError:  # what was written to a dead process can't be flushed
                continue

    # --------------------------------------------------------------------------------------- the listening thread

    def _listen(self) -> None:
        pipe = self._process.stdout
        with silenced():
            for line in iter(pipe.readline, b"") if pipe is not None else ():
                if not self._hear(line):
                    return
                if self._complete:  # what comes now is the end of a process that nobody needs any more
                    return
        code = self._process.wait()
        if self._left:
            self._close_pipes()
        elif not self._complete and not self._muted:
            after = "while the last edition was made" if self._asked else "during the run"
            message = f"the publisher ended {after} with code {code}; figures and numbers across ranks get no update"
            self._tell(message, error=self._said_last())

    def _hear(self, line: bytes) -> bool:
        """Take a line; False where nobody listens any more."""
        with self._handing_on:
            if not self._muted:
                self._handle_line(line)
            return not self._muted or self._left

    def _handle_line(self, line: bytes) -> None:
        with self._hands_on:  # whatever comes, the next message is taken
            try:
                self._hand_on(decode(line))
            except msgspec.MsgspecError as error:
                self._tell(f"a message of the publisher can't be read: {error}", error=repr(line[:200]))

    def _hand_on(self, message: Message) -> None:
        if isinstance(message, Trouble):
            self._tell(f"{message.what} can't be made: {message.message}", error=message.traceback)
        elif isinstance(message, Done):
            self._done(message)
        else:
            hand_on(self._tracking, message, self._newest)
            if isinstance(message, Numbers):
                self._numbers.add(message.step)
            elif isinstance(message, Shown) and not message.newest:
                self._lengths.add((message.name, message.step))

    def _done(self, message: Done) -> None:
        self._complete = self._complete or message.final
        self._steps = message.steps
        self._names.update(message.names)
        self._numbers.clear()
        self._lengths.clear()
        self._state.write({"steps": message.steps, "names": sorted(self._names)})

    def _tell(self, message: str, error: str = "") -> None:
        _log.warning("publisher: %s%s", message, f"\n{error}" if error else "")
        self._report(Incident(kind="publisher", where="publishing", message=message, traceback=error or None))

    def _tell_failure(self, kind: str, where: str, message: str, error: BaseException | None, *_: object) -> None:
        trace = None if error is None else "".join(traceback.format_exception(error))
        self._report(Incident(kind=kind, where=where, message=message, traceback=trace))

    def _said_last(self) -> str:
        """The end of what it wrote to standard error, such as its traceback."""
        try:
            size = os.fstat(self._errors.fileno()).st_size
            return os.pread(self._errors.fileno(), 4000, max(0, size - 4000)).decode("utf-8", "replace")
        except (OSError, ValueError, AttributeError):  # a system without pread
            return ""


def interval(publish: Any) -> float | None:
    """Seconds between editions, out of what ``start`` was given; None for no publisher.

    Raises:
        InputError: It is neither a bool nor None nor a positive number.

    >>> interval(None), interval(False), interval(5)
    (30.0, None, 5.0)
    """
    if publish is False:
        return None
    if publish is None or publish is True:
        return EVERY_S
    if not isinstance(publish, int | float) or not 0 < publish < math.inf:
        raise InputError(f"publish: got {publish!r}, expected True, False, None or a positive number of seconds")
    return float(publish)
