"""Ranks that wait for one that doesn't come: who waits, where, since when, for whom, and why."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from probe.analysis import by_step
from probe.analysis.change import Change
from probe.analysis.query import literal, same
from probe.analysis.verdict import lost
from probe.analysis.verdict.finding import ENDED, Cost, Finding, Since, Where
from probe.records import TABLES
from probe.sql import joined, sql
from probe.text import missing as unknown
from probe.text import own_line, place, rows, seconds, whole

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: A scope hangs that has been open for so many times the longest of its kind, and for so many seconds, where it is
#: plain that who is waited for won't come: it has fewer micro-batches there, or is gone.
TIMES, LEAST_S = 3.0, 5.0
#: Where that isn't plain, or no such scope has ended on any rank yet, for so many seconds.
UNSURE_S: Final = 60.0
#: Where who is waited for is at work elsewhere, in a phase that none has ended before (a first checkpoint), seconds.
FIRST_S: Final = 600.0
#: Such scopes that must have ended for their times to say anything where it isn't plain: a first step is slow.
KNOWN: Final = 3
#: A process whose writer hasn't come round for so many seconds doesn't run Python.
SILENT_S: Final = 10.0
WHY: Final = "A rank with fewer micro-batches never enters the collectives of the others' last ones."
ADVICE: Final = "Let all ranks cut the same number of micro-batches: pass dp_group to the function that cuts them."
#: How the flight recorder calls the one process group that has all ranks: several others may have one description.
ALL_RANKS: Final = "default_pg"
#: Clocks of machines are taken to be less than so many seconds apart.
SKEW_S: Final = 120.0


class Counts(NamedTuple):
    """How many micro-batches ranks have in a step and phase.

    Attributes:
        of: By rank; of one that is still there those that it has come to.
        whole: Ranks of which that is all of them: the code that cut the batch has said so.
    """

    of: Mapping[int, int]
    whole: frozenset[int]

    def at(self, one: Mapping[str, Any]) -> int | None:
        """Those of a process; None without a rank, or where nothing is known of it."""
        return None if unknown(one["rank"]) else self.of.get(int(one["rank"]))


def hang(run: Run, now_ns: int | None = None) -> list[Finding]:
    """A scope that is open for much longer than it ever was, while other ranks have left it or wait, too.

    Args:
        run: The run.
        now_ns: Wall-clock nanoseconds since the epoch; None is now.
    """
    told = by_step.now(run)
    clocks = _clocks(told, now_ns)
    for one in told:
        one["now_ns"] = clocks[one["host"]]
    stuck = [
        one
        for one in told
        if one["alive"] is not False
        and unknown(one["ended_ns"])
        and not unknown(one["begun_ns"])
        and _open_s(one) >= LEAST_S
    ]
    # Who was stuck first has waited longest; whoever moved on last moved while the others waited.
    for waiting in sorted(stuck, key=_open_s, reverse=True):
        counts = _counts(run, waiting)
        others = [one for one in told if one["process"] != waiting["process"]]
        culprit = _culprit(waiting, others, counts)
        if _hangs(run, waiting, culprit, counts) and not _works(run, waiting, culprit, counts):
            return [_finding(run, waiting, stuck, culprit, counts)]
    return []


def _clocks(told: Sequence[dict[str, Any]], now_ns: int | None) -> dict[str, int]:
    """What time it is on the clock of each machine, nanoseconds, which times of its processes are compared with.

    A machine's clock is at least where the newest round of one of its writers was. Of this machine it can be read. Of
    another one a clock that seems to stand still is either behind ours, or nothing runs there: beyond :data:`SKEW_S`
    it's the latter. A copy of a run that isn't brought up to date stands still, too, and says nothing.
    """
    ours = time.time_ns()
    later = 0 if now_ns is None else now_ns - ours
    found: dict[str, int] = {}
    for one in told:
        seen = [int(one[name]) for name in ("heartbeat_ns", "begun_ns", "left_ns") if not unknown(one[name])]
        if unknown(one["copied_ns"]):
            seen.append(later + (ours - int(SKEW_S * 1e9) if unknown(one["clock_ns"]) else int(one["clock_ns"])))
        found[one["host"]] = max(found.get(one["host"], 0), *seen, 0)
    return found


def _open_s(one: Mapping[str, Any]) -> float:
    """For how long a process has entered and left no scope, seconds of its machine's own clock."""
    return float(one["now_ns"] - _moved_ns(one)) / 1e9


def _moved_ns(one: Mapping[str, Any]) -> int:
    """When the process last entered or left a scope."""
    return max((int(one[name]) for name in ("begun_ns", "left_ns") if not unknown(one[name])), default=0)


