"""What the list of runs tells of each: its name, whether it is live, its step, and the worst that was found in it."""

from __future__ import annotations

import contextlib
import heapq
import os
import time
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from probe.errors import ProbeError
from probe.records import who
from probe.runs.files import RunFiles
from probe.runs.layout import PARTS_NAME, segment_of
from probe.runs.liveness import all_gone
from probe.runs.now import Now, now

#: A process that is there writes its heartbeat about twice a second; after so many seconds without one it is silent.
SILENT_S: Final = 15.0

#: Files of a run without heartbeats whose last rows are read, those that grew last; and bytes at either end of each.
MOST_FILES: Final = 8
ROW_BYTES: Final = 16 * 1024


def describe(path: Path, name: str) -> dict[str, Any]:
    """What is known of a run from its small files alone, whatever its size.

    Args:
        path: The run directory.
        name: What the list calls it.

    Returns:
        ``run`` (the name), ``directory`` (its whole path), ``project``, ``experiment``, ``started_s`` (seconds since
        the epoch), ``state``, one of "live", "finished", "failed", "killed", "silent" and "unknown", ``since_s``
        (when it ended, or was heard of last), ``step`` (in which it is; None between steps or where that isn't known),
        ``processes``, ``ended`` (how many of them have, None where that isn't known), ``error`` (why it can't be read,
        else None), and ``here``, as :func:`here` gives it.
    """
    told: dict[str, Any] = {
        "run": name,
        "directory": str(path),
        "project": "",
        "experiment": path.name,
        "started_s": None,
        "state": "unknown",
        "since_s": None,
        "step": None,
        "processes": None,
        "ended": None,
        "error": None,
        "here": {},
    }
    try:
        files = RunFiles(path)
        info = files.info()
        told |= {
            "project": info.project,
            "experiment": info.experiment or path.name,
            "started_s": info.wall_ns / 1e9 if info.wall_ns else None,
        }
        processes = now(files)
        if processes:
            ended = sum(one.closed or one.alive is False for one in processes)
            told |= {"processes": len(processes), "ended": ended, "here": here(processes), **state(processes)}
        else:  # of an older probe, or a directory that takes no such file: its files tell
            told |= _by_files(path, files)
    except (ProbeError, OSError) as error:
        told["error"] = str(error)
    return told


def here(processes: list[Now]) -> dict[int, dict[str, Any]]:
    """Those processes of a run that are there on this machine, by their ids: also one that records no more.

    Args:
        processes: Of its newest attempt.

    >>> here([Now(process="rank-00002", rank=2, attempt=1, alive=True, pid=77, role="actor")])
    {77: {'who': 'rank 2', 'role': 'actor'}}
    """
    return {one.pid: {"who": who(one.rank, one.process), "role": one.role} for one in processes if one.alive}


def state(processes: list[Now], at_s: float | None = None) -> dict[str, Any]:
    """Whether a run is live, by its processes.

    Args:
        processes: Of its newest attempt.
        at_s: Now, seconds since the epoch; None is the clock's time.

    >>> state([Now(process="a", rank=0, attempt=1, closed=True, ended_ns=5 * 10**9)])
    {'state': 'finished', 'since_s': 5.0, 'step': None}
    >>> state([Now(process="a", rank=0, attempt=1, alive=False, heartbeat_ns=5 * 10**9)])["state"]
    'killed'
    """
    at_s = time.time() if at_s is None else at_s
    steps = [scope.step for one in processes for scope in one.scopes if scope.step is not None]
    step = max(steps, default=None)
    ended = max((one.ended_ns for one in processes if one.ended_ns), default=None)
    heard = [one.heartbeat_ns for one in processes if one.heartbeat_ns]
    last = max([*heard, *([ended] if ended else [])], default=None)
    since_s = None if last is None else last / 1e9
    if not processes:
        return {"state": "unknown", "since_s": None, "step": None}
    if any(one.failed for one in processes):
        return {"state": "failed", "since_s": since_s, "step": step}
    if all(one.closed for one in processes):
        return {"state": "finished", "since_s": None if ended is None else ended / 1e9, "step": step}
    left = [one for one in processes if not one.closed]
    if all(one.alive is False for one in left):  # none of them said that it ended
        return {"state": "killed", "since_s": since_s, "step": step}
    fresh = any(one.heartbeat_ns and at_s - one.heartbeat_ns / 1e9 < SILENT_S for one in left if one.alive is not False)
    return {"state": "live" if fresh else "silent", "since_s": since_s, "step": step}


def _by_files(path: Path, files: RunFiles) -> dict[str, Any]:
    """What its files tell; a run without a file that is written to has ended.

    A copied file has the time of the copy, so the times of rows count where they can be read, as in the run's panel.
    """
    written: list[tuple[float, Path]] = []
    newest = 0.0
    for place in (path, path / PARTS_NAME):
        with contextlib.suppress(FileNotFoundError), os.scandir(place) as entries:
            for one in entries:
                if one.name.endswith((".jsonl", ".parquet")) and one.is_file():
                    newest = max(newest, one.stat().st_mtime)
                    if segment_of(one.name) is not None:
                        written.append((one.stat().st_mtime, Path(one.path)))
    if not newest:
        return {}
    if not written:
        return {"state": "finished", "since_s": newest}
    of_rows = [_newest_row_s(one) for _, one in heapq.nlargest(MOST_FILES, written)]
    since_s = max((one for one in of_rows if one is not None), default=newest)
    if len(written) <= MOST_FILES and all_gone(files):
        return {"state": "killed", "since_s": since_s}
    return {"state": "live" if time.time() - since_s < SILENT_S else "silent", "since_s": since_s}


_Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]  # whatever a damaged file holds, it is no time


class _Times(msgspec.Struct):
    """Of a row."""

    time_ns: _Nanoseconds = 0
    wall_ns: _Nanoseconds = 0  #: only the first row of a file has it


def _newest_row_s(path: Path) -> float | None:
    """When the newest of a file's last rows was written, seconds since the epoch by the clock of who wrote it. None
    where its first row, by which times are told, or its last ones can't be read in :data:`ROW_BYTES`.
    """
    with contextlib.suppress(OSError), path.open("rb") as file:
        head = file.read(ROW_BYTES)
        first = _times(head.partition(b"\n")[0])
        if first is None or not first.wall_ns:
            return None
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - ROW_BYTES, 0))
        # The last line may be half written, and the first one is half read.
        told = [_times(line) for line in file.read(ROW_BYTES).split(b"\n")]
        newest_ns = max((one.time_ns for one in told if one is not None), default=None)
        return None if newest_ns is None else (newest_ns - first.time_ns + first.wall_ns) / 1e9
    return None


def _times(line: bytes) -> _Times | None:
    try:
        return msgspec.json.decode(line, type=_Times)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
