"""Which checkpoints there are: the tracker, the newest complete one, and the old ones that may go.

Read from the directories themselves, so that a restarted training knows what an earlier one has written.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from probe._check import whole_number
from probe._io import write_atomically
from probe.core.checkpoint.files import (
    INCOMPLETE,
    MANIFEST,
    REPLACED,
    SHARDS,
    Manifest,
    discard,
    foreign_files,
    is_complete,
    is_there,
    settle,
    staging_of,
)
from probe.errors import InputError, SerializationError
from probe.hooks import emit, observed, point

TRACKER: Final = "latest_checkpointed_iteration.txt"

#: Told once for each checkpoint that retention has removed.
REMOVED = point("checkpoint.removed", "retention removed an old checkpoint; carries path")

_log = logging.getLogger("probe.checkpoint")


def get_checkpoint_tracker_filename(root_path: str | os.PathLike[str]) -> str:
    """The file under ``root_path`` that holds the step of the latest checkpoint.

    >>> get_checkpoint_tracker_filename("ckpt")
    'ckpt/latest_checkpointed_iteration.txt'
    """
    return os.path.join(root_path, TRACKER)  # noqa: PTH118  (the documented result is a string as given)


def update_checkpoint_tracker(root_path: str | os.PathLike[str], global_step: int) -> None:
    """Say that ``global_step`` is the latest checkpoint under ``root_path``; atomic, on the disk when it returns.

    For trainers that save several parts of one step (``global_step_7/actor``, ``global_step_7/critic``): call it
    when all are saved.

    Args:
        root_path: The directory with the checkpoints of all steps.
        global_step: The step of the latest checkpoint, a whole number from 0.

    Raises:
        InputTypeError: ``global_step`` is not a whole number.
        OSError: It can't be written; the old content is still there.
    """
    step = whole_number("global_step", global_step)
    write_atomically(
        Path(get_checkpoint_tracker_filename(root_path)), str(step).encode(), unique=False, sync_folder=True
    )


@observed("checkpoint.find_latest_ckpt_path", "a search for the latest complete checkpoint; result its path or None")
def find_latest_ckpt_path(path: str | os.PathLike[str] | None, directory_format: str = "global_step_{}") -> str | None:
    """The most recent complete checkpoint, by the tracker file.

    Args:
        path: Directory with the tracker and the checkpoints. None gives None.
        directory_format: Name of a checkpoint's directory, with one placeholder for its step.

    Returns:
        ``{path}/{directory}``; None where the tracker is missing, or the directory that it names. Where the tracker
        can't be read, or what it names isn't complete, the newest complete one that is there, with a warning in the
        log.

    Raises:
        InputError: ``directory_format`` hasn't one placeholder.

    >>> find_latest_ckpt_path(None) is None
    True
    """
    pattern = _pattern(directory_format)
    if path is None:
        return None
    root = Path(path)
    tracker = root / TRACKER
    try:
        content = tracker.read_text(errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        _log.info("%s: there is no tracker file, so no checkpoint is found", tracker)
        return None
    except OSError as error:
        _log.warning("%s: can't be read (%s); looking for the newest complete checkpoint", tracker, error)
        return _newest(root, pattern)
    if not re.fullmatch(r"[0-9]{1,18}", content):
        _log.warning("%s: got %r, expected a step; looking for the newest complete checkpoint", tracker, content[:80])
        return _newest(root, pattern)
    return _tracked(root, root / directory_format.format(int(content)), pattern)


def _tracked(root: Path, named: Path, pattern: re.Pattern[str]) -> str | None:
    with suppress(OSError):  # a read-only disk can't be settled, but can be read
        settle(named)
    if not named.is_dir():
        _log.warning(
            "%s: the tracker file names it, but it doesn't exist; the newest complete checkpoint is %s",
            named,
            _newest(root, pattern),
        )
        return None
    if is_complete(named) or _is_foreign(named):
        return str(named)
    found = _newest(root, pattern)
    _log.warning("%s: the tracker file names it, but it isn't complete; taking %s", named, found)
    return found


def _is_foreign(directory: Path) -> bool:
    """Whether nothing in it is ours: only the tracker can vouch for it, and does."""
    if (directory / MANIFEST).exists():
        return False
    inner = [path for path in directory.iterdir() if path.is_dir()]
    ours = any((path / MANIFEST).exists() or path.name.endswith((INCOMPLETE, REPLACED)) for path in inner)
    return not ours and not (directory / SHARDS).is_dir()


def _newest(root: Path, pattern: re.Pattern[str]) -> str | None:
    steps = {int(match[1]): path for path in _children(root) if (match := pattern.fullmatch(path.name))}
    return next((str(steps[step]) for step in sorted(steps, reverse=True) if is_complete(steps[step])), None)


def _children(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _pattern(directory_format: str) -> re.Pattern[str]:
    pieces = re.split(r"\{[^{}]*\}", directory_format) if isinstance(directory_format, str) else []
    if len(pieces) != 2:
        raise InputError(
            f"directory_format: got {directory_format!r}, expected one placeholder, as in 'global_step_{{}}'"
        )
    return re.compile(re.escape(pieces[0]) + r"(\d{1,18})" + re.escape(pieces[1]))


# ----------------------------------------------------------------------------------------------------------- retention


@dataclass(frozen=True)
class Place:
    """A checkpoint's path, taken apart: ``{root}/{prefix}{step}{suffix}/{rest}``; ``rest`` may be empty."""

    root: Path
    prefix: str
    suffix: str
    rest: Path

    @classmethod
    def from_path(cls, path: Path, global_step: int) -> Place | None:
        """The place of ``path``; None where no part of the path names the step.

        >>> Place.from_path(Path("ckpt/global_step_7/actor"), 7)
        Place(root=PosixPath('ckpt'), prefix='global_step_', suffix='', rest=PosixPath('actor'))
        """
        for part, rest in ((path, Path()), (path.parent, Path(path.name))):
            for match in re.finditer(r"\d+", part.name):
                if int(match[0]) == global_step:
                    return cls(part.parent, part.name[: match.start()], part.name[match.end() :], rest)
        return None

    @property
    def flat(self) -> bool:
        """Whether the step's directory is the checkpoint itself, so that nothing else belongs to the step."""
        return not self.rest.parts

    def siblings(self) -> dict[Path, int]:
        """The same part of every step that is there, complete or not, and the step."""
        name = re.compile(re.escape(self.prefix) + r"(\d{1,18})" + re.escape(self.suffix))
        matches = ((path, name.fullmatch(path.name)) for path in _children(self.root))
        return {path / self.rest: int(match[1]) for path, match in matches if match}

    def saved_last_ns(self) -> int:
        """When the latest checkpoint of this place was saved, by its own manifest; 0 where there is none."""
        return max((found for path in self.siblings() if (found := _saved_ns(path)) is not None), default=0)

    def has_all_parts(self, step: int) -> bool:
        """Whether a step is complete, and has every part that the one before it has.

        Args:
            step: Whose directory is there.
        """
        steps = {number: path for path, number in Place(self.root, self.prefix, self.suffix, Path()).siblings().items()}
        before = max((number for number in steps if number < step and is_complete(steps[number])), default=None)
        wanted = set() if before is None else _parts(steps[before])
        return is_complete(steps[step]) and wanted <= _parts(steps[step])

    def leftovers(self) -> list[Path]:
        """What interrupted saves and removals of the same part have left."""
        if not self.flat:
            return [aside for path in self.siblings() if is_there(aside := staging_of(path))]
        name = re.compile(re.escape(self.prefix) + r"\d{1,18}" + re.escape(self.suffix + INCOMPLETE))
        return [path for path in _children(self.root) if name.fullmatch(path.name)]


