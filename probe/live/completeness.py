"""Which step is complete: it has ended on every process that is alive in it. Views follow the last complete step.

The newest step has begun on the fastest rank only: a comparison of ranks in it compares one with itself. A process that
has ended, that is gone, or that has said nothing for longer than its own longest step and :data:`GRACE_S` isn't waited
for, and is named. A process without a rank counts as itself, from its first step on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

#: Seconds beyond its own longest step that a process may be silent and is still waited for.
GRACE_S: Final = 10.0


@dataclass(slots=True)
class Progress:
    """How far one process has come. Times are seconds since the run's start.

    Attributes:
        name: Of the process.
        rank: None where it has none.
        begun: The newest step whose scope has begun, −1 before the first.
        ended: The newest step whose scope has ended, −1 before the first.
        seen: The newest step of any of its rows, −1 before the first.
        longest_s: How long its longest step took.
        heard_s: When its newest row came.
        stepped_s: When the newest of its rows that belong to a step came; when it began, before the first.
        replaced: Whether another process has begun in its place.
    """

    name: str
    rank: int | None
    begun: int = -1
    ended: int = -1
    seen: int = -1
    longest_s: float = 0.0
    heard_s: float = -math.inf
    stepped_s: float = -math.inf
    replaced: bool = False

    @property
    def last_s(self) -> float:
        """When it was heard of: by any row inside a step, between steps by a row of a step alone."""
        return self.heard_s if max(self.begun, self.seen) > self.ended else self.stepped_s

    def is_silent(self, now_s: float) -> bool:
        """Whether it has said nothing for longer than it ever needed for a step."""
        return now_s - self.last_s > self.longest_s + GRACE_S


class Missing(NamedTuple):
    """A process that took part in steps and isn't waited for.

    Attributes:
        process: Its name.
        rank: None where it has none.
        since_s: When it was last heard of, in seconds since the run's start.
        why: "ended", "gone" (without an end) or "silent".
    """

    process: str
    rank: int | None
    since_s: float
    why: str


class Standing(NamedTuple):
    """How far a run has come.

    Attributes:
        step: The last step that is complete, None before the first.
        missing: Who isn't waited for though others go on.
    """

    step: int | None
    missing: tuple[Missing, ...] = ()


def standing_of(
    processes: Iterable[Progress], now_s: float, states: Mapping[str, str], *, finished: bool = False
) -> Standing:
    """The last complete step of a run, and who isn't waited for.

    Args:
        processes: All of the run.
        now_s: Seconds since the run's start.
        states: By process what is known of it: those that have "ended" or are "gone" are no longer waited for.
        finished: Whether all processes have ended properly: then each step that has ended is complete.

    Returns:
        Where nobody goes on and nobody has ended the run, it is judged as of its newest row.
    """
    known = list(processes)
    stepping = [one for one in known if one.begun >= 0]
    if finished:
        return Standing(_step(max((one.ended for one in stepping), default=-1)))
    over = {name: state for name, state in states.items() if state in ("ended", "gone")}
    present = [one for one in known if not one.replaced and one.name not in over]
    # Who has a rank and has just begun to write will soon begin its first step.
    counted = [one for one in present if (one.begun >= 0 or one.rank is not None) and not one.is_silent(now_s)]
    if any(one.begun >= 0 for one in counted):
        waited = {one.name for one in counted}
        left = [one for one in stepping if one.name not in waited and not one.replaced]
        missing = (Missing(one.name, one.rank, one.last_s, over.get(one.name, "silent")) for one in left)
        return Standing(_step(min(one.ended for one in counted)), tuple(missing))
    last_s = max((one.heard_s for one in stepping), default=now_s)
    at_last = [one for one in stepping if not one.is_silent(last_s)] or stepping
    return Standing(_step(min((one.ended for one in at_last), default=-1)))


def _step(number: int) -> int | None:
    return None if number < 0 else number


class Completeness:
    """How far each process of a run has come, learnt from its rows."""

    def __init__(self) -> None:
        self._known: dict[str, Progress] = {}
        self._places: dict[int | str, str] = {}  # by rank, or by name, the process that began last

    def __iter__(self) -> Iterator[Progress]:
        return iter(self._known.values())

    @property
    def has_steps(self) -> bool:
        """Whether any process has begun a step."""
        return any(one.begun >= 0 for one in self)

    def begin(self, process: str, rank: int | None, at_s: float) -> None:
        """A process begins to write, or says again who it is.

        Args:
            process: Its name.
            rank: None where it has none.
            at_s: When, in seconds since the run's start; NaN where that isn't known.
        """
        one = self._progress(process)
        one.rank = rank
        one.heard_s, one.stepped_s = (_later(before, at_s) for before in (one.heard_s, one.stepped_s))
        place = process if rank is None else rank
        before = self._places.get(place)
        if before is not None and before != process:
            self._known[before].replaced = True
        self._places[place] = process

    def hear(self, process: str, at_s: float, step: int | None = None) -> None:
        """A row of a process came.

        Args:
            process: Its name.
            at_s: When, in seconds since the run's start; NaN where that isn't known.
            step: The row's step, where it has one.
        """
        one = self._progress(process)
        one.heard_s = _later(one.heard_s, at_s)
        if step is not None:
            one.seen = max(one.seen, step)
            one.stepped_s = _later(one.stepped_s, at_s)

    def note_step(self, process: str, step: int, begin_s: float, end_s: float) -> None:
        """The scope of a step has begun, or ended.

        Args:
            process: Its name.
            step: The step.
            begin_s: When it began; NaN where that isn't known.
            end_s: When it ended; NaN while it hasn't.
        """
        one = self._progress(process)
        one.begun = max(one.begun, step)
        if not math.isnan(end_s):
            one.ended = max(one.ended, step)
            one.longest_s = _later(one.longest_s, end_s - begin_s)

    def _progress(self, process: str) -> Progress:
        found = self._known.get(process)
        if found is None:
            found = self._known[process] = Progress(process, None)
        return found


def quiet_since(processes: Iterable[Progress], time_s: float) -> Sequence[Progress]:
    """The processes that nothing was heard of since ``time_s`` and whose place nobody has."""
    return [one for one in processes if one.heard_s < time_s and not one.replaced]


def _later(one: float, other: float) -> float:
    """The larger one; the first where the other is NaN."""
    return max(one, other)
