"""The RUN that commands take: a run directory, an ``fsspec`` URL of one, or a directory that holds runs."""

from __future__ import annotations

import argparse
import posixpath
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from probe.errors import InputError, ProbeError, RunError, RunNotFoundError

#: What ``--help`` says of the argument.
RUN_HELP: Final = "a run directory, its fsspec URL, or a directory that holds runs (the newest is taken)"

#: How far below the directory a run may lie: ``./runs/<project>/<experiment>``.
DEEPEST: Final = 3

#: The folder in which tracking keeps what waits to be sent.
TRACKING: Final = "tracking"

#: Directories that are looked into. Who asks for "/" is told so instead of waiting.
MOST: Final = 5_000


def add_run(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """The positional argument RUN."""
    if optional:
        parser.add_argument("run_path", metavar="RUN", nargs="?", help=RUN_HELP)
    else:
        parser.add_argument("run_path", metavar="RUN", help=RUN_HELP)


def add_attempt(parser: argparse.ArgumentParser) -> None:
    """The option ``--attempt``."""
    about = (
        "one launch of a run that was launched more than once, alone and whole (of each step the newest that has it)"
    )
    parser.add_argument("--attempt", type=int, metavar="N", help=about)


def find_run(text: str) -> str:
    """The run that ``text`` means, as an absolute path or a URL.

    A directory that isn't a run but holds some, at most three levels down, means the one that began last; which
    that is, is said on standard error. Names that begin with a dot are passed over.

    Raises:
        RunNotFoundError: There is nothing, or no run in it.
        InputError: An empty text, or no kind of URL that is known.
        RunError: The store can't be read.
    """
    from probe.runs.layout import INFO_NAME

    if not text:
        raise InputError("RUN: got an empty text, expected a run directory or the directory above")
    files, root = _opened(text)
    try:
        if files.exists(_below(root, INFO_NAME)):
            return _location(files, root)
        if not files.exists(root):
            raise RunNotFoundError(f"RUN: there is nothing at {text!r}; check the spelling and the working directory")
        if not files.isdir(root):
            raise RunNotFoundError(f"RUN: {text!r} is a file, expected a run directory or a directory that holds runs")
        found = list(_runs_below(files, root, text))
        newest = _newest(files, found, text)
    except ProbeError:
        raise
    except Exception as error:  # isolation boundary: each store has its own errors, most of them no OSError
        raise RunError(f"RUN: {text!r} can't be read: {type(error).__name__}: {error}") from error
    location = _location(files, newest)
    print(f"probe: {text} holds {len(found)} run{'s' * (len(found) > 1)}; taking {location}", file=sys.stderr)
    return location


def _opened(text: str) -> tuple[Any, str]:
    import fsspec

    try:
        files, root = fsspec.core.url_to_fs(text)
    except Exception as error:  # isolation boundary: an unknown protocol, a missing package, a client's own refusal
        raise InputError(f"RUN: {text!r} can't be opened: {error}") from error
    return files, str(Path(root).absolute()) if _is_local(files) else root.rstrip("/")


def _is_local(files: Any) -> bool:
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(files, LocalFileSystem)


def _location(files: Any, root: str) -> str:
    return root if _is_local(files) else str(files.unstrip_protocol(root))


def _below(root: str, name: str) -> str:
    return f"{root.rstrip('/')}/{name}"


def _runs_below(files: Any, root: str, text: str) -> Iterator[str]:
    """The run directories below ``root``, the upper ones first; there is no run inside a run."""
    from probe.runs.layout import INFO_NAME

    level, listed = [root], 0
    for depth in range(DEEPEST + 1):
        deeper: list[str] = []
        for directory in level:
            listed += 1
            if listed > MOST:
                raise RunNotFoundError(
                    f"RUN: {text!r} holds more than {MOST:,} directories, expected one nearer the run"
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


def _newest(files: Any, found: list[str], text: str) -> str:
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
            f"RUN: there is no run in {text!r}, nor up to {DEEPEST} directories below; expected a run directory "
            f"such as runs/<project>/<experiment>"
        )
    return max(begun)[1]
