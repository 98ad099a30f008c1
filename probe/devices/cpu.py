"""The CPU as a device: its memory is the resident set of the process."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import sys
import threading
import time
from typing import Any, Final

from probe.devices.device import UNKNOWN, Counters, Device

#: The module, where the system has it: Windows hasn't.
_resource: Any = importlib.import_module("resource") if importlib.util.find_spec("resource") else None

_clock: Final = time.monotonic_ns
getrusage: Any = getattr(_resource, "getrusage", None)
#: Of whom the mark is asked. Linux tells any thread that of the whole process, and a thread's usage needn't be added up
#: over all threads, which takes twice as long.
WHO: Final = getattr(_resource, "RUSAGE_THREAD", 0) if sys.platform == "linux" else 0
#: Where ``ru_maxrss`` stands among what ``getrusage`` returns: asked for by its place it takes half as long.
MARK: Final = 2
_MAXRSS_UNIT: Final = 1 if sys.platform == "darwin" else 1024

#: Readings of the resident set that lie closer together are one, nanoseconds. A page fault takes 0.1 µs at the least,
#: so that a few hundred pages can come or go meanwhile. The kernel itself counts no more exactly: each of its threads
#: or CPUs adds what it has counted to the sum only 32 or 64 pages at a time. A scope and the first in it share one.
SAME_NS: Final = 20_000


class CpuDevice(Device):
    """No accelerator: memory means the process's resident set (RSS), and allocated means resident."""

    source = "process_rss"
    unsure = "at_least"
    _last: Counters = UNKNOWN  # the same object as long as the numbers are the same
    _read_ns = -SAME_NS  # when they were read

    def __init__(self) -> None:
        import psutil  # now: a child that is forked while another thread imports it never gets the rest

        self._machine = psutil.virtual_memory

    @property
    def name(self) -> str:
        return "cpu"

    @property
    def description(self) -> str:
        return platform.processor() or platform.machine()

    def read(self, *, whole: bool = False) -> Counters:
        now = _clock()
        if now - self._read_ns < SAME_NS and not whole:
            return self._last
        resident = process_rss_bytes()
        peak = None if getrusage is None else getrusage(WHO).ru_maxrss * _MAXRSS_UNIT  # as _peak_rss_bytes
        if peak is not None and resident is not None and peak < resident:
            peak = resident  # the kernel brings its mark up to date late
        if not whole:
            last = self._last
            if last[0] != resident or last[2] != peak:
                self._last = last = Counters(resident, None, peak)
            self._read_ns = now
            return last
        machine = self._machine()
        return Counters(resident, None, peak, None, machine.total - machine.available, machine.total)


_ON_LINUX: Final = sys.platform.startswith("linux")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096

#: Whether the kernel's answers can be kept as they are, and made numbers of later (see :func:`counters_told`).
TELLS: Final = _ON_LINUX and getrusage is not None


def process_rss_bytes() -> int | None:
    """Resident set of this process, now. None where the system doesn't tell.

    >>> process_rss_bytes() > 1_000_000
    True
    """
    if not _ON_LINUX:
        return _psutil_rss()
    try:
        text = pread(kept.statm, STATM_BYTES, 0)
    except OSError:
        text = kept.reopen()
    return resident_bytes(text) if text else _psutil_rss()


def resident_bytes(text: bytes) -> int | None:
    """The resident set by the kernel's page counts, bytes. None where they aren't such counts.

    Args:
        text: What ``/proc/self/statm`` said.

    >>> resident_bytes(b"900 2 1 0 0 0 0") == 2 * _PAGE, resident_bytes(b"")
    (True, None)
    """
    global _told
    told = _told
    if told[0] != text:  # between two edges of scopes it mostly is the same
        try:
            told = _told = (text, int(text.split(None, 2)[1]) * _PAGE)
        except (IndexError, ValueError):
            kept.statm = -1  # somebody closed ours, and another file has its number
            return None
    return told[1]


def counters_told(text: bytes, mark: int) -> Counters:
    """The counters of what the kernel told.

    Args:
        text: What ``/proc/self/statm`` said.
        mark: What ``getrusage`` said as ``ru_maxrss``.
    """
    resident, peak = resident_bytes(text), mark * _MAXRSS_UNIT
    if resident is not None and peak < resident:
        peak = resident  # the kernel brings its mark up to date late
    return Counters(resident, None, peak)


pread: Any = getattr(os, "pread", None)

#: More than the seven counts of ``/proc/self/statm`` ever take.
STATM_BYTES: Final = 160

#: The kernel's page counts as they were read last, and the bytes that are resident by them.
_told: tuple[bytes, int] = (b"", 0)


class Kept:
    """The kernel's page counts of this process, kept open: opening costs four times as much as reading.

    Attributes:
        statm: Their descriptor; −1 is not open.
    """

    __slots__ = ("_lock", "statm")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """In a forked child: the parent's descriptor still tells of the parent."""
        self.statm = -1
        self._lock = threading.Lock()

    def reopen(self) -> bytes:
        """What the counts are, after a reading failed; nothing where they can't be read."""
        try:
            with self._lock:  # else two threads that begin together open two, and one is never closed
                try:
                    text: bytes = pread(self.statm, STATM_BYTES, 0)
                except OSError:
                    self.statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
                    text = pread(self.statm, STATM_BYTES, 0)
        except OSError:
            return b""
        return text


kept: Final = Kept()

if _ON_LINUX:
    os.register_at_fork(after_in_child=kept.forget)


def _psutil_rss() -> int | None:
    import psutil

    try:
        return int(psutil.Process().memory_info().rss)
    except psutil.Error:
        return None


def _peak_rss_bytes() -> int | None:
    """High-water mark of the resident set since the process began. ``/proc/self/clear_refs`` could reset it, but for
    everybody who reads it.

    It may have been inherited from the program that started this one, and then it only stands still for
    longer.
    """
    if getrusage is None:
        return None
    peak: int = getrusage(WHO).ru_maxrss
    return peak * _MAXRSS_UNIT
