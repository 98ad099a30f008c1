"""Whether a step waits for the last answers of its rollout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Final

from probe.analysis.change import Change
from probe.analysis.framework_settings import setting
from probe.analysis.long_tail import LongTail
from probe.analysis.long_tail.gathering import gathered
from probe.analysis.long_tail.tail import Step
from probe.analysis.query import literal
from probe.analysis.verdict import facts
from probe.analysis.verdict.finding import Cost, Finding, Since, withheld
from probe.sql import Sql, sql
from probe.text import missing, percent, seconds

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: The newest steps that are looked at.
STEPS: Final = 30

#: A tail is worth a change where the trainer waits for it for this share of a step.
WORTH: Final = 0.2

#: So many steps it takes to say so.
LEAST: Final = 3

#: Where replicas have answers of other steps under way for this share of the tails, sampling goes on meanwhile: the
#: trainer waits for more than the last answers.
MEANWHILE: Final = 1 / 3

#: A replica is named, or the limit of length, where it ends so large a part of the tails.
BLAMED: Final = 0.8

AHEAD: Final = (
    "Let training begin before the last answers have ended: sample ahead (an asynchronous rollout), go on with them in "
    "the next step (a partial rollout), or ask for more answers than are trained and leave the last ones out."
)


def tail(run: Run) -> list[Finding]:
    """How long a step waits for the last tenth of its answers, and whether a replica or the limit of length is why;
    where replicas go on with answers of other steps meanwhile, the step waits for more than these.
    """
    if not run.has("rollouts"):
        return []
    first, last = facts.window(run, STEPS)
    if last is None:
        return []
    found = LongTail(gathered(run, first, last) or [Step(0, 0, 0, whole=False, replicas=())])
    steps = found.newest
    if len(steps) < LEAST:
        return _untimed(run, first, last)
    share = median(one.waited_share or 0.0 for one in steps)
    if share < WORTH or _meanwhile(steps) >= MEANWHILE:
        return [Finding("fine", "rollout_ends", found.sentence, topic="token_balance")]
    return [_finding(run, steps, share)]


def _meanwhile(steps: Sequence[Step]) -> float:
    """The share of the tails in which replicas have answers of other steps under way."""
    whole = sum((one.tail_ns or 0) * len(one.replicas) for one in steps)
    return sum(one.meanwhile_ns or 0 for step in steps for one in step.replicas) / whole if whole else 0.0


def _untimed(run: Run, first: int, last: int) -> list[Finding]:
    """That no request was timed, where steps have answers; nothing where they are sampled as one batch."""
    frame = run.sql(
        sql(
            """select count(distinct step) as steps, sum(timed) as timed, bool_or(together) as together from rollouts
        where step between {first} and {last}""",
            first=first,
            last=last,
        )
    )
    told = frame.iloc[0]
    if int(told["steps"]) < LEAST or told["timed"] or told["together"]:
        return []
    text = "How long a step waits for its last answers isn't known: when requests began and ended wasn't recorded."
    change = Change("Record both: probe.samples(begin_ns=…, end_ns=…).")
    return [withheld("rollout_ends", text, "token_balance", change)]


def _finding(run: Run, steps: Sequence[Step], share: float) -> Finding:
    least = max(WORTH, share / 2)
    since = facts.began([(one.step, one.waited_share or 0.0) for one in steps], least)
    told = [one for one in steps if one.step >= since and (one.waited_share or 0.0) >= least]
    cost = median(one.waited_ns or 0 for one in told) / 1e9
    longest = median(one.longest_ns or 0 for one in told) / 1e9
    usual = median(one.ninth_decile_ns or 0 for one in told) / 1e9
    text = (
        f"A step waits {seconds(cost)} for the last tenth of its answers, {percent(share)} of it, since step {since}: "
        f"the longest takes {seconds(longest)}, nine of ten no more than {seconds(usual)}."
    )
    slow, limit = _blamed(told), int((longest + usual) / 2 * 1e9)
    advice, name, now = AHEAD, None, None
    if slow is not None:
        text += f" In {percent(_part(told, slow))} of these steps {slow} ends last."
        advice = f"Look at {slow}: at its device, and at how requests are dealt to replicas."
    elif _cut_off(run, since, limit):
        name, now = setting(run, "response_length")
        advice = f"Lower the limit of length, at which most of the longest answers end. Otherwise: {AHEAD}"
    return Finding(
        "tuning",
        "long_tail",
        text,
        topic="token_balance",
        since=Since(since),
        cost=Cost(seconds=cost, share=share),
        why=_why(told),
        evidence_sql=_evidence(since, limit, slow),
        change=Change(advice, name, now=now),
        alternatives=() if slow is not None else ("Few answers are long.", "Few requests were sent late, or queued."),
        weight=100 * share,
    )


def _blamed(steps: Sequence[Step]) -> str | None:
    """The replica that ends last nearly always; None where it is one of them by turns, or there is one alone."""
    if min(len(one.replicas) for one in steps) < 2:
        return None
    name, _ = Counter(_last(one) for one in steps).most_common(1)[0]
    return name if len(steps) >= LEAST and _part(steps, name) >= BLAMED else None


def _part(steps: Sequence[Step], replica: str) -> float:
    return sum(_last(one) == replica for one in steps) / len(steps)


def _last(step: Step) -> str:
    return max(step.replicas, key=lambda one: one.end_ns).name


def _cut_off(run: Run, since: int, limit_ns: int) -> bool:
    """Whether most of the answers that take longest end at the limit of length, as far as they have a row."""
    if not run.has("samples"):
        return False
    frame = run.sql(
        sql(
            """select avg(truncated::int) as share from samples
            where step >= {since} and end_ns - begin_ns >= {limit_ns}""",
            since=int(since),
            limit_ns=int(limit_ns),
        )
    )
    share = frame["share"].iloc[0]
    return not missing(share) and float(share) >= 0.5


def _why(steps: Sequence[Step]) -> str:
    late = median(sum(one.late or 0 for one in step.replicas) for step in steps)
    samples = median(step.samples for step in steps)
    said = f"In the median of {len(steps)} steps, {late:.0f} of {samples:.0f} answers end in that time."
    many = [step for step in steps if len(step.replicas) > 1 and step.tail_ns]
    if many:
        idle = sum(step.idle_ns or 0 for step in many) / sum((step.tail_ns or 0) * len(step.replicas) for step in many)
        said += f" Replicas are idle for {percent(idle)} of that time."
    return said


def _evidence(since: int, limit_ns: int, replica: str | None) -> Sql:
    """The replicas' rows with a request that takes longer than the middle between nine of ten and the longest."""
    named = Sql("") if replica is None else sql(" and replica = {replica}", replica=literal(replica))
    return sql(
        "select * from rollouts where step >= {since} and longest_ns >= {limit_ns}{named} order by longest_ns desc",
        since=since,
        limit_ns=limit_ns,
        named=named,
    )
