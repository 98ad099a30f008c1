"""The session's side of publishing: it starts the publisher, hands on what that says, and ends it.

Nothing here loads pandas or plotly, waits for the publisher while training goes on, or raises into it.
"""

from __future__ import annotations

import logging
import math
import os
import site
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from probe.errors import InputError
from probe.hooks import silenced
from probe.publishing.messages import (
    FINAL,
    Arranged,
    Described,
    Done,
    Message,
    Numbers,
    Shown,
    Tagged,
    Trouble,
    decode,
)
from probe.records import Incident
from probe.tracking.media import medium_of
from probe.tracking.state import State
from probe.tracking.tracking import Tracking

_log = logging.getLogger("probe.publishing")

#: How old figures get before they are made anew, seconds.
EVERY_S: Final = 30.0

#: How long the end of a session waits for the last edition, seconds. It takes three where the machine has time for it.
FINAL_S = 60.0

#: Under this name the run directory remembers which steps have been published.
STATE: Final = "publishing"

#: Backends that a person reads line by line: nothing that comes time after time belongs there.
TEXTUAL: Final = frozenset({"console", "file"})


def worthwhile(tracking: Tracking) -> bool:
    """Whether one of the backends can show pictures."""
    return bool(_showing(tracking, "figure") or _showing(tracking, "histogram"))


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
        self._state = State(directory, STATE)
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
            self._process = subprocess.Popen(  # noqa: S603  (this interpreter, or what the caller asks for)
                own if command is None else command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=_environment(os.environ),
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
        """Ask for the last edition and wait for it. False where it didn't come in time; that is reported.

        Args:
            timeout_s: Seconds after which it is given up; None takes :data:`FINAL_S`.
        """
        timeout_s = FINAL_S if timeout_s is None else timeout_s
        if os.getpid() != self._pid or self._ended:  # in a fork of the training the process isn't its child
            return self._complete
        deadline = time.monotonic() + timeout_s
        self._asked = True
        try:
            self._ask()
            self._thread.join(max(0.0, deadline - time.monotonic()))
            if self._thread.is_alive():
                message = f"the last edition wasn't there within {timeout_s:g} s and is given up"
                self._tell(message, error=self._said_last())
        finally:
            self._end()
        return self._complete

    def _ask(self) -> None:
        pipe = self._process.stdin
        try:
            if pipe is not None:
                pipe.write(FINAL)
                pipe.flush()
        except OSError:  # it is dead already; the listening thread has seen that
            _log.debug("the publisher was gone before the last edition")

    def _end(self) -> None:
        self._muted = self._ended = True
        self._process.kill()
        self._process.wait()
        self._thread.join(1.0)
        for pipe in (self._process.stdin, None if self._thread.is_alive() else self._process.stdout, self._errors):
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
                if self._muted:
                    return
                self._handle_line(line)
                if self._complete:  # what comes now is the end of a process that nobody needs any more
                    return
        code = self._process.wait()
        if not self._complete and not self._muted:
            after = "while the last edition was made" if self._asked else "during the run"
            message = f"the publisher ended {after} with code {code}; figures and numbers across ranks stay as they are"
            self._tell(message, error=self._said_last())

    def _handle_line(self, line: bytes) -> None:
        try:
            self._hand_on(decode(line))
        except msgspec.MsgspecError as error:
            self._tell(f"the publisher said something that can't be read: {error}", error=repr(line[:200]))
        except Exception as error:  # isolation boundary: whatever comes, the next message is taken
            self._tell(f"what the publisher said can't be handed on: {error!r}")

    def _hand_on(self, message: Message) -> None:
        tracking = self._tracking
        if isinstance(message, Numbers):
            names = [name for name in tracking.logger if name != "console"]
            if names:
                tracking.log(message.floats(), message.step, names)
        elif isinstance(message, Shown):
            self._show(message)
        elif isinstance(message, Described):
            tracking.describe(message.markdown)
        elif isinstance(message, Tagged):
            tracking.tag(message.tags)
        elif isinstance(message, Arranged):
            tracking.layout(message.charts)
        elif isinstance(message, Trouble):
            self._tell(f"{message.what} can't be made: {message.message}", error=message.traceback)
        else:
            self._done(message)

    def _show(self, message: Shown) -> None:
        medium = medium_of(message.medium)
        names = _showing(self._tracking, medium.kind)
        if names:
            step = max(message.step, self._newest) if message.newest else message.step
            self._tracking.log({message.name: medium}, step, names)

    def _done(self, message: Done) -> None:
        self._complete = self._complete or message.final
        self._state.write({"steps": message.steps})

    def _tell(self, message: str, error: str = "") -> None:
        _log.warning("publisher: %s%s", message, f"\n{error}" if error else "")
        self._report(Incident(kind="publisher", where="publishing", message=message, traceback=error or None))

    def _said_last(self) -> str:
        """The end of what it wrote to standard error, such as its traceback."""
        try:
            size = os.fstat(self._errors.fileno()).st_size
            return os.pread(self._errors.fileno(), 4000, max(0, size - 4000)).decode("utf-8", "replace")
        except (OSError, ValueError, AttributeError):  # a system without pread
            return ""


def _showing(tracking: Tracking, kind: str) -> list[str]:
    return [name for name in tracking.shows(kind) if name not in TEXTUAL]


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    """That of this process, with this package found first and no accelerator in sight."""
    root = str(Path(__file__).resolve().parent.parent.parent)
    made = dict(given) | {"CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}
    if root not in {*site.getsitepackages(), site.getusersitepackages()}:
        made["PYTHONPATH"] = os.pathsep.join(filter(None, [root, given.get("PYTHONPATH", "")]))
    return made


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