def _hangs(run: Run, one: dict[str, Any], culprit: dict[str, Any] | None, counts: Counts) -> bool:
    """Whether the scope is open for much longer than such scopes ever were, on any rank."""
    open_s = _open_s(one)
    longest, many = _usual(run, one)
    plain = culprit is not None and (_is_gone(culprit) or _has_fewer(one, culprit, counts))
    if longest is None:
        return plain and open_s > UNSURE_S
    if plain:
        return open_s > max(LEAST_S, TIMES * longest)
    return many >= KNOWN and open_s > max(UNSURE_S, TIMES * longest)


def _usual(run: Run, one: dict[str, Any]) -> tuple[float | None, int]:
    """The longest of the scopes of its kind and phase that have ended, seconds, on any rank; and how many there are."""
    phase = literal(None if unknown(one["phase"]) else one["phase"])
    frame = run.sql(
        sql(
            """select max(duration) as longest, count(*) as n from scopes where kind = {kind}
        and phase is not distinct from {phase}""",
            kind=literal(one["kind"]),
            phase=phase,
        )
    )
    longest = frame["longest"][0]
    return None if unknown(longest) else float(longest), int(frame["n"][0])


def _works(run: Run, waiting: dict[str, Any], culprit: dict[str, Any] | None, counts: Counts) -> bool:
    """Whether who is waited for may well be at work: elsewhere, and not for longer than it takes there."""
    if culprit is None or _is_gone(culprit) or _has_fewer(waiting, culprit, counts) or unknown(culprit["begun_ns"]):
        return False
    longest, _ = _usual(run, culprit)
    return _open_s(culprit) < (FIRST_S if longest is None else max(UNSURE_S, TIMES * longest))


def _is_gone(one: Mapping[str, Any]) -> bool:
    """Whether a process is there no more, and hadn't ended its recording."""
    return one["alive"] is False and unknown(one["ended_ns"])


