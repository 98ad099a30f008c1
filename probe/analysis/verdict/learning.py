"""Whether a step teaches anything: rewards without differences, answers that were cut off, gradients that jump."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from probe.analysis.answers_by_step import between, truncated, without_advantage
from probe.analysis.by_step import FIRST, LAST, by_step
from probe.analysis.change import Change
from probe.analysis.framework_settings import number as whole_number
from probe.analysis.framework_settings import setting
from probe.analysis.query import literal, same
from probe.analysis.verdict.finding import COSTS, SOON, Cost, Finding, Since, Where
from probe.analysis.verdict.metrics import RUN_IN_ORDER
from probe.sql import Sql, joined, sql
from probe.text import number, percent, place, rows, whole

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Metrics by which frameworks say which share of groups has equal rewards: TRL's, and the plain name.
EQUAL: Final = ("frac_reward_zero_std", "train/frac_reward_zero_std", "reward/equal_groups_ratio")
#: Metrics of the largest and the smallest advantage: verl's.
ADVANTAGES: Final = (("critic/advantages/max", "critic/advantages/min"), ("advantages/max", "advantages/min"))
#: Metrics of which share of answers was cut off at the limit: verl's and TRL's.
CUT_OFF: Final = ("response_length/clip_ratio", "completions/clipped_ratio", "train/completions/clipped_ratio")
#: Metrics of the norm of the gradient: verl's, TRL's, Lightning's and the demo's.
GRADIENT: Final = (
    "actor/grad_norm", "grad_norm", "train/grad_norm", "train/grad_norm_total", "actor/gradient_norm", "gradient_norm"
)  # fmt: skip
#: Metrics of the mean reward.
REWARD: Final = ("reward/mean", "critic/score/mean", "reward", "train/reward")
#: All of them, which one question asks for.
LOOKED_AT: Final = (*EQUAL, *(one for pair in ADVANTAGES for one in pair), *CUT_OFF, *GRADIENT, *REWARD)

#: From this share of groups without a difference on, or of tokens without advantage, a step teaches (nearly) nothing.
ALL_EQUAL: Final = 0.95
#: From this share on, it is worth a change.
MANY_EQUAL: Final = 0.4
#: A rise by this share of the groups is worth a change, too, where it came at once and stayed: each step after it lies
#: above each before, and there are at least so many of both.
MORE_EQUAL, AT_ONCE = 0.1, 8
#: From this share of answers that were cut off on, it is worth a change.
MANY_CUT: Final = 0.15
#: Steps in a row that say so.
STEPS: Final = 3
#: A jump of the gradient: so many times the median of the steps before, and so many robust deviations above it.
JUMP, DEVIATIONS = 5.0, 12.0
#: A value is what made a metric jump where it has at least this share of the sum of magnitudes.
EXPLAINED: Final = 0.8
#: Steps before a jump that are needed to say that it is one.
BEFORE: Final = 6
#: Steps before that are compared with.
_BEFORE_MOST: Final = 50


def _courses(first: int, last: int) -> Sql:
    """The query for the last value of each metric that is looked at, and when it was told, by step."""
    return sql(
        """with told as (
      select step, key, arg_max(value, time_ns) as value, max(wall_ns) as wall_ns from scalars
      where key in ({keys}) and step between {first} and {last}
      group by step, key)
    select step, list(key order by key) as keys, list(value order by key) as value,
           list(wall_ns order by key) as wall_ns
    from told group by step order by step""",
        keys=map(literal, LOOKED_AT),
        first=int(first),
        last=int(last),
    )


def _course(run: Run, keys: tuple[str, ...]) -> tuple[str, np.ndarray, np.ndarray, np.ndarray] | None:
    """The first of the keys that was logged: its name, steps, values (the last of each step) and wall-clock times."""
    if not run.has("scalars"):
        return None
    told = by_step(run, _courses, FIRST, LAST, "keys", ("value", "wall_ns"))
    for key in keys:
        if key in told.keys:
            at = told.keys.index(key)
            here = told.present[:, at]
            values, times = (told.values[name][here, at] for name in ("value", "wall_ns"))
            return key, told.steps[here], values, times.astype(np.int64)
    return None


def logged(run: Run, keys: tuple[str, ...]) -> bool:
    """Whether one of some metrics was logged.

    Args:
        run: The run.
        keys: Of :data:`LOOKED_AT`.
    """
    return _course(run, keys) is not None


def _stretch(flags: np.ndarray, least: int = STEPS) -> int | None:
    """Where the last unbroken stretch of True begins, if it lasts to the end and is long enough.

    >>> _stretch(np.array([True, False, True, True, True])), _stretch(np.array([True, True, True, False]))
    (2, None)
    """
    if len(flags) < least or not flags[-1]:
        return None
    broken = np.flatnonzero(~flags)
    begin = int(broken[-1]) + 1 if len(broken) else 0
    return begin if len(flags) - begin >= least else None


class _Equal(NamedTuple):
    """Who says that answers have no advantage, and since when.

    Attributes:
        since: The first of the last stretch of such steps.
        steps: In this stretch.
        share: Of the groups, or of the tokens that the loss counts.
        before: That of the steps before, where only the rise tells.
        evidence: The rows that show it.
        why: Where it was read.
        tokens: Whether it is the recorded tokens that say so, and no metric.
    """

    since: Since
    steps: int
    share: float
    before: float | None
    evidence: Sql
    why: str
    tokens: bool = False


def equal_rewards(run: Run) -> list[Finding]:
    """Whether groups of answers have equal rewards, so that no advantage remains in them: as a metric says, else as the
    recorded tokens do.
    """
    found = _equal(run)
    if found is None:
        return []
    every = found.share >= ALL_EQUAL
    return [
        Finding(
            "alarm" if every else "tuning",
            "equal_rewards",
            _of_tokens(found, every=every) if found.tokens else _of_groups(found, every=every),
            topic="token_balance" if found.tokens else "overview",
            since=found.since,
            cost=Cost(share=found.share, steps=found.steps),
            why=found.why,
            change=Change(
                "Look at the reward function; else draw prompts of another difficulty, or more answers to each."
            ),
            evidence_sql=found.evidence,
            alternatives=(
                "The reward function fails and gives all answers one value.",
                "All prompts are too easy or too hard.",
            ),
            urgency=SOON,
            weight=80 * found.share,
        )
    ]


def _of_groups(found: _Equal, *, every: bool) -> str:
    since = f"since step {found.since.step}"
    if every:
        return f"All answers of each group have had equal rewards {since}: these steps teach nothing."
    text = f"{percent(found.share)} of the groups of answers have equal rewards {since}, and teach nothing"
    return text + ("." if found.before is None else f"; {percent(found.before)} had in the steps before.")


def _of_tokens(found: _Equal, *, every: bool) -> str:
    since = f"since step {found.since.step}"
    if every:
        return f"Hardly any token has had an advantage {since}: these steps carry no policy gradient."
    text = f"{percent(found.share)} of the tokens that the loss counts have had no advantage {since}, "
    text += "and carry no policy gradient"
    return text + ("." if found.before is None else f"; {percent(found.before)} had none in the steps before.")


def risen(values: np.ndarray, more: float, steps: int) -> int | None:
    """Where a series rose at once and stayed above what it had been, to its end; None where it didn't.

    Args:
        values: Of shape (steps,).
        more: By how much at least, from the median of the steps just before to that of those just after.
        steps: How many there must be before and after; each after it lies above each of the up to 50 before.

    >>> risen(np.array([0.1, 0.2, 0.1, 0.4, 0.5, 0.4]), 0.1, 3), risen(np.linspace(0, 1, 20), 0.5, 3)
    (3, None)
    """
    if len(values) < 2 * steps:
        return None
    least_after = np.minimum.accumulate(values[::-1])[::-1]
    for at in np.flatnonzero(least_after > _before(values, np.fmax)):
        if steps <= at <= len(values) - steps:
            lifted = np.median(values[at : at + steps]) - np.median(values[at - steps : at])
            if lifted >= more:
                return int(at)
    return None


def _before(values: np.ndarray, of: np.ufunc) -> np.ndarray:
    """The least or the largest of the up to 50 values before each, NaN of the first."""
    padded = np.concatenate([np.full(_BEFORE_MOST, np.nan), values[:-1]])
    found: np.ndarray = of.reduce(np.lib.stride_tricks.sliding_window_view(padded, _BEFORE_MOST), axis=1)
    return found


def _equal(run: Run) -> _Equal | None:
    """What the metric says that frameworks log; where there is none, advantages, and then the recorded tokens."""
    found = _course(run, EQUAL)
    if found is not None:
        return _equal_groups(run, *found)
    return _zero_advantages(run) or _tokens_without(run)


def _equal_groups(run: Run, key: str, steps: np.ndarray, values: np.ndarray, times: np.ndarray) -> _Equal | None:
    begin, before = _many(values)
    if begin is None:
        return None
    least = MANY_EQUAL if before is None else float(values[begin:].min())
    evidence = sql("select * from scalars where key = {key} and value >= {least}", key=literal(key), least=least)
    since, many = Since(int(steps[begin]), int(times[begin])), len(steps) - begin
    return _Equal(since, many, float(np.median(values[begin:])), before, evidence, _logged_why(run, key, many))


def _many(values: np.ndarray) -> tuple[int | None, float | None]:
    """Where the last stretch of large shares begins; else where they rose, and what they were before."""
    begin = _stretch(values >= MANY_EQUAL)
    if begin is not None or (begin := risen(values, MORE_EQUAL, AT_ONCE)) is None:
        return begin, None
    return begin, float(np.median(values[:begin][-_BEFORE_MOST:]))


def _zero_advantages(run: Run) -> _Equal | None:
    """Whether all advantages are 0, where their extremes are logged."""
    for high, low in ADVANTAGES:
        one, other = (_course(run, (name,)) for name in (high, low))
        if one is None or other is None or len(one[1]) != len(other[1]):
            continue
        key, steps, values, times = one
        begin = _stretch((values == 0) & (other[2] == 0))
        if begin is None:
            return None
        evidence = sql(
            "select * from scalars where key in ({high}, {low}) and value = 0", high=literal(high), low=literal(low)
        )
        since, many = Since(int(steps[begin]), int(times[begin])), len(steps) - begin
        return _Equal(since, many, 1.0, None, evidence, _logged_why(run, key, many))
    return None


def _logged_why(run: Run, key: str, steps: int) -> str:
    rewards = _course(run, REWARD)
    said = f"; the mean reward of the last is {number(rewards[2][-1])}" if rewards else ""
    return f"{key} says so in the last {steps} steps{said}."


def _without(first: int, last: int) -> Sql:
    return without_advantage(between(first, last))


def _tokens_without(run: Run) -> _Equal | None:
    """Whether many of the tokens that were told, by an adapter or ``probe.samples``, have no advantage."""
    if not run.has("token_fates"):
        return None
    told = by_step(run, _without, FIRST, LAST)
    if not len(told):
        return None
    without, counted = (told.columns[name].astype(float) for name in ("without_tokens", "loss_tokens"))
    values = without / counted
    begin, before = _many(values)
    if begin is None:
        return None
    least = MANY_EQUAL if before is None else float(values[begin:].min())
    since = Since(int(told.steps[begin]), int(told.columns["wall_ns"][begin]))
    why = f"The ledger of tokens says so in the last {len(values) - begin} steps: "
    why += (
        f"{percent(without[begin:].sum() / told.columns['sampled_tokens'][begin:].sum())} of all sampled tokens had no"
    )
    why += f" advantage{_in_groups(without[begin:], told.columns['equal_tokens'][begin:].astype(float))}."
    evidence = without_advantage(sql("step >= {step}", step=int(told.steps[begin])), least)
    return _Equal(since, len(values) - begin, float(np.median(values[begin:])), before, evidence, why, tokens=True)


def _in_groups(without: np.ndarray, equal: np.ndarray) -> str:
    """How many of the tokens without advantage are in groups whose rewards are all equal, where groups are known."""
    if not np.isfinite(equal).all() or not without.sum():
        return ""
    return f", {percent(equal.sum() / without.sum())} of them in groups whose rewards are all equal"


class _Cut(NamedTuple):
    """Which share of the answers of each step was cut off, and who says so."""

    says: str
    steps: np.ndarray
    values: np.ndarray
    times: np.ndarray


def _cut(run: Run) -> _Cut | None:
    """What the metric says that frameworks log; where there is none, the recorded answers."""
    found = _course(run, CUT_OFF)
    if found is not None:
        return _Cut(*found)
    if not run.has("samples") or not run.has("token_fates"):
        return None
    told = by_step(run, _truncated, FIRST, LAST)
    share, times = (told.columns[name] for name in ("share", "wall_ns")) if len(told) else (np.empty(0), np.empty(0))
    return _Cut("", told.steps, share, times)


def _truncated(first: int, last: int) -> Sql:
    return truncated(between(first, last))


def cut_off(run: Run) -> list[Finding]:
    """Whether many answers end at the limit of their length: as a metric says, else as the recorded answers do."""
    found = _cut(run)
    begin = None if found is None else _stretch(found.values >= MANY_CUT)
    if found is None or begin is None:
        return []
    steps, values = found.steps[begin:], found.values[begin:]
    share = float(np.median(values))
    name, now = setting(run, "response_length")
    limit = whole_number(now)
    alarm = share >= 0.9
    said = f"{found.says} is" if found.says else "The truncated share of a step's recorded answers is"
    least = "" if values.min() >= 1 else "at least "
    evidence = (
        sql("select * from scalars where key = {key} and value >= {least}", key=literal(found.says), least=MANY_CUT)
        if found.says
        else truncated(sql("step >= {step}", step=int(steps[0])), MANY_CUT)
    )
    return [
        Finding(
            "alarm" if alarm else "tuning",
            "cut_off",
            f"{percent(share)} of the answers have been cut off at the length limit since step {steps[0]}.",
            topic="overview" if found.says else "token_balance",
            since=Since(int(steps[0]), int(found.times[begin])),
            cost=Cost(share=share, steps=len(steps)),
            why=f"{said} {least}{percent(float(values.min()))} in the last {len(steps)} steps; "
            "a truncated answer is scored without its end.",
            change=Change(
                "Allow longer answers, or shape the reward so that shorter ones win.",
                setting=name,
                value=None if limit is None else 2 * limit,
                now=limit,
            ),
            evidence_sql=evidence,
            urgency=COSTS,
            weight=60 * share,
        )
    ]


def jumps(values: np.ndarray) -> list[int]:
    """Where a series jumps: far above the median and the robust deviation of up to 50 values before.

    >>> jumps(np.array([1, 1.1, 0.9, 1, 1.05, 0.95, 1, 30.0, 1]))
    [7]
    """
    found = []
    for at in _high(values):
        before = values[max(0, at - _BEFORE_MOST) : at]
        before = before[np.isfinite(before)]
        if len(before) < BEFORE or not math.isfinite(values[at]):
            continue
        middle = float(np.median(before))
        # A few values may lie together by chance: a deviation is taken to be at least a tenth of the median.
        deviation = max(1.4826 * float(np.median(np.abs(before - middle))), 0.1 * abs(middle))
        if values[at] > JUMP * middle and values[at] > middle + DEVIATIONS * deviation:
            found.append(at)
    return found


def _high(values: np.ndarray) -> list[int]:
    """Where a series may jump: what lies so many times above the least value before lies as far above their median."""
    if len(values) <= BEFORE:
        return []
    with np.errstate(invalid="ignore"):
        return [int(at) for at in np.flatnonzero(values > JUMP * _before(values, np.fmin)) if at >= BEFORE]


_NO_VALUES: Final = (
    "Which micro-batch caused it isn't known: no metric has a value per micro-batch. Give probe.reduce_metrics one of "
    "each."
)


def gradient(run: Run) -> list[Finding]:
    """Whether the norm of the gradient jumped, and which micro-batch was behind it."""
    found = _course(run, GRADIENT)
    if found is None:
        return []
    key, steps, values, times = found
    places = jumps(values)
    if not places:
        return []
    at = max(places, key=lambda one: values[one])
    middle = float(np.median(values[max(0, at - _BEFORE_MOST) : at]))
    step = int(steps[at])
    culprit = _outlier(run, step)
    where, why, explained = Where(step=step), "", None
    if culprit is not None:
        where, explained = Where.of(culprit, step=step), float(culprit["share"])
        why = (
            f"In {culprit['key']} one of {whole(culprit['count'])} values, {number(culprit['largest'])}, makes up "
            f"{percent(explained)} of the sum; it is that of {place({**culprit, 'step': None})}."
        )
    many = f" It did so in {len(places)} steps." if len(places) > 1 else ""
    of = f"; {place({**culprit, 'step': None})} caused it" if culprit is not None else ""
    text = f"The norm of the gradient jumped to {number(values[at])} in step {step}, "
    text += f"{number(values[at] / middle)} times its median{of}.{many}"
    name, now = setting(run, "gradient_clip")
    return [
        Finding(
            "alarm",
            "gradient_spike",
            text,
            topic="overview",
            where=where,
            since=Since(int(steps[places[0]]), int(times[places[0]])),
            cost=Cost(steps=len(places)),
            explained=explained,
            why=why,
            change=Change("Look at the samples of that micro-batch; clip the norm of the gradient.", name, now=now),
            evidence_sql=_jumped(key, step, JUMP * middle, where),
            confidence="high" if culprit is not None else "medium",
            missing=() if culprit is not None else (_NO_VALUES,),
            urgency=SOON,
            weight=60,
        )
    ]


def _jumped(key: str, step: int, above: float, where: Where) -> Sql:
    """The rows of a jump, none once the norm is what it was: the value of the micro-batch behind it, or the norm
    itself where none is known to be.
    """
    norm = sql(
        "select * from scalars where key = {key} and step = {step} and value > {above}",
        key=literal(key),
        step=step,
        above=above,
    )
    if where.micro_batch is None:
        return norm
    here = joined((same(name, getattr(where, name)) for name in ("process", "phase", "micro_batch")), " and ")
    return sql(
        "select * from ({outliers}) where {here} and exists ({norm})", outliers=_outliers(step), here=here, norm=norm
    )


def _outlier(run: Run, step: int) -> dict[str, Any] | None:
    """The value that makes up most of a metric in a step, with its micro-batch: None where none stands out.

    Values of a metric that was given as many as the process ran micro-batches in a phase are those of these.
    """
    frame = run.sql(sql("{outliers} order by share desc, key limit 1", outliers=_outliers(step)))
    return rows(frame)[0] if len(frame) else None


def _outliers(step: int) -> Sql:
    """The query for the values that make up most of a metric in a step, each with its micro-batch."""
    return sql(
        """
        with told as (
          select attempt, process, rank, role, step, key, count,
                 if(abs(largest) >= abs(smallest), largest, smallest) as largest, outlier_at,
                 outlier_share_ratio as share
          from reductions where step = {step} and outlier_share_ratio >= {explained}),
        {run_in_order}
        select told.*, ran.phase, ran.micro_batch from told join ran
          on ran.process = told.process and ran.ran = told.count and ran.nth = told.outlier_at""",
        step=int(step),
        explained=EXPLAINED,
        run_in_order=sql(RUN_IN_ORDER, where=sql("step = {step}", step=int(step))),
    )
