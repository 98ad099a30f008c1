"""``%probe status``: whether anything is recorded, where to, by whom, and whether anything is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from probe import devices, hooks
from probe.errors import ProbeError
from probe.guard import attempt
from probe.inspection.look import STYLE, table
from probe.inspection.plain_text import one_line
from probe.session import current_session
from probe.sql import Sql, joined, literal, sql

if TYPE_CHECKING:
    from probe.session import Session


@dataclass(frozen=True)
class Status:
    """Attributes: ``lines``, each a name and what there is to say."""

    lines: tuple[tuple[str, str], ...]

    @classmethod
    def now(cls) -> Status:
        """How things stand in this process."""
        session = current_session()
        if hooks.is_off():
            told = [("session", hooks.OFF)]
        elif session is None:
            told = [("session", "none is open; probe.start(project) opens one")]
        else:
            told = _about(session)
        return cls((*told, *_listeners(), *_device()))

    def __repr__(self) -> str:
        width = max(len(name) for name, _ in self.lines)
        return "\n".join(f"{name.ljust(width)}  {text}" for name, text in self.lines)

    def _repr_html_(self) -> str:
        return f'{STYLE}<div class="probe-batch">{table(("probe", "status"), self.lines)}</div>'


def _about(session: Session) -> list[tuple[str, str]]:
    lines = [
        ("session", f"records to {session.directory}"),
        ("process", _process(session)),
        ("tracking", "none" if session.tracking is None else ", ".join(session.tracking.logger) or "none"),
    ]
    try:
        with session.run as run:
            return lines + _written(run)
    except ProbeError as error:
        return [*lines, ("run", f"can't be read: {one_line(error, 200)}")]


def _process(session: Session) -> str:
    if session.rank is None:
        return f"{session.process.process}, which has no rank"
    return f"rank {session.rank} of {session.world_size}"


def _written(run: object) -> list[tuple[str, str]]:
    from probe.runs.reader import NAMES, Run

    if not isinstance(run, Run):
        return []
    counted = (
        sql("select {name} as name, count(*) as rows from {table}", name=literal(one), table=Sql(one)) for one in NAMES
    )
    query = joined(counted, " union all ")
    counts = {row["name"]: int(row["rows"]) for row in run.sql(query).to_dict("records")}
    last = run.sql('select kind, "where", message, count from incidents order by wall_ns desc limit 3').to_dict(
        "records"
    )
    lines = [("rows", ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "none yet")]
    for row in last:
        lines.append(("incident", one_line(f"{row['kind']} at {row['where']}: {row['message']}")))
    return lines


def _listeners() -> list[tuple[str, str]]:
    """Who listens now: the session's recorders among them, but none that was switched off after failures."""
    points = hooks.points().values()
    heard = [point for point in points if point.listeners]
    names = dict.fromkeys(one_line(repr(listener), 80) for point in heard for listener in point.listeners)
    return [
        ("listeners", ", ".join(names) or "none"),
        ("hook points", f"{len(heard)} of {len(points)} have listeners"),
    ]


def _device() -> list[tuple[str, str]]:
    """A driver in trouble is one line of the status, and not its end."""
    return [("device", attempt(_allocated, lambda error: f"can't be read: {one_line(error)}"))]


def _allocated() -> str:
    from probe import text as words

    device = devices.detect()
    now = device.read()
    if now.allocated_bytes is None:
        return f"{device.name}: not in use yet"
    return f"{device.name}: {words.size(now.allocated_bytes)} {words.memory(device.source)}"
