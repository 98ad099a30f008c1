"""Numbers that the auditor finds in a trap, as findings: :mod:`probe.analysis.audit` says what the traps are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from probe.analysis.audit import checks, reading
from probe.analysis.audit.judging import MEANS, SAME, Judged
from probe.analysis.audit.reading import Number
from probe.analysis.by_step import FIRST, LAST, by_step
from probe.analysis.change import Change
from probe.analysis.framework_settings import framework
from probe.analysis.query import literal
from probe.analysis.verdict import facts
from probe.analysis.verdict.finding import COSTS, SOON, Cost, Finding, Kind, Since, Where
from probe.sql import Sql, joined, sql
from probe.text import number, percent, rows

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Steps of a metric that are looked at closely: those that came first, and the newest.
_EACH: Final = 32
#: Steps in which a metric must be in a trap: one number may be a multiple of another by chance.
_STEPS: Final = 2
#: Steps whose numbers are held against what probe counts.
_WINDOW: Final = 32
#: Steps after which an error that always has the same sign is no chance, and its share of the mean to matter.
_BIASED_STEPS: Final = 8
BIAS: Final = 0.05

_MEAN: Final = sql("({means})", means=sorted(map(literal, MEANS)))

#: What was logged and is neither what its process reduced, nor what all of them give by the reducer; and means that are
#: called the largest or the smallest.
_SUSPECTS: Final = """
with parts as (
  select step, key, process, arg_max(value, time_ns) as value, sum(total) as total, max(largest) as high,
         sum(count) - sum(nan_count) as n, min(smallest) as low, any_value(reducer) as reducer
  from reductions where value is not null and not isnan(value) and {where} group by step, key, process),
pooled as (
  select step, key, any_value(reducer) as reducer, max(high) as high, min(low) as low,
         case any_value(reducer) when 'max' then max(value) when 'min' then min(value) when 'sum' then sum(value)
              else sum(total) / nullif(sum(n), 0) end as expected
  from parts group by step, key),
logged as (
  select step, key, arg_max(value, time_ns) as value, arg_max(process, time_ns) as process from scalars
  where source = 'user' and not isnan(value) and {where} group by step, key)
select step, key from pooled join logged using (step, key) left join parts using (step, key, process)
where (not coalesce(abs(logged.value - parts.value) <= {same} * greatest(abs(logged.value), abs(parts.value)), false)
       and abs(logged.value - pooled.expected) > {same} * greatest(abs(logged.value), abs(pooled.expected)))
   or (pooled.reducer in {mean} and pooled.high > pooled.low
       and regexp_matches(lower(key), '(^|[^a-z])(max(imum)?|min(imum)?|largest|smallest)($|[^a-z])'))
