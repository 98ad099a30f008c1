"""Follows a run for a terminal: which steps are over, what went wrong, how fast rows come, and whether it has ended."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from probe.dashboards.spec import TABLES
from probe.live.feed import ASK_S, Feed
from probe.live.tables import ROWS
from probe.runs import liveness
from probe.runs.layout import PARTS_NAME
from probe.runs.outcome import Outcome
from probe.views.terminal import numbers

#: Seconds without rows after which a run whose files say that it's over is over.
GRACE_S: Final = 2.0

#: Seconds over which the rate of rows is measured.
RATE_S: Final = 5.0

#: No rows of one look are thinned: sums over a step stay exact.
_EVERY_ROW: Final = 2**40

_STEPPED: Final = [name for name, columns in TABLES.items() if "step" in columns]


class Ending:
    """Tells when every writer of a run has closed. Between two files of one writer it looks the same for a moment.

    Args:
        feed: The feed of the run; it needn't be opened.
    """

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._since: float | None = None
        self._ask_at = -math.inf
        self._gone = False

    def reached(self) -> bool:
        """Whether the run is over, by its files as they are now."""
        if not self._feed.finished():
            self._since = None
            return False
        now = time.monotonic()
        if self._since is None:
            self._since = now
        return now - self._since > GRACE_S or self._is_old()

    def gone(self) -> bool:
        """Whether the run's processes are gone without an end, by its files; asked for every other second at most."""
        now = time.monotonic()
        if now >= self._ask_at:
            self._ask_at = now + ASK_S
            self._gone = liveness.all_gone(self._feed.files)
        return self._gone

    def _is_old(self) -> bool:
        """Whether it was over long before we looked, though its files may have been copied just now."""
        newest = self._feed.newest_at
        if newest is not None and time.time() - newest > GRACE_S:
            return True
        if not self._feed.local:
            return False
        try:
            return time.time() - (Path(self._feed.path) / PARTS_NAME).stat().st_mtime > GRACE_S
        except OSError:  # the files are being moved: ask again
            return False


@dataclass(frozen=True)
class News:
    """What one look found.

    Attributes:
        steps: Steps that are over now, each told once and in order.
        incidents: Rows of the live table ``events``.
    """

    steps: list[int] = field(default_factory=list)
    incidents: list[dict[str, Any]] = field(default_factory=list)


