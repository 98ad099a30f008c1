"""Answers by step that are kept while a run is written: only steps with new rows are asked about again.

A judge looks at thousands of steps, of which the next look changes one or two. So a query that gives rows of its own
for each step is asked for the steps that have got rows since (:meth:`probe.runs.reader.Run.changed` knows them from the
rows themselves, however late they come), and the answers about all others stay. What a judge is given is the same as
if all had been asked anew. Where anything may differ, such as after an attempt has begun that hides steps, it is.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from probe.analysis.grid import Grid, grid, grid_of
from probe.records import TABLES
from probe.runs import statements
from probe.runs.asked_again import AskedAgain

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow

    from probe.runs.changes import Changed, Moment
    from probe.runs.reader import Run

T = TypeVar("T")

#: Gives the query for the steps from the first to the last of two; each row of its answer is of one step, "step", and
#: depends on the rows of that step alone.
Query = Callable[[int, int], str]

#: Takes rows out of an answer, each by itself.
Chosen = Callable[[Grid], Grid]


class Needs(NamedTuple):
    """Rows without which a query has no answer: looking for one among a few new rows takes less than the query does."""

    table: str  #: of which they are
    found: Callable[[pyarrow.Table], bool]  #: whether there may be one among rows of it; it may err on this side alone


#: Before the first step, and after the last.
FIRST: Final = -(2**62)
LAST: Final = 2**62


@dataclass
class _Kept:
    tables: frozenset[str]  #: of the query
    first: int  #: step that was asked about
    until: int  #: and the one before which the answer is still right
    answer: Grid


class ByStep:
    """What is kept of one run.

    Args:
        run: The run. It is refreshed by :meth:`refresh` alone.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._moment: Moment | None = None
        self._kept: dict[str, _Kept] = {}
        self._now: list[dict[str, Any]] | None = None
        self._again = AskedAgain()
        self._since = LAST  #: before which no step has new rows
        self._unstepped: dict[str, tuple[frozenset[str], pd.DataFrame]] = {}
        self._judged: dict[Callable[[Grid], Any], tuple[Grid, Any]] = {}
        run.by_step = self

    def refresh(self) -> None:
        """Take a new look at the run, and forget what may have changed."""
        self._now = None
        self._run.refresh()
        changed = None if self._moment is None else self._run.changed(self._moment)
        self._moment = self._run.moment()
        if changed is None:
            self._kept.clear()
            self._unstepped.clear()
            return
        for kept in self._kept.values():
            kept.until = min(kept.until, _first(changed, kept.tables))
        self._since = min((kept.until for kept in self._kept.values()), default=LAST)
        for text, (tables, _) in list(self._unstepped.items()):
            if any(changed[one].unstepped for one in tables if one in changed):
                del self._unstepped[text]

    def ask(
        self,
        query: Query,
        first: int,
        last: int,
        keys: str,
        lists: Sequence[str],
        chosen: Chosen,
        needs: Needs | None,
    ) -> Grid:
        """As :func:`by_step`."""
        name = query(0, 0)
        known = self._kept.get(name)
        if known is None or known.first > first or known.until <= first:
            answer = chosen(grid(self._run.sql(query(first, last)), keys, lists))
            known = self._kept[name] = _Kept(_tables(name), first, last + 1, answer)
        elif known.until <= last:
            before = known.answer.between(first, known.until - 1)
            if self._may_tell(known.until, needs):
                before = before.followed_by(self._newer(query, known.until, last, keys, lists, chosen))
            known.answer, known.first, known.until = before, first, last + 1
        return known.answer.between(first, last)

    def _may_tell(self, first: int, needs: Needs | None) -> bool:
        """Whether a query may have an answer about the newest steps."""
        newest = None if needs is None else self._run.newest(min(self._since, first))
        if needs is None or newest is None:
            return True
        return needs.table in newest.rows and needs.found(newest.rows[needs.table])

    def _newer(self, query: Query, first: int, last: int, keys: str, lists: Sequence[str], chosen: Chosen) -> Grid:
        """The answer about the newest steps."""
        since = min(self._since, first)
        newest = self._run.newest(since)
        found = None if newest is None else self._again.ask(newest, query, first, last)
        if found is not None:
            return chosen(grid_of(found, keys, lists))
        return chosen(grid(self._run.sql(query(first, last), since=since), keys, lists))

    def judged(self, told: Grid, judge: Callable[[Grid], T]) -> T:
        """As :func:`judged`."""
        before = self._judged.get(judge)
        if before is None or before[0] is not told:
            before = self._judged[judge] = told, judge(told)
        found: T = before[1]
        return found

    def now(self) -> list[dict[str, Any]]:
        """As :func:`now`."""
        if self._now is None:
            self._now = self._run.now_rows()
        return [dict(one) for one in self._now]

    def unstepped(self, text: str) -> pd.DataFrame:
        """As :func:`unstepped`."""
        if text not in self._unstepped:
            self._unstepped[text] = _tables(text), self._run.sql(text)
        return self._unstepped[text][1]