"""

_SENTENCES: Final = {
    "averaged_extreme": "{metric} is an average of extremes: {reported} was logged in step {step}, and the {by} of all "
    "values is {expected}.",
    "scaled_sum": "{metric} is off by a factor: {reported} was logged in step {step}, and the {by} is {expected}.",
    "uneven_counts": "{metric} counts ranks without a value as 0: {reported} was logged in step {step}, and the {by} "
    "is {expected}.",
    "last_one_wins": "{metric} is the last of its values: {reported} was logged in step {step}, and the {by} is "
    "{expected}.",
    "share_above_1": "{metric} is {reported} in step {step}, and no share of a device's peak is above 1.",
    "zero_clip_ratio": "{metric} is 0 in step {step}, although answers reach the limit of their length.",
    "unlike_lengths": "{metric} is {reported} in step {step}, which isn't the length that probe counts.",
    "scaled_rate": "{metric} is {reported} in step {step}, and probe counts {expected} tokens per second.",
}

_ADVICE: Final = {
    "averaged_extreme": "Take the largest value over ranks and micro-batches too: {typed}.",
    "scaled_sum": "Scale it once: {typed} carries its reduction over micro-batches and over ranks.",
    "uneven_counts": "Reduce the sum and the count of the values over ranks, and divide afterwards; {typed} does this.",
    "last_one_wins": "Collect the values of all micro-batches with append_to_dict, and reduce them once.",
    "share_above_1": "Check the peak FLOP/s that it is divided by, and that ranks are averaged and not summed.",
    "zero_clip_ratio": "Compare lengths with the limit itself, not with the width that the batch was padded to.",
    "unlike_lengths": "Take lengths from the mask of the rows that are trained on, after filtering.",
    "scaled_rate": "Divide the tokens of all ranks by the seconds of the step, once.",
}

#: How a value that knows its reducer is written, by framework.
_TYPED: Final = {
    "verl": {"max": 'verl.utils.metric.Metric("max", value)', "sum": 'verl.utils.metric.Metric("sum", value)'},
    "": {"max": 'probe.Metric("max", value)', "sum": 'probe.Metric("sum", value)', "mean": "probe.Metric"},
}

#: The weight of each finding, the larger the earlier.
_WEIGHTS: Final = {"averaged_extreme": 69, "scaled_sum": 73, "uneven_counts": 74, "last_one_wins": 71}

_Pairs = Sequence[tuple[Number, Judged]]


def _suspects(where: Sql) -> Sql:
    return sql(_SUSPECTS, where=where, same=SAME, mean=_MEAN)


def numbers(run: Run) -> list[Finding]:
    """Logged numbers that aren't what the values behind them give: scaled, averaged, the last one alone."""
    if not (run.has("reductions") and run.has("scalars")):
        return []
    told = by_step(
        run,
        lambda first, last: sql(
            "{suspects} order by step, key",
            suspects=_suspects(sql("step between {first} and {last}", first=first, last=last)),
        ),
        FIRST,
        LAST,
    )
    if not len(told):
        return []
    frame = pd.DataFrame({"step": told.steps, **told.columns})
    frame = pd.concat([frame.groupby("key").head(_EACH), frame.groupby("key").tail(_EACH)]).drop_duplicates()
    known = (
        sql("(key = {key} and {within})", key=literal(key), within=reading.within([int(step) for step in one["step"]]))
        for key, one in frame.groupby("key")
    )
    ranks = reading.ranks(run)
    read = reading.numbers(run, sql("({where})", where=joined(known, " or ")), since=int(frame["step"].min()))
    judged = [(one, one.judged(ranks)) for one in read]
    found = [(one, said) for one, said in judged if said.trap in _WEIGHTS and len(one.by_one) == 1]
    return _by_trap(run, found, _STEPS)


def contradictions(run: Run) -> list[Finding]:
    """Numbers of the newest steps that contradict what probe counts itself."""
    first, last = facts.window(run, _WINDOW)
    if last is None or not run.has("scalars"):
        return []
    within = sql("step between {first} and {last}", first=first, last=last)
    found = reading.numbers(run, sql("{within} and {asked}", within=within, asked=checks.ASKED), since=first)
    against = checks.contradictions(run, found, reading.ranks(run), since=first)
    if not against:
        return []
    many = pd.Series([one.metric for one in found]).value_counts()
    wrong = pd.Series([metric for metric, _ in against]).value_counts()
    always = {metric for metric in wrong.index if wrong[metric] >= max(3, 0.9 * many[metric])}
    pairs = [
        (one, against[one.metric, one.step])
        for one in found
        if one.metric in always and (one.metric, one.step) in against
    ]
    return _by_trap(run, pairs, 3)


def _by_trap(run: Run, found: _Pairs, least: int) -> list[Finding]:
    """A finding for each trap, about the metric that is wrong by most."""
    told: list[Finding] = []
    for trap in dict.fromkeys(one.trap for _, one in found if one.trap is not None):
        of = [pair for pair in found if pair[1].trap == trap]
        keys = pd.Series([one.metric for one, _ in of]).value_counts()
        enough = [pair for pair in of if keys[pair[0].metric] >= least]
        if enough:
            told.append(_finding(run, trap, enough))
    return told


def _finding(run: Run, trap: str, found: _Pairs) -> Finding:
    worst, judged = max(found, key=lambda pair: abs(pair[1].relative_error or 0.0))
    metrics = {one.metric for one, _ in found}
    since = min((one.step for one, _ in found if one.step is not None), default=None)
    told = {
        "metric": worst.metric,
        "step": worst.step,
        "reported": number(judged.reported),
        "expected": number(judged.expected),
        "by": judged.expected_by,
    }
    others = len(metrics) - 1
    more = f" So {'is' if others == 1 else 'are'} {others} more metric{'s' if others > 1 else ''}." if others else ""
    kind: Kind = "tuning" if trap == "unlike_lengths" else "alarm"
    return Finding(
        kind,
        trap,
        _SENTENCES[trap].format(**told) + more,
        topic="reductions",
        where=Where(step=worst.step),
        since=Since(since),
        cost=Cost(steps=len({one.step for one, _ in found if one.step is not None}) or None),
        why=judged.why,
        change=Change(_ADVICE[trap].format(typed=_typed(run, trap, judged.expected_by))),
        evidence_sql=_evidence(trap, worst),
        urgency=SOON,
        weight=_WEIGHTS.get(trap, 68),
    )


