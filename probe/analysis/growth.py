"""Whether a level that should come back after every step grows instead, and what it grows with.

The level is that of memory at one boundary, the end of each step, on one process. It is regressed on the step and on
the tokens: those of the step, its longest sequence, and the running maximum of both, which a cache follows that keeps
the largest buffer it ever needed. What remains of the step is growth that no batch explains. The error of that slope
holds whatever memory the noise has (:mod:`probe.analysis.trend`). Beyond it three things are asked of a leak: it rises
in each third, it doesn't level off as a warm-up does, and what it comes to is a part of the level that matters.

Numbers alone stand here, no sentence: the arrays may come from :func:`query` or from a run that is still being written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from probe.analysis.trend import trend
from probe.sql import literal, sql

Array = NDArray[np.float64]

#: ``leak`` grows with the steps, ``batches`` with the tokens, ``undecided`` with both, which rise together exactly;
#: ``none`` doesn't grow, and of ``unknown`` too few steps are known.
Cause = Literal["leak", "batches", "undecided", "none", "unknown"]

#: Steps that are looked at, at least.
FEWEST: Final = 16

#: A slope counts as many times its own error. Warm-ups and caches are left out by shape, random walks by this alone.
SURE: Final = 4.5

#: What it must have been before tokens are taken off: their regressors take some of the memory of the noise away.
_PLAIN: Final = 2.5

#: An interval of 95 % reaches as many errors to either side, of samples as small as 16.
_CERTAIN: Final = 2.1

#: Of a part of the run the same, since it was chosen from several.
SURE_OF_PART: Final = 6.5

#: The share of the series that a warm-up may take, at its beginning.
WARM_UP: Final = 0.2

#: What a third must rise by, as a share of the mean of all.
STEADY: Final = 0.3

#: The pace at the end, as a share of the mean pace. A warm-up whose time constant is a third of the series has 0.16.
LASTING: Final = 0.45

#: The same of a process's own memory: an allocator keeps what was freed in pieces, which fit ever more often, so that
#: the process grows ever slower for hundreds of steps. (The demo has 0.63 after 50 steps.)
LASTING_OF_HOST: Final = 0.75

#: A process's own memory that no single phase keeps must have grown by that share of its level: in pieces that were
#: freed and don't fit any more it grows as steadily for tens of steps, up and down in every phase. (The demo grows by a
#: fifth; its updates take twice as much as stays, and its rollouts give as much back.)
OUTGROWS: Final = 0.5

#: What has come on top must be that share of the level, or it isn't told.
MATTERS: Final = 0.01

#: Where the tokens foretell the step as well as that (R²), nobody can tell which of the two it is.
TOGETHER: Final = 0.995

#: Healthy steps before a leak that say what a phase keeps without it.
FEWEST_BEFORE: Final = 5

#: A cause is claimed where it explains as much of the excess.
EXPLAINS: Final = 0.8

#: Steps at the end whose median is the level of now.
NOW: Final = 5


@dataclass(frozen=True)
class Growth:
    """What :func:`judge` says of one level.

    Attributes:
        cause: See :data:`Cause`.
        bytes_per_step: Growth that no batch explains, a step; NaN where the cause is unknown or undecided.
        low: Lower end of its interval of 95 %.
        high: Upper end.
        since: The step from which on it grows; None where it is no leak.
        total_bytes: What has come on top since then; where batches explain it, what came with them.
        explained: Share of the rise that the cause explains, 0 to 1; NaN without a rise.
        full_step: The first step that would end over the capacity at this pace; None where no capacity is known or
            it isn't a leak.
        steps: How many the numbers are from.
        tokens_known: Whether tokens could be told apart from steps at all.
    """

    cause: Cause
    bytes_per_step: float = np.nan
    low: float = np.nan
    high: float = np.nan
    since: int | None = None
    total_bytes: float = np.nan
    explained: float = np.nan
    full_step: int | None = None
    steps: int = 0
    tokens_known: bool = False


@dataclass(frozen=True)
class Keeper:
    """What :func:`keeper` says of the phases.

    Attributes:
        phase: Of which more stays than before, "" for what lies between phases; None where no phase alone explains
            the growth.
        bytes_per_step: What each phase keeps more, a step.
        share: Of the growth, that of ``phase``; NaN without one.
    """

    phase: str | None
    bytes_per_step: dict[str, float]
    share: float = np.nan


# ------------------------------------------------------------------------------------------------------------- SQL


def query(first: int, last: int) -> str:
    """The query for the level of each process at the end of each step, with the tokens of the step: a row a step.

    Args:
        first: Of the steps.
        last: Of the steps.

    Returns:
        SQL for columns step, processes (names, in order), and of each of them, as lists in that order: level (bytes at
        the end of the step's own scope, or of the last scope of the step where it has none), peak and
        reserved_peak (bytes, the largest of the step), tokens and longest (of the batches of the step, each once;
        NULL where they aren't known), rank, total (bytes that the device has) and hosts (1 where it is the memory of
        the process that was measured, else 0).
    """
    where = sql("where step between {first} and {last}", first=int(first), last=int(last))
    # Tokens are those of the phase that cuts a batch first, as `once` says in the view `micro_batches_counted`.
    return sql(
        """
with levels as (
  select step, process, arg_max(allocated_bytes, (kind = 'step', wall_ns)) filter (ends) as level,
         max(peak_allocated_bytes) filter (ends) as peak, max(peak_reserved_bytes) filter (ends) as reserved_peak,
         max(rank) as rank, max(device_total_bytes) as total,
         bool_and(source is not distinct from 'process_rss') filter (ends)::int as hosts
  from (select *, edge = 'leave' and allocated_bytes is not null as ends from memory {where})
  where ends or device_total_bytes is not null  -- what a device has stands in its samples
  group by step, process having bool_or(ends)),
cut as (
  select step, process, phase, min(batch_id) as batch, sum(tokens)::bigint as tokens,
         max(coalesce(list_max(lengths), 0)) as longest
  from micro_batches {where} group by step, process, phase),
batches as (
  select step, process, arg_min(tokens, batch) as tokens, arg_min(longest, batch) as longest
  from cut group by step, process)
select step, list(process order by process) as processes, list(level order by process) as level,
       list(peak order by process) as peak, list(reserved_peak order by process) as reserved_peak,
       list(tokens order by process) as tokens, list(longest order by process) as longest,
       list(rank order by process) as rank, list(total order by process) as total,
       list(hosts order by process) as hosts
from levels left join batches using (step, process) group by step order by step""",
        where=where,
    )


def phases_query(process: str, first: int, last: int) -> str:
    """The query for what each phase of one process keeps in each step: a row for each phase of a step.

    Args:
        process: By its name in the run.
        first: Of the steps.
        last: Of the steps.

    Returns:
        SQL for columns step, phase and kept (bytes at the ends of its outermost scopes minus those at their begins).
    """
    return sql(
        """
with edges as (
  select scope_id, step, phase, any_value(kind) as kind, any_value(parent_id) as parent, count(*) as ends,
         max(allocated_bytes) filter (edge = 'leave') - max(allocated_bytes) filter (edge = 'enter') as kept
  from memory where process = {process} and step between {first} and {last} and edge <> 'sample'
  group by scope_id, step, phase)
select inner_.step, inner_.phase, sum(inner_.kept)::bigint as kept
from edges inner_ left join edges outer_ on outer_.scope_id = inner_.parent and outer_.step = inner_.step
where inner_.phase is not null and outer_.phase is null and inner_.ends = 2
group by inner_.step, inner_.phase order by inner_.step, inner_.phase""",
        process=literal(process),
        first=int(first),
        last=int(last),
    )


# ----------------------------------------------------------------------------------------------------------- judge


def fastest(levels: Array) -> int:
    """Which of several processes grows fastest, so that it alone need be judged.

    Args:
        levels: Bytes, of the shape (steps, processes), NaN where unknown.

    Returns:
        The column whose last third lies highest over its first, without the warm-up.
    """
    levels = levels[int(len(levels) * WARM_UP) :]
    third = max(1, len(levels) // 3)
    with np.errstate(all="ignore"):
        rise = _mean(levels[-third:]) - _mean(levels[:third])
    return int(np.argmax(np.where(np.isnan(rise), -np.inf, rise)))


def _mean(values: Array) -> Array:
    known = ~np.isnan(values)
    return np.where(known.any(0), np.where(known, values, 0).sum(0) / np.maximum(known.sum(0), 1), np.nan)


def judge(
    steps: Array,
    level: Array,
    tokens: Array | None = None,
    longest: Array | None = None,
    *,
    capacity_bytes: float | None = None,
    lasting: float = LASTING,
) -> Growth:
    """Whether the level grows, by how much a step, and what with.

    Args:
        steps: Numbers of the steps, rising.
        level: Bytes at the same boundary of each, NaN where unknown.
        tokens: Of each step on that process, NaN where unknown; None where they never are.
        longest: Of each step's sequences, in tokens; likewise.
        capacity_bytes: Of what the level fills, less what a step needs above that level; None where it isn't known.
        lasting: The pace that a leak has at the end, as a share of its mean pace.

    Returns:
        What is known of it.
    """
    series = [
        np.asarray(one, dtype=np.float64) for one in (steps, level, *(x for x in (tokens, longest) if x is not None))
    ]
    known = np.isfinite(series[0]) & np.isfinite(series[1])
    # Steps without batches, such as one that only validates, don't take the tokens from all others.
    told = [one for one in series[2:] if np.isfinite(one[known]).mean() > 0.9] if known.any() else []
    for one in told:
        known &= np.isfinite(one)
    when, height = series[0][known], series[1][known]
    companions = [one[known] for one in told]
    if len(when) < FEWEST:
        return Growth("unknown", steps=len(when), tokens_known=bool(told))
    best = Growth("none", steps=len(when), tokens_known=bool(told))
    for begin, sure in _parts(len(when)):
        found = _judged(when[begin:], height[begin:], _beside(companions, begin), sure, bool(told), lasting)
        if found.cause == "leak" and not _slows(when, height, begin, found.bytes_per_step):
            return _dated(found, when, height, companions, capacity_bytes)
        best = found if sure == SURE else best
    return best


def _parts(count: int) -> list[tuple[int, float]]:
    """Where the series is begun, and how sure one must be: the whole without its warm-up, then its later parts."""
    parts = [(int(count * WARM_UP), SURE)]
    for share in (2, 4, 8):
        if count // share >= 2 * FEWEST:
            parts.append((count - count // share, SURE_OF_PART))
    return parts


def _beside(companions: list[Array], begin: int) -> list[Array]:
    """Tokens and longest with their running maxima, of which the part before counts too."""
    beside = [one[begin:] for one in companions]
    return [*beside, *(np.maximum.accumulate(one)[begin:] for one in companions)]


def _judged(when: Array, height: Array, beside: list[Array], sure: float, told: bool, lasting: float) -> Growth:
    """One part of the series."""
    alone, span = trend(height, [when]), float(when[-1] - when[0])
    whole = trend(height, [when, *beside]) if beside else alone
    usual = float(np.median(np.abs(height)))
    matters = MATTERS * usual
    grows = alone.certainty >= min(sure, _CERTAIN) and alone.slope * span >= matters
    rises = grows and _lasts(when, height, alone.slope, lasting)
    count = len(when)
    if whole.together >= TOGETHER:
        if not rises:
            return Growth("none", steps=count, tokens_known=told)
        return Growth("undecided", total_bytes=alone.slope * span, steps=count, tokens_known=told)
    left = height - whole.others
    sure_at_all = whole.certainty >= (sure if alone.certainty >= _PLAIN else 3 * sure)
    if sure_at_all and whole.slope * span >= matters and _lasts(when, left, whole.slope, lasting):
        return Growth(
            "leak",
            whole.slope,
            whole.slope - _CERTAIN * whole.error,
            whole.slope + _CERTAIN * whole.error,
            int(when[0]),
            whole.slope * span,
            float(np.clip(whole.slope / alone.slope, 0, 1)) if alone.slope > 0 else 1.0,
            steps=count,
            tokens_known=told,
        )
    numbers = (whole.slope, whole.slope - _CERTAIN * whole.error, whole.slope + _CERTAIN * whole.error)
    came = _rise(when, height)
    share = _rise(when, whole.others) / came if came > matters else np.nan
    # A cache that keeps the largest buffer rises in a few leaps, of which no trend is sure; each comes with its batch.
    if told and share >= EXPLAINS and (grows or _moved_together(height, beside) >= EXPLAINS):
        return Growth("batches", *numbers, None, share * came, min(share, 1.0), steps=count, tokens_known=told)
    return Growth("none", *numbers, steps=count, tokens_known=told)


def _moved_together(height: Array, beside: list[Array]) -> float:
    """Which share of a level's changes from step to step, as squares, those of what stands beside it explain: two
    random walks rise together by chance, and don't take the same steps.
    """
    changes = np.diff(height)
    squares = float(changes @ changes)
    if not squares:
        return 0.0
    table = np.stack([np.diff(one) for one in beside], axis=1)
    left = changes - table @ np.linalg.lstsq(table, changes, rcond=None)[0]
    return 1 - float(left @ left) / squares


def _slows(when: Array, height: Array, begin: int, slope: float) -> bool:
    """Whether a later part of the series rises more slowly than as long a part before it, as the end of a warm-up."""
    before = slice(max(0, 2 * begin - len(when)), begin)
    if len(when) - begin > begin:
        return False
    return _rise(when[before], height[before]) > slope * float(when[before][-1] - when[before][0])


def _rise(when: Array, series: Array) -> float:
    """What the straight line through a series rises by."""
    centred = when - when.mean()
    return float(centred @ series / (centred @ centred) * (when[-1] - when[0]))


def _lasts(when: Array, series: Array, slope: float, lasting: float) -> bool:
    """Whether the rise is one in each third, and as fast at the end as before."""
    thirds = np.array_split(np.arange(len(when)), 3)
    if any(_middle_slope(when[part], series[part]) < STEADY * slope for part in thirds):
        return False
    x = (when - when.mean()) / (when[-1] - when[0])
    table = np.stack([np.ones(len(x)), x, x * x], axis=1)
    found = np.linalg.lstsq(table, series, rcond=None)[0]
    return bool(found[1] + 2 * found[2] * x[-1] >= lasting * found[1])


def _middle_slope(when: Array, series: Array) -> float:
    """The median of the slopes between any two points, of twelve points at most: no single step decides it."""
    parts = np.array_split(np.arange(len(when)), min(12, len(when)))
    x, y = (np.array([np.median(values[part]) for part in parts]) for values in (when, series))
    first, second = np.triu_indices(len(x), 1)
    return float(np.median((y[second] - y[first]) / (x[second] - x[first])))


def _dated(found: Growth, when: Array, height: Array, companions: list[Array], capacity: float | None) -> Growth:
    """A leak with the step at which it began, in the whole series, and the one that it fills the capacity in."""
    beside = _beside(companions, 0)
    left = height - (trend(height, [when, *beside]).others if beside else 0.0)
    begin = _bend(when, left)
    if len(when) - begin >= FEWEST:  # what was sure of a part of the run is exact from the bend on
        own = trend(height[begin:], [when[begin:], *_beside(companions, begin)])
        if own.certainty >= SURE:
            low, high = own.slope - _CERTAIN * own.error, own.slope + _CERTAIN * own.error
            found = replace(found, bytes_per_step=own.slope, low=low, high=high, steps=len(when) - begin)
    since, total = int(when[begin]), found.bytes_per_step * float(when[-1] - when[begin])
    full = None
    if capacity is not None and found.bytes_per_step > 0:
        full = full_step(float(when[-1]), float(np.median(height[-NOW:])), found.bytes_per_step, capacity)
    return replace(found, since=since, total_bytes=total, full_step=full)


def full_step(last: float, level_bytes: float, bytes_per_step: float, capacity_bytes: float) -> int:
    """The first step that would end over a capacity.

    Args:
        last: The last step that is known.
        level_bytes: In it, the median of the last :data:`NOW`.
        bytes_per_step: What comes on top each step, above 0.
        capacity_bytes: Of what the level fills.

    >>> full_step(100, 30, 5, 50)
    104
    """
    return int(last + max(0.0, np.ceil((capacity_bytes - level_bytes) / bytes_per_step)))


def _bend(when: Array, series: Array) -> int:
    """Where a level that was even begins to rise: of all such bends the one that leaves the smallest squares."""
    candidates = np.unique(np.linspace(0, len(when) - FEWEST // 2, min(256, len(when) - FEWEST // 2 + 1)).astype(int))
    squares = []
    for at in candidates:
        over = np.maximum(when - when[at], 0.0)
        over = over - over.mean()
        centred = series - series.mean()
        squares.append(float(centred @ centred - (over @ centred) ** 2 / (over @ over)))
    return int(candidates[int(np.argmin(squares))])


def keeper(phases: dict[str, Array], floor: Array, growth: Growth, steps: Array) -> Keeper:
    """Which phase keeps what a leak adds.

    A phase that takes what another gives back, such as an engine that wakes and sleeps, keeps much in every step: of
    each phase counts what it keeps more than before the leak began, where at least five such steps are known.

    Args:
        phases: Bytes that each phase kept in each step, of the shape of ``steps``; NaN where it didn't run, as 0.
        floor: Bytes at the end of each step.
        growth: What :func:`judge` said of ``floor``.
        steps: Numbers of the steps.

    Returns:
        What each phase keeps more, and the one that explains at least 80 % of the growth, if one does while no other
        explains more than 20 % of it either way.
    """
    if growth.since is None or not growth.bytes_per_step > 0:
        return Keeper(None, {})
    warm = np.arange(len(steps)) >= WARM_UP * len(steps)  # what a first step takes, it keeps, and that is no leak
    after = (steps >= growth.since) & warm
    before = (steps < growth.since) & warm
    added = np.diff(floor, prepend=np.nan)
    known = {name: np.nan_to_num(kept) for name, kept in phases.items()}
    named = {**known, "": np.nan_to_num(added - np.sum(list(known.values()), axis=0))}
    rates = {}
    for name, kept in named.items():
        healthy = float(np.median(kept[before])) if before.sum() >= FEWEST_BEFORE else 0.0
        rates[name] = float(kept[after].mean()) - healthy if after.any() else 0.0
    shares = {name: rate / growth.bytes_per_step for name, rate in rates.items()}
    chosen = max(shares, key=lambda name: shares[name])
    alone = all(abs(share) <= 1 - EXPLAINS for name, share in shares.items() if name != chosen)
    if shares[chosen] >= EXPLAINS and alone:
        return Keeper(chosen, rates, min(shares[chosen], 1.0))
    return Keeper(None, rates)


def may_be_the_allocator(growth: Growth, keeper: Keeper, level: Array) -> bool:
    """Whether a process's own memory may grow by what its allocator can't use again, and by no leak.

    Args:
        growth: What :func:`judge` said of the level.
        keeper: What :func:`keeper` said of the phases.
        level: Bytes of the process, NaN where unknown.

    Returns:
        Whether no phase keeps what it grows by, which is less than :data:`OUTGROWS` of the level.
    """
    return keeper.phase is None and growth.total_bytes < OUTGROWS * float(np.nanmedian(level))
