"""What a backend remembers in the run's directory, so that the next process goes on with the same run."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any, Final

#: Folder of the run's directory in which tracking keeps its own things.
FOLDER: Final = "tracking"


class State:
    """A small JSON object in a file, replaced as a whole.

    Args:
        directory: of the run; None remembers nothing. name: of the backend.
    """

    def __init__(self, directory: Path | None, name: str) -> None:
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
        aside = self._path.with_suffix(f".{os.getpid()}.part")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with aside.open("w", encoding="utf-8") as file:
                json.dump(content, file)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(self._path)
        except OSError:
            with contextlib.suppress(OSError):
                aside.unlink()
            return False
        return True
