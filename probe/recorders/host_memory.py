"""The host_memory table: what a process holds of the machine's memory, and how near its container is to its limit.

The resident set says neither: it counts libraries, and the pages that a forked child still shares with its parent, in
each process anew, and the kernel kills by the container's limit, not by the machine's. What Linux knows better takes
it as long as there are pages: 12 ms were measured for a process of 2 GiB. So it is read by the session's writer
thread, and rarely. What torch has pinned for copies to and from an accelerator it says itself, by
``torch.cuda.host_memory_stats``; the kernel knows little of it.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Final

from probe.recorders.recorder import Recorder
from probe.records import HostMemory, Row

#: Seconds before the first look: what is over sooner needs none.
FIRST_S: Final = 10.0

#: Seconds between two looks, at least.
EVERY_S: Final = 30.0

#: The share of the time that looks may take.
SHARE: Final = 0.01

#: A limit above this is version 1's way of saying that there is none.
_NO_LIMIT: Final = 2**60

#: Fields of ``smaps_rollup`` that make up each of ours.
_MAPPED: Final = {
    "rss_bytes": ("Rss",),
    "pss_bytes": ("Pss",),
    "uss_bytes": ("Private_Clean", "Private_Dirty", "Private_Hugetlb"),
    "shared_bytes": ("Shared_Clean", "Shared_Dirty", "Shared_Hugetlb"),
    "shmem_bytes": ("Pss_Shmem",),
    "swapped_bytes": ("Swap",),
}


class HostMemoryRecorder(Recorder):
    """Writes a :class:`~probe.records.HostMemory` row every half minute, or more rarely where looks take longer than a
    hundredth of that.

    Args:
        root: The folder that holds ``proc`` and ``sys``.
        clock: Seconds, monotonic.
    """

    rows: ClassVar[tuple[type[Row], ...]] = (HostMemory,)

    def __init__(self, root: Path = Path("/"), clock: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._clock = clock
        self._due = clock() + FIRST_S

    def sample(self) -> HostMemory | None:
        begin = self._clock()
        if begin < self._due:
            return None
        row = look(self._root)
        if row is not None:
            row.torch_pinned_bytes, row.torch_pinned_active_bytes = pinned_by_torch()
        took = self._clock() - begin
        self._due = begin + max(EVERY_S, took / SHARE)
        return row


def look(root: Path = Path("/")) -> HostMemory | None:
    """Read it now.

    Args:
        root: The folder that holds ``proc`` and ``sys``.

    Returns:
        A row with what the system tells; None where it tells nothing, as any but Linux.

    >>> row = look()
    >>> row is None or row.uss_bytes is None or row.uss_bytes <= row.rss_bytes
    True
    """
    mapped, status = (_fields(root / "proc/self" / name) for name in ("smaps_rollup", "status"))
    row = HostMemory()
    for name, parts in _MAPPED.items():
        known = [mapped[part] for part in parts if part in mapped]
        setattr(row, name, sum(known) if known else None)
    if row.rss_bytes is None:  # kernels before 4.14 have no rollup
        row.rss_bytes, row.swapped_bytes = status.get("VmRSS"), status.get("VmSwap")
    held = [status[name] for name in ("VmLck", "VmPin") if name in status]
    row.pinned_bytes = max(held) if held else None  # pages may be both
    _take_cgroup(row, root)
    return row if any(value is not None for value in _values(row)) else None


def pinned_by_torch() -> tuple[int | None, int | None]:
    """The bytes that torch's allocator of pinned memory has, and those of it that are in use. Nothing waits for that.

    Returns:
        Both None in a process that doesn't use CUDA, and with a torch that doesn't count them.
    """
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    counted = getattr(cuda, "host_memory_stats_as_nested_dict", None)
    if counted is None:
        return None, None
    try:
        told = counted()  # empty before the first use of CUDA
        return told.get("allocated_bytes", {}).get("current"), told.get("active_bytes", {}).get("current")
    except (RuntimeError, AttributeError):  # a build without CUDA; a device that is lost
        return None, None


def _values(row: HostMemory) -> Iterator[int | None]:
    return (getattr(row, name) for name in HostMemory.__struct_fields__ if name.endswith("_bytes"))


def _fields(path: Path) -> dict[str, int]:
    """Lines such as ``Rss:  1024 kB`` as bytes."""
    found = {}
    for line in _text(path).splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if len(words) == 2 and words[1] == "kB" and words[0].isdigit():
            found[name] = int(words[0]) * 1024
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _take_cgroup(row: HostMemory, root: Path) -> None:
    """The tightest limit of the groups around the process, and what is used under it."""
    groups = _groups(root)
    limits = [(limit, folder) for folder in groups if (limit := _limit(folder)) is not None]
    folder = min(limits)[1] if limits else (groups[0] if groups else None)
    row.cgroup_limit_bytes = min(limits)[0] if limits else None
    if folder is not None:
        row.cgroup_used_bytes = _first(folder, "memory.current", "memory.usage_in_bytes")
        row.cgroup_reclaimable_bytes = _inactive_files(folder)


def _groups(root: Path) -> list[Path]:
    """Folders of the process's memory group and of those around it, the innermost first.

    A container mostly sees its own group as the root of the hierarchy, while the path is that on its host: then folders
    of the path aren't there, and the root is all there is.
    """
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        own = top / path.lstrip("/")
        around = [own, *own.parents]
        inside = around[: around.index(top) + 1] if top in around else [top]
        found = [folder for folder in inside if _first(folder, "memory.current", "memory.usage_in_bytes") is not None]
        found = found or [folder for folder in inside if _limit(folder) is not None]
        if found:
            return found
    return []


def _limit(folder: Path) -> int | None:
    value = _first(folder, "memory.max", "memory.limit_in_bytes")
    return None if value is None or value >= _NO_LIMIT else value


def _first(folder: Path, *names: str) -> int | None:
    """The number in the first of these files that has one; "max" is none."""
    for name in names:
        with contextlib.suppress(ValueError):
            return int(_text(folder / name))
    return None


def _inactive_files(folder: Path) -> int | None:
    for line in _text(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file") and value.strip().isdigit():
            return int(value)
    return None
