"""Whether the processes that write a run are there, and may still write to its JSONL files."""

from __future__ import annotations

import contextlib
import platform
import time
from typing import Any, Final

import msgspec

from probe.records import Process
from probe.runs.files import RunFiles
from probe.runs.layout import Segment
from probe.runs.lines import decode

#: A file on another machine that has grown within this time belongs to somebody, whatever we are told.
QUIET_S: Final = 60.0

#: Bytes at the beginning of a file in which its first line ends.
_HEAD_BYTES: Final = 64 * 2**10


def why_alive(files: RunFiles, segment: Segment, *, force: bool) -> str | None:
    """Why a file must be left to its writer, None where nobody writes to it any more. (That it isn't locked has been
    seen already.)

    On this machine the writer's process id tells. Of another machine nothing can be known but when the file grew last:
    it is left alone unless ``force`` says that its process is gone.
    """
    process = writer_of(files, segment)
    if process is None:
        return "it has no first line yet"
    if process.host == platform.node() and files.local:
        return None if force or not _runs(process) else f"process {process.pid} is alive"
    age = _age_s(files, segment)
    if age is not None and age < QUIET_S:
        return f"it grew {age:.0f} s ago, on the machine {process.host}"
    return None if force else f"its process is of the machine {process.host}; force=True says that it is gone"


def writer_of(files: RunFiles, segment: Segment) -> Process | None:
    """Who writes a JSONL file, as its first line says; None where that isn't there yet.

    Raises:
        FileNotFoundError: The file has become Parquet meanwhile.
        RunError: It can't be read.
    """
    path = f"{files.root}/{segment.name}"
    with files.asking():
        head = bytes(files.system.cat_file(path, start=0, end=_HEAD_BYTES))
    line, newline, _ = head.partition(b"\n")
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
        row = decode(line) if newline else None
        return row if isinstance(row, Process) else None
    return None


def state_of(process: Process) -> str:
    """Whether a process is there: "running" or "gone"; "unknown" for one of another host, which can't be asked."""
    if process.host != platform.node() or not process.pid:
        return "unknown"
    return "running" if _runs(process) else "gone"


def all_gone(files: RunFiles) -> bool:
    """Whether a run has files that aren't closed, and none of the processes that wrote them is there any more, as far
    as that can be told: all of them were of this machine, and so are the files.

    Raises:
        RunError: The files can't be read.
    """
    segments = files.look()[0] if files.local else ()
    try:
        writers = [writer_of(files, one) for one in segments]
    except FileNotFoundError:  # rolled over meanwhile: somebody is there
        return False
    return bool(writers) and all(one is not None and state_of(one) == "gone" for one in writers)


def _runs(process: Process) -> bool:
    """Whether the very process that wrote the row is there: ids are used again, and a dead one keeps its until its
    parent has asked for it.
    """
    import psutil

    try:
        found = psutil.Process(process.pid)
        return bool(found.create_time() <= process.wall_ns / 1e9 + 1 and found.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:  # somebody else's process
        return True


def _age_s(files: RunFiles, segment: Segment) -> float | None:
    with files.asking():
        told: dict[str, Any] = files.system.info(f"{files.root}/{segment.name}")
    when: Any = told.get("mtime", told.get("LastModified"))
    if when is None:
        return None
    return time.time() - float(when.timestamp() if hasattr(when, "timestamp") else when)
