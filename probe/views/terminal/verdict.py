"""What is wrong in the run that a terminal follows: looked for on a thread of its own, in the rhythm of
:class:`probe.analysis.verdict.watch.Watch`, and told in lines.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from probe.analysis.verdict import findings
from probe.analysis.verdict.finding import FAILURES, KINDS, Finding, Findings
from probe.errors import ProbeError
from probe.guard import Guard
from probe.runs.reader import Run
from probe.views.terminal.lines import plain

if TYPE_CHECKING:
    from probe.analysis.verdict.watch import Watch

_log = logging.getLogger("probe.views.terminal")

#: Seconds after a look that failed, such as in a store that doesn't answer.
AGAIN_S: Final = 10.0
#: Seconds between two looks, at least.
LEAST_S: Final = 0.2
#: Seconds that the end waits for a look that is under way.
END_S: Final = 5.0

_STYLES: Final = {"alarm": "bold red", "tuning": "yellow", "fine": "green"}

LOOKING: Final = "Looking for what is wrong …"
ALL_IS_WELL: Final = "Nothing is wrong and nothing is worth a change."
NO_STEP: Final = "No step has ended yet."


class Verdict:
    """What is found in a run.

    Args:
        path: A run directory or its URL.
        attempt: As :class:`probe.runs.reader.Run`.
        skips: Whether alarms of the first look are no news.

    Attributes:
        found: As of the last look; None before it.
        whole: Whether everything was looked for, and not only what is urgent.
    """

    def __init__(self, path: str, attempt: int | None = None, *, skips: bool = False) -> None:
        self.found: Findings | None = None
        self.whole = False
        self._path, self._attempt = path, attempt
        self._skips = skips
        self._news: list[Finding] = []
        self._told: set[tuple[str, object, object, object]] = set()
        self._guard = threading.Lock()
        self._stop = threading.Event()
        self._last = False  # one more look before it stops
        self._thread: threading.Thread | None = None
        failed = f"the findings of {path} can't be worked out"
        self._beside = Guard("findings", failed, tell=None, most=None, log=_log, level=logging.DEBUG)

    def start(self) -> None:
        """Look from now on; once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._follow, name="probe-tail-verdict", daemon=True)
            self._thread.start()

    def look(self) -> None:
        """Look for everything, now and here. What can't be read says nothing."""
        self._isolated(self._look_for_all)

    def _look_for_all(self) -> None:
        with Run(self._path, self._attempt) as run:
            found = findings(run)
            self._take(found, found.alarms, whole=True)

    def _isolated(self, look: Callable[[], None]) -> bool:
        """Look, and say whether that worked; where not, the picture of the run stays."""

        def looked() -> bool:
            try:
                look()
            except ProbeError:  # such as a store that doesn't answer
                _log.debug("the findings of %s can't be worked out at the moment", self._path, exc_info=True)
                return False
            return True

        return self._beside.call(looked, otherwise=False)

    def finish(self) -> None:
        """The run has ended: look for everything once more, and stop."""
        if self._thread is None:
            if self.found is None:
                self.look()
            return
        self._last = True
        self._stop.set()
        self._thread.join()

    def stop(self) -> None:
        """Look no more. Safe to call twice."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(END_S)

    def news(self) -> list[Finding]:
        """Alarms that weren't given before, the worst first."""
        with self._guard:
            news, self._news = self._news, []
        return news

    def _follow(self) -> None:
        while not self._stop.is_set():
            if not self._isolated(self._follow_run):
                self._stop.wait(AGAIN_S)

    def _follow_run(self) -> None:
        with Run(self._path, self._attempt) as run:
            from probe.analysis.verdict.watch import Watch  # who only asks what was found before needs none of it

            watch = Watch(run)
            self._look(watch, whole=False)  # what is urgent needn't wait for the rest
            while not self._stop.is_set():
                self._look(watch)
                self._stop.wait(max(LEAST_S, watch.pause_s))
            if self._last:
                self._look(watch, whole=True)

    def _look(self, watch: Watch, *, whole: bool | None = None) -> None:
        found = watch.look(whole=whole)
        self._take(found, watch.new_alarms(), whole=whole is not False)

    def _take(self, found: Findings, alarms: Iterable[Finding], *, whole: bool) -> None:
        with self._guard:
            self.found, self.whole = found, whole
            for one in alarms:
                key = (one.name, one.where.rank, one.where.process, one.where.phase)
                if key not in self._told and not self._skips:  # after a store was away it is another watch
                    self._news.append(one)
                self._told.add(key)
            self._skips = self._skips and not self.whole


def verdict_lines(
    found: Findings | None, path: str, *, whole: bool, begun: bool, over: bool = False
) -> list[tuple[str, str]]:
    """The worst finding, its change and how many more there are: a line each, and how it looks.

    Args:
        found: What was found; None where nobody has looked.
        path: Of the run, named where there is more.
        whole: Whether everything was looked for.
        begun: Whether a step has ended.
        over: Whether nobody writes any more: what ended the run is then no alarm, but why it failed.

    >>> slow = Finding("alarm", "slow_rank", "Rank 5 needs 1.28 times as long.")
    >>> verdict_lines(Findings([slow]), "runs/first", whole=True, begun=True)
    [('▲ Alarm: Rank 5 needs 1.28 times as long.', 'bold red')]
    """
    told = Findings() if found is None else found.of("alarm", "tuning")
    if not told.alarms and not whole:
        return [(LOOKING, "dim")]
    if not told and not begun:
        return [(NO_STEP, "dim")]
    if not told:
        lines = [(f"{KINDS['fine'][0]} {ALL_IS_WELL}", "green")]
        unjudged = "" if found is None else found.unjudged
        return [*lines, (plain(f"  {unjudged[:-1]}: probe findings {path}", strip=False), "dim")] if unjudged else lines
    worst, more = told[0], len(told) - 1
    lines = [(finding_line(worst, over=over), _STYLES[worst.kind])]
    if worst.change is not None:
        code = f"  {worst.change.line}" if worst.change.line else ""
        lines.append((plain(f"  → {worst.change.advice}{code}", strip=False), ""))
    if more:
        lines.append((plain(f"  and {more} more: probe findings {path}", strip=False), "dim"))
    return lines


def finding_line(one: Finding, *, over: bool = False) -> str:
    """A finding's sentence, with what kind it is; of what ended a run that is over, that it failed."""
    sign, label, _ = KINDS[one.kind]
    label = "Failed" if over and one.name in FAILURES else label
    return plain(f"{sign} {label}: {one.sentence}")
