"""Ranks that wait, for whom, and why that one is late: by time, not by tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from probe.analysis import waiting
from probe.analysis.by_step import by_step, judged
from probe.analysis.change import Change
from probe.analysis.framework_settings import setting
from probe.analysis.query import literal
from probe.analysis.rank_times import LISTS
from probe.analysis.verdict import facts
from probe.analysis.verdict.finding import Cost, Finding, Since, Where
from probe.sql import Sql, sql
from probe.text import missing, percent, ratio, seconds

if TYPE_CHECKING:
    from probe.analysis.grid import Grid
    from probe.analysis.rank_times import RankTimes
    from probe.runs.reader import Run

#: Steps that are looked at: the newest.
STEPS: Final = 1000
#: Waiting is worth an alarm where it takes this share of a step.
WORTH: Final = 0.03


def ranks(run: Run) -> list[Finding]:
    """How long ranks wait for each other, for whom, and whether that one has more tokens, is slower or lacks data."""
    first, last = facts.window(run, STEPS)
    if last is None:
        return []
    phases, told = judged(run, by_step(run, waiting.query, first, last, "ranks", LISTS), _judged)
    step_s = facts.step_time_s(run, first, last)
    found = [_finding(run, one, step_s, phases) for one in told]
    return by_cause([one for one in found if one is not None])


def _judged(told: Grid) -> tuple[dict[str, RankTimes], list[waiting.Waiting]]:
    phases = waiting.of_grid(told)
    return phases, waiting.judge(phases)


def by_cause(found: list[Finding]) -> list[Finding]:
    """One finding for each rank and cause.

    Args:
        found: One for each phase that a rank is late in.

    Returns:
        Of each rank and cause the one that costs most, the others folded under it.
    """
    causes: dict[tuple[str, int | None], list[Finding]] = {}
    for one in found:
        causes.setdefault((one.name, one.where.rank), []).append(one)
    told = []
    for alike in causes.values():
        worst, *others = sorted(alike, key=lambda one: -one.weight)
        told.append(worst.moved(folded=tuple(others)))
    return told


def _finding(run: Run, one: waiting.Waiting, step_s: float | None, phases: Mapping[str, RankTimes]) -> Finding | None:
    if one.synchronised or one.culprit is None or missing(one.lag_s) or not step_s:
        return None
    share = one.lag_s / step_s
    if share < WORTH or one.cause in (None, "tokens", "before"):
        return None
    victims = f"the other {len(one.waits) - 1}" if len(one.waits) > 2 else "the other rank"
    late = f"{seconds(one.lag_s)} of a step, {percent(share)}"
    where = Where(phase=one.cause_phase or one.phase, rank=one.culprit)
    if one.cause == "machine":
        text = (
            f"Rank {one.culprit} needs {ratio(one.pace)} as long for a token as the others in {one.phase} since step "
            f"{one.since}; {victims} wait for it, {late}."
        )
        change = Change("Check that device's clock speed, temperature and other jobs, or leave its node out.")
        others: tuple[str, ...] = ("Its host is busy with other work.", "Its device is throttled.")
        why = ""
        if one.tokens_others:
            why = f"Tokens aren't the reason: it has {ratio(one.tokens / one.tokens_others)} those of the others."
    else:
        text = f"The data of rank {one.culprit} has been late since step {one.since}: {victims} wait for it in "
        text += f"{one.phase}, {late}."
        name, now = setting(run, "loader_workers")
        change = Change("Give the loader more workers, or prefetch; look at the storage of that rank.", name, now=now)
        others = ()
        why = f"{seconds(one.data_s)} of it pass before its first micro-batch, or in the phases that load data."
    return Finding(
        "alarm",
        "slow_rank" if one.cause == "machine" else "data_late",
        text,
        topic="overview",
        where=where,
        since=Since(one.since),
        cost=Cost(seconds=float(one.lag_s), share=share),
        explained=None if missing(one.share) else float(one.share),
        why=why + _clocks(one.error_s),
        evidence_sql=_evidence(one, phases),
        change=change,
        alternatives=others,
        weight=100 * share,
    )


def _clocks(error_s: float | None) -> str:
    """How well the clocks of the ranks agree, where that isn't beyond all doubt: on one machine they are one."""
    return "" if error_s is None or error_s < 1e-6 else f" The ranks' clocks agree within {seconds(error_s)}."


def _evidence(one: waiting.Waiting, phases: Mapping[str, RankTimes]) -> Sql:
    """The scopes of the rank that take longer than the other ranks' in the same step, by half of what they usually do
    or more: its micro-batches for each token where that is the cause, else the phases that brought its data.
    """
    if one.cause == "machine":
        here = sql("phase = {phase} and kind = 'micro_batch' and tokens > 0", phase=literal(one.phase))
        value = Sql("duration / tokens")
    else:
        here = sql("phase = {phase} and kind = 'phase'", phase=literal(one.cause_phase or one.phase))
        value = Sql("duration")
    here = sql("{here} and step between {since} and {until}", here=here, since=one.since, until=one.until)
    times = phases[one.phase if one.cause == "machine" else one.cause_phase or one.phase]
    usual = _times_others(one, times, times.ran / times.tokens if one.cause == "machine" else times.busy)
    if usual is None:
        return sql("select * from spans where rank = {culprit} and {here}", culprit=one.culprit, here=here)
    compared = sql(
        """select step, median({value}) filter (rank <> {culprit}) as others from spans
        where {here} group by step""",
        value=value,
        culprit=one.culprit,
        here=here,
    )
    return sql(
        """select spans.* from spans join ({compared}) compared using (step)
        where rank = {culprit} and {here} and {value} > {ratio} * others""",
        compared=compared,
        culprit=one.culprit,
        here=here,
        value=value,
        ratio=(1 + usual) / 2,
    )


def _times_others(one: waiting.Waiting, times: RankTimes, values: np.ndarray) -> float | None:
    """How many times the others' the culprit's values are in the steps of it, in the middle; None where unknown."""
    own = times.ranks == one.culprit
    steps = (times.steps >= (one.since or 0)) & (times.steps <= (one.until or 0))
    with np.errstate(all="ignore"):
        theirs = waiting.middle(values[steps][:, ~own], 1)
        told = values[steps][:, own][:, 0] / theirs
    told = told[np.isfinite(told)]
    return float(np.median(told)) if len(told) else None
