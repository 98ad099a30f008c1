"""Alarms that leave the run: by a POST, or by a command of the user's."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from probe._io import FileLock
from probe.hooks import SWITCH
from probe.publishing.alarms import COMMAND, GO_TO, words_of
from probe.runs.layout import RUN_DIR_VARIABLE as RUN_DIR
from probe.text import visible

#: A post that isn't answered within so many seconds is given up.
POST_S: Final = 5.0
#: A command that hasn't ended within so many seconds is killed, with what it has started.
COMMAND_S: Final = 10.0
#: What of a command's standard error is told where it fails, characters.
_SAID: Final = 200

#: The watching process takes no notice of signals to the whole job; a command is to have them as it expects.
_AS_EXPECTED: Final = """import os, signal, sys
for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"):
    if hasattr(signal, name):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
try:
    os.execvp(sys.argv[1], sys.argv[1:])
except OSError as error:
    sys.exit(f"{sys.argv[1]}: {error.strerror}")
"""


class Sender:
    """Sends alarms to one place. Of several processes that watch a run, and send to the same place, one does.

    Args:
        to: A URL, or a command that gets JSON on its standard input; "" for nowhere.
        directory: The run directory.

    Attributes:
        failed: What was wrong with sending, each thing once.
    """

    def __init__(self, to: str, directory: Path) -> None:
        self.failed: list[str] = []
        self._to = to
        self._directory = directory
        self._lock: FileLock | None = None
        self._held = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is not None:
            self._lock.release()

    def send(self, what: Mapping[str, Any]) -> None:
        """Send it, where there is a place and nobody else does. It never raises."""
        if not self._to or not self._is_ours():
            return
        data = json.dumps(what, default=str).encode()
        why = run_command(self._to, data) if self._to.startswith(COMMAND) else post(self._to, data)
        if why and why not in self.failed:
            self.failed.append(why)

    def _is_ours(self) -> bool:
        if not self._held:
            key = hashlib.sha256(self._to.encode()).hexdigest()[:12]
            self._lock = self._lock or FileLock(self._directory / f"alarms-{key}.lock")
            try:
                self._held = self._lock.acquire()
            except OSError:  # a directory that can't be written to any more: rather twice than never
                return True
        return self._held


def post(url: str, data: bytes) -> str:
    """Post JSON.

    Args:
        url: Where to.
        data: The JSON.

    Returns:
        "", or why it wasn't taken; without the URL, which may hold a secret.
    """
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", "User-Agent": "probe"})  # noqa: S310  (checked at start)
    try:
        with urllib.request.urlopen(request, timeout=POST_S):  # noqa: S310  (likewise)
            return ""
    except (OSError, ValueError, HTTPException) as error:  # an answer that isn't 2xx is one, too
        code = getattr(error, "code", None)
        return f"the URL of alarms took none: {type(error).__name__ if code is None else f'it answered {code}'}"


def run_command(command: str, data: bytes) -> str:
    """Run a command with JSON on its standard input, without a shell. What it prints is nobody's.

    It begins at the directory where the training began, in a session of its own, and records nothing itself.

    Args:
        command: Such as ``"cmd:mail -s alarm me@example.org"``.
        data: The JSON.

    Returns:
        "", or what was wrong.
    """
    environ = {name: value for name, value in os.environ.items() if name not in (GO_TO, RUN_DIR)}
    line = [sys.executable, "-I", "-S", "-c", _AS_EXPECTED, *words_of(command)]
    with tempfile.TemporaryFile() as errors:  # a pipe would be waited for as long as anybody has it
        try:
            process = subprocess.Popen(  # the user's own, at their wish
                line,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=environ | {SWITCH: "off"},
                start_new_session=True,
            )
        except OSError as error:
            return f"the command of alarms can't be started: {error.strerror}"
        try:
            process.communicate(data, timeout=COMMAND_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"the command of alarms took longer than {COMMAND_S:.0f} s, and was killed"
        errors.seek(0)
        said = errors.read().decode(errors="replace")
    if process.returncode == 0:
        return ""
    last = said.strip().rpartition("\n")[2]
    why = f": {visible(last[:_SAID], lines=False)}" if last else ""
    return f"the command of alarms ended with {process.returncode}{why}"
