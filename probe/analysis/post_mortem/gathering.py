"""Gathers a post-mortem from the rows of a run and the files that say where its processes are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from probe.analysis.clock_offsets import Offsets, offsets
from probe.analysis.post_mortem import held
from probe.analysis.post_mortem.answer import PostMortem
from probe.analysis.post_mortem.record import Column, DeviceMemory, Event, How, PhaseMemory, Standing, State
from probe.analysis.verdict import ended, hanging
from probe.analysis.verdict.finding import Finding, Where
from probe.runs import termination
from probe.text import missing, rows, seconds, whole

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Exceptions that have ended a process or its last step: those that count as what ended a run.
_ENDS = ("step", "process", "thread")

#: What a shell says of a process that Ctrl-C has ended.
_CTRL_C = 130


def gathered(run: Run) -> PostMortem:
    """What :func:`probe.analysis.post_mortem.post_mortem` gives."""
    standing, attempt = _standing(run), _attempt(run)
    clock = offsets(run)
    found = ended.ended(run)
    if found:
        state: State = "killed" if found[0].name == "killed" else "failed"
        events = _events(run, found[0], standing, clock, attempt)
        told = PostMortem(state, found[0].sentence, attempt, found[0].why, events)
    elif interrupted := [one for one in _raised(run, attempt) if one["kind"] == "interrupted"]:
        told = PostMortem("interrupted", _stopped(interrupted[0]), attempt, "", (_exception(run, interrupted[0]),))
    elif hangs := hanging.hang(run):
        told = PostMortem("hangs", hangs[0].sentence, attempt, hangs[0].why, _hang(run, hangs[0], standing))
    else:
        state, sentence = _unharmed(standing)
        return PostMortem(state, sentence, attempt, standing=standing)
    first, by_process = told.events[0], {one.process: one for one in told.events}
    return replace(
        told,
        last_rows=held.last_rows(run, first.process, first.wall_ns),
        standing=tuple(_failed_in(one, by_process.get(one.process)) for one in standing),
        clock_error_s=clock.error_s,
    )


def _failed_in(one: Standing, event: Event | None) -> Standing:
    """Of a process that an exception has ended: the scope that it came from, since it is in none any more."""
    if event is None or event.how not in ("exception", "interrupt") or one.scope:
        return one
    return replace(one, scope=event.scope, where=event.where)


def _attempt(run: Run) -> int:
    return run.shown_attempt if run.shown_attempt is not None else max(run.attempts, default=1)


def _raised(run: Run, attempt: int) -> list[dict[str, Any]]:
    """Exceptions of an attempt that have ended a process or its last step, in their order."""
    told = run.failures()
    told = told[(told["attempt"] == attempt) & told["outermost"].isin(_ENDS) & told["caught"].fillna(False).ne(True)]
    return rows(told)


# ------------------------------------------------------------------------------------------------------------- events


def _events(
    run: Run, finding: Finding, standing: Sequence[Standing], clock: Offsets, attempt: int
) -> tuple[Event, ...]:
    """What happened to each process, the cause first and the others in their order."""
    raised: dict[str, Event] = {}
    for row in _raised(run, attempt):
        if row["kind"] == "failure":
            raised.setdefault(str(row["process"]), _exception(run, row))
    gone = {one.process: _killed(run, one) for one in standing if one.state in ("killed", "terminated")}
    both = {**gone, **raised}
    first = both.get(str(finding.where.process))
    others = [one for one in both.values() if one is not first]
    ordered = sorted(others, key=lambda one: clock.aligned(one.process, one.wall_ns or 0))
    events = [*([] if first is None else [first]), *ordered]
    return tuple(_after(one, events[0], clock) for one in events)


def _after(event: Event, first: Event, clock: Offsets) -> Event:
    if event is first or event.wall_ns is None or first.wall_ns is None:
        return event
    later = clock.aligned(event.process, event.wall_ns) - clock.aligned(first.process, first.wall_ns)
    return replace(event, after_s=later / 1e9)


def _exception(run: Run, row: Mapping[str, Any]) -> Event:
    lengths = _whole_numbers(row["lengths"])
    where = Where.of(row)
    return Event(
        how="interrupt" if row["kind"] == "interrupted" else "exception",
        process=str(row["process"]),
        where=where,
        scope=str(row["scope"]),
        wall_ns=whole(row["wall_ns"]),
        left=str(row["outermost"]),
        type=str(row["type"]),
        message=str(row["message"]),
        traceback=str(row["traceback"]),
        causes=_texts(row["causes"]),
        out_of_memory=bool(row["out_of_memory"]),
        is_consequence=ended.follows(row),
        lengths=lengths or held.lengths(run, str(row["process"]), where),
        columns=_columns(row["fields"]),
        memory=_device(row),
        phases=_phases(row["phases"]),
        batch_path=str(row["batch_path"]) or None,
        snapshot_path=str(row["snapshot_path"]) or None,
    )


def _killed(run: Run, one: Standing) -> Event:
    return Event(
        how="killed" if one.state == "killed" else "terminated",
        process=one.process,
        where=one.where,
        scope=one.scope,
        wall_ns=max((at for at in (one.seen_ns, one.since_ns) if at is not None), default=None),
        lengths=held.lengths(run, one.process, one.where),
        memory=held.device(run, one.process),
        phases=held.phases(run, one.process),
        stack=one.stack,
        stack_line=one.stack_line,
    )


def _hang(run: Run, finding: Finding, standing: Sequence[Standing]) -> tuple[Event, ...]:
    """Who is waited for, and those that wait; where nobody knows for whom, these alone."""
    if not finding.folded:
        return (_stands_still(run, finding, standing, "hang"),)
    waits = (_stands_still(run, one, standing, "hang") for one in finding.folded)
    return _stands_still(run, finding, standing, "awaited"), *waits


def _stands_still(run: Run, finding: Finding, standing: Sequence[Standing], how: How) -> Event:
    process = str(finding.where.process)
    at = next((one for one in standing if one.process == process), None)
    return Event(
        how=how,
        process=process,
        where=finding.where,
        scope="" if at is None else at.scope,
        wall_ns=finding.since.wall_ns,
        lengths=held.lengths(run, process, finding.where),
        memory=held.device(run, process),
        phases=held.phases(run, process),
        stack="" if at is None else at.stack,
        stack_line="" if at is None else at.stack_line,
    )


def _stopped(row: Mapping[str, Any]) -> str:
    where = Where.of(row, rank=None, process=None)
    who = ended.who(row)
    return f"{who} was interrupted by Ctrl-C{f' in {where}' if str(where) else ''}."


def _device(row: Mapping[str, Any]) -> DeviceMemory | None:
    if not row["device"]:
        return None
    return DeviceMemory(
        str(row["device"]),
        str(row["source"]),
        whole(row["allocated_bytes"]),
        whole(row["reserved_bytes"]),
        whole(row["non_torch_bytes"]),
        whole(row["device_total_bytes"]),
    )


def _phases(told: Any) -> tuple[PhaseMemory, ...]:
    found = _json(told)
    return tuple(
        PhaseMemory(str(name), whole(one.get("floor_bytes")), whole(one.get("peak_bytes")))
        for name, one in found.items()
        if isinstance(one, dict)
    )


def _columns(told: Any) -> tuple[Column, ...]:
    return tuple(
        Column(
            str(key),
            tuple(one["shape"]) if isinstance(one.get("shape"), list) else None,
            str(one.get("dtype", "")),
            whole(one.get("bytes")),
            str(one.get("device", "")),
            str(one.get("type", "")),
        )
        for key, one in _json(told).items()
        if isinstance(one, dict)
    )


def _json(told: Any) -> dict[str, Any]:
    try:
        found = json.loads(str(told))
    except ValueError:  # cut off, or of nobody that we know
        return {}
    return found if isinstance(found, dict) else {}


def _whole_numbers(told: Any) -> tuple[int, ...] | None:
    return tuple(int(one) for one in told) if told is not None and len(told) else None


def _texts(told: Any) -> tuple[str, ...]:
    return tuple(str(one) for one in told) if told is not None else ()


# ---------------------------------------------------------------------------------------------- where processes are


def _standing(run: Run) -> tuple[Standing, ...]:
    """Each process of the attempt, by the file that says where it is."""
    stacks = held.stacks(run)
    return tuple(_stands(one, stacks) for one in rows(run.now()))


def _stands(one: Mapping[str, Any], stacks: Mapping[tuple[str, int], tuple[str, str]]) -> Standing:
    stack, line = stacks.get((str(one["process"]), whole(one["scope_id"]) or 0), ("", ""))
    if one["stack"]:
        stack, line = str(one["stack"]), termination.innermost(str(one["stack"]))
    return Standing(
        process=str(one["process"]),
        where=Where.of(one),
        state=_state(one),
        scope=str(one["scope"]),
        host=str(one["host"]),
        pid=whole(one["pid"]) or None,
        exit_code=whole(one["exit_code"]) or 0,
        since_ns=whole(one["begun_ns"]),
        seen_ns=whole(one["heartbeat_ns"]),
        stack=stack,
        stack_line=line,
    )


def _state(one: Mapping[str, Any]) -> str:
    if one["failed"]:
        return "failed"
    if one["closed"]:
        return "ended" if not one["exit_code"] else "interrupted" if one["exit_code"] == _CTRL_C else "exited"
    if missing(one["alive"]):
        return "unknown"
    return "runs" if one["alive"] else "terminated" if one["terminated"] else "killed"


def _unharmed(standing: Sequence[Standing]) -> tuple[State, str]:
    """How a run is that nothing has ended of which there are rows."""
    of: dict[str, list[Standing]] = {}
    for one in standing:
        of.setdefault(one.state, []).append(one)
    if not of:
        return "unknown", "Nothing says where the processes of this run are: what ended it isn't known."
    if "failed" in of:
        who = _names(of["failed"])
        return "failed", f"An exception has ended {who}, and its row isn't there: what it was isn't known."
    if "runs" in of:
        return "runs", "Nothing has ended this run: it goes on."
    if gone := _gone(of):
        return gone
    if "unknown" in of:
        return "unknown", _silent(of["unknown"], standing)
    return _left(of)


def _gone(of: Mapping[str, Sequence[Standing]]) -> tuple[State, str] | None:
    """How a run is that lost processes between steps, where one may also end without a word to anybody."""
    if "killed" in of:
        return "unknown", f"{_names(of['killed'])} went without ending the recording, in no step: why isn't known."
    if "terminated" in of:
        return "killed", f"SIGTERM has ended {_names(of['terminated'])}, in no step."
    return None


def _left(of: Mapping[str, Sequence[Standing]]) -> tuple[State, str]:
    """How a run is whose processes have all ended their recording, none by an exception."""
    if stopped := of.get("interrupted"):
        return "interrupted", f"{_names(stopped)} {'was' if len(stopped) == 1 else 'were'} interrupted by Ctrl-C."
    if left := of.get("exited"):
        return "exited", f"{_names(left)} exited with code {left[0].exit_code}, by sys.exit."
    return "ended", "Nothing went wrong: each process has ended its recording in order."


def _silent(silent: Sequence[Standing], standing: Sequence[Standing]) -> str:
    """Of processes of other machines that haven't ended their recording."""
    seen = max((one.seen_ns or 0 for one in silent), default=0)
    last = max((one.seen_ns or 0 for one in standing), default=0)
    more = f", {seconds((last - seen) / 1e9)} before the others" if seen and last - seen > 1e9 else ""
    return (
        f"{_names(silent)} didn't end the recording, and {'is' if len(silent) == 1 else 'are'} of another machine, "
        f"where nobody can look from here: last seen in {silent[0].scope or 'no scope'}{more}."
    )


def _names(told: Sequence[Standing]) -> str:
    names = [one.process if one.where.rank is None else f"Rank {one.where.rank}" for one in told]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
