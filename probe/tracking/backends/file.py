"""Metrics as lines of JSON."""

from __future__ import annotations

import io
import json
import os
import time
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

from probe.errors import BackendError
from probe.tracking.backends.base import Backend, Setup, wall_ns_of
from probe.tracking.media import KINDS, Medium, strict
from probe.tracking.reach import unwritable

#: The file in a run's directory.
METRICS: Final = "metrics.jsonl"

#: How far back a call is looked for that a killed process may have written: megabytes hold thousands of them.
_TAIL_BYTES: Final = 16 * 2**20


class File(Backend):
    """Appends ``{"step": 3, "data": {"loss": 0.5}, "wall_ns": …}`` a call; nothing is ever truncated.

    What JSON has no number for is one of the strings ``"NaN"``, ``"Infinity"``, ``"-Infinity"``: every strict
    reader takes the file, and ``float("Infinity")``, ``::DOUBLE`` in DuckDB and ``Number`` in JavaScript take
    the string.

    The file is ``PROBE_FILE_LOGGER_PATH``, or ``VERL_FILE_LOGGER_PATH``, else ``metrics.jsonl`` in the run's
    directory, else ``{project}/{experiment}.jsonl`` under ``VERL_FILE_LOGGER_ROOT`` (by default the working
    directory).

    What is said of the run is a line whose ``parameters``, ``description`` or ``tags`` hold it; the last one counts.

    Raises:
        BackendError: The file can't be written.
    """

    shows = KINDS
    places: ClassVar = {"params": "a line", "describe": "a line", "tag": "a line"}
    status = False
    reopens = True

    def __init__(self, setup: Setup) -> None:
        self._path = _path(setup)
        self._last_step = 0
        self.location = str(self._path)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered and appending: a line is one write, so that lines of several processes don't mix.
            opener = partial(os.open, mode=0o600 if setup.private else 0o666)
            self._file = io.FileIO(self._path, "ab", opener=opener)
            if setup.private:  # it may have been there before
                os.fchmod(self._file.fileno(), 0o600)
            self._torn = not _ends_in_newline(self._path)
        except OSError as error:
            raise BackendError(f"backend 'file' can't write {self._path}: {error}") from error

    @classmethod
    def reach(cls, directory: Path | None) -> tuple[str, str]:
        """Whether the file can be written."""
        return "writable", unwritable(_path(Setup("project", "experiment", directory, lambda *_: None)))

    def log(self, values: dict[str, float], step: int) -> None:
        """Append one line."""
        self._last_step = step
        wall_ns = wall_ns_of(values)
        self._write({"step": step, "data": values, "wall_ns": wall_ns})

    def show(self, name: str, medium: Medium, step: int, wall_ns: int) -> None:
        """Append one line whose ``media`` holds what it is by its name; pictures are base64."""
        self._write({"step": step, "data": {}, "media": {name: medium.plain()}, "wall_ns": wall_ns})

    def params(self, parameters: dict[str, Any]) -> None:
        """Append one line."""
        self._say("parameters", parameters)

    def describe(self, markdown: str) -> None:
        """Append one line."""
        self._say("description", markdown)

    def tag(self, tags: dict[str, str]) -> None:
        """Append one line."""
        self._say("tags", tags)

    def _say(self, what: str, content: Any) -> None:
        self._write({"step": self._last_step, "data": {}, what: content, "wall_ns": time.time_ns()})

    def missing(self, values: dict[str, float], step: int) -> dict[str, float]:
        """None, where the end of the file holds the same call: its step and its time."""
        wall_ns = wall_ns_of(values)
        with self._path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            for line in file.read().splitlines():
                found = _line(line)
                if found.get("wall_ns") == wall_ns and found.get("step") == step and "media" not in found:
                    return {}
        return values

    def _write(self, line: dict[str, Any]) -> None:
        plain = strict(line)
        text = json.dumps(plain, ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace") + b"\n"
        if self._torn:  # a process that was killed, or a full disk, left half a line
            text = b"\n" + text
        self._torn = True
        written = self._file.write(text)
        if written != len(text):
            raise OSError(f"only {written} of {len(text)} bytes fitted into {self._path}")
        self._torn = False

    def close(self, exit_code: int) -> None:
        """Close the file."""
        del exit_code  # a file has no status
        self._file.close()


def _line(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:  # half a line
        return {}
    return found if isinstance(found, dict) else {}


def _own(path: Path, setup: Setup) -> Path:
    """``metrics.attempt-2.jsonl`` beside ``metrics.jsonl`` for a second attempt."""
    return path.with_suffix(f".{setup.suffix}{path.suffix}") if setup.suffix else path


def _path(setup: Setup) -> Path:
    named = os.environ.get("PROBE_FILE_LOGGER_PATH") or os.environ.get("VERL_FILE_LOGGER_PATH")
    if named:
        return _own(Path(named).absolute(), setup)
    if setup.directory is not None:
        return _own(setup.directory / METRICS, setup)
    root = os.environ.get("VERL_FILE_LOGGER_ROOT") or "."
    return Path(root, setup.project, f"{setup.experiment}.jsonl").absolute()


def _ends_in_newline(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
