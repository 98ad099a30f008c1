"""Finds run directories below the roots, again and again, without ever holding anybody up.

A home directory may have millions of files. It is walked level by level, the nearest first, at most so deep and so many
entries; folders that hold packages, not work, are passed over. A walk that took long is repeated later.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from probe.jupyter.roots import Roots

#: Levels below a root.
DEEPEST: Final = 6

#: Entries that one walk looks at.
MOST_ENTRIES: Final = 100_000

#: What walking may take of the time.
SHARE: Final = 0.02

#: Seconds between two walks, at least and at most.
SOONEST_S: Final = 2.0
LATEST_S: Final = 60.0

#: A run.json that is larger is taken for probe's without a look.
_MOST_BYTES: Final = 16 << 20

_PASSED_OVER: Final = frozenset({"node_modules", "site-packages", "__pycache__", "answers", "failures", "lost+found"})


class Search:
    """Run directories below some roots.

    Args:
        roots: Where.

    Attributes:
        cut: Whether the last walk ended at :data:`MOST_ENTRIES`, so that there may be more runs.
    """

    def __init__(self, roots: Roots) -> None:
        self.cut = False
        self._roots = roots
        self._found: list[Path] = []
        self._next = 0.0
        self._ours: dict[Path, tuple[int, int, bool]] = {}

    def runs(self) -> list[Path]:
        """The run directories, as of a walk that isn't too old; those that are gone are left out."""
        begun = time.monotonic()
        if begun >= self._next:
            self._found = self._walk()
            took_s = time.monotonic() - begun
            self._next = time.monotonic() + min(max(took_s / SHARE, SOONEST_S), LATEST_S)
        elif self._found:
            # A training that has begun beside those that are known is seen at once.
            beside = {one.parent for one in self._found}
            known = set(self._found)
            more = [
                path for place in sorted(beside) for path in _below(place) if path not in known and self._is_run(path)
            ]
            self._found = [one for one in [*self._found, *more] if self._is_run(one)]
        return list(self._found)

    def _walk(self) -> list[Path]:
        found: list[Path] = []
        level, entries = list(self._roots.places), 0
        seen = set(level)
        self.cut = False
        for _ in range(DEEPEST + 1):
            deeper: list[Path] = []
            for place in level:
                if self._is_run(place):
                    found.append(place)
                    continue  # there is no run inside a run
                if (place / "pyvenv.cfg").is_file():
                    continue
                for one in _below(place):
                    entries += 1
                    if one not in seen:
                        seen.add(one)
                        deeper.append(one)
                if entries > MOST_ENTRIES:
                    self.cut = True
                    return found
            level = deeper
        return found

    def _is_run(self, place: Path) -> bool:
        """Whether there is a run.json that isn't another tool's. A changed one is read again."""
        path = place / "run.json"
        try:
            seen = path.stat()
            if not path.is_file():
                return False
            known = self._ours.get(place)
            if known is None or known[:2] != (seen.st_mtime_ns, seen.st_size):
                ours = seen.st_size > _MOST_BYTES or is_ours(path.read_bytes()) or (place / "parts").is_dir()
                known = self._ours[place] = seen.st_mtime_ns, seen.st_size, ours
            return known[2]
        except OSError:
            return path.is_file()


def is_ours(content: bytes) -> bool:
    """Whether a run.json may be probe's: it has what probe always writes, or it is torn and nobody can say. A schema
    version alone says nothing: other tools' files have one, too.

    Args:
        content: Of the file.

    >>> is_ours(b'{"schema_version": 2, "project": "p"}'), is_ours(b'{"schema_vers'), is_ours(b'{"schema_version": 2}')
    (True, True, False)
    """
    try:
        told = json.loads(content)
    except ValueError:
        return True
    known = told if isinstance(told, dict) else {}
    return type(known.get("schema_version")) is int and "project" in known


def _below(place: Path) -> Iterator[Path]:
    """The directories in ``place``: neither links nor hidden ones."""
    try:
        with os.scandir(place) as entries:
            for one in entries:
                if one.name.startswith(".") or one.name in _PASSED_OVER:
                    continue
                if one.is_dir(follow_symlinks=False):
                    yield Path(one.path)
    except OSError:  # gone, or not ours to read
        return