def _saved_ns(path: Path) -> int | None:
    with suppress(OSError, SerializationError):
        return Manifest.read(path).saved_at_ns
    return None


def _parts(step: Path) -> set[str]:
    return {path.name for path in _children(step) if (path / MANIFEST).exists()}


def written_checkpoints(place: Place) -> list[Path]:
    """Complete checkpoints of this place that probe wrote, oldest first."""
    found: list[tuple[int, int, Path]] = []
    for path, step in place.siblings().items():
        with suppress(OSError, SerializationError):  # without a manifest of ours it isn't ours to count or to remove
            manifest = Manifest.read(path)
            if manifest.global_step == step and is_complete(path):
                found.append((manifest.saved_at_ns, manifest.global_step, path))
    return [path for _, _, path in sorted(found)]


def prune(place: Place, newest: Path, keep: int) -> list[Path]:
    """Remove all but the ``keep`` newest complete checkpoints of ``place``, and what interrupted saves have left.

    Args:
        place: The directory and the pattern of the checkpoints' names.
        newest: The checkpoint that has just been written; it is always kept, whatever its time says.
        keep: How many stay, at least 1.

    Returns:
        Those that are left, oldest first. What can't be removed is named in the log and stays.
    """
    others = [path for path in written_checkpoints(place) if path != newest]
    going = others[: max(0, len(others) - (keep - 1))]
    for path in place.leftovers():
        remove(path)
    for path in going:
        remove(path, part=not place.flat)
    return [path for path in [*others, newest] if path.exists()]


def remove(path: Path, *, part: bool = False) -> None:
    """Remove a checkpoint, and the step's directory around it when it is empty then. A failure is logged.

    What others put into a checkpoint of ours stays: then only the files that its manifest lists are removed. Of one
    that is a link, or a part of a step whose directory is one, only the link goes.

    Args:
        path: The checkpoint.
        part: Whether it is a part of a step, whose directory is the one around it.
    """
    around = [path.parent] if part else []
    link = next((one for one in (path, *around) if one.is_symlink()), None)
    try:
        if link is not None:
            link.unlink()
        elif foreign_files(path):
            _remove_listed(path)
        else:
            _remove_whole(path)
    except OSError as error:
        _log.warning("%s: can't be removed: %s", path, error)
        return
    with suppress(OSError):  # the parent isn't empty: it holds what others wrote
        if re.search(r"\d", path.parent.name):
            path.parent.rmdir()
    if REMOVED.listeners and not path.name.endswith(INCOMPLETE):
        emit(REMOVED, path=str(path))


def _remove_whole(path: Path) -> None:
    aside = path
    if not path.name.endswith(INCOMPLETE):
        aside = staging_of(path)
        if is_there(aside):
            discard(aside)
        path.rename(aside)  # at once no longer a checkpoint: a crash in the middle leaves nothing that looks whole
    shutil.rmtree(aside)


def _remove_listed(path: Path) -> None:
    for name in Manifest.read(path).files:
        (path / name).unlink(missing_ok=True)
    (path / MANIFEST).unlink()
    for inner in sorted((one for one in path.rglob("*") if one.is_dir()), reverse=True):
        with suppress(OSError):  # not empty
            inner.rmdir()
