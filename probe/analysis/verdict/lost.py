"""What the end of a run costs: the work since the last step that has ended, and since the last checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from probe.analysis.query import literal, same
from probe.analysis.verdict.finding import Cost, Where
from probe.sql import Sql, sql
from probe.text import missing, whole

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Phases in which trainers save a checkpoint, by their names; loading one saves nothing.
_SAVES: Final = Sql("regexp_matches(lower(phase), 'save|checkpoint|ckpt') and not regexp_matches(lower(phase), 'load')")


def since(run: Run, where: Where, ended_ns: int | None, *, tokens: int | None = None, held: int | None = None) -> Cost:
    """What is lost where a process ended: the seconds since its last step that has ended, or since it began to record
    where none has; and the steps since the last checkpoint that its phases tell of.

    Args:
        run: The run.
        where: The place of the end, with its process.
        ended_ns: Wall-clock nanoseconds of the end, by that process's clock; None where that isn't known.
        tokens: As of :class:`~probe.analysis.verdict.finding.Cost`.
        held: Likewise, its bytes.
    """
    return Cost(_seconds(run, where, ended_ns), held, tokens, steps=_steps(run, where))


def _seconds(run: Run, where: Where, ended_ns: int | None) -> float | None:
    if where.process is None or ended_ns is None:
        return None
    process = literal(where.process)
    before = (
        Sql("true") if where.step is None else sql("step < {step}", step=where.step)
    )  # the one that it ended in is lost
    frame = run.sql(
        sql(
            """select coalesce(
          (select max(end_ns) from scopes
           where kind = 'step' and process = {process} and end_ns <= {ended_ns} and {before}),
          (select min(wall_ns) from processes where process = {process})) as begin_ns""",
            process=process,
            ended_ns=ended_ns,
            before=before,
        )
    )
    begin = frame["begin_ns"][0]
    return None if missing(begin) else max(0.0, (ended_ns - int(begin)) / 1e9)


def _steps(run: Run, where: Where) -> int | None:
    """Steps after the last that saved a checkpoint, the one that was begun among them; None where none has or where
    nobody says so.
    """
    if where.step is None:
        return None
    frame = run.sql(
        sql(
            """select max(step) as step from scopes where kind in ('phase', 'watch') and {saves}
        and step <= {step} and not (step = {step} and {same_phase})""",
            saves=_SAVES,
            step=where.step,
            same_phase=same("phase", where.phase),
        )
    )
    saved = whole(frame["step"][0])
    return None if saved is None else where.step - saved
