"""Which ranks wait in a phase, for whom, since when, and why that one is late.

Ranks that wait for each other leave a phase together. When each had done its own work is known from its micro-batches:
the last end of one. A rank whose work is done early waits until the last one's is. How late that one is, against the
middle of the others, has parts that add up exactly: it began the phase later, its first micro-batch came later, and
its micro-batches took longer; and these because they had more tokens, at the pace of the others, or because each token
took longer.

Nothing is told that the times don't hold. Where ranks wait for each other in every micro-batch, these take equally
long on all ranks, whoever is slow.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from probe.analysis.rank_times import Array, RankTimes, aligned, clocks, middle, of_grid, of_rows, query

__all__ = ["Cause", "Waiting", "judge", "middle", "of_grid", "of_rows", "query"]

#: ``tokens``: it had more of them; ``machine``: each took longer; ``data``: its first micro-batch came late, in the
#: phase itself or since a phase that brings data took longer; ``before``: another phase took longer, or what lies
#: between; None: no part alone explains enough.
Cause = Literal["tokens", "machine", "data", "before"]

#: What ranks must lose by waiting, as a share of the phase, for it to be told.
MATTERS: Final = 0.05

#: A rank is late in a stretch of steps, not by chance, where its mean there is as many errors from 0. It is the best of
#: all stretches, so that a common test would find one in any noise.
SURE: Final = 7.0

#: Steps of such a stretch, at least.
FEWEST: Final = 4

#: The share of these steps in which it was the last.
OFTEN: Final = 0.6

#: A cause is claimed where it explains as much of the lag.
EXPLAINS: Final = 0.8

#: Micro-batches of which the times differ by less, as a share, while their tokens differ by :data:`UNEVEN` at least,
#: wait for each other.
EVEN: Final = 0.02
UNEVEN: Final = 0.1

#: Names of phases that bring a batch.
_DATA: Final = re.compile(r"data|load|fetch|collate|batch_prep|input|next\b", re.IGNORECASE)


@dataclass(frozen=True)
class Waiting:
    """Ranks wait in one phase. Times are seconds a step, means over the steps of it.

    Attributes:
        phase: In which they wait.
        culprit: The rank that they wait for; None where it is another in each step, or where it can't be known.
        cause: Why it is late, or why all are in turn; None where no cause explains :data:`EXPLAINS` of it.
        cause_phase: Where its time goes: the phase itself, one before it, or None between phases.
        share: Of the lag, that of the cause; NaN without one.
        lag_s: How much later than the middle of the others its work is done. It is the sum of the next four.
        tokens_s: Of it, by more tokens, at the pace of the others; NaN where tokens aren't known.
        machine_s: Of it, by longer time a token; with tokens unknown NaN, and the sum of both stands in ``work_s``.
        data_s: Of it, before its first micro-batch and in phases that bring data.
        before_s: Of it, in other phases before, and between them.
        work_s: The sum of tokens_s and machine_s.
        waits: Of each rank, how long it waits.
        waited_share: Time that all ranks wait, of the time that all are in the phase.
        tokens: Of the culprit, a step; NaN where unknown.
        tokens_others: Middle of the others.
        pace: Its seconds a token over those of the others; NaN where tokens aren't known.
        since: First step of it.
        until: Last step of it.
        steps: How many.
        error_s: By which clocks of ranks may still be apart; None where no phase tells.
        synchronised: Whether ranks wait for each other in each micro-batch: then times tell of no culprit.
    """

    phase: str
    culprit: int | None = None
    cause: Cause | None = None
    cause_phase: str | None = None
    share: float = np.nan
    lag_s: float = np.nan
    tokens_s: float = np.nan
    machine_s: float = np.nan
    data_s: float = np.nan
    before_s: float = np.nan
    work_s: float = np.nan
    waits: Mapping[int, float] = field(default_factory=dict)
    waited_share: float = np.nan
    tokens: float = np.nan
    tokens_others: float = np.nan
    pace: float = np.nan
    since: int | None = None
    until: int | None = None
    steps: int = 0
    error_s: float | None = None
    synchronised: bool = False


@dataclass(frozen=True)
class _Arrivals:
    """One phase in which ranks wait: when each had done its own work, and of what that consists."""

    times: RankTimes
    done: Array  #: when its work was done, by one clock
    early: Array  #: when it began the phase
    pre: Array  #: from there to its first micro-batch
    work: Array  #: from there to the end of the last one


@dataclass(frozen=True)
class _Lags:
    """Of each rank in each step, against the middle of the others: the whole, and its parts."""

    whole: Array
    work: Array
    tokens: Array
    data: Array
    before: Array
    of_phase: Mapping[str, Array]  #: of before, each phase
    brought: Mapping[str, Array]  #: of data, each phase that brings it


def judge(phases: Mapping[str, RankTimes]) -> list[Waiting]:
    """Where ranks wait, for whom and why.

    Args:
        phases: By name in the order in which they begin, of :func:`of_rows`: of a whole run, or of its last steps.

    Returns:
        One for each phase in which it matters, or can't be known, the largest loss first.
    """
    clock = clocks(phases)
    shifted = {name: aligned(times, clock) for name, times in phases.items()}
    error = clock.error_s
    found: list[Waiting] = []
    since_common: dict[str, RankTimes] = {}
    for name, times in shifted.items():
        if len(times.ranks) < 2:
            continue
        if _is_synchronised(times):
            found.append(Waiting(name, error_s=error, steps=len(times.steps), synchronised=True))
            since_common = {}
            continue
        arrivals = _arrivals(times, error)
        if arrivals is None:
            since_common[name] = times
            continue
        one = _judged(name, arrivals, since_common, error)
        since_common = {}
        if one is not None:
            found.append(one)
    return sorted(found, key=lambda one: -np.nan_to_num(one.waited_share * one.steps))


def _is_synchronised(times: RankTimes) -> bool:
    """Whether micro-batches take equally long on all ranks although their tokens don't."""
    work = _worked(times)
    known = np.isfinite(work).all(1) & np.isfinite(times.tokens).all(1) & (middle(times.tokens, 1) > 0)
    if known.sum() < FEWEST:
        return False
    spreads = [np.ptp(one[known], axis=1) / np.mean(one[known], axis=1) for one in (work, times.tokens)]
    return bool(np.median(spreads[0]) < EVEN and np.median(spreads[1]) > UNEVEN)


