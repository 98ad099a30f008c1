"""What the list of runs tells of each: its name, whether it is live, its step, and the worst that was found in it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from probe.errors import ProbeError
from probe.records import who
from probe.runs.files import RunFiles
from probe.runs.now import Now, now

#: A process that is there writes its heartbeat about twice a second; after so many seconds without one it is silent.
SILENT_S: Final = 15.0


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
            told |= _by_files(path)
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


def _by_files(path: Path) -> dict[str, Any]:
    """What the times of its files tell; a run without a file that is written to has ended."""
    newest, open_files = 0.0, False
    for one in path.iterdir():
        if one.suffix in (".jsonl", ".parquet") and one.is_file():
            newest = max(newest, one.stat().st_mtime)
            open_files = open_files or one.suffix == ".jsonl"
    if not newest:
        return {}
    if not open_files:
        return {"state": "finished", "since_s": newest}
    return {"state": "live" if time.time() - newest < SILENT_S else "silent", "since_s": newest}
