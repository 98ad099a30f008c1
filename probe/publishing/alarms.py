"""The session's side of alarms: it starts who watches the run, and hands on what that says.

Nothing here loads what reads a run, or waits for it while training goes on.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from probe import _signals
from probe._io import child_environment
from probe.errors import InputError
from probe.guard import Guard
from probe.hooks import silenced
from probe.text import visible
from probe.tracking.tracking import Tracking

_log = logging.getLogger("probe.alarms")

#: What asks for alarms where nobody calls ``start``, or calls it without ``alarms``: on, off, a URL or a command.
VARIABLE: Final = "PROBE_ALARMS"

#: How a command begins.
COMMAND: Final = "cmd:"

#: The environment of the watching process names where alarms go: it may hold a secret.
GO_TO: Final = "PROBE_ALARMS_GO_TO"

_EXPECTED: Final = "a URL such as 'https://example.org/hook', or a command such as 'cmd:mail -s alarm me@example.org'"

#: Characters that an error shows of what it was given.
SHOWN: Final = 20

#: What is freed stays with the watching process: each look takes a few megabytes again. By default glibc gives them
#: back in between, so that a tenth of its time goes into new pages.
_MALLOC: Final = {"MALLOC_TRIM_THRESHOLD_": str(2**26), "MALLOC_MMAP_THRESHOLD_": str(2**24)}

#: What the watching process couldn't look for, in a line of it that is no alarm.
FAILED: Final = "failed"

#: What the watching process is told when the session ends.
LAST: Final = b"last\n"
#: How long the end of a session waits for the last look, seconds.
LAST_S: Final = 10.0

#: An alarm as data: what ``Finding.to_dict`` gives.
Alarm = dict[str, Any]


def wanted_alarms(alarms: bool | str | None) -> str | None:
    """Where alarms go, out of what ``start`` was given: a URL, a command, "" for nowhere, None where nobody wants any.

    Raises:
        InputError: It is none of these, or the command isn't there.

    >>> wanted_alarms("https://example.org/hook"), wanted_alarms(True), wanted_alarms(None)
    ('https://example.org/hook', '', None)
    """
    if alarms is None or isinstance(alarms, bool):
        return "" if alarms else None
    why = _wrong(alarms)
    if why:
        given = repr(alarms) if len(repr(alarms)) <= SHOWN else f"{alarms!r:.{SHOWN}}…"  # the rest may be a secret
        raise InputError(f"alarms: got {given}: {why}")
    return alarms


def alarms_of_the_environment() -> tuple[str | None, str]:
    """What the environment (:data:`VARIABLE`) asks for. A job isn't ended for a variable that is wrong.

    Returns:
        As :func:`wanted_alarms` gives it, and why it can't be had; "" otherwise. What the variable says isn't in that:
        it may hold a secret.
    """
    said = os.environ.get(VARIABLE, "").strip()
    if said.lower() in ("", "0", "off", "false"):
        return None, ""
    if said.lower() in ("1", "on", "true"):
        return "", ""
    why = _wrong(said)
    if not why:
        return said, ""
    why = f"{VARIABLE}: alarms of this run aren't looked for: {why}"
    _log.warning("%s", why)
    return None, why


def words_of(command: str) -> list[str]:
    """The words of a command, such as ``"cmd:mail -s alarm"``, by the rules of a shell; no shell reads them.

    Raises:
        ValueError: A quotation isn't closed.
    """
    return shlex.split(command.removeprefix(COMMAND))


def _wrong(alarms: Any) -> str:
    """Why alarms can't go there; "" where they can."""
    if not isinstance(alarms, str):
        return f"expected True, False, None, {_EXPECTED}"
    if not alarms.startswith(COMMAND):
        parts = urlsplit(alarms)
        there = parts.scheme in ("http", "https") and parts.netloc
        return "" if there else f"expected True, False, None, {_EXPECTED}"
    try:
        words = words_of(alarms)
    except ValueError as error:
        return f"the command can't be split into words: {error}"
    if not words:
        return "expected a command after 'cmd:'"
    return "" if shutil.which(words[0]) else f"there is no command {words[0]!r} here"


def alert(tracking: Tracking, alarm: Alarm) -> None:
    """Tell people through the backends that have a way to; see ``Tracking.alert``."""
    where, change = alarm.get("where") or {}, alarm.get("change") or {}
    rank = where.get("rank")
    who = where.get("process") if rank is None else f"rank {rank}"
    name = str(alarm.get("name", "")).replace("_", " ")
    said = [str(alarm.get("sentence", "")), str(change.get("advice") or "")]
    step = where.get("step")
    since = (alarm.get("since") or {}).get("step")
    text = visible(" ".join(one for one in said if one), lines=False)
    tracking.alert(f"{name} · {who}" if who else name, text, since if step is None else step)


class Alarms:
    """A process that watches the run in ``directory``, and a thread that hears it.

    Args:
        directory: The run directory.
        to: Where the process itself sends each alarm, as :func:`wanted_alarms` gives it; "" for nowhere.
    """

    def __init__(self, directory: Path, to: str = "") -> None:
        self._waiting: deque[Alarm] = deque(maxlen=100)
        self._callbacks: list[Callable[[Alarm], None]] = []
        self._pid = os.getpid()
        self._sends = bool(to)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        command = [sys.executable, "-P", "-m", "probe.publishing.watching", str(directory), "--parent", str(self._pid)]
        try:
            with _signals.kept_back():
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._errors,
                    # A URL is not for everybody's list of processes.
                    env=_MALLOC | child_environment(os.environ) | {GO_TO: to},
                )
        except OSError:
            self._errors.close()
            raise
        self._thread = threading.Thread(target=self._listen, name="probe-alarms", daemon=True)
        self._thread.start()

    def add(self, callback: Callable[[Alarm], None]) -> None:
        """Call it with each alarm that comes from now on."""
        failed = "a callback of on_alarm failed, and isn't called again"
        self._callbacks.append(Guard("on_alarm", failed, tell=None, most=1, log=_log)(callback))

    def hand_on(self) -> None:
        """Call who asked, with what has come; on the writer's thread. What they raise is logged, once each."""
        while self._waiting:
            alarm = self._waiting.popleft()
            for callback in list(self._callbacks):
                callback(alarm)

    def finish(self, timeout_s: float = LAST_S) -> None:
        """The session ends: one last look, what it finds is handed on, and the process ends. One that sends, and takes
        longer on a busy machine, ends by itself after it.
        """
        if os.getpid() != self._pid:  # a fork of the training
            return
        with contextlib.suppress(OSError, ValueError):
            if self._process.stdin is not None:
                self._process.stdin.write(LAST)
                self._process.stdin.flush()
        self._thread.join(timeout_s)
        if self._thread.is_alive() and self._sends:
            self.hand_on()
            return
        if self._thread.is_alive():
            self._process.kill()
            self._thread.join(1.0)
        self._process.wait()
        for pipe in (self._process.stdin, self._errors):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self.hand_on()

    def _listen(self) -> None:
        pipe = self._process.stdout
        if pipe is None:
            return
        with silenced(), pipe:
            for line in iter(pipe.readline, b""):
                try:
                    alarm = json.loads(line)
                except ValueError:
                    continue
                if FAILED in alarm:
                    _log.warning("alarms may be missing: %s", visible(str(alarm[FAILED]), lines=False))
                    continue
                _log.warning("%s", visible(str(alarm.get("sentence", "")), lines=False))
                self._waiting.append(alarm)
