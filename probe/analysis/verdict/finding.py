"""What a finding is: one thing that was found in a run, as data and as a sentence.

An *alarm* is a fault of the training or a number that isn't what it says. *Tuning* is a setting that is worth a change.
*Fine* says what was looked at and is in order, and *withheld* what was looked at and couldn't be judged, with what is
missing. Sentences name the rank, phase or setting; each number in them stands in a field, too.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final, Literal, overload

from probe.analysis.change import Change, Confidence
from probe.analysis.withheld import NOT_JUDGED
from probe.text import missing, place, whole

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["alarm", "tuning", "fine", "withheld"]

#: What each kind is called, with a sign and a colour that shows on light and on dark.
KINDS: Final[Mapping[str, tuple[str, str, str]]] = {
    "alarm": ("▲", "Alarm", "#d0393b"),
    "tuning": ("◐", "Worth a change", "#a8740a"),
    "fine": ("✓", "In order", "#2b8a56"),
    "withheld": NOT_JUDGED,
}

#: In which order kinds stand.
ORDER: Final[Mapping[str, int]] = {kind: at for at, kind in enumerate(KINDS)}

#: Orders alarms: what has ended or hangs, what ends soon or is wrong, and what costs.
ENDED, SOON, COSTS = 0, 1, 2

#: Names of what ends a run.
FAILURES: Final = frozenset({"failed", "killed", "out_of_memory"})

#: Characters of a line of text.
_WIDTH: Final = 100

NOTHING: Final = "Nothing was recorded yet, so nothing was found."


@dataclass(frozen=True, slots=True)
class Where:
    """The place of a finding; what isn't known, or isn't part of it, is None."""

    attempt: int | None = None
    step: int | None = None
    role: str | None = None
    phase: str | None = None
    micro_batch: int | None = None
    rank: int | None = None
    process: str | None = None  #: its name, of a process without a rank too
    token: int | None = None  #: of an answer of the step, among those of its response, from 0

    def __str__(self) -> str:
        told = {name: getattr(self, name) for name in ("role", "phase", "micro_batch", "step", "rank")}
        said = place(told)
        return said or (self.process or "")

    @classmethod
    def of(cls, row: Mapping[str, Any], **more: Any) -> Where:
        """The place that a row of a frame tells of.

        Args:
            row: The row.
            **more: Fields that override it.

        >>> Where.of({"rank": 1.0, "phase": "update", "seconds": 3})
        Where(attempt=None, step=None, role=None, phase='update', micro_batch=None, rank=1, process=None, token=None)
        """
        told: dict[str, Any] = {one.name: row.get(one.name) for one in fields(cls)} | more
        numbers = ("attempt", "step", "micro_batch", "rank", "token")
        known: dict[str, Any] = {}
        for name, value in told.items():
            known[name] = whole(value) if name in numbers else None if missing(value) else str(value)
        return cls(**known)


@dataclass(frozen=True, slots=True)
class Since:
    """When it began."""

    step: int | None = None
    wall_ns: int | None = None  #: wall-clock nanoseconds since the epoch


@dataclass(frozen=True, slots=True)
class Cost:
    """What it costs; what isn't known is None."""

    #: Of a step; where a run has ended or hangs, those that are lost since the last step that has ended.
    seconds: float | None = None
    bytes: int | None = None
    tokens: int | None = None
    share: float | None = None  #: of a step's time, of the memory or of the tokens, 0 to 1; the sentence says of which
    #: Steps that it spoils: those whose numbers are wrong; where a run has ended, those since the last checkpoint.
    steps: int | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found in a run."""

    kind: Kind
    name: str  #: of what was found, the same in every run: "hang", "device_leak", "slow_rank" …
    sentence: str
    topic: str = "overview"  #: the dashboard that shows more
    where: Where = Where()
    since: Since = Since()
    cost: Cost = Cost()
    explained: float | None = None  #: share of the excess over healthy steps or ranks that the cause explains
    why: str = ""  #: what supports it, and why it isn't something else
    evidence_sql: str = ""  #: the rows of the named place that show it; none when the fault is taken out
    change: Change | None = None
    confidence: Confidence = "high"
    alternatives: tuple[str, ...] = ()  #: what else it could be
    missing: tuple[str, ...] = ()  #: what wasn't recorded that would say more, and how to record it, a sentence each
    folded: tuple[Finding, ...] = ()  #: what follows from it
    quoted: str = ""  #: the sentence without the run's own texts, where it quotes one, such as an exception's message
    urgency: int = COSTS  #: :data:`ENDED`, :data:`SOON` or :data:`COSTS`
    weight: float = field(default=0.0, compare=False)  #: orders findings of one kind and urgency, larger first

    @property
    def reasons(self) -> str:
        """What supports it, and what is missing to say more, as text that goes on after the sentence."""
        return " ".join(one for one in (self.why, *self.missing) if one)

    def to_dict(self) -> dict[str, Any]:
        """Everything but what orders it, as JSON has it."""
        told = asdict(self)
        for name in ("quoted", "urgency", "weight"):
            del told[name]
        told["folded"] = [one.to_dict() for one in self.folded]
        return told

    def moved(self, **changes: Any) -> Finding:
        """The same with other fields."""
        return replace(self, **changes)


def withheld(name: str, sentence: str, topic: str = "overview", change: Change | None = None) -> Finding:
    """What was looked at and can't be judged.

    Args:
        name: Of what was looked at.
        sentence: What isn't known, and what is missing to know it.
        topic: The dashboard that would show it.
        change: How to record what is missing, where the user can.
    """
    return Finding("withheld", name, sentence, topic=topic, change=change)


#: Columns of a frame of findings, each a field of its own.
_COLUMNS: Final = (
    "kind",
    "name",
    "sentence",
    "topic",
    *(f"where_{one.name}" for one in fields(Where)),
    "since_step",
    "since_wall_ns",
    *(f"cost_{one.name}" for one in fields(Cost)),
    "explained",
    "why",
    "evidence_sql",
    "change_advice",
    "change_setting",
    "change_value",
    "change_now",
    "change_gains",
    "change_confidence",
    "confidence",
    "alternatives",
    "missing",
    "folded",
)


class Findings(Sequence[Finding]):
    """What was found, the worst first. A notebook and a terminal show it as a list in which no sentence is cut.

    What couldn't be judged is no finding: it isn't counted, and stands behind them in a list.

    Args:
        found: Of every kind, in any order.

    Attributes:
        withheld: What was looked at and couldn't be judged, each with what is missing.

    >>> found = [Finding("tuning", "padding", "Padding fills 30 %.", change=Change("Pack the rows."))]
    >>> Findings([withheld("few_steps", "2 steps have ended, too few to say whether memory leaks (takes 16)."), *found])
    ◐ Worth a change: Padding fills 30 %.
      → Pack the rows.
    ◌ Not judged: 2 steps have ended, too few to say whether memory leaks (takes 16).
    """

    def __init__(self, found: Iterable[Finding] = ()) -> None:
        ordered = sorted(found, key=lambda one: (ORDER[one.kind], one.urgency, -one.weight))
        self._found = tuple(one for one in ordered if one.kind != "withheld")
        self.withheld = tuple(one for one in ordered if one.kind == "withheld")

    @overload
    def __getitem__(self, index: int) -> Finding: ...
    @overload
    def __getitem__(self, index: slice) -> Findings: ...
    def __getitem__(self, index: int | slice) -> Finding | Findings:
        return Findings(self._found[index]) if isinstance(index, slice) else self._found[index]

    def __len__(self) -> int:
        return len(self._found)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Findings) and self.everything == other.everything

    def __hash__(self) -> int:
        return hash(self.everything)

    @property
    def everything(self) -> tuple[Finding, ...]:
        """What was found, and behind it what couldn't be judged."""
        return self._found + self.withheld

    @property
    def alarms(self) -> Findings:
        """Those that are alarms."""
        return self.of("alarm")

    @property
    def unjudged(self) -> str:
        """How much couldn't be judged, as a sentence; "" where all was.

        >>> Findings([withheld("few_steps", "2 steps have ended.")]).unjudged
        "One question couldn't be judged."
        """
        many = len(self.withheld)
        return f"{'One question' if many == 1 else f'{many} questions'} couldn't be judged." * (many > 0)

    def of(self, *kinds: Literal["alarm", "tuning", "fine"]) -> Findings:
        """Those of some kinds."""
        return Findings(one for one in self._found if one.kind in kinds)

    def named(self, name: str) -> Finding | None:
        """The first of a name."""
        return next((one for one in self._found if one.name == name), None)

    def to_frame(self) -> pd.DataFrame:
        """A frame with a row for each finding, fields of ``where``, ``since``, ``cost`` and ``change`` as columns."""
        import pandas as pd

        return pd.DataFrame([_row(one) for one in self._found], columns=list(_COLUMNS))

    def __repr__(self) -> str:
        return "\n".join(_lines(one) for one in self.everything) or NOTHING

    def _repr_html_(self) -> str:
        if not self.everything:
            return f"<p>{NOTHING}</p>"
        items = "".join(_item(one) for one in self.everything)
        return f'<ul class="probe-findings" style="list-style:none;padding:0;margin:0;max-width:60em">{items}</ul>'


