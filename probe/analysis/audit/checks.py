"""Logged numbers against what probe counts itself: rates against tokens and seconds, lengths against recorded ones."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from probe.analysis.audit import reading
from probe.analysis.audit.answers import Answers, answers
from probe.analysis.audit.judging import Judged
from probe.analysis.audit.reading import Number
from probe.analysis.framework_settings import number as whole_number
from probe.analysis.framework_settings import setting
from probe.sql import Sql, sql
from probe.text import missing, number

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Contradictions, and what each means.
CHECKS: Final[dict[str, str]] = {
    "share_above_1": "A share of what the device can do is above 1.",
    "zero_clip_ratio": "No answer is said to be truncated, although some reach the limit of their length.",
    "unlike_lengths": "Answers are said to be of another length than probe counts them.",
    "scaled_rate": "Tokens per second are larger or smaller by the number of ranks than probe counts them.",
}

_MFU: Final = re.compile(r"(^|[^a-z])mfu($|[^a-z])")
_PERCENT: Final = re.compile(r"%|percent|pct")
_RATE: Final = re.compile(r"throughput|tokens?_per_s(ec|econd)?($|[^a-z])|tokens/s")
_EACH: Final = re.compile(r"^perf/throughput$|per_(gpu|device|rank)|/(gpu|device|rank)$")
#: What says how many answers were cut off, with what says how long the longest is.
_CLIPPED: Final = {
    "response_length/clip_ratio": "response_length/max",
    "completions/clipped_ratio": "completions/max_length",
}
_RESPONSE, _PROMPT = "response_length/mean", "prompt_length/mean"
#: What says how long answers are: verl's and TRL's.
_LENGTHS: Final = (_RESPONSE, "completions/mean_length")

#: The SQL condition for the metrics that are looked at.
ASKED: Final = Sql(f"""(regexp_matches(lower(key), '{_MFU.pattern}') or regexp_matches(lower(key), '{_RATE.pattern}')
    or key in ({", ".join(f"'{one}'" for one in (*_CLIPPED, *_CLIPPED.values(), *_LENGTHS, _PROMPT))}))""")

_PROBE: Final = "as probe counts it"

#: A length is another one where it differs by this share.
_LENGTH: Final = 0.1
#: A rate is another one's multiple where it is that near to it: probe's step is not quite the trainer's.
_TIME: Final = 0.1

By = Mapping[str, Number]


@dataclass(frozen=True, slots=True)
class Counted:
    """What probe has counted in a step. What isn't known is None."""

    tokens: int | None = None  #: of all rows of all ranks, each once
    mean_tokens: float | None = None  #: of a row
    seconds: float | None = None
    ranks: int | None = None
    limit: int | None = None  #: tokens of an answer that are allowed
    answers: Answers = field(default_factory=Answers)  #: that adapters or ``probe.samples`` told of


def contradictions(
    run: Run, found: Sequence[Number], ranks: int | None, since: int | None = None
) -> dict[tuple[str, int | None], Judged]:
    """The numbers that contradict what probe counts itself.

    Args:
        run: The run.
        found: The numbers of some steps.
        ranks: How many the training has, None where that isn't known.
        since: The first of the steps; None where that isn't known.

    Returns:
        By metric and step.
    """
    asked = [one for one in found if _is_checked(one.metric)]
    if not asked:
        return {}
    known = _counted(run, asked, ranks, since)
    by_step: dict[int | None, dict[str, Number]] = {}
    for one in found:
        by_step.setdefault(one.step, {})[one.metric] = one
    told: dict[tuple[str, int | None], Judged] = {}
    for step, numbers in by_step.items():
        for metric, judged in of_step(numbers, known.get(step, Counted())):
            told[metric, step] = judged
    return told


def of_step(numbers: By, counted: Counted) -> Iterator[tuple[str, Judged]]:
    """The contradictions of one step, by metric."""
    for metric, one in numbers.items():
        reported = one.reported
        if reported is None or missing(reported):
            continue
        name = metric.lower()
        if _MFU.search(name) and not _PERCENT.search(name) and reported > 1:
            why = f"{number(reported)} of the peak is impossible; is it in per cent, or summed over ranks?"
            yield metric, Judged(reported, trap="share_above_1", why=why)
        elif _RATE.search(name):
            yield from _rate(metric, reported, counted, each=bool(_EACH.search(name)))
        elif metric in _CLIPPED and reported == 0:
            yield from _clipped(metric, numbers, counted)
        elif metric in _LENGTHS:
            yield from _of_answers(metric, one, counted) or _length(metric, numbers, counted)


def _is_checked(metric: str) -> bool:
    name = metric.lower()
    return metric in (*_CLIPPED, *_LENGTHS) or bool(_MFU.search(name) or _RATE.search(name))


def _rate(metric: str, reported: Any, counted: Counted, *, each: bool) -> Iterator[tuple[str, Judged]]:
    if not counted.tokens or not counted.seconds or counted.ranks is None or counted.ranks < 2:
        return
    whole, of_rank = counted.tokens / counted.seconds, counted.tokens / counted.seconds / counted.ranks
    right = [of_rank] if each else [of_rank, whole]
    if any(_about(reported, one) for one in right):
        return
    for scale in (whole * counted.ranks, whole, of_rank / counted.ranks):
        if _about(reported, scale):
            expected = min(right, key=lambda one: abs(one - reported))
            each_rank = " and rank" if expected == of_rank else ""
            why = f"probe counts {number(expected)} tokens per second{each_rank}, of {counted.ranks} ranks."
            yield metric, Judged(reported, expected=expected, expected_by=_PROBE, trap="scaled_rate", why=why)
            return


