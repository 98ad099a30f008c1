"""What advice is, as data and as text: suggestions, what memory allows of a cap, and the memory models."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from probe.analysis.advice.when import READY, When
from probe.analysis.change import Change, Confidence
from probe.analysis.memory_model import MemoryModel, Room
from probe.analysis.what_if.answering import WhatIf
from probe.records import GIB
from probe.text import count, missing, size, size_within

#: Share of runs of a thousand steps that may run out of memory.
RISK: Final = 0.02


@dataclass(frozen=True)
class Suggestion:
    """A change, and what it brings.

    Attributes:
        kind: ``"cap"``, ``"rows"``, ``"dynamic"``, ``"balance"``, ``"evened"``, ``"strict"``, or of NeMo-RL
            ``"packing"`` or ``"algorithm"``.
        values: What to set, by dotted key; empty where the framework has no key for it.
        before: What it is now, by the same keys; None where the configuration doesn't say.
        advice: What to do, in words.
        gains: What the replay of it gives, a sentence each.
        gain_share: Of a step's time that is saved; None where it isn't known. Negative where memory runs out without
            the change.
        gain_s: Seconds of a step that are saved, and how far the interval reaches; None without a time model.
        confidence: How sure it is.
        because: What the confidence rests on.
        what_if: The replay.
        when: When it can be made.
    """

    kind: str
    values: dict[str, Any]
    before: dict[str, Any]
    advice: str
    gains: tuple[str, ...]
    gain_share: float | None
    gain_s: tuple[float, float] | None
    confidence: Confidence
    because: str
    what_if: WhatIf
    when: When = READY

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {
            "kind": self.kind,
            "values": self.values,
            "before": self.before,
            "advice": self.advice,
            "gains": list(self.gains),
            "gain_share": self.gain_share,
            "gain_s": None if self.gain_s is None else list(self.gain_s),
            "confidence": self.confidence,
            "because": self.because,
            "when": self.when.to_dict(),
            "what_if": self.what_if.to_dict(),
        }

    @property
    def lowers(self) -> bool:
        """Whether it is a cap that has to go down."""
        return self.kind == "cap" and any(value < self.before[key] for key, value in self.values.items())

    @property
    def for_memory(self) -> bool:
        """Whether it is needed lest memory run out: it stands before all that saves time."""
        return self.lowers or (self.gain_share is not None and self.gain_share < 0)

    @property
    def phases(self) -> set[tuple[str | None, str | None]]:
        """Roles and phases whose batches were replayed."""
        told = self.what_if.frame[["role", "phase"]].drop_duplicates().itertuples(index=False, name=None)
        return {(None if missing(role) else role, None if missing(phase) else phase) for role, phase in told}

    @property
    def change(self) -> Change:
        """As the change of a finding, which prints the same."""
        told = tuple((key, value, self.before.get(key)) for key, value in self.values.items())
        key, value, now = told[0] if told else (None, None, None)
        when = self.when.told()
        return Change(self.advice, key, value, now, told[1:], self.gains, self.confidence, self.because, when)

    def __repr__(self) -> str:
        return "\n".join(self.change.told)


@dataclass(frozen=True)
class CapLimit:
    """What memory allows of a phase's cap, in tokens on one GPU.

    Attributes:
        best: The largest cap whose risk is small enough, not beyond twice the largest micro-batch that was seen; None
            where there is none.
        risky: From which on the risk is too large; None where no cap that could be asked for is.
    """

    best: int | None
    risky: int | None


@dataclass(frozen=True)
class Advice:
    """What :func:`advise` gives: suggestions, the largest gain first, and what can't be said.

    Attributes:
        framework: Of the run, "" for a loop of the user's own.
        suggestions: Each of them replayed.
        remarks: What is missing for more.
        memory: The memory model of each role and phase.
        limits: By role and phase what its memory allows of a cap; only where a model foretells it.
        risk: The share of runs of 1,000 steps that may run out of memory.
        room: What each role and phase left of the device's memory over the steps, where that is known.
    """

    framework: str
    suggestions: tuple[Suggestion, ...]
    remarks: tuple[str, ...]
    memory: tuple[MemoryModel, ...]
    limits: Mapping[tuple[str | None, str | None], CapLimit] = field(default_factory=dict)
    risk: float = RISK
    room: tuple[Room, ...] = ()

    @property
    def values(self) -> dict[str, Any]:
        """What all suggestions set, by dotted key; of two that set one key the one with the larger gain, and nothing of
        what another switches off.
        """
        return {key: value for one in self.together for key, value in one.items()}

    @property
    def together(self) -> list[dict[str, Any]]:
        """The same, by suggestion: the settings of one were replayed together, and are to be changed together."""
        found: dict[str, Any] = {}
        kept: list[dict[str, Any]] = []
        for one in self.suggestions:
            off = tuple(key.removesuffix("enabled") for key, value in found.items() if _switched_off(key, value))
            if one.values and not any(key in found or (off and key.startswith(off)) for key in one.values):
                found |= one.values
                kept.append(one.values)
        return kept

    @property
    def binding(self) -> MemoryModel | None:
        """The role and phase whose largest peak leaves least of the device's memory; None where none is known."""
        known = [one for one in self.memory if one.fit is not None and one.left_bytes is not None]
        return min(known, key=lambda one: one.left_bytes or 0.0, default=None)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {
            "framework": self.framework,
            "binding_phase": None if self.binding is None else self.binding.phase,
            "suggestions": [one.to_dict() for one in self.suggestions],
            "remarks": list(self.remarks),
            "memory": [memory_told(one) for one in self.memory],
            "room_over_steps": [asdict(one) for one in self.room],
        }

    def __repr__(self) -> str:
        told = [repr(one) for one in self.suggestions] or ["Nothing was found that is worth a change."]
        memory = [_memory_line(one) for one in self.memory if one.fit is not None]
        binding = self.binding
        if binding is not None:
            left = binding.left_bytes or 0.0
            told_left = f"left {size(left)} free" if left >= 0 else f"is {size(-left)} above what is free"
            memory.append(f"{binding.phase or 'no phase'} needs the most memory: its largest peak {told_left}.")
        memory += [_room_line(one) for one in self.room]
        return "\n\n".join([*told, *(textwrap.fill(one, 102) for one in [*self.remarks, *memory])])


