"""What probe counts of the answers of some steps: how long they are, and how many of them were truncated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from probe.analysis import answers_by_step
from probe.analysis.audit import reading
from probe.text import missing

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Steps over which a number may be a mean where it isn't known when it was logged before.
_AVERAGED: Final = 32


@dataclass(frozen=True, slots=True)
class Answered:
    """Of the answers that one process told of, or all of them.

    Attributes:
        tokens: Of an answer, their mean; None where not all processes that must tell have.
        low: The smallest mean that a right number may be, over steps since it was logged before; None likewise.
        high: The largest one, likewise.
        truncated: Answers that were truncated, among those of the step with a row that weren't dropped.
        rows: Such answers of which that is known.
        whole: Whether these are all answers of the step.
    """

    tokens: float | None = None
    low: float | None = None
    high: float | None = None
    truncated: int = 0
    rows: int = 0
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Answers:
    """Of one step.

    Attributes:
        everyone: Of all processes.
        own: Of each by its name: a process may log a number about its own answers.
    """

    everyone: Answered = Answered()
    own: Mapping[str, Answered] = field(default_factory=dict)

    def of(self, process: str | None) -> list[Answered]:
        """Those that a number of a process may be about."""
        mine = self.own.get(process or "")
        return [self.everyone] if mine is None else [self.everyone, mine]


def answers(
    run: Run, logged: Sequence[int], measured: Collection[int], ranks: int | None, since: int | None
) -> dict[int, Answers]:
    """What is recorded of the answers of each step.

    Args:
        run: The run.
        logged: Steps in which lengths or shares of truncated answers were logged, rising.
        measured: Those of them in which lengths were: a number may be a mean over the steps since.
        ranks: How many ranks the training has; None where that isn't known.
        since: As :func:`probe.analysis.audit.checks.contradictions` has it.
    """
    if not logged or not run.has("token_fates"):
        return {}
    first, last = logged[0] - _AVERAGED + 1, logged[-1]
    since = None if since is None else min(since, first)
    by_step: dict[int, list[Any]] = defaultdict(list)
    for row in run.sql(answers_by_step.lengths(answers_by_step.between(first, last)), since=since).itertuples():
        by_step[int(row.step)].append(row)
    cut = _truncated(run, logged, since)
    told: dict[int, Answers] = {}
    before: int | None = None
    for step in logged:
        earliest = step - _AVERAGED if before is None else max(before, step - _AVERAGED)
        window = [by_step[at] for at in range(earliest + 1, step + 1) if at in by_step]
        # Where it isn't known since when a number may be a mean, the step's own mean is what is expected.
        told[step] = _of_step(window, window if before is not None else window[-1:], cut.get(step, []), ranks)
        before = step if step in measured else before
    return told


def _truncated(run: Run, logged: Sequence[int], since: int | None) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = defaultdict(list)
    if run.has("samples"):
        steps = reading.within(logged)
        for row in run.sql(answers_by_step.truncated_rows(steps), since=since).itertuples():
            found[int(row.step)].append(row)
    return found


def _of_step(
    window: Sequence[Sequence[Any]], expected: Sequence[Sequence[Any]], cut: Sequence[Any], ranks: int | None
) -> Answers:
    """What one step tells, with the steps since a number was logged before."""
    own = {str(row.process) for row in cut} | {str(row.process) for rows in window for row in rows}
    known = all(_complete(rows, ranks) for rows in window)
    return Answers(
        _answered(window if known else [], expected if known else [], cut),
        {
            name: _answered(_mine(window, name), _mine(expected, name), [row for row in cut if row.process == name])
            for name in own
        },
    )


def _mine(window: Sequence[Sequence[Any]], name: str) -> list[list[Any]]:
    """The rows of one process, without the steps in which it has none."""
    return [mine for rows in window if (mine := [row for row in rows if row.process == name])]


def _complete(rows: Iterable[Any], ranks: int | None) -> bool:
    """Whether all ranks have told of their answers, or one that has none, a driver, of those of all."""
    named = [row.rank for row in rows]
    return any(missing(rank) for rank in named) or len(set(named)) == ranks


def _answered(window: Sequence[Sequence[Any]], expected: Sequence[Sequence[Any]], cut: Sequence[Any]) -> Answered:
    """Of some processes.

    Args:
        window: Their rows of :func:`probe.analysis.answers_by_step.lengths`, by step: a right number may be the mean of
            any of these, or of all.
        expected: Those of them whose mean is expected.
        cut: Their rows of :func:`probe.analysis.answers_by_step.truncated_rows`, of the last of these steps.
    """
    found = Answered(
        truncated=sum(int(row.truncated_rows) for row in cut),
        rows=sum(int(row.told_rows) for row in cut),
        whole=bool(cut) and all(bool(row.whole) for row in cut),
    )
    answers = sum(int(row.answers) for rows in expected for row in rows)
    if not answers:
        return found
    means = []
    for rows in window:
        for name in ("", "left_"):  # some leave out what is dropped
            many = sum(int(getattr(row, f"{name}answers")) for row in rows)
            means += [sum(int(getattr(row, f"{name}tokens")) for row in rows) / many] if many else []
    tokens = sum(int(row.tokens) for rows in expected for row in rows) / answers
    return replace(found, tokens=tokens, low=min(means), high=max(means))
