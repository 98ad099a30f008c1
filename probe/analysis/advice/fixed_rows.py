"""Fewer rows in each micro-batch, where those of today are too likely to run out of memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from probe.analysis.advice.gains import Gain, peak_told, share_told, today_told
from probe.analysis.advice.keys import framework, key_of, rows_of_key, value_of
from probe.analysis.memory_model import MemoryModel, risk_of
from probe.analysis.what_if.answering import Replayer, WhatIf
from probe.analysis.what_if.cutting import recorded_cut
from probe.analysis.what_if.settings import Settings
from probe.errors import InputError
from probe.text import count

if TYPE_CHECKING:
    from probe.runs.reader import Run


@dataclass(frozen=True)
class FewerRows:
    """A change that :func:`fewer_rows` found.

    Attributes:
        values: What to set, by dotted key; empty where the framework has no key for it.
        before: What it is now, by the same keys; None where the configuration doesn't say.
        advice: What to do, in words.
        memory: What it brings of memory, a sentence each.
        answer: The replay.
    """

    values: dict[str, Any]
    before: dict[str, Any]
    advice: str
    memory: tuple[str, ...]
    answer: WhatIf

    def told(self, gain: Gain) -> tuple[str, ...]:
        """What it brings, a sentence each.

        Args:
            gain: What it saves of a step; here less than nothing, mostly.
        """
        before, after = self.answer.number("micro_batches")
        time = "" if gain.seconds is None else gain.told()
        return (*self.memory, f"micro-batches of the rank with the most: {before:.4g} → {after:.4g} a step{time}")


def fewer_rows(run: Run, own: Replayer, model: MemoryModel, allowed: float) -> FewerRows | str:
    """The most rows of a micro-batch, fewer than today's, with which memory suffices.

    What fewer rows need is at most what the model foretells of them, also where all micro-batches had as many
    (:meth:`~probe.analysis.memory_model.MemoryModel.untold`).

    Args:
        run: The run.
        own: Its batches of one role and phase.
        model: Of the same.
        allowed: Share of runs of 1,000 steps that may run out of memory.

    Returns:
        The change; else why there is none: "" where none is needed, or nothing can be known.
    """
    today = risk_of(model, [sorted(own.before(at).micro_batches) for at in range(len(own))])
    rows, packer = _rows_of(run, own)
    if today is None or today <= allowed or rows is None:
        return ""
    key = key_of(run, "rows_each", model.phase)
    each, product = rows_of_key(run, key, rows)
    now = rows // each
    told = today_told(model.phase, today)
    for fewer in (one for one in range(now - 1, 0, -1) if now % one == 0):
        asked = Settings(packer=packer, rows_each=fewer * each)
        try:
            steps = [sorted(own.after(at, asked).micro_batches) for at in range(len(own))]
        except InputError:
            continue
        risk = risk_of(model, steps, at_most=True)
        if risk is None or risk > allowed:
            continue
        values = {} if key is None else {key: fewer}
        if product is not None:
            values[product[0]] = product[1] // fewer
        answer = own.answer(asked, lambda: True)
        peak = answer.frame[answer.frame["number"] == "predicted_peak_bytes"]
        most = f"{model.phase or 'it'} then runs out of memory in at most {share_told(risk)} of them"
        memory = (told, peak_told(peak, model, risk) or most)
        of_rows = f"{count(fewer * each)} row{'' if fewer * each == 1 else 's'}"
        advice = f"Cut {model.phase or 'the batch'} into micro-batches of {of_rows}."
        return FewerRows(values, {one: value_of(run, one) for one in values}, advice, memory, answer)
    return f"{told}, and no smaller number of rows is safe."


def _rows_of(run: Run, own: Replayer) -> tuple[int | None, str | None]:
    """Rows of a micro-batch, where their number is fixed, else None; and the packer where that wasn't recorded."""
    call = own.dealings[0].batch.rounds[0].calls[0]
    cut = recorded_cut(call)
    if cut is not None:
        return (cut.rows_each if cut.packer.endswith("fixed_rows") else None), None
    if framework(run) != "trl" or call.cap_tokens is not None:
        return None, None
    return max((len(part) for part in call.parts), default=0) or None, "trl.fixed_rows"
