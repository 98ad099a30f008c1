"""The verdict of a run that is being written: looked for again and again, within a share of a core."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from probe.analysis.by_step import ByStep
from probe.analysis.verdict import facts
from probe.analysis.verdict.finding import Finding, Findings
from probe.analysis.verdict.verdict import LOOKS, OFTEN, URGENT
from probe.guard import Guard

if TYPE_CHECKING:
    from probe.analysis.verdict.verdict import Look
    from probe.runs.reader import Run

_log = logging.getLogger("probe.verdict")

#: What looking may take of a core for what alarms come of, and as much for the rest.
SHARE: Final = 0.005
#: What is urgent is looked for so often, seconds, and less often only where a look takes long: a hang is one after five
#: seconds, and must be said within ten.
URGENT_S: Final = 4.5
#: And at least so often.
URGENT_MOST_S: Final = 9.0
#: And nothing more often than this.
LEAST_S: Final = 1.0


class Watch:
    """Looks at a run while it is written. What ended, what hangs and NaN are looked for every few seconds; what else
    alarms come of as often where it is cheap, as while no step has ended, and the rest where the share of a core allows
    it. Of a run that was looked at before only steps with new rows are read again; what is found is the same.

    Args:
        run: The run, which this watch alone refreshes.
        share: What looking may take of a core, 0 to 1, for what alarms come of; and as much for the rest.
        looks: All that is looked for.
        often: Those of them that alarms come of.

    Attributes:
        failed: What couldn't be looked for at the last look of it, and why; its findings aren't known.
    """

    def __init__(
        self, run: Run, share: float = SHARE, *, looks: Sequence[Look] = LOOKS, often: Sequence[Look] = OFTEN
    ) -> None:
        self._run = run
        self._kept = ByStep(run)
        self._share = share
        self._looks = looks
        self._often = often
        self._found: dict[Look, list[Finding]] = {}
        self._failed: dict[Look, str] = {}
        self._guards: dict[Look, Guard] = {}
        self._told: set[tuple[str, object, object, object]] = set()
        self._urgent_at = self._often_at = -math.inf
        self._whole_at = -math.inf if set(looks) - set(often) else math.inf

    @property
    def failed(self) -> list[str]:
        """See the class."""
        return sorted(self._failed.values())

    def look(self, *, whole: bool | None = None) -> Findings:
        """Look, as far as it is due.

        Args:
            whole: True looks for everything now; False for what alarms come of; None decides by the time.

        Returns:
            All that is known to be found.

        Raises:
            ProbeError: The run can't be read.
        """
        now, first = time.monotonic(), not self._found
        if whole or (whole is None and now >= self._whole_at):
            spent = self._looked(self._looks)
            self._whole_at = time.monotonic() + max(LEAST_S, spent / self._share)
            self._often_at = self._urgent_at = time.monotonic() + URGENT_S
        elif whole is False or now >= self._often_at:
            spent = self._looked(self._often)
            # The first reads all that is there; it is no measure of the next.
            self._often_at = now + (URGENT_S if first else max(URGENT_S, spent / self._share))
            self._urgent_at = now + URGENT_S
        elif now >= self._urgent_at:
            spent = self._looked([one for one in self._often if one in URGENT])
            self._urgent_at = now + min(URGENT_MOST_S, max(URGENT_S, spent / self._share))
        return Findings(one for look in self._looks for one in self._found.get(look, ()))

    @property
    def pause_s(self) -> float:
        """Seconds until the next look is due."""
        return max(0.0, min(self._urgent_at, self._often_at, self._whole_at) - time.monotonic())

    def new_alarms(self) -> list[Finding]:
        """Alarms that weren't given before, each once by its name and its place, the worst first."""
        found = Findings(one for each in self._found.values() for one in each).alarms
        fresh = []
        for one in found:
            same = {_key(after) for after in one.folded if after.name == one.name}  # in other phases
            if not self._told & {_key(one), *same}:
                fresh.append(one)
            self._told |= {_key(one), *same}
        return fresh

    def _looked(self, looks: Sequence[Look]) -> float:
        """Look for some things, and say how much CPU time it took, seconds. One that fails leaves the others."""
        begin = time.process_time()
        self._kept.refresh()
        for look in looks:
            self._failed.pop(look, None)
            found = self._guard_of(look).call(partial(self._seen, look))
            self._found[look] = found or []  # what it found before may be true no more
        return time.process_time() - begin

    def _seen(self, look: Look) -> list[Finding]:
        return facts.placed(self._run, list(look(self._run)))

    def _guard_of(self, look: Look) -> Guard:
        guard = self._guards.get(look)
        if guard is None:
            where, tell = f"{look.__module__}.{look.__qualname__}", partial(self._tell_failed, look)
            guard = Guard(where, f"{where} failed", tell=tell, most=None, log=_log, level=logging.DEBUG)
            self._guards[look] = guard
        return guard

    def _tell_failed(
        self, look: Look, _kind: str, where: str, _message: str, error: BaseException | None, *_: object
    ) -> None:
        self._failed[look] = f"{where}: {type(error).__name__}: {error}"


def _key(one: Finding) -> tuple[Any, ...]:
    """What makes a finding another one than those that were told before."""
    return one.name, one.where.rank, one.where.process, one.where.phase
