"""Finds out what is wrong in each run of the list, within a share of a core, in processes that end when they are done.

Live runs come first and are looked at again and again; a run that has ended is looked at once, and again when its files
have changed. The looking is done by :mod:`probe.jupyter.looking`.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from probe.views.panel.aside import Aside

_log = logging.getLogger("probe.jupyter")

#: Live runs that are followed at once, the newest.
MOST_LIVE: Final = 4

#: Runs that have ended, and are looked at without being asked for, the newest.
MOST_ENDED: Final = 40

#: What looking at runs that have ended may take of the time.
SHARE: Final = 0.2

#: Seconds after which a process that has ended is begun again.
AGAIN_S: Final = 10.0

#: Alarms of a run that are told one by one.
MOST_ALARMS: Final = 20

#: Of a run without rows.
NOTHING: Final[Mapping[str, int | None]] = {
    **dict.fromkeys(("last_step", "peak_bytes", "device_bytes")),
    "damaged": 0,
}

COMMAND: Final = (sys.executable, "-P", "-m", "probe.jupyter.looking")


class Standing(NamedTuple):
    """How a run of the list is."""

    live: bool  #: whether somebody may write to it
    state: str  #: as :func:`probe.jupyter.describing.describe` gives it
    until_s: float | None = None  #: when it ended, or was heard of last, of one that isn't live
    ended: int = 0  #: how many of its processes have


class Judge:
    """Follows what is found in runs.

    Its threads begin with the first :meth:`wish` and end with :meth:`close`.
    """

    def __init__(self) -> None:
        self._found: dict[Path, dict[str, Any]] = {}
        self._standings: dict[Path, Standing] = {}
        self._judged: dict[Path, Standing] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._news = [threading.Event(), threading.Event()]
        self._asides = [aside(), aside()]
        self._threads: list[threading.Thread] = []

    def wish(self, runs: Mapping[Path, Standing]) -> None:
        """Say which runs are listed.

        Args:
            runs: By directory; the newest first.
        """
        with self._lock:
            changed = dict(runs) != self._standings
            self._standings = dict(runs)
            if not self._threads and not self._stop.is_set():
                jobs = (self._follow, self._catch_up)
                self._threads = [
                    threading.Thread(target=self._do, args=(job, *own), name="probe-jupyter-judge", daemon=True)
                    for job, *own in zip(jobs, self._news, self._asides, strict=True)
                ]
                for thread in self._threads:
                    thread.start()
        if changed:
            for news in self._news:
                news.set()

    def verdict(self, path: Path) -> dict[str, Any] | None:
        """What was found in a run, as :func:`probe.jupyter.looking.verdict_of` gives it; None where nobody has looked
        yet.
        """
        return self._found.get(path)

    def close(self) -> None:
        """End it, also a look that is under way. Safe to call twice."""
        self._stop.set()
        for news, one in zip(self._news, self._asides, strict=True):
            news.set()
            one.close()
        for thread in self._threads:
            thread.join(10.0)

    # -------------------------------------------------------------------------------------------- its two threads

    def _do(self, job: Any, news: threading.Event, asked: Aside) -> None:
        while not self._stop.is_set():
            news.clear()
            with self._lock:
                standings = dict(self._standings)
            try:
                pause_s = job(standings, asked)
            except (OSError, ValueError) as error:  # its process was killed, or found no memory
                _log.debug("%s", error)
                asked.end()
                pause_s = AGAIN_S
            if pause_s is None:
                asked.end()  # what it read isn't kept in memory while nobody looks
            news.wait(pause_s if pause_s is None else max(0.1, min(pause_s, 30.0)))
        asked.end()

    def _follow(self, standings: Mapping[Path, Standing], asked: Aside) -> float | None:
        """Look at those that are live. Gives the seconds until the next look; None where there are none."""
        live = {str(path): one.ended for path, one in standings.items() if one.live}
        if not live:
            return None
        answer = asked.ask({"follow": dict(list(live.items())[:MOST_LIVE])})
        for path, found in answer["found"].items():
            self._found[Path(path)] = found
        return float(answer["pause_s"])

    def _catch_up(self, standings: Mapping[Path, Standing], asked: Aside) -> float | None:
        """Look at one run that has ended and wasn't looked at since. Gives the seconds until the next; None where all
        were.
        """
        ended = [path for path, one in standings.items() if not one.live][:MOST_ENDED]
        path = next((one for one in ended if self._judged.get(one) != standings[one]), None)
        if path is None:
            return None
        self._judged[path] = standings[path]
        try:
            answer = asked.ask({"ended": str(path)})
        except (OSError, ValueError) as error:
            self._found[path] = unknown(error)
            raise
        self._found[path] = answer["found"]
        return float(answer["cpu_s"]) / SHARE


def unknown(error: BaseException | None) -> dict[str, Any]:
    """What is said of a run that can't be looked at, as :func:`probe.jupyter.looking.verdict_of` says it of others."""
    said = f"{type(error).__name__}: {error}"
    return {"worst": None, "alarms": 0, "all_alarms": [], "whole": False, "failed": said, **NOTHING}


def aside() -> Aside:
    """A process that looks. It ends with whoever made it."""
    return Aside(COMMAND, "looks at runs")
