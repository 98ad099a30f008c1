"""What looks share: which steps they look at, and how long these took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from probe.analysis.by_step import FIRST, LAST, by_step
from probe.analysis.grid import Grid
from probe.analysis.query import literal
from probe.analysis.verdict.finding import Finding, Where
from probe.sql import Sql, joined, sql

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Steps whose phases say which role runs them.
_ROLES_STEPS: Final = 20

#: What is so in this share of the steps since one has begun with it.
_MOSTLY: Final = 0.7

_NOWHERE: Final = Where()


def ended(run: Run) -> Grid:
    """The steps that have ended, with their time, "step_time_s": the host's on the slowest rank, seconds."""
    return by_step(run, _ended, FIRST, LAST)


def _ended(first: int, last: int) -> Sql:
    return sql(
        "select step, step_time_s from steps where step between {first} and {last} order by step",
        first=first,
        last=last,
    )


def window(run: Run, steps: int) -> tuple[int, int | None]:
    """The first and the last of the newest steps that have ended; the last is None where there is none."""
    known = ended(run).steps
    if not len(known):
        return 0, None
    last = int(known[-1])
    return max(int(known[0]), last - steps + 1), last


def began(values: Sequence[tuple[int, float]], least: float) -> int:
    """The first step with such a value after which most have one; else the last step.

    Args:
        values: Steps in their order, each with its value; at least one.
        least: The value.

    >>> began([(3, 0.1), (4, 0.5), (5, 0.1), (6, 0.6), (7, 0.5)], 0.3)
    4
    """
    for at, (step, _) in enumerate(values):
        later = [value >= least for _, value in values[at:]]
        if later[0] and sum(later) >= _MOSTLY * len(later):
            return step
    return values[-1][0]


def step_time_s(run: Run, first: int, last: int) -> float | None:
    """The median time of some steps, seconds; None where it isn't known."""
    times = np.asarray(ended(run).between(first, last).columns["step_time_s"], dtype=np.float64)
    times = times[np.isfinite(times)]
    return float(np.median(times)) if len(times) else None


def placed(run: Run, found: list[Finding]) -> list[Finding]:
    """Findings with what the rows tell of their places besides: the attempt, and the role of the phase.

    Args:
        run: The run.
        found: As a look gave them.
    """
    return [one.moved(where=_placed(run, one)) if one.where != _NOWHERE else one for one in found]


def _placed(run: Run, one: Finding) -> Where:
    where, step = one.where, one.where.step if one.where.step is not None else one.since.step
    attempt = _attempt(run, step, alone=one.where.step is not None) if where.attempt is None else where.attempt
    role = _roles(run).get(where.phase) if where.role is None and where.phase is not None else where.role
    return replace(where, attempt=attempt, role=role)


def _attempt(run: Run, step: int | None, *, alone: bool) -> int | None:
    """The attempt of a step that is shown; of what goes on since a step only where no later attempt has taken over."""
    attempts = run.attempts
    if len(attempts) < 2 or run.shown_attempt is not None:
        return run.attempt_of(0)
    found = None if step is None else run.attempt_of(step)
    return found if alone or found == max(attempts) else None


def _roles(run: Run) -> dict[str | None, str]:
    """The role of each phase of the newest steps, where it has one alone."""
    first, last = window(run, _ROLES_STEPS)
    if last is None:
        return {}
    told = by_step(run, _roles_of, first, last)
    pairs = {(str(phase), role) for names in told.columns["roles"] for phase, role in names}
    phases = [phase for phase, _ in pairs]
    return {phase: str(role) for phase, role in pairs if phases.count(phase) == 1 and role is not None}


def _roles_of(first: int, last: int) -> Sql:
    return sql(
        """select step, list(distinct [phase, role]) as roles from scopes
        where phase is not null and step between {first} and {last} group by step order by step""",
        first=first,
        last=last,
    )


def at(where: Where, *columns: str) -> Sql:
    """The SQL condition for rows of a place; what isn't known of it restricts nothing.

    Args:
        where: The place.
        *columns: Of it, that the table has.

    >>> at(Where(step=3, phase="update"), "step", "rank", "phase")
    "step = 3 and phase = 'update'"
    """
    told = {name: getattr(where, name) for name in columns}
    known = {name: value for name, value in told.items() if value is not None}
    pieces = [sql("{name} = {value}", name=Sql(name), value=literal(value)) for name, value in known.items()]
    return joined(pieces or [Sql("true")], " and ")
