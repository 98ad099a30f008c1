"""Calls that are counted and not told one by one: of a function that runs once for every sample, many at a time."""

from __future__ import annotations

from typing import ClassVar

from probe.hooks import Event
from probe.recorders.recorder import Recorder
from probe.records import Row


class CountedCalls(Row, kw_only=True, tag="counted_calls"):
    """How often something ran in a step on one process, and for how long. Several rows of a step add up.

    Calls overlap, so that ``total_ns`` may be longer than the step. Times are the host's, and include waiting.
    """

    source: str  #: the function that measures it
    name: str  #: what it is called there, such as "generate_sequences"
    begin_ns: int = 0  #: of the first call, monotonic
    calls: int = 0  #: failed ones included
    failed: int = 0  #: that raised
    total_ns: int = 0  #: the sum of their durations
    smallest_ns: int = 0  #: duration of the shortest
    largest_ns: int = 0  #: duration of the longest
    moved_bytes: int | None = None  #: that the calls moved, together; None where their source doesn't tell
    moved_keys: int | None = None  #: keys of what they moved, likewise


class CountedCallsRecorder(Recorder):
    """A row for each kind of call that an adapter has counted, as soon as none of a step runs any more."""

    rows: ClassVar[tuple[type[Row], ...]] = (CountedCalls,)
    points: ClassVar[tuple[str, ...]] = ("calls.counted",)

    def fire(self, event: Event) -> CountedCalls:
        """The counts as they were told, in the step and phase that they were told for."""
        return CountedCalls(**event.values)
