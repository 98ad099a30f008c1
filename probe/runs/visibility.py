"""Which rows of a run are shown where it was launched more than once.

An attempt that begins at step s hides all rows of earlier ones from s on, not only those that it has repeated: of a
restart at step 0 the steps 0 to 10 are shown, and not yesterday's 11 to 59. A training that was resumed continues the
curve. A row without a step is as old as its attempt was then: it is hidden where it was written after the attempt had
come to that step. Nothing is ever added up over attempts.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from probe.records import Row


#: Before any time: rows that were written then are none.
NEVER_NS: Final = -(2**63)


class Visible(NamedTuple):
    """What is shown of one attempt.

    Attributes:
        attempt: Its number.
        before_step: Rows of smaller steps are shown; None is all.
        before_ns: Rows without a step are shown that were written before this wall-clock time; None is all.
    """

    attempt: int
    before_step: int | None = None
    before_ns: int | None = None

    def shows(self, step: int | None, wall_ns: int | None) -> bool:
        """Whether a row of the attempt is shown."""
        if step is not None:
            return self.before_step is None or step < self.before_step
        return self.before_ns is None or (wall_ns is not None and wall_ns < self.before_ns)


class Hidden(NamedTuple):
    """Steps of one attempt that a later one hides."""

    attempt: int
    first_step: int
    last_step: int


def sentence(hidden: Sequence[Hidden]) -> str:
    """What was recorded more than once, in one sentence; "" where nothing was.

    >>> sentence([Hidden(1, 0, 59)])
    'Steps 0 to 59 were recorded twice; the newest is shown.'
    >>> sentence([Hidden(1, 3, 3), Hidden(2, 3, 5)])
    'Steps 3 to 5 were recorded more than once, in attempts 1 and 2 too; the newest is shown.'
    """
    if not hidden:
        return ""
    first, last = min(one.first_step for one in hidden), max(one.last_step for one in hidden)
    steps = f"Steps {first} to {last} were" if first < last else f"Step {first} was"
    if len(hidden) == 1:
        return f"{steps} recorded twice; the newest is shown."
    *others, final = (str(one.attempt) for one in hidden)
    return f"{steps} recorded more than once, in attempts {', '.join(others)} and {final} too; the newest is shown."


class Stretch(NamedTuple):
    """When an attempt wrote its first row of a step."""

    attempt: int
    step: int
    wall_ns: int


def visible(attempts: Iterable[int], stretches: Sequence[Stretch]) -> tuple[Visible, ...]:
    """What is shown of each attempt.

    Args:
        attempts: All of them.
        stretches: Of each attempt and step, when its first row was written.

    >>> told = [Stretch(1, 0, 10), Stretch(1, 1, 20), Stretch(1, 2, 30), Stretch(2, 2, 50), Stretch(2, 3, 60)]
    >>> visible([1, 2], told)
    (Visible(attempt=1, before_step=2, before_ns=30), Visible(attempt=2, before_step=None, before_ns=None))
    >>> visible([1, 2], [*told, Stretch(2, 0, 40)])[0].shows(0, 10)
    False
    """
    first: dict[int, int] = {}
    for one in stretches:
        first[one.attempt] = min(one.step, first.get(one.attempt, one.step))
    found = []
    for attempt in sorted(set(attempts)):
        limit = min((step for other, step in first.items() if other > attempt), default=None)
        if limit is None:
            found.append(Visible(attempt))
        elif first.get(attempt, limit) < limit:
            reached = [one.wall_ns for one in stretches if one.attempt == attempt and one.step >= limit]
            found.append(Visible(attempt, limit, min(reached, default=None)))
        else:
            found.append(Visible(attempt, 0, NEVER_NS))
    return tuple(found)


def condition(parts: Sequence[Visible]) -> str:
    """SQL for the rows that are shown; those of an attempt that isn't known are.

    >>> condition([Visible(1, 5, 70), Visible(2)])
    'not ((attempt = 1 and if(step is null, coalesce(wall_ns >= 70, true), step >= 5)))'
    >>> condition([Visible(1)])
    'true'
    """
    hidden = " or ".join(_hidden(one) for one in parts if one.before_step is not None)
    return f"not ({hidden})" if hidden else "true"


def _hidden(one: Visible) -> str:
    late = "false" if one.before_ns is None else f"coalesce(wall_ns >= {one.before_ns}, true)"
    return f"(attempt = {one.attempt} and if(step is null, {late}, step >= {one.before_step}))"


def expression(parts: Sequence[Visible]) -> Any:
    """The same for pyarrow."""
    import pyarrow.compute as pc

    attempt = pc.coalesce(pc.field("attempt"), pc.scalar(1))
    hidden = pc.scalar(False)
    for one in parts:
        if one.before_step is not None:
            late = pc.scalar(False)
            if one.before_ns is not None:
                late = pc.coalesce(pc.field("wall_ns") >= one.before_ns, pc.scalar(True))
            later = pc.coalesce(pc.field("step") >= one.before_step, late)
            hidden = hidden | ((attempt == one.attempt) & later)
    return ~hidden


class Shown:
    """What is shown of rows that come while a run is followed.

    Args:
        attempts: That had written when it was opened.
        parts: What was shown of each then; empty is all of all.
        begins: The first step of the newest, None before it has one, and where there is one attempt.
        alone: Whether that is all that will ever be shown: one attempt was chosen.
    """

    def __init__(
        self,
        attempts: Iterable[int] = (),
        parts: Iterable[Visible] = (),
        begins: int | None = None,
        *,
        alone: bool = False,
    ) -> None:
        self._alone = alone
        self._newest = max(attempts, default=1)
        self._parts = {one.attempt: one for one in parts}
        self._begins = begins

    def hides_more(self, rows: Iterable[Row]) -> bool:
        """Whether one of ``rows`` hides what was shown: a newer attempt has come to a step, or to an earlier one."""
        if self._alone:
            return False
        for row in rows:
            if row.step is None or row.attempt < self._newest or row.attempt == 1:
                continue
            if row.attempt > self._newest or self._begins is None or row.step < self._begins:
                return True
        return False

    def of(self, rows: list[Row]) -> list[Row]:
        """Those of ``rows``, which are written now, that are shown: a process of an old attempt may still write."""
        if not self._parts:
            return rows
        now_ns = time.time_ns()
        return [row for row in rows if self.shows(row, now_ns)]

    def shows(self, row: Row, wall_ns: int) -> bool:
        """Whether a row is shown that was written at some time.

        Args:
            row: The row.
            wall_ns: The wall-clock time, nanoseconds.
        """
        part = self._parts.get(row.attempt)
        return not self._alone if part is None else part.shows(row.step, wall_ns)
