"""Whether training and sampling that run at the same time keep up with each other, and what the idle side waits for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Final

from probe.analysis.change import Change
from probe.analysis.framework_settings import number, setting
from probe.analysis.idle.answer import Idle, added, idling, waiting
from probe.analysis.idle.gathering import gathered, of_trainer
from probe.analysis.idle.sides import REPLICA, WAITING, Step
from probe.analysis.query import literal
from probe.analysis.verdict import facts, rollout
from probe.analysis.verdict.finding import Cost, Finding, Since, Where
from probe.sql import Sql, sql
from probe.text import missing, percent, seconds

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: The newest steps that are looked at.
STEPS: Final = 30

#: Where one side is idle for this share of the time it is worth a change.
WORTH: Final = 0.2

#: So many steps it takes to say so.
LEAST: Final = 3

#: A cause is named alone where it explains this share of the idle time, and a replica where it has this share of it.
CAUSE: Final = 0.8

#: What the trainer does while replicas are idle, in words.
MEANWHILE: Final = {
    "work": "while the trainer works",
    "weights": "while weights are sent to them",
    "answers": "while the trainer waits for answers",
    "rest": "while the trainer is in no phase",
}

#: Parts of the time in words: of replicas, and of the trainer.
_IDLE: Final = {"sampling": "sampling", **{name: f"idle {said}" for name, said in MEANWHILE.items()}}
_BUSY: Final = {"work": "work", "weights": "weights", "answers": "waiting for answers", "rest": "in no phase"}

#: The requests of replicas, and since when a replica was idle as one came.
_GAPS: Final = """
with anchored as (
  select *, begin_ns + coalesce(wall_ns, time_ns) - time_ns as first_ns,
    case when replica = '' then process else replica end as engine from rollouts
  where begin_ns is not null and end_ns is not null and step >= {first}),
asked as (
  select engine, step, first_ns + unnest(case when together then [0::bigint] else requests_begin_ns end) as asked_ns,
    first_ns + unnest(case when together then [end_ns - begin_ns] else requests_end_ns end) as ended_ns from anchored),
gaps as (
  select engine, step, max(ended_ns) over (partition by engine order by asked_ns, ended_ns
      rows between unbounded preceding and 1 preceding) as idle_since_ns, asked_ns from asked)