class Following:
    """A run, looked at again and again.

    Args:
        path: A run directory or its URL.
        rows: Rows that each live table keeps.
        from_start: Whether to tell the steps and incidents that are there already.
        attempt: As :class:`probe.live.feed.Feed`.

    Attributes:
        feed: The feed of the run.
        numbers: The numbers as of the last look.
        step: The newest step that is over.
        over: Whether the run has ended.
        gone: Whether its processes are gone without an end, and all that they wrote has been read.
        outcome: How the run has ended, once it is over; None where nobody can tell.

    Raises:
        RunNotFoundError: There is nothing.
        RunError: It isn't a run.
        SchemaVersionError: A newer probe wrote it.
    """

    def __init__(self, path: str, *, rows: int = ROWS, from_start: bool = True, attempt: int | None = None) -> None:
        self.feed = Feed(path, rows=rows, update_rows=_EVERY_ROW, attempt=attempt, sketched=False)
        self.numbers = numbers.Numbers([])
        self.over = False
        self.gone = False
        self.outcome: Outcome | None = None
        self.step: int | None = None
        self._skips = not from_start
        self._events = 0
        self._seen: dict[int, int] = {}  # rows of each step that isn't told yet, at the last look
        self._ending = Ending(self.feed)
        self._counted: deque[tuple[float, int]] = deque()

    def look(self) -> News:
        """Read what is new.

        Raises:
            RunError: The files can't be read. Nothing is lost: the next look finds the rows.
        """
        were_gone = self.feed.opened and self.feed.activity()["writers"] == "gone"  # then these rows are the last
        if self.feed.opened:
            self.feed.update()
        else:
            self.feed.open()
        now = time.monotonic()
        self._counted.append((now, self.feed.rows_read))
        while now - self._counted[0][0] > RATE_S and len(self._counted) > 2:
            self._counted.popleft()
        self.over = self._ending.reached()
        self.gone = were_gone and not self.over
        if self.over or self.gone:
            self.outcome = self.feed.outcome()
        self.numbers = numbers.read(self.feed)
        news = News(self._steps(), self._incidents())
        if self._skips:  # at the first look only
            self._skips = False
            return News()
        return news

    # ------------------------------------------------------------------------------------------------ about it

    @property
    def ranks(self) -> int:
        """How many ranks have written. A process without a rank is none."""
        found = np.unique(np.concatenate([table.columns()["rank"] for table in self.feed.tables.values()]))
        return int(np.count_nonzero(found >= 0))

    @property
    def others(self) -> int:
        """How many processes without a rank have written."""
        places = [table.columns() for table in self.feed.tables.values()]
        names = {code for one in places for code in np.unique(one["who"][one["rank"] < 0]).tolist()}
        return len(names)

    @property
    def has_rows(self) -> bool:
        """Whether there is anything to show yet, of whatever process."""
        return any(table.count for table in self.feed.tables.values())

    @property
    def rows_per_second(self) -> float:
        """Rows that were written lately; NaN while that isn't known."""
        (begin, before), (end, after) = self._counted[0], self._counted[-1]
        return (after - before) / (end - begin) if end - begin > 0.5 else math.nan

    @property
    def seconds(self) -> float:
        """From the run's start to its newest row; NaN before the first."""
        times = [self.feed.tables[name].columns()[column] for name, column in _TIMES]
        known = np.concatenate(times)
        known = known[~np.isnan(known)]
        return float(known.max()) if len(known) else math.nan

    @property
    def left_out(self) -> int:
        """Rows of a large run that aren't held here, and with them some of its older steps."""
        return self.feed.left_out + sum(table.thinned for table in self.feed.tables.values())

    # ------------------------------------------------------------------------------------------------- the news

    def _steps(self) -> list[int]:
        """Steps that are complete (see :attr:`probe.live.feed.Feed.standing`) and of which nothing new came."""
        counts = self._rows_by_step()
        complete = self.feed.complete_step
        latest = -1 if complete is None else complete
        found: list[int] = []
        for step, count in sorted(counts.items()):
            settled = self.over or self._skips or self._seen.get(step) == count
            if not ((self.over or step <= latest) and settled):
                break
            found.append(step)
        self._seen = {step: count for step, count in counts.items() if step not in found}
        if found:
            self.step = found[-1]
        return found

    def _rows_by_step(self) -> dict[int, int]:
        """How many rows there are of each step that hasn't been told."""
        after = -1 if self.step is None else self.step
        columns = [self.feed.tables[name].columns()["step"] for name in _STEPPED]
        found = np.concatenate([one[one > after] for one in columns])
        steps, counts = np.unique(found, return_counts=True)
        return dict(zip(steps.tolist(), counts.tolist(), strict=True))

    def _incidents(self) -> list[dict[str, Any]]:
        table = self.feed.tables["events"]
        fresh = min(table.next - self._events, table.count)
        self._events = table.next
        return incidents(self.feed, fresh)


_TIMES: Final = [
    (name, column) for name, columns in TABLES.items() for column in ("t", "begin", "end") if column in columns
]


def incidents(feed: Feed, newest: int) -> list[dict[str, Any]]:
    """The newest incidents, oldest first: dicts with the columns of the live table ``events``, texts as texts."""
    columns = feed.tables["events"].columns()
    begin = len(columns["rank"]) - newest
    rows = zip(*(columns[name][begin:].tolist() for name in columns), strict=True)
    return [{name: _event_value(feed, name, value) for name, value in zip(columns, row, strict=True)} for row in rows]


def _event_value(feed: Feed, name: str, value: Any) -> Any:
    if TABLES["events"][name] == "word":
        return feed.words.texts[value] if value >= 0 else ""
    if name in {"step", "rank"} and value < 0:
        return None
    return None if isinstance(value, float) and math.isnan(value) else value
