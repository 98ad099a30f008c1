"""The cap of a phase of fixed rows that is to be cut by tokens: none of its micro-batches is larger than today's.

A packer counts the tokens that rows have. What is computed, and what memory goes by, is the rectangle where rows are
padded: one long row beside many short ones makes a large rectangle of few tokens. So a cap is looked for by what its
micro-batches come to, not by its own number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from probe.analysis.advice.gains import peak_told
from probe.analysis.memory_model import MemoryModel, risk_of
from probe.analysis.what_if.answering import Replayer, WhatIf
from probe.analysis.what_if.cutting import parallel_of
from probe.analysis.what_if.settings import Settings
from probe.errors import InputError
from probe.text import count, percent

#: Caps are multiples of it where they are large.
_ROUND: Final = 256


@dataclass(frozen=True)
class Largest:
    """The most of any micro-batch of a phase.

    Attributes:
        computed: Tokens that are computed for one, of all ranks that share its sequences.
        risk: Share of runs of 1,000 steps that run out of memory; None where no model foretells it.
    """

    computed: int
    risk: float | None


@dataclass(frozen=True)
class CapByTokens:
    """What :func:`cap_by_tokens` found.

    Attributes:
        tokens: The cap of one GPU; None where there is none.
        why: There is none; "" where the packer refuses, or there is one.
        today: The largest micro-batches as they were cut.
        then: As they are under the cap.
    """

    tokens: int | None
    why: str
    today: Largest
    then: Largest | None = None


def cap_by_tokens(own: Replayer, model: MemoryModel | None, risk: float) -> CapByTokens:
    """The largest cap under which no micro-batch computes more tokens than the largest of today, and memory suffices.

    Args:
        own: Batches of one role and phase, cut into fixed rows.
        model: Of the same; None where there is none.
        risk: Share of runs of 1,000 steps that may run out of memory.
    """
    today = _largest(own, model, None)
    parallel = parallel_of(own.dealings[0].batch.rounds[0])
    least = -(-max(own.lengths()) // parallel)
    most = max(today.computed // parallel, least)
    step = step_of(most)
    low, high = -(-least // step), (most - 1) // step
    then, why = _tried(own, model, most, today, risk)
    if then is None or not why:
        return CapByTokens(None if then is None else most, "", today, then)
    found = None
    while low <= high:
        middle = (low + high) // 2
        then, told = _tried(own, model, middle * step, today, risk)
        if then is None:
            low = middle + 1
        elif told:
            high, why = middle - 1, told
        else:
            found, low = CapByTokens(middle * step, "", today, then), middle + 1
    return found or CapByTokens(None, why, today)


def peak_under(found: CapByTokens, model: MemoryModel | None, answer: WhatIf) -> tuple[str, bool]:
    """Where memory peaks under a cap, and how often it runs out, in words; else why that isn't told, "" without a
    model. And whether micro-batches are unlike all that were seen, so that nothing is known of their peak.

    Args:
        found: The cap.
        model: Of the phase.
        answer: The replay of the cap.
    """
    peak = answer.frame[answer.frame["number"] == "predicted_peak_bytes"]
    if model is None or model.room_bytes is None or found.then is None or peak.empty:
        return "", False
    told = peak_told(peak, model, found.then.risk)
    return (told, False) if told else (" ".join(one for one in answer.notes if "no peak is told" in one), True)


def step_of(cap: int) -> int:
    """What caps are multiples of.

    Args:
        cap: About as large as they are.

    >>> step_of(8192), step_of(640)
    (256, 10)
    """
    return _ROUND if cap > 16 * _ROUND else max(1, cap // 64)


def longest_of(own: Replayer) -> int:
    """The smallest cap of one rank that holds each row.

    Args:
        own: Batches of one role and phase.
    """
    return -(-max(own.lengths()) // parallel_of(own.dealings[0].batch.rounds[0]))


def fullest_of(own: Replayer, settings: Settings) -> list[int]:
    """Tokens that are computed for the largest micro-batch of each step.

    Args:
        own: Batches of one role and phase.
        settings: Under which they are cut.
    """
    return [max((one[0] for one in own.after(at, settings).micro_batches), default=0) for at in range(len(own))]


def _largest(own: Replayer, model: MemoryModel | None, cap: int | None) -> Largest:
    """Under a cap; without one, as they were cut."""
    settings = Settings(dynamic=True, cap_tokens=cap)
    steps = [own.before(at) if cap is None else own.after(at, settings) for at in range(len(own))]
    micro_batches = [sorted(one.micro_batches) for one in steps]
    every = [one for step in micro_batches for one in step]
    computed = max((one[0] for one in every), default=0)
    return Largest(computed, None if model is None else risk_of(model, micro_batches))


def _tried(
    own: Replayer, model: MemoryModel | None, cap: int, today: Largest, risk: float
) -> tuple[Largest | None, str]:
    """What comes of a cap, and what it is too large for: "" for nothing. None where rows that stay together are above
    it.
    """
    try:
        then = _largest(own, model, cap)
    except InputError:
        return None, ""
    if then.computed > today.computed:
        tokens = count(today.computed)
        return then, f"Under each cap that was tried, some micro-batch computes more than today's {tokens} tokens."
    if then.risk is not None and then.risk > risk:
        return then, f"Under each cap that was tried, over {percent(risk)} of runs of 1,000 steps run out of memory."
    return then, ""
