"""Padding that is computed, what causes it, and padding that costs no compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from probe.analysis import padding_tax, steps, time_shares
from probe.analysis.change import Change
from probe.analysis.framework_settings import number, setting
from probe.analysis.quantities import course
from probe.analysis.query import literal
from probe.analysis.verdict import facts
from probe.analysis.verdict.finding import Cost, Finding, Since, Where
from probe.dashboards.courses import over_run
from probe.dashboards.quantities import quantity
from probe.sql import Sql, sql
from probe.text import count, percent, place, rows, size, whole
from probe.text import missing as unknown

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Padding (share of token slots) from which it is worth a change, where computing it takes part of a step.
TAXED: Final = 0.15
#: One row imposes the width of a batch where without it this share of the slots would be gone.
IMPOSED: Final = 0.3
#: A cause is claimed where as much of the padding is its.
EXPLAINS: Final = 0.8
#: A change is worth it where at least this share of a step could be saved.
WORTH: Final = 0.02

ADVICE: Final[Mapping[str, str]] = {
    "longest_row": "Bring rows of similar length together, or compute on packed tokens.",
    "fixed_width": "Cut columns that hold no token before computing, or lower the configured length.",
    "rounding": "Round up to a smaller multiple.",
    "filler_rows": "Choose a batch size that the ranks divide.",
    "sequence_parallel": "Make the length a multiple of the sequence-parallel size upstream.",
}

COMES_FROM: Final[Mapping[str, str]] = {
    "longest_row": "rows shorter than the longest of their batch",
    "fixed_width": "a fixed width that is wider than any row",
    "rounding": "rounding lengths up",
    "filler_rows": "rows that only fill up a batch",
    "sequence_parallel": "lengths that the sequence-parallel size must divide",
}

#: Micro-batches that are rectangles, with the width that they would have without their longest row.
_WIDTHS: Final = Sql("""
select process, rank, step, role, phase, micro_batch, wall_ns, width_tokens as width, sequences, tokens,
       list_sort(lengths)[-1] as longest, list_sort(lengths)[-2] as second
