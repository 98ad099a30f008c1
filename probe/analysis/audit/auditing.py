"""The answer: each logged number of a run with what it should have been, as data, as text and as a notebook's table."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final, overload

from probe.analysis.audit import checks, reading
from probe.analysis.audit.judging import TRAPS, Judged
from probe.analysis.audit.reading import Number
from probe.text import count, number, percent, plain

if TYPE_CHECKING:
    import pandas as pd

    from probe.runs.reader import Run

NOTHING: Final = "No metric was logged or reduced yet: there is nothing to audit."

#: Metrics that a notebook's cell and the report show; the frame has all of them.
_SHOWN: Final = 40

_TITLES: Final = ("Metric", "Step", "Reported", "Token-weighted", "Sequence-weighted", "Error", "What it is")


@dataclass(frozen=True, slots=True)
class Audited:
    """One logged number. What isn't known is None."""

    metric: str
    step: int | None
    role: str | None
    phase: str | None
    reported: float | None  #: what charts show of the step
    token_weighted: float | None  #: its mean by the tokens that its values stand for
    sequence_weighted: float | None  #: and by their sequences
    expected: float | None  #: what it should be
    expected_by: str  #: what that is: "token-weighted mean", "mean of all values", "largest", "as probe counts it" …
    error: float | None  #: reported − expected
    relative_error: float | None  #: that ÷ the size of the expected number
    trap: str | None  #: a key of ``probe.analysis.audit.TRAPS`` or of ``checks.CHECKS``; None for none that is known
    why: str  #: a sentence about this number; "" without a trap
    who: str  #: who reduced it, how, and who chose that
    since: int | None  #: the first step with this trap
    wrong_steps: int  #: of those that were looked at
    looked_at: int  #: steps
    evidence_sql: str  #: the rows behind it


class Audit(Sequence[Audited]):
    """The numbers of a run, those in a trap first, then by the size of their relative error.

    Attributes:
        steps: How many steps the run has.
        looked_at: How many of them were looked at; of a large run some that lie evenly.
    """

    def __init__(
        self, rows: Iterable[Audited] = (), steps: int = 0, looked_at: int = 0, nothing: str = NOTHING
    ) -> None:
        self._rows = tuple(sorted(rows, key=_order))
        self.steps, self.looked_at = steps, looked_at
        self._nothing = nothing  # what is said where there is no row

    @overload
    def __getitem__(self, index: int) -> Audited: ...
    @overload
    def __getitem__(self, index: slice) -> Audit: ...
    def __getitem__(self, index: int | slice) -> Audited | Audit:
        if not isinstance(index, slice):
            return self._rows[index]
        return Audit(self._rows[index], self.steps, self.looked_at, self._nothing)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def trapped(self) -> Audit:
        """Those in a trap."""
        nothing = _in_none(len(self._rows)) if self._rows else self._nothing
        return Audit((one for one in self._rows if one.trap is not None), self.steps, self.looked_at, nothing)

    def named(self, metric: str) -> Audited | None:
        """The first of a name."""
        return next((one for one in self._rows if one.metric == metric), None)

    def to_frame(self) -> pd.DataFrame:
        """A frame with a row for each metric, and the fields of :class:`Audited` as columns."""
        import pandas as pd

        return pd.DataFrame([asdict(one) for one in self._rows], columns=[one.name for one in fields(Audited)])

    def to_list(self) -> list[dict[str, Any]]:
        """The same as JSON has it: NaN is the text "NaN"."""
        return [plain(asdict(one)) for one in self._rows]

    def __repr__(self) -> str:
        if not self._rows:
            return self._nothing
        lines = [_TITLES, *map(_cells, self._rows)]
        widths = [max(len(line[at]) for line in lines) for at in range(len(_TITLES) - 1)]
        told = [
            "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[-1]]).rstrip()
            for line in lines
        ]
        return "\n".join([self.sentence, "", *told])

    @property
    def sentence(self) -> str:
        """How many numbers were looked at, and how many are in a trap."""
        many, wrong = len(self._rows), len(self.trapped)
        isnt = "isn't what it says" if wrong == 1 else "aren't what they say"
        said = f"{count(wrong)} of {count(many)} metric{'' if many == 1 else 's'} {isnt}."
        if not wrong:
            said = _in_none(many)
        some = f" {count(self.looked_at)} of {count(self.steps)} steps were looked at."
        return said + (some if self.looked_at < self.steps else "")

    def _repr_html_(self) -> str:
        if not self._rows:
            return f"<p>{html.escape(self._nothing)}</p>"
        head = "".join(f'<th scope="col" style="text-align:left">{title}</th>' for title in _TITLES)
        body = "".join(_row(one) for one in self._rows[:_SHOWN])
        more = len(self._rows) - _SHOWN
        rest = f"<p>{count(more)} more are in <code>run.audit().to_frame()</code>.</p>" if more > 0 else ""
        return (
            f"<p>{html.escape(self.sentence)}</p>"
            '<table class="probe-audit" style="min-width:56em">'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"
        )


