"""Finding a run, for ``probe.open`` and the commands: by its directory, its URL, or a directory that holds runs."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from probe.errors import InputError, InputTypeError, RunError, RunNotFoundError
from probe.guard import raised_as
from probe.redaction import without_secrets

#: How far below the directory a run may lie: ``./runs/<project>/<experiment>``.
DEEPEST: Final = 3

#: The folder in which tracking keeps what waits to be sent.
TRACKING: Final = "tracking"

#: Directories that are looked into. Who asks for "/" is told so instead of waiting.
MOST: Final = 5_000


def find_given(path: str | os.PathLike[str], *, rollouts: str | os.PathLike[str] | None = None) -> str:
    """As :func:`find_run`, of what a caller has given as ``path``, whatever it is.

    Args:
        path: A directory or a URL.
        rollouts: Where verl's rollout dumps are, for what others wrote.

    Raises:
        RunNotFoundError: There is nothing, or no run in it.
        InputTypeError: ``path`` is neither text nor a path.
        InputError: ``path`` is empty or no kind of URL that is known.
        RunError: The store can't be read.
    """
    if not isinstance(path, str | os.PathLike):
        raise InputTypeError(f"path: got {path!r}, expected a run directory, its URL, or a directory that holds runs")
    return find_run(os.fspath(path), rollouts=rollouts)


def find_run(
    text: str,
    *,
    argument: str = "path",
    tell: Callable[[str], None] | None = None,
    rollouts: str | os.PathLike[str] | None = None,
) -> str:
    """The run that ``text`` means, as an absolute path or a URL.

    A directory that isn't a run but holds some, at most three levels down, means the one that began last. Names that
    begin with a dot are passed over. Where there is none, a run is made of what others wrote
    (:mod:`probe.runs.foreign`).

    Args:
        text: A directory or a URL.
        argument: What errors call it.
        tell: Is told in a sentence which of several runs is taken.
        rollouts: Where verl's rollout dumps are, for what others wrote.

    Raises:
        RunNotFoundError: There is nothing, or no run in it.
        InputError: An empty text, or no kind of URL that is known.
        RunError: The store can't be read.
    """
    from probe.runs.layout import INFO_NAME

    if not text:
        raise InputError(f"{argument}: got an empty text, expected a run directory or the directory above")
    files, root = _opened(text, argument)
    with _asking(text, argument):
        if files.exists(_below(root, INFO_NAME)):
            return _location(files, root)
        if not files.exists(root):
            raise RunNotFoundError(
                f"{argument}: there is nothing at {_shown(text)!r}; check the spelling and the working directory"
            )
        is_directory = files.isdir(root)
        found = list(_runs_below(files, root, text, argument)) if is_directory else []
        if not found and _is_local(files):
            made = _of_others(Path(root), rollouts, tell)
            if made is not None:
                return made
        if not is_directory:
            raise RunNotFoundError(
                f"{argument}: {_shown(text)!r} is a file, expected a run directory or a directory that holds runs"
            )
        newest = _newest(files, found, text, argument)
    location = _location(files, newest)
    if tell is not None:
        tell(f"{_shown(text)} holds {len(found)} run{'s' * (len(found) > 1)}; taking {location}")
    return location


def _asking(text: str, argument: str) -> raised_as:
    """A block in which what a store raises is a RunError: each has errors of its own, most of them no OSError."""
    return raised_as(
        lambda error: RunError(f"{argument}: {_shown(text)!r} can't be read: {type(error).__name__}: {error}")
    )


def _of_others(root: Path, rollouts: str | os.PathLike[str] | None, tell: Callable[[str], None] | None) -> str | None:
    """The run that is made of what others wrote at ``root``; None where there is nothing of theirs."""
    from probe.runs.foreign import read, readable_below

    places = readable_below(root, DEEPEST) if root.is_dir() else [root]
    chosen = max(places, key=lambda one: one.stat().st_mtime_ns, default=None)
    made = None if chosen is None else read(chosen, None if rollouts is None else Path(rollouts))
    if made is not None and tell is not None:
        tell(f"{chosen} was not written by probe; what it doesn't record is shown as missing")
    return None if made is None else str(made)


def runs_below(text: str, *, argument: str = "path") -> list[str]:
    """Every run at or below ``text``, at most three levels down, as absolute paths or URLs; sorted by level and name.

    Args:
        text: A directory or a URL.
        argument: What errors call it.

    Raises:
        RunNotFoundError: There is nothing.
        InputError: An empty text, or no kind of URL that is known.
        RunError: The store can't be read.
    """
    from probe.runs.layout import INFO_NAME

    files, root = _opened(text, argument)
    with _asking(text, argument):
        if files.exists(_below(root, INFO_NAME)):
            return [_location(files, root)]
        if not files.isdir(root):
            raise RunNotFoundError(f"{argument}: there is no directory at {_shown(text)!r}")
        found = [_location(files, one) for one in _runs_below(files, root, text, argument)]
        return found if found or not _is_local(files) else _all_of_others(Path(root))


def _all_of_others(root: Path) -> list[str]:
    """The runs that are made of what others wrote at ``root`` and below it."""
    from probe.runs.foreign import read, readable_below

    return [str(made) for one in readable_below(root, DEEPEST) if (made := read(one)) is not None]


def _shown(text: str) -> str:
    """As errors call it: a URL without the secrets in it."""
    return str(without_secrets(text, True)) if "://" in text else text


def _opened(text: str, argument: str) -> tuple[Any, str]:
    from probe.runs.place import system_of  # fsspec takes a moment to load

    with raised_as(lambda error: InputError(f"{argument}: {_shown(text)!r} can't be opened: {error}"), but=()):
        files, root = system_of(text)  # an unknown protocol, a missing package, a client's own refusal
    return files, str(Path(root).absolute()) if _is_local(files) else root.rstrip("/")


def _is_local(files: Any) -> bool:
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(files, LocalFileSystem)


def _location(files: Any, root: str) -> str:
    return root if _is_local(files) else str(files.unstrip_protocol(root))


def _below(root: str, name: str) -> str:
    return f"{root.rstrip('/')}/{name}"


def _runs_below(files: Any, root: str, text: str, argument: str) -> Iterator[str]:
    """The run directories below ``root``, the upper ones first; there is no run inside a run."""
    from probe.runs.layout import INFO_NAME

    level, listed = [root], 0
    for depth in range(DEEPEST + 1):
        deeper: list[str] = []
        for directory in level:
            listed += 1
            if listed > MOST:
                raise RunNotFoundError(
                    f"{argument}: {_shown(text)!r} holds more than {MOST:,} directories, "
                    "expected a directory nearer the run"
                )
            entries = _entries(files, directory)
            names = {name for name, _ in entries}
            if posixpath.basename(directory) == TRACKING and "lock" in names:
                continue  # what tracking knows of a run, which has a run.json of its own
            if depth and INFO_NAME in names:
                yield directory
            else:
                deeper += [_below(directory, name) for name, is_directory in entries if is_directory]
        level = deeper


def _entries(files: Any, directory: str) -> list[tuple[str, bool]]:
    """Name of each entry, and whether it is a directory; sorted."""
    try:
        listed = files.ls(directory, detail=True)
    except PermissionError:
        return []  # somebody else's directory between ours
    names = [(posixpath.basename(one["name"].rstrip("/")), one["type"] == "directory") for one in listed]
    return sorted((name, kind) for name, kind in names if name and not name.startswith("."))


class _Begun(msgspec.Struct):
    wall_ns: int = 0


def _newest(files: Any, found: list[str], text: str, argument: str) -> str:
    """The one whose ``run.json`` tells the latest beginning; of equals the last by name."""
    from probe.runs.layout import INFO_NAME

    begun: list[tuple[int, str]] = []
    for root in found:
        try:  # not many at once, which would take the name for a pattern
            data = files.cat_file(_below(root, INFO_NAME))
            begun.append((msgspec.json.decode(data, type=_Begun).wall_ns, root))
        except (FileNotFoundError, PermissionError, msgspec.MsgspecError, UnicodeDecodeError):
            continue  # unreadable: whoever names that run gets its error
    if not begun:
        raise RunNotFoundError(
            f"{argument}: there is no run in {_shown(text)!r}, nor up to {DEEPEST} directories below; "
            "expected a run directory such as runs/<project>/<experiment>"
        )
    return max(begun)[1]