def _tables(text: str) -> frozenset[str]:
    """The tables that a query is about."""
    asked = statements.with_views(text)
    return frozenset(one for one in TABLES if statements.names(asked, one))


def _first(changed: Changed, tables: frozenset[str]) -> int:
    """The first step that changed in any of some tables."""
    found = min((changed[one].first for one in tables if one in changed), default=math.inf)
    return LAST + 1 if found == math.inf else FIRST if found == -math.inf else int(found)


@contextlib.contextmanager
def shared(run: Run) -> Iterator[None]:
    """Within it several judges of one moment of a run share their answers."""
    if run.by_step is not None:
        yield
        return
    ByStep(run)
    try:
        yield
    finally:
        run.by_step = None


def _all(answer: Grid) -> Grid:
    return answer


def by_step(
    run: Run,
    query: Query,
    first: int,
    last: int,
    keys: str = "",
    lists: Sequence[str] = (),
    chosen: Chosen = _all,
    needs: Needs | None = None,
) -> Grid:
    """The answer of a query about some steps.

    Args:
        run: The run.
        query: See :data:`Query`.
        first: Of the steps.
        last: Of the steps.
        keys: The column of its answer with lists of processes or ranks; "" where it has none.
        lists: The columns with lists of numbers in that order.
        chosen: Which rows of the answer count; the others aren't kept.
        needs: What the query needs to have an answer; None where that isn't known.

    Returns:
        Its rows, of steps from ``first`` to ``last``.
    """
    kept: ByStep | None = run.by_step
    if kept is None:
        return chosen(grid(run.sql(query(first, last)), keys, lists))
    return kept.ask(query, first, last, keys, lists, chosen, needs)


def judged(run: Run, told: Grid, judge: Callable[[Grid], T]) -> T:
    """What a judge says of an answer. While no step of it has got rows, such as within a long step, what it said at the
    last look is still right.

    Args:
        run: The run.
        told: Of :func:`by_step`.
        judge: Depends on the answer alone; the same function at each look.
    """
    kept: ByStep | None = run.by_step
    return judge(told) if kept is None else kept.judged(told, judge)


def unstepped(run: Run, text: str) -> pd.DataFrame:
    """The answer of a query about rows of no step, which it alone asks for.

    Args:
        run: The run.
        text: The query.
    """
    kept: ByStep | None = run.by_step
    return run.sql(text) if kept is None else kept.unstepped(text)


def now(run: Run) -> list[dict[str, Any]]:
    """Where the processes of a run are at the moment that is looked at, as :meth:`probe.runs.reader.Run.now_rows` says;
    the dicts are the caller's own.
    """
    kept: ByStep | None = run.by_step
    return run.now_rows() if kept is None else kept.now()