def _arrivals(times: RankTimes, error: float | None) -> _Arrivals | None:
    """When ranks had done their work; None where they don't wait for each other at the end of the phase."""
    has_batches = bool(np.isfinite(times.first).mean() > 0.9)
    # Without micro-batches a phase that ranks leave together has, for all that is known, as much work on each.
    pre = times.first - times.begin if has_batches else np.zeros_like(times.begin)
    work = np.fmax(_worked(times), times.device) if has_batches else np.zeros_like(times.begin)
    done = times.begin + pre + work
    known = np.isfinite(done).sum(1) > 1
    if known.sum() < 1:
        return None
    apart, left = (np.nanmedian(_spread(one[known])) for one in (done, times.end))
    if left > max(2 * (error or 0.0), apart / 4):
        return None
    return _Arrivals(times, done, times.begin, pre, work)


def _worked(times: RankTimes) -> Array:
    """How long micro-batches took: of several mini-batches without what lies between, since each ends with a wait."""
    return np.asarray(np.where(times.cuts > 1, times.ran, times.last - times.first), dtype=np.float64)


def _spread(values: Array) -> Array:
    return np.asarray(np.nanmax(values, 1) - np.nanmin(values, 1), dtype=np.float64)


def _above(values: Array) -> Array:
    """How much more each rank has than the mean of the others, which is linear: parts add up."""
    ranks = values.shape[1]
    return np.asarray((values - values.mean(1, keepdims=True)) * (ranks / (ranks - 1)), dtype=np.float64)


