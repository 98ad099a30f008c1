"""The directories in which runs are looked for, and below which alone anything is read."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from probe.errors import InputError, RunNotFoundError
from probe.runs.links import all_within, within


class Roots:
    """Directories of this machine; the first one is the Jupyter server's own.

    Args:
        places: Paths; relative ones are below the first. One that doesn't exist (yet) is allowed, and one that is no
            path at all, as people may write it into their settings. An empty one is passed over.

    Attributes:
        places: The directories, without links.
        unusable: What is no path: a home of nobody, or a NUL in it.

    Raises:
        InputError: There is none, or the first is no path.
    """

    def __init__(self, places: Iterable[str | os.PathLike[str]]) -> None:
        given, found = list(places), list[Path]()
        self.unusable: list[str] = []
        for one in given:
            try:
                if os.fspath(one).strip():
                    found.append(Path(os.path.realpath(Path(*found[:1]) / Path(one).expanduser())))
            except (RuntimeError, ValueError):
                if not found:
                    break
                self.unusable.append(os.fspath(one))
        self.places: list[Path] = list(dict.fromkeys(found))
        if not self.places:
            raise InputError(f"places: got {given!r}, expected a directory first")

    def name(self, path: Path) -> str:
        """What a run is called: its path below the first root, as the file browser shows it; else its whole path."""
        first = self.places[0]
        return path.relative_to(first).as_posix() if path.is_relative_to(first) else str(path)

    def resolve(self, name: str) -> Path:
        """The directory that a name means.

        Args:
            name: As :meth:`name` gives it.

        Returns:
            Its path without links.

        Raises:
            RunNotFoundError: It isn't below a root, leads out of it by a link, or isn't there. Which of these it is
                isn't said, so that nobody learns what lies elsewhere.
        """
        refused = RunNotFoundError(f"run: there is no run {name!r} below the directories that are shown")
        if not isinstance(name, str) or "\0" in name:
            raise refused
        try:
            path = Path(os.path.realpath(self.places[0] / name))
        except (OSError, ValueError) as error:
            raise refused from error
        try:
            fits = self.holds(path) and (path / "run.json").is_file() and self.holds_all(path)
        except OSError as error:
            raise refused from error
        if not fits:
            raise refused
        return path

    def holds(self, path: Path) -> bool:
        """Whether a path without links is a root, or below one.

        Args:
            path: Of this machine.
        """
        return within(path, self.places)

    def holds_all(self, directory: Path) -> bool:
        """Whether no link below a directory leads out of the roots. One with too many entries isn't trusted.

        Args:
            directory: That is looked through.

        Raises:
            OSError: It can't be read.
        """
        return all_within(directory, self.places)
