"""The report's answers: the worst groups of the worst step, and of each place that a finding leads to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, Final

from probe import text as words
from probe.analysis.found_samples import became_of, name_of, wish_of, worst_step
from probe.analysis.query import literal
from probe.analysis.step_samples import Arranged, Key, StepSamples, Wish, key_of
from probe.sql import joined, sql

if TYPE_CHECKING:
    from probe.analysis.verdict import Findings
    from probe.runs.reader import Run

#: Places that findings lead to, groups of a place, answers of a group, and letters of a recorded text, at most.
PLACES: Final = 4
GROUPS: Final = 5
ANSWERS: Final = 8
LETTERS: Final = 400

_HEAD: Final = ("Answer", "Reward", "Advantage", "Tokens", "Difference", "What became of it")


@dataclass(frozen=True)
class Section:
    """The section, and where in it findings lead.

    Attributes:
        html: It; "" where no samples were recorded.
        anchors: By the place of a finding in its list.
    """

    html: str = ""
    anchors: dict[int, str] = field(default_factory=dict)


def section(run: Run, found: Findings) -> Section:
    """The answers that the report shows.

    Args:
        run: The run.
        found: What was found in it.
    """
    worst = worst_step(run)
    if worst is None:
        return Section()
    read: dict[int, StepSamples] = {}

    def of(step: int) -> StepSamples:
        if step not in read:
            read[step] = StepSamples.read(run, step)
        return read[step]

    anchors: dict[int, str] = {}
    places: dict[tuple[int, Wish], str] = {}
    parts = []
    for at, one in enumerate(found):
        wish = None if one.kind == "fine" else wish_of(one)
        step = one.where.step if one.where.step is not None else one.since.step
        if wish is None or step is None:
            continue
        if (step, wish) not in places:
            arranged = of(step).arranged(wish)
            if not arranged.answers or len(places) == PLACES:
                continue
            places[step, wish] = anchor = f"samples-{len(places) + 1}"
            parts.append(_place(run, of(step), arranged, anchor, _title(step, wish), one.sentence))
        anchors[at] = places[step, wish]
    whole = of(worst.step).arranged(Wish())
    parts.append(_place(run, of(worst.step), whole, "samples-worst", f"The worst step, {worst.step}", worst.sentence))
    lead = (
        "Answers of a prompt side by side, the worst group first: NaN, then the largest difference between the "
        "log-probabilities of training and rollout, in nats. The panel’s view Samples has all of them, token by token."
    )
    body = "\n".join(parts)
    return Section(
        f'<section id="samples"><h2>Which answers it was</h2><p class="lead">{lead}</p>'
        f'<div class="panels">{body}</div></section>',
        anchors,
    )


_NARROWED: Final = {
    "truncated": ", truncated answers",
    "failed": ", answers that failed",
    "no_advantage": ", answers without advantage",
    "blocks": ", answers whose tokens are kept",
    "changed": ", answers trained on other tokens than were sampled",
}


def _title(step: int, wish: Wish) -> str:
    of = {"phase": wish.phase or None, "micro_batch": wish.micro_batch, "step": step}
    narrowed = _NARROWED.get(wish.only, "")
    said = words.place(of)
    return f"{said[:1].upper()}{said[1:]}{narrowed}"


def _place(run: Run, found: StepSamples, arranged: Arranged, anchor: str, title: str, sentence: str) -> str:
    groups = list(_groups(found, arranged))
    texts = _texts(run, found.step, [key_of(found.answers[members[0]]) for _, members in groups[:GROUPS]])
    body = "".join(_group(found, number, members, texts) for number, members in groups[:GROUPS])
    head = "".join(f'<th scope="col">{name}</th>' for name in _HEAD)
    told = f"{words.count(arranged.answers)} of {words.count(len(found.answers))} answers that have a row"
    more = f"; the {GROUPS} worst of {words.count(len(groups))} groups" if len(groups) > GROUPS else ""
    notes = " ".join(filter(None, (f"{told}{more}.", arranged.note)))
    return (
        f'<article class="panel" id="{anchor}"><h3>{escape(title)}</h3><p class="shows">{escape(sentence)}</p>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="Answers, {escape(title)}">'
        f'<table class="answers"><thead><tr>{head}</tr></thead>{body}</table></div>'
        f'<p class="note">{escape(notes)}</p></article>'
    )


def _groups(found: StepSamples, arranged: Arranged) -> Iterator[tuple[int, list[int]]]:
    """The groups with their answers, as they are arranged."""
    held: dict[int, list[int]] = {}
    for kind, at in arranged.lines:
        if kind == "answer":
            held.setdefault(found.group_of[at], []).append(at)
    yield from held.items()


def _group(found: StepSamples, number: int, members: Sequence[int], texts: Mapping[Key, str]) -> str:
    group = found.groups[number]
    rows = []
    if group.name:
        equal = ", equal rewards" if group.equal else ""
        many = "1 answer" if len(group.members) == 1 else f"{len(group.members)} answers"
        told = f"{escape(group.name)}: {many}{equal}"
        rows.append(f'<tr class="group"><th scope="rowgroup" colspan="{len(_HEAD)}">{told}</th></tr>')
    for at in members[:ANSWERS]:
        rows.append(_answer(found.answers[at]))
        text = texts.get(key_of(found.answers[at]))
        if text is not None:
            rows.append(f'<tr><td colspan="{len(_HEAD)}"><p class="answer">{escape(text)}</p></td></tr>')
    if len(members) > ANSWERS:
        rows.append(f'<tr><td colspan="{len(_HEAD)}">and {len(members) - ANSWERS} more</td></tr>')
    return f"<tbody>{''.join(rows)}</tbody>"


def _answer(one: Mapping[str, Any]) -> str:
    difference = f"{one['nan_count']} NaN" if one["nan_count"] else _signed(one["difference_largest"])
    numbers = (
        words.number(one["reward"]),
        _signed(one["advantage_mean"]),
        words.count(one["response_tokens"]),
        difference,
    )
    cells = "".join(f'<td class="number">{cell}</td>' for cell in numbers)
    return f'<tr><th scope="row">{escape(name_of(one))}</th>{cells}<td>{escape(became_of(one))}</td></tr>'


def _signed(value: float | None) -> str:
    """A number of three digits with its sign.

    >>> _signed(-3.0), _signed(0.25), _signed(0), _signed(None)
    ('−3', '+0.25', '0', '–')
    """
    if value is None:
        return words.UNKNOWN
    return f"{value:+.3g}".replace("-", "\N{MINUS SIGN}") if value else "0"


def _texts(run: Run, step: int, keys: Sequence[Key]) -> dict[Key, str]:
    """What was recorded of the texts of some answers, shortened; without those of which nothing was."""
    place = "(process = {process} and batch_id = {batch} and row = {row})"
    places = (sql(place, process=literal(process), batch=int(batch), row=int(row)) for process, batch, row in keys)
    frame = run.sql(
        sql(
            """select process, batch_id, row, left(prompt_text, {letters}) as prompt,
                   left(response_text, {letters}) as answer
            from samples where step = {step} and ({places})""",
            letters=LETTERS + 1,
            step=int(step),
            places=joined(places, " or "),
        )
    )
    found = {}
    for one in words.rows(frame):
        told = [words.short(text, LETTERS) for text in (one["prompt"], one["answer"]) if isinstance(text, str) and text]
        if told:
            found[str(one["process"]), int(one["batch_id"]), int(one["row"])] = " → ".join(told)
    return found
