"""What is wrong in the run that a panel shows, kept up to date by a process of its own.

The looking takes 0.3 to 2 s of CPU, and the panel's process may be the one that trains. So it is done in another one
(:mod:`probe.views.panel.looking`), which a thread here asks and waits for. Looking for everything and looking for
alarms take half a percent of a core each: the next look comes 200 times the last one's CPU time later, not before 10 s.
An alarm matters more than that: of a run that is live, alarms are looked for at least every 30 s. At once is looked
when the panel opens, when the run has ended, and when another attempt is shown; never while nothing new can be found.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections.abc import Hashable, Sequence
from typing import Any, Final, NamedTuple

from probe import dashboards
from probe.views.panel.aside import END_S, Aside

_log = logging.getLogger("probe.views.panel")

#: Seconds between two looks, at least; and between two looks for alarms in a live run, at most.
LEAST_S: Final = 10.0
ALARMS_S: Final = 30.0

#: What looking for everything may take of a core, and looking for alarms.
SHARE: Final = 0.005

#: The argument with which the command reads no other run.
ALONE: Final = "--alone"

#: Looks that fail one after the other until it's given up.
PATIENCE: Final = 3

#: What a page is told while nothing has been found out yet; and where nothing can be said.
UNKNOWN: Final[dict[str, Any]] = {
    "findings": None,
    "looking": True,
    "whole": False,
    "post_mortem": None,
    "ledger": None,
    "disagreement": None,
    "advice": None,
}
SILENT: Final[dict[str, Any]] = {
    "findings": None,
    "looking": False,
    "whole": False,
    "post_mortem": None,
    "ledger": None,
    "disagreement": None,
    "advice": None,
}


class Moment(NamedTuple):
    """What a look depends on."""

    attempt: int | None = None
    live: bool = True  #: somebody may write, so that time alone can bring an alarm: of a hang
    rows: Hashable = None  #: another one as soon as there is anything new
    ended: int = 0  #: processes of the run that have ended, as far as anybody says so


class Pace:
    """When to look next, and at how much; times are seconds of one clock."""

    def __init__(self) -> None:
        self._seen: Moment | None = None
        self._whole_seen: Moment | None = None  # when everything was looked for last
        self._at = self._whole_at = -math.inf  # when the last look ended, and the last one for everything
        self._whole_s, self._alarms_s = 0.0, math.nan  # of CPU that looks took

    def looked(self, now: float, seen: Moment, cpu_s: float, *, whole: bool) -> None:
        """A look at ``seen`` has ended."""
        self._seen, self._at = seen, now
        if whole:
            self._whole_seen, self._whole_at, self._whole_s = seen, now, cpu_s
        if not whole or math.isnan(self._alarms_s):  # which are a part of everything
            self._alarms_s = cpu_s

    def next(self, moment: Moment) -> tuple[float, bool] | None:
        """When to look at the run as it is now, and whether at everything; None: not before it has changed."""
        seen, whole_seen = self._seen, self._whole_seen
        if seen is None or whole_seen is None or whole_seen.attempt != moment.attempt:
            return -math.inf, True
        if seen.live and not moment.live:
            return -math.inf, True
        if moment.live and moment.ended > seen.ended:  # perhaps it was killed
            return -math.inf, False
        whole = math.inf if whole_seen == moment else self._whole_at + max(LEAST_S, self._whole_s / SHARE)
        alarms = self._at + min(max(LEAST_S, self._alarms_s / SHARE), ALARMS_S) if moment.live else math.inf
        if math.inf == whole == alarms:
            return None
        return min(whole, alarms), whole <= alarms


class Verdict:
    """Follows what is found in a run.

    Args:
        path: Path or URL of the run directory.
        command: What answers as :mod:`probe.views.panel.looking` does; None is that.
        beside: Whether earlier runs beside it may be read.

    Attributes:
        told: What a page is told: ``findings`` as :func:`probe.views.panel.looking.told` gives them, None where nothing
            is known; ``looking``, whether something will be; ``whole``, whether everything could be looked for;
            ``post_mortem`` as :func:`probe.views.panel.looking.shown` gives it, None where nothing has ended the run;
            ``ledger`` as :func:`probe.views.panel.funnel.kept` gives it, None where no samples were recorded;
            ``disagreement`` as :func:`probe.views.panel.disagree.kept` gives it, None where nothing is judged;
            ``advice`` as :func:`probe.views.panel.looking.advised` gives it, None where no change is worth it.
        samples: What a saved copy keeps of the samples, as :func:`probe.views.panel.browsing.kept` gives it; None where
            there are none. No page is told it unasked.
        what_if: The batches of the last step that has ended, as :func:`probe.views.panel.what_if.told_batches` gives
            them, so that a page answers what-ifs while a cell runs; None where nothing was cut.
        long_tail: The lanes of the replicas of the last step that has ended, as :func:`probe.views.panel.lanes.told`
            gives them; None where sampling times weren't recorded.
        outlook: What comes with advice, as :func:`probe.views.panel.outlook.told` gives it; None where there is none.
    """

    def __init__(self, path: str, command: Sequence[str] | None = None, *, beside: bool = True) -> None:
        self.told: dict[str, Any] = SILENT
        self.samples: dict[str, Any] | None = None
        self.what_if: dict[str, Any] | None = None
        self.long_tail: dict[str, Any] | None = None
        self.outlook: dict[str, Any] | None = None
        alone = [] if beside else [ALONE]
        command = command or [sys.executable, "-P", "-m", "probe.views.panel.looking", path, *alone]
        self._aside = Aside(command, "looks for findings")
        self._path = path
        self._moment = Moment()
        self._pace = Pace()
        self._not_before = -math.inf  # after a failure
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._logged: set[str] = set()

    def start(self) -> None:
        """Begin to look; once."""
        if self._thread is None and not self._stop.is_set():
            self.told = UNKNOWN
            self._thread = threading.Thread(target=self._run, name="probe-panel-verdict", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the looking, also one that is under way; what was found last stays. Safe to call twice."""
        self._stop.set()
        self._wake.set()
        self._aside.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(END_S)
        if self.told["findings"] is None:
            self.told = SILENT

    def notice(self, moment: Moment) -> None:
        """The run is like this now."""
        if moment != self._moment:
            self._moment = moment
            self._wake.set()

    def state(self) -> dict[str, Any]:
        """The part of the panel's state that it is."""
        beside = {"what_if": self.what_if, "long_tail": self.long_tail, "outlook": self.outlook}
        return {"verdict": self.told, **beside}

    # ---------------------------------------------------------------------------------------------- its thread

    def _run(self) -> None:
        failures = 0
        while not self._stop.is_set():
            due = self._pace.next(self._moment)
            wait_s = None if due is None else max(due[0], self._not_before) - time.monotonic()
            if due is None or wait_s is None or wait_s > 0:
                if due is None:  # perhaps nobody ever writes again: what was read isn't kept in memory for it
                    self._aside.end()
                self._wake.wait(wait_s)
                self._wake.clear()
                continue
            failures = 0 if self._look(whole=due[1]) else failures + 1
            if failures == PATIENCE:
                break
        self._aside.end()

    def _look(self, *, whole: bool) -> bool:
        moment = self._moment
        answer: dict[str, Any] | None = None
        try:
            answer = self._asked({"attempt": moment.attempt, "whole": whole, "live": moment.live})
        except (OSError, ValueError) as error:
            self._log_once(f"{type(error).__name__}: {error}")
        if self._stop.is_set():
            return False
        if answer is None:  # nothing is said: what was found before may be true no more
            self._aside.end()
            self.told = SILENT
            self._not_before = time.monotonic() + LEAST_S
            return False
        for failed in answer["failed"]:
            self._log_once(failed)
        told = {"findings": answer["findings"], "looking": True, "whole": not answer["failed"]}
        told["post_mortem"] = answer.get("post_mortem")
        told["ledger"] = answer.get("ledger")
        told["disagreement"] = answer.get("disagreement")
        told["advice"] = answer.get("advice")
        if answer.get("samples") != self.samples:
            self.samples = answer.get("samples")
        if answer.get("what_if") != self.what_if:
            self.what_if = answer.get("what_if")
        if answer.get("long_tail") != self.long_tail:
            self.long_tail = answer.get("long_tail")
        if answer.get("outlook") != self.outlook:
            self.outlook = answer.get("outlook")
        if told != self.told:
            self.told = told
        self._pace.looked(time.monotonic(), moment, answer["cpu_s"], whole=whole)
        return True

    def _asked(self, question: dict[str, Any]) -> dict[str, Any]:
        """The answer to a question.

        Raises:
            OSError: The process can't be begun, or has ended.
            ValueError: It answers with something else.
        """
        answer = self._aside.ask(question)
        if not {"findings", "failed", "cpu_s"} <= answer.keys():
            raise ValueError(
                f"the process that looks for findings answered {str(answer)[:80]!r}, "
                "expected findings, failed and cpu_s"
            )
        return answer

    def _log_once(self, what: str) -> None:
        if what not in self._logged and not self._stop.is_set():
            self._logged.add(what)
            _log.warning("the findings of %s can't be worked out: %s", self._path, what)


def topics(views: Sequence[dashboards.View]) -> dict[str, str]:
    """Which of ``views`` shows what findings call their topic, the name of a dashboard: the one of the same name, else
    the one that has most of its panels. A topic that none of them shows is left out.

    >>> topics(dashboards.views())["padding_tax"]
    'tokens'
    """
    shown = {view.id: {panel.id for panel in view.panels} for view in views}
    found: dict[str, str] = {}
    for board in dashboards.dashboards():
        panels = {panel.id for panel in board.panels}
        shares = {view: (view == board.name, len(ids & panels)) for view, ids in shown.items()}
        best = max(shares, key=shares.__getitem__, default=None)
        if best is not None and any(shares[best]):
            found[board.name] = best
    return found
