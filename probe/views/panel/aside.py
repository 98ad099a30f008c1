"""A process beside this one that is asked: a question is a line of JSON, and so is its answer."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from probe._io import child_environment

#: Seconds for the process to end by itself.
END_S: Final = 2.0


class Aside:
    """A process that is begun by the first question, and again by one that comes after :meth:`end`.

    Args:
        command: What to begin.
        job: What it does, as a sentence goes on after "the process that".
        **variables: Of its environment.

    Attributes:
        process: The process; None before the first question and after the end.
    """

    def __init__(self, command: Sequence[str], job: str, **variables: str) -> None:
        self.process: subprocess.Popen[str] | None = None
        self._command = command
        self._job = job
        self._variables = variables
        self._lock = threading.Lock()
        self._closed = False

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Ask, and wait for the answer. One thread at a time may ask.

        Args:
            question: What is plain JSON.

        Returns:
            The answer.

        Raises:
            OSError: The process can't be begun, has ended, or nobody may ask any more.
            ValueError: It answers with something else than a JSON object.
        """
        process = self._begun()
        if process.stdin is None or process.stdout is None:
            raise OSError(f"the process that {self._job} has no stdin or stdout")
        with contextlib.suppress(BrokenPipeError):  # it has ended, as it says by saying nothing
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise OSError(f"the process that {self._job} has ended ({_code(process)})")
        answer = json.loads(line)
        if not isinstance(answer, dict):
            raise ValueError(f"the process that {self._job} answered {line[:80]!r}, expected a JSON object")
        return answer

    def end(self) -> None:
        """End the process; by whoever asks."""
        with self._lock:
            process, self.process = self.process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            try:
                if pipe is not None:
                    pipe.close()
            except OSError:
                continue  # it couldn't take what was still to be written
        process.wait()

    def close(self) -> None:
        """Let nobody ask any more, and kill the process, also while it is asked: the question fails. By any thread."""
        self._closed = True
        with self._lock:
            if self.process is not None:
                self.process.kill()

    def _begun(self) -> subprocess.Popen[str]:
        with self._lock:
            if self._closed:
                raise OSError(f"the process that {self._job} was closed")
            if self.process is None:
                self.process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env=child_environment(os.environ) | {"PROBE": "off"} | self._variables,
                    text=True,
                    encoding="utf-8",
                    start_new_session=True,  # what interrupts a cell isn't meant for it
                )
            return self.process


def _code(process: subprocess.Popen[str]) -> str:
    """The exit code of a process that says no more."""
    try:
        return str(process.wait(END_S))
    except subprocess.TimeoutExpired:  # something holds it up: whoever asked waits no longer
        return f"it is still there {END_S:g} s later"
