"""What a process held and wrote last, by its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from probe.analysis.post_mortem.record import DeviceMemory, LastRow, PhaseMemory
from probe.analysis.query import literal, same
from probe.analysis.verdict.finding import Where
from probe.sql import Sql, joined, sql
from probe.text import count, missing, number, rows, seconds, size, whole

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Rows that are shown of what a process wrote last.
LAST: Final = 20

#: What a row of each table says, as SQL: a name, a number and its unit.
_SAID: Final = {
    "calls": ("point", "duration_ns / 1e9", "seconds"),
    "memory": ("edge", "allocated_bytes", "bytes"),
    "micro_batches": ("'cut'", "tokens", "tokens"),
    "reductions": ("key", "value", ""),
    "scalars": ("key", "value", ""),
    "incidents": ("kind || ': ' || message", "null", ""),
    "stacks": ("innermost", "open_ns / 1e9", "seconds"),
}


def lengths(run: Run, process: str, where: Where) -> tuple[int, ...] | None:
    """Of a micro-batch that a process was in and didn't end, as its rows say; None where they don't: the last rows of a
    process that was killed may be missing, and those before are of a micro-batch that has ended.
    """
    if where.micro_batch is None:
        return None
    here = sql(
        """process = {process} and {same_step} and {same_phase}
        and micro_batch = {micro_batch}""",
        process=literal(process),
        same_step=same("step", where.step),
        same_phase=same("phase", where.phase),
        micro_batch=where.micro_batch,
    )
    frame = run.sql(
        sql(
            """select lengths from micro_batches cut where {here} and not exists (
          select 1 from scopes where {here} and kind = 'micro_batch' and begin_ns >= cut.wall_ns)
        order by wall_ns desc limit 1""",
            here=here,
        )
    )
    if frame.empty or frame["lengths"][0] is None or not len(frame["lengths"][0]):
        return None
    return tuple(int(one) for one in frame["lengths"][0])


def device(run: Run, process: str) -> DeviceMemory | None:
    """The memory of the process's device, by its newest row."""
    frame = run.sql(
        sql(
            """select device, source, allocated_bytes, reserved_bytes, non_torch_bytes, device_total_bytes from memory
        where process = {process} order by wall_ns desc limit 1""",
            process=literal(process),
        )
    )
    if frame.empty:
        return None
    (row,) = rows(frame)
    sizes = ("allocated_bytes", "reserved_bytes", "non_torch_bytes", "device_total_bytes")
    return DeviceMemory(str(row["device"]), str(row["source"]), *(whole(row[name]) for name in sizes))


def phases(run: Run, process: str) -> tuple[PhaseMemory, ...]:
    """The memory of each phase of a process, in the order in which they began first."""
    frame = run.sql(
        sql(
            """select phase, arg_max(allocated_bytes, wall_ns) filter (edge = 'enter') as floor,
               max(peak_allocated_bytes) as peak
        from memory where process = {process} and phase is not null and kind in ('phase', 'watch')
        group by phase order by min(wall_ns)""",
            process=literal(process),
        )
    )
    return tuple(PhaseMemory(str(one["phase"]), whole(one["floor"]), whole(one["peak"])) for one in rows(frame))


def stacks(run: Run) -> dict[tuple[str, int], tuple[str, str]]:
    """By process and scope the newest stack that a watchdog has seen, and its innermost line."""
    frame = run.sql(
        """select process, scope_id, arg_max(stack, wall_ns) as stack, arg_max(innermost, wall_ns) as line
        from stacks where seen group by process, scope_id"""
    )
    return {(str(one["process"]), int(one["scope_id"])): (str(one["stack"]), str(one["line"])) for one in rows(frame)}


def last_rows(run: Run, process: str, wall_ns: int | None) -> tuple[LastRow, ...]:
    """The last rows that a process wrote until something happened, the newest last.

    Args:
        run: The run.
        process: Its name.
        wall_ns: When it happened; None is the end of what it wrote.
    """
    own = Sql("and source = 'user'")  # what the session logs of its own repeats what other rows say
    until = Sql("") if wall_ns is None else sql("and wall_ns <= {wall_ns}", wall_ns=int(wall_ns))
    parts = [
        sql(
            """(select {label} as "table", wall_ns, step, role, phase, micro_batch, rank, attempt, process, scope,
        {name} as name, ({value})::double as value, {unit} as unit from {table}
        where process = {process} {until} {own}
        order by wall_ns desc limit {last})""",
            label=literal(table),
            table=Sql(table),
            name=Sql(name),
            value=Sql(value),
            unit=literal(unit),
            process=literal(process),
            until=until,
            own=own if table == "scalars" else Sql(""),
            last=LAST,
        )
        for table, (name, value, unit) in _SAID.items()
    ]
    frame = run.sql(
        sql("select * from ({parts}) order by wall_ns desc limit {last}", parts=joined(parts, " union all "), last=LAST)
    )
    told = rows(frame)[::-1]
    end = wall_ns if wall_ns is not None else max((int(one["wall_ns"]) for one in told), default=0)
    return tuple(
        LastRow(str(one["table"]), Where.of(one), str(one["scope"]), (end - int(one["wall_ns"])) / 1e9, _said(one))
        for one in told
    )


def _said(row: dict[str, Any]) -> str:
    if missing(row["value"]):
        return str(row["name"])
    spell = {"seconds": seconds, "bytes": size, "tokens": lambda value: f"{count(value)} tokens", "": number}
    return f"{row['name']} {spell[str(row['unit'])](row['value'])}"
