"""What a backend remembers in the run's directory, so that the next process goes on with the same run."""

from __future__ import annotations

import json
import math
import re
import time
from pathlib import Path
from typing import Any, Final

from probe._io import write_atomically

#: Folder of the run's directory in which tracking keeps its own things.
FOLDER: Final = "tracking"
#: Folder of the run's directory in which each attempt has a folder.
ATTEMPTS: Final = "attempts"
#: How often the newest step is noted, seconds.
NOTE_S: Final = 30.0


def home_of(directory: Path, attempt: int) -> Path:
    """Where tracking keeps what it knows of one attempt: each is a run of its own to the backends.

    Args:
        directory: Of the run.
        attempt: Its number; see ``probe.runs.attempts``.

    Returns:
        The run's directory for the first, a folder in it for a later one.

    >>> home_of(Path("run"), 1).as_posix(), home_of(Path("run"), 2).as_posix()
    ('run', 'run/attempts/2')
    """
    return directory if attempt == 1 else directory / ATTEMPTS / str(attempt)


def homes(directory: Path) -> dict[int, Path]:
    """:func:`home_of` for each attempt that something was tracked of, in order."""
    later = (int(one.name) for one in (directory / ATTEMPTS).glob("*") if one.name.isdecimal())
    found = {attempt: home_of(directory, attempt) for attempt in sorted({1, *later})}
    return {attempt: home for attempt, home in found.items() if (home / FOLDER).is_dir()}


class State:
    """A small JSON object in a file, replaced as a whole.

    Args:
        directory: The directory of the run; None remembers nothing.
        name: The name of the backend.
        private: Whether the file is for its owner alone.
    """

    def __init__(self, directory: Path | None, name: str, *, private: bool = False) -> None:
        self._private = private
        self._path = None if directory is None else directory / FOLDER / f"{name}.json"

    def read(self) -> dict[str, Any]:
        """What was written last; empty where nothing can be read."""
        if self._path is None:
            return {}
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def write(self, content: dict[str, Any]) -> bool:
        """Replace it. False where the directory can't be written: the run then can't be resumed by itself."""
        if self._path is None:
            return False
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, json.dumps(content).encode(), private=self._private)
        except OSError:
            return False
        return True


class LastStep:
    """The newest step of a run, for the next process that goes on with it; noted now and then.

    Attributes:
        before: That of the process before; None where there was none, and once it has been looked at.
    """

    def __init__(self, directory: Path | None) -> None:
        self._state = State(directory, "steps")
        found = self._state.read().get("last")
        self.before: int | None = found if isinstance(found, int) else None
        self._last = -1 if self.before is None else self.before
        self._noted_at = -math.inf

    def see(self, step: int) -> int | None:
        """Take a step; the one that the process before had come to, where this one is the first and lies before it."""
        before, self.before = self.before, None
        if step > self._last:
            self._last = step
            if time.monotonic() - self._noted_at > NOTE_S:
                self.note()
        return before if before is not None and step < before else None

    def note(self) -> None:
        """Write it."""
        self._noted_at = time.monotonic()
        self._state.write({"last": self._last})


def file_name(backend: str) -> str:
    """A backend's name, or its dotted path, as part of a file's name; :func:`backend_name` turns it back."""
    return re.sub(r"[^A-Za-z0-9_.-]", lambda found: f"%{ord(found[0]):06x}", backend)


def backend_name(name: str) -> str:
    """
    >>> backend_name(file_name("a.b:C")), file_name("a.b:C")
    ('a.b:C', 'a.b%00003aC')
    """
    return re.sub(r"%([0-9a-f]{6})", lambda found: chr(int(found[1], 16)), name)