def _typed(run: Run, trap: str, by: str) -> str:
    """How a value is written that is reduced as it should be, where ``by`` says by what that is."""
    known = _TYPED.get(framework(run), _TYPED[""])
    scaled = "sum" if "sum" in by else "mean"
    return known.get({"averaged_extreme": "max", "scaled_sum": scaled}.get(trap, "mean"), _TYPED[""]["mean"])


def _evidence(trap: str, worst: Number) -> Sql:
    of = sql("key = {metric} and step = {step}", metric=literal(worst.metric), step=worst.step)
    if trap not in _WEIGHTS:
        return sql("select * from scalars where source = 'user' and {of}", of=of)
    return sql(
        "select * from reductions where {of} and (step, key) in ({suspects})",
        of=of,
        suspects=_suspects(sql("step = {step}", step=worst.step)),
    )


_WEIGHTED: Final = sql(
    """
select step, key, sum(total) / sum(count) as plain, sum(tokens * token_mean) / sum(tokens) as by_token,
       sum(sequences * sequence_mean) / sum(sequences) as by_sequence, max(largest) - min(smallest) as spread
from reductions
where reducer = 'mean' and tokens is not null and nan_count = 0 and count > 0 and {where}
group by step, key
having spread > 0 and bool_and(abs(value - total / count) <= {same} * abs(value)) and sum(count) > 1
""",
    where=Sql("{where}"),  # filled when it is asked
    same=SAME,
)


def unweighted(run: Run) -> list[Finding]:
    """Means of micro-batches that are wrong to one side, since those with more tokens have other values."""
    if not run.has("reductions"):
        return []
    told = by_step(
        run,
        lambda first, last: sql(
            "{weighted} order by step, key",
            weighted=sql(_WEIGHTED, where=sql("step between {first} and {last}", first=first, last=last)),
        ),
        FIRST,
        LAST,
    )
    frame = pd.DataFrame({"step": told.steps, **told.columns})
    found = [one for _, of in frame.groupby("key") if (one := _biased(of)) is not None] if len(frame) else []
    if not found:
        return []
    worst = max(found, key=lambda one: one["bias"])
    others = f" So are {len(found) - 1} more metrics." if len(found) > 2 else " So is one more." if found[1:] else ""
    of = sql("key = {key} and step = {step}", key=literal(worst["key"]), step=worst["step"])
    return [
        Finding(
            "tuning",
            "unweighted_mean",
            f"{worst['key']} is off by {percent(worst['bias'])}, always to one side: {number(worst['plain'])} was "
            f"reported in step {worst['step']}, and the token-weighted mean is {number(worst['by_token'])}.{others}",
            topic="reductions",
            where=Where(step=int(worst["step"])),
            since=Since(worst["since"]),
            why="Micro-batches with few tokens counted as much as those with many, whose values differ.",
            change=Change("Give the weights: probe.reduce_metrics(metrics, weights=…), or a weighted probe.Metric."),
            evidence_sql=sql(
                "select * from reductions where {of} and tokens is not null and value <> token_mean", of=of
            ),
            urgency=COSTS,
            weight=20 * min(1.0, worst["bias"]),
        )
    ]


def _biased(of: pd.DataFrame) -> dict[str, Any] | None:
    """The worst step of a metric whose mean is off to one side; None where it isn't."""
    nearest = of["plain"] - of["by_token"]
    other = (of["plain"] - of["by_sequence"]).where(of["by_sequence"].notna(), nearest)
    share = (nearest / of["by_token"].abs().clip(lower=1e-12)).to_numpy(dtype=float)
    smaller = np.minimum(nearest.abs(), other.abs()).to_numpy(dtype=float) / of["by_token"].abs().clip(lower=1e-12)
    sided = max(np.mean(nearest > 0), np.mean(nearest < 0))
    if len(of) < _BIASED_STEPS or sided < 0.95 or not np.median(smaller) >= BIAS:
        return None
    at = int(np.argmax(np.abs(share)))
    return {**rows(of)[at], "bias": float(np.median(np.abs(share))), "since": int(of["step"].min())}