def _is_elsewhere(waiting: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether another process has left the step and phase, or hasn't come to it."""
    names = ("step", "phase")
    return any(other[n] != waiting[n] and not (unknown(other[n]) and unknown(waiting[n])) for n in names)


def _has_fewer(waiting: Mapping[str, Any], other: Mapping[str, Any], counts: Counts) -> bool:
    """Whether the other has fewer micro-batches there, and none of them is still to come."""
    own, theirs = counts.at(waiting), counts.at(other)
    if own is None or theirs is None or theirs >= own:
        return False
    return int(other["rank"]) in counts.whole or not unknown(other["ended_ns"]) or _is_elsewhere(waiting, other)


def _counts(run: Run, one: Mapping[str, Any]) -> Counts:
    """Those of all ranks in the step and phase in which one waits."""
    if unknown(one["step"]):
        return Counts({}, frozenset())
    phase = literal(None if unknown(one["phase"]) else one["phase"])
    frame = run.sql(
        sql(
            """select rank, count(*) as n, bool_and(micro_batches is not null) as whole from micro_batches
        where step = {step} and rank is not null and phase is not distinct from {phase}
        group by rank order by rank""",
            step=whole(one["step"]),
            phase=phase,
        )
    )
    told = rows(frame)
    ends = frozenset(int(row["rank"]) for row in told if row["whole"])
    return Counts({int(row["rank"]): int(row["n"]) for row in told}, ends)


def _culprit(waiting: dict[str, Any], others: Sequence[dict[str, Any]], counts: Counts) -> dict[str, Any] | None:
    """Whom it waits for: who is gone, else who has fewer micro-batches there, else who is elsewhere, else who is there
    and hasn't come as far; None where all are at one place.
    """
    own = counts.at(waiting)
    fewer = [one for one in others if _has_fewer(waiting, one, counts)]
    fewer.sort(key=lambda one: (counts.at(one) or 0, int(one["rank"])))
    elsewhere = [one for one in others if _is_elsewhere(waiting, one) and unknown(one["ended_ns"])]
    behind = [one for one in others if own is not None and (counts.at(one) or own) < own]
    gone = [one for one in others if _is_gone(one)]
    return next(iter([*gone, *fewer, *elsewhere, *behind]), None)


def _who(one: Mapping[str, Any]) -> str:
    return f"rank {whole(one['rank'])}" if not unknown(one["rank"]) else str(one["process"])


def _finding(
    run: Run,
    waiting: dict[str, Any],
    overdue: Sequence[dict[str, Any]],
    culprit: dict[str, Any] | None,
    counts: Counts,
) -> Finding:
    """The hang, at the place of whom the others wait for, where that is known; else where the first of them waits."""
    since_ns, open_s = _moved_ns(waiting), _open_s(waiting)
    here = inside(waiting)
    victims = [one for one in overdue if culprit is None or one["process"] != culprit["process"]]
    they, verb = _they(waiting, victims), "has" if len(victims) < 2 else "have"
    waited = f"{they} {verb} waited for it for {seconds(open_s)} in {here}."
    fewer = culprit is not None and _has_fewer(waiting, culprit, counts)
    why, change = "", Change("Look at what each rank does there, in run.now() and in the stacks that it has recorded.")
    if culprit is None:
        text = f"{_capital(they)} {verb} been stuck for {seconds(open_s)} in {here}"
        text += "; all ranks are there." if len(overdue) > 1 else "."
    elif _is_gone(culprit):
        text = f"{_capital(_who(culprit))} is gone, and {waited}"
    elif fewer:
        text = f"{_capital(_who(culprit))} has {_micro_batches(counts.at(culprit))} in {_phase(waiting)} where "
        text += f"{_who(waiting)} has {counts.at(waiting)}, and {waited}"
        why, change = WHY, Change(ADVICE)
    else:
        there = inside(culprit) or "no scope"
        text = f"{_capital(_who(culprit))} is {'elsewhere, ' if _is_elsewhere(waiting, culprit) else 'still '}in "
        text += f"{there}, and {waited}"
    why += _silent(overdue)
    seen = [(one, _seen(run, one)) for one in (waiting, *([] if culprit is None else [culprit]))]
    known = [(one, told) for one, told in seen if told is not None]
    why += "".join(_stands(one, told) for one, told in known) + _apart([told for _, told in known])
    where, evidence = _place(waiting, culprit, fewer=fewer)
    return Finding(
        "alarm",
        "hang",
        text,
        where=where,
        since=Since(whole(waiting["step"]), since_ns),
        cost=Cost(seconds=open_s),
        why=why.strip(),
        evidence_sql=evidence,
        change=change,
        confidence="high" if fewer else "medium",
        folded=() if culprit is None else tuple(_victim(one) for one in victims),
        urgency=ENDED,
        weight=120,
    )


def inside(one: Mapping[str, Any]) -> str:
    """Where a process is, as words; "" in no scope.

    Args:
        one: Of ``run.now()``.
    """
    return place({**one, "rank": None, "name": None}) or str(one["scope"])


def _they(waiting: Mapping[str, Any], victims: Sequence[Mapping[str, Any]]) -> str:
    """Who waits: the first, and how many others."""
    others = len({str(one["process"]) for one in victims} - {str(waiting["process"])})
    return _who(waiting) + ("" if not others else f" and {others} other{'s' if others > 1 else ''}")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _micro_batches(many: int | None) -> str:
    return f"{many} micro-batch{'' if many == 1 else 'es'}"


def _phase(waiting: Mapping[str, Any]) -> str:
    return place({name: waiting[name] for name in ("role", "phase", "step")})


def _silent(overdue: Sequence[Mapping[str, Any]]) -> str:
    silent = [
        one
        for one in overdue
        if not unknown(one["heartbeat_ns"]) and one["now_ns"] - int(one["heartbeat_ns"]) > SILENT_S * 1e9
    ]
    if not silent:
        return ""
    return (
        f" The interpreter of {_who(silent[0])} is blocked by native code that holds its lock (GIL), so what it "
        "does there isn't known."
    )


def _place(waiting: Mapping[str, Any], culprit: Mapping[str, Any] | None, *, fewer: bool) -> tuple[Where, str]:
    """Where the hang is, and the rows of that place: of who has fewer micro-batches those that it has, of who is gone
    or elsewhere the place at which it is, of who waits for nobody that is known its own.
    """
    if culprit is not None and fewer:
        return _of_fewer(waiting, culprit)
    where = Where.of(waiting if culprit is None else culprit)
    stands = sql("process = {process} and ended_ns is null", process=literal(where.process))
    if culprit is not None and _is_gone(culprit):
        stands = sql("{stands} and not alive", stands=stands)
    at = joined((same(name, getattr(where, name)) for name in ("step", "phase", "micro_batch")), " and ")
    return where, sql("select * from last_seen where {stands} and {at}", stands=stands, at=at)


def _of_fewer(waiting: Mapping[str, Any], culprit: Mapping[str, Any]) -> tuple[Where, str]:
    """The phase in which a rank has fewer micro-batches, and those, as long as they are fewer."""
    names = ("attempt", "step", "role", "phase")
    told = {name: waiting.get(name) for name in names}
    where = Where.of({**told, "rank": culprit["rank"], "process": culprit["process"]})
    here = sql("step = {step} and {same_phase}", step=where.step, same_phase=same("phase", where.phase))
    many = "(select count(*) from micro_batches where rank = {rank} and {here})"
    return where, (
        sql(
            "select * from micro_batches where rank = {rank} and {here} and {theirs} < {own}",
            rank=where.rank,
            here=here,
            theirs=sql(many, rank=where.rank, here=here),
            own=sql(many, rank=whole(waiting["rank"]), here=here),
        )
    )


def _victim(one: Mapping[str, Any]) -> Finding:
    here = inside(one)
    return Finding(
        "alarm",
        "waits",
        f"{_capital(_who(one))} has waited for {seconds(_open_s(one))} in {here}.",
        where=Where.of(one),
        since=Since(whole(one["step"]), _moved_ns(one)),
        cost=Cost(seconds=_open_s(one)),
        evidence_sql=sql(
            """select * from last_seen where process = {process} and ended_ns is null
            and scope_id = {scope_id}""",
            process=literal(str(one["process"])),
            scope_id=int(one["scope_id"]),
        ),
        urgency=ENDED,
    )


def _seen(run: Run, one: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the watchdog of the process told last of the scope that it is in."""
    if "stacks" not in TABLES:
        return None
    frame = run.sql(
        sql(
            """select * from stacks where process = {process} and scope_id = {scope_id}
        and seen order by wall_ns desc limit 1""",
            process=literal(str(one["process"])),
            scope_id=int(one["scope_id"]),
        )
    )
    return next(iter(rows(frame)), None)


def _stands(one: Mapping[str, Any], seen: Mapping[str, Any]) -> str:
    """At which line of code a process is, and in which collective."""
    own, collective = own_line(str(seen["stack"])), _collective(seen)
    text = f"{seen['innermost']}{f', called from {own}' if own else ''}{f', in {collective}' if collective else ''}"
    return f" {_capital(_who(one))} is at {text}."


def _collective(seen: Mapping[str, Any]) -> str:
    if unknown(seen["collective"]) or not seen["collective"]:
        return ""
    number = whole(seen["collective_number"])
    of = f" of {seen['collective_group']}" if number is None else f", collective {number} of {seen['collective_group']}"
    sizes = "" if unknown(seen["collective_sizes"]) else seen["collective_sizes"]
    return f"{seen['collective']}{of}{f' ({sizes})' if sizes else ''}"


def _apart(seen: Sequence[Mapping[str, Any]]) -> str:
    """That ranks call different collectives where the group that all of them are in has them call the same one."""
    told = [one for one in seen if one["collective_group"] == ALL_RANKS and not unknown(one["collective_number"])]
    for one, other in pairwise(told):
        if one["collective_number"] == other["collective_number"] and one["collective"] != other["collective"]:
            return " They call different collectives there, which never come together."
    return ""


def ended_by(run: Run, ends: Sequence[Mapping[str, Any]]) -> Finding | None:
    """The hang that was the cause of how processes have ended: in the last step that one of them was in a rank had
    fewer micro-batches than another, which waited for it until it was killed or its collective timed out.

    Args:
        run: The run.
        ends: Of each process the rank, step and phase in which it ended, with "process" and "ended_ns".
    """
    known = [one for one in ends if not unknown(one["rank"]) and not unknown(one["step"])]
    step = max((int(one["step"]) for one in known), default=None)
    for waiting in sorted(known, key=lambda one: int(one["rank"])):
        if int(waiting["step"]) != step or unknown(waiting["phase"]):
            continue
        counts = _counts(run, waiting)
        fewer = [one for one in known if _has_fewer(waiting, {**one, "ended_ns": None}, counts)]
        if fewer:
            return _ended_by(run, waiting, min(fewer, key=lambda one: (counts.at(one) or 0, int(one["rank"]))), counts)
    return None


def _ended_by(run: Run, waiting: Mapping[str, Any], culprit: Mapping[str, Any], counts: Counts) -> Finding:
    own, theirs = counts.at(waiting), counts.at(culprit)
    place_of = {**waiting, "rank": None, "micro_batch": None if own is None else own - 1}
    text = f"{_capital(_who(culprit))} has {_micro_batches(theirs)} in {_phase(waiting)} where {_who(waiting)} has "
    text += f"{own}, which waited for it in micro-batch {place_of['micro_batch']} until it was ended."
    where, evidence = _of_fewer(waiting, culprit)
    ended = _moved_ns(waiting) if unknown(waiting["heartbeat_ns"]) else int(waiting["heartbeat_ns"])
    return Finding(
        "alarm",
        "hang",
        text,
        where=where,
        since=Since(where.step),
        cost=lost.since(run, Where.of(waiting), ended),
        why=WHY,
        evidence_sql=evidence,
        change=Change(ADVICE),
        confidence="high",
        urgency=ENDED,
        weight=120,
    )
