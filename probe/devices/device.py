"""What a device is: its counters of memory, and the interface that all of them have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple


class Counters(NamedTuple):
    """Memory of one device at one moment, in bytes; None is unknown.

    The peaks are since they were last reset. ``used_bytes`` is what all processes use of the device together, and
    ``process_used_bytes`` what this one does, as the driver counts it. ``alloc_retries`` counts the allocations that
    failed until the allocator had given its cache back.
    """

    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    used_bytes: int | None = None
    total_bytes: int | None = None
    process_used_bytes: int | None = None
    alloc_retries: int | None = None


UNKNOWN: Final = Counters()


class Statistics(NamedTuple):
    """Where others read and reset the allocator's statistics of one device: two functions of one namespace.

    ``namespace.<read>(index)`` returns nested dicts such as
    ``{"allocated_bytes": {"all": {"current": 0, "peak": 0}}}``, and ``namespace.<reset>(index)`` sets every
    ``"peak"`` to its ``"current"``. Every public reader of torch looks them up there when it is called:
    this is the one place where peaks can be folded back.
    """

    namespace: Any
    read: str
    reset: str
    device_index: int


class Device(ABC):
    """One device. Reading takes microseconds and never waits for the device.

    Attributes:
        source: One of ``"cuda"``, ``"accelerator"``, ``"process_rss"`` and ``"fake"``.
        unsure: What a peak that did not rise in a scope is: ``"at_most"`` where the counter may show an older peak,
            ``"at_least"`` where only the values seen are known.
    """

    source: str = ""
    unsure: str = "at_most"

    @property
    @abstractmethod
    def name(self) -> str:
        """Such as ``"cuda:0"`` or ``"cpu"``."""

    @property
    @abstractmethod
    def description(self) -> str:
        """What a person calls it, such as the name of the GPU."""

    @abstractmethod
    def read(self, *, whole: bool = False) -> Counters:
        """Read the counters as they are now.

        Args:
            whole: Whether the driver is asked too, for ``used_bytes`` and ``total_bytes``, which takes longer.
        """

    def bind(self) -> bool:
        """Whether there is anything to read yet. Called by the thread that trains: a device that was named
        without an index becomes that thread's current one, as soon as the trainer uses it."""
        return True

    @property
    def bound(self) -> bool:
        """What :meth:`bind` last answered."""
        return True

    def statistics(self) -> tuple[Statistics, ...]:
        """Through which functions others read the statistics; empty where the peaks must not be reset."""
        return ()

    def event(self) -> Any | None:
        """A timing event recorded on the current stream, or None where there is no such thing."""
        return None

    def done(self, event: Any) -> bool:
        """Whether the device has come to the event. Any thread may ask; it does not wait."""
        del event  # there is none to ask
        return True

    def elapsed_ns(self, begin: Any, end: Any) -> int | None:
        """Device time between two events; None while one isn't done, and where it can't be known.

        Args:
            begin: The event before the work.
            end: The event after the work.
        """
        del begin, end  # there is nothing to measure
        return None

    def recycle(self, *events: Any) -> None:
        """Take back events that nobody needs any longer."""
        del events  # not every device can use them again

    def watch_out_of_memory(self, observer: Callable[[], None], entries: int) -> bool:
        """Call ``observer`` in the thread that asks for more memory than there is, before that is raised, and remember
        from now on what allocated what.

        Args:
            observer: It must not raise.
            entries: How many allocations and frees are remembered at most.

        Returns:
            Whether this device can, and does from now on.
        """
        del observer, entries  # this device can't
        return False

    def ignore_out_of_memory(self, observer: Callable[[], None]) -> None:
        """End what :meth:`watch_out_of_memory` has begun."""
        del observer  # it can't watch

    def label_allocations(self, text: str) -> None:
        """What is allocated from now on is called so in :meth:`snapshot`."""
        del text  # not every device has snapshots

    def snapshot(self) -> dict[str, Any]:
        """What is allocated, in the form of ``torch.cuda.memory._snapshot``."""
        return {"segments": [], "device_traces": []}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def counters_of(statistics: Mapping[str, Any]) -> Counters:
    """Counters from the nested statistics of torch's caching allocator; unknown when they are empty.

    >>> counters_of({"allocated_bytes": {"all": {"current": 5, "peak": 7}}})[:4]
    (5, None, 7, None)
    """
    if not statistics:
        return UNKNOWN
    allocated = statistics.get("allocated_bytes", {}).get("all", {})
    reserved = statistics.get("reserved_bytes", {}).get("all", {})
    return Counters(
        allocated.get("current"),
        reserved.get("current"),
        allocated.get("peak"),
        reserved.get("peak"),
        alloc_retries=statistics.get("num_alloc_retries"),
    )
