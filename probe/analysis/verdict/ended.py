"""What ended a run: an exception, memory that ran out, a process that was killed; the first is the cause."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from probe.analysis import by_step
from probe.analysis.change import Change
from probe.analysis.clock_offsets import Offsets, offsets
from probe.analysis.framework_settings import number, setting
from probe.analysis.query import literal, same
from probe.analysis.verdict import hanging, lost
from probe.analysis.verdict.finding import ENDED, Finding, Since, Where
from probe.records import TABLES
from probe.runs import termination
from probe.runs.now_file import ROUND_NS
from probe.sql import Sql, joined, sql
from probe.text import count, own_line, percent, place, rows, short, size, stop, whole
from probe.text import missing as unknown

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: What an exception says where another process has gone: it follows from that one's end.
CONSEQUENCES: Final = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "nccl",
    "socket",
    "timed out",
    "timeout",
    "unavailable",
    "actor died",
    "worker died",
    "remote process exited",
)

#: Failures of the newest attempt that is shown, each once, in the order in which they happened.
_FAILURES: Final = """
select * from failures where kind = 'failure' and attempt = (select max(attempt) from processes)
  and coalesce(caught, false) = false and outermost in ('step', 'process', 'thread', 'phase', 'micro_batch')
qualify row_number() over (partition by process, exception_id order by revision desc) = 1 order by wall_ns, process
"""


def stopped(run: Run) -> list[Finding]:
    """What ended the run first, with those that wait for whom it ended; where nothing has ended, ranks that hang."""
    found, waiting = ended(run), hanging.hang(run)
    if not found or not waiting:
        return [*found, *waiting]
    return [found[0].moved(folded=(*found[0].folded, *waiting)), *found[1:]]


def ended(run: Run) -> list[Finding]:
    """What ended the run first: a process that was killed, an exception, memory that ran out, or a rank that others
    have waited for until they were ended; what failed after it is told with it.
    """
    found = _ended(run)
    cause = None if not found else hanging.ended_by(run, _ends(run)) if _may_follow_a_hang(run, found[0]) else None
    if cause is None:
        return found
    return [cause.moved(folded=tuple(after for one in found for after in (one, *one.folded)))]


def _may_follow_a_hang(run: Run, found: Finding) -> bool:
    """Whether the first end was that of a process that stood still, or of a collective that waited in vain."""
    if found.name == "killed":
        return any(one["process"] == found.where.process and _stood_s(one) >= hanging.LEAST_S for one in _now(run))
    told = [one for one in _failures(run) if one["process"] == found.where.process]
    return found.name == "failed" and bool(told) and all(follows(one) for one in told)


def _stood_s(one: Mapping[str, Any]) -> float:
    """For how long a process had entered and left no scope when it was seen last, seconds."""
    moved = max((int(one[name]) for name in ("begun_ns", "left_ns") if not unknown(one[name])), default=0)
    return 0.0 if unknown(one["heartbeat_ns"]) or not moved else (int(one["heartbeat_ns"]) - moved) / 1e9


def _ends(run: Run) -> list[dict[str, Any]]:
    """Where each process was as it ended: in the innermost scope that an exception has left first, or was seen last."""
    failed = {one["process"]: one for one in reversed(_failures(run))}
    return [{**one, **{name: failed.get(one["process"], one)[name] for name in ("step", "phase")}} for one in _now(run)]


def _now(run: Run) -> list[dict[str, Any]]:
    return by_step.now(run)


def _ended(run: Run) -> list[Finding]:
    gone, raised = killed(run), failures(run)
    if not gone or not raised:
        return [*gone, *raised]
    first, after = gone[0], raised[0]
    if _all_told_to_end(run, first.where.process):  # by the launcher, which has lost the process that failed
        return [after.moved(folded=(*after.folded, *gone)), *raised[1:]]
    told = _failures(run)
    if all(follows(one) for one in told if one["process"] == after.where.process):
        return [first.moved(folded=(*first.folded, after, *after.folded))]
    return [*gone, *raised]


def _all_told_to_end(run: Run, first: str | None) -> bool:
    """Whether the first that is gone was ended by SIGTERM: then all are that are gone."""
    return any(one["process"] == first and one["terminated"] for one in _now(run))


def _failures(run: Run) -> list[dict[str, Any]]:
    return rows(run.sql(_FAILURES)) if run.has("failures") else []


def failures(run: Run) -> list[Finding]:
    """The first exception that ended a process, what failed after it, and memory that ran out."""
    told = _failures(run)
    ended = {one["process"] for one in told if one["outermost"] in ("step", "process", "thread")}
    told = [one for one in told if one["process"] in ended]
    if not told:
        return []
    clock = offsets(run) if len(ended) > 1 else Offsets()
    for one in told:
        one["own_wall_ns"] = int(one["wall_ns"])
        one["wall_ns"] = clock.aligned(one["process"], int(one["wall_ns"]))
    told.sort(key=lambda one: one["wall_ns"])
    # An exception that says that another process has gone is the cause only where nothing else is.
    first = next((one for one in told if not follows(one)), told[0])
    others = [one for one in told if one["process"] != first["process"]]
    return [(_out_of_memory if first["out_of_memory"] else _raised)(run, first, others)]


def follows(row: Mapping[str, Any]) -> bool:
    """Whether an exception says that another process has gone.

    Args:
        row: Of a failure: its type, message and whether memory ran out.
    """
    text = f"{row['type']} {row['message']}".lower()
    return not row["out_of_memory"] and any(one in text for one in CONSEQUENCES)


def _kind(row: Mapping[str, Any]) -> str:
    return str(row["type"]).rpartition(".")[2]


def who(row: Mapping[str, Any]) -> str:
    """What a row's process is called at the beginning of a sentence."""
    return f"Rank {whole(row['rank'])}" if not unknown(row["rank"]) else str(row["process"])