def _lags(
    arrivals: _Arrivals, local: Mapping[str, RankTimes], known: Any, parts: tuple[Array, Array, Array], whole: Array
) -> _Lags:
    """The parts of each rank's lag, in the steps that are known on all ranks.

    Args:
        arrivals: When ranks had done their work.
        local: The phases before, in which they don't wait.
        known: What takes the steps that are known.
        parts: How much later than the others each began, came to its first micro-batch, and was done with them.
        whole: The sum of these.
    """
    times, (early, pre, work) = arrivals.times, parts
    of_phase = {name: _at(one, times.steps[known]) for name, one in local.items()}
    brought = {name: lag for name, lag in of_phase.items() if _DATA.search(name)}
    waited = sum(brought.values(), np.zeros_like(early))
    tokens = _pace(arrivals.work[known], times.tokens[known]) * _above(times.tokens[known])
    before = {name: lag for name, lag in of_phase.items() if not _DATA.search(name)}
    return _Lags(whole, work, tokens, pre + waited, early - waited, before, brought)


def _at(times: RankTimes, steps: Array) -> Array:
    """How much longer a phase took on each rank, by the steps of another one; 0 where it didn't run."""
    found = np.zeros((len(steps), len(times.ranks)))
    at = np.searchsorted(times.steps, steps)
    there = (at < len(times.steps)) & (times.steps[np.minimum(at, len(times.steps) - 1)] == steps)
    found[there] = np.nan_to_num(_above(times.busy[at[there]]))
    return found


def _pace(work: Array, tokens: Array) -> Array:
    """Seconds a token on the others of each rank, of the shape of the ranks.

    It is what one more token takes, where their tokens vary enough from step to step to say so, since some time goes
    by whatever the tokens are; else their time over their tokens.
    """
    with np.errstate(all="ignore"):
        centred, token = work - work.mean(0), tokens - tokens.mean(0)
        common, token_power, work_power = (
            (a * b).sum(0) for a, b in ((centred, token), (token, token), (centred, centred))
        )
        ratio = (work.sum() - work.sum(0)) / (tokens.sum() - tokens.sum(0))
        common, token_power, work_power = (one.sum() - one for one in (common, token_power, work_power))
        slope, explained = common / token_power, common**2 / (token_power * work_power)
        takes = (explained > 0.5) & (len(work) * (work.shape[1] - 1) >= 8) & (slope > 0) & (slope < 1.5 * ratio)
    return np.asarray(np.where(takes, slope, ratio), dtype=np.float64)


def _judged(name: str, arrivals: _Arrivals, local: Mapping[str, RankTimes], error: float | None) -> Waiting | None:
    times = arrivals.times
    known: Any = np.asarray(np.isfinite(arrivals.done + times.end).all(axis=1))
    if not known.any():
        return None
    known = slice(None) if known.all() else known  # which copies nothing
    early, pre, work = (_above(one[known]) for one in (arrivals.early, arrivals.pre, arrivals.work))
    whole, done = early + pre + work, arrivals.done[known]
    waits = done.max(1, keepdims=True) - done
    inside = times.end[known] - times.begin[known].min(1, keepdims=True)
    length = float(np.median(inside.max(1)))
    culprit, part = _culprit(whole, waits, MATTERS * length)
    lost = float(waits[part].mean() / max(inside[part].mean(), 1e-12))
    if lost < MATTERS / times.ranks.size or (culprit is None and lost < MATTERS):
        return None
    lags = _lags(arrivals, local, known, (early, pre, work), whole)
    late = np.argmax(done, axis=1)[part] if culprit is None else np.full(part.stop - part.start, culprit)
    told = _told(name, lags, part, late)
    if culprit is None and told.cause != "tokens":  # some rank is the last in each step; that alone is no cause
        told = replace(told, cause=None, cause_phase=None, share=np.nan)
    steps, tokens = times.steps[known][part], times.tokens[known][part]
    own, others, pace = _of_culprit(arrivals.work[known][part], tokens, culprit)
    return replace(
        told,
        culprit=None if culprit is None else int(times.ranks[culprit]),
        waits={int(rank): float(wait) for rank, wait in zip(times.ranks, waits[part].mean(0), strict=True)},
        waited_share=lost,
        since=int(steps[0]),
        until=int(steps[-1]),
        steps=len(steps),
        error_s=error,
        tokens=own,
        tokens_others=others,
        pace=pace,
    )


