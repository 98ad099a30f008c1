"""Links that lead out of the directories that may be read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

#: Entries of a directory that are looked at for links.
MOST_ENTRIES: Final = 200_000


def within(path: Path, places: Sequence[Path]) -> bool:
    """Whether a path is one of some directories, or below one.

    Args:
        path: Without links.
        places: Directories, without links.
    """
    return any(path.is_relative_to(one) for one in places)


def all_within(directory: Path, places: Sequence[Path]) -> bool:
    """Whether no link below a directory leads out of some others. One with too many entries isn't trusted.

    Args:
        directory: That is looked through.
        places: Directories, without links.

    Raises:
        OSError: It can't be read.
    """
    seen, waiting = 0, [directory]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for one in entries:
                seen += 1
                if seen > MOST_ENTRIES:
                    return False
                if one.is_symlink() and not within(Path(os.path.realpath(one.path)), places):
                    return False
                if one.is_dir(follow_symlinks=False):
                    waiting.append(Path(one.path))
    return True
