"""Everything that is found in a run, the worst first."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from probe.analysis.by_step import shared
from probe.analysis.verdict import (
    agreement,
    apart,
    audited,
    balance,
    baseline,
    ended,
    facts,
    idle,
    instrument,
    kept,
    leaks,
    learning,
    memory,
    metrics,
    padding,
    rollout,
    unjudged,
    waits,
    with_advice,
)
from probe.analysis.verdict.finding import Finding, Findings
from probe.errors import ProbeError
from probe.guard import Guard

if TYPE_CHECKING:
    from probe.runs.reader import Run

_log = logging.getLogger("probe.verdict")

Look = Callable[["Run"], list[Finding]]

#: What must be known within seconds: looked for first.
URGENT: Final[tuple[Look, ...]] = (ended.stopped, metrics.nan)

#: What else an alarm may come of.
ALARMS: Final[tuple[Look, ...]] = (
    metrics.accidental,
    metrics.unequal_means,
    metrics.last_wins,
    audited.numbers,
    learning.equal_rewards,
    learning.gradient,
    learning.cut_off,
    agreement.tokens,
    baseline.group_baseline,
    leaks.floor,
    apart.memory,
    waits.ranks,
)

#: The rest.
TUNING: Final[tuple[Look, ...]] = (
    memory.peak,
    memory.unequal,
    balance.over_cap,
    balance.ranks,
    balance.micro_batches,
    padding.tax,
    rollout.tail,
    idle.sides,
    audited.contradictions,
    audited.unweighted,
    instrument.missing_rows,
    instrument.trouble,
    instrument.left_out,
    instrument.cost,
    unjudged.unjudged,
)

#: What alarms come of: looked for often.
OFTEN: Final = (*URGENT, *ALARMS)

LOOKS: Final = (*OFTEN, *TUNING)


def found(run: Run) -> Findings:
    """What :func:`probe.analysis.verdict.findings` gives."""
    told: list[Finding] = []
    whole = True
    with shared(run):
        for look in LOOKS:
            seen = _guard(f"{look.__module__}.{look.__name__}").call(partial(_seen, run, look))
            if isinstance(seen, ProbeError):
                raise seen
            told += seen or []
            whole = whole and seen is not None
        looked = Findings(told)
        all_of_them = _guard("advice").call(partial(with_advice.asked, run, looked))
    if all_of_them is None:
        return looked
    if whole:
        kept.keep(run, all_of_them)
    return all_of_them


def _seen(run: Run, look: Look) -> list[Finding] | ProbeError:
    """What one look finds; or the error, where the run itself can't be read: the look isn't at fault."""
    try:
        return facts.placed(run, look(run))
    except ProbeError as error:
        return error


def _guard(where: str) -> Guard:
    """One that can't look must not hide what the others find, nor end a report; and findings stand without advice."""
    return Guard(where, f"{where} failed", kind="findings", tell=None, most=None, log=_log, level=logging.WARNING)
