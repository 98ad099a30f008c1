"""Who a process is to the people at a Jupyter server: a kernel of theirs, a part of a run, the server, or another one.

Only what the system tells of a process is said. Of another user's that is its name and whose it is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import psutil

#: Processes of one holder that are told one by one, the largest.
MOST_PROCESSES: Final = 20

#: What a process that uses a GPU has open: the driver's devices, on Linux and under WSL.
_DEVICES: Final = ("/dev/nvidia", "/dev/dxg")


class Holders:
    """Says of processes who they are.

    Args:
        kernels: As :func:`probe.jupyter.kernels.kernels` gives them.
        server: The process id of the Jupyter server.
        here: By process id what runs have on this machine: ``run``, ``who`` and ``role``.
        name: What a path of this machine is called in the file browser.
    """

    def __init__(
        self,
        kernels: Sequence[Mapping[str, Any]],
        server: int,
        here: Mapping[int, Mapping[str, Any]],
        name: Callable[[Path], str] = str,
    ) -> None:
        self._kernels = {int(one["pid"]): one for one in kernels}
        self._server = server
        self._here = here
        self._named_as = name

    def on_gpu(self, used: Iterable[tuple[int, int | None]]) -> list[dict[str, Any]]:
        """Who holds memory of a GPU.

        Args:
            used: Of each process that the driver lists its id and bytes, None where those aren't known.

        Returns:
            As :meth:`resident`.
        """
        return self._grouped((self._who(pid, _uses_gpu), pid, size) for pid, size in used)

    def resident(self) -> list[dict[str, Any]]:
        """What the kernels, the processes of runs, and the children of both have in memory (RSS).

        Returns:
            One entry a holder, the largest first: ``what``, one of "kernel", "run", "left" (a process that a kernel
            began, and that isn't below it any more), "server", "process" and "stranger" (which this system doesn't
            know); ``bytes`` of all its processes, None where they aren't known; ``processes``, at most
            :data:`MOST_PROCESSES` with ``pid``, ``bytes`` and, of a child, its ``name``; ``count`` of all of them;
            ``kernel`` with ``id``, ``name``, ``state``, ``since_s`` (when it was heard of last, seconds since the
            epoch) and ``sessions``; ``run`` with ``run``, ``who`` and ``role``; ``name`` and ``user`` of another
            process; and ``path`` of the notebook of a "left" one. What isn't known is None.
        """
        below = _below([*self._kernels, *self._here])
        return self._grouped((self._who(pid), pid, size) for pid in below if (size := _resident_bytes(pid)))

    # ------------------------------------------------------------------------------------------------- inside

    def _who(self, pid: int, fits: Callable[[int], bool | None] = lambda _: None) -> dict[str, Any]:
        told: dict[str, Any] = dict.fromkeys(("kernel", "run", "name", "user", "path"))
        try:
            process = psutil.Process(pid)
            if fits(pid) is False:  # the driver counts by the host's ids, and this is another process
                return {**told, "what": "stranger"}
            line = [pid, *(one.pid for one in process.parents())]
            return {**told, **self._named(process, line)}
        except psutil.Error:
            return {**told, "what": "stranger"}

    def _named(self, process: psutil.Process, line: Sequence[int]) -> dict[str, Any]:
        """Raises:
        psutil.Error: It has ended, or nobody may look at it.
        """
        kernel = next((self._kernels[one] for one in line if one in self._kernels), None)
        run = next((self._here[one] for one in line if one in self._here), None)
        if kernel is not None or run is not None:
            what = "run" if kernel is None else "kernel"
            return {"what": what, "kernel": None if kernel is None else _kernel(kernel), "run": run}
        if process.pid == self._server:
            return {"what": "server"}
        if not _is_mine(process):
            return {"what": "process", "name": process.name(), "user": process.username()}
        path = self._began_in(process)
        return {"what": "left" if path else "process", "name": _command(process), "path": path}

    def _began_in(self, process: psutil.Process) -> str | None:
        """The notebook whose kernel began a process that has another parent by now, as after a kernel's restart."""
        environment = process.environ()
        if environment.get("JPY_PARENT_PID") != str(self._server):
            return None
        path = environment.get("JPY_SESSION_NAME")
        return self._named_as(Path(path)) if path else None

    def _grouped(self, found: Iterable[tuple[dict[str, Any], int, int | None]]) -> list[dict[str, Any]]:
        holders: dict[Any, dict[str, Any]] = {}
        for who, pid, size in found:
            kernel, run = who["kernel"] or {}, who["run"] or {}
            alone = pid if who["what"] in ("process", "stranger") else None
            key = who["what"], kernel.get("id"), run.get("run"), run.get("who"), who["path"], alone
            holder = holders.setdefault(key, {**who, "bytes": None, "processes": []})
            name = None if pid in self._kernels or pid in self._here else _name(pid)
            holder["processes"].append({"pid": pid, "bytes": size, "name": name})
            if size is not None:
                holder["bytes"] = size + (holder["bytes"] or 0)
        for holder in holders.values():
            holder["count"] = len(holder["processes"])
            holder["processes"] = sorted(holder["processes"], key=_size, reverse=True)[:MOST_PROCESSES]
        return sorted(holders.values(), key=_size, reverse=True)


def _size(one: Mapping[str, Any]) -> int:
    return -1 if one["bytes"] is None else int(one["bytes"])


def _kernel(told: Mapping[str, Any]) -> dict[str, Any]:
    try:
        since_s = datetime.fromisoformat(told["last"]).timestamp()
    except ValueError:
        since_s = None
    return {**{name: told[name] for name in ("id", "name", "state", "sessions")}, "since_s": since_s}


def _below(roots: Iterable[int]) -> list[int]:
    """Some processes and all their children, in one pass over all that the system has."""
    children: dict[int, list[int]] = {}
    for one in psutil.process_iter(["ppid"]):
        children.setdefault(one.info["ppid"] or 0, []).append(one.pid)
    found: list[int] = []
    waiting, seen = list(roots), set[int]()
    while waiting:
        pid = waiting.pop()
        if pid not in seen:
            seen.add(pid)
            found.append(pid)
            waiting += children.get(pid, [])
    return found


def _resident_bytes(pid: int) -> int | None:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return None


def _uses_gpu(pid: int) -> bool | None:
    """Whether a process has a device of the driver's open; None where nobody may look."""
    if sys.platform != "linux":
        return None
    try:
        with os.scandir(f"/proc/{pid}/fd") as opened:
            return any(any(device in _target(one.path) for device in _DEVICES) for one in opened)
    except OSError:
        return None


def _target(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115 - of thousands, and no path is made of it
    except OSError:  # closed meanwhile
        return ""


def _is_mine(process: psutil.Process) -> bool:
    return hasattr(os, "getuid") and process.uids().real == os.getuid()


def _name(pid: int) -> str | None:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return None


def _command(process: psutil.Process) -> str:
    """A process's name, and of an interpreter the script or module; no other argument, as those may hold secrets.

    Raises:
        psutil.Error: It has ended.
    """
    name, line = process.name(), process.cmdline()
    if not name.startswith("python") or len(line) < 2:
        return name
    for at, word in enumerate(line[1:], 1):
        if word == "-m" and at + 1 < len(line):
            return f"{name} -m {line[at + 1]}"
        if word == "-c":
            return name
        if not word.startswith("-"):
            return f"{name} {Path(word).name}"
    return name
