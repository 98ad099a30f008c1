"""What NeMo-RL's own settings would change: bins in the place of rectangles, and another rule for bins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from probe.analysis.advice.keys import nemo_rl_cap, value_of
from probe.analysis.what_if.answering import Replayer, WhatIf
from probe.analysis.what_if.cutting import recorded_cut
from probe.analysis.what_if.settings import Settings
from probe.errors import InputError

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: The rule for bins that needs fewest in the worst case.
BEST: Final = "modified_first_fit_decreasing"

_DYNAMIC: Final = "policy.dynamic_batching.enabled"
_PACKS: Final = "policy.sequence_packing.enabled"
_ALGORITHM: Final = "policy.sequence_packing.algorithm"


@dataclass(frozen=True)
class Packed:
    """Bins by :data:`BEST`, for the phases that a switch turns together.

    Attributes:
        kind: ``"packing"`` in the place of dynamic batching, ``"algorithm"`` in the place of another rule for bins.
        values: What to set, by dotted key.
        advice: What to do, in words.
        answers: The replay of each phase.
        fewer: By phase the share of what the fullest ranks compute that is saved; negative where it is more.
    """

    kind: str
    values: dict[str, Any]
    advice: str
    answers: tuple[WhatIf, ...]
    fewer: Mapping[str | None, float]


def packed(run: Run, phases: Sequence[tuple[str | None, Replayer]]) -> list[Packed]:
    """Bins in the place of what NeMo-RL's run had, replayed; nothing for a run whose rule was another's.

    Args:
        run: The run.
        phases: Of each its name and its batches.
    """
    found: dict[str, list[tuple[str | None, Replayer, WhatIf]]] = {}
    for phase, own in phases:
        cut = recorded_cut(own.dealings[0].batch.rounds[0].calls[0])
        rule = "" if cut is None or own.dealings[0].batch.undealt is None else cut.packer
        kind = "packing" if rule == "nemo_rl.dynamic_batching" else "algorithm" if rule.startswith("packing.") else ""
        if not kind or rule == f"packing.{BEST}":
            continue
        try:
            answer = own.answer(Settings(packer=f"packing.{BEST}"), lambda: True)
        except InputError:
            continue
        found.setdefault(kind, []).append((phase, own, answer))
    return [_of(run, kind, told) for kind, told in found.items()]


def _of(run: Run, kind: str, told: Sequence[tuple[str | None, Replayer, WhatIf]]) -> Packed:
    values: dict[str, Any] = {_ALGORITHM: BEST}
    advice = "Pack sequences by modified first fit decreasing."
    if kind == "packing":
        caps = {
            nemo_rl_cap("sequence_packing", phase): own.dealings[0].batch.rounds[0].calls[0].cap_tokens
            for phase, own, _ in told
        }
        values = {_DYNAMIC: False, _PACKS: True, **caps, **values}
        advice = "Pack sequences into bins instead of padded micro-batches; the model must accept packed sequences."
    fewer = {phase: _fewer(own) for phase, own, _ in told}
    new = {key: value for key, value in values.items() if value_of(run, key) != value}
    return Packed(kind, new, advice, tuple(answer for *_, answer in told), fewer)


def _fewer(own: Replayer) -> float:
    """Of what the fullest ranks compute, over all batches."""
    asked = Settings(packer=f"packing.{BEST}")
    before = after = 0
    for at in range(len(own)):
        try:
            after += sum(one.computed for one in own.after(at, asked).slowest)
        except InputError:  # which the answer tells of
            continue
        before += sum(one.computed for one in own.before(at).slowest)
    return 1 - after / before if before else 0.0