def _about(one: float, other: float) -> bool:
    return abs(one - other) <= _TIME * abs(other)


def _clipped(metric: str, numbers: By, counted: Counted) -> Iterator[tuple[str, Judged]]:
    everyone, *own = counted.answers.of(numbers[metric].process)
    if everyone.truncated and all(one.truncated for one in own if one.rows):
        whole = everyone.whole and everyone.tokens is not None  # of all processes, too
        share = everyone.truncated / everyone.rows if whole else None
        which = "answers of the step" if whole else "answers that were kept"
        why = f"{everyone.truncated} of {everyone.rows} {which} {'is' if everyone.truncated == 1 else 'are'} truncated."
        yield metric, Judged(0.0, expected=share, expected_by=_PROBE, trap="zero_clip_ratio", why=why)
        return
    longest = numbers.get(_CLIPPED[metric])
    if longest is None or longest.reported is None or counted.limit is None or longest.reported < counted.limit:
        return
    why = f"{longest.metric} is {number(longest.reported)}, and {counted.limit} are allowed."
    yield metric, Judged(0.0, trap="zero_clip_ratio", why=why)


def _of_answers(metric: str, one: Number, counted: Counted) -> list[tuple[str, Judged]]:
    """Whether answers are as long as they are said to be: those of all processes, or of the one that says so."""
    known = counted.answers.of(one.process)
    expected = known[0].tokens
    if expected is None or one.reported is None or any(_may_be(one.reported, of.low, of.high) for of in known):
        return []
    why = f"The answers that were recorded have {number(expected)} tokens on average."
    judged = Judged(one.reported, expected=expected, expected_by=_PROBE, trap="unlike_lengths", why=why)
    return [(metric, judged)]


def _may_be(reported: float, low: float | None, high: float | None) -> bool:
    return low is not None and high is not None and (1 - _LENGTH) * low <= reported <= (1 + _LENGTH) * high


def _length(metric: str, numbers: By, counted: Counted) -> Iterator[tuple[str, Judged]]:
    reported = numbers[metric].reported
    if metric != _RESPONSE:  # others don't say how long prompts are
        return
    prompt = numbers[_PROMPT].reported if _PROMPT in numbers else None
    if reported is None or counted.mean_tokens is None:
        return
    if prompt is None or missing(prompt):
        if reported > (1 + _LENGTH) * counted.mean_tokens:
            why = f"The rows that were trained on have {number(counted.mean_tokens)} tokens, prompts included."
            yield metric, Judged(reported, trap="unlike_lengths", why=why)
        return
    if abs(reported + prompt - counted.mean_tokens) > _LENGTH * counted.mean_tokens:
        expected = counted.mean_tokens - prompt
        why = (
            f"The rows that were trained on have {number(counted.mean_tokens)} tokens, {number(prompt)} of them prompt."
        )
        yield metric, Judged(reported, expected=expected, expected_by=_PROBE, trap="unlike_lengths", why=why)


def _counted(run: Run, asked: Sequence[Number], ranks: int | None, since: int | None) -> dict[int | None, Counted]:
    told = _trained(run, asked, ranks, since)
    measured = {one.step for one in asked if one.metric in _LENGTHS and one.step is not None}
    logged = {one.step for one in asked if one.metric in _CLIPPED and one.step is not None} | measured
    for step, of in answers(run, sorted(logged), measured, ranks, since).items():
        told[step] = replace(told[step], answers=of)
    return told


def _trained(run: Run, asked: Sequence[Number], ranks: int | None, since: int | None) -> dict[int | None, Counted]:
    """What the micro-batches of the steps say, and their seconds."""
    where = reading.within(sorted({one.step for one in asked if one.step is not None}))
    limit = whole_number(setting(run, "response_length")[1])
    told: dict[int | None, Counted] = {one.step: Counted(ranks=ranks, limit=limit) for one in asked}
    if not run.has("micro_batches"):
        return told
    # A phase has each row once, or once an epoch: the one with the fewest tokens is one pass. All have the same mean.
    counted = run.sql(
        sql(
            """
        with passes as (
          select step, phase, sum(tokens) as tokens, sum(sequences) as sequences, count(distinct rank) as ranks
          from micro_batches where {where} group by step, phase)
        select step, min(tokens) as tokens, sum(tokens) / nullif(sum(sequences), 0) as mean_tokens, min(ranks) as ranks,
               any_value(step_time_s) as seconds
        from passes left join (select step, step_time_s from steps where {where}) using (step) group by step
        """,
            where=where,
        ),
        since=since,
    )
    for row in counted.itertuples():
        everyone = ranks is not None and int(row.ranks) == ranks
        told[int(row.step)] = Counted(
            tokens=int(row.tokens) if everyone else None,
            mean_tokens=None if missing(row.mean_tokens) else float(row.mean_tokens),
            seconds=None if missing(row.seconds) else float(row.seconds),
            ranks=ranks,
            limit=limit,
        )
    return told
