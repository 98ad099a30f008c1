"""What a change brings, in words: time of a step, the peak of memory, and how sure both are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from probe.analysis.change import Confidence
from probe.analysis.memory_model import MemoryModel
from probe.analysis.what_if.answering import WhatIf
from probe.records import GIB
from probe.text import count, missing, percent, seconds

#: Steps from which on a replay is more than a glance.
_FEW: Final = 3
_MANY: Final = 10


@dataclass(frozen=True)
class Gain:
    """What a change saves.

    Attributes:
        share: Of a step's time; None where it isn't known.
        seconds: Of a step, and how far the interval reaches; None without a time model.
    """

    share: float | None
    seconds: tuple[float, float] | None

    @property
    def surely(self) -> bool:
        """Whether the interval leaves nothing out."""
        return self.seconds is not None and self.seconds[0] > self.seconds[1]

    def told(self) -> str:
        """In words, to go on a sentence with."""
        if self.seconds is None:
            return ", if time is proportional to tokens"
        value, reach = self.seconds
        if not value and not reach:  # no term of its time is changed by it
            return ""
        size = seconds(abs(value))
        sign = "" if size == seconds(0) else "−" if value > 0 else "+"
        return f", {sign}{size} ± {seconds(reach)} a step"


def step_seconds(shares: Mapping[str | None, tuple[float, float]]) -> float | None:
    """Seconds of a step, from the phases whose share of it is known; None where none is.

    Args:
        shares: Seconds and share by phase.
    """
    told = [took / share for took, share in shares.values() if share > 0]
    return sorted(told)[len(told) // 2] if told else None


def gain_of(answer: WhatIf, shares: Mapping[str | None, tuple[float, float]], step_s: float | None) -> Gain:
    """What a replay saves of a step: by the time model where all phases have one, else by what ranks wait.

    Args:
        answer: The replay.
        shares: Seconds and share of a step by phase.
        step_s: Of :func:`step_seconds`.
    """
    phases = answer.frame[["role", "phase"]].drop_duplicates().itertuples(index=False, name=None)
    keys = list(phases)
    if keys and all(key in answer.saved_s for key in keys):
        value, reach = (sum(answer.saved_s[key][at] for key in keys) for at in (0, 1))
        return Gain(None if step_s is None else value / step_s, (value, reach))
    share, known = 0.0, False
    for role, phase in keys:
        before, after = answer.number("waiting_ratio", role=role, phase=phase)
        part = shares.get(phase, (math.nan, math.nan))[1]
        if math.isfinite(part) and math.isfinite(before - after):
            share, known = share + (before - after) * part, True
    return Gain(share if known else None, None)


def peak_told(peak: Any, model: MemoryModel, risk: float | None) -> str:
    """Where memory peaks under a change, and how often it runs out, in words.

    Args:
        peak: The row of the predicted peak, as a frame.
        model: The memory model of the phase.
        risk: Share of runs of 1,000 steps that may run out of memory.

    Returns:
        "" where no peak is told: a note of the answer says why.
    """
    if peak.empty or missing(peak["after"].iloc[0]):
        return ""
    room, row = model.room_bytes or math.nan, peak.iloc[0]
    reach = (row["high"] - row["low"]) / 2 / GIB
    return (
        f"{model.phase or 'it'} peaks at {row['after'] / GIB:.1f} ± {reach:.1f} GiB of {room / GIB:.1f} "
        f"(out of memory in {share_told(risk)} of runs of 1,000 steps)"
    )


def today_told(phase: str | None, risk: float | None) -> str:
    """How often memory runs out as it is, in words.

    Args:
        phase: Of the batches.
        risk: Share of runs of 1,000 steps that run out of memory.
    """
    told = f"today's micro-batches run out of memory in {share_told(risk)} of runs of 1,000 steps"
    return told if phase is None else f"{phase}: {told}"


def share_told(risk: float | None) -> str:
    """A risk in words; one that is next to nothing has no digits to trust.

    Args:
        risk: Share of runs that run out of memory.

    >>> share_told(0.031), share_told(1e-7)
    ('3.1 %', 'less than 0.01 %')
    """
    return "less than 0.01 %" if risk is not None and 0 < risk < 1e-4 else percent(risk)


def sure(answer: WhatIf, surely: bool, gain: Gain | None = None) -> tuple[str, Confidence]:
    """What the confidence rests on, and how sure it is.

    Args:
        answer: The replay.
        surely: Whether what it gains is measured, and leaves nothing out.
        gain: What it saves; None where no time is asked.
    """
    rule = "by the rule of its packer" if answer.compared else "by a rule not compared with the package"
    told = f"{answer.steps} steps replayed {rule}"
    if answer.refused:
        told += f", {len(answer.refused)} that can't be cut so"
    if not answer.compared or answer.steps < _FEW or answer.refused:
        return told, "low"
    if not surely:
        measured = gain is not None and gain.seconds is not None
        why = "the interval of the time saved includes 0" if measured else "its time isn't measured"
        return f"{told}; {why}", "medium"
    return told, "high" if answer.steps >= _MANY else "medium"


def none_is_safe(phase: str | None, least: int, risk: float | None) -> str:
    """That no cap keeps the risk low enough.

    Args:
        phase: Of the batches.
        least: About the smallest cap that holds the longest row.
        risk: Under it, the share of runs of 1,000 steps that run out of memory.
    """
    return (
        f"{phase or 'no phase'}: no cap is advised. Under a cap of {count(least)}, about the smallest that holds the "
        f"longest row, {percent(risk)} of runs of 1,000 steps run out of memory."
    )