def _in_none(many: int) -> str:
    """That none of so many metrics is wrong."""
    return f"None of {count(many)} metric{'' if many == 1 else 's'} fell into a known trap."


def audit(run: Run, step: int | None = None) -> Audit:
    """Audit the numbers that a run has logged or reduced.

    Args:
        run: The run.
        step: Look at this step alone. None takes for each metric the worst of its steps that fell into a trap, else
            its last one.

    Returns:
        A row for each metric, and one for each that contradicts what probe counts itself.
    """
    known, many = reading.steps(run)
    chosen = known if step is None else [one for one in known if one == step]
    found = reading.numbers(run, reading.within(chosen))
    ranks = reading.ranks(run)
    against = checks.contradictions(run, found, ranks)
    rows = [
        _audited([(one, against.get((one.metric, one.step)) or one.judged(ranks)) for one in metric], len(chosen))
        for metric in reading.by_metric(found).values()
    ]
    nothing = NOTHING if step is None or not many else f"No metric was logged or reduced in step {step}."
    return Audit(rows, many, len(chosen), nothing)


def _audited(judged: Sequence[tuple[Number, Judged]], looked_at: int) -> Audited:
    """The row of a metric: its worst step in the trap that most of its steps fell into, else its last."""
    traps = [one.trap for _, one in judged if one.trap is not None]
    trap = max(sorted(set(traps)), key=traps.count, default=None)
    among = [(of, one) for of, one in judged if one.trap == trap] if trap is not None else judged
    shown = max(among, key=lambda pair: _size(pair[1])) if trap is not None else among[-1]
    number, one = shown
    return Audited(
        metric=number.metric,
        step=number.step,
        role=number.role,
        phase=number.phase,
        reported=one.reported,
        token_weighted=one.token_weighted,
        sequence_weighted=one.sequence_weighted,
        expected=one.expected,
        expected_by=one.expected_by,
        error=one.error,
        relative_error=one.relative_error,
        trap=trap,
        why=one.why,
        who=number.who,
        since=among[0][0].step if trap is not None else None,
        wrong_steps=len(traps),
        looked_at=looked_at,
        evidence_sql=number.evidence_sql,
    )


def _size(one: Judged) -> float:
    error = one.relative_error if one.relative_error is not None else one.error
    return math.inf if error is None else 0.0 if math.isnan(error) else abs(error)


def _order(one: Audited) -> tuple[bool, float, str]:
    size = one.relative_error if one.relative_error is not None else one.error
    return one.trap is None, 0.0 if size is None or math.isnan(size) else -abs(size), one.metric


def _cells(one: Audited) -> tuple[str, ...]:
    known = (one.reported, one.token_weighted, one.sequence_weighted)
    said = one.why or one.expected_by
    if one.trap is not None:
        said = f"{one.trap}: {one.why}" + (f" Expected {number(one.expected)}." if one.expected is not None else "")
    return (one.metric, "–" if one.step is None else str(one.step), *map(number, known), _error(one), said)


def _error(one: Audited) -> str:
    if one.error is None:
        return "–"
    if not one.error or one.relative_error is None or math.isnan(one.relative_error):
        return number(one.error)
    return f"{number(one.error)} ({percent(one.relative_error)})"


def _row(one: Audited) -> str:
    cells = list(map(html.escape, _cells(one)))
    if one.trap is not None:
        told = TRAPS.get(one.trap) or checks.CHECKS[one.trap]
        cells[-1] = f"<strong>{html.escape(told)}</strong> {html.escape(one.why)}"
        if one.expected is not None:
            cells[-1] += f" {html.escape(one.expected_by.capitalize())}: {number(one.expected)}."
    first = f'<th scope="row" style="text-align:left;font-weight:normal"><code>{cells[0]}</code></th>'
    return f"<tr>{first}{''.join(f'<td style=text-align:left>{cell}</td>' for cell in cells[1:])}</tr>"