def _culprit(lags: Array, waits: Array, least: float) -> tuple[int | None, slice]:
    """The rank that is late in a stretch of steps by more than ``least``, not by chance, and the stretch; all, and
    nobody, where there is none."""
    found, best, whole = None, 0.0, slice(0, len(lags))
    last = waits == 0
    for rank in range(lags.shape[1]):
        lag = lags[:, rank]
        stretch, score = _stretch(lag - least)
        if score <= best or stretch.stop - stretch.start < FEWEST:
            continue
        here = lag[stretch]
        spread = max(_spread_of_changes(lag), float(here.std()), 1e-9)
        if here.mean() * np.sqrt(len(here)) >= SURE * spread and last[stretch, rank].mean() >= OFTEN:
            found, best, whole = rank, score, stretch
    return found, whole


def _stretch(values: Array) -> tuple[slice, float]:
    """The contiguous part with the largest sum, and this sum."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    lowest = np.minimum.accumulate(sums)
    end = int(np.argmax(sums - lowest))
    begin = int(np.argmin(sums[: end + 1]))
    return slice(begin, end), float(sums[end] - sums[begin])


def _spread_of_changes(values: Array) -> float:
    """Standard deviation of what differs from step to step, which a change once doesn't make larger."""
    changes = np.diff(values)
    return float(1.4826 * np.median(np.abs(changes)) / np.sqrt(2)) if len(changes) else 0.0


def _told(name: str, lags: _Lags, part: slice, late: NDArray[np.int64]) -> Waiting:
    """The parts of the lag of those who are late, and the cause that explains enough of it."""

    def mean(values: Array) -> float:
        return float(np.take_along_axis(values[part], late[:, None], 1).mean())

    whole, work, tokens, data, before = (
        mean(one) for one in (lags.whole, lags.work, lags.tokens, lags.data, lags.before)
    )
    parts: dict[Cause, float] = {"tokens": tokens, "machine": work - tokens, "data": data, "before": before}
    shares = {cause: value / whole for cause, value in parts.items() if whole > 0 and np.isfinite(value)}
    cause = max(shares, key=lambda one: shares[one], default=None)
    if cause is not None and shares[cause] < EXPLAINS:
        cause = None
    where: str | None = name
    if cause == "before":
        of_phase = {phase: mean(lag) for phase, lag in lags.of_phase.items()}
        where = max(of_phase, key=lambda phase: of_phase[phase], default=None)
        where = where if where is not None and of_phase[where] >= EXPLAINS * before else None
    elif cause == "data":
        brought = {phase: mean(lag) for phase, lag in lags.brought.items()}
        first = max(brought, key=lambda phase: brought[phase], default=None)
        where = first if first is not None and brought[first] > data / 2 else name
    return Waiting(
        name,
        cause=cause,
        cause_phase=where if cause is not None else None,
        share=min(shares[cause], 1.0) if cause is not None else np.nan,
        lag_s=whole,
        tokens_s=tokens,
        machine_s=work - tokens,
        data_s=data,
        before_s=before,
        work_s=work,
    )


def _of_culprit(work: Array, tokens: Array, culprit: int | None) -> tuple[float, float, float]:
    """Its tokens, those of the middle one of the others, and its seconds a token over theirs."""
    if culprit is None or not np.isfinite(tokens).all() or not (tokens.sum(0) > 0).all():
        return np.nan, np.nan, np.nan
    others = np.arange(work.shape[1]) != culprit
    pace = work.sum(0) / tokens.sum(0)
    usual = float(np.median(pace[others]))
    own, theirs = float(tokens[:, culprit].mean()), float(np.median(tokens[:, others].mean(0)))
    return own, theirs, float(pace[culprit] / usual) if usual > 0 else np.nan