from micro_batches where width_tokens is not null and sequences >= 3 and step is not null
""")


def tax(run: Run) -> list[Finding]:
    """The padding tax and its largest cause."""
    total = over_run(quantity("padding_tax"), course(run, "padding_tax"))
    if unknown(total):
        return []
    causes = padding_tax.by_cause(run)
    if causes.empty or not total:
        return [_kept(run)]
    parts = ", ".join(f"{percent(row['share_ratio'])} {said(row['cause'])}" for row in rows(causes.head(4)))
    text = f"Padding fills {percent(total)} of the token slots of a usual step: {parts}."
    cause, (phase, seconds, share) = str(causes["cause"][0]), _time(run)
    if total < TAXED or (share is not None and share < WORTH):
        return [Finding("fine", "padding", text, "padding_tax", cost=Cost(share=total), weight=30 * total)]
    found = _imposed(run) if cause == "longest_row" else None
    if found is not None:
        name, text, where, explained = (
            "wide_row",
            f"Padding fills {percent(total)} of the token slots: {found['text']}",
            Where.of(found),
            found["explained"],
        )
        change = Change("Limit the length of sequences, or put such rows into a micro-batch of their own.")
        here = facts.at(where, "step", "rank", "role", "phase", "micro_batch")
        evidence = sql(
            "select * from ({widths}) where longest - second > {imposed} * width and {here}",
            widths=_WIDTHS,
            imposed=IMPOSED,
            here=here,
        )
    else:
        name, where = "computed_padding", Where(phase=phase)
        most = float(causes["share_ratio"][0])
        explained = most if most >= EXPLAINS else None
        what = "fixed_width" if cause == "fixed_width" else "remove_padding"
        setting_name, now = setting(run, what)
        value: int | bool | None = None
        if what == "remove_padding" and setting_name is not None and not now:
            value = True
        longest = _longest(run)
        if what == "fixed_width" and number(now) is not None and longest is not None and longest < int(now):
            value = longest
        change = Change(ADVICE.get(cause, "See which field and source it comes from."), setting_name, value, now)
        evidence = sql(
            """select padding.* from padding join padding_widest counts
            on counts.process = padding.process and counts.step is not distinct from padding.step
              and counts.source = padding.source and counts.cause = padding.cause and counts.counted = 2
            where padding.cause = {cause} and padding.tokens > 0""",
            cause=literal(cause),
        )
        if phase is not None:
            evidence = sql("{evidence} and phase = {phase}", evidence=evidence, phase=literal(phase))
    why = "" if explained is not None else "No cause alone explains 80 % of it."
    if share is not None:
        why += f" Computing on it takes about {percent(share)} of a step, if time is proportional to token slots."
    why = why.strip()
    return [
        Finding(
            "tuning",
            name,
            text,
            topic="padding_tax",
            where=where,
            since=Since(whole(where.step)),
            cost=Cost(seconds=seconds, tokens=int(causes["tokens"].sum()), share=total if share is None else share),
            explained=explained,
            why=why,
            change=change,
            evidence_sql=evidence,
            confidence="medium" if share is None else "high",
            missing=() if share is not None else ("Phase times weren't recorded, so its cost isn't known.",),
            alternatives=()
            if share is not None
            else ("If the model packs rows before it computes, this costs memory but no compute.",),
            weight=100 * (share if share is not None else 0.5 * total),
        )
    ]


def said(cause: str) -> str:
    """Where padding comes from, in words that go on after its share.

    >>> said("longest_row"), said("a_new_cause")
    ('from rows shorter than the longest of their batch', 'from a new cause')
    """
    return f"from {COMES_FROM.get(cause, cause.replace('_', ' '))}"


def _time(run: Run) -> tuple[str | None, float | None, float | None]:
    """The phase that computes on most padding, its seconds of a step, and their share of the step."""
    frame = steps.on_padding(run)
    if frame.empty:
        return None, None, None
    of_phases = time_shares.of_phases(run)
    by_phase = frame.groupby("phase", dropna=False)["padding_s"].median()
    if by_phase.empty or unknown(by_phase.max()):
        return None, None, None
    phase = by_phase.idxmax()
    name = None if unknown(phase) else str(phase)
    taken, share = of_phases.get(name, (float("nan"), float("nan")))
    lost = float(by_phase.max())
    return name, lost, None if unknown(share) or not taken else share * min(1.0, lost / taken)


def _longest(run: Run) -> int | None:
    return whole(run.sql("select max(list_max(lengths)) as longest from micro_batches")["longest"][0])


def _imposed(run: Run) -> dict[str, Any] | None:
    """The worst micro-batch whose width one row imposes, where such ones explain most of the padding."""
    found = run.sql(
        sql(
            """select sum((width * sequences - tokens)) as padding,
        sum(least(width - second, longest - second) * (sequences - 1))
          filter (longest - second > {imposed} * width) as imposed,
        count(*) filter (longest - second > {imposed} * width) as many, count(*) as every from ({widths})""",
            imposed=IMPOSED,
            widths=_WIDTHS,
        )
    )
    row = rows(found)[0]
    if not row["padding"] or unknown(row["imposed"]) or row["imposed"] < EXPLAINS * row["padding"]:
        return None
    worst = rows(
        run.sql(
            sql(
                """select * from ({widths}) where longest - second > {imposed} * width
            order by (longest - second) * (sequences - 1) desc, step, rank, micro_batch limit 1""",
                widths=_WIDTHS,
                imposed=IMPOSED,
            )
        )
    )[0]
    text = (
        f"one long row widens its whole micro-batch: {count(worst['longest'])} tokens, next longest "
        f"{count(worst['second'])} ({place(worst)}). {count(row['many'])} of {count(row['every'])} micro-batches have "
        f"such a row; these rows cause {percent(row['imposed'] / row['padding'])} of the computed padding."
    )
    return {**worst, "text": text, "explained": float(min(1.0, row["imposed"] / row["padding"]))}


def _kept(run: Run) -> Finding:
    """Of a run that computes on no padding: what the batches that its micro-batches were cut from hold of it."""
    kept = rows(padding_tax.not_computed(run))[0]
    if unknown(kept["padding_tokens"]) or not kept["padding_tokens"]:
        text = "Nothing is computed on padding, and the batches hold none."
        return Finding("fine", "no_padding", text, "padding_tax", weight=3)
    share = kept["padding_tokens"] / kept["rectangle_tokens"]
    text = (
        f"Nothing is computed on padding: micro-batches are packed. Before packing, {percent(share)} of the batches is"
        f" padding, {size(kept['bytes'])} over the run: it costs memory but no compute."
    )
    return Finding("fine", "packed", text, "padding_tax", cost=Cost(bytes=whole(kept["bytes"])), weight=5)