def _row(one: Finding) -> dict[str, Any]:
    told = one.to_dict()
    flat = {name: value for name, value in told.items() if not isinstance(value, dict)}
    for group in ("where", "since", "cost", "change"):
        flat |= {f"{group}_{name}": value for name, value in (told[group] or {}).items()}
    return flat | {"folded": len(one.folded)}


def _item(one: Finding) -> str:
    sign, label, colour = KINDS[one.kind]
    mark = f'<b style="color:{colour}"><span aria-hidden="true">{sign}</span> {label}</b>'
    parts = [f"{mark}<br>{html.escape(one.sentence)}"]
    if one.reasons:
        parts.append(f'<span style="opacity:.8">{html.escape(one.reasons)}</span>')
    if one.change is not None:
        line = one.change.line
        code = f" <code>{html.escape(line)}</code>" if line else ""
        parts.append(f'<span style="opacity:.8">→ {html.escape(one.change.advice)}{code}</span>')
        if one.change.confidence is not None:
            told = "<br>".join(html.escape(each.strip()) for each in one.change.beneath)
            parts.append(f'<span style="opacity:.8">{told}</span>')
    for after in one.folded:
        parts.append(f'<span style="opacity:.8">· {html.escape(after.sentence)}</span>')
    return f'<li style="margin:0 0 10px;line-height:1.45;text-align:left">{"<br>".join(parts)}</li>'


def _lines(one: Finding) -> str:
    sign, label, _ = KINDS[one.kind]
    told = [textwrap.fill(f"{sign} {label}: {one.sentence}", _WIDTH, subsequent_indent="  ")]
    if one.reasons:
        told.append(textwrap.fill(f"  {one.reasons}", _WIDTH, subsequent_indent="  "))
    if one.change is not None:
        replayed = one.change.confidence is not None  # then its settings stand below, with what each is now
        line = f" {one.change.line}" if one.change.line and not replayed else ""
        told.append(textwrap.fill(f"  → {one.change.advice}{line}", _WIDTH, subsequent_indent="    "))
        told += [f"    {each}" for each in one.change.beneath] if replayed else []
    told += [textwrap.fill(f"  · {after.sentence}", _WIDTH, subsequent_indent="    ") for after in one.folded]
    return "\n".join(told)
