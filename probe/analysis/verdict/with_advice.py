"""Advice beside what was found: each suggestion on the finding that it belongs to, with what its replay gave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from probe.analysis.advice.advice import advise
from probe.analysis.advice.suggestions import Advice, Suggestion
from probe.analysis.verdict.finding import Finding, Findings
from probe.errors import InputError

if TYPE_CHECKING:
    from probe.runs.reader import Run

_FOR_MEMORY: Final = ("cap", "evened", "rows", "dynamic")

#: Kinds of suggestions that answer a finding, by its name; one about memory has only those that memory needs.
ANSWERS: Final[Mapping[str, tuple[str, ...]]] = {
    "out_of_memory": _FOR_MEMORY,
    "tight_memory": _FOR_MEMORY,
    "over_cap": ("strict",),
    "uneven_ranks": ("balance",),
    "uneven_micro_batches": ("dynamic",),
}


def asked(run: Run, found: Findings) -> Findings:
    """What was found, with the advice that it has; without asking for advice where no finding could have some.

    Args:
        run: The run.
        found: In it.
    """
    if not any(one.name in ANSWERS for one in found):
        return found
    try:
        return advised(found, advise(run))
    except InputError:  # no micro-batches
        return found


def advised(found: Findings, advice: Advice) -> Findings:
    """What was found, with the advice that it has.

    Args:
        found: In a run.
        advice: For the same run.
    """
    return Findings(_advised(one, advice) for one in found.everything)


def _advised(one: Finding, advice: Advice) -> Finding:
    answer = next((each for each in advice.suggestions if _belongs(each, one)), None)
    return one if answer is None else one.moved(change=answer.change)


def _belongs(suggestion: Suggestion, one: Finding) -> bool:
    if one.kind in ("fine", "withheld") or suggestion.kind not in ANSWERS.get(one.name, ()):
        return False
    if one.name in ("out_of_memory", "tight_memory") and not suggestion.for_memory:
        return False
    phases = set(suggestion.what_if.frame["phase"])
    return one.where.phase is None or one.where.phase in phases