def _after(row: Mapping[str, Any], first: Mapping[str, Any]) -> Finding:
    later = (int(row["wall_ns"]) - int(first["wall_ns"])) / 1e9
    when = f"{abs(later):.3g} s {'after' if later >= 0 else 'before'} it"
    return Finding(
        "alarm",
        "failed",
        f"{who(row)} failed {when}: {_kind(row)}, {stop(short(row['message']))}",
        where=Where.of(row),
        since=Since(whole(row["step"]), whole(row["wall_ns"])),
        evidence_sql=_evidence(row),
        urgency=ENDED,
    )


def _evidence(row: Mapping[str, Any]) -> Sql:
    process = literal(str(row["process"]))
    return sql(
        "select * from failures where process = {process} and exception_id = {exception_id}",
        process=process,
        exception_id=int(row["exception_id"]),
    )


def _others(others: list[dict[str, Any]]) -> str:
    names = {one["process"] for one in others}
    return (
        "" if not names else f" {'The other process' if len(names) == 1 else f'{len(names)} others'} failed after it."
    )


def _raised(run: Run, first: dict[str, Any], others: list[dict[str, Any]]) -> Finding:
    where = place({**first, "rank": None}) or str(first["scope"])
    text = f"{who(first)} raised {_kind(first)} in {where}: {stop(short(first['message']))}{_others(others)}"
    lines = [one.strip() for one in str(first["traceback"]).splitlines() if one.strip().startswith("File ")]
    own = own_line(str(first["traceback"]))
    why = f"It came from {lines[-1][5:]}{f', called from {own}' if own else ''}." if lines else ""
    lengths = first["lengths"]
    if lengths is not None and len(lengths):
        why += f" The micro-batch had {count(len(lengths))} sequences of {count(min(lengths))} to "
        why += f"{count(max(lengths))} tokens."
    return Finding(
        "alarm",
        "failed",
        text,
        quoted=f"{who(first)} raised {_kind(first)} in {where}.{_others(others)}",
        where=Where.of(first),
        since=Since(whole(first["step"]), whole(first["wall_ns"])),
        cost=lost.since(run, Where.of(first), first["own_wall_ns"]),
        why=why.strip(),
        evidence_sql=_evidence(first),
        change=Change("Read its traceback and the lengths of the micro-batch: run.post_mortem() shows them."),
        folded=tuple(_after(one, first) for one in others),
        urgency=ENDED,
        weight=100,
    )