"""


def sides(run: Run) -> list[Finding]:
    """Where training and sampling run at the same time: for how long the trainer waits for answers, for how long
    replicas have no request under way, and what each of them waits for.
    """
    if not run.has("rollouts"):
        return []
    first, last = facts.window(run, STEPS)
    told = Idle(gathered(run, first, last)) if last is not None else None
    if told is None or len(told.newest) < LEAST or not told.asynchronous:
        return []
    steps = told.newest
    found = []
    if waiting(steps) >= WORTH:
        found += _trainer(run, steps)
    if idling(steps) >= WORTH:
        found.append(_replicas(run, steps))
    return found or [Finding("fine", "sides_keep_up", told.sentence, topic="token_balance")]


def _since(steps: Sequence[Step], values: Sequence[float], share: float) -> tuple[int, list[Step]]:
    """Since when a side is so idle, and the steps since then in which it is."""
    least = max(WORTH, share / 2)
    since = facts.began([(one.step, value) for one, value in zip(steps, values, strict=True)], least)
    told = [one for one, value in zip(steps, values, strict=True) if one.step >= since and value >= least]
    return since, told


def _trainer(run: Run, steps: Sequence[Step]) -> list[Finding]:
    since, told = _since(steps, [one.waits for one in steps], waiting(steps))
    share = waiting(told)
    if _of_the_tail(run) >= CAUSE * share:
        return []  # that finding says what the trainer waits for
    cost = median(one.trainer["answers"] for one in told) / 1e9
    replicas = median(len(one.replicas) for one in told)
    waited = sum(one.trainer["answers"] * len(one.replicas) for one in told)
    busy = 1 - sum(parts["answers"] for one in told for parts in one.replicas.values()) / waited
    text = f"The trainer waits {seconds(cost)} of a step for answers, {percent(share)} of it, since step {since}: "
    if busy >= CAUSE:
        text += f"replicas sample for {percent(busy)} of that time, and can't keep up with training."
        needed = math.ceil(replicas * (1 - idling(told)) / (1 - share))
        advice = (
            f"Give sampling more devices: about {needed} replicas in place of {replicas:.0f} would keep up, if each "
        )
        advice += "is as fast. Or ask for fewer or shorter answers."
        others: tuple[str, ...] = ("Engines wait for tools or rewards, which more devices don't speed up.",)
        name, now = setting(run, "rollout_devices")
    else:
        text += f"replicas have no request under way for {percent(1 - busy)} of that time."
        advice, name, now = rollout.AHEAD, None, None
        others = ("A few answers are long, and all others have ended.", "Requests are sent late.")
    phase, evidence = _waits(run, since, told)
    finding = Finding(
        "tuning",
        "idle_trainer",
        text,
        topic="token_balance",
        where=Where(phase=phase),
        since=Since(since),
        cost=Cost(seconds=cost, share=share),
        explained=busy if busy >= CAUSE else None,
        why=_account("The trainer's time", added([one.trainer for one in told], list(told[0].trainer))),
        evidence_sql=evidence,
        change=Change(advice, name, now=now),
        confidence="medium",
        alternatives=others,
        weight=100 * share,
    )
    return [finding]


def _of_the_tail(run: Run) -> float:
    """The share of a step for which the trainer waits for its last answers, where that is worth a change."""
    shares = [one.cost.share or 0.0 for one in rollout.tail(run) if one.name == "long_tail"]
    return max(shares, default=0.0)


def _waits(run: Run, since: int, told: Sequence[Step]) -> tuple[str, str]:
    """The phase that the trainer waits in longest, and the query for those of it that take long."""
    trainer = of_trainer(sql("step between {since} and {step}", since=since, step=told[-1].step))
    frame = run.sql(
        sql(
            """with told as (select step, name, max(duration) as longest from scopes where {trainer} and kind = 'phase'
              and name in ({names}) group by step, name)
            select name, median(longest) as usual from told group by name order by sum(longest) desc, name limit 1""",
            trainer=trainer,
            names=map(literal, WAITING),
        )
    )
    name, usual = str(frame["name"].iloc[0]), float(frame["usual"].iloc[0])
    query = sql(
        "select * from scopes where kind = 'phase' and name = {name} and step >= {since}",
        name=literal(name),
        since=since,
    )
    return name, sql("{query} and duration >= {usual} order by duration desc", query=query, usual=usual / 2)


def _replicas(run: Run, steps: Sequence[Step]) -> Finding:
    since, told = _since(steps, [one.idle for one in steps], idling(steps))
    share = idling(told)
    parts = {
        name: added([one.replicas[name] for one in told if name in one.replicas], REPLICA)
        for name in sorted({name for one in told for name in one.replicas})
    }
    idle = added(list(parts.values()), REPLICA[1:])
    cause = max(idle, key=lambda name: idle[name])
    explained = idle[cause] / sum(idle.values())
    blamed = _blamed({name: sum(one.values()) - one["sampling"] for name, one in parts.items()})
    cost = median(one.idle * one.wall_ns for one in told) / 1e9
    who = "Replicas have" if len(parts) > 1 else "The replica has"
    text = f"{who} no request under way for {seconds(cost)} of a step, {percent(share)} of it, since step {since}"
    text += f": {'nearly all of it' if explained >= CAUSE else f'{percent(explained)} of that'} {MEANWHILE[cause]}."
    change, others = _change(run, told, cause, share, len(parts))
    if blamed is not None:
        text += f" {percent(_part(parts, blamed))} of the idle time is that of {blamed}."
        change = Change(f"Look at how requests are dealt to replicas: {blamed} gets few.")
    return Finding(
        "tuning",
        "idle_rollout",
        text,
        topic="token_balance",
        since=Since(since),
        cost=Cost(seconds=cost, share=share),
        explained=explained if explained >= CAUSE else None,
        why=_account("The replicas' time", added(list(parts.values()), REPLICA)),
        evidence_sql=_gaps(run, since),
        change=change,
        confidence="medium",
        alternatives=others,
        weight=100 * share,
    )


def _part(parts: dict[str, dict[str, int]], name: str) -> float:
    idle = {one: sum(each.values()) - each["sampling"] for one, each in parts.items()}
    return idle[name] / sum(idle.values())


def _blamed(idle: dict[str, int]) -> str | None:
    """The replica that has nearly all of the idle time, of several."""
    name = max(idle, key=lambda one: idle[one])
    return name if len(idle) > 1 and idle[name] >= CAUSE * sum(idle.values()) else None


def _change(run: Run, told: Sequence[Step], cause: str, share: float, replicas: int) -> tuple[Change, tuple[str, ...]]:
    """What to do about it, and what else it could be."""
    if cause == "weights":
        name, now = setting(run, "weights_every")
        return Change("Send weights less often, or while sampling goes on.", name, now=now), ()
    if cause == "answers":
        name, now = setting(run, "batches_ahead")
        return Change("Ask for answers before the trainer needs them: let more of them be under way.", name, now=now), (
            "A few answers are long, and all others have ended.",
        )
    if cause == "rest":
        return Change("Look at what the trainer does between its phases, and give that a phase of its own."), ()
    if waiting(told) >= WORTH / 4:
        name, now = setting(run, "batches_ahead")
        advice = "Let sampling run further ahead: replicas wait for the trainer, and it waits for them, by turns."
        return Change(advice, name, now=now), ("Steps take very different times.",)
    enough = math.ceil(replicas * (1 - share))
    name, now = setting(run, "rollout_devices")
    advice = "Training is the slower side: make it faster, or give it some of the rollout's devices"
    value = None
    if enough < replicas:
        advice += f": {enough} of {replicas} replicas would keep up"
        devices = number(now)
        value = devices * enough // replicas if devices and devices * enough % replicas == 0 else None
    others = ("Sampling ahead is limited on purpose, so that answers aren't of old weights.",)
    return Change(f"{advice}.", name, value, now), others


def _gaps(run: Run, since: int) -> Sql:
    """The query for the times in which a replica was idle for long, each before the request that ended it."""
    gaps = sql(_GAPS, first=since)
    longest = run.sql(
        sql(
            "{gaps} select median(longest) as usual from (select step, max(asked_ns - idle_since_ns) as longest "
            "from gaps where asked_ns > idle_since_ns group by step)",
            gaps=gaps,
        )
    )["usual"].iloc[0]
    limit = 1 if missing(longest) else max(int(longest) // 2, 1)
    return sql(
        "{gaps} select *, (asked_ns - idle_since_ns) / 1e9 as idle_s from gaps "
        "where asked_ns - idle_since_ns >= {limit} order by idle_s desc",
        gaps=gaps,
        limit=limit,
    )


def _account(whose: str, parts: dict[str, int]) -> str:
    """What the time went for, as shares of it; of replicas the time in which they are idle after the first."""
    names = _IDLE if "sampling" in parts else _BUSY
    whole = sum(parts.values())
    said = [f"{percent(value / whole)} {names[name]}" for name, value in parts.items() if value]
    return f"{whose}: {', '.join(said)}."