def _switched_off(key: str, value: Any) -> bool:
    """Whether a group of settings counts no longer: ``….enabled`` is false."""
    return value is False and key.endswith(".enabled")


def _memory_line(model: MemoryModel) -> str:
    """A memory model in words."""
    terms = [
        f"{'−' if value < 0 else '+'} {size_within(abs(value), error)} {what}"
        for name, what in (("tokens", "a token"), ("longest", "a token of the longest row"), ("rows", "a row"))
        for value, error in [model.coefficient(name)]
        if abs(value) > max(1024, 2 * error)
    ]
    told = f"{model.phase or 'no phase'}: peak = {model.floor_bytes / GIB:.1f} GiB {' '.join(terms)}"
    if model.bytes_per_token_and_entry is not None:
        told += f"; a token's share ÷ the vocabulary is {model.bytes_per_token_and_entry:.3g} bytes"
    if model.drift_bytes_per_step:
        told += f"; {model.drift_bytes_per_step / 1024**2:+.3g} MiB a step besides"
    return f"{told}."


def _room_line(room: Room) -> str:
    """What a phase left free over the steps, in words."""
    name, least = room.phase or "no phase", f"least in step {count(room.least_step)}: {_free(room.least_bytes)}"
    if room.steps == 1:
        return f"{name} over one step: {_free(room.least_bytes)}."
    first, last = "the first step", "the last"
    if room.at_an_end > 1:
        first, last = f"the first {count(room.at_an_end)} (median)", f"the last {count(room.at_an_end)}"
    ends = f"{_free(room.first_bytes)} in {first}, {_free(room.last_bytes)} in {last}"
    return f"{name} over {count(room.steps)} steps: {ends}; {least}."


def _free(left: float) -> str:
    return f"{size(left)} free" if left >= 0 else f"{size(-left)} too little"


def memory_told(model: MemoryModel) -> dict[str, Any]:
    """A memory model as plain values, for JSON.

    Args:
        model: Of a role and phase.
    """
    terms = {name: model.coefficient(name) for name in ("tokens", "longest", "rows")}
    told = {
        f"bytes_per_{name}": None if math.isnan(value) else {"value": value, "error": error}
        for name, (value, error) in terms.items()
    }
    return {
        "role": model.role,
        "phase": model.phase,
        "floor_bytes": None if math.isnan(model.floor_bytes) else model.floor_bytes,
        **told,
        "bytes_per_token_and_entry": model.bytes_per_token_and_entry,
        "drift_bytes_per_step": model.drift_bytes_per_step,
        "reserved_above_bytes": model.reserved_above_bytes,
        "capacity_bytes": model.capacity_bytes,
        "left_out": list(model.left_out),
        "why": model.why,
        "experiment": model.experiment,
    }