def _out_of_memory(run: Run, first: dict[str, Any], others: list[dict[str, Any]]) -> Finding:
    lengths = [int(one) for one in first["lengths"]] if first["lengths"] is not None else []
    tokens = sum(lengths)
    where = place({**first, "rank": None}) or str(first["scope"])
    text = f"{who(first)} ran out of memory in {where}.{_others(others)}"
    parts = []
    parts += _held(first)
    if lengths:
        parts.append(
            f"the micro-batch had {count(tokens)} tokens in {count(len(lengths))} sequences, longest {max(lengths)}"
        )
    held = _phases(first)
    if held:
        parts.append(f"{held[0]} began with {size(held[1])}")
    name, now = setting(run, "micro_batch_tokens")
    cap = number(now) or _cap(run, first)
    change = Change(
        "Lower the number of tokens that a micro-batch may have.",
        name,
        _fitting(run, first, tokens, cap),
        cap,
    )
    if len(lengths) == 1:
        change = Change(
            "Shorten the longest sequences: this one was a micro-batch by itself, which no cap makes smaller."
        )
    why = f"{stop(short(first['message']))} " + ("; ".join(parts) + "." if parts else "")
    return Finding(
        "alarm",
        "out_of_memory",
        text,
        topic="memory",
        where=Where.of(first),
        since=Since(whole(first["step"]), whole(first["wall_ns"])),
        cost=lost.since(
            run, Where.of(first), first["own_wall_ns"], tokens=tokens or None, held=whole(first["allocated_bytes"])
        ),
        why=why.strip(),
        evidence_sql=_evidence(first),
        change=change,
        folded=tuple(_after(one, first) for one in others),
        urgency=ENDED,
        weight=110,
    )


def _held(row: Mapping[str, Any]) -> list[str]:
    """What the process held when its memory ran out: of a machine without an accelerator its own memory alone."""
    if unknown(row["allocated_bytes"]):
        return []
    if row["source"] == "process_rss":
        return [f"the process held {size(row['allocated_bytes'])} of its machine's memory"]
    told, total = f"PyTorch had allocated {size(row['allocated_bytes'])}", whole(row["device_total_bytes"])
    if not unknown(row["reserved_bytes"]):
        told += f" and reserved {size(row['reserved_bytes'])}"
    if total:
        told += f" of the device's {size(total)}"
    others = [] if not whole(row["non_torch_bytes"]) else [f"{size(row['non_torch_bytes'])} were not PyTorch's"]
    return [told, *others]


def _phases(row: Mapping[str, Any]) -> tuple[str, int] | None:
    """The phase that failed and the memory at its begin."""
    try:
        told = json.loads(str(row["phases"]))
    except ValueError:
        return None
    here = told.get(str(row["phase"])) if isinstance(told, dict) else None
    return (
        None if not isinstance(here, dict) or not here.get("floor_bytes") else (str(row["phase"]), here["floor_bytes"])
    )


def _cap(run: Run, row: Mapping[str, Any]) -> int | None:
    frame = run.sql(
        sql(
            """select max(cap_tokens) as cap from micro_batches where process = {process}
        and phase is not distinct from {phase}""",
            process=literal(str(row["process"])),
            phase=literal(None if unknown(row["phase"]) else row["phase"]),
        )
    )
    return whole(frame["cap"][0])


def _fitting(run: Run, row: Mapping[str, Any], tokens: int, cap: int | None) -> int | None:
    """A cap under which the phase stays a tenth below the device's size, by what its micro-batches took so far for each
    token; None where fewer than eight tell, or where it isn't below what is set now.
    """
    total, floor = whole(row["device_total_bytes"]), _phases(row)
    if cap is None or total is None or floor is None or not tokens:
        return None
    frame = run.sql(
        sql(
            """select tokens, peak from spans where process = {process} and kind = 'micro_batch'
        and phase is not distinct from {phase}
        and tokens > 0 and peak is not null and peak_kind = 'exact'""",
            process=literal(str(row["process"])),
            phase=literal(None if unknown(row["phase"]) else row["phase"]),
        )
    )
    if len(frame) < 8:
        return None
    taken = float(((frame["peak"] - floor[1]) / frame["tokens"]).quantile(0.95))
    if taken <= 0:
        return None
    room = 0.9 * total - floor[1] - (whole(row["non_torch_bytes"]) or 0)
    fitting = int(room / taken) // 64 * 64
    longest = whole(run.sql("select max(list_max(lengths)) as n from micro_batches")["n"][0]) or 0
    return fitting if longest <= fitting < min(cap, tokens) else None


#: What to do, and what it may have been, where a process was killed that nobody told to end.
_LOOK_FOR_KILLER: Final = (
    "Look at the last lines of its output, at the kernel's log of its machine for the out-of-memory killer, and at who "
    "sent a signal."
)
_KILLERS: Final = (
    "The kernel's out-of-memory killer.",
    "The scheduler's time or memory limit.",
    "A crash in native code, such as a segmentation fault, or an abort by NCCL's watchdog.",
    "A person, or os._exit.",
)

_UNSURE: Final = " They were seen last within half a second: which of them was first isn't known."

#: The same, where each process that is gone was told to end.
_LOOK_FOR_SENDER: Final = "Look at what sent SIGTERM: the scheduler's log, the launcher's output, or a person."
_SENDERS: Final = (
    "The scheduler, at the job's time limit, for a job of higher priority, or because the machine is taken away.",
    "The launcher, after a process of the job that records nothing had ended.",
    "A person, by kill or by stopping the launcher.",
)


def killed(run: Run) -> list[Finding]:
    """Processes that are gone without having ended their recording, while they were in a step."""
    told = _now(run)
    gone = [
        one
        for one in told
        if one["alive"] is False
        and not one["closed"]
        and not one["failed"]
        and unknown(one["ended_ns"])
        and one["scope"]
    ]
    failed = {one["process"] for one in _failures(run)} if gone else set()
    gone = [one for one in gone if one["process"] not in failed]
    if not gone:
        return []
    # The first to be gone is who was seen last at the earliest moment; whom SIGTERM has ended was told to go, and a
    # launcher tells all the others when it has lost one.
    gone.sort(key=lambda one: (bool(one["terminated"]), _seen_ns(one)))
    first, after = gone[0], gone[1:]
    where = Where.of(first)
    begun = whole(first["begun_ns"])
    told_to = bool(first["terminated"])
    unsure = _first_is_unsure(first, after)
    return [
        Finding(
            "alarm",
            "killed",
            _gone(first, after),
            where=where,
            since=Since(where.step, _seen_ns(first)),
            cost=lost.since(run, where, _seen_ns(first)),
            why=f"{_why(first)}{_host_memory(run, str(first['process']))}{_UNSURE if unsure else ''}",
            evidence_sql=sql(
                """select * from last_seen where process = {process} and not alive
                and ended_ns is null and """
                "{here}",
                process=literal(where.process),
                here=joined((same(name, getattr(where, name)) for name in ("step", "phase", "micro_batch")), " and "),
            ),
            change=Change(_LOOK_FOR_SENDER if told_to else _LOOK_FOR_KILLER),
            alternatives=_SENDERS if told_to else _KILLERS,
            confidence="high" if begun is not None and not unsure else "medium",
            urgency=ENDED,
            weight=105,
        )
    ]


def _gone(first: Mapping[str, Any], after: list[dict[str, Any]]) -> str:
    """Who is gone, in one sentence: those that were killed, and those that were told to end then."""
    how = "ended by SIGTERM" if first["terminated"] else "killed"
    text = f"{who(first)} was {how} in {hanging.inside(first)}, where it was seen last"
    alike = sum(bool(one["terminated"]) == bool(first["terminated"]) for one in after)
    told = len(after) - alike
    if alike:
        text += f"; so {'was' if alike == 1 else 'were'} {alike} more"
    if told:
        text += f"; {told} other{'' if told == 1 else 's'} {'was' if told == 1 else 'were'} ended by SIGTERM after it"
    return f"{text}."


def _why(first: Mapping[str, Any]) -> str:
    if not first["terminated"]:
        return (
            "It left no exception and didn't end its recording, as after SIGKILL, a crash in native code or os._exit."
        )
    line = termination.innermost(str(first["stack"]))
    return f"It got SIGTERM, which asks a process to end{f', at {line}' if line else ''}."


def _first_is_unsure(first: Mapping[str, Any], after: list[dict[str, Any]]) -> bool:
    """Whether another one may have gone before: nothing but when they were seen last tells."""
    alike = (one for one in after if bool(one["terminated"]) == bool(first["terminated"]))
    return any(_seen_ns(one) - _seen_ns(first) < ROUND_NS for one in alike)


def _seen_ns(one: Mapping[str, Any]) -> int:
    known = [int(one[name]) for name in ("heartbeat_ns", "begun_ns", "left_ns") if not unknown(one[name])]
    return max(known, default=0)


def _host_memory(run: Run, process: str) -> str:
    """What the machine's memory was when a process was seen last, where its container has a limit."""
    if "host_memory" not in TABLES:
        return ""
    columns = TABLES["host_memory"].__struct_fields__
    if not {"cgroup_limit_bytes", "cgroup_used_bytes"} <= set(columns):
        return ""
    frame = run.sql(
        sql(
            """select arg_max(cgroup_used_bytes, wall_ns) as used, arg_max(cgroup_limit_bytes, wall_ns) as "limit"
        from host_memory where process = {process}""",
            process=literal(process),
        )
    )
    used, limit = frame["used"][0], frame["limit"][0]
    if unknown(used) or unknown(limit) or not limit:
        return ""
    return f" Its container had {percent(used / limit)} of its {size(limit)} in use."
